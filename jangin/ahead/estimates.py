"""Estimates of a kernel before any compiler of the target runs: bytes of code, instructions and cycles.

Each operation of a loop nest counts as the target's instructions for it. An operation that depends on no
variable of the innermost loops around it is computed outside of them, and copies of unrolled loops share it.
Elements of local arrays are in registers. Elements in a vector register share an instruction. The figures
are within two fifths of what compilers and QEMU show for the models in `benchmarks/small.py`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence

from jangin.ir.dtype import F32, I32, DType
from jangin.ir.expr import Binary, Call, Cast, Const, Expr, Load, Select, Var, const
from jangin.ir.graph import static_shape
from jangin.ir.loop import Alloc, For, Func, If, Let, Prefetch, Stmt, Store, loop_range, sub_statements
from jangin.ir.plan import Plan
from jangin.ir.records import dataclass
from jangin.ir.simplify import Range, interval, simplify
from jangin.ir.traversal import children, free_vars, substitute
from jangin.once import once
from jangin.targets.target import Target

LOOP = 3
"""Instructions of a loop's iteration: counter, comparison, and branch."""
TAKEN = 2
"""Additional cycles of a taken branch (Arm's manual of the Cortex-M4)."""
ACCESS = 0.4
"""Additional cycles of a load. Some loads follow another and take none (Arm's manual of the Cortex-M4)."""
KERNEL = 24
"""Instructions that begin and end a kernel: up to 12 registers are saved and restored."""
CODE_BYTES = 3.4
"""Bytes of an instruction. Thumb-2 and RISC-V with C have instructions of two and of four bytes."""
LONG = 2
"""Instructions for an operation of i64, which takes two registers."""
SOFT_FLOAT = 65
"""Instructions of a library's function for an operation of f32 without an FPU. Estimates with it are compared
with counts under QEMU by a test."""
SOFT_DOUBLE = 130
"""Instructions of a library's function for an operation of f64, twice those of f32 (`SOFT_FLOAT`)."""
CALL = 5
"""Instructions that call a library's function: arguments are moved to registers, and the result back."""
HEAVY = 1 << 10
"""Bytes of float constants from which on quantizing a layer saves flash. Smaller layers save less than the
int8 layer's additional code may take."""
FEW_REGISTERS = 12
MORE_INSTRUCTIONS, MORE_CODE = 1.75, 1.3
"""With fewer general registers (Armv6-M has eight), instructions to save and fetch values are added. These
factors are medians over the models of `benchmarks/small.py`."""
FUNCTION = 40
"""Instructions of a mathematical function such as exp: a reduction of the argument, and a polynomial."""
CHEAP = {"rounded": 0, "round": 1, "floor": 3, "ceil": 3, "trunc": 3, "sqrt": 1, "dot4": 4}
"""Instructions of calls that have neither 1 nor FUNCTION."""
SIMPLE = re.compile(r"and|or|not|dot\w*|even_bytes|odd_bytes|clamped|abs|isnan|bitcast_\w+|min|max|joined")
"""Calls that are one instruction."""
REGISTERS, FLOAT_REGISTERS = 11, 26
"""Elements of a local array that stay in general registers, and in those of an FPU. Compilers keep larger
arrays on the stack."""
DIVISIONS = "floordiv", "mod", "div"
VECTOR_BYTES = 16
"""Bytes of a vector register. Smaller ones are general registers, whose elements are counted singly."""
SPILLED = 0.6
"""Instructions of an access to a local array with more elements. Two or more neighbours are often loaded by
one instruction."""


@dataclass(frozen=True)
class Estimate:
    """The estimated bytes of a kernel's code, and the instructions and cycles of a run."""

    code: float
    instructions: float
    cycles: float


def estimate(func: Func, sizes: Sequence[int], target: Target) -> Estimate:
    """Return the estimate of a kernel, given the values of its symbols."""
    known = {v: const(n) for (v, _), n in zip(func.symbols, sizes, strict=True)}
    counter = _Counter(target, known)
    counter.statement(func.body, (), {}, {})
    instructions, written = counter.executed + KERNEL, counter.written + KERNEL
    return Estimate(written * CODE_BYTES, instructions, instructions + counter.waits)


