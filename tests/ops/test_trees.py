"""Decision trees of opsets before 5 give ONNX Runtime's results to the last bit.

Weights are eighths of small integers, whose sums are exact in any order. Cases are drawn by seeds. Each
failure names its seed."""

from __future__ import annotations

from random import Random
from typing import Any

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto, helper

import jangin
from jangin.compiler.interpreted import interpreted
from jangin.frontends.onnx import proto
from jangin.ops.trees import LEAF, Ensemble, Forest, Numbered, Weights, planted
from jangin.options import Options

FEATURES = 5
ML = {"domain": "ai.onnx.ml"}
BRANCHES = ("BRANCH_LEQ", "BRANCH_LT", "BRANCH_GTE", "BRANCH_GT", "BRANCH_EQ", "BRANCH_NEQ")
Attributes = dict[str, list[Any]]
COLUMNS = ("treeids", "nodeids", "modes", "featureids", "values", "truenodeids", "falsenodeids",
           "missing_value_tracks_true")  # fmt: skip
LEAVES = ("treeids", "nodeids", "ids", "weights")


def grown(
    r: Random, trees: int, targets: int, kind: str, modes: tuple[str, ...], whole: bool = False,
    share: bool = False,
) -> Attributes:  # fmt: skip
    """Draw trees of any form, with nodes in any order behind their roots.

    `kind`: the prefix of the leaves' attributes. `whole`: each leaf adds to all targets. `share`: some nodes
    have several parents, as LightGBM's exporter writes a test of a set (ONNX Runtime refuses some)."""
    rows: list[tuple[Any, ...]] = []
    leaves: list[tuple[int, int, int, float]] = []
    for tree in r.sample(range(100), trees):
        inner = r.randrange(9)
        made, free, used = list[tuple[Any, ...]](), [0], 1
        for _ in range(inner):
            node = free.pop(r.randrange(len(free)))
            mode, feature, value = r.choice(modes), r.randrange(FEATURES), float(r.randrange(-2, 3))
            shared = [r.choice(free)] if share and free and r.random() < 0.3 else []
            new = [*range(used, used + 2 - len(shared))]
            used += len(new)
            free += new
            # ONNX Runtime takes it as 1 for BRANCH_NEQ
            tracks = 1 if mode == "BRANCH_NEQ" else r.randrange(2)
            made.append((tree, node, mode, feature, value, *shared, *new, tracks))
        made += [(tree, leaf, "LEAF", 0, 0.0, 0, 0, 0) for leaf in free]
        for leaf in free:
            aims = r.sample(range(targets), targets if whole else r.randint(1, targets))
            leaves += [(tree, leaf, target, r.randrange(-9, 10) / 8) for target in aims]
        root, *rest = sorted(made, key=lambda row: row[1])  # children have larger numbers
        rows += [root, *(rest if r.random() < 0.5 else r.sample(rest, len(rest)))]
    r.shuffle(leaves)
    found = zip((f"nodes_{c}" for c in COLUMNS), zip(*rows, strict=True), strict=True)
    given = zip((f"{kind}_{n}" for n in LEAVES), zip(*leaves, strict=True), strict=True)
    return {name: list(column) for name, column in (*found, *given)}


def model(op: str, outputs: list[str], attrs: dict[str, Any]) -> bytes:
    """Make a model of one node, with a free number of rows."""
    node = helper.make_node(op, ["x"], outputs, **ML, **attrs)
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", FEATURES])
    ends = [helper.make_empty_tensor_value_info(n) for n in outputs]
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 3)]
    graph = helper.make_graph([node], "g", [x], ends)
    whole: bytes = helper.make_model(graph, opset_imports=opsets, ir_version=8).SerializeToString()
    return whole


def check(op: str, outputs: list[str], seed: str, attrs: dict[str, Any]) -> None:
    """Check that a node gives ONNX Runtime's results."""
    made = model(op, outputs, attrs)
    rng = np.random.default_rng(len(seed))
    rows = rng.integers(-3, 4, (64, FEATURES)).astype(np.float32)
    rows[rng.random(rows.shape) < 0.1] = np.nan
    session = onnxruntime.InferenceSession(made, providers=["CPUExecutionProvider"])
    exe = jangin.compile(made, threads=1, cache=False, isolated=False)
    first = interpreted(made, Options(), lambda: False)
    wanted = session.run(None, {"x": rows})
    for got, want in zip(
        [*exe.run({"x": rows}).values(), *first.run({"x": rows}).values()], wanted * 2, strict=True
    ):
        what = f"{op} of the trees of {seed}"
        if attrs.get("post_transform", "NONE") == "NONE" or got.dtype != np.float32:
            np.testing.assert_array_equal(got, want, what)
        else:  # ONNX Runtime's exponential is computed in f32
            np.testing.assert_allclose(got, want, 2e-6, 1e-7, err_msg=what)


