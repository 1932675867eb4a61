"""Whether kin's server can be fused: on a GPU, where Triton works."""

from __future__ import annotations

from types import ModuleType

from fedctta.aggregators import Uploads
from fedctta.core.gpu_kernels import can_fuse

MOST = 16_384  # clients: beyond it operations are long, and one program would have to hold too many numbers
WIDEST = 64  # domains, for the same reason


def find_fused(uploads: Uploads, domains: int) -> ModuleType | None:
    """Return `fused`, if it serves these uploads on this machine."""
    if len(uploads.signals["look"]) > MOST or domains > WIDEST:
        return None
    if not all(can_fuse(tensor) for tensor in (*uploads.signals.values(), *uploads.own.values())):
        return None
    from fedctta.aggregators.kin import fused  # needs Triton

    return fused
