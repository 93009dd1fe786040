"""Compare the speed of models' kernels in C with LLVM's code for the same loops, in turns on one thread.

    python benchmarks/c_kernels.py --cc gcc-12 --cc clang-14 squeezenet1_1 mobilenetv2 resnet50 minilm

The script prints, for each compiler, the speed of its code as a share of LLVM's, by model and as a geometric
mean. It also prints the kernels that lose most time. Outputs must have the same bits.
"""

from __future__ import annotations

import argparse
import ctypes
import statistics
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from jangin.backends.clike.dialect import C
from jangin.backends.clike.module import emit_kernels
from jangin.compiler.pipeline import build_artifact
from jangin.ir.dtype import BOOL
from jangin.ir.graph import Array
from jangin.ir.interpret import size
from jangin.ir.kernel import scratch_bytes, tasks
from jangin.ir.loop import Func
from jangin.options import Options
from jangin.runtime.elf import Image
from jangin.runtime.functions import KERNEL
from jangin.targets import Target, resolve

MODELS = Path(__file__).parent.parent / ".cache" / "models"
WARNINGS = ("-Wall", "-Wextra", "-Werror")
SLICE = 0.02
"""Seconds for which each side of a kernel is called at a stretch. The sides take turns."""
ROUNDS = 7
SHAPES = {"minilm": {"batch": 1, "seq": 128}}


@dataclass
class Timed:
    """The seconds of a call of a kernel by LLVM and by C, and the number of its calls in a run of the
    model."""

    func: Func
    launches: int
    llvm: float
    c: float


def compiled(funcs: Sequence[Func], target: Target, compiler: str, folder: Path) -> ctypes.CDLL:
    """Compile all kernels from one file to a library."""
    source, library = folder / "kernels.c", folder / f"{Path(compiler).name}.so"
    source.write_text(emit_kernels(funcs, target, C()))
    options = ("-O2", *C.FLAGS, f"-march={target.cpu}", *WARNINGS, "-shared", "-fPIC")
    began = time.perf_counter()
    subprocess.run([compiler, *options, "-o", library, source, "-lm"], check=True)
    kilobytes = source.stat().st_size >> 10
    print(f"  {compiler}: {kilobytes} KB of C in {time.perf_counter() - began:.1f} s")
    return ctypes.CDLL(str(library))


def values(func: Func, symbols: dict[str, int]) -> list[Array]:
    """Return an array for each parameter. Integers are small, because they may be indices."""
    rng, made = np.random.default_rng(0), []
    for p in func.params:
        shape = tuple(size(d, symbols) for d in p.shape)
        numbers = rng.standard_normal(shape) if p.dtype.is_float else rng.integers(0, 2, shape)
        made.append(numbers.astype(np.bool_ if p.dtype is BOOL else p.dtype.numpy))
    return made


def call_of(address: int, func: Func, symbols: dict[str, int], arrays: Sequence[Array]) -> Callable[[], None]:
    """Return a function that runs all tasks of a kernel."""
    kernel, count = KERNEL.at(address), size(tasks(func), symbols)
    buffers = np.array([a.ctypes.data for a in arrays], np.int64)
    sizes = np.array([symbols[v.name] for v, _ in func.symbols] or [0], np.int64)
    scratch = np.zeros(size(scratch_bytes(func), symbols) + 64, np.uint8)
    at = (scratch.ctypes.data + 63) // 64 * 64
    held = (buffers, sizes, scratch)
    return lambda held=held: kernel(held[0].ctypes.data, held[1].ctypes.data, 0, count, at)  # type: ignore[misc]


def results(call: Callable[[], None], arrays: Sequence[Array]) -> list[bytes]:
    """Return the bytes of all arrays after a call."""
    call()
    return [a.tobytes() for a in arrays]


def seconds(call: Callable[[], None], repeats: int) -> float:
    began = time.perf_counter()
    for _ in range(repeats):
        call()
    return (time.perf_counter() - began) / repeats


def race(calls: Sequence[Callable[[], None]]) -> list[float]:
    """Return the seconds of a call of each, the least over rounds in turns. Other work on the machine only
    adds time."""
    for call in calls:
        call()
    repeats = [max(1, int(SLICE / max(seconds(c, 1), 1e-7))) for c in calls]
    rounds = [[seconds(c, n) for c, n in zip(calls, repeats, strict=True)] for _ in range(ROUNDS)]
    return [min(column) for column in zip(*rounds, strict=True)]


def measure(model: Path, target: Target, compilers: Sequence[str]) -> dict[str, list[Timed]]:
    artifact = build_artifact(model, Options(target, shapes=SHAPES.get(model.stem, {})))
    kernels = list(artifact.plan.kernels.values())
    funcs = [replace(f, name=f"k{n}") for n, f in enumerate(kernels)]
    launches = {x.kernel: x for x in artifact.plan.launches}
    often = Counter(x.kernel for x in artifact.plan.launches)
    image = Image(artifact.objects)
    out: dict[str, list[Timed]] = {c: [] for c in compilers}
    with tempfile.TemporaryDirectory() as folder:
        libraries = [compiled(funcs, target, c, Path(folder)) for c in compilers]
        for func, kernel in zip(funcs, kernels, strict=True):
            launch = launches[kernel.name]
            given = [size(e, {}) for e in launch.symbols]
            symbols = dict(zip((v.name for v, _ in func.symbols), given, strict=True))
            addresses = [image.address(launch.function)]
            for library in libraries:
                addresses.append(ctypes.cast(getattr(library, func.name), ctypes.c_void_p).value or 0)
            # the same arrays for all sides, because their position in memory changes times
            arrays = values(func, symbols)
            calls = [call_of(at, func, symbols, arrays) for at in addresses]
            want, *made = (results(call, arrays) for call in calls)
            llvm, *others = race(calls)
            for compiler, c, got in zip(compilers, others, made, strict=True):
                for p, a, b in zip(func.params, want, got, strict=True):
                    if a != b:
                        print(f"  {compiler}: {kernel.name} gives other bits for {p.name}")
                out[compiler].append(Timed(kernel, often[kernel.name], llvm, c))
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("models", nargs="+")
    parser.add_argument("--cc", action="append", required=True)
    parser.add_argument("--target", default="cpu")
    parser.add_argument("--worst", type=int, default=8)
    args = parser.parse_args()
    shares: dict[str, list[float]] = {c: [] for c in args.cc}
    for model in args.models:
        print(model)
        for compiler, timed in measure(MODELS / f"{model}.onnx", resolve(args.target), args.cc).items():
            llvm, c = (
                sum(t.launches * s for t, s in zip(timed, column, strict=True))
                for column in ([t.llvm for t in timed], [t.c for t in timed])
            )
            shares[compiler].append(llvm / c)
            print(f"  {compiler}: {llvm / c:.3f} of LLVM's speed ({c * 1e3:.2f} ms, {llvm * 1e3:.2f})")
            timed.sort(key=lambda t: t.launches * (t.llvm - t.c))
            for t in timed[: args.worst]:
                lost = t.launches * (t.c - t.llvm) * 1e6
                print(
                    f"    {lost:8.0f} us  {t.c / t.llvm:5.2f}x  {t.launches} of {t.llvm * 1e6:.0f} us  "
                    f"{t.func.name}"
                )
    for compiler, found in shares.items():
        print(f"{compiler}: geometric mean {statistics.geometric_mean(found):.3f} of LLVM's speed")


if __name__ == "__main__":
    main()
