"""Models written as TensorFlow Lite. LiteRT's reference kernels give the model's results, and so does the
file when Jangin reads it back."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.backend.test.loader import load_model_tests

import jangin
from jangin.commands.common import Settings
from jangin.commands.convert import convert
from jangin.frontends import table
from jangin.frontends.lower import lower
from jangin.ops.interpret import run_graph

pytest.importorskip("tflite", reason="the package tflite isn't installed: the extra `tflite` brings it")
pytest.importorskip("ai_edge_litert.interpreter", reason="ai-edge-litert, the reference, isn't installed")

import tflite
from test_tflite import reference

from jangin.frontends.tflite.writer import written

TOLERANCE = 2e-6
"""The largest difference, as a share of the largest value. Sums of some hundred products are taken in another
order."""
RANDOM = np.random.default_rng(5)
KINDS = {"f": TensorProto.FLOAT, "i": TensorProto.INT64, "b": TensorProto.BOOL}
Constants = Mapping[str, Any]


def normal(*shape: int) -> Any:
    return RANDOM.standard_normal(shape).astype(np.float32)


def model(nodes: Sequence[Any], shape: Sequence[Any], constants: Constants, kind: str = "f") -> bytes:
    """Make a model of nodes that compute y from x."""
    value = helper.make_tensor_value_info
    held = [numpy_helper.from_array(np.asarray(a), n) for n, a in constants.items()]
    graph = helper.make_graph(
        nodes, "net", [value("x", TensorProto.FLOAT, shape)], [value("y", KINDS[kind], None)], held
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)
    return bytes(made.SerializeToString())


def node(operation: str, *inputs: str, **attributes: Any) -> list[Any]:
    return [helper.make_node(operation, ["x", *inputs], ["y"], **attributes)]


def tflite_of(source: bytes) -> bytes:
    return written(lower(table.load(source, {})))


def operators(data: bytes) -> list[str]:
    held = tflite.Model.GetRootAs(data, 0)
    graph = held.Subgraphs(0)
    names = {v: k for k, v in vars(tflite.BuiltinOperator).items() if not k.startswith("_")}
    codes = [held.OperatorCodes(graph.Operators(n).OpcodeIndex()) for n in range(graph.OperatorsLength())]
    return [names[max(c.BuiltinCode(), c.DeprecatedBuiltinCode())] for c in codes]


def check(source: bytes, x: Any, kernels: str = "BUILTIN_REF") -> list[str]:
    """Compare the model with its TFLite file in LiteRT and in Jangin. Return the file's operators."""
    data = tflite_of(source)
    wanted = jangin.compile(source, threads=1, cache=False)(x)
    (found,) = reference(data, [x], kernels)
    back = jangin.compile(data, threads=1, cache=False)(x)
    for got in (found, back):
        assert got.shape == wanted.shape and got.dtype == wanted.dtype
        if wanted.dtype.kind == "f":
            close = TOLERANCE * max(1, np.abs(wanted).max())
            np.testing.assert_allclose(got, wanted, rtol=0, atol=close)
        else:
            np.testing.assert_array_equal(got, wanted)
    return operators(data)


CONVOLUTIONS: Mapping[str, tuple[Sequence[int], Sequence[int], Mapping[str, Any], Sequence[str]]] = {
    "same": ((1, 5, 9, 11), (7, 5, 3, 3), {"pads": [1] * 4}, ["CONV_2D"]),
    "valid": ((2, 5, 9, 11), (7, 5, 3, 2), {"strides": [2, 3]}, ["CONV_2D"]),
    "before the first": ((1, 5, 10, 12), (7, 5, 3, 3), {"pads": [1] * 4, "strides": [2, 2]},
                         ["PAD", "CONV_2D"]),
    "one side": ((1, 5, 9, 11), (7, 5, 3, 3), {"pads": [2, 0, 0, 1]}, ["PAD", "CONV_2D"]),
    "with gaps": ((1, 3, 13, 11), (4, 3, 3, 3), {"dilations": [2, 3], "pads": [2, 3, 2, 3]}, ["CONV_2D"]),
    "depthwise": ((1, 6, 9, 7), (6, 1, 3, 5), {"group": 6, "pads": [1, 2, 1, 2]}, ["DEPTHWISE_CONV_2D"]),
    "several each": ((1, 3, 9, 7), (6, 1, 3, 3), {"group": 3}, ["DEPTHWISE_CONV_2D"]),
    "groups": ((1, 6, 9, 7), (8, 3, 3, 3), {"group": 2}, ["CONV_2D"]),
}  # fmt: skip


