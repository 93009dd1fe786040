"""The common behaviour of queued devices, tested with a driver in memory that checks the order of all its
calls."""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from memory_driver import LARGEST, Failed, MemoryDevice, MemoryDriver, target_of
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

import jangin
from jangin.ir.checks import IndexOutOfRange
from jangin.runtime.device import LoadError
from jangin.runtime.devices.queued import Code
from jangin.runtime.devices.transfers import PROBE, transfer

sys.path.insert(0, str(Path(__file__).parent.parent / "backends"))
from test_toy_backend import branches, network

each_way = pytest.mark.parametrize(
    ("shared", "groups"), [(False, False), (False, True), (True, False), (True, True)]
)
two_ways = pytest.mark.parametrize(("shared", "groups"), [(False, True), (True, False)])
X = np.random.default_rng(0).standard_normal((2, 3, 8, 8)).astype(np.float32)


def compiled(model: onnx.ModelProto, shared: bool = False, groups: bool = False, **options: Any) -> Any:
    return jangin.compile(model, target_of(MemoryDevice(shared), groups), **options)


def driver_of(exe: Any) -> MemoryDriver:
    code = exe._module
    assert isinstance(code, Code) and isinstance(code.driver, MemoryDriver)
    return code.driver


def failing(message: str, after: int = 0, only: str = "") -> Any:
    """Return a function that raises a driver's error after `after` calls (only of the kernel `only`, if
    given)."""
    calls = iter(range(after))

    def fail(what: str) -> None:
        if (not only or what == only) and next(calls, None) is None:
            raise Failed(message)

    return fail


def one_node(op: str, inputs: dict[str, tuple[int, list[Any]]], out: int, **attrs: object) -> onnx.ModelProto:
    infos = [helper.make_tensor_value_info(n, t, s) for n, (t, s) in inputs.items()]
    node = helper.make_node(op, [*inputs], ["y"], name="the_node", **attrs)
    graph = helper.make_graph([node], "g", infos, [helper.make_tensor_value_info("y", out, None)])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)])


def recurrent() -> onnx.ModelProto:
    """Return a GRU, whose kernel has a round for each step."""
    rng = np.random.default_rng(1)
    arrays = {"w": rng.standard_normal((1, 24, 5)), "r": rng.standard_normal((1, 24, 8)) / 3}
    node = helper.make_node("GRU", ["x", "w", "r"], ["y"], hidden_size=8)
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [6, "n", 5])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    held = [numpy_helper.from_array(a.astype(np.float32), n) for n, a in arrays.items()]
    graph = helper.make_graph([node], "gru", [x], [y], held)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)])


# --- right answers


@pytest.mark.sampled(4)
@each_way
def test_a_network_of_any_batch_saved_and_loaded_too(shared: bool, groups: bool, tmp_path: Path) -> None:
    model = network()
    exe = compiled(model, shared, groups)
    exe.save(tmp_path / "m.jgn")
    again = jangin.load(tmp_path / "m.jgn", device=MemoryDevice(shared))
    for batch in (1, 3, 2):
        x = np.random.default_rng(batch).standard_normal((batch, 3, 8, 8)).astype(np.float32)
        (expected,) = ReferenceEvaluator(model).run(None, {"x": x})
        for run in (exe, again):  # only the order of sums differs
            np.testing.assert_allclose(run(x), expected, rtol=1e-5, atol=1e-5)


def resident(path: Path) -> int:
    """Return the bytes of a file that this process's memory has (Linux)."""
    size, ours = 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if "-" in line.partition(" ")[0]:
            ours = line.endswith(str(path))
        elif ours and line.startswith("Rss:"):
            size += int(line.split()[1]) << 10
    return size


@pytest.mark.skipif(not Path("/proc/self/smaps").exists(), reason="only Linux tells a process's pages")
def test_constants_that_a_device_has_leave_the_host(tmp_path: Path) -> None:
    """A device with its own memory has a copy of a mapped file's constants. Another one reads the file's."""
    table = np.random.default_rng().standard_normal((1 << 19, 4)).astype(np.float32)
    x = helper.make_tensor_value_info("x", TensorProto.INT64, [3])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    gather = helper.make_node("Gather", ["table", "x"], ["y"])
    graph = helper.make_graph([gather], "g", [x], [y], [numpy_helper.from_array(table, "table")])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)])
    path, at = tmp_path / "m.jgn", np.int64([1, 500_000, 7])
    compiled(model, cache=False).save(path)
    shared = jangin.load(path, device=MemoryDevice(shared=True), mapped=True)
    np.testing.assert_array_equal(shared(at), table[at])
    assert resident(path) >= table.nbytes
    exe = jangin.load(path, device=MemoryDevice(shared=False), mapped=True)
    np.testing.assert_array_equal(exe(at), table[at])
    del shared
    assert resident(path) < table.nbytes // 8
    np.testing.assert_array_equal(exe(at), table[at])


