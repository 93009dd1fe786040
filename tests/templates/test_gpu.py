"""Templates for work-groups: every kernel passes the verifier, and computes its stages' results in any order
of independent iterations."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from jangin.ir import te
from jangin.ir.core import Map, Normalize, Reduce, Softmax, Transpose
from jangin.ir.dtype import BF16, F16, F32, I8, DType
from jangin.ir.expr import Var, call, const, land, select
from jangin.ir.groups import grouped, shared_layout, threads
from jangin.ir.interpret import run_func
from jangin.ir.parse import parse_func
from jangin.ir.verify import verify_func
from jangin.targets import NAMED, Target
from jangin.targets.gpu import Gpu
from jangin.targets.webgpu import WEBGPU
from jangin.templates.choose import choose, opaque
from jangin.templates.gpu.table import TEMPLATES
from jangin.templates.template import Candidate, Workload

from .kernels import (
    SYMBOL,
    SYMBOLS,
    Built,
    assert_equal_to_stages,
    assert_replayed,
    attention,
    buffer,
    conv,
    matmul,
    narrow_matmul,
    node,
    packed,
    pool,
    random_inputs,
    reference,
    workload,
)

pytestmark = pytest.mark.sampled(3)

X, Y = Var("x0", F32), Var("x1", F32)


def turned_or_not(rows: int, columns: int) -> Built:
    """Return a kernel that copies some columns transposed, and the others as they are."""
    x, y, out = buffer("x", 11, rows), buffer("y", rows, columns), buffer("out", rows, columns)
    i, j = Var("i0"), Var("i1")
    body = select(j < 11, x[j, i], y[i, j])
    return (te.Stage(out, (te.Axis(i, const(rows)), te.Axis(j, const(columns))), body),), [x, y]


def turned_and_padded(rows: int, columns: int) -> Built:
    """Return a transposed copy with a border of zeros."""
    x, out = buffer("x", rows, columns), buffer("out", columns + 2, rows)
    i, j = Var("i0"), Var("i1")
    inside = land(i - 1 >= 0, i - 1 < columns)
    body = select(inside, x[j, i - 1], const(0, F32))
    return (te.Stage(out, (te.Axis(i, const(columns + 2)), te.Axis(j, const(rows))), body),), [x]


TARGET = replace(NAMED["x86-64-v3"], machine=Gpu(units=4, group=256, shared=16 << 10))
KERNELS: dict[str, tuple[Built, Sequence[str]]] = {
    "map": (node(Map(body=X * 2.0 + 1.0), [buffer("x", 5, 8)]), ()),
    "scalar": (node(Map(body=X * 2.0 + 1.0), [buffer("x")]), ()),
    "bias": (node(Map(body=X * Y), [buffer("x", 2, 3, 5), buffer("y", 5)]), ()),
    "symbolic": (node(Map(body=call("exp", X)), [buffer("x", SYMBOL, 3)]), ()),
    "transpose": (node(Transpose(perm=(2, 0, 1)), [buffer("x", 2, 5, 3)]), ()),
    "turned": (node(Transpose(perm=(0, 2, 1)), [buffer("x", 3, 37, 45)]), ()),
    "turned-symbolic": (node(Transpose(perm=(1, 0)), [buffer("x", SYMBOL, 19)]), ()),
    "turned-or-not": (turned_or_not(24, 21), ()),
    "turned-padded": (turned_and_padded(20, 13), ()),
    "product": (matmul((13, 9), (9, 11)), ()),
    "weights": (matmul((13, 9), (9, 11)), ("w",)),
    "one-row": (matmul((1, 12), (12, 131)), ("w",)),
    "few-rows": (matmul((5, 9), (9, 64)), ("w",)),
    "batches": (matmul((3, 7, 5), (3, 5, 6)), ()),
    "transposed": (matmul((3, 7, 5), (3, 6, 5), transposed=True), ()),
    "symbolic-rows": (matmul((SYMBOL, 7), (7, 8)), ()),
    "symbolic-sum": (matmul((3, SYMBOL), (SYMBOL, 5)), ()),
    "pointwise": (conv((4, 5), 8, 6, 1), ("w",)),
    "conv": (conv((5, 6), 3, 5, 3), ("w",)),
    "stride": (conv((7, 6), 3, 5, 3, 2), ()),
    "groups": (conv((5, 6), 4, 4, 3, pad=1, groups=2), ("w",)),
    "depthwise": (conv((5, 6), 8, 8, 3, pad=1, groups=8), ("w",)),
    "depthwise-5": (conv((4, 9), 8, 8, 5, 2, pad=2, groups=8), ("w",)),
    "depthwise-column": (conv((7, 1), 6, 6, 3, pad=1, groups=6, batch=2), ("w",)),
    "depthwise-column-symbolic": (conv((7, 1), 8, 8, 3, pad=1, groups=8, batch=SYMBOL), ("w",)),
    "pool": (pool((7, 6), 8, 3, 2, 1, "max", ""), ()),
    "average": (pool((5, 6), 3, 3, 1, 1, "sum", "valid"), ()),
    "sum": (node(Reduce(combiner="sum", axes=(1,), keepdims=False), [buffer("x", 3, 71)]), ()),
    "columns": (node(Reduce(combiner="sum", axes=(0,), keepdims=False), [buffer("x", 13, 8)]), ()),
    "max": (node(Reduce(combiner="max", axes=(1, 2), keepdims=True), [buffer("x", 3, 5, 9)]), ()),
    "all": (node(Reduce(combiner="sum", axes=(0, 1), keepdims=False), [buffer("x", 5, 9)]), ()),
    "softmax": (node(Softmax(axis=2, log=False), [buffer("x", 3, 2, 37)]), ()),
    "softmax-symbolic": (node(Softmax(axis=1, log=False), [buffer("x", 3, SYMBOL)]), ()),
    "softmax-inner": (node(Softmax(axis=1, log=True), [buffer("x", 3, 9, 5)]), ()),
    "normalize": (node(Normalize(axes=(1,), epsilon=1e-5, rms=False), [buffer("x", SYMBOL, 35)]), ()),
    "attention": (attention(2, 5, 19, 3, 6), ()),
    "attention-whole": (attention(1, 16, 32, 4, 8, masked=False), ()),
    "attention-blind": (attention(2, 5, 19, 3, 6, blind=True), ()),
    "attention-symbolic": (attention(1, SYMBOL, SYMBOL, 3, 4), ()),
    "normalize-outer": (node(Normalize(axes=(0,), epsilon=1e-5, rms=True), [buffer("x", 9, 5)]), ()),
}


def asked(name: str, target: Target = TARGET) -> Workload:
    built, constants = KERNELS[name]
    symbolic = any(d == SYMBOL for b in built[1] for d in b.shape)
    return workload(built, SYMBOLS if symbolic else {}, constants, target)


@pytest.mark.sampled(12)
@pytest.mark.parametrize("name", KERNELS)
def test_kernels(name: str) -> None:
    """The best candidate of each template is tried, and a random one."""
    wanted, rng = asked(name), np.random.default_rng()
    matched = [t for match in TEMPLATES.values() if (t := match(wanted)) is not None]
    assert matched
    for template in matched:
        space = sorted(template.space(), key=template.estimate)
        for params in [space[0], space[rng.integers(len(space))]]:
            made = template.schedule(params)
            verify_func(made.func)
            assert grouped(made.func) and threads(made.func) <= TARGET.gpu.group
            assert shared_layout(made.func)[1] <= TARGET.gpu.shared
            assert np.isfinite(template.estimate(params))
            for n in (1, 5, 40) if wanted.symbols else (0,):
                sizes = dict.fromkeys((v.name for v in wanted.symbols), n)
                assert_equal_to_stages(made, KERNELS[name][0], sizes)


@pytest.mark.parametrize(
    ("name", "template"),
    [
        ("product", "contraction"), ("weights", "contraction"), ("conv", "contraction"), ("map", "elements"),
        ("depthwise", "elements"), ("pool", "elements"), ("sum", "rows"), ("softmax", "rows"),
        ("all", "rows"), ("bias", "elements"), ("turned", "transpose"), ("attention", "attention"),
    ],
)  # fmt: skip
def test_choice(name: str, template: str) -> None:
    assert choose(asked(name), templates=TEMPLATES).template == template


def test_large_products_use_large_tiles() -> None:
    for size in (64, 2048):
        wanted = workload(matmul((size, size), (size, size)), target=TARGET)
        made = choose(wanted, templates=TEMPLATES)
        assert made.template == "contraction"
        tile = made.params["ty"] * made.params["tm"] * made.params["tx"] * made.params["tn"]
        assert (tile <= 32 * 32) if size == 64 else (tile >= 64 * 64)


@pytest.mark.parametrize("rows", [1, 3, 8])
def test_neighbours_read_neighbouring_columns_of_few_rows(rows: int) -> None:
    """A group of WebGPU's target has no more rows than a tile of so few, and no panels to wait for."""
    wanted = workload(matmul((rows, 2048), (2048, 4096)), constants=["w"], target=WEBGPU)
    made = choose(wanted, templates=TEMPLATES)
    assert made.params["bk"] == 0 and made.params["tx"] * made.params["tn"] >= 64
    assert rows <= made.params["ty"] * made.params["tm"] < rows + 4


