"""No masked access of a kernel in OpenCL C writes beyond the active lanes (see `tests/instr`)."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from accesses import START, Case, numbers, some_cases
from on_device import built, call, usable

from jangin.ir.graph import Array
from jangin.ir.interpret import size
from jangin.runtime.devices.opencl_devices import Found
from jangin.targets.opencl import ROWS
from jangin.targets.x86 import V3

DEVICES = usable()
SEED = int(np.random.SeedSequence().generate_state(1)[0])
pytestmark = pytest.mark.skipif(not DEVICES, reason="no OpenCL device here: neither PoCL nor another driver")


@pytest.mark.sampled(2)
@pytest.mark.parametrize("count", [4, pytest.param(600, marks=pytest.mark.slow)])
@pytest.mark.parametrize("device", DEVICES, ids=lambda d: d.platform)
def test_masked_accesses(device: Found, count: int) -> None:
    print(f"seed {SEED}")
    target = replace(V3, rows=ROWS, features=",".join(f"+{f}" for f in device.features))
    cases = [*some_cases(target, np.random.default_rng(SEED), count)]
    program = built([c.func() for c in cases], target, device)
    for case in cases:
        got = written(case, program, device)
        wrong = np.flatnonzero(got != case.wanted())
        assert not len(wrong), f"{case} leaves byte {wrong[0]} of {len(got)} wrong"


def written(case: Case, program: object, device: Found) -> Array:
    """Run a kernel and return what it writes. Buffers have the declared sizes, and written buffers end with
    guards."""
    func, out = case.func(), case.blank()
    places = {"plain": numbers(case.other), "pages": numbers(case.memory), "table": case.places(), "out": out}
    regions = {name: array.reshape(-1).view(np.uint8) for name, array in places.items()}
    for value, found in case.calls():
        parts = {}
        for p, (region, at) in zip(func.params, found, strict=True):
            length = p.dtype.bytes * int(np.prod([size(d, {"N": value}) for d in p.shape]))
            guards = START if region == "out" and not case.loads else 0
            parts[p.name] = regions[region][at : at + length + guards]
        arrays = {name: part.copy() for name, part in parts.items()}
        for name, array in call(program, device, func, arrays, {"N": value}, 1).items():
            parts[name][:] = array
    return out
