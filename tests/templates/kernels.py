"""Small kernels to schedule, and the check that a scheduled kernel computes its stages' results."""

from __future__ import annotations

import pickle
from collections.abc import Mapping, Sequence

import numpy as np

from jangin.ir import te
from jangin.ir.core import Conv, CoreAttributes, MatMul, Pool, Softmax
from jangin.ir.dtype import F32, DType
from jangin.ir.expr import Buffer, Const, Expr, Var, cast, const
from jangin.ir.graph import Array
from jangin.ir.interpret import evaluate_stage, run_func
from jangin.ir.loop import Func
from jangin.ir.products import Product
from jangin.ir.simplify import Range
from jangin.ops.core import CORE
from jangin.schedule.steps import apply, parse_steps
from jangin.targets import NAMED, Target
from jangin.templates.choose import TEMPLATES
from jangin.templates.scheduled import Scheduled
from jangin.templates.template import Workload

Size = int | Expr
Built = tuple[tuple[te.Stage, ...], list[Buffer]]


def dims(*sizes: Size) -> tuple[Expr, ...]:
    return tuple(const(s) if isinstance(s, int) else s for s in sizes)


def buffer(name: str, *sizes: Size) -> Buffer:
    return Buffer(name, F32, dims(*sizes))


def node(attrs: CoreAttributes, ins: Sequence[Buffer]) -> Built:
    """Return the stages of one core operator over f32 inputs."""
    from jangin.ir.graph import Value

    dtype, shape = CORE[attrs.op].infer([Value(b.name, b.dtype, b.shape) for b in ins], attrs)
    return CORE[attrs.op].te(ins, Buffer("out", dtype, shape), attrs), list(ins)


