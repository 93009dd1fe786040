"""Quantized layers on emulated Arm processors: the same integers as the interpreter's."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from test_emulated_kernels import execute

from jangin.compiler.build import build
from jangin.compiler.kernels import schedule_kernels
from jangin.compiler.pipeline import optimize
from jangin.compiler.plans import make_plan
from jangin.ir.dtype import F32, I8, U8
from jangin.ir.expr import const
from jangin.ir.graph import Array
from jangin.ops.builder import Builder
from jangin.ops.interpret import run_graph
from jangin.ops.quantized import integer_conv, quantize, requantize
from jangin.ops.values import Tensor
from jangin.options import Options
from jangin.targets import resolve

pytestmark = pytest.mark.sampled(3)

MACHINES = ("cortex-a72", "neoverse-n1", "neoverse-v1", "cortex-a7", "riscv64-v of 128 bits")


def layer(b: Builder, random: np.random.Generator, x: Tensor, zero: Tensor, outputs: int, depthwise: bool,
          signed: bool) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Return a quantized convolution with a bias, and its zero point."""
    dtype, channels = (I8 if signed else U8), int(str(x.shape[1]))
    kernel, stride = (int(random.choice([3, 5])), int(random.choice([1, 2]))) if depthwise else (1, 1)
    w = random.integers(-127, 127, (outputs, 1 if depthwise else channels, kernel, kernel), np.int8, True)
    if random.random() < 0.5:  # sums of products are as large as possible
        w = np.where(w < 0, -127, 127).astype(np.int8)
    sums = integer_conv(
        b, x, b.const(w), zero, strides=(stride,) * 2, pads=(kernel // 2,) * 4,
        groups=channels if depthwise else 1,
    )  # fmt: skip
    bias = random.integers(-5000, 5000, (outputs, 1, 1), np.int32)
    biased = b.map(lambda v, c: v + c, sums, b.const(bias))
    scale = random.uniform(2e-3, 1e-2, (outputs, 1, 1)).astype(np.float32)
    out_zero = b.scalar(
        int(random.integers(*dtype.limits)) if random.random() < 0.7 else dtype.limits[0], dtype
    )
    return requantize(b, biased, b.const(scale), out_zero), out_zero


@pytest.mark.sampled(12)
@pytest.mark.parametrize("signed", [False, True], ids=["u8", "i8"])
@pytest.mark.parametrize("channels", [None, 20, 48])
@pytest.mark.parametrize("machine", MACHINES)
def test_layers_are_exact(
    machine: str, channels: int | None, signed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Channels are whole vectors, a part of one, or any number (None)."""
    seed = int(np.random.default_rng().integers(1 << 30))
    random = np.random.default_rng(seed)
    count = channels or int(random.integers(1, 40))
    b = Builder("net", {})
    size = tuple(int(n) for n in random.integers(3, 15, 2))
    x = b.input("x", F32, tuple(const(n) for n in (1, count, *size)))
    zero = b.scalar(int(random.integers(0, 100)), I8 if signed else U8)
    y = quantize(b, x, b.scalar(0.03, F32), zero, dtype=I8 if signed else U8)
    for depthwise in (True, False, False):
        y, zero = layer(
            b, random, y, zero, count if depthwise else int(random.integers(1, 70)), depthwise, signed
        )
    graph = b.graph([y], ["out"])
    arrays: dict[str, Array] = {"x": 3 * random.standard_normal((1, count, *size), np.float32)}
    arrays["x"] *= 1000 if random.random() < 0.5 else 1  # nearly all numbers are the least or the largest
    options = Options(resolve(machine.split()[0]), verify=True)
    fused = optimize(graph, options)
    plan = make_plan(fused, schedule_kernels(fused, options), options)
    got = execute(machine, build(plan, options.target), arrays, tmp_path, monkeypatch)
    np.testing.assert_array_equal(got, run_graph(graph, arrays)["out"], err_msg=f"seed {seed}")
