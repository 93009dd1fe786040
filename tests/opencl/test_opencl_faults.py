"""Each fault of OpenCL's drivers and devices is one error that names the device, the kernel, the model's node
and a way out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from on_device import usable
from onnx import TensorProto
from test_opencl_runtime import name, one_node
from test_toy_backend import network

import jangin
from jangin.backends.opencl import backend
from jangin.backends.opencl.check import require_right as right
from jangin.ir.loop import Func
from jangin.runtime.device import LoadError
from jangin.runtime.devices import opencl, opencl_devices, opencl_library, opencl_programs, queued
from jangin.runtime.devices.opencl import OpenCLDriver
from jangin.runtime.devices.opencl_devices import Found
from jangin.runtime.devices.opencl_library import Error, Kernel, Queue
from jangin.runtime.devices.opencl_programs import build_program
from jangin.runtime.devices.queued import Code
from jangin.runtime.devices.transfers import transfer

DEVICES = usable()
pytestmark = pytest.mark.skipif(not DEVICES, reason="no OpenCL device here: neither PoCL nor another driver")
on_each = pytest.mark.parametrize("device", DEVICES, ids=lambda d: d.platform)
RELU = one_node("Relu", {"x": (TensorProto.FLOAT, ["n"])}, TensorProto.FLOAT)
X = np.random.default_rng(0).standard_normal((3, 3, 8, 8)).astype(np.float32)


def failing(message: str, after: int = 0) -> Callable[..., Any]:
    """Return a function that raises an error with an OpenCL error's name, after `after` successful calls."""
    calls = iter(range(after))

    def fail(*_: object, **__: object) -> None:
        if next(calls, None) is None:
            raise Error(f"clSomething failed: {message}")

    return fail


# --- drivers and devices that aren't there


def test_a_driver_s_file_that_names_a_wrong_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "broken.icd").write_text("/nowhere/libbroken.so\n")
    monkeypatch.setenv("OCL_ICD_VENDORS", str(tmp_path))
    monkeypatch.setattr(opencl_devices, "_devices", lambda: ())
    with pytest.raises(LoadError, match=r"broken.icd names /nowhere/libbroken.so, which isn't there"):
        jangin.compile(network(), "opencl")
    (tmp_path / "broken.icd").write_text("libnosuch.so\n")
    with pytest.raises(LoadError, match=r"broken.icd can't be loaded \(libnosuch.so: cannot open"):
        jangin.compile(network(), "opencl")
    (tmp_path / "broken.icd").write_text("libc.so.6\n")
    with pytest.raises(LoadError, match=r"the drivers that .*broken.icd name find none"):
        jangin.compile(network(), "opencl")
    (tmp_path / "broken.icd").unlink()
    with pytest.raises(LoadError, match="no driver is listed in"):
        jangin.compile(network(), "opencl")
    monkeypatch.setenv("OCL_ICD_VENDORS", str(tmp_path / "gone"))
    with pytest.raises(LoadError, match=r"gone, which OCL_ICD_VENDORS names and which isn't a folder"):
        jangin.compile(network(), "opencl")


def test_a_driver_that_is_broken_beside_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error for a missing device tells that a driver is broken, since the device may be that driver's."""
    opencl_devices.devices()
    (tmp_path / "broken.icd").write_text("/nowhere/libbroken.so\n")
    monkeypatch.setenv("OCL_ICD_VENDORS", str(tmp_path))
    with pytest.raises(LoadError, match=r"no .* is 'mali'; here are opencl:0 .*broken.icd names /nowhere"):
        jangin.compile(network(), "opencl:mali")


def test_without_a_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opencl_library, "_places", lambda: ["libnosuch.so"])
    monkeypatch.setattr(opencl_library, "functions", opencl_library.functions.__wrapped__)
    with pytest.raises(LoadError, match=r"pip install 'jangin\[opencl\]'"):
        jangin.compile(network(), "opencl")


# --- drivers that do wrong


