"""ONNX's node tests on a WebGPU adapter. A sample runs always, and all run with `-m slow`."""

from __future__ import annotations

import functools
import tempfile
import unittest
from collections.abc import Callable
from typing import Any

import pytest
import test_onnx_backend as official
from on_adapter import NONE, usable

from jangin.ir.graph import CompileError

Test = Callable[[unittest.TestCase], Any]
STRIDE = 97
"""One test in so many is in the sample."""
FIRST = 41
"""The position of the sample's first test."""
LACKING = "has no numbers of 64 bits"
KERNELS = tempfile.TemporaryDirectory()
"""A cache of kernels, because many tests share kernels."""


class Backend(official.Backend):
    @classmethod
    def prepare(cls, model: Any, device: str = "CPU", **options: Any) -> Any:
        return super().prepare(model, device, target="webgpu", cache=KERNELS.name, **options)


def on(test: Test) -> Test:
    @functools.wraps(test)
    def run(self: unittest.TestCase) -> None:
        try:
            test(self)
        except CompileError as error:
            if LACKING not in str(error):
                raise
            pytest.skip("float64, which WGSL lacks")

    return run


def members() -> dict[str, Test]:
    tests = dict(vars(official.cases(Backend)["OnnxBackendNodeModelTest"]))
    names = sorted(n for n in tests if n.startswith("test_"))
    found = {}
    for place, name in enumerate(names):
        found[name] = on(tests[name])
        if place % STRIDE != FIRST:
            found[name] = pytest.mark.slow(found[name])
    return found


if usable():
    TestNodesWebGPU = type("TestNodesWebGPU", (unittest.TestCase,), members())


@pytest.mark.skipif(not usable(), reason=NONE)
def test_there_are_tests() -> None:
    assert sum(name.startswith("test_") for name in vars(TestNodesWebGPU)) > 1500
