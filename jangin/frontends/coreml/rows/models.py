"""Lower models that predict from rows of features, such as those converted from scikit-learn. Each stage of a
pipeline is one node."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from jangin.ir.dtype import F32, F64, I64, STRING
from jangin.ir.expr import Buffer, Expr, call, cast, const, eq, maximum, select
from jangin.ir.graph import Array, CompileError
from jangin.ir.types import tensor_type
from jangin.ops.axes import divide, product
from jangin.ops.builder import Builder
from jangin.ops.linear_models import affine, kernel, opposed, pairs, probabilities
from jangin.ops.nontensor import Item, host
from jangin.ops.reduce import arg_extreme
from jangin.ops.select import top_k
from jangin.ops.trees import LEAF, Ensemble, Numbered, Weights, grown, planted
from jangin.ops.values import Tensor

Given = Mapping[str, Any]
"""A model's attributes, which the importer read from its message."""


def rows(b: Builder, xs: Sequence[Tensor]) -> Tensor:
    """Return vectors (as columns) and matrices concatenated to [rows, features]. The result is f64 if one of
    them is f64, else f32."""
    dtype = F64 if any(x.dtype is F64 for x in xs) else F32
    parts = [b.cast(x if x.rank == 2 else b.reshape(x, [*x.shape, 1]), dtype) for x in xs]
    return parts[0] if len(parts) == 1 else b.concat(parts, 1)


def feature_vectorizer(b: Builder, xs: Sequence[Tensor], given: Given) -> Tensor:
    """Return all inputs concatenated to [rows, features]. Raises CompileError if an input doesn't have its
    declared number of columns."""
    whole = [rows(b, [x]) for x in xs]
    for x, width in zip(whole, given["widths"], strict=True):
        if x.shape[1] != const(width):
            raise CompileError(f"{x} must have {width} features")
    return rows(b, whole)


def scaler(b: Builder, xs: Sequence[Tensor], given: Given) -> Tensor:
    x = rows(b, xs)
    shift, scale = (b.const(np.asarray(given[n], x.dtype.numpy)) for n in ("shift", "scale"))
    return b.map(lambda v, o, s: (v + o) * s, x, shift, scale)


def imputer(b: Builder, xs: Sequence[Tensor], given: Given) -> Tensor:
    x, old = rows(b, xs), given["old"]

    def body(v: Expr, w: Expr) -> Expr:
        return select(call("isnan", v) if old != old else eq(v, const(old, v.dtype)), w, v)

    return b.map(body, x, b.const(np.asarray(given["new"], x.dtype.numpy)))


def normalizer(b: Builder, xs: Sequence[Tensor], given: Given) -> Tensor:
    """Return each row divided by its norm: the largest absolute value (LMax), the L1 norm or the L2 norm."""
    x, kind = rows(b, xs), given["norm"]
    sizes = b.map(lambda v: v * v if kind == "L2" else call("abs", v), x)
    total = b.reduce("max" if kind == "LMax" else "sum", sizes, [1], True)
    return b.map(lambda v, t: v / maximum(call("sqrt", t) if kind == "L2" else t, 1e-30), x, total)


def one_hot(b: Builder, xs: Sequence[Tensor], given: Given) -> Tensor:
    """Return a row for each integer, with 1 at the category that equals it and 0 elsewhere. An unknown
    integer gives only zeros."""
    x = xs[0] if xs[0].rank == 1 else b.reshape(xs[0], [xs[0].shape[0]])
    known = b.const(np.asarray(given["categories"], np.int64))

    def at(bufs: Sequence[Buffer], row: Expr, c: Expr) -> Expr:
        return cast(F64, eq(cast(I64, bufs[0][row]), bufs[1][c]))

    return b.compute(F64, (x.shape[0], known.shape[0]), [x, known], at)


def array_feature_extractor(b: Builder, xs: Sequence[Tensor], given: Given) -> Tensor:
    return b.gather(rows(b, xs), b.const(np.asarray(given["indices"], np.int64)), 1)


def identity(b: Builder, xs: Sequence[Tensor], given: Given) -> Tensor:
    return xs[0]


# -- predictions -------------------------------------------------------------------------------


def classified(b: Builder, scores: Tensor, best: Tensor, given: Given) -> tuple[Item, Tensor]:
    """Return the label of each row's best class, and the scores [rows, classes]. `best` has the positions of
    the best classes."""
    labels = given["labels"]
    if labels and isinstance(labels[0], str):
        result = tensor_type(STRING, best.shape)
        attrs = {"keys": tuple(range(len(labels))), "values": tuple(labels), "default": "", "dtype": "object"}
        (named,) = host(b, "LabelEncoder", [best], [result], attrs)
        return named, scores
    return b.gather(b.const(np.asarray(labels, np.int64)), best, 0), scores


