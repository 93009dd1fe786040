"""Every template against its stages, interpreted, at odd sizes and on every set of instruction rows."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jangin.ir import te
from jangin.ir.core import Concat, Conv, Map, Normalize, Pad, Reduce, Softmax, Transpose
from jangin.ir.dtype import F32
from jangin.ir.expr import Var, call, const
from jangin.ir.interpret import run_func
from jangin.ir.loop import Alloc, For, Store, statements
from jangin.ir.traversal import free_vars
from jangin.schedule.primitives import ranges_at
from jangin.targets import NAMED, Target
from jangin.templates import separable
from jangin.templates.choose import TEMPLATES, choose
from jangin.templates.common import messy
from jangin.templates.contraction import Contraction
from jangin.templates.window import Window

from .kernels import (
    SYMBOL,
    SYMBOLS,
    Built,
    assert_equal_to_stages,
    buffer,
    conv,
    matmul,
    node,
    pool,
    scheduled,
    workload,
)

pytestmark = pytest.mark.sampled(2)

W = ("w",)
TARGETS = [NAMED[n] for n in ("x86-64-v2", "x86-64-v3", "x86-64-v4")]
LANE_TARGETS = [NAMED[n] for n in ("cortex-a72", "cortex-a7")]
"""Targets whose multiply-adds take a lane of a vector."""
CONVS = {
    "3x3": conv((6, 6), 4, 16, 3),
    "strided-odd": conv((7, 9), 3, 20, 3, 2),
    "grouped": conv((5, 5), 8, 24, 1, groups=2),
    "one output": conv((7, 9), 8, 1, 3),
    "three outputs": conv((5, 6), 9, 3, 2),
    "channel multiplier": conv((5, 7), 8, 16, 3, groups=8),
    "groups of 4": conv((5, 5), 32, 32, 3, groups=8),
    "groups of 3 to 2": conv((5, 5), 24, 16, 1, groups=8),
    "groups of panels": conv((4, 5), 64, 64, 1, groups=2),
    "dilated": conv((9, 8), 5, 17, 3, dilation=2),
    "batch": conv((4, 4), 6, 33, 1, batch=3),
}
PRODUCTS = {
    "plain": (matmul((7, 9), (9, 20)), True),
    "row": (matmul((1, 30), (30, 40)), True),
    "batched-left": (matmul((2, 7, 9), (9, 20)), True),
    "transposed": (matmul((7, 9), (20, 9), transposed=True), True),
    "runtime": (matmul((2, 7, 9), (2, 9, 20)), False),
    "runtime-transposed": (matmul((2, 7, 9), (2, 20, 9), transposed=True), False),
    "runtime-turned": (matmul((13, 37), (70, 37), transposed=True), False),
}


@pytest.mark.sampled(8)
@pytest.mark.parametrize("target", TARGETS, ids=str)
@pytest.mark.parametrize("name", CONVS)
def test_convolution(name: str, target: Target) -> None:
    built = CONVS[name]
    found = scheduled("contraction", workload(built, {}, W, target))
    assert_equal_to_stages(found, built)


@pytest.mark.parametrize("target", TARGETS, ids=str)
@pytest.mark.parametrize("name", PRODUCTS)
def test_product(name: str, target: Target) -> None:
    built, constant = PRODUCTS[name]
    found = scheduled("contraction", workload(built, {}, W if constant else (), target))
    assert_equal_to_stages(found, built)


@pytest.mark.parametrize("target", TARGETS, ids=str)
@pytest.mark.parametrize("size", [(9, 13), (3, 5, 7), (5, 1)], ids=str)
def test_pixels_of_planes_are_columns(size: tuple[int, ...], target: Target) -> None:
    """A pointwise convolution over planes, with every number of panels that a task may have."""
    rank = len(size)
    attrs = Conv((1,) * rank, (1,) * rank, (1,) * rank, (0,) * (2 * rank), 1, "first")
    built = node(attrs, [buffer("x", 2, 5, *size), buffer("w", 9, 5, *(1,) * rank)])
    found = TEMPLATES["contraction"](workload(built, {}, W, target))
    assert found is not None
    by_panels = {p["panels"]: p for p in found.space()}
    assert len(by_panels) > 1 or 1 in size
    for params in by_panels.values():
        assert_equal_to_stages(found.schedule(params), built)


@pytest.mark.sampled(6)
@pytest.mark.parametrize(("outputs", "lanes"), [(3, 8), (8, 8), (9, 16), (24, 16)])
def test_few_columns_take_half_vectors(outputs: int, lanes: int) -> None:
    """Few columns take half vectors on registers of 64 bytes. On registers of 32 bytes, half vectors have no
    shorter instructions."""
    built = conv((9, 11), 5, outputs, 3)
    for name, most in (("x86-64-v4", 16), ("x86-64-v3", 8)):
        found = TEMPLATES["contraction"](workload(built, {}, W, NAMED[name]))
        assert isinstance(found, Contraction) and found.lanes == min(lanes, most)
        assert_equal_to_stages(found.schedule(found.space()[0]), built)


def test_rows_between_columns_are_not_numbered_through() -> None:
    """Strided windows leave pixels out, so that rows aren't numbered through."""
    built = node(Conv((1, 1), (2, 2), (1, 1), (0,) * 4, 1, "first"), [
        buffer("x", 1, 8, 9, 9), buffer("w", 4, 8, 1, 1),
    ])  # fmt: skip
    assert TEMPLATES["contraction"](workload(built, {}, W)) is None


