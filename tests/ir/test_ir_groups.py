"""Blocks and threads: the errors of the verifier, and the barriers that follow from the threads' accesses."""

from __future__ import annotations

import re
from itertools import permutations

import numpy as np
import pytest

from jangin.ir.graph import Array
from jangin.ir.groups import barriers, grouped, lives_across, per_thread, shared_layout, thread_loops, threads
from jangin.ir.interpret import run_func
from jangin.ir.kernel import scratch_bytes, tasks
from jangin.ir.loop import Func
from jangin.ir.parse import parse_func
from jangin.ir.text import print_func
from jangin.ir.verify import VerifyError, verify_func

PRODUCT = """func product(a: f32[M, 16], b: f32[16, 16], c: out f32[M, 16]) symbols (M in 1..) {
  block t in (M + 7) // 8 {
    alloc shared left: f32[2, 8, 4]
    alloc shared right: f32[4, 16]
    alloc register acc: f32[32, 2, 2]
    thread x in 32 { serial i in 2 { serial j in 2 { acc[x, i, j] = f32(0.0) } } }
    serial k in 4 {
      thread y in 32 { left[k % 2, y // 4, y % 4] = a[min(t * 8 + y // 4, M - 1), k * 4 + y % 4] }
      thread z in 32 { serial e in 2 { right[(e * 32 + z) // 16, (e * 32 + z) % 16] = b[k * 4 + (e * 32 + z) // 16, (e * 32 + z) % 16] } }
      thread w in 32 { serial l in 4 { unroll m in 2 { unroll n in 2 {
        acc[w, m, n] = acc[w, m, n] + left[k % 2, w // 8 * 2 + m, l] * right[l, w % 8 * 2 + n]
      } } } }
    }
    thread v in 32 { serial o in 2 { if t * 8 + v // 8 * 2 + o < M { serial p in 2 {
      c[t * 8 + v // 8 * 2 + o, v % 8 * 2 + p] = acc[v, o, p]
    } } } }
  }
}"""  # noqa: E501
SUM = """func total(x: f32[N, 100], o: out f32[N]) symbols (N in 1..) {
  block t in N {
    alloc shared s: f32[64]
    thread x1 in 64 {
      alloc register a: f32[1]
      a[0] = f32(0.0)
      serial k in 2 { if k * 64 + x1 < 100 { a[0] = a[0] + x[t, k * 64 + x1] } }
      s[x1] = a[0]
    }
    unroll j in 6 { thread x2 in 64 { if x2 < 32 >> j { s[x2] = s[x2] + s[x2 + (32 >> j)] } } }
    thread x3 in 64 { if x3 < 1 { o[t] = s[0] } }
  }
}"""
MAP = """func map(x: f32[N, K], o: out f32[N, K]) symbols (N in 1.., K in 1..) {
  block t in (N * K + 31) // 32 {
    thread x1 in 32 {
      if t * 32 + x1 < N * K { o[(t * 32 + x1) // K, (t * 32 + x1) % K] = x[(t * 32 + x1) // K, (t * 32 + x1) % K] }
    }
  }
}"""  # noqa: E501
TURNS = """func turns(x: f32[K], o: out f32[K]) symbols (K in 1..) {
  block t in 1 {
    alloc scratch q: f32[2, K]
    thread x1 in 32 { serial i in (K + 31) // 32 { if i * 32 + x1 < K { q[0, i * 32 + x1] = x[i * 32 + x1] } } }
    serial l in 8 { thread x2 in 32 { serial m in (K + 31) // 32 { if m * 32 + x2 < K {
      q[(l + 1) % 2, m * 32 + x2] = q[l % 2, K - 1 - m * 32 - x2]
    } } } }
    thread x3 in 32 { serial n in (K + 31) // 32 { if n * 32 + x3 < K { o[n * 32 + x3] = q[0, n * 32 + x3] } } }
  }
}"""  # noqa: E501
WIDE = """func wide(x: f32[N, 40], o: out f32[N, 40]) symbols (N in 1..) {
  block t in (N * 10 + 31) // 32 { thread y in 32 { if t * 32 + y < N * 10 { vector v in 4 {
    o[(t * 32 + y) // 10, (t * 32 + y) % 10 * 4 + v] = x[(t * 32 + y) // 10, (t * 32 + y) % 10 * 4 + v]
  } } } }
}"""
ALL = {"product": PRODUCT, "sum": SUM, "map": MAP, "turns": TURNS, "wide": WIDE}


@pytest.mark.parametrize("name", ALL)
def test_right_kernels(name: str) -> None:
    func = parse_func(ALL[name])
    assert parse_func(print_func(func)) == func
    verify_func(func)
    assert grouped(func)


def result(func: Func, seed: int = 0) -> Array:
    """Run one of the kernels above in the interpreter, on random inputs."""
    rng, sizes = np.random.default_rng(seed), {v.name: 5 for v, _ in func.symbols}
    arrays: dict[str, Array] = {}
    for p in func.params:
        shape = [sizes.get(str(d)) or int(str(d)) for d in p.shape]
        arrays[p.name] = rng.integers(-4, 5, shape).astype(np.float32)
    run_func(func, arrays, sizes)
    return arrays[func.results[0].name]


