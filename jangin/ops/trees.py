"""Decision trees: an ensemble's nodes in tables that a loop nest walks, rows in parallel."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from itertools import pairwise
from typing import Any

import numpy as np

from jangin.ir.dtype import F64, I32, I64, DType
from jangin.ir.expr import (
    Buffer,
    Const,
    Expr,
    Load,
    Var,
    call,
    cast,
    const,
    eq,
    land,
    maximum,
    minimum,
    ne,
    select,
)
from jangin.ir.graph import Array, CompileError
from jangin.ir.loop import Alloc, For, Let, Stmt, Store, block
from jangin.ir.records import dataclass
from jangin.ops.builder import Builder
from jangin.ops.values import Tensor

MODES = ("BRANCH_LEQ", "BRANCH_LT", "BRANCH_GTE", "BRANCH_GT", "BRANCH_EQ", "BRANCH_NEQ", "BRANCH_MEMBER")
TESTS: tuple[Callable[[Expr, Expr], Expr], ...] = (
    lambda x, t: x <= t, lambda x, t: x < t, lambda x, t: x >= t, lambda x, t: x > t, eq, ne,
)  # fmt: skip
EQUAL = MODES.index("BRANCH_EQ")
Weights = Sequence[tuple[int, float]]
"""What a leaf adds to each of some targets."""
AGGREGATES = ("AVERAGE", "SUM", "MIN", "MAX")


@dataclass
class Forest:
    """Nodes in the order that trees are walked from their roots; a leaf's branches lead to itself, and
    it has (target, weight) pairs."""

    roots: list[int] = field(default_factory=list)
    depths: list[int] = field(default_factory=list)
    feature: list[int] = field(default_factory=list)
    split: list[float] = field(default_factory=list)
    mode: list[int] = field(default_factory=list)
    missing: list[int] = field(default_factory=list)
    branches: list[list[int]] = field(default_factory=list)
    weights: list[Weights] = field(default_factory=list)

    def add(self, feature: int, split: float, mode: int, missing: int, weights: Weights = ()) -> int:
        """A node's place; its branches lead to itself until they are set."""
        place = len(self.feature)
        self.feature.append(feature)
        self.split.append(split)
        self.mode.append(mode)
        self.missing.append(missing)
        self.branches.append([place, place])
        self.weights.append(weights)
        return place

    def leaf(self, weights: Weights) -> int:
        return self.add(0, 0.0, 0, 0, weights)


@dataclass(frozen=True)
class Node:
    """What a model says of a node, and how to reach those below: (is a leaf, number)."""

    feature: int
    split: float
    mode: int
    missing: int
    below: tuple[Any, Any]
    members: Sequence[float] = ()


Branch = tuple[int, int]
"""A node's place, and which of its branches: 0 is taken where its test holds."""


def planted(
    roots: Sequence[Any], node: Callable[[Any], Node | None], weights: Callable[[Any], Weights]
) -> Forest:
    """The forest that is reached from `roots`: `node` gives None for a leaf. CompileError for nodes that
    lead back to themselves."""
    forest = Forest()
    for root in roots:
        seen: set[Any] = set()
        depth = 0
        stack: list[tuple[Any, tuple[Branch, ...], int]] = [(root, (), 0)]
        while stack:
            key, parents, level = stack.pop()
            found = node(key)
            if found is not None and key in seen:
                raise CompileError(f"tree node {key} is reached twice")
            seen.add(key)
            chain = [forest.leaf(weights(key))] if found is None else _chain(forest, found)
            for place, side in parents:
                forest.branches[place][side] = chain[0]
            if not parents:
                forest.roots.append(chain[0])
            if found is not None:
                level += len(chain)
                stack.append((found.below[1], ((chain[-1], 1),), level))
                stack.append((found.below[0], tuple((c, 0) for c in chain), level))
            depth = max(depth, level)
        forest.depths.append(depth)
    return forest


def _chain(forest: Forest, node: Node) -> list[int]:
    """The node's places: one, or one for each member of a set, asked one after another."""
    tests = node.members or (node.split,)
    mode = EQUAL if node.members else node.mode
    chain = [forest.add(node.feature, t, mode, node.missing) for t in tests]
    for before, after in pairwise(chain):
        forest.branches[before][1] = after
    return chain


# -- the walk ------------------------------------------------------------------------------------