@pytest.mark.parametrize("fn", ["neg", "sigmoid"])
@pytest.mark.parametrize("shape", [(1, 3, 259, 257), (1, 16, 111, 111), (2, 3, 5, 7)], ids=str)
def test_maps_of_odd_sizes_are_by_whole_vectors(shape: tuple[int, ...], fn: str) -> None:
    built = node(Map(call(fn, Var("x0", F32))), [buffer("x", *shape)])
    func = scheduled("elementwise", workload(built, {}, (), TARGETS[1])).func
    loops = [s.var for s in statements(func.body) if isinstance(s, For) and s.kind == "vector"]
    assert loops and not any(messy(func, v, ranges_at(func, v.name)) for v in loops)


@pytest.mark.parametrize("rows_", [1, 5, 13])
def test_product_of_symbolic_rows(rows_: int) -> None:
    built = matmul((2, SYMBOL, 9), (9, 20))
    found = scheduled("contraction", workload(built, SYMBOLS, W, TARGETS[1]))
    assert_equal_to_stages(found, built, {"n": rows_})


@pytest.mark.parametrize("size", [1, 7, 19])
@pytest.mark.parametrize("transposed", [False, True])
def test_attention_products(size: int, transposed: bool) -> None:
    b = (2, SYMBOL, 6) if transposed else (2, 6, SYMBOL)
    built = matmul((2, SYMBOL, 6), b, transposed=transposed)
    found = scheduled("contraction", workload(built, SYMBOLS, (), TARGETS[1]))
    assert_equal_to_stages(found, built, {"n": size})


def test_a_product_that_ends_in_a_symbolic_sum() -> None:
    built = matmul((2, 5, SYMBOL), (2, SYMBOL, 12))
    found = scheduled("contraction", workload(built, SYMBOLS, (), TARGETS[1]))
    assert_equal_to_stages(found, built, {"n": 11})


@pytest.mark.parametrize("target", [*TARGETS, *LANE_TARGETS], ids=str)
@pytest.mark.parametrize("rows_", [1, 3])
def test_one_tile_of_rows_copies_no_panels(rows_: int, target: Target) -> None:
    """A right operand that a run gives is read in place if one tile has all rows."""
    built = matmul((2, rows_, SYMBOL), (2, SYMBOL, 64))
    found = TEMPLATES["contraction"](workload(built, SYMBOLS, (), target))
    assert found is not None
    space = [p for p in found.space() if p.get("in_place")]
    assert space and (target in LANE_TARGETS or len(space) == len(found.space()))
    for params in {p["nv"]: p for p in space}.values():
        made = found.schedule(params)
        assert not [
            s for s in statements(made.func.body) if isinstance(s, Alloc) and s.buffer.name == "panel"
        ]
        assert_equal_to_stages(made, built, {"n": 11})


@pytest.mark.parametrize("target", TARGETS, ids=str)
def test_sums_stay_in_registers_where_terms_are_left_over(target: Target) -> None:
    """Sums stay in registers for 37 terms, although the unrolled loop doesn't take the last one."""
    built = matmul((16, 37), (37, 64))
    found = scheduled("contraction", workload(built, {}, W, target))
    assert_equal_to_stages(found, built)
    loops = [s for s in statements(found.func.body) if isinstance(s, For) and s.kind == "serial"]
    for loop in loops:
        stores = (s for s in statements(loop.body) if isinstance(s, Store) and s.buffer.memory == "register")
        assert not any(loop.var in free_vars(i) for s in stores for i in s.index), loop.var


@settings(max_examples=20)
@given(
    st.integers(1, 9), st.integers(1, 9), st.integers(1, 7), st.integers(4, 40), st.integers(1, 3),
    st.integers(1, 2), st.sampled_from(TARGETS), st.integers(0, 99),
)  # fmt: skip
def test_any_convolution(
    height: int, width: int, channels: int, outputs: int, kernel: int, stride: int, target: Target, seed: int
) -> None:
    built = conv((height + kernel, width + kernel), channels, outputs, kernel, stride)
    found = choose(workload(built, {}, W, target))
    assert_equal_to_stages(found, built, seed=seed)


