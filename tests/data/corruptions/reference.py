"""The corruptions again, one image at a time and as plainly as possible: what the fast ones are held against.

Nothing here uses the package. Images are uint8 [h, w, 3]; results are uint8.
"""

from __future__ import annotations

import colorsys
import math
from io import BytesIO

import numpy as np
from PIL import Image
from scipy.ndimage import convolve, gaussian_filter, map_coordinates, zoom

WHOLE = 1e-4
"""How far below a whole level still counts as it, where the package filters in float32.

Flat patches lie on whole levels, where the last bit of a sum decides whether a level is lost. Float64 and float32 lose
different ones, and neither loss is the recipe's.
"""


def to_bytes(x, whole=0.0):
    return (np.clip(x, 0, 1) * 255 + whole).astype(np.uint8)


def blurred(x, sigma, mode="nearest", truncate=4.0):
    spread = (sigma, sigma) + (0,) * (x.ndim - 2)
    return gaussian_filter(x, spread, mode=mode, truncate=truncate)


def pick(severity, *values):
    return values[severity - 1]


# Noise


def gaussian_noise(image, severity, rng):
    return to_bytes(image / 255 + rng.normal(0, pick(severity, 0.04, 0.06, 0.08, 0.09, 0.1), image.shape))


def shot_noise(image, severity, rng):
    photons = pick(severity, 500, 250, 100, 75, 50)
    return to_bytes(rng.poisson(image / 255 * photons) / photons)


def impulse_noise(image, severity, rng):
    out = image.copy()
    hit = rng.random(image.shape) < pick(severity, 0.01, 0.02, 0.03, 0.05, 0.07)
    salt = rng.random(image.shape) < 0.5
    out[hit & salt] = 255
    out[hit & ~salt] = 0
    return out


def speckle_noise(image, severity, rng):
    x = image / 255
    return to_bytes(x + x * rng.normal(0, pick(severity, 0.06, 0.1, 0.12, 0.16, 0.2), image.shape))


# Blur


def gaussian_blur(image, severity, rng):
    return to_bytes(blurred(image / 255, pick(severity, 0.4, 0.6, 0.7, 0.8, 1.0)), WHOLE)


def defocus_blur(image, severity, rng):
    radius, soft = pick(severity, (0.3, 0.4), (0.4, 0.5), (0.5, 0.6), (1, 0.2), (1.5, 0.1))
    kernel = np.zeros((17, 17))
    for y in range(17):
        for x in range(17):
            kernel[y, x] = (y - 8) ** 2 + (x - 8) ** 2 <= radius**2
    small = np.array([[math.exp(-(a * a + b * b) / (2 * soft**2)) for a in (-1, 0, 1)] for b in (-1, 0, 1)])
    kernel = convolve(kernel / kernel.sum(), small / small.sum(), mode="mirror")
    x = image / 255
    return to_bytes(np.stack([convolve(x[..., c], kernel, mode="mirror") for c in range(3)], axis=-1))


def glass_blur(image, severity, rng):
    times = pick(severity, 1, 1, 1, 2, 2)
    return glassed(image, severity, [rng.integers(-1, 1, size=(2, *image.shape[:2])) for _ in range(times)])


def glassed(image, severity, walks):
    sigma = pick(severity, 0.05, 0.25, 0.4, 0.25, 0.4)
    x = to_bytes(blurred(image / 255, sigma), WHOLE)
    for moves in walks:
        x = glass_shuffle(x, moves)
    return to_bytes(blurred(x / 255, sigma), WHOLE)


def glass_shuffle(x, moves):
    """Walk backwards over the pixels; each takes the value of a neighbour that has not been visited yet."""
    dy, dx = moves.tolist()
    rows = x.tolist()
    for h in range(len(rows) - 1, 1, -1):
        for w in range(len(rows[0]) - 1, 1, -1):
            rows[h][w] = rows[h + dy[h][w]][w + dx[h][w]]
    return np.array(rows, np.uint8)


