"""Inner loops have as few instructions as written by hand, and no spills."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace

import pytest
from machine import target
from test_arm_assembly import CASES, conv, kernel

from jangin.backends.llvm.objects import assembly
from jangin.ir.core import Reduce
from jangin.ir.dtype import F32, I32
from jangin.ir.expr import Buffer, Expr, Var, const, maximum, select
from jangin.ir.loop import Alloc, For, Func, If, Stmt, Store, block
from jangin.ir.products import DOT4S
from jangin.ops.core import CORE
from jangin.templates.choose import choose
from jangin.templates.template import Workload

K = 128


def instructions(text: str) -> list[list[str]]:
    """Return each innermost loop's instructions, from a label to the jump back to it."""
    loops, start = [], dict[str, int]()
    lines = [line.strip() for line in text.splitlines()]
    for n, line in enumerate(lines):
        if line.endswith(":"):
            start[line[:-1]] = n
        jump = re.match(r"j\w+\s+(\.L\w+)", line)
        if jump and jump[1] in start:
            body = lines[start[jump[1]] + 1 : n + 1]
            if not any(part.endswith(":") for part in body):
                loops.append([part.split("#")[0] for part in body if part[0] not in ".#"])
    return loops


def counts(loop: list[str]) -> Counter[str]:
    return Counter(line.split()[0] for line in loop)


