"""What the server does with all uploads. One method per file, its paper's equations as pure functions.

Nearly every method is a row-stochastic collaboration matrix W: client i receives sum_j W_ij theta_j. An aggregator
computes W (one for the model, or one for each of its tensors); the engine mixes, and the aggregator may take one more
step on the result. It is a frozen dataclass whose fields are its parameters. What it must remember between rounds is
a dictionary of tensors, which it gets and returns.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from torch import Tensor

from fedctta.aggregators.common.mixing import Mixing
from fedctta.core.clients import Client, Lifter
from fedctta.core.network import Network, Tensors
from fedctta.errors import UserError, either
from fedctta.registry import Registry, check_ranges


class Uploads(NamedTuple):
    """What the server holds in one round, stacked over the N clients.

    `own` are the uploaded parts of the clients' models, `signals` the small extras the aggregator asked for. Rows of
    clients that are not `active` are their last ones. `domain` is filled only for an upper bound (see
    `Aggregator.upper_bound`). `trust` is the weight of an upload: 1 if it is of this round, less the older it is, 0 if
    there is none. The engine multiplies W by it, so most methods need not read it.
    """

    own: Tensors
    signals: Tensors
    active: Tensor
    domain: Tensor | None = None
    trust: Tensor | None = None  # None: 1 for all that are active


@dataclass(frozen=True)
class Server:
    """What an aggregator may use besides uploads: the model's function, the lifting, a seed, public images."""

    network: Network
    lift: Lifter
    seed: int
    shape: tuple[int, ...]
    clients: int
    images: Callable[[int], Tensor]


