"""Lowered graphs are written as ONNX. They compute the same when they are read back, and ONNX Runtime accepts
them."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.backend.test.loader import load_model_tests
from onnxruntime.capi.onnxruntime_pybind11_state import NotImplemented as Lacking

import jangin
from jangin.commands.common import Settings
from jangin.commands.convert import convert
from jangin.frontends import table
from jangin.frontends.lower import lower
from jangin.frontends.onnx.writer import written
from jangin.ir.dtype import F32, I8, I16, I32, I64
from jangin.ir.expr import cast, const
from jangin.ir.graph import CompileError
from jangin.ops import recurrent
from jangin.ops.activation import ACTIVATIONS
from jangin.ops.builder import Builder
from jangin.ops.interpret import run_graph
from jangin.ops.select import suppressed
from jangin.passes.partition import has_steps, prune


def session(model: bytes) -> Any:
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    return ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])


def equal(a: Any, b: Any) -> bool:
    return (
        a.dtype == b.dtype
        and a.shape == b.shape
        and (a.tobytes() == b.tobytes() or np.array_equal(a, b, equal_nan=True))
    )


@cache
def cases() -> Sequence[Any]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return sorted(load_model_tests(kind="node"), key=lambda t: t.name)


NO_RUNTIME = (
    "bfloat16",
    "BFLOAT16",
    "bf16",
    "e4m3",
    "e5m2",
    "FLOAT4",
    "float4",
    "FLOAT8",
    "float8",
    "f8",
    "int2",
    "INT2",
    "bitcast",
    "INT4",
    "int4",
    "uint16",
)
"""Names of tests with types for which ONNX Runtime lacks operators."""


def round_trip(case: Any) -> str:
    """Return the outcome of one of the standard's operator tests. "same" means that ONNX Runtime agrees
    too."""
    try:
        graph = lower(table.load(case.model))
    except CompileError:
        return "not lowered"
    try:
        data = written(lower(table.load(case.model), whole=True))
    except CompileError as error:
        assert "ONNX" in str(error), case.name
        return "refused"
    onnx.checker.check_model(data, full_check=True)
    again = lower(table.load(data))
    feeds = dict(zip(graph.inputs, case.data_sets[0][0], strict=True))
    if has_steps(graph) or any(isinstance(v, (list, dict)) for v in feeds.values()):
        return "no tensors alone"
    feeds = {
        n: numpy_helper.to_array(v) if isinstance(v, TensorProto) else np.asarray(v) for n, v in feeds.items()
    }
    first, second = run_graph(graph, feeds), run_graph(again, feeds)
    for a, b in zip(first.values(), second.values(), strict=True):
        assert equal(np.asarray(a), np.asarray(b)), case.name
    if any(n in case.name for n in NO_RUNTIME):
        return "same here"
    try:
        theirs = session(data).run(None, feeds)
    except Lacking:  # ONNX has no such operator for these types
        return "same here"
    for a, b in zip(first.values(), theirs, strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-3, atol=2e-5, err_msg=case.name)
    return "same"


@pytest.mark.slow
@pytest.mark.parametrize("part", range(12))
def test_all_operators(part: int) -> None:
    """Nearly all operators in the standard's tests that are lowered without steps can be written."""
    done = [round_trip(case) for case in cases()[part::12]]
    assert done.count("same") > 90 and done.count("same") + done.count("same here") > 110
    assert done.count("refused") <= len(done) // 10


# -- operators without tests of ONNX -----------------------------------------------------------------


def model(nodes: Sequence[Any], shape: Sequence[Any], outputs: int = 1, **constants: Any) -> bytes:
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        list(nodes), "net", [value("x", TensorProto.FLOAT, shape)],
        [onnx.ValueInfoProto(name=f"y{i}" if i else "y") for i in range(outputs)],
        [numpy_helper.from_array(np.asarray(v), k) for k, v in constants.items()],
    )  # fmt: skip
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    made.doc_string = "what it is"
    helper.set_model_props(made, {"labels": "cat dog"})
    return bytes(made.SerializeToString())