def micro_kernel(rows: int, vectors: int, lanes: int, unroll: int) -> Func:
    """Return the micro-kernel of C = relu(A B) in register tiles of rows x vectors, with `unroll` steps of k
    at a time."""
    panels, tiles = 3, 4
    width = vectors * lanes
    i, j, m, n, v, k, u = (Var(name) for name in ("i", "j", "m", "n", "v", "k", "u"))
    a = Buffer("a", F32, (const(rows * tiles), const(K)))
    b = Buffer("b", F32, (const(panels), const(K), const(width)))
    c = Buffer("c", F32, (const(rows * tiles), const(panels * width)))
    acc = Buffer("acc", F32, (const(rows), const(vectors), const(lanes)), "register")

    def tile(body: Stmt) -> Stmt:
        return For(
            m, const(rows), For(n, const(vectors), For(v, const(lanes), body, "vector"), "unroll"), "unroll"
        )

    at: Expr = k * unroll + u
    step = tile(Store(acc, (m, n, v), acc[m, n, v] + a[i * rows + m, at] * b[j, at, n * lanes + v]))
    out = maximum(acc[m, n, v], const(0.0, F32))
    body = block(
        tile(Store(acc, (m, n, v), const(0.0, F32))),
        For(k, const(K // unroll), For(u, const(unroll), step, "unroll")),
        tile(Store(c, (i * rows + m, j * width + n * lanes + v), out)),
    )
    nest = For(j, const(panels), For(i, const(tiles), Alloc(acc, body)), "parallel")
    return Func("gemm", (a, b, c), 1, (), nest)


@pytest.mark.parametrize(
    ("level", "rows", "vectors", "unroll"),
    [("x86-64-v3", 6, 2, 1), ("x86-64-v3", 6, 2, 4), ("x86-64-v3", 4, 3, 1), ("x86-64-v4", 8, 3, 4),
     ("x86-64-v4", 12, 2, 4), ("x86-64-v4", 5, 5, 4), ("x86-64-v4", 14, 2, 1)],
)  # fmt: skip
def test_gemm(level: str, rows: int, vectors: int, unroll: int) -> None:
    on = target(level)
    text = assembly(micro_kernel(rows, vectors, on.processor.lanes(4), unroll), on)
    assert "%rsp" not in text.replace("pushq", ""), "a register was spilled"
    inner = max(instructions(text), key=lambda body: counts(body)["vfmadd231ps"])
    found = counts(inner)
    assert found["vfmadd231ps"] == rows * vectors * unroll
    embedded = sum("{1to" in line for line in inner)
    assert found["vbroadcastss"] + embedded == rows * unroll
    assert found["vmovups"] + found["vmovaps"] == vectors * unroll
    assert len(inner) <= (rows * vectors + rows + vectors) * unroll + 4
    assert "vmaxps" in text and "vcmp" not in text


@pytest.mark.parametrize("level", ["x86-64-v3", "x86-64-v4"])
@pytest.mark.parametrize("width", [4, 8])
def test_groups_that_share_a_vector_are_not_gathered(level: str, width: int) -> None:
    """Each group's element is broadcast to its lanes. A gather would load it once for each lane."""
    on, groups = target(level), 32
    shapes = ((1, 30, 30, groups * width), (groups * width, width, 3, 3))
    text = assembly(kernel(replace(conv(3, 1), groups=groups), shapes, on), on)
    inner = max(instructions(text), key=lambda body: sum(line.startswith("vfm") for line in body))
    assert "gather" not in text and not any("vinsertps" in line for line in inner)
    assert sum(line.startswith("vfm") for line in inner) >= 0.2 * len(inner), inner


@pytest.mark.parametrize("level", ["x86-64-v3", "x86-64-v4"])
def test_filling_up_channels_gathers_nothing(level: str) -> None:
    """Three channels are padded to four: a row is loaded, and its elements are shuffled."""
    on, (p, q) = target(level), (Var(n) for n in "pq")
    x, y = (Buffer(n, F32, (const(64), const(size))) for n, size in (("x", 96), ("y", 128)))
    lanes = on.processor.lanes(4)
    pixel, channel = p * (lanes // 4) + q // 4, q % 4
    three = select(channel < 3, x[Var("r"), pixel * 3 + channel], const(0.0, F32))
    row = For(q, const(lanes), Store(y, (Var("r"), p * lanes + q), three), "vector")
    nest = For(Var("r"), const(64), For(p, const(128 // lanes), row), "parallel")
    text = assembly(Func("filled", (x, y), 1, (), nest), on)
    assert "gather" not in text and "vinsertps" not in text and re.search("vperm|vexpand", text)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("level", ["x86-64-v3-vnni", "x86-64-v4-vnni"])
def test_products_of_bytes_add_up_four(level: str, case: str) -> None:
    """The rows' elements are broadcast to all lanes, and the columns' are loaded in vectors."""
    on, (attrs, shapes) = target(level), CASES[case]
    text = assembly(kernel(replace(attrs, dtype=I32, dot=on.machine.products[0]), shapes, on), on)
    inner = max(instructions(text.replace("{vex}", "")), key=lambda body: counts(body)["vpdpbusd"])
    assert not any("rsp" in line for line in inner), "a register was spilled"
    assert counts(inner)["vpdpbusd"] >= 0.5 * len(inner) and not counts(inner)["vpaddd"], inner


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("level", ["x86-64-v3", "x86-64-v4"])
def test_products_of_bytes_without_vnni(level: str, case: str) -> None:
    """A product of words takes three instructions, and the words are bytes."""
    on, (attrs, shapes) = target(level), CASES[case]
    text = assembly(kernel(replace(attrs, dtype=I32, dot=DOT4S), shapes, on), on)
    inner = max(instructions(text), key=lambda body: counts(body)["vpmaddubsw"])
    found = counts(inner)
    assert not any("rsp" in line for line in inner), "a register was spilled"
    assert found["vpmaddubsw"] == found["vpmaddwd"] == found["vpaddd"], inner
    assert 3 * found["vpmaddubsw"] >= 0.7 * len(inner), inner


@pytest.mark.parametrize("level", ["x86-64-v3", "x86-64-v4"])
@pytest.mark.parametrize("depth", [8192, 18_816, 150_528])
def test_long_rows_are_read_upwards(level: str, depth: int) -> None:
    """Rows are read upwards. Reading downwards within a line or two makes the prefetched data late: rows from
    memory took four times as long."""
    attrs, x = Reduce("sum", (1,)), Buffer("x", F32, (const(64), const(depth)))
    stages = CORE[attrs.op].te([x], Buffer("out", F32, (const(64),)), attrs)
    func = choose(Workload("k", stages, (x,), {}, (), target(level))).func
    text = assembly(func, target(level))
    loops = [re.findall(r"vaddps\s+(\d*)\(%r", "\n".join(loop)) for loop in instructions(text)]
    reads = [[int(at or 0) for at in loop] for loop in loops if len(loop) > 3]
    assert reads and all(at == sorted(at) for at in reads), reads


def test_only_the_tail_is_masked_one_access_each() -> None:
    n, i, v = Var("N"), Var("i"), Var("v")
    x, y = Buffer("x", F32, (n,)), Buffer("y", F32, (n,))
    body = If(i * 8 + v < n, Store(y, (i * 8 + v,), x[i * 8 + v] * 2.0))
    nest = For(i, (n + 7) // 8, For(v, const(8), body, "vector"), "parallel")
    text = assembly(Func("k", (x, y), 1, ((n, (const(1), None)),), nest), target("x86-64-v3"))
    found = counts([line for line in text.splitlines() if line.strip()])
    assert found["vmaskmovps"] == 2 and found["vpcmpgtd"] == 1 and found["vmovups"] >= 1


def test_some_lanes_of_every_second_element_are_masked_rows() -> None:
    """Each tap and the result are masked rows. A maximum that propagates NaN takes three instructions."""
    i, v, n = Var("i"), Var("v"), const(27)
    x, y = Buffer("x", F32, (const(64), const(55))), Buffer("y", F32, (const(64), n))
    pair = maximum(x[i, v * 2 + 48], x[i, v * 2 + 49])
    nest = For(i, const(64), For(v, const(8), If(v + 24 < n, Store(y, (i, v + 24), pair)), "vector"))
    (inner,) = instructions(assembly(Func("k", (x, y), 1, (), nest), target("x86-64-v3")))
    found = counts(inner)
    assert found["vmaskmovps"] == 3 and not any(line.startswith(("vinsert", "vmovss")) for line in inner)
    assert found["vmaxps"] == found["vcmpunordps"] == 1 and not found["vcmpltps"]


def test_choice_between_values_of_one_load_is_branch_free() -> None:
    i, v = Var("i"), Var("v")
    x, y = (Buffer(name, F32, (const(64), const(8))) for name in "xy")
    leaky = select(x[i, v] > const(0.0, F32), x[i, v], x[i, v] * 0.01)
    nest = For(i, const(64), For(v, const(8), Store(y, (i, v), leaky), "vector"))
    (inner,) = instructions(assembly(Func("k", (x, y), 1, (), nest), target("x86-64-v3")))
    assert counts(inner)["vmovups"] == 2 and len(inner) <= 8
