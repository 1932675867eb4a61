"""The health of every client of a run, without labels, and a guard for each: what `fedctta.adapt` does for one device.

A round is played for the clients that adapt. Those whose guard lets the source model answer rest: they neither adapt
nor upload nor receive, except for a try on some checks, in which they take part and are compared, and still do not
answer. A client whose tensors or logits would not be finite goes back to what it was before the round, and the source
model answers. With guard="off" rounds are what they are without checks, and alarms are only noted.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedctta.core.clients import Client, put, take
from fedctta.core.network import Network, Tensors
from fedctta.core.tensors import mirror
from fedctta.engine.rounds import Federation, Outcome, State
from fedctta.errors import UserError
from fedctta.health.guard import Guard
from fedctta.health.signals import Alarm, Signals, Views, summarise
from fedctta.health.watchman import Watchman
from fedctta.results.health import ADAPTED, SOURCE

NOTED = ("top_share", "disagreement", "accuracy", "source_accuracy")


class HealthWatch:
    """Plays rounds with a watchman for every client, and notes what they see after every round."""

    def __init__(self, federation: Federation, rounds: int, every: int, guard: Guard) -> None:
        self.federation, self.guard = federation, guard
        clients = federation.server.clients
        self.watchmen = [Watchman(every, guard) for _ in range(clients)]
        self.healthy: Client | None = None  # the last healthy state of every client, if the guard needs it
        self.noted = {name: torch.full((rounds, clients), torch.nan) for name in NOTED}  # means over the last batches
        self.answers = torch.zeros(rounds, clients, dtype=torch.uint8)
        self.alarms: list[tuple[int, int]] = []  # client and round
        self._raised: set[int] = set()  # clients with an alarm in this round

    def play(
        self,
        state: State,
        t: int,
        x: Tensor,
        active: Tensor,
        domain: Tensor | None,
        joined: Tensor | None = None,
        delay: Tensor | None = None,
    ) -> tuple[State, Outcome]:
        """Play round t as `Federation.play` does, for the clients that adapt; the source model answers for others."""
        if self.guard != "off" and self.healthy is None:
            self.healthy = state.clients
        there = active.nonzero().squeeze(1).tolist()
        waited = {i for i in there if self.watchmen[i].is_due()}
        tried = [i for i in there if i in waited or not self.watchmen[i].resting]
        row = {client: k for k, client in enumerate(there)}
        lost: set[int] = set()
        if not tried:
            after, outcome = state, self._nothing(t, x)
        else:
            few = _mask(tried, active)
            after, outcome = self.federation.play(
                state, t, x[_rows(tried, row, x)], few, domain, None if joined is None else joined & few, delay
            )
            if self.guard != "off":
                lost = self._find_lost(after.clients, outcome.logits, tried)
                after = after._replace(clients=_exchange(after.clients, state.clients, sorted(lost)))
        own = dict(zip(tried, outcome.logits.cpu(), strict=True))
        self._look([i for i in there if i not in own and self.watchmen[i].looks()], x, row)
        if due := [i for i in tried if i in waited and i not in lost]:
            before = self._greeted(state, x, active, joined) if self.federation.predict == "before" else after.clients
            self._compare(before, due, x[_rows(due, row, x)], [own[i] for i in due])
        after = after._replace(clients=self._judge(t, after.clients, due))
        asked = [i for i in there if i in lost or i not in own or self.watchmen[i].resting]
        logits = self._answer(x, outcome.logits, tried, asked, row)
        self.answers[t, there], self.answers[t, asked] = ADAPTED, SOURCE
        for client, answer in zip(there, logits.cpu(), strict=True):
            if client not in lost:
                self.watchmen[client].watch(answer)
            self._note(t, client)
        return after, outcome._replace(logits=logits)

    def _nothing(self, t: int, x: Tensor) -> Outcome:
        """Return what a round gives in which nobody adapts: everybody keeps its own model."""
        serves = self.federation.aggregator.communicates and (t + 1) % self.federation.interval == 0
        return Outcome(x.new_zeros(0), torch.eye(len(self.watchmen), device=x.device) if serves else None, 0, 0)

    def _find_lost(self, clients: Client, logits: Tensor, tried: Sequence[int]) -> set[int]:
        """Return the clients whose tensors or logits are not finite, apart from infinities kept on purpose."""
        played = take(clients, _index(tried, logits))
        sums = [t.reshape(len(t), -1).sum(1) for t in (*played.own.values(), logits)]
        fine = torch.stack([total.isfinite() for total in sums]).all(0)
        for tensor in played.private.values():
            fine &= ~tensor.isnan().reshape(len(tensor), -1).any(1)
        return {client for client, finite in zip(tried, fine.tolist(), strict=True) if not finite}

    def _compare(self, clients: Client, due: Sequence[int], x: Tensor, logits: Sequence[Tensor]) -> None:
        """Check clients against the source model, on their images and on mirrored ones."""
        adapter, network = self.federation.adapter, self.federation.network
        has_mirror = self._has_mirror(x)
        predict = adapter.predict_before if self.federation.predict == "before" else adapter.predict
        mirrored: Sequence[Tensor] = logits
        if has_mirror:
            those = take(clients, _index(due, x))
            mirrored = list(self.federation.server.lift(partial(_mirrored, predict, network))(those, x).cpu())
        strides = [self.watchmen[i].stride(x.shape[1], network.dense) for i in due]
        for stride in sorted(set(strides)):
            group = [k for k, each in enumerate(strides) if each == stride]
            few = x[_index(group, x)][:, ::stride]
            plain = self._ask_source(few).cpu()
            other = self._ask_source(few, flipped=True).cpu() if has_mirror else plain
            for k, *views in zip(group, plain, other, strict=True):
                rows = torch.arange(len(logits[k]))[::stride]
                adapted = Views(logits[k], mirrored[k])
                self.watchmen[due[k]].compare(adapted, Views(*views), rows, adapter.calibrated)

    def _look(self, resting: Sequence[int], x: Tensor, row: dict[int, int]) -> None:
        """Check the source model alone, on the images of clients that rest and on mirrored ones."""
        if resting:
            those = x[_rows(resting, row, x)]
            plain = self._ask_source(those).cpu()
            other = self._ask_source(those, flipped=True).cpu() if self._has_mirror(x) else plain
            for client, *views in zip(resting, plain, other, strict=True):
                self.watchmen[client].look(Views(*views))

    def _has_mirror(self, x: Tensor) -> bool:
        return x.dim() == 5 and not self.federation.network.dense

    def _judge(self, t: int, clients: Client, checked: Sequence[int]) -> Client:
        """Return the clients after their watchmen's verdicts on those that were checked."""
        verdicts: dict[str, list[int]] = {}
        count = {client: len(self.watchmen[client].alarms) for client in checked}
        for client in checked:
            verdicts.setdefault(self.watchmen[client].judge(), []).append(client)
        self._raised = {client for client in checked if len(self.watchmen[client].alarms) > count[client]}
        self.alarms += [(client, t) for client in sorted(self._raised)]
        if self.healthy is None:
            return clients
        self.healthy = _exchange(self.healthy, clients, verdicts.get("remember", []))
        return _exchange(clients, self.healthy, verdicts.get("return", []))

    def _note(self, t: int, client: int) -> None:
        """Keep what is known of a client after a round; `accuracy` is that of the model that answers."""
        watchman = self.watchmen[client]
        if watchman.signals is None:
            return
        found = summarise(watchman.signals, "source" if watchman.resting else "adapted")
        if client in self._raised:  # what led to the alarm has been forgotten
            found |= {"accuracy": watchman.alarms[-1].accuracy, "source_accuracy": watchman.alarms[-1].source_accuracy}
        if watchman.resting:
            found["accuracy"] = found["source_accuracy"]
        for name in NOTED:
            value = found[name]
            self.noted[name][t, client] = torch.nan if value is None else value

    def _answer(
        self, x: Tensor, logits: Tensor, tried: Sequence[int], asked: Sequence[int], row: dict[int, int]
    ) -> Tensor:
        """Return the logits of all clients there: their own, or the source model's of those in `asked`."""
        if not asked:
            return logits
        source = self._ask_source(x[_rows(asked, row, x)])
        whole = source.new_zeros(len(row), *source.shape[1:])
        if tried:
            whole[_rows(tried, row, x)] = logits
        whole[_rows(asked, row, x)] = source
        return whole

    def _ask_source(self, x: Tensor, flipped: bool = False) -> Tensor:
        return self.federation.server.lift(partial(_ask_source, self.federation.network, flipped))(x)  # type: ignore[no-any-return]

    def _greeted(self, state: State, x: Tensor, active: Tensor, joined: Tensor | None) -> Client:
        return state.clients if joined is None else self.federation.welcome(state, x, active, joined)[0]

    def tensors(self) -> Tensors:
        """Return everything a resumed run needs."""
        found = {f"health.{name}": tensor for name, tensor in self.noted.items()} | {"health.answers": self.answers}
        known = [i for i, each in enumerate(self.watchmen) if each.signals is not None]
        found["health.known"] = torch.tensor(known, dtype=torch.int64)
        found["health.resting"] = torch.tensor([each.resting for each in self.watchmen])
        for name in Signals._fields if known else ():
            found[f"health.signals.{name}"] = torch.stack([getattr(self.watchmen[i].signals, name) for i in known])
        raised = [
            (i, alarm.batch, alarm.accuracy, alarm.source_accuracy)
            for i, each in enumerate(self.watchmen)
            for alarm in each.alarms
        ]
        found["health.raised"] = torch.tensor(raised, dtype=torch.float64).reshape(-1, 4)
        found["health.alarms"] = torch.tensor(self.alarms, dtype=torch.int64).reshape(-1, 2)
        if self.healthy is not None:
            found |= {f"health.own.{name}": tensor for name, tensor in self.healthy.own.items()}
            found |= {f"health.private.{name}": tensor for name, tensor in self.healthy.private.items()}
        return found

    def restore(self, saved: Tensors, path: Path) -> None:
        """Restore what `tensors` returned."""
        mine = {name.removeprefix("health."): t for name, t in saved.items() if name.startswith("health.")}
        if "answers" not in mine or mine["answers"].shape != self.answers.shape:
            raise UserError(f"{path} does not fit this run: delete it, or run without --resume")
        for name, tensor in self.noted.items():
            tensor.copy_(mine[name])
        self.answers.copy_(mine["answers"])
        self.alarms = [(client, t) for client, t in mine["alarms"].tolist()]
        for place, client in enumerate(mine["known"].tolist()):
            seen = {name: mine[f"signals.{name}"][place].cpu() for name in Signals._fields}
            self.watchmen[client].signals = Signals(**seen)
        for watchman, resting in zip(self.watchmen, mine["resting"].tolist(), strict=True):
            watchman.resting = resting
        for client, batch, *accuracies in mine["raised"].tolist():
            self.watchmen[int(client)].alarms += (Alarm(int(batch), *accuracies),)
        own, private = (
            {name.removeprefix(part): t for name, t in mine.items() if name.startswith(part)}
            for part in ("own.", "private.")
        )
        self.healthy = Client(own, private) if self.guard != "off" else None


def _mirrored(predict: Any, network: Network, client: Client, x: Tensor) -> Tensor:
    logits: Tensor = predict(network, client, mirror(x))
    return logits


def _ask_source(network: Network, flipped: bool, x: Tensor) -> Tensor:
    return network({}, mirror(x) if flipped else x).logits


def _exchange(clients: Client, others: Client, who: Sequence[int]) -> Client:
    """Return the clients, those in `who` as they are among the others."""
    if not who:
        return clients
    first = next(iter((*clients.own.values(), *clients.private.values())), None)
    if first is None:
        return clients
    if len(who) == len(first):
        return others
    return put(clients, _index(who, first), take(others, _index(who, first)))


def _index(numbers: Sequence[int], like: Tensor) -> Tensor:
    return torch.tensor(numbers, dtype=torch.int64, device=like.device)


def _rows(clients: Sequence[int], row: dict[int, int], x: Tensor) -> Tensor | slice:
    """Return where clients stand in x; without a copy if these are all."""
    return slice(None) if len(clients) == len(row) else _index([row[i] for i in clients], x)


def _mask(clients: Sequence[int], like: Tensor) -> Tensor:
    found = torch.zeros_like(like)
    found[_index(clients, like)] = True
    return found
