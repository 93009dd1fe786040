"""Every host function by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from jangin.host import images, sequences, strings

HostFunction = Callable[..., Any]
FUNCTIONS: Mapping[str, HostFunction] = {**sequences.FUNCTIONS, **strings.FUNCTIONS, **images.FUNCTIONS}