class Aggregator:
    """A server method: which signals it asks for, and how uploads become a collaboration matrix.

    What others must know of it stands in class attributes. `title`, `colour` and `baseline` are not inherited.
    """

    name: ClassVar[str]
    title: ClassVar[str]  # in tables; without one, the name
    without_images: ClassVar[str] = ""  # a parameter=value with which it asks for no images of the source
    pictures: ClassVar[bool] = False  # True: works on colour pictures [B, 3, H, W] in [0, 1] only
    looks: ClassVar[bool] = False  # True: looks at images [B, C, H, W] or series [B, C, T]
    colour: ClassVar[str] = ""  # in figures, as #rrggbb; without one, the next that is free
    baseline: ClassVar[bool] = False  # True: stands above the methods in tables
    communicates: ClassVar[bool] = True  # False: nothing is sent, W is the identity
    cumulative: ClassVar[bool] = False  # True: an upload contains all that its client sent before
    upper_bound: ClassVar[bool] = False  # True: gets the true domains; for comparison, not a method
    guarded: ClassVar[str] = ""  # the parameter with which it clips uploads by itself; without one, `robust` does
    partner: ClassVar[str] = ""  # the only adapter whose clients have what it collects; without one, any

    def __post_init__(self) -> None:
        """Refuse parameters outside the ranges that their types tell."""
        check_ranges(self)

    def require_partner(self, adapter: str, own: Tensors) -> None:
        """Raise a UserError if this server has nothing to collect from clients with this adapter, who own these."""
        if self.partner not in ("", adapter):
            raise UserError(
                f"aggregator {self.name!r} shares what adapter {self.partner!r} stores, and adapter {adapter!r} stores"
                f" nothing of it: use adapter={self.partner}, or another aggregator"
            )
        partners = [name for name, cls in aggregators.classes().items() if cls.partner == adapter]
        if partners and not own and self.communicates and not self.upper_bound and not self.partner:
            raise UserError(
                f"aggregator {self.name!r} mixes models, and adapter {adapter!r} changes nothing of its model: use"
                f" aggregator={either(partners)}"
            )

    def check(self, network: Network, own: Tensors) -> None:
        """Raise a UserError if models of which clients own these tensors cannot be aggregated."""

    def init(self, server: Server) -> Tensors:
        """Return the memory before the first round."""
        return {}

    def shares(self, network: Network, own: Tensors) -> Tensors:
        """Return the part of the clients' models that is uploaded; the rest stays with the client."""
        return own

    def hands(self, private: Tensors) -> Tensors:
        """Return those of the clients' private tensors that the server replaces, by name; `step` returns new ones."""
        return {}

    def welcome(self, own: Tensors, joined: Tensor, memory: Tensors) -> Tensors:
        """Return all clients' shared tensors before a round in which `joined`[N] join; by default they keep theirs.

        A server that keeps its own model sends it here. Rows of all other clients must not change.
        """
        return own

    def locate(self, memory: Tensors) -> dict[int, list[int]]:
        """Return the domains that clients were in, as far as the server tells domains apart: the latest first."""
        return {}

    def keeps(self, memory: Tensors) -> Tensors:
        """Return the server's own model, if it keeps one."""
        return {}

    def mixes(self, measured: bool) -> bool:
        """Whether clients receive what the engine mixes, and not what the server remembers.

        `measured`: everything they upload was measured on one batch.
        """
        return True

    @property
    def only_mixes(self) -> bool:
        """Whether kernels and matrices are mixed, and neither looked at but by lifted functions, nor remembered.

        They may then be mixed where they are, and stored in bfloat16 without a copy of all in float32.
        """
        return False

    def foresee(self, server: Server, read: Callable[[int], Tensor], rounds: Sequence[int]) -> Tensors:
        """Return memories that can be computed in advance, given all that clients will see in a simulation.

        `rounds` are those that end with an aggregation; all clients take part in all of them. `read`(t) gives the
        batches x[N, B, ...] of round t. Only what does not depend on adaptation can be computed in advance, and the
        result must be the same as round by round.
        """
        return {}

    def signal(self, network: Network, client: Client, x: Tensor) -> Tensors:
        """Return what one client computes for the server beside its model. Pure; no labels."""
        return {}

    @property
    def least_images(self) -> int:
        """On how many images all that is shared rests."""
        return 1

    def with_least(self, images: int) -> Aggregator:
        """Return a `cumulative` method that shares nothing that rests on fewer images."""
        return self

    def recount(self, memory: Tensors, client: int) -> Tensors:
        """Return what to tell a client that the server has of it: integers[P] by name, all of one length."""
        return {}

    def leave_out(self, signals: Tensors, known: Tensors) -> Tensors:
        """Return one client's signals with zeros for rows that the server has, given what it told by `recount`."""
        return signals

    def put_back(self, signals: Tensors, client: int, memory: Tensors) -> Tensors:
        """Undo `leave_out` on the server. A simulation leaves nothing out."""
        return signals

    def prepare(self, server: Server, own: Tensors, memory: Tensors) -> Tensors:
        """Return signals[M, ...] that a fleet's server computes of M uploads as they arrive, before the round ends.

        Each depends on its own upload only. A simulation, where all arrive at once, leaves it to `collaborate`.
        """
        return {}

    def collaborate(self, server: Server, uploads: Uploads, memory: Tensors) -> tuple[Mixing, Tensors]:
        """Return W and the new memory. The engine takes absent clients out of W."""
        raise TypeError(f"{type(self).__name__} must define collaborate")

    def contribute(self, own: Tensors, active: Tensor, memory: Tensors) -> Tensors:
        """Return the tensors to be mixed, given the uploads and the memory of `collaborate`: by default `own`.

        A server that remembers uploads may mix more than the newest ones. Row by row: what one client contributes
        depends on its own uploads only. Absent clients' rows must not change.
        """
        return own

    def step(
        self, server: Server, uploads: Uploads, mixed: Tensors, receive: Tensor, memory: Tensors
    ) -> tuple[Tensors, Tensors]:
        """Return the models to send, given the mixed ones, and the new memory.

        `uploads` and `memory` are those of `collaborate` after it. Rows of clients that do not receive must not change.
        """
        return mixed, memory


aggregators: Registry[Aggregator] = Registry("aggregator", __name__)
