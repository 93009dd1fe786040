"""Configures AMX's matrix registers, which a function must set up before use, and release."""

from __future__ import annotations

import struct
from collections.abc import Sequence

_PALETTE = 1
"""AMX palette 1: eight registers of up to 16 rows of 64 bytes."""


def configured(shapes: Sequence[tuple[int, int]]) -> tuple[str, str, str]:
    """Return the instructions that configure and release registers of these shapes (rows, bytes a row), and
    the constant that the first reads.

    The constant has the palette in its first byte. The bytes of each register's rows begin at byte 16, the
    numbers of rows at byte 48.
    """
    rows, widths = (list(parts) + [0] * (8 - len(shapes)) for parts in zip(*shapes, strict=True))
    known = struct.pack("<B15x8H16x8B8x", _PALETTE, *widths, *rows)
    name = f"tiles.{''.join(f'{r:x}{w:02x}' for r, w in shapes)}"
    text = "".join(f"\\{byte:02X}" for byte in known)
    return (
        f"call void @llvm.x86.ldtilecfg(ptr @{name})",
        "call void @llvm.x86.tilerelease()",
        f'@{name} = private unnamed_addr constant [64 x i8] c"{text}", align 64',
    )
