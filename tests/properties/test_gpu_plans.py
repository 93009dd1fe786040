"""Random ONNX models are planned for a device with work-groups. A template makes each kernel, and the
verifier accepts the kernels of known sizes.

No device is needed. (`tests/opencl` runs some models on drivers.)"""

from __future__ import annotations

from dataclasses import replace

import pytest
from onnx_operators import random_net
from repeatable import repeated_by
from templates.test_gpu import TARGET
from test_onnx_graphs import LENGTHS

from jangin.compiler.pipeline import plan_model
from jangin.ir.groups import grouped
from jangin.ir.loop import Block
from jangin.ir.verify import verify_func
from jangin.options import Options

ON = replace(TARGET, backend="opencl", features="+fp64")
FEW, MANY = 80, 1000


def check(seed: int) -> None:
    net = random_net(seed, LENGTHS[seed % len(LENGTHS)])
    if net.steps:
        symbolic = any("n" in shape for shape in net.symbolic.values())
        planned = plan_model(net.model(), Options(ON, {"n": (0, 64)} if symbolic else {}))
        for func in {f.name: f for plan in planned.plans for f in plan.kernels.values()}.values():
            if not func.symbols:  # the verifier can't prove that symbolic offsets differ
                verify_func(func)
            assert grouped(func) or func.body == Block(())  # an empty kernel has no groups


@pytest.mark.parametrize("first", range(60, 60 + FEW, 20))
def test_random_models(first: int) -> None:
    for seed in range(first, first + 20):
        with repeated_by(f"check({seed})"):
            check(seed)


@pytest.mark.slow
@pytest.mark.parametrize("first", range(1000, 1000 + MANY, 100))
def test_many_random_models(first: int) -> None:
    for seed in range(first, first + 100):
        with repeated_by(f"check({seed})"):
            check(seed)
