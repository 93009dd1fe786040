"""What models of rows hold, as plain values: from their messages to the attributes of their nodes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from jangin.ir.graph import CompileError
from jangin.ops.trees import MODES

Found = dict[str, Any]
BEHAVIOURS = {
    "BranchOnValueLessThanEqual": "BRANCH_LEQ", "BranchOnValueLessThan": "BRANCH_LT",
    "BranchOnValueGreaterThanEqual": "BRANCH_GTE", "BranchOnValueGreaterThan": "BRANCH_GT",
    "BranchOnValueEqual": "BRANCH_EQ", "BranchOnValueNotEqual": "BRANCH_NEQ",
}  # fmt: skip
LEAF = -1


def _labels(m: Any) -> tuple[Any, ...]:
    kind = m.WhichOneof("ClassLabels")
    return tuple(getattr(m, kind).vector) if kind else ()


def _word(m: Any, field: str) -> str:
    """The name of an enumeration's value."""
    value = getattr(m, field)
    known = m.DESCRIPTOR.fields_by_name[field].enum_type.values_by_number
    if value not in known:
        raise CompileError(f"{field} is {value}, which is not known")
    return str(known[value].name)


def _glm(m: Any) -> Found:
    """Weights [outputs, features] and an offset of each."""
    weights = [list(row.value) for row in m.weights]
    if len({len(row) for row in weights}) != 1 or len(m.offset) not in (0, len(weights)):
        raise CompileError("its rows of weights and its offsets don't fit")
    found = {
        "weights": np.array(weights),
        "offset": tuple(m.offset),
        "link": _word(m, "postEvaluationTransform"),
    }
    if "classEncoding" in m.DESCRIPTOR.fields_by_name:
        found |= {"encoding": _word(m, "classEncoding"), "labels": _labels(m)}
    return found


def _trees(m: Any) -> Found:
    trees = m.treeEnsemble
    columns: list[tuple[Any, ...]] = []
    leaves: list[tuple[Any, ...]] = []
    below = set()
    for node in trees.nodes:
        behaviour, key = _word(node, "nodeBehavior"), (node.treeId, node.nodeId)
        if behaviour == "LeafNode":
            columns.append((*key, 0, 0.0, LEAF, 0, 0, 0))
            leaves += [(*key, w.evaluationIndex, w.evaluationValue) for w in node.evaluationInfo]
            continue
        mode, yes, no = MODES.index(BEHAVIOURS[behaviour]), node.trueChildNodeId, node.falseChildNodeId
        missing = int(node.missingValueTracksTrueChild)
        columns.append((*key, node.branchFeatureIndex, node.branchFeatureValue, mode, missing, yes, no))
        below |= {(node.treeId, yes), (node.treeId, no)}
    roots = [c[:2] for c in columns if c[:2] not in below]
    names = ("tree", "number", "feature", "split", "mode", "missing", "yes", "no")
    whole = [np.array([c[i] for c in columns], np.float64 if i == 3 else np.int64) for i in range(8)]
    held = [np.array([leaf[i] for leaf in leaves], np.float64 if i == 3 else np.int64) for i in range(4)]
    targets = trees.numPredictionDimensions
    found = {
        **dict(zip(names, whole, strict=True)),
        **{f"leaf_{n}": v for n, v in zip(("tree", "number", "target", "value"), held, strict=True)},
        "roots": np.array(roots, np.int64).reshape(-1, 2), "targets": int(targets),
        "base": tuple(trees.basePredictionValue) or (0.0,) * targets,
        "transform": _word(m, "postEvaluationTransform"),
    }  # fmt: skip
    return found | ({"labels": _labels(m)} if "stringClassLabels" in m.DESCRIPTOR.fields_by_name else {})


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
    found: Found = {"kernel": KERNELS[kind], "params": params, "vectors": vectors}
    if "rho" in m.DESCRIPTOR.fields_by_name and not hasattr(m.rho, "append"):
        return {**found, "coefficients": np.array([list(m.coefficients.alpha)]), "rho": (float(m.rho),)}
    coefficients = np.array([list(c.alpha) for c in m.coefficients])
    return {
        **found, "coefficients": coefficients, "rho": tuple(m.rho), "a": tuple(m.probA), "b": tuple(m.probB),
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
"""By the names of a model's type."""
