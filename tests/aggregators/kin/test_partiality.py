"""Guesses and comparisons by hand, and that wrong guesses do not make anybody partial."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import nn

from fedctta.aggregators import Uploads
from fedctta.aggregators.common.groups import Groups
from fedctta.aggregators.kin.partiality import LATELY, excess, guesses, remember_excess
from fedctta.core.clients import by_loop, by_vmap
from fedctta.core.network import Network


def sure(*classes, count=3):
    """Guesses[B, K] of a model that is certain."""
    return nn.functional.one_hot(torch.tensor(classes), count).float()


def telling(dense=False):
    """A network whose logits are its input."""
    return Network(nn.Identity() if dense else nn.Flatten(), dense=dense)


def summary(each):
    """Return g and r of guesses p[B, K], pair by pair."""
    pairs = [each[b] @ each[c] for b in range(len(each)) for c in range(len(each)) if b != c]
    return each.mean(0), torch.stack(pairs).mean()


def test_guesses_pair_by_pair():
    x = 3 * torch.randn(5, 4, 1, 1, generator=torch.Generator().manual_seed(0))
    for found, expected in zip(guesses(telling(), x), summary(x.flatten(1).softmax(1)), strict=True):
        torch.testing.assert_close(found, expected)


def test_a_single_image_repeats_nothing():
    mean, same = guesses(telling(), torch.zeros(1, 4, 1, 1))
    assert mean.tolist() == [0.25] * 4
    assert same == 0


def test_of_masks_an_image_is_guessed_by_all_its_pixels():
    x = torch.randn(3, 4, 2, 2, generator=torch.Generator().manual_seed(0))
    for found, expected in zip(guesses(telling(True), x), summary(x.softmax(1).mean((2, 3))), strict=True):
        torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("lift", [by_vmap, by_loop])
def test_guesses_can_be_lifted(lift):
    x = torch.randn(2, 5, 4, 1, 1, generator=torch.Generator().manual_seed(0))
    mean, same = lift(partial(guesses, telling()))(x)
    for i in range(2):
        torch.testing.assert_close((mean[i], same[i]), guesses(telling(), x[i]))


def said(*batches):
    mean, same = zip(*map(summary, batches), strict=True)
    return torch.stack(mean), torch.stack(same)


def together(*rows):
    """Clients in groups: rows of what they believe, the rest is on their own."""
    known = torch.tensor(rows)
    return Groups(known, (known / known.sum(0)).T, 1 - known.sum(1))


def test_an_excess_by_hand():
    """0 and 1 see a class each, 2 sees both, 3 is on its own."""
    kin = together([1.0], [1.0], [1.0], [0.0])
    mean, same = said(sure(0, 0, 0, 0), sure(1, 1, 1, 1), sure(0, 0, 1, 1), sure(2, 2, 2, 2))
    found, own = excess(kin, mean, same)
    third = 1 / 3
    expected = [third * (1 - 0) + third * (1 - 0.5)] * 2 + [2 * third * (same[2].item() - 0.5), 0.0]
    torch.testing.assert_close(found, torch.tensor(expected))
    torch.testing.assert_close(own, torch.tensor([2 * third, 2 * third, 2 * third * same[2].item(), 0.0]))


def test_sums_fade_and_the_absent_keep_theirs():
    kin, (mean, same) = together([1.0], [1.0]), said(sure(0, 0), sure(1, 1))
    new, repeats = excess(kin, mean, same)
    uploads = Uploads({}, {"guess": mean, "same": same}, torch.tensor([True, False]))
    after = remember_excess(kin, uploads, {"excess": torch.tensor([2.0, 3.0]), "repeats": torch.tensor([4.0, 5.0])})
    assert after["excess"].tolist() == pytest.approx([LATELY * 2 + new[0].item(), 3])
    assert after["repeats"].tolist() == pytest.approx([LATELY * 4 + repeats[0].item(), 5])


def test_it_is_the_sum_over_pairs():
    generator = torch.Generator().manual_seed(0)
    kin = together([0.7, 0.2], [0.1, 0.9], [0.5, 0.0])
    batches = torch.randn(3, 6, 4, generator=generator).softmax(-1)
    mean, same = said(*batches)
    weights = kin.matrix()
    expected = [sum(weights[i, j] * (same[i] - mean[i] @ mean[j]) for j in range(3) if j != i).item() for i in range(3)]
    torch.testing.assert_close(excess(kin, mean, same)[0], torch.tensor(expected))


def test_clients_permute():
    generator, order = torch.Generator().manual_seed(0), torch.tensor([2, 0, 1])
    kin = together([0.7, 0.2], [0.1, 0.9], [0.5, 0.0])
    mean, same = said(*torch.randn(3, 6, 4, generator=generator).softmax(-1))
    moved = Groups(kin.takes[order], kin.gives[:, order], kin.alone[order])
    for found, expected in zip(excess(moved, mean[order], same[order]), excess(kin, mean, same), strict=True):
        torch.testing.assert_close(found, expected[order])


def confused(classes, generator):
    """Guesses of a model that takes nearly everything for class 0."""
    chance = torch.full((4, 4), 0.1)
    chance[:, 0] = 0.7
    return sure(*torch.multinomial(chance[classes], 1, generator=generator)[:, 0].tolist(), count=4)


@pytest.mark.parametrize(("own", "expected"), [([0, 1, 2, 3], 0.0), ([3], 0.075)])
def test_what_all_get_wrong_alike_makes_nobody_partial(own, expected):
    """Images of all classes at both clients, or at the first of one class only, guessed right half the time.

    An image of class 3 is guessed as (0.35, 0.05, 0.05, 0.55) on average, one of any class as (0.475, 0.175, 0.175,
    0.175): two of class 3 agree with 0.43, one and any with 0.28, and the other client has half the weight.
    """
    generator, kin, found = torch.Generator().manual_seed(0), together([1.0], [1.0]), []
    for _ in range(2000):
        mine = torch.tensor(own)[torch.randint(len(own), (10,), generator=generator)]
        theirs = torch.randint(4, (10,), generator=generator)
        batches = [
            torch.where(
                torch.rand(10, 1, generator=generator) < 0.5, sure(*c.tolist(), count=4), confused(c, generator)
            )
            for c in (mine, theirs)
        ]
        found.append(excess(kin, *said(*batches))[0][0])
    assert torch.stack(found).mean().item() == pytest.approx(expected, abs=0.005)
