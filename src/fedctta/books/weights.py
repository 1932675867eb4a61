"""How much of a domain's statistics is used: as much as makes predictions more certain, and not of stranger classes.

A device compares the weights a = 0, A / 2 and A on some batches, with A the largest, by two numbers:

    E_a    the mean entropy of predictions q; of pictures (1 - m) H(q) + m H((q + q') / 2), with q' predicted for the
           mirror image: who is certain of a picture, and of something else in its mirror image, is in doubt, too
    S_a    t KL(Q_a | p), with Q_a the classes predicted with weight a in this domain so far, p those seen elsewhere

Certainty alone deceives where a stream has one class and a blended model puts all images into another, where the
source model takes everything in a strange domain for one class, and where predictions collapse onto few classes. All
show as classes that the device does not see elsewhere. But real domains differ in their classes too, so that usual
classes alone are no reason for a weight either: they only forbid one.

c_i(j) is the sum of what the source model predicts for class j in domain i, over the batches that were compared;
certain predictions count more, by 1 - entropy / log C for C classes. In domain k, with c_i the sum over classes,

    p(j) ~ 1 / C + sum_{i != k} c_i(j) / max(1, c_i / 30) + 0.1 c_k(j) / max(1, c_k / 30)
    t = c / (c + 30),    c = sum_{i != k} min(c_i, 30): nobody can tell who has been in no other domain

Q_a is a mean over n images of the device and ten more that are as usual. c and Q never leave the device. E and S for
A / 4 and 3 A / 4 are read off the parabola through the three; on CIFAR-10-C that is 1 to 2 % off in the median. With
means over a domain's images, and X_a = S_a + worth E_a,

    a is allowed                      if X_a <= X_b + slack for all b < a
    a = 0                             if E_0 is the least E of all that are allowed: the source is the best
    a = the largest that is allowed   with E_a <= (1 + tie) times the least, else: larger weights measure more

A domain on which nothing was scored yet has only the batch's own statistics. These are worth `start` where the device
sees all classes alike, and nothing where it sees few: start * min(1, max(0, (r - 0.5) / 0.4)), with r = exp(entropy of
p) / C and all domains alike in p.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import log

import torch
from torch import Tensor
from torch.nn import functional as F

from fedctta.books.rows import BINS, Layout
from fedctta.core.tensors import constant

OPTIONS = (0.0, 0.25, 0.5, 0.75, 1.0)  # of the largest weight
PARABOLA = ((1.0, 0.375, 0.0, -0.125, 0.0), (0.0, 0.75, 1.0, 0.75, 0.0), (0.0, -0.125, 0.0, 0.375, 1.0))
"""What is compared, with all options, from that with no, half and all of the largest weight."""
MOST = 30.0  # certain images that one domain counts, of the classes a device usually sees
LEAST = 0.1  # what a score counts if no other domain tells of usual classes
HERE = 0.1  # what the domain of the batch counts beside the others
AS_USUAL = 10.0  # images of usual classes that count beside those predicted
TINY = 1e-6


@dataclass(frozen=True)
class Chooser:
    """The constants of the choice."""

    start: float = 0.5
    tie: float = 0.02
    largest: float = 0.9
    slack: float = 0.02
    worth: float = 0.3

    def choose(self, layout: Layout, rows: Tensor, classes: Tensor) -> Tensor:
        """Return a[K + 1] for domains in rows[K, S] and the unknown one, on a device that has seen classes[K, 16]."""
        scored = layout.of(rows, "scored")[:, None]
        parabola = constant(PARABOLA, rows) / scored.clamp_min(TINY)[..., None]
        entropy, unusual = ((layout.of(rows, name)[:, None] @ parabola).squeeze(1) for name in ("doubt", "unusual"))
        stranger = unusual + self.worth * entropy
        allowed = stranger <= stranger.cummin(-1).values + self.slack
        doubt = torch.where(allowed, entropy, torch.inf)
        least = doubt.amin(-1, keepdim=True)
        options = self.largest * constant(OPTIONS, rows)
        largest = torch.where(doubt <= (1 + self.tie) * least, options, 0).amax(-1)
        helps = (least < doubt[:, :1]).squeeze(-1)
        first = self.start * variety(classes)
        return torch.cat([torch.where(scored.squeeze(1) > 0, largest * helps, first), first[None]])


def variety(classes: Tensor) -> Tensor:
    """Return how far a batch's own statistics can be trusted, 0 to 1: whether classes[K, 16] are seen alike."""
    usual = _cap(classes).sum(0)
    shares = usual / usual.sum().clamp_min(TINY)
    alike = torch.special.entr(shares).sum().exp() / (usual > 0).sum().clamp_min(1)
    return torch.where(usual.sum() > 0, ((alike - 0.5) / 0.4).clamp(0, 1), 1)


def count_classes(probabilities: Tensor) -> Tensor:
    """Return c[16] of the source model's predictions[B, C] of a batch; class j counts in bin j mod 16."""
    certain = 1 - torch.special.entr(probabilities).sum(-1) / log(probabilities.shape[-1])
    return _pool((certain[:, None].clamp_min(TINY) * probabilities).sum(0))


def find_usual(classes: Tensor, belief: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Return p[16] in domain k with belief[k], of so many classes, where classes[K, 16] were seen; and t."""
    seen = _cap(classes)
    elsewhere = (1 - belief) @ seen.sum(-1)
    usual = _pool(seen.new_full((count,), 1 / count)) + (1 - (1 - HERE) * belief) @ seen
    return usual / usual.sum(), elsewhere / (elsewhere + MOST)


def count_shares(probabilities: Tensor) -> Tensor:
    """Return the sums[A, 16] of what is predicted with each weight, of probabilities[A, B, C]."""
    return _pool(probabilities.sum(1))


def compare_classes(usual: Tensor, shares: Tensor) -> Tensor:
    """Return KL(Q_a | p)[A], where sums[A, 16] of images were predicted."""
    found = shares + AS_USUAL * usual
    found = (found / found.sum(-1, keepdim=True)).clamp_min(TINY)
    return (found * (found / usual.clamp_min(TINY)).log()).sum(-1)


def _cap(classes: Tensor) -> Tensor:
    return classes / (classes.sum(-1, keepdim=True) / MOST).clamp_min(1)


def _pool(shares: Tensor) -> Tensor:
    padded = F.pad(shares, (0, -shares.shape[-1] % BINS))
    return padded.view(*shares.shape[:-1], -1, BINS).sum(-2)
