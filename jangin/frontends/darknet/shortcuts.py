"""Rules of the layer that adds others (shortcut): the weights of its terms, and sizes that may differ."""

from __future__ import annotations

import numpy as np

from jangin.ir.graph import Array

Size = tuple[int, int, int]
"""Channels, rows and columns of a layer's result."""


def balanced(weights: Array, kind: str) -> Array:
    """Return weights [layers, channels], normalized over the layers as the cfg's `kind` tells. Normalized
    weights have a sum of almost 1."""
    if kind == "none":
        return weights
    positive = np.maximum(weights, 0) if "relu" in kind else np.exp(weights - weights.max(0))
    shares: Array = (positive / (positive.sum(0) + np.float32(0.0001))).astype(np.float32)
    return shares


def in_step(one: Size, other: Size) -> bool:
    """Tell if the rows of two layers have the same ratio as their columns. Both quotients, of one layer by
    the other and the reverse, are rounded down."""
    (_, h, w), (_, rows, columns) = one, other
    return (h // rows, rows // h) == (w // columns, columns // w)
