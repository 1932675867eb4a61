"""A network as torch compiles it: fewer, larger kernels."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from fedctta.errors import UserError


def compile_network(module: nn.Module) -> Callable[[Tensor], Tensor]:
    """Return the module as torch compiles it, at its first batch; what cannot be compiled is a `UserError`."""
    from torch._dynamo.exc import TorchDynamoException  # seconds to load

    network = torch.compile(module, dynamic=False)

    def forward(x: Tensor) -> Tensor:
        try:
            logits: Tensor = network(x)
        except TorchDynamoException as error:
            reason = next(iter(str(error).strip().splitlines()), type(error).__name__)
            raise UserError(f"torch cannot compile this network here ({reason}): drop compile") from error
        return logits

    return forward
