"""ONNX Runtime's examples: its files of models aren't part of Jangin."""

from __future__ import annotations


def get_example(name: str) -> str:
    """Refused: there are no files of examples here."""
    raise FileNotFoundError(f"Unable to find example '{name}': Jangin has no models of ONNX Runtime's")
