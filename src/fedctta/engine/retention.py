"""Forgetting: accuracy on every domain met so far, measured again during the run.

The server's own model is measured if it keeps one (a newcomer starts from it), and otherwise the mean of the models of
the present clients. It predicts and does not adapt. Rows of `accuracy`[C, D] are taken right after the rounds in which
a domain is met for the last time, the last of which is the end of the run: at most D rows for any length of the run and
any number of clients. Columns are domains, nan where a domain had not been met. `metrics.forgetting` computes the loss
from them.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedctta.core.clients import Client
from fedctta.core.network import Tensors
from fedctta.core.storage import widen
from fedctta.data.domains import UNLABELLED, Domains
from fedctta.data.mask_layouts import IGNORE
from fedctta.engine.rounds import Federation, State
from fedctta.errors import UserError
from fedctta.models.inputs import read_batch
from fedctta.streams import ABSENT, Stream


class Retention:
    """Measures accuracy on the same `images` images of every domain met so far."""

    def __init__(self, stream: Stream, images: int, seed: int) -> None:
        rng = np.random.default_rng((seed, 37))
        self.stream, data = stream, stream.data
        if isinstance(data, Domains) and not data.shared:
            self.samples = {name: _draw(n, images, rng) for name, n in zip(data.names, data.sizes, strict=True)}
        else:  # the same images in every domain
            self.samples = dict.fromkeys(data.names, _draw(data.count, images, rng))
        self.rounds = last_visits(stream.domain)
        self.accuracy = torch.full((len(self.rounds), len(stream.data.names)), torch.nan)
        self._place = {int(t): k for k, t in enumerate(self.rounds)}

    def measure(self, federation: Federation, state: State, t: int) -> None:
        """After round t: if a domain is left for good here, predict images of all domains met so far."""
        if t not in self._place:
            return
        there = np.flatnonzero(self.stream.domain[t] != ABSENT)
        client = reference(federation, state, torch.from_numpy(there).to(federation.network.device))
        met = np.unique(self.stream.domain[: t + 1])
        for k in met[met != ABSENT]:
            self.accuracy[self._place[t], k] = self._accuracy(federation, client, self.stream.data.names[k])

    def _accuracy(self, federation: Federation, client: Client, domain: str) -> float:
        size, samples = self.stream.batch, self.samples[domain]
        right = total = 0
        for part in np.array_split(samples, max(1, len(samples) // size)):
            x = read_batch(np.asarray(self.stream.data.images[domain][part]), federation.network.device)
            guess = federation.adapter.predict(federation.network, client, x).argmax(-1).cpu().numpy()
            truth = self.stream.data.labels_of(domain)[part].reshape(-1)
            counts = truth != (IGNORE if self.stream.data.dense else UNLABELLED)
            right += int((guess == truth)[counts].sum())
            total += int(counts.sum())
        return right / total if total else float("nan")

    def tensors(self) -> Tensors:
        """Return everything a resumed run needs."""
        return {"retention.accuracy": self.accuracy}

    def restore(self, saved: Tensors, path: Path) -> None:
        """Take over what `tensors` gave."""
        theirs = saved.get("retention.accuracy")
        if theirs is None or theirs.shape != self.accuracy.shape:
            raise UserError(f"{path} does not fit this run: delete it, or run without --resume")
        self.accuracy.copy_(theirs)


def _draw(count: int, images: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """Draw at most `images` of `count` images, in their order."""
    return np.sort(rng.permutation(count)[:images])


def last_visits(domain: NDArray[np.int32]) -> NDArray[np.int64]:
    """Return the rounds in which some domain is met for the last time by anybody."""
    met = np.unique(domain[domain != ABSENT])
    return np.unique([np.flatnonzero((domain == k).any(1))[-1] for k in met])


def reference(federation: Federation, state: State, there: Tensor) -> Client:
    """Return the client to be measured: the mean of the models of those `there`, the server's own laid over it."""
    own = {name: tensor.mean(0) for name, tensor in widen({n: t[there] for n, t in state.clients.own.items()}).items()}
    private = {name: tensor[there[0]] for name, tensor in state.clients.private.items()}
    return Client(own | federation.aggregator.keeps(state.memory), private)
