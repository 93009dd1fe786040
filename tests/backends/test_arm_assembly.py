"""The instructions of inner loops on Arm processors: no spills, mostly multiply-adds."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace

import pytest
from kernel_graphs import GRAPHS, texts
from loops import innermost

from jangin.backends.llvm.objects import assembly
from jangin.ir import te
from jangin.ir.core import Conv, MatMul
from jangin.ir.dtype import F16, F32, I16, I32, DType
from jangin.ir.expr import Buffer, Load, Var, call, const, maximum
from jangin.ir.graph import Value
from jangin.ir.loop import Func
from jangin.ir.products import DOT1H, DOT2B, PRODUCTS
from jangin.ops.core import CORE
from jangin.targets import Target
from jangin.targets.arm import (
    AARCH64,
    ARMV7,
    CORTEX_A7,
    CORTEX_A53,
    CORTEX_A72,
    CORTEX_A76,
    NEOVERSE_N1,
    NEOVERSE_V1,
)
from jangin.templates.choose import choose
from jangin.templates.template import Workload

pytestmark = pytest.mark.sampled(3)

SHARE = 0.8
"""The least share of an inner loop's instructions that must be multiply-adds."""
FOR_MORE_REGISTERS = ("depthwise 5x5",)
"""Cases whose sums, data, weights and addresses need more than 16 registers."""


def kernel(
    attrs: Conv | MatMul, shapes: tuple[tuple[int, ...], ...], target: Target, weights: DType = F32
) -> Func:
    """A product with a constant right operand, a bias and a rectifier, as the compiler schedules it.

    The operands are words of several numbers if `attrs` says so."""
    types = [attrs.dot.word] * 2 if attrs.dot else [F32, weights]
    x, w = (Buffer(n, t, tuple(map(const, s))) for n, t, s in zip("xw", types, shapes, strict=True))
    dtype, shape = CORE[attrs.op].infer([Value(b.name, b.dtype, b.shape) for b in (x, w)], attrs)
    (stage,) = CORE[attrs.op].te([x, w], Buffer("out", dtype, shape), attrs)
    bias = Buffer("bias", dtype, (stage.axes[-1].extent,))
    end = maximum(stage.acc + Load(bias, (stage.axes[-1].var,)), const(0, dtype))
    stage = te.Stage(stage.out, stage.axes, stage.body, stage.reduce_axes, stage.combiner, end)
    return choose(Workload("k", (stage,), (x, w, bias), {}, ("w", "bias"), target)).func


def conv(kernel: int, stride: int) -> Conv:
    return Conv((kernel,) * 2, (stride,) * 2, (1, 1), (0,) * 4, 1, "last")


CASES = {
    "matmul 128x384x384": (MatMul(transpose_a=False, transpose_b=False), ((128, 384), (384, 384))),
    "matmul 128x1536x384": (MatMul(transpose_a=False, transpose_b=False), ((128, 1536), (1536, 384))),
    "matmul 128x37x384": (MatMul(transpose_a=False, transpose_b=False), ((128, 37), (37, 384))),
    "matmul 128x67x384": (MatMul(transpose_a=False, transpose_b=False), ((128, 67), (67, 384))),
    "conv 1x1 64 to 128": (conv(1, 1), ((1, 56, 56, 64), (128, 64, 1, 1))),
    "conv 1x1 512 to 512": (conv(1, 1), ((1, 14, 14, 512), (512, 512, 1, 1))),
    "conv 1x1 512 to 1000": (conv(1, 1), ((1, 13, 13, 512), (1000, 512, 1, 1))),
    "conv 3x3 64 to 128": (conv(3, 2), ((1, 57, 57, 64), (128, 64, 3, 3))),
    "conv 7x7 3 to 64": (conv(7, 2), ((1, 229, 229, 3), (64, 3, 7, 7))),
}


QUICK = ("matmul 128x37x384", "conv 1x1 64 to 128", "conv 7x7 3 to 64")
"""The cases that the quick suite runs for the other processors of a kind. Their instructions only differ in
order from the first processor's."""


def products(*targets: Target) -> pytest.MarkDecorator:
    """Parametrize a test with all cases on all targets."""
    return pytest.mark.parametrize(
        ("target", "case"),
        [
            pytest.param(
                t, c, id=f"{t.name}-{c}", marks=[] if t is targets[0] or c in QUICK else [pytest.mark.slow]
            )
            for t in targets
            for c in CASES
        ],
    )


@products(CORTEX_A72, AARCH64, CORTEX_A53, CORTEX_A76, NEOVERSE_N1)
def test_products_are_multiply_adds(target: Target, case: str) -> None:
    text = assembly(kernel(*CASES[case], target), target)
    inner = max(innermost(text), key=lambda loop: Counter(line.split()[0] for line in loop)["fmla"])
    multiply_adds = sum(line.startswith("fmla") for line in inner)
    assert not any(re.search(r"\[sp\b", line) for line in inner), "a register was spilled"
    assert multiply_adds >= SHARE * len(inner), inner
    by_lane = sum(bool(re.match(r"fmla\s+v\d+\.4s, v\d+\.4s, v\d+\.s\[", line)) for line in inner)
    assert by_lane == multiply_adds, "an element of the rows was broadcast"


