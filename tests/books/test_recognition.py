"""Which domain a batch is of."""

from __future__ import annotations

import math

import pytest
import torch

from fedctta.books.recognition import FLOOR, TWINS, Looks, Recogniser
from fedctta.books.rows import Layout
from fedctta.core.appearance import NUMBERS

USUAL = torch.ones(NUMBERS)


def looks(*means, images=100.0):
    mean = torch.tensor(means)[:, None].expand(-1, NUMBERS).clone()
    return Looks(torch.full((len(means),), images), mean, torch.ones(len(means), NUMBERS))


def test_the_belief_by_hand():
    known = looks(0.0, 1.0)
    prior = torch.tensor([0.2, 0.3, 0.5])
    belief = Recogniser(hazard=0.1, tolerance=0.01, strange=10).update(prior, torch.zeros(NUMBERS), 10, known, USUAL)
    error = 0.1 + 0.01 + 0.01
    half = NUMBERS / 2
    near, far, unknown = -half * math.log(error), -half / error - half * math.log(error), -half * math.log(10)
    weights = [(0.9 * p + 0.1 / 3) * math.exp(e) for p, e in zip(prior.tolist(), (near, far, unknown), strict=True)]
    torch.testing.assert_close(belief, torch.tensor(weights) / sum(weights))


def test_a_shift_overrides_what_was_believed_and_a_strange_look_is_unknown():
    known, recogniser = looks(0.0, 3.0), Recogniser()
    sure = torch.tensor([1.0, 0.0, 0.0])
    assert recogniser.update(sure, torch.full((NUMBERS,), 3.0), 10, known, USUAL)[1] > 0.99
    assert recogniser.update(sure, torch.full((NUMBERS,), -20.0), 10, known, USUAL)[2] > 0.99


def test_places_without_a_domain_are_never_believed_in():
    known = Looks(torch.tensor([100.0, 0.0]), torch.zeros(2, NUMBERS), torch.zeros(2, NUMBERS))
    belief = Recogniser().update(torch.tensor([0.0, 0.0, 1.0]), torch.zeros(NUMBERS), 10, known, USUAL)
    assert belief[1] == 0
    assert belief.sum() == pytest.approx(1)


def test_a_number_that_never_changes_has_a_floor():
    known = looks(0.0)
    grey = Looks(known.images, known.mean, (torch.arange(NUMBERS) != 9).float().expand(1, -1))
    assert grey.widths(USUAL)[0, 9] == pytest.approx(10 / 110, rel=1e-5)  # pulled to the usual variance
    many = Looks(torch.tensor([1e6]), grey.mean, grey.var)
    assert many.widths(USUAL)[0, 9] == pytest.approx(FLOOR)
    assert (many.widths(torch.zeros(NUMBERS)) > 0).all()


def test_two_domains_are_one_if_they_look_alike():
    odds = Recogniser().same(looks(0.0, 5.0), looks(0.0), USUAL)
    assert odds[0, 0] > 0 > odds[1, 0]
    empty = Recogniser().same(looks(0.0), looks(0.0, images=0.0), USUAL)
    assert empty[0, 0] == -torch.inf


def test_few_images_have_to_be_as_near_as_many_would_be():
    recogniser, apart = Recogniser(tolerance=0.01, strange=5.0), 0.5
    error = 2 / TWINS + 0.01
    expected = NUMBERS / 2 * (math.log(5 / error) - apart**2 / error)
    for images in (1.0, 10.0, float(TWINS)):
        one, other = looks(0.0, images=images), looks(apart, images=images)
        assert recogniser.same(one, other, USUAL)[0, 0] == pytest.approx(expected, rel=1e-4)
    assert expected < 0  # ten images vary as much by chance, and are no reason to take the two for one


def test_many_images_are_judged_by_what_chance_leaves():
    recogniser, apart = Recogniser(tolerance=0.01, strange=5.0), 0.3
    odds = [float(recogniser.same(looks(0.0, images=n), looks(apart, images=n), USUAL)[0, 0]) for n in (100.0, 1e6)]
    assert odds[0] > 0 > odds[1]


def test_looks_are_read_from_sums():
    layout = Layout(0)
    f = torch.randn(50, NUMBERS, generator=torch.Generator().manual_seed(0))
    row = layout.row(f, images=torch.tensor([50.0]), look=f.sum(0), square=f.square().sum(0))
    found = Looks.read(layout, row[None])
    torch.testing.assert_close(found.mean[0], f.mean(0))
    torch.testing.assert_close(found.var[0], f.var(0, correction=0))
