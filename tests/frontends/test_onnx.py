"""Importing ONNX models: the contents of a graph, how shapes are bound, and how functions are expanded."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from models import classifier, info, model, node, run
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

from jangin.frontends.assemble import MAX_SIZE
from jangin.frontends.lower import lower
from jangin.frontends.onnx.proto import tensor
from jangin.frontends.onnx.types import TYPES
from jangin.frontends.table import load
from jangin.ir.dtype import BF16, F16, I64
from jangin.ir.expr import Var, const
from jangin.ir.graph import CompileError
from jangin.ir.own_names import own_name
from jangin.ir.verify import verify_graph
from jangin.ops.interpret import run_graph

RELU = node("Relu", "x", "y")


def test_nodes_keep_their_names_attributes_and_opset() -> None:
    graph = load(classifier()).graph
    conv = graph.nodes[0]
    assert (conv.op, conv.name, conv.inputs) == ("onnx.Conv", "conv_c", ("image", "w", "b"))
    assert conv.attrs.named() == {"kernel_shape": (3, 3), "pads": (1, 1, 1, 1), "opset": 17}
    assert str(*conv.source) == "Conv 'conv_c' (ai.onnx 17)"
    assert graph.inputs == ("image",) and graph.outputs == ("probabilities",)
    assert graph.constants["w"].shape == (4, 3, 3, 3)


def test_a_whole_model_lowers_to_what_onnx_computes() -> None:
    proto = classifier()
    graph = lower(load(proto))
    verify_graph(graph)
    x = np.random.default_rng(0).standard_normal((2, 3, 6, 6)).astype(np.float32)
    (got,) = run_graph(graph, {"image": x}).values()
    (want,) = ReferenceEvaluator(proto).run(None, {"image": x})
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-6)
    assert graph.shape("probabilities") == (Var("batch"), const(5))


def test_paths_bytes_and_messages_are_read(tmp_path: Path) -> None:
    proto = classifier()
    path = tmp_path / "m.onnx"
    onnx.save(proto, path)
    for given in (path, str(path), path.read_bytes(), proto):
        assert len(load(given).graph.nodes) == len(proto.graph.node)


# --- shapes ----------------------------------------------------------------------------------


def test_symbols_have_ranges() -> None:
    graph = load(classifier()).graph
    assert graph.symbols == {Var("batch"): (const(0), const(MAX_SIZE))}


def test_nameless_dimensions_are_symbols_of_their_own() -> None:
    graph = load(model([RELU], [info("x", [None, 3, None])], ["y"])).graph
    assert graph.shape("x") == (Var("x_d0"), const(3), Var("x_d2"))


def test_symbols_are_no_names_that_the_compiler_makes() -> None:
    """Symbols are renamed if their names are no words, or names that the compiler gives itself. A plan has
    the model's names again."""
    own = ["batch size", "2*n", "i0", "i_0"]
    graph = load(model([RELU], [info("x", own)], ["y"])).graph
    symbols = [d for d in graph.shape("x") if isinstance(d, Var)]
    assert len(set(symbols)) == 4 and Var("i0") not in symbols and Var("i_0") in symbols
    assert [own_name(v) for v in symbols] == own


@pytest.mark.parametrize(
    "shapes", [{"batch": 2}, {"x": (2, 3)}, {"x": (2, None)}, {"batch": 2, "x": (2, None)}]
)
def test_sizes_are_bound(shapes: dict[str, object]) -> None:
    graph = load(model([RELU], [info("x", ["batch", 3]), info("z", ["batch"])], ["y"]), shapes).graph  # type: ignore[arg-type]
    assert graph.shape("x") == (const(2), const(3)) and graph.shape("z") == (const(2),)
    assert not graph.symbols


def test_ranges_are_bound() -> None:
    graph = load(model([RELU], [info("x", ["seq"])], ["y"]), {"seq": (2, 512)}).graph
    assert graph.symbols == {Var("seq"): (const(2), const(512))}


def test_an_input_without_a_shape_takes_the_users() -> None:
    proto = model([RELU], [info("x", None)], ["y"])
    with pytest.raises(CompileError, match=r"'x' has no shape.*shapes="):
        load(proto)
    assert load(proto, {"x": (2, "n_1")}).graph.shape("x") == (const(2), Var("n_1"))


