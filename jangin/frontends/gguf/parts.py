"""Find the files of a model that llama.cpp has split."""

from __future__ import annotations

import re
from pathlib import Path

_PART = re.compile(r"-(\d{5})-of-(\d{5})\.gguf$")
"""The names of the files into which llama.cpp splits a model."""


def parts(path: Path) -> list[Path]:
    """Return the paths of the other files of a split model, by the name of its first file. A file with any
    other name has none."""
    name = _PART.search(path.name)
    if name is None or int(name[1]) != 1:
        return []
    numbers = range(2, int(name[2]) + 1)
    return [path.with_name(f"{path.name[: name.start()]}-{n:05}-of-{name[2]}.gguf") for n in numbers]
