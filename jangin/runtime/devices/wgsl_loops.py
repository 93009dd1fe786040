"""The iterations of a shader's loops, for adapters that end loops early.

Mesa's llvmpipe, and lavapipe with it, ends all loops of a work-item after 65,535 iterations without an error
(`LP_MAX_TGSI_LOOP_ITERATIONS` in Mesa's sources). The results are then wrong."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

ENDED = 65_535
"""The iterations after which Mesa's llvmpipe ends the loops of a work-item."""
_UNROLLED = 32
"""Most iterations of a loop that Mesa may unroll. Its own iterations then don't count."""
_LOOP = re.compile(r"for \(var (\w+)(?:: i32)? = (-?[\w.]+); \1 < ([^;]+); \1\+\+\) \{")


def iterations(body: Sequence[str], numbers: Mapping[str, int]) -> int:
    """Return the iterations that a work-item's loops make at least, if all conditions hold. `numbers` are
    those of a launch (see `wgsl.SHARES`). A loop with other bounds counts once."""
    known = {
        **numbers,
        "lo": 0,
        "hi": numbers["share"],
        "u.first": 0,
        "u.first + u.rounds": numbers["rounds"],
    }

    def value(text: str) -> int | None:
        return int(text) if text.removeprefix("-").isdigit() else known.get(text)

    times: list[int] = []  # of each open block
    inside = [0]  # the iterations in each open block
    for line in body:
        text = line.strip()
        if text.startswith("}") and times:
            count, inner = times.pop(), inside.pop()
            inside[-1] += count * inner + (count if count > _UNROLLED else 0)
        if text.endswith("{"):
            first, end = map(value, loop.groups()[1:]) if (loop := _LOOP.fullmatch(text)) else (None, None)
            times.append(1 if first is None or end is None else max(0, end - first))
            inside.append(0)
    return sum(inside)