def smeared(x, radius, sigma, degrees):
    """One-sided motion blur of a float picture, edge repeated, rounded to whole levels."""
    height, width = x.shape[:2]
    weights = [math.exp(-i * i / (2 * sigma**2)) for i in range(2 * radius + 1)]
    reach = 2 * radius
    around = np.pad(x, [(reach, reach)] * 2 + [(0, 0)] * (x.ndim - 2), mode="edge")
    out = np.zeros(x.shape)
    for i, weight in enumerate(weights):
        top = reach + math.ceil(i * math.sin(math.radians(degrees)) - 0.5)
        left = reach + math.ceil(i * math.cos(math.radians(degrees)) - 0.5)
        out += weight / sum(weights) * around[top : top + height, left : left + width]
    return np.rint(out)


def motion_blur(image, severity, rng):
    radius, sigma = pick(severity, (6, 1), (6, 1.5), (6, 2), (8, 2), (9, 2.5))
    return smeared(image.astype(float), radius, sigma, rng.uniform(-45, 45)).astype(np.uint8)


def zoomed(x, factor):
    height, width = x.shape[:2]
    crop_h, crop_w = math.ceil(height / factor), math.ceil(width / factor)
    top, left = (height - crop_h) // 2, (width - crop_w) // 2
    factors = (factor, factor) + (1,) * (x.ndim - 2)
    large = zoom(x[top : top + crop_h, left : left + crop_w], factors, order=1)
    top, left = (large.shape[0] - height) // 2, (large.shape[1] - width) // 2
    return large[top : top + height, left : left + width]


def zoom_blur(image, severity, rng):
    factors = np.arange(1, pick(severity, 1.06, 1.11, 1.16, 1.21, 1.26), 0.01)
    assert len(factors) == pick(severity, 7, 12, 16, 21, 26)
    x = image / 255
    return to_bytes((x + sum(zoomed(x, factor) for factor in factors)) / (len(factors) + 1), WHOLE)


# Weather


def snow(image, severity, rng):
    loc, scale, factor, low, radius, sigma, keep = pick(
        severity,
        (0.1, 0.2, 1, 0.6, 8, 3, 0.95),
        (0.1, 0.2, 1, 0.5, 10, 4, 0.9),
        (0.15, 0.3, 1.75, 0.55, 10, 4, 0.9),
        (0.25, 0.3, 2.25, 0.6, 12, 6, 0.85),
        (0.3, 0.3, 1.25, 0.65, 14, 12, 0.8),
    )
    layer = zoomed(rng.normal(loc, scale, image.shape[:2]), factor)
    layer[layer < low] = 0
    layer = smeared(to_bytes(layer).astype(float), radius, sigma, rng.uniform(-135, -45)) / 255
    x = image / 255
    luma = 0.299 * x[..., 0] + 0.587 * x[..., 1] + 0.114 * x[..., 2]
    x = keep * x + (1 - keep) * np.maximum(x, (1.5 * luma + 0.5)[..., None])
    return to_bytes(x + (layer + np.rot90(layer, 2))[..., None])


def frost(image, severity, rng, textures):
    a, b = pick(severity, (1, 0.2), (1, 0.3), (0.9, 0.4), (0.85, 0.4), (0.75, 0.45))
    ice = textures[rng.integers(5)]
    height, width = image.shape[:2]
    top, left = rng.integers(ice.shape[0] - height), rng.integers(ice.shape[1] - width)
    mixed = a * image.astype(float) + b * ice[top : top + height, left : left + width]
    return np.clip(mixed, 0, 255).astype(np.uint8)


def plasma(size, decay, draws):
    """Diamond-square on a torus, point by point, from uniform draws in [0, 1), one a point."""
    draws = iter(draws)
    field = [[0.0] * size for _ in range(size)]
    step, amplitude = size, 100.0

    def put(y, x, neighbours):
        total = sum(field[v % size][u % size] for v, u in neighbours)
        field[y][x] = total / 4 + amplitude * (2 * next(draws) - 1) * amplitude

    while step >= 2:
        half = step // 2
        for y in range(half, size, step):
            for x in range(half, size, step):
                put(y, x, [(y + v, x + u) for v in (-half, half) for u in (-half, half)])
        cross = ((-half, 0), (half, 0), (0, -half), (0, half))
        for first, second in ((0, half), (half, 0)):
            for y in range(first, size, step):
                for x in range(second, size, step):
                    put(y, x, [(y + v, x + u) for v, u in cross])
        step, amplitude = half, amplitude / decay
    out = np.array(field)
    return (out - out.min()) / (out.max() - out.min())


