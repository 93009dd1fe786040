"""Lower decision trees (ai.onnx.ml)."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Any

import numpy as np

from jangin.frontends.onnx.operators.scores import DOMAIN, features, labelled, output, transformed
from jangin.frontends.onnx.registry import one_of, op
from jangin.ir.dtype import DType
from jangin.ir.graph import Array, CompileError
from jangin.ir.records import dataclass
from jangin.ops.builder import Builder
from jangin.ops.nontensor import Item
from jangin.ops.trees import (
    AGGREGATES,
    LEAF,
    MEMBER,
    MODES,
    Ensemble,
    Forest,
    Numbered,
    Weights,
    grown,
    planted,
)
from jangin.ops.values import Tensor

MISSING = "missing_value_tracks_true"
TRANSFORMS = ("NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO", "PROBIT")


@op("TreeEnsemble", domain=DOMAIN, since=5)
def tree_ensemble(
    b: Builder, x: Tensor, *, tree_roots: Sequence[int], nodes_splits: Array, nodes_modes: Array,
    nodes_featureids: Sequence[int], nodes_truenodeids: Sequence[int], nodes_falsenodeids: Sequence[int],
    nodes_trueleafs: Sequence[int], nodes_falseleafs: Sequence[int], leaf_targetids: Sequence[int],
    leaf_weights: Array, membership_values: Array | None = None, nodes_hitrates: Array | None = None,
    nodes_missing_value_tracks_true: Sequence[int] = (), n_targets: int = 1, aggregate_function: int = 1,
    post_transform: int = 0,
) -> Tensor:  # fmt: skip
    one_of("aggregate_function", aggregate_function, range(len(AGGREGATES)))
    one_of("post_transform", post_transform, range(len(TRANSFORMS)))
    x = features(b, x)
    count, leaves = len(nodes_modes), len(leaf_targetids)
    ids = np.array([nodes_truenodeids, nodes_falsenodeids], np.int64).reshape(2, -1)
    at_leaf = np.array([nodes_trueleafs, nodes_falseleafs], np.int64).reshape(2, -1) != 0
    there = (ids >= 0) & (ids < np.where(at_leaf, leaves, count))
    rows = (nodes_featureids, nodes_splits.reshape(-1), nodes_missing_value_tracks_true or [0] * count)
    feature, split, missing = (np.concatenate([np.asarray(r), np.zeros(leaves, int)]) for r in rows)
    forest = planted(
        Ensemble(
            np.array([r if r < count else -1 for r in tree_roots], np.int64),
            np.concatenate([nodes_modes.reshape(-1).astype(np.int64), np.full(leaves, LEAF)]),
            feature, split, missing,
            np.pad(np.where(there, ids + at_leaf * count, -1), ((0, 0), (0, leaves))),
            _sets(membership_values),
        ),
        Weights(
            np.arange(leaves) + count, np.asarray(leaf_targetids, np.int64),
            leaf_weights.reshape(-1).astype(np.float64),
        ),
        b.layers,
    )  # fmt: skip
    scores = grown(b, x, forest, n_targets, AGGREGATES[aggregate_function])
    return transformed(b, b.cast(scores, x.dtype), TRANSFORMS[post_transform])


def _sets(values: Array | None) -> tuple[Array, Array]:
    """Return the number of members of each set, and all members. `values` has the sets one after another,
    each with a NaN after its end."""
    flat = np.zeros(0) if values is None else values.reshape(-1)
    ends = np.flatnonzero(np.isnan(flat))
    return np.diff(ends, prepend=-1) - 1, flat[~np.isnan(flat)]


def _column(values: Sequence[Any], count: int, what: str, dtype: Any = np.int64) -> Array:
    """Return an attribute that has one entry for each node, or zeros if the attribute is missing. Raises
    CompileError if the number of entries is wrong."""
    if len(values) not in (0, count):
        raise CompileError(f"{what} has {len(values)} entries for {count} nodes")
    return _array(values, dtype) if len(values) else np.zeros(count, dtype)


def _array(values: Sequence[Any], dtype: Any) -> Array:
    """Return an attribute's entries as an array. Many integers take 32 bits if that is enough for them."""
    if not isinstance(values, array):
        return np.fromiter(values, dtype, len(values))
    held = np.frombuffer(values, values.typecode)
    small = np.iinfo(np.int32)
    if dtype is np.int64 and small.min <= held.min() and held.max() <= small.max:
        dtype = np.int32
    return held.astype(dtype, copy=False)


def _based(b: Builder, scores: Tensor, base: Sequence[float], dtype: DType) -> Tensor:
    """Return scores plus the base value of each target, if there are base values, as `dtype`."""
    if len(base):
        scores = b.map(lambda s, v: s + v, scores, b.const(np.asarray(base, np.float64)))
    return b.cast(scores, dtype)


