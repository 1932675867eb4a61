"""Books with noise: what one image can change, and what is sent."""

from __future__ import annotations

from math import sqrt

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedctta.books.noisy_book import (
    CENTRE,
    FEW,
    PIXELS,
    USUAL,
    WORTH,
    Measured,
    NoisyBook,
    cut,
    is_noisy,
    match,
    measure,
    tell,
)
from fedctta.books.notebook import Notebook
from fedctta.books.plausibility import find_honest
from fedctta.books.rows import Layout, read_scale
from fedctta.core.appearance import NUMBERS, appearance
from fedctta.core.randomness import keys

LAYOUT = Layout(3)
WIDE = Layout(3, 7)
ALL = torch.ones(6)


def start(book, seed=0):
    own = book.notebook.start(LAYOUT.width, torch.device("cpu"))
    return own | book.start(LAYOUT, torch.device("cpu")) | {"key": keys(seed, 1)[0]}


def make(noise=0.5, min_images=100, **values):
    return NoisyBook(Notebook(4), noise, min_images, **values)


def draw_looks(count, shift=0.0, seed=0):
    generator = torch.Generator().manual_seed(seed)
    spread = torch.randn(count, NUMBERS, generator=generator) + shift
    return torch.tensor(CENTRE) + torch.tensor(USUAL) * spread


def walk(book, private, looks, moments, chance=None):
    """Add images in batches of ten; `chance`[T, 16] is used as the noise, zeros if there is none given."""
    for t, (some, vectors) in enumerate(zip(looks.split(10), moments.split(10), strict=True)):
        private = private | {"time": private["time"] + 10}
        if chance is not None:
            private |= {"shared.fresh": chance[t], "shared.given": torch.ones(())}
        private = book.add(LAYOUT, private, some, Measured(vectors, ALL))
    return private


@given(
    seed=st.integers(0, 100),
    size=st.sampled_from([0.0, 1e-3, 1.0, 1e3, 1e20, float("inf"), float("nan")]),
    which=st.integers(0, 49),
)
def test_one_image_changes_sums_by_no_more_than_stated(seed, size, which):
    """Whatever the image: the look of its window by 2 A, and what waits by 2 C."""
    book = make()
    generator = torch.Generator().manual_seed(seed)
    looks, moments = draw_looks(50, seed=seed), torch.randn(50, 6, generator=generator)
    other_looks, other_moments = looks.clone(), moments.clone()
    other_looks[which] = size * torch.randn(NUMBERS, generator=generator)
    other_moments[which] = size * torch.randn(6, generator=generator)
    # all but the last batch: nothing is released yet; the last images are seen by hand
    a, b = (walk(book, start(book), f[:40], v[:40]) for f, v in ((looks, moments), (other_looks, other_moments)))
    length = book.radius * sqrt(6)
    assert float((a["shared.look"] - b["shared.look"]).norm()) <= 2 * book.look_length * (1 + 1e-5)
    assert float((a["shared.moments"] - b["shared.moments"]).norm()) <= 2 * length * (1 + 1e-5)
    assert (a["shared.look"].isfinite() & b["shared.look"].isfinite()).all()
    # with the same noisy look, the window goes to the same domain, and the waiting sums differ by no more
    chance = torch.zeros(5, NUMBERS + 6)
    moved = (cut((looks[40:] - torch.tensor(CENTRE)) / torch.tensor(USUAL), book.look_length)).sum(0) + a["shared.look"]
    there = (cut((other_looks[40:] - torch.tensor(CENTRE)) / torch.tensor(USUAL), book.look_length)).sum(0)
    other_chance = chance.clone()
    other_chance[:, :NUMBERS] = (moved - there - b["shared.look"]) / book.look_noise
    a = walk(book, a, looks[40:], moments[40:], chance)
    b = walk(book, b, other_looks[40:], other_moments[40:], other_chance)
    for name in ("name", "changed", "belief", "held"):
        torch.testing.assert_close(a[f"shared.{name}"], b[f"shared.{name}"], atol=1e-4, rtol=1e-4)
    waits = [WIDE.of(private["shared.part"], "learnt") for private in (a, b)]
    torch.testing.assert_close(waits[0][:, 0], waits[1][:, 0])
    assert float((waits[0] - waits[1])[:, 1:].norm()) <= 2 * length * (1 + 1e-5)


