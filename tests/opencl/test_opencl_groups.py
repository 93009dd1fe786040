"""Kernels for work-groups on each driver, and in Oclgrind.

Oclgrind simulates a device. It finds races, barriers that not all work-items reach, reads of unwritten
memory, and accesses outside of memory."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import machine
import numpy as np
import onnx
import pytest
from on_device import SIMULATOR, built, call, usable
from onnx import TensorProto, helper, numpy_helper
from templates.kernels import matmul, packed, random_inputs, workload
from templates.test_gpu import KERNELS, TARGET, asked

import jangin
from jangin.backends.clike.module import emit_kernels
from jangin.backends.opencl.backend import GROUPED
from jangin.backends.opencl.check import native
from jangin.backends.walk.math import expansion
from jangin.compiler.pipeline import plan_model
from jangin.ir.dtype import DType
from jangin.ir.expr import Call
from jangin.ir.graph import Array
from jangin.ir.groups import barriers
from jangin.ir.kernel import rounds, scratch_bytes
from jangin.ir.loop import Func, expressions, statements
from jangin.ir.traversal import walk
from jangin.options import Options
from jangin.runtime.devices import opencl_programs
from jangin.runtime.devices.opencl_devices import Found
from jangin.runtime.devices.opencl_programs import build_program
from jangin.targets import NAMED, Target
from jangin.targets.opencl import ROWS
from jangin.templates.gpu import contraction
from jangin.templates.gpu.table import TEMPLATES

DEVICES = [d for d in usable() if d.platform != SIMULATOR]
DRIVER = Path("/usr/lib/oclgrind/liboclgrind-rt-icd.so")
ON = next(n for n in reversed(machine.runnable()) if NAMED.get(n))
ULPS = 20
"""The most units in the last place by which a driver's functions may be off (see `test_opencl_kernels`)."""
SOME = ("product", "softmax", "sum", "pool", "symbolic", "attention")


def target(device: Found) -> Target:
    return replace(TARGET, rows=ROWS, features=",".join(f"+{f}" for f in device.features))


def made(name: str, n: int) -> Iterator[tuple[Func, dict[str, Array], dict[str, int]]]:
    """Yield a kernel of each template that fits, with its best parameters, and with arguments for size
    `n`."""
    wanted = asked(name)
    for match in TEMPLATES.values():
        template = match(wanted)
        if template is not None:
            scheduled = template.schedule(min(template.space(), key=template.estimate))
            sizes = {v.name: n for v in wanted.symbols}
            given = packed(scheduled, random_inputs(KERNELS[name][0][1], sizes, n))
            out = scheduled.func.results[0]
            shape = [sizes.get(str(d)) or int(str(d)) for d in out.shape]
            yield scheduled.func, given | {out.name: np.full(shape, np.nan, np.float32)}, sizes


def calls_library(func: Func) -> bool:
    nodes = [n for s in statements(func.body) for e in expressions(s) for n in walk(e)]
    return any(isinstance(n, Call) and expansion(n.fn, n.dtype) is None for n in nodes)


def run_on(device: Found, names: list[str]) -> None:
    """Run kernels of one program, with a group for each task and with one group, and compare with native
    code.

    The kernels with the most scratch memory come first. Oclgrind keeps what it knows of a buffer's bytes for
    the next buffer of that number, which is then not larger."""
    cases = [c for name in names for c in made(name, 5)]
    cases.sort(key=lambda c: str(scratch_bytes(c[0], groups=True)) == "0")
    funcs = [replace(func, name=f"k{n}") for n, (func, _, _) in enumerate(cases)]
    program = built(funcs, target(device), device)
    for func, (plain, given, sizes) in zip(funcs, cases, strict=True):
        want = machine.run(plain, given, sizes, machine.target(ON))
        for groups in (1 << 20, 1):
            got = call(program, device, func, given, sizes, groups)
            close = ULPS * float(np.finfo(np.float32).eps) if calls_library(func) else 2e-6
            for name, value in want.items():
                np.testing.assert_allclose(got[name], value, rtol=close, atol=2e-6, err_msg=str(func))


def floats(*shape: int) -> np.ndarray:
    return np.random.default_rng(len(shape)).standard_normal(shape).astype(np.float32) / 4


