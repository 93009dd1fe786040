"""Running sums and products along an axis, and determinants: imperative nests."""

from __future__ import annotations

from jangin.ir.dtype import I64
from jangin.ir.expr import Buffer, Expr, Load, Var, call, cast, const, ne, select
from jangin.ir.graph import CompileError
from jangin.ir.loop import Alloc, For, If, Stmt, Store, block
from jangin.ir.te import COMBINERS, accumulator, identity
from jangin.ops.axes import axis_of
from jangin.ops.builder import Builder
from jangin.ops.index import index_vars, nest
from jangin.ops.operands import wide
from jangin.ops.values import Tensor

ZERO = (const(0),)


def cumulate(
    b: Builder, x: Tensor, combiner: str, *, axis: int, exclusive: bool = False, reverse: bool = False
) -> Tensor:
    """Return running sums ("sum") or products ("prod") along `axis`, in x's dtype; 16-bit floats accumulate
    in f32. `reverse` starts at the end; `exclusive` leaves out the element itself."""
    along = axis_of(axis, x.rank)
    source, out = Buffer("x0", x.dtype, x.shape), Buffer("out", x.dtype, x.shape)
    acc = Buffer("acc", accumulator(x.dtype), (const(1),), "register")
    kept = [d for d in range(x.rank) if d != along]
    outer, step, size = [Var(f"i{d}") for d in kept], Var("k"), x.shape[along]
    index: list[Expr] = [*outer]
    index.insert(along, size - 1 - step if reverse else step)
    at = tuple(index)
    update = Store(acc, ZERO, COMBINERS[combiner](Load(acc, ZERO), cast(acc.dtype, Load(source, at))))
    write = Store(out, at, cast(x.dtype, Load(acc, ZERO)))
    inner = For(step, size, block(write, update) if exclusive else block(update, write))
    body = Alloc(acc, block(Store(acc, ZERO, identity(combiner, acc.dtype)), inner))
    return b.loop_nest([x], nest([x.shape[d] for d in kept], outer, body, "parallel"), x.dtype, x.shape)


def det(b: Builder, x: Tensor) -> Tensor:
    """Return the determinants [...] of the matrices [..., N, N], by elimination with row pivoting."""
    if x.rank < 2 or x.shape[-1] != x.shape[-2]:
        raise CompileError(f"a determinant needs square matrices, not {x}")
    *batch, n, _ = x.shape
    source, out = Buffer("x0", x.dtype, x.shape), Buffer("out", x.dtype, tuple(batch))
    work = wide(const(0, x.dtype)).dtype
    m = Buffer("m", work, (n, n), "scratch")
    value = Buffer("value", work, (const(1),), "register")
    at = index_vars(len(batch))
    r, c = Var("r"), Var("c")
    copy = For(r, n, For(c, n, Store(m, (r, c), cast(work, Load(source, (*at, r, c))))))
    body = block(
        copy,
        Store(value, ZERO, const(1, work)),
        _eliminate(m, n, value),
        Store(out, at, cast(x.dtype, Load(value, ZERO))),
    )
    loops = nest(batch, at, Alloc(m, Alloc(value, body)), "parallel")
    return b.loop_nest([x], loops, x.dtype, tuple(batch))


def _eliminate(m: Buffer, n: Expr, value: Buffer) -> Stmt:
    """Return statements that multiply `value` by the pivots of `m`, column by column; each row swap changes
    its sign."""
    k, r, c = Var("k"), Var("r"), Var("c")
    pivot, held = (
        Buffer("pivot", I64, (const(1),), "register"),
        Buffer("held", m.dtype, (const(1),), "register"),
    )
    chosen = Load(pivot, ZERO)

    def magnitude(row: Expr) -> Expr:
        return call("abs", Load(m, (row, k)))

    search = For(r, n - k, Store(pivot, ZERO, select(magnitude(r + k) > magnitude(chosen), r + k, chosen)))
    swap = block(
        For(
            c,
            n,
            block(
                Store(held, ZERO, Load(m, (k, c))),
                Store(m, (k, c), Load(m, (chosen, c))),
                Store(m, (chosen, c), Load(held, ZERO)),
            ),
        ),
        Store(value, ZERO, -Load(value, ZERO)),
    )
    diagonal = Load(m, (k, k))
    row = r + k + 1
    reduce_row = block(
        Store(held, ZERO, Load(m, (row, k)) / diagonal),
        For(c, n, Store(m, (row, c), Load(m, (row, c)) - Load(held, ZERO) * Load(m, (k, c)))),
    )
    body = block(
        Store(pivot, ZERO, k),
        search,
        If(ne(chosen, k), swap),
        Store(value, ZERO, Load(value, ZERO) * diagonal),
        If(ne(diagonal, 0), For(r, n - k - 1, reduce_row)),
    )
    return Alloc(pivot, Alloc(held, For(k, n, body)))