@pytest.mark.parametrize("name", CONVOLUTIONS)
@pytest.mark.parametrize("after", ["", "Relu", "Sigmoid"])
def test_convolutions(name: str, after: str) -> None:
    """A bias and a bound become parts of the convolution. Inputs and outputs keep the model's order of
    axes."""
    shape, filters, attributes, wanted = CONVOLUTIONS[name]
    nodes = [helper.make_node("Conv", ["x", "w", "b"], ["c" if after else "y"], **attributes)]
    nodes += [helper.make_node(after, ["c"], ["y"])] if after else []
    source = model(nodes, shape, {"w": normal(*filters) / 5, "b": normal(filters[0])})
    more = ["LOGISTIC"] if after == "Sigmoid" else []
    assert check(source, normal(*shape)) == ["TRANSPOSE", *wanted, *more, "TRANSPOSE"]


def test_a_convolution_along_one_axis() -> None:
    source = model(node("Conv", "w", strides=[2], pads=[2, 1]), [2, 3, 17], {"w": normal(5, 3, 4)})
    assert "CONV_2D" in check(source, normal(2, 3, 17))


POOLS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "largest": ("MaxPool", {"kernel_shape": [3, 2], "strides": [2, 1]}),
    "largest of the same": ("MaxPool", {"kernel_shape": [3, 3], "pads": [1] * 4}),
    "largest with a border": ("MaxPool", {"kernel_shape": [3, 3], "pads": [1] * 4, "strides": [2, 2]}),
    "rounded up": ("MaxPool", {"kernel_shape": [2, 2], "strides": [2, 2], "ceil_mode": 1}),
    "mean": ("AveragePool", {"kernel_shape": [3, 2], "strides": [2, 1]}),
    "mean of what is there": ("AveragePool", {"kernel_shape": [3, 3], "pads": [1] * 4}),
    "mean with zeros": ("AveragePool", {"kernel_shape": [3, 3], "pads": [1] * 4, "count_include_pad": 1}),
    "all": ("AveragePool", {"kernel_shape": [10, 9]}),
    "global": ("GlobalAveragePool", {}),
}  # fmt: skip


@pytest.mark.parametrize("name", POOLS)
def test_pools(name: str) -> None:
    operation, attributes = POOLS[name]
    found = check(model(node(operation, **attributes), [1, 3, 10, 9], {}), normal(1, 3, 10, 9) - 3)
    assert name not in ("all", "global") or "MEAN" in found


