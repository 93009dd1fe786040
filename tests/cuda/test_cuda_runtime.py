"""Models on the mock's device: plans, graphs and errors. Each error names device, kernel and node, and the
next run is right."""

from __future__ import annotations

import gc
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import mocked
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator
from test_toy_backend import branches, network

import jangin
from jangin.ir.checks import IndexOutOfRange
from jangin.runtime.device import LoadError
from jangin.runtime.devices.cuda import CudaDriver
from jangin.runtime.devices.cuda_code import Built
from jangin.runtime.devices.cuda_devices import select
from jangin.runtime.devices.cuda_objects import Kernel, Queue
from jangin.runtime.devices.transfers import transfer

pytestmark = mocked.needed
NO_LIMIT = -1


def images(batch: int) -> np.ndarray:
    return np.random.default_rng(batch).standard_normal((batch, 3, 8, 8)).astype(np.float32)


def expected(x: np.ndarray) -> np.ndarray:
    (found,) = ReferenceEvaluator(network()).run(None, {"x": x})
    return found


@pytest.fixture
def net(driver: Any) -> Any:
    return jangin.compile(network(), "cuda", cache=False)


def test_a_network_of_any_batch(driver: Any, net: Any, tmp_path: Path) -> None:
    """Each layout has one CUDA graph, and each run launches it. Both orders of work give the same results."""
    net.save(tmp_path / "m.jgn")
    again, launches = jangin.load(tmp_path / "m.jgn"), len(net.plan.launches)
    for order in (0, 3):
        driver.mock_order(order)
        for batch in (1, 3, 1):
            for run in (net, again):
                before = driver.mock_launches(), driver.mock_graph_launches()
                np.testing.assert_allclose(run(images(batch)), expected(images(batch)), rtol=1e-5, atol=1e-6)
                after = driver.mock_launches(), driver.mock_graph_launches()
                assert (after[0] - before[0], after[1] - before[1]) == (launches, 1)
    x = images(2)
    before = net._module.copied
    y = net(x)
    assert net._module.copied - before == x.nbytes + y.nbytes, "weights were uploaded once"


@pytest.mark.sampled(2)
def test_large_arrays_are_copied_where_they_lie(driver: Any) -> None:
    """Large arrays are copied directly. Small ones pass through pinned memory, which the next run may not use
    while this run reads it."""
    graph = helper.make_graph(
        [helper.make_node("Mul", ["x", "x"], ["y"])], "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n"])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
    )  # fmt: skip
    exe = jangin.compile(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)]), "cuda")
    for size in (1, 0, 1000, 262_144, 262_145, 700_001, 5):
        x = np.random.default_rng(size).standard_normal(size).astype(np.float32)
        np.testing.assert_array_equal(exe(x), x * x)


def test_nothing_is_left(driver: Any, net: Any) -> None:
    before = driver.mock_live()
    exe = jangin.Executable(net.artifact)
    exe(images(3)), exe(images(2))
    del exe
    gc.collect()
    assert driver.mock_live() == before


def test_threads_have_streams_of_their_own(net: Any) -> None:
    xs = [images(n) for n in (1, 2, 3)]
    with ThreadPoolExecutor(3) as pool:
        for x, made in zip(xs * 9, pool.map(net, xs * 9), strict=True):
            np.testing.assert_allclose(made, expected(x), rtol=1e-5, atol=1e-6)


def test_launches_are_timed_by_events(net: Any) -> None:
    profile = net.profile({"x": images(2)})
    assert len(profile) == len(net.plan.launches)
    assert all(launch.seconds > 0 for launch in profile)
    moved = transfer(CudaDriver(select("")))
    assert moved.startup > 0 and moved.byte >= 0


def test_branches_are_python_s(driver: Any) -> None:
    exe = jangin.compile(branches(), "cuda", cache=False)
    x = np.arange(3, dtype=np.float32)
    np.testing.assert_array_equal(exe(np.array(True), x), x + 2)
    np.testing.assert_array_equal(exe(np.array(False), x), x * 2)


def test_beside_the_processor(driver: Any) -> None:
    exe = jangin.compile(network(), "cpu+cuda", cache=False)
    for _ in range(3):
        np.testing.assert_allclose(exe(images(4)), expected(images(4)), rtol=1e-5, atol=1e-6)


