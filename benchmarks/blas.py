"""Time `jangin.blas` beside SciPy's library (OpenBLAS), and products beside PyTorch's too, in turns. Each
library has a process of its own.

OpenBLAS doesn't know the newest processors, and then takes kernels without AVX-512. It is also told to take
those of Skylake, if the processor runs them: the column `OpenBLAS, told`.

    python benchmarks/blas.py --threads 1 2 --write
    python benchmarks/blas.py --threads 1 --only gemm --seconds 0.5
    python benchmarks/blas.py --threads 1 2 --window 15 --progress figures.json --write
    python benchmarks/blas.py --threads 1 --peer MKL=mkl BLIS=/usr/lib/x86_64-linux-gnu/blis-pthread

A library that `--peer` names has a libblas.so.3 in the folder after `=`. Debian's SciPy calls it.

A figure is the median time of a call, in GFLOP/s for level 3 and in GB/s for the other levels. Those are also
shares of the speed of memory, which three loops of NumPy measure. `--write` adds the figures to
results/blas.json; other cases and threads stay there. A run with `--window` ends after so many seconds, and
the next one with the same file of figures goes on.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import scipy.linalg.blas as peer
from sections import FOLDER, Section, Table

from jangin import blas
from jangin.runtime.system.processor import processor_name
from jangin.runtime.system.usage import busy_seconds
from jangin.targets import resolve

COLUMNS = (
    "call",
    "threads",
    "Jangin",
    "OpenBLAS",
    "OpenBLAS, told",
    "PyTorch",
    "MKL",
    "BLIS",
    "share of the best",
    "share of the memory's speed",
)
SQUARE = (8, 16, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 4096)
THIN = (
    *((8, 1024, 1024), (1024, 8, 1024), (1024, 1024, 8), (16, 4096, 512), (4096, 16, 512), (32, 32, 4096)),
    *((4096, 4096, 8), (8, 4096, 4096), (2048, 32, 2048), (128, 8192, 128), (2048, 2048, 1), (2048, 2048, 3)),
)
TRIANGLES = (64, 128, 256, 512, 1024, 2048)
VECTORS, MATRICES = (1 << 22, 1 << 24), (2048, 6144)
"""The elements of vectors of level 1, and the orders of matrices of level 2. The first ones fit the largest
processors' caches, and no cache holds the last ones."""
FOREIGN = 0.2
"""The most of a core that other processes may take while a case is measured. The system counts in ticks."""

TOLD = "openblas, told"
"""OpenBLAS with the kernels of Skylake."""
PEERS = ("openblas", TOLD, "torch", "MKL", "BLIS")
DEBIAN = "/usr/bin/python3"
"""A Python whose SciPy takes the libblas.so.3 that the linker finds first."""
MEMORY = "memory"
"""The loops of `memory_speed`. They take turns with the libraries, because memory's speed changes."""
TURNS = 4
"""The turns of each library in a case."""
LONG = 0.05
"""Seconds of a call that needs no other one before it: waking the threads takes a thousandth of them."""
PAUSE = 0.02
"""Seconds before a turn. Threads of OpenBLAS and OpenMP wait busily for some milliseconds after a call."""

Call = Callable[[Any], Callable[[], object]]
"""Binds a call to a library."""
Case = tuple[str, float, Callable[[], Call]]
"""A name, the operations or bytes of a call, and a function that makes its operands."""


