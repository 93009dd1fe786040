"""The functions by which ONNX Runtime checks its own package and the system."""

from __future__ import annotations

from jangin.onnxruntime.process import VERSION


def check_distro_info() -> None:
    """Does nothing, because Jangin runs wherever Python and NumPy do."""


def check_training_module() -> tuple[bool, str, str]:
    """Return False and empty texts, because this package isn't the one for training."""
    return False, "", ""


def get_package_name_and_version_info() -> tuple[str, str, str]:
    return "onnxruntime", VERSION, ""
