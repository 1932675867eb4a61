"""The blocks of many rounds trained at once, where all indicators are known in advance.

Indicators are the source model's and every block begins anew, so that no round needs the one before it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from fedctta.aggregators.fedtsa.attention import make_identity_block
from fedctta.aggregators.fedtsa.noise import prepare_noise
from fedctta.aggregators.fedtsa.training import Attended, Training, train
from fedctta.core.randomness import numbered

LARGEST = 2**27  # numbers in all foreseen matrices, above which rounds are trained one by one
AT_ONCE = 2**24  # numbers in all blocks trained at once
TOO_FEW = 8  # blocks at once for which it is not worth while to leave the graph of a round, which launches nothing


def train_ahead(
    indicate: Callable[[int], Tensor], rounds: Sequence[int], clients: int, window: int, key: Tensor, how: Training
) -> Attended | None:
    """Return what the last slot attends to in all rounds, an axis in front, or None if that would take too much.

    `indicate`(t) gives the indicators [N, D] of round t.
    """
    if not rounds or len(rounds) * clients * (clients + window) > LARGEST:
        return None
    first = indicate(rounds[0])
    at_once = AT_ONCE // make_identity_block(first, how.temporal).numel()
    if at_once < TOO_FEW:
        return None
    x, known = cut_windows(torch.stack([first, *(indicate(t) for t in rounds[1:])], 1), window)
    keys = numbered(key, torch.arange(len(rounds), device=key.device))
    parts = zip(*(torch.split(part, at_once) for part in (x, known, keys)), strict=True)
    trained = [train(part, there, prepare_noise(k, clients, window, how), how) for part, there, k in parts]
    return Attended(*(torch.cat(each) for each in zip(*trained, strict=True)))


def cut_windows(indicators: Tensor, window: int) -> tuple[Tensor, Tensor]:
    """Return the window that ends with each round, x[R, N, T, D] of indicators[N, R, D], and its slots that are known.

    Slots before the first round are zero and not known.
    """
    known = torch.ones(indicators.shape[:2], dtype=torch.bool, device=indicators.device)
    x = F.pad(indicators, (0, 0, window - 1, 0)).unfold(1, window, 1).permute(1, 0, 3, 2)
    return x, F.pad(known, (window - 1, 0)).unfold(1, window, 1).transpose(0, 1)
