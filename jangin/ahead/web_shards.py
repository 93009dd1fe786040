"""Divide the weights of a package for WebGPU into several files, which its loader reads at once and checks.

A file's name has a part of its digest. A cache may keep the file for ever: a new version of the model reads
those files anew that differ."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping

import numpy as np

from jangin.ahead.output import Content

MARK = b"const SHARDS = null;"
"""The line of the loader that the list of files replaces."""
LEAST = 1 << 10
"""Bytes of a file at least. Each file costs a request, and so many bytes are sent in less time."""
DIGITS = 16
"""The digits of a digest in a file's name: 64 bits, which no two files of a package share by chance."""


def sharded(files: Mapping[str, Content], prefix: str, size: int) -> dict[str, Content]:
    """Return a package's files, with weights in files of at most `size` bytes. Raises ValueError if `size` is
    too small."""
    if size < LEAST:
        raise ValueError(f"shards of {size} bytes are too small: {LEAST:,} is the least")
    whole, module = f"{prefix}.bin", f"{prefix}.mjs"
    shards: dict[str, Content] = {}
    listed = []
    for piece in _pieces(files[whole], size):
        digest = hashlib.sha256(piece).hexdigest()
        name = f"{prefix}.{digest[:DIGITS]}.bin"
        shards[name] = [piece]
        listed.append([name, len(piece), digest])
    text = b"".join(map(bytes, files[module]))
    described = json.loads(b"".join(map(bytes, files["package.json"])))
    described["files"] = [f for f in described["files"] if f != whole] + [*shards]
    return {
        **{name: content for name, content in files.items() if name != whole},
        module: [text.replace(MARK, b"const SHARDS = %s;" % json.dumps(listed).encode(), 1)],
        "package.json": [json.dumps(described, indent=2).encode()],
        **shards,
    }


def _pieces(content: Content, size: int) -> Iterator[bytes]:
    """Yield the bytes of a file in pieces of `size` bytes, and the rest."""
    held = bytearray()
    for part in content:
        flat = np.frombuffer(part, np.uint8) if isinstance(part, bytes) else part.reshape(-1).view(np.uint8)
        for at in range(0, len(flat), size):
            held += flat[at : at + size].tobytes()
            while len(held) >= size:
                yield bytes(held[:size])
                del held[:size]
    if held:
        yield bytes(held)
