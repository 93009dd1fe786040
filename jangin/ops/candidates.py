"""Candidates for the best elements of a row: those that reach a bound which enough elements reach.

The bound is found by bisection among the best element of each block. Counting the blocks that reach a bound
is vectorized and needs no order. Blocks whose best doesn't reach the bound are skipped.
"""

from __future__ import annotations

from collections.abc import Callable

from jangin.ir.dtype import BOOL, I32, I64, DType
from jangin.ir.expr import Buffer, Const, Expr, Load, Var, binary, cast, const, maximum, minimum, select
from jangin.ir.loop import Alloc, For, If, Let, Stmt, Store, block
from jangin.ir.te import identity

BLOCKS = (64, 32, 16, 8)
"""Elements of a block. The largest size with enough blocks is taken."""
ENOUGH = 2
"""Fewest blocks for each wanted element. With fewer blocks the bound lets too many candidates pass."""
LANES = 16
"""Blocks that are counted at once, as many f32 as AVX-512 has. The number of blocks is a multiple of it;
elements beyond the last block are candidates."""
HALVINGS = 16
"""Bisection steps. Sixteen leave a few percent too many candidates, and cost little beside reading the
row."""
ZERO = (const(0),)


def block_size(count: Expr, wanted: Expr) -> int:
    """Return the number of elements of a block in a row of `count`. It is 0 if too many elements are `wanted`
    or a size isn't known; the row then has no candidates."""
    if not isinstance(count, Const) or not isinstance(wanted, Const):
        return 0
    least = max(LANES, ENOUGH * int(wanted.value))
    return next((b for b in BLOCKS if int(count.value) // b // LANES * LANES >= least), 0)


class Candidates:
    """The elements of a row of `count` elements that may be among the best `wanted` ones, found in blocks of
    `size`.

    `around` runs a statement after the candidates are known. `held` is their number, at least `wanted`.
    `number(i)` is the position of the i-th candidate, in ascending order. NaN elements are candidates.
    """

    def __init__(
        self,
        dtype: DType,
        element: Callable[[Expr], Expr],
        count: int,
        wanted: Expr,
        size: int,
        *,
        largest: bool,
    ) -> None:
        self.element, self.wanted, self.size = element, wanted, size
        self.best, self.worst = ("max", "min") if largest else ("min", "max")
        self.reaches, self.misses = ("ge", "lt") if largest else ("le", "gt")
        self.count, self.blocks = count, count // size // LANES * LANES
        self.bests = Buffer("bests", dtype, (const(self.blocks),), "scratch")
        self.found = Buffer("found", I64, (const(count),), "scratch")
        self.low, self.high = (Buffer(n, dtype, (const(1),), "register") for n in ("low", "high"))
        self.taken = Buffer("taken", I64, (const(1),), "register")
        self.counts = Buffer("counts", I32, (const(LANES),), "register")
        self.reached = Buffer("reached", I32, (const(1),), "register")

    @property
    def held(self) -> Expr:
        return Load(self.taken, ZERO)

    def number(self, i: Expr) -> Expr:
        return Load(self.found, (i,))

    def around(self, body: Stmt) -> Stmt:
        whole = block(self._fill(), self._halve(), self._gather(), body)
        for b in (self.bests, self.found, self.low, self.high, self.taken, self.counts, self.reached):
            whole = Alloc(b, whole)
        return whole

    def _fill(self) -> Stmt:
        """Return statements that compute the best of each block, and then the worst and the best of all
        blocks."""
        b, best = Var("b"), Load(self.high, ZERO)
        own = _extreme(self.best, self.high, lambda v: self.element(b * self.size + v), self.size)
        each = For(b, const(self.blocks), block(own, Store(self.bests, (b,), best)))
        ends = [(self.best, self.high), (self.worst, self.low)]
        rows = const(self.blocks // LANES)
        return block(
            each, *(_extreme(k, into, lambda v: Load(self.bests, (v,)), LANES, rows) for k, into in ends)
        )

    def _halve(self) -> Stmt:
        """Return statements that raise `low` by bisection, below `high`, as far as enough blocks still reach
        it."""
        low, high, v, b, h = Load(self.low, ZERO), Load(self.high, ZERO), Var("v"), Var("b"), Var("h")
        middle = Var("middle", self.low.dtype)
        half = const(0.5, low.dtype) if low.dtype.is_float else const(2, low.dtype)
        between = low * half + high * half if low.dtype.is_float else low // half + high // half
        reaches = binary(self.reaches, Load(self.bests, (b * LANES + v,)), middle)
        mine, total = Load(self.counts, (v,)), Load(self.reached, ZERO)
        enough = cast(I64, total) >= self.wanted
        counted = block(
            For(v, const(LANES), Store(self.counts, (v,), const(0, I32)), "vector"),
            For(b, const(self.blocks // LANES),
                For(v, const(LANES), Store(self.counts, (v,), mine + cast(I32, reaches)), "vector")),
            Store(self.reached, ZERO, const(0, I32)),
            For(v, const(LANES), Store(self.reached, ZERO, total + mine), "vector"),
            If(enough, Store(self.low, ZERO, middle), Store(self.high, ZERO, middle)),
        )  # fmt: skip
        return For(h, const(HALVINGS), Let(middle, between, counted))

    def _gather(self) -> Stmt:
        """Return statements that collect the positions of the elements that reach `low`."""
        b, v, low = Var("b"), Var("v"), Load(self.low, ZERO)

        def entered(i: Expr) -> Stmt:
            misses = binary(self.misses, self.element(i), low)
            stay = Store(self.taken, ZERO, self.held + select(misses, const(0), const(1)))
            return block(Store(self.found, (self.held,), i), stay)

        passed = binary(self.misses, Load(self.bests, (b,)), low)
        some = For(v, const(self.size), entered(b * self.size + v))
        each = For(b, const(self.blocks), If(select(passed, const(False, BOOL), const(True, BOOL)), some))
        first = self.blocks * self.size
        rest = For(v, const(self.count - first), entered(v + first))
        return block(Store(self.taken, ZERO, const(0)), each, rest)


def _extreme(
    kind: str, into: Buffer, element: Callable[[Expr], Expr], width: int, rows: Expr | None = None
) -> Stmt:
    """Return statements that store the largest or smallest of `width` elements, or of `rows` rows of `width`
    elements, in `into`."""
    pick, v, r = maximum if kind == "max" else minimum, Var("v"), Var("r")
    at = v if rows is None else r * width + v
    each: Stmt = For(v, const(width), Store(into, ZERO, pick(Load(into, ZERO), element(at))), "vector")
    return block(Store(into, ZERO, identity(kind, into.dtype)), each if rows is None else For(r, rows, each))
