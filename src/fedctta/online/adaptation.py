"""One client without a server: what it does with a batch, and what keeps it from harm.

    client <- adapt(client, x)        logits = predict(client, x)        predict="before": the other way round

What cannot be adapted to changes nothing. A batch with a NaN or an infinite value, or one after which the model or its
logits would have such values, is answered by the source model. A batch that is too small for the method is predicted
among the last images (see `Window`), and the client adapts when all of these are new; until there are enough, the
source model answers. `guard` says what happens when adapting does harm.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Hashable
from typing import Any, Literal

import torch
from torch import Tensor
from torch.utils._pytree import tree_map, tree_map_only

from fedctta.adapters import Adapter, adapters
from fedctta.core.clients import Client, stack
from fedctta.core.network import Network, Tensors
from fedctta.core.outputs import Inputs, count_rows, map_tensors
from fedctta.core.randomness import keys
from fedctta.core.tensors import add_up, mirror, named, under
from fedctta.errors import UserError
from fedctta.health.guard import Guard
from fedctta.health.signals import Alarm, Health, Signals, Views, distances, first_signals, summarise
from fedctta.health.watchman import Watchman
from fedctta.keys import PLAIN
from fedctta.models.try_on import OF_MODELS, try_on
from fedctta.online.batches import WINDOW, Window, form_of, is_finite
from fedctta.online.first_batch import MANY, check_first_batch, check_range
from fedctta.online.memory_order import lay_like, note_strides
from fedctta.online.precision import check_precision, match_precision
from fedctta.registry import read

Predict = Literal["after", "before"]

BY_ALARM = 2  # in a state, of a client that an alarm froze: another guard lets it adapt

Exchange = Callable[[Client, Any], Client]


class Adaptation:
    """A client that adapts to one batch after another. All tensors are on the network's device.

    `watchman` says who answers, and `seen` is the batch last adapted to. `exchange`, if there is one, is what a server
    makes of the adapted client, given that batch too; the result predicts the batch. An `optional` method gives way if
    it does not fit the first images.
    """

    def __init__(
        self,
        network: Network,
        adapter: Adapter,
        *,
        predict: Predict = "after",
        source_images: Inputs | None = None,
        window: int = WINDOW,
        one_pass: bool = True,
        guard: Guard = "reset",
        check: int = 10,
        seed: int = 0,
        optional: bool = False,
    ) -> None:
        read(predict, Predict, "predict")
        read(guard, Guard, "guard")
        window, check, seed = read(window, int, "window"), read(check, int, "check"), read(seed, int, "seed")
        adapter.check(network, MANY)
        check_precision(network, adapter)
        if check < 0:
            raise UserError(f"check={check} must not be negative (0: never check)")
        if not check and guard == "freeze":
            raise UserError("guard='freeze' acts on what checks find and check=0 asks for none: give check=10")
        self.network, self.adapter, self.predict, self.watchman = network, adapter, predict, Watchman(check, guard)
        self.seed, self.optional = seed, optional
        self.source_images: Any = source_images
        self.learnt: Tensors | None = None
        self.window = Window(window)
        self.seen: Inputs | None = None
        self.exchange: Exchange | None = None
        self._one_pass: bool | None = None if one_pass and predict == "after" else False
        self._refusals: dict[int, str] = {}
        if window > 0 and self.refusal(1) and self.refusal(window):
            least = next(size for size in range(window + 1, MANY + 1) if not self.refusal(size))
            raise UserError(f"window={window} is too small for adapter {adapter.name!r}: use window={least} or more")
        self._forms: set[Hashable] = set()  # of batches that fit
        self.reset()

    def reset(self) -> None:
        """Begin anew from the source model."""
        client = self.adapter.init(self.network)
        private = {**client.private, **(self.learnt or {})}
        if "key" in private:
            private["key"] = keys(self.seed, 1, self.network.device)[0]
        # in the memory order of a run's clients, on which the last bits of convolutions depend
        self.client: Client = tree_map(lambda t: t[0], stack(client._replace(private=private), 1))
        self.watchman = Watchman(self.watchman.every, self.watchman.guard)
        self.frozen = False
        self.batches = self.skipped = 0
        self.take_up(self.client)

    def take_up(self, client: Client) -> None:
        """Go on with this client, as a healthy one."""
        self.client = self._healthy = match_precision(self.network, client)
        self.watchman.resting = False
        self.window.clear()

    def convert(self, network: Network, function: Callable[[Tensor], Tensor]) -> None:
        """Go on with a network that was moved or cast, and with all that is held changed alike; forget the window."""
        check_precision(network, self.adapter)
        healthy = None if self._healthy is self.client else self._healthy
        held = (self.client, healthy, self.learnt, self.source_images, self.seen)
        self.client, healthy, self.learnt, self.source_images, self.seen = tree_map_only(Tensor, function, held)
        self.client = match_precision(network, self.client)
        self._healthy = match_precision(network, healthy) if healthy else self.client
        signals = self.watchman.signals
        self.watchman.signals = tree_map_only(Tensor, lambda t: t.to(network.device), signals)
        self.network = network
        self.window.clear()

    def answer(self, x: Inputs) -> Tensor:
        """Return the logits of x[B, ...], and adapt to it if that is possible."""
        form = form_of(x)
        if form not in self._forms:
            self._try(x)
            self._try_images()
            self._forms.add(form)
        if not is_finite(x):
            self.skipped += 1
            return self._ask_source(x)
        if self.adapter.pictures and isinstance(x, Tensor):
            check_range(self.adapter, x)
        client, images, fresh = self.client, self.window.images, self.window.fresh
        try:
            return self._answer(x)
        except OF_MODELS:
            self.client, self.window.images, self.window.fresh = client, images, fresh
            try_on(self.network, x, "leave this batch out, or mend its values")  # else it is not the batch's fault
            raise

    def _answer(self, x: Inputs) -> Tensor:
        """Return the logits of a batch of finite values and of a form that fits."""
        too_small = self.refusal(count_rows(x))
        if self.refusal(1):
            self.window.add(x)
        if not too_small:
            self.window.fresh = 0  # what is adapted to now is not to be adapted to again
            return self._step(x, adapting=not self.frozen)
        if not self.window.size:
            raise UserError(f"{too_small}; or window=16, to see small batches among the last images")
        if not self.window.full:
            return self._ask_source(x)
        assert self.window.images is not None
        rows = self._step(self.window.images, adapting=self.window.due() and not self.frozen)
        return rows[-(len(rows) // self.window.size * count_rows(x)) :]

    def _try(self, x: Inputs) -> None:
        """Refuse a batch that does not fit; on the first one, an optional method gives way to none if that fits."""
        try:
            check_first_batch(self.network, self.adapter, x)
        except UserError as error:
            if not self.optional or self._forms:
                raise
            plain = adapters.create(PLAIN)
            check_first_batch(self.network, plain, x)
            warnings.warn(f"{error}; as no method was named, the model predicts without adapting", stacklevel=2)
            self.adapter, self._refusals = plain, {}
            self.reset()

    def _try_images(self) -> None:
        """Refuse images of the source that the model cannot take."""
        if self.source_images is None or self.learnt is not None:
            return
        try:
            try_on(self.network, map_tensors(lambda t: t[:1], self.source_images))
        except UserError as error:
            raise UserError(f"source_images do not fit: {error}") from error

    def _step(self, x: Inputs, adapting: bool) -> Tensor:
        """Adapt to a batch of finite values and return its logits; the source's if the result is not finite."""
        self._study(count_rows(x))
        due = adapting and self.watchman.is_due()
        if self.watchman.resting and not due:
            return self._watched(self._rest(x))
        before = self.client
        if adapting:
            self.client = self.adapter.draw_chance(before)
        client, logits = self._adapt_and_predict(x) if adapting else (before, self._predict(before, x))
        if not _finite(client, logits):
            self.skipped += 1
            return self._ask_source(x)
        self.client, self.batches, self.seen = client, self.batches + adapting, x if adapting else self.seen
        if due:
            self._compare(before, x, logits)
            self._judge()
        return self._watched(self._ask_source(x) if self.watchman.resting else logits)

    def _adapt_and_predict(self, x: Any) -> tuple[Client, Tensor]:
        adapter, network = self.adapter, self.network
        if not adapter.waits:
            client, logits = adapter.adapt_and_predict(network, self.client, x)
            return adapter.review(network, client, x) if adapter.reviews and adapter.is_due(client) else client, logits
        if self.predict == "before":
            return adapter.adapt(network, self.client, x), adapter.predict_before(network, self.client, x)
        if self.exchange is not None:
            client = self.exchange(adapter.adapt(network, self.client, x), x)
            return client, adapter.predict(network, client, x)
        if self._one_pass:
            return adapter.adapt_and_predict(network, self.client, x)
        client = adapter.adapt(network, self.client, x)
        logits = adapter.predict(network, client, x)
        if self._one_pass is None:  # a layer that is called twice keeps the mean of what its calls normalise with
            self._one_pass = torch.allclose(adapter.adapt_and_predict(network, self.client, x)[1], logits)
        return client, logits

    def _predict(self, client: Client, x: Any) -> Tensor:
        return self.adapter.predict(self.network, client, x)

    def _ask_source(self, x: Inputs) -> Tensor:
        return self.network({}, x).logits

    def _rest(self, x: Inputs) -> Tensor:
        """Return the source model's logits, and check it alone now and then."""
        plain = self._ask_source(x)
        if self.watchman.looks():
            mirrored = self._ask_source(mirror(x)) if isinstance(x, Tensor) and self._has_mirror(x) else plain
            self.watchman.look(Views(plain, mirrored))
        return plain

    def _has_mirror(self, x: Tensor) -> bool:
        return x.dim() == 4 and not self.network.dense

    def _watched(self, logits: Tensor) -> Tensor:
        """Return the logits, which have been counted."""
        self.watchman.watch(logits)
        return logits

    def _compare(self, before: Client, x: Inputs, logits: Tensor) -> None:
        """Check the adapted model against the source model, on the images and on mirrored ones."""
        stride = self.watchman.stride(count_rows(x), self.network.dense)
        few = map_tensors(lambda t: t[::stride], x)
        rows = torch.arange(len(logits), device=logits.device)[::stride]
        plain = self._ask_source(few)
        if not isinstance(x, Tensor) or not isinstance(few, Tensor) or not self._has_mirror(x):
            self.watchman.compare(Views(logits, logits), Views(plain, plain), rows, self.adapter.calibrated)
            return
        if self.predict == "before":
            mirrored = self.adapter.predict_before(self.network, before, mirror(x))
        else:
            mirrored = self._predict(self.client, mirror(x))
        source = Views(plain, self._ask_source(mirror(few)))
        self.watchman.compare(Views(logits, mirrored), source, rows, self.adapter.calibrated)

    def _judge(self) -> None:
        """Remember a healthy state, or go on from the last one, as the watchman says."""
        verdict = self.watchman.judge()
        if verdict == "remember":
            self._healthy = self.client
        elif verdict == "return":
            self.client = self._healthy = self.adapter.go_back(self._healthy, self.client)
        self.frozen = self.frozen or self.watchman.frozen

    def _study(self, batch: int) -> None:
        """Learn from the source images, as soon as it is known how large batches are."""
        if self.source_images is not None and self.learnt is None:
            self.learnt = self.adapter.study(self.network, self.source_images, batch)
            self.client = self.client._replace(private={**self.client.private, **self.learnt})
            self._healthy = self.client

    def refusal(self, batch: int) -> str:
        """Return why the method takes no batches of this size; nothing if it does."""
        if batch not in self._refusals:
            try:
                self.adapter.check(self.network, batch)
                self._refusals[batch] = ""
            except UserError as error:
                self._refusals[batch] = str(error)
        return self._refusals[batch]

    def state(self) -> Tensors:
        """Return everything that `restore` needs to go on as if nothing had been, except the window."""
        parts = {"own": self.client.own, "private": self.client.private, "learnt": self.learnt or {}}
        parts["signals"] = self.watchman.signals._asdict() if self.watchman.signals else {}
        if self._healthy is not self.client:
            parts |= {"healthy.own": self._healthy.own, "healthy.private": self._healthy.private}
        alarms = [(alarm.batch, alarm.accuracy, alarm.source_accuracy) for alarm in self.watchman.alarms]
        frozen = BY_ALARM if self.watchman.frozen else int(self.frozen)
        parts["count"] = {
            "batches": torch.tensor([self.batches, self.skipped, frozen, int(self.watchman.resting)]),
            "alarms": torch.tensor(alarms, dtype=torch.float64).reshape(-1, 3),
        }
        tensors = {name: t for part, group in parts.items() for name, t in named(part, group).items()}
        return tensors | named("strides", note_strides(tensors))

    def restore(self, tensors: Tensors) -> bool:
        """Go on from what `state` gave; return False, without a change, if it is of another method or version."""
        learnt, signals = under("learnt", tensors), under("signals", tensors)
        wanted = Client(self.client.own, {**self.client.private, **learnt})
        client, healthy = _read(wanted, "", tensors), _read(wanted, "healthy.", tensors)
        if client is None:
            return False
        self.learnt = {name: t.to(self.network.device) for name, t in learnt.items()} or self.learnt
        self.take_up(client)
        self._healthy = healthy or self.client
        if "count.batches" in tensors:
            self.batches, self.skipped, frozen, resting = tensors["count.batches"].tolist()
            guard = self.watchman.guard
            self.frozen = bool(frozen) and (frozen != BY_ALARM or guard == "freeze")
            self.watchman.resting = bool(resting) and guard != "off"
            self.watchman.alarms = tuple(Alarm(int(row[0]), row[1], row[2]) for row in tensors["count.alarms"].tolist())
        known = signals.keys() == set(Signals._fields)
        on_device = {n: t.to(self.network.device) for n, t in signals.items()}
        self.watchman.signals = Signals(**on_device) if known else None
        return True

    @property
    def health(self) -> Health:
        """How the device fares."""
        signals = self.watchman.signals or first_signals(1)
        statistics, weights = distances(self.network, self.client.own)
        answers = "source" if self.watchman.resting else "adapted"
        return Health(
            batches=self.batches,
            skipped=self.skipped,
            answers=answers,
            **summarise(signals, answers),  # type: ignore[arg-type]
            statistics_distance=statistics,
            weights_distance=weights,
            alarms=self.watchman.alarms,
        )


def _read(wanted: Client, prefix: str, tensors: Tensors) -> Client | None:
    """Return a client of a state on the device of `wanted`, as it lay in memory; None if it is not of that form."""
    parts = []
    for part, old in wanted._asdict().items():
        new = under(f"{prefix}{part}", tensors)
        if old.keys() != new.keys() or any(old[name].shape != new[name].shape for name in old):
            return None
        strides = under(f"strides.{prefix}{part}", tensors)
        parts.append({name: lay_like(tensor, new[name], strides.get(name)) for name, tensor in old.items()})
    return Client(*parts)


def _finite(client: Client, logits: Tensor) -> bool:
    """Whether no value is NaN or infinite, apart from infinities that a method keeps on purpose."""
    private = [t for t in client.private.values() if t.is_floating_point()]
    sums = torch.stack([add_up(t).to(logits.dtype) for t in (logits, *client.own.values(), *private)])
    if bool(sums.isfinite().all()):  # nearly always, and a sum is much faster than looking at every value
        return True
    own = sums[: 1 + len(client.own)]
    return bool(own.isfinite().all()) and not any(bool(t.isnan().any()) for t in private)
