"""The table of templates for devices with work-groups."""

from __future__ import annotations

from collections.abc import Mapping

from jangin.templates.choose import Match
from jangin.templates.gpu import attention, contraction, elements, rows, transpose, warps, window

TEMPLATES: Mapping[str, Match] = {
    "attention": attention.match,
    "warps": warps.match,
    "contraction": contraction.match,
    "window": window.match,
    "transpose": transpose.match,
    "elements": elements.match,
    "rows": rows.match,
}
"""The templates by name, the most special first. `elements` fits every kernel of one stage, `rows` every
other."""
