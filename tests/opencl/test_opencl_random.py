"""Random ONNX models on each driver, with both kinds of schedules, against ONNX's ReferenceEvaluator in
double precision.

A few run always, and 40 of each kind with `-m slow`. A model takes 0.7 s of a core on either driver here,
mostly to build its kernels. So 200 of each kind would take 9 minutes. `tests/properties/test_gpu_plans.py`
plans a thousand, without drivers."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from on_device import SIMULATOR, usable

from jangin.runtime.devices.opencl_devices import Found
from jangin.targets import resolve

sys.path.insert(0, str(Path(__file__).parent.parent / "properties"))
import test_rounding
from test_onnx_graphs import LENGTHS, check

DEVICES = [d for d in usable() if d.platform != SIMULATOR]
WAYS = [(d, kind) for d in DEVICES for kind in ("cpu", "gpu")]
FEW, MANY = 4, 10
pytestmark = pytest.mark.skipif(not DEVICES, reason="no OpenCL device here: neither PoCL nor another driver")


@pytest.mark.parametrize(("device", "kind"), WAYS, ids=str)
def test_random_models(device: Found, kind: str) -> None:
    """Each device and kind of schedule has other models."""
    first = 300 + FEW * WAYS.index((device, kind))
    for seed in range(first, first + FEW):
        check(seed, LENGTHS[seed % len(LENGTHS)], f"opencl:{device.number}@{kind}")


@pytest.mark.parametrize(("device", "kind"), WAYS, ids=str)
def test_rounding_that_a_model_asks_for(device: Found, kind: str) -> None:
    """Some graphs of `test_rounding` give the same bits."""
    for seed in test_rounding.SEEDS[:3]:
        test_rounding.check(seed, test_rounding.on(resolve(f"opencl:{device.number}@{kind}")))


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, 40, MANY))
@pytest.mark.parametrize(("device", "kind"), WAYS, ids=str)
def test_many_random_models(device: Found, kind: str, first: int) -> None:
    for seed in range(first, first + MANY):
        check(seed, LENGTHS[seed % len(LENGTHS)], f"opencl:{device.number}@{kind}")
