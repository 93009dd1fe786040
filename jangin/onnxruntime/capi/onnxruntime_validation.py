"""What ONNX Runtime checks of its own package and of the system."""

from __future__ import annotations

from jangin.onnxruntime.process import VERSION


def check_distro_info() -> None:
    """Does nothing: Jangin runs where Python and NumPy do."""


def check_training_module() -> tuple[bool, str, str]:
    """Whether this is the package for training, which it isn't."""
    return False, "", ""


def get_package_name_and_version_info() -> tuple[str, str, str]:
    return "onnxruntime", VERSION, ""
