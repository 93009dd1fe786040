"""Make text from a model's file safe to display."""

from __future__ import annotations

import re

_STEERING = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f"  # controls
    r"\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069"  # direction of text; ends of lines
    r"\ud800-\udfff]"  # halves of characters, which can't be encoded
)


def visible(text: str) -> str:
    """Return the text with characters that would control a terminal escaped as in JSON. Line ends and tabs
    stay."""
    return _STEERING.sub(lambda found: f"\\u{ord(found[0]):04x}", text)
