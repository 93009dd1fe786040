"""Figures and functions of the templates' estimates: cycles of arithmetic and data traffic on one core."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from jangin.ir import te
from jangin.ir.dtype import I64
from jangin.ir.expr import Binary, Call, Expr, Load, Select
from jangin.ir.traversal import children, loads
from jangin.targets.processor import SHARE, Processor
from jangin.templates.template import Workload

TASK = 60.0
"""Cycles of a task beside its work: its offset in the output, and entering and leaving loops. It is an
estimate that only orders candidates, which tuning measures."""
WAIT = 0.2
"""Share of a task's time that threads lose at the end, when they wait for the last one. It is an estimate
that only orders candidates, which tuning measures."""
HANDED_OUT = 16
"""With at most so many tasks, the share `WAIT` is divided by their number. More tasks are handed out several
at once."""
EXPOSED = 0.1
"""Share of the shorter of two overlapped times (work and memory) that isn't hidden. It is an estimate that
only orders candidates, which tuning measures."""
REORDERED = 224
"""Instructions in a processor's reorder window. Tiles with fewer instructions overlap."""
LOOP = 8.0
"""Cycles to enter and leave an inner loop: half a mispredicted branch, which takes 15 to 20 cycles."""
CALL = 12.0
"""Vector instructions of an exp, log or tanh: a polynomial, and the reduction of its argument."""
MASKED_STORE = 12.0
"""Cycles to store a part of a vector. AVX2's masked stores are slow on some processors. It is an estimate
that only orders candidates, which tuning measures."""
LOOP_INSTRUCTIONS = 4.0
"""Instructions in each iteration of an inner loop: its counter, a branch, and two address increments."""
MOST_LOADED = 4
"""Most vectors of a term that one instruction loads together, if the target has such an instruction.
AArch64's LD1 loads four."""
JUMP = 512
"""A jump to another row of a large array takes as long as so many bytes of it. Processors prefetch the next
lines only after some lines were read."""
DIVIDE = 5.0
"""A division or square root occupies the arithmetic units for as long as so many multiply-adds. Skylake
divides a vector of 32 bytes in 5 cycles."""


def arithmetic(e: Expr) -> float:
    """Return the number of vector instructions that compute a value, without its loads. Indices and
    conditions on them count nothing."""
    own, parts = 0.0, children(e)
    match e:
        case Load():
            return 0.0
        case Expr(dtype=dtype) if dtype is I64 and not any(True for _ in loads(e)):
            return 0.0
        case Select():
            own, parts = float(any(True for _ in loads(e.cond))), (e.a, e.b)
        case Call(fn=fn):
            own = {"sqrt": DIVIDE, "rsqrt": DIVIDE, "abs": 1.0, "neg": 1.0, "not": 1.0, "rounded": 0.0}.get(
                fn, CALL
            )
        case Binary(op="div"):
            own = DIVIDE
        case Binary():
            own = 1.0
    return own + sum(arithmetic(k) for k in parts)


def size(workload: Workload, axes: Iterable[te.Axis]) -> int:
    """Return the number of points of an iteration space."""
    return math.prod(workload.size(a.extent) for a in axes)


def traffic(workload: Workload) -> float:
    """Return the cycles to read a kernel's inputs and to write its results, each byte once. Constants come
    from memory."""
    written = {s.out.name: size(workload, s.axes) for s in workload.stages[-workload.outputs :]}
    read: dict[str, int] = {}
    for s in workload.stages:
        points = size(workload, (*s.axes, *s.reduce_axes))
        for n in (*loads(s.body), *loads(s.result)):
            read[n.buffer.name] = read.get(n.buffer.name, 0) + points
    cycles, processor = 0.0, workload.processor
    for b in (*workload.inputs, *workload.results):
        held = math.prod(workload.size(d) for d in b.shape)
        count = b.dtype.bytes * written.get(b.name, min(held, read.get(b.name, 0)))
        constant = b.name in workload.constants
        cycles += count / (processor.memory_rate if constant else processor.rate(count))
    return cycles


def far_rate(processor: Processor, whole: float, piece: float, row: float) -> float:
    """Return the bytes a cycle of an array of `whole` bytes that is read in pieces of its rows.

    `piece`, `row`: their bytes. Pieces that lie side by side, or in the L2 cache, take no jumps.
    """
    near = piece >= row or whole <= processor.l2 / SHARE
    return processor.rate(whole) * (1.0 if near else piece / (piece + JUMP))


def overlapped(work: float, moving: float) -> float:
    """Return the cycles of work that overlaps with data traffic of `moving` cycles: nearly the longer of the
    two."""
    return max(work, moving) + EXPOSED * min(work, moving)


def launch(cycles: float, tasks: int) -> float:
    """Return the cycles of a kernel whose work takes `cycles` cycles in `tasks` tasks. Each task costs `TASK`
    more, and threads wait for the last one."""
    return cycles + tasks * TASK + WAIT * cycles / max(1, min(tasks, HANDED_OUT))


def vector_cycles(processor: Processor, instructions: float, reads: float, writes: float = 0.0) -> float:
    """Return the cycles of independent vector instructions. The busiest kind of unit decides."""
    return max(instructions / processor.multiply_adds, reads / processor.loads, writes / processor.stores)


def tile_step(
    processor: Processor, mr: int, nv: int, unroll: int, rows: float | None = None, multiplies: float = 1
) -> float:
    """Return the cycles of one term in a register tile.

    A term has mr * nv multiply-adds, nv loads of a panel's vectors, and `rows` loads of the rows. It takes at
    least a multiply-add's latency, and a share of the loop. `rows`: None for `mr`, if each value is loaded
    alone. `multiplies`: instructions of each multiply-add.
    """
    loads = (mr if rows is None else rows) + nv
    multiplied = mr * nv * multiplies
    step = max(multiplied / processor.multiply_adds, loads / processor.loads, processor.latency) + 1 / unroll
    if not processor.issue:
        return step
    instructions = multiplied + loads - nv + vector_loads(processor, nv) + LOOP_INSTRUCTIONS / unroll
    return max(step, instructions / processor.issue)


def vector_loads(processor: Processor, vectors: int) -> float:
    """Return the number of instructions that load `vectors` neighbouring vectors for each term of a sum.

    They load pairs, or as many vectors as one instruction can, also of several terms.
    """
    if not processor.several_loads or vectors > MOST_LOADED:
        return vectors / 2
    loaded = vectors / processor.several
    return loaded if vectors <= processor.several // 2 else math.ceil(loaded)


def reads(stages: Sequence[te.Stage]) -> int:
    """Return the number of loads for one element of each stage, summed over the stages."""
    return sum(len(list(loads(e))) for s in stages for e in (s.body, s.result))
