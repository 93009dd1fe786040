"""Inner loops with RISC-V's vector instructions: as many as by hand, and no spills."""

from __future__ import annotations

import re

import pytest
from machine import target
from test_arm_assembly import CASES, conv, kernel
from test_assembly import micro_kernel

from jangin.backends.llvm.objects import assembly

SPILL = re.compile(r"\(sp\)|^v[ls]\dr")


def inner_loop(text: str) -> list[str]:
    """The shortest loop with multiply-adds."""
    lines = [line.split("#")[0].strip() for line in text.splitlines()]
    lines = [line for line in lines if line]
    start = {line[:-1]: n for n, line in enumerate(lines) if line.endswith(":")}
    jumps = ((n, re.match(r"b\w+\s+.*(\.L\w+)$", line)) for n, line in enumerate(lines))
    loops = [lines[start[j[1]] + 1 : n + 1] for n, j in jumps if j and start.get(j[1], n) < n]
    return min((body for body in loops if any("vfmacc" in line for line in body)), key=len)


FEW = {"conv 3x3 3 to 64": (conv(3, 2), ((1, 113, 113, 3), (64, 3, 3, 3)))}
"""A sum of few terms, of which LLVM would load too many at once."""


@pytest.mark.parametrize("case", [*CASES, *FEW])
def test_products_as_they_are_scheduled(case: str) -> None:
    on = target("riscv64-v")
    inner = inner_loop(assembly(kernel(*{**CASES, **FEW}[case], on), on))
    assert not [line for line in inner if SPILL.search(line)], "a register was spilled"
    assert not [line for line in inner if "v0.t" in line], "a mask"
    assert sum(line.startswith(("vfmacc.vf", "vfmadd.vf")) for line in inner) >= 0.5 * len(inner)


@pytest.mark.parametrize(
    ("rows", "vectors", "unroll"), [(4, 3, 1), (6, 2, 4), (6, 4, 1), (6, 4, 4), (7, 3, 2)]
)
def test_gemm(rows: int, vectors: int, unroll: int) -> None:
    """Each element of a row is loaded once, into a scalar register that the multiply-add takes as it is."""
    on = target("riscv64-v")
    inner = inner_loop(assembly(micro_kernel(rows, vectors, on.lanes(4), unroll), on))
    words = [line.split()[0] for line in inner]
    assert words.count("vfmacc.vf") + words.count("vfmadd.vf") == rows * vectors * unroll
    assert words.count("vle32.v") == vectors * unroll and words.count("flw") == rows * unroll
    assert not [line for line in inner if SPILL.search(line)], "a register was spilled"
    assert not {"vsetvli", "vsetivli"} & {*words}
    assert len(inner) <= (rows * vectors + rows + 3 * vectors) * unroll + 4