def test_an_image_is_released_once():
    """All releases of moments together contain every image with a weight of at most one."""
    book = make(noise=1e-6, min_images=100)
    images = 60
    looks = torch.cat([draw_looks(300, 0.0, 1), draw_looks(300, 3.0, 2), draw_looks(300, 0.0, 3)])
    marked = torch.zeros(900, 6)
    marked[:images, 0] = 0.5  # shorter than C, so never cut
    private = walk(book, start(book), looks, marked)
    part = private["shared.part"]
    released, measured = LAYOUT.of(part, "moments")[:, 0], LAYOUT.of(part, "measured")
    assert (measured > 0).sum() >= 2
    waits = WIDE.of(part, "learnt")
    assert float(waits[:, 1].sum()) < 1e-3  # long released
    share = released / measured.clamp_min(1e-6)  # mean of the marked number, over at least 100 images each
    assert float(share.max()) <= 0.5 * images / 100 + 1e-3


def test_nothing_is_sent_before_enough_images_wait():
    book = make(min_images=100)
    looks, moments = draw_looks(200), torch.zeros(200, 6)
    early = walk(book, start(book), looks[:50], moments[:50])
    assert (tell(LAYOUT, early)["name"] == 0).all()
    assert (tell(LAYOUT, early)["part"] == 0).all()
    late = walk(book, early, looks[50:], moments[50:])
    assert (tell(LAYOUT, late)["name"] != 0).sum() == 1


@pytest.mark.parametrize("noise", [1e-3, 1.0, 30.0, 1e4])
def test_what_is_sent_can_be_true(noise):
    book = make(noise=noise, min_images=50)
    generator = torch.Generator().manual_seed(0)
    private = walk(book, start(book), draw_looks(4000), torch.randn(4000, 6, generator=generator))
    if noise < 100:
        assert (tell(LAYOUT, private)["name"] != 0).any()
    told = {name: tensor[None] for name, tensor in tell(LAYOUT, private).items()}
    assert find_honest(LAYOUT, told["part"], told["name"], told["changed"], told["time"]).all()


def test_without_noise_the_release_is_the_mean_and_counts_as_an_exact_one():
    book = make(noise=1e-9, min_images=99)  # what waits fades a little, too
    moments = torch.tensor([0.3, -0.2, 0.1, 0.0, 0.4, 0.2]).expand(100, 6)
    part = walk(book, start(book), draw_looks(100), moments)["shared.part"]
    here = LAYOUT.of(part, "measured").argmax()
    count = LAYOUT.of(part, "measured")[here]
    assert float(count) == pytest.approx(100, rel=1e-2)
    torch.testing.assert_close(LAYOUT.of(part, "moments")[here] / count, moments[0], atol=1e-4, rtol=1e-3)
    assert float(LAYOUT.of(part, "images")[here]) == pytest.approx(100, rel=1e-2)


def test_noise_has_the_stated_size():
    """Released numbers of many devices that see nothing: zero moments, looks at the centre."""
    book = make(noise=1.0, min_images=50, least_window=50)
    found = []
    for seed in range(200):
        private = walk(book, start(book, seed), torch.tensor(CENTRE).expand(50, NUMBERS), torch.zeros(50, 6))
        part = private["shared.part"]
        row = LAYOUT.of(part, "measured").argmax()
        look = LAYOUT.of(part, "look")[row] / LAYOUT.of(part, "images")[row]
        mean = LAYOUT.of(part, "moments")[row] / LAYOUT.of(part, "measured")[row]
        found.append(torch.cat([(look - torch.tensor(CENTRE)) / torch.tensor(USUAL), mean]) * 50)
    deviation = torch.stack(found).square().mean(0).sqrt()
    looks, moments = deviation[:NUMBERS].square().mean().sqrt(), deviation[NUMBERS:].square().mean().sqrt()
    assert float(looks) == pytest.approx(2 * 6.0 * sqrt(2), rel=0.1)
    assert float(moments) == pytest.approx(2 * 0.35 * sqrt(6) * sqrt(2), rel=0.1)


def test_both_kinds_of_noise_together_are_the_budget():
    book = make(noise=0.7, share=0.3)
    looks = 2 * book.look_length / book.look_noise
    length = torch.tensor(2.0)
    moments = 2 * 2.0 / float(book.moments_noise(length))
    assert looks**2 + moments**2 == pytest.approx(1 / 0.7**2)


