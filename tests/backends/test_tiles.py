"""Tile buffers are matrix registers if the machine has them, else local arrays with the same meaning."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest
from machine import run, runnable, target
from test_arm_assembly import conv, kernel
from test_assembly import instructions

from jangin.backends.llvm.module import emit_kernel
from jangin.backends.llvm.objects import assembly
from jangin.ir.graph import CompileError
from jangin.ir.interpret import run_func
from jangin.ir.parse import parse_func
from jangin.ir.products import DOT2BF, DOT4U
from jangin.ir.text import print_func
from jangin.ir.verify import VerifyError, verify_func
from jangin.targets.x86 import V4_AMX, V4_BF16

PRODUCT = """
func k(a: i32[13, 22], b: i32[22, 23], begin: i32[23], out: out i32[13, 23]) {
  parallel t in 1 {
    alloc tile sums: i32[13, 16]
    serial i0 in 13 { vector j0 in 16 { sums[i0, j0] = begin[j0] } }
    serial k in 2 {
      alloc tile left: i32[13, 11]
      serial i1 in 13 { serial k1 in 11 { left[i1, k1] = a[i1, k * 11 + k1] } }
      alloc tile right: i32[11, 16]
      serial k2 in 11 { vector j2 in 16 { right[k2, j2] = b[k * 11 + k2, j2] } }
      serial i in 13 { serial k3 in 11 { vector j in 16 {
        sums[i, j] = sums[i, j] + dot4u(left[i, k3], right[k3, j]) } } }
    }
    serial i4 in 13 { vector j4 in 16 { out[i4, j4] = sums[i4, j4] } }
    alloc tile rest: i32[13, 7]
    serial i5 in 13 { serial j5 in 7 { rest[i5, j5] = i32(0) } }
    serial i6 in 13 { serial j6 in 7 { out[i6, 16 + j6] = rest[i6, j6] } }
  }
}"""


def test_nests_are_instructions() -> None:
    """Matrices of different sizes that are used one after another have registers of their own."""
    func = parse_func(PRODUCT)
    verify_func(func)
    assert parse_func(print_func(func)) == func
    text = assembly(func, V4_AMX)
    words = re.findall(r"(?m)^\s+(tile\w+|tdp\w+|ldtile\w+)", text)
    loop = ["tileloadd", "tileloadd", "tdpbusd"]
    assert words == ["ldtilecfg", "tileloadd", *loop, "tilestored", "tilezero", "tilestored", "tilerelease"]
    assert set(re.findall(r"%tmm\d", text)) == {f"%tmm{n}" for n in range(4)}


@pytest.mark.parametrize("name", runnable())
def test_elsewhere_they_are_loops(name: str) -> None:
    func, rng = parse_func(PRODUCT), np.random.default_rng()
    shapes = {p.name: tuple(int(str(d)) for d in p.shape) for p in func.params}
    arrays = {n: rng.integers(-(1 << 31), 1 << 31, s).astype(np.int32) for n, s in shapes.items()}
    got = run(func, arrays, {}, target(name))["out"]
    run_func(func, arrays, {})
    np.testing.assert_array_equal(got, arrays["out"])
    left, right = arrays["a"].view(np.uint8).astype(np.int64), arrays["b"].view(np.int8).reshape(22, 23, 4)
    sums = left @ right.transpose(0, 2, 1).reshape(88, 23).astype(np.int64)
    np.testing.assert_array_equal(got[:, :16], (sums + arrays["begin"]).astype(np.int32)[:, :16])
    assert not got[:, 16:].any() and "tile" not in emit_kernel(func, target(name))


OTHERS = {
    "a part of the rows": ("serial i0 in 13 {", "serial i0 in 12 {"),
    "columns that aren't contiguous": ("= begin[j0]", "= begin[j0 // 2]"),
    "what is computed": ("= begin[j0]", "= begin[j0] + i32(1)"),
    "another number": ("= i32(0)", "= i32(1)"),
    "a condition": ("{ out[i4, j4] = sums[i4, j4] }", "{ if i4 < 5 { out[i4, j4] = sums[i4, j4] } }"),
    "sums that change": ("out[i4, j4] = sums[i4, j4]", "out[i4, j4] = max(sums[i4, j4], i32(0))"),
    "a product of columns": ("left[i, k3], right[k3, j]", "left[i, k3], right[k3, i]"),
    "a product by no instruction": ("dot4u", "dot2"),
    "a product of memory": ("dot4u(left[i, k3], right[k3, j])", "dot4u(left[i, k3], b[k3, j])"),
    "a diagonal": (
        "serial i5 in 13 { serial j5 in 7 { rest[i5, j5] = i32(0) } }",
        "alloc tile square: i32[7, 7] serial i5 in 7 { square[i5, i5] = i32(0) }",
    ),
    "lanes that are no matrix": (
        "alloc tile left: i32[13, 11]",
        "vector n in 2 { sums[n, 0] = i32(0) } alloc tile left: i32[13, 11]",
    ),
    "too many rows": ("13", "17"),
    "too many registers": (
        "alloc tile sums: i32[13, 16]",
        "alloc tile more: i32[3, 3, 2, 2] alloc tile sums: i32[13, 16]",
    ),
}


@pytest.mark.parametrize("case", OTHERS)
def test_what_no_instruction_does_is_an_error(case: str) -> None:
    """The error names the statement, or the exceeded limit. The interpreter still runs the kernel."""
    func = parse_func(PRODUCT.replace(*OTHERS[case]))
    verify_func(func)
    with pytest.raises(
        CompileError, match=r"k: (no instruction on matrices|no matrix register|its matrices)"
    ):
        emit_kernel(func, V4_AMX)
    assert "tile" not in emit_kernel(func, V4_BF16)


@pytest.mark.parametrize(
    ("shape", "loops", "error"),
    [
        ("i32[16]", "parallel t in 1", "no rows and columns"),
        ("i32[n, 16]", "parallel t in 1", "needs a constant shape"),
        ("i32[2, 16]", "block t in 1 { thread u in 32", "the lanes of a warp share it"),
    ],
)
def test_what_no_tile_buffer_is(shape: str, loops: str, error: str) -> None:
    nest = f"{loops} {{ alloc tile acc: {shape} out[0] = i32(0) }}" + " }" * loops.count("{")
    with pytest.raises(VerifyError, match=error):
        verify_func(parse_func(f"func k(out: out i32[4]) symbols (n in 1..16) {{ {nest} }}"))


LAYERS = {
    "1x1 256 to 64": (conv(1, 1), ((1, 56, 56, 64), (64, 64, 1, 1)), DOT4U),
    "3x3 64 to 64": (conv(3, 1), ((1, 58, 58, 16), (64, 16, 3, 3)), DOT4U),
    "1x1 1024 to 512, stride 2": (conv(1, 2), ((1, 14, 14, 256), (512, 256, 1, 1)), DOT4U),
    "3x3 512 to 512": (conv(3, 1), ((1, 9, 9, 128), (512, 128, 3, 3)), DOT4U),
    "3x3 64 to 64 in bfloat16": (conv(3, 1), ((1, 58, 58, 32), (64, 32, 3, 3)), DOT2BF),
}
"""Layers of ResNet-50, as words of four int8 or two bfloat16."""


@pytest.mark.parametrize("case", LAYERS)
def test_layers_are_products_of_matrices(case: str) -> None:
    """The sum's loop multiplies as often as it loads, and has few other instructions."""
    attrs, shapes, dot = LAYERS[case]
    word = {DOT4U: "tdpbusd", DOT2BF: "tdpbf16ps"}[dot]
    text = assembly(kernel(replace(attrs, dtype=dot.total, dot=dot), shapes, V4_AMX), V4_AMX)
    inner = max(instructions(text), key=lambda loop: len([line for line in loop if line.startswith(word)]))
    words = [line.split()[0] for line in inner]
    assert words.count(word) >= words.count("tileloadd") >= 4 and len(words) <= 18, inner
    assert not any("rsp" in line for line in inner), "a register was spilled"
    assert text.count("ldtilecfg") == text.count("tilerelease") == 1