def test_two_gpus_share_a_batch(driver: Any, tmp_path: Path) -> None:
    """GPUs of one kind run the same code, and have names of their own in files too."""
    driver.mock_devices(2)
    mocked.forget()
    made = jangin.compile(network(), "cuda:0+cuda:1", cache=False)
    made.save(tmp_path / "m.jgn")
    for exe in (made, jangin.load(tmp_path / "m.jgn")):
        worked = Counter[int]()
        exe.record = lambda device, *_, count=worked: count.update([device])
        for batch in (1, 8, 8, 8, 8, 8, 8, 5):
            np.testing.assert_allclose(exe(images(batch)), expected(images(batch)), rtol=1e-5, atol=1e-6)
        assert worked[0] and worked[1]
        assert [part.artifact.device for part in exe.parts] == ["cuda:0", "cuda:1"]
    with pytest.raises(ValueError, match=r"cuda:1.cuda:1. has .* twice: name each device once"):
        jangin.compile(network(), "cuda:1+cuda:1")


def gather() -> onnx.ModelProto:
    infos = [helper.make_tensor_value_info(n, t, s) for n, t, s in
             (("x", TensorProto.FLOAT, [5]), ("i", TensorProto.INT64, [2]))]  # fmt: skip
    node = helper.make_node("Gather", ["x", "i"], ["y"], name="the_node")
    graph = helper.make_graph(
        [node], "g", infos, [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)]
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)])


def test_an_index_out_of_range(driver: Any) -> None:
    exe = jangin.compile(gather(), "cuda", cache=False)
    x = np.arange(5, dtype=np.float32)
    assert exe(x, np.array([1, -1])).tolist() == [1, 4]
    with pytest.raises(IndexOutOfRange, match=r"the_node.*index 7 is out of range"):
        exe(x, np.array([1, 7]))
    assert exe(x, np.array([2, 0])).tolist() == [2, 0]


# --- faults


def test_every_allocation_fails_in_turn(driver: Any, net: Any) -> None:
    """Loading and the first run give one error with the requested and the free memory. The next run is
    right."""
    x, failed = images(3), 0
    for left in range(100):
        driver.mock_allocations_left(left)
        try:
            exe = jangin.Executable(net.artifact)
            exe(x)
        except (MemoryError, LoadError) as error:
            assert isinstance(error, MemoryError), error
            assert "cuda:0 (Mock GPU 0)" in str(error)
            assert "OUT_OF_MEMORY" in str(error)
            failed += 1
        else:
            break
        finally:
            driver.mock_allocations_left(NO_LIMIT)
    assert failed == left > 4
    driver.mock_allocations_left(left // 2)
    with pytest.raises(MemoryError):
        exe = jangin.Executable(net.artifact)
        exe(x)
    driver.mock_allocations_left(NO_LIMIT)
    np.testing.assert_allclose(jangin.Executable(net.artifact)(x), expected(x), rtol=1e-5, atol=1e-6)


def test_what_was_asked_for_and_what_is_free(driver: Any) -> None:
    driver.mock_device(8, 0, 1 << 20)
    mocked.forget()
    exe = jangin.compile(network(), "cuda", cache=False)
    with pytest.raises(MemoryError, match=r"\d+ bytes were asked for, and \d+ of the device's 1048576"):
        exe(images(900))
    np.testing.assert_allclose(exe(images(1)), expected(images(1)), rtol=1e-5, atol=1e-6)
    with pytest.raises(MemoryError, match=r"takes \d+ bytes, but a buffer of cuda:0 .* may have 1048576"):
        exe(images(5000))


def test_a_kernel_that_faults_is_named(driver: Any, net: Any) -> None:
    """The fault destroys the context. Everything is loaded once more, and launches run one by one to name the
    kernel."""
    x = images(2)
    net(x)
    for launch in (net.plan.launches[0], net.plan.launches[-1]):
        driver.mock_fault(launch.function.encode())
        exe = jangin.Executable(net.artifact)
        with pytest.raises(
            RuntimeError,
            match=rf"cuda:0 .* could not run the kernel {launch.kernel}, which computes .*"
            r"CUDA_ERROR_ILLEGAL_ADDRESS.*; the device is lost: load",
        ):
            exe(x)
        driver.mock_fault(b"")
        np.testing.assert_allclose(jangin.Executable(net.artifact)(x), expected(x), rtol=1e-5, atol=1e-6)


def test_a_fault_ends_other_models_too(driver: Any, net: Any) -> None:
    """All that is loaded on a device shares its context. Nothing of what a fault has ended reaches the driver
    any more, which may do anything with it."""
    x, other = images(2), jangin.Executable(net.artifact)
    other(x)
    driver.mock_fault(net.plan.launches[0].function.encode())
    with pytest.raises(RuntimeError, match="ILLEGAL_ADDRESS"):
        net(x)
    driver.mock_fault(b"")
    for _ in range(2):
        with pytest.raises(RuntimeError, match=r"CONTEXT_IS_DESTROYED.*; the device is lost: load the model"):
            other(x)
    del other
    gc.collect()
    np.testing.assert_allclose(jangin.Executable(net.artifact)(x), expected(x), rtol=1e-5, atol=1e-6)


def test_memory_may_go_while_launches_are_recorded(driver: Any, net: Any) -> None:
    """The garbage collector may run at any time."""
    x, spare = images(2), [CudaDriver(select("")).buffer(64)]
    enqueue = Kernel.enqueue

    def let_go(kernel: Kernel, queue: Queue) -> None:
        spare.clear()
        enqueue(kernel, queue)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Kernel, "enqueue", let_go)
        np.testing.assert_allclose(net(x), expected(x), rtol=1e-5, atol=1e-6)
    assert not spare