OTHERS: Mapping[str, tuple[Sequence[Any], Sequence[int], Constants]] = {
    "layer": (node("Gemm", "w", "b", transB=1), (3, 6), {"w": normal(5, 6), "b": normal(5)}),
    "product": (node("MatMul", "w"), (2, 3, 6), {"w": normal(6, 5)}),
    "products": (node("MatMul", "w"), (2, 3, 6), {"w": normal(2, 6, 5)}),
    "transpose": (node("Transpose", perm=[2, 0, 1]), (2, 3, 4), {}),
    "reshape": (node("Reshape", "s"), (2, 3, 4), {"s": np.array([4, -1])}),
    "expand": (node("Expand", "s"), (3, 1), {"s": np.array([2, 3, 4])}),
    "slice": (node("Slice", "a", "b"), (5, 6), {"a": np.array([1, 2]), "b": np.array([4, 6])}),
    "backwards": (node("Slice", "a", "b", "d", "s"), (5, 7), {
        "a": np.array([9, 6]), "b": np.array([-9, 1]), "d": np.array([0, 1]), "s": np.array([-1, -2])}),
    "concat": (node("Concat", "c", axis=1), (2, 3), {"c": normal(2, 4)}),
    "pad": (node("Pad", "p"), (3, 4), {"p": np.array([1, 0, 2, 3])}),
    "pad by 7": (node("Pad", "p", "v"), (3, 4), {"p": np.array([1, 0, 2, 3]), "v": np.float32(7)}),
    "reflect": (node("Pad", "p", mode="reflect"), (4, 5), {"p": np.array([1, 0, 2, 3])}),
    "gather": (node("Gather", "i", axis=1), (3, 4, 2), {"i": np.array([[3, 0], [1, 1]])}),
    "softmax": (node("Softmax", axis=-1), (3, 5), {}),
    "softmax of channels": (node("Softmax", axis=1), (1, 5, 3, 2), {}),
    "softmax of rows": (node("Softmax", axis=0), (5, 3), {}),
    "log softmax": (node("LogSoftmax", axis=1), (3, 5), {}),
    "normalization": (node("LayerNormalization", "w", "b"), (3, 7), {"w": normal(7), "b": normal(7)}),
    "mean": (node("ReduceMean", "a", keepdims=0), (3, 4, 5), {"a": np.array([0, 2])}),
    "sum": (node("ReduceSum", "a"), (3, 4, 5), {"a": np.array([1])}),
    "largest": (node("ReduceMax", "a"), (3, 4, 5), {"a": np.array([1])}),
    "linear": (node("Resize", "", "", "s", mode="linear"), (1, 2, 5, 4), {"s": np.array([1, 2, 8, 11])}),
    "corners": (node("Resize", "", "", "s", mode="linear",
        coordinate_transformation_mode="align_corners"), (1, 2, 5, 4), {"s": np.array([1, 2, 8, 11])}),
    "nearest": (node("Resize", "", "f", mode="nearest", coordinate_transformation_mode="asymmetric",
        nearest_mode="floor"), (1, 2, 5, 4), {"f": np.float32([1, 1, 2, 3])}),
    "doubled": (node("Resize", "", "f", mode="nearest"), (1, 2, 5, 4), {"f": np.float32([1, 1, 2, 2])}),
    "clip": (node("Clip", "a", "b"), (3, 4), {"a": np.float32(-0.3), "b": np.float32(0.7)}),
    "relu6": (node("Clip", "a", "b"), (3, 4), {"a": np.float32(0), "b": np.float32(6)}),
    "leaky": (node("LeakyRelu", alpha=0.3), (3, 4), {}),
    "hard swish": (node("HardSwish"), (3, 4), {}),
    "elu": (node("Elu"), (3, 4), {}),
    "gelu": (node("Gelu"), (3, 4), {}),
    "swish": ([helper.make_node("Sigmoid", ["x"], ["s"]), helper.make_node("Mul", ["x", "s"], ["y"])],
        (3, 4), {}),
    "power": ([helper.make_node("Abs", ["x"], ["a"]), helper.make_node("Pow", ["a", "e"], ["y"])],
        (3, 4), {"e": np.float32(1.7)}),
    "where": ([helper.make_node("Greater", ["x", "z"], ["g"]), helper.make_node("Where", ["g", "x", "w"],
        ["y"])], (3, 4), {"z": np.float32(0.1), "w": normal(3, 4)}),
}  # fmt: skip


@pytest.mark.parametrize("name", OTHERS)
def test_operators(name: str) -> None:
    nodes, shape, constants = OTHERS[name]
    kernels = "BUILTIN" if name == "elu" else "BUILTIN_REF"  # there is no reference kernel of ELU
    check(model(nodes, shape, constants), normal(*shape), kernels)


GELUS: Mapping[str, Sequence[tuple[str, str, str, str]]] = {
    "half last": (("Mul", "x", "g", "h"), ("Mul", "h", "half", "y")),
    "half first": (("Mul", "half", "x", "h"), ("Mul", "h", "g", "y")),
    "half inside": (("Mul", "half", "g", "h"), ("Mul", "x", "h", "y")),
    "divided": (("Mul", "g", "x", "h"), ("Div", "h", "two", "y")),
}
"""Nodes of the product x / 2 * g, with g = erf(x / sqrt(2)) + 1."""


