"""No attribute of an ONNX operator is passed over: it changes the result, is known to change nothing, or is
refused by name.

The standard's own node tests are the cases, with an attribute at another value. `OWN` has cases of operators
that these tests lack, or show too little of. Older versions of an operator, and ONNX Runtime's operators, are
lowered by functions whose parameters must all be read."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache, partial
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from onnx import ModelProto, TensorProto, defs, helper, numpy_helper
from quick_cases import quickly

import jangin
from jangin.frontends.lower import lower
from jangin.frontends.onnx.dialect import REMARKS
from jangin.frontends.onnx.operators import OPERATORS
from jangin.frontends.onnx.registry import Operator, find
from jangin.frontends.table import load
from jangin.ir.graph import CompileError
from jangin.onnx_backend import specialised
from jangin.ops.interpret import run_graph
from jangin.passes.partition import has_steps

Array = np.ndarray[Any, Any]
Case = tuple[ModelProto, list[Any]]
LARGEST = 3000
"""Cases with more elements in an input aren't tried, because they take long."""
BASES = 12
"""The number of cases of an operator that are tried, of different attributes."""
WIDE = "sums are in f32 or wider, whatever it says"
READS_NO_CLASS = "the scores say which kind it is, and ONNX Runtime doesn't read it either"
IDLE: Mapping[str, Mapping[str, str]] = {
    "Attention": {
        "q_num_heads": "queries of rank 4 say it", "kv_num_heads": "keys of rank 4 say it",
        "rotary_embedding_dim": "do_rotary is refused", "past_length": "a shared buffer is refused",
    },
    "BatchNormalization": {
        "momentum": "nothing is trained", "spatial": "the statistics' shape says it",
        "is_test": "nothing is trained",
    },
    "Dropout": {"ratio": "nothing is dropped", "is_test": "nothing is trained"},
    "EmbedLayerNormalization": {"mask_index_type": "the mask's shape says it"},
    "Gemm": {"broadcast": "the shapes say it"},
    "GroupNormalization": {"stash_type": WIDE},
    "LinearAttention": {"chunk_size": "it is advice about speed"},
    "LinearClassifier": {"multi_class": READS_NO_CLASS},
    "RMSNormalization": {"stash_type": WIDE},
    "Range": {"stash_type": WIDE},
    "SimplifiedLayerNormalization": {"stash_type": WIDE},
    "StringNormalizer": {"locale": "upper and lower case are Unicode's in all locales"},
    "TopK": {"sorted": "results in order are allowed in any case"},
    "TreeEnsemble": {"nodes_hitrates": "it is advice about speed"},
    "TreeEnsembleClassifier": {"nodes_hitrates": "it is advice", "nodes_hitrates_as_tensor": "it is advice"},
    "TreeEnsembleRegressor": {"nodes_hitrates": "it is advice", "nodes_hitrates_as_tensor": "it is advice"},
}  # fmt: skip
"""Attributes and inputs that change nothing, with the reason, by operator."""


def spelt(kind: str, now: Any) -> list[Any]:
    """Return values to try for an attribute of a kind, which has the value `now` or None."""
    longer = [[v + n for v in now] for n in (1, 2)] if now and kind in ("INTS", "FLOATS") else []
    return {
        "INT": [1, 0, 2, -1, 3, 6, 7], "FLOAT": [0.3, 2.0, -1.0], "STRING": ["no such word"],
        "INTS": [*longer, [2, 2], [1], [2], [0], [1, 1, 1, 1], [1, 0], [2, 2, 2]],
        "FLOATS": [*longer, [0.3], [0.3, 0.3], [0.3] * 3], "STRINGS": [["no"], ["no", "such"]],
    }.get(kind, [])  # fmt: skip


def outcome(model: ModelProto, inputs: Sequence[Any]) -> Any:
    """Return a model's results in a form that compares, or its error."""
    given = dict(zip([i.name for i in model.graph.input], inputs, strict=False))
    try:
        try:
            graph = lower(load(model))
        except CompileError:
            graph = specialised(lambda m: lower(load(m)), model, given)
        if has_steps(graph):
            found = jangin.compile(model, threads=1, cache=False, isolated=False).run(given)
        else:
            found = run_graph(graph, {n: given[n] for n in graph.inputs})
    except Exception as error:
        return error
    return [
        repr((type(v), v.dtype, v.shape, v.tolist()) if isinstance(v, np.ndarray) else v)
        for v in found.values()
    ]


