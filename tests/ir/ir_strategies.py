"""Hypothesis strategies of random expressions and loop nests, for the tests of the IRs."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count

from hypothesis import strategies as st

from jangin.ir.dtype import BF16, BOOL, DTYPES, F16, F32, F64, I8, I32, I64, U8, DType
from jangin.ir.expr import Binary, Buffer, Const, Expr, Load, Var, binary, call, cast, const, select
from jangin.ir.loop import Alloc, For, Func, If, Let, Stmt, Store, block
from jangin.ir.words import COMPARE

COMMON = (F32, I32, I64, BOOL, F16, BF16, F64, U8, I8)
ARITHMETIC = ("add", "sub", "mul", "min", "max")
INTEGER = ("div", "floordiv", "mod", "rem", "and", "or", "xor")
EXACT_CALLS = {"f": ("neg", "abs", "floor", "ceil", "round", "trunc", "sign"), "i": ("neg", "abs", "not")}
ANY_CALLS = ("exp", "tanh", "erf", "sigmoid", "sqrt", "rsqrt", "log1p")
NAMES = st.one_of(
    st.from_regex(r"[a-z][a-z0-9_]{0,4}(\.[a-z0-9]{1,3})?", fullmatch=True),
    st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=6),
    st.sampled_from(
        ["if", "inf", "let", "x 1", 'quo"te', "a\nb", "/conv/Out_0", "f32", "max", "then", "ª", "²"]
    ),
)


def constants(dtype: DType) -> st.SearchStrategy[Const]:
    if dtype == BOOL:
        return st.booleans().map(lambda v: const(v, BOOL))
    if dtype.is_float:
        return st.floats(width=16).map(lambda v: const(v, dtype))
    low, high = (-(1 << (dtype.bits - 1)), (1 << (dtype.bits - 1)) - 1) if dtype.kind == "i" else (0, 255)
    wide = st.integers(low, high)
    return st.one_of(st.integers(max(low, -9), 9), wide).map(lambda v: const(v, dtype))


@st.composite
def exprs(
    draw: st.DrawFn,
    dtype: DType,
    variables: Sequence[Var] = (),
    buffers: Sequence[Buffer] = (),
    depth: int = 3,
    exact: bool = False,
) -> Expr:
    """A random expression of `dtype`. If `exact`, no rounding and no undefined behaviour of C can change its
    result."""

    def sub(t: DType) -> Expr:
        return draw(exprs(t, variables, buffers, depth - 1, exact))

    leaves = [v for v in variables if v.dtype == dtype]
    arrays = [b for b in buffers if b.dtype == dtype]
    kinds = ["const"] + ["var"] * 2 * bool(leaves)
    if depth > 0:
        kinds += ["binary"] * 3 + ["select", "cast", "call"] + ["load"] * 2 * bool(arrays)
    kind = draw(st.sampled_from(kinds))
    if kind == "var":
        return draw(st.sampled_from(leaves))
    if kind == "load":
        buffer = draw(st.sampled_from(arrays))
        return Load(buffer, tuple(_inside(sub(I64), d) if exact else sub(I64) for d in buffer.shape))
    if kind == "select":
        return select(sub(BOOL), sub(dtype), sub(dtype))
    if kind == "cast":
        source = draw(st.sampled_from(COMMON))
        if exact and source.is_float and not dtype.is_float:
            source = I32
        return cast(dtype, sub(source))
    if kind == "call" and dtype != BOOL:
        names = EXACT_CALLS["f" if dtype.is_float else "i"]
        names += ANY_CALLS if dtype.is_float and not exact else ()
        return call(draw(st.sampled_from(names)), sub(dtype))
    if kind == "binary" and dtype == BOOL:
        operand = draw(st.sampled_from(COMMON[:3]))
        if draw(st.booleans()):
            return binary(draw(st.sampled_from(("and", "or", "xor"))), sub(BOOL), sub(BOOL))
        return binary(draw(st.sampled_from(sorted(COMPARE))), sub(operand), sub(operand))
    if kind == "binary":
        return binary(draw(st.sampled_from(ARITHMETIC + INTEGER * dtype.is_int)), sub(dtype), sub(dtype))
    return draw(constants(dtype))


def _inside(index: Expr, size: Expr) -> Expr:
    return Binary("mod", index, size)


@st.composite
def funcs(draw: st.DrawFn) -> Func:
    """A random well-formed kernel. It may access its buffers out of range."""
    style = draw(NAMES)
    names = (f"{style}{n}" if n else style for n in count())
    symbol = Var(next(names))
    dtypes = draw(st.lists(st.sampled_from(list(DTYPES.values())), min_size=2, max_size=3))
    shapes = [(symbol, const(3)), (), (symbol * 2,)]
    params = tuple(Buffer(next(names), t, s) for t, s in zip(dtypes, shapes, strict=False))
    low, high = draw(
        st.sampled_from([(const(1), None), (None, const(9)), (const(1), const(4)), (None, None)])
    )

    def expr(t: DType, scope: Sequence[Var], arrays: Sequence[Buffer]) -> Expr:
        return draw(exprs(t, scope, arrays, 2))

    def stmts(depth: int, scope: tuple[Var, ...], arrays: tuple[Buffer, ...]) -> Stmt:
        length = draw(st.integers(0, 3))
        return block(*(stmt(depth, scope, arrays) for _ in range(length)))

    def stmt(depth: int, scope: tuple[Var, ...], arrays: tuple[Buffer, ...]) -> Stmt:
        name = next(names)
        kind = draw(st.sampled_from(["store", "for", "alloc", "let", "if"]))
        if depth == 0 or kind == "store":
            target = draw(st.sampled_from(arrays[1:]))
            index = tuple(expr(I64, scope, arrays) for _ in target.shape)
            return Store(target, index, expr(target.dtype, scope, arrays))
        if kind == "for":
            loop = draw(st.sampled_from(["serial", "unroll"] + ["vector"] * (depth == 1)))
            extent = expr(I64, scope, arrays) if loop == "serial" else const(4)
            return For(Var(name), extent, stmts(depth - 1, (*scope, Var(name)), arrays), loop)
        if kind == "alloc":
            new = Buffer(name, F32, (const(2),), draw(st.sampled_from(["scratch", "register"])))
            return Alloc(new, stmts(depth - 1, scope, (*arrays, new)))
        if kind == "let":
            var = Var(name, draw(st.sampled_from(COMMON)))
            return Let(var, expr(var.dtype, scope, arrays), stmts(depth - 1, (*scope, var), arrays))
        orelse = stmts(depth - 1, scope, arrays) if draw(st.booleans()) else None
        return If(expr(BOOL, scope, arrays), stmts(depth - 1, scope, arrays), orelse)

    body = stmts(3, (symbol,), params)
    return Func(next(names), params, len(params) - 1, ((symbol, (low, high)),), body)
