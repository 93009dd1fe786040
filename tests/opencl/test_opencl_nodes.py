"""ONNX's node tests on each driver, with schedules for processors and for work-groups.

A sample runs always, and all tests run with `-m slow`. `tests/conformance` lists tests that are left out, and
why."""

from __future__ import annotations

import functools
import sys
import tempfile
import unittest
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from on_device import SIMULATOR, usable

from jangin.ir.graph import CompileError

sys.path.insert(0, str(Path(__file__).parent.parent / "conformance"))
import test_onnx_backend as official

Test = Callable[[unittest.TestCase], Any]
STRIDE = 311
"""One of so many tests is in the sample. Each device and kind of schedule has another sample."""
LACKING = "has no numbers of 64 bits"
KERNELS = tempfile.TemporaryDirectory()
"""A cache of kernels. Many tests share kernels, and drivers need most of the time to build them."""


class Backend(official.Backend):
    target = ""

    @classmethod
    def prepare(cls, model: Any, device: str = "CPU", **options: Any) -> Any:
        return super().prepare(model, device, target=cls.target, cache=KERNELS.name, **options)


def on(target: str, test: Test) -> Test:
    @functools.wraps(test)
    def run(self: unittest.TestCase) -> None:
        Backend.target = target
        try:
            test(self)
        except CompileError as error:
            if LACKING not in str(error):
                raise
            pytest.skip(str(error))

    return run


def groups() -> dict[str, type[unittest.TestCase]]:
    """Return a class of tests for each device and kind of schedule."""
    devices = [d for d in usable() if d.platform != SIMULATOR]
    if not devices:
        return {}
    tests = dict(vars(official.cases(Backend)["OnnxBackendNodeModelTest"]))
    names = sorted(n for n in tests if n.startswith("test_"))
    made = {}
    for n, (device, kind) in enumerate((d, k) for d in devices for k in ("cpu", "gpu")):
        target = f"opencl:{device.number}@{kind}"
        members = {}
        for place, name in enumerate(names):
            members[name] = on(target, tests[name])
            if place % STRIDE != 71 * (n + 1) % STRIDE:
                members[name] = pytest.mark.slow(members[name])
        title = f"TestNodes{device.platform.split()[0].partition('(')[0]}{kind.capitalize()}"
        made[title] = type(title, (unittest.TestCase,), members)
    return made


globals().update(groups())


@pytest.mark.skipif(not usable(), reason="no OpenCL device here: neither PoCL nor another driver")
def test_there_are_tests_for_each_device() -> None:
    assert sum(name.startswith("TestNodes") for name in globals()) >= 2
