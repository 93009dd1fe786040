"""Models compiled for OpenCL devices, on each driver that is here, side by side in this process."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from on_device import usable
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

import jangin
from jangin.backends.opencl import backend
from jangin.backends.opencl.check import require_right as right
from jangin.ir.checks import IndexOutOfRange
from jangin.ir.loop import Func
from jangin.runtime.artifact import Artifact
from jangin.runtime.device import LoadError
from jangin.runtime.devices import opencl, opencl_devices
from jangin.runtime.devices.opencl import build_program
from jangin.runtime.devices.opencl_devices import Found
from jangin.targets import resolve
from jangin.tune.store import Store, place_of

sys.path.insert(0, str(Path(__file__).parent.parent / "backends"))
from test_toy_backend import branches, network

DEVICES = usable()
pytestmark = pytest.mark.skipif(not DEVICES, reason="no OpenCL device here: neither PoCL nor another driver")
on_each = pytest.mark.parametrize("device", DEVICES, ids=lambda d: d.platform)


def name(device: Found) -> str:
    return f"opencl:{device.number}"


@on_each
def test_a_network_of_any_batch(device: Found, tmp_path: Path) -> None:
    model = network()
    exe = jangin.compile(model, name(device), cache=False)
    exe.save(tmp_path / "m.jgn")
    again = jangin.load(tmp_path / "m.jgn")
    for batch in (1, 3):
        x = np.random.default_rng(batch).standard_normal((batch, 3, 8, 8)).astype(np.float32)
        (expected,) = ReferenceEvaluator(model).run(None, {"x": x})
        for run in (exe, again):  # the sums are the same but for their order
            np.testing.assert_allclose(run(x), expected, rtol=1e-5, atol=1e-6)
            assert run._module.copied == 0, "memory is the host's: nothing is copied"


@on_each
def test_what_the_driver_built_is_kept(
    device: Found, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    exe = jangin.compile(network(), name(device), cache=tmp_path)
    built = [opencl.Built.of(code) for code in exe.artifact.objects]
    assert built and all(b.binary for b in built)
    monkeypatch.setattr(opencl, "build_program", None)
    again = jangin.compile(network(), name(device), cache=tmp_path)
    x = np.ones((2, 3, 8, 8), np.float32)
    np.testing.assert_array_equal(again(x), exe(x))


@on_each
def test_another_driver_s_code_is_built_again(
    device: Found, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    exe = jangin.compile(network(), name(device), cache=False)
    exe.save(tmp_path / "m.jgn")
    monkeypatch.setattr(Found, "identity", property(lambda d: f"{d.model}, 0.0"))
    x = np.ones((1, 3, 8, 8), np.float32)
    np.testing.assert_array_equal(jangin.load(tmp_path / "m.jgn")(x), exe(x))


@on_each
def test_memory_of_the_device_s_own(device: Found, monkeypatch: pytest.MonkeyPatch) -> None:
    exe = jangin.compile(network(), name(device), cache=False)
    x = np.random.default_rng(0).standard_normal((2, 3, 8, 8)).astype(np.float32)
    expected = exe(x)
    own = [replace(d, unified=False) for d in opencl_devices.devices()]
    monkeypatch.setattr(opencl_devices, "_devices", lambda cl: tuple(own))
    apart = jangin.Executable(exe.artifact)
    np.testing.assert_array_equal(apart(x), expected)
    assert apart._module.copied == x.nbytes + expected.nbytes


@on_each
def test_branches_are_python_s(device: Found) -> None:
    exe = jangin.compile(branches(), name(device), cache=False)
    x = np.arange(3, dtype=np.float32)
    np.testing.assert_array_equal(exe(np.array(True), x), x + 2)
    np.testing.assert_array_equal(exe(np.array(False), x), x * 2)


def one_node(
    op: str, inputs: dict[str, tuple[int, list[int | str]]], out: int, **attrs: object
) -> onnx.ModelProto:
    infos = [helper.make_tensor_value_info(n, t, s) for n, (t, s) in inputs.items()]
    node = helper.make_node(op, [*inputs], ["y"], name="the_node", **attrs)
    graph = helper.make_graph([node], "g", infos, [helper.make_tensor_value_info("y", out, None)])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)])


@on_each
def test_an_index_out_of_range(device: Found) -> None:
    inputs = {"x": (TensorProto.FLOAT, [5]), "i": (TensorProto.INT64, [2])}
    exe = jangin.compile(one_node("Gather", inputs, TensorProto.FLOAT), name(device), cache=False)
    x = np.arange(5, dtype=np.float32)
    assert exe(x, np.array([1, -1])).tolist() == [1, 4]
    with pytest.raises(IndexOutOfRange, match=r"the_node.*index 7 is out of range"):
        exe(x, np.array([1, 7]))


@on_each
def test_a_type_that_the_device_lacks(device: Found, monkeypatch: pytest.MonkeyPatch) -> None:
    lacking = [replace(d, features=()) for d in opencl_devices.devices()]
    monkeypatch.setattr(opencl_devices, "_devices", lambda cl: tuple(lacking))
    model = one_node("Exp", {"x": (TensorProto.DOUBLE, [5])}, TensorProto.DOUBLE)
    with pytest.raises(jangin.CompileError, match=r"no numbers of 64 bits.*the_node"):
        jangin.compile(model, name(device), cache=False)


@on_each
def test_a_buffer_that_is_too_large(device: Found, monkeypatch: pytest.MonkeyPatch) -> None:
    small = [replace(d, largest=100) for d in opencl_devices.devices()]
    monkeypatch.setattr(opencl_devices, "_devices", lambda cl: tuple(small))
    exe = jangin.compile(
        one_node("Exp", {"x": (TensorProto.FLOAT, [50])}, TensorProto.FLOAT), name(device), cache=False
    )
    with pytest.raises(MemoryError, match=r"x takes 200 bytes, but a buffer of opencl:.* may have 100"):
        exe(np.ones(50, np.float32))


def test_names() -> None:
    there = opencl_devices.devices()
    assert opencl_devices.select("") is there[0] and opencl_devices.select("0") is there[0]
    for device in DEVICES:
        assert opencl_devices.select(device.platform.split()[0].upper()).platform == device.platform
        assert opencl_devices.of_target(device.target) == device
    with pytest.raises(LoadError, match="no OpenCL device is 'nothing'; here are opencl:0"):
        jangin.compile(network(), "opencl:nothing")


def test_a_device_that_is_not_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    jangin.build(network(), name(DEVICES[0]), cache=False).save(tmp_path / "m.jgn")
    monkeypatch.setattr(Found, "model", property(lambda d: "Another, Device"))
    with pytest.raises(LoadError, match="which isn't here; here are"):
        jangin.load(tmp_path / "m.jgn")
    assert Artifact.read(tmp_path / "m.jgn").device == "opencl"


def test_a_driver_s_file_that_names_a_wrong_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "broken.icd").write_text("/nowhere/libbroken.so\n")
    monkeypatch.setenv("OCL_ICD_VENDORS", str(tmp_path))
    monkeypatch.setattr(opencl_devices, "_devices", lambda cl: ())
    with pytest.raises(LoadError, match=r"broken.icd names /nowhere/libbroken.so, which isn't there"):
        jangin.compile(network(), "opencl")
    (tmp_path / "broken.icd").unlink()
    with pytest.raises(LoadError, match="no driver is listed in"):
        jangin.compile(network(), "opencl")


def test_without_pyopencl(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyopencl", None)
    with pytest.raises(LoadError, match=r"pip install 'jangin\[opencl\]'"):
        jangin.compile(network(), "opencl")


@on_each
def test_beside_the_processor(device: Found, tmp_path: Path) -> None:
    model = network()
    exe = jangin.compile(model, f"cpu+{name(device)}", cache=False)
    assert isinstance(exe, jangin.SeveralExecutable)
    exe.save(tmp_path / "m.jgn")
    again = jangin.load(tmp_path / "m.jgn")
    x = np.random.default_rng(0).standard_normal((6, 3, 8, 8)).astype(np.float32)
    (expected,) = ReferenceEvaluator(model).run(None, {"x": x})
    for run in (exe, again):
        assert isinstance(run, jangin.SeveralExecutable)
        worked: set[int] = set()
        run.record = lambda device, what, start, end, worked=worked: worked.add(device)
        for _ in range(9):  # of which some share the batch out
            np.testing.assert_allclose(run(x), expected, rtol=1e-5, atol=1e-6)
        assert worked == {0, 1}
        for feeds, made in zip(
            [{"x": x[n : n + 1]} for n in range(6)],
            run.stream([{"x": x[n : n + 1]} for n in range(6)]),
            strict=True,
        ):
            np.testing.assert_allclose(made["y"], run(feeds["x"]), rtol=1e-5, atol=1e-6)


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
    with pytest.raises(jangin.CompileError, match=r"doesn't know, computes k_.* wrong: \d+ of 50 elements"):
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
    with pytest.raises(jangin.CompileError, match=r"k_.*: the compiler of opencl:\d .* failed"):
        jangin.compile(network(), name(device), cache=False)


@on_each
def test_a_device_that_is_lost(device: Found, monkeypatch: pytest.MonkeyPatch) -> None:
    exe = jangin.compile(network(), name(device), cache=False)
    x = np.zeros((1, 3, 8, 8), np.float32)
    exe(x)
    cl = opencl_devices.library()

    def lost(*_: object) -> None:
        raise cl.LogicError("clEnqueueNDRangeKernel failed: DEVICE_NOT_AVAILABLE")

    with monkeypatch.context() as patch:
        patch.setattr(cl, "enqueue_nd_range_kernel", lost)
        with pytest.raises(
            RuntimeError, match=r"could not run the kernel k_.*computes .*load the model again"
        ):
            exe(x)
    assert exe(x).shape == (1, 5)


@on_each
def test_a_device_without_memory(device: Found, monkeypatch: pytest.MonkeyPatch) -> None:
    exe = jangin.compile(network(), name(device), cache=False)
    cl = opencl_devices.library()

    def full(*_: object, **__: object) -> None:
        raise cl.MemoryError("clCreateBuffer failed: MEM_OBJECT_ALLOCATION_FAILURE")

    monkeypatch.setattr(cl, "Buffer", full)
    with pytest.raises(MemoryError, match=r"opencl:\d .* has no memory for the \d+ bytes of"):
        exe(np.zeros((1, 3, 8, 8), np.float32))


# --- tuning


@pytest.mark.slow
@on_each
def test_what_was_tuned_is_kept_by_device_and_driver(device: Found, tmp_path: Path) -> None:
    exe = jangin.compile(
        network(), name(device), threads=1, cache=tmp_path, tune="20s", sizes={"batch": 4}, isolated=False
    )
    x = np.random.default_rng(0).standard_normal((4, 3, 8, 8)).astype(np.float32)
    (expected,) = ReferenceEvaluator(network()).run(None, {"x": x})
    np.testing.assert_allclose(exe(x), expected, rtol=1e-5, atol=1e-6)
    place = place_of(resolve(name(device)), 1, "never")
    assert device.identity in place and Store(tmp_path).get(place)
    newer = replace(resolve(name(device)), cpu=f"{device.model}, 99")
    assert not Store(tmp_path).get(place_of(newer, 1, "never"))
