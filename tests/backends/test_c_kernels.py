"""The same kernels written in C and in LLVM IR give the same bits."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from types import ModuleType
from typing import Any

import machine
import numpy as np
import onnx.backend.test
import pytest
import test_kernels
import test_naive_nests
import test_operations
import test_small_types

from jangin.backends.clike.dialect import C
from jangin.backends.clike.module import emit_kernels
from jangin.compiler.pipeline import build_plan, import_model
from jangin.ir.dtype import BOOL, F32, U8
from jangin.ir.expr import Buffer, const
from jangin.ir.graph import Array
from jangin.ir.interpret import size
from jangin.ir.loop import Func
from jangin.ir.parse import parse_func
from jangin.ir.text import print_func
from jangin.ops.builder import Builder
from jangin.ops.quantized import integer_conv, quantize, requantize
from jangin.ops.values import Tensor
from jangin.options import Options
from jangin.runtime.elf import Image
from jangin.targets import NAMED, Target

COMPILERS = [c for c in ("gcc", "clang") if shutil.which(c)]
WARNINGS = ("-Wall", "-Wextra", "-Werror")
LIGHT = Path(onnx.backend.test.__file__).parent / "data" / "light"

pytestmark = pytest.mark.skipif(not COMPILERS, reason="no C compiler here: neither gcc nor clang")


def built(
    funcs: Sequence[Func], on: Target, folder: Path, level: str = "-O0", compiler: str = ""
) -> ctypes.CDLL:
    """Compile kernels in one C file to a library, without any compiler warning. `level` has flags."""
    compiler = compiler or COMPILERS[0]
    source, library = folder / "kernels.c", folder / f"{compiler}.so"
    source.write_text(emit_kernels(funcs, on, C()))
    options = (*level.split(), *C.FLAGS, f"-march={on.cpu}", *WARNINGS, "-shared", "-fPIC")
    done = subprocess.run(
        [compiler, *options, "-o", str(library), str(source), "-lm"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[:4000]
    return ctypes.CDLL(str(library))


def called(library: ctypes.CDLL, func: Func, *args: Any) -> dict[str, Array]:
    address = ctypes.cast(getattr(library, func.name), ctypes.c_void_p).value
    assert address is not None
    return machine.call(address, func, *args)


def assert_same_bits(got: Mapping[str, Array], want: Mapping[str, Array], func: Func) -> None:
    """Compare bits. The bits of a NaN may be those of either operand."""
    for name, value in want.items():
        bits = f"u{value.itemsize}"
        differ = got[name].view(bits) != value.view(bits)
        wrong = np.argwhere(differ & ~((got[name] != got[name]) & (value != value)))
        if len(wrong):
            at = tuple(map(int, wrong[0]))
            pytest.fail(
                f"{func.name}: {name}{list(at)} is {got[name][at]!r} in C, {value[at]!r} in LLVM IR; so are "
                f"{len(wrong)} of {value.size}\n{print_func(func)}"
            )


def random_values(b: Buffer, symbols: Mapping[str, int], rng: np.random.Generator) -> Array:
    shape = tuple(size(d, symbols) for d in b.shape)
    if b.dtype is BOOL:
        return rng.integers(0, 2, shape).astype(np.bool_)
    if b.dtype.is_int:
        return rng.integers(0, 4, shape).astype(b.dtype.numpy)
    return rng.standard_normal(shape).astype(b.dtype.numpy)


def quantized(b: Builder) -> Tensor:
    """Convolutions of bytes, of which one is computed by Winograd's method, and the rounding of their
    sums."""
    random, zero = np.random.default_rng(), b.scalar(90, U8)
    x = b.input("x", F32, tuple(const(d) for d in (1, 64, 28, 28)))
    q = quantize(b, x, b.scalar(0.01, F32), zero, dtype=U8)
    for kernel in (3, 1):
        w = b.const(random.integers(-127, 127, (64, 64, kernel, kernel), np.int8, endpoint=True))
        sums = integer_conv(b, q, w, zero, pads=(kernel // 2,) * 4)
        q = requantize(b, sums, b.const(random.uniform(1e-5, 1e-4, (64, 1, 1)).astype("f4")), zero)
    return q


def pairs() -> Iterator[Any]:
    """Yield pairs of models and compilers. The quick suite gives each large model to one compiler."""
    for n, model in enumerate(("squeezenet", "shufflenet", "quantized")):
        for m, compiler in enumerate(COMPILERS):
            slow = model != "quantized" and m != (n + 1) % len(COMPILERS)
            yield pytest.param(model, compiler, marks=[pytest.mark.slow] if slow else [])


@pytest.mark.sampled(8)
@pytest.mark.parametrize(("model", "compiler"), list(pairs()))
def test_models(model: str, compiler: str, tmp_path: Path) -> None:
    on = machine.target(next(n for n in reversed(machine.runnable()) if NAMED.get(n)))
    if model == "quantized":
        b = Builder("net", {})
        artifact = build_plan(b.graph([quantized(b)], ["out"]), Options(on))
    else:
        lowered = import_model(LIGHT / f"light_{model}.onnx", Options(on), until="lower")
        artifact = build_plan(lowered, Options(on))
    kernels = [f for n, f in artifact.plan.kernels.items() if n not in artifact.plan.calls]
    funcs = [replace(f, name=f"k{n}") for n, f in enumerate(kernels)]
    library, image = built(funcs, on, tmp_path, "-O1", compiler), Image(artifact.objects)
    launches, rng = {x.kernel: x for x in artifact.plan.launches}, np.random.default_rng()
    for func, kernel in zip(funcs, kernels, strict=True):
        given = [size(e, {}) for e in launches[kernel.name].symbols]
        sizes = dict(zip((v.name for v, _ in func.symbols), given, strict=True))
        arrays = {p.name: random_values(p, sizes, rng) for p in func.params}
        want = machine.call(image.address(launches[kernel.name].function), kernel, arrays, sizes)
        assert_same_bits(called(library, func, arrays, sizes), want, kernel)


def cases(module: ModuleType, on: str) -> Iterator[tuple[Any, dict[str, Any]]]:
    """Yield the tests of a module, with the arguments of each of their cases on one target."""
    for name, test in [*vars(module).items()]:
        if not name.startswith("test_"):
            continue
        choices: list[list[dict[str, Any]]] = []
        for mark in getattr(test, "pytestmark", ()):
            if mark.name != "parametrize":
                continue
            names = mark.args[0].split(",") if isinstance(mark.args[0], str) else mark.args[0]
            values = [on] if names == ["on"] else mark.args[1]
            rows = [(v,) if len(names) == 1 else v for v in values]
            choices.append([dict(zip(names, row, strict=True)) for row in rows])
        for picked in product(*choices):
            yield test, {k: v for part in picked for k, v in part.items()}


MODULES = (test_kernels, test_small_types, test_naive_nests, test_operations)
"""Modules whose kernels have masked tails, gathers, reductions across lanes, and small types."""


def kernels_of(
    module: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> tuple[Target, list[tuple[Func, Any, dict[str, Array]]]]:
    """Return each kernel that a module's tests run on a target, with its inputs and its machine code's
    results.

    The module itself compares them with the interpreter's results, which takes as long."""
    on = machine.runnable()[min(1, len(machine.runnable()) - 1)]
    ran: list[tuple[Func, Any, dict[str, Array]]] = []

    def record(func: Func, arrays: Mapping[str, Array], *args: Any, **options: Any) -> dict[str, Array]:
        given = {k: v.copy() for k, v in arrays.items()}
        out = machine.run(func, arrays, *args, **options)
        ran.append((replace(func, name=f"k{len(ran)}"), (given, args[0]), out))
        return out

    def interpreted(func: Func, arrays: dict[str, Array], symbols: Mapping[str, int]) -> None:
        arrays.update(machine.run(func, arrays, symbols, machine.target(on)))

    monkeypatch.setattr(module, "run", record)
    monkeypatch.setattr(module, "run_func", interpreted)
    monkeypatch.setattr(module, "runnable", lambda: (on,), raising=False)
    for test, arguments in cases(module, on):
        test(**arguments)
    assert ran
    return machine.target(on), ran


