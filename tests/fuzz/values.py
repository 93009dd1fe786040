"""Unexpected inputs of runs: other shapes and types, extreme numbers, and indices from anywhere."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

Array = np.ndarray[Any, Any]
DTYPES = ("float32", "float64", "float16", "int64", "int32", "uint8", "bool", "complex64", "object", "U4")
FLOATS = np.array([0, -0.0, 1, -1, 1e-45, 3e38, np.inf, -np.inf, np.nan, 1e-38, 87, -104], np.float32)
INTEGERS = np.array([0, 1, -1, 2, 5, -6, 7, 100, 1 << 31, -(1 << 31), (1 << 63) - 1, -(1 << 63)])


def models() -> Mapping[str, onnx.ModelProto]:
    """Return models whose code depends on the values of their inputs."""

    def info(name: str, dims: list[Any], kind: int = TensorProto.FLOAT) -> onnx.ValueInfoProto:
        return helper.make_tensor_value_info(name, kind, dims)

    def model(
        nodes: list[onnx.NodeProto], inputs: list[Any], outputs: str, **constants: Array
    ) -> onnx.ModelProto:
        ends = [helper.make_empty_tensor_value_info(n) for n in outputs.split()]
        fixed = [numpy_helper.from_array(np.asarray(a), n) for n, a in constants.items()]
        graph = helper.make_graph(nodes, "g", inputs, ends, fixed)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)

    def node(op: str, inputs: str, outputs: str, **attrs: Any) -> onnx.NodeProto:
        return helper.make_node(op, inputs.split(), outputs.split(), **attrs)

    table = np.arange(24, dtype=np.float32).reshape(6, 4)
    i64 = TensorProto.INT64
    scanned = helper.make_graph(
        [node("Gather", "row i", "r"), node("Add", "s r", "t"), node("Identity", "t", "o")], "b",
        [info("s", [2]), info("row", [4])], [info("t", [2]), info("o", [2])],
    )  # fmt: skip
    return {
        "gathers": model(
            [node("Gather", "w i", "a"), node("GatherElements", "a j", "b", axis=1),
             node("Softmax", "b", "y")],
            [info("i", ["n"], i64), info("j", ["n", "k"], i64)], "y", w=table,
        ),
        "scatters": model(
            [node("ScatterND", "x i u", "a", reduction="add"), node("ScatterElements", "a j v", "y", axis=0)],
            [info("x", [6, 4]), info("i", ["n", 1], i64), info("u", ["n", 4]), info("j", ["m", 4], i64),
             info("v", ["m", 4])], "y",
        ),
        "scan": model(
            [node("Scan", "s x", "last y", body=scanned, num_scan_inputs=1)],
            [info("s", [2]), info("x", [80, 4]), info("i", [2], i64)], "last y",
        ),
        "sizes": model(
            [node("Reshape", "x shape", "a"), node("TopK", "a k", "v p"), node("Tile", "v r", "y")],
            [info("x", ["n", 4]), info("shape", [2], i64), info("k", [1], i64), info("r", [2], i64)], "y p",
        ),
        "data": model(
            [node("NonZero", "x", "p"), node("Transpose", "p", "q", perm=[1, 0]),
             node("GatherND", "x q", "v"),
             node("Slice", "v a b", "y")],
            [info("x", ["n", "m"]), info("a", [1], i64), info("b", [1], i64)], "y",
        ),
        "windows": model(
            [node("MaxPool", "x", "a p", kernel_shape=[2, 2], strides=[2, 2]),
             node("Resize", "a none scales", "y", mode="linear")],
            [info("x", [1, 2, "h", "w"])], "y p", none=np.zeros(0, np.float32),
            scales=np.array([1, 1, 2, 1.5], np.float32),
        ),
        "numbers": model(
            [node("Exp", "x", "a"), node("Mod", "i j", "m"), node("Div", "i j", "d"), node("Pow", "x x", "b"),
             node("Cast", "x", "c", to=i64), node("BitShift", "u v", "e", direction="LEFT"),
             node("ReduceLogSumExp", "a", "f")],
            [info("x", ["n"]), info("i", ["n"], i64), info("j", ["n"], i64), 
             info("u", ["n"], TensorProto.UINT64), info("v", ["n"], TensorProto.UINT64)], "a m d b c e f",
        ),
        "loss": model(
            [node("SoftmaxCrossEntropyLoss", "x t w", "y", reduction="mean", ignore_index=-1)],
            [info("x", ["n", 5]), info("t", ["n"], i64), info("w", [5])], "y",
        ),
        "lengths": model(
            [node("ReverseSequence", "x i", "y", batch_axis=1, time_axis=0)],
            [info("x", ["t", "n", 2]), info("i", ["n"], i64)], "y",
        ),
    }  # fmt: skip


def feeds(specs: Any, rng: random.Random) -> dict[str, Any]:
    """Draw inputs: mostly of the declared types and of shapes that fit each other, sometimes not."""
    sizes: dict[str, int] = {}
    made: dict[str, Any] = {}
    odd = rng.random() < 0.3
    for spec in specs:
        shape = [d if isinstance(d, int) else sizes.setdefault(str(d), rng.randrange(7)) for d in spec.shape]
        if odd and rng.random() < 0.4:
            shape = rng.choice(([], [0], [*shape, 1], shape[1:], [rng.randrange(9) for _ in shape], [3] * 9))
        dtype = np.dtype(rng.choice(DTYPES) if odd and rng.random() < 0.4 else spec.dtype)
        made[spec.name] = _array(shape, dtype, rng)
    if odd and rng.random() < 0.2 and made:
        name = rng.choice(list(made))
        made.pop(name) if rng.random() < 0.5 else made.update(
            {name: rng.choice((None, 3, "x", [[1], [2, 3]], {}))}
        )
    return made


def _array(shape: list[int], dtype: Any, rng: random.Random) -> Any:
    count = int(np.prod(shape))
    if dtype.kind in "fc":
        pool: Any = FLOATS if rng.random() < 0.5 else np.arange(4, dtype=np.float32)
    else:
        pool = INTEGERS if rng.random() < 0.4 else np.arange(rng.choice((2, 3, 6)))
    with np.errstate(all="ignore"):
        array = np.asarray([pool[rng.randrange(len(pool))] for _ in range(count)], pool.dtype)
        array = array.astype(dtype).reshape(shape)
    if array.ndim and rng.random() < 0.2:
        array = np.asfortranarray(array) if rng.random() < 0.5 else array[::-1]
    return array
