"""ONNX's node tests on a WebGPU adapter, and as packages by Dawn in Node.

A sample runs always, and all run with `-m slow`. `benchmarks/webgpu_tests.py` keeps the counts."""

from __future__ import annotations

import functools
import tempfile
import unittest
from collections.abc import Callable
from typing import Any

import pytest
import test_onnx_backend as official
from on_adapter import NONE, usable
from on_dawn import NONE as NO_DAWN
from on_dawn import Dawn, DawnRep, folder

from jangin.ir.graph import CompileError

Test = Callable[[unittest.TestCase], Any]
STRIDE = 97
"""One test in so many is in the sample."""
FIRST = 41
"""The position of the sample's first test."""
REFUSED = {
    "has no numbers of 64 bits": "float64, which WGSL lacks",
    "steps that depend on its data": "a package has one plan, and the model runs in steps",
    "takes and gives tensors": "a package takes tensors, and no sequences or optional values",
    "aren't known": "a package has known sizes, and data decide these",
}
"""The rules by which models are refused: a part of the error's text, and the rule."""
KERNELS = tempfile.TemporaryDirectory()
"""A cache of kernels, because many tests share kernels."""


class Adapter(official.Backend):
    @classmethod
    def prepare(cls, model: Any, device: str = "CPU", **options: Any) -> Any:
        return super().prepare(model, device, target="webgpu", cache=KERNELS.name, **options)


class InDawn(official.Backend):
    dawn = functools.cache(Dawn)

    @classmethod
    def prepare(cls, model: Any, device: str = "CPU", **options: Any) -> Any:
        return DawnRep(model, cls.dawn())


def on(test: Test) -> Test:
    @functools.wraps(test)
    def run(self: unittest.TestCase) -> None:
        try:
            test(self)
        except CompileError as error:
            rules = [rule for text, rule in REFUSED.items() if text in str(error)]
            if not rules:
                raise
            pytest.skip(rules[0])

    return run


def members(backend: type[official.Backend]) -> dict[str, Test]:
    tests = dict(vars(official.cases(backend)["OnnxBackendNodeModelTest"]))
    names = sorted(n for n in tests if n.startswith("test_"))
    found = {}
    for place, name in enumerate(names):
        found[name] = on(tests[name])
        if place % STRIDE != FIRST:
            found[name] = pytest.mark.slow(found[name])
    return found


if usable():
    TestNodesWebGPU = type("TestNodesWebGPU", (unittest.TestCase,), members(Adapter))
if folder():
    TestNodesDawn = type("TestNodesDawn", (unittest.TestCase,), members(InDawn))


@pytest.mark.skipif(not usable(), reason=NONE)
def test_there_are_tests() -> None:
    assert sum(name.startswith("test_") for name in vars(TestNodesWebGPU)) > 1500


@pytest.mark.skipif(not folder(), reason=NO_DAWN)
def test_there_are_tests_of_dawn() -> None:
    assert sum(name.startswith("test_") for name in vars(TestNodesDawn)) > 1500
