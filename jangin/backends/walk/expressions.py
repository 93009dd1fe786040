"""Evaluates expressions: to a scalar if all lanes of a vector loop agree, else to a vector."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from jangin.backends.walk.arithmetic import Arithmetic
from jangin.backends.walk.index import Indexer
from jangin.backends.walk.joined import joined
from jangin.backends.walk.math import LARGEST, divisor, expansion
from jangin.backends.walk.memory import Memory
from jangin.backends.walk.saturated import CONVERSIONS, Saturated, clamps, moved, quotient, saturated, upper
from jangin.backends.walk.writer import Value, Writer
from jangin.ir.dtype import F32, I8, I16, I32, I64, U8, U32
from jangin.ir.expr import Binary, Buffer, Call, Cast, Const, Expr, Load, Select, Var, const
from jangin.ir.graph import CompileError
from jangin.ir.products import PRODUCTS
from jangin.ir.traversal import children, free_vars, substitute, walk
from jangin.ir.words import BITCASTS, COMPARE, HALVES, INTRINSICS, PAIR_OF_BYTES, PAIRS, ROUNDINGS
from jangin.targets.small import ARGUMENT

_MIRROR = {"lt": "gt", "le": "ge", "gt": "lt", "ge": "le", "eq": "eq", "ne": "ne"}
_QUOTIENTS = {"floordiv": "udiv", "div": "udiv", "mod": "urem", "rem": "urem"}
_ELEMENTARY = frozenset({
    "neg", "abs", "not", "floor", "ceil", "round", "trunc", "sign", "fma", "rounded", *ROUNDINGS, "isnan",
    "isinf",
    *BITCASTS, *HALVES, *PAIRS, *PRODUCTS, PAIR_OF_BYTES,
})  # fmt: skip
CHEAP_NODES = 24
"""Most expression nodes of an arm of a uniform Select that is computed rather than branched to. So many take
about as long as a mispredicted branch, some 20 cycles."""
HELD = 1 << 30
"""A bound of floats that become integers of at most 16 bits. i32 can hold both bounds."""
LINE = "line"
"""The name of the variable for the number of a row, or of a column, of a small matrix."""


class Expressions:
    """Evaluates expressions through a writer. `values`: the values of variables. `_memo`: the computed parts
    of the current expression. Parts that an arm of a choice computes belong to the arm alone."""

    def __init__(self, kernel: str, w: Writer) -> None:
        self.kernel, self.w, self.ix = kernel, w, Indexer()
        self.math = Arithmetic(w)
        self.memory = Memory(w, self.ix, self.math, self.value)
        self.values: dict[Var, Value] = {}
        self._memo: dict[Expr, Value] = {}

    def evaluate(self, e: Expr) -> Value:
        """Return the value of a whole expression of a statement."""
        self._memo = {}
        return self.value(e)

    def condition(self, e: Expr) -> Value:
        """Return the value of a condition, a constant if the loops' ranges decide it."""
        self._memo = {}
        return self._decided(e)

    def prefetch(self, buffer: Buffer, index: tuple[Expr, ...]) -> None:
        """Prefetch an element that is soon needed. The hint is a statement of its own, because values
        computed by the last statement may belong to a loop that has ended."""
        self._memo = {}
        self.memory.prefetch(buffer, index)

    def _decided(self, e: Expr) -> Value:
        return self.value(self.ix.condition(e))

    @contextmanager
    def binding(self, var: Var, value: Value) -> Iterator[None]:
        """Give `var` a value inside the context."""
        before = self.values.get(var)
        self.values[var] = value
        self.ix.bindings += 1
        yield
        if before is not None:
            self.values[var] = before

    @contextmanager
    def _aside(self, memo: dict[Expr, Value]) -> Iterator[None]:
        """Forget parts computed inside the context afterwards. Parts in `memo` count as computed."""
        before, self._memo = self._memo, memo
        yield
        self._memo = before

    def value(self, e: Expr) -> Value:
        if isinstance(e, Const):
            return self.w.constant(e.value, e.dtype)
        if isinstance(e, Var):
            return self._variable(e)
        result = self._memo.get(e)
        if result is None:
            result = self._memo[e] = self._compute(e)
        return result

    def _variable(self, v: Var) -> Value:
        number = self.ix.numbers.get(v)
        if number is not None:
            return self.w.index(number)
        if v == self.ix.lane:
            return self.w.iota(self.ix.lanes, I64)
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
            return self._cast(e)
        assert isinstance(e, Call)
        return self._intrinsic(e.fn, *(self.value(a) for a in e.args))

    # --- operators

    def _cast(self, e: Cast) -> Value:
        shortcut = None if e.a in self._memo else self._upper(e) or self._saturated(e) or self._clamped(e)
        return self.math.convert(e.dtype, self.value(e.a), _held(e.a)) if shortcut is None else shortcut

    def _upper(self, e: Cast) -> Value | None:
        """Return a product of two i32 without its lowest bits, if the target has a row for it; else None."""
        factors = upper(e)
        if factors is None or self.w.target.row("upper", I32, self.ix.lanes) is None or not self.ix.varies(e):
            return None
        x, y = (self.w.broadcast(self.value(f), self.ix.lanes) for f in factors)
        return self.w.instruction("upper", I32, I32, x, y)

    def _saturated(self, e: Cast) -> Value | None:
        """Return a value that is rounded, clamped and narrowed, if the target has rows for this; else
        None."""
        whole = saturated(e)
        parts = whole or moved(e)
        if parts is None:
            return None
        x, row = self._scaled(parts), self.w.target.row
        if parts.short and parts.rule == "round" and row("short", F32, x.lanes) is not None:
            return self.math.by_short(e.dtype, x, parts)
        return (
            None
            if whole is None or row(CONVERSIONS[whole.rule], F32, x.lanes) is None
            else self.math.saturated(e.dtype, x, whole)
        )

    def _clamped(self, e: Cast) -> Value | None:
        """Return an i32 that is clamped and converted to a small integer, by the target's row for one value.
        Return None if the target has no such row, or `e` has another form."""
        ends = clamps(e)
        row = self.w.target.row("clamped", e.dtype, self.ix.lanes) if ends else None
        if row is None or row.lanes != 1 or not ends:
            return None
        x = self.value(ends.value)
        for op, end in ends.inside(e.dtype):
            x = self.math.binary(op, x, self.w.constant(end, I32))
        return self.w.instruction("clamped", e.dtype, e.dtype, x)

    def _scaled(self, whole: Saturated) -> Value:
        """Return the value to be rounded and clamped. A quotient by a constant becomes products with the same
        result, if there are any."""
        e, row = whole.value, self.w.target.row("fma", F32)
        divides = isinstance(e, Binary) and e.op == "div" and whole.rule == "round" and e not in self._memo
        if not (divides and isinstance(e, Binary) and isinstance(e.b, Const)):
            return self.value(e)
        factors = quotient(float(e.b.value), whole.low - whole.offset, whole.high - whole.offset)
        if factors is None or row is None or not row.fuses:
            return self.value(e)
        near, rest = (self.w.constant(n, F32) for n in factors)
        x = self.value(e.a)
        return self.math.fma(x, near, self.math.binary("mul", x, rest))

    def _binary(self, e: Binary) -> Value:
        fused = None
        if e.dtype.wide is e.dtype:  # each operation of smaller floats rounds by itself
            fused = self._multiply_add(e) if e.op == "add" else self._quotient(e) if e.op == "mul" else None
        if fused is None and e.op == "or":
            fused = self._joined(e)
        if fused is not None:
            return fused
        if e.a.dtype is I64:
            if e.op in COMPARE and self.ix.varies(e):
                mask = self._lane_compare(e)
                if mask is not None:
                    return mask
            elif e.op in COMPARE and self._words(e):
                return self.w.compare(e.op, *(self.math.convert(I32, self.value(n)) for n in (e.a, e.b)))
            if e.op in ("min", "max") and self._words(e):
                x, y = (self.math.convert(I32, self.value(n)) for n in (e.a, e.b))
                return self.math.convert(I64, self.math.binary(e.op, x, y))
            if e.op in _QUOTIENTS and self._plain_quotient(e):
                x, y = self.w.unify(self.value(e.a), self.value(e.b))
                op = _QUOTIENTS[e.op]
                if self.w.target.machine.index_bits < I64.bits and self.ix.short(e.a) and self.ix.short(e.b):
                    x, y = self.math.convert(U32, x), self.math.convert(U32, y)
                    return self.math.convert(I64, self.w.binary(op[1:], x, y))
                return self.w.binary(op, x, y)
        if e.op in ("shl", "shr") and _is_distance(e.b):
            return self.w.binary(e.op, *self.w.unify(self.value(e.a), self.value(e.b)))
        return self.math.binary(e.op, self.value(e.a), self.value(e.b))

    def _multiply_add(self, e: Binary) -> Value | None:
        """Return a sum with a product of floats, or of pairs, as one instruction if the target has it; else
        None."""
        for product, other in ((e.b, e.a), (e.a, e.b)):
            if e.dtype.is_float and isinstance(product, Binary) and product.op == "mul":
                x, y, z = self.value(product.a), self.value(product.b), self.value(other)
                return self.math.fma(x, y, z)
            if isinstance(product, Call) and product.product is not None:
                if (matrix := self._matrix(product, other)) is not None:
                    return matrix
                x, y = map(self.value, product.args)
                return self.math.dot(product.product, x, y, self.value(other))
        return None

    def _matrix(self, words: Call, total: Expr) -> Value | None:
        """Return sums of a product of words in which lanes are rows by columns of small matrices, by one
        instruction; else None."""
        product, lane, w, line = words.product, self.ix.lane, self.w, Var(LINE)
        if product is None or not product.of_matrices or lane is None:
            return None
        row = w.target.product_row(product, self.ix.lanes)
        if row is None:
            return None
        places = lane // const(product.columns), lane % const(product.columns)
        lines = [_along(e, lane, place) for e, place in zip(words.args, places, strict=True)]
        if any(lane in free_vars(e) for e in lines):
            return None
        operands = [w.broadcast(self.value(total), self.ix.lanes)]
        for e, count in zip(lines, (product.rows, product.columns), strict=True):
            with self.ix.by_lane(line, count), self.ix.bound(line, (const(0), const(count - 1)), 0):
                operands.append(w.broadcast(self.value(e), count))
        return w.instruction(row.name, product.row_type, product.total, *operands)

    def added_across(self, place: Expr, product: Expr) -> Value | None:
        """Return one number plus the products of small integers in all lanes, by one instruction; None if
        the target has none for them."""
        if not isinstance(product, Binary) or product.op != "mul" or product.dtype is not I32:
            return None
        factors = [f.a for f in (product.a, product.b) if isinstance(f, Cast) and self.ix.varies(f)]
        if len(factors) < 2 or not all(f.dtype is I8 for f in factors):
            return None
        lanes, row = self.ix.lanes, self.w.target.row
        dtype = next((t for t in (I8, I16, I32) if row("products_across", t, lanes) is not None), None)
        if dtype is None:
            return None
        self._memo = {}
        x, y = (self.math.convert(dtype, self.value(f)) for f in factors)
        return self.w.instruction("products_across", dtype, I32, x, y, self.value(place))

    def _joined(self, e: Binary) -> Value | None:
        """Return a word of four bytes, if the target has an instruction that joins them; else None."""
        parts, lanes = joined(e), self.ix.lanes
        if parts is None or self.w.target.row("joined", U8, lanes) is None or not self.ix.varies(e):
            return None
        values = (
            self.w.zeros(U8, lanes) if p is None else self.w.broadcast(self.value(p), lanes) for p in parts
        )
        return self.w.instruction("joined", U8, I32, *values)

    def _quotient(self, e: Binary) -> Value | None:
        """Return a product with a function that is a reciprocal, as a division; else None."""
        for factor, other in ((e.b, e.a), (e.a, e.b)):
            by = divisor(factor.fn, factor.dtype) if isinstance(factor, Call) else None
            if by is not None and isinstance(factor, Call) and factor not in self._memo:
                x = self._expand(by, self.value(factor.args[0]))
                return self.math.binary("div", self.value(other), x)
        return None

    def _words(self, e: Binary) -> bool:
        """Return whether a group's work-items compare two indices as i32, each of which takes one
        register."""
        target = self.w.target
        narrow = bool(target.groups) and target.machine.index_bits < I64.bits
        return narrow and self.ix.signed_word(e.a) and self.ix.signed_word(e.b)

    def _plain_quotient(self, e: Binary) -> bool:
        """Return whether unsigned division is right: dividend >= 0, divisor > 0."""
        return self.ix.nonnegative(e.a) and self.ix.nonnegative(e.b - 1)

    def _lane_compare(self, e: Binary) -> Value | None:
        """Return a comparison that is linear in the lane, as one 32-bit comparison of lane numbers with a
        bound. Return None if the step isn't 1 or -1.

        The bound is clamped to just outside the lanes. If it is a multiple of the lanes, either all are below
        it or none, and one comparison serves all.
        """
        gap, lanes, w = self.ix.difference(e.a, e.b), self.ix.lanes, self.w
        if gap.step not in (1, -1):
            return None
        op = e.op if gap.step == 1 else _MIRROR[e.op]
        uniform = [(-gap.step * c, atoms) for c, atoms in gap.uniform.terms]
        offset = -gap.step * gap.offset
        if uniform and op in ("lt", "ge") and not any(c % lanes for c in (offset, *(c for c, _ in uniform))):
            bound = self.memory.total(self.ix.ordered([*uniform, (offset, ())] if offset else uniform))
            return self.math.binary({"lt": "gt", "ge": "le"}[op], bound, w.index(0))
        if not uniform:
            clamped = w.constant(min(max(offset, -1), lanes), I32)
        else:
            bound = self.memory.total(self.ix.ordered([*uniform, (offset, ())] if offset else uniform))
            inside = w.binary("min", w.binary("max", bound, w.index(-1)), w.index(lanes))
            clamped = self.math.convert(I32, inside)
        return self.math.binary(op, w.iota(lanes, I32), clamped)

    def _intrinsic(self, fn: str, *args: Value) -> Value:
        x = args[0]
        if fn == "fma":
            return self.math.fma(*args)
        if fn == "rounded":
            return x
        if fn in PAIRS or fn in HALVES:
            return self.w.instruction(fn, I32, I32, *self.w.unify(*args))
        if fn == PAIR_OF_BYTES:
            return self.w.instruction(fn, I16, I32, x)
        if product := PRODUCTS.get(fn):
            return self.math.dot(product, x, args[1], self.w.zeros(product.total, x.lanes))
        simple = self.math.elementary(fn, x)
        if simple is not None:
            return simple
        if x.dtype.wide is not x.dtype:
            wide = [self.math.convert(x.dtype.wide, a) for a in args]
            return self.math.convert(x.dtype, self._intrinsic(fn, *wide))
        if fn not in INTRINSICS or not x.dtype.is_float:
            raise CompileError(f"{self.kernel}: no code for {fn} of {x.dtype}; cast to f32 or f64 first")
        formula = expansion(fn, x.dtype, short=self.w.target.machine.issue_bound)
        if formula is None:
            return self.math.library(fn, *args)
        value = self._expand(formula, x)
        return value if fn not in LARGEST else self._where_right(fn, x, value)

    def _where_right(self, fn: str, x: Value, value: Value) -> Value:
        """Return the `value` of an expansion, replaced by the C library's for lanes that are too large for
        the expansion."""
        w = self.w
        large = w.compare("gt", w.absolute(x), w.like(LARGEST[fn], x))

        def exact() -> Value:
            return w.select(large, self.math.library(fn, x), value)

        return w.choose(w.any_lane(large), exact, lambda: value)

    def _expand(self, formula: Expr, x: Value) -> Value:
        """Return a formula of one argument at `x`."""
        argument = Var(ARGUMENT, x.dtype)
        varying = self.ix.varying
        if x.lanes > 1:
            self.ix.varying = varying | {argument}
        with self._aside({}), self.binding(argument, x):
            out = self.value(formula)
        self.ix.varying = varying
        return out

    # --- lazy choice

    def _select(self, e: Select) -> Value:
        cond = self._decided(e.cond)
        if cond.is_const:
            return self.value(e.a if cond.number else e.b)
        seen = _unconditional_loads(e.cond)
        if cond.lanes > 1:
            a = self._masked_arm(e.a, lambda: cond, seen)
            return self.math.select(cond, a, self._masked_arm(e.b, lambda: self.w.flip(cond), seen))
        if all(self._cheap(arm, seen) for arm in (e.a, e.b)):
            return self.math.select(cond, self.value(e.a), self.value(e.b))
        lanes = self.ix.lanes if self.ix.varies(e) else 1
        return self.w.choose(cond, self._arm(e.a, lanes), self._arm(e.b, lanes))

    def _arm(self, e: Expr, lanes: int) -> Callable[[], Value]:
        def arm() -> Value:
            with self._aside(dict(self._memo)):
                return self.w.broadcast(self.value(e), lanes)

        return arm

    def _masked_arm(self, e: Expr, cond: Callable[[], Value], seen: set[Expr]) -> Value:
        """Return an arm of a choice that differs by lane, taken if `cond` holds. Its loads are masked. If it
        loads one element for all lanes, it is skipped when no lane chose it."""
        unsafe = [n for n in walk(e) if isinstance(n, Load) and not self._safe(n, seen)]
        if not unsafe:
            return self.value(e)
        with self.masked(cond()) as mask:
            arm = self._arm(e, self.ix.lanes)
            if all(self.ix.varies(n) for n in unsafe):
                return arm()
            nothing = self.w.zeros(e.dtype, self.ix.lanes)
            return self.w.choose(self.w.any_lane(mask), arm, lambda: nothing)

    @contextmanager
    def masked(self, cond: Value) -> Iterator[Value]:
        """Inside the context, let only lanes for which `cond` holds be active."""
        masks = self.memory.masks
        mask = self.math.binary("and", masks[-1], cond) if masks else cond
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
        """Return whether evaluating `e` may read one element for all lanes that a mask may guard."""
        return any(
            isinstance(n, Load)
            and not self.ix.varies(n)
            and n.buffer.memory != "register"
            and not self.ix.inside(n)
            for n in walk(e)
        )


