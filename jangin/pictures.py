"""Read pictures as a model's input."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from jangin.ir.graph import Array
from jangin.runtime.sizes import TensorSpec

PIXELS: Mapping[str, tuple[Sequence[float], Sequence[float]]] = {
    "unit": ((0.0,), (1.0,)),
    "signed": ((0.5,), (0.5,)),
    "imagenet": ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
    "bytes": ((0.0,), (1 / 255,)),
}
"""The mean and standard deviation of the channels by which a picture's values in 0..1 are normalized."""
PICTURES = (".png", ".jpg", ".jpeg", ".bmp", ".webp", ".gif", ".tif", ".tiff")
RANGES = {"NominalRange_0_255": "bytes", "Normalized_0_1": "unit", "Normalized_1_1": "signed"}
"""The names in `PIXELS` of ONNX's ranges of pixels (metadata `Image.NominalPixelRange`)."""


def pixels_of(metadata: Mapping[str, Any]) -> str:
    """Return the range of pixels that a model's metadata names, or "unit"."""
    known = metadata.get("custom_metadata_map", {})
    return RANGES.get(known.get("Image.NominalPixelRange", ""), "unit")


def read_picture(path: Path, spec: TensorSpec, pixels: str, crop: float = 1.0) -> Array:
    """Return a picture as [1, channels, height, width] or [1, height, width, channels], by the input's shape.

    The picture is RGB, or grey for one channel. It is resized so that it fills the input, and cropped at the
    centre. `crop` is the share of its sides that is kept."""
    if pixels not in PIXELS:
        raise ValueError(f"--pixels {pixels!r} is unknown; known: {', '.join(PIXELS)}")
    if not 0 < crop <= 1:
        raise ValueError(
            f"crop={crop} must be above 0 and at most 1, the share of a picture's sides that is kept"
        )
    try:
        from PIL import Image, ImageOps
    except ModuleNotFoundError:
        raise ValueError("pictures need Pillow: pip install 'jangin[images]'") from None
    sizes = [d if isinstance(d, int) else None for d in spec.shape]
    last = len(sizes) == 4 and sizes[3] in (1, 3)
    if len(sizes) != 4 or sizes[3 if last else 1] not in (1, 3):
        raise ValueError(f"input {spec} takes no picture, as it has not 1 or 3 channels: give a .npy file")
    channels, height, width = (sizes[3], *sizes[1:3]) if last else sizes[1:]
    with Image.open(path) as image:
        image = image.convert("L" if channels == 1 else "RGB")
        if height is not None and width is not None:
            size, border = (width, height), (1 - crop) / 2
            image = ImageOps.fit(image, size, Image.Resampling.BICUBIC, bleed=border)
        values = np.asarray(image, np.float32).reshape(image.height, image.width, channels or 3)
    mean, deviation = (np.array(v, np.float32) for v in PIXELS[pixels])
    scaled: Array = (values / 255 - mean) / deviation
    if spec.dtype.kind in "iu":
        scaled = np.rint(scaled)
    return (scaled if last else scaled.transpose(2, 0, 1))[None].astype(spec.dtype)
