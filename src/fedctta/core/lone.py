"""Whether tensors are of one client, or of many that are computed at once."""

from __future__ import annotations

import torch
from torch import Tensor


def is_lone(tensor: Tensor) -> bool:
    """Whether a tensor is one client's, on a CPU: its values can be asked for at no cost.

    Inside vmap it is that of several clients, which may differ, and to ask a GPU is to wait for it: compute both ways
    there, and choose with `torch.where`.
    """
    return not (tensor.is_cuda or torch._C._functorch.is_batchedtensor(tensor))