def cases(letter: str) -> Iterator[Case]:
    """Yield all cases of a type."""
    dtype = np.float32 if letter == "s" else np.float64
    size = np.dtype(dtype).itemsize
    rng = np.random.default_rng(0)

    def matrix(rows: int, columns: int) -> Any:
        return np.asfortranarray(rng.standard_normal((rows, columns), dtype))

    def vector(count: int) -> Any:
        return rng.standard_normal(count, dtype)

    def heavy(n: int) -> Any:
        a = matrix(n, n)
        a[np.diag_indices(n)] += n
        return a

    def bound(name: str, *operands: Callable[[], Any], **named: Any) -> Callable[[], Call]:
        def made() -> Call:
            values = [make() for make in operands]
            return lambda library: partial(getattr(library, f"{letter}{name}"), *values, **named)

        return made

    one = lambda: 1.0  # noqa: E731
    for m, n, k in (*((s, s, s) for s in SQUARE), *THIN):
        yield (
            f"gemm {m} {n} {k}",
            2.0 * m * n * k,
            bound("gemm", one, partial(matrix, m, k), partial(matrix, k, n)),
        )
    for n in TRIANGLES:
        both = partial(heavy, n), partial(matrix, n, n)
        yield f"symm {n}", 2.0 * n**3, bound("symm", one, *both)
        yield f"syrk {n}", 1.0 * n**3, bound("syrk", one, both[1])
        yield f"trmm {n}", 1.0 * n**3, bound("trmm", one, *both)
        yield f"trsm {n}", 1.0 * n**3, bound("trsm", one, *both)
    for count in VECTORS:
        x = partial(vector, count)
        yield f"axpy {count}", 3.0 * count * size, bound("axpy", x, x, a=0.5)
        yield f"dot {count}", 2.0 * count * size, bound("dot", x, x)
        yield f"nrm2 {count}", 1.0 * count * size, bound("nrm2", x)
        yield f"asum {count}", 1.0 * count * size, bound("asum", x)
    for n in MATRICES:
        square, rest, read = partial(matrix, n, n), partial(vector, n), 1.0 * n * n * size
        yield f"gemv N {n}", read, bound("gemv", one, square, rest)
        yield f"gemv T {n}", read, bound("gemv", one, square, rest, trans=1)
        yield f"symv {n}", read / 2, bound("symv", one, square, rest)
        yield f"trsv {n}", read / 2, bound("trsv", partial(heavy, n), rest)


def is_of_memory(name: str) -> bool:
    """Return whether memory bounds a case: whether it is of level 1 or 2, and no cache holds its operands."""
    of_vectors = not name[1:].startswith(("gemm", "symm", "syrk", "trmm", "trsm"))
    return of_vectors and name.split()[-1] in map(str, (VECTORS[-1], MATRICES[-1]))


