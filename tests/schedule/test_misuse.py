"""Steps that don't fit are refused. The message names the loop or buffer."""

from __future__ import annotations

import re

import pytest

from jangin.compiler.kernels import Job
from jangin.ir.dtype import BOOL, F32, I8, I32
from jangin.ir.expr import Buffer, Expr, Var, cast, const, land, maximum, select
from jangin.ir.graph import CompileError
from jangin.ir.loop import Alloc, For, Func, If, Stmt, Store, block
from jangin.ir.sources import Sources
from jangin.ir.te import identity
from jangin.schedule.checks import ScheduleError
from jangin.schedule.guards import hoist_guards
from jangin.schedule.normalize import simplify_func
from jangin.schedule.steps import PRIMITIVES, Step, apply, usage
from jangin.templates.scheduled import Scheduled

from .nests import assert_same, naive

R, J, P = Var("i"), Var("j"), Var("p")
TILED = [("split", "i0", 2), ("split", "i1", 3), ("reorder", ["i0o", "i1o", "i0i", "i1i"])]
PRIVATE = [*TILED, ("privatize", "out.acc", ["i0i", "i1i"])]
Steps = list[tuple[object, ...]]


def run(func: Func, steps: Steps) -> Func:
    return apply(func, [Step(str(name), tuple(args)) for name, *args in steps])