def changed(model: ModelProto, name: str, kind: int, value: Any) -> ModelProto:
    """Return the model with an attribute of its node at another value."""
    made = ModelProto()
    made.CopyFrom(model)
    node = made.graph.node[0]
    kept = [a for a in node.attribute if a.name != name]
    del node.attribute[:]
    node.attribute.extend([*kept, helper.make_attribute(name, value, attr_type=kind)])
    for out in made.graph.output:
        if out.type.HasField("tensor_type"):
            out.type.tensor_type.ClearField("shape")
    return made


def described(name: str, value: Any) -> Any:
    """Return the description of an input of a tensor, a sequence of tensors (a list) or a map (a dict)."""
    if isinstance(value, dict):
        number = helper.make_tensor_type_proto(TensorProto.FLOAT, [])
        return helper.make_value_info(name, helper.make_map_type_proto(TensorProto.INT64, number))
    if isinstance(value, list):
        return helper.make_tensor_sequence_value_info(name, TensorProto.FLOAT, value[0].shape)
    kind = TensorProto.STRING if value.dtype == object else helper.np_dtype_to_tensor_dtype(value.dtype)
    return helper.make_tensor_value_info(name, kind, value.shape)


def one(
    name: str, inputs: Sequence[Any], domain: str = "", opset: int = 0, outputs: int = 1, **attributes: Any
) -> Case:
    """Return a case of one node."""
    names = [f"x{n}" for n in range(len(inputs))]
    node = helper.make_node(name, names, [f"y{n}" for n in range(outputs)], domain=domain, **attributes)
    infos = [described(*pair) for pair in zip(names, inputs, strict=True)]
    graph = helper.make_graph(
        [node], "g", infos, [helper.make_empty_tensor_value_info(n) for n in node.output]
    )
    since = opset or defs.get_schema(name, domain=domain).since_version
    opsets = [helper.make_opsetid(domain, since), *([helper.make_opsetid("", 21)] if domain else [])]
    return helper.make_model(graph, opset_imports=opsets), list(inputs)


def recurrent(name: str, gates: int, *functions: str) -> Case:
    """Return a case of functions that have both parameters."""
    rng = np.random.default_rng(0)
    shapes = ((3, 2, 4), (1, gates * 5, 4), (1, gates * 5, 5))
    weights = [rng.standard_normal(s).astype(np.float32) for s in shapes]
    return one(name, weights, hidden_size=5, activations=functions)


X = np.random.default_rng(0).standard_normal((1, 2, 5, 6)).astype(np.float32)
ROWS = X[0, 0]
WHOLE = np.array([1, 5, 9])
TEXTS = np.array(["a", "c", "zz"], object)
ML, STEPS = "ai.onnx.ml", "ai.onnx.preview.training"


def step(name: str, states: int, **attributes: Any) -> Case:
    """Return a case of an optimizer's step, which isn't its first one."""
    weights = [ROWS[n] for n in range(2 + states)]
    weights[2:] = map(abs, weights[2:])
    given = [np.float32(0.1).reshape(()), np.array(2), *weights]
    return one(name, given, STEPS, outputs=1 + states, **attributes)


def support_vectors(kernel: str) -> Case:
    vectors = {
        "n_supports": 3,
        "support_vectors": ROWS[:3].ravel().tolist(),
        "kernel_params": [0.5, 0.1, 2.0],
    }
    return one(
        "SVMRegressor", [ROWS], ML, coefficients=[0.5, 1.0, -1.0], rho=[0.1], kernel_type=kernel, **vectors
    )  # fmt: skip


