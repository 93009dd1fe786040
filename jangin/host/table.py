"""Every host function by name, with the reason why it runs in Python."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

HostFunction = Callable[..., Any]
_REASONS = {
    "jangin.host.sequences": "sequences, optionals and maps are Python's values; no arithmetic is done in it",
    "jangin.host.strings": "text is no tensor of numbers",
    "jangin.host.checkpoints": "files are read and written by the system",
    "jangin.host.images": "picture files are decoded by Pillow",
}
"""The modules with host functions, and the reason why these run in Python."""


def _functions(module: str) -> Mapping[str, HostFunction]:
    found: Mapping[str, HostFunction] = importlib.import_module(module).FUNCTIONS
    return found


@cache
def functions() -> Mapping[str, HostFunction]:
    """Return all host functions by name. Few models need one, so that their modules are imported here."""
    return {name: function for module in _REASONS for name, function in _functions(module).items()}


def why(function: str) -> str:
    """Return the reason why a host function isn't compiled code."""
    reasons = (reason for module, reason in _REASONS.items() if function in _functions(module))
    return next(reasons, "the caller's own function, given as operators=[...]")
