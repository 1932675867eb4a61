"""What parts count."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedctta.books.counting import (
    Places,
    add_up,
    clip_in_domains,
    clip_tables,
    clip_to_source,
    confirm,
    find_limit,
    find_medians,
    weigh,
)
from fedctta.books.library import Rules, Shelf
from fedctta.books.rows import Layout

LAYOUT = Layout(2)


def shelve(*parts):
    """A shelf with parts of one domain, (device, version, images, moment) each."""
    device, version, images, moment = (torch.tensor(column) for column in zip(*parts, strict=True))
    counts = images[:, None].float()
    moments = counts * moment[:, None].float().expand(-1, 4)
    rows = torch.stack([LAYOUT.row(n, images=n, measured=n, moments=m) for n, m in zip(counts, moments, strict=True)])
    none = device.new_zeros(0)
    return Shelf(rows, device, torch.arange(len(parts)), version, torch.zeros_like(device), version.max(), none, none)


def clip_to_median(means, clip):
    """One domain, by the definition."""
    if len(means) < 3:
        return means
    apart = means - means.median(0).values
    distance = apart.norm(dim=1, keepdim=True)
    return means.median(0).values + apart * (clip * distance.median() / distance.clamp_min(1e-8)).clamp_max(1)


def test_a_lie_among_many_is_pulled_to_the_others():
    means = torch.cat([torch.randn(9, 5, generator=torch.Generator().manual_seed(0)), torch.full((1, 5), 1000.0)])
    (clipped,) = clip_tables(means[None], torch.tensor([10]), 2.0)
    assert clipped[-1].norm() < 10
    (alone,) = clip_tables(means[None, -2:], torch.tensor([2]), 2.0)
    assert torch.equal(alone, means[-2:])  # two have no majority


@pytest.mark.parametrize("count", [1, 2, 7, 8])
def test_the_median_is_that_of_torch(count):
    rows = torch.randn(count, 5, generator=torch.Generator().manual_seed(count))
    number = torch.tensor([count])
    assert torch.equal(find_medians(rows[None], number)[0, 0], rows.median(0).values)
    single = rows[:, :1].contiguous()
    assert torch.equal(find_medians(single[None], number)[0, 0], single.median(0).values)
    assert torch.equal(single, rows[:, :1])  # a single column is not sorted where it lies


@given(st.lists(st.tuples(st.integers(0, 3), st.booleans()), max_size=12), st.integers(1, 4), st.integers(0, 9))
def test_all_domains_are_clipped_at_once_as_one_by_one(voices, width, seed):
    """Domains of one, two and many voices, some of whom are not heard, or empty ones."""
    domain = torch.tensor(sorted(k for k, _ in voices), dtype=torch.int64)
    heard = torch.tensor([there for _, there in voices], dtype=torch.bool)
    means = torch.randn(len(voices), width, generator=torch.Generator().manual_seed(seed)) ** 5
    expected = means.clone()
    for k in range(4):
        here = (domain == k) & heard
        expected[here] = clip_to_median(means[here], 1.5)
    torch.testing.assert_close(clip_in_domains(means, heard, Places.find(domain), 1.5), expected)


@pytest.mark.gpu
def test_a_gpu_clips_alike():
    domain, generator = torch.arange(20) // 5, torch.Generator().manual_seed(0)
    means, heard = torch.randn(20, 7, generator=generator), torch.rand(20, generator=generator) < 0.8
    expected = clip_in_domains(means, heard, Places.find(domain), 1.5)
    found = clip_in_domains(means.cuda(), heard.cuda(), Places.find(domain.cuda()), 1.5)
    torch.testing.assert_close(found.cpu(), expected)


def test_a_device_has_one_voice_in_a_domain_however_many_names_it_sends():
    """Four names of one liar against three honest devices: the median is an honest one."""
    shelf = shelve(*((device, 1, 100, 0.1 * device) for device in range(3)), *[(9, 1, 100, 8.0)] * 4)
    rows = add_up(shelf, LAYOUT, Rules(most=150))
    assert LAYOUT.of(rows, "images")[shelf.device == 9].sum() == pytest.approx(150)
    means = LAYOUT.of(rows, "moments") / LAYOUT.of(rows, "measured")[:, None]
    assert means[shelf.device == 9].max() <= 0.1 + 2 * 0.1 + 1e-6


def test_moments_far_from_the_source_are_shortened_in_every_domain():
    moments = torch.tensor([[1.0, 0.0], [0.0, 2.0], [0.5, 0.0], [30.0, 40.0]])
    torch.testing.assert_close(clip_to_source(moments, 2.0), torch.tensor([[1, 0], [0, 2], [0.5, 0], [1.2, 1.6]]))
    assert torch.equal(clip_to_source(moments[-2:], 2.0), moments[-2:])


def test_without_a_majority_no_length_is_too_long():
    assert find_limit(torch.tensor([1.0, 9.0, 2.0]), 2.0) == 4
    assert find_limit(torch.tensor([1.0, 9.0]), 2.0) == torch.inf


def test_every_count_has_its_own_weight():
    """Of 100 images 40 were measured; what was measured without being seen does not count."""
    shelf = shelve((0, 1, 100, 0.0), (1, 1, 100, 0.0))
    LAYOUT.of(shelf.rows, "measured").copy_(torch.tensor([40.0, 300.0]))
    weight, total = weigh(shelf.rows, torch.tensor([1.0, 0.5]), LAYOUT, Rules(few=30), shelf.domain, shelf.device)
    assert total[:, 2].tolist() == [40, 100]
    assert weight[:, 0].tolist() == [100, 50]
    assert weight[:, 2].tolist() == pytest.approx([30, 15])


def test_domains_that_three_devices_know_count_in_full():
    domain, images = torch.tensor([0, 0, 0, 1, 1]), torch.tensor([100.0, 10, 50, 100, 10])
    assert confirm(domain, images, Rules(few=20)).tolist() == [1, 1, 1, pytest.approx(0.2), 1]


def test_old_parts_fade_and_large_ones_are_capped():
    rows = add_up(shelve((0, 1, 100, 0.0), (1, 11, 50, 0.0)), LAYOUT, Rules(half_life=10, most=60, few=60))
    assert LAYOUT.of(rows, "images").tolist() == [pytest.approx(30), 50]
    assert LAYOUT.of(rows, "measured").tolist() == [pytest.approx(30), 50]
