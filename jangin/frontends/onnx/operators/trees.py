"""Decision trees (ai.onnx.ml)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from jangin.frontends.onnx.operators.scores import DOMAIN, features, labelled, output, transformed
from jangin.frontends.onnx.registry import op
from jangin.ir.dtype import DType
from jangin.ir.graph import Array
from jangin.ir.records import dataclass
from jangin.ops.builder import Builder
from jangin.ops.nontensor import Item
from jangin.ops.trees import AGGREGATES, MODES, Forest, Node, Weights, grown, planted
from jangin.ops.values import Tensor

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
    x = features(b, x)
    sets = _sets(membership_values)
    order = [n for n, m in enumerate(nodes_modes) if m == MODES.index("BRANCH_MEMBER")]

    def node(key: tuple[int, int]) -> Node | None:
        leaf, n = key
        if leaf:
            return None
        below = (nodes_trueleafs[n], nodes_truenodeids[n]), (nodes_falseleafs[n], nodes_falsenodeids[n])
        missing = nodes_missing_value_tracks_true[n] if nodes_missing_value_tracks_true else 0
        members = sets[order.index(n)] if n in order else ()
        return Node(nodes_featureids[n], float(nodes_splits[n]), int(nodes_modes[n]), missing, below, members)

    def weights(key: tuple[int, int]) -> Weights:
        return [(leaf_targetids[key[1]], float(leaf_weights[key[1]]))]

    forest = planted([(0, r) for r in tree_roots], node, weights)
    scores = grown(b, x, forest, n_targets, AGGREGATES[aggregate_function])
    return transformed(b, b.cast(scores, x.dtype), TRANSFORMS[post_transform])


def _sets(values: Array | None) -> list[list[float]]:
    """Sets one after another, each with a NaN at its end."""
    found: list[list[float]] = [[]]
    for v in [] if values is None else values.reshape(-1).tolist():
        if v == v:
            found[-1].append(v)
        else:
            found.append([])
    return found


def _old_forest(
    modes: Sequence[str], trees: Sequence[int], nodes: Sequence[int], feature: Sequence[int],
    splits: Sequence[float], branches: tuple[Sequence[int], Sequence[int]], missing: Sequence[int],
    weights: Mapping[tuple[int, int], Weights],
) -> Forest:  # fmt: skip
    """Before opset 5 a node is known by its tree and its number there, and leaves are nodes; a tree's
    root is the first node that is named of it."""
    number = {key: n for n, key in enumerate(zip(trees, nodes, strict=True))}

    def node(key: tuple[int, int]) -> Node | None:
        n = number[key]
        if modes[n] == "LEAF":
            return None
        below = tuple((key[0], side[n]) for side in branches)
        tracks = missing[n] if missing else 0
        return Node(feature[n], float(splits[n]), MODES.index(modes[n]), tracks, (below[0], below[1]))

    roots = {tree: (tree, nid) for tree, nid in reversed(list(zip(trees, nodes, strict=True)))}
    return planted([roots[t] for t in dict.fromkeys(trees)], node, lambda key: weights.get(key, ()))


def _weights(
    trees: Sequence[int], nodes: Sequence[int], ids: Sequence[int], values: Sequence[float]
) -> dict[tuple[int, int], list[tuple[int, float]]]:
    found: dict[tuple[int, int], list[tuple[int, float]]] = {}
    for tree, nid, target, value in zip(trees, nodes, ids, values, strict=True):
        found.setdefault((tree, nid), []).append((target, float(value)))
    return found


def _based(b: Builder, scores: Tensor, base: Sequence[float], dtype: DType) -> Tensor:
    """Scores with the base values of each target added."""
    if len(base):
        scores = b.map(lambda s, v: s + v, scores, b.const(np.asarray(base, np.float64)))
    return b.cast(scores, dtype)


@dataclass(frozen=True)
class _Nodes:
    """The attributes that describe trees before opset 5."""

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

    def forest(self, weights: Mapping[tuple[int, int], Weights]) -> Forest:
        splits = _numbers(self.nodes_values, self.nodes_values_as_tensor)
        return _old_forest(
            self.nodes_modes, self.nodes_treeids, self.nodes_nodeids, self.nodes_featureids, splits,
            (self.nodes_truenodeids, self.nodes_falsenodeids), self.nodes_missing_value_tracks_true, weights,
        )  # fmt: skip


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
    forest = _Nodes(**nodes).forest(_weights(target_treeids, target_nodeids, target_ids, values))
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
    """Where the weights are of one class alone there are two, and the other's score is 1 less it, or its
    negative before a transform."""
    x = features(b, x)
    values = _numbers(class_weights, class_weights_as_tensor)
    base = _numbers(base_values, base_values_as_tensor)
    classes = max(len(classlabels_int64s), len(classlabels_strings), 1)
    one = len(set(class_ids)) == 1 and classes <= 2
    forest = _Nodes(**nodes).forest(
        _weights(class_treeids, class_nodeids, [0] * len(class_ids) if one else class_ids, values)
    )
    based = _based(b, grown(b, x, forest, 1 if one else classes, "SUM"), base[-1:] if one else base, x.dtype)
    if one:
        plain = post_transform in ("NONE", "PROBIT")
        other = b.map(lambda s: 1 - s if plain else -s, based)
        based = b.concat([other, based], 1)
    scores = transformed(b, based, post_transform)
    labels = labelled(b, scores, classlabels_int64s, classlabels_strings)
    return labels, output(b, scores)
