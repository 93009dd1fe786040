"""Kernels that call OpenBLAS and oneDNN give the same results from memory and from a file, on one and two
threads."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import jangin
from jangin.ir.parse import parse_plan
from jangin.ir.text import print_plan
from jangin.options import Options
from jangin.runtime import libraries
from jangin.runtime.device import LoadError
from jangin.targets import resolve

Model = tuple[onnx.ModelProto, dict[str, np.ndarray]]
RNG = np.random.default_rng(3)


def floats(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


def model(nodes: list[onnx.NodeProto], feeds: dict[str, np.ndarray], **constants: np.ndarray) -> Model:
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, a.shape) for n, a in feeds.items()],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(a, n) for n, a in constants.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8), feeds


def node(op: str, inputs: str, output: str = "y", **attrs: Any) -> onnx.NodeProto:
    return helper.make_node(op, inputs.split(), [output], **attrs)


def dense() -> Model:
    """Make a dense layer with a bias, an activation and a residual."""
    nodes = [node("MatMul", "x w", "p"), node("Add", "p b", "q"), node("Relu", "q", "r"), node("Add", "r x")]
    return model(nodes, {"x": floats(70, 48)}, w=floats(48, 48), b=floats(48))


def one_row() -> Model:
    return model([node("Gemm", "x w b", transB=1)], {"x": floats(1, 64)}, w=floats(40, 64), b=floats(40))


def both_from_runs() -> Model:
    return model([node("MatMul", "x w")], {"x": floats(33, 20), "w": floats(20, 24)})


def transposed_left() -> Model:
    return model([node("Gemm", "x w", transA=1)], {"x": floats(20, 37)}, w=floats(20, 32))


def batched_heads() -> Model:
    """Make attention scores. Both operands are views [batch, length, heads, width] with exchanged axes."""
    nodes = [
        node("Transpose", "q", "qt", perm=[0, 2, 1, 3]),
        node("Transpose", "k", "kt", perm=[0, 2, 3, 1]),
        node("MatMul", "qt kt"),
    ]
    return model(nodes, {"q": floats(2, 19, 3, 16), "k": floats(2, 24, 3, 16)})


def pointwise() -> Model:
    nodes = [node("Conv", "x w b", "c"), node("Relu", "c")]
    return model(nodes, {"x": floats(2, 24, 9, 7)}, w=floats(32, 24, 1, 1), b=floats(32))


def strided() -> Model:
    nodes = [node("Relu", "x", "r"), node("Conv", "r w", strides=[2, 2])]
    return model(nodes, {"x": floats(1, 16, 9, 13)}, w=floats(24, 16, 1, 1))


CASES = [dense, one_row, both_from_runs, transposed_left, batched_heads, pointwise, strided]


@pytest.fixture(params=["openblas", "onednn"])
def library(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    if libraries.find(name) is None:
        pytest.skip(libraries.absent(name))
    return name


@pytest.mark.sampled(4)
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("make", CASES, ids=lambda c: c.__name__)
def test_the_same_result(library: str, make: Callable[[], Model], threads: int) -> None:
    built, feeds = make()
    ours = jangin.compile(built, cache=False).run(feeds)
    theirs = jangin.compile(built, threads=threads, cache=False, libraries=library)
    assert theirs.plan.libraries == (library,)
    for _ in range(2):
        for name, array in theirs.run(feeds).items():
            np.testing.assert_allclose(array, ours[name], rtol=1e-4, atol=1e-4)


def test_a_file_loads_with_the_library_and_says_what_is_missing(
    library: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    built, feeds = dense()
    exe = jangin.compile(built, cache=False, libraries=library)
    exe.save(tmp_path / "m.jgn")
    np.testing.assert_array_equal(jangin.load(tmp_path / "m.jgn").run(feeds)["y"], exe.run(feeds)["y"])
    assert f"calls {library}" in print_plan(exe.plan)
    assert parse_plan(print_plan(exe.plan)).launches == exe.plan.launches
    monkeypatch.setattr(libraries, "find", lambda name: None)
    with pytest.raises(
        LoadError, match=rf"{libraries.TITLES[library]} is not installed.*jangin\[{library}\]"
    ):
        jangin.load(tmp_path / "m.jgn")


def three_by_three() -> Model:
    return model([node("Conv", "x w")], {"x": floats(1, 16, 9, 9)}, w=floats(16, 16, 3, 3))


def grouped() -> Model:
    return model([node("Conv", "x w", group=2)], {"x": floats(1, 16, 9, 9)}, w=floats(32, 8, 1, 1))


def double() -> Model:
    nodes = [node("Cast", "x", "d", to=TensorProto.DOUBLE), node("MatMul", "d w", "p")]
    return model([*nodes, node("Cast", "p", to=TensorProto.FLOAT)], {"x": floats(9, 8)}, w=np.ones((8, 8)))


@pytest.mark.parametrize("make", [three_by_three, grouped, double], ids=lambda c: c.__name__)
def test_what_no_sgemm_computes_stays_ours(make: Callable[[], Model]) -> None:
    if libraries.find("openblas") is None:
        pytest.skip(libraries.absent("openblas"))
    built, feeds = make()
    exe = jangin.compile(built, cache=False, libraries="openblas")
    assert exe.plan.libraries == ()
    assert np.isfinite(exe.run(feeds)["y"]).all()


def test_never_is_the_default() -> None:
    assert jangin.compile(dense()[0], cache=False).plan.libraries == ()
    assert Options(resolve()).key() != Options(resolve(), libraries="auto").key()
    with pytest.raises(ValueError, match="never, auto"):
        Options(resolve(), libraries="blas")


def test_a_library_that_is_asked_for_and_absent_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jangin.libraries.find", lambda name: None)
    with pytest.raises(ValueError, match="oneDNN is not installed"):
        jangin.compile(dense()[0], cache=False, libraries="onednn")


def test_numpy_keeps_its_threads() -> None:
    files = sorted(Path(np.__file__).parent.with_name("numpy.libs").glob("libscipy_openblas64_*"))
    if not files:
        pytest.skip("this NumPy brings no OpenBLAS of its own")
    numpys = ctypes.CDLL(str(files[0]))
    before = numpys.scipy_openblas_get_num_threads64_()
    numpys.scipy_openblas_set_num_threads64_(2)
    try:
        libraries.find.cache_clear()
        assert libraries.find("openblas") is not None
        assert numpys.scipy_openblas_get_num_threads64_() == 2
    finally:
        numpys.scipy_openblas_set_num_threads64_(before)
