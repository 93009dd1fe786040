"""Inner loops with RISC-V's vector instructions: as many as by hand, and no spills."""

from __future__ import annotations

import re

import pytest
from machine import target
from test_assembly import micro_kernel

from jangin.backends.llvm.objects import assembly


@pytest.mark.parametrize(
    ("rows", "vectors", "unroll"), [(4, 3, 1), (6, 2, 4), (6, 4, 1), (6, 4, 4), (7, 3, 2)]
)
def test_gemm(rows: int, vectors: int, unroll: int) -> None:
    """Each element of a row is loaded once, into a scalar register that the multiply-add takes as it is."""
    on = target("riscv64-v")
    lines = [
        line.strip() for line in assembly(micro_kernel(rows, vectors, on.lanes(4), unroll), on).splitlines()
    ]
    start = {line[:-1]: n for n, line in enumerate(lines) if line.endswith(":")}
    jumps = ((n, re.match(r"b\w+\s+.*(\.L\w+)$", line)) for n, line in enumerate(lines))
    loops = [lines[start[j[1]] + 1 : n + 1] for n, j in jumps if j and start.get(j[1], n) < n]
    inner = min((body for body in loops if any("vfmacc" in line for line in body)), key=len)
    words = [line.split()[0] for line in inner]
    assert words.count("vfmacc.vf") + words.count("vfmadd.vf") == rows * vectors * unroll
    assert words.count("vle32.v") == vectors * unroll and words.count("flw") == rows * unroll
    assert not [line for line in inner if re.search(r"\(sp\)|^v[ls]\dr", line)], "a register was spilled"
    assert not {"vsetvli", "vsetivli"} & {*words}
    assert len(inner) <= (rows * vectors + rows + 3 * vectors) * unroll + 4
