"""What is counted while a run goes on. Tensors stay on the device: a round never waits for the host."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedctta.errors import UserError
from fedctta.metrics import BINS, MILLION
from fedctta.network import Tensors
from fedctta.streams import ABSENT, Stream

KEPT_MATRIX_BYTES = 64 * 2**20  # memory for matrices over time, whatever the number of rounds and clients


class Tally:
    """Counts of one run, in arrays whose size is known before the first round."""

    def __init__(self, stream: Stream, aggregations: NDArray[np.int64], device: torch.device) -> None:
        rounds, clients = stream.domain.shape
        self.batch = stream.samples.shape[2]
        self.domain = stream.domain
        self.correct = torch.zeros(rounds, clients, dtype=torch.int32, device=device)
        by_class = (len(stream.data.names), clients, len(stream.data.classes))
        self.right = torch.zeros(by_class, dtype=torch.int32, device=device)
        self.predicted = torch.zeros(by_class, dtype=torch.int32, device=device)
        self.calibration = torch.zeros(BINS, 3, dtype=torch.int64, device=device)
        self.entropy = torch.zeros(rounds, clients, device=device)
        self.kept_rounds = even_sample(aggregations, KEPT_MATRIX_BYTES // (4 * clients * clients))
        self._place = {int(t): k for k, t in enumerate(self.kept_rounds)}
        self.matrices = torch.zeros(len(self.kept_rounds), clients, clients, device=device)
        self.same_domain = torch.zeros(2, dtype=torch.float64, device=device)  # weight on own domain, client rounds
        self.finite = torch.ones((), dtype=torch.bool, device=device)
        self.bytes = torch.zeros(2, dtype=torch.int64)  # up, down
        self.seconds = torch.zeros((), dtype=torch.float64)

    def record(self, t: int, logits: Tensor, labels: Tensor, domain: Tensor) -> None:
        """Count the predictions of round t; the only place where labels are used."""
        active = domain != ABSENT
        log_p = logits.log_softmax(-1)
        confidence, predicted = log_p.exp().max(-1)
        hits = (predicted == labels).int()
        everyone = len(hits) == len(active)
        who = torch.arange(len(active), device=domain.device)
        who, where = (who, domain) if everyone else (who[active], domain[active])
        cell = ((where.long() * len(active) + who) * self.right.shape[-1])[:, None]
        self.right.view(-1).index_add_(0, (cell + labels).flatten(), hits.flatten())
        self.predicted.view(-1).index_add_(0, (cell + predicted).flatten(), torch.ones_like(hits).flatten())
        sure = confidence.flatten()
        counts = torch.stack([torch.ones_like(sure), (sure * MILLION).round(), hits.flatten().to(sure.dtype)], 1)
        self.calibration.index_add_(0, (sure * BINS).long().clamp_(0, BINS - 1), counts.nan_to_num().long())
        entropy = -(log_p.exp() * log_p).sum(-1).mean(-1)
        if everyone:
            self.correct[t], self.entropy[t] = hits.sum(-1, dtype=torch.int32), entropy
        else:
            self.correct[t, active], self.entropy[t, active] = hits.sum(-1, dtype=torch.int32), entropy
        self.finite &= logits.isfinite().all()

    def record_collaboration(self, t: int, weights: Tensor, domain: Tensor, moved: tuple[int, int]) -> None:
        """Note W of round t, the share of it on clients of the same domain, and the bytes it moved."""
        active = domain != ABSENT
        same = (weights * (domain[:, None] == domain[None, :])).sum(1)
        self.same_domain += torch.stack([(same * active).sum(), active.sum()])
        self.bytes += torch.tensor(moved)
        if t in self._place:
            self.matrices[self._place[t]] = weights

    def accuracy(self, rounds: int) -> float:
        """Accuracy so far; waits for the device, and refuses outputs that are not finite."""
        if not bool(self.finite):
            raise UserError(
                f"predictions became NaN or infinite by round {rounds}: lower the learning rate, or check the model"
            )
        seen = (self.domain[:rounds] != ABSENT).sum() * self.batch
        return int(self.correct[:rounds].sum()) / max(int(seen), 1)

    def seen(self) -> NDArray[np.int32]:
        """Images shown in every round to every client."""
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

    def tensors(self) -> Tensors:
        """Return everything a resumed run needs."""
        return {f"tally.{name}": getattr(self, name) for name in self._SAVED}

    def restore(self, saved: Tensors, path: Path) -> None:
        """Take over what `tensors` gave."""
        for name in self._SAVED:
            mine, theirs = getattr(self, name), saved.get(f"tally.{name}")
            if theirs is None or theirs.shape != mine.shape:
                raise UserError(f"{path} does not fit this run: delete it, or run without --resume")
            mine.copy_(theirs)


def even_sample(rounds: NDArray[np.int64], limit: int) -> NDArray[np.int64]:
    """Return at most `limit` (at least one) of the rounds, evenly spread, first and last included if two fit."""
    count = min(len(rounds), max(limit, 1))
    return rounds[np.linspace(0, len(rounds) - 1, count).round().astype(int)] if count else rounds
