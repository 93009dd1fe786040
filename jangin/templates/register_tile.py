"""Steps of schedules with a register tile (see `tiling`): the beginning of sums, joint loads of operands, and
the write-back of results."""

from __future__ import annotations

from collections.abc import Sequence

from jangin.ir import te
from jangin.ir.expr import Binary, Const, Expr, Load, product_of
from jangin.ir.simplify import simplify
from jangin.ir.traversal import walk
from jangin.schedule.primitives import find, loop_names
from jangin.targets.processor import Processor
from jangin.templates.cost import MOST_LOADED
from jangin.templates.scheduled import Packing, Recorder
from jangin.templates.template import Workload

HALVED = 32
"""Bytes of a vector register. If a target's registers are larger, its instructions for half a register are as
good."""
FEW_TURNS = 4
"""A sum of at most so many unrolled iterations is unrolled without a remainder or not at all, because a
remainder would cost too much."""


def begin_with_bias(rec: Recorder, workload: Workload, stage: te.Stage, width: int) -> tuple[str, ...]:
    """Let sums begin with a bias: a constant that is added by column, packed by panels of `width`.

    It saves one instruction for each result. It is done if instructions limit the speed, or for sums of words
    of integers, which are exact in any order. Return the constant's name, or nothing if there is no such
    bias.
    """
    column = stage.axes[-1].var
    of_words = any(p.terms > 1 for n in walk(stage.body) if (p := product_of(n)))

    def adds(e: Expr) -> list[Load]:
        parts = [e.a, e.b] if isinstance(e, Binary) and e.op == "add" else []
        return [p for p in parts if isinstance(p, Load) and stage.acc in parts and p.index == (column,)]

    biases = [b for e in walk(stage.result) for b in adds(e) if b.buffer.name in workload.constants]
    once = len({b.buffer.name for b in biases}) == 1 and sum(b is stage.acc for b in walk(stage.result)) == 1
    if (
        not (workload.processor.issue or (of_words and stage.acc.dtype.is_int))
        or stage.combiner != "sum"
        or not once
        or biases[0].dtype is not stage.acc.dtype
    ):
        return ()
    name = biases[0].buffer.name
    rec.do("begin_with", f"{stage.out.name}.acc", name)
    rec.pack(name, Packing((0,), 0, 1, width))
    return (name,)


def in_registers(rec: Recorder, tile: Sequence[str], more: Sequence[str] = ("_w",)) -> None:
    """Unroll the two outer loops of a register tile, and vectorize the innermost.

    The same is done to the loops' copies: where sums begin, where they go on, the remaining terms, and the
    copies `more`, which write back.
    """
    left_over = ("t",) if f"{tile[0]}t" in loop_names(rec.func) else ()
    for suffix in ("", *left_over, "_z", *more):
        rec.do("unroll", tile[0] + suffix)
        rec.do("unroll", tile[1] + suffix)
        rec.do("vectorize", tile[2] + suffix)


def at_once(workload: Workload, stage: te.Stage) -> int:
    """Return the number of elements of a result that are written together.

    One instruction then packs several vectors of sums to one of small integers. Return 0 if results are
    written vector by vector.
    """
    small = stage.out.dtype
    lanes = workload.processor.lanes(small.bytes)
    return lanes if workload.target.row("clamped", small, lanes) is not None else 0


def written_wide(
    rec: Recorder, rows: Sequence[str], across: Sequence[str], most: int, loop: str = "w"
) -> None:
    """Write a register tile's rows back by vectors of `most` elements, in a loop named `loop`."""
    for row in rows:
        rec.do("unroll", f"{row}_w")
    rec.do("fuse", *(f"{part}_w" for part in across), loop)
    in_vectors(rec, loop, most)


def in_vectors(rec: Recorder, loop: str, most: int) -> None:
    """Vectorize a loop with `most` elements a vector. A remainder is divided into vectors of powers of two,
    the largest first."""
    extent = simplify(find(rec.func, loop).extent, dict(rec.func.symbols))
    size = int(extent.value) if isinstance(extent, Const) else most
    while size & (size - 1):
        lanes = min(most, 1 << (size.bit_length() - 1))
        rec.do("split", loop, lanes, "cut")
        rec.do("unroll", f"{loop}o")
        rec.do("vectorize", f"{loop}i")
        size -= size // lanes * lanes
        loop += "t"
        if not size:
            return
    if size > most:
        rec.do("split", loop, most)
        rec.do("unroll", f"{loop}o")
        loop += "i"
    rec.do("vectorize", loop)


def terms_at_once(processor: Processor, *vectors: int) -> int:
    """Return the number of terms to load together, so that each instruction loads as many vectors as it can.

    `vectors`: the vectors of each operand for one term; 0 for an operand that is loaded otherwise.
    """
    most = processor.several if processor.several_loads else 0
    return min((most // n for n in vectors if 0 < n <= most // 2), default=1)


def load_terms(
    rec: Recorder,
    processor: Processor,
    terms: Sequence[str],
    buffer: str,
    over: Sequence[str],
    vectors: int,
    name: str,
) -> None:
    """Load the part of a buffer that a sum's terms read in the loops `over`, as one value `name`.

    `vectors`: the vectors of a term. Nothing is done for more than `MOST_LOADED`. If there are two loops
    `terms`, and a term has few vectors, all terms of the inner loop are loaded together.
    """
    if vectors > MOST_LOADED:
        return
    at, loops = terms[0], list(over)
    if len(terms) > 1 and vectors <= processor.several // 2:
        loops.insert(0, terms[-1])
    else:
        at = terms[-1]
    rec.do("pack", at, buffer, loops, name, "register")
    copies = [f"{name}_{n}" for n in loops]
    while len(copies) > 1:
        rec.do("fuse", copies[0], copies[1], name)
        copies[:2] = [name]
    rec.do("vectorize", copies[0])


def unroll_sum(
    rec: Recorder, loop: str, most: int, rows: str = "", each: Sequence[str] = (), at_once: int = 1, *,
    exact: bool = False,
) -> list[str]:  # fmt: skip
    """Unroll the loop over a sum's terms by `most` terms. Unless `exact`, it takes fewer terms if these leave
    no remainder.

    `rows`: a buffer whose terms of one iteration are loaded as vectors, in the loops `each`. Return the loops
    over an iteration's terms. If there are two, the inner one has `at_once` terms. Return an empty list if
    nothing was unrolled.
    """
    extent = simplify(find(rec.func, loop).extent, dict(rec.func.symbols))
    if isinstance(extent, Const) and not exact:
        n = int(extent.value)
        factor = next((f for f in range(most, 1, -1) if n % f == 0), most if n > FEW_TURNS * most else 1)
    else:
        factor = most
    if factor == 1 or (isinstance(extent, Const) and int(extent.value) <= factor):
        return []
    rec.do("split", loop, factor, "cut")
    if rows:
        name = f"{loop}_rows"
        rec.do("pack", f"{loop}o", rows, [*each, f"{loop}i"], name, "register")
        for row in each:
            rec.do("unroll", f"{name}_{row}")
        rec.do("vectorize", f"{name}_{loop}i")
    terms = [f"{loop}i"]
    if 1 < at_once < factor and factor % at_once == 0:
        rec.do("split", f"{loop}i", at_once)
        terms = [f"{loop}io", f"{loop}ii"]
    for over in terms:
        rec.do("unroll", over)
    return terms
