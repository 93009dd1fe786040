"""Helpers of several templates: flat indices, lanes, remainders, and outer loops as tasks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from jangin.ir.dtype import BOOL, F32, F64, I32, I64, DType
from jangin.ir.expr import Binary, Buffer, Call, Cast, Const, Expr, Load, Var, const
from jangin.ir.loop import Func, Store, expressions, statements
from jangin.ir.simplify import Ranges, interval, linear, simplify
from jangin.ir.te import Axis, Stage
from jangin.ir.traversal import children, free_vars, loads, row_major, walk
from jangin.schedule.primitives import find, loop_names
from jangin.targets.processor import Processor
from jangin.templates.scheduled import Recorder
from jangin.templates.template import Workload

MASKABLE = (F32, I32, F64, I64)
"""Element types with masked vector loads and stores."""
TOGETHER = 4
"""Vectors in one iteration of a loop over elements that calls a function of `CHAINS`. Processors that take
every operand from a register get half as many."""
CHAINS = frozenset({"exp", "exp2", "expm1", "log", "log2", "log1p", "sigmoid", "tanh"})
"""Functions whose polynomials need few registers at a time."""
LONG_SUM = 64
"""Most terms that a sum adds one after the other. Its inner loops may add four times as many. Rounding errors
grow with the number of terms."""
LEAST_PART = 8
"""Fewest terms of a partial sum. With fewer, adding the parts would take longer than their terms."""
UNROLLED = 10
"""Most taps of a window, or words of its rows, that are all unrolled. In a larger window, only the taps along
the row are unrolled."""
LONGEST_ROW = 16
"""Most taps along a row that are unrolled. Longer rows stay a loop, which keeps the code small."""


def flat_index(buffer: Buffer, index: Sequence[Expr], ranges: Ranges) -> Expr:
    """Return an element's offset in row-major order, in elements and simplified."""
    return simplify(row_major(index, buffer.shape), ranges)


def stride(load: Load, var: Var, ranges: Ranges) -> int | None:
    """Return by how many elements the address moves if `var` grows by 1. Return None if the number isn't
    constant."""
    parts = linear(flat_index(load.buffer, load.index, ranges), var)
    if parts is None:
        return None
    step = simplify(parts[0])
    return int(step.value) if isinstance(step, Const) else None


def _dtypes(e: Expr) -> Iterator[DType]:
    """Yield the types of values that are computed or moved. Indices, conditions on them, and casts from them
    don't count."""
    yield e.dtype
    if not isinstance(e, Load):
        for k in children(e):
            aside = k.dtype is BOOL or isinstance(e, Cast)
            if not aside or any(True for _ in loads(k)):
                yield from _dtypes(k)


def lanes_for(workload: Workload) -> int:
    """Return the lanes of a vector loop: as many as a vector holds of the widest type.

    A type narrower than four bytes counts as four bytes. Booleans and the results of reductions don't
    count.
    """
    dtypes = {t for s in workload.stages for t in _dtypes(s.body)}
    dtypes |= {t for s in workload.stages if not s.reduce_axes for t in (*_dtypes(s.result), s.out.dtype)}
    widest = max((t.wide.bytes for t in dtypes if t is not BOOL), default=4)
    return workload.machine.lanes(max(widest, 4))


def maskable(func: Func) -> bool:
    """Return whether every buffer that the kernel accesses has an element type in `MASKABLE`."""
    used = {st.buffer.dtype for st in statements(func.body) if isinstance(st, Store)}
    for st in statements(func.body):
        for e in expressions(st):
            used |= {n.buffer.dtype for n in walk(e) if isinstance(n, Load)}
    return used <= set(MASKABLE)


def together(processor: Processor, e: Expr) -> int:
    """Return the number of vectors in one iteration of a loop over elements.

    It is 1 unless `e` calls a function of `CHAINS` and the target's instructions don't limit the speed. Each
    instruction of a polynomial waits for the one before. Several vectors overlap, and share each loaded
    constant.
    """
    functions = {n.fn for n in walk(e) if isinstance(n, Call) and n.dtype is F32}
    if processor.issue or not functions & CHAINS:
        return 1
    return TOGETHER // 2 if processor.elements else TOGETHER


def vectorize(rec: Recorder, loop: str, extent: Expr, lanes: int, several: int = 1) -> None:
    """Vectorize a loop, with `several` vectors in each iteration if it is long enough.

    A loop of fewer than four vectors gets masks if all its accesses may have them. Other loops get a scalar
    remainder. A loop of one iteration stays.
    """
    if several > 1 and not (isinstance(extent, Const) and int(extent.value) < several * lanes):
        rec.do("split", loop, several * lanes, "cut")
        rec.do("vectorize", f"{loop}i")
        if f"{loop}t" in loop_names(rec.func):
            vectorize(rec, f"{loop}t", find(rec.func, f"{loop}t").extent, lanes)
        return
    if isinstance(extent, Const):
        size = int(extent.value)
        if size < 2:
            return
        if size % lanes and size < lanes and not maskable(rec.func):
            lanes = 1 << (size.bit_length() - 1)
        short = size < 4 * lanes and maskable(rec.func)
    else:
        short = False
    rec.do("split", loop, lanes, "guard" if short else "cut")
    rec.do("vectorize", f"{loop}i")