node = helper.make_node
RANDOM = np.random.default_rng(0)


def weights(*shape: int) -> Any:
    return RANDOM.standard_normal(shape).astype(np.float32)


MODELS: dict[str, tuple[list[Any], dict[str, Any]]] = {
    "top": ([node("TopK", ["x", "k"], ["y", "y1"], axis=1)], {"k": [2]}),
    "sum": ([node("CumSum", ["x", "a"], ["y"], reverse=1)], {"a": 2}),
    "found": ([node("Greater", ["x", "o"], ["g"]), node("NonZero", ["g"], ["y"])], {"o": np.float32(0)}),
    "linear": (
        [node("Resize", ["x", "", "", "s"], ["y"], mode="linear", axes=[1, 2])], {"s": np.array([6, 14])}
    ),
    "nearest": ([node("Resize", ["x", "", "f"], ["y"])], {"f": np.float32([1, 2, 3])}),
    "activations": (
        [node("MatMul", ["x", "w"], ["m"]), node("Softplus", ["m"], ["s"]), node("Gelu", ["s"], ["g"]),
         node("Celu", ["g"], ["c"], alpha=0.3), node("LogSoftmax", ["c"], ["y"])], {"w": weights(7, 5)},
    ),
    "norms": (
        [node("LayerNormalization", ["x", "w"], ["n"], axis=2),
         node("InstanceNormalization", ["n", "v", "v"], ["y"])], {"w": weights(7), "v": weights(3)},
    ),
    "shapes": (
        [node("Shape", ["x"], ["s"]), node("Gather", ["s", "z"], ["n"]),
         node("Range", ["z", "n", "o"], ["r"]), node("Cast", ["r"], ["f"], to=1),
         node("Unsqueeze", ["f", "at"], ["u"]),
         node("Mul", ["x", "u"], ["y"])], {"z": np.int64(0), "o": np.int64(1), "at": np.array([1, 2])},
    ),
    "backwards": (
        [node("Slice", ["x", "b", "e", "a", "t"], ["y"])],
        {"b": [-1, 5], "e": [-9, 0], "a": [1, 2], "t": [-1, -2]},
    ),
    "pools": (
        [node("AveragePool", ["x"], ["a"], kernel_shape=[2], strides=[3], pads=[1, 1], ceil_mode=1),
         node("MaxPool", ["x"], ["m"], kernel_shape=[2], strides=[3], pads=[1, 1], ceil_mode=1),
         node("LpPool", ["x"], ["l"], kernel_shape=[3], strides=[3], p=1),
         node("AveragePool", ["x"], ["c"], kernel_shape=[3], strides=[2], count_include_pad=1, ceil_mode=1),
         node("Concat", ["a", "m", "l", "c"], ["y"], axis=2)], {},
    ),
    "integers": (
        [node("QuantizeLinear", ["x", "s", "z"], ["q"]), node("Cast", ["q"], ["i"], to=6),
         node("Mod", ["i", "m"], ["r"]), node("Div", ["i", "m"], ["d"]), node("Less", ["r", "d"], ["g"]),
         node("BitwiseXor", ["r", "d"], ["b"]), node("Cast", ["b"], ["u"], to=2),
         node("Max", ["u", "z"], ["p"]), node("Where", ["g", "p", "z"], ["w"]),
         node("Cast", ["w"], ["y"], to=1)],
        {"s": np.float32(0.05), "z": np.uint8(120), "m": np.int32(-7)},
    ),
    "indices": (
        [node("GatherElements", ["x", "i"], ["a"], axis=2), node("OneHot", ["i", "d", "v"], ["o"]),
         node("ReduceSum", ["o", "t"], ["q"], keepdims=0), node("Trilu", ["a"], ["l"], upper=0),
         node("Add", ["l", "q"], ["y"])],
        {"i": np.array([[[1], [-2], [0]]]), "d": np.int64(7), "v": np.float32([0, 1]), "t": [3]},
    ),
    "turned": (
        [node("Flatten", ["x"], ["f"]), node("Gemm", ["f", "w", "b"], ["g"], transB=1),
         node("Gemm", ["g", "g"], ["h"], transA=1), node("Relu", ["h"], ["y"])],
        {"w": weights(4, 21), "b": weights(4)},
    ),
    "moved": (
        [node("Pad", ["x", "p"], ["e"], mode="reflect"),
         node("Einsum", ["e", "e"], ["n"], equation="abc,adc->bd"),
         node("Transpose", ["n"], ["y"])], {"p": [0, 0, 1, 0, 0, 2]},
    ),
}  # fmt: skip


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("first", [2, "n"])
def test_the_same_bits(name: str, first: Any, tmp_path: Path) -> None:
    """Sizes are fixed or open. `convert` compares the bits."""
    nodes, constants = MODELS[name]
    outputs = len(nodes[-1].output)
    source, output = tmp_path / "a.onnx", tmp_path / "b.onnx"
    source.write_bytes(model(nodes, [first, 3, 7], outputs, **constants))
    convert(source, Settings(cache=False), output, [])
    data = output.read_bytes()
    onnx.checker.check_model(data, full_check=True)
    x = np.random.default_rng(3).standard_normal((2, 3, 7)).astype(np.float32)
    for a, b in zip(
        session(source.read_bytes()).run(None, {"x": x}), session(data).run(None, {"x": x}), strict=True
    ):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
    made = onnx.load_from_string(data)
    assert made.doc_string == "what it is" and made.metadata_props[0].value == "cat dog"
    assert [i.name for i in made.graph.input] == ["x"] and made.graph.output[0].name == "y"


