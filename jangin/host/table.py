"""Every host function by name, with the reason why it runs in Python."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from jangin.host import checkpoints, images, sequences, strings

HostFunction = Callable[..., Any]
FUNCTIONS: Mapping[str, HostFunction] = {
    **sequences.FUNCTIONS,
    **strings.FUNCTIONS,
    **images.FUNCTIONS,
    **checkpoints.FUNCTIONS,
}
_REASONS = (
    (sequences.FUNCTIONS, "sequences, optionals and maps are Python's values; no arithmetic is done in it"),
    (strings.FUNCTIONS, "text is no tensor of numbers"),
    (checkpoints.FUNCTIONS, "files are read and written by the system"),
    (images.FUNCTIONS, "picture files are decoded by Pillow"),
)


def why(function: str) -> str:
    """Return the reason why a host function isn't compiled code."""
    reasons = (reason for functions, reason in _REASONS if function in functions)
    return next(reasons, "the caller's own function, given as operators=[...]")