def fog(image, severity, rng):
    strength, decay = pick(severity, (0.2, 3), (0.5, 3), (0.75, 2.5), (1, 2), (1.5, 1.75))
    x = image / 255
    assert x.shape[0] == x.shape[1]
    hazy = x + strength * plasma(x.shape[0], decay, rng.random(x[..., 0].size).tolist())[..., None]
    return to_bytes(hazy * x.max() / (x.max() + strength))


# Digital


def contrast(image, severity, rng):
    x = image / 255
    mean = x.mean(axis=(0, 1))
    return to_bytes((x - mean) * pick(severity, 0.75, 0.5, 0.4, 0.3, 0.15) + mean)


def recoloured(image, change):
    """Change hue, saturation and value pixel by pixel."""
    flat = (image.reshape(-1, 3) / 255).tolist()
    out = [colorsys.hsv_to_rgb(*change(*colorsys.rgb_to_hsv(*pixel))) for pixel in flat]
    return to_bytes(np.array(out).reshape(image.shape))


def brightness(image, severity, rng):
    more = pick(severity, 0.05, 0.1, 0.15, 0.2, 0.3)
    return recoloured(image, lambda h, s, v: (h, s, min(v + more, 1)))


def saturate(image, severity, rng):
    a, b = pick(severity, (0.3, 0), (0.1, 0), (1.5, 0), (2, 0.1), (2.5, 0.2))
    return recoloured(image, lambda h, s, v: (h, min(a * s + b, 1), v))


def jpeg_compression(image, severity, rng):
    store = BytesIO()
    Image.fromarray(image).save(store, "JPEG", quality=pick(severity, 80, 65, 58, 50, 40))
    return np.array(Image.open(store))


def pixelate(image, severity, rng):
    scale = pick(severity, 0.95, 0.9, 0.85, 0.75, 0.65)
    height, width = image.shape[:2]
    small = Image.fromarray(image).resize((int(width * scale), int(height * scale)), Image.BOX)
    return np.array(small.resize((width, height), Image.BOX))


# Geometry


def elastic_transform(image, severity, rng):
    tilt = pick(severity, 2.56, 2.24, 1.92, 1.6, 0.96)
    noise = rng.uniform(-1, 1, (2, *image.shape[:2]))
    return deformed(image, severity, rng.uniform(-tilt, tilt, (3, 2)), noise)


def deformed(image, severity, moves, noise):
    """Sample at the affine source points, on a grid of 1/32 pixel, then at the displaced points."""
    alpha, sigma = pick(severity, (0, 0), (1.6, 6.4), (2.56, 1.92), (3.2, 1.28), (3.2, 0.96))
    height, width = image.shape[:2]
    old = np.array([[26, 26], [26, 6], [6, 6]], float)
    forward = np.vstack([np.linalg.solve(np.column_stack([old, np.ones(3)]), old + moves).T, [0, 0, 1]])
    y, x = np.mgrid[:height, :width]
    sx, sy, _ = np.linalg.inv(forward) @ np.stack([x.ravel(), y.ravel(), np.ones(x.size)])
    sx, sy = (np.floor(s.reshape(x.shape) * 32 + 0.5) / 32 for s in (sx, sy))
    dx, dy = (alpha * blurred(each, sigma, "reflect", 3.0) if alpha else 0 * each for each in noise)
    out = []
    for channel in np.moveaxis(image / 255, 2, 0):
        tilted = map_coordinates(channel, [sy, sx], order=1, mode="mirror")
        out.append(map_coordinates(tilted, [y + dy, x + dx], order=1, mode="reflect"))
    return to_bytes(np.stack(out, axis=-1), WHOLE)


# Spatter


def spatter(image, severity, rng):
    loc, scale = pick(severity, (0.62, 0.1), (0.65, 0.1), (0.65, 0.3), (0.65, 0.1), (0.65, 0.1))
    return splashed(image, severity, rng.normal(loc, scale, image.shape[:2]))


