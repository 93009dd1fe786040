"""The benchmarks' models on each driver, with both kinds of schedules, against native code."""

from __future__ import annotations

import sys
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from on_device import SIMULATOR, usable

import jangin
from jangin.bench.arrays import random_array
from jangin.runtime.devices.opencl_devices import Found

sys.path.insert(0, str(Path(__file__).parent.parent.parent / "benchmarks"))
from catalogue import CATALOGUE, Model

DEVICES = [d for d in usable() if d.platform != SIMULATOR]
CLOSE = {"cpu": 1e-5, "gpu": 1e-4}
"""The largest difference, as a share of the largest value. The schedules add in different orders."""
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not DEVICES, reason="no OpenCL device here: neither PoCL nor another driver"),
]


@cache
def native(name: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return a model's inputs, and native code's results."""
    model: Model = CATALOGUE[name]
    exe = jangin.compile(model.path)
    rng = np.random.default_rng(0)
    feeds = {}
    for spec in exe.inputs:
        shape = [d if isinstance(d, int) else model.sizes[str(d)] for d in spec.shape]
        feeds[spec.name] = random_array(rng, spec.dtype, shape, "mask" in spec.name)
    return feeds, exe.run(feeds)


@pytest.mark.parametrize("kind", CLOSE)
@pytest.mark.parametrize("device", DEVICES, ids=lambda d: d.platform)
@pytest.mark.parametrize("name", [n for n, m in CATALOGUE.items() if m.batch == 1])
def test_a_model(name: str, device: Found, kind: str) -> None:
    if not CATALOGUE[name].path.exists():
        pytest.skip(f"{CATALOGUE[name].path.name} isn't exported: python benchmarks/make_models.py")
    feeds, expected = native(name)
    made = jangin.compile(CATALOGUE[name].path, f"opencl:{device.number}@{kind}").run(feeds)
    for output, want in expected.items():
        scale = float(np.abs(want).max(initial=1e-30))
        np.testing.assert_allclose(made[output], want, rtol=0, atol=CLOSE[kind] * scale)
