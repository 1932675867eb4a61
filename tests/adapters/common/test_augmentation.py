"""Random views against plain pixel-by-pixel references."""

from __future__ import annotations

import colorsys
import itertools
import math

import pytest
import torch
from torch.nn import functional as F

from fedctta.adapters.common.augmentation import augment, blur, jitter, move, noise, turn_hue, view_keys, views
from fedctta.core.clients import by_loop, by_vmap
from fedctta.core.randomness import keys

KEY = keys(0, 1)[0]
STRENGTH = torch.tensor([0.9, -0.7, 0.8, -0.9, 1.0])


def images(*shape):
    return torch.rand(*shape, generator=torch.Generator().manual_seed(1))


def clipped(value):
    return min(max(value, 0.0), 1.0)


def jittered_plainly(pixels, strength, operations):
    """One image as a list of (r, g, b), by operations 0 to 4: brightness, contrast, saturation, gamma, hue."""

    def grey(pixel):
        return 0.2989 * pixel[0] + 0.587 * pixel[1] + 0.114 * pixel[2]

    for operation in operations:
        f = (1 + 0.4 * strength[0], 1 + 0.3 * strength[1], 1 + 0.5 * strength[2], 1 + 0.3 * strength[3])
        mean = sum(map(grey, pixels)) / len(pixels)
        if operation == 0:
            pixels = [tuple(clipped(f[0] * c) for c in pixel) for pixel in pixels]
        if operation == 1:
            pixels = [tuple(clipped(f[1] * c + (1 - f[1]) * mean) for c in pixel) for pixel in pixels]
        if operation == 2:
            pixels = [tuple(clipped(f[2] * c + (1 - f[2]) * grey(pixel)) for c in pixel) for pixel in pixels]
        if operation == 3:
            pixels = [tuple(c ** f[3] for c in pixel) for pixel in pixels]
        if operation == 4:
            hsv = [colorsys.rgb_to_hsv(*pixel) for pixel in pixels]
            pixels = [colorsys.hsv_to_rgb((h + 0.06 * strength[4]) % 1, s, v) for h, s, v in hsv]
    return pixels


@pytest.mark.parametrize("operations", list(itertools.permutations(range(5)))[::7])
@pytest.mark.parametrize("sign", [1, -1])
def test_colours_against_a_plain_reference(operations, sign):
    x = images(2, 3, 4, 5)
    order = torch.tensor(operations).argsort()
    found = jitter(x, sign * STRENGTH, order).flatten(2).movedim(1, 2)
    for image, result in zip(x.flatten(2).movedim(1, 2).tolist(), found, strict=True):
        plain = jittered_plainly([tuple(pixel) for pixel in image], (sign * STRENGTH).tolist(), operations)
        torch.testing.assert_close(result, torch.tensor(plain), atol=2e-6, rtol=0)


def test_any_hue_can_be_turned_by_any_amount():
    x = torch.cat([images(1, 3, 8, 8), torch.eye(3).view(1, 3, 3, 1).expand(1, 3, 3, 8).repeat(1, 1, 3, 1)[:, :, :8]])
    x = torch.cat([x, 1 - x[1:], torch.full((1, 3, 8, 8), 0.4)])
    for by in (-0.3, -0.06, 0.0, 0.01, 0.3):
        found = turn_hue(x, torch.tensor(by)).movedim(1, 3).reshape(-1, 3)
        for pixel, result in zip(x.movedim(1, 3).reshape(-1, 3).tolist(), found.tolist(), strict=True):
            h, s, v = colorsys.rgb_to_hsv(*pixel)
            assert result == pytest.approx(colorsys.hsv_to_rgb((h + by) % 1, s, v), abs=2e-6)


def moved_plainly(image, angle, across, down, zoom, flip, mode):
    """Pad a channel by half its side, transform about the centre with black beyond, cut the middle out, mirror."""
    side = image.shape[-1]
    pad = side // 2
    padded = F.pad(image[None, None], (pad,) * 4, mode=mode)[0, 0].tolist()
    size, middle = len(padded), (len(padded) - 1) / 2

    def at(row, column):
        return padded[row][column] if 0 <= row < size and 0 <= column < size else 0.0

    result = torch.zeros(side, side)
    for i, j in itertools.product(range(side), range(side)):
        u, v = j + pad - middle - across, i + pad - middle - down
        column = (math.cos(angle) * u + math.sin(angle) * v) / zoom + middle
        row = (-math.sin(angle) * u + math.cos(angle) * v) / zoom + middle
        top, left = math.floor(row), math.floor(column)
        a, b = row - top, column - left
        result[i, j] = (1 - a) * ((1 - b) * at(top, left) + b * at(top, left + 1))
        result[i, j] += a * ((1 - b) * at(top + 1, left) + b * at(top + 1, left + 1))
    return result.flip(1) if flip < 0 else result


