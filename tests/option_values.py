"""A model that every option applies to, and of each option a value that isn't its default."""

from __future__ import annotations

import struct
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jangin.compiler import pipeline
from jangin.frontends.gguf.format import GgufFormat
from jangin.ir.limits import Limits
from jangin.options import Options

NET = (
    "[net]\nwidth=8\nheight=8\nchannels=3\n"
    "[convolutional]\nfilters=4\nsize=3\nstride=1\npad=1\nactivation=relu\n"
    "[convolutional]\nfilters=4\nsize=1\nstride=1\npad=1\nactivation=linear\n"
)
NUMBERS = 4 + 4 * 3 * 9 + 4 + 4 * 4
"""The biases and weights of both convolutions."""
FORMATS = (GgufFormat(cache="int8"),)
"""A format of Jangin's own with a setting, which doesn't read the model."""


def network(folder: Path) -> tuple[Path, Path]:
    """A Darknet model, whose weights lie elsewhere, so that no command reads it without `weights`."""
    path, weights = folder / "model.cfg", folder / "elsewhere"
    path.write_text(NET)
    data = np.random.default_rng(0).uniform(0.05, 0.4, NUMBERS).astype(np.float32)
    weights.write_bytes(struct.pack("<iiiq", 0, 2, 5, 0) + data.tobytes())
    return path, weights


def values(weights: Path, folder: Path) -> dict[str, Any]:
    """Another value than the default for each option that stands before a command or is given by keyword."""
    return {
        "weights": weights,
        "winograd": False,
        "libraries": "auto",
        "unchecked": True,
        "bf16": False,
        "formats": FORMATS,
        "cache": folder / "cache",
        "limits": Limits(seconds=321.0, nodes=4321),
    }


def watched(monkeypatch: pytest.MonkeyPatch) -> list[Options]:
    """Gets the record of each model that the pipeline reads, and of each graph that it optimizes."""
    seen: list[Options] = []
    for name in ("imported", "optimize"):
        plain = getattr(pipeline, name)

        def noted(what: Any, options: Options, *more: Any, _plain: Any = plain, **named: Any) -> Any:
            seen.append(options)
            return _plain(what, options, *more, **named)

        for module in [m for n, m in sys.modules.items() if n.startswith("jangin")]:
            if vars(module).get(name) is plain:
                monkeypatch.setattr(module, name, noted)
    return seen


def lost(seen: list[Options], given: dict[str, Any]) -> dict[str, Any]:
    """The options that a record of those seen doesn't have as they were given, with what it has. A model that
    a command wrote itself is compiled without the weights, sizes and cache of the model that it came from."""
    assert seen, "the pipeline has seen no record"
    own = {"weights", "shapes", "cache"}
    missing = {n: getattr(seen[0], n) for n, v in given.items() if getattr(seen[0], n) != v}
    everywhere = {n: v for n, v in given.items() if n not in own}
    for record in seen:
        missing |= {n: getattr(record, n) for n, v in everywhere.items() if getattr(record, n) != v}
    return missing
