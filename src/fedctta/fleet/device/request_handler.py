"""What a device answers the server: one request in, one reply out.

The reply to a `hello` says who the device is and what it would upload. A `step` may bring the server's answer to an
earlier upload, and may ask for the next upload. A free-running device leaves the answer for the loop, and uploads its
latest snapshot. In lock-step the loop waits with each batch until the server's answer to it has arrived:

    take the answer to batch t -> (receive) -> predict batch t -> adapt to batch t + 1 -> upload
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping
from functools import cached_property, lru_cache
from typing import Any

import torch
from numpy.typing import NDArray

from fedctta.adapters import Adapter
from fedctta.aggregators import Aggregator, aggregators
from fedctta.core.network import Network, Tensors
from fedctta.core.tensors import named, under
from fedctta.errors import UserError
from fedctta.fleet.agreement import TERMS, Terms, difference, disagreement, terms_of
from fedctta.fleet.device.handover import Download, Handover
from fedctta.fleet.device.private_uploads import BudgetSpent, PrivateUploads
from fedctta.fleet.transport.wire import SCHEMA, Note, Parcel
from fedctta.uploads.robust import BOUND

log = logging.getLogger("fedctta.fleet")

LOCKSTEP_WAIT = 50.0
"""Seconds a lock-step request waits for the loop: less than the ClientApp waits for the reply."""


class RequestRefused(Exception):
    """A request that is not served; the message says why."""


class RequestHandler:
    """Answers requests about one device.

    `facts` go into its hello, `health` into every answer; `last` is the last download it was given; with `private`, it
    uploads noisy statistics of its batches, and nothing else.
    """

    def __init__(
        self,
        name: str,
        network: Network,
        adapter: Adapter,
        handover: Handover,
        *,
        spare: Callable[[], Network],
        facts: Mapping[str, str | int] | None = None,
        lockstep: bool = False,
        min_batch: int = 2,
        last: tuple[str, int] = ("", -1),
        health: Callable[[], Note] = dict,
        private: PrivateUploads | None = None,
    ) -> None:
        self.name, self.network, self.adapter, self.handover = name, network, adapter, handover
        self.facts, self.lockstep, self.min_batch, self.last = dict(facts or {}), lockstep, min_batch, last
        self._make_spare, self._health, self._private = spare, health, private

    @cached_property
    def spare(self) -> Network:
        """A second network: the one that the loop uses cannot be used here at the same time."""
        return self._make_spare()

    @cached_property
    def source(self) -> Tensors:
        """What the client owned before its first batch."""
        return self.adapter.init(self.network).own

    def answer(self, request: Parcel) -> Parcel:
        """Return the reply to a request."""
        said = {key: value for key, value in request.note.items() if key in ("run", "nonce")}
        try:
            with torch.no_grad():
                if request.kind == "hello":
                    return Parcel("hello", request.round, {**said, **self._hello(request.note)})
                if request.kind not in ("step", "download"):
                    raise RequestRefused(f"a device does not serve requests of kind {request.kind!r}")
                return self._step(request, said)
        except (RequestRefused, UserError) as reason:
            log.warning("round %d: refused the server's request: %s", request.round, reason)
            return Parcel("refused", request.round, {**said, "device": self.name, **self.terms, "reason": str(reason)})

    @cached_property
    def terms(self) -> Terms:
        """What the server must agree on."""
        return terms_of(self.network, self.adapter)

    def _hello(self, note: Note) -> Note:
        if harmless := self._compare(note):
            log.warning("%s", harmless)
        own = self.handover.moment.client.own
        if "aggregator" in note:
            own = _aggregator(note).shares(self.network, own)
        table = {name: [str(t.dtype).removeprefix("torch."), list(t.shape)] for name, t in own.items()}
        told: Note = {"device": self.name, **self.terms, "lockstep": int(self.lockstep)}
        return {**self.facts, **told, "schema": SCHEMA, "tensors": json.dumps(table)}

    def _compare(self, note: Note) -> str | None:
        """Refuse a server that says it has something else; return what differs and does no harm."""
        if "weights" not in note:
            return None
        server = {key: str(note.get(key, "")) for key in TERMS}
        if reason := disagreement(self.terms, server):
            raise RequestRefused(reason)
        return difference(self.terms, server)

    def _step(self, request: Parcel, said: Note) -> Parcel:
        self._compare(request.note)  # the hello may have been that of a device that was started with something else
        if bool(request.note.get("lockstep", 0)) != self.lockstep:
            have, want = ("in lock-step", "free-running") if self.lockstep else ("free-running", "in lock-step")
            raise RequestRefused(f"the device is {have} and the server {want}: start both with --lockstep, or none")
        aggregator = _aggregator(request.note)
        if self.adapter.sends_noise is not None and aggregator.partner != self.adapter.name:
            raise RequestRefused(f"the device shares with noise, which covers aggregator {self.adapter.name!r} only")
        said = {**said, "device": self.name, **self.terms, **self._health()}
        sent, known = _split(request.arrays)
        if sent:
            before = self.handover.moment.batches
            fresh = self._receive(request, sent, aggregator)
            said["received"] = 1
            if fresh and self.lockstep and not self.handover.wait_for_moment(before, LOCKSTEP_WAIT):
                return self._nothing(request, said, "the device is still at work on the batch")
        if not request.note.get("ask", 1):
            return self._nothing(request, said, "nothing was asked for")
        if self.handover.ended:
            return self._nothing(request, said, "the device's data have ended")
        return self._upload(request, said, aggregator, known)

    def _receive(self, request: Parcel, sent: Tensors, aggregator: Aggregator) -> bool:
        """Leave the download for the loop; return False if it was received before."""
        run, number = str(request.note.get("run", "")), request.note.get("download", request.round - 1)
        if not isinstance(number, int):
            raise RequestRefused("the number of the download's round is no whole number")
        last_run, last_number = self.last
        if run == last_run and number <= last_number:
            return False
        client = self.handover.moment.client
        own = {**client.own, **aggregator.hands(client.private)}
        check_download(sent, own, self.source)
        if missing := aggregator.hands(client.private).keys() - sent.keys():
            raise RequestRefused(f"the download lacks {min(missing)!r}, which goes with the rest")
        self.last = (run, number)
        self.handover.deliver(Download({n: t.to(own[n].device) for n, t in sent.items()}, number, run))
        return True

    def _upload(self, request: Parcel, said: Note, aggregator: Aggregator, known: Tensors) -> Parcel:
        client, x, batches = self.handover.moment
        if x is None:
            return self._nothing(request, said, "the device has seen no batch yet")
        least = self._least(request.note)
        if aggregator.cumulative:  # what is shared rests on all batches, not on the last one
            aggregator = aggregator.with_least(least)
        elif len(x) < least:
            return self._nothing(
                request, said, f"a batch of {len(x)} is too small to share, at least {least} are asked for"
            )
        signals: Tensors = {}
        if type(aggregator).signal is not Aggregator.signal:
            signals = aggregator.leave_out(aggregator.signal(self.spare, client, x), known)
        own = client.own
        if self._private is not None:
            if signals:
                raise RequestRefused(
                    f"noise does not cover the {' and '.join(signals)} that {aggregator.name} asks for"
                )
            try:
                own = self._private.release(self.spare, x)
            except BudgetSpent as reason:
                return self._nothing(request, said, str(reason))
        tensors = named("own", aggregator.shares(self.network, own)) | named("signal", signals)
        arrays = {name: tensor.detach().cpu().numpy() for name, tensor in tensors.items()}
        return Parcel("upload", request.round, {**said, "batches": batches, "images": len(x)}, arrays)

    def _least(self, note: Note) -> int:
        """Return on how many images an upload must rest: as the device or the server asks, whichever is more."""
        asked = note.get("min_batch", 1)
        return max(self.min_batch, asked) if isinstance(asked, int) else self.min_batch

    def _nothing(self, request: Parcel, said: Note, reason: str) -> Parcel:
        return Parcel("nothing", request.round, {**said, "reason": reason})


def check_download(tensors: Tensors, own: Tensors, source: Tensors) -> None:
    """Refuse a download of other tensors than those that the server may replace, or of numbers no model can have.

    A server asks the same of uploads: a tensor of n numbers has at most the norm 10 (source's + sqrt n).
    """
    for name, tensor in tensors.items():
        if name not in own:
            raise RequestRefused(f"the download has a tensor {name!r:.80} that the device does not own")
        if (tensor.shape, tensor.dtype) != (own[name].shape, own[name].dtype):
            found, wanted = (f"{str(t.dtype).removeprefix('torch.')}{list(t.shape)}" for t in (tensor, own[name]))
            raise RequestRefused(f"the download's {name} is {found}, not {wanted}")
        if tensor.is_floating_point() and not bool(tensor.isfinite().all()):
            raise RequestRefused(f"the download's {name} holds values that are not finite")
        if name.endswith("running_var") and bool((tensor < 0).any()):
            raise RequestRefused(f"the download's {name} is a variance and holds negative values")
        if name in source and tensor.is_floating_point():
            most = BOUND * (float(source[name].double().norm()) + tensor.numel() ** 0.5)
            if (norm := float(tensor.double().norm())) > most:
                raise RequestRefused(f"the download's {name} has norm {norm:.4g}, more than {most:.4g}")


def _split(arrays: Mapping[str, NDArray[Any]]) -> tuple[Tensors, Tensors]:
    """Return what a request brings for the client's own tensors, and what the server says it has of the device."""
    tensors = {name: torch.from_numpy(array) for name, array in arrays.items()}
    own, known = under("own", tensors), under("known", tensors)
    for name in tensors:
        if not name.startswith(("own.", "known.")):
            raise RequestRefused(f"the download has an array {name!r:.80} that is no tensor of the client's own")
    if len({t.shape for t in known.values()}) > 1 or any(t.dim() != 1 or t.is_floating_point() for t in known.values()):
        raise RequestRefused("what the server says it has of the device are no lists of one length")
    return own, known


def _aggregator(note: Note) -> Aggregator:
    if "aggregator" not in note:
        return Aggregator()  # which asks for no signals, and for all that a client owns
    return _made(str(note["aggregator"]), str(note.get("parameters", "{}")))


@lru_cache(maxsize=4)
def _made(name: str, parameters: str) -> Aggregator:
    """Create the server's aggregator by its name, which must be known here too."""
    try:
        given = json.loads(parameters)
    except ValueError as error:
        raise RequestRefused("the aggregator's parameters are not JSON") from error
    if not isinstance(given, dict):
        raise RequestRefused("the aggregator's parameters are not a table")
    return aggregators.create(name, given)
