"""The template `blocks`: products with weights of few bits in their blocks, at odd sizes, against float64."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from jangin.ir.core import Compute
from jangin.ir.dtype import F32
from jangin.ir.expr import Buffer, const
from jangin.ir.graph import Array, CompileError, Node
from jangin.ir.interpret import run_func
from jangin.ops.blocks import matmul_blocks
from jangin.ops.builder import Builder
from jangin.targets import NAMED, Target
from jangin.targets.gpu import Gpu
from jangin.templates.gpu import contraction
from jangin.templates.template import Workload
from jangin.templates.weight_blocks import match

GPU = replace(NAMED["x86-64-v3"], machine=Gpu(units=4, group=256, shared=16 << 10))


def weights(bits: int, rows: int, width: int, block: int, offset: bool) -> list[Array]:
    rng = np.random.default_rng(rows + width)
    low, high = (-8, 8) if bits == 4 else (-128, 128)
    numbers = rng.integers(low, high, (rows, width)).astype(np.int8)
    numbers[0, 0] = high - 1
    scales = [rng.normal(size=(rows, -(-width // block))).astype(np.float32) for _ in range(1 + offset)]
    return [numbers, *scales]


def product(x: Array, parts: Sequence[Array], block: int) -> tuple[Builder, Node, Array]:
    """Return a graph's builder and node of the product, and the result in float64."""
    b = Builder("test", {})
    given = b.input("x", F32, tuple(map(const, x.shape)))
    offset = parts[2] if len(parts) > 2 else None
    graph = b.graph([matmul_blocks(b, given, parts[0], parts[1], offset, block)], ["y"])
    (node,) = (n for n in graph.nodes if isinstance(n.attrs, Compute))
    numbers, factors, *offsets = (p.astype(np.float64) for p in parts)
    spread = [np.repeat(s, block, 1)[:, : x.shape[1]] for s in (factors, *offsets)]
    return b, node, x @ (numbers * spread[0] + sum(spread[1:])).T


@pytest.mark.sampled(4)
@pytest.mark.parametrize("offset", [False, True])
@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize(("rows", "width", "columns", "block"), [
    (1, 64, 27, 32), (3, 40, 7, 16), (7, 64, 25, 64), (2, 31, 9, 8),
])  # fmt: skip
def test_all_its_candidates(rows: int, width: int, columns: int, block: int, bits: int, offset: bool) -> None:
    check(rows, width, columns, block, bits, offset, NAMED["x86-64-v3"])


@pytest.mark.parametrize("offset", [False, True])
@pytest.mark.parametrize(
    ("width", "columns", "block", "bits"), [(40, 7, 16, 4), (31, 9, 8, 4), (31, 9, 8, 8)]
)
def test_by_work_groups(width: int, columns: int, block: int, bits: int, offset: bool) -> None:
    """The best candidate is tried, and a random one."""
    check(3, width, columns, block, bits, offset, GPU)


def check(rows: int, width: int, columns: int, block: int, bits: int, offset: bool, on: Target) -> None:
    x = np.random.default_rng(rows).normal(size=(rows, width)).astype(np.float32)
    b, node, want = product(x, weights(bits, columns, width, block, offset), block)
    constants = {f"x{i}": b.constants[n] for i, n in enumerate(node.inputs) if i}
    stages = node.of(Compute).stages
    buffers = [Buffer(n, *b.typed(v)) for n, v in zip(("x0", *constants), node.inputs, strict=True)]
    workload = Workload("k", stages, tuple(buffers), {}, tuple(constants), on)
    template = contraction.match(workload) if on is GPU else match(workload)
    assert template is not None
    space = sorted(template.space(), key=template.estimate)
    for params in [space[0], np.random.default_rng().choice(space[1:8])] if on is GPU else space:
        found = template.schedule(params)
        arrays = {n: found.packings[n].apply(a) for n, a in constants.items()}
        arrays |= {"x0": x, "out": np.full(want.shape, np.nan, np.float32)}
        run_func(found.func, arrays, {})
        np.testing.assert_allclose(arrays["out"], want, rtol=1e-4, atol=1e-4 * np.abs(want).max())


def test_small_weights_are_kept_small() -> None:
    """Weights take four bits, and float16 scales stay float16."""
    numbers, factors = weights(4, 8, 64, 32, False)
    halves = factors.astype(np.float16).astype(np.float32)
    b, node, _ = product(np.ones((1, 64), np.float32), [numbers, halves], 32)
    assert sum(b.constants[n].nbytes for n in node.inputs[1:]) == 8 * (64 // 2 + 2 * 2 * 2)


def test_factors_that_do_not_fit_are_refused() -> None:
    numbers, factors = weights(4, 8, 64, 32, False)
    with pytest.raises(CompileError, match="in blocks of 32"):
        product(np.ones((1, 64), np.float32), [numbers, factors[:5]], 32)