MISUSE: dict[str, tuple[str, Steps, str]] = {
    "unknown loop": ("map", [("split", "i9", 2)], "no loop 'i9'; there are i0, i1"),
    "factor": ("map", [("split", "i0", 0)], "i0 can't be split by 0"),
    "tail": ("map", [("split", "i0", 2, "mask")], "with tail 'mask'"),
    "split of a marked loop": ("map", [("vectorize", "i1"), ("split", "i1", 2)], "loop i1 is vector already"),
    "taken name": ("matmul", [("rename", "i0", "k0")], "two variables would be called k0"),
    "a symbol's name": ("symbolic", [("rename", "i0", "n")], "two variables would be called n"),
    "fuse": ("matmul", [("fuse", "i0", "k0", "f")], "k0 isn't directly inside i0"),
    "fuse of the same": ("map", [("fuse", "i1", "i0", "f")], "i0 isn't directly inside i1"),
    "fuse of unequal rows": (
        "map", [("split", "i1", 4, "bound"), ("fuse", "i1o", "i1i", "f")], "isn't directly",
    ),
    "reorder over a statement": (
        "matmul", [("reorder", ["k0", "i0"])], r"loops \['k0'\] aren't nested in i0",
    ),
    "reorder of nothing": ("map", [("reorder", [])], r"can't reorder \[\]"),
    "reorder of unknown": ("map", [("reorder", ["a", "b"])], r"can't reorder \['a', 'b'\]"),
    "reorder twice": ("map", [("reorder", ["i0", "i0"])], "can't reorder"),
    "reorder of bounds": (
        "map", [("split", "i1", 4, "bound"), ("reorder", ["i1i", "i1o"])], "must stay inside the loops",
    ),
    "parallel inside": ("map", [("parallelize", "i1")], "i1 can't be parallel inside loop i0"),
    "vector in vector": ("map", [("vectorize", "i0"), ("vectorize", "i1")], "i1 would be inside another"),
    "vector of a symbolic extent": ("symbolic", [("vectorize", "i0")], "i0 of extent n can't be vector"),
    "unroll of a symbolic extent": ("symbolic", [("unroll", "i0")], "i0 of extent n can't be unroll"),
    "vector over a sum": ("matmul", [("vectorize", "k0")], "k0 can't be vector: .* one element of out.acc"),
    "no sum": ("map", [("find_first", "out.acc")], "out.acc isn't a sum in each of several rows and columns"),
    "no condition": ("matmul", [("find_first", "out.acc")], "no condition, or another one for each column"),
    "no tile": ("matmul", [("privatize", "out.acc", [])], "at least one loop"),
    "no accumulator": ("map", [("privatize", "out.acc", ["i1"])], "no accumulator out.acc right inside"),
    "another tile": ("matmul", [("privatize", "out.acc", ["i0"])], r"expected loops \['i0'\] around out.acc"),
    "another accumulator": ("matmul", [("privatize", "acc", ["i1"])], r"expected loops \['i1'\] around acc"),
    "privatize twice": (
        "matmul", [*PRIVATE, ("privatize", "out.acc", ["i0i", "i1i"])], "no accumulator out.acc",
    ),
    "privatize in steps": (
        "matmul", [("privatize", "out.acc", ["i1"]), ("privatize", "out.acc", ["i0"])], "no single acc",
    ),
    "symbolic tile": ("symbolic-rows", [("privatize", "out.acc", ["i0", "i1"])], "need constant extents"),
    "tile of a split sum": (
        "matmul", [("split", "k0", 4, "cut"), ("privatize", "out.acc", ["i1"])], "initialise",
    ),
    "pack over a loop outside": (
        "matmul", [*PRIVATE, ("pack", "k0", "w", ["i1o"], "p")], r"\['i1o'\] aren't inside",
    ),
    "pack over too few": (
        "matmul", [*PRIVATE, ("pack", "i1o", "w", ["k0"], "p")], "depends on i1i inside i1o",
    ),
    "pack of an unread buffer": ("matmul", [*PRIVATE, ("pack", "i1o", "q", ["k0"], "p")], "0 different ways"),
    "pack of what is stored": ("matmul", [("pack", "i0", "out.acc", ["i1"], "p")], "itself stores"),
    "pack under a guard": (
        "map", [("split", "i1", 4), ("pack", "i0", "x", ["i1o", "i1i"], "p")], "under a condition",
    ),
    "pack into a taken name": (
        "matmul", [("pack", "i0", "w", ["i1", "k0"], "x")], "two buffers would be called x",
    ),
    "peel too much": ("map", [("peel", "i0", 3, 3)], "too few iterations to peel 3 [+] 3"),
    "peel of a symbolic loop": ("symbolic", [("peel", "i0", 1, 1)], "too few iterations"),
    "negative peel": ("map", [("peel", "i0", -1, 1)], "too few iterations"),
    "relayout": ("matmul", [("relayout", "q", (0, 1), 0, 1, 8)], "no parameter 'q'"),
    "relayout of other axes": (
        "matmul", [("relayout", "w", (0,), 0, 1, 8)], r"w has no layout \[0\], 0, 1, 8",
    ),
    "merge too deep": (
        "softmax", [("merge", 3, ["a", "b", "c"])], "fewer than 3 outer loops|differ in extent",
    ),
    "a sum that is none": ("summed twice", [("inline_sum", "out")], "out is not a local that"),
    "a sum read twice": ("softmax", [("inline_sum", "a")], "is read by several|is not a local"),
    "merge names": ("softmax", [("merge", 2, ["a"])], r"2 loops to merge can't be called \['a'\]"),
    "merge of nothing": ("softmax", [("merge", 0, [])], "0 loops to merge"),
    "merge of no rows": ("softmax", [("merge", 1, ["a"], 0)], "loop a can't be merged 0 rows at once"),
    "merge into a taken name": ("softmax", [("merge", 1, ["ak0"])], "would be called ak0"),
    "blocks of no tile": ("matmul", [("block_sum", "k0", ["i1"], 4, "s")], "k0 doesn't hold one sum"),
    "blocks of another loop": ("matmul", [("block_sum", "i1", ["i0"], 99, "s")], "are not the outer loops"),
    "too many tiles": ("matmul", [("block_sum", "i1", ["k0"], 1, "s")], "may have more than 1 iterations"),
    "a copy of nothing": ("matmul", [("copy_as_read", "p", "i0")], "no nest makes p before anything"),
    "a copy for each tile": (
        "matmul", [*PRIVATE, ("pack", "i1o", "x", ["i0i", "k0"], "p"), ("copy_as_read", "p", "i1o")],
        "p is used elsewhere than in i1o|no nest makes p|its own part",
    ),
    "a copy that no loop reads": (
        "matmul", [*PRIVATE, ("pack", "i0o", "w", ["k0", "i1o", "i1i"], "p"), ("copy_as_read", "p", "k0")],
        "may read different parts|used elsewhere|its own part",
    ),
    "parts of an axis": ("matmul", [("partial_sums", "i0")], "i0 doesn't only add"),
    "parts of a maximum": ("max", [("partial_sums", "k0")], "k0 doesn't only add"),
    "lanes of an axis": ("matmul", [("across_lanes", "i1")], "i1 doesn't only add"),
    "lanes of a sum of floats": ("matmul", [("across_lanes", "k0")], "can't add to one sum of integers"),
    "pairs of an axis": ("matmul", [("pairwise", "i1")], "i1 doesn't only add"),
    "pairs of a maximum": ("max", [("pairwise", "k0")], "k0 doesn't only add"),
    "pairs of any number": ("symbolic-sum", [("pairwise", "k0")], "doesn't add a constant number of terms"),
    "factor of an axis": ("matmul", [("factor_out", "i1", "i0")], "i1 doesn't only add"),
    "no common factor": (
        "matmul", [("split", "k0", 2), ("factor_out", "k0o", "i0")], "no factor that is the same",
    ),
    "factor of a remainder": (
        "matmul", [("split", "k0", 4), ("factor_out", "k0o", "i0")], "a remainder or a condition",
    ),
    "bits of no words": ("matmul", [("mask_in_place", "k0", "i0")], "no sum of products with bits"),
    "rfactor of an axis": ("matmul", [("rfactor", "i0", 4, 1)], "i0 isn't the one innermost loop"),
    "rfactor of a nest": ("max", [("rfactor", "k0", 4, 1)], "k0 isn't the one innermost loop"),
    "no lanes": ("sum", [("rfactor", "k0", 0, 1)], "1 vectors of 0 lanes"),
    "rfactor unknown": ("sum", [("rfactor", "q", 4, 1)], "q isn't the one innermost loop"),
    "nothing to begin with": ("matmul", [("begin_with", "out.acc", "w")], "w is added to out.acc 0 times"),
    "predicate": ("map", [("predicate", "out.acc")], "no accumulator out.acc"),
}  # fmt: skip


