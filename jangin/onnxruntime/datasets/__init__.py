"""ONNX Runtime's examples of models. They are files of its own package, and Jangin has no copies."""

from __future__ import annotations

import os
import sys
from importlib.machinery import PathFinder


def get_example(name: str) -> str:
    """Return the path of an example. Raises FileNotFoundError unless ONNX Runtime's package is installed too
    and has the example."""
    for folder in sys.path:
        spec = PathFinder.find_spec("onnxruntime", [folder])
        for place in (spec and spec.submodule_search_locations) or ():
            path = os.path.join(place, "datasets", name)
            if os.path.exists(path):
                return path
    raise FileNotFoundError(
        f"Unable to find example '{name}' in ONNX Runtime's package (pip install onnxruntime)"
    )