@each_way
def test_rounds(shared: bool, groups: bool) -> None:
    """Each round is a separate launch if several items share a round's tasks."""
    model = recurrent()
    exe = compiled(model, shared, groups, threads=2)
    for batch in (1, 5):
        x = np.random.default_rng(batch).standard_normal((6, batch, 5)).astype(np.float32)
        (expected,) = ReferenceEvaluator(model).run(None, {"x": x})
        np.testing.assert_allclose(exe(x), expected, rtol=1e-4, atol=1e-5)


@two_ways
def test_each_group_has_scratch_memory_of_its_own(shared: bool, groups: bool) -> None:
    """The driver knows how much scratch memory a kernel needs, and how many groups a launch has."""
    softmax = one_node("Softmax", {"x": (TensorProto.FLOAT, ["n", 100])}, TensorProto.FLOAT)
    exe = compiled(softmax, shared, groups, threads=3)
    for rows in (40, 90):
        x = np.random.default_rng(rows).standard_normal((rows, 100)).astype(np.float32)
        (expected,) = ReferenceEvaluator(softmax).run(None, {"x": x})
        np.testing.assert_allclose(exe(x), expected, rtol=1e-5, atol=1e-7)


@each_way
def test_nothing_to_do(shared: bool, groups: bool) -> None:
    """Sizes of 0 make no launch, and no buffer without bytes."""
    exe = compiled(network(), shared, groups)
    assert exe(X[:0]).shape == (0, 5)
    np.testing.assert_allclose(exe(X), exe(X))


def test_branches_are_python_s() -> None:
    exe = compiled(branches())
    x = np.arange(3, dtype=np.float32)
    np.testing.assert_array_equal(exe(np.array(True), x), x + 2)
    np.testing.assert_array_equal(exe(np.array(False), x), x * 2)


@pytest.mark.sampled(2)
@two_ways
def test_threads_have_kernels_of_their_own(shared: bool, groups: bool) -> None:
    """The driver refuses two threads on one kernel or one queue."""
    exe = compiled(network(), shared, groups)
    xs = [np.random.default_rng(n).standard_normal((n, 3, 8, 8)).astype(np.float32) for n in (1, 2, 3)]
    expected = [exe(x) for x in xs]
    with ThreadPoolExecutor(3) as pool:
        for y, made in zip(expected * 2, pool.map(exe, xs * 2), strict=True):
            np.testing.assert_array_equal(made, y)


def test_an_index_out_of_range() -> None:
    inputs = {"x": (TensorProto.FLOAT, [5]), "i": (TensorProto.INT64, [2])}
    exe = compiled(one_node("Gather", inputs, TensorProto.FLOAT))
    x = np.arange(5, dtype=np.float32)
    assert exe(x, np.array([1, -1])).tolist() == [1, 4]
    with pytest.raises(IndexOutOfRange, match=r"the_node.*index 7 is out of range"):
        exe(x, np.array([1, 7]))


# --- the order of calls


def test_the_calls_of_a_run() -> None:
    """Constants are copied to the device once, and inputs before the launches, which start as one piece.
    Results are copied back behind the launches, and one wait covers everything."""
    exe = compiled(network())
    driver = driver_of(exe)
    loads = [name for call, name in driver.log if call == "load"]
    assert sorted(loads) == sorted({launch.function for launch in exe.plan.launches})
    constants = [what for call, what in driver.log if call == "buffer"]
    assert constants == [f"of {a.nbytes}" for a in exe.plan.constants.values()]
    exe(X)  # the first run allocates memory
    driver.log.clear()
    y = exe(X)
    names = [launch.function for launch in exe.plan.launches]
    assert driver.log == [
        ("write", str(X.nbytes)), ("start", ""), ("read", str(y.nbytes)), ("finish", ""),
        *(("run", n) for n in names),
    ]  # fmt: skip
    assert exe._module.copied == 2 * (X.nbytes + y.nbytes)
    driver.log.clear()
    exe(X[:1])  # everything is enqueued once more for other sizes
    assert [what for call, what in driver.log if call == "enqueue"] == names


def test_the_calls_of_a_run_in_shared_memory() -> None:
    """Nothing is copied except inputs that don't lie as the device needs them."""
    exe = compiled(network(), shared=True)
    driver = driver_of(exe)
    exe(X)
    driver.log.clear()
    before, copies = exe._module.copied, driver.copies
    y = exe(X)
    assert exe._module.copied - before == (X.nbytes if X.ctypes.data % driver.alignment else 0)
    assert driver.copies == copies and y.ctypes.data % driver.alignment == 0
    names = [launch.function for launch in exe.plan.launches]
    assert driver.log == [
        ("buffer", f"of {X.nbytes}"), ("buffer", f"of {y.nbytes}"), *(("enqueue", n) for n in names),
        ("show", str(y.nbytes)), ("finish", ""), *(("run", n) for n in names),
    ]  # fmt: skip


def test_a_profile_is_timed_by_the_device() -> None:
    exe = compiled(network())
    times = exe.profile({"x": X}, 2)
    assert [t.launch for t in times] == [*exe.plan.launches] and all(t.seconds > 0 for t in times)
    assert ("queue", "timed") in driver_of(exe).log


