"""Inner loops with RISC-V's vector instructions have as few instructions as written by hand, and no
spills."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from kernel_graphs import GRAPHS, texts
from loops import innermost
from machine import target
from test_arm_assembly import CASES, kernel
from test_assembly import micro_kernel

from jangin.backends.llvm.objects import assembly
from jangin.ir.dtype import I32
from jangin.ir.products import DOT1

ON = target("riscv64-v")
SPILL = re.compile(r"\(sp\)|^v[ls]\dr")


def sums(text: str) -> list[str]:
    """Return the shortest loop with multiply-adds."""
    return min((b for b in innermost(text) if any("vfmacc" in line for line in b)), key=len)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("graph", GRAPHS)
def test_inner_loops_spill_nothing(graph: str) -> None:
    for template, text in texts(graph, ON):
        spilled = [[line for line in loop if SPILL.search(line)] for loop in innermost(text)]
        assert spilled and not any(spilled), template


@pytest.mark.parametrize("case", CASES)
def test_products_as_they_are_scheduled(case: str) -> None:
    inner = sums(assembly(kernel(*CASES[case], ON), ON))
    assert not [line for line in inner if SPILL.search(line)], "a register was spilled"
    assert not [line for line in inner if "v0.t" in line], "a mask"
    assert sum(line.startswith(("vfmacc.vf", "vfmadd.vf")) for line in inner) >= 0.5 * len(inner)


@pytest.mark.parametrize("case", CASES)
def test_products_of_int8_are_widening_multiply_adds(case: str) -> None:
    """Products have eight lanes each, twice as many as floats. With seven rows, some addresses are kept in
    memory."""
    attrs, shapes = CASES[case]
    text = assembly(kernel(replace(attrs, dtype=I32, dot=DOT1), shapes, ON), ON)
    inner = max(innermost(text), key=lambda loop: sum(line.startswith("vwmacc") for line in loop))
    spilled = [line for line in inner if SPILL.search(line)]
    assert not [line for line in spilled if line.startswith("v")], "a vector was spilled"
    assert len(spilled) <= 0.04 * len(inner)
    assert sum(line.startswith("vwmacc.vx") for line in inner) >= 0.5 * len(inner)


@pytest.mark.parametrize(
    ("rows", "vectors", "unroll"), [(4, 3, 1), (6, 2, 4), (6, 4, 1), (6, 4, 4), (7, 3, 2)]
)
def test_gemm(rows: int, vectors: int, unroll: int) -> None:
    """Each element of a row is loaded once into a scalar register, which the multiply-add reads directly."""
    inner = sums(assembly(micro_kernel(rows, vectors, ON.machine.lanes(4), unroll), ON))
    words = [line.split()[0] for line in inner]
    assert words.count("vfmacc.vf") + words.count("vfmadd.vf") == rows * vectors * unroll
    assert words.count("vle32.v") == vectors * unroll and words.count("flw") == rows * unroll
    assert not [line for line in inner if SPILL.search(line)], "a register was spilled"
    assert not {"vsetvli", "vsetivli"} & {*words}
    assert len(inner) <= (rows * vectors + rows + 3 * vectors) * unroll + 4
