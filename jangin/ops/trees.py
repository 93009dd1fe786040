"""Decision trees: an ensemble's nodes in tables that a loop nest walks, rows in parallel.

Ensembles have millions of nodes, so each operation here works on a whole level, or on all nodes, at once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

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
from jangin.ir.graph import MAX_SIZE, Array, CompileError
from jangin.ir.loop import Alloc, For, Let, Stmt, Store, block
from jangin.ir.records import dataclass
from jangin.ops.builder import Builder
from jangin.ops.nontensor import called
from jangin.ops.values import Tensor

MODES = ("BRANCH_LEQ", "BRANCH_LT", "BRANCH_GTE", "BRANCH_GT", "BRANCH_EQ", "BRANCH_NEQ", "BRANCH_MEMBER")
TESTS: tuple[Callable[[Expr, Expr], Expr], ...] = (
    lambda x, t: x <= t, lambda x, t: x < t, lambda x, t: x >= t, lambda x, t: x > t, eq, ne,
)  # fmt: skip
EQUAL, MEMBER = MODES.index("BRANCH_EQ"), MODES.index("BRANCH_MEMBER")
LEAF = -1
"""The mode of a leaf. Modes of tests are numbered from 0 on."""
AGGREGATES = ("AVERAGE", "SUM", "MIN", "MAX")


@dataclass(frozen=True)
class Ensemble:
    """A model's description of its trees, with one entry for each node, leaves included.

    `roots` has the root of each tree. `below` [2, nodes] has the next node if a test holds, and the next node
    otherwise. Several nodes may lead to the same node. `sets` has the number of set members that each node of
    mode MEMBER tests for, in order, and all members.
    """

    roots: Array
    mode: Array
    feature: Array
    split: Array
    missing: Array
    below: Array
    sets: tuple[Array, Array] = (np.zeros(0, np.int64), np.zeros(0))


@dataclass(frozen=True)
class Weights:
    """The weights that leaves add to targets, with one entry for each weight."""

    node: Array
    target: Array
    value: Array


@dataclass(frozen=True)
class Forest:
    """Nodes in an order in which trees are walked from their roots. A leaf's branches lead to itself. Node n
    adds `weight[i]` to `target[i]` for i from `first[n]` to `first[n + 1]`."""

    root: Array
    depth: Array
    feature: Array
    split: Array
    mode: Array
    missing: Array
    yes: Array
    no: Array
    first: Array
    target: Array
    weight: Array


class Numbered:
    """Nodes that a model identifies by tree and number. Raises CompileError if two have the same identity."""

    def __init__(self, trees: Array, numbers: Array) -> None:
        self.trees, self.numbers = _Ranks(trees), _Ranks(numbers)
        keys, _ = self._keys(trees, numbers)
        self.keys = _Ranks(keys)
        ranks, _ = self.keys.of(keys)
        self.place = np.full(self.keys.count, -1, np.int32)
        self.place[ranks] = np.arange(ranks.size)
        twice = np.flatnonzero(self.place[ranks] != np.arange(ranks.size))
        if twice.size:
            n = twice[0]
            raise CompileError(f"node {numbers[n]} of tree {trees[n]} is there twice")

    def _keys(self, trees: Array, numbers: Array) -> tuple[Array, Array]:
        """Return a number for each pair, and whether both parts of the pair are known."""
        tree, known = self.trees.of(trees)
        number, too = self.numbers.of(numbers)
        wide = self.trees.count * self.numbers.count > np.iinfo(np.int32).max
        return tree.astype(np.int64 if wide else np.int32) * self.numbers.count + number, known & too

    def places(self, trees: Array, numbers: Array) -> Array:
        """Return the positions of the nodes in the model's order, or -1 for a node that doesn't exist."""
        keys, known = self._keys(trees, numbers)
        ranks, there = self.keys.of(keys)
        return np.where(known & there, self.place[ranks] if self.place.size else -1, -1)


DENSE = 4
"""If values span at most this many times their count, their distances from the least are their ranks. Tables
of all ranks then take little memory, and nothing is sorted."""


class _Ranks:
    """Small numbers for integers: each value has one of `count` ranks."""

    def __init__(self, values: Array) -> None:
        self.low = int(values.min()) if values.size else 0
        self.count = int(values.max()) - self.low + 1 if values.size else 0
        self.sorted: Array | None = None
        if self.count > DENSE * values.size:
            self.sorted = np.unique(values)
            self.count = self.sorted.size

    def firsts(self, values: Array) -> Array:
        """Return the positions at which values are for the first time, in ascending order."""
        ranks, _ = self.of(values)
        first = np.full(self.count, -1, np.int32)
        first[ranks[::-1]] = np.arange(ranks.size)[::-1]
        return np.sort(first[first >= 0])

    def of(self, values: Array) -> tuple[Array, Array]:
        """Return the ranks of values, and whether each rank is one. Others are 0."""
        if self.sorted is None:
            ranks = values - self.low
            known = ranks.view(f"u{ranks.itemsize}") < self.count
            return np.where(known, ranks, 0), known
        ranks = np.minimum(np.searchsorted(self.sorted, values), self.count - 1)
        return ranks, self.sorted[ranks] == values


def planted(given: Ensemble, weights: Weights, as_listed: bool = False) -> Forest:
    """Return the forest of the nodes that the roots reach. Raises CompileError if nodes lead back to
    themselves or to a missing node.

    `as_listed`: nodes may keep the order in which they are listed, which takes less time. `depth` is 0
    then."""
    if as_listed and (forest := _as_listed(given, weights)) is not None:
        return forest
    lengths, members = _lengths(given)
    order = _ordered(given)
    depth, size = _measured(given, order, lengths)
    place = _places(given, order, lengths, size)
    reached = np.concatenate([np.zeros(0, np.int64), *order.levels])
    reached = reached[np.argsort(place[reached])]
    node = np.repeat(reached, lengths[reached])
    at = np.arange(node.size)
    step = at - place[node]
    leaf, mode = given.mode[node] == LEAF, given.mode[node]
    last = step + 1 == lengths[node]
    starts = np.cumsum(lengths) - lengths
    split = np.where(mode == MEMBER, members[starts[node] + step], given.split[node])
    first, kept = _by_leaf(given, weights, place, node.size)
    return Forest(
        root=place[given.roots], depth=depth[given.roots],
        feature=np.where(leaf, 0, given.feature[node]), split=np.where(leaf, 0.0, split),
        mode=np.where(leaf, 0, np.where(mode == MEMBER, EQUAL, mode)),
        missing=np.where(leaf, 0, given.missing[node] != 0),
        yes=np.where(leaf, at, place[given.below[0, node]]),
        no=np.where(leaf, at, np.where(last, place[given.below[1, node]], at + 1)),
        first=first, target=weights.target[kept], weight=weights.value[kept],
    )  # fmt: skip


def _as_listed(given: Ensemble, weights: Weights) -> Forest | None:
    """Return the forest with the nodes in the order in which they are listed. Return None if a node leads to
    one before it or to a missing node, tests for a set, or isn't reached."""
    leaf, at = given.mode == LEAF, np.arange(given.mode.size, dtype=np.int32)
    tests = np.flatnonzero(~leaf).astype(np.int32)
    reached, whole = np.zeros(at.size, bool), not given.sets[0].size
    for nodes, above in ((given.roots, 0), *((below[tests], tests + 1) for below in given.below)):
        if not whole or (nodes < above).any() or (nodes >= at.size).any():
            return None
        reached[nodes] = True
    if not reached.all():
        return None
    first, kept = _by_leaf(given, weights, at, at.size)
    return Forest(
        root=given.roots, depth=np.zeros(given.roots.size, np.int32),
        feature=np.where(leaf, 0, given.feature), split=np.where(leaf, 0.0, given.split),
        mode=np.where(leaf, 0, given.mode), missing=np.where(leaf, 0, given.missing != 0),
        yes=np.where(leaf, at, given.below[0]), no=np.where(leaf, at, given.below[1]),
        first=first, target=weights.target[kept], weight=weights.value[kept],
    )  # fmt: skip


