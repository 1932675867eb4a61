"""Rounds as CUDA graphs: captured once, replayed without the host.

A round of a few clients is hundreds of small kernels, and to launch them takes several times as long as to run them.
So the whole round (read, adapt, signal, aggregate, download, predict, count) is captured when its form is known, and
from then on a round is one call. The state is in tensors with fixed addresses; the graph writes the new state over the
old one, and increments its own round number.

Where clients review some of their batches, a round is two graphs: one in which they adapt, and another one, with
reviews or without, which the host chooses by whether anybody is due.

Rounds that a graph cannot contain are played without it: rounds in which a client is absent or uploads are late, and
methods that decide on the host. If a method did so without torch noticing (it keeps a number on the CPU), the graph
would always use the same value: such memories are not captured, and the first replays are compared with plain rounds.
"""

from __future__ import annotations

from typing import NamedTuple, cast

import torch
from torch import Tensor

from fedctta.core.clients import Client
from fedctta.core.column_blocks import close_gaps
from fedctta.core.gpu_memory import capture_graph
from fedctta.core.network import Tensors
from fedctta.core.tensors import agree, write_all
from fedctta.engine.device_stream import Batches, DeviceStream
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
    """A captured round: what comes first in every round, then one of two ways to go on, by whether anybody is due."""

    moved: tuple[int, int]
    whole: torch.cuda.CUDAGraph
    first: _First | None = None
    reviewing: torch.cuda.CUDAGraph | None = None

    def replay(self) -> None:
        """Launch the round."""
        if self.first is None or self.reviewing is None:
            return self.whole.replay()
        self.first.graph.replay()
        return self.reviewing.replay() if bool(self.first.due.any()) else self.whole.replay()