def test_they_mean_what_serial_loops_mean() -> None:
    rng = np.random.default_rng(0)
    a, b = (rng.integers(-4, 5, s).astype(np.float32) for s in ((5, 16), (16, 16)))
    np.testing.assert_array_equal(result(parse_func(PRODUCT)), a @ b)
    x = np.random.default_rng(0).integers(-4, 5, (5, 100)).astype(np.float32)
    np.testing.assert_array_equal(result(parse_func(SUM)), x.sum(1))
    for text in ALL.values():
        serial = re.sub(r"\b(block|thread)\b", "serial", text).replace("shared", "scratch")
        np.testing.assert_array_equal(result(parse_func(text)), result(parse_func(serial)))


def test_what_a_launch_needs() -> None:
    func = parse_func(PRODUCT)
    assert (threads(func), str(tasks(func))) == (32, "((M + 7) // 8)")
    assert shared_layout(func) == ({"left": 0, "right": 256}, 512)
    assert str(scratch_bytes(func, groups=True)) == "0"
    assert str(scratch_bytes(func)) == "512"
    own = parse_func(TURNS.replace("alloc scratch q", "alloc shared r: f32[3] alloc scratch q"))
    in_turn = "((((K * 8) + 63) // 64) * 64)"
    assert str(scratch_bytes(own, groups=True)) == in_turn
    assert str(scratch_bytes(own)) == f"({in_turn} + 64)"


def test_barriers() -> None:
    """A barrier stands only where work-items wait for others to write or to read."""

    def found(text: str) -> list[str]:
        func = parse_func(text)
        return [s.var.name for s in thread_loops(func.body) if id(s) in barriers(func)]

    assert found(PRODUCT) == ["y", "w"]
    assert found(SUM) == ["x1", "x2", "x3"]
    assert found(MAP) == []
    assert found(TURNS) == ["x1", "x2", "x3"]
    assert found(PRODUCT.replace("serial k in 4", "serial k in 1")) == ["y", "w"]


def test_registers_of_a_thread() -> None:
    func = parse_func(PRODUCT)
    assert [b.name for b in lives_across(func)] == ["acc"]
    text = print_func(per_thread(func))
    assert "alloc register acc: f32[2, 2]" in text and "acc[m, n] = acc[m, n] +" in text


WRONG = [
    (PRODUCT, "thread z in 32", "thread z in 16", "of a block are for 32 and 16 work-items"),
    (MAP, "block t in", "parallel t in", "is in no block loop"),
    (PRODUCT, "acc: f32[32, 2, 2]", "acc: f32[40, 2, 2]", "40 elements on its thread axis, not 32"),
    (PRODUCT, "acc[v, o, p]", "acc[0, o, p]", "no axis of its own for each thread"),
    (PRODUCT, "v % 8 * 2 + p]", "v % 8 + p]", "two threads of loop v may write one place"),
    (PRODUCT, "(e * 32 + z) % 16] = b", "0] = b", "two threads of loop z may write one place"),
    (PRODUCT, "left[k % 2, y // 4, y % 4]", "left[k % 2, y // 8, y % 4]", "loop y may write one place"),
    (PRODUCT, "c[t * 8 + v // 8 * 2 + o,", "c[v // 8 * 2 + o * t,", "loop v may write one place"),
    (PRODUCT, "serial k in 4 {", "serial k in 4 { left[0, 0, 0] = f32(1.0)", "outside its thread loops"),
    (PRODUCT, "serial k in 4 {", "serial k in 4 { let u = left[0, 0, 0]", "is read in a block outside"),
    (
        PRODUCT,
        "serial l in 4 {",
        "serial l in 4 { alloc shared u: f32[4]",
        "must be allocated in a block loop",
    ),
    (PRODUCT, "serial l in 4 {", "thread l in 4 {", "thread loop l is inside thread loop w"),
    (PRODUCT, "thread x in 32 {", "vector q in 2 { thread x in 32 {", "is inside vector loop q"),
    (PRODUCT, "shared left: f32[2, 8, 4]", "shared left: f32[2, 8, M]", "needs a constant shape"),
    (SUM, "x2 < 32 >> j", "x2 < 64 >> j", "a thread of loop x2 may read s"),
    (SUM, "s[x2 + (32 >> j)] } }", "s[x2 + 1] } }", "a thread of loop x2 may read s"),
    (SUM, "if x3 < 1 { o[t]", "if x3 < 2 { o[t]", "two threads of loop x3 may write one place: o"),
    (MAP, "if t * 32 + x1 < N * K { o[(t * 32 + x1) // K,", "if x1 < K { o[0,", "may write one place: o"),
    (
        WIDE,
        "o[(t * 32 + y) // 10, (t * 32 + y) % 10 * 4 + v]",
        "o[(t * 32 + y) // 10, (t * 32 + y) % 10 * 3 + v]",
        "may write one place: o",
    ),
    (TURNS, "q[l % 2, K - 1", "q[(l + 1) % 2, K - 1", "may read q"),
    (TURNS, "serial l in 8", "block l in 8", "block loop l must be outermost"),
]


