"""Kernels in machine code against the interpreter: loops, lanes, masks, addresses, memory."""

from __future__ import annotations

from collections.abc import Mapping
from random import Random

import numpy as np
import pytest
from machine import run, runnable, target

from jangin.backends.llvm.module import emit_kernel
from jangin.ir.core import Map, Reduce, Transpose
from jangin.ir.dtype import BF16, BOOL, F16, F32, F64, I8, I32, I64, U8, DType
from jangin.ir.expr import Buffer, Expr, Load, Var, binary, call, cast, const, eq, land, maximum, select
from jangin.ir.graph import Array, CompileError
from jangin.ir.interpret import run_func, size
from jangin.ir.kernel import scratch_bytes, tasks
from jangin.ir.loop import Alloc, For, Func, If, Let, Stmt, Store, block
from jangin.ops.core import CORE
from jangin.targets.x86 import V3
from jangin.templates.choose import TEMPLATES, choose
from jangin.templates.template import Workload

N, M = Var("N"), Var("M")
R, J, K, L, P = (Var(n) for n in "ijklp")
SYMBOLS = ((N, (const(1), const(100))), (M, (const(1), const(100))))
ZERO = const(0.0, F32)


def buffer(name: str, *shape: Expr | int, dtype: DType = F32, memory: str = "global") -> Buffer:
    return Buffer(name, dtype, tuple(const(d) if isinstance(d, int) else d for d in shape), memory)


def loop(var: Var, extent: Expr | int, body: Stmt, kind: str = "serial") -> For:
    return For(var, const(extent) if isinstance(extent, int) else extent, body, kind)


def kernel(params: list[Buffer], body: Stmt, name: str = "kernel") -> Func:
    return Func(name, tuple(params), 1, SYMBOLS, body)


def filled(b: Buffer, values: Mapping[str, int], rng: np.random.Generator) -> Array:
    shape = tuple(size(d, values) for d in b.shape)
    if b.dtype is BOOL:
        return rng.integers(0, 2, shape).astype(np.bool_)
    if b.dtype.is_int:
        low = 0 if b.dtype.kind == "u" else -9
        return rng.integers(low, 10, shape).astype(b.dtype.numpy)
    return rng.standard_normal(shape).astype(np.float32).astype(b.dtype.numpy)


def check(
    func: Func,
    on: str,
    n: int = 13,
    m: int = 7,
    given: Mapping[str, Array] | None = None,
    rtol: float = 1e-5,
    pieces: int = 2,
) -> None:
    """The machine code's outputs equal the interpreter's."""
    values = {"N": n, "M": m}
    rng = np.random.default_rng(0)
    arrays = {p.name: filled(p, values, rng) for p in func.params} | dict(given or {})
    expected = {k: v.copy() for k, v in arrays.items()}
    run_func(func, expected, values)
    got = run(func, arrays, values, target(on), pieces)
    for name, value in got.items():
        wide = np.float64 if value.dtype.kind not in "biu" else value.dtype
        np.testing.assert_allclose(value.astype(wide), expected[name].astype(wide), rtol=rtol, atol=1e-6)


def lanes(on: str) -> int:
    return target(on).machine.lanes(4)


each_target = pytest.mark.parametrize("on", runnable())
X, Y = buffer("x", N), buffer("y", N)