def _best(b: Builder, scores: Tensor) -> Tensor:
    return arg_extreme(b, scores, 1, "max")


def _value(b: Builder, scores: Tensor) -> Tensor:
    """Return predictions [rows, targets]. If there is one target, they are [rows]."""
    return b.reshape(scores, [scores.shape[0]]) if scores.shape[1] == const(1) else scores


def linear_regressor(b: Builder, xs: Sequence[Tensor], given: Given) -> Tensor:
    return _value(b, _linked(b, affine(b, rows(b, xs), given["weights"], given["offset"]), given["link"]))


def _linked(b: Builder, scores: Tensor, link: str) -> Tensor:
    if link == "Probit":
        return b.map(lambda s: (1.0 + call("erf", s * 0.7071067811865476)) * 0.5, scores)
    return b.map(lambda s: call("sigmoid", s), scores) if link == "Logit" else scores


def linear_classifier(b: Builder, xs: Sequence[Tensor], given: Given) -> tuple[Item, Tensor]:
    """Return the likeliest class and all classes' probabilities, by linear scores. The first of several
    classes may be the reference class, which has no weights. Its score is 0."""
    scores = affine(b, rows(b, xs), given["weights"], given["offset"])
    if given["encoding"] == "OneVsRest" and scores.shape[1] != const(1):
        odds = _linked(b, scores, given["link"])
        total = b.reduce("sum", odds, [1], True)
        odds = b.map(lambda v, t: v / t, odds, total)
    elif scores.shape[1] == const(1):
        chance = _linked(b, scores, given["link"])
        odds = b.concat([b.map(lambda v: 1.0 - v, chance), chance], 1)
    else:
        first = b.map(lambda v: v * 0.0, b.slice(scores, [0, 0], [scores.shape[0], 1], [1, 1]))
        odds = b.softmax(b.concat([first, scores], 1), 1)
    return classified(b, odds, _best(b, odds), given)


def _forest(b: Builder, x: Tensor, given: Given) -> Tensor:
    """Return [rows, targets] in f64: for each target, the sum of the values of the leaves that a row
    reaches."""
    tree, mode = given["tree"], given["mode"]
    known, tests = Numbered(tree, given["number"]), np.flatnonzero(mode != LEAF)
    below = np.zeros((2, tree.size), np.int64)
    for side, name in enumerate(("yes", "no")):
        below[side, tests] = known.places(tree[tests], given[name][tests])
        lost = tests[below[side, tests] < 0]
        if lost.size:
            raise CompileError(
                f"tree {tree[lost[0]]} leads to the node {given[name][lost[0]]}, which it doesn't have"
            )
    roots = np.setdiff1d(np.arange(tree.size), below[:, tests])
    forest = planted(
        Ensemble(roots, mode, given["feature"], given["split"], given["missing"], below),
        Weights(
            known.places(given["leaf_tree"], given["leaf_number"]), given["leaf_target"], given["leaf_value"]
        ),
    )
    scores = grown(b, x, forest, given["targets"], "SUM")
    return b.map(lambda s, o: s + o, scores, b.const(np.asarray(given["base"], np.float64)))


def tree_regressor(b: Builder, xs: Sequence[Tensor], given: Given) -> Tensor:
    x = rows(b, xs)
    return _value(b, b.cast(_transformed(b, _forest(b, x, given), given["transform"]), x.dtype))


def tree_classifier(b: Builder, xs: Sequence[Tensor], given: Given) -> tuple[Item, Tensor]:
    x = rows(b, xs)
    scores = _forest(b, x, given)
    if given["targets"] == 1:  # the probability of the second of two classes
        chance = _transformed(b, scores, given["transform"])
        odds = b.concat([b.map(lambda v: 1.0 - v, chance), chance], 1)
    elif given["transform"] == "NoTransform":  # the leaves' sums are each class's share of all
        odds = b.map(lambda v, t: v / t, scores, b.reduce("sum", scores, [1], True))
    else:
        odds = _transformed(b, scores, given["transform"])
    odds = b.cast(odds, x.dtype)
    return classified(b, odds, _best(b, odds), given)


