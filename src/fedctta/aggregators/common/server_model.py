"""What server methods share that keep one model and send it to all clients.

`collaborate` moves the model, and not `step`, because late uploads may arrive in a round in which no client receives:
then nothing is mixed. The model is in the memory, the tensor `a` as `global.a`.
"""

from __future__ import annotations

from torch import Tensor

from fedctta.aggregators import Aggregator, Server, Uploads
from fedctta.aggregators.common.vectors import for_active_all
from fedctta.core.network import Tensors


class ServerModel(Aggregator):
    """Hands its model to those who take part and to those who join."""

    def welcome(self, own: Tensors, joined: Tensor, memory: Tensors) -> Tensors:
        """Hand the server's model to those who join, once there is one."""
        if not all(f"global.{name}" in memory for name in own):
            return own
        return for_active_all(joined, self.keeps(memory), own)

    def keeps(self, memory: Tensors) -> Tensors:
        """Return the server's model, once there is one."""
        return {name.removeprefix("global."): tensor for name, tensor in memory.items() if name.startswith("global.")}

    def mixes(self, measured: bool) -> bool:
        """Everyone receives the server's model."""
        return False

    def step(
        self, server: Server, uploads: Uploads, mixed: Tensors, receive: Tensor, memory: Tensors
    ) -> tuple[Tensors, Tensors]:
        """Send the server's model."""
        return for_active_all(receive, self.keeps(memory), mixed), memory