def classes_by_vectors(kind: str) -> Case:
    """Return a case of two classes with names of a kind."""
    labels = {f"classlabels_{kind}": [4, 5] if kind == "ints" else ["a", "b"]}
    return one(
        "SVMClassifier", [ROWS], ML, coefficients=[0.5, 1.0, -1.0], rho=[0.1], kernel_type="RBF", outputs=2,
        kernel_params=[0.5, 0.1, 2.0], support_vectors=ROWS[:3].ravel().tolist(), vectors_per_class=[1, 2],
        prob_a=[0.4], prob_b=[0.3], **labels,
    )  # fmt: skip


def of_numbers() -> list[Case]:
    """Return cases of the standard's own domain."""
    shape: dict[str, Any] = {"shape": [3], "seed": 1.0}
    boxes = np.array([[[0, 0, 4, 4], [5, 5, 9, 9]]], np.float32)  # as centres and sizes they overlap
    scores = np.array([[[0.9, 0.8]]], np.float32)
    far = [np.array([1e9, 1], np.float32), np.float32(1).reshape(()), np.zeros((), ml_dtypes.float8_e4m3fn)]
    constants = {
        "value_float": 1.0, "value_floats": [1.0], "value_int": 4, "value_ints": [4], "value_string": "a",
        "value_strings": ["a"],
    }  # fmt: skip
    return [
        one("Celu", [X]), one("LpPool", [X], kernel_shape=[2, 2], strides=[2, 2]), one("GlobalLpPool", [X]),
        *(one(f"Reduce{n}", [X]) for n in ("L1", "L2", "LogSumExp", "Mean", "SumSquare")),
        *(one("Constant", [], **{name: value}) for name, value in constants.items()),
        recurrent("RNN", 1, "ScaledTanh"), recurrent("GRU", 3, "HardSigmoid", "ScaledTanh"),
        recurrent("LSTM", 4, "HardSigmoid", "ScaledTanh", "ScaledTanh"),
        *(one(f"Random{n}", [], **shape) for n in ("Normal", "Uniform")),
        *(one(f"Random{n}Like", [ROWS], seed=1.0) for n in ("Normal", "Uniform")),
        one("Bernoulli", [np.full((5, 6), 0.5, np.float32)], seed=1.0),
        one("Multinomial", [ROWS], seed=1.0, sample_size=5), one("SequenceEmpty", []),
        one("MaxRoiPool", [X, np.array([[0, 0, 0, 3, 4]], np.float32)], pooled_shape=[2, 2]),
        one("ConcatFromSequence", [[ROWS, ROWS]], axis=0), one("QuantizeLinear", far),
        one("NonMaxSuppression", [boxes, scores, np.array([3])]),
        one("BitShift", [np.uint8([8])] * 2, direction="LEFT"),
    ]  # fmt: skip


def of_tables() -> list[Case]:
    """Return cases of machine learning on tables, and of training."""
    keys = {"keys_int64s": [1, 5]}
    pairs = {"cats_int64s": [1, 5], "cats_strings": ["a", "c"]}
    linear = {"coefficients": ROWS[:2].ravel().tolist(), "intercepts": [0.1, 0.2]}
    return [
        step("Adagrad", 1), step("Momentum", 1, alpha=0.9, beta=0.5, mode="standard", norm_coefficient=0.1),
        one("ZipMap", [ROWS[:, :2]], ML, classlabels_int64s=[4, 5]),
        one("ZipMap", [ROWS[:, :2]], ML, classlabels_strings=["a", "b"]),
        one("LabelEncoder", [WHOLE], ML, 2, **keys, values_floats=[0.5, 1.5]),
        one("LabelEncoder", [WHOLE], ML, 2, **keys, values_int64s=[7, 8]),
        one("LabelEncoder", [WHOLE], ML, 2, **keys, values_strings=["x", "y"]),
        one("LabelEncoder", [WHOLE.astype(np.float32)], ML, 2, keys_floats=[1.0, 5.0], values_int64s=[7, 8]),
        one("LabelEncoder", [TEXTS], ML, 2, keys_strings=["a", "c"], values_int64s=[7, 8]),
        one("CategoryMapper", [WHOLE], ML, **pairs), one("CategoryMapper", [TEXTS], ML, **pairs),
        one("OneHotEncoder", [WHOLE], ML, cats_int64s=[1, 5]),
        one("OneHotEncoder", [TEXTS], ML, cats_strings=["a", "c"]),
        one("Imputer", [np.zeros((1, 2), np.float32)], ML, imputed_value_floats=[7.0]),
        one("Imputer", [np.zeros((1, 2), np.int64)], ML, imputed_value_int64s=[7]),
        one("Normalizer", [ROWS], ML), one("Scaler", [ROWS], ML, scale=[2.0], offset=[1.0]),
        one("FeatureVectorizer", [ROWS, ROWS], ML, inputdimensions=[6, 6]),
        one("LinearRegressor", [ROWS], ML, targets=2, **linear),
        one("LinearClassifier", [ROWS], ML, classlabels_ints=[4, 5], **linear, outputs=2),
        one("LinearClassifier", [ROWS], ML, classlabels_strings=["a", "b"], **linear, outputs=2),
        *map(support_vectors, ("RBF", "POLY")), *map(classes_by_vectors, ("ints", "strings")),
        one("CastMap", [{1: 0.5, 3: 1.5}], ML),
        one("CastMap", [{1: 0.5, 3: 1.5}], ML, map_form="SPARSE", max_map=5),
        one("DictVectorizer", [{1: 0.5, 3: 1.5}], ML, int64_vocabulary=[1, 2, 3]),
    ]  # fmt: skip


