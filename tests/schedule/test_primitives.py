"""Each primitive against the interpreter. A kernel's results never change."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from templates.kernels import buffer

from jangin.ir import te
from jangin.ir.expr import Expr, Select, call, const, select
from jangin.ir.interpret import run_func, size
from jangin.ir.loop import Alloc, For, Func, If, Let, Store, block, map_stmt, statements
from jangin.ir.parse import parse_func
from jangin.ir.text import print_func
from jangin.ir.traversal import loads, rewrite
from jangin.schedule.checks import ScheduleError
from jangin.schedule.normalize import simplify_func
from jangin.schedule.primitives import distinct, find, loop_names
from jangin.schedule.steps import PRIMITIVES, Step, apply
from jangin.templates.scheduled import Packing

from .nests import KERNELS, arrays_for, assert_same, do, naive, result


def kinds(func: Func) -> dict[str, str]:
    return {s.var.name: s.kind for s in statements(func.body) if isinstance(s, For)}


@pytest.mark.parametrize("name", KERNELS)
def test_simplify(name: str) -> None:
    assert_same(naive(name), simplify_func(naive(name)))


@pytest.mark.sampled(4)
@pytest.mark.parametrize("tail", ["guard", "cut", "bound"])
@pytest.mark.parametrize("factor", [1, 3, 4, 16])
@pytest.mark.parametrize("name", ["map", "symbolic", "matmul", "symbolic-rows", "symbolic-sum", "conv"])
def test_split_of_every_loop(name: str, factor: int, tail: str) -> None:
    func = naive(name)
    for loop in loop_names(func):
        after = PRIMITIVES["split"](func, loop, factor, tail)
        assert loop not in loop_names(after)
        assert_same(func, after)
        assert_same(func, simplify_func(after))


def test_split_of_a_split() -> None:
    do(naive("matmul"), ("split", "k0", 4, "cut"), ("split", "k0t", 3, "guard"), ("split", "i1", 2),
       ("split", "i1o", 3, "bound"), ("split", "i1oi", 2, "cut"))  # fmt: skip


def test_an_exact_split_has_no_guard() -> None:
    after = PRIMITIVES["split"](naive("matmul"), "k0", 3)
    assert not any(isinstance(s, If) for s in statements(after.body))


@pytest.mark.parametrize("name", ["map", "bias", "symbolic", "transpose", "matmul", "symbolic-rows"])
def test_fuse(name: str) -> None:
    func = naive(name)
    axes = [n for n in loop_names(func) if n.startswith("i")]
    after = do(func, ("fuse", axes[0], axes[1], "f"))
    assert loop_names(after)[0] == "f"


def test_fuse_undoes_split() -> None:
    after = do(naive("map"), ("split", "i1", 7), ("fuse", "i1o", "i1i", "i1"))
    assert simplify_func(after) == simplify_func(naive("map"))


def test_fuse_of_reduction_loops() -> None:
    do(naive("conv"), ("fuse", "k0", "k1", "f"), ("fuse", "f", "k2", "g"), ("split", "g", 4, "cut"))


@pytest.mark.parametrize("order", [("i2", "i0", "i1"), ("i1", "i2", "i0"), ("i2", "i1", "i0")])
def test_reorder(order: tuple[str, ...]) -> None:
    after = do(naive("bias"), ("reorder", order))
    assert tuple(loop_names(after)) == order


def test_reorder_moves_guards_inside() -> None:
    after = do(
        naive("map"), ("split", "i0", 2), ("split", "i1", 4), ("reorder", ["i1o", "i0o", "i0i", "i1i"])
    )
    assert loop_names(after) == ["i1o", "i0o", "i0i", "i1i"]
    inner = find(after, "i1i")
    assert isinstance(inner.body, If) and isinstance(inner.body.then, If)


def test_reorder_of_reduction_loops() -> None:
    do(naive("conv"), ("reorder", ["k2", "k0", "k1"]))


@pytest.mark.parametrize(("rows", "columns"), [(1, 1), (2, 3), (4, 4), (5, 7), (8, 16)])
@pytest.mark.parametrize("name", ["matmul", "symbolic-rows", "symbolic-sum"])
def test_privatize(name: str, rows: int, columns: int) -> None:
    after = do(naive(name), ("split", "i0", rows), ("split", "i1", columns),
               ("reorder", ["i0o", "i1o", "i0i", "i1i"]), ("privatize", "out.acc", ["i0i", "i1i"]),
               ("unroll", "i0i"), ("vectorize", "i1i"), ("vectorize", "i1i_z"))  # fmt: skip
    assert loop_names(after)[:5] == ["i0o", "i1o", "i0i_z", "i1i_z", "k0"]
    acc = next(s.buffer for s in statements(after.body) if isinstance(s, Alloc))
    assert acc.shape == (const(rows), const(columns)) and acc.memory == "register"


@pytest.mark.parametrize("exchanged", [False, True])
@pytest.mark.parametrize("rows", [3, 7, 16])
def test_privatize_beyond_the_last_row(rows: int, exchanged: bool) -> None:
    """Rows beyond the last read the last one. So does the test for the image's border, as it would allow
    other positions. Either arm of the choice may be the one that reads."""

    def arms_exchanged(e: Expr) -> Expr | None:
        return select(call("not", e.cond), e.b, e.a) if isinstance(e, Select) else None

    func = naive("conv")
    if exchanged:
        func = replace(func, body=map_stmt(func.body, lambda e: rewrite(e, arms_exchanged)))
    do(func, ("fuse", "i1", "i2", "m"), ("split", "m", rows), ("privatize", "out.acc", ["mi", "i3"]))


FACTORED = """func k(x: f32[2, 12], w: f32[5, 12], f: f32[5, 3], o: f32[5, 3], out: out f32[2, 5]) {
  serial i0 in 2 {
    serial i1 in 5 {
      alloc register out.acc: f32[1]
      out.acc[0] = f32(0.0)
      serial k0 in 12 {
        out.acc[0] = out.acc[0] + TERM
      }
      out[i0, i1] = out.acc[0]
    }
  }
}"""


@pytest.mark.parametrize("at", ["i0", "i1o"])
@pytest.mark.parametrize("term", [
    "(x[i0, k0] * ((w[i1, k0] * f[i1, (k0 // 4)]) + o[i1, (k0 // 4)]))",
    "((o[i1, (k0 // 4)] + (f[i1, (k0 // 4)] * w[i1, k0])) * x[i0, k0])",
    "(x[i0, k0] * (w[i1, k0] * f[i1, (k0 // 4)]))",
])  # fmt: skip
def test_factor_out(term: str, at: str) -> None:
    func = parse_func(FACTORED.replace("TERM", term))
    func = do(func, ("split", "i1", 3), ("privatize", "out.acc", ["i1i"]), ("split", "k0", 4, "cut"))
    after = do(func, ("factor_out", "k0o", at))
    stores = [s for s in statements(find(after, "k0i")) if isinstance(s, Store)]
    assert [s.buffer.name for s in stores] == ["out.acc.part"]
    assert not {"f", "o"} & {n.buffer.name for s in stores for n in loads(s.value)}
    assert ("k0o_sums" in print_func(after)) == ("o[" in term)
    do(after, ("partial_sums", "k0i"), ("vectorize", "i1i"))


MASKED = """func k(x: f32[2, 16], w: i32[5, 2], out: out f32[2, 5]) {
  serial i0 in 2 {
    serial i1 in 5 {
      alloc register out.acc: f32[1]
      out.acc[0] = f32(0.0)
      serial k0 in 16 {
        out.acc[0] = out.acc[0] + (x[i0, k0] * f32(((w[i1, (k0 // 8)] >> i32(((k0 % 8) * 4))) & i32(15))))
      }
      out[i0, i1] = out.acc[0]
    }
  }
}"""


def test_mask_in_place() -> None:
    """Masking in place also works for bits that reach the sign."""
    steps = [("split", ("i1", 3)), ("privatize", ("out.acc", ("i1i",))), ("split", ("k0", 8))]
    func = apply(parse_func(MASKED), [Step(*s) for s in steps])
    after = PRIMITIVES["mask_in_place"](func, "k0o", "i0")
    rng = np.random.default_rng(0)
    given = {"x": rng.integers(-4, 5, (2, 16)).astype(np.float32)}
    given["w"] = rng.integers(-(2**31), 2**31, (5, 2)).astype(np.int32)
    found = []
    for f in (func, after, apply(after, [Step("vectorize", ("k0o_k0i_x",)), Step("vectorize", ("i1i",))])):
        arrays = {**given, "out": np.full((2, 5), np.nan, np.float32)}
        run_func(f, arrays, {})
        found.append(arrays["out"])
    np.testing.assert_array_equal(found[1], found[0])
    np.testing.assert_array_equal(found[2], found[0])


def test_privatize_reads_stay_inside_where_windows_overlap() -> None:
    do(naive("conv"), ("split", "i2", 4), ("split", "i3", 2), ("reorder", ["i2o", "i3o", "i2i", "i3i"]),
       ("privatize", "out.acc", ["i2i", "i3i"]))  # fmt: skip


@pytest.mark.parametrize("name", ["symbolic-rows", "symbolic-sum", "matmul"])
def test_pack(name: str) -> None:
    func = do(naive(name), ("split", "i1", 4), ("reorder", ["i1o", "i0", "i1i"]),
              ("privatize", "out.acc", ["i1i"]), ("pack", "i1o", "w", ["k0", "i1i"], "panel"))  # fmt: skip
    assert {"panel_k0", "panel_i1i"} <= set(loop_names(func))
    do(func, ("vectorize", "panel_i1i"), ("vectorize", "i1i"))


@pytest.mark.parametrize(("name", "columns"), [("symbolic-rows", 2), ("matmul", 7)])
@pytest.mark.parametrize("terms", [1, 2, 3, 4])
def test_copies_are_made_where_they_are_read(name: str, columns: int, terms: int) -> None:
    func = do(naive(name), ("split", "i0", 2), ("split", "i1", columns),
              ("reorder", ["i1o", "i0o", "i0i", "i1i"]), ("privatize", "out.acc", ["i0i", "i1i"]),
              ("pack", "i1o", "w", ["k0", "i1i"], "panel"), ("split", "k0", terms, "cut"),
              ("unroll", "k0i"), ("unroll", "i0i"), ("vectorize", "i1i"))  # fmt: skip
    after = do(func, ("copy_as_read", "panel", "i0o"))
    names = loop_names(after)
    assert "panel_k0" not in names and names.index("i0o") < names.index("k0o") < names.index("panel_i1i")
    first = [
        s for s in statements(after.body) if isinstance(s, If) and s.cond == (find(after, "i0o").var < 1)
    ]
    assert len(first) == sum(n in names for n in ("k0o", "k0t"))


WORDS = """func words(x: i32[5, 6], w: i32[7, 6], out: out i32[5, 7]) {
  serial i0 in 5 { serial i1 in 7 {
    out[i0, i1] = i32(0)
    serial k0 in 6 { out[i0, i1] = out[i0, i1] + dot4(x[i0, k0], w[i1, k0]) }
  } }
}"""


def test_packed_words_become_halves() -> None:
    """Every byte takes part: operands are random words, -128 among their bytes."""
    func = PRIMITIVES["in_halves"](PRIMITIVES["pack"](parse_func(WORDS), "i0", "x", ["k0"], "rows"), "rows")
    (rows,) = (s.buffer for s in statements(func.body) if isinstance(s, Alloc) and s.buffer.name == "rows")
    assert rows.shape == (const(6), const(2))
    assert "dot4" not in print_func(func) and print_func(func).count("dot2(") == 2
    random = np.random.default_rng()
    given = {n: random.integers(-(1 << 31), 1 << 31, s, np.int32) for n, s in (("x", (5, 6)), ("w", (7, 6)))}
    given["x"][0, 0] = given["w"][0, 0] = -0x7F7F7F80  # four bytes of -128
    numbers = [a.view(np.int8).reshape(*a.shape[:-1], -1).astype(np.int32) for a in given.values()]
    run_func(func, given | {"out": (made := np.zeros((5, 7), np.int32))}, {})
    np.testing.assert_array_equal(made, numbers[0] @ numbers[1].T)


def test_halves_are_of_products_alone() -> None:
    func = PRIMITIVES["pack"](parse_func(WORDS.replace("dot4(x[i0, k0], w[i1, k0])", "x[i0, k0]")),
                              "i0", "x", ["k0"], "rows")  # fmt: skip
    with pytest.raises(ScheduleError, match="rows is read by"):
        PRIMITIVES["in_halves"](func, "rows")
    with pytest.raises(ScheduleError, match="no buffer is called columns"):
        PRIMITIVES["in_halves"](func, "columns")


def test_pack_takes_the_guard_along() -> None:
    func = do(naive("conv"), ("pack", "i1", "x", ["i2", "k0", "k1", "k2"], "rows"))
    copy = find(func, "rows_i2")
    assert "select" in str(copy)


@pytest.mark.parametrize(("before", "after"), [(0, 0), (1, 0), (0, 2), (1, 2), (3, 2)])
@pytest.mark.parametrize("loop", ["i1", "i2"])
def test_peel(loop: str, before: int, after: int) -> None:
    size = 4 if loop == "i1" else 5
    if before + after <= size:
        func = do(naive("conv"), ("peel", loop, before, after))
        assert_same(naive("conv"), simplify_func(func))


def test_peel_of_a_symbolic_loop() -> None:
    func = do(naive("symbolic-rows"), ("peel", "i0", 1, 0))
    assert loop_names(func)[:1] == ["i0_b"]


def test_peeled_middle_has_no_padding_to_test() -> None:
    func = do(naive("conv"), ("predicate", "out.acc"), ("peel", "i2", 1, 1), ("hoist_guards",))
    middle, border = (find(simplify_func(func), n) for n in ("i2", "i3_b"))

    def tests(loop: For) -> str:
        return " ".join(str(s.cond) for s in statements(loop) if isinstance(s, If))

    assert "k0" in tests(middle) and "k1" not in tests(middle)
    assert "k1_b" in tests(border)


@pytest.mark.parametrize(
    "packing",
    [
        *(Packing((1, 0), 0, 1, width) for width in (2, 4, 7, 8)),
        Packing((0, 1), 1, 1, 3),
        Packing((1, 0), 1, 3, 1),
        Packing((0, 1), 0, 2, 2),
        Packing((1, 0), 1, 2, 4),
        Packing((1, 0), 0, 1, 4, terms=3),
        Packing((0, 1), 0, 1, 2, terms=7),
        Packing((1, 0), 0, 1, 8, terms=2),
    ],
    ids=str,
)
def test_relayout(packing: Packing) -> None:
    """A weight of 6 x 7 is read in its packed layout."""
    func = PRIMITIVES["split"](naive("matmul"), "k0", 6 // packing.groups)
    after = PRIMITIVES["relayout"](func, "w", *packing.layout)
    given = arrays_for(func, {})
    packed = {"x": given["x"], "w": packing.apply(given["w"])}
    assert packed["w"].shape == tuple(size(d, {}) for d in after.params[1].shape)
    np.testing.assert_array_equal(result(after, {}, packed), result(func, {}))


def test_hoist_indices() -> None:
    """Indices that are constant in the inner loop are read once. The index of an arm isn't, and neither is
    one that moves with the inner loop."""
    func = parse_func("""
    func k(x: f32[9, 9], i: i64[4], y: out f32[4, 9]) {
      parallel r in 4 {
        serial c in 9 {
          y[r, c] = x[min(max(i[r], 0), 8), c] + select(c < 3, x[min(max(i[c], 0), 8), c], x[i[r] - 1, 0])
        }
      }
    }
    """)
    after = PRIMITIVES["hoist_indices"](func, "r")
    lets = [s for s in statements(after.body) if isinstance(s, Let)]
    assert [str(s.value) for s in lets] == ["min(max(i[r], 0), 8)"]
    arrays = {"x": np.arange(81, dtype=np.float32).reshape(9, 9), "i": np.array([3, 1, 8, 2])}
    before, now = np.zeros((4, 9), np.float32), np.zeros((4, 9), np.float32)
    run_func(func, {**arrays, "y": before}, {})
    run_func(after, {**arrays, "y": now}, {})
    np.testing.assert_array_equal(before, now)


def sometimes() -> Func:
    """Return a kernel that sums the rows with a large element, and selects by it."""
    x, top, total, twice = buffer("x", 9, 5), buffer("top", 9), buffer("total", 9), buffer("twice", 9)
    stages = [
        te.reduction(top, [5], "max", lambda i, k: x[i[0], k[0]]),
        te.reduction(
            total, [5], "sum", lambda i, k: select(top[i] > 3.0, x[i[0], k[0]], 0.0),
            lambda acc, i: select(top[i] > 3.0, acc * 2.0, top[i]),
        ),
        te.compute(twice, lambda i: select(top[i] > 3.0, total[i] * 2.0, 7.0)),
        te.compute(buffer("out", 9, 5), lambda i, j: x[i, j] - twice[i]),
    ]  # fmt: skip
    return te.lower("sometimes", stages, [x], {})


def test_only_where() -> None:
    """One branch has the sum and what follows from it, and the other has no loop."""
    func = do(sometimes(), ("merge", 1, ["r0"]), ("only_where", "total.acc"), ("only_where", "twice"))
    (branch,) = (s for s in statements(func.body) if isinstance(s, If))
    assert branch.orelse is not None
    assert [isinstance(s, For) for s in statements(branch.orelse)].count(True) == 0
    assert {s.buffer.name for s in statements(branch.then) if isinstance(s, Store)} == {
        "total.acc", "total", "twice",
    }  # fmt: skip
    do(func, ("rfactor", "bk0", 2, 2), ("parallelize", "r0"))


def test_only_where_something_is_chosen_for_all_terms() -> None:
    with pytest.raises(ScheduleError, match=r"top\.acc isn't reduced under a condition"):
        do(sometimes(), ("merge", 1, ["r0"]), ("only_where", "top.acc"))
    with pytest.raises(ScheduleError, match="isn't one for all terms"):
        do(naive("conv"), ("only_where", "out.acc"))


def test_predicate() -> None:
    func = do(naive("conv"), ("predicate", "out.acc"))
    assert any(isinstance(s, If) for s in statements(find(func, "k2").body))
    do(naive("pool"), ("predicate", "out.acc"), ("hoist_guards",))
    assert do(naive("matmul"), ("predicate", "out.acc")) == naive("matmul")


def test_begin_with() -> None:
    func = do(naive("biased"), ("begin_with", "out.acc", "bias"))
    first, *_, last = (s for s in statements(func.body) if isinstance(s, Store))
    assert "bias" in str(first.value) and "bias" not in str(last.value)
    tile = ("split", "i1", 4), ("split", "i0", 2), ("reorder", ["i0o", "i1o", "i0i", "i1i"])
    do(func, *tile, ("privatize", "out.acc", ["i0i", "i1i"]), ("vectorize", "i1i_z"))


def test_pack_into_registers() -> None:
    func = do(naive("matmul"), ("split", "k0", 4, "cut"), ("pack", "k0o", "x", ["k0i"], "terms", "register"),
              ("vectorize", "terms_k0i"), ("unroll", "k0i"))  # fmt: skip
    (buffer,) = (s.buffer for s in statements(func.body) if isinstance(s, Alloc) and s.buffer.name == "terms")
    assert buffer.memory == "register"


def test_pack_of_a_shortened_loop() -> None:
    """The packed buffer has room for the longest loop."""
    func = do(naive("matmul"), ("split", "i0", 2, "bound"), ("pack", "i0o", "x", ["i0i", "k0"], "rows"))
    (buffer,) = (s.buffer for s in statements(func.body) if isinstance(s, Alloc) and s.buffer.name == "rows")
    assert [str(d) for d in buffer.shape] == ["2", "6"]


def test_hoist_guards_out_of_what_they_do_not_mention() -> None:
    func = do(naive("conv"), ("predicate", "out.acc"), ("hoist_guards",))
    assert not any(isinstance(s, If) for s in statements(find(func, "k2").body))
    rows = [s for s in statements(find(func, "k0").body) if isinstance(s, If)]
    assert len(rows) == 2, "a row's test stands outside the loop over its columns"


def test_rename() -> None:
    func = do(naive("matmul"), ("rename", "k0", "depth"))
    assert loop_names(func) == ["i0", "i1", "depth"]


def test_distinct_names() -> None:
    func = naive("matmul")
    twice = func.with_body(block(func.body, func.body))
    with pytest.raises(ScheduleError, match="two variables"):
        apply(twice, [Step("rename", ("i0", "m"))])
    found = distinct(twice)
    assert len(set(loop_names(found))) == len(loop_names(found)) == 2 * len(loop_names(func))
    assert_same(twice, found)


def test_distinct_names_in_rounds() -> None:
    text = "parallel t in 4 { serial k in 2 { out[t, k] = x[t, k] } serial k in 2 { out[t, k] = x[t, k] } }"
    func = parse_func(f"func f(x: f32[4, 2], out: out f32[4, 2]) {{ serial round in 3 {{ {text} }} }}")
    found = distinct(func)
    assert loop_names(found) == ["round", "t", "k", "k_2"]
    assert_same(func, found)


def test_kinds() -> None:
    func = do(naive("matmul"), ("parallelize", "i0"), ("unroll", "k0"), ("vectorize", "i1"))
    assert kinds(func) == {"i0": "parallel", "i1": "vector", "k0": "unroll"}


def test_a_schedule_prints_and_replays() -> None:
    steps = [Step("split", ("i1", 4, "cut")), Step("reorder", (["i1o", "i1i"],)), Step("vectorize", ("i1i",))]
    assert str(steps[0]) == "split(i1, 4, cut)"
    assert apply(naive("map"), steps) == apply(naive("map"), steps)
    assert_same(naive("map"), apply(naive("map"), steps))


def test_copies_are_rounded_only_for_products_that_round() -> None:
    text = """func k(x: f32[8], y: f32[8], o: out f32[8]) {
      alloc register left: f32[8]
      serial i in 8 { left[i] = x[i] }
      serial j in 8 { o[j] = dot1t(left[j], y[j]) }
    }"""
    assert "left[i] = tf32(x[i])" in print_func(do(parse_func(text), ("round_copies", "left")))
    for other in ("left[j] * y[j]", "dot1t(left[j], y[j]) + left[j]"):
        with pytest.raises(ScheduleError, match="left is read by other operations than products that round"):
            do(parse_func(text.replace("dot1t(left[j], y[j])", other)), ("round_copies", "left"))


def test_every_primitive_is_tested() -> None:
    text = "".join(p.read_text() for p in Path(__file__).parent.glob("test_*.py"))
    assert not [name for name in PRIMITIVES if f'"{name}"' not in text and f"{name}(" not in text]