@pytest.mark.parametrize("shared", [False, True])
def test_the_link_is_measured(shared: bool) -> None:
    driver = MemoryDevice(shared).opened
    found = transfer(driver)
    assert (found.byte == 0) == shared and found.startup > 0
    assert [what for call, what in driver.log if call == "write"][:2] == ["1", str(PROBE)]


# --- what fails


def test_a_device_that_is_lost() -> None:
    device = MemoryDevice(False)
    exe = jangin.compile(network(), target_of(device, False))
    expected = exe(X)
    for call, what in (
        ("enqueue", r"run the kernel k_.*, which computes .*Conv.*"),
        ("write", "take the input 'x'"),
        ("start", "start a run of network"),
        ("finish", "finish a run"),
    ):
        exe = jangin.Executable(exe.artifact, device=device)
        lost = driver_of(exe)
        lost.failures[call] = failing("it is lost")
        with pytest.raises(RuntimeError, match=rf"^memory:0 .* could not {what}.*; the device is lost: load"):
            exe(X)
        assert device.opened is not lost, "what is loaded next has another driver"
        exe = jangin.Executable(exe.artifact, device=device)
        np.testing.assert_array_equal(exe(X), expected)


@pytest.mark.sampled(2)
@two_ways
def test_the_kernel_that_is_to_blame(shared: bool, groups: bool) -> None:
    """A failure of queued launches shows when the queue is waited for. Each kernel then runs alone, to name
    the faulty one."""
    exe = compiled(network(), shared, groups)
    expected, driver = exe(X), driver_of(exe)
    for launch in exe.plan.launches:
        driver.failures["run"] = failing("it is full", only=launch.function)
        with pytest.raises(MemoryError, match=rf"{launch.kernel}, which .*the device is out of memory: run"):
            exe(X)
    driver.failures["run"] = failing("never again", after=len(exe.plan.launches))
    np.testing.assert_array_equal(exe(X), expected)


@pytest.mark.sampled(2)
def test_a_fault_that_takes_all_with_it() -> None:
    """Another driver loads everything again, and launches run one by one until the fault repeats."""
    device = MemoryDevice(False)
    exe = jangin.compile(network(), target_of(device, True))
    expected = exe(X)
    for launch in exe.plan.launches:
        fault = failing("a fault", only=launch.function)
        before = driver_of(exe)

        def may(self: MemoryDriver, call: str, what: str, fault: Any = fault) -> None:
            if call == "run":
                fault(what)

        wrong = rf"run the kernel {launch.kernel}, which .*a fault; the device is lost"
        with pytest.MonkeyPatch.context() as patch, pytest.raises(RuntimeError, match=wrong):
            patch.setattr(MemoryDriver, "may", may)
            exe(X)
        assert device.opened is not before
        exe = jangin.Executable(exe.artifact, device=device)
        np.testing.assert_array_equal(exe(X), expected)


def test_a_failure_that_no_kernel_alone_has() -> None:
    exe = compiled(network())
    driver = driver_of(exe)
    exe(X)
    turns = iter([True])
    driver.failures["finish"] = lambda what: failing("once")(what) if next(turns, False) else None
    with pytest.raises(
        RuntimeError, match=r"finish a run of network, each of whose kernels runs alone: once"
    ):
        exe(X)


def test_a_device_without_memory() -> None:
    exe = compiled(network())
    driver = driver_of(exe)
    expected = exe(X[:1])
    driver.failures["buffer"] = failing("it is full")
    wanted = r"memory:0 .* has no memory for the \d+ bytes of .*: it is full; it is for the kernel k_"
    with pytest.raises(MemoryError, match=wanted):
        exe(X)
    with pytest.raises(LoadError, match=rf"could not be given {PROBE} bytes: .*out of memory"):
        transfer(driver)
    del driver.failures["buffer"]
    np.testing.assert_array_equal(exe(X[:1]), expected)


def test_a_buffer_that_is_too_large() -> None:
    exe = compiled(one_node("Relu", {"x": (TensorProto.FLOAT, ["n"])}, TensorProto.FLOAT))
    driver_of(exe).largest = 2400  # type: ignore[misc]
    wrong = r"^x takes 2800 bytes, but a buffer of memory:0 .* may have 2400; .*the_node.*: run it on fewer"
    with pytest.raises(MemoryError, match=wrong):
        exe(np.ones(700, np.float32))
    assert LARGEST > 2400


def test_code_that_can_t_be_loaded() -> None:
    device = MemoryDevice(False)
    made = jangin.compile(network(), target_of(device, False)).artifact
    with pytest.raises(LoadError, match="a kernel's code is damaged"):
        jangin.Executable(replace(made, objects=(b"func", *made.objects[1:])), device=device)
    device.opened.failures["load"] = refuse
    with pytest.raises(LoadError, match=r"the kernel k_.*, which computes .*: the driver doesn't like it"):
        jangin.Executable(made, device=device)


def refuse(what: str) -> None:
    raise LoadError("the driver doesn't like it")
