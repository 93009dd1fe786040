"""The same kernels in OpenCL C, on each driver, and in LLVM IR give the same bits."""

from __future__ import annotations

import re
from dataclasses import replace
from types import ModuleType

import numpy as np
import pytest
import test_c_kernels
from on_device import built, usable
from on_device import call as run_kernel

from jangin.backends.opencl.backend import source
from jangin.backends.walk.math import expansion
from jangin.ir.dtype import F32
from jangin.ir.expr import Binary, Buffer, Call, Load, Var, call, const
from jangin.ir.interpret import run_func
from jangin.ir.loop import For, Func, Store, expressions, statements
from jangin.ir.parse import parse_func
from jangin.ir.traversal import walk
from jangin.ir.words import INTRINSICS
from jangin.runtime.devices.opencl_devices import Found
from jangin.targets.opencl import ROWS
from jangin.targets.x86 import V3

DEVICES = usable()
ULPS = 20
"""The most units in the last place by which functions may be off. OpenCL C allows 16 for pow, and the other
library adds the rest."""
pytestmark = pytest.mark.skipif(not DEVICES, reason="no OpenCL device here: neither PoCL nor another driver")


@pytest.mark.sampled(4)
@pytest.mark.parametrize("device", DEVICES, ids=lambda d: d.platform)
@pytest.mark.parametrize("module", test_c_kernels.MODULES, ids=lambda m: m.__name__)
def test_kernels_of_other_tests(module: ModuleType, device: Found, monkeypatch: pytest.MonkeyPatch) -> None:
    on, ran = test_c_kernels.kernels_of(module, monkeypatch)
    target = replace(on, rows=ROWS, features=",".join(f"+{f}" for f in device.features))
    program = built([func for func, _, _ in ran], target, device)
    for func, (arrays, symbols), want in ran:
        got = run_kernel(program, device, func, arrays, symbols, 2)
        if calls_library(func):
            for name, value in want.items():
                close = ULPS * np.finfo(value.dtype).eps if value.dtype.kind == "f" else 0
                np.testing.assert_allclose(got[name], value, rtol=close)
        else:
            test_c_kernels.assert_same_bits(got, want, func)


ADDS = """func adds(x: T[8], bigger: out bool[8], half: out T[8]) {
  KIND i in 8 {
    bigger[i] = (x[i] + T(1)) > x[i]
    half[i] = (x[i] * T(2)) // T(2)
  }
}"""


@pytest.mark.parametrize("device", DEVICES, ids=lambda d: d.platform)
@pytest.mark.parametrize("loop", ["serial", "vector"])
@pytest.mark.parametrize("kind", ["i8", "i16", "i32", "i64"])
def test_integers_wrap(kind: str, loop: str, device: Found) -> None:
    """The sum of the largest integer and 1 is the smallest one, though C leaves it open."""
    func = parse_func(re.sub(r"\bT\b", kind, ADDS).replace("KIND", loop))
    info = np.iinfo(f"int{kind[1:]}")
    x = np.array([info.max, info.min, 0, -1, info.max - 1, 1, info.max, 5], info.dtype)
    program = built([func], replace(V3, rows=ROWS), device)
    made = {"x": x, "bigger": np.zeros(8, bool), "half": np.zeros(8, x.dtype)}
    want = {name: array.copy() for name, array in made.items()}
    run_func(func, want, {})
    got = run_kernel(program, device, func, made, {}, 2)
    for name in ("bigger", "half"):
        np.testing.assert_array_equal(got[name], want[name])


def test_a_loop_of_more_lanes_than_vectors_have_is_cut_into_vectors() -> None:
    """A loop over four of the processor's vectors is cut, because OpenCL C's vectors have at most 16
    lanes."""
    x, y, i, n = Buffer("x", F32, (const(64),)), Buffer("y", F32, (const(64),)), Var("i"), Var("n")
    place = (n * 32 + i,)
    body = Store(y, place, call("exp", Load(x, place)))
    func = Func("k", (x, y), 1, (), For(n, const(2), For(i, const(32), body, "vector")))
    text = source(func, replace(V3, rows=ROWS))
    assert text.count("for (") == 1  # the only loop is over n
    assert len(re.findall(r"const f32x8 v\d+ = \*\(", text)) == 4


def calls_library(func: Func) -> bool:
    """Return whether a kernel calls a driver's own functions, which may round differently."""
    nodes = [n for s in statements(func.body) for e in expressions(s) for n in walk(e)]
    return any(
        (isinstance(n, Binary) and n.op == "pow")
        or (isinstance(n, Call) and n.fn in INTRINSICS and expansion(n.fn, n.dtype) is None)
        for n in nodes
    )
