"""A GPU that shares the host's memory reads and writes the host's arrays where they lie."""

from __future__ import annotations

import gc
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import mocked
import numpy as np
import pytest
from onnx import TensorProto, helper
from test_cuda_runtime import expected, images
from test_toy_backend import network

import jangin
from jangin.runtime.device import LoadError

pytestmark = mocked.needed
LARGE = 300_001


@pytest.fixture
def jetson(driver: Any) -> Any:
    """Make the mock a Jetson AGX Orin."""
    driver.mock_device(8, 7, 1 << 30)
    driver.mock_integrated(1)
    mocked.forget()
    return driver


def squares() -> Any:
    graph = helper.make_graph(
        [helper.make_node("Mul", ["x", "x"], ["y"])], "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n"])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
    )  # fmt: skip
    return jangin.compile(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)]), "cuda")


def test_results_and_copies(jetson: Any) -> None:
    """Only small inputs are copied, by the processor. The driver copies nothing, and a graph is launched."""
    net = jangin.compile(network(), "cuda", cache=False)
    for batch in (1, 3, 1):
        x, before = images(batch), net._module.copied
        copies, graphs = jetson.mock_copies_to_host(), jetson.mock_graph_launches()
        np.testing.assert_allclose(net(x), expected(x), rtol=1e-5, atol=1e-6)
        assert net._module.copied - before == x.nbytes
        assert jetson.mock_copies_to_host() == copies and jetson.mock_graph_launches() == graphs + 1


@pytest.mark.parametrize("size", [0, 1, 1000, 262_144, 262_145, LARGE])
def test_arrays_of_all_sizes(jetson: Any, size: int) -> None:
    exe = squares()
    x = np.random.default_rng(size).standard_normal(size).astype(np.float32)
    before = exe._module.copied
    kept = [exe(x) for _ in range(3)]
    for y in kept:
        np.testing.assert_array_equal(y, x * x)
    assert exe._module.copied - before == (0 if x.nbytes > 1 << 20 else 3 * x.nbytes)


def test_odd_addresses_are_copied(jetson: Any) -> None:
    exe, x = squares(), np.random.default_rng(1).standard_normal(LARGE + 1).astype(np.float32)
    np.testing.assert_array_equal(exe(x[1:]), x[1:] * x[1:])
    memory = x.tobytes()
    np.testing.assert_array_equal(exe(np.frombuffer(memory, np.float32)), x * x)


def test_outputs_stay_the_caller_s(jetson: Any) -> None:
    """A later run doesn't write to an array that the caller keeps. It reuses memory that nobody keeps."""
    exe, xs = squares(), [np.full(LARGE, n, np.float32) for n in range(5)]
    kept = [exe(x) for x in xs]
    assert [y[[0, -1]].tolist() for y in kept] == [[n * n] * 2 for n in range(5)]
    before = exe._module.copied
    assert exe(exe(xs[2]))[0] == 16.0 and exe._module.copied == before
    at = {exe(x).__array_interface__["data"][0] for x in xs}
    assert len(at) == 1, "one piece of memory serves runs whose results nobody keeps"
    del exe
    gc.collect()
    assert kept[4][0] == 16.0


def test_threads(jetson: Any) -> None:
    exe, xs = squares(), [np.full(LARGE + n, n, np.float32) for n in range(4)]
    with ThreadPoolExecutor(3) as pool:
        for x, y in zip(xs * 4, pool.map(exe, xs * 4), strict=True):
            np.testing.assert_array_equal(y, x * x)
        same = list(pool.map(exe, [xs[3]] * 6))  # whose pages one thread registers
    assert all(y[0] == 9.0 for y in same)


def test_nothing_is_left(jetson: Any) -> None:
    before = jetson.mock_live()
    exe = squares()
    exe(np.ones(LARGE, np.float32))
    del exe
    gc.collect()
    assert jetson.mock_live() == before


def test_every_allocation_fails_in_turn(jetson: Any) -> None:
    """Each error is one that names the device, or an array is copied. The next run is right."""
    net, x, failed = jangin.build(network(), "cuda", cache=False), images(3), 0
    for left in range(100):
        jetson.mock_allocations_left(left)
        try:
            exe = jangin.Executable(net)
            exe(x)
        except (MemoryError, LoadError) as error:
            assert "cuda:0 (Mock GPU 0)" in str(error)
            failed += 1
        else:
            break
        finally:
            jetson.mock_allocations_left(-1)
        np.testing.assert_allclose(jangin.Executable(net)(x), expected(x), rtol=1e-5, atol=1e-6)
    assert 2 < failed < 99


def test_a_fault(jetson: Any) -> None:
    net, x = jangin.compile(network(), "cuda", cache=False), images(2)
    y = net(x)
    jetson.mock_fault(net.plan.launches[1].function.encode())
    with pytest.raises(RuntimeError, match=rf"could not run the kernel {net.plan.launches[1].kernel}"):
        net(x)
    jetson.mock_fault(b"")
    np.testing.assert_allclose(y, expected(x), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(jangin.Executable(net.artifact)(x), expected(x), rtol=1e-5, atol=1e-6)