@products(CORTEX_A76, NEOVERSE_N1, NEOVERSE_V1)
def test_products_of_int8_are_dot_products(target: Target, case: str) -> None:
    """Each instruction adds four products in each lane."""
    attrs, shapes = CASES[case]
    dot = next(p for p in target.machine.products if p.terms == 4)
    text = assembly(kernel(replace(attrs, dtype=I32, dot=dot), shapes, target), target)
    inner = max(innermost(text), key=lambda loop: len([line for line in loop if "dot" in line]))
    by_lane = sum(bool(re.match(r"su?dot\s+v\d+\.4s, v\d+\.16b, v\d+\.4b\[", line)) for line in inner)
    assert not any(re.search(r"\[sp\b", line) for line in inner), "a register was spilled"
    assert by_lane >= SHARE * len(inner), inner


@pytest.mark.parametrize("case", [c for c in CASES if c != "conv 7x7 3 to 64"])
def test_products_of_f16_are_added_to_f32(case: str) -> None:
    """Products of f16 are added in pairs of instructions, for the halves of a register, without separate
    widening. With few channels they stay f32."""
    attrs, shapes = CASES[case]
    text = assembly(kernel(replace(attrs, dtype=F32, dot=DOT1H), shapes, NEOVERSE_V1), NEOVERSE_V1)
    inner = max(innermost(text), key=lambda loop: len([line for line in loop if "fmlal" in line]))
    words = Counter(line.split()[0] for line in inner)
    assert not any(re.search(r"\[sp\b", line) for line in inner), "a register was spilled"
    assert words["fmlal"] == words["fmlal2"] >= SHARE / 2 * len(inner), words
    by_lane = sum(bool(re.match(r"fmlal2?\s+v\d+\.4s, v\d+\.4h, v\d+\.h\[", line)) for line in inner)
    assert by_lane == words["fmlal"] + words["fmlal2"], "an element of the rows was broadcast"
    assert "fcvtl" not in text


@pytest.mark.parametrize("case", ["matmul 128x384x384", "conv 1x1 64 to 128", "conv 3x3 64 to 128"])
def test_panels_are_widened_by_few_instructions(case: str) -> None:
    """Weights of f16 are loaded in whole vectors, and several terms are widened in each iteration."""
    text = assembly(kernel(*CASES[case], CORTEX_A72, weights=F16), CORTEX_A72)
    inner = max(innermost(text), key=lambda loop: sum(line.startswith("fcvtl") for line in loop))
    words = Counter(line.split()[0] for line in inner)
    assert words["fcvtl"] == words["fcvtl2"] and not words["fmla"]
    assert words["fcvtl"] + words["fcvtl2"] >= 0.45 * len(inner), inner


@pytest.mark.sampled(12)
@pytest.mark.parametrize("name", [n for n, p in PRODUCTS.items() if p.of_matrices])
@products(NEOVERSE_V1)
def test_products_of_two_rows_are_matrices(target: Target, case: str, name: str) -> None:
    """Each instruction multiplies two rows by two columns, and rows are packed in pairs. A sum of 12,288
    terms packs them while reading."""
    (attrs, shapes), dot = CASES[case], PRODUCTS[name]
    text = assembly(kernel(replace(attrs, dtype=dot.total, dot=dot), shapes, target), target)
    inner = max(innermost(text), key=lambda loop: len([line for line in loop if "mmla" in line]))
    matrices = sum(line.split()[0].endswith("mmla") for line in inner)
    assert not any(re.search(r"\[sp\b", line) for line in inner), "a register was spilled"
    assert matrices >= (0.6 if "1536" in case else 0.78) * len(inner), inner


@pytest.mark.sampled(12)
@pytest.mark.parametrize("case", [c for c in CASES if c != "conv 7x7 3 to 64"])
def test_products_of_int8_are_of_pairs(case: str) -> None:
    """Three instructions make 16 products: two terms are first added as int16. With few channels they stay
    f32."""
    attrs, shapes = CASES[case]
    text = assembly(kernel(replace(attrs, dtype=I32, dot=DOT2B), shapes, CORTEX_A72), CORTEX_A72)
    loops = [[line.split()[0] for line in loop] for loop in innermost(text)]
    inner = max(loops, key=lambda loop: Counter(loop)["sadalp"])
    words = Counter(inner)
    multiplies = [words[n] + words[f"{n}2"] for n in ("smull", "smlal")]
    assert not any(re.search(r"\[sp\b", line) for loop in innermost(text) for line in loop), "a spill"
    assert multiplies[0] == words["sadalp"] >= multiplies[1] >= 0.8 * multiplies[0], words
    assert sum(multiplies) + words["sadalp"] >= 0.7 * len(inner), words