API_BYTES = 1800
"""Bytes of the API's functions and texts, which hardly depend on the model."""
LAUNCH_BYTES = 40
"""Bytes of a launch in the function that runs all: some ten instructions that set up and make a call."""
LAUNCH = 60
"""Instructions of a launch: its arguments, and the loop over its tasks."""
STACK = 1024
"""Most bytes of stack of a run. With gcc 12 the models of `benchmarks/small.py` take 200 to 900."""


@dataclass(frozen=True)
class Layer:
    """A launch, with the model's nodes that it computes.

    `weights` is the bytes of its constants. `ram` is the bytes of the buffers that live during it, and of its
    scratch memory. `floats` tells if many of its constants are floats."""

    name: str
    weights: int
    ram: int
    kernel: Estimate
    floats: bool


def layers(plan: Plan, target: Target) -> list[Layer]:
    """Return the layers of a plan of known sizes, in the order of its launches."""
    buffers = {b.name: b for b in plan.buffers}
    layers = []
    for n, launch in enumerate(plan.launches):
        args = {buffers[buffers[a].base or a] for a in launch.args}
        constants = [b for b in args if b.kind == "constant"]
        spans = [
            (b.offset or 0, (b.offset or 0) + (b.bytes or 0))
            for b in plan.buffers
            if b.kind == "arena" and b.live[0] <= n <= b.live[1]
        ]
        values = [int(e.value) for e in launch.symbols if isinstance(e, Const)]
        scratch = int(launch.scratch.value) if isinstance(launch.scratch, Const) else 0
        one = estimate(plan.kernels[launch.kernel], values, target)
        weights = sum(b.bytes or 0 for b in constants)
        floats = any(b.dtype.is_float and (b.bytes or 0) > HEAVY for b in constants)
        layers.append(
            Layer(str(launch.sources) or launch.kernel, weights, _covered(spans) + scratch, one, floats)
        )
    return layers


def code_bytes(plan: Plan, found: Sequence[Layer]) -> int:
    """Return the estimated bytes of a plan's code. Kernels that several launches share count once."""
    each = {launch.function: layer.kernel.code for launch, layer in zip(plan.launches, found, strict=True)}
    return round(API_BYTES + LAUNCH_BYTES * len(found) + sum(each.values()))


def _covered(spans: Sequence[tuple[int, int]]) -> int:
    """Return the bytes that at least one of some ranges covers."""
    total = end = 0
    for start, stop in sorted(spans):
        total += max(0, stop - max(start, end))
        end = max(end, stop)
    return total


@dataclass(frozen=True)
class _Around:
    """A loop around an operation, with its iterations."""

    var: Var
    count: float
    kind: str

    @once
    def copies(self) -> bool:
        return self.kind in ("unroll", "vector")


