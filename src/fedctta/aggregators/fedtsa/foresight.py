"""The blocks of many rounds trained at once, where all indicators are known in advance.

Indicators are the source model's and every block begins anew, so that no round needs the one before it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from fedctta.aggregators.fedtsa.attention import make_identity_block
from fedctta.aggregators.fedtsa.captured_training import train_parts
from fedctta.aggregators.fedtsa.training import Attended, Training
from fedctta.core.randomness import numbered
from fedctta.machine import total_memory

LARGEST = 2**27  # numbers in all foreseen matrices, above which rounds are trained one by one
AT_ONCE = 2**26  # numbers in all blocks trained at once, of small ones
SHARE = 0.125  # of a GPU's memory that these may take, with all that their training needs
COPIES, PASSES, DRAWS = 12, 32, 24  # of a block, of its indicators and of its pairs, while it is trained
CLIENTS = 100  # whose indicators are computed at once, of several rounds if need be
FEWEST = 32  # large blocks trained at once; if fewer fit, they stay in the graph of a round, which launches nothing


def train_ahead(
    indicate: Callable[[Sequence[int]], Tensor],
    rounds: Sequence[int],
    clients: int,
    window: int,
    key: Tensor,
    how: Training,
) -> Attended | None:
    """Return what the last slot attends to in all rounds, an axis in front, or None if that would take too much.

    `indicate`(some) gives the indicators [R N, D] of some rounds, one after another.
    """
    if not rounds or len(rounds) * clients * (clients + window) > LARGEST:
        return None
    first = indicate(rounds[:1])
    block = make_identity_block(first, how.temporal).numel()
    pairs = clients * window * (clients + window)
    needed = first.element_size() * (COPIES * block + PASSES * window * first.numel() + DRAWS * pairs)
    fit, usual = int(SHARE * total_memory(first.device) / needed), AT_ONCE // block
    if max(fit, usual) < FEWEST:
        return None
    at_once = max(1, min(fit, max(usual, FEWEST)))
    together = max(1, CLIENTS // clients)
    later = (indicate(rounds[k : k + together]) for k in range(1, len(rounds), together))
    x, known = cut_windows(torch.cat([first, *later]).view(len(rounds), clients, -1).transpose(0, 1), window)
    keys = numbered(key, torch.arange(len(rounds), device=key.device))
    evenly = math.ceil(len(rounds) / math.ceil(len(rounds) / at_once))
    return train_parts(x, known, keys, evenly, how)


def cut_windows(indicators: Tensor, window: int) -> tuple[Tensor, Tensor]:
    """Return the window that ends with each round, x[R, N, T, D] of indicators[N, R, D], and its slots that are known.

    Slots before the first round are zero and not known.
    """
    known = torch.ones(indicators.shape[:2], dtype=torch.bool, device=indicators.device)
    x = F.pad(indicators, (0, 0, window - 1, 0)).unfold(1, window, 1).permute(1, 0, 3, 2)
    return x, F.pad(known, (window - 1, 0)).unfold(1, window, 1).transpose(0, 1)
