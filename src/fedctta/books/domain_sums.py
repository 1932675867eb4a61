"""The sum of one domain as a linear function of its parts, so that one part is taken out again without the others.

With `counting`'s weights w_p of the parts p of voice v, and its clipping (h shortens, q pulls to the median m), the sum

    r = sum_v W_v (m + q_v (h_v mean_v - m)),    W_v = sum_{p in v} w_p,    mean_v = sum_{p in v} row_p / total_v
      = sum_p (c_p row_p + b_p m),               c_p = W_v q_v h_v / total_v,    b_p = w_p (1 - q_v)

for every group of sums, each with its own c and b. Numbers of images have c_p = w_p / row_p and b_p = 0. These are the
rules of `counting.add_up`, for one domain and in NumPy, which is quicker than PyTorch with so few numbers.
"""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedctta.books.counting import GROUPS
from fedctta.books.library import Rules
from fedctta.books.recognition import TINY
from fedctta.books.room import MAJORITY
from fedctta.books.rows import Layout

Array = NDArray[Any]


class DomainSums(NamedTuple):
    """The sums[S] of a domain; of its parts c[P, G] and b[P, G], for the groups in the order of rows; and m[S]."""

    sums: Array
    scale: Array
    shift: Array
    middle: Array

    def find_share(self, layout: Layout, row: Array, place: int) -> Array:
        """Return what the part at this place counts, given its row[S]."""
        widths = list_widths(layout)
        share: Array = np.repeat(self.scale[place], widths) * row
        if self.shift[place].any():
            share += np.repeat(self.shift[place], widths) * self.middle
        return share


@cache
def list_widths(layout: Layout) -> Array:
    """Return the number of columns of every group."""
    return np.array([part.stop - part.start for part in layout.parts.values()])


def measure_lengths(rows: Array, layout: Layout, voice: Array) -> Array:
    """Return the lengths[V] of the mean moments of voices, given that of every part[P]; -1 where there are none."""
    over = gather(np.minimum(rows[:, layout.parts["measured"]], rows[:, layout.parts["images"]])[:, 0], voice)
    length = find_norms(gather(rows[:, layout.parts["moments"]], voice))
    return np.where(over > 0, length / np.maximum(over, TINY), -1)


def find_norms(rows: Array) -> Array:
    """Return the lengths of rows."""
    norms: Array = np.sqrt(np.einsum("ij,ij->i", rows, rows))
    return norms


def gather(parts: Array, voice: Array) -> Array:
    """Add up parts[P, ...] by voice; voices are numbered in the order of their first parts."""
    voices = int(voice.max()) + 1
    if voices == len(parts):
        return parts
    sums = np.zeros_like(parts, shape=(voices, *parts.shape[1:]))
    np.add.at(sums, voice, parts)
    return sums


def weigh_parts(rows: Array, faded: Array, layout: Layout, rules: Rules, voice: Array) -> tuple[Array, Array]:
    """Return for every count how many images parts[P] count, and voices[V] rest on (`counting.weigh`)."""
    told = rows[:, [layout.parts[count].start for count in GROUPS]]
    images = told[:, 0]
    over = np.minimum(np.maximum(told, 0), images[:, None])
    total = gather(over, voice)
    capped = np.minimum(rules.most / np.maximum(gather(images, voice), TINY), 1)
    sure = np.where((total > 0).sum(0) < MAJORITY, np.minimum(rules.few / np.maximum(total, TINY), 1), 1)
    sure[:, 0] = 1
    return faded[:, None] * np.minimum(capped[:, None], sure)[voice] * over, total


def shorten(length: Array, most: float) -> Array:
    """Return the factors that make lengths at most `most`."""
    return np.minimum(most / np.maximum(length, TINY), 1)


def find_middle(values: Array) -> Any:
    """Return the median along the last axis, the lower of two. Sorts in place."""
    values.sort(-1)
    return values[..., (values.shape[-1] - 1) // 2]


def add_up_domain(
    rows: Array, faded: Array, layout: Layout, rules: Rules, voice: Array, lengths: Array, far: float
) -> DomainSums:
    """Return the sums of rows[P, S] of one domain, of which so much is left: moments longer than `far` are shortened.

    The voices of parts have moments of these lengths[V].
    """
    weight, total = weigh_parts(rows, faded, layout, rules, voice)
    share = gather(weight, voice)
    numbers = {name: number for number, name in enumerate(layout.parts)}
    scale, shift = np.zeros((2, len(rows), len(numbers)), rows.dtype)
    sums, middle = np.zeros((2, layout.width), rows.dtype)
    for n, (count, groups) in enumerate(GROUPS.items()):
        told, heard = rows[:, layout.parts[count].start], total[:, n] > 0
        scale[:, numbers[count]] = weight[:, n] / np.where(told > 0, told, 1)
        sums[layout.parts[count]] = weight[:, n].sum()
        factor = 1 / np.maximum(total[:, n], TINY)
        if count == "measured":
            factor = factor * shorten(lengths, far)
        for group in groups:
            k, columns = numbers[group], layout.parts[group]
            said, pull = rows[:, columns], np.ones_like(factor)
            if heard.sum() >= MAJORITY and said.shape[1]:
                means = gather(said, voice) * factor[:, None]
                means = means if heard.all() else means[heard]
                middle[columns] = find_middle(np.ascontiguousarray(means.T))
                means -= middle[columns]
                distance = find_norms(means)
                pull[heard] = shorten(distance, rules.clip * find_middle(distance.copy()))
            scale[:, k] = (share[:, n] * factor * pull)[voice]
            shift[:, k] = weight[:, n] * (1 - pull)[voice]
            sums[columns] = scale[:, k] @ said + shift[:, k].sum() * middle[columns]
    return DomainSums(sums, scale, shift, middle)
