"""One model on several variants of a batch or of its weights at once, for any model.

`torch.func.vmap` is fastest, but it cannot run every model: recurrent layers, random numbers, and branches that depend
on values have no batched form. There the variants are run one after another, with the same results.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from fedctta.core.clients import by_loop
from fedctta.core.network import Network


def at_once(network: Network, function: Callable[..., Any], chunk_size: int | None = None) -> Callable[..., Any]:
    """Lift a function that runs the network: by vmap, or by a loop for a model that vmap has been seen to fail on."""

    def lifted(*arguments: Any) -> Any:
        if network.batches:
            try:
                return torch.func.vmap(function, chunk_size=chunk_size)(*arguments)
            except torch.OutOfMemoryError:
                raise
            except RuntimeError:  # vmap's refusals have no class of their own: whatever else is wrong, the loop tells
                results = by_loop(function)(*arguments)
                network.batches = False
                return results
        return by_loop(function)(*arguments)

    return lifted
