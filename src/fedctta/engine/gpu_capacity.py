"""How many clients fit on a GPU at once.

What a plain pass keeps for its backward pass is counted, tensor by tensor; a client that adapts holds a multiple of it,
and copies of all it owns. Memory is that of the whole device, not what is free just now: the same run should take the
same way every time.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from fedctta.core.clients import Client
from fedctta.core.network import Network

SHARE = 0.25  # of the device: a captured round and an ordinary one, which are compared, each need their own
ACTIVATIONS = 6  # what an adapting client holds, in plain passes: about 5.5 with Tent and BBN, ResNeXt-29, on an H200
COPIES = 4  # of what a client owns: before, gradient, adapted, mixed; or, where bfloat16 is stored, 3 and 2 halves
HELD = 5  # the same, of all clients, where a captured round is compared with an ordinary one (4.7 on an H200)
MOST = 0.9  # of the device that they may take


def clients_that_fit(network: Network, client: Client, batch: int, shape: tuple[int, ...]) -> int | None:
    """Return how many clients with batches of images[C, H, W] may adapt at once, at least one; None on a CPU."""
    if network.device.type != "cuda":
        return None
    own = sum(tensor.nbytes for tensor in (*client.own.values(), *client.private.values()))
    each = ACTIVATIONS * batch * kept_for_backward(network, shape) + COPIES * own
    return max(1, int(SHARE * torch.cuda.get_device_properties(network.device).total_memory / each))


def are_too_many(clients: Client, memory: int) -> bool:
    """Whether `memory` bytes hold all clients once or twice only, so that a round should change them in place."""
    return HELD * sum(tensor.nbytes for part in clients for tensor in part.values()) > MOST * memory


def kept_for_backward(network: Network, shape: tuple[int, ...], images: int = 2) -> float:
    """Return the bytes an image leaves behind in a forward pass that a backward pass could follow."""
    held: dict[int, Tensor] = {}

    def keep(tensor: Tensor) -> Tensor:
        held[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    x = torch.zeros(images, *shape, device=network.device, requires_grad=True)
    with torch.enable_grad(), saved_tensors_hooks(keep, lambda tensor: tensor):
        network({}, x)
    for tensor in network.state.values():
        held.pop(tensor.untyped_storage().data_ptr(), None)
    return sum(tensor.untyped_storage().nbytes() for tensor in held.values()) / images