def _held(e: Expr) -> bool:
    """Return whether a float is clamped, at both ends, to numbers that an i32 can hold."""
    if not (isinstance(e, Binary) and isinstance(e.a, Binary) and {e.op, e.a.op} == {"min", "max"}):
        return False
    return all(isinstance(end, Const) and abs(end.value) <= HELD for end in (e.b, e.a.b))


def _along(e: Expr, lane: Var, place: Expr) -> Expr:
    """Return an expression with a lane's row or column number `place` replaced by LINE. If the lane remains
    in it, it depends on more than the number."""
    return substitute(e, {lane: lane}, {lane: lane, place: Var(LINE)})


def _unconditional_loads(e: Expr) -> set[Expr]:
    """Return the loads that evaluating `e` performs whichever arms of its choices are taken."""
    if isinstance(e, Select):
        return _unconditional_loads(e.cond)
    loads: set[Expr] = {e} if isinstance(e, Load) else set()
    for kid in children(e):
        loads |= _unconditional_loads(kid)
    return loads


def _is_distance(e: Expr) -> bool:
    """Return whether the value can only be a number of bits by which its type may be shifted."""
    masked = isinstance(e, Binary) and e.op == "and" and isinstance(e.b, Const)
    return masked and isinstance(e, Binary) and 0 <= int(getattr(e.b, "value", -1)) < e.dtype.bits
