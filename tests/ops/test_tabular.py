"""ai.onnx.ml against ONNX's reference: trees of any kind, tables of labels, and columns."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from against import check
from one_node import Array, f32, lowered
from onnx import numpy_helper

from jangin.ir.graph import CompileError

ML = {"domain": "ai.onnx.ml"}


def walk(
    node: int, leaf: bool, row: Array, tree: dict[str, Any], member: dict[int, list[float]]
) -> tuple[int, float]:
    """Return the (target, weight) of the leaf that a row reaches."""
    while not leaf:
        x, split = row[tree["nodes_featureids"][node]], tree["nodes_splits"][node]
        mode = tree["nodes_modes"][node]
        tests = [
            x <= split,
            x < split,
            x >= split,
            x > split,
            x == split,
            x != split,
            x in member.get(node, ()),
        ]
        yes = bool(tree["nodes_missing_value_tracks_true"][node]) if np.isnan(x) else tests[mode]
        side = "true" if yes else "false"
        node, leaf = tree[f"nodes_{side}nodeids"][node], bool(tree[f"nodes_{side}leafs"][node])
    return tree["leaf_targetids"][node], tree["leaf_weights"][node]


def random_trees(
    rng: np.random.Generator, count: int, size: int, targets: int
) -> tuple[dict[str, Any], dict[int, list[float]]]:
    """Draw trees of `size` inner nodes. Each node is below an earlier one."""
    names = "featureids splits modes missing_value_tracks_true truenodeids falsenodeids trueleafs falseleafs"
    tree: dict[str, Any] = {f"nodes_{n}": [] for n in names.split()} | {
        "leaf_targetids": [],
        "leaf_weights": [],
    }
    member: dict[int, list[float]] = {}
    tree["tree_roots"] = []
    for _ in range(count):
        first = len(tree["nodes_modes"])
        tree["tree_roots"].append(first)
        for n in range(first, first + size):
            mode = int(rng.integers(0, 7))
            if mode == 6:
                member[n] = rng.integers(-2, 3, rng.integers(1, 4)).tolist()
            values = (
                int(rng.integers(0, 4)),
                float(rng.integers(-2, 3)),
                mode,
                int(rng.integers(0, 2)),
                -1,
                -1,
                0,
                0,
            )
            for name, value in zip(names.split(), values, strict=True):
                tree[f"nodes_{name}"].append(value)
        free = [(first, "true"), (first, "false")]
        for n in range(first + 1, first + size):
            parent, side = free.pop(int(rng.integers(len(free))))
            tree[f"nodes_{side}nodeids"][parent] = n
            free += [(n, "true"), (n, "false")]
        for parent, side in free:
            tree[f"nodes_{side}nodeids"][parent] = len(tree["leaf_weights"])
            tree[f"nodes_{side}leafs"][parent] = 1
            tree["leaf_targetids"].append(int(rng.integers(0, targets)))
            tree["leaf_weights"].append(float(rng.integers(-9, 9)))
    return tree, member


@pytest.mark.parametrize("aggregate", [0, 1, 2, 3])
@pytest.mark.parametrize("kind", [np.float32, np.float64])
def test_random_trees(aggregate: int, kind: type) -> None:
    rng = np.random.default_rng(aggregate)
    tree, member = random_trees(rng, 6, 9, 2)
    x = rng.integers(-2, 3, (20, 4)).astype(kind)
    x[rng.random(x.shape) < 0.1] = np.nan
    want = np.zeros((20, 2))
    for n, row in enumerate(x):
        for target in range(2):
            found = [
                w for t, w in (walk(r, False, row, tree, member) for r in tree["tree_roots"]) if t == target
            ]
            total = (lambda v: sum(v) / 6, sum, min, max)[aggregate]
            want[n, target] = total(found) if found else 0
    members = [v for n in sorted(member) for v in (*member[n], np.nan)]
    attrs: dict[str, Any] = dict(tree)
    for name, dtype in (("nodes_splits", kind), ("leaf_weights", kind), ("nodes_modes", np.uint8)):
        attrs[name] = numpy_helper.from_array(np.array(attrs[name], dtype))
    attrs["membership_values"] = numpy_helper.from_array(np.array(members, kind))
    check("TreeEnsemble", [x], 22, want=[want.astype(kind)], version=5, n_targets=2,
          aggregate_function=aggregate, dims={0: ["rows", 4]}, **ML, **attrs)  # fmt: skip


def test_trees_that_lead_back_are_refused() -> None:
    one = {
        "nodes_featureids": [0],
        "nodes_truenodeids": [0],
        "nodes_falsenodeids": [0],
        "nodes_trueleafs": [0],
    }
    splits, modes = (numpy_helper.from_array(np.zeros(1, t)) for t in (np.float32, np.uint8))
    attrs = {**one, "nodes_falseleafs": [1], "tree_roots": [0], "leaf_targetids": [0], "leaf_weights": splits}
    with pytest.raises(CompileError, match="a circle, which leads to node 0"):
        lowered(
            "TreeEnsemble", [f32(2, 3)], 22, version=5, nodes_splits=splits, nodes_modes=modes, **ML, **attrs
        )


@pytest.mark.parametrize("post", ["NONE", "LOGISTIC", "SOFTMAX", "SOFTMAX_ZERO", "PROBIT"])
def test_score_transforms(post: str) -> None:
    """The transforms of scores between 0 and 1, where each is defined, and of zeros."""
    x = np.abs(f32(4, 3)) % 0.9
    x[1] = 0
    want = transform(x.astype(np.float64), post)
    model = {"targets": 3, "coefficients": np.eye(3).ravel().tolist(), "intercepts": [0.0] * 3, **ML}
    check("LinearRegressor", [x], 22, post_transform=post, tolerance=1e-4, want=[want], **model)


def transform(x: Array, post: str) -> Array:
    from onnx.reference.ops.aionnxml import _common_classifier as common

    if post == "LOGISTIC":
        x = 1 / (1 + np.exp(-x))
    elif post in ("SOFTMAX", "SOFTMAX_ZERO"):
        x = {"SOFTMAX": common.softmax, "SOFTMAX_ZERO": common.softmax_zero}[post](x)
    elif post == "PROBIT":
        with np.errstate(all="ignore"):
            x = common.probit(x)
    out: Array = x.astype(np.float32)
    return out


def test_labels_are_looked_up() -> None:
    keys = [3, -5, 100, 7, 0]
    x = np.array([[100, 7, 8], [-5, 3, -6]])
    want = np.array([[2, 3, -9], [1, 0, -9]], np.float32)
    check("LabelEncoder", [x], 22, want=[want], version=4, keys_int64s=keys, default_float=-9.0,
          values_floats=[0.0, 1, 2, 3, 4], **ML)  # fmt: skip


def test_labels_of_floats_may_be_nan() -> None:
    x = np.array([np.nan, 0.5, 1, -1, np.inf], np.float32)
    keys = {"keys_floats": [1.0, float("nan"), 0.5], "values_int64s": [10, 20, 30], "default_int64": 0}
    check("LabelEncoder", [x], 22, want=[np.array([20, 30, 10, 0, 0])], version=4, **ML, **keys)


def test_features_are_joined_and_picked() -> None:
    x, y = f32(4, 3), f32(4, seed=1)
    want = np.concatenate([x[:, :2], y[:, None], np.zeros((4, 1), np.float32)], 1)
    check("FeatureVectorizer", [x, y], 22, want=[want], dims={}, inputdimensions=[2, 2], **ML)
    check("ArrayFeatureExtractor", [x, np.array([[2, 0]])], 22, want=[x[:, [2, 0]]], **ML)
    check("ArrayFeatureExtractor", [y, np.array([1])], 22, want=[y[None, [1]]], **ML)


def test_categories_of_another_kind_are_refused() -> None:
    with pytest.raises(CompileError, match="the categories are strings, the input is"):
        lowered("OneHotEncoder", [np.array([1, 2])], 22, cats_strings=["a"], **ML)
