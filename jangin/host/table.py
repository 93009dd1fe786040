"""Every host function by name: those of programs, and a caller's own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from jangin.host import sequences

HostFunction = Callable[..., Any]
FUNCTIONS: Mapping[str, HostFunction] = {**sequences.FUNCTIONS}