def test_a_kernel_that_writes_beyond_its_memory(driver: Any, net: Any) -> None:
    """The mock finds the write by its guards, as a GPU finds it by its pages."""
    first, exe = net.plan.launches[0], jangin.Executable(net.artifact)
    memory = exe._module.memory()
    layout = exe._layout((1,))
    memory.prepare(layout)
    kernel = memory._kernels[0]
    kernel.set_arg(len(first.args) - 1, memory._arena.part(memory._arena.size - 256, 256))
    with pytest.raises(RuntimeError, match=r"CUDA_ERROR_(ILLEGAL|MISALIGNED)_ADDRESS"):
        memory.run(layout, [images(1)])


def test_a_device_that_is_lost(driver: Any, net: Any) -> None:
    x = images(2)
    net(x)
    driver.mock_launches_left(1)
    with pytest.raises(RuntimeError, match=r"could not finish a run of .*DEVICE_UNAVAILABLE.*device is lost"):
        net(x)
    driver.mock_reset()
    np.testing.assert_allclose(jangin.Executable(net.artifact)(x), expected(x), rtol=1e-5, atol=1e-6)


def test_code_that_the_driver_refuses(driver: Any, net: Any) -> None:
    """The code is newer than the driver, or damaged."""
    newer = tuple(replace(Built.of(code), version=(13, 5)).packed for code in net.artifact.objects)
    driver.mock_image_error(209)
    with pytest.raises(
        LoadError,
        match=r"the kernel .*, which computes .*: cuda:0 .* doesn't take the code: .*NO_BINARY.*; the "
        r"code was made by NVRTC 13\.5, and the driver has CUDA 12\.0: .*nvidia-cuda-nvrtc-cu12",
    ):
        jangin.Executable(replace(net.artifact, objects=newer))
    driver.mock_image_error(0)
    damaged = tuple(replace(Built.of(code), cubin=b"nothing").packed for code in net.artifact.objects)
    with pytest.raises(LoadError, match="CUDA_ERROR_INVALID_IMAGE"):
        jangin.Executable(replace(net.artifact, objects=damaged))


def test_text_is_for_later_devices(driver: Any, net: Any) -> None:
    """If a device doesn't take the machine code, its driver compiles the text."""
    objects = tuple(
        replace(Built.of(code), cubin=b"none for this one").packed for code in net.artifact.objects
    )
    driver.mock_device(9, 0, 1 << 30)
    mocked.forget()
    exe = jangin.Executable(replace(net.artifact, objects=objects))
    np.testing.assert_allclose(exe(images(2)), expected(images(2)), rtol=1e-5, atol=1e-6)


def test_a_compiler_that_fails(driver: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MOCK_CXX", "false")
    with pytest.raises(jangin.CompileError, match=r"k_.*: NVRTC 12.0 failed for sm_80"):
        jangin.compile(gather(), "cuda:sm_80", cache=False)