def _lengths(given: Ensemble) -> tuple[Array, Array]:
    """Return the number of table entries that each node takes, and the set members with which all entries
    compare.

    A set's node takes one entry for each member, and the members are tested one after another. A set without
    members has NaN, which nothing equals.
    """
    counts, values = given.sets
    of_sets = np.flatnonzero(given.mode == MEMBER)
    if of_sets.size != counts.size:
        raise CompileError(f"{of_sets.size} nodes test for members of sets, and {counts.size} sets are given")
    lengths = np.ones(given.mode.size, np.int64)
    lengths[of_sets] = np.maximum(counts, 1)
    members = np.full(int(lengths.sum()), np.nan)
    starts = (np.cumsum(lengths) - lengths)[of_sets]
    ends = np.cumsum(counts) - counts
    members[np.repeat(starts - ends, counts) + np.arange(values.size)] = values
    return lengths, members


class _Order(NamedTuple):
    """Nodes in topological order. `levels`: nodes, each behind all that lead to it. `above`: for each node
    one node that leads to it, or -1; `side`: by which of its branches."""

    levels: list[Array]
    above: Array
    side: Array


def _ordered(given: Ensemble) -> _Order:
    inner = _reached(given)
    waiting = np.bincount(given.below[:, inner].reshape(-1), minlength=given.mode.size)
    above, side, last = (np.full(given.mode.size, -1) for _ in range(3))
    roots = _distinct(given.roots, last)
    here, levels, done = roots[waiting[roots] == 0], list[Array](), 0
    while here.size:
        levels.append(here)
        tests = here[given.mode[here] != LEAF]
        done += tests.size
        kids = given.below[:, tests].reshape(-1)
        np.subtract.at(waiting, kids, 1)
        above[kids], side[kids] = np.tile(tests, 2), np.repeat([0, 1], tests.size)
        here = _distinct(kids[waiting[kids] == 0], last)
    if done < inner.size:
        there = np.concatenate([np.zeros(0, np.int64), *levels])
        raise CompileError(f"the trees have a circle, which leads to node {np.setdiff1d(inner, there)[0]}")
    return _Order(levels, above, side)