@cache
def _parts(threads: int) -> list[list[Any]]:
    return [[np.ones(VECTORS[-1] // threads) for _ in range(3)] for _ in range(threads)]


def memory_speed(threads: int) -> float:
    """Return the GB/s of the fastest of three loops over the vectors that no cache holds.

    They are a copy, a sum as in STREAM, and the search for the largest element. Each thread has its part of
    the vectors."""
    parts = _parts(threads)
    loops: tuple[tuple[int, Callable[..., object]], ...] = (
        (2, lambda x, y, z: np.copyto(z, x)),
        (3, lambda x, y, z: np.add(x, y, out=z)),
        (1, lambda x, y, z: np.max(x)),
    )
    speeds = []
    with ThreadPoolExecutor(threads) as pool:
        for vectors, loop in loops:
            best = float("inf")
            for _ in range(2):
                start = time.perf_counter()
                for job in [pool.submit(loop, *part) for part in parts]:
                    job.result()
                best = min(best, time.perf_counter() - start)
            speeds.append(vectors * VECTORS[-1] * 8 / best / 1e9)
    return max(speeds)


def product_of_torch(letter: str, case: Case) -> Callable[[], object]:
    """Return PyTorch's product of a case's sizes."""
    import torch

    m, n, k = map(int, case[0].split()[1:])
    rng = np.random.default_rng(0)
    dtype = np.float32 if letter == "s" else np.float64
    a, b = (torch.from_numpy(rng.standard_normal(shape).astype(dtype)) for shape in ((m, k), (k, n)))
    return lambda: torch.mm(a, b)


def call_of(library: str, letter: str, case: Case) -> Callable[[], object]:
    """Return a call of a library."""
    if library == "torch":
        return product_of_torch(letter, case)
    return case[2]()(blas if library == "jangin" else peer)


def worker(library: str, threads: int) -> None:
    """Answer each line of the standard input, {"letter": L, "case": NAME, "seconds": S}, with the seconds of
    each call. A library's own threads then never wait beside those of another one."""
    if library == "jangin":
        blas.set_threads(threads)
    elif library == "torch":
        import torch

        torch.set_num_threads(threads)
    known: tuple[str, str] | None = None
    if sys.executable != DEBIAN:
        from threadpoolctl import threadpool_limits
    with threadpool_limits(threads) if sys.executable != DEBIAN else contextlib.nullcontext():
        for asked in map(json.loads, sys.stdin):
            letter, name = asked["letter"], asked["case"]
            if library == MEMORY:
                case = next(c for c in cases(letter) if c[0] == name)
                print(json.dumps([case[1] / memory_speed(threads) / 1e9]), flush=True)
                continue
            if known != (letter, name):
                known, case = (letter, name), next(c for c in cases(letter) if c[0] == name)
                call, taken = call_of(library, letter, case), [0.0]
            if taken[-1] < LONG:
                call()
            taken, end = [], time.perf_counter() + asked["seconds"]
            while not taken or time.perf_counter() < end:
                start = time.perf_counter()
                call()
                taken.append(time.perf_counter() - start)
            print(json.dumps(taken), flush=True)


class Library:
    """A library in a process of its own."""

    def __init__(self, name: str, threads: int, folder: str = "") -> None:
        python = DEBIAN if folder else sys.executable
        command = [python, __file__, "--worker", name, "--threads", str(threads)]
        own = os.environ | ({"OPENBLAS_CORETYPE": "SKYLAKEX"} if name == TOLD else {})
        if folder:
            number = str(threads)
            paths = os.pathsep.join((str(Path(folder).resolve()), os.environ.get("LD_LIBRARY_PATH", "")))
            own |= {"LD_LIBRARY_PATH": paths, "OMP_NUM_THREADS": number, "BLIS_NUM_THREADS": number}
            own |= {"PYTHONPATH": str(Path(__file__).resolve().parents[1])}
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=own
        )

    def seconds(self, letter: str, name: str, seconds: float) -> list[float]:
        """Return the seconds of each call during a turn."""
        assert self.process.stdin and self.process.stdout
        print(
            json.dumps({"letter": letter, "case": name, "seconds": seconds}),
            file=self.process.stdin,
            flush=True,
        )
        answer: list[float] = json.loads(self.process.stdout.readline())
        return answer


@contextlib.contextmanager
def started(threads: int, peers: Mapping[str, str], without: Collection[str]) -> Iterator[dict[str, Library]]:
    """Yield the libraries that are here, each in its process. `peers` has the folders of others by their
    names. Those of `without` are left out."""
    names = ["jangin", MEMORY, "openblas"]
    names += [TOLD] * (resolve().processor.lanes(4) >= 16)
    names += ["torch"] * (importlib.util.find_spec("torch") is not None)
    libraries = {name: Library(name, threads) for name in names if name not in without}
    libraries |= {name: Library(name, threads, folder) for name, folder in peers.items()}
    try:
        yield libraries
    finally:
        for library in libraries.values():
            with library.process as process:
                assert process.stdin
                process.stdin.close()


def measured(
    libraries: Mapping[str, Library], letter: str, name: str, seconds: float, turns: int
) -> tuple[dict[str, float], bool]:
    """Return the median seconds of a call of each library, and whether other processes took a part of the
    cores meanwhile. The libraries take turns. A library's threads sleep before the next one's turn."""
    taken: dict[str, list[float]] = {library: [] for library in libraries}
    own = [os.getpid(), *(library.process.pid for library in libraries.values())]

    def foreign() -> float:
        return busy_seconds() - sum(map(busy_seconds, own))

    for library in libraries.values():
        library.seconds(letter, name, 0)
    before, start = foreign(), time.perf_counter()
    for turn in range(turns):
        for each, library in [*libraries.items()][:: 1 if turn % 2 else -1]:
            time.sleep(PAUSE)
            taken[each] += library.seconds(letter, name, seconds / turns)
    is_crowded = foreign() - before > FOREIGN * (time.perf_counter() - start)
    return {library: statistics.median(times) for library, times in taken.items()}, is_crowded


def share(row: Mapping[str, float]) -> float:
    """Return the share of the best other library."""
    return row["jangin"] / max(row[name] for name in PEERS if name in row)


def timed(
    libraries: Mapping[str, Library], letter: str, case: Case, threads: int, seconds: float, turns: int
) -> dict[str, float] | None:
    """Return the figures of a case, and the speed of memory if that bounds it. Return None if other
    processes took a part of the cores meanwhile."""
    name, work, _ = case
    is_used = {"torch": name.startswith("gemm"), MEMORY: is_of_memory(letter + name)}
    used = {n: each for n, each in libraries.items() if is_used.get(n, True)}
    medians, is_crowded = measured(used, letter, name, seconds, turns)
    if is_crowded:
        return None
    return {library: round(work / t / 1e9, 2) for library, t in medians.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--threads", type=int, nargs="+", default=[1])
    parser.add_argument("--types", nargs="+", default=["s", "d"])
    parser.add_argument("--only", nargs="+", default=[""], help="cases whose names begin so")
    parser.add_argument("--seconds", type=float, default=0.3, help="for each case")
    parser.add_argument("--turns", type=int, default=TURNS, help="of each library in a case")
    parser.add_argument("--window", type=float, default=float("inf"), help="seconds after which the run ends")
    parser.add_argument(
        "--progress", type=Path, help="a file with the figures so far, which aren't measured again"
    )
    parser.add_argument("--peer", nargs="+", default=[], help="other libraries, as NAME=FOLDER")
    parser.add_argument("--without", nargs="+", default=[], help="libraries that are left out")
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.worker:
        worker(asked.worker, *asked.threads)
        return
    end = time.perf_counter() + asked.window
    peers = dict(peer.split("=", 1) for peer in asked.peer)
    known = asked.progress is not None and asked.progress.is_file()
    rows: dict[str, dict[str, float]] = json.loads(asked.progress.read_text()) if known else {}
    for threads in asked.threads:
        with started(threads, peers, asked.without) as libraries:
            for letter, case in [(t, case) for t in asked.types for case in cases(t)]:
                key = f"{letter}{case[0]}, {threads}"
                if key in rows or not case[0].startswith(tuple(asked.only)):
                    continue
                if time.perf_counter() > end:
                    print("the window is over: call again for the rest")
                    return
                row = timed(libraries, letter, case, threads, asked.seconds, asked.turns)
                if row is None:
                    print(f"{key}: other processes took a part of the cores: not counted", flush=True)
                    continue
                rows[key] = row
                print(f"{key:26} {share(row):5.2f} of the best ", row, flush=True)
                if asked.progress is not None:
                    asked.progress.write_text(json.dumps(rows))
    if asked.write:
        store(rows)


def store(rows: Mapping[str, Mapping[str, float]]) -> None:
    """Write the figures of calls and threads to results/blas.json, where other figures stay."""
    from threadpoolctl import threadpool_info

    path = FOLDER / "blas.json"
    parts = Section.load(path).parts if path.is_file() else ()
    tables = (part for part in parts if isinstance(part, Table))
    known = [dict(zip(table.columns, row, strict=True)) for table in tables for row in table.rows]
    lines = {(k["call"], k["threads"]): [k.get(name, "") for name in COLUMNS[2:]] for k in known}
    for key, row in rows.items():
        shown = [f"{row[name]:.2f}" if name in row else "" for name in ("jangin", *PEERS)]
        of_memory = f"{row['jangin'] / row['memory']:.2f}" if "memory" in row else ""
        name, _, threads = key.partition(", ")
        lines[name, threads] = [*shown, f"{share(row):.2f}", of_memory]
    versions = ", ".join(sorted({f"{i['internal_api']} {i['version']}" for i in threadpool_info()}))
    about = (
        f"Calls of `jangin.blas` beside others on {processor_name()} ({versions}): GFLOP/s of "
        "level 3, and GB/s of the others. Each figure is a median; the libraries took turns. "
        "BLIS 0.9 and MKL 2026 are called by Debian's SciPy; BLIS is told to take its kernels of Skylake."
    )
    table = Table(COLUMNS, [(*key, *line) for key, line in sorted(lines.items())])
    Section("BLAS", [about, table]).save("blas")


if __name__ == "__main__":
    main()
