"""Time `jangin.blas` beside SciPy's library (OpenBLAS), and products beside PyTorch's too, call by call in
turns.

    python benchmarks/blas.py --threads 1 2 --write
    python benchmarks/blas.py --threads 1 --only gemm --seconds 0.5

A figure is the median time of a call, in GFLOP/s for level 3 and in GB/s for the other levels. `--write` adds
the figures to results/blas.json; other cases and threads stay there.
"""

from __future__ import annotations

import argparse
import importlib.util
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import scipy.linalg.blas as peer
from sections import FOLDER, Section, Table
from threadpoolctl import threadpool_info, threadpool_limits

from jangin import blas
from jangin.runtime.system.processor import processor_name

COLUMNS = ("call", "threads", "Jangin", "OpenBLAS", "PyTorch", "share of the best")
SQUARE = (64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 4096)
THIN = ((8, 1024, 1024), (1024, 8, 1024), (1024, 1024, 8), (16, 4096, 512), (4096, 16, 512), (32, 32, 4096))
TRIANGLES = (64, 128, 256, 512, 1024, 2048)
VECTOR = 1 << 22
"""Elements of a vector of level 1, more than the caches hold."""
MATRIX = 2048

Case = tuple[str, float, Callable[[Any], Callable[[], object]]]
"""A name, the operations or bytes of a call, and a function that binds the call to a library."""


def cases(letter: str) -> Iterator[Case]:
    """Yield all cases of a type."""
    dtype = np.float32 if letter == "s" else np.float64
    size = np.dtype(dtype).itemsize
    rng = np.random.default_rng(0)

    def matrix(rows: int, columns: int) -> Any:
        return np.asfortranarray(rng.standard_normal((rows, columns)).astype(dtype))

    def bound(name: str, *given: Any, **named: Any) -> Callable[[Any], Callable[[], object]]:
        def bind(library: Any) -> Callable[[], object]:
            function = getattr(library, f"{letter}{name}")
            return lambda: function(*given, **named)

        return bind

    for m, n, k in (*((s, s, s) for s in SQUARE), *THIN):
        yield f"gemm {m} {n} {k}", 2.0 * m * n * k, bound("gemm", 1.0, matrix(m, k), matrix(k, n))
    for n in TRIANGLES:
        a, b = matrix(n, n), matrix(n, n)
        a[np.diag_indices(n)] += n
        yield f"symm {n}", 2.0 * n**3, bound("symm", 1.0, a, b)
        yield f"syrk {n}", 1.0 * n**3, bound("syrk", 1.0, b)
        yield f"trmm {n}", 1.0 * n**3, bound("trmm", 1.0, a, b)
        yield f"trsm {n}", 1.0 * n**3, bound("trsm", 1.0, a, b)
    x, y = (rng.standard_normal(VECTOR).astype(dtype) for _ in range(2))
    a, v = matrix(MATRIX, MATRIX), x[:MATRIX]
    yield "axpy", 3.0 * VECTOR * size, bound("axpy", x, y.copy(), a=0.5)
    yield "dot", 2.0 * VECTOR * size, bound("dot", x, y)
    yield "nrm2", 1.0 * VECTOR * size, bound("nrm2", x)
    yield "asum", 1.0 * VECTOR * size, bound("asum", x)
    yield "gemv N", 1.0 * a.nbytes, bound("gemv", 1.0, a, v)
    yield "gemv T", 1.0 * a.nbytes, bound("gemv", 1.0, a, v, trans=1)
    yield "symv", 0.5 * a.nbytes, bound("symv", 1.0, a, v)
    yield "trsv", 0.5 * a.nbytes, bound("trsv", a + MATRIX * np.eye(MATRIX, dtype=dtype), v)


def torchs(letter: str, case: Case) -> Callable[[], object] | None:
    """Return PyTorch's product of a case's sizes, or None for another routine or without PyTorch."""
    if not case[0].startswith("gemm") or importlib.util.find_spec("torch") is None:
        return None
    import torch

    m, n, k = map(int, case[0].split()[1:])
    rng = np.random.default_rng(0)
    dtype = np.float32 if letter == "s" else np.float64
    a, b = (torch.from_numpy(rng.standard_normal(shape).astype(dtype)) for shape in ((m, k), (k, n)))
    return lambda: torch.mm(a, b)


def measured(calls: Mapping[str, Callable[[], object]], seconds: float) -> dict[str, float]:
    """Return the median seconds of a call of each library. The libraries take turns."""
    for call in calls.values():
        call()
        call()
    taken: dict[str, list[float]] = {name: [] for name in calls}
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        for name, call in calls.items():
            start = time.perf_counter()
            call()
            taken[name].append(time.perf_counter() - start)
    return {name: statistics.median(times) for name, times in taken.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--threads", type=int, nargs="+", default=[1])
    parser.add_argument("--types", nargs="+", default=["s", "d"])
    parser.add_argument("--only", default="", help="cases whose names begin so")
    parser.add_argument("--seconds", type=float, default=0.3, help="for each case")
    parser.add_argument("--write", action="store_true")
    asked = parser.parse_args()
    rows: dict[tuple[str, str], dict[str, float]] = {}
    for threads in asked.threads:
        blas.set_threads(threads)
        if importlib.util.find_spec("torch") is not None:
            import torch

            torch.set_num_threads(threads)
        with threadpool_limits(threads):
            for letter in asked.types:
                for case in cases(letter):
                    if not case[0].startswith(asked.only):
                        continue
                    calls = {"jangin": case[2](blas), "openblas": case[2](peer)}
                    if (other := torchs(letter, case)) is not None:
                        calls["torch"] = other
                    taken = measured(calls, asked.seconds)
                    row = {name: round(case[1] / t / 1e9, 2) for name, t in taken.items()}
                    rows[f"{letter}{case[0]}", str(threads)] = row
                    share = row["jangin"] / max(v for n, v in row.items() if n != "jangin")
                    figures = " ".join(f"{v:8.2f}" for v in row.values())
                    print(f"{letter}{case[0]:24} {threads}  {share:5.2f} of the best  {figures}", flush=True)
    if asked.write:
        store(rows)


def store(rows: Mapping[tuple[str, str], Mapping[str, float]]) -> None:
    """Write the figures of calls and threads to results/blas.json, where other figures stay."""
    path = FOLDER / "blas.json"
    parts = Section.load(path).parts if path.is_file() else ()
    lines = {tuple(row[:2]): tuple(row[2:]) for part in parts if isinstance(part, Table) for row in part.rows}
    for key, row in rows.items():
        peers = [row.get(name) for name in ("openblas", "torch")]
        share = row["jangin"] / max(v for v in peers if v is not None)
        shown = ["" if v is None else f"{v:.2f}" for v in (row["jangin"], *peers)]
        lines[key] = (*shown, f"{share:.2f}")
    versions = ", ".join(sorted({f"{i['internal_api']} {i['version']}" for i in threadpool_info()}))
    about = (
        f"Calls of `jangin.blas` beside SciPy's and PyTorch's on {processor_name()} ({versions}): GFLOP/s of "
        "level 3, and GB/s of the others. Each figure is a median; the libraries took turns."
    )
    table = Table(COLUMNS, [(*key, *line) for key, line in sorted(lines.items())])
    Section("BLAS", [about, table]).save("blas")


if __name__ == "__main__":
    main()