def tiles(extent: Expr, w: int, body: Stmt, kind: str = "serial") -> For:
    """Loops over vector tiles of `w` lanes that cover `extent`, rounded up."""
    return loop(R, (extent + (w - 1)) // w, loop(L, w, body, "vector"), kind)


@each_target
@pytest.mark.parametrize("n", [1, 7, 8, 16, 37])
def test_masked_tail(on: str, n: int) -> None:
    w = lanes(on)
    at = R * w + L
    body = If(at < N, Store(Y, (at,), X[at] * 2.0 + 1.0))
    check(kernel([X, Y], tiles(N, w, body, "parallel")), on, n)


@each_target
@pytest.mark.parametrize("width", [2, 3, 5, 8, 24])
def test_any_width(on: str, width: int) -> None:
    at = R * width + L
    check(kernel([X, Y], tiles(N, width, If(at < N, Store(Y, (at,), call("exp", X[at]))))), on, 41)


@each_target
def test_guarded_loads_are_lazy(on: str) -> None:
    """A convolution's padding: elements outside are never read."""
    w = lanes(on)
    at = R * w + L
    inside = land(at + K - 2 >= const(0), at + K - 2 < N)
    term = select(inside, Load(X, (at + K - 2,)), const(-1.0, F32))
    acc = buffer("acc", w, memory="register")
    body = block(
        loop(L, w, Store(acc, (L,), ZERO), "vector"),
        loop(K, 5, loop(L, w, Store(acc, (L,), acc[L] + term), "vector"), "unroll"),
        loop(L, w, If(at < N, Store(Y, (at,), acc[L])), "vector"),
    )
    for n in (1, 9, 33):
        check(kernel([X, Y], loop(R, (N + (w - 1)) // w, Alloc(acc, body))), on, n)


@each_target
def test_uniform_guard_is_a_branch(on: str) -> None:
    shifted = select(binary("gt", R, const(0)), Load(X, (R - 1,)), const(5.0, F32))
    check(kernel([X, Y], loop(R, N, Store(Y, (R,), shifted))), on)
    wide = buffer("z", N, 8)
    rows = select(land(binary("ge", R, const(1)), X[R] > ZERO), Load(wide, (R - 1, L)), X[R])
    out = buffer("y", N, 8)
    check(kernel([X, wide, out], loop(R, N, loop(L, 8, Store(out, (R, L), rows), "vector"))), on)


@each_target
def test_uniform_load_under_a_lane_mask(on: str) -> None:
    """No lane of the last tile chooses the arm, so its single element isn't read."""
    w = lanes(on)
    at = R * w + L
    bias = buffer("b", (N + (w - 1)) // w)
    value = select(at < N, Load(bias, (R,)), ZERO)
    out = buffer("y", (R * 0 + (N + (w - 1)) // w + 1) * w)
    check(
        kernel([bias, out], loop(R, (N + (w - 1)) // w + 1, loop(L, w, Store(out, (at,), value), "vector"))),
        on,
    )
    scattered = If(at < N, Store(out, (at,), Load(bias, (R,))))
    body = loop(R, (N + (w - 1)) // w + 1, loop(L, w, scattered, "vector"))
    check(kernel([bias, out], body), on, given={"y": np.zeros(((13 + w - 1) // w + 1) * w, np.float32)})


@each_target
@pytest.mark.parametrize("step", [2, 3, -1, -2, 7])
def test_strided_access(on: str, step: int) -> None:
    w = lanes(on)
    source = buffer("x", 4, abs(step) * w)
    start = const(0 if step > 0 else abs(step) * w - 1)
    out = buffer("y", 4, w)
    row = loop(L, w, Store(out, (R, L), source[R, start + L * step] + 1.0), "vector")
    check(kernel([source, out], loop(R, 4, row)), on)
    back = loop(L, w, Store(source, (R, start + L * step), out[R, L]), "vector")
    check(kernel([out, source], loop(R, 4, back)), on)


@pytest.mark.sampled(4)
@each_target
@pytest.mark.parametrize("dtype", [F32, F64, I32, I64, I8, U8, BOOL, F16, BF16])
def test_gather_scatter(on: str, dtype: DType) -> None:
    """Kernels transpose, divide lane numbers, and take indices from memory, with and without a mask."""
    w = target(on).machine.lanes(dtype.bytes)
    x, y = buffer("x", N, M, dtype=dtype), buffer("y", M, N, dtype=dtype)
    at = R * w + L
    moved = Store(y, (J, at), x[at, J])
    check(kernel([x, y], loop(J, M, tiles(N, w, If(at < N, moved)))), on, 35, 5)
    back = Store(y, (at, J), x[J, at])
    check(kernel([x, y], loop(J, N, tiles(M, w, If(at < M, back)))), on, 5, 35)
    flat = buffer("y", 3 * w, dtype=dtype)
    table = buffer("x", 3 * w // 2 + 1, 2, dtype=dtype)
    quotient = Store(flat, (at,), table[at // 2, at % 2])
    check(kernel([table, flat], loop(R, 3, loop(L, w, quotient, "vector"))), on)
    index = buffer("i", 3 * w, dtype=I64)
    looked_up = Store(flat, (at,), table[binary("mod", index[at], const(3)), const(1)])
    check(kernel([table, index, flat], loop(R, 3, loop(L, w, looked_up, "vector"))), on)


@pytest.mark.sampled(4)
@each_target
@pytest.mark.parametrize("dtype", [F32, F64, I8, U8, BOOL, F16])
def test_lanes_of_a_row_under_a_mask(on: str, dtype: DType) -> None:
    """Elements lie near each other in a known order, and lanes that are off may share one. Masks are known or
    unknown."""
    w = max(4, target(on).machine.lanes(dtype.bytes))
    x, y = buffer("x", 3 * w // 4 * 5, dtype=dtype), buffer("y", 5, w, dtype=dtype)
    three, nothing = (L // 4) * 3 + L % 4, const(0, dtype)
    filled_up = select(L % 4 < 3, x[R * (3 * w // 4) + three], nothing)
    check(kernel([x, y], loop(R, 5, loop(L, w, Store(y, (R, L), filled_up), "vector"))), on)
    until = select(land(L % 4 < 3, three < M - R), x[R * (3 * w // 4) + three], nothing)
    check(kernel([x, y], loop(R, 5, loop(L, w, Store(y, (R, L), until), "vector"))), on, m=w // 2 + 3)
    whole = buffer("x", 5, w, dtype=dtype)
    turned = select(R * 3 + L < M, whole[R, (L * 3 + 1) % w], nothing)
    check(kernel([whole, y], loop(R, 5, loop(L, w, Store(y, (R, L), turned), "vector"))), on, m=w)


@each_target
def test_let(on: str) -> None:
    """Let binds scalars, positions linear in the lane, and values that differ by lane."""
    w = lanes(on)
    place, value, start = Var("at"), Var("value", F32), Var("start")
    out = buffer("y", 4 * w)
    x = buffer("x", 4 * w + 3)
    inner = Let(
        place, start + L + 3, Let(value, x[place] * 2.0, Store(out, (start + L,), value + x[place - 1]))
    )
    nest = loop(R, 4, Let(start, R * w, loop(L, w, inner, "vector")))
    check(kernel([x, out], nest), on)
    nest = loop(R, 4, Let(start, R * w, loop(L, w, inner, "vector")), "unroll")
    check(kernel([x, out], nest), on)
    picked = Var("picked")
    index = buffer("i", 4 * w, dtype=I64)
    gathered = Let(picked, binary("mod", index[R * w + L], const(9)), Store(out, (R * w + L,), x[picked]))
    check(kernel([x, index, out], loop(R, 4, loop(L, w, gathered, "vector"))), on)


@each_target
@pytest.mark.parametrize("op", ["add", "max", "min", "mul"])
def test_lanes_that_reduce(on: str, op: str) -> None:
    w = lanes(on)
    acc = buffer("acc", 1, memory="register")
    start = {"add": 0.0, "mul": 1.0, "max": -np.inf, "min": np.inf}[op]
    out = buffer("y", M)
    x = buffer("x", M, N)
    at = R * w + L
    step = Store(acc, (const(0),), binary(op, acc[0], x[J, at] * 1.5))
    body = block(
        Store(acc, (const(0),), const(start, F32)),
        loop(R, (N + (w - 1)) // w, loop(L, w, If(at < N, step), "vector")),
        Store(out, (J,), acc[0]),
    )
    check(kernel([x, out], loop(J, M, Alloc(acc, body), "parallel")), on, 29, rtol=1e-4)


@each_target
def test_lanes_with_their_own_accumulator(on: str) -> None:
    """A naive nest is vectorized over an output axis around its accumulator."""
    w = lanes(on)
    acc = buffer("acc", 1, memory="register")
    x, wgt, out = buffer("x", M, N), buffer("w", N, 2 * w), buffer("y", M, 2 * w)
    at = R * w + L
    dot = loop(K, N, Store(acc, (const(0),), acc[0] + x[J, K] * wgt[K, at]))
    cell = Alloc(acc, block(Store(acc, (const(0),), ZERO), dot, Store(out, (J, at), acc[0])))
    check(
        kernel([x, wgt, out], loop(J, M, loop(R, 2, loop(L, w, cell, "vector")), "parallel")), on, rtol=1e-4
    )


@each_target
def test_lanes_that_cannot_run_together_run_in_turn(on: str) -> None:
    out = buffer("y", 3)
    last = Store(out, (R,), X[L])
    check(kernel([X, out], loop(R, 3, loop(L, 8, last, "vector"))), on)
    ragged = loop(L, 8, loop(K, L + 1, Store(Y, (L,), X[K])), "vector")
    check(kernel([X, Y], ragged), on)
    first = If(eq(L, const(2)), Store(out, (R,), const(4.0, F32)))
    check(kernel([X, out], loop(R, 3, loop(L, 8, first, "vector"))), on)
    count = Store(out, (R,), out[R] + 1.0)
    check(kernel([X, out], loop(R, 3, loop(L, 8, count, "vector"))), on)


@each_target
def test_scratch(on: str) -> None:
    """Nested buffers are disjoint, siblings share memory, and sizes follow the symbols."""
    a, b, c = (buffer(n, N, memory="scratch") for n in "abc")
    first = block(loop(R, N, Store(a, (R,), X[R] + 1.0)), loop(R, N, Store(b, (R,), a[R] * 2.0)))
    use = loop(R, N, Store(buffer("y", M, N), (J, R), a[R] + b[R] + cast(F32, J)))
    second = Alloc(c, block(loop(R, N, Store(c, (R,), X[R])), loop(R, N, Store(X, (R,), c[R]))))
    y = buffer("y", M, N)
    func = kernel([X, y], loop(J, M, Alloc(a, Alloc(b, block(first, use))), "parallel"))
    check(func, on, 37, 3)
    assert size(scratch_bytes(func), {"N": 37, "M": 3}) == 2 * 192
    siblings = kernel([X, y], block(Alloc(a, Alloc(b, block(first, loop(J, M, use)))), second))
    assert size(scratch_bytes(siblings), {"N": 5, "M": 3}) == 2 * 64
    outside = kernel([X, y], Alloc(a, loop(J, M, Alloc(b, block(first, use)), "parallel")))
    check(outside, on, 20, 5)


@each_target
def test_tasks(on: str) -> None:
    """A kernel without a parallel loop is one task. Lets may surround a parallel loop."""
    assert tasks(kernel([X, Y], loop(R, N, Store(Y, (R,), X[R])))) == const(1)
    half = Var("half")
    func = kernel([X, Y], Let(half, N // 2, loop(P, half, Store(Y, (P,), X[P + half]), "parallel")))
    assert size(tasks(func), {"N": 13, "M": 1}) == 6
    for pieces in (1, 2, 5):
        check(func, on, 13, pieces=pieces)


@each_target
def test_register_tile_with_masks(on: str) -> None:
    """A GEMM register tile with remainders: masked columns, guarded rows."""
    w, mr = lanes(on), 3
    a, b, out = buffer("a", N, K_SIZE), buffer("b", K_SIZE, M), buffer("y", N, M)
    r, acc = Var("r"), buffer("acc", mr, w, memory="register")
    row, column = R * mr + r, J * w + L

    def tile(body: Stmt) -> Stmt:
        return loop(r, mr, loop(L, w, body, "vector"), "unroll")

    left = select(row < N, Load(a, (row, K)), ZERO)
    right = select(column < M, Load(b, (K, column)), ZERO)
    body = block(
        tile(Store(acc, (r, L), ZERO)),
        loop(K, K_SIZE, tile(Store(acc, (r, L), acc[r, L] + left * right))),
        tile(If(land(row < N, column < M), Store(out, (row, column), maximum(acc[r, L], ZERO)))),
    )
    nest = loop(R, (N + (mr - 1)) // mr, loop(J, (M + (w - 1)) // w, Alloc(acc, body)), "parallel")
    for n, m in ((1, 1), (7, 13), (6, 16)):
        check(kernel([a, b, out], nest), on, n, m, rtol=1e-4)


K_SIZE = 5


@each_target
def test_register_buffer_indexed_at_run_time(on: str) -> None:
    acc = buffer("acc", 16, memory="register")
    body = block(loop(R, 16, Store(acc, (R,), X[R % N])), loop(R, N, Store(Y, (R,), acc[(R * 3) % 16])))
    check(kernel([X, Y], Alloc(acc, body)), on, 11)


@each_target
def test_zero_trip_loops(on: str) -> None:
    body = block(loop(R, N - 1, Store(Y, (R,), X[R + 1])), Store(Y, (N - 1,), ZERO))
    check(kernel([X, Y], body), on, 1)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (loop(R, N, Store(Y, (R,), X[J])), "k: j is used outside"),
        (loop(R, N, Store(Y, (R,), X[R]), "vector"), "k: vector loop i has extent N"),
        (Alloc(buffer("r", N, memory="register"), Store(Y, (const(0),), ZERO)), "k: register buffer r needs"),
        (
            loop(R, N, Alloc(buffer("s", R + 1, memory="scratch"), Store(Y, (R,), ZERO))),
            "k: scratch buffer s",
        ),
    ],
)
def test_errors_name_the_kernel(body: Stmt, message: str) -> None:
    with pytest.raises(CompileError, match=message):
        emit_kernel(kernel([X, Y], body, "k"), V3)


def test_same_text_each_time() -> None:
    body = tiles(N, 8, If(R * 8 + L < N, Store(Y, (R * 8 + L,), call("erf", X[R * 8 + L]))))
    assert emit_kernel(kernel([X, Y], body), V3) == emit_kernel(kernel([X, Y], body), V3)


@each_target
@pytest.mark.parametrize("width", [16, 19])
def test_lanes_that_share_elements(on: str, width: int) -> None:
    """Every two lanes read one element, of an aligned row (with as many elements as lanes) or across its
    end."""
    w = lanes(on)
    for first in (0, 1, width - w + 1):
        x, y = buffer("x", 3, width), buffer("y", 3, w)
        body = (
            Store(y, (R, L), x[R, (L // 2) * 2 + first])
            if first < 2
            else Store(y, (R, L), x[R, L // 2 + first])
        )
        check(kernel([x, y], loop(R, 3, loop(L, w, body, "vector"), "parallel")), on)


@pytest.mark.sampled(4)
@each_target
@pytest.mark.parametrize("dtype", [BOOL, U8, F16, I32, F32, I64, F64], ids=str)
@pytest.mark.parametrize("shape", [(33, 59), (64, 48)])
def test_tiles_turned_in_registers(on: str, dtype: DType, shape: tuple[int, int]) -> None:
    x, attrs = buffer("x", *shape, dtype=dtype), Transpose((1, 0))
    stages = CORE[attrs.op].te([x], buffer("out", *shape[::-1], dtype=dtype), attrs)
    template = TEMPLATES["transpose"](Workload("kernel", stages, (x,), {}, (), target(on)))
    assert template is not None
    check(template.schedule(template.space()[0]).func, on, rtol=0)


@each_target
@pytest.mark.parametrize("columns", [5, 131])
def test_a_result_that_another_is_made_of(on: str, columns: int) -> None:
    x, y = buffer("x", N, columns), buffer("y", N, columns)
    low, high = buffer("low", N), buffer("high", N)
    stages = CORE["map"].te([x], y, Map(call("exp", Var("x0", F32))))
    for end, combiner in ((low, "min"), (high, "max")):
        stages += CORE["reduce"].te([y], end, Reduce(combiner, (1,)))
    func = choose(Workload("kernel", stages, (x,), dict(SYMBOLS), (), target(on), 3)).func
    assert func.results == (y, low, high)
    check(func, on)


def _bound(rng: Random, width: int, given: Buffer) -> Expr:
    """Return an integer that is the same for all lanes. Mostly, all its parts are multiples of the lanes."""
    parts = N, M, R, N * M, N // 3, M % 5, Load(given, (R,))
    step = width if rng.random() < 0.7 else rng.choice([1, 2, width // 2, width + 1])
    total: Expr = const(rng.randrange(-3, 4) * step)
    for part in rng.sample(parts, rng.randrange(4)):
        total = total + part * (rng.choice([-3, -2, -1, 1, 2]) * step)
    return total


@each_target
@pytest.mark.parametrize("seed", range(4))
def test_comparisons_of_lanes_with_bounds(on: str, seed: int) -> None:
    """A bound is any sum of sizes, loops and elements, on either side, with lanes that count up or down."""
    rng, width, given = Random(seed), lanes(on), buffer("given", 3, dtype=I64)
    marks, masked = (buffer(name, 16, 3, width, dtype=I32) for name in ("marks", "masked"))
    stores: list[Stmt] = []
    for number in range(16):
        left, right = (_bound(rng, width, given) for _ in range(2))
        sides = [left + L * rng.choice([1, -1]), right]
        rng.shuffle(sides)
        holds = binary(rng.choice(["lt", "le", "gt", "ge", "eq", "ne"]), *sides)
        at = const(number), R, L
        one, two = const(1, I32), const(2, I32)
        stores += [Store(marks, at, select(holds, one, two)), If(holds, Store(masked, at, one))]
    body = loop(R, 3, loop(L, width, block(*stores), "vector"))
    func = Func("kernel", (given, marks, masked), 2, SYMBOLS, body)
    for n, m in [(1, 1), (2, 1), (1, 3), (3, 2), (7, 4), (5, 9)]:
        elements = np.array([rng.randrange(-4, 5) for _ in range(3)])
        check(func, on, n, m, {"given": elements})