def _reached(given: Ensemble) -> Array:
    """Return the test nodes that the roots reach. Raises CompileError for a branch to a missing node."""
    count = given.mode.size
    seen, last, inner_nodes = np.zeros(count, bool), np.full(count, -1), list[Array]()
    here = _distinct(_there(given.roots, count), last)
    while here.size:
        seen[here] = True
        tests = here[given.mode[here] != LEAF]
        inner_nodes.append(tests)
        kids = _there(given.below[:, tests].reshape(-1), count)
        here = _distinct(kids[~seen[kids]], last)
    return np.concatenate([np.zeros(0, np.int64), *inner_nodes])


def _there(nodes: Array, count: int) -> Array:
    wrong = nodes[(nodes < 0) | (nodes >= count)]
    if wrong.size:
        raise CompileError("a tree leads to a node that it doesn't have")
    return nodes


def _distinct(nodes: Array, last: Array) -> Array:
    """Return each node once. `last` is scratch space with a number for each node."""
    numbers = np.arange(nodes.size)[::-1]
    last[nodes[::-1]] = numbers
    once: Array = nodes[last[nodes] == numbers[::-1]]
    return once


def _measured(given: Ensemble, order: _Order, lengths: Array) -> tuple[Array, Array]:
    """Return the longest way down from each node, and the number of table entries of the node and all nodes
    below it."""
    depth, size = np.zeros(given.mode.size, np.int64), lengths.copy()
    for here in reversed(order.levels):
        tests = here[given.mode[here] != LEAF]
        depth[tests] = lengths[tests] + depth[given.below[:, tests]].max(0, initial=0)
        for side in (0, 1):
            kids = here[order.side[here] == side]
            size[order.above[kids]] += size[kids]
    return depth, size