@pytest.mark.parametrize("case", MISUSE)
def test_misuse(case: str) -> None:
    name, steps, message = MISUSE[case]
    func = run(naive(name), steps[:-1])
    with pytest.raises(ScheduleError, match=message):
        run(func, steps[-1:])


def kernel(body: Stmt, *shape: int) -> Func:
    """Return a kernel that reads x and stores to y."""
    x, y = (Buffer(n, F32, tuple(const(d) for d in shape)) for n in "xy")
    return Func("k", (x, y), 1, (), body)


def scan() -> Func:
    """Return a kernel in which y[i, j] depends on y[i - 1, j + 1]. Only one order of its loops is right."""
    y = Buffer("y", F32, (const(4), const(5)))
    update = Store(y, (R + 1, J), y[R, J + 1] + 1.0)
    f, g = Var("f"), Var("g")
    zero = For(g, const(4), For(f, const(5), Store(y, (g, f), const(0.0, F32))))
    return kernel(block(zero, For(R, const(3), For(J, const(4), update))), 4, 5)


@pytest.mark.parametrize(("step", "args"), [
    ("reorder", (["j", "i"],)), ("vectorize", ("i",)), ("parallelize", ("i",)),
])  # fmt: skip
def test_loops_whose_iterations_depend_on_each_other_keep_their_order(step: str, args: tuple[object]) -> None:
    with pytest.raises(ScheduleError, match="y is read elsewhere than it is stored"):
        PRIMITIVES[step](scan(), *args)


def test_iterations_that_read_what_was_stored_before_the_loop() -> None:
    assert_same(scan(), PRIMITIVES["vectorize"](scan(), "j"))


@pytest.mark.parametrize(("row", "refused"), [(J, False), (J % 2, True), (J + P, True)])
def test_what_another_iteration_stored_keeps_a_loop_serial(row: Expr, refused: bool) -> None:
    """Each row is stored, then read elsewhere. The loop is parallel only if no other iteration stores what is
    read."""
    y, out = Buffer("y", F32, (const(8), const(3))), Buffer("out", F32, (const(4), const(3)))
    store = For(R, const(3), Store(y, (J, R), const(1.0, F32)))
    read = For(P, const(3), Store(out, (J, P), y[row, 2 - P]))
    func = Func("k", (y, out), 2, (), For(J, const(4), block(store, read)))
    if refused:
        with pytest.raises(ScheduleError, match="y is read elsewhere than it is stored"):
            PRIMITIVES["parallelize"](func, "j")
    else:
        assert PRIMITIVES["parallelize"](func, "j") != func


