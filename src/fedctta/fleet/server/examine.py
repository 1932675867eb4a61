"""Every upload is checked before it is used: form, names, shapes, numbers, size, round.

A device may be broken, out of date or dishonest. What does not fit is refused with a reason; the server then continues
without it. `fedctta.uploads.robust.plausible` decides which numbers can be true, here as in a simulation.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import torch
from numpy.typing import NDArray

from fedctta.aggregators import Uploads
from fedctta.core.network import Tensors
from fedctta.fleet.agreement import Terms, disagreement
from fedctta.fleet.server.collaboration import Upload
from fedctta.fleet.server.quick_check import QuickCheck
from fedctta.fleet.transport import wire
from fedctta.uploads.robust import BOUND, LARGEST, plausible


class UploadRefused(Exception):
    """A parcel that is not used; the message says why."""


class UploadForm(NamedTuple):
    """A tensor's type and shape, as they are written in a hello."""

    dtype: str
    shape: tuple[int, ...]


def form_of(tensor: torch.Tensor) -> UploadForm:
    """Return a tensor's form.

    >>> form_of(torch.zeros(2, 3))
    UploadForm(dtype='float32', shape=(2, 3))
    """
    return UploadForm(str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape))


@dataclass(frozen=True)
class Examiner:
    """Knows what an upload must look like: the source's shared tensors and one example of the signals.

    `terms` are what a device must agree on; `variances` names the tensors that cannot be negative; `limit` is in bytes,
    `bound` that of `plausible`. Uploads rest on at least `min_batch` images, unless signals are `sums` over all that a
    device has seen.
    """

    shared: Tensors
    signals: Tensors
    variances: frozenset[str]
    terms: Terms
    limit: int = 64 << 20
    bound: float = BOUND
    sums: bool = False
    min_batch: int = 1

    @cached_property
    def _wanted(self) -> Tensors:
        return {f"own.{n}": t for n, t in self.shared.items()} | {f"signal.{n}": t for n, t in self.signals.items()}

    @cached_property
    def _quick(self) -> QuickCheck:
        return QuickCheck(self._wanted, self.bound)

    def open(self, flat: NDArray[Any]) -> wire.Parcel:
        """Return the parcel in these bytes."""
        try:
            return wire.unpack(flat, self.limit)
        except wire.Malformed as error:
            raise UploadRefused(str(error)) from error

    def hello(self, parcel: wire.Parcel) -> str:
        """Return the name of a device that may take part."""
        _expect(parcel, "hello")
        name = parcel.note.get("device")
        if not isinstance(name, str) or not name or len(name) > 100 or not name.isprintable():
            raise UploadRefused("a hello needs a printable device name of up to 100 letters")
        if reason := disagreement(parcel.note, self.terms):
            raise UploadRefused(reason)
        self._compare(_table(parcel.note), {key: form_of(tensor) for key, tensor in self.shared.items()})
        return name

    def upload(self, parcel: wire.Parcel, round_: int, nonce: str) -> Upload:
        """Return the upload that answers what was asked in `round_` under `nonce`."""
        _expect(parcel, "upload")
        if parcel.round != round_:
            raise UploadRefused(f"the upload is of round {parcel.round}, asked was round {round_}")
        if parcel.note.get("nonce") != nonce:
            raise UploadRefused("the upload does not repeat the number of its question: it answers another one")
        images = parcel.note.get("images", 1)
        if not self.sums and (not isinstance(images, int) or images < self.min_batch):
            raise UploadRefused(f"the upload rests on {images!s:.20} images, fewer than min_batch={self.min_batch}")
        wanted = self._wanted
        found = {name: torch.from_numpy(array) for name, array in parcel.arrays.items()}
        self._compare({n: form_of(t) for n, t in found.items()}, {n: form_of(t) for n, t in wanted.items()})
        if not self._quick.passes(parcel.arrays):
            for name, tensor in found.items():
                self._numbers(name, tensor, wanted[name])
        own = {name: found[f"own.{name}"] for name in self.shared}
        return Upload(own, {name: found[f"signal.{name}"] for name in self.signals})

    def _compare(self, told: Mapping[str, UploadForm], wanted: Mapping[str, UploadForm]) -> None:
        for name in sorted(wanted.keys() | told.keys()):
            if name not in told:
                raise UploadRefused(f"tensor {name} is missing")
            if name not in wanted:
                raise UploadRefused(f"tensor {name!r:.80} is unknown")
            if told[name] != wanted[name]:
                raise UploadRefused(f"tensor {name} is {_text(told[name])}, not {_text(wanted[name])}")

    def _numbers(self, name: str, tensor: torch.Tensor, source: torch.Tensor) -> None:
        if not tensor.is_floating_point():
            return
        if not bool(tensor.isfinite().all()):
            raise UploadRefused(f"tensor {name} holds values that are not finite")
        rows, everybody = {name: tensor[None]}, torch.ones(1, dtype=torch.bool)
        of_signal = name.startswith("signal.")
        one = Uploads({}, rows, everybody) if of_signal else Uploads(rows, {}, everybody)
        if bool(plausible(one, {name: source.cpu()}, self.bound)):
            return
        if of_signal:
            raise UploadRefused(f"tensor {name} holds a number beyond {LARGEST:g}")
        if name.removeprefix("own.") in self.variances and bool((tensor < 0).any()):
            raise UploadRefused(f"tensor {name} is a variance and holds negative values")
        most = f"{self.bound:g} times the source's and that of ones"
        raise UploadRefused(f"tensor {name} has norm {float(tensor.double().norm()):.4g}, more than {most}")


def _expect(parcel: wire.Parcel, kind: str) -> None:
    if parcel.kind != kind:
        raise UploadRefused(f"kind {parcel.kind!r} came where {kind!r} was asked for")


def _table(note: wire.Note) -> dict[str, UploadForm]:
    try:
        table = dict(json.loads(str(note["tensors"])))
        forms = {key: UploadForm(str(dtype), tuple(shape)) for key, (dtype, shape) in table.items()}
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise UploadRefused("the hello's table of tensors cannot be read") from error
    if not all(type(n) is int for form in forms.values() for n in form.shape):
        raise UploadRefused("the hello's table has shapes that are not whole numbers")
    return forms


def _text(form: UploadForm) -> str:
    return f"{form.dtype:.20}{list(form.shape)!s:.80}"