@pytest.mark.sampled(12)
@products(CORTEX_A7, ARMV7)
def test_products_of_32_bit_processors_are_multiply_adds(target: Target, case: str) -> None:
    """The accumulators take 8 of 16 registers. A spill would show as an address computed from sp."""
    text = assembly(kernel(*CASES[case], target), target)
    inner = max(innermost(text), key=lambda loop: Counter(line.split()[0] for line in loop)["vmla.f32"])
    multiply_adds = [line for line in inner if line.startswith("vmla.f32")]
    assert not any(re.search(r"\bsp\b", line) for line in inner), "a register was spilled"
    assert len(multiply_adds) >= SHARE * len(inner), inner
    assert all(re.search(r"d\d+\[\d\]$", line) for line in multiply_adds), "an element was broadcast"


@pytest.mark.sampled(12)
@pytest.mark.parametrize("graph", GRAPHS)
def test_inner_loops_spill_nothing(graph: str) -> None:
    """No inner loop spills, except Winograd's transforms, which use 36 vectors but have 32 registers."""
    for template, text in texts(graph, CORTEX_A72):
        for loop in innermost(text):
            assert template == "nest" or not any(re.search(r"\[sp\b", line) for line in loop), template


@pytest.mark.sampled(12)
@pytest.mark.parametrize("graph", [g for g in GRAPHS if g not in FOR_MORE_REGISTERS])
def test_inner_loops_of_32_bit_processors_spill_no_vector(graph: str) -> None:
    """A spilled vector would show as an address computed from sp. Addresses may be spilled, because there are
    only 13 registers for them."""
    for template, text in texts(graph, CORTEX_A7):
        for loop in innermost(text):
            spilled = [line for line in loop if re.match(r"v.*\bsp\b|(add|mov)\s+r\d+, sp\b", line)]
            assert template == "nest" or not spilled, (template, spilled)


@pytest.mark.parametrize("target", [CORTEX_A72, CORTEX_A7], ids=lambda t: t.name)
def test_windows_of_any_channels_have_no_masks(target: Target) -> None:
    """Masks would load and store vectors lane by lane."""
    for template, text in texts("depthwise 3x3, 58 channels", target):
        for loop in innermost(text):
            lanes = [line for line in loop if re.match(r"v?(ld|st)1.*\}?\[\d\]", line)]
            multiply_adds = sum(line.startswith(("fmla", "vmla")) for line in loop)
            assert template != "window" or (not lanes and multiply_adds >= 0.25 * len(loop)), loop


def test_depthwise_products_of_int16_are_added_widened() -> None:
    """Two instructions make eight products, without separate widening."""
    x, w = (Buffer(n, I16, tuple(map(const, s))) for n, s in (("x", (1, 9, 21, 24)), ("w", (24, 1, 3, 3))))
    attrs = Conv((3, 3), (1, 1), (1, 1), (0,) * 4, 24, "last", dtype=I32)
    dtype, shape = CORE[attrs.op].infer([Value(b.name, b.dtype, b.shape) for b in (x, w)], attrs)
    (stage,) = CORE[attrs.op].te([x, w], Buffer("out", dtype, shape), attrs)
    made = choose(Workload("k", (stage,), (x, w), {}, ("w",), CORTEX_A72))
    assert made.template == "window"
    inner = max(innermost(assembly(made.func, CORTEX_A72)), key=len)
    words = Counter(line.split()[0] for line in inner)
    assert words["smlal"] + words["smull"] == words["smlal2"] + words["smull2"] >= 0.35 * len(inner), inner
    assert not words["sshll"] and not any(re.search(r"\[sp\b", line) for line in inner), inner


def test_indices_of_32_bit_processors_are_words() -> None:
    """A quotient of 64 bits would be a call, and a counter of 64 bits would take four instructions an
    iteration."""
    text = assembly(kernel(*CASES["conv 7x7 3 to 64"], ARMV7), ARMV7)
    assert "__aeabi" not in text
    words = max(
        (Counter(line.split()[0] for line in loop) for loop in innermost(text)), key=lambda w: w["vmla.f32"]
    )
    assert not words["adc"] and not words["sbcs"]


def test_maximum_keeps_nan_by_one_instruction() -> None:
    text = assembly(kernel(*CASES["conv 1x1 64 to 128"], CORTEX_A72), CORTEX_A72)
    assert re.search(r"fmax\s+v\d+\.4s", text) and "fcm" not in text
    text = assembly(kernel(*CASES["conv 1x1 64 to 128"], ARMV7), ARMV7)
    assert re.search(r"vmax\.f32\s+q", text) and "vcg" not in text


def test_addends_of_polynomials_come_by_fours() -> None:
    """A multiply-add overwrites its addend, so copying a constant for it would take one more instruction."""
    x = Buffer("x", F32, (const(4096),))
    i = te.Axis(Var("i"), const(4096))
    stage = te.Stage(Buffer("y", F32, x.shape), (i,), call("erf", Load(x, (i.var,))))
    text = assembly(choose(Workload("k", (stage,), (x,), {}, (), CORTEX_A72)).func, CORTEX_A72)
    (inner,) = (loop for loop in innermost(text) if any(line.startswith("fmla") for line in loop))
    words = Counter(line.split()[0] for line in inner)
    assert words["fmla"] == 19 and words["ld1"] == 5 and words["mov"] <= 2, inner
