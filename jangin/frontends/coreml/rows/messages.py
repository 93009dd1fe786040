"""Convert the messages of models of rows to plain values, which become the attributes of their nodes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter
from typing import Any

import numpy as np

from jangin.ir.graph import Array, CompileError
from jangin.ops.trees import LEAF, MODES

Found = dict[str, Any]
BEHAVIOURS = {
    "BranchOnValueLessThanEqual": "BRANCH_LEQ", "BranchOnValueLessThan": "BRANCH_LT",
    "BranchOnValueGreaterThanEqual": "BRANCH_GTE", "BranchOnValueGreaterThan": "BRANCH_GT",
    "BranchOnValueEqual": "BRANCH_EQ", "BranchOnValueNotEqual": "BRANCH_NEQ",
}  # fmt: skip


def _labels(m: Any) -> tuple[Any, ...]:
    kind = m.WhichOneof("ClassLabels")
    return tuple(getattr(m, kind).vector) if kind else ()


def _word(m: Any, field: str) -> str:
    """Return the name of an enumeration's value in a field. Raises CompileError if the value is unknown."""
    value = getattr(m, field)
    known = m.DESCRIPTOR.fields_by_name[field].enum_type.values_by_number
    if value not in known:
        raise CompileError(f"{field} is {value}, which is not known")
    return str(known[value].name)


def _glm(m: Any) -> Found:
    """Return the attributes of a linear model, such as its weights [outputs, features] and an offset for each
    output."""
    weights = [list(row.value) for row in m.weights]
    if len({len(row) for row in weights}) != 1 or len(m.offset) not in (0, len(weights)):
        raise CompileError(
            "it is damaged: its rows of weights differ in length, or their number isn't that of its offsets"
        )
    attrs = {
        "weights": np.array(weights),
        "offset": tuple(m.offset),
        "link": _word(m, "postEvaluationTransform"),
    }
    if "classEncoding" in m.DESCRIPTOR.fields_by_name:
        attrs |= {"encoding": _word(m, "classEncoding"), "labels": _labels(m)}
    return attrs


def _trees(m: Any) -> Found:
    """Return the attributes of an ensemble of trees: for each field of its nodes, an array over all nodes. An
    ensemble may have millions of nodes, and each is a message."""
    trees, nodes = m.treeEnsemble, list(m.treeEnsemble.nodes)
    held = [len(n.evaluationInfo) for n in nodes]
    leaves = [w for n, count in zip(nodes, held, strict=True) if count for w in n.evaluationInfo]
    tree, number = (_field(nodes, n) for n in ("treeId", "nodeId"))
    mode = _modes(nodes)
    # fields that an inner node has only as a leaf don't count
    attrs = {
        "tree": tree, "number": number, "mode": mode, "feature": _field(nodes, "branchFeatureIndex"),
        "split": _field(nodes, "branchFeatureValue", np.float64),
        "missing": _field(nodes, "missingValueTracksTrueChild"), "yes": _field(nodes, "trueChildNodeId"),
        "no": _field(nodes, "falseChildNodeId"), "leaf_tree": np.repeat(tree, held),
        "leaf_number": np.repeat(number, held), "leaf_target": _field(leaves, "evaluationIndex"),
        "leaf_value": _field(leaves, "evaluationValue", np.float64),
        "targets": int(trees.numPredictionDimensions),
        "base": tuple(trees.basePredictionValue) or (0.0,) * trees.numPredictionDimensions,
        "transform": _word(m, "postEvaluationTransform"),
    }  # fmt: skip
    return attrs | ({"labels": _labels(m)} if "stringClassLabels" in m.DESCRIPTOR.fields_by_name else {})


def _field(messages: Sequence[Any], name: str, dtype: Any = np.int64) -> Array:
    return np.fromiter(map(attrgetter(name), messages), dtype, len(messages))