@pytest.mark.sampled(4)
@pytest.mark.parametrize("module", MODULES, ids=lambda m: m.__name__)
def test_kernels_of_other_tests(module: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    on, ran = kernels_of(module, monkeypatch)
    level = "-O0" if module is test_operations else "-O1"  # -O1 takes long for many kernels
    library = built([func for func, _, _ in ran], on, tmp_path, level)
    for func, given, want in ran:
        assert_same_bits(called(library, func, *given), want, func)


@pytest.mark.parametrize("name", [n for n in machine.runnable() if n in NAMED])
def test_bytes_are_looked_up(name: str, tmp_path: Path) -> None:
    """A table's row has no C. Its lanes read any element, so the row isn't written lane by lane."""
    on = NAMED[name]
    func = parse_func(
        "func look(x: u8[64], t: i8[256], out: out i8[64]) { vector i in 64 { out[i] = t[i64(x[i])] } }"
    )
    rng = np.random.default_rng(0)
    arrays = {"x": rng.integers(0, 256, 64, np.uint8), "t": rng.integers(-128, 128, 256, np.int8)}
    arrays["out"] = np.zeros(64, np.int8)
    got = called(built([func], on, tmp_path), func, arrays, {})
    np.testing.assert_array_equal(got["out"], arrays["t"][arrays["x"]])