def grown(b: Builder, x: Tensor, forest: Forest, targets: int, aggregate: str) -> Tensor:
    """[rows, targets] in f64: the leaves' weights, aggregated by target."""
    width = x.shape[1]
    top = max(forest.feature, default=0)
    if isinstance(width, Const) and top >= width.value:
        raise CompileError(f"the trees test feature {top}, but {x} has {width}")
    ids = [t for w in forest.weights for t, _ in w]
    if aggregate not in AGGREGATES or any(not 0 <= t < targets for t in ids):
        raise CompileError(
            f"aggregate {aggregate!r} of targets {sorted(set(ids))[:9]} of {targets} is not defined"
        )
    tables = _tables(forest, x.dtype)
    inputs = [x, *(b.const(a) for a in tables.values())]
    table = dict(
        zip(tables, (Buffer(f"x{n + 1}", t.dtype, t.shape) for n, t in enumerate(inputs[1:])), strict=True)
    )
    source, out = Buffer("x0", x.dtype, x.shape), Buffer("out", F64, (x.shape[0], const(targets)))
    row, tree, step, k, target = (Var(n) for n in ("row", "tree", "step", "k", "target"))
    at = Buffer("at", I32, (const(1),), "register")
    here = (const(0),)
    node = Var("node")

    def read(name: str, place: Expr) -> Expr:
        return cast(I64, Load(table[name], (place,)))

    value = Load(source, (row, minimum(read("feature", node), width - 1)))
    taken = _test(forest, value, table, node)
    follow = Let(node, cast(I64, Load(at, here)), Store(at, here, _chosen(table, node, taken)))
    leaf = cast(I64, Load(at, here))
    place = (row, read("target", k + read("first", node)))
    weight = Load(table["weight"], (k + read("first", node),))
    counts = read("first", node + 1) - read("first", node)
    gather = Let(
        node, leaf, For(k, counts, Store(out, place, _combined(aggregate, Load(out, place), weight)))
    )
    walk = block(
        Store(at, here, Load(table["root"], (tree,))), For(step, read("depth", tree), follow), gather
    )
    start = {"MIN": np.inf, "MAX": -np.inf}.get(aggregate, 0.0)
    trees = len(forest.roots)
    held = Load(out, (row, target))
    last = (
        held / float(max(trees, 1))
        if aggregate == "AVERAGE"
        else select(call("isinf", held), const(0, F64), held)
    )
    body: list[Stmt] = [
        For(target, const(targets), Store(out, (row, target), const(start, F64))),
        For(tree, const(trees), Alloc(at, walk)),
    ]
    if aggregate != "SUM":
        body.append(For(target, const(targets), Store(out, (row, target), last)))
    loops = For(row, x.shape[0], block(*body), "parallel")
    return b.loop_nest(inputs, loops, F64, out.shape)


def _tables(forest: Forest, dtype: DType) -> Mapping[str, Array]:
    counts = [len(w) for w in forest.weights]
    pairs = [p for w in forest.weights for p in w] or [(0, 0.0)]
    numbers = {
        "root": forest.roots, "depth": forest.depths, "feature": forest.feature, "mode": forest.mode,
        "missing": forest.missing, "yes": [y for y, _ in forest.branches],
        "no": [n for _, n in forest.branches], "first": np.concatenate([[0], np.cumsum(counts)]),
        "target": [t for t, _ in pairs],
    }  # fmt: skip
    tables = {name: np.asarray(v, np.int32) for name, v in numbers.items()}
    if len(set(forest.mode)) == 1:
        del tables["mode"]
    if not any(forest.missing):
        del tables["missing"]
    tables["split"] = np.asarray(forest.split, dtype.numpy)
    tables["weight"] = np.asarray([w for _, w in pairs], np.float64)
    return tables


def _test(forest: Forest, value: Expr, table: Mapping[str, Buffer], node: Var) -> Expr:
    """Whether the node's test holds; NaN goes where the node says."""
    split = Load(table["split"], (node,))
    used = sorted(set(forest.mode)) or [0]
    outcome = TESTS[used[-1]](value, split)
    for mode in reversed(used[:-1]):
        outcome = select(
            eq(Load(table["mode"], (node,)), const(mode, I32)), TESTS[mode](value, split), outcome
        )
    if "missing" in table:
        return select(call("isnan", value), ne(Load(table["missing"], (node,)), const(0, I32)), outcome)
    if MODES.index("BRANCH_NEQ") in used:
        return land(outcome, call("not", call("isnan", value)))
    return outcome


def _chosen(table: Mapping[str, Buffer], node: Var, taken: Expr) -> Expr:
    return select(taken, Load(table["yes"], (node,)), Load(table["no"], (node,)))


def _combined(aggregate: str, old: Expr, new: Expr) -> Expr:
    return {"MIN": minimum, "MAX": maximum}.get(aggregate, lambda a, c: a + c)(old, new)