def _modes(nodes: Sequence[Any]) -> Array:
    """Return each node's test as its position in `ops.trees.MODES`, or LEAF for a leaf."""
    behaviours = _field(nodes, "nodeBehavior")
    modes = np.empty(behaviours.size, np.int64)
    for value in np.unique(behaviours):
        first = nodes[int(np.argmax(behaviours == value))]
        word = _word(first, "nodeBehavior")
        modes[behaviours == value] = LEAF if word == "LeafNode" else MODES.index(BEHAVIOURS[word])
    return modes


KERNELS = {"linearKernel": "LINEAR", "rbfKernel": "RBF", "polyKernel": "POLY", "sigmoidKernel": "SIGMOID"}


def _svm(m: Any) -> Found:
    kind = m.kernel.WhichOneof("kernel") or "linearKernel"
    k = getattr(m.kernel, kind)
    params = tuple(float(getattr(k, n, 0.0)) for n in ("gamma", "c", "degree"))
    if m.WhichOneof("supportVectors") == "sparseSupportVectors":
        sparse = m.sparseSupportVectors.vectors
        width = max((node.index for v in sparse for node in v.nodes), default=0)
        vectors = np.zeros((len(sparse), width))
        for row, vector in enumerate(sparse):
            for node in vector.nodes:
                vectors[row, node.index - 1] = node.value
    else:
        vectors = np.array([list(v.values) for v in m.denseSupportVectors.vectors])
    attrs: Found = {"kernel": KERNELS[kind], "params": params, "vectors": vectors}
    if "rho" in m.DESCRIPTOR.fields_by_name and not hasattr(m.rho, "append"):
        return {**attrs, "coefficients": np.array([list(m.coefficients.alpha)]), "rho": (float(m.rho),)}
    coefficients = np.array([list(c.alpha) for c in m.coefficients])
    return {
        **attrs, "coefficients": coefficients, "rho": tuple(m.rho), "a": tuple(m.probA), "b": tuple(m.probB),
        "counts": tuple(m.numberOfSupportVectorsPerClass), "labels": _labels(m),
    }  # fmt: skip


def _neighbors(m: Any) -> Found:
    labels = _labels(m)
    index = m.nearestNeighborsIndex
    distinct = tuple(dict.fromkeys(sorted(labels)))
    return {
        "samples": np.array([list(s.vector) for s in index.floatSamples]), "labels": distinct,
        "classes": np.array([distinct.index(v) for v in labels], np.int64),
        "count": int(m.numberOfNeighbors.defaultValue),
        "weighted": m.WhichOneof("WeightingScheme") == "inverseDistanceWeighting",
    }  # fmt: skip


def _imputer(m: Any) -> Found:
    new, old = m.WhichOneof("ImputedValue") or "", m.WhichOneof("ReplaceValue") or ""
    if "tring" in new + old or "Dictionary" in new:
        raise CompileError("an imputer of text or dictionaries is not supported")
    value = getattr(m, new)
    return {"new": tuple(getattr(value, "vector", (value,))), "old": float(getattr(m, old))}


def _one_hot(m: Any) -> Found:
    if m.WhichOneof("CategoryType") != "int64Categories":
        raise CompileError("one-hot encoding of text is not supported")
    return {"categories": tuple(m.int64Categories.vector)}


READ: Mapping[str, Callable[[Any], Found]] = {
    "arrayFeatureExtractor": lambda m: {"indices": tuple(m.extractIndex)},
    "featureVectorizer": lambda m: {"widths": tuple(int(c.inputDimensions) for c in m.inputList)},
    "glmClassifier": _glm, "glmRegressor": _glm, "identity": lambda m: {}, "imputer": _imputer,
    "kNearestNeighborsClassifier": _neighbors, "normalizer": lambda m: {"norm": _word(m, "normType")},
    "oneHotEncoder": _one_hot, "scaler": lambda m: {"shift": tuple(m.shiftValue),
    "scale": tuple(m.scaleValue)},
    "supportVectorClassifier": _svm, "supportVectorRegressor": _svm, "treeEnsembleClassifier": _trees,
    "treeEnsembleRegressor": _trees,
}  # fmt: skip
"""Functions that convert a model's message to attributes, by the name of the model's type."""