def test_a_name_is_refused_where_no_size_is_open() -> None:
    proto = model([RELU], [info("x", [2, 3])], ["y"])
    with pytest.raises(CompileError, match=r"symbols: x \(all its sizes are fixed, so leave 'batch' out"):
        load(proto, {"batch": 1})


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        ({"nothing": 1}, "inputs and symbols: x, batch"),
        ({"x": (1, 4)}, "fixed dimension 3; shapes asks for 4"),
        ({"x": (1,)}, "rank 2"),
        ({"batch": -1}, "size -1"),
        ({"batch": (3, 2)}, "not a range"),
        ({"batch": (1, 2, 3)}, "pair"),
        ({"batch": 1, "x": (2, 3)}, "sizes 1 and 2|sizes 2 and 1"),
    ],
)
def test_shapes_that_do_not_fit(shapes: dict[str, object], message: str) -> None:
    proto = model([RELU], [info("x", ["batch", 3])], ["y"])
    with pytest.raises(CompileError, match=message):
        load(proto, shapes)  # type: ignore[arg-type]


# --- types and constants ---------------------------------------------------------------------


def test_element_types() -> None:
    kinds = {TensorProto.BFLOAT16: BF16, TensorProto.FLOAT16: F16, TensorProto.INT64: I64}
    for code, dtype in kinds.items():
        assert load(model([RELU], [info("x", [2], code)], ["y"])).graph.dtype("x") is dtype


@pytest.mark.parametrize(
    ("code", "name"),
    [
        (TensorProto.COMPLEX64, "complex64"),
    ],
)
def test_other_element_types_are_refused(code: int, name: str) -> None:
    with pytest.raises(CompileError, match=f"input 'x' has element type {name}"):
        load(model([RELU], [info("x", [2], code)], ["y"]))


def test_inputs_that_are_constants_are_constants() -> None:
    proto = model(
        [node("Add", "x c", "y")], [info("x", [2]), info("c", [2])], ["y"], {"c": np.ones(2, np.float32)}
    )
    assert load(proto).graph.inputs == ("x",)


def test_external_data(tmp_path: Path) -> None:
    weights = np.arange(6, dtype=np.float32).reshape(2, 3)
    proto = model([node("MatMul", "x w", "y")], [info("x", [1, 2])], ["y"], {"w": weights})
    path = tmp_path / "m.onnx"
    onnx.save(proto, path, save_as_external_data=True, location="w.bin", size_threshold=0)
    np.testing.assert_array_equal(load(path).graph.constants["w"], weights)
    with pytest.raises(CompileError, match="give the model's path"):
        load(path.read_bytes())
    (tmp_path / "w.bin").write_bytes(b"123")
    with pytest.raises(CompileError, match=r"needs 24 bytes at 0 of 'w.bin'.*the file has 3"):
        load(path)
    (tmp_path / "w.bin").unlink()
    with pytest.raises(CompileError, match=r"'w\.bin', which is missing beside the model"):
        load(path)


def test_external_data_stay_in_the_models_folder(tmp_path: Path) -> None:
    (tmp_path / "secret").write_bytes(bytes(8))
    folder = tmp_path / "model"
    folder.mkdir()
    proto = model([node("Add", "x w", "y")], [info("x", [2])], ["y"], {"w": np.zeros(2, np.float32)})
    w = proto.graph.initializer[0]
    w.ClearField("raw_data")
    w.data_location = TensorProto.EXTERNAL
    w.external_data.add(key="location", value="../secret")
    (folder / "m.onnx").write_bytes(proto.SerializeToString())
    with pytest.raises(CompileError, match="outside the model's folder"):
        load(folder / "m.onnx")


# --- order, sub-graphs and functions ---------------------------------------------------------


def test_nodes_are_sorted() -> None:
    nodes = [node("Relu", "a", "y"), node("Neg", "b", "a"), node("Abs", "x", "b")]
    graph = load(model(nodes, [info("x", [2])], ["y"])).graph
    assert [n.op for n in graph.nodes] == ["onnx.Abs", "onnx.Neg", "onnx.Relu"]


