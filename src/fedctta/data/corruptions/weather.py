"""Weather: snow, frost and fog."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from PIL import Image

from fedctta.data.corruptions.filters import Floats, Images, separable, smear, truncate, zoom_matrix

SNOW = (  # mean, std, zoom, threshold, share of the image left unwhitened
    (0.10, 0.2, 1.00, 0.60, 0.95),
    (0.10, 0.2, 1.00, 0.50, 0.90),
    (0.15, 0.3, 1.75, 0.55, 0.90),
    (0.25, 0.3, 2.25, 0.60, 0.85),
    (0.30, 0.3, 1.25, 0.65, 0.80),
)
FALL = ((8, 3.0), (10, 4.0), (10, 4.0), (12, 6.0), (14, 12.0))  # radius, sigma of the flakes' smear
FROST = ((1.0, 0.2), (1.0, 0.3), (0.9, 0.4), (0.85, 0.4), (0.75, 0.45))  # weight of image, of frost
FOG = ((0.2, 3.0), (0.5, 3.0), (0.75, 2.5), (1.0, 2.0), (1.5, 1.75))  # strength, decay of the fractal
LUMA = np.array([0.299, 0.587, 0.114], np.float32)


def snow(images: Images, severity: int, rng: np.random.Generator) -> Images:
    """Whiten the image and add flakes that fall along a slant, from both sides.

    x is first blended with max(x, 1.5 luma + 0.5); y = x + L + (L turned by 180 degrees), where L is thresholded
    noise, smeared along an angle drawn from -135 to -45 degrees.
    """
    mean, std, zoom, threshold, keep = SNOW[severity - 1]
    radius, sigma = FALL[severity - 1]
    count, height, width, _ = images.shape
    noise = rng.standard_normal((count, height, width), dtype=np.float32) * np.float32(std) + np.float32(mean)
    layer = separable(noise, zoom_matrix(height, zoom), zoom_matrix(width, zoom))
    layer[layer < threshold] = 0
    flakes = truncate(255 * layer).astype(np.float32)[:, None]
    flakes = smear(flakes, radius, sigma, rng.uniform(-135, -45, size=(count,)))[:, 0, :, :, None]
    x = images.astype(np.float32)
    white = np.maximum(x, 1.5 * (x @ LUMA)[..., None] + 127.5)
    return truncate(keep * x + (1 - keep) * white + flakes + flakes[:, ::-1, ::-1])


def frost(images: Images, severity: int, rng: np.random.Generator, *, textures: Sequence[Images]) -> Images:
    """Return a x + b F, with F a random piece of a random frost texture.

    A texture smaller than the image is enlarged until it covers it.
    """
    of_image, of_frost = FROST[severity - 1]
    count, height, width, _ = images.shape
    which = rng.integers(len(textures), size=count)
    place = rng.random((2, count))
    ice = np.empty(images.shape, np.float32)
    for index in np.unique(which):
        texture = _cover(textures[index], height, width)
        here = which == index
        room = np.maximum(1, [texture.shape[0] - height, texture.shape[1] - width])
        top, left = (place[:, here] * room[:, None]).astype(int)
        pieces = sliding_window_view(texture, (height, width), axis=(0, 1))[top, left]
        ice[here] = pieces.transpose(0, 2, 3, 1)
    return truncate(np.float32(of_image) * images + np.float32(of_frost) * ice)


def fog(images: Images, severity: int, rng: np.random.Generator) -> Images:
    """Return (x + a P) M / (M + a), with M the image's brightest value and P a plasma fractal."""
    strength, decay = 255 * FOG[severity - 1][0], FOG[severity - 1][1]
    count, height, width, _ = images.shape
    size = 1 << (max(height, width) - 1).bit_length()
    haze = np.float32(strength) * plasma(count, size, decay, rng)[:, :height, :width, None]
    brightest = images.max(axis=(1, 2, 3), keepdims=True).astype(np.float32)
    return truncate((images + haze) * (brightest / (brightest + np.float32(strength))))


def plasma(count: int, size: int, decay: float, rng: np.random.Generator) -> Floats:
    """Return `count` plasma fractals [size, size] in [0, 1]; `size` is a power of two.

    Diamond-square on a torus: a new point is the mean of its four neighbours plus w U(-w, w), where w starts at 100
    and is divided by `decay` when the step halves. The noise therefore falls with decay squared.
    """
    field = np.zeros((count, size, size), np.float32)
    step, wobble = size, 100.0
    while step >= 2:
        half = step // 2

        def settle(total: Floats, amplitude: float = wobble**2) -> Floats:
            return total / 4 + np.float32(amplitude) * (2 * rng.random(total.shape, dtype=np.float32) - 1)

        corners = field[:, ::step, ::step]
        pairs = corners + np.roll(corners, -1, axis=1)
        centres = settle(pairs + np.roll(pairs, -1, axis=2))
        field[:, half::step, half::step] = centres
        beside = corners + np.roll(corners, -1, axis=2) + centres + np.roll(centres, 1, axis=1)
        field[:, ::step, half::step] = settle(beside)
        below = corners + np.roll(corners, -1, axis=1) + centres + np.roll(centres, 1, axis=2)
        field[:, half::step, ::step] = settle(below)
        step, wobble = half, wobble / decay
    field -= field.min(axis=(1, 2), keepdims=True)
    field /= field.max(axis=(1, 2), keepdims=True)
    return field


def _cover(texture: Images, height: int, width: int) -> Images:
    scale = max(height / texture.shape[0], width / texture.shape[1])
    if scale <= 1:
        return texture
    size = (max(width, round(texture.shape[1] * scale)), max(height, round(texture.shape[0] * scale)))
    return np.asarray(Image.fromarray(texture).resize(size, Image.Resampling.BILINEAR))
