"""Streams of images with a class for every pixel."""

from __future__ import annotations

import numpy as np
import pytest

from fedctta.data.mask_layouts import IGNORE
from fedctta.data.masked import MaskedDomains
from fedctta.errors import UserError
from fedctta.sampling.plain import Overlap
from fedctta.sampling.skewed import Dirichlet, LongTail
from fedctta.streams import ABSENT, PICTURE, build
from fedctta.streams.clusters import IID, NIID

SIDE, CLASSES = 4, 3


def masked(sizes=(12, 15), side=SIDE):
    random = np.random.default_rng(0)
    names = tuple(f"d{k}" for k in range(len(sizes)))
    images = {n: random.integers(0, 256, (k, side, side, 3), np.uint8) for n, k in zip(names, sizes, strict=True)}
    labels = {
        n: random.integers(0, CLASSES, (k, side, side)).astype(np.uint8) for n, k in zip(names, sizes, strict=True)
    }
    for masks in labels.values():
        masks[:, 0] = 255
    return MaskedDomains(names, images, labels, ("x", "y", "z"), ())


@pytest.fixture
def stream():
    return build(NIID(clusters=2), masked(), clients=2, slots=2, batch=3, seed=0)


def test_a_slot_holds_images_and_the_labels_of_their_pixels(stream):
    for t in range(len(stream)):
        slot = stream.slot(t)
        assert slot.images.shape == (2, 3, SIDE, SIDE, 3)
        assert slot.labels.shape == (2, 3 * SIDE * SIDE)
        for client, k in enumerate(slot.domain):
            chosen, name = stream.samples[client, stream.visit[t, client]], stream.data.names[k]
            np.testing.assert_array_equal(slot.images[client], stream.data.images[name][chosen])
            np.testing.assert_array_equal(slot.labels[client], stream.data.labels[name][chosen].ravel())


def test_domains_are_made_even(stream):
    assert {len(images) for images in stream.data.images.values()} == {12}
    assert stream.samples.max() < 12


def test_pixels_are_counted_by_class_and_ignored_ones_not_at_all(stream):
    expected = np.zeros((2, 2, CLASSES), int)
    for t in range(len(stream)):
        slot = stream.slot(t)
        for client, k in enumerate(slot.domain):
            expected[k, client] += np.bincount(slot.labels[client], minlength=256)[:CLASSES]
    counts = stream.class_counts()
    assert counts.dtype == np.int64
    np.testing.assert_array_equal(counts, expected)
    assert counts.sum() == len(stream) * 2 * 3 * (SIDE - 1) * SIDE


def test_pixels_of_clients_left_out_count_for_nothing(stream):
    fewer = stream.without([1])
    assert not fewer.class_counts()[:, 1].any()
    np.testing.assert_array_equal(fewer.class_counts()[:, 0], stream.class_counts()[:, 0])
    for t in range(len(stream)):
        assert (fewer.slot(t).labels[1] == IGNORE).all()
        np.testing.assert_array_equal(fewer.slot(t).labels[0], stream.slot(t).labels[0])


def test_the_last_meeting_of_every_domain(stream):
    for k, t, client in stream.farewells():
        assert stream.domain[t, client] == k
        assert not (stream.domain[t, :client] == k).any()
        assert not (stream.domain[t + 1 :] == k).any()
    assert [k for k, _, _ in stream.farewells()] == [0, 1]


def test_pictures_hold_image_truth_and_prediction(stream):
    predicted = np.full((2, SIDE, SIDE), 7, np.uint8)
    pictures = stream.pictures(predicted)
    assert pictures.shape == (2, SIDE, SIDE, 5)
    for k, t, client in stream.farewells():
        slot = stream.slot(t)
        np.testing.assert_array_equal(pictures[k, ..., :3], slot.images[client, 0])
        np.testing.assert_array_equal(pictures[k, ..., 3].ravel(), slot.labels[client, : SIDE * SIDE])
    assert (pictures[..., 4] == 7).all()


def test_large_pictures_are_thinned_out():
    side = 2 * PICTURE + 2
    stream = build(IID(), masked((2,), side), clients=1, slots=1, batch=2, seed=0)
    assert max(stream.pictures(np.zeros((1, side, side), np.uint8)).shape) <= PICTURE


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"sampler": Dirichlet()}, "samples=dirichlet needs one class an image.*: use samples=disjoint"),
        ({"sampler": LongTail()}, "samples=longtail needs"),
        ({"order": "bursts"}, "order=bursts needs one class an image.*: use order=shuffled"),
    ],
)
def test_what_deals_by_class_is_refused(change, said):
    fits = {"clients": 2, "slots": 2, "batch": 3, "seed": 0}
    assert build(IID(), masked(), **fits, sampler=Overlap()).samples.shape == (2, 2, 3)
    with pytest.raises(UserError, match=said):
        build(IID(), masked(), **fits, **change)


def test_an_empty_slot_has_no_labels(stream):
    nobody = type(stream)(stream.data, np.full_like(stream.domain, ABSENT), stream.samples, stream.visit)
    assert nobody.slot(0).labels.shape == (0, 3 * SIDE * SIDE)