def test_a_branch_that_is_known_is_taken() -> None:
    def branch(op: str) -> onnx.GraphProto:
        out = helper.make_empty_tensor_value_info("out")
        return helper.make_graph([node(op, "x c", "out")], op, [], [out], [])

    nodes = [
        node("Shape", "x", "s"), node("Size", "s", "rank"), node("Equal", "rank two", "flat"),
        node("If", "flat", "y", then_branch=branch("Add"), else_branch=branch("Mul")),
    ]  # fmt: skip
    constants = {"two": np.array(2, np.int64), "c": np.full(1, 3, np.float32)}
    proto = model(nodes, [info("x", [2, 2])], ["y"], constants)
    np.testing.assert_array_equal(run(proto, x=np.ones((2, 2), np.float32))[0], 4)
    proto.graph.input[0].CopyFrom(info("x", [2]))
    np.testing.assert_array_equal(run(proto, x=np.ones(2, np.float32))[0], 3)


def test_a_branch_that_is_not_known_becomes_a_step() -> None:
    out = helper.make_empty_tensor_value_info("out")
    branch = helper.make_graph([node("Neg", "x", "out")], "b", [], [out])
    proto = model(
        [node("If", "c", "y", then_branch=branch, else_branch=branch)],
        [info("x", [2]), info("c", [], TensorProto.BOOL)],
        ["y"],
    )
    (step,) = lower(load(proto)).nodes
    assert step.op == "if" and step.inputs == ("c", "x", "x")


def test_functions_of_the_model_are_expanded() -> None:
    body = [
        helper.make_node("LeakyRelu", ["a"], ["t"]),
        helper.make_node("Twice", ["t"], ["b"], domain="mine"),
    ]
    body[0].attribute.add(name="alpha", type=onnx.AttributeProto.FLOAT, ref_attr_name="slope")
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("mine", 1)]
    outer = helper.make_function("mine", "Outer", ["a"], ["b"], body, opsets, ["slope"])
    inner = helper.make_function("mine", "Twice", ["a"], ["t"], [node("Add", "a a", "t")], opsets[:1])
    call = helper.make_node("Outer", ["x"], ["y"], domain="mine", slope=0.5)
    proto = model([call], [info("x", [3])], ["y"], functions=[outer, inner])
    proto.opset_import.append(opsets[1])
    np.testing.assert_array_equal(run(proto, x=np.array([-2, 0, 3], np.float32))[0], [-2, 0, 6])


def test_a_function_that_calls_itself_is_refused() -> None:
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("mine", 1)]
    call = helper.make_node("F", ["a"], ["b"], domain="mine")
    proto = model(
        [helper.make_node("F", ["x"], ["y"], domain="mine")],
        [info("x", [3])],
        ["y"],
        functions=[helper.make_function("mine", "F", ["a"], ["b"], [call], opsets)],
    )
    proto.opset_import.append(opsets[1])
    with pytest.raises(CompileError, match="calls itself"):
        load(proto)


def test_operators_of_the_standard_without_an_own_lowering_are_expanded() -> None:
    proto = model([node("AffineGrid", "theta size", "grid")], [info("theta", [2, 2, 3])], ["grid"],
                  {"size": np.array([2, 1, 3, 2], np.int64)}, opset=20)  # fmt: skip
    theta = np.array([[[1, 0, 0.5], [0, 1, 0]], [[0, 1, 0], [-1, 0, 2]]], np.float32)
    (want,) = ReferenceEvaluator(proto).run(None, {"theta": theta})
    np.testing.assert_allclose(run(proto, theta=theta)[0], want, atol=1e-6)


# --- answers, not errors ---------------------------------------------------------------------


def test_weights_that_are_nan() -> None:
    weights = np.array([[np.nan, 1], [2, np.inf]], np.float32)
    proto = model([node("MatMul", "x w", "y")], [info("x", [1, 2])], ["y"], {"w": weights})
    np.testing.assert_array_equal(run(proto, x=np.ones((1, 2), np.float32))[0], [[np.nan, np.inf]])


def test_tensors_of_no_elements() -> None:
    nodes = [node("MatMul", "x w", "m"), node("ReduceSum", "m axes", "y", keepdims=0), node("Relu", "x", "z")]
    constants = {"w": np.zeros((0, 3), np.float32), "axes": np.array([1], np.int64)}
    proto = model(nodes, [info("x", [2, 0])], ["m", "y", "z"], constants)
    products, sums, nothing = run(proto, x=np.zeros((2, 0), np.float32))
    np.testing.assert_array_equal(products, np.zeros((2, 3)))
    np.testing.assert_array_equal(sums, np.zeros(2))
    assert nothing.shape == (2, 0)


