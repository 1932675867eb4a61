"""The counts of a run. Tensors stay on the device: a round never waits for the host."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedctta.aggregators.common.groups import Groups
from fedctta.aggregators.common.mixing import matrix
from fedctta.core.network import Tensors
from fedctta.data.domains import UNLABELLED
from fedctta.data.mask_layouts import IGNORE
from fedctta.errors import NotFinite, UserError
from fedctta.results.metrics import BINS, MILLION
from fedctta.streams import ABSENT, Stream

KEPT_MATRIX_BYTES = 64 * 2**20  # memory for matrices over time, for any number of rounds and clients


def count_kept(clients: int) -> int:
    """Return how many matrices W[N, N] are kept of a run at most; none of more than 4,096 clients."""
    return KEPT_MATRIX_BYTES // (4 * clients * clients)


class Tally:
    """Counts of one run, in arrays whose size is known before the first round.

    For dense data pixels are counted, except those labelled `IGNORE`, and one predicted mask per domain is kept. Images
    without a label are predicted, and count for nothing but entropy. With `predictions`, every predicted class is kept
    too, for comparisons.
    """

    def __init__(
        self, stream: Stream, aggregations: NDArray[np.int64], device: torch.device, predictions: bool = False
    ) -> None:
        rounds, clients = stream.domain.shape
        self.batch = stream.batch
        self.domain = stream.domain
        self.correct = torch.zeros(rounds, clients, dtype=torch.int32, device=device)
        by_class = (len(stream.data.names), clients, len(stream.data.classes))
        self.dense = stream.data.dense
        self.partial = self.dense or not stream.all_labelled  # some labels are `ignored`, and do not count
        self.ignored = IGNORE if self.dense else UNLABELLED
        whole = torch.int64 if self.dense else torch.int32  # pixels of a long run may be too many for 32 bits
        self.right = torch.zeros(by_class, dtype=whole, device=device)
        self.predicted = torch.zeros(by_class, dtype=whole, device=device)
        self.calibration = torch.zeros(BINS, 3, dtype=torch.int64, device=device)
        self.entropy = torch.zeros(rounds, clients, device=device)
        aggregations = aggregations[(stream.domain[aggregations] != ABSENT).any(1)]  # without clients there is no W
        self.kept_rounds = even_sample(aggregations, count_kept(clients))
        # A CUDA graph writes every W; where not all are kept, the others go to one more place.
        spare = int(device.type == "cuda" and 0 < len(self.kept_rounds) < len(aggregations))
        self._place = {int(t): k for k, t in enumerate(self.kept_rounds)}
        self._rounds = torch.arange(rounds, device=device)
        self._places = torch.full_like(self._rounds, len(self.kept_rounds))
        self._places[torch.from_numpy(self.kept_rounds).to(device)] = torch.arange(len(self.kept_rounds), device=device)
        self._matrices = torch.zeros(len(self.kept_rounds) + spare, clients, clients, device=device)
        self.matrices = self._matrices[: len(self.kept_rounds)]
        self.same_domain = torch.zeros(2, dtype=torch.float64, device=device)  # weight on own domain, client rounds
        self.finite = torch.ones((), dtype=torch.bool, device=device)
        if self.partial:
            self.shown = torch.zeros_like(self.correct)
        if self.dense:
            self.masks = torch.zeros(len(stream.data.names), *stream.shape[:2], dtype=torch.uint8, device=device)
            self._farewells = stream.farewells()
        self.bytes = torch.zeros(2, dtype=torch.int64)  # up, down
        self.seconds = torch.zeros((), dtype=torch.float64)
        # [T, N, B], 0 where nobody was; not part of a saved place
        self.classes = (
            torch.zeros(rounds, clients, self.batch, dtype=torch.int64, device=device) if predictions else None
        )
        self.replayed = 0  # rounds played by a CUDA graph

    def record(self, t: int, logits: Tensor, labels: Tensor, domain: Tensor) -> None:
        """Count the predictions of round t."""
        if self.dense:
            self._keep_masks(t, logits.argmax(-1))
        self.count(self._rounds[t : t + 1], logits, labels, domain)

    def count(self, when: Tensor, logits: Tensor, labels: Tensor, domain: Tensor) -> None:
        """Count the predictions of round when[1]; the only place where labels are used.

        The host decides nothing here if all clients are present, so a CUDA graph can contain it.
        """
        log_p = logits.log_softmax(-1)
        confidence, predicted = log_p.exp().max(-1)
        hits = (predicted == labels).to(self.right.dtype)
        shown = torch.ones_like(hits)
        if self.partial:
            shown = (labels != self.ignored).to(hits.dtype)
            labels = labels.long() * shown
        clients = len(domain)
        who, where = torch.arange(clients, device=domain.device), domain
        if len(hits) < clients:
            who = who[domain != ABSENT]
            where = domain[who]
        cell = ((where.long() * clients + who) * self.right.shape[-1])[:, None]
        self.right.view(-1).index_add_(0, (cell + labels).flatten(), hits.flatten())
        self.predicted.view(-1).index_add_(0, (cell + predicted).flatten(), shown.flatten())
        sure, counted = confidence.flatten(), shown.flatten().to(confidence.dtype)
        counts = torch.stack([counted, (sure * MILLION).round() * counted, hits.flatten().to(sure.dtype)], 1)
        self.calibration.index_add_(0, (sure * BINS).long().clamp_(0, BINS - 1), counts.nan_to_num().long())
        entropy = -(log_p.exp() * log_p).sum(-1)
        entropy = (entropy * shown).sum(-1) / shown.sum(-1).clamp_min(1) if self.dense else entropy.mean(-1)
        self._note(self.correct, when, who, hits.sum(-1))
        self._note(self.entropy, when, who, entropy)
        if self.classes is not None:
            self._note(self.classes, when, who, predicted)
        if self.partial:
            self._note(self.shown, when, who, shown.sum(-1))
        self.finite &= logits.isfinite().all()

    @staticmethod
    def _note(table: Tensor, when: Tensor, who: Tensor, values: Tensor) -> None:
        """Write the values of clients `who` into row when[1] of table[T, N, ...]."""
        row = torch.zeros_like(table[0]).index_copy_(0, who, values.to(table.dtype))
        table.index_copy_(0, when, row[None])

    def _keep_masks(self, t: int, predicted: Tensor) -> None:
        """Keep the prediction for the first image of a domain's last batch (see `Stream.farewells`)."""
        height, width = self.masks.shape[1:]
        for k, last, client in self._farewells:
            if last == t:
                row = int((self.domain[t, :client] != ABSENT).sum())
                self.masks[k] = predicted[row, : height * width].view(height, width)

    def record_collaboration(self, t: int, weights: Tensor | Groups, domain: Tensor, moved: tuple[int, int]) -> None:
        """Record W of round t, its share on clients of the same domain, and the bytes sent."""
        self.count_collaboration(weights, domain)
        self.record_bytes(moved)
        if t in self._place:
            self.matrices[self._place[t]] = matrix(weights).to_dense()

    def record_bytes(self, moved: tuple[int, int]) -> None:
        """Add the bytes sent up and down in a round."""
        self.bytes += torch.tensor(moved)

    def count_collaboration(self, weights: Tensor | Groups, domain: Tensor) -> None:
        """Add up the share of W on clients of the same domain; a CUDA graph can contain it."""
        active = domain != ABSENT
        if isinstance(weights, Groups):
            names = torch.arange(len(self.right), device=domain.device)
            same = weights.share_among((domain[:, None] == names).to(weights.alone.dtype))  # absent: of no domain
            self.same_domain += torch.stack([same.sum(), active.sum()])
        elif weights.is_sparse:
            i, j = weights._indices()  # as they are: putting them in order is of no use here
            same = weights._values() * (domain[i] == domain[j]) * active[i]
            self.same_domain += torch.stack([same.sum(), active.sum()])
        else:
            same = (weights * (domain[:, None] == domain[None, :])).sum(1)
            self.same_domain += torch.stack([(same * active).sum(), active.sum()])

    def keep_matrix(self, when: Tensor, weights: Tensor | Groups) -> None:
        """Keep W of round when[1], if it is one of `kept_rounds`; a CUDA graph can contain it."""
        if len(self.kept_rounds):
            self._matrices.index_copy_(0, self._places.index_select(0, when), matrix(weights).to_dense()[None])

    def accuracy(self, rounds: int) -> float:
        """Accuracy so far (nan without labels); waits for the device, and refuses outputs that are not finite."""
        if not bool(self.finite):
            raise NotFinite(f"predictions became NaN or infinite by round {rounds}")
        labelled = int(self.labelled()[:rounds].sum())
        if not labelled and self.seen()[:rounds].any():
            return float("nan")
        return int(self.correct[:rounds].sum()) / max(labelled, 1)

    def labelled(self) -> NDArray[np.int32]:
        """Images (pixels of dense data) that count for accuracy in every round of every client."""
        return self.shown.cpu().numpy() if self.partial else self.seen()

    def seen(self) -> NDArray[np.int32]:
        """Images (counted pixels of dense data) shown in every round to every client."""
        if self.dense:
            return self.shown.cpu().numpy()
        return np.where(self.domain == ABSENT, 0, self.batch).astype(np.int32)

    def same_domain_weight(self) -> float:
        """Mean share of W on clients of the same domain; 1 when nobody collaborates."""
        weight, rounds = self.same_domain.tolist()
        return weight / rounds if rounds else 1.0

    _SAVED = (
        "correct",
        "right",
        "predicted",
        "calibration",
        "entropy",
        "matrices",
        "same_domain",
        "finite",
        "bytes",
        "seconds",
    )

    @property
    def _saved(self) -> tuple[str, ...]:
        more = (*(("shown",) if self.partial else ()), *(("masks",) if self.dense else ()))
        return self._SAVED + more

    def tensors(self) -> Tensors:
        """Return everything a resumed run needs."""
        return {f"tally.{name}": getattr(self, name) for name in self._saved}

    def restore(self, saved: Tensors, path: Path) -> None:
        """Restore what `tensors` returned."""
        for name in self._saved:
            mine, theirs = getattr(self, name), saved.get(f"tally.{name}")
            if theirs is None or theirs.shape != mine.shape:
                raise UserError(f"{path} does not fit this run: delete it, or run without --resume")
            mine.copy_(theirs)


def even_sample(rounds: NDArray[np.int64], limit: int) -> NDArray[np.int64]:
    """Return at most `limit` of the rounds, evenly spread, first and last included if two fit."""
    count = min(len(rounds), limit)
    return rounds[np.linspace(0, len(rounds) - 1, count).round().astype(int)] if count else rounds[:0]