def _places(given: Ensemble, order: _Order, lengths: Array, size: Array) -> Array:
    """Return the first table entry of each node, or -1 if no root reaches it.

    The node on a test's first side stands behind the node above it. The node on the other side stands behind
    all of the first side.
    """
    place = np.full(given.mode.size, -1)
    for here in order.levels:
        above = order.above[here]
        first = here[above < 0]
        place[first] = np.cumsum(size[first]) - size[first]
        yes, no = (here[order.side[here] == side] for side in (0, 1))
        place[yes] = place[order.above[yes]] + lengths[order.above[yes]]
        over = order.above[no]
        other = given.below[0, over]
        beside = (order.above[other] == over) & (order.side[other] == 0)
        place[no] = place[over] + lengths[over] + np.where(beside, size[other], 0)
    return place


def _by_leaf(given: Ensemble, weights: Weights, place: Array, count: int) -> tuple[Array, Array]:
    """Return the position at which the weights of each table entry begin, and the indices of these weights,
    in order."""
    known = np.flatnonzero((weights.node >= 0) & (weights.node < given.mode.size))
    nodes = weights.node[known]
    kept = known[(given.mode[nodes] == LEAF) & (place[nodes] >= 0)]
    at = place[weights.node[kept]]
    first = np.zeros(count + 1, np.int32)
    np.cumsum(np.bincount(at, minlength=count), out=first[1:])
    if (at[1:] >= at[:-1]).all():
        return first, kept
    return first, kept[np.argsort(at, kind="stable")]


# -- the walk ------------------------------------------------------------------------------------


def grown(b: Builder, x: Tensor, forest: Forest, targets: int, aggregate: str) -> Tensor:
    """Return [rows, targets] in f64: the weights of the leaves that each row reaches, aggregated by
    target."""
    width = x.shape[1]
    low, top = (int(end(forest.feature, initial=0)) for end in (np.min, np.max))
    if low < 0 or (isinstance(width, Const) and top >= width.value) or top >= MAX_SIZE:
        raise CompileError(f"the trees test feature {min(low, 0) or top}, but {x} has {width} features")
    if aggregate not in AGGREGATES:
        raise CompileError(f"the trees' aggregate {aggregate!r} is none of {', '.join(AGGREGATES)}")
    if (wrong := forest.target[(forest.target < 0) | (forest.target >= targets)]).size:
        raise CompileError(f"a leaf of the trees is for target {wrong[0]}, and there are {targets} targets")
    tables = _tables(forest, x.dtype)
    if b.layers:
        del tables["depth"]
    inputs = [x, *(b.const(a) for a in tables.values())]
    if b.layers:
        named = {"names": (*tables,), "modes": _modes(forest), "targets": targets, "aggregate": aggregate}
        return called(b, "trees", inputs, F64, (x.shape[0], const(targets)), **named)
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
    trees = forest.root.size
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


def _tables(forest: Forest, dtype: DType) -> dict[str, Array]:
    numbers = ("root", "depth", "feature", "mode", "missing", "yes", "no", "first", "target")
    tables = {name: getattr(forest, name).astype(np.int32, copy=False) for name in numbers}
    if len(_modes(forest)) == 1:
        del tables["mode"]
    if not forest.missing.any():
        del tables["missing"]
    tables["split"] = forest.split.astype(dtype.numpy, copy=False)
    tables["weight"] = forest.weight.astype(np.float64, copy=False)
    if not forest.weight.size:  # a table that nothing reads must have an element all the same
        tables |= {"target": np.zeros(1, np.int32), "weight": np.zeros(1)}
    return tables


def _modes(forest: Forest) -> list[int]:
    """Return the numbers of the tests that occur."""
    return [n for n in range(len(TESTS)) if (forest.mode == n).any()] or [0]


def _test(forest: Forest, value: Expr, table: Mapping[str, Buffer], node: Var) -> Expr:
    """Return whether the node's test holds. NaN goes where the node says."""
    split = Load(table["split"], (node,))
    used = _modes(forest)
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