class _Counter:
    """Sums up a nest. `executed`: instructions of a run. `written`: instructions of the code. `waits`: cycles
    beyond one for each instruction."""

    def __init__(self, target: Target, known: Mapping[Var, Expr]) -> None:
        self.target, self.known = target, known
        self.floats = target.machine.floats
        few = not self.floats and target.machine.registers < FEW_REGISTERS
        self.more, self.more_code = (MORE_INSTRUCTIONS, MORE_CODE) if few else (1.0, 1.0)
        self.executed = self.written = self.waits = 0.0
        self.spilled: set[str] = set()
        self.seen: set[tuple[Expr, tuple[Var, ...]]] = set()

    def statement(
        self, s: Stmt, loops: tuple[_Around, ...], bound: Mapping[Var, frozenset[Var]],
        ranges: Mapping[Var, Range],
    ) -> None:  # fmt: skip
        """Count a statement. `bound` has the loops' variables that each bound name depends on."""
        if isinstance(s, Prefetch):
            return
        if isinstance(s, For):
            self._loop(s, loops, bound, ranges)
            return
        if isinstance(s, Store):
            self.expression(s.value, loops, bound)
            self._address(s.index, loops, bound)
            if s.buffer.memory != "register":
                lanes = self._lanes_of_access(s, loops)
                self._add(1, 0, s.index, loops, bound, hoisted=False, lanes=lanes)
            elif s.buffer.name in self.spilled:
                self._add(SPILLED, 0, s.index, loops, bound, hoisted=False)
        elif isinstance(s, If):
            self.expression(s.cond, loops, bound)
            self._add(1, 1, (s.cond,), loops, bound)
        elif isinstance(s, Alloc):
            room = FLOAT_REGISTERS if s.buffer.dtype.is_float and self.floats else REGISTERS
            if s.buffer.memory == "register" and math.prod(static_shape(s.buffer.shape) or ()) > room:
                self.spilled.add(s.buffer.name)
        elif isinstance(s, Let):
            self.expression(s.value, loops, bound)
            bound = {**bound, s.var: self._depends((s.value,), bound)}
        for sub in sub_statements(s):
            self.statement(sub, loops, bound, ranges)

    def _loop(
        self, s: For, loops: tuple[_Around, ...], bound: Mapping[Var, frozenset[Var]],
        ranges: Mapping[Var, Range],
    ) -> None:  # fmt: skip
        extent = simplify(substitute(s.extent, self.known), dict(ranges))
        most = int(extent.value) if isinstance(extent, Const) else interval(extent, dict(ranges))[1]
        around = _Around(s.var, float(1 if most is None else most), s.kind)
        inside = (*loops, around)
        if not around.copies:
            self._add(LOOP, TAKEN, (s.var,), inside, bound)
        ranges = {**ranges, s.var: loop_range(For(s.var, const(int(around.count)), s.body))}
        self.statement(s.body, inside, bound, ranges)

    def expression(self, e: Expr, loops: tuple[_Around, ...], bound: Mapping[Var, frozenset[Var]]) -> None:
        """Count an expression's operations. Equal ones in the same loops count once."""
        key = e, tuple(a.var for a in loops)
        if key in self.seen or isinstance(e, (Const, Var)):
            return
        self.seen.add(key)
        if isinstance(e, Load):
            self._address(e.index, loops, bound)
            if e.buffer.memory != "register":
                self._add(1, ACCESS, e.index, loops, bound, lanes=self._lanes_of_access(e, loops))
            elif e.buffer.name in self.spilled:
                self._add(SPILLED, 0, e.index, loops, bound, hoisted=False)
            return
        for child in children(e):
            self.expression(child, loops, bound)
        self._add(*self._cost(e), (e,), loops, bound, lanes=self._lanes_of(e))

    def _address(
        self, index: Sequence[Expr], loops: tuple[_Around, ...], bound: Mapping[Var, frozenset[Var]]
    ) -> None:
        """Count the divisions of an index. Sums and products by constants are part of a loop's steps, and
        what depends on copies of loops alone is a constant."""
        copied = {a.var for a in loops if a.copies}
        for e in (n for i in index for n in _divisions(i)):
            if not self._depends((e,), bound) <= copied:
                self.expression(e, loops, bound)

    def _lanes(self, dtype: DType) -> int:
        """Return how many elements of a type one instruction takes."""
        machine = self.target.machine
        return machine.lanes(dtype.bytes) if machine.vector_bytes >= VECTOR_BYTES else 1

    def _lanes_of(self, e: Expr) -> int:
        """Return how many elements of an operation one instruction takes. It takes as many numbers as
        a register holds. If a product's factors were widened, it takes as many as before widening."""
        if isinstance(e, Binary):
            widened = e.op == "mul" and not e.dtype.is_float
            a = e.a.a if widened and isinstance(e.a, Cast) else e.a
            return 1 if e.op in DIVISIONS else self._lanes(a.dtype)
        one = isinstance(e, Call) and e.fn not in CHEAP and not SIMPLE.fullmatch(e.fn)
        return 1 if one else self._lanes(e.dtype)

    def _lanes_of_access(self, access: Load | Store, loops: tuple[_Around, ...]) -> int:
        """Return how many elements one instruction loads or stores. They are neighbours in memory."""
        shape = static_shape(access.buffer.shape) or ()
        last = [i for i, n in zip(access.index, shape, strict=False) if n > 1][-1:]
        vectors = {a.var for a in loops if a.kind == "vector"}
        near = any(vectors & free_vars(i) for i in last)
        return self._lanes(access.buffer.dtype) if near else 1

    def _cost(self, e: Expr) -> tuple[float, float]:
        """Return the instructions of an operation, and the cycles beyond."""
        if isinstance(e, Cast):
            if e.dtype.is_float or e.a.dtype.is_float:
                return (1, 0) if self.floats else (SOFT_FLOAT / 2, 0)
            return (0, 0) if e.dtype.bits >= e.a.dtype.bits or isinstance(e.a, Load) else (0.5, 0)
        if isinstance(e, Binary) and e.op == "min" and isinstance(e.a, Binary) and e.a.op == "max":
            return (0, 0)  # one instruction clamps to both ends
        if isinstance(e, Binary) and e.op == "add" and any(map(self._is_product, (e.a, e.b))):
            return (0, 0)  # the product's instruction adds
        kind = e.a.dtype if isinstance(e, Binary) else e.dtype
        if isinstance(e, Select):
            return (2, 0)
        if isinstance(e, Call) and e.fn in CHEAP:
            return (CHEAP[e.fn], 0)
        if isinstance(e, Call) and not SIMPLE.fullmatch(e.fn):
            return (FUNCTION, 0)
        if kind.is_float:
            soft = SOFT_DOUBLE if kind.bits == 64 else SOFT_FLOAT
            if not self.floats or kind.bits == 64:
                return (soft, 0)
            return (1, 13) if isinstance(e, Binary) and e.op == "div" else (1, 0)
        if isinstance(e, Binary) and e.op in DIVISIONS:
            return (3, 4)
        if kind.bits == 64 and isinstance(e, Binary) and not _is_index(e):
            return (LONG if self.floats or e.op != "mul" else 12, 0)
        return (1, 0)

    def _is_product(self, e: Expr) -> bool:
        """Return whether one instruction makes the product and adds it to something else."""
        if isinstance(e, Call):
            return e.fn in ("dot2", "dot4")
        if isinstance(e, Binary) and e.op == "mul" and e.dtype is I32 and self._lanes(I32) > 1:
            return True
        return self.floats and isinstance(e, Binary) and e.op == "mul" and e.dtype is F32

    def _depends(self, found: Sequence[Expr], bound: Mapping[Var, frozenset[Var]]) -> frozenset[Var]:
        names = {v for e in found for v in free_vars(e)}
        return frozenset(w for v in names for w in bound.get(v, (v,)))

    def _add(
        self, instructions: float, waits: float, found: Sequence[Expr], loops: tuple[_Around, ...],
        bound: Mapping[Var, frozenset[Var]], *, hoisted: bool = True, lanes: int = 1,
    ) -> None:  # fmt: skip
        """Count an operation in the loops that it depends on. In a vector loop an instruction takes so many
        lanes."""
        used = self._depends(found, bound)
        inner = len(loops)
        while hoisted and inner and loops[inner - 1].var not in used:
            inner -= 1
        copies = times = 1.0
        for a in loops[:inner]:
            if a.copies and a.var not in used:
                continue
            count = math.ceil(a.count / lanes) if a.kind == "vector" else a.count
            times *= count
            copies *= count if a.copies else 1
        own = min(instructions, CALL)  # the rest is a library's function, which is compiled already
        self.executed += (own * self.more + instructions - own) * times
        self.waits += waits * times
        self.written += own * self.more_code * copies


def _divisions(e: Expr) -> Iterator[Expr]:
    if isinstance(e, Binary) and e.op in ("floordiv", "mod"):
        yield e
    else:
        for child in children(e):
            yield from _divisions(child)


def _is_index(e: Expr) -> bool:
    return not any(isinstance(n, Load) for n in _within(e))


def _within(e: Expr) -> Iterator[Expr]:
    yield e
    for child in children(e):
        yield from _within(child)
