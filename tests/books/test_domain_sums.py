"""The sum of one domain, part by part."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fedctta.books.counting import add_up, find_limit
from fedctta.books.domain_sums import add_up_domain, gather, measure_lengths
from fedctta.books.library import Rules, Shelf
from fedctta.books.rows import Layout

LAYOUT = Layout(3, 2)
RULES = Rules(few=20, most=300, half_life=10)


def make_shelf(device, seed=0):
    """Parts of one domain, some not scored, some not measured, one far off."""
    random = torch.Generator().manual_seed(seed)
    rows = torch.rand(len(device), LAYOUT.width, generator=random) * 50
    rows[:, 0] = 100 + 200 * torch.rand(len(device), generator=random)
    rows[-1, LAYOUT.parts["moments"]] = 5_000
    for k, count in enumerate(("scored", "measured", "trained")):
        LAYOUT.of(rows, count)[k::4] = 0
    device = torch.tensor(device)
    version = torch.randint(1, 30, device.shape, generator=random)
    none = device[:0]
    return Shelf(rows, device, torch.arange(len(rows)), version, device * 0, version.max() - 2, none, none)


def find_voices(device):
    return np.array([list(dict.fromkeys(device)).index(each) for each in device])


@pytest.mark.parametrize("device", [[5], [0, 1], [0, 1, 2], list(range(9)), [4, 1, 4, 2, 1, 4, 3], [7, 7, 7]])
def test_it_is_the_sum_of_what_the_parts_count(device):
    shelf, voice = make_shelf(device), find_voices(device)
    rows = shelf.rows.numpy()
    lengths = measure_lengths(rows, LAYOUT, voice)
    far = float(find_limit(torch.from_numpy(lengths[lengths >= 0]), RULES.clip))
    faded = torch.exp2(-(shelf.time - shelf.version).clamp_min(0) / RULES.half_life).numpy()
    found = add_up_domain(rows, faded, LAYOUT, RULES, voice, lengths, far)
    expected = add_up(shelf, LAYOUT, RULES)
    torch.testing.assert_close(torch.from_numpy(found.sums), expected.sum(0), rtol=1e-4, atol=1e-3)
    shares = [found.find_share(LAYOUT, row, place) for place, row in enumerate(rows)]
    torch.testing.assert_close(torch.from_numpy(np.sum(shares, 0)), expected.sum(0), rtol=1e-4, atol=1e-3)
    if len(set(device)) == len(device):  # a device's parts are taken out together
        torch.testing.assert_close(torch.from_numpy(np.stack(shares)), expected, rtol=1e-4, atol=1e-3)


def test_what_is_far_from_the_source_in_all_domains_is_shortened():
    shelf = make_shelf([0, 1])
    rows, voice = shelf.rows.numpy(), np.arange(2)
    lengths = measure_lengths(rows, LAYOUT, voice)
    assert lengths[1] == -1  # has measured nothing
    ones = np.ones(2, np.float32)
    free, bound = (
        add_up_domain(rows, ones, LAYOUT, RULES, voice, lengths, far).sums for far in (np.inf, lengths[0] / 4)
    )
    moments = LAYOUT.parts["moments"]
    np.testing.assert_allclose(bound[moments], free[moments] / 4, rtol=1e-5)


def test_parts_are_gathered_by_voice():
    assert gather(np.array([1.0, 2.0, 4.0]), np.array([0, 1, 0])).tolist() == [5, 2]
    assert gather(np.array([[1.0], [2.0]]), np.array([0, 1])).tolist() == [[1], [2]]
