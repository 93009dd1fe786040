"""Inputs whose shapes an operator does not define are refused; symbolic ones are checked at each run."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from models import Dims, info, model, node
from onnx import TensorProto

import jangin
from jangin.frontends.lower import lower
from jangin.frontends.table import load
from jangin.ir.graph import CompileError

I64, F32 = TensorProto.INT64, TensorProto.FLOAT


def three(op: str, shapes: list[Dims], kinds: list[int], **attrs: int) -> onnx.ModelProto:
    names = "abc"[: len(shapes)]
    inputs = [info(n, s, k) for n, s, k in zip(names, shapes, kinds, strict=True)]
    return model([node(op, " ".join(names), "y", **attrs)], inputs, ["y"])


@pytest.mark.parametrize(
    "proto",
    [
        three("GatherElements", [[2, 3], [4, 3]], [F32, I64], axis=1),
        three("ScatterElements", [[2, 3], [2, 3], [2, 2]], [F32, I64, F32], axis=1),
        three("ScatterElements", [[2, 3], [4, 3], [4, 3]], [F32, I64, F32], axis=1),
        three("ScatterND", [[4, 3], [2, 1], [2, 2]], [F32, I64, F32]),
        three("GatherND", [[2, 3, 4], [5, 1]], [F32, I64], batch_dims=1),
        three("Concat", [[2, 3], [3, 3]], [F32, F32], axis=1),
        three("Concat", [[2, 3], [2, 3, 1]], [F32, F32], axis=1),
        three("MatMul", [[2, 3], [4, 3]], [F32, F32]),
        three("Add", [[2, 3], [2]], [F32, F32]),
        three("InstanceNormalization", [[1, 3, 4], [2], [3]], [F32, F32, F32]),
    ],
    ids=lambda p: p.graph.node[0].op_type,
)
def test_shapes_that_do_not_fit(proto: onnx.ModelProto) -> None:
    with pytest.raises(CompileError) as error:
        lower(load(proto))
    assert proto.graph.node[0].name in str(error.value)


def test_symbols_are_checked_at_each_run() -> None:
    proto = three("GatherElements", [["n", 3], ["m", 3]], [F32, I64], axis=1)
    exe = jangin.compile(proto, cache=False, threads=1)
    a, b = np.arange(6, dtype=np.float32).reshape(2, 3), np.ones((2, 3), np.int64)
    np.testing.assert_array_equal(exe.run({"a": a, "b": b})["y"], [[1, 1, 1], [4, 4, 4]])
    np.testing.assert_array_equal(exe.run({"a": a, "b": b[:1]})["y"], [[1, 1, 1]])
    with pytest.raises(ValueError, match="do not meet"):
        exe.run({"a": a[:1], "b": b})
