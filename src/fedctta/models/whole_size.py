"""A dense model of another library, made to answer at the size of its input.

SegFormers of `transformers` give an object with `logits` at a quarter of the input's size, others a tensor or a
dictionary (`out`). Here they become a plain module from images [B, 3, H, W] to logits [B, K, H, W].
"""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor, nn
from torch.nn import functional as F


class WholeSize(nn.Module):
    """Read the logits out of what `model` returns and scale them to the size of its input, bilinearly."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        """Return logits [B, K, H, W]."""
        found = self.model(x)
        if not isinstance(found, Tensor):
            found = (
                found.logits if hasattr(found, "logits") else found["out"] if isinstance(found, Mapping) else found[0]
            )
        return F.interpolate(found, size=x.shape[-2:], mode="bilinear", align_corners=False)