@pytest.mark.parametrize(("rows", "columns", "tx"), [(3025, 16, 2), (3025, 8, 1), (3025, 32, 4), (60, 16, 4)])
def test_no_work_item_is_idle_beside_few_columns(rows: int, columns: int, tx: int) -> None:
    """The tile that WebGPU's kernels share becomes tall if the product has rows enough."""
    wanted = workload(matmul((rows, 64), (64, columns)), constants=["w"], target=WEBGPU)
    params = choose(wanted, templates=TEMPLATES).params
    assert (params["tx"], params["ty"] * params["tx"]) == (tx, 32)


@pytest.mark.parametrize("dtype", [F16, BF16, I8])
def test_numbers_smaller_than_words_have_no_tiles_for_few_rows(dtype: DType) -> None:
    """Neighbours that read four such numbers each take longer than a group that shares panels."""
    wanted = workload(narrow_matmul(1, 2048, 4096, dtype), constants=["w"], target=WEBGPU)
    assert choose(wanted, templates=TEMPLATES).params.get("bk") != 0


def test_large_windows_share_their_loads() -> None:
    wanted = workload(conv((56, 56), 64, 64, 3, pad=1, groups=64), constants=["w"], target=TARGET)
    made = choose(wanted, templates=TEMPLATES)
    assert made.template == "window" and made.params["pixels"] >= 4


