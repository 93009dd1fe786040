"""Values of expressions: a scalar where all lanes of a vector loop agree, else a vector."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from jangin.backends.llvm import arithmetic
from jangin.backends.llvm.builder import Builder
from jangin.backends.llvm.index import Indexer, Linear
from jangin.backends.llvm.math import ARGUMENT, divisor, expansion
from jangin.backends.llvm.memory import Memory
from jangin.backends.llvm.values import Value, constant
from jangin.ir.dtype import BOOL, I32, I64
from jangin.ir.expr import Binary, Call, Cast, Const, Expr, Load, Select, Var, children, walk
from jangin.ir.graph import CompileError
from jangin.ir.words import BITCASTS, COMPARE, INTRINSICS

_MIRROR = {"lt": "gt", "le": "ge", "gt": "lt", "ge": "le", "eq": "eq", "ne": "ne"}
_QUOTIENTS = {"floordiv": "udiv", "div": "udiv", "mod": "urem", "rem": "urem"}
_ELEMENTARY = frozenset({
    "neg", "abs", "not", "floor", "ceil", "round", "trunc", "sign", "fma", "isnan", "isinf",
    *BITCASTS,
})  # fmt: skip
CHEAP_NODES = 24
"""Both arms of a uniform Select are computed, rather than branched to, up to so many nodes each."""


class Expressions:
    """Writes the instructions of expressions. `values`: variables that have a value of their own."""

    def __init__(self, kernel: str, builder: Builder, indexer: Indexer, bases: dict[str, str]) -> None:
        self.kernel, self.b, self.ix = kernel, builder, indexer
        self.memory = Memory(builder, indexer, bases, self.value)
        self.values: dict[Var, Value] = {}
        self._memo: dict[Expr, Value] = {}

    def evaluate(self, e: Expr) -> Value:
        """The value of a whole expression of a statement."""
        self._memo = {}
        return self.value(e)

    def condition(self, e: Expr) -> Value:
        """As `evaluate`, for a condition; a constant where the loops' ranges decide it."""
        self._memo = {}
        return self._decided(e)

    def _decided(self, e: Expr) -> Value:
        return self.value(self.ix.condition(e))

    def value(self, e: Expr) -> Value:
        if isinstance(e, Const):
            return constant(e.value, e.dtype)
        if isinstance(e, Var):
            return self._variable(e)
        found = self._memo.get(e)
        if found is None:
            found = self._memo[e] = self._compute(e)
        return found

    def _variable(self, v: Var) -> Value:
        number = self.ix.numbers.get(v)
        if number is not None:
            return constant(number, I64)
        if v == self.ix.lane:
            return self.b.iota(self.memory.lanes)
        if v not in self.values:
            raise CompileError(f"{self.kernel}: {v} is used outside the loop or binding that defines it")
        return self.values[v]

    def _compute(self, e: Expr) -> Value:
        if isinstance(e, Binary):
            return self._binary(e)
        if isinstance(e, Load):
            return self.memory.load(e)
        if isinstance(e, Select):
            return self._select(e)
        if isinstance(e, Cast):
            return arithmetic.convert(self.b, e.dtype, self.value(e.a))
        assert isinstance(e, Call)
        return self._intrinsic(e.fn, [self.value(a) for a in e.args])

    # --- operators

    def _binary(self, e: Binary) -> Value:
        if e.op == "add" and e.dtype.is_float:
            for product, other in ((e.b, e.a), (e.a, e.b)):
                if isinstance(product, Binary) and product.op == "mul":
                    x, y, z = self.value(product.a), self.value(product.b), self.value(other)
                    return arithmetic.fma(self.b, x, y, z)
        if e.op == "mul":
            for factor, other in ((e.b, e.a), (e.a, e.b)):
                by = divisor(factor.fn, factor.dtype) if isinstance(factor, Call) else None
                if by is not None and isinstance(factor, Call) and factor not in self._memo:
                    x = self._expand(by, self.value(factor.args[0]))
                    return arithmetic.binary(self.b, "div", self.value(other), x)
        if e.a.dtype == I64:
            if e.op in COMPARE and self.ix.varies(e):
                mask = self._lane_compare(e)
                if mask is not None:
                    return mask
            if e.op in _QUOTIENTS and self._plain_quotient(e):
                x, y = self.b.unify(self.value(e.a), self.value(e.b))
                return self.b.op(f"{_QUOTIENTS[e.op]} {x}, {y.ref}", I64, x.lanes)
        return arithmetic.binary(self.b, e.op, self.value(e.a), self.value(e.b))

    def _plain_quotient(self, e: Binary) -> bool:
        """Whether unsigned division does: dividend >= 0, divisor > 0."""
        return self.ix.nonnegative(e.a) and self.ix.nonnegative(e.b - 1)

    def _lane_compare(self, e: Binary) -> Value | None:
        """A comparison linear in the lane as one 32-bit comparison of lane numbers with a bound
        clamped to just outside them; None where the step isn't 1 or -1."""
        gap: Linear = self.ix.difference(e.a, e.b)
        lanes = self.memory.lanes
        if gap.step not in (1, -1):
            return None
        op = e.op if gap.step == 1 else _MIRROR[e.op]
        uniform = [(-gap.step * c, atoms) for c, atoms in gap.uniform]
        offset = -gap.step * gap.offset
        if not uniform:
            clamped = constant(min(max(offset, -1), lanes), I32)
        else:
            bound = self.memory.total([*uniform, (offset, ())] if offset else uniform)
            low = self.b.call("llvm.smax", (bound, constant(-1, I64)), I64)
            high = self.b.call("llvm.smin", (low, constant(lanes, I64)), I64)
            clamped = arithmetic.convert(self.b, I32, high)
        return arithmetic.binary(self.b, op, self.b.iota(lanes, I32), clamped)

    def _intrinsic(self, fn: str, args: Sequence[Value]) -> Value:
        x = args[0]
        if fn == "fma":
            return arithmetic.fma(self.b, *args)
        simple = arithmetic.elementary(self.b, fn, x)
        if simple is not None:
            return simple
        if x.dtype.wide is not x.dtype:
            wide = [arithmetic.convert(self.b, x.dtype.wide, a) for a in args]
            return arithmetic.convert(self.b, x.dtype, self._intrinsic(fn, wide))
        if fn not in INTRINSICS or not x.dtype.is_float:
            raise CompileError(f"{self.kernel}: no code for {fn} of {x.dtype}; cast to f32 or f64 first")
        steps = expansion(fn, x.dtype)
        return arithmetic.library(self.b, fn, args) if steps is None else self._expand(steps, x)

    def _expand(self, steps: Expr, x: Value) -> Value:
        argument = Var(ARGUMENT, x.dtype)
        memo, self._memo, varying = self._memo, {}, self.ix.varying
        self.values[argument] = x
        if x.lanes > 1:
            self.ix.varying = {*varying, argument}
        out = self.value(steps)
        self._memo, self.ix.varying = memo, varying
        return out

    # --- lazy choice

    def _select(self, e: Select) -> Value:
        cond = self._decided(e.cond)
        if cond.ref in ("true", "false"):
            return self.value(e.a if cond.ref == "true" else e.b)
        seen = _unconditional_loads(e.cond)
        if cond.lanes > 1:
            inverse = arithmetic.binary(self.b, "xor", cond, constant(True, BOOL))
            a = self._masked_arm(e.a, cond, seen)
            return arithmetic.select(self.b, cond, a, self._masked_arm(e.b, inverse, seen))
        if all(self._cheap(arm, seen) for arm in (e.a, e.b)):
            return arithmetic.select(self.b, cond, self.value(e.a), self.value(e.b))
        lanes = self.memory.lanes if self.ix.varies(e) else 1
        return self.b.choose(cond, self._arm(e.a, lanes), self._arm(e.b, lanes))

    def _arm(self, e: Expr, lanes: int) -> Callable[[], Value]:
        def arm() -> Value:
            memo, self._memo = self._memo, dict(self._memo)
            out = self.b.broadcast(self.value(e), lanes)
            self._memo = memo
            return out

        return arm

    def _masked_arm(self, e: Expr, cond: Value, seen: set[Expr]) -> Value:
        """An arm of a choice that differs by lane: its loads are masked; where it loads one place
        for all lanes, it is skipped when no lane chose it."""
        unsafe = [n for n in walk(e) if isinstance(n, Load) and not self._safe(n, seen)]
        if not unsafe:
            return self.value(e)
        with self.masked(cond) as mask:
            arm = self._arm(e, self.memory.lanes)
            if all(self.ix.varies(n) for n in unsafe):
                return arm()
            nothing = Value("zeroinitializer", e.dtype, self.memory.lanes)
            return self.b.choose(self.b.any_lane(mask), arm, lambda: nothing)

    @contextmanager
    def masked(self, cond: Value) -> Iterator[Value]:
        """Only lanes where `cond` holds are on inside."""
        masks = self.memory.masks
        mask = arithmetic.binary(self.b, "and", masks[-1], cond) if masks else cond
        masks.append(mask)
        yield mask
        masks.pop()

    def _safe(self, n: Load, seen: set[Expr]) -> bool:
        return n in seen or self.ix.inside(n)

    def _cheap(self, e: Expr, seen: set[Expr]) -> bool:
        for count, n in enumerate(walk(e)):
            if count >= CHEAP_NODES or (isinstance(n, Call) and n.fn not in _ELEMENTARY):
                return False
            if isinstance(n, Load) and not self._safe(n, seen):
                return False
            if isinstance(n, Binary) and n.op in ("pow", "rem"):
                return False
        return True

    def uniform_access(self, e: Expr) -> bool:
        """Whether evaluating `e` may read, for all lanes, one place that its mask may guard."""
        return any(
            isinstance(n, Load)
            and not self.ix.varies(n)
            and n.buffer.memory != "register"
            and not self.ix.inside(n)
            for n in walk(e)
        )


def _unconditional_loads(e: Expr) -> set[Expr]:
    """Loads that evaluating `e` performs whatever its choices."""
    if isinstance(e, Select):
        return _unconditional_loads(e.cond)
    found: set[Expr] = {e} if isinstance(e, Load) else set()
    for kid in children(e):
        found |= _unconditional_loads(kid)
    return found
