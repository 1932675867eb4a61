"""Digital: contrast, brightness and saturation, coarse pixels and JPEG."""

from __future__ import annotations

from io import BytesIO

import numpy as np
from PIL import Image

from fedctta.data.corruptions.filters import Images, truncate

CONTRAST = (0.75, 0.5, 0.4, 0.3, 0.15)
BRIGHTNESS = (0.05, 0.1, 0.15, 0.2, 0.3)
SATURATE = ((0.3, 0.0), (0.1, 0.0), (1.5, 0.0), (2.0, 0.1), (2.5, 0.2))  # S -> a S + b
JPEG_QUALITY = (80, 65, 58, 50, 40)
PIXELATE = (0.95, 0.9, 0.85, 0.75, 0.65)


def contrast(images: Images, severity: int, rng: np.random.Generator) -> Images:
    """Return (x - m) k + m, with m the mean of each colour over the image."""
    factor = np.float32(CONTRAST[severity - 1])
    mean = images.mean(axis=(1, 2), keepdims=True, dtype=np.float64).astype(np.float32)
    return truncate((images - mean) * factor + mean)


def brightness(images: Images, severity: int, rng: np.random.Generator) -> Images:
    """Add to the value V = max(r, g, b), keeping hue and saturation: y = x V' / V, and grey V' for black pixels."""
    value = images.max(axis=3, keepdims=True).astype(np.float32)
    raised = np.minimum(value + np.float32(255 * BRIGHTNESS[severity - 1]), 255)
    return truncate(np.where(value > 0, images * (raised / np.maximum(value, 1)), raised))


def saturate(images: Images, severity: int, rng: np.random.Generator) -> Images:
    """Change the saturation S = (max - min) / max to S' = a S + b: y = V - (V - x) S' / S.

    A grey pixel has no hue; it counts as red, (V, V (1 - S'), V (1 - S')).
    """
    scale, shift = SATURATE[severity - 1]
    value = images.max(axis=3, keepdims=True).astype(np.float32)
    spread = value - images.min(axis=3, keepdims=True)
    chroma = value * np.clip(scale * spread / np.maximum(value, 1) + np.float32(shift), 0, 1)  # V S'
    share = np.where(spread > 0, (value - images) / np.maximum(spread, 1), np.array([0, 1, 1], np.float32))
    return truncate(value - share * chroma)


def jpeg_compression(images: Images, severity: int, rng: np.random.Generator) -> Images:
    """Store as JPEG with halved colour resolution, and read back."""
    return np.stack([_through_jpeg(image, JPEG_QUALITY[severity - 1]) for image in images])


def pixelate(images: Images, severity: int, rng: np.random.Generator) -> Images:
    """Shrink by box averages and enlarge again."""
    height, width = images.shape[1:3]
    scale = PIXELATE[severity - 1]
    coarse = (int(width * scale), int(height * scale))
    box = Image.Resampling.BOX
    small = (Image.fromarray(image).resize(coarse, box) for image in images)
    return np.stack([np.asarray(each.resize((width, height), box)) for each in small])


def _through_jpeg(image: Images, quality: int) -> Images:
    store = BytesIO()
    Image.fromarray(image).save(store, "JPEG", quality=quality)
    return np.asarray(Image.open(store))
