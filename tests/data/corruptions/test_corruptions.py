from __future__ import annotations

import zlib

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from fedctta.data import corruptions
from fedctta.data.corruptions import BENCHMARK, DETERMINISTIC, EXTRA, NAMES, RANDOM, corrupt
from fedctta.errors import UserError

# The reference takes milliseconds an image here, so the fast tests compare fewer.
COSTLY = {"fog": 300, "glass_blur": 400}


def features(out, images):
    """Numbers [n, k] that describe each image's change: mean, spread, power at eight radii, a few quantiles."""
    change = out.astype(np.int16) - images
    colours = np.stack([change[..., colour].reshape(len(out), -1) for colour in range(3)], axis=1).astype(float)
    power = np.abs(np.fft.fft2(colours.mean(axis=1).reshape(-1, 32, 32))).reshape(len(out), -1) ** 2
    frequency = np.fft.fftfreq(32) * 32
    radius = np.hypot(frequency[:, None], frequency).ravel()
    rings = np.digitize(radius, (1, 2, 4, 6, 8, 11, 14)) == np.arange(8)[:, None]
    spectrum = np.log1p(power @ (rings / rings.sum(axis=1, keepdims=True)).T)
    ordered = np.sort(change.reshape(len(out), -1), axis=1)
    quantiles = np.quantile(ordered, (0.01, 0.1, 0.5, 0.9, 0.99), axis=1).T
    return np.concatenate([colours.mean(axis=2), colours.std(axis=2), spectrum, quantiles], axis=1)


def worst_score(out, expected, images):
    """The largest paired z score over all features: about normal if both come from the same law."""
    gap = features(out, images) - features(expected, images)
    return np.max(np.abs(gap.mean(axis=0)) / (gap.std(axis=0) / np.sqrt(len(gap)) + 1e-3))


def compare(reference, pictures, textures, name, severity, count):
    images = pictures(1000, seed=severity)[:count]
    rng = np.random.default_rng([severity, zlib.crc32(name.encode())])
    expected = np.stack([reference.corrupted(each, name, severity, rng, textures) for each in images])
    return worst_score(corrupt(images, name, severity, 3, textures=textures), expected, images)


def test_names():
    assert len(BENCHMARK) == 15
    assert BENCHMARK[0] == "gaussian_noise"
    assert BENCHMARK[-1] == "jpeg_compression"
    assert len(EXTRA) == 4
    assert NAMES == BENCHMARK + EXTRA
    assert set(NAMES) == RANDOM | DETERMINISTIC
    assert len(RANDOM) == 11


@pytest.mark.parametrize("severity", range(1, 6))
@pytest.mark.parametrize("name", sorted(DETERMINISTIC))
def test_deterministic_ones_equal_the_reference(name, severity, pictures, reference, monkeypatch):
    monkeypatch.setattr(reference, "WHOLE", 0.0)  # a plain float64 floor, with no allowance for float32
    images = pictures(24)
    expected = np.stack([reference.corrupted(each, name, severity, None) for each in images])
    gap = corrupt(images, name, severity).astype(int) - expected
    assert np.abs(gap).max() <= 1
    assert abs(gap.mean()) < 0.1
    assert np.abs(expected.astype(int) - images).mean() > 0.2  # the corruption did something to compare


@pytest.mark.parametrize("name", sorted(RANDOM))
def test_random_ones_follow_the_reference(name, pictures, textures, reference):
    assert compare(reference, pictures, textures, name, 5, COSTLY.get(name, 1000)) < 4.5


@pytest.mark.slow
@pytest.mark.parametrize("severity", range(1, 6))
@pytest.mark.parametrize("name", sorted(RANDOM))
def test_random_ones_follow_the_reference_at_every_severity(name, severity, pictures, textures, reference):
    assert compare(reference, pictures, textures, name, severity, 1000) < 4.5


@pytest.mark.parametrize("name", ["gaussian_noise", "fog", "snow", "motion_blur", "elastic_transform"])
def test_the_comparison_tells_neighbouring_severities_apart(name, pictures, textures):
    images = pictures(500)
    four, five = (corrupt(images, name, severity, textures=textures) for severity in (4, 5))
    assert worst_score(four, five, images) > 8


@pytest.mark.parametrize("name", NAMES)
def test_seed_decides(name, pictures, textures):
    images = pictures(20)
    before = images.copy()
    first, again, other = (corrupt(images, name, 3, seed, textures=textures) for seed in (1, 1, 2))
    assert first.dtype == np.uint8
    assert first.shape == images.shape
    np.testing.assert_array_equal(images, before)
    np.testing.assert_array_equal(first, again)
    assert np.array_equal(first, other) == (name in DETERMINISTIC)