@pytest.mark.parametrize("target", TARGETS, ids=str)
@pytest.mark.parametrize(("size", "channels", "kernel", "stride", "pad"), [
    ((9, 11), 16, 3, 1, 1), ((9, 10), 20, 3, 2, 1), ((7, 7), 8, 5, 1, 2), ((3, 3), 5, 3, 1, 1),
    ((12, 13), 8, 9, 1, 0), ((9, 11), 8, 3, 1, 1),
])  # fmt: skip
def test_depthwise(
    size: tuple[int, int], channels: int, kernel: int, stride: int, pad: int, target: Target
) -> None:
    built = conv(size, channels, channels, kernel, stride, groups=channels, pad=pad)
    found = scheduled("window", workload(built, {}, W, target))
    assert_equal_to_stages(found, built)


@settings(max_examples=15)
@given(
    st.integers(1, 17), st.integers(1, 20), st.integers(1, 5), st.integers(1, 2), st.integers(0, 2),
    st.sampled_from(TARGETS), st.data(),
)  # fmt: skip
def test_any_depthwise(
    width: int, channels: int, kernel: int, stride: int, pad: int, target: Target, data: st.DataObject
) -> None:
    built = conv((kernel, width + kernel), channels, channels, kernel, stride, groups=channels, pad=pad)
    found = TEMPLATES["window"](workload(built, {}, W, target))
    if found is not None:
        assert_equal_to_stages(found.schedule(data.draw(st.sampled_from(found.space()))), built)