def conv(
    size: tuple[Size, Size], channels: int, outputs: int, kernel: int, stride: int = 1, *, groups: int = 1,
    pad: int = 0, dilation: int = 1, batch: Size = 1,
) -> Built:  # fmt: skip
    attrs = Conv((kernel,) * 2, (stride,) * 2, (dilation,) * 2, (pad,) * 4, groups, "last")
    x = buffer("x", batch, *size, channels)
    return node(attrs, [x, buffer("w", outputs, channels // groups, kernel, kernel)])


def small_conv(
    dot: Product, size: tuple[Size, Size], channels: int, outputs: int, kernel: int, stride: int = 1, *,
    batch: Size = 1,
) -> Built:  # fmt: skip
    """Return a padded convolution of 16-bit floats that `dot` makes, with sums of f32."""
    attrs = Conv(
        (kernel,) * 2, (stride,) * 2, (1, 1), (kernel // 2,) * 4, 1, "last", F32, dot
    )  # fmt: skip
    x = Buffer("x", dot.left, dims(batch, *size, channels))
    return node(attrs, [x, Buffer("w", dot.right, dims(outputs, channels, kernel, kernel))])


def pool(
    size: tuple[int, int], channels: int, kernel: int, stride: int, pad: int, combiner: str, average: str
) -> Built:
    extents = dims(*((s + 2 * pad - kernel) // stride + 1 for s in size))
    window = (kernel,) * 2, (stride,) * 2, (1, 1), (pad,) * 4
    attrs = Pool(combiner, *window, extents, average, "last")
    return node(attrs, [buffer("x", 1, *size, channels)])


def matmul(a: Sequence[Size], b: Sequence[Size], *, transposed: bool = False) -> Built:
    return node(MatMul(transpose_a=False, transpose_b=transposed), [buffer("x", *a), buffer("w", *b)])


def narrow_matmul(rows: int, terms: int, columns: int, dtype: DType) -> Built:
    """Return a product with weights of a smaller type, which become f32 where they are multiplied."""
    x, w = buffer("x", rows, terms), Buffer("w", dtype, dims(terms, columns))
    i, j, k = Var("i0"), Var("i1"), Var("k0")
    axes = te.Axis(i, const(rows)), te.Axis(j, const(columns))
    product, sums = x[i, k] * cast(F32, w[k, j]), (te.Axis(k, const(terms)),)
    return (te.Stage(buffer("out", rows, columns), axes, product, sums, "sum"),), [x, w]


def small_matmul(dot: Product, rows: int, terms: int, columns: int, *, transposed: bool = False) -> Built:
    """Return a product of 16-bit floats that `dot` makes, with sums of f32."""
    attrs = MatMul(transpose_a=False, transpose_b=transposed, dtype=F32, dot=dot)
    right = (columns, terms) if transposed else (terms, columns)
    x, w = Buffer("x", dot.left, dims(rows, terms)), Buffer("w", dot.right, dims(*right))
    return node(attrs, [x, w])


def attention(
    heads: Size, queries: Size, keys: Size, inner: int, values: int, masked: bool = True, blind: bool = False
) -> Built:
    """Return attention with the heads of keys and values side by side, and a mask [keys] that is added."""
    q, k = buffer("q", 1, heads, queries, inner), buffer("k", 1, keys, heads, inner)
    v, mask = buffer("v", 1, heads, keys, values), buffer("mask", keys)
    scores, weights = buffer("scores", 1, heads, queries, keys), buffer("weights", 1, heads, queries, keys)
    i, depth, acc = tuple(Var(f"i{d}") for d in range(4)), Var("k0"), Var("acc", F32)
    axes = tuple(te.Axis(n, size) for n, size in zip(i, scores.shape, strict=True))
    term = q[i[0], i[1], i[2], depth] * k[i[0], i[3], i[1], depth]
    scaled = acc * 0.25 + (mask[i[3]] if masked else 0.0)
    product = te.Stage(scores, axes, term, (te.Axis(depth, const(inner)),), "sum", scaled)
    softmax = CORE["softmax"].te([scores], weights, Softmax(axis=3, log=False, blind=blind))
    out = buffer("out", 1, heads, queries, values)
    mixed = CORE["matmul"].te([weights, v], out, MatMul(transpose_a=False, transpose_b=False))
    return (product, *softmax, *mixed), [q, k, v, *([mask] if masked else [])]


def workload(
    built: Built, symbols: Mapping[Var, Range] | None = None, constants: Sequence[str] = (),
    target: Target = NAMED["x86-64-v3"],
) -> Workload:  # fmt: skip
    return Workload("k", built[0], tuple(built[1]), symbols or {}, constants, target)


def scheduled(template: str, asked: Workload) -> Scheduled:
    """Schedule the kernel by one template, which must fit it."""
    found = TEMPLATES[template](asked)
    assert found is not None
    return found.schedule(min(found.space(), key=found.estimate))


def random_inputs(inputs: Sequence[Buffer], symbols: Mapping[str, int], seed: int) -> dict[str, Array]:
    rng = np.random.default_rng(seed)

    def size(d: Expr) -> int:
        return int(d.value) if isinstance(d, Const) else symbols[str(d)]

    return {b.name: rng.standard_normal([size(d) for d in b.shape]).astype(np.float32) for b in inputs}


def reference(built: Built, arrays: Mapping[str, Array], symbols: Mapping[str, int]) -> Array:
    """Evaluate the stages in float64. f32 inputs are widened, and the stages' own dtypes then follow
    NumPy."""
    env = dict(arrays)
    for stage in built[0]:
        env[stage.out.name] = evaluate_stage(stage, env, symbols)
    return env["out"]


def packed(scheduled: Scheduled, arrays: Mapping[str, Array]) -> dict[str, Array]:
    return {n: scheduled.packings[n].apply(a) if n in scheduled.packings else a for n, a in arrays.items()}


def assert_replayed(scheduled: Scheduled, naive: Func) -> None:
    steps = parse_steps("\n".join(map(str, scheduled.steps)))
    assert steps == scheduled.steps
    assert pickle.loads(pickle.dumps(scheduled)) == scheduled
    assert apply(naive, steps) == scheduled.func


def assert_equal_to_stages(
    scheduled: Scheduled, built: Built, symbols: Mapping[str, int] | None = None, seed: int = 0
) -> None:
    """Check that the scheduled nest gives the stages' results, in the interpreter, and writes every element.

    The printed schedule, read back, makes the same nest of the naive one."""
    naive = te.lower(scheduled.func.name, *built, dict(scheduled.func.symbols))
    assert_replayed(scheduled, naive)
    sizes = dict(symbols or {})
    arrays = random_inputs(built[1], sizes, seed)
    want = reference(built, arrays, sizes)
    given = packed(scheduled, arrays)
    given["out"] = np.full_like(want, np.nan)
    run_func(scheduled.func, given, sizes)
    # Sums are taken in another order. The tolerance is for f32 rounding of at most some hundred terms of size
    # 1.
    np.testing.assert_allclose(given["out"], want, rtol=2e-5, atol=2e-5)


SYMBOL = Var("n")
SYMBOLS = {SYMBOL: (const(1), const(4096))}