def _transformed(b: Builder, scores: Tensor, transform: str) -> Tensor:
    if transform == "NoTransform":
        return scores
    if transform == "Classification_SoftMax":
        return b.softmax(scores, 1)
    if transform == "Regression_Logistic":
        return b.map(lambda s: call("sigmoid", s), scores)
    if transform == "Classification_SoftMaxWithZeroClassReference":
        first = b.map(lambda v: v * 0.0, b.slice(scores, [0, 0], [scores.shape[0], 1], [1, 1]))
        return b.softmax(b.concat([first, scores], 1), 1)
    raise CompileError(f"the transform {transform} is not supported")


def svm_regressor(b: Builder, xs: Sequence[Tensor], given: Given) -> Tensor:
    near = kernel(b, rows(b, xs), given["vectors"], given["kernel"], given["params"])
    return _value(b, affine(b, near, given["coefficients"], [-given["rho"][0]]))


def svm_classifier(b: Builder, xs: Sequence[Tensor], given: Given) -> tuple[Item, Tensor]:
    """Classify by support vectors. Each pair of classes has a decision, and the class with the most wins is
    chosen (Chang & Lin 2011)."""
    near = kernel(b, rows(b, xs), given["vectors"], given["kernel"], given["params"])
    counts: Sequence[int] = given["counts"]
    coefficients: Array = given["coefficients"]
    weights, won = pairs(coefficients, counts)
    decisions = affine(b, near, weights, [-r for r in given["rho"]])
    wins = b.map(lambda s: cast(s.dtype, s > 0), decisions)
    votes = affine(b, wins, won, np.maximum(-won, 0).sum(1))
    if len(given["a"]):
        odds = probabilities(b, decisions, len(counts), given["a"], given["b"])
        return classified(b, odds, _best(b, odds), given)
    scores = opposed(b, decisions) if len(given["rho"]) == 1 else decisions
    return classified(b, scores, _best(b, votes), given)


def nearest_neighbors(b: Builder, xs: Sequence[Tensor], given: Given) -> tuple[Item, Tensor]:
    """Return the likeliest class and the share of each class among the nearest samples. The samples are
    weighted by their distances if the model says so."""
    x = rows(b, xs)
    samples: Array = given["samples"]
    held = b.const(samples.astype(x.dtype.numpy))

    def square(bufs: Sequence[Buffer], i: Sequence[Expr], k: Sequence[Expr]) -> Expr:
        away = bufs[0][i[0], k[0]] - bufs[1][i[1], k[0]]
        return away * away

    shape = (x.shape[0], const(len(samples)))
    far = b.reduction(x.dtype, shape, [x.shape[1]], "sum", [x, held], square)
    near, places = top_k(b, far, const(given["count"]), axis=1, largest=False)
    member = np.zeros((len(samples), len(given["labels"])), x.dtype.numpy)
    member[np.arange(len(samples)), given["classes"]] = 1
    votes = b.gather(b.const(member), places, 0)
    if given["weighted"]:
        weigh = b.map(lambda d: 1.0 / maximum(call("sqrt", d), 1e-8), near)
        spread = b.reshape(weigh, [*weigh.shape, 1])
        votes = b.map(lambda v, w: v * w, votes, spread)
    total = b.reduce("sum", votes, [1])
    odds = b.map(lambda v, t: v / t, total, b.reduce("sum", total, [1], True))
    return classified(b, odds, _best(b, odds), given)


def likeliest(b: Builder, xs: Sequence[Tensor], given: Given) -> tuple[Item, Tensor]:
    """Return the likeliest class and all scores [rows, classes]. The scores of a network may have additional
    axes."""
    count = const(len(given["labels"]))
    scores = b.reshape(xs[0], [divide(product(xs[0].shape), count, b.symbols), count])
    return classified(b, scores, _best(b, scores), given)


MODELS: Mapping[str, Callable[[Builder, Sequence[Tensor], Given], Any]] = {
    "arrayFeatureExtractor": array_feature_extractor, "featureVectorizer": feature_vectorizer,
    "glmClassifier": linear_classifier, "glmRegressor": linear_regressor, "identity": identity,
    "imputer": imputer, "likeliest": likeliest, "kNearestNeighborsClassifier": nearest_neighbors,
    "normalizer": normalizer,
    "oneHotEncoder": one_hot, "scaler": scaler, "supportVectorClassifier": svm_classifier,
    "supportVectorRegressor": svm_regressor, "treeEnsembleClassifier": tree_classifier,
    "treeEnsembleRegressor": tree_regressor,
}  # fmt: skip
"""Lowerings of models of rows, by the names of their types."""