@cache
def own() -> Mapping[str, list[Case]]:
    """Return cases besides the standard's, by operator."""
    found: dict[str, list[Case]] = {}
    for case in (*of_numbers(), *of_tables()):
        found.setdefault(case[0].graph.node[0].op_type, []).append(case)
    return found


@cache
def cases() -> Mapping[str, list[Case]]:
    """Return cases of one node by operator, each with other attributes."""
    from onnx.backend.test.loader import load_model_tests

    found: dict[str, dict[Any, Case]] = {}
    with quickly():
        tests = load_model_tests(kind="node")
    for test in tests:
        if len(test.model.graph.node) != 1 or not test.data_sets:
            continue
        node, given = test.model.graph.node[0], test.data_sets[0][0]
        inputs = [numpy_helper.to_array(x) if isinstance(x, TensorProto) else x for x in given]
        if all(getattr(x, "size", 0) <= LARGEST for x in inputs):
            sort = (tuple(sorted(a.name for a in node.attribute)), len(node.input), len(node.output))
            found.setdefault(node.op_type, {}).setdefault(sort, (test.model, inputs))
    return {n: [*own().get(n, ()), *list(found.get(n, {}).values())[:BASES]] for n in {*found, *own()}}


def shown(name: str, attribute: Any) -> bool:
    """Tell if a value of an attribute of an operator changes the results of a case, or is refused."""
    kind, number = attribute.type.name, int(attribute.type.value)
    for model, inputs in cases()[name]:
        plain = outcome(model, inputs)
        if isinstance(plain, Exception) or outcome(model, inputs) != plain:  # it fails, or draws new numbers
            continue
        node = model.graph.node[0]
        now = next((helper.get_attribute_value(a) for a in node.attribute if a.name == attribute.name), None)
        others = (changed(model, attribute.name, number, v) for v in spelt(kind, now) if v != now)
        if any(outcome(other, inputs) != plain for other in others):
            return True
    return False


NEWEST = {s.name: s for s in defs.get_all_schemas() if s.attributes and not s.deprecated}
ELSEWHERE = {"Gradient": "tests/gradients has models for it"}


@pytest.mark.sampled(16)
@pytest.mark.parametrize("name", sorted(NEWEST.keys() - ELSEWHERE.keys()))
def test_no_attribute_is_passed_over(name: str) -> None:
    """Each attribute changes the results of a case at another value, or is refused."""
    for attribute in NEWEST[name].attributes.values():
        if attribute.name in {*REMARKS, *IDLE.get(name, ())} or not spelt(attribute.type.name, None):
            continue
        assert shown(name, attribute), f"{name}: {attribute.name}"


def function(operator: Operator) -> Callable[..., Any]:
    lower = operator.lower
    while isinstance(lower, partial):
        lower = lower.func
    return lower