@pytest.mark.parametrize("name", NAMES)
def test_the_first_images_do_not_depend_on_how_many_follow(name, pictures, textures, monkeypatch):
    monkeypatch.setattr(corruptions, "_BLOCK_PIXELS", 8 * 32 * 32)
    images = pictures(21)
    whole = corrupt(images, name, 5, textures=textures)
    for count in (1, 8, 11):
        np.testing.assert_array_equal(corrupt(images[:count], name, 5, textures=textures), whole[:count])


@pytest.mark.parametrize("name", sorted(RANDOM))
def test_blocks_and_severities_have_their_own_randomness(name, pictures, textures, monkeypatch):
    monkeypatch.setattr(corruptions, "_BLOCK_PIXELS", 8 * 32 * 32)
    images = np.concatenate([pictures(8)] * 2)
    out = corrupt(images, name, 5, textures=textures)
    assert not np.array_equal(out[:8], out[8:])


def test_a_chosen_number_of_threads_changes_nothing(pictures, monkeypatch):
    images = pictures(300)
    many = corrupt(images, "snow", 4)
    monkeypatch.setattr(corruptions.os, "cpu_count", lambda: 1)
    np.testing.assert_array_equal(corrupt(images, "snow", 4), many)


@given(height=st.integers(8, 75), width=st.integers(8, 75), name=st.sampled_from(NAMES), severity=st.integers(1, 5))
@example(8, 8, "zoom_blur", 1)
@settings(max_examples=80, deadline=None, derandomize=True)
def test_any_size(textures, reference, height, width, name, severity):
    images = np.random.default_rng(0).integers(0, 256, (2, height, width, 3), dtype=np.uint8)
    out = corrupt(images, name, severity, textures=textures)
    assert out.shape == images.shape
    assert out.dtype == np.uint8
    if np.array_equal(out, images):  # only what its recipe leaves: a zoom by less than half a pixel is none
        np.testing.assert_array_equal([reference.corrupted(each, name, severity, None) for each in images], images)


@pytest.mark.parametrize("name", NAMES)
def test_odd_memory_layouts_and_no_images(name, pictures, textures):
    images = pictures(6)
    expected = corrupt(images, name, 2, textures=textures)
    turned = np.asfortranarray(images)
    turned.flags.writeable = False
    np.testing.assert_array_equal(corrupt(turned, name, 2, textures=textures), expected)
    assert corrupt(images[:0], name, 2, textures=textures).shape == (0, 32, 32, 3)


def test_black_and_white_images_survive(textures, monkeypatch):
    monkeypatch.setattr(corruptions, "_BLOCK_PIXELS", 3 * 32 * 32)
    for value in (0, 255):
        images = np.full((3, 32, 32, 3), value, np.uint8)
        for name in NAMES:
            for severity in range(1, 6):
                with np.errstate(all="raise", under="ignore"):
                    corrupt(images, name, severity, textures=textures)


GOOD = np.zeros((2, 32, 32, 3), np.uint8)


@pytest.mark.parametrize(
    ("images", "name", "severity", "seed", "textures", "says"),
    [
        (GOOD.astype(float), "fog", 1, 0, None, "uint8"),
        (GOOD[0], "fog", 1, 0, None, r"\[32, 32, 3\]"),
        (GOOD[..., :1], "fog", 1, 0, None, r"\[n, height, width, 3\]"),
        (GOOD.tolist(), "fog", 1, 0, None, "list"),
        (GOOD[:, :7], "fog", 1, 0, None, "at least 8"),
        (GOOD, "foggy", 1, 0, None, "did you mean fog"),
        (GOOD, "fog", 0, 0, None, "use 1, 2, 3, 4 or 5"),
        (GOOD, "fog", 6, 0, None, "use 1, 2, 3, 4 or 5"),
        (GOOD, "fog", 1, -1, None, "from 0 on"),
        (GOOD, "fog", 1, 0.5, None, "from 0 on"),
        (GOOD, "frost", 1, 0, None, r"frost_textures\(\)"),
        (GOOD, "frost", 1, 0, (), r"frost_textures\(\)"),
        (GOOD, "frost", 1, 0, [np.zeros((99, 99), np.uint8)], "height, width, 3"),
    ],
)
def test_mistakes_are_named(images, name, severity, seed, textures, says):
    with pytest.raises(UserError, match=says) as caught:
        corrupt(images, name, severity, seed, textures=textures)
    assert "\n" not in str(caught.value)
