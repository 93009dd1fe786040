"""The machine code of products has inner loops with every multiply-add of the register tile, and without
spills."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from templates.kernels import Built, conv, matmul, workload

from jangin.backends.llvm.objects import assembly
from jangin.targets import NAMED
from jangin.templates.choose import choose
from jangin.templates.scheduled import Scheduled

PRODUCTS: dict[str, tuple[Built, bool]] = {
    "matmul": (matmul((128, 256), (256, 384)), True),
    "matmul-runtime": (matmul((4, 128, 64), (4, 64, 128)), False),
    "vector": (matmul((1, 256), (256, 1000)), True),
    "conv1x1": (conv((28, 28), 64, 128, 1), True),
    "conv3x3": (conv((30, 30), 32, 64, 3), True),
    "conv3x3-strided": (conv((31, 31), 32, 64, 3, 2), True),
    "conv7x7": (conv((61, 61), 3, 32, 7, 2), True),
}
Golden = Callable[[str, str, str], None]


def innermost_loops(text: str) -> list[list[str]]:
    """Return the instructions of each innermost loop: from a label to the jump back to it, without a label
    between."""
    lines = [line.split("#")[0].strip() for line in text.splitlines()]
    lines = [line for line in lines if line and (line.endswith(":") or not line.startswith("."))]
    labels = {line[:-1]: n for n, line in enumerate(lines) if line.endswith(":")}
    loops = []
    for n, line in enumerate(lines):
        jump = re.match(r"j\w+\s+(\.L\w+)", line)
        start = labels.get(jump[1], n) if jump else n
        body = lines[start + 1 : n + 1]
        if start < n and not any(part.endswith(":") for part in body):
            loops.append(body)
    return loops


def multiply_adds(loop: list[str]) -> int:
    return sum(line.startswith("vfmadd") for line in loop)


def unrolled(found: Scheduled) -> int:
    """Return how many steps of the sum the schedule unrolls in the hottest loop."""
    factors = {f"{s.args[0]}i": s.args[1] for s in found.steps if s.name == "split" and s.args[0][0] == "k"}
    copied = [s.args[0] for s in found.steps if s.name == "unroll" and s.args[0] in factors]
    return int(factors[copied[0]]) if copied else 1


@pytest.mark.parametrize("level", ["x86-64-v3", "x86-64-v4"])
@pytest.mark.parametrize("name", PRODUCTS)
def test_register_tile(golden: Golden, name: str, level: str) -> None:
    built, constant = PRODUCTS[name]
    target = NAMED[level]
    found = choose(workload(built, constants=("w",) if constant else (), target=target))
    assert found.template == "contraction"
    mr, nv, unroll = found.params["mr"], found.params["nv"], unrolled(found)
    whole = assembly(found.func, target)
    loop = max(innermost_loops(whole), key=multiply_adds)
    text = "\n".join(loop)
    stack = r"\(%rsp|\(%rbp\)" if "%rsp, %rbp" in whole else r"\(%rsp"
    spills = len(re.findall(stack, text))
    register = "zmm" if target.machine.vector_bytes == 64 else "ymm"
    broadcasts = sum("vbroadcastss" in line or "{1to" in line for line in loop)
    loads = len(re.findall(rf"^vmov[au]ps\s+[^%]*\([^)]*\), %{register}", text, re.MULTILINE))
    assert spills == 0, text
    assert multiply_adds(loop) == mr * nv * unroll, text
    assert all(register in line for line in loop if line.startswith("vfmadd")), text
    assert broadcasts == mr * unroll, text
    assert loads <= nv * unroll, text
    assert len(loop) <= (mr * nv + mr + nv) * unroll + 16, text
    golden("assembly", f"{name}-{level}", (
        f"tile {mr} rows x {nv} vectors, {unroll} steps of the sum\n{multiply_adds(loop)} multiply-adds\n"
        f"{broadcasts} broadcasts\n{loads} vector loads\n{spills} spills\n"
    ))  # fmt: skip
