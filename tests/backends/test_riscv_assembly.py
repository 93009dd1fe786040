"""Inner loops with RISC-V's vector instructions: as many as by hand, and no spills."""

from __future__ import annotations

import re

import numpy as np
import pytest
from machine import target
from test_arm_assembly import CASES, kernel
from test_assembly import micro_kernel

from jangin.backends.llvm.objects import assembly
from jangin.compiler.kernels import schedule_kernels
from jangin.compiler.options import Options
from jangin.compiler.pipeline import optimize
from jangin.ir.dtype import F32
from jangin.ir.expr import const, maximum
from jangin.ops import conv as operators
from jangin.ops.builder import Builder

SPILL = re.compile(r"\(sp\)|^v[ls]\dr")


def inner_loop(text: str) -> list[str]:
    """The shortest loop with multiply-adds."""
    lines = [line.split("#")[0].strip() for line in text.splitlines()]
    lines = [line for line in lines if line]
    start = {line[:-1]: n for n, line in enumerate(lines) if line.endswith(":")}
    jumps = ((n, re.match(r"b\w+\s+.*(\.L\w+)$", line)) for n, line in enumerate(lines))
    loops = [lines[start[j[1]] + 1 : n + 1] for n, j in jumps if j and start.get(j[1], n) < n]
    return min((body for body in loops if any("vfmacc" in line for line in body)), key=len)


@pytest.mark.parametrize("case", CASES)
def test_products_as_they_are_scheduled(case: str) -> None:
    on = target("riscv64-v")
    inner = inner_loop(assembly(kernel(*CASES[case], on), on))
    assert not [line for line in inner if SPILL.search(line)], "a register was spilled"
    assert not [line for line in inner if "v0.t" in line], "a mask"
    assert sum(line.startswith(("vfmacc.vf", "vfmadd.vf")) for line in inner) >= 0.5 * len(inner)


def test_sums_of_few_terms_from_planes() -> None:
    """A photograph's three planes: LLVM would load more of the unrolled terms at once than there are
    registers for."""
    on, b = target("riscv64-v"), Builder("first layer", {})
    x = b.input("x", F32, tuple(const(n) for n in (1, 3, 113, 113)))
    weights = np.random.default_rng(0).standard_normal((64, 3, 3, 3)).astype(np.float32)
    y = b.map(lambda v: maximum(v, 0.0), operators.conv(b, x, b.const(weights), strides=(2, 2)))
    options = Options(on)
    made = schedule_kernels(optimize(b.graph([y], ["y"]), options), options)
    (product,) = (k.func for k, _ in made.values() if k.template == "contraction")
    text = assembly(product, on)
    assert "vfmacc.vf" in text and not re.search(r"\bv[ls]\dr", text), "a vector was spilled"


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