@pytest.mark.parametrize("aggregate", ["SUM", "AVERAGE", "MIN", "MAX"])
@pytest.mark.parametrize("targets", [1, 3])
def test_regressors(aggregate: str, targets: int) -> None:
    for n in range(4):
        r = Random(seed := f"{aggregate}, {targets}, {n}")
        trees = r.choice((1, 2, 4, 8))  # means over powers of two are exact
        attrs = grown(r, trees, targets, "target", BRANCHES[: r.choice((1, 4, 6))], aggregate != "SUM")
        base: dict[str, Any] = {"base_values": [float(v) for v in range(targets)]} if n % 2 else {}
        settings = {"aggregate_function": aggregate, "n_targets": targets, **base, **attrs}
        check("TreeEnsembleRegressor", ["y"], seed, settings)


@pytest.mark.parametrize("transform", ["NONE", "LOGISTIC", "SOFTMAX"])
@pytest.mark.parametrize("labels", ["ints", "strings"])
def test_classifiers(labels: str, transform: str) -> None:
    for n in range(3):
        r = Random(seed := f"{labels}, {transform}, {n}")
        # of two classes, the second one's probability is 1 minus the first one's
        one = transform == "LOGISTIC" and n == 1
        modes = BRANCHES[: r.choice((1, 4, 6))]
        attrs: dict[str, Any] = grown(r, r.randrange(1, 9), 1 if one else 3, "class", modes, True)
        # if no weight is negative, ONNX Runtime has another rule for labels
        attrs["class_weights"][0] = -0.125
        names = [f"class {i}" for i in range(2 if one else 3)]
        if labels == "ints":
            attrs["classlabels_int64s"] = [int(name[-1]) + 10 for name in names]
        else:
            attrs["classlabels_strings"] = names
        check("TreeEnsembleClassifier", ["label", "scores"], seed, attrs | {"post_transform": transform})


def test_long_attributes_give_the_same_results(monkeypatch: pytest.MonkeyPatch) -> None:
    """Attributes of many numbers are arrays, and not tuples."""
    monkeypatch.setattr(proto, "MANY", 1)
    for n in range(4):
        r = Random(seed := f"long, {n}")
        attrs = grown(r, 4, 3, "target", BRANCHES[: r.choice((1, 6))])
        check("TreeEnsembleRegressor", ["y"], seed, {"n_targets": 3, **attrs})
        attrs = grown(r, 4, 3, "class", BRANCHES[: r.choice((1, 6))], True)
        attrs["class_weights"][0] = -0.125  # ONNX Runtime's other rule for labels, as above
        check("TreeEnsembleClassifier", ["label", "y"], seed, {"classlabels_int64s": [7, 8, 9], **attrs})


@pytest.mark.parametrize("yes, no, same", [
    ([1, 3, 0, 0, 0], [2, 4, 0, 0, 0], True),
    ([2, 0, 3, 0, 0], [1, 0, 4, 0, 0], True),
    ([3, 4, 0, 1, 0], [2, 4, 0, 4, 0], False),  # node 3 leads to one before it
    ([2, 3, 0, 0, 0], [4, 3, 0, 0, 0], False),  # no root reaches node 1
])  # fmt: skip
def test_nodes_behind_those_that_lead_to_them_keep_their_order(
    yes: list[int], no: list[int], same: bool
) -> None:
    tests = [k or n for k, n in zip(yes, no, strict=True)]
    mode = np.array([0 if test else LEAF for test in tests])
    ensemble = Ensemble(
        np.zeros(1, np.int64), mode, np.arange(5), np.arange(5.0), np.zeros(5, np.int64), np.array([yes, no])
    )
    weights = Weights(np.arange(5), np.zeros(5, np.int64), np.arange(5.0))
    quick, whole = planted(ensemble, weights, True), planted(ensemble, weights)
    assert (not quick.depth.any()) is same
    for draw in range(20):
        x = np.random.default_rng(draw).integers(-1, 6, 5)
        assert weight_reached(quick, x) == weight_reached(whole, x), f"seed {draw}"


def weight_reached(forest: Forest, x: np.ndarray[Any, Any]) -> float:
    """Return the weight of the leaf that a row reaches."""
    node, below = -1, int(forest.root[0])
    while below != node:
        node = below
        below = int((forest.yes if x[forest.feature[node]] <= forest.split[node] else forest.no)[node])
    return float(forest.weight[forest.first[node]])


