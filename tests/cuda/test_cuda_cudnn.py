"""Convolutions by cuDNN among a plan's own kernels, on mock libraries that check what they are given."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import mocked
import numpy as np
import onnx
import pytest
from onnx import TensorProto

import jangin
from jangin.compiler.pipeline import plan_model, tune_model
from jangin.ir.library import Convolution
from jangin.options import Options
from jangin.runtime import libraries
from jangin.runtime.device import LoadError
from jangin.runtime.devices import cudnn, products
from jangin.targets import resolve
from jangin.tune import tuner
from jangin.tune.store import Store

sys.path.insert(0, str(Path(__file__).parent.parent / "libraries"))
from test_libraries import Model, dense, floats, model, node

pytestmark = mocked.needed
NOT_SUPPORTED, NO_MEMORY, FAILED = 3000, 4004, 5000


def convolution(x: tuple[int, ...], w: tuple[int, ...], **attrs: Any) -> Model:
    """Make a convolution with a bias, an activation and a residual."""
    nodes = [node("Conv", "x w b", "c", **attrs), node("Relu", "c", "r"), node("Mul", "r r", "s")]
    return model([*nodes, node("Add", "r s")], {"x": floats(*x)}, w=floats(*w), b=floats(w[0]))


def given_weights() -> Model:
    return model([node("Conv", "x w", pads=[1] * 4)], {"x": floats(2, 8, 7, 5), "w": floats(12, 8, 3, 3)})


CASES: dict[str, Model] = {
    "padded": convolution((1, 16, 9, 7), (24, 16, 3, 3), pads=[1] * 4),
    "strided": convolution((2, 16, 10, 9), (24, 16, 3, 3), pads=[1] * 4, strides=[2, 2]),
    "uneven": convolution((1, 9, 11, 13), (10, 9, 5, 3), pads=[2, 1, 2, 1], strides=[3, 1]),
    "dilated": convolution((1, 8, 11, 12), (8, 8, 3, 3), pads=[2, 1, 2, 1], dilations=[2, 1]),
    "groups": convolution((1, 16, 9, 9), (32, 8, 3, 3), pads=[1] * 4, group=2),
    "pointwise": convolution((3, 24, 9, 7), (32, 24, 1, 1)),
    "every other": convolution((1, 16, 9, 13), (24, 16, 1, 1), strides=[2, 2]),
}
"""Convolutions that cuDNN computes."""
OTHERS: dict[str, Model] = {
    "one side": convolution((1, 8, 10, 10), (8, 8, 3, 3), pads=[0, 0, 1, 1], strides=[2, 2]),
    "depthwise": convolution((1, 16, 9, 9), (16, 1, 3, 3), pads=[1] * 4, group=16),
    "lines": convolution((1, 8, 10), (8, 8, 3), pads=[1, 1]),
    "weights of runs": given_weights(),
    "product": dense(),
}
"""Kernels that stay ours."""


@pytest.fixture
def library(driver: Any) -> Iterator[Any]:
    """Return the mock of cuDNN, beside the mock of the driver."""
    with mocked.beside("lib/libcudnn.so.9") as mock:
        yield mock


@pytest.mark.parametrize(
    "name", [n if n == "strided" else pytest.param(n, marks=pytest.mark.slow) for n in CASES]
)
def test_the_same_result(name: str, library: Any, tmp_path: Path) -> None:
    """Windows of all kinds, and operators behind them, are right from memory and from a file."""
    net, feeds = CASES[name]
    want = jangin.compile(net, "cpu", cache=False).run(feeds)["y"]
    exe = jangin.compile(net, "cuda", cache=False, libraries="cudnn")
    assert exe.plan.libraries == ("cudnn",)
    exe.save(tmp_path / "m.jgn")
    for one in (exe, exe, jangin.load(tmp_path / "m.jgn")):
        np.testing.assert_allclose(one.run(feeds)["y"], want, rtol=1e-4, atol=1e-4)
    assert all(0 < launch.seconds < 10 for launch in exe.profile(feeds, 1))


def called(net: onnx.ModelProto, asked: str = "cudnn") -> set[str]:
    plans = plan_model(net, Options(resolve("cuda:sm_80"), libraries=asked)).plans
    return {call.library for plan in plans for call in plan.calls.values()}


def test_what_is_called(library: Any) -> None:
    """Winograd's method and padded copies leave no convolution to us. Who names no library gets none."""
    assert all(called(net) == {"cudnn"} for net, _ in CASES.values())
    assert all(called(net) == set() for net, _ in OTHERS.values())
    assert called(CASES["padded"][0], "never") == called(CASES["padded"][0], "auto") == set()
    half = CASES["padded"][0].__deepcopy__()
    for info in (*half.graph.input, *half.graph.output):
        info.type.tensor_type.elem_type = TensorProto.FLOAT16
    for constant in half.graph.initializer:
        array = onnx.numpy_helper.to_array(constant).astype(np.float16)
        constant.CopyFrom(onnx.numpy_helper.from_array(array, constant.name))
    assert called(half) == set()
    nodes = [node("Conv", "x w", "c", pads=[1] * 4), node("Conv", "c v")]
    both = model(nodes, {"x": floats(1, 8, 9, 9)}, w=floats(16, 8, 3, 3), v=floats(8, 16, 1, 1))[0]
    assert called(both, "cublas,cudnn") == {"cublas", "cudnn"}


