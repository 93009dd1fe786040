"""Models compiled for OpenCL devices run on each driver, side by side in this process."""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from on_device import usable
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

import jangin
from jangin.ir.checks import IndexOutOfRange
from jangin.runtime.compiled import read_artifact
from jangin.runtime.device import LoadError
from jangin.runtime.devices import opencl_devices, opencl_programs
from jangin.runtime.devices.opencl_devices import Found
from jangin.runtime.outputs import aligned
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
        room = aligned((x.nbytes + 4,), np.dtype(np.uint8), device.alignment)
        here, off = (room[n : n + x.nbytes].view(np.float32).reshape(x.shape) for n in (0, 4))
        for run in (exe, again):  # only the order of sums differs
            before = run._module.copied
            here[:] = x
            np.testing.assert_allclose(run(here), expected, rtol=1e-5, atol=1e-6)
            assert run._module.copied == before, "memory is the host's: nothing is copied"
            assert run(here).ctypes.data % device.alignment == 0, "nor by the driver"
            off[:] = x
            np.testing.assert_allclose(run(off), expected, rtol=1e-5, atol=1e-6)
            assert run._module.copied == before + x.nbytes, "drivers would, and take much longer"
    constants = again.artifact.plan.constants.values()
    assert all(c.ctypes.data % device.alignment == 0 for c in constants)


@on_each
def test_threads_have_kernels_of_their_own(device: Found) -> None:
    """A kernel object holds its arguments. So the first run uses the loaded kernels, and runs at the same
    time use copies."""
    exe = jangin.compile(network(), name(device), cache=False)
    xs = [np.random.default_rng(n).standard_normal((n, 3, 8, 8)).astype(np.float32) for n in (1, 2, 3)]
    expected = [exe(x) for x in xs]
    with ThreadPoolExecutor(3) as pool:
        for x, y, made in zip(xs * 20, expected * 20, pool.map(exe, xs * 20), strict=True):
            np.testing.assert_array_equal(made, y, err_msg=f"{len(x)} rows")


@on_each
def test_what_the_driver_built_is_kept(
    device: Found, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    exe = jangin.compile(network(), name(device), cache=tmp_path)
    built = [opencl_programs.Built.of(code) for code in exe.artifact.objects]
    assert built and all(b.binary for b in built)
    monkeypatch.setattr(opencl_programs, "build_program", None)
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
    monkeypatch.setattr(opencl_devices, "_devices", lambda: tuple(own))
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
    monkeypatch.setattr(opencl_devices, "_devices", lambda: tuple(lacking))
    model = one_node("Exp", {"x": (TensorProto.DOUBLE, [5])}, TensorProto.DOUBLE)
    with pytest.raises(jangin.CompileError, match=r"no numbers of 64 bits.*the_node"):
        jangin.compile(model, name(device), cache=False)


@pytest.mark.parametrize("kind", ["c", "object"])
def test_no_programs_are_emitted(kind: str) -> None:
    with pytest.raises(ValueError, match=rf"no '{kind}' is made for opencl:0: jgn can be"):
        jangin.emit(network(), kind, "opencl:0")


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
    assert read_artifact(tmp_path / "m.jgn").device == "opencl"


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
        for _ in range(9):  # some of the runs divide the batch
            np.testing.assert_allclose(run(x), expected, rtol=1e-5, atol=1e-6)
        assert worked == {0, 1}
        for feeds, made in zip(
            [{"x": x[n : n + 1]} for n in range(6)],
            run.stream([{"x": x[n : n + 1]} for n in range(6)]),
            strict=True,
        ):
            np.testing.assert_allclose(made["y"], run(feeds["x"]), rtol=1e-5, atol=1e-6)


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
    place = place_of(resolve(name(device)), 1, "never", "latency")
    assert device.identity in place and Store(tmp_path).get(place)
    newer = replace(resolve(name(device)), cpu=f"{device.model}, 99")
    assert not Store(tmp_path).get(place_of(newer, 1, "never", "latency"))