@settings(max_examples=25)
@given(
    st.integers(2, 23), st.sampled_from([5, 8, 20, 64]), st.integers(2, 9), st.integers(1, 2),
    st.integers(0, 4), st.sampled_from([*TARGETS, NAMED["x86-64-v4"]]), st.data(),
)  # fmt: skip
def test_images_one_pixel_wide(
    high: int, channels: int, kernel: int, stride: int, pad: int, target: Target, data: st.DataObject
) -> None:
    attrs = Conv((kernel, 1), (stride, 1), (1, 1), (pad, 0, pad, 0), channels, "last")
    built = node(attrs, [buffer("x", 2, high + kernel, 1, channels), buffer("w", channels, 1, kernel, 1)])
    found = TEMPLATES["window"](workload(built, {}, W, target))
    assert isinstance(found, Window) and found.size > 1 and found.narrow
    assert_equal_to_stages(found.schedule(data.draw(st.sampled_from(found.space()))), built)


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    ("size", "kernel", "stride", "target"),
    [((6, 7), 3, 1, TARGETS[0]), ((11, 9), 5, 2, TARGETS[1]), ((8, 5), 3, 1, TARGETS[2])],
)
def test_depthwise_and_pointwise(size: tuple[int, int], kernel: int, stride: int, target: Target) -> None:
    (first,), (x, w) = conv(size, 12, 12, kernel, stride, groups=12, pad=kernel // 2, batch=2)
    rows, columns = (int(str(a.extent)) for a in first.axes[1:3])
    (last,), (y, v) = matmul((2, rows, columns, 12), (12, 20))
    local, weights = replace(first.out, name="t"), replace(v, name="v")
    built = (te.redirect(first, {"out": local}), te.redirect(last, {y.name: local, v.name: weights}))
    asked = workload((built, [x, w, weights]), constants=("w", "v"), target=target)
    found = separable.match(asked)
    assert found is not None
    for params in (found.space()[0], found.space()[-1]):
        assert_equal_to_stages(found.schedule(params), (built, [x, w, weights]))


@pytest.mark.parametrize(("combiner", "average"), [("max", ""), ("sum", "valid"), ("sum", "all")])
@pytest.mark.parametrize(("size", "kernel", "stride", "pad"), [((9, 11), 3, 2, 1), ((6, 6), 2, 2, 0)])
def test_pool(size: tuple[int, int], kernel: int, stride: int, pad: int, combiner: str, average: str) -> None:
    built = pool(size, 20, kernel, stride, pad, combiner, average)
    found = scheduled("window", workload(built, {}, (), TARGETS[1]))
    assert_equal_to_stages(found, built)


@pytest.mark.parametrize(("size", "channels"), [((9, 11), 64), ((3, 20), 20)])
def test_pool_of_the_whole_image(size: tuple[int, int], channels: int) -> None:
    built = node(Reduce("sum", (1, 2), True), [buffer("x", 2, *size, channels)])
    found = TEMPLATES["window"](workload(built, {}, (), TARGETS[1]))
    assert found is not None
    for params in found.space():
        assert_equal_to_stages(found.schedule(params), built)


ROWS = {
    "softmax-last": node(Softmax(axis=1, log=False), [buffer("x", 4, 50)]),
    "softmax-first": node(Softmax(axis=0, log=False), [buffer("x", 4, 50)]),
    "log-softmax-middle": node(Softmax(axis=1, log=True), [buffer("x", 2, 3, 20)]),
    "layer-norm": node(Normalize(axes=(1,), epsilon=1e-5, rms=False), [buffer("x", 3, 40)]),
    "rms-norm": node(Normalize(axes=(1, 2), epsilon=1e-5, rms=True), [buffer("x", 2, 3, 9)]),
    "sum-last": node(Reduce(combiner="sum", axes=(1,), keepdims=False), [buffer("x", 4, 50)]),
    "max-first": node(Reduce(combiner="max", axes=(0,), keepdims=True), [buffer("x", 4, 50)]),
    "mean-pixels": node(Reduce(combiner="sum", axes=(1, 2), keepdims=False), [buffer("x", 1, 7, 7, 20)]),
    "columns": node(Reduce(combiner="sum", axes=(0,), keepdims=False), [buffer("x", 70, 64)]),
    "middle": node(Reduce(combiner="min", axes=(1,), keepdims=False), [buffer("x", 2, 9, 45)]),
    "around": node(Reduce(combiner="sum", axes=(0, 2, 3), keepdims=False), [buffer("x", 3, 4, 5, 9)]),
    "all": node(Reduce(combiner="sum", axes=(0, 1), keepdims=False), [buffer("x", 3, 17)]),
}


@pytest.mark.parametrize("name", ROWS)
def test_rows(name: str) -> None:
    built = ROWS[name]
    assert_equal_to_stages(scheduled("rows", workload(built, {})), built)


@pytest.mark.parametrize("size", [1, 8, 37])
def test_softmax_of_symbolic_length(size: int) -> None:
    built = node(Softmax(axis=2, log=False), [buffer("x", 2, 5, SYMBOL)])
    assert_equal_to_stages(scheduled("rows", workload(built, SYMBOLS)), built, {"n": size})


PADS = (const(0), const(1), const(2)) * 2
X, Y = Var("x0", F32), Var("x1", F32)
MAPS: dict[str, Built] = {
    "flat": node(Map(body=call("exp", X)), [buffer("x", 5, 33)]),
    "bias": node(Map(body=X * Y), [buffer("x", 5, 33), buffer("y", 33)]),
    "column": node(Map(body=X + Y), [buffer("x", 5, 33), buffer("y", 5, 1)]),
    "transpose": node(Transpose(perm=(0, 2, 3, 1)), [buffer("x", 2, 3, 6, 9)]),
    "pad": node(Pad(pads=PADS, mode="constant", value=0), [buffer("x", 2, 6, 9)]),
    "concat": node(Concat(axis=1), [buffer("x", 2, 6, 9), buffer("y", 2, 5, 9)]),
    "scalar": node(Map(body=X + X), [buffer("x")]),
}  # fmt: skip


@pytest.mark.parametrize("target", TARGETS, ids=str)
@pytest.mark.parametrize("name", MAPS)
def test_elementwise(name: str, target: Target) -> None:
    built = MAPS[name]
    assert_equal_to_stages(scheduled("elementwise", workload(built, {}, (), target)), built)


@pytest.mark.parametrize("template", ["rows", "window"])
@pytest.mark.parametrize(("shape", "axes"), [((1, 40, 40, 9), (1, 2)), ((1, 1, 1600, 9), (1, 2))])
def test_rounding_of_a_long_sum(template: str, shape: tuple[int, ...], axes: tuple[int, ...]) -> None:
    built = node(Reduce(combiner="sum", axes=axes, keepdims=True), [buffer("x", *shape)])
    func = scheduled(template, workload(built)).func
    x = np.random.default_rng(0).random(shape, np.float32)
    arrays = {"x": x, "out": np.empty((1, 1, 1, 9), np.float32)}
    run_func(func, {p.name: arrays[p.name] for p in func.params}, {})
    error = arrays["out"] / x.sum(axes, np.float64, keepdims=True) - 1
    assert np.sqrt(np.mean(error**2)) < 8 * 2**-24, "one running sum has some 15"


def test_a_deep_convolution_sums_its_window_in_parts() -> None:
    built = conv((4, 4), 64, 8, 3)
    found = scheduled("contraction", workload(built, {}, W))
    assert [s.args for s in found.steps if s.name == "partial_sums"] == [("k0",)]
    assert_equal_to_stages(found, built)
