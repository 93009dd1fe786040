"""Decode image files by Pillow (the extra `images`)."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


def decode(encoded: Array, *, pixel_format: str) -> Array:
    """Return u8 [height, width, channels] from a file's bytes."""
    try:
        from PIL import Image
    except ImportError:
        raise RuntimeError("decoding images needs Pillow: pip install 'jangin[images]'") from None
    picture = Image.open(io.BytesIO(encoded.tobytes()))
    if pixel_format == "Grayscale":
        return np.asarray(picture.convert("L"))[:, :, None]
    pixels = np.asarray(picture.convert("RGB"))
    return np.ascontiguousarray(pixels[:, :, ::-1]) if pixel_format == "BGR" else pixels


FUNCTIONS: dict[str, Callable[..., Any]] = {"ImageDecoder": decode}
