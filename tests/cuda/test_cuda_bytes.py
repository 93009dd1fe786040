"""Products of bytes in fours, by one instruction on every GPU (`dp4a`), or by tensor cores. Their sums are
exact."""

from __future__ import annotations

from typing import Any

import alone
import machine
import mocked
import numpy as np
import pytest
from test_cuda_warps import of_product

from jangin.backends.cuda.backend import source
from jangin.compiler.build import build
from jangin.compiler.kernels import kernel_workload, schedule_kernels
from jangin.compiler.pipeline import optimize
from jangin.compiler.plans import make_plan
from jangin.ir.core import Conv, Kernel, MatMul
from jangin.ir.dtype import I8, I32, U8, DType
from jangin.ir.expr import const
from jangin.ir.graph import Graph
from jangin.ir.interpret import size
from jangin.ir.products import DOT4U
from jangin.ir.verify import verify_func
from jangin.ops.builder import Builder
from jangin.ops.interpret import run_graph
from jangin.options import Options
from jangin.runtime.executable import Executable
from jangin.targets import resolve
from jangin.templates.gpu import warps

pytestmark = mocked.needed


def product(kind: DType, rows: int, terms: int, columns: int) -> Graph:
    b, rng = Builder("net", {}), np.random.default_rng(terms)
    x = b.input("x", kind, (const(rows), const(terms)))
    w = b.const(rng.integers(-128, 128, (terms, columns)).astype(np.int8))
    return b.graph([b.matmul(x, w, dtype=I32)], ["y"])


def window(kind: DType, channels: int, outputs: int, size: int, kernel: int, stride: int) -> Graph:
    b, rng = Builder("net", {}), np.random.default_rng(channels)
    x = b.input("x", kind, tuple(map(const, (2, channels, size, size + 1))))
    w = b.const(rng.integers(-128, 128, (outputs, channels, kernel, kernel)).astype(np.int8))
    pads = (kernel // 2,) * 4
    return b.graph([b.conv(x, w, strides=(stride,) * 2, dilations=(1, 1), pads=pads, dtype=I32)], ["y"])


NETS = {
    "product": lambda kind: product(kind, 33, 64, 40),
    "odd product": lambda kind: product(kind, 5, 37, 19),
    "one row": lambda kind: product(kind, 1, 260, 24),
    "window": lambda kind: window(kind, 16, 24, 7, 3, 1),
    "odd window": lambda kind: window(kind, 7, 9, 8, 3, 2),
}


@pytest.mark.slow  # the C++ compiler takes seconds for each kernel
@pytest.mark.sampled(3)
@pytest.mark.parametrize("kind", [U8, I8], ids=str)
@pytest.mark.parametrize("net", NETS)
def test_sums_of_bytes_are_exact(net: str, kind: DType, driver: Any) -> None:
    """All numbers that a byte can have are multiplied, the least and the greatest too."""
    graph, options = NETS[net](kind), Options(resolve("cuda"), verify=True)
    (low, high), shape = kind.limits, [int(str(d)) for d in graph.shape("x")]
    x = np.random.default_rng().integers(low, high + 1, shape).astype(kind.numpy)
    x.flat[:2] = low, high
    (want,) = run_graph(graph, {"x": x}).values()
    made = optimize(graph, options)
    artifact = build(make_plan(made, schedule_kernels(made, options), options), options.target)
    for order in (0, 5):
        driver.mock_order(order)
        np.testing.assert_array_equal(Executable(artifact)(x), want)


MATRICES = {
    "whole": lambda kind: product(kind, 64, 256, 64),
    "odd": lambda kind: product(kind, 33, 148, 41),
    "long": lambda kind: product(kind, 17, 1100, 40),
    "window": lambda kind: window(kind, 32, 24, 7, 3, 1),
    "strided": lambda kind: window(kind, 20, 17, 8, 3, 2),
}


@pytest.mark.slow  # the C++ compiler takes seconds for each kernel
@pytest.mark.sampled(3)
@pytest.mark.parametrize("kind", [U8, I8], ids=str)
@pytest.mark.parametrize("name", MATRICES)
def test_matrices_of_bytes_are_exact(name: str, kind: DType, driver: Any) -> None:
    """Tensor cores multiply words of four bytes. The words have all bytes, the least and the greatest too."""
    options, rng = Options(resolve("cuda:sm_80"), verify=True), np.random.default_rng()
    made = optimize(MATRICES[name](kind), options)
    node = next(n for n in made.nodes if of_product(n))
    _, wanted, _ = kernel_workload(node, made, options)
    template = warps.match(wanted)
    assert template is not None
    space = template.space()
    shared = [q for q in space if "share" in q]
    for params in (min(space, key=template.estimate), space[rng.integers(len(space))], *shared[-1:]):
        func = template.schedule(params).func
        verify_func(func)
        text = source(func, options.target)
        assert (
            "mma_u8(" in text and "load_matrices<4, false>(" in text and "load_matrices<4, true>" not in text
        )
        arrays = {}
        for p in func.params:
            low, high = p.dtype.limits
            arrays[p.name] = rng.integers(low, high, [size(d, {}) for d in p.shape], p.dtype.numpy, True)
        native = machine.run(func, arrays, {}, machine.target(machine.runnable()[0]))
        out = func.results[0].name
        for groups in (1 << 20, 1):
            for got in alone.Program([func], options.target).run(func, arrays, {}, groups, driver):
                np.testing.assert_array_equal(got[out], native[out], err_msg=str(params))


@pytest.mark.parametrize("target", ["cuda:sm_62", "cuda:sm_75", "cuda:sm_90a"])
@pytest.mark.parametrize("kind", [U8, I8], ids=str)
@pytest.mark.parametrize("net", ["product", "window"])
def test_bytes_are_multiplied_in_fours(net: str, kind: DType, target: str) -> None:
    made = optimize(NETS[net](kind), Options(resolve(target)))
    bodies = [n.of(Kernel).body for n in made.nodes if isinstance(n.attrs, Kernel)]
    dots = [n.attrs.dot for b in bodies for n in b.nodes if isinstance(n.attrs, (Conv, MatMul))]
    assert dots == [DOT4U]