def test_nothing_is_left(library: Any) -> None:
    net, feeds = CASES["strided"]
    before = library.mock_objects()
    jangin.compile(net, "cuda", cache=False, libraries="cudnn").run(feeds)
    gc.collect()
    assert library.mock_objects() <= before + 1, "the library's handle stays as long as its context"


def test_threads_share_the_library(library: Any) -> None:
    """The library's handle has one stream at a time, and each thread has its own stream."""
    net, feeds = CASES["strided"]
    exe = jangin.compile(net, "cuda", cache=False, libraries="cudnn")
    inputs = [{"x": feeds["x"] * n} for n in range(1, 4)]
    want = [exe.run(x)["y"] for x in inputs]
    with ThreadPoolExecutor(3) as pool:
        for n, got in enumerate(pool.map(exe.run, inputs * 5)):
            np.testing.assert_array_equal(got["y"], want[n % 3])


def test_where_it_is_missing(library: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    net = CASES["strided"][0]
    jangin.build(net, "cuda", cache=False, libraries="cudnn").save(tmp_path / "m.jgn")
    monkeypatch.setattr(libraries, "nvidia_libraries", lambda name, *_: [])
    libraries.find.cache_clear()
    cudnn._functions.cache_clear()
    with pytest.raises(ValueError, match="cuDNN is not installed here: pip install nvidia-cudnn"):
        jangin.compile(net, "cuda", cache=False, libraries="cudnn")
    with pytest.raises(LoadError, match=r"to call another library: cuDNN is not installed here"):
        jangin.load(tmp_path / "m.jgn")


@pytest.mark.parametrize(
    ("status", "said"), [(NOT_SUPPORTED, "knows no way"), (FAILED, r"the error 5000 \(CUDNN_STATUS_OTHER\)")]
)
def test_a_library_that_refuses(library: Any, status: int, said: str) -> None:
    """The error names the kernel and the remedy."""
    built = jangin.build(CASES["strided"][0], "cuda", cache=False, libraries="cudnn")
    library.mock_refuse(status)
    with pytest.raises(LoadError, match=rf'computes .*can\'t call cuDNN: .*{said}.*libraries="never"'):
        jangin.Executable(built)
    assert cudnn.Failed("", NO_MEMORY).full and not cudnn.Failed("", FAILED).full


def test_every_allocation_fails_in_turn(driver: Any, library: Any) -> None:
    """The library's working memory is asked for in the first run."""
    net, feeds = CASES["strided"]
    exe, failed = jangin.compile(net, "cuda", cache=False, libraries="cudnn"), 0
    want = exe.run(feeds)["y"]
    for left in range(100):
        driver.mock_allocations_left(left)
        try:
            jangin.Executable(exe.artifact).run(feeds)
        except MemoryError as error:
            assert "OUT_OF_MEMORY" in str(error)
            failed += 1
        else:
            break
        finally:
            driver.mock_allocations_left(-1)
    assert failed == left > 4
    np.testing.assert_array_equal(jangin.Executable(exe.artifact).run(feeds)["y"], want)


def test_descriptions_of_convolutions() -> None:
    of = Convolution(1, 2, (4, 6), (9, 8), (7, 8), (3, 1), (0, 0), (1, 1), (1, 1), (0, 1, 3))
    assert products.unpacked(products.packed(of)) == of
    assert of.steps == 7 * 8 * 6 * 3 * 2
    with pytest.raises(LoadError, match="damaged"):
        products.unpacked(products.packed(of).replace(b"groups", b"troops"))


@pytest.mark.slow  # the C++ compiler makes every candidate
def test_it_races_ours(library: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuner, "HOPELESS", 1.1)  # which leaves ours few candidates
    options = Options(resolve("cuda"), libraries="auto", winograd=False)
    outcome = tune_model(CASES["strided"][0], options, 1, 600.0, store=Store(tmp_path))
    assert not outcome.defects
    (tried,) = (kernel.tried for kernel in outcome.kernels if "cudnn" in kernel.tried)
    assert tried["contraction"] > 0, "the library's estimate discards none of ours"
