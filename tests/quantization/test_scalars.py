"""Inputs without axes, which `compare` and `quantize` take as numbers, arrays, and files of either."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import jangin
from jangin.quantization.data import read
from jangin.runtime.sizes import TensorSpec

RNG = np.random.default_rng(0)
X, RATES = RNG.random((3, 8), np.float32), np.array([1, 2, 3], np.float32)
SPECS = [TensorSpec("x", X.dtype, ("n", 8)), TensorSpec("rate", X.dtype, ())]


def scaled() -> bytes:
    """Return a model that multiplies `x` by `rate`, and takes a matrix product of it."""
    nodes = [helper.make_node("Mul", ["x", "rate"], ["m"]), helper.make_node("MatMul", ["m", "w"], ["y"])]
    sizes: dict[str, list[Any]] = {"x": ["n", 8], "rate": [], "y": ["n", 4]}
    x, rate, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in sizes.items())
    weights = [numpy_helper.from_array(RNG.standard_normal((8, 4)).astype(np.float32), "w")]
    graph = helper.make_graph(nodes, "scaled", [x, rate], [y], weights)
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return bytes(made.SerializeToString())


def saved(folder: Path, **arrays: Any) -> Path:
    np.savez(folder / "data.npz", **arrays)
    return folder / "data.npz"


DATA: dict[str, Callable[[Path], Any]] = {
    "numbers": lambda _: [(X, 2.0)],
    "NumPy's numbers": lambda _: [{"x": X, "rate": np.float32(2)}],
    "arrays": lambda _: [{"x": X, "rate": np.array(2, np.float32)}],
    "a run in a file": lambda folder: saved(folder, x=X, rate=np.float32(2)),
    "several in a file": lambda folder: saved(folder, x=X, rate=RATES),
}


@pytest.mark.parametrize("data", DATA)
def test_inputs_without_axes(data: str, tmp_path: Path) -> None:
    model, given = scaled(), DATA[data](tmp_path)
    assert jangin.compare(model, model, given, threads=1).first is None
    made = jangin.quantize(model, given, threads=1)
    exact, found = jangin.compile(model, threads=1)(X, 2.0), made.executable(X, 2.0)
    assert np.abs(found - exact).max() < 0.05 * np.abs(exact).max()


def test_runs_of_a_file(tmp_path: Path) -> None:
    feeds = read(saved(tmp_path, x=X, rate=RATES), SPECS)
    assert [(f["x"].shape, f["rate"].shape) for f in feeds] == [((1, 8), ())] * 3
    assert [float(f["rate"]) for f in feeds] == [*RATES]
    np.save(tmp_path / "rates.npy", RATES)
    assert [float(f["rate"]) for f in read(tmp_path / "rates.npy", SPECS[1:])] == [*RATES]
    with pytest.raises(ValueError, match=r"float32\[3\], which doesn't fit the input rate"):
        read([(X, RATES)], SPECS)
