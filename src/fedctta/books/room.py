"""Which parts and domains keep their places when there are too many.

A domain keeps its newest parts. Of one device the newest part in the domain counts first, its second newest after the
newest ones of all devices, and so on: nobody fills a domain with names of its own.

A book keeps the domains that were seen last. Of the domains that fewer than `MAJORITY` devices tell of, each device
claims its `alone` newest; those that nobody claims go first. So a device that invents domains takes the places of
`alone` others at most, and a domain that one device has just met still finds room.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import torch
from torch import Tensor

MAJORITY = 3  # devices from which on a median tells who is far off


def sort_by(*keys: Tensor) -> Tensor:
    """Return the indices that sort by the first key, then the second, and so on."""
    order = torch.arange(len(keys[0]), device=keys[0].device)
    for key in reversed(keys):
        order = order[key[order].argsort(stable=True)]
    return order


def choose_parts(domain: Tensor, device: Tensor, version: Tensor, most: int) -> Tensor:
    """Return which parts[P] are among the `most` that their domain keeps."""
    voice = torch.unique(torch.stack([domain, device]), dim=1, return_inverse=True)[1]
    return _number(domain, _number(voice, -version), -version, device) < most


def find_last(parts: Sequence[tuple[int, int, int]]) -> int:
    """Return which (device, version, name) of a domain's parts `choose_parts` leaves out first: the same rule."""
    places = range(len(parts))
    number = dict.fromkeys(places, 0)
    if len({device for device, _, _ in parts}) < len(parts):
        told: Counter[int] = Counter()
        for k in sorted(places, key=lambda k: (-parts[k][1], parts[k][2])):
            number[k] = told[parts[k][0]]
            told[parts[k][0]] += 1
    return max(places, key=lambda k: (number[k], -parts[k][1], parts[k][0]))


def choose_domains(domain: Tensor, device: Tensor, version: Tensor, most: int, alone: int) -> Tensor:
    """Return which domains[K] are among the `most` that a book keeps, given the domains, devices, ... of its parts."""
    count = int(domain.max()) + 1
    if count <= most:
        return torch.ones(count, dtype=torch.bool, device=domain.device)
    seen = version.new_zeros(count).scatter_reduce(0, domain, version, "amax")
    where, who = torch.unique(torch.stack([domain, device]), dim=1)
    voices = torch.bincount(where, minlength=count)
    few = voices[where] < MAJORITY
    claims = _number(who[few], -seen[where[few]], where[few]) < alone
    last = (voices < MAJORITY).index_fill(0, where[few][claims], False)
    kept = torch.zeros_like(last)
    kept[sort_by(last.int(), -seen)[:most]] = True
    return kept


def _number(group: Tensor, *keys: Tensor) -> Tensor:
    """Number the members of every group from 0, in the order of the keys."""
    order = sort_by(group, *keys)
    ordered = group[order]
    number = torch.arange(len(order), device=order.device) - torch.searchsorted(ordered, ordered)
    return torch.empty_like(order).scatter(0, order, number)