def test_a_candidate_is_taken() -> None:
    wanted = asked("product")
    made = choose(wanted, Candidate("elements", {"threads": 64, "lanes": 1}), templates=TEMPLATES)
    assert made.label == "elements threads=64 lanes=1"
    naive = te.lower("k", *KERNELS["product"][0], {})
    assert_replayed(made, naive)


def test_small_devices() -> None:
    """Devices with little shared memory, and with groups of few work-items."""
    small = replace(TARGET, machine=Gpu(group=32, shared=1 << 10))
    for name in ("product", "softmax", "sum", "map"):
        made = choose(asked(name, small), templates=TEMPLATES)
        verify_func(made.func)
        assert threads(made.func) <= 32 and shared_layout(made.func)[1] <= 1 << 10
        arrays = random_inputs(KERNELS[name][0][1], {}, 0)
        want = reference(KERNELS[name][0], arrays, {})
        given = packed(made, arrays) | {"out": np.full_like(want, np.nan)}
        run_func(made.func, given, {})
        np.testing.assert_allclose(given["out"], want, rtol=2e-5, atol=2e-5)


NEST = """func nest(x: f32[N, 4], at: i64[N], out: out f32[N, 4]) symbols (N in 1..) {
  parallel t in N {
    alloc scratch own: f32[4]
    serial j in 4 { own[j] = x[t, 3 - j] }
    serial k in 4 { out[PLACE, k] = own[k] }
  }
}"""


@pytest.mark.parametrize(("place", "count"), [("t", 64), ("at[t]", 1)])
def test_loop_nests(place: str, count: int) -> None:
    """Tasks are work-items. Tasks that may store to one place run in groups of one."""
    func = parse_func(NEST.replace("PLACE", place))
    made = opaque(func, Workload("nest", (), func.inputs, dict(func.symbols), (), TARGET))
    verify_func(made.func)
    assert threads(made.func) == count and "alloc register own" in str(_text(made.func))
    arrays = {
        "x": np.arange(28, dtype=np.float32).reshape(7, 4), "at": np.arange(7)[::-1].copy(),
        "out": np.zeros((7, 4), np.float32),
    }  # fmt: skip
    run_func(made.func, arrays, {"N": 7})
    want = arrays["x"][:, ::-1]
    np.testing.assert_array_equal(arrays["out"], want if place == "t" else want[::-1])


def _text(func: object) -> str:
    from jangin.ir.loop import Func
    from jangin.ir.text import print_func

    assert isinstance(func, Func)
    return print_func(func)
