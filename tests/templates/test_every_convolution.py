"""Every convolution has a schedule on every target, for groups, channels, outputs, kernels and sizes that
don't divide one another. Schedules need no machine, so that each host plans for all targets."""

from __future__ import annotations

from random import Random
from typing import Any

import numpy as np
import pytest
from repeatable import repeated_by

from jangin.compiler.kernels import schedule_kernels
from jangin.compiler.pipeline import optimize
from jangin.ir.dtype import BF16, F16, F32, F64, I8, I32, U8
from jangin.ir.expr import const
from jangin.ops.builder import Builder
from jangin.ops.quantized import integer_conv
from jangin.options import Options
from jangin.targets import NAMED
from jangin.templates.choose import TEMPLATES
from jangin.templates.contraction import Contraction
from jangin.templates.micro import ByLanes

from .kernels import assert_equal_to_stages, conv, workload

DTYPES = (F32, F16, BF16, I8, F64, I32)
SHARED = ((2, 2), (2, 1), (4, 2), (8, 2), (4, 4), (8, 1))
"""Groups, and outputs of each group. Several groups fill a vector."""


def drawn(seed: int, target: str, shared: bool) -> dict[str, Any]:
    """Draw a convolution that fits its image."""
    r = Random(f"{seed} {target}")
    groups, outputs = r.choice(SHARED) if shared else (r.choice((1, 2, 3, 7)), r.choice((1, 3, 4, 5, 16, 20)))
    kernel, dilation = r.choice((1, 2, 3, 3, 5)), r.choice((1, 1, 2))
    pad = r.choice((0, kernel // 2))
    least = max(1, (kernel - 1) * dilation + 1 - 2 * pad)
    return {
        "target": target, "dtype": r.choice(DTYPES), "groups": groups, "outputs": outputs, "kernel": kernel,
        "channels": r.choice((1, 2, 3, 5, 8, 14, 16, 28, 33)), "pad": pad, "dilation": dilation,
        "stride": r.choice((1, 1, 2)),
        "size": [max(least, r.choice((1, 3, 7, 14, 17, 32))) for _ in range(2)],
    }  # fmt: skip


def scheduled(case: dict[str, Any]) -> None:
    """Check that the best candidate schedules each kernel."""
    groups, kernel, channels, dtype = (case[n] for n in ("groups", "kernel", "channels", "dtype"))
    b = Builder("one", {})
    x = b.input("x", U8 if dtype is I8 else dtype, tuple(map(const, (1, channels * groups, *case["size"]))))
    w = b.const(np.ones((groups * case["outputs"], channels, kernel, kernel), dtype.numpy))
    strides, dilations = (case["stride"],) * 2, (case["dilation"],) * 2
    given = {"strides": strides, "dilations": dilations, "pads": (case["pad"],) * 4, "groups": groups}
    y = integer_conv(b, x, w, b.scalar(7, U8), **given) if dtype is I8 else b.conv(x, w, **given)
    options = Options(NAMED[case["target"]])
    schedule_kernels(optimize(b.graph([y], ["y"]), options), options)


def check(first: int, count: int, target: str) -> None:
    for seed in range(first, first + count):
        case = drawn(seed, target, seed % 2 == 0)
        with repeated_by(f"scheduled(drawn({seed}, {target!r}, {seed % 2 == 0})), which is {case}"):
            scheduled(case)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("target", NAMED)
def test_some_convolutions(target: str) -> None:
    check(0, 4, target)


@pytest.mark.slow
@pytest.mark.parametrize("target", NAMED)
def test_many_convolutions(target: str) -> None:
    check(100, 150, target)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("target", ["neoverse-v1", "cortex-a7", "x86-64-v4"])
def test_candidates_of_groups_that_share_vectors(target: str) -> None:
    """Tuning may take any candidate. No lane multiplies a whole vector, as the lanes' groups differ."""
    built = conv((7, 8), 56, 16, 3, groups=8)
    found = TEMPLATES["contraction"](workload(built, {}, ["w"], NAMED[target]))
    assert isinstance(found, Contraction) and found.role.shared and not isinstance(found.micro, ByLanes)
    for params in found.space():
        made = found.schedule(params)
        if params in found.space()[:2]:
            assert_equal_to_stages(made, built)
