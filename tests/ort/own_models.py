"""The models that ONNX Runtime's own tests read, made anew, because Debian's source package lacks them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper
from onnx.helper import make_node as node
from onnx.helper import make_tensor_value_info as value

F32, I64, BOOL, TEXT = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL, TensorProto.STRING
ML = "ai.onnx.ml"


def constant(name: str, *shape: int) -> TensorProto:
    values = np.random.default_rng(0).standard_normal(shape).astype(np.float32) / 10
    return onnx.numpy_helper.from_array(values, name)


def sequence(name: str, kind: int) -> Any:
    return helper.make_tensor_sequence_value_info(name, kind, None)


def of_map(name: str, key: int, in_sequence: bool) -> Any:
    kind = helper.make_map_type_proto(key, helper.make_tensor_type_proto(F32, []))
    return helper.make_value_info(name, helper.make_sequence_type_proto(kind) if in_sequence else kind)


def write(
    path: Path, nodes: Sequence[Any], inputs: Sequence[Any], outputs: Sequence[Any],
    constants: Sequence[Any] = (), opset: int = 13, **how: Any,
) -> None:  # fmt: skip
    graph = helper.make_graph(nodes, path.stem, inputs, outputs, constants)
    imports = [helper.make_opsetid("", opset), helper.make_opsetid(ML, 1)]
    onnx.save(helper.make_model(graph, opset_imports=imports, ir_version=8, **how), path)


def write_models(folder: Path) -> None:
    """Write all models to the folder."""
    _write_arithmetic(folder)
    _write_nontensors(folder)
    _write_files(folder)
    _write_sparse(folder)
    _write_encoders(folder)
    (folder / "lora").mkdir()
    _write_adapted(folder / "lora")


def _write_arithmetic(folder: Path) -> None:
    columns = onnx.numpy_helper.from_array(np.array([[1], [2]], np.float32), "W")
    for name, rows in (("matmul_1", 3), ("matmul_2", "None")):
        write(
            folder / f"{name}.onnx", [node("MatMul", ["X", "W"], ["Y"])], [value("X", F32, [rows, 2])],
            [value("Y", F32, [rows, 1])], [columns],
        )  # fmt: skip
    factors = onnx.numpy_helper.from_array(np.arange(1, 7, dtype=np.float32).reshape(3, 2), "W")
    write(
        folder / "mul_1.onnx", [node("Mul", ["X", "W"], ["Y"])], [value("X", F32, [3, 2])],
        [value("Y", F32, [3, 2])], [factors],
    )  # fmt: skip
    write(
        folder / "logicaland.onnx", [node("And", ["input1:0", "input:0"], ["output:0"])],
        [value("input1:0", BOOL, [2, 2]), value("input:0", BOOL, [2, 2])], [value("output:0", BOOL, [2, 2])],
    )  # fmt: skip
    x = value("x", F32, ["Dim1", "Dim2", 5])
    for dim, denotation in zip(x.type.tensor_type.shape.dim, ("DATA_BATCH", "DATA_CHANNEL"), strict=False):
        dim.denotation = denotation
    write(
        folder / "abs_free_dimensions.onnx", [node("Abs", ["x"], ["y"])], [x],
        [value("y", F32, ["Dim1", "Dim2", 5])],
    )  # fmt: skip
    nodes = [
        node("Add", ["inp0", "inp1"], ["a"]), node("Sub", ["inp0", "inp1"], ["b"]),
        node("Neg", ["a"], ["outp0"]), node("Neg", ["b"], ["outp1"]),
    ]  # fmt: skip
    ends = [[value(f"{way}{i}", F32, [10]) for i in (0, 1)] for way in ("inp", "outp")]
    write(folder / "alloc_tensor_reuse.onnx", nodes, *ends)


def _write_nontensors(folder: Path) -> None:
    text = [[value(name, TEXT, [2, 2])] for name in ("input:0", "output:0")]
    write(folder / "identity_string.onnx", [node("Identity", ["input:0"], ["output:0"])], *text)
    kind = helper.make_optional_type_proto(
        helper.make_sequence_type_proto(helper.make_tensor_type_proto(F32, [5]))
    )
    ends = [[helper.make_value_info(name, kind)] for name in ("opt_in", "opt_out")]
    write(folder / "identity_opt.onnx", [node("Identity", ["opt_in"], ["opt_out"])], *ends, opset=16)
    write(
        folder / "sequence_construct.onnx",
        [node("SequenceConstruct", ["tensor1", "tensor2"], ["output_sequence"])],
        [value("tensor1", I64, [2, 3]), value("tensor2", I64, [2, 3])], [sequence("output_sequence", I64)],
    )  # fmt: skip
    write(
        folder / "sequence_insert.onnx",
        [node("SequenceInsert", ["input_seq", "tensor"], ["output_sequence"])],
        [sequence("input_seq", I64), value("tensor", I64, [2, 3])], [sequence("output_sequence", I64)],
    )  # fmt: skip
    write(
        folder / "sequence_length.onnx", [node("SequenceLength", ["X"], ["Y"])], [sequence("X", F32)],
        [value("Y", I64, [])],
    )  # fmt: skip
    for name, key, classes in (
        ("stringfloat", TEXT, {"classlabels_strings": ["class1", "class2", "class3"]}),
        ("int64float", I64, {"classlabels_int64s": [10, 20, 30]}),
    ):
        zipped = node("ZipMap", ["X"], ["Z"], domain=ML, **classes)
        write(folder / f"zipmap_{name}.onnx", [zipped], [value("X", F32, [2, 3])], [of_map("Z", key, True)])
    encoder = node(
        "LabelEncoder", ["input"], ["variable"], domain=ML, classes_strings=[*"12345"], default_int64=-1
    )
    write(
        folder / "LabelEncoder.onnx",
        [encoder],
        [value("input", TEXT, [1, 1])],
        [value("variable", I64, [1, 1])],
    )
    nodes = [
        node("DictVectorizer", ["float_input"], ["v"], domain=ML, int64_vocabulary=[*range(5)]),
        node("LinearRegressor", ["v"], ["variable1"], domain=ML, coefficients=[1.0, 2.0, 3.0, 4.0, 1.5],
             intercepts=[3.731754]),
    ]  # fmt: skip
    write(
        folder / "pipeline_vectorize.onnx", nodes, [of_map("float_input", I64, False)],
        [value("variable1", F32, [1, 1])],
    )  # fmt: skip


def _write_files(folder: Path) -> None:
    nodes = [
        node("Conv", ["Input3", "W0"], ["c"], auto_pad="SAME_UPPER", kernel_shape=[5, 5]),
        node("MaxPool", ["c"], ["p"], kernel_shape=[2, 2], strides=[2, 2]), node("Flatten", ["p"], ["f"]),
        node("MatMul", ["f", "W1"], ["Plus214_Output_0"]),
    ]  # fmt: skip
    write(
        folder / "mnist.onnx", nodes, [value("Input3", F32, [1, 1, 28, 28])],
        [value("Plus214_Output_0", F32, [1, 10])], [constant("W0", 8, 1, 5, 5), constant("W1", 1568, 10)],
    )  # fmt: skip
    plain = [node("MatMul", ["X", "W"], ["Y"])], [value("X", F32, [3, 16])], [value("Y", F32, [3, 16])]
    path = folder / "model_with_orig_ext_data.onnx"
    write(path, *plain, [constant("W", 16, 16)])
    beside = {"save_as_external_data": True, "location": "model_with_orig_ext_data.bin", "size_threshold": 0}
    onnx.save(onnx.load(path), path, **beside)
    path = folder / "model_with_valid_ort_config_json.onnx"
    write(path, [node("Neg", ["X"], ["Y"])], [value("X", F32, [2])], [value("Y", F32, [2])])
    proto = onnx.load(path)
    options = '"inter_op_num_threads": 5, "intra_op_num_threads": 2, "enable_profiling": 1'
    helper.set_model_props(proto, {"ort_config": f'{{"session_options": {{{options}}}}}'})
    onnx.save(proto, path)
    pads = onnx.TensorProto(name="Pads_not_on_disk", data_type=I64, dims=[4], raw_data=bytes(32))
    onnx.external_data_helper.set_external_data(pads, "Pads_not_on_disk.bin")
    pads.ClearField("raw_data")
    write(
        folder / "model_with_external_initializer_come_from_user.onnx",
        [node("Pad", ["X", pads.name], ["Y"])], [value("X", F32, [1, 2]), value(pads.name, I64, [4])],
        [value("Y", F32, [1, 4])], [pads],
    )  # fmt: skip


def sparse_value(name: str, shape: Sequence[int]) -> Any:
    declared = onnx.TypeProto.SparseTensor(elem_type=F32)
    for size in shape:
        declared.shape.dim.add(dim_value=size)
    return helper.make_value_info(name, onnx.TypeProto(sparse_tensor_type=declared))


def _write_sparse(folder: Path) -> None:
    product = node("SparseToDenseMatMul", ["sparse_A", "dense_B"], ["dense_Y"], domain="com.microsoft")
    graph = helper.make_graph(
        [product], "SpMM", [sparse_value("sparse_A", [9, 9]), value("dense_B", F32, [9, 9])],
        [value("dense_Y", F32, [9, 9])],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("com.microsoft", 1)], ir_version=8)
    onnx.save(model, folder / "sparse_to_dense_matmul.onnx")
    elements = helper.make_tensor("", F32, [3], [1.764052391052246, 0.40015721321105957, 0.978738009929657])
    tensor = helper.make_sparse_tensor(elements, helper.make_tensor("", I64, [3], [2, 3, 5]), [3, 3])
    write(
        folder / "sparse_initializer_as_output.onnx", [node("Constant", [], ["values"], sparse_value=tensor)],
        [], [sparse_value("values", [3, 3])],
    )  # fmt: skip


def _write_encoders(folder: Path) -> None:
    """Write an encoder of texts with bytes of 0, and a tree whose threshold is a float64."""
    texts = ["B\0B\0", "D\0D\0", "C\0C\0", "E\0E\0"]
    encoder = node("OneHotEncoder", ["C1"], ["C12"], domain=ML, cats_strings=texts)
    write(
        folder / "mlnet_encoder.onnx", [node("Identity", ["C0"], ["C00"]), encoder],
        [value("C0", F32, [1, 1]), value("C1", TEXT, [1, 3])],
        [value("C00", F32, [1, 1]), value("C12", F32, [1, 3, 4])],
    )  # fmt: skip

    def doubles(*numbers: float) -> TensorProto:
        return helper.make_tensor("", TensorProto.DOUBLE, [len(numbers)], numbers)

    tree = node(
        "TreeEnsembleRegressor", ["X"], ["y"], domain=ML, n_targets=1, nodes_treeids=[0, 0, 0],
        nodes_nodeids=[0, 1, 2], nodes_featureids=[2, 0, 0], nodes_modes=["BRANCH_LEQ", "LEAF", "LEAF"],
        nodes_values_as_tensor=doubles(1.7999999523162842, 0, 0), nodes_truenodeids=[1, 0, 0],
        nodes_falsenodeids=[2, 0, 0], nodes_missing_value_tracks_true=[0, 0, 0], target_treeids=[0, 0],
        target_nodeids=[1, 2], target_ids=[0, 0],
        target_weights_as_tensor=doubles(0.7284910678863525, 0.9134243130683899),
    )  # fmt: skip
    graph = helper.make_graph(
        [tree, node("Cast", ["y"], ["Y"], to=TensorProto.DOUBLE)], "tree",
        [value("X", TensorProto.DOUBLE, [None, 4])],
        [value("Y", TensorProto.DOUBLE, [None, 1])],
    )  # fmt: skip
    imports = [helper.make_opsetid("", 17), helper.make_opsetid(ML, 3)]
    model = helper.make_model(graph, opset_imports=imports, ir_version=8)
    onnx.save(model, folder / "tree_ensemble_as_tensor.onnx")


def _write_adapted(folder: Path) -> None:
    """Write a model with two initializers that adapters replace. They are empty by default."""
    weights = onnx.numpy_helper.from_array(np.arange(1, 17, dtype=np.float32).reshape(4, 4), "weight_x")
    names = ("lora_param_a", "lora_param_b")
    empty = [helper.make_tensor(n, F32, d, []) for n, d in zip(names, ([4, 0], [0, 4]), strict=True)]
    nodes = [
        node("MatMul", ["input_x", "weight_x"], ["x"]), node("MatMul", ["input_x", names[0]], ["a"]),
        node("MatMul", ["a", names[1]], ["b"]), node("Add", ["x", "b"], ["output"]),
    ]  # fmt: skip
    write(
        folder / "two_params_lora_model.onnx", nodes,
        [value("input_x", F32, [4, 4]), value(names[0], F32, [4, "dim"]), value(names[1], F32, ["dim", 4])],
        [value("output", F32, [4, 4])], [weights, *empty],
    )  # fmt: skip
