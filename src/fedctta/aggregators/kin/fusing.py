"""Whether kin's server can be fused: on a GPU, with Triton, which torch's CUDA builds bring along."""

from __future__ import annotations

from functools import cache
from types import ModuleType

import torch

from fedctta.aggregators import Uploads

MOST = 16_384  # clients: beyond it operations are long, and one program would have to hold too many numbers
WIDEST = 64  # domains, for the same reason


def find_fused(uploads: Uploads, domains: int) -> ModuleType | None:
    """Return `fused`, if it serves these uploads on this machine."""
    look = uploads.signals["look"]
    if not look.is_cuda or len(look) > MOST or domains > WIDEST:
        return None
    tensors = [*uploads.own.values(), *uploads.signals.values()]
    return import_fused(look.device) if all(tensor.dtype == torch.float32 for tensor in tensors) else None


@cache
def import_fused(device: torch.device) -> ModuleType | None:
    """Return `fused`, if Triton is there and works: it needs a GPU that it knows, and a C compiler.

    It starts kernels on the current GPU only.
    """
    if device.index is not None and device.index != torch.cuda.current_device():
        return None
    try:
        from fedctta.aggregators.kin import fused
    except ImportError:
        return None
    try:
        fused.probe(device)
    except Exception:  # of which kind depends on what is missing
        return None
    return fused