def numbers(dtype: DType, *shape: int) -> np.ndarray:
    """Return numbers of a type. Integers have at most half of the type's bits."""
    if dtype.numpy.kind == "f":
        return floats(*shape).astype(dtype.numpy)
    return np.random.default_rng(len(shape)).integers(0, 1 << dtype.bits // 2, shape).astype(dtype.numpy)


def network(op: str, shape: tuple[int, ...], weights: list[np.ndarray], **attrs: Any) -> onnx.ModelProto:
    """Make a model of one node with constant weights."""
    names = [f"w{n}" for n in range(len(weights))]
    ends = [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in (("x", shape), ("y", None))]
    constants = [numpy_helper.from_array(w, n) for w, n in zip(weights, names, strict=True)]
    node = helper.make_node(op, ["x", *names], ["y"], **attrs)
    graph = helper.make_graph([node], "g", ends[:1], ends[1:], constants)
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


def recurrence(op: str, gates: int, sizes: tuple[int, int, int], **attrs: Any) -> onnx.ModelProto:
    """Make a recurrent layer. `sizes` has the batch, the hidden size, and the number of directions."""
    batch, hidden, directions = sizes
    rows = gates * hidden
    weights = [floats(directions, rows, 7), floats(directions, rows, hidden), floats(directions, 2 * rows)]
    return network(op, (3, batch, 7), weights, hidden_size=hidden, **attrs)


def blocks() -> onnx.ModelProto:
    """Make a product with 4-bit weights in blocks of 16."""
    weights = np.random.default_rng(0).integers(0, 256, (9, 3, 8)).astype(np.uint8)
    attrs = {"K": 48, "N": 9, "bits": 4, "block_size": 16, "domain": "com.microsoft"}
    return network("MatMulNBits", (21, 48), [weights, floats(27)], **attrs)


NETWORKS: dict[str, tuple[str, Callable[[], onnx.ModelProto]]] = {
    "lstm": ("nest", lambda: recurrence("LSTM", 4, (3, 21, 2), direction="bidirectional")),
    "gru": ("nest", lambda: recurrence("GRU", 3, (1, 37, 1), linear_before_reset=0)),
    "winograd": ("nest", lambda: network("Conv", (1, 20, 13, 11), [floats(24, 20, 3, 3)], pads=[1] * 4)),
    "blocks": ("contraction", blocks),
}
"""Models, each with the template that makes at least one of its kernels."""


@pytest.mark.skipif(not DEVICES, reason="no OpenCL device here: neither PoCL nor another driver")
@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("device", DEVICES, ids=lambda d: d.platform)
def test_networks(device: Found, name: str) -> None:
    """Kernels that came as loop nests have several work-items in a group, too. The results are native
    code's."""
    template, make = NETWORKS[name]
    model = make()
    exe = jangin.compile(model, f"opencl:{device.number}@gpu", cache=False)
    made = [launch for launch in exe.plan.launches if launch.template.startswith(template)]
    assert made and all(launch.local[0] > 16 for launch in made)
    x = floats(*(int(str(d)) for d in exe.inputs[0].shape))
    np.testing.assert_allclose(exe(x), jangin.compile(model, cache=False)(x), rtol=1e-4, atol=1e-5)


@pytest.mark.skipif(not DEVICES, reason="no OpenCL device here: neither PoCL nor another driver")
@pytest.mark.parametrize("device", DEVICES, ids=lambda d: d.platform)
def test_drivers(device: Found) -> None:
    run_on(device, list(SOME))


@pytest.mark.slow
@pytest.mark.skipif(not DEVICES, reason="no OpenCL device here: neither PoCL nor another driver")
@pytest.mark.parametrize("device", DEVICES, ids=lambda d: d.platform)
def test_drivers_all(device: Found) -> None:
    run_on(device, [n for n in KERNELS if n not in SOME])


# --- the simulated device

simulated = pytest.mark.skipif(
    not DRIVER.exists() or not DEVICES, reason="Oclgrind (Debian's package) or pyopencl isn't here"
)


def simulate(tmp_path: Path, what: str, *arguments: str) -> str:
    """Call one of this file's functions in another process, under Oclgrind, and return Oclgrind's report."""
    (tmp_path / "oclgrind.icd").write_text(f"{DRIVER}\n")
    here = Path(__file__).resolve().parent
    env = os.environ | {
        "OCL_ICD_VENDORS": str(tmp_path), "OCLGRIND_DATA_RACES": "1", "OCLGRIND_UNINITIALIZED": "1",
        "OCLGRIND_MAX_ERRORS": "20",
        "PYTHONPATH": os.pathsep.join([str(here), *filter(None, sys.path)]),
    }  # fmt: skip
    text = f"import test_opencl_groups as t; t.as_written(); t.{what}(*{arguments!r})"
    done = subprocess.run([sys.executable, "-c", text], env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stderr


def as_written() -> None:
    """Have programs built without optimizations, because Oclgrind can't run all optimized code."""
    opencl_programs.OPTIONS += ("-cl-opt-disable",)


def all_kernels(*names: str) -> None:
    """Run kernels on the simulated device. It is called in Oclgrind's process."""
    (device,) = [d for d in usable() if d.platform == SIMULATOR]
    run_on(device, list(names))


def networks(*names: str) -> None:
    """Run all kernels of networks on the simulated device, against native code. It is called in Oclgrind's
    process."""
    (device,) = [d for d in usable() if d.platform == SIMULATOR]
    options = Options(replace(TARGET, backend="opencl"))
    plans = [plan for name in names for plan in plan_model(NETWORKS[name][1](), options).plans]
    funcs = [func for plan in plans for func in plan.kernels.values()]
    assert any(str(rounds(func)) != "1" for func in funcs)
    for func in funcs:
        arrays = {p.name: numbers(p.dtype, *(int(str(d)) for d in p.shape)) for p in func.params}
        got = call(built([func], target(device), device), device, func, arrays, {}, 1 << 20)
        for name, value in native(func, arrays, {}).items():
            np.testing.assert_allclose(got[name], value, rtol=1e-5, atol=1e-5, err_msg=str(func))


def tiled(ahead: int) -> tuple[Func, dict[str, Array], dict[str, int]]:
    """Return a product of several tiles and panels. `ahead` says whether panels are fetched ahead."""
    built_of = matmul((20, 20), (20, 20))
    product = contraction.match(workload(built_of, target=TARGET))
    assert product is not None
    func = product.schedule({"ty": 4, "tx": 4, "tm": 2, "tn": 4, "bk": 8, "ahead": ahead}).func
    return func, {**random_inputs(built_of[1], {}, 0), "out": np.zeros((20, 20), np.float32)}, {}


def without_barrier(ahead: str, number: str) -> None:
    """Run a product on the simulated device without its barrier of a `number`. -1 leaves all barriers in."""
    (device,) = [d for d in usable() if d.platform == SIMULATOR]
    func, given, sizes = tiled(int(ahead))
    wait = f"  {GROUPED.groups.barrier};"
    parts = emit_kernels([func], target(device), GROUPED).replace(" restrict ", " ").split(wait)
    cut = int(number) + 1
    text = wait.join(parts[:cut]) + wait * (not cut) + wait.join(parts[cut:])
    text = text.removeprefix(wait)
    call(build_program(device, text.encode()), device, func, given, sizes, 1)


REPORTS = ("data race", "uninitialized", "Invalid", "divergence", "FATAL")


def reports(text: str) -> list[str]:
    return [line for line in text.splitlines() if any(word in line for word in REPORTS)]


@pytest.mark.sampled(3)
@simulated
def test_simulated(tmp_path: Path) -> None:
    assert not reports(simulate(tmp_path, "all_kernels", *SOME))


@simulated
@pytest.mark.slow
@pytest.mark.parametrize("name", [n for n in KERNELS if n not in SOME])
def test_simulated_all(name: str, tmp_path: Path) -> None:
    assert not reports(simulate(tmp_path, "all_kernels", name))


@simulated
@pytest.mark.slow
def test_simulated_networks(tmp_path: Path) -> None:
    assert not reports(simulate(tmp_path, "networks", *NETWORKS))


@simulated
@pytest.mark.slow
@pytest.mark.parametrize(("ahead", "more"), [(0, 0), (1, 1)])
def test_every_barrier_is_needed(ahead: int, more: int, tmp_path: Path) -> None:
    """Without any one barrier there is a race, except for the barrier before a tile's first panels.

    The same threads store both panels there, so no race happens, but their conditions don't show it."""
    assert not reports(simulate(tmp_path, "without_barrier", str(ahead), "-1"))
    assert len(barriers(tiled(ahead)[0])) == 2 + more
    for number in (more, more + 1):
        found = reports(simulate(tmp_path, "without_barrier", str(ahead), str(number)))
        assert any("race" in r for r in found)
