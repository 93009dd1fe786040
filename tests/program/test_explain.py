"""`explain_shapes` tells an executable's sizes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from build import info, model
from onnx import helper

import jangin

node = helper.make_node


def test_symbolic_and_specialised(tmp_path: Path) -> None:
    nodes = [
        node("MatMul", ["x", "w"], ["a"]),
        node("Softmax", ["a"], ["b"]),
        node("MatMul", ["b", "v"], ["y"]),
    ]
    constants = {"w": np.ones((8, 5), np.float32), "v": np.ones((5, 3), np.float32)}
    proto = model(nodes, [info("x", ["batch", "length", 8])], ["y"], constants)
    exe = jangin.compile(proto, cache=False, shapes={"batch": 2, "length": (1, 10)})
    text = exe.explain_shapes().splitlines()
    assert text[:3] == [
        "input x float32[2, length, 8]",
        "size batch: 2, specialised by shapes=",
        "size length: 1 to 10, symbolic: given by the inputs' shapes",
    ]
    assert text[-1].startswith("intermediate values take at most (length * ")
    assert text[-1].endswith("for the largest sizes")
    exe.save(tmp_path / "m.jgn")
    assert jangin.load(tmp_path / "m.jgn").explain_shapes().splitlines() == text
    with pytest.raises(ValueError, match=r"length is 11, but may be 1 to 10: compile the model again"):
        exe(np.ones((2, 11, 8), np.float32))


def test_sizes_of_data(tmp_path: Path) -> None:
    nodes = [node("NonZero", ["x"], ["n"], name="count"), node("Cast", ["n"], ["y"], to=1)]
    exe = jangin.compile(model(nodes, [info("x", ["n", 4])], ["y"]), cache=False, shapes={"n": (0, 9)})
    text = exe.explain_shapes()
    assert "size n: 0 to 9, symbolic" in text
    assert "size count_n0: 0 or more, depends on data: known after NonZero 'count' (ai.onnx 21)" in text
    exe.save(tmp_path / "m.jgn")
    assert jangin.load(tmp_path / "m.jgn").explain_shapes() == text
    with pytest.raises(ValueError, match="n is 10, but may be 0 to 9"):
        exe(np.ones((10, 4), np.float32))
