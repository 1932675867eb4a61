"""How much of a domain's statistics is used: the weight with which predictions are most certain, if not on one class.

With H_a the mean entropy of predictions with weight a on the domain's images, and H the least of the five:

    a = 0                                        if H = H_0: the source is most certain
    a = the largest with H_a <= (1 + tie) H      else: larger weights measure more (see `rows`)

Where a stream has few classes, a blended model may put all images into a wrong class and be certain of it. So weights
are left out with which some class gains more than `collapse` of all predictions over the source model, and predictions
as a whole get less diverse:

    max_c (share_a(c) - share_0(c)) > collapse   and   H(share_a) < H(share_0)       share_0: the source's, a = 0

A model that adapts well to many classes takes from the classes that the source overestimates, and gives a little to
many; a model that collapses gives all to one.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedctta.books.rows import WEIGHTS, Layout

TINY = 1e-6


@dataclass(frozen=True)
class Chooser:
    """The constants of the choice; `start` is the weight of a domain on which nothing was scored yet."""

    start: float = 0.5
    tie: float = 0.03
    collapse: float = 0.3

    def choose(self, layout: Layout, rows: Tensor) -> Tensor:
        """Return a[K] for the domains in rows[K, S]."""
        scored = layout.of(rows, "scored")[:, None]
        entropy = layout.of(rows, "entropy") / scored.clamp_min(TINY)
        shares = layout.of(rows, "classes") / scored.clamp_min(TINY)[..., None]
        moved = (shares - shares[:, :1]).amax(-1)
        diverse = torch.special.entr(shares).sum(-1)
        entropy = torch.where((moved > self.collapse) & (diverse < diverse[:, :1]), torch.inf, entropy)
        least = entropy.amin(-1, keepdim=True)
        options = torch.tensor(WEIGHTS, device=rows.device, dtype=rows.dtype)
        largest = torch.where(entropy <= (1 + self.tie) * least, options, 0).amax(-1)
        helps = (least < entropy[:, :1]).squeeze(-1)
        return torch.where(scored.squeeze(1) > 0, largest * helps, self.start)
