"""Weights that 16-bit floats hold exactly are stored in 16 bits. Results keep their bits."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from jangin.compiler.build import build
from jangin.compiler.kernels import schedule_kernels
from jangin.compiler.pipeline import optimize
from jangin.compiler.plans import make_plan
from jangin.ir.dtype import BF16, F16, F32, DType
from jangin.ir.expr import const
from jangin.ir.graph import Array, Graph
from jangin.ir.plan import Plan
from jangin.ops.builder import Builder
from jangin.ops.interpret import run_graph
from jangin.ops.values import Tensor
from jangin.options import Options
from jangin.passes.precision.halves import LEAST, half_of
from jangin.runtime.executable import Executable
from jangin.targets import NAMED, Target, resolve
from jangin.targets.gpu import Gpu

HERE, MADE = resolve(), NAMED["x86-64-v3"]
GPU = replace(MADE, machine=Gpu())
SMALL = [F16, BF16]


class Weighted:
    """A float32 graph whose weights are numbers of a smaller type."""

    def __init__(self, dtype: DType) -> None:
        self.b, self.dtype = Builder("weighted", {}), dtype
        self.random = np.random.default_rng(0)

    def numbers(self, *shape: int) -> Array:
        """Return weights. bfloat16's are too large for f16."""
        scale = 2.0**20 if self.dtype is BF16 else 1
        numbers = self.random.standard_normal(shape) * scale
        return numbers.astype(self.dtype.numpy).astype(np.float32)

    def weight(self, *shape: int) -> Tensor:
        return self.b.const(self.numbers(*shape))

    def input(self, *shape: int) -> Tensor:
        return self.b.input("x", F32, tuple(const(d) for d in shape))

    def conv(self, x: Tensor, *weights: int, stride: int = 1, groups: int = 1) -> Tensor:
        pads, steps = (weights[-1] // 2,) * 4, (stride,) * 2
        w = self.weight(*weights)
        return self.b.conv(x, w, strides=steps, dilations=(1, 1), pads=pads, groups=groups)


def product(t: Weighted, rows: int, turned: bool = False) -> Tensor:
    w = t.weight(151, 131) if turned else t.weight(131, 151)
    return t.b.matmul(t.input(rows, 131), w, transpose_b=turned)


LAYERS = {
    **{f"{rows} rows": lambda t, rows=rows: product(t, rows) for rows in (1, 3, 8, 9, 37, 301)},
    "turned": lambda t: product(t, 37, True),
    "several": lambda t: t.b.matmul(t.input(3, 21, 97), t.weight(3, 97, 67)),
    "shared": lambda t: t.b.matmul(t.input(3, 21, 151), t.weight(151, 113)),
    "deep": lambda t: t.b.matmul(t.input(45, 1501), t.weight(1501, 19)),
    "pointwise": lambda t: t.conv(t.input(1, 129, 13, 15), 131, 129, 1, 1),
    "strided": lambda t: t.conv(t.input(1, 43, 13, 15), 45, 43, 3, 3, stride=2),
    "grouped": lambda t: t.conv(t.input(2, 86, 13, 15), 90, 43, 3, 3, groups=2),
    "of large windows": lambda t: t.conv(t.input(1, 70, 11, 9), 33, 70, 5, 5, stride=2),
}


@pytest.mark.sampled(4)
@pytest.mark.parametrize("dtype", SMALL, ids=str)
@pytest.mark.parametrize("layer", LAYERS)
def test_products_of_small_weights(layer: str, dtype: DType) -> None:
    t = Weighted(dtype)
    graph = t.b.graph([LAYERS[layer](t)], ["y"])
    x = t.random.standard_normal([int(str(d)) for d in graph.shape("x")]).astype(np.float32)
    exe = Executable(build(planned(graph, HERE), HERE), 1)
    weights = [a for a in planned(graph, MADE).constants.values() if a.size >= LEAST]
    assert [a.dtype for a in weights] == [dtype.numpy]
    wide = replace(graph, constants={n: a.astype(np.float64) for n, a in graph.constants.items()})
    want, got = run_graph(wide, {"x": x.astype(np.float64)})["y"], exe.run({"x": x})["y"]
    assert got.dtype == np.float32
    assert np.abs(got - want).max() <= 2e-6 * np.abs(want).max()


def planned(graph: Graph, target: Target) -> Plan:
    options = Options(target, verify=True)
    fused = optimize(graph, options)
    return make_plan(fused, schedule_kernels(fused, options), options)


def kept(graph: Graph, target: Target = MADE) -> set[np.dtype[np.generic]]:
    """Return the types of large constants after all passes."""
    done = optimize(graph, Options(target))
    return {a.dtype for a in done.constants.values() if a.size >= LEAST}


def test_other_numbers_stay_f32() -> None:
    t = Weighted(F32)
    assert kept(t.b.graph([product(t, 9)], ["y"])) == {np.dtype(np.float32)}
    t = Weighted(F16)
    w = t.numbers(131, 151)
    w[77, 3] += 2.0**-20
    assert half_of(w, MADE) is None
    assert kept(t.b.graph([t.b.matmul(t.input(9, 131), t.b.const(w))], ["y"])) == {np.dtype(np.float32)}


@pytest.mark.parametrize(("number", "dtype"), [(1.5, F16), (2.0**-24, F16), (1e38, None), (2.0**100, BF16)])
def test_the_type_that_has_a_number(number: float, dtype: DType | None) -> None:
    assert half_of(np.full(LEAST, number, np.float32), NAMED["x86-64-v3"]) is dtype


def test_processors_without_conversions_widen_bf16_alone() -> None:
    numbers = np.full(LEAST, 1 + 2.0**-10, np.float32)
    assert half_of(numbers, NAMED["x86-64-v2"]) is None
    assert half_of(numbers * 0 + 1.5, NAMED["x86-64-v2"]) is BF16


def test_bytes_stay_as_they_are() -> None:
    assert half_of(np.full(LEAST, -255, np.float32), MADE) is None


def test_weights_that_others_read_too_are_not_kept_twice() -> None:
    t = Weighted(F16)
    w = t.weight(131, 151)
    y = t.b.matmul(t.input(9, 131), w)
    scaled = t.b.map(lambda v, s: v * s, w, t.b.input("scale", F32, (const(151),)))
    assert kept(t.b.graph([y, scaled], ["y", "z"])) == {np.dtype(np.float32)}


@pytest.mark.parametrize(("rows", "dtype"), [(1, np.float16), (9, np.float32)])
def test_devices_with_work_groups_read_them_for_one_row_alone(rows: int, dtype: type) -> None:
    t = Weighted(F16)
    assert kept(t.b.graph([product(t, rows)], ["y"]), GPU) == {np.dtype(dtype)}
