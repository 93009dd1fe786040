"""Panels of a product's right operand: read in place, copied by each task, or widened by it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from jangin.ir.expr import Const, Load, Var
from jangin.ir.simplify import simplify
from jangin.schedule.primitives import find
from jangin.targets.processor import SHARE
from jangin.templates.common import stride
from jangin.templates.register_tile import unroll_sum
from jangin.templates.scheduled import Params

if TYPE_CHECKING:
    from jangin.templates.tiling import Tiler

TURN = 4
"""Terms of a panel that are widened in one iteration, if the target's instructions limit the speed. A counter
and a branch are then shared by four."""


class Panel:
    """A right operand that isn't copied: it was packed when the model was compiled, or is read in place."""

    def name(self, right: Load) -> str:
        """Return the name of the buffer that is read."""
        return right.buffer.name

    def make(
        self, tiler: Tiler, column: str, k: Sequence[str], across: Sequence[str], blocks: Sequence[str]
    ) -> None:
        """Make the panel before its rows are multiplied. `blocks`: the loops over blocks of its terms."""

    def finish(self, tiler: Tiler) -> None:
        """Apply the last steps of the schedule."""


class CopiedPanel(Panel):
    """A right operand that each task copies.

    It is copied by vectors along the columns if these are contiguous. If the terms are contiguous, vectors
    along them are transposed in registers. A few panels are copied together, row after row, because short
    pieces of rows would each lie in another page. A deep sum's panel is copied block by block.
    """

    def name(self, right: Load) -> str:
        return "panel"

    def make(
        self, tiler: Tiler, column: str, k: Sequence[str], across: Sequence[str], blocks: Sequence[str]
    ) -> None:
        do, right, (columns, lanes) = tiler.s.do, tiler.role.right, across
        sizes = [simplify(find(tiler.s.func, n).extent, tiler.symbols) for n in k]
        terms = math.prod(int(n.value) if isinstance(n, Const) else tiler.l2 for n in sizes)
        held = terms * tiler.width * tiler.params["panels"] * right.buffer.dtype.bytes
        along = right.index[-1] == Var(tiler.role.column)
        if along and not blocks and tiler.params["panels"] > 1 and held <= tiler.l2 // SHARE:
            do("pack", f"{column}ooo", right.buffer.name, [f"{column}ooi", *k, columns, lanes], "panel")
            do("reorder", [*(f"panel_{n}" for n in k), f"panel_{column}ooi"])
        else:
            inner = [n for n in k if n not in blocks]
            at = blocks[-1] if blocks else f"{column}ooi"
            do("pack", at, right.buffer.name, [*inner, columns, lanes], "panel")
        short = isinstance(sizes[-1], Const) and int(sizes[-1].value) < tiler.lanes
        last = tiler.role.k[-1]
        alone = k[-1] in (last, f"{last}i")  # the part `i` is a block of it
        if not along and not short and alone and stride(right, Var(last), tiler.symbols) == 1:
            _turn(tiler, right.buffer.name, f"panel_{k[-1]}", f"panel_{columns}", f"panel_{lanes}")
        elif along:
            do("vectorize", f"panel_{lanes}")


class WidenedPanel(Panel):
    """Small weights that a task widens once for all its rows: a panel, or a block of its terms."""

    def name(self, right: Load) -> str:
        return "panel"

    def make(
        self, tiler: Tiler, column: str, k: Sequence[str], across: Sequence[str], blocks: Sequence[str]
    ) -> None:
        do, role = tiler.s.do, tiler.role
        inner = [n for n in k if n not in blocks]
        do("pack", blocks[-1] if blocks else f"{column}ooi", role.constants, [*inner, *across], "panel")
        if tiler.processor.issue and not role.parts:
            unroll_sum(tiler.s, f"panel_{inner[-1]}", TURN)
            do("fuse", *(f"panel_{n}" for n in across), "panel_w")
            do("vectorize", "panel_w")
            return
        do("unroll", f"panel_{inner[-1] if role.parts else across[0]}")
        do("vectorize", f"panel_{across[1]}")

    def finish(self, tiler: Tiler) -> None:
        """Widen the panel while it is first read. The multiply-adds hide the time, but not the instructions
        if these limit the speed."""
        if not tiler.role.parts and not tiler.processor.issue:
            tiler.s.do("copy_as_read", "panel", "moi")


def panel_of(params: Params, packed: bool) -> Panel:
    """Return the kind of panel for a set of parameters. `packed`: constants are packed when the model is
    compiled."""
    if not packed and not params.get("in_place"):
        return CopiedPanel()
    return WidenedPanel() if params.get("widened") else Panel()


def _turn(tiler: Tiler, buffer: str, terms: str, columns: str, lanes: str) -> None:
    """Copy a panel by square blocks: vectors along the terms are transposed in registers."""
    do, turned = tiler.s.do, f"turned_{lanes}"
    do("split", terms, tiler.lanes, "cut")
    do("reorder", [columns, f"{terms}i"])
    do("pack", columns, buffer, [lanes, f"{terms}i"], "turned", "register")
    do("unroll", turned)
    do("vectorize", f"turned_{terms}i")
    do("unroll", f"{terms}i")
    do("vectorize", lanes)