@pytest.mark.parametrize(("text", "old", "new", "message"), WRONG)
def test_wrong_kernels(text: str, old: str, new: str, message: str) -> None:
    assert old in text
    wrong = text.replace(old, new, 1)
    if new.startswith("vector q"):
        wrong = wrong.replace("= f32(0.0) } } }", "= f32(0.0) } } } }", 1)
    with pytest.raises((VerifyError, IndexError), match=re.escape(message)):
        func = parse_func(wrong)
        verify_func(func)
        result(func)


def test_indices_read_from_memory_prove_nothing() -> None:
    text = """func scatter(x: f32[8], at: i64[8], o: out f32[8]) {
      block t in 1 { thread y in 8 { o[INDEX] = x[y] } }
    }"""
    with pytest.raises(VerifyError, match="may write one place"):
        verify_func(parse_func(text.replace("INDEX", "at[y]")))
    verify_func(parse_func(text.replace("INDEX", "y")))


@pytest.mark.parametrize("stride", range(1, 7))
@pytest.mark.parametrize("order", [*permutations(("y", "e"))])
def test_races_are_those_that_happen(stride: int, order: tuple[str, str]) -> None:
    """A loop is refused if and only if two of its threads write one place."""
    index = f"{order[0]} * {stride} + {order[1]}"
    func = parse_func(
        f"func f(x: f32[9], o: out f32[60]) {{ block t in 1 {{ thread y in 9 {{ serial e in 3 {{"
        f" o[{index}] = x[y] }} }} }} }}"
    )
    at = [{eval(index, {"y": y, "e": e}) for e in range(3)} for y in range(9)]
    meets = any(at[a] & at[b] for a in range(9) for b in range(a))
    if meets:
        with pytest.raises(VerifyError, match="may write one place"):
            verify_func(func)
    else:
        verify_func(func)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("rows", [1, 2, 3, 5, 112])
@pytest.mark.parametrize("split", [(28, 28), (7, 7), (5, 5), (7, 5)])
@pytest.mark.parametrize("start", ["", " + s"])
def test_pixels_of_images_one_after_another(rows: int, split: tuple[int, int], start: str) -> None:
    """Sixteen threads write pixels of rows that end anywhere. The row's number begins again with each image,
    and the columns begin anywhere. The loop is refused if and only if two threads write one place."""
    over, modulo = split
    pixel = "(t * 16 + y)"
    index = f"{pixel} // {over} % {rows}, {pixel} % {modulo}{start}"
    func = parse_func(
        f"func f(x: f32[16], o: out f32[{rows}, W]) symbols (W in 28.., s in 0..) {{"
        f" block t in 99 {{ thread y in 16 {{ o[{index}] = x[y] }} }} }}"
    )
    tasks = [[eval(index, {"t": t, "y": y, "s": 3}) for y in range(16)] for t in range(99)]
    if any(len(set(task)) < 16 for task in tasks):
        with pytest.raises(VerifyError, match="may write one place"):
            verify_func(func)
    else:
        verify_func(func)


STATES = """func states(x: f32[8], o: out f32[22, 8]) {
  serial round in 21 { block t in 1 { thread y in 8 {
    if round < 1 { o[20, y] = x[y] } else {
      serial k in 8 { o[20 + round % 2, y] = o[20 + (round + 1) % 2, k] }
      o[round - 1, y] = x[y]
    }
  } } }
}"""


def test_rounds_hand_states_to_each_other() -> None:
    verify_func(parse_func(STATES))


@pytest.mark.parametrize(
    ("old", "new"),
    [("(round + 1) % 2", "round % 2"), ("round < 1", "y < 1"), ("o[round - 1,", "o[21 - round,")],
)
def test_races_in_rounds(old: str, new: str) -> None:
    assert old in STATES
    with pytest.raises(VerifyError, match="while another writes"):
        verify_func(parse_func(STATES.replace(old, new)))


OF_ANY_LENGTH = """func states(x: f32[8], o: out f32[S + 2, 8]) symbols (S in 0..) {
  serial round in 2 * S + 1 { block t in 1 { thread y in 8 {
    if round < 1 { o[S, y] = x[y] } else {
      serial k in 8 { o[S + (round + 1) % 2, y] = o[S + round % 2, k] }
      o[ROW, y] = x[y]
    }
  } } }
}"""


@pytest.mark.parametrize(
    ("row", "races"),
    [("(round + 1) // 2 - 1", False), ("(round + 1) // 2", True), ("S - (round + 1) // 2", False),
     ("S + 1 - (round + 1) // 2", True), ("S - (round + 2) // 3", False)],
)  # fmt: skip
def test_states_of_any_length_lie_behind_the_results(row: str, races: bool) -> None:
    """Results have rows below S, from the first step to the last or from the last to the first. A step takes
    two rounds."""
    func = parse_func(OF_ANY_LENGTH.replace("ROW", row))
    if races:
        with pytest.raises(VerifyError, match="while another writes"):
            verify_func(func)
    else:
        verify_func(func)