def unread(operator: Operator) -> set[str]:
    """Return the parameters that an operator's lowering doesn't read."""
    lower = function(operator)
    tree = ast.parse(textwrap.dedent(inspect.getsource(lower)))
    (made,) = [n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef) and n.name == lower.__name__]
    read = {n.id for n in ast.walk(made) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)}
    return inspect.signature(lower).parameters.keys() - read - {"b", "_"}


def test_lowerings_read_their_parameters() -> None:
    """This holds for all versions, and for ONNX Runtime's operators."""
    found = {
        (operator.name, name)
        for versions in OPERATORS.values()
        for operator in versions
        for name in unread(operator)
    }
    idle = {(operator, name) for operator, names in IDLE.items() for name in names}
    assert found <= idle


def lacking(operator: Operator, attributes: Iterable[str]) -> set[str]:
    """Return the attributes that a lowering has no parameter for, so that a model with them is refused."""
    parameters = inspect.signature(operator.lower).parameters
    if any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
        return set()
    return {*attributes} - parameters.keys() - REMARKS


def test_every_version_takes_its_attributes() -> None:
    for schema in defs.get_all_schemas_with_history():
        operator = find(OPERATORS, schema.domain, schema.name, schema.since_version)
        if operator is not None and not schema.deprecated:
            assert not lacking(operator, schema.attributes), (schema.name, schema.since_version)


REFUSED = {
    ("GroupQueryAttention", name)
    for name in (
        "kv_cache_bit_width", "sliding_window_cache", "causal", "qk_output", "qk_norm_epsilon",
        "v_quant_type", "k_quant_type",
    )
}  # fmt: skip
"""Attributes of ONNX Runtime's operators that are refused, whatever their value."""


def test_attributes_of_onnx_runtime() -> None:
    """ONNX Runtime itself says which attributes its operators have."""
    runtime = pytest.importorskip(
        "onnxruntime.capi.onnxruntime_pybind11_state", reason="ONNX Runtime isn't installed"
    )
    found = set()
    for schema in runtime.get_all_operator_schema():
        for operator in OPERATORS.get((schema.domain, schema.name), ()):
            if schema.domain.startswith("com.microsoft"):
                found |= {(schema.name, name) for name in lacking(operator, schema.attributes)}
    assert found <= REFUSED


def test_what_is_refused_is_named() -> None:
    for case, name, value in (
        (recurrent("RNN", 1, "Tanh"), "hidden_size", 4),
        (recurrent("RNN", 1, "Tanh"), "activations", ["Tanh", "Relu"]),
        (one("BitShift", [np.uint8([8])] * 2, direction="LEFT"), "direction", "UP"),
        (one("RoiAlign", [X, ROWS[:1, :4], np.array([0])]), "coordinate_transformation_mode", "no such word"),
        (one("RoiAlign", [X, ROWS[:1, :4], np.array([0])]), "mode", "no such word"),
        (one("StringNormalizer", [TEXTS]), "case_change_action", "no such word"),
        (one("Constant", [], value_int=1), "value_float", 0.5),
    ):  # fmt: skip
        kind = defs.get_schema(case[0].graph.node[0].op_type).attributes[name].type
        with pytest.raises(CompileError, match=f"{name}|several attributes with a value"):
            lower(load(changed(case[0], name, int(kind.value), value)))


def test_unknown_categories() -> None:
    """Without `zeros`, an element that is no category fails the run, as in ONNX Runtime."""
    for inputs, known in ((WHOLE, {"cats_int64s": [1, 9]}), (TEXTS, {"cats_strings": ["a", "zz"]})):
        model, _ = one("OneHotEncoder", [inputs], ML, **known, zeros=0)
        exe = jangin.compile(model, threads=1, cache=False, isolated=False)
        np.testing.assert_array_equal(exe(inputs[[2, 0, 2]]), [[0, 1], [1, 0], [0, 1]])
        with pytest.raises(
            jangin.IndexOutOfRange, match=r"OneHotEncoder.*index 2 is out of range, which is 0 to 1"
        ):
            exe(inputs)