def test_indices_that_only_look_different_are_one() -> None:
    y = Buffer("y", F32, (const(6),))
    zero = For(Var("f"), const(6), Store(y, (Var("f"),), const(0.0, F32)))
    update = Store(y, (R * 2 + J,), y[J + R * 2] + 1.0)
    func = kernel(block(zero, For(R, const(3), For(J, const(2), update))), 6)
    assert PRIMITIVES["reorder"](func, ["j", "i"]) != func


def test_a_condition_on_memory_is_not_hoisted() -> None:
    y = Buffer("y", F32, (const(6),))
    loop = For(R, const(6), If(y[0] < 1.0, Store(y, (R,), y[R] + 1.0)))
    zero = For(J, const(6), Store(y, (J,), const(0.0, F32)))
    func = kernel(block(zero, loop), 6)
    assert hoist_guards(func) == func


def test_a_sure_read_moves_out_of_its_loop() -> None:
    """A condition is read before its loop only if the loop reads it in any case, and stores nothing there."""
    y, x = Buffer("y", F32, (const(6),)), Buffer("x", F32, (const(6),))

    def guarded(cond: Expr, extent: Expr) -> Func:
        loop = For(R, extent, If(cond, Store(y, (R,), const(1.0, F32))))
        return Func("k", (x, y), 1, ((Var("n"), (const(0), const(6))),), For(J, const(6), loop))

    moved = hoist_guards(guarded(x[J] < 1.0, const(6))).body
    assert isinstance(moved, For) and isinstance(moved.body, If) and isinstance(moved.body.then, For)
    outside = land(x[J] < 1.0, x[R] < 1.0)
    assert hoist_guards(guarded(outside, const(6))) != guarded(outside, const(6))
    for cond, extent in ((y[J] < 1.0, const(6)), (x[J] < 1.0, Var("n")), (land(R < 3, x[J] < 1.0), const(6))):
        assert hoist_guards(guarded(cond, extent)) == guarded(cond, extent)


def test_a_maximum_in_a_wider_type_keeps_its_padding() -> None:
    """The narrow type's least value isn't that of the wide type."""

    acc = Buffer("acc", I32, (const(1),), "register")
    x, y = Buffer("x", I32, (const(4),)), Buffer("y", I32, (const(1),))

    term = cast(I32, select(R < 2, cast(I8, x[R]), identity("max", I8)))
    nest = Alloc(acc, block(
        Store(acc, (const(0),), identity("max", I32)),
        For(R, const(4), Store(acc, (const(0),), maximum(acc[0], term))),
        Store(y, (const(0),), acc[0]),
    ))  # fmt: skip
    func = Func("k", (x, y), 1, (), nest)
    assert PRIMITIVES["predicate"](func, "acc") == func


def test_simplify_takes_decided_branches_and_drops_dead_loops() -> None:
    y = Buffer("y", F32, (const(4),))
    one, two = (Store(y, (R,), const(v, F32)) for v in (1.0, 2.0))
    never = For(J, const(0), two)
    body = For(R, const(4), block(If(R < 4, one, two), never, If(const(False, BOOL), two)))
    func = kernel(body, 4)
    after = simplify_func(func)
    assert after.body == For(R, const(4), one)
    assert_same(func, after)


def test_a_schedule_that_does_not_fit_names_the_model_s_nodes() -> None:
    def make() -> Scheduled:
        raise ScheduleError("k: no loop 'i9'; there are i0")

    source = Sources.of("Softmax", "scores")
    told = rf"^{source}: k: no loop 'i9'; there are i0; .* a defect of Jangin: report it with the model$"
    with pytest.raises(CompileError, match=told):
        Job("k", "0" * 64, make, sources=source)()


def test_each_primitive_says_its_work() -> None:
    for name in PRIMITIVES:
        assert re.fullmatch(rf"{name}(:[a-z,]+)? does this: [A-Z].*\.", usage(name)), usage(name)
