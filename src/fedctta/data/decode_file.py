"""One image file as an array."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray


def decode_file(path: Path, size: int | None) -> NDArray[np.uint8]:
    """Read one file as RGB [H, W, 3]; OSError or ValueError if it is no whole picture with 8 bits per value.

    With `size`, the shorter side is resized to it (bicubic, over all pixels that fall into one) and the middle square
    is cut out. The camera's orientation is applied.
    """
    from PIL import Image, ImageOps

    try:
        with Image.open(path) as opened:
            if opened.mode[0] in "IF":
                raise ValueError("has more than 8 bits per value")
            picture = ImageOps.exif_transpose(opened).convert("RGB")
    except OSError:
        raise
    except Exception as error:  # Pillow has no one error for what is damaged
        raise ValueError(str(error)) from error
    if size is not None and picture.size != (size, size):
        picture = ImageOps.fit(picture, (size, size), Image.Resampling.BICUBIC)
    return np.asarray(picture)


def decode_or_tell(path: Path, size: int | None) -> NDArray[np.uint8] | str:
    """Read one file, or say why it cannot be read."""
    try:
        return decode_file(path, size)
    except (OSError, ValueError) as error:
        return " ".join(str(error).replace(f"'{path}'", "").split()) or type(error).__name__