def test_a_driver_that_nobody_knows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opencl_devices, "KNOWN", frozenset())
    checked: list[str] = []

    def check(kernel: object, device: Found, func: Func) -> None:
        checked.append(func.name)
        right(kernel, device, func)

    monkeypatch.setattr(backend, "require_right", check)
    exe = jangin.compile(network(), name(DEVICES[0]), cache=False)
    assert isinstance(exe, jangin.Executable)
    assert len(checked) == len({x.function for x in exe.plan.launches})


def test_a_driver_that_computes_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opencl_devices, "KNOWN", frozenset())
    true = backend.build_program

    def wrong(device: Found, source: bytes) -> object:
        return true(device, source.replace(b"x > y", b"x < y"))

    monkeypatch.setattr(backend, "build_program", wrong)
    relu = one_node("Relu", {"x": (TensorProto.FLOAT, [50])}, TensorProto.FLOAT)
    with pytest.raises(jangin.CompileError, match=r"the_node.* computes k_.* wrong: \d+ of 50 elements"):
        jangin.compile(relu, name(DEVICES[0]), cache=False)


def test_pocl_s_wheel_without_a_linker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Found, "linker", property(lambda d: "no-such-linker"))
    with pytest.raises(LoadError, match=r"needs the program 'no-such-linker'.*binutils"):
        build_program(DEVICES[0], b"")
    with pytest.raises(jangin.CompileError, match="binutils"):
        jangin.compile(network(), name(DEVICES[0]), cache=False)


def test_which_driver_needs_a_linker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opencl_devices, "find_spec", lambda name: object())
    for driver, linker in (("3.0-rc2", "ld"), ("3.1+debian", "")):
        assert replace(DEVICES[0], platform=opencl_devices.POCL, driver=driver).linker == linker
    assert not replace(DEVICES[0], platform="Another", driver="1").linker


@on_each
def test_a_build_that_fails(device: Found, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backend, "source", lambda func, target: "this is no OpenCL")
    with pytest.raises(
        jangin.CompileError, match=r"the_node.*: k_.*: the compiler of opencl:\d .* failed; .*another device"
    ):
        jangin.compile(RELU, name(device), cache=False)


@on_each
def test_a_build_that_fails_where_a_model_is_loaded(device: Found, monkeypatch: pytest.MonkeyPatch) -> None:
    """A driver of another version may refuse the binary, and the source too."""
    made = jangin.compile(RELU, name(device), cache=False).artifact
    (built,) = map(opencl_programs.Built.of, made.objects)
    damaged = replace(built, source=b"this is no OpenCL", binary=b"nor code")
    with pytest.raises(
        LoadError, match=r"the kernel k_.*, which computes .*the_node.*: the compiler of opencl:\d .* failed"
    ):
        jangin.Executable(replace(made, objects=(damaged.packed,)))


@on_each
def test_a_program_without_its_kernel(device: Found) -> None:
    built = opencl_programs.Built("missing", b"__kernel void another(__global int *p) { *p = 1; }")
    with pytest.raises(LoadError, match=r"no kernel missing in its program: .*INVALID_KERNEL_NAME"):
        opencl_programs.load_kernel(device, built, same=True)


# --- devices that fail


@on_each
def test_a_device_that_is_lost(device: Found, monkeypatch: pytest.MonkeyPatch) -> None:
    exe = jangin.compile(network(), name(device), cache=False)
    expected = exe(X)
    for owner, call, what in (
        (Kernel, "enqueue", r"run the kernel k_.*, which computes .*Conv.*"),
        (Queue, "finish", "finish a run of network"),
    ):
        before = opencl_programs.opened(device)
        with monkeypatch.context() as patch:
            patch.setattr(owner, call, failing("DEVICE_NOT_AVAILABLE"))
            with pytest.raises(RuntimeError, match=rf"could not {what}.*; the device is lost: load"):
                exe(X)
        assert opencl_programs.opened(device) is not before, "what is loaded next has another context"
        exe = jangin.Executable(exe.artifact)
        np.testing.assert_array_equal(exe(X), expected)