DTYPES = {"float32": F32, "int64": I64, "int8": I8}


def said(make: Any, *inputs: Any) -> tuple[list[str], list[Any], list[Any]]:
    """Return the operators that compute the results of inputs, and the results by ONNX Runtime and by the
    interpreter.

    `make` gets a builder and tensors."""
    graphs = []
    for whole in (False, True):
        b = Builder("net", {}, whole=whole)
        types = [(DTYPES[str(a.dtype)], tuple(map(const, a.shape))) for a in inputs]
        given = [b.input(f"x{i}", *kind) for i, kind in enumerate(types)]
        results = make(b, *given)
        graphs.append(prune(b.graph(results, [f"y{i}" for i in range(len(results))])))
    feeds = {f"x{i}": a for i, a in enumerate(inputs)}
    data = written(graphs[1])
    onnx.checker.check_model(data, full_check=True)
    names = [n.op_type for n in onnx.load_from_string(data).graph.node]
    return names, session(data).run(None, feeds), list(run_graph(graphs[0], feeds).values())


LAYERS: dict[str, Any] = {
    "rnn": (recurrent.rnn, ("hidden",), {}),
    "lstm": (recurrent.lstm, ("forget", "candidate", "output", "input"), {}),
    "lstm with peepholes, coupled": (recurrent.lstm, recurrent.LSTM_GATES, {"coupled": True, "peepholes": 3}),
    "gru": (recurrent.gru, ("reset", "update", "candidate"), {}),
    "gru, reset after": (recurrent.gru, ("candidate", "reset", "update"), {"reset_after": True}),
}


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("backward", [(False,), (True,), (False, True)])
def test_recurrent_layers(name: str, backward: tuple[bool, ...]) -> None:
    """Layers are ONNX Runtime's own, with their gates in ONNX's order, parameterized activations, and a
    bound."""
    make, gates, own = LAYERS[name]
    d, steps, batch, size, hidden, n = len(backward), 5, 3, 4, 6, len(gates)
    random = np.random.default_rng(len(name))
    w, r = (random.standard_normal((d, n * hidden, k)).astype(np.float32) for k in (size, hidden))
    bias, h = random.standard_normal((d, 2, n, hidden)), random.standard_normal((d, batch, hidden))
    x, lengths = random.standard_normal((steps, batch, size)), np.array([5, 2, 4])
    usual = {"rnn": 1, "gru": 2, "lst": 3}[name[:3]]
    functions = [
        ACTIVATIONS["hard_sigmoid"],
        lambda v: ACTIVATIONS["scaled_tanh"](v, 0.7, 0.6),
        ACTIVATIONS["tanh"],
    ]

    def layer(b: Builder, x: Any, bias: Any, lengths: Any, h: Any) -> Any:
        activations = [[functions[(i + k) % 3] for i in range(usual)] for k in range(d)]
        given = recurrent.Layer(x, b.const(w), b.const(r), bias, lengths, backward, activations)
        settings = {"gates": gates} if n > 1 else {}
        if own.get("peepholes"):
            settings["peepholes"] = b.const(r[:, : 3 * hidden, 0].reshape(d, 3, hidden))
        return make(b, given, h=h, **settings, **{k: v for k, v in own.items() if k != "peepholes"})

    names, theirs, ours = said(
        layer, *(v.astype(np.float32) for v in (x, bias)), lengths, h.astype(np.float32)
    )
    assert name[:4].strip(",").upper().split()[0] in names and "Loop" not in names
    for a, o in zip(theirs, ours, strict=True):
        np.testing.assert_allclose(a, o, rtol=1e-4, atol=1e-5)