class _First(NamedTuple):
    """The captured half of a round in which clients adapt and predict: what it read, logits, and who is to review."""

    graph: torch.cuda.CUDAGraph
    read: Batches
    logits: Tensor | None
    due: Tensor


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
        self._held: dict[bool, State] = {}  # by whether the server takes part; without it, the clients alone
        self._at = 0  # the round that `_when` holds
        self._graphs: dict[bool, _Graph] = {}
        self._first: _First | None = None
        self._warm: dict[bool, int] = {}
        self._proofs = PROOFS
        self._refused: set[bool] = set()  # rounds that are not replayed, by whether the server takes part
        self.refusal: str | None = None  # why rounds are not replayed, once that is known

    def serves(self, t: int) -> bool | None:
        """Return whether the server takes part in round t, or None if the round cannot be captured."""
        if self._late or not self._whole[t] or (t and not self._whole[t - 1]):
            return None
        federation = self._federation
        serves = federation.aggregator.communicates and (t + 1) % federation.interval == 0
        return None if serves in self._refused else serves

    def ready(self, state: State, t: int) -> bool:
        """Whether round t is to be replayed; if not, it is to be played without a graph, and counts as warm-up."""
        serves = self.serves(t)
        if serves is None:
            return False
        held = self._held.get(serves)
        if held is not None and not alike(held, concerned(serves, state)):
            self._forget()
        if serves in self._graphs:
            return True
        self._warm[serves] = self._warm.get(serves, -1) + 1
        if self._warm[serves] < WARM or self._rounds - t < FEW:
            return False
        try:
            self._capture(serves, state, t)
        except NotCapturable as error:
            self._refuse(serves, str(error))
            return False
        return True

    def _refuse(self, serves: bool, reason: str) -> None:
        """Replay no such rounds any more; those without the server may go on where only the server is the reason."""
        self._refused |= {True} if serves else {True, False}
        self.refusal = reason

    def _forget(self) -> None:
        """Begin anew with a state of another form: a server's memory may appear with its first exchange."""
        self._held, self._first, self._proofs = {}, None, PROOFS
        self._graphs.clear()
        self._warm.clear()

    def next(self, state: State, t: int) -> State:
        """Replay round t, which must be `ready`."""
        serves = self.serves(t)
        assert serves is not None
        held = self._held[serves]
        now = held if serves else state._replace(clients=held.clients)
        if any(here is not given for here, given in zip(now, state, strict=True)):
            write_over(held, concerned(serves, state))
        if self._at != t:
            self._when.fill_(t)
        if self._proofs:
            return self._prove(serves, now, t)
        self._launch(serves, t)
        return now

    def _launch(self, serves: bool, t: int) -> None:
        self._graphs[serves].replay()
        self._at = t + 1
        self._tally.bytes += torch.tensor(self._graphs[serves].moved)
        self._tally.replayed += 1

    def _capture(self, serves: bool, state: State, t: int) -> None:
        if any(tensor.device.type == "cpu" for tensor in flatten(concerned(serves, state)).values()):
            raise NotCapturable(f"aggregator {self._federation.aggregator.name} keeps numbers on the host")
        held = self._held.get(serves) or self._hold(serves, state)
        torch.cuda.current_stream(self._device).synchronize()
        try:
            self._graphs[serves] = self._record(held, t)
        except (RuntimeError, NotCapturable) as error:
            torch.cuda.synchronize(self._device)
            reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
            raise NotCapturable(f"a round cannot be captured: {reason}") from error

    def _hold(self, serves: bool, state: State) -> State:
        """Make the tensors that graphs work on, with the server or without; all graphs share the clients."""
        other = self._held.get(not serves)
        clients = cast(Client, _cloned(state.clients)) if other is None else other.clients
        memory, post = (cast(Tensors, _cloned(part)) for part in concerned(serves, state)[1:])
        close_gaps(list(flatten(state).values()))  # so that a captured round knows the blocks that rounds hand out
        self._held[serves] = State(clients, memory, post)
        return self._held[serves]

    def _record(self, held: State, t: int) -> _Graph:
        """Capture a round; t only says whether the server takes part."""
        first = self._record_first(held) if self._federation.adapter.reviews else None
        ways = []
        for reviews in (False, True) if first is not None else (False,):
            graph = torch.cuda.CUDAGraph()
            with capture_graph(graph, self._side):
                outcome = self._round(held, t) if first is None else self._rest(held, t, first, reviews)
            ways.append(graph)
        return _Graph((outcome.bytes_up, outcome.bytes_down), ways[0], first, *ways[1:])

    def _record_first(self, held: State) -> _First:
        """Capture the half of a round in which clients adapt, which is the same with the server and without."""
        if self._first is None:
            graph, federation = torch.cuda.CUDAGraph(), self._federation
            with capture_graph(graph, self._side):
                read = self._resident.slot(self._when)
                clients, logits = federation.begin(held.clients, read.x)
                due = federation.find_due(clients)
                self._overwrite(held, held._replace(clients=clients))
            self._first = _First(graph, read, logits, due)
        return self._first

    def _rest(self, held: State, t: int, first: _First, reviews: bool) -> Outcome:
        """Capture how a round goes on after its first half."""
        federation, state = self._federation, held
        if reviews:
            state = held._replace(clients=federation.review(held.clients, first.read.x, first.due))
        told = first.read.domain if federation.aggregator.upper_bound else None
        played = federation.finish(state, t, first.read.x, self._everybody, told, first.logits)
        return self._conclude(held, first.read, *played)

    def _round(self, held: State, t: int) -> Outcome:
        """Capture a round without reviews."""
        federation, read = self._federation, self._resident.slot(self._when)
        told = read.domain if federation.aggregator.upper_bound else None
        return self._conclude(held, read, *federation.play(held, t, read.x, self._everybody, told))

    def _conclude(self, held: State, read: Batches, new: State, outcome: Outcome) -> Outcome:
        """Count what was predicted, and keep the new state."""
        tally = self._tally
        tally.count(self._when, outcome.logits, read.labels, read.domain)
        if outcome.weights is not None:
            tally.count_collaboration(outcome.weights, read.domain)
            tally.keep_matrix(self._when, outcome.weights)
        self._overwrite(held, new)
        self._when.add_(1)
        return outcome

    def _overwrite(self, held: State, new: State) -> None:
        if not alike(held, new):
            raise NotCapturable("the state changes its form")
        write_over(held, new)

    def _prove(self, serves: bool, now: State, t: int) -> State:
        """Replay a round and play it without a graph; if they differ, keep the latter and replay no more."""
        federation, tally = self._federation, self._tally
        x, labels, domain = self._resident.read(t)
        told = domain if federation.aggregator.upper_bound else None
        expected, outcome = self._play(now, t, x, told)
        expected = State(*(_cloned(part) for part in expected))  # type: ignore[arg-type]
        right = (outcome.logits.argmax(-1) == labels).sum(-1)
        before = {name: tensor.clone() for name, tensor in tally.tensors().items()}
        self._launch(serves, t)
        off = int((tally.correct[t] - right).abs().sum())
        if off <= max(1, labels.numel() // 1000) and near(expected, now):
            self._proofs -= 1
            return now
        self._refuse(False, f"replayed rounds differ from round {t} on")
        for name, tensor in tally.tensors().items():
            tensor.copy_(before[name])
        tally.replayed -= 1
        tally.record(t, outcome.logits, labels, domain)
        if outcome.weights is not None:
            tally.record_collaboration(t, outcome.weights, domain, (outcome.bytes_up, outcome.bytes_down))
        return expected

    def _play(self, state: State, t: int, x: Tensor, told: Tensor | None) -> tuple[State, Outcome]:
        """Play a round without a graph, but as one does: if anybody reviews a batch, all compute it.

        Elsewhere those who are due do. Their smaller batches may take other kernels, whose results in tf32 differ by
        more than a graph may.
        """
        federation = self._federation
        if not federation.adapter.reviews:
            return federation.play(state, t, x, self._everybody, told)
        clients, logits = federation.begin(state.clients, x)
        due = federation.find_due(clients)
        if bool(due.any()):
            clients = federation.review(clients, x, due)
        return federation.finish(state._replace(clients=clients), t, x, self._everybody, told, logits)

    def insist(self) -> None:
        """Raise a UserError if rounds could not be replayed."""
        if self.refusal is not None:
            raise UserError(f"lift=graph is not possible here, {self.refusal}: use lift=vmap or lift=auto")


def concerned(serves: bool, state: State) -> State:
    """Return the part of a state that a round reads and changes: without the server, the clients."""
    return state if serves else State(state.clients, {}, {})


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
    return all(agree(a[n], b[n]) for n in a)


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
        write_all([into[name] for name in changed], list(changed.values()))