@dataclass(frozen=True)
class _Nodes:
    """The attributes that describe the nodes of trees before opset 5."""

    nodes_treeids: Sequence[int]
    nodes_nodeids: Sequence[int]
    nodes_featureids: Sequence[int]
    nodes_modes: Sequence[str]
    nodes_truenodeids: Sequence[int]
    nodes_falsenodeids: Sequence[int]
    nodes_values: Sequence[float] = ()
    nodes_values_as_tensor: Array | None = None
    nodes_missing_value_tracks_true: Sequence[int] = ()
    nodes_hitrates: Sequence[float] = ()
    nodes_hitrates_as_tensor: Array | None = None

    def forest(self, weights: _Leaves, as_listed: bool) -> Forest:
        """Return the forest that the attributes describe. `as_listed` is that of `planted`.

        Before opset 5, a node is identified by its tree and by its number in the tree. Leaves are nodes. The
        first node that is listed for a tree is its root."""
        count = len(self.nodes_treeids)
        trees, numbers, feature, yes, no, missing = (
            _column(getattr(self, f"nodes_{n}"), count, f"nodes_{n}")
            for n in ("treeids", "nodeids", "featureids", "truenodeids", "falsenodeids", MISSING)
        )
        splits = _numbers(self.nodes_values, self.nodes_values_as_tensor)
        if len(self.nodes_modes) != count:
            raise CompileError(f"nodes_modes has {len(self.nodes_modes)} entries for {count} nodes")
        mode = np.fromiter(map(_mode, self.nodes_modes), np.int8, count)
        known, tests = Numbered(trees, numbers), np.flatnonzero(mode != LEAF)
        below = np.zeros((2, count), np.int32)
        for side, children in enumerate((yes, no)):
            below[side, tests] = known.places(trees[tests], children[tests])
        split = _column(splits, count, "nodes_values", np.float64)
        return planted(
            Ensemble(known.trees.firsts(trees), mode, feature, split, missing, below),
            Weights(known.places(weights.trees, weights.nodes), weights.targets, weights.values),
            as_listed,
        )


_mode = {"LEAF": LEAF, **{name: n for n, name in enumerate(MODES[:MEMBER])}}.__getitem__


@dataclass(frozen=True)
class _Leaves:
    """The values that leaves add to targets, before opset 5."""

    trees: Array
    nodes: Array
    targets: Array
    values: Array


def _leaves(
    trees: Sequence[int], nodes: Sequence[int], targets: Sequence[int], values: Sequence[float], kind: str
) -> _Leaves:
    count = len(trees)
    if not count == len(nodes) == len(targets) == len(values):
        raise CompileError(f"the attributes {kind}_* have different numbers of entries")
    tree, node, target = (_array(v, np.int64) for v in (trees, nodes, targets))
    return _Leaves(tree, node, target, _array(values, np.float64))


def _numbers(values: Sequence[float], tensor: Array | None) -> Sequence[float]:
    return values if tensor is None else tensor.reshape(-1).tolist()


@op("TreeEnsembleRegressor", domain=DOMAIN)
def tree_ensemble_regressor(
    b: Builder, x: Tensor, *, target_treeids: Sequence[int], target_nodeids: Sequence[int],
    target_ids: Sequence[int], target_weights: Sequence[float] = (),
    target_weights_as_tensor: Array | None = None, base_values: Sequence[float] = (),
    base_values_as_tensor: Array | None = None, n_targets: int = 1,
    aggregate_function: str = "SUM", post_transform: str = "NONE", **nodes: Any,
) -> Tensor:  # fmt: skip
    x = features(b, x)
    values = _numbers(target_weights, target_weights_as_tensor)
    leaves = _leaves(target_treeids, target_nodeids, target_ids, values, "target")
    forest = _Nodes(**nodes).forest(leaves, b.layers)
    scores = grown(b, x, forest, n_targets, aggregate_function)
    based = _based(b, scores, _numbers(base_values, base_values_as_tensor), x.dtype)
    return output(b, transformed(b, based, post_transform))


@op("TreeEnsembleClassifier", domain=DOMAIN)
def tree_ensemble_classifier(
    b: Builder, x: Tensor, *, class_treeids: Sequence[int], class_nodeids: Sequence[int],
    class_ids: Sequence[int], class_weights: Sequence[float] = (),
    class_weights_as_tensor: Array | None = None, base_values: Sequence[float] = (),
    base_values_as_tensor: Array | None = None, classlabels_int64s: Sequence[int] = (),
    classlabels_strings: Sequence[str] = (), post_transform: str = "NONE", **nodes: Any,
) -> tuple[Item, Tensor]:  # fmt: skip
    """Return the classes and scores by an ensemble of trees. If there are at most two classes and weights for
    only one, the other's score is derived.

    The derived score is 1 minus the score for the transforms NONE and PROBIT, else the negative score."""
    x = features(b, x)
    values = _numbers(class_weights, class_weights_as_tensor)
    base = _numbers(base_values, base_values_as_tensor)
    classes = max(len(classlabels_int64s), len(classlabels_strings), 1)
    one = classes <= 2 and len(set(class_ids)) == 1
    leaves = _leaves(
        class_treeids, class_nodeids, [0] * len(class_ids) if one else class_ids, values, "class"
    )
    forest = _Nodes(**nodes).forest(leaves, b.layers)
    based = _based(b, grown(b, x, forest, 1 if one else classes, "SUM"), base[-1:] if one else base, x.dtype)
    if one:
        plain = post_transform in ("NONE", "PROBIT")
        other = b.map(lambda s: 1 - s if plain else -s, based)
        based = b.concat([other, based], 1)
    scores = transformed(b, based, post_transform)
    labels = labelled(b, scores, classlabels_int64s, classlabels_strings)
    return labels, output(b, scores)
