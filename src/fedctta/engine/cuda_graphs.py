"""Rounds as CUDA graphs: captured once, replayed without the host.

A round of a few clients is hundreds of small kernels, and to launch them takes several times as long as to run them.
So the whole round (read, adapt, signal, aggregate, download, predict, count) is captured when its form is known, and
from then on a round is one call. The state is in tensors with fixed addresses; the graph writes the new state over the
old one, and increments its own round number.

Rounds that a graph cannot contain are played without it: rounds in which a client is absent or uploads are late, and
methods that decide on the host. If a method did so without torch noticing (it keeps a number on the CPU), the graph
would always use the same value: such memories are not captured, and the first replays are compared with plain rounds.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from fedctta.core.gpu_memory import capture_graph
from fedctta.engine.device_stream import DeviceStream
from fedctta.engine.rounds import Federation, Outcome, State, flatten
from fedctta.engine.tally import Tally
from fedctta.errors import UserError
from fedctta.streams import ABSENT, Stream

WARM = 2  # rounds without a graph before a capture: methods build up their memory, libraries initialise
PROOFS = 2  # replays compared with ordinary rounds
FEW = 5  # rounds for which a capture takes longer than it saves


class NotCapturable(Exception):
    """Why rounds cannot be replayed."""


class _Graph(NamedTuple):
    graph: torch.cuda.CUDAGraph
    moved: tuple[int, int]


class RoundGraphs:
    """Plays a stream's rounds, by a CUDA graph wherever that is possible."""

    def __init__(self, federation: Federation, stream: Stream, tally: Tally, resident: DeviceStream) -> None:
        self._federation, self._tally, self._resident = federation, tally, resident
        self._late = stream.delay is not None
        self._whole = (stream.domain != ABSENT).all(1)
        self._rounds = len(stream)
        self._device = federation.network.device
        self._side = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]
        self._when = torch.zeros(1, dtype=torch.int64, device=self._device)
        self._everybody = torch.ones(stream.clients, dtype=torch.bool, device=self._device)
        self._held: State | None = None
        self._at = 0  # the round that `_when` holds
        self._graphs: dict[bool, _Graph] = {}  # by whether the server takes part in the round
        self._warm: dict[bool, int] = {}
        self._proofs = PROOFS
        self.refusal: str | None = None  # why rounds are not replayed, once that is known

    def serves(self, t: int) -> bool | None:
        """Return whether the server takes part in round t, or None if the round cannot be captured."""
        if self.refusal is not None or self._late or not self._whole[t] or (t and not self._whole[t - 1]):
            return None
        federation = self._federation
        return federation.aggregator.communicates and (t + 1) % federation.interval == 0

    def ready(self, state: State, t: int) -> bool:
        """Whether round t is to be replayed; if not, it is to be played without a graph, and counts as warm-up."""
        serves = self.serves(t)
        if serves is None:
            return False
        if self._held is not None and state is not self._held and not alike(self._held, state):
            self._forget()
        if serves in self._graphs:
            return True
        self._warm[serves] = self._warm.get(serves, -1) + 1
        if self._warm[serves] < WARM or self._rounds - t < FEW:
            return False
        try:
            self._capture(serves, state, t)
        except NotCapturable as error:
            self.refusal = str(error)
            return False
        return True

    def _forget(self) -> None:
        """Begin anew with a state of another form: a server's memory may appear with its first exchange."""
        self._held, self._proofs = None, PROOFS
        self._graphs.clear()
        self._warm.clear()

    def next(self, state: State, t: int) -> State:
        """Replay round t, which must be `ready`."""
        serves = self.serves(t)
        assert serves is not None
        held = self._hold(state)
        if self._at != t:
            self._when.fill_(t)
        if self._proofs:
            return self._prove(serves, held, t)
        self._launch(serves, t)
        return held

    def _launch(self, serves: bool, t: int) -> None:
        graph, moved = self._graphs[serves]
        graph.replay()
        self._at = t + 1
        self._tally.bytes += torch.tensor(moved)
        self._tally.replayed += 1

    def _hold(self, state: State) -> State:
        """Return the state in the tensors that the graphs work on."""
        if self._held is None:
            raise NotCapturable("nothing was captured")
        if state is not self._held:
            write_over(self._held, state)
        return self._held

    def _capture(self, serves: bool, state: State, t: int) -> None:
        if any(tensor.device.type == "cpu" for tensor in flatten(state).values()):
            raise NotCapturable(f"aggregator {self._federation.aggregator.name} keeps numbers on the host")
        if self._held is None:
            self._held = State(*(_cloned(part) for part in state))  # type: ignore[arg-type]
        elif not alike(self._held, state):
            raise NotCapturable("the state changes its form")
        held, outcome = self._held, None
        graph = torch.cuda.CUDAGraph()
        torch.cuda.current_stream(self._device).synchronize()
        try:
            with capture_graph(graph, self._side):
                outcome = self._round(held, t)
        except (RuntimeError, NotCapturable) as error:
            torch.cuda.synchronize(self._device)
            reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
            raise NotCapturable(f"a round cannot be captured: {reason}") from error
        self._graphs[serves] = _Graph(graph, (outcome.bytes_up, outcome.bytes_down))

    def _round(self, held: State, t: int) -> Outcome:
        """The round as it is captured; t only says whether the server takes part."""
        federation, tally = self._federation, self._tally
        x, labels, domain = self._resident.slot(self._when)
        told = domain if federation.aggregator.upper_bound else None
        new, outcome = federation.play(held, t, x, self._everybody, told)
        if not alike(held, new):
            raise NotCapturable("the state changes its form")
        tally.count(self._when, outcome.logits, labels, domain)
        if outcome.collaboration is not None:
            tally.count_collaboration(outcome.collaboration, domain)
            tally.keep_matrix(self._when, outcome.collaboration)
        write_over(held, new)
        self._when.add_(1)
        return outcome

    def _prove(self, serves: bool, held: State, t: int) -> State:
        """Replay a round and play it without a graph; if they differ, keep the latter and replay no more."""
        federation, tally = self._federation, self._tally
        x, labels, domain = self._resident.read(t)
        told = domain if federation.aggregator.upper_bound else None
        expected, outcome = federation.play(held, t, x, self._everybody, told)
        expected = State(*(_cloned(part) for part in expected))  # type: ignore[arg-type]
        right = (outcome.logits.argmax(-1) == labels).sum(-1)
        before = {name: tensor.clone() for name, tensor in tally.tensors().items()}
        self._launch(serves, t)
        off = int((tally.correct[t] - right).abs().sum())
        if off <= max(1, labels.numel() // 1000) and near(expected, held):
            self._proofs -= 1
            return held
        self.refusal = f"replayed rounds differ from round {t} on"
        for name, tensor in tally.tensors().items():
            tensor.copy_(before[name])
        tally.replayed -= 1
        tally.record(t, outcome.logits, labels, domain)
        if outcome.collaboration is not None:
            tally.record_collaboration(t, outcome.collaboration, domain, (outcome.bytes_up, outcome.bytes_down))
        return expected

    def insist(self) -> None:
        """Raise a UserError if rounds could not be replayed."""
        if self.refusal is not None:
            raise UserError(f"lift=graph is not possible here, {self.refusal}: use lift=vmap or lift=auto")


def _cloned(part: object) -> object:
    """Copy a part of the state: a client or a dictionary of tensors."""
    if isinstance(part, dict):
        return {name: tensor.clone() for name, tensor in part.items()}
    return type(part)(*(_cloned(inner) for inner in part))  # type: ignore[attr-defined]


def alike(one: State, other: State) -> bool:
    """Whether two states have the same names, shapes and types."""
    a, b = flatten(one), flatten(other)
    return a.keys() == b.keys() and all(a[n].shape == b[n].shape and a[n].dtype == b[n].dtype for n in a)


def near(one: State, other: State) -> bool:
    """Whether two states agree up to rounding."""
    a, b = flatten(one), flatten(other)
    return all(torch.allclose(a[n].float(), b[n].float(), rtol=1e-3, atol=1e-3, equal_nan=True) for n in a)


def write_over(held: State, new: State) -> None:
    """Copy a new state into the tensors of the held one, though parts of it may be tensors held elsewhere."""
    into, values = flatten(held), flatten(new)
    places = {tensor.untyped_storage().data_ptr(): name for name, tensor in into.items()}
    changed: dict[str, Tensor] = {}
    for name, value in values.items():
        held_as = places.get(value.untyped_storage().data_ptr())
        same = value.data_ptr() == into[name].data_ptr() and value.stride() == into[name].stride()
        if held_as == name and same:
            continue
        changed[name] = value if held_as is None else value.clone()
    if changed:
        torch._foreach_copy_([into[name] for name in changed], list(changed.values()))
