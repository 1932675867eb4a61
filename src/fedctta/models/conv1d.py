"""A small network for series of a wrist sensor: three 1-d convolutions with BatchNorm."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F

CHANNELS = (32, 64, 64)
KERNELS = (9, 5, 5)


class Conv1d(nn.Module):
    """relu(BN(conv(x))) three times, each but the first with half as many steps; average over time, linear classifier.

    The first layer normalises its input, so that channels may have any scale.
    """

    def __init__(self, classes: int = 7, channels: int = 6) -> None:
        super().__init__()
        sizes = (channels, *CHANNELS)
        self.norm = nn.BatchNorm1d(channels)
        self.convs = nn.ModuleList(
            nn.Conv1d(sizes[k], sizes[k + 1], kernel, 1 + (k > 0), kernel // 2, bias=False)
            for k, kernel in enumerate(KERNELS)
        )
        self.norms = nn.ModuleList(nn.BatchNorm1d(width) for width in CHANNELS)
        self.fc = nn.Linear(CHANNELS[-1], classes)
        self.last_stage = ("convs.2.", "norms.2.")

    def forward(self, x: Tensor) -> Tensor:
        """Return logits [B, classes] of series [B, channels, time]."""
        x = self.norm(x)
        for conv, norm in zip(self.convs, self.norms, strict=True):
            x = F.relu(norm(conv(x)))
        logits: Tensor = self.fc(x.mean(2))
        return logits