@pytest.mark.parametrize("step", [1, 1000003])
def test_nodes_are_found_by_tree_and_number(step: int) -> None:
    """Numbers that lie close together are looked up in a table, and others are searched for."""
    pairs = [(tree, number * step - 7) for tree in (3, 5, 4) for number in range(tree)]
    known = Numbered(*np.array(pairs, np.int64).T)
    others = [(3, 3 * step - 7), (2, -7), (4, -8), (5, 2**63 - 1), (-(2**63), -7)]
    np.testing.assert_array_equal(
        known.places(*np.array(pairs + others, np.int64).T), [*range(len(pairs)), *[-1] * len(others)]
    )
    assert known.trees.firsts(np.array([t for t, _ in pairs])).tolist() == [0, 3, 8]


TESTS = (np.less_equal, np.less, np.greater_equal, np.greater, np.equal, np.not_equal)


def walked(attrs: Attributes, row: np.ndarray[Any, Any]) -> list[float]:
    """Return the sums of three targets, by a walk from node to node."""
    columns = zip(*(attrs[f"nodes_{c}"] for c in COLUMNS), strict=True)
    nodes = {(tree, number): rest for tree, number, *rest in columns}
    total = [0.0] * 3
    for tree in dict.fromkeys(attrs["nodes_treeids"]):
        number = attrs["nodes_nodeids"][attrs["nodes_treeids"].index(tree)]
        while nodes[tree, number][0] != "LEAF":
            mode, feature, value, yes, no, missing = nodes[tree, number]
            x = row[feature]
            holds = bool(missing) if np.isnan(x) else TESTS[BRANCHES.index(mode)](x, value)
            number = yes if holds else no
        for t, n, target, weight in zip(*(attrs[f"target_{c}"] for c in LEAVES), strict=True):
            total[target] += weight if (t, n) == (tree, number) else 0
    return total


def test_how_nodes_are_numbered_changes_nothing() -> None:
    """The numbers and the order of nodes don't change results, as long as a tree's root comes first. Some
    nodes have several parents."""
    for n in range(8):
        r = Random(n)
        attrs = grown(r, 5, 3, "target", BRANCHES, share=True)
        columns = {k: v for k, v in attrs.items() if k.startswith("nodes_")}
        rows = list(zip(*columns.values(), strict=True))
        first = [row for i, row in enumerate(rows) if row[0] not in {other[0] for other in rows[:i]}]
        rest = [row for row in rows if row not in first]
        mixed = dict(
            zip(columns, map(list, zip(*first, *r.sample(rest, len(rest)), strict=True)), strict=True)
        )
        for name in ("nodes_nodeids", "nodes_truenodeids", "nodes_falsenodeids"):
            mixed[name] = [v * 1000003 - (1 << 40) for v in mixed[name]]
        numbers = [v * 1000003 - (1 << 40) for v in attrs["target_nodeids"]]
        rng = np.random.default_rng(n)
        x = rng.integers(-3, 4, (50, FEATURES)).astype(np.float32)
        x[rng.random(x.shape) < 0.1] = np.nan
        want = [walked(attrs, row) for row in x]
        for given in (attrs, attrs | mixed | {"target_nodeids": numbers}):
            made = model("TreeEnsembleRegressor", ["y"], {"n_targets": 3, **given})
            got = jangin.compile(made, threads=1, cache=False, isolated=False)(x)
            np.testing.assert_array_equal(got, want, f"seed {n}")


def test_what_is_wrong_with_trees_is_said() -> None:
    def refused(why: str, **changes: Any) -> None:
        attrs = {
            "nodes_treeids": [0, 0, 0], "nodes_nodeids": [0, 1, 2], "nodes_featureids": [0, 0, 0],
            "nodes_modes": ["BRANCH_LT", "LEAF", "LEAF"], "nodes_values": [0.0, 0.0, 0.0],
            "nodes_truenodeids": [1, 0, 0], "nodes_falsenodeids": [2, 0, 0], "n_targets": 1,
            "target_treeids": [0], "target_nodeids": [1], "target_ids": [0], "target_weights": [1.0],
        }  # fmt: skip
        with pytest.raises(jangin.CompileError, match=f"TreeEnsembleRegressor .*{why}"):
            jangin.compile(
                model("TreeEnsembleRegressor", ["y"], attrs | changes), cache=False, isolated=False
            )

    refused("a circle, which leads to node 0", nodes_truenodeids=[0, 0, 0])
    refused("leads to a node that it doesn't have", nodes_truenodeids=[7, 0, 0])
    refused("node 1 of tree 0 is there twice", nodes_nodeids=[0, 1, 1])
    refused("nodes_values has 2 entries for 3 nodes", nodes_values=[0.0, 0.0])
    refused("nodes_modes has 2 entries for 3 nodes", nodes_modes=["LEAF", "LEAF"])
    refused(r"target_\* have different numbers of entries", target_ids=[0, 0])
    refused("a leaf of the trees is for target 9, and there are 1 targets", target_ids=[9])
    for feature in (FEATURES, -1, 1 << 40):
        refused(f"test feature {feature}, but", nodes_featureids=[feature, 0, 0])
