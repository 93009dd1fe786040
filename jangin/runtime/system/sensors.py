"""The place where the system lists its sensors of power and energy."""

from __future__ import annotations

from pathlib import Path


def sensor_classes() -> Path:
    """Return the folder in which Linux lists devices by class. It doesn't exist on other systems."""
    return Path("/sys/class")