def splashed(image, severity, noise):
    sigma, low, strength = pick(
        severity, (0.7, 0.7, 0.5), (0.8, 0.7, 0.5), (1, 0.69, 0.5), (0.7, 0.69, 0.6), (0.5, 0.68, 0.6)
    )
    layer = blurred(noise, sigma)
    layer[layer < low] = 0
    x = image / 255
    if severity > 3:
        mask = blurred((layer > low).astype(float), strength)
        mask[mask < 0.8] = 0
        return to_bytes(x * (1 - mask[..., None]) + mask[..., None] * np.array([63, 42, 20]) / 255)
    liquid = (layer * 255).astype(int) % 256
    near = convolve(np.minimum(distances(canny(liquid)), 20), np.ones((3, 3)) / 9, mode="mirror")
    even = equalised((near + 1e-5).astype(int))
    relief = np.zeros(even.shape)
    kernel = ((-2, -1, 0), (-1, 1, 1), (0, 1, 2))
    around = np.pad(even, 1, mode="reflect")
    for y in range(even.shape[0]):
        for x_ in range(even.shape[1]):
            relief[y, x_] = sum(kernel[v][u] * around[y + v, x_ + u] for v in range(3) for u in range(3))
    mask = liquid * np.rint(convolve(np.clip(relief, 0, 255), np.ones((3, 3)) / 9, mode="mirror"))
    mask = strength * mask / mask.max() if mask.max() > 0 else mask
    return to_bytes(x + mask[..., None] * np.array([175, 238, 238]) / 255)


def canny(picture, low=50, high=150):
    """Edges by Canny: 3 x 3 Sobel, sum of absolute gradients, four directions, growth from strong to weak."""
    height, width = picture.shape
    p = np.pad(picture, 1, mode="edge").tolist()
    size, kept, stack = {}, set(), []
    slope = {}
    for y in range(height):
        for x in range(width):
            rows = [p[y + v][x : x + 3] for v in range(3)]
            gx = sum(w * (r[2] - r[0]) for w, r in zip((1, 2, 1), rows, strict=True))
            gy = sum(w * (b - a) for w, a, b in zip((1, 2, 1), rows[0], rows[2], strict=True))
            size[y, x], slope[y, x] = abs(gx) + abs(gy), (gx, gy)
    for (y, x), m in size.items():
        gx, gy = slope[y, x]
        angle = math.degrees(math.atan2(abs(gy), abs(gx)))
        if angle < 22.5:
            ahead, behind, tie = (y, x - 1), (y, x + 1), True
        elif angle > 67.5:
            ahead, behind, tie = (y - 1, x), (y + 1, x), True
        else:
            turn = -1 if (gx < 0) != (gy < 0) else 1
            ahead, behind, tie = (y - 1, x - turn), (y + 1, x + turn), False
        after = size.get(behind, 0)
        if m > low and m > size.get(ahead, 0) and (m > after or (tie and m == after)):
            kept.add((y, x))
            if m > high:
                stack.append((y, x))
    edges = np.zeros(picture.shape, bool)
    while stack:
        y, x = stack.pop()
        if edges[y, x]:
            continue
        edges[y, x] = True
        stack += [(y + v, x + u) for v in (-1, 0, 1) for u in (-1, 0, 1) if (y + v, x + u) in kept]
    return edges


def distances(edges):
    """Distance to the nearest edge where straight, diagonal and knight's steps cost 1, 1.4 and 2.1969."""
    y, x = np.mgrid[: edges.shape[0], : edges.shape[1]]
    best = np.full(edges.shape, 1e6)
    for ey, ex in np.argwhere(edges):
        long = np.maximum(abs(y - ey), abs(x - ex))
        short = np.minimum(abs(y - ey), abs(x - ex))
        flat = 2.1969 * short + (long - 2 * short)
        steep = 2.1969 * (long - short) + 1.4 * (2 * short - long)
        best = np.minimum(best, np.where(2 * short <= long, flat, steep))
    return best


def equalised(levels):
    values, counts = np.unique(levels, return_counts=True)
    if len(values) == 1:
        return levels
    shares = (np.cumsum(counts) - counts[0]) / (levels.size - counts[0])
    return np.rint(255 * shares)[np.searchsorted(values, levels)]


def corrupted(image, name, severity, rng, textures=None):
    """Corrupt one image by name."""
    recipe = globals()[name]
    return recipe(image, severity, rng, textures) if name == "frost" else recipe(image, severity, rng)