def test_an_output_that_is_an_input_or_a_constant() -> None:
    proto = model([RELU], [info("x", [2])], ["y", "x", "c"], {"c": np.ones(3, np.float32)})
    y, x, c = run(proto, x=np.array([-1, 1], np.float32))
    assert y.tolist() == [0, 1] and x.tolist() == [-1, 1] and c.tolist() == [1, 1, 1]


def test_tensors_in_every_encoding() -> None:
    """Constants are read from raw bytes and from the typed fields that older writers use."""
    for dtype in (np.float32, np.int64, np.float16, np.bool_, np.uint8):
        array = np.array([0, 1, 3], dtype)
        for raw in (True, False):
            values = array.tobytes() if raw else array.tolist()
            if dtype is np.float16 and not raw:
                continue
            code = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
            proto = model([node("Identity", "c", "y")], [info("x", [1])], ["y"])
            proto.graph.initializer.append(helper.make_tensor("c", code, [3], values, raw))
            np.testing.assert_array_equal(load(proto).graph.constants["c"], array)


@pytest.mark.parametrize("code", [c for c, dtype in TYPES.items() if dtype.bits >= 8])
def test_typed_fields_are_read_as_onnx_reads_them(code: int) -> None:
    dtype = TYPES[code].numpy
    ones = np.random.default_rng(code).integers(
        0, 2 if dtype == np.bool_ else 256, 6 * dtype.itemsize, np.uint8
    )
    array, bits = ones.view(dtype), ones.view(f"u{dtype.itemsize}")
    field = onnx.helper.tensor_dtype_to_field(code)
    proto = TensorProto(data_type=code, dims=[2, 3], name="c")
    as_bits = TYPES[code].is_float and field == "int32_data"
    getattr(proto, field).extend(np.asarray(bits if as_bits else array).astype(object) * 1)
    got, want = tensor(proto, "c", None), onnx.numpy_helper.to_array(proto)
    assert got.dtype == dtype and got.shape == (2, 3)
    assert got.tobytes() == want.tobytes()


def test_typed_fields_of_another_length_are_refused() -> None:
    for held in ([1.0, 2.0], [1.0] * 7):
        with pytest.raises(CompileError, match="can't be read"):
            tensor(TensorProto(data_type=1, dims=[2, 3], float_data=held), "c", None)


# --- sparse constants ------------------------------------------------------------------------


def sparse(values: list[float], indices: list[object], dims: list[int]) -> onnx.SparseTensorProto:
    places = np.array(indices, np.int64)
    kept = onnx.numpy_helper.from_array(np.array(values, np.float32), "c")
    return helper.make_sparse_tensor(kept, onnx.numpy_helper.from_array(places, "places"), dims)


def with_sparse(constant: onnx.SparseTensorProto, initializer: bool) -> onnx.ModelProto:
    proto = model([node("Add", "x c", "y")], [info("x", [2, 3])], ["y"])
    if initializer:
        proto.graph.sparse_initializer.append(constant)
    else:
        proto.graph.node.insert(0, helper.make_node("Constant", [], ["c"], sparse_value=constant))
    return proto


@pytest.mark.parametrize("initializer", [True, False])
@pytest.mark.parametrize("indices", [[1, 5], [[0, 1], [1, 2]]])
def test_sparse_constants_become_dense(indices: list[object], initializer: bool) -> None:
    proto = with_sparse(sparse([2, 3], indices, [2, 3]), initializer)
    (y,) = run(proto, x=np.ones((2, 3), np.float32))
    np.testing.assert_array_equal(y, [[1, 3, 1], [1, 1, 4]])


@pytest.mark.parametrize(
    ("values", "indices", "dims", "message"),
    [
        ([2, 3], [1, 6], [2, 3], "index outside"), ([2, 3], [[0, 1], [0, 3]], [2, 3], "index outside"),
        ([2, 3], [-1, 5], [2, 3], "index outside"), ([2, 3], [1], [2, 3], "takes n values"),
        ([2, 3], [[1], [2]], [2, 3], "takes n values"), ([2], [1], [1 << 40, 3], "array takes more"),
        ([2], [1], [-2, -3], "array takes more"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("initializer", [True, False])
def test_malformed_sparse_constants(
    values: list[float], indices: list[object], dims: list[int], message: str, initializer: bool
) -> None:
    with pytest.raises(CompileError, match=message):
        run(with_sparse(sparse(values, indices, dims), initializer), x=np.ones((2, 3), np.float32))
