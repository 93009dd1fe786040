"""No masked access touches memory beyond the active lanes, and the active lanes get the right values. The
tests cover every access, conversion, mask and number of lanes. Code that a host can't run is checked by its
assembly.

A version of LLVM is listed as checked in `backends.llvm.versions` only after all of these tests ran (`-m
"slow or not slow"`).
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from pathlib import Path

import accesses_emulated
import accesses_native
import numpy as np
import pytest
from accesses import Case, case, conversions, every_case, narrowing, some_cases, widths
from accesses_assembly import beyond
from machine import runnable, target
from test_c_kernels import COMPILERS, built
from test_emulated_kernels import MACHINES

from jangin.backends.llvm.module import emit_kernel
from jangin.backends.llvm.objects import compile_modules
from jangin.ir.graph import Array
from jangin.runtime.elf import Image
from jangin.targets import NAMED, Target, resolve

SEED = int(np.random.SeedSequence().generate_state(1)[0])
AT_ONCE = 200
"""The number of kernels that are compiled and run together."""
HERE = list(dict.fromkeys([*runnable(), resolve("host").name]))
EMULATED = {**MACHINES, "riscv64": ("riscv64-linux-gnu-gcc", "qemu-riscv64-static", "rv64")}
QUICKLY = "neoverse-v1", "riscv64-v of 256 bits", "cortex-a7", "x86-64-v3", "x86-64-v4", "x86-64-v4-amx"
"""Machines of several kinds, for the quick tests."""


def machines(names: Sequence[str], both: bool = True) -> list[object]:
    """Return two tests for each name: some cases, and all cases. The first is quick if the name is in
    QUICKLY."""
    return [
        pytest.param(name, whole, id=f"{name}-{'all' if whole else 'some'}",
                     marks=[pytest.mark.slow] if whole or name not in QUICKLY else [])
        for name in names for whole in (False, True)
    ]  # fmt: skip


def check(
    on: Target, whole: bool, count: int, run: Callable[[Sequence[Case]], Sequence[Array]],
    fits: Callable[[Case], bool] = lambda _: True,
) -> None:  # fmt: skip
    """Run every case that fits, or `count` random ones. Compare all bytes that may have been written, and
    those around them."""
    print(f"seed {SEED}")
    random = np.random.default_rng(SEED)
    cases = [*filter(fits, every_case(on, random) if whole else some_cases(on, random, count))]
    for n in range(0, len(cases), AT_ONCE):
        some = cases[n : n + AT_ONCE]
        for one, got in zip(some, run(some), strict=True):
            wrong = np.flatnonzero(got != one.wanted())
            assert not len(wrong), f"{one} leaves byte {wrong[0]} of {len(got)} wrong"


def compiled(cases: Sequence[Case], on: Target) -> list[bytes]:
    """Compile the cases to two objects. One is compiled by the passes for kernels of fixed sizes."""
    texts = [(c.name, emit_kernel(c.func(), on)) for c in cases]
    return [compile_modules(half, on, fixed=n == 1) for n in range(2) if (half := texts[n::2])]


@pytest.mark.parametrize(("name", "whole"), machines(HERE))
def test_on_this_machine(name: str, whole: bool) -> None:
    on = target(name)

    def run(cases: Sequence[Case]) -> list[Array]:
        return accesses_native.run(cases, Image(compiled(cases, on)).address)

    check(on, whole, 60, run)


@pytest.mark.parametrize(("name", "whole"), machines([*EMULATED]))
def test_on_emulated_machines(name: str, whole: bool, tmp_path: Path) -> None:
    """Every case gives the right bytes on an emulated machine, except for two faults of the tools.

    QEMU 7.2 aborts at RISC-V's vector conversions from float to integer that don't round. LLVM 22.1 aborts at
    a store of three int64 as bytes for AArch64 (its pull request 202039); no schedule has vectors of three
    lanes."""
    on = NAMED[name.split()[0]]

    def fits(c: Case) -> bool:
        old, to = (c.memory, c.other) if c.loads else (c.other, c.memory)
        if name.startswith("riscv64-v"):
            return not (c.made == "cast" and old.is_float and to.is_int)
        return not (on.triple.startswith("aarch64") and c.lanes == 3 and old.bytes == 8 and to.bytes == 1)

    def run(cases: Sequence[Case]) -> list[Array]:
        return accesses_emulated.run(cases, compiled(cases, on), EMULATED[name], tmp_path)

    check(on, whole, 24, run, fits)


@pytest.mark.parametrize("whole", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["few", "some"])
@pytest.mark.parametrize("compiler", COMPILERS)
def test_in_c(compiler: str, whole: bool, tmp_path: Path) -> None:
    """The same in C. gcc warns that the fourth lane of a three-lane vector may be used before it is set. It
    is never used."""
    level = "-O2 -Wno-psabi" + " -Wno-maybe-uninitialized" * (compiler == "gcc")
    on = next(NAMED[name] for name in reversed(runnable()) if name in NAMED)

    def run(cases: Sequence[Case]) -> list[Array]:
        folder = tmp_path / cases[0].name
        folder.mkdir()
        library = built([c.func() for c in cases], on, folder, level, compiler)

        def address(name: str) -> int:
            return ctypes.cast(getattr(library, name), ctypes.c_void_p).value or 0

        return accesses_native.run(cases, address)

    check(on, False, 1000 if whole else 10, run)


@pytest.mark.parametrize(("name", "whole"), machines([n for n in NAMED if n.startswith("x86-64-v4")]))
def test_no_instruction_stores_more_than_its_row(name: str, whole: bool) -> None:
    """No instruction stores more than its row. Quick tests store rows of one element after each narrowing
    conversion, and the whole test does all stores and lanes."""
    on, ways = NAMED[name], ("store", "store step 2", "store step 3", "scatter") if whole else ("store",)
    cases = [
        case(way, mask, *change, lanes, [1])
        for way in ways
        for mask in (("first", "last", "one", "both") if whole else ("one",))
        for change in (conversions() if whole else narrowing())
        for lanes in (
            widths(on, *change[:2]) if whole else [max(3, on.machine.lanes(max(t.bytes for t in change[:2])))]
        )
    ]
    for n in range(0, len(cases), AT_ONCE):
        some = cases[n : n + AT_ONCE]
        texts = [(c.name, emit_kernel(c.func(), on)) for c in some]
        text = compile_modules(texts, on, fixed=n % 2 == 0, as_object=False).decode()
        wrong = {c.name: lines for c in some if (lines := beyond(c, text))}
        assert not wrong, f"{len(wrong)} of {len(some)} store more than their rows have: {wrong}"
