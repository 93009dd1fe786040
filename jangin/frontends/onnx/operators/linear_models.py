"""Lower linear models and support vector machines (ai.onnx.ml), as products with constant matrices."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from jangin.frontends.onnx.operators.scores import DOMAIN, features, labelled, output, transformed
from jangin.frontends.onnx.registry import op
from jangin.ir.dtype import I64
from jangin.ir.expr import cast, const, select
from jangin.ir.graph import Array, CompileError, static_shape
from jangin.ops.builder import Builder
from jangin.ops.linear_models import affine, kernel, opposed, pairs, probabilities
from jangin.ops.nontensor import Item
from jangin.ops.values import Tensor


def matrix(coefficients: Sequence[float], rows: int, x: Tensor) -> Array:
    """Return the first coefficients as a matrix with a column for each feature of x. ONNX Runtime ignores
    further ones, too. Raises CompileError if there are too few."""
    width = static_shape(x.shape[1:])
    columns = width[0] if width else len(coefficients) // rows
    if len(coefficients) < rows * columns:
        raise CompileError(f"{len(coefficients)} coefficients are too few for {rows} rows of {columns}")
    return np.array(coefficients[: rows * columns]).reshape(rows, columns)


@op("LinearRegressor", domain=DOMAIN)
def linear_regressor(
    b: Builder, x: Tensor, *, coefficients: Sequence[float], intercepts: Sequence[float] = (),
    targets: int = 1, post_transform: str = "NONE",
) -> Tensor:  # fmt: skip
    x = features(b, x)
    scores = affine(b, x, matrix(coefficients, targets, x), intercepts)
    return output(b, transformed(b, scores, post_transform))


@op("LinearClassifier", domain=DOMAIN)
def linear_classifier(
    b: Builder, x: Tensor, *, coefficients: Sequence[float], intercepts: Sequence[float] = (),
    classlabels_ints: Sequence[int] = (), classlabels_strings: Sequence[str] = (), multi_class: int = 0,
    post_transform: str = "NONE",
) -> tuple[Item, Tensor]:  # fmt: skip
    """Return the classes and their scores by a linear model. If there is one class, a row belongs to it if
    the score is at least 0, or at least 0.5 after a transform."""
    x = features(b, x)
    classes = max(len(classlabels_ints), len(classlabels_strings))
    width = static_shape(x.shape[1:])
    rows = len(intercepts) or (len(coefficients) // width[0] if width else max(classes, 1))
    scores = affine(b, x, matrix(coefficients, rows, x), intercepts)
    if rows == 1 and classes == 2:
        scores = opposed(b, scores)
    scores = transformed(b, scores, post_transform)
    if rows > 1 or classes == 2:
        return labelled(b, scores, classlabels_ints, classlabels_strings), output(b, scores)
    threshold, label = (0.0 if post_transform == "NONE" else 0.5), (classlabels_ints or (1,))[0]
    chosen = b.map(lambda s: select(s >= threshold, const(label, I64), const(0, I64)), scores)
    return b.reshape(chosen, scores.shape[:1]), output(b, scores)


# -- support vector machines ---------------------------------------------------------------------


@op("SVMRegressor", domain=DOMAIN)
def svm_regressor(
    b: Builder, x: Tensor, *, coefficients: Sequence[float], rho: Sequence[float], n_supports: int = 0,
    support_vectors: Sequence[float] = (), kernel_type: str = "LINEAR", kernel_params: Sequence[float] = (),
    one_class: int = 0, post_transform: str = "NONE",
) -> Tensor:  # fmt: skip
    """Return regression values. With `one_class`, the value is 1 for a row that belongs to the class, and -1
    for any other row."""
    x = features(b, x)
    if n_supports:
        x = kernel(b, x, np.array(support_vectors).reshape(n_supports, -1), kernel_type, kernel_params)
    scores = affine(b, x, np.array(coefficients).reshape(1, -1), rho[:1])
    if one_class:
        scores = b.map(lambda s: select(s > 0, const(1, s.dtype), const(-1, s.dtype)), scores)
    return output(b, transformed(b, scores, post_transform))


@op("SVMClassifier", domain=DOMAIN)
def svm_classifier(
    b: Builder, x: Tensor, *, coefficients: Sequence[float], rho: Sequence[float],
    vectors_per_class: Sequence[int] = (), support_vectors: Sequence[float] = (),
    prob_a: Sequence[float] = (), prob_b: Sequence[float] = (), kernel_type: str = "LINEAR",
    kernel_params: Sequence[float] = (), classlabels_ints: Sequence[int] = (),
    classlabels_strings: Sequence[str] = (), post_transform: str = "NONE",
) -> tuple[Item, Tensor]:  # fmt: skip
    """Classify by support vectors.

    Each pair of classes has a decision, and the class with the most wins is chosen. Scores are the decisions,
    or probabilities if `prob_a` is given (Chang & Lin 2011)."""
    x = features(b, x)
    classes = max(len(classlabels_ints), len(classlabels_strings), 1)
    labels = (classlabels_ints, classlabels_strings)
    total = sum(vectors_per_class)
    if not total:
        offsets = [rho[0]] * classes
        scores = affine(b, x, np.array(coefficients).reshape(classes, -1), offsets)
        return labelled(b, scores, *labels), output(b, transformed(b, scores, post_transform))
    near = kernel(b, x, np.array(support_vectors).reshape(total, -1), kernel_type, kernel_params)
    weights, won = pairs(np.array(coefficients).reshape(-1, total), vectors_per_class)
    decisions = affine(b, near, weights, rho)
    wins = b.map(lambda s: cast(s.dtype, s > 0), decisions)
    votes = affine(b, wins, won, np.maximum(-won, 0).sum(1))
    label = labelled(b, votes, *labels)
    if len(prob_a):
        odds = probabilities(b, decisions, classes, prob_a, prob_b)
        return label, output(b, transformed(b, odds, post_transform))
    scores = opposed(b, decisions) if len(rho) == 1 else decisions
    return label, output(b, transformed(b, scores, post_transform))