@on_each
def test_a_kernel_that_fails_while_others_wait(device: Found, monkeypatch: pytest.MonkeyPatch) -> None:
    exe = jangin.compile(network(), name(device), cache=False)
    expected, launches = exe(X), exe.plan.launches
    last = len(launches) - 1
    with monkeypatch.context() as patch:  # the run's own wait fails, and the wait for the last kernel alone
        finish, calls = Queue.finish, iter(range(len(launches)))

        def fail(queue: object) -> None:
            if next(calls, last) in (0, last):
                failing("OUT_OF_RESOURCES")()
            finish(queue)

        patch.setattr(Queue, "finish", fail)
        with pytest.raises(MemoryError, match=rf"{launches[last - 1].kernel}, .*out of memory: run"):
            exe(X)
    np.testing.assert_array_equal(exe(X), expected)


@on_each
def test_a_device_without_memory(device: Found, monkeypatch: pytest.MonkeyPatch) -> None:
    exe = jangin.compile(network(), name(device), cache=False)
    monkeypatch.setattr(opencl, "Buffer", failing("MEM_OBJECT_ALLOCATION_FAILURE"))
    with pytest.raises(
        MemoryError,
        match=r"opencl:\d .* has no memory for the \d+ bytes of .*; it is for the kernel k_",
    ):
        exe(X)
    with pytest.raises(LoadError, match=r"could not be given \d+ bytes: .*out of memory"):
        transfer(OpenCLDriver(device))


@on_each
def test_the_next_run_after_one_without_memory(device: Found, monkeypatch: pytest.MonkeyPatch) -> None:
    """A failed allocation of a larger run doesn't disturb the next run."""
    exe = jangin.compile(network(), name(device), cache=False)
    expected = exe(X[:1])
    true = Code.room

    def room(code: Code, what: str, size: int, launch: int | None = None) -> object:
        if what == "scratch":
            raise MemoryError("none for scratch")
        return true(code, what, size, launch)

    with monkeypatch.context() as patch:
        patch.setattr(Code, "room", room)
        with pytest.raises(MemoryError, match="none for scratch"):
            exe(X)
    np.testing.assert_array_equal(exe(X[:1]), expected)


@on_each
def test_a_host_without_memory(device: Found) -> None:
    module = jangin.compile(RELU, name(device), cache=False)._module
    module.driver.largest = 1 << 62
    for size in (1 << 58, 1 << 61):
        with pytest.raises(MemoryError, match=rf"no memory for the {size} bytes of x: .*computes .*the_node"):
            module.room("x", size)


TOP = """<ir_version: 10, opset_import: ["": 20]>
g (float[n, 500] x) => (float[n, 3] y, int64[n, 3] i) <int64[1] k = {3}> { y, i = TopK(x, k) }"""
"""A kernel that sorts each row in scratch memory."""


@on_each
def test_buffers_that_are_too_large(device: Found, monkeypatch: pytest.MonkeyPatch) -> None:
    small = [replace(d, largest=2400) for d in opencl_devices.devices()]
    monkeypatch.setattr(opencl_devices, "_devices", lambda: tuple(small))
    monkeypatch.setattr(queued, "SPREAD", 32)  # scratch memory becomes larger than the weights
    limit = rf"a buffer of {name(device)} .* may have 2400; it is for the kernel k_.*, which computes "
    relu = jangin.compile(RELU, name(device), cache=False)
    with pytest.raises(MemoryError, match=rf"^x takes 2800 bytes, but {limit}.*the_node.*: run it on fewer"):
        relu(np.ones(700, np.float32))
    net = jangin.compile(network(), name(device), cache=False)
    with pytest.raises(MemoryError, match=rf"^what lies between kernels takes \d+ bytes, but {limit}.*Conv"):
        net(X)
    rows = jangin.compile(onnx.parser.parse_model(TOP), name(device), cache=False)
    with pytest.raises(MemoryError, match=rf"^scratch takes \d+ bytes, but {limit}.*TopK"):
        rows(np.ones((1, 500), np.float32))
