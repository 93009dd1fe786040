"""Helpers of ai.onnx.ml's classifiers and regressors: inputs as floats, transforms of scores, and labels."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from jangin.frontends.onnx.operators.strings import labels as encoded
from jangin.ir.dtype import F32, F64
from jangin.ir.expr import Expr, call, cast, const, eq, select
from jangin.ir.graph import CompileError
from jangin.ops.builder import Builder
from jangin.ops.nontensor import Item
from jangin.ops.reduce import arg_extreme
from jangin.ops.values import Tensor

DOMAIN = "ai.onnx.ml"
NEAR_ZERO = 1e-7
"""A score whose magnitude is at most this stays 0 in SOFTMAX_ZERO. ONNX Runtime has the same number."""


def features(b: Builder, x: Tensor) -> Tensor:
    """Return the input as [rows, features], in f64 if it is f64, else in f32. A vector becomes one row."""
    x = x if x.dtype is F64 else b.cast(x, F32)
    if x.rank not in (1, 2):
        raise CompileError(f"{x} must have rank 2: rows of features")
    return x if x.rank == 2 else b.reshape(x, (1, *x.shape))


def transformed(b: Builder, scores: Tensor, transform: str) -> Tensor:
    """Return scores [rows, classes] transformed as the attribute `post_transform` says. Raises CompileError
    for an unknown transform."""
    if transform == "NONE":
        return scores
    if transform == "LOGISTIC":
        return b.map(lambda s: call("sigmoid", s), scores)
    if transform == "SOFTMAX":
        return b.softmax(scores, 1)
    if transform == "PROBIT":
        return b.map(_probit, scores)
    if transform != "SOFTMAX_ZERO":
        raise CompileError(f"post_transform {transform!r} is not one of the standard's")
    peak = b.reduce("max", scores, [1], keepdims=True)

    def power(s: Expr, top: Expr) -> Expr:
        return select(call("abs", s) > NEAR_ZERO, call("exp", s - top), s * call("exp", -top))

    powers = b.map(power, scores, peak)
    total = b.reduce("sum", powers, [1], keepdims=True)
    return b.map(lambda p, t: select(eq(t, const(0, t.dtype)), const(0.5, p.dtype), p / t), powers, total)


def _probit(x: Expr) -> Expr:
    """Return the quantile of the standard normal distribution for a probability. It is computed by Winitzki's
    approximation of the inverse error function."""
    z = x * 2.0 - 1.0
    inner = (1.0 - z) * (1.0 + z)
    log = call("log", inner)
    v = log * 0.5 + 2.0 / (math.pi * 0.147)
    root = call("sqrt", call("sqrt", v * v - log / 0.147) - v)
    quantile = select(z < 0, -root, root) * 1.41421356
    return select(eq(inner, const(0, x.dtype)), const(0, x.dtype), quantile)


def labelled(b: Builder, scores: Tensor, integers: Sequence[int], strings: Sequence[str]) -> Item:
    """Return the label of each row's best class. The first of equal classes is chosen."""
    best = arg_extreme(b, scores, 1, "max")
    if strings:
        return encoded(b, best, range(len(strings)), strings, "")
    labels = np.array(integers, np.int64)
    if not labels.size or (labels == np.arange(labels.size)).all():
        return best
    return b.gather(b.const(labels), best, 0)


def output(b: Builder, scores: Tensor) -> Tensor:
    return b.map(lambda s: cast(F32, s), scores)