def gelu_of_parts(last: Sequence[tuple[str, str, str, str]], root: float = 2**0.5) -> bytes:
    steps = [("Div", "x", "root", "d"), ("Add", "one", "e", "g"), *last]
    nodes = [helper.make_node(name, [a, b], [y]) for name, a, b, y in steps]
    nodes.insert(1, helper.make_node("Erf", ["d"], ["e"]))
    numbers = {"root": root, "one": 1.0, "half": 0.5, "two": 2.0}
    return model(nodes, [3, 4], {n: np.float32(v) for n, v in numbers.items()})


@pytest.mark.parametrize("name", GELUS)
def test_gelu_of_its_parts(name: str) -> None:
    assert check(gelu_of_parts(GELUS[name]), normal(3, 4)) == ["GELU"]


def test_what_is_nearly_gelu_is_refused() -> None:
    with pytest.raises(jangin.CompileError, match="TFLite has no operation 'erf' of f32"):
        tflite_of(gelu_of_parts(GELUS["half last"], root=1.4))
    twice = (("Mul", "x", "g", "h"), ("Mul", "h", "two", "y"))
    with pytest.raises(jangin.CompileError, match="'erf'"):
        tflite_of(gelu_of_parts(twice))


def test_truths() -> None:
    check(model(node("Less", "z"), [3, 4], {"z": np.float32(0.2)}, "b"), normal(3, 4))


def network(middle: Sequence[Any], **constants: Any) -> bytes:
    """Make a model of operators between two convolutions, from p [1, 4, 6, 5] to q."""
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["p"], pads=[1] * 4), *middle,
        helper.make_node("Conv", ["q", "w2"], ["y"]),
    ]  # fmt: skip
    given = {"w": normal(4, 4, 3, 3) / 6, "w2": normal(3, 4, 1, 1)}
    return model(nodes, [1, 4, 6, 5], {**given, **constants})


BETWEEN: Mapping[str, tuple[Sequence[Any], Constants]] = {
    "channels scaled": ([helper.make_node("Mul", ["p", "c"], ["q"])], {"c": normal(4, 1, 1)}),
    "single number": ([helper.make_node("Add", ["p", "c"], ["q"])], {"c": np.float32(0.3)}),
    "residual": ([helper.make_node("Add", ["p", "x"], ["r"]), helper.make_node("Relu", ["r"], ["q"])], {}),
    "gate": ([helper.make_node("GlobalAveragePool", ["p"], ["m"]), helper.make_node("Sigmoid", ["m"], ["s"]),
        helper.make_node("Mul", ["p", "s"], ["q"])], {}),
    "cut": ([helper.make_node("Slice", ["p", "a", "b", "d"], ["q"])],
        {"a": np.array([1, 0]), "b": np.array([5, 3]), "d": np.array([2, 3])}),
    "padded": ([helper.make_node("Pad", ["p", "s"], ["q"])], {"s": np.array([0, 0, 1, 2, 0, 0, 0, 3])}),
    "joined": ([helper.make_node("Concat", ["p", "x"], ["j"], axis=1),
        helper.make_node("Slice", ["j", "a", "b", "d"], ["q"])],
        {"a": np.array([2]), "b": np.array([6]), "d": np.array([1])}),
    "largest": ([helper.make_node("Relu", ["p"], ["r"]), helper.make_node("MaxPool", ["r"], ["q"],
        kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4)], {}),
}  # fmt: skip


@pytest.mark.parametrize("name", BETWEEN)
def test_what_is_between_convolutions_has_channels_last(name: str) -> None:
    """Channels stay last between convolutions. One transpose stands at either end."""
    middle, constants = BETWEEN[name]
    found = check(network(middle, **constants), normal(1, 4, 6, 5))
    assert found.count("TRANSPOSE") == 2
    assert (found[0], found[-1]) == ("TRANSPOSE", "TRANSPOSE")
    assert name != "residual" or "RELU" not in found
    assert "PADV2" not in found


def test_a_model_of_channels_last_has_no_transposes() -> None:
    """The model's own transposes cancel the transposes that convolutions need."""
    nodes = [
        helper.make_node("Transpose", ["x"], ["t"], perm=[0, 3, 1, 2]),
        helper.make_node("Conv", ["t", "w"], ["c"], pads=[1] * 4),
        helper.make_node("Transpose", ["c"], ["y"], perm=[0, 2, 3, 1]),
    ]
    assert "TRANSPOSE" not in check(model(nodes, [1, 6, 5, 3], {"w": normal(4, 3, 3, 3)}), normal(1, 6, 5, 3))


