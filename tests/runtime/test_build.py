"""Building and loading machine code: determinism, errors, the entry's arithmetic, relocations."""

from __future__ import annotations

import ctypes
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from plans import N, affine, buffer, compiled, kernel, launch, plan

from jangin.backends.llvm.entry import entry_module
from jangin.backends.llvm.objects import assembly, compile_modules, target_machine
from jangin.compiler.build import build
from jangin.ir.dtype import I64
from jangin.ir.expr import Buffer as Tensor
from jangin.ir.expr import (
    Expr,
    Load,
    Var,
    binary,
    cast,
    const,
    eq,
    floordiv,
    lor,
    maximum,
    minimum,
    mod,
    select,
)
from jangin.ir.parse import parse_func
from jangin.runtime.device import LoadError
from jangin.runtime.elf import Image
from jangin.runtime.executable import Executable
from jangin.runtime.sizes import Evaluator
from jangin.targets.x86 import V2

M = Var("m")
pytestmark = pytest.mark.usefixtures("compiled_anew")


def test_deterministic_and_an_object_a_kernel() -> None:
    kernels = [affine(f"k{i}", float(i), 1.0) for i in range(12)]
    made = plan(
        [buffer("x", "input", 8), buffer("y", "output", 8)], [launch(k, ["x", "y"], 8) for k, _ in kernels]
    )
    first, second = compiled(made, kernels), compiled(made, kernels)
    assert len(second.objects) == 14 and first.objects == second.objects
    x = np.arange(8, dtype=np.float32)
    np.testing.assert_array_equal(Executable(first, 1)(x), x * 11 + 1)


@pytest.mark.parametrize("text", ["define void @k( {", 'define i32 @"k"() {\n ret i32 %x\n}'])
def test_bad_code_names_the_kernel(text: str) -> None:
    with pytest.raises(RuntimeError, match="kernel 'conv1'"):
        compile_modules([("conv1", text)], V2)


def test_unknown_triple() -> None:
    with pytest.raises(ValueError, match="LLVM has no target 'nonsense'"):
        target_machine(replace(V2, triple="nonsense"))


def test_no_scalar_code() -> None:
    table = Tensor("t", I64, (const(4),))
    for size in (Load(table, (const(0),)), Var("unknown"), binary("shl", N, 1)):
        made = plan(
            [buffer("x", "input", 1)],
            [launch("k", ["x"], 1, symbols=[size])],
            outputs=["x"],
            symbols=[(N, (1, 4))],
        )
        with pytest.raises(ValueError, match=r"plan 'test': the size .* can't be computed"):
            entry_module(made, V2)


def test_from_loop_to_result() -> None:
    func = parse_func("""
func twice(x: f32[n, 3], y: out f32[n, 3]) symbols (n in 1..100) {
  parallel i in n {
    serial j in 3 {
      y[i, j] = x[i, j] * 2.0
    }
  }
}
""")
    made = plan(
        [buffer("x", "input", N, 3), buffer("y", "output", N, 3)],
        [launch("twice", ["x", "y"], N, grain=2, symbols=[N])],
        symbols=[(N, (1, 100))],
    )
    made = replace(made, kernels={"twice": func})
    first, second = (build(made, V2) for _ in range(2))
    assert first.objects == second.objects
    x = np.arange(90, dtype=np.float32).reshape(30, 3)
    np.testing.assert_array_equal(Executable(first, 2)(x), x * 2)
    assert "twice:" in assembly(func, V2)


numbers = st.one_of(st.integers(-9, 9).map(const), st.sampled_from([N, M]))


def _divide(op: object, pair: tuple[Expr, Expr]) -> Expr:
    a, b = pair
    return select(eq(b, 0), 7, op(a, b))  # type: ignore[operator]


