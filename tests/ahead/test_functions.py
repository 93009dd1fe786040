"""Functions written as C and as LLVM IR compute the same, and agree with the expressions of sizes."""

from __future__ import annotations

import ctypes
import random
from collections.abc import Callable
from pathlib import Path

import pytest
from built import COMPILERS, library

from jangin.backends.clike.plain import CFunctions
from jangin.backends.functions import FunctionWriter, Signature, Value, i64
from jangin.backends.llvm.objects import compile_modules
from jangin.backends.llvm.plain import LlvmFunctions
from jangin.ir.dtype import I64
from jangin.ir.expr import Expr, Var, binary, call, cast, const, select
from jangin.runtime.sizes import Evaluator
from jangin.targets import resolve

pytestmark = pytest.mark.skipif(not COMPILERS, reason="no C compiler here: neither gcc nor clang")

A, B = Var("a"), Var("b")
Write = Callable[[FunctionWriter], None]


def libraries(write: Write, folder: Path) -> list[ctypes.CDLL]:
    """Compile the functions that `write` writes, from C by each compiler and from LLVM IR."""
    plain = CFunctions()
    write(plain)
    text = f"#include <stdint.h>\n#include <stddef.h>\n#include <string.h>\n{plain.text()}"
    found = []
    for compiler in COMPILERS:
        (folder / compiler).mkdir()
        (folder / compiler / "f.c").write_text(text)
        flags = ("-Wall", "-Wextra", "-Werror", "-fsanitize=undefined", "-fno-sanitize-recover")
        flags = flags if compiler == "gcc" else flags[:3]
        found.append(library(folder / compiler, ["f.c"], flags, compiler))
    target = resolve()
    native = LlvmFunctions("f", target)
    write(native)
    (folder / "f.o").write_bytes(compile_modules([("f", native.text())], target))
    return [ctypes.CDLL(str(p)) for p in (*found, library(folder, ["f.o"]))]


def random_size(rng: random.Random, depth: int) -> Expr:
    """Return a random expression of two sizes."""
    if not depth or rng.random() < 0.15:
        return rng.choice([A, B, const(rng.randint(-9, 9))])
    x, y = random_size(rng, depth - 1), random_size(rng, depth - 1)
    kind = rng.random()
    if kind < 0.75:
        return binary(rng.choice(["add", "sub", "mul", "floordiv", "mod", "min", "max"]), x, y)
    cond = binary(rng.choice(["lt", "le", "gt", "ge", "eq", "ne"]), x, y)
    if kind < 0.85:
        return select(cond, x, y)
    return cast(I64, cond) if kind < 0.93 else call("abs", x)


@pytest.mark.sampled(2)
def test_sizes_are_what_the_expressions_say(tmp_path: Path) -> None:
    rng = random.Random(0)
    exprs = [random_size(rng, 4) for _ in range(60)]

    def write(w: FunctionWriter) -> None:
        for n, e in enumerate(exprs):
            with w.define(Signature(f"int64_t size_{n}(int64_t a, int64_t b)")) as given:
                w.names = {A: given["a"], B: given["b"]}
                w.ret(w.value(e))

    made = libraries(write, tmp_path)
    points = [(0, 0), (1, 1), (-7, 3), *((rng.randint(-50, 50), rng.randint(-50, 50)) for _ in range(20))]
    for n, e in enumerate(exprs):
        for a, b in points:
            try:
                want = Evaluator({A: a, B: b})(e)
            except ValueError:  # a division by zero, which only the unused arm of a choice may have
                continue
            for compiled in made:
                function = getattr(compiled, f"size_{n}")
                function.restype = ctypes.c_int64
                assert function(ctypes.c_int64(a), ctypes.c_int64(b)) == want, (e, a, b)


def test_numbers_that_do_not_fit_are_noticed(tmp_path: Path) -> None:
    def write(w: FunctionWriter) -> None:
        with w.define(Signature("int32_t fits(int64_t a, int64_t b)")) as given:
            w.names = {A: given["a"], B: given["b"]}
            w.checking = True
            w.value(A * B * 4 + 63)
            wrong = w.overflowed()
            assert wrong is not None
            w.checking = False
            w.refuse(wrong, 0)
            w.ret(Value("1", "i32"))

    big = 1 << 31
    for made in libraries(write, tmp_path):
        for a, b in (
            (3, 4),
            (big, big),
            (big, -big),
            (big // 2, big),
            (1 << 62, 1),
            (-1, 1 << 60),
            (1 << 61, 1),
        ):
            fits = 4 * a * b >= -(1 << 63) and 4 * a * b + 63 < 1 << 63
            assert made.fits(ctypes.c_int64(a), ctypes.c_int64(b)) == fits, (a, b)


def test_loops_calls_and_memory(tmp_path: Path) -> None:
    """A loop sums the results of a function, called by a pointer, and counts in memory."""
    each = Signature("int64_t each(int64_t x)")

    def write(w: FunctionWriter) -> None:
        table = w.numbers("steps", [5, 7])
        with w.define(Signature("int64_t twice(int64_t x)"), "internal") as given:
            w.ret(w.arithmetic("add", given["x"], given["x"]))
        twice = Signature("int64_t twice(int64_t x)")
        with w.define(Signature("int64_t total(const int64_t *x, int64_t n)")) as given:
            state, counter = w.local("i64", 2), w.local("i32", 1)
            for n in range(2):
                w.store(state, i64(n), i64(0))
            w.store(counter, i64(0), Value("0", "i32"))
            with w.forever():
                number = w.convert("i64", w.fetch_add(counter, 1))
                with w.when(w.compare("ge", number, given["n"])):
                    step = w.convert("i64", w.load("i32", table, i64(1)))
                    w.ret(w.arithmetic("add", w.load("i64", state, i64(1)), step))
                one = w.load("i64", given["x"], number)
                two = w.call(each, one, at=w.address(twice))
                sum = w.arithmetic("add", w.load("i64", state, i64(1)), two)
                w.store(state, i64(1), sum)

    x = (ctypes.c_int64 * 4)(1, -2, 30, 1 << 40)
    for made in libraries(write, tmp_path):
        made.total.restype = ctypes.c_int64
        assert made.total(x, ctypes.c_int64(4)) == 2 * sum(x) + 7
        assert made.total(x, ctypes.c_int64(0)) == 7