def test_boxes_of_each_class() -> None:
    """Suppression inside other layers becomes NonMaxSuppression, whose rows are put in place."""
    random = np.random.default_rng(2)
    low, size = random.random((2, 1, 40, 2)), random.random((2, 1, 40, 2)) / 3
    boxes, scores = np.concatenate([low, low + size], 3), random.random((2, 3, 40))
    names, theirs, ours = said(
        lambda b, boxes, scores: suppressed(b, boxes, scores, 0.3, 0.2, 12),
        boxes.astype(np.float32), scores.astype(np.float32),
    )  # fmt: skip
    assert names.count("NonMaxSuppression") == 1
    for a, o in zip(theirs, ours, strict=True):
        np.testing.assert_array_equal(a, o)


def test_products_of_integers() -> None:
    """Products of integers are exact, in bytes with zero points."""
    random = np.random.default_rng(3)
    w, v = random.integers(-128, 128, (4, 2, 3, 3)), random.integers(-128, 127, (7, 5))

    def product(b: Builder, x: Any) -> Any:
        centred = b.map(lambda e: cast(I16, e) - const(-100, I16), x)
        window = {"strides": [1, 2], "dilations": [1, 1], "pads": [1, 0, 1, 2]}
        y = b.conv(centred, b.const(w.astype(np.int8)), **window, dtype=I32)
        return y, b.matmul(centred, b.const(v.astype(np.int16)), dtype=I32)

    names, theirs, ours = said(product, random.integers(-128, 128, (1, 2, 6, 7)).astype(np.int8))
    assert {"ConvInteger", "MatMulInteger"} <= set(names)
    for a, o in zip(theirs, ours, strict=True):
        np.testing.assert_array_equal(a, o)