def test_all_that_cannot_be_said_is_told_at_once() -> None:
    nodes = [
        helper.make_node("Erf", ["x"], ["e"], name="first"),
        helper.make_node("Pad", ["e", "p"], ["q"], mode="edge", name="second"),
        helper.make_node("Softmax", ["q"], ["s"], name="fine"),
        helper.make_node("CumSum", ["s", "a"], ["y"], name="third"),
    ]
    source = model(nodes, [3, 4], {"p": np.array([1, 0, 1, 0]), "a": np.array(0)})
    with pytest.raises(jangin.CompileError) as told:
        tflite_of(source)
    message = str(told.value)
    assert message.startswith("TFLite can't express 3 parts")
    assert all(name in message for name in ("first", "second", "third")) and "fine" not in message


def test_open_sizes_are_refused() -> None:
    with pytest.raises(jangin.CompileError, match="TFLite has fixed sizes: give 'rows' by shapes="):
        tflite_of(model(node("Relu"), ["rows", 4], {}))


def test_converted(tmp_path: Path) -> None:
    """`jangin convert` folds batch normalization, and compares the numbers."""
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"]),
        helper.make_node("BatchNormalization", ["c", "s", "b", "m", "v"], ["n"]),
        helper.make_node("Relu", ["n"], ["y"]),
    ]
    given = {"w": normal(4, 3, 3, 3), "s": normal(4), "b": normal(4), "m": normal(4), "v": normal(4) ** 2}
    source = tmp_path / "m.onnx"
    source.write_bytes(model(nodes, [1, 3, 8, 8], given))
    convert(source, Settings(cache=False), tmp_path / "m.tflite", [])
    assert operators((tmp_path / "m.tflite").read_bytes()) == ["TRANSPOSE", "CONV_2D", "TRANSPOSE"]


INFINITIES = (
    "structural_empty_expanded",
    "qk_matmul_bias_3d_mask_causal_expanded",
    "qk_matmul_bias_4d_mask_causal_expanded",
    "causal_boolmask_nan_robustness_expanded",
)
"""Names of tests that need infinite sums. LiteRT's kernels limit sums to the largest float."""


def round_trip(case: Any) -> str:
    """Write one of ONNX's operator tests as TFLite, compare the results, and return the outcome."""
    try:
        graph = lower(table.load(case.model))
        data = written(graph)
    except jangin.CompileError:
        return "refused"
    given = case.data_sets[0][0]
    feeds = {n: np.asarray(v) for n, v in zip(graph.inputs, given, strict=True)}
    wanted = run_graph(graph, feeds)
    back = run_graph(lower(table.load(data)), feeds)
    found = reference(data, list(feeds.values()), "BUILTIN_WITHOUT_DEFAULT_DELEGATES")
    for a, b, c in zip(wanted.values(), back.values(), found, strict=True):
        for other in (b, c):
            assert np.shape(a) == np.shape(other)
            np.testing.assert_allclose(a, other, rtol=1e-4, atol=1e-5, err_msg=case.name)
    return "right"


@pytest.mark.slow
@pytest.mark.parametrize("part", range(8))
def test_all_operators(part: int) -> None:
    """ONNX's operator tests: each file that is written computes the right results."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        cases = sorted(load_model_tests(kind="node"), key=lambda t: t.name)
    done = [round_trip(c) for c in cases[part::8] if not c.name.endswith(INFINITIES)]
    assert done.count("right") > 70


def test_indices_from_the_end() -> None:
    """LiteRT has no negative indices. Constant ones are made positive by the writer, and others by
    operators."""
    source = model(node("Gather", "i"), [5, 3], {"i": np.array([-1, 0, -5])})
    assert check(source, normal(5, 3)) == ["GATHER"]
    nodes = [helper.make_node("Cast", ["x"], ["i"], to=TensorProto.INT64),
             helper.make_node("Gather", ["t", "i"], ["y"])]  # fmt: skip
    check(model(nodes, [4], {"t": normal(5, 3)}), np.float32([-1, 3, -5, 0]))
