"""Primitives that make sums in parts, against the interpreter."""

from __future__ import annotations

import pytest

from jangin.ir.expr import Binary, Expr, const
from jangin.ir.loop import Alloc, For, Func, Store, statements
from jangin.ir.parse import parse_func
from jangin.ir.traversal import loads
from jangin.schedule.primitives import find, loop_names
from jangin.schedule.steps import Step, apply

from .nests import do, naive

REDUCTIONS = {
    "matmul": ("out.acc", "k0"), "symbolic-rows": ("out.acc", "k0"), "symbolic-sum": ("out.acc", "k0"),
    "sum": ("out.acc", "k0"),
}  # fmt: skip


def kinds(func: Func) -> dict[str, str]:
    return {s.var.name: s.kind for s in statements(func.body) if isinstance(s, For)}


@pytest.mark.parametrize("name", ["matmul", "symbolic-rows"])
@pytest.mark.parametrize("tiles", [1, 2, 4])
def test_block_sum(name: str, tiles: int) -> None:
    after = do(naive(name), ("split", "i0", 2), ("split", "i0o", tiles, "bound"), ("split", "i1", 4),
               ("reorder", ["i0oo", "i1o", "i0oi", "i0i", "i1i"]), ("privatize", "out.acc", ["i0i", "i1i"]),
               ("split", "k0", 3), ("block_sum", "i0oi", ["k0o"], tiles, "sums"))  # fmt: skip
    names = loop_names(after)
    assert names.index("k0o") < names.index("i0oi") < names.index("k0i"), names
    sums = next(s.buffer for s in statements(after.body) if isinstance(s, Alloc) and s.buffer.name == "sums")
    assert sums.shape == (const(tiles), const(2), const(4)) and sums.memory == "scratch"
    do(after, ("unroll", "i0i_l"), ("vectorize", "i1i_l"), ("unroll", "i0i_s"), ("vectorize", "i1i_s"))


def test_block_sum_over_several_loops() -> None:
    do(naive("conv"), ("split", "i3", 2), ("privatize", "out.acc", ["i3i"]),
       ("block_sum", "i3o", ["k0", "k1"], 8, "sums"))  # fmt: skip


@pytest.mark.parametrize(("name", "loops"), [("conv", ["k0", "k1"]), ("symbolic-sum", ["k0o"])])
def test_partial_sums(name: str, loops: list[str]) -> None:
    last = "i3" if name == "conv" else "i1"
    split = [] if name == "conv" else [("split", "k0", 3, "bound")]
    func = do(naive(name), ("split", last, 2), ("privatize", "out.acc", [f"{last}i"]), *split)
    for loop in loops:
        after = do(func, ("partial_sums", loop))
        (part,) = (s.buffer for s in statements(find(after, loop)) if isinstance(s, Alloc))
        assert part.name == "out.acc.part" and part.shape == (const(2),)
    do(func, ("partial_sums", loops[0]), ("partial_sums", loops[-1] if loops[1:] else "k0i"))


def test_lanes_add_to_one_sum() -> None:
    """The lanes of a sum of integers add to the same elements, also of a tile and of a rest."""
    func = parse_func("""func sums(x: i8[3, 11], y: i8[4, 11], out: out i32[3, 4]) {
      serial i in 3 {
        serial j in 4 {
          alloc register acc: i32[1]
          acc[0] = i32(0)
          serial k in 11 { acc[0] = acc[0] + (i32(x[i, k]) * i32(y[j, k])) }
          out[i, j] = acc[0]
        }
      }
    }""")
    func = do(func, ("split", "j", 2), ("privatize", "acc", ["ji"]), ("split", "k", 4, "cut"))
    func = do(func, ("across_lanes", "ki"), ("across_lanes", "kt"), ("unroll", "ji"))
    assert kinds(func)["ki"] == kinds(func)["kt"] == "vector"


@pytest.mark.parametrize("name", REDUCTIONS)
def test_pairwise(name: str) -> None:
    """Pairs are added for a single sum, for sums side by side, for the turns of a sum and for its rest. The
    loop is gone."""
    func, last = naive(name), "i0" if name == "sum" else "i1"
    func = do(func, ("split", last, 2, "bound" if name == "sum" else "guard"))
    if name != "sum":
        func = do(func, ("privatize", "out.acc", [f"{last}i"]))
    func = do(func, ("split", "k0", 2, "cut"), ("pairwise", "k0i"))
    names = loop_names(func)
    assert "k0o" in names and "k0i" not in names
    if "k0t" in names and name != "symbolic-sum":
        func = do(func, ("pairwise", "k0t"))
    do(func, ("partial_sums", "k0o"))


def test_pairs_are_added_to_each_other_first() -> None:
    func = apply(naive("sum"), [Step("pairwise", ("k0",))])
    (update,) = (s for s in statements(func.body) if isinstance(s, Store) and isinstance(s.value, Binary))
    total = update.value
    # the total has all terms beside the accumulator
    assert isinstance(total, Binary) and len([*loads(total.b)]) == 11

    def depth(e: Expr) -> int:
        return 1 + max(depth(e.a), depth(e.b)) if isinstance(e, Binary) else 0

    assert depth(total.b) == 4


@pytest.mark.parametrize(("lanes", "ways"), [(1, 1), (2, 2), (4, 1), (4, 3), (16, 1)])
@pytest.mark.parametrize("name", REDUCTIONS)
def test_rfactor(name: str, lanes: int, ways: int) -> None:
    func = do(naive(name), ("rfactor", REDUCTIONS[name][1], lanes, ways))
    assert kinds(func)["k0l"] == "vector" and kinds(func)["k0w"] == "unroll"


def test_rfactor_adds_whole_vectors_that_are_left_as_vectors() -> None:
    # 11 terms take two turns of four, one vector, and a single one
    func = do(naive("sum"), ("rfactor", "k0", 2, 2))
    assert kinds(func)["k0l_r"] == "vector" and find(func, "k0t").extent == const(1)


def test_rfactor_of_each_combiner_and_under_a_guard() -> None:
    func = do(naive("max"), ("fuse", "k0", "k1", "k"), ("rfactor", "k", 4, 2))
    assert "max(" in str(func.body)
    guarded = do(naive("sum"), ("split", "i0", 2), ("rfactor", "k0", 4, 2))
    assert "k0l" in loop_names(guarded)
    do(naive("softmax"), ("merge", 2, ["r0", "r1"]), ("rfactor", "ck0", 2, 2), ("rfactor", "ak0", 2, 1))