def _grow(inner: st.SearchStrategy[Expr]) -> st.SearchStrategy[Expr]:
    pair = st.tuples(inner, inner)
    return st.one_of(
        pair.map(lambda p: p[0] + p[1]),
        pair.map(lambda p: p[0] - p[1]),
        pair.map(lambda p: p[0] * p[1]),
        pair.map(lambda p: minimum(*p)),
        pair.map(lambda p: maximum(*p)),
        pair.map(lambda p: _divide(floordiv, p)),
        pair.map(lambda p: _divide(mod, p)),
        inner.map(lambda e: -e),
        st.tuples(pair, pair).map(lambda q: select(lor(q[0][0] < q[0][1], eq(*q[1])), q[0][0], q[1][1])),
        pair.map(lambda p: cast(I64, p[0] <= p[1])),
    )


@settings(max_examples=15)
@given(st.lists(st.recursive(numbers, _grow, max_leaves=8), min_size=1, max_size=12), st.data())
def test_sizes_in_the_entry_equal_pythons(sizes: list[Expr], data: st.DataObject) -> None:
    copy = kernel(
        "copy",
        """
  %s.i = getelementptr i64, ptr %symbols, i64 %i
  %s = load i64, ptr %s.i
  %o.i = getelementptr i64, ptr %y, i64 %i
  store i64 %s, ptr %o.i""",
    )
    made = plan(
        [buffer("x", "input", N, M), buffer("y", "output", len(sizes), dtype=I64)],
        [launch("copy", ["x", "y"], len(sizes), symbols=sizes)],
        symbols=[(N, (0, 50)), (M, (0, 50))],
    )
    exe = Executable(compiled(made, [copy]), 1)
    for _ in range(5):
        n, m = data.draw(st.integers(0, 50)), data.draw(st.integers(0, 50))
        value = Evaluator({N: n, M: m})
        result = exe(np.zeros((n, m), np.float32))
        assert list(result) == [value(e) for e in sizes]  # type: ignore[arg-type]


_DATA = """
@table = internal constant [4 x i64] [i64 10, i64 20, i64 30, i64 40]
@functions = internal constant [2 x ptr] [ptr @one, ptr @outside]
@counter = internal global i64 5
@zeros = internal global [100 x i64] zeroinitializer
declare i64 @outside(i64)
declare double @cos(double)
define internal i64 @one(i64 %x) noinline {
  ret i64 1
}
define i64 @main(i64 %x) {
  %e = getelementptr [4 x i64], ptr @table, i64 0, i64 %x
  %t = load i64, ptr %e
  %f.at = getelementptr [2 x ptr], ptr @functions, i64 0, i64 %x
  %f = load ptr, ptr %f.at
  %r = call i64 %f(i64 %t)
  %c = load i64, ptr @counter
  %c1 = add i64 %c, %r
  store i64 %c1, ptr @counter
  %z.at = getelementptr [100 x i64], ptr @zeros, i64 0, i64 99
  %z = load i64, ptr %z.at
  %q = call double @cos(double 0.0)
  %qi = fptosi double %q to i64
  %s = add i64 %c1, %z
  %s1 = add i64 %s, %qi
  %o = call i64 @outside(i64 %s1)
  ret i64 %o
}
"""
_OUTSIDE = "define i64 @outside(i64 %x) {\n %y = mul i64 %x, 2\n ret i64 %y\n}"


def test_data_pointers_and_calls_between_objects() -> None:
    objects = [compile_modules([("a", _DATA)], V2), compile_modules([("b", _OUTSIDE)], V2)]
    image = Image(objects)
    main = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64)(image.address("main"))
    assert main(0) == (5 + 1 + 0 + 1) * 2
    assert main(1) == (6 + 40 + 0 + 1) * 2
    with pytest.raises(LoadError, match="has no function 'absent'"):
        image.address("absent")


def test_what_cannot_be_loaded() -> None:
    lonely = compile_modules([("a", _DATA)], V2)
    with pytest.raises(LoadError, match="needs the function 'outside', which libc, libm and libgcc lack"):
        Image([lonely])
    for data in (b"", b"\x7fELF\x01\x01" + bytes(100), b"MZ" + bytes(100)):
        with pytest.raises(LoadError, match="it is no ELF object for x86_64"):
            Image([data])