STEPS = {
    "a branch on what is computed, inside a loop": """
agraph (float[2, 3] x, int64 times) => (float[2, 3] y, float[k, 2] sums) {
    true = Constant <value = bool {1}> ()
    half = Constant <value = float {0.5}> ()
    y, sums = Loop (times, true, x) <body = step
    (int64 i, bool on, float[2, 3] v) => (bool again, float[2, 3] w, float[2] s) {
        total = ReduceSum <keepdims = 0> (v)
        big = Greater (total, half)
        w = If (big) <then_branch = a () => (float[2, 3] p) { p = Mul (v, half) },
                      else_branch = b () => (float[2, 3] q) { q = Sub (v, x) }>
        axes = Constant <value_ints = [1]> ()
        s = ReduceSum <keepdims = 0> (w, axes)
        again = Identity (on)
    }>
}""",
    "a loop until a condition, of a value that grows": """
agraph (float[2] x, int64 times) => (float[m] y) {
    true = Constant <value = bool {1}> ()
    most = Constant <value = int64 {9}> ()
    y = Loop (times, true, x) <body = step (int64 i, bool on, float[m] v) => (bool again, float[k] w) {
        w = Concat <axis = 0> (v, x)
        size = Size (w)
        again = Less (size, most)
    }>
}""",
    "slices from the last to the first": """
agraph (float[n, 3] x, int64 times) => (float[3] y) {
    zero = Constant <value_floats = [0.0, 0.0, 0.0]> ()
    many = Cast <to = 1> (times)
    y = Scan <num_scan_inputs = 1, scan_input_directions = [1], body = step
    (float[3] v, float[3] row) => (float[3] w) {
        both = Mul (v, many)
        w = Add (both, row)
    }> (zero, x)
}""",
}  # fmt: skip


@pytest.mark.parametrize("name", STEPS)
def test_branches_and_loops(name: str, tmp_path: Path) -> None:
    """Branches and loops give the same in ONNX Runtime."""
    text = f'<ir_version: 9, opset_import: ["" : 17]>\n{STEPS[name]}'
    source, output = tmp_path / "a.onnx", tmp_path / "b.onnx"
    source.write_bytes(onnx.parser.parse_model(text).SerializeToString())
    convert(source, Settings(cache=False), output, [])
    data = output.read_bytes()
    onnx.checker.check_model(data, full_check=True)
    for times in (0, 1, 3, 90):
        rows = (2,) if "grows" in name else (2, 3)
        x = np.random.default_rng(times).standard_normal(rows).astype(np.float32)
        feeds = {"x": x, "times": np.array(times)}
        for a, b in zip(
            session(source.read_bytes()).run(None, feeds), session(data).run(None, feeds), strict=True
        ):
            np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


def test_what_onnx_cannot_say(tmp_path: Path) -> None:
    """Each part is reported by the author's name, and nothing is written."""
    source = tmp_path / "a.onnx"
    counted = node(
        "TfIdfVectorizer", ["i"], ["y"], name="words", mode="TF", min_gram_length=1, max_gram_length=1,
        max_skip_count=0, ngram_counts=[0], ngram_indexes=[0, 1], pool_int64s=[2, 3],
    )  # fmt: skip
    source.write_bytes(model([node("Cast", ["x"], ["i"], to=7), counted], [2, 3]))
    with pytest.raises(CompileError, match=r"ONNX can't express 1 part:\n.*'words'.*TfIdfVectorizer"):
        convert(source, Settings(cache=False), tmp_path / "b.onnx", [])
    assert list(tmp_path.iterdir()) == [source]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["squeezenet1_1", "mobilenetv2", "resnet18", "minilm"])
def test_real_models(name: str, tmp_path: Path) -> None:
    source = Path(__file__).parents[3] / ".cache" / "models" / f"{name}.onnx"
    if not source.exists():
        pytest.skip(f"{source} is missing: benchmarks/make_models.py makes it")
    convert(source, Settings(cache=False), tmp_path / "b.onnx", [])
    data = (tmp_path / "b.onnx").read_bytes()
    onnx.checker.check_model(data, full_check=True)
    random = np.random.default_rng(4)
    feeds = {"input": random.standard_normal((1, 3, 224, 224)).astype(np.float32)}
    exe = jangin.compile(data, threads=2, cache=False)
    if name == "minilm":
        feeds = {s.name: random.integers(0, 2, (2, 9)) for s in exe.inputs}
    else:
        feeds = {exe.inputs[0].name: feeds["input"]}
    for a, b in zip(exe.run(feeds).values(), session(data).run(None, feeds), strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-5 * np.abs(b).max())