@pytest.mark.parametrize(("mode", "beyond"), [("replicate", "border"), ("reflect", "reflection")])
@pytest.mark.parametrize("side", [20, 21, 32])
@pytest.mark.parametrize(("angle", "zoom", "flip"), [(15, 0.9, 1), (-15, 0.9, -1), (7, 1.1, -1)])
def test_geometry_is_that_of_padding_transforming_and_cutting(mode, beyond, side, angle, zoom, flip):
    x, shift = images(1, 3, side, side), round(side / 8)
    numbers = (math.radians(angle), shift, -shift, zoom, flip)
    found = move(x, *(torch.tensor(float(number)) for number in numbers), beyond)
    plain = moved_plainly(x[0, 1], *numbers, mode)
    torch.testing.assert_close(found[0, 1], plain, atol=3e-5, rtol=0)


def test_standing_still_changes_nothing_and_a_margin_continues_the_image():
    zero, one = torch.tensor(0.0), torch.tensor(1.0)
    x = images(2, 3, 8, 6)
    torch.testing.assert_close(move(x, zero, zero, zero, one, one, "border"), x)
    wide = move(x, zero, zero, zero, one, one, "reflection", margin=2)
    torch.testing.assert_close(wide, F.pad(x, (2, 2, 2, 2), mode="reflect"))


@pytest.mark.parametrize("sigma", [0.001, 0.3, 0.5])
def test_blur_is_a_convolution(sigma):
    x = images(2, 3, 9, 8)
    line = torch.exp(-0.5 * (torch.arange(-2.0, 3.0) / sigma) ** 2)
    kernel = (line[:, None] * line / line.sum() ** 2).expand(3, 1, 5, 5)
    torch.testing.assert_close(blur(x, torch.tensor(sigma)), F.conv2d(x, kernel, groups=3))


def test_noise_is_normal():
    x = noise(KEY, torch.empty(3, 66_667))
    assert x.shape == (3, 66_667)
    for power, moment in ((1, 0.0), (2, 1.0), (3, 0.0), (4, 3.0)):
        assert abs((x**power).mean() - moment) < 0.05
    half = x.numel() // 2
    first, second = x.flatten()[:half], x.flatten()[half : 2 * half]
    for a, b in ((first, second), (first.square(), second.square()), (first[1:], first[:-1])):
        assert abs(torch.corrcoef(torch.stack([a, b]))[0, 1]) < 0.01


def test_a_view_is_the_same_for_all_images_of_a_batch():
    x = images(3, 3, 32, 32)
    alone = torch.cat([augment(image[None], KEY, "roid") for image in x])
    torch.testing.assert_close(augment(x, KEY, "roid"), alone)


def test_kinds_differ_by_noise_that_every_image_has_of_its_own():
    grey = torch.full((2, 3, 32, 32), 0.5)
    roid, cotta = augment(grey, KEY, "roid"), augment(grey, KEY, "cotta")
    assert roid.std() < 1e-6
    assert abs((cotta - roid).std() - 0.005) < 0.0005
    assert abs(torch.corrcoef((cotta - roid).flatten(1))[0, 1]) < 0.1


@pytest.mark.parametrize("kind", ["cotta", "roid"])
def test_views_stay_images_and_differ(kind):
    x = images(2, 3, 32, 32)
    found = views(x, KEY, kind, count=6)
    assert found.shape == (6, 2, 3, 32, 32)
    assert found.min() >= 0
    assert found.max() <= 1
    for a, b in itertools.combinations(found, 2):
        assert (a - b).abs().mean() > 0.01
    for view, key in zip(found, view_keys(KEY, 6), strict=True):
        torch.testing.assert_close(view, augment(x, key, kind))


@pytest.mark.filterwarnings("error:There is a performance drop")
@pytest.mark.parametrize("kind", ["cotta", "roid"])
def test_lifting_changes_nothing(kind):
    x, each = images(4, 2, 3, 32, 32), keys(5, 4)

    def of_one(x, key):
        return views(x, key, kind, count=3)

    torch.testing.assert_close(by_vmap(of_one)(x, each), by_loop(of_one)(x, each))


def test_what_is_drawn_covers_its_range():
    """Of a bright dot on black, a view shows where it went."""
    x = torch.zeros(1, 3, 33, 33)
    x[..., 16, 16] = 1
    found = views(x, KEY, "roid", count=400)[:, 0, 1]
    weight = found / found.sum((1, 2), keepdim=True)
    place = torch.arange(33.0) - 16
    across, down = (weight.sum(1) * place).sum(1), (weight.sum(2) * place).sum(1)
    for shift in (across, down):
        assert shift.abs().max() < 5
        assert shift.min() < -3.4
        assert shift.max() > 3.4
        assert abs(shift.mean()) < 0.4


@pytest.mark.gpu
@pytest.mark.parametrize("kind", ["cotta", "roid"])
def test_devices_agree(kind):
    x = images(2, 3, 32, 32)
    torch.testing.assert_close(augment(x.cuda(), KEY.cuda(), kind).cpu(), augment(x, KEY, kind), atol=1e-4, rtol=0)
