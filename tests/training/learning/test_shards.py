"""Source clients: who gets which images, seen through what."""

from __future__ import annotations

import numpy as np
import pytest

from fedctta.data.corruptions import BENCHMARK, EXTRA, corrupt
from fedctta.errors import UserError
from fedctta.training.learning.shards import Sharing, deal

LABELS = np.arange(60) % 3
IMAGES = np.random.default_rng(0).integers(0, 256, (60, 8, 8, 3), dtype=np.uint8)


def test_clients_take_corruptions_and_severities_in_turn():
    shards = deal(IMAGES, LABELS, Sharing(clients=9, images=6))
    assert shards.images.shape == (9, 6, 8, 8, 3)
    assert shards.domains == tuple(f"{EXTRA[k % 4]}-{1 + k // 4}" for k in range(9))
    assert not {domain.rpartition("-")[0] for domain in shards.domains} & set(BENCHMARK)
    fixed = deal(IMAGES, LABELS, Sharing(clients=3, images=6, corruptions="contrast+saturate", severity=5))
    assert fixed.domains == ("contrast-5", "saturate-5", "contrast-5")


def test_images_are_corrupted_source_images_with_their_labels():
    clean = deal(IMAGES, LABELS, Sharing(clients=4, images=6, corruptions="none", seed=2))
    seen = deal(IMAGES, LABELS, Sharing(clients=4, images=6, corruptions="contrast", severity=3, seed=2))
    assert clean.domains == ("clean",) * 4
    assert np.array_equal(clean.labels, seen.labels)
    for client in range(4):
        assert np.array_equal(seen.images[client], corrupt(clean.images[client], "contrast", 3))
        for image, label in zip(clean.images[client], clean.labels[client], strict=True):
            where = np.flatnonzero((image == IMAGES).all((1, 2, 3)))
            assert LABELS[where].tolist() == [label]
        assert np.bincount(clean.labels[client]).tolist() == [2, 2, 2]


def test_classes_may_be_skewed_and_chance_is_seeded():
    skewed = deal(IMAGES, LABELS, Sharing(clients=6, images=10, skew=0.1))
    again = deal(IMAGES, LABELS, Sharing(clients=6, images=10, skew=0.1))
    other = deal(IMAGES, LABELS, Sharing(clients=6, images=10, skew=0.1, seed=1))
    assert max(np.bincount(labels, minlength=3).max() for labels in skewed.labels) > 7
    assert np.array_equal(skewed.images, again.images)
    assert not np.array_equal(skewed.labels, other.labels)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"clients": 0}, "clients=0 must be at least 1"),
        ({"severity": 6}, "severity=6 must be 1 to 5"),
        ({"skew": 0.0}, "skew=0.0 must be above 0"),
        ({"seed": -1}, "seed=-1 must not"),
        ({"corruptions": "smog"}, "unknown corruption 'smog'"),
        ({"corruptions": "fog+snow+fog"}, "corruptions names fog twice"),
    ],
)
def test_refuses_what_cannot_be(options, message):
    with pytest.raises(UserError, match=message):
        Sharing(**options)


def test_refuses_unequal_numbers():
    with pytest.raises(UserError, match="60 images and 59 labels"):
        deal(IMAGES, LABELS[1:], Sharing())