def messy(func: Func, var: Var, ranges: Ranges) -> bool:
    """Return whether the kernel depends on `var` in a way that isn't linear.

    It does if an address has `var` in a quotient, remainder, minimum or maximum after simplification. It also
    does if a value has it in a quotient or remainder.
    """
    for st in statements(func.body):
        if isinstance(st, Store) and _divided(flat_index(st.buffer, st.index, ranges), var):
            return True
        for e in expressions(st):
            if isinstance(st, Store) and e in st.index:
                continue
            if _messy(e, var, ranges):
                return True
    return False


def _messy(e: Expr, var: Var, ranges: Ranges) -> bool:
    waiting, seen = [e], set[Expr]()
    while waiting:
        n = waiting.pop()
        if n in seen:
            continue
        seen.add(n)
        if isinstance(n, Load):
            flat = flat_index(n.buffer, n.index, ranges)
            if _divided(flat, var) or linear(flat, var) is None:
                return True
        elif isinstance(n, Binary) and n.op in ("floordiv", "mod") and var in free_vars(n):
            return True
        else:
            waiting += children(n)
    return False


def _divided(e: Expr, var: Var) -> bool:
    return any(
        isinstance(n, Binary) and n.op in ("floordiv", "mod", "min", "max") and var in free_vars(n)
        for n in walk(e)
    )


def fuse_all(rec: Recorder, loops: Sequence[str], name: str) -> str:
    """Fuse directly nested loops, outermost first, to one loop called `name`. Return the loop's name; a
    single loop keeps its own."""
    current = loops[0]
    for n, inner in enumerate(loops[1:]):
        fused = name if n == len(loops) - 2 else f"{name}{n}"
        rec.do("fuse", current, inner, fused)
        current = fused
    return current


def shorten_sum(rec: Recorder, stage: Stage, loops: Sequence[str], paired: int = 1) -> None:
    """Split a stage's long sum of floats into partial sums. Other stages and short sums stay unchanged.

    `loops`: the loops over the sum's terms, outermost first. An iteration of the last one adds `paired`
    terms, in pairs.
    """
    if stage.combiner != "sum" or not stage.body.dtype.is_float:
        return
    terms = 1
    for loop in reversed(loops):
        extent = simplify(find(rec.func, loop).extent, dict(rec.func.symbols))
        if extent == const(0):
            return
        most = (LONG_SUM if loop == loops[0] else 4 * LONG_SUM) // paired
        if isinstance(extent, Const) and terms * int(extent.value) <= most:
            terms *= int(extent.value)
            continue
        if terms < LEAST_PART:
            rec.do("split", loop, LONG_SUM // (terms * paired), "bound")
            loop += "o"
        rec.do("partial_sums", loop)
        return


def row_border(stage: Stage, row: Axis, symbols: Ranges) -> tuple[int, int]:
    """Return the number of positions at each end of `row` whose windows reach into the padding.

    Return (0, 0) if it isn't known or the axis is shorter than four; all bounds checks then stay.
    """
    conds = [
        n for n in walk(stage.body) if isinstance(n, Binary) and n.op in ("lt", "ge") and row.var in walk(n)
    ]
    if not conds or not isinstance(row.extent, Const):
        return 0, 0
    size, inner = int(row.extent.value), dict(symbols)
    inner |= {a.var: (const(0), a.extent - 1) for a in stage.reduce_axes}
    first, last = 0, size - 1
    for cond in conds:
        held = _held(cond, row.var, inner)
        if held is None:
            return 0, 0
        low, high = held
        first, last = first if low is None else max(first, low), last if high is None else min(last, high)
    if first > last or size < 4:
        return 0, 0
    return first, size - 1 - last


def _held(cond: Binary, var: Var, ranges: Ranges) -> tuple[int | None, int | None] | None:
    """Return the (least, largest) value of a variable for which a condition always holds, whatever the other
    variables.

    An end is None if it is unlimited. Return None if the values aren't known, or none fulfils the
    condition.
    """
    parts = linear(cond.a - cond.b, var)
    step = None if parts is None else simplify(parts[0])
    if parts is None or not isinstance(step, Const):
        return None
    low, high = interval(parts[1], ranges)
    c, worst = int(step.value), high if cond.op == "lt" else low
    if c == 0:
        return (None, None) if _holds(cond, ranges) else None
    if worst is None:
        return None
    if cond.op == "lt":  # c * var + worst <= -1
        c, worst = -c, -1 - worst
    # now c * var + worst >= 0
    return (-(worst // c), None) if c > 0 else (None, worst // -c)


def _holds(cond: Binary, ranges: Ranges) -> bool:
    low, high = interval(cond.a - cond.b, ranges)
    return (high is not None and high < 0) if cond.op == "lt" else (low is not None and low >= 0)
