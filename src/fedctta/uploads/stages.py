"""What happens to uploads between clients and the server's method, as a list of stages with one signature.

    transit = stage.handle(server, transit)            noise, then attacks, then lateness, then robustness

Every stage is a frozen dataclass in a file of this folder. A stage that does not apply returns the transit as it is.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

from torch import Tensor

from fedctta.aggregators import Server, Uploads
from fedctta.core.network import Tensors


class Transit(NamedTuple):
    """The uploads of one round on their way, and all that a stage may know about them.

    `receive`[N] marks the clients that receive a model at the end of the round. While that is every client that takes
    part, it is the very tensor `active`, which needs no comparison on a device.
    """

    t: int
    uploads: Uploads
    active: Tensor  # the clients that take part in the round
    receive: Tensor
    x: Tensor | None = None  # the present clients' batches; None: they are on other machines
    who: Tensor | slice = slice(None)  # the rows of those clients
    delay: Tensor | None = None  # rounds by which each upload is late; None: no upload is ever late
    post: Tensors = {}  # uploads that have not arrived yet; never changed in place
    sent: Tensors | None = None  # the uploaded tensors before robustness changed them; None: it did not


class Stage(Protocol):
    """One thing that happens to uploads on their way."""

    def handle(self, server: Server, transit: Transit) -> Transit:
        """Return the transit after this stage. Pure."""
        ...
