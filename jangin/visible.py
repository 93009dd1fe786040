"""Text that a model's file holds, as it may be shown."""

from __future__ import annotations

import re

_STEERING = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f"  # controls
    r"\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069"  # what changes the direction of text; ends of lines
    r"\ud800-\udfff]"  # halves of characters, which can't be encoded
)


def visible(text: str) -> str:
    """The text with what would steer a terminal written out, as JSON escapes it. Line ends and tabs stay."""
    return _STEERING.sub(lambda found: f"\\u{ord(found[0]):04x}", text)
