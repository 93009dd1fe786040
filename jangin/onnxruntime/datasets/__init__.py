"""ONNX Runtime's examples. Its files of models aren't part of Jangin."""

from __future__ import annotations


def get_example(name: str) -> str:
    """Raise FileNotFoundError, because there are no files of examples."""
    raise FileNotFoundError(f"Unable to find example '{name}': Jangin has no models of ONNX Runtime's")