def test_larger_noise_needs_larger_windows():
    assert make(noise=0.1).window == 50
    assert make(noise=4.0).window == 136
    assert make(noise=4.0).worth > 1


def test_noise_differs_between_devices_and_windows_and_is_repeatable():
    book, looks, moments = make(), draw_looks(100), torch.zeros(100, 6)
    one, again, other = (walk(book, start(book, seed), looks, moments)["shared.part"] for seed in (0, 0, 1))
    assert torch.equal(one, again)
    assert not torch.allclose(one, other)


def test_chance_from_outside_is_used():
    book, looks, moments = make(min_images=50), draw_looks(50), torch.zeros(50, 6)
    chance = torch.zeros(5, NUMBERS + 6)
    chance[-1, NUMBERS] = 3.0
    part = walk(book, start(book), looks, moments, chance)["shared.part"]
    row = LAYOUT.of(part, "measured").argmax()
    mean = LAYOUT.of(part, "moments")[row] / LAYOUT.of(part, "measured")[row]
    expected = 3.0 * float(book.moments_noise(torch.tensor(0.35 * sqrt(6)))) / 50
    torch.testing.assert_close(mean, torch.tensor([expected, 0, 0, 0, 0, 0]), atol=1e-5, rtol=1e-4)


def test_an_image_is_measured_by_itself(tiny_network):
    x = torch.rand(4, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    scale = read_scale(tiny_network)
    with torch.no_grad():
        together, alone = measure(tiny_network, scale, x), measure(tiny_network, scale, x[1:2])
    torch.testing.assert_close(together.moments[1:2], alone.moments, atol=1e-5, rtol=1e-4)
    assert together.which.any()


def test_layers_with_few_pixels_are_left_to_the_source(tiny_network):
    side = int(sqrt(PIXELS)) - 4
    measured = measure(tiny_network, read_scale(tiny_network), torch.rand(2, 3, side, side))
    assert not measured.which.any()
    assert (measured.moments == 0).all()


def test_exact_domains_are_found_in_a_received_book_by_their_looks():
    notebook = Notebook(4)
    private = notebook.start(LAYOUT.width, torch.device("cpu"))
    looks = [appearance(torch.rand(200, 3, 16, 16) * scale) for scale in (1.0, 0.1)]
    rows = [LAYOUT.row(f, images=torch.tensor([200.0]), look=f.sum(0), square=f.square().sum(0)) for f in looks]
    empty = torch.zeros(LAYOUT.width)
    private |= {
        "part": torch.stack([rows[0], rows[1], empty, empty]),
        "name": torch.tensor([11, 12, 0, 0]),
        "book": torch.stack([empty, empty, rows[1], empty]),
        "heading": torch.tensor([0, 0, 77, 0]),
        "usual": looks[0].var(0),
    }
    placed = match(notebook, LAYOUT, private)
    assert placed["place"].tolist() == [-1, 2, -1, -1]
    assert float(LAYOUT.of(placed["book"], "images")[2]) == pytest.approx(FEW)
    moved = notebook.receive(placed)
    assert moved["name"].tolist()[2] == 77
    torch.testing.assert_close(moved["part"][2], rows[1])
    assert not is_noisy(private)
    twice = match(notebook, LAYOUT, private | {"part": torch.stack([rows[1], rows[1] / 2, empty, empty])})
    assert sum(place == 2 for place in twice["place"].tolist()) == 1  # the book unites nothing
    kept = match(notebook, LAYOUT, private | {"name": torch.tensor([77, 12, 0, 0])})
    assert kept["place"].tolist() == [-1, -1, -1, -1]  # the place is taken by its name


def test_moments_of_others_count_as_few_images():
    notebook, row = Notebook(4), torch.zeros(LAYOUT.width)
    row[LAYOUT.parts["measured"]] = 400.0
    row[LAYOUT.parts["moments"]] = 800.0
    private = notebook.start(LAYOUT.width, torch.device("cpu"))
    book = match(notebook, LAYOUT, private | {"book": torch.stack([row, row / 20, 0 * row, 0 * row])})["book"]
    assert LAYOUT.of(book, "measured").tolist() == pytest.approx([WORTH, 20.0, 0.0, 0.0])
    assert LAYOUT.of(book, "moments")[:2].flatten().tolist() == pytest.approx([80.0] * 6 + [40.0] * 6)
