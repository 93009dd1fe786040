"""A model to which every option applies, and a value of each option that isn't its default."""

from __future__ import annotations

import struct
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jangin.compiler import cases, pipeline
from jangin.frontends.gguf.format import GgufFormat
from jangin.ir.limits import Limits
from jangin.options import Options

NET = (
    "[net]\nwidth=8\nheight=8\nchannels=3\n"
    "[convolutional]\nfilters=4\nsize=3\nstride=1\npad=1\nactivation=relu\n"
    "[convolutional]\nfilters=4\nsize=1\nstride=1\npad=1\nactivation=linear\n"
)
NUMBERS = 4 + 4 * 3 * 9 + 4 + 4 * 4
"""The number of biases and weights of both convolutions."""
FORMATS = (GgufFormat(cache="int8"),)
"""A format of Jangin's with a setting. It doesn't read the model."""


def network(folder: Path) -> tuple[Path, Path]:
    """Write a Darknet model with its weights elsewhere, so that no command reads it without `weights`."""
    path, weights = folder / "model.cfg", folder / "elsewhere"
    path.write_text(NET)
    data = np.random.default_rng(0).uniform(0.05, 0.4, NUMBERS).astype(np.float32)
    weights.write_bytes(struct.pack("<iiiq", 0, 2, 5, 0) + data.tobytes())
    return path, weights


def values(weights: Path, folder: Path) -> dict[str, Any]:
    """Return a value that isn't the default for each option that is given before a command or by keyword."""
    return {
        "weights": weights,
        "winograd": False,
        "libraries": "auto",
        "unchecked": True,
        "bf16": False,
        "deterministic_time": True,
        "tf32": True,
        "formats": FORMATS,
        "cache": folder / "cache",
        "limits": Limits(seconds=321.0, nodes=4321),
    }


def watched(monkeypatch: pytest.MonkeyPatch) -> list[Options]:
    """Yield a list that gets the record of options of each model that the pipeline reads, and of each graph
    that it optimizes."""
    seen: list[Options] = []
    for name, home in (("imported", cases), ("optimize", pipeline)):
        plain = getattr(home, name)

        def noted(what: Any, options: Options, *more: Any, _plain: Any = plain, **named: Any) -> Any:
            seen.append(options)
            return _plain(what, options, *more, **named)

        for module in [m for n, m in sys.modules.items() if n.startswith("jangin")]:
            if vars(module).get(name) is plain:
                monkeypatch.setattr(module, name, noted)
    return seen


def lost(seen: list[Options], given: dict[str, Any]) -> dict[str, Any]:
    """Return the options whose values in a seen record differ from the given ones, with the seen values.

    A model that a command wrote itself is compiled without the weights, sizes and cache of the original
    model."""
    assert seen, "the pipeline has seen no record"
    own = {"weights", "shapes", "cache"}
    missing = {n: getattr(seen[0], n) for n, v in given.items() if getattr(seen[0], n) != v}
    everywhere = {n: v for n, v in given.items() if n not in own}
    for record in seen:
        missing |= {n: getattr(record, n) for n, v in everywhere.items() if getattr(record, n) != v}
    return missing
