"""Measure models that are served: runs after a pause, and several callers at once.

    python benchmarks/served.py [--models mobilenetv2,gru] [--parts gaps,callers] [--label NAME] [--keep]

Each engine runs in a process of its own, with its default number of threads and with one thread. `--label`
names Jangin's rows, to set two versions side by side. `--keep` adds the rows to
benchmarks/results/served.json, in place of rows of the same name. benchmarks/make_models.py makes the models.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from catalogue import CATALOGUE, Model
from sections import FOLDER, Section, Table

MODELS = ("mobilenetv2", "minilm", "gru")
GAPS = (0, 1, 5, 20, 100)
"""Milliseconds between two runs."""
CALLERS = (1, 2, 4, 8, 16)
SECONDS = 1.2
"""The time for which callers run."""
ROUNDS, BACK_TO_BACK = 30, 4
"""How often each gap is tried, and the runs of a try without a gap."""
WAYS = (("Jangin", 0), ("Jangin", 1), ("ONNX Runtime", 0), ("ONNX Runtime", 1))
"""The engines, with their threads. 0 is the engine's default."""

Run = Callable[[], object]
Figures = dict[str, list[str]]


def arrays(inputs: Sequence[tuple[str, Sequence[Any], str]], model: Model) -> dict[str, np.ndarray]:
    """Return random inputs. Sizes that aren't numbers are the model's."""
    random, made = np.random.default_rng(0), {}
    for name, shape, kind in inputs:
        sizes = [int(s) if str(s).isdigit() else model.sizes[str(s)] for s in shape]
        integer = "int64" in kind
        made[name] = np.ones(sizes, np.int64) if integer else random.random(sizes, np.float32)
    return made


def started(engine: str, threads: int, model: Model) -> Run:
    """Return a function that runs the model once."""
    if engine == "Jangin":
        import jangin

        exe = jangin.compile(model.path, threads=threads or None)
        given = arrays([(t.name, [str(s) for s in t.shape], str(t.dtype)) for t in exe.inputs], model)
        return lambda: exe.run(given)
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(str(model.path), options)
    given = arrays([(t.name, t.shape, t.type) for t in session.get_inputs()], model)
    return lambda: session.run(None, given)


def gaps(run: Run) -> list[str]:
    """Return the median milliseconds of a run after each gap. The gaps take turns, because a virtual
    machine's cores have slow seconds."""
    taken: dict[int, list[float]] = {gap: [] for gap in GAPS}
    for _ in range(ROUNDS):
        for gap, seconds in taken.items():
            for _ in range(1 if gap else BACK_TO_BACK):
                time.sleep(gap / 1e3) if gap else None
                start = time.perf_counter()
                run()
                seconds.append(time.perf_counter() - start)
    return [f"{np.median(seconds) * 1e3:.2f}" for seconds in taken.values()]


def callers(run: Run) -> list[str]:
    """Return the runs a second, and the 99th percentile of a run's milliseconds, for each number of
    callers."""
    found = []
    for count in CALLERS:
        taken: list[float] = []
        begin = threading.Barrier(count)
        end = time.perf_counter() + SECONDS

        def call(begin: threading.Barrier = begin, end: float = end, taken: list[float] = taken) -> None:
            begin.wait()
            while (start := time.perf_counter()) < end:
                run()
                taken.append(time.perf_counter() - start)

        threads = [threading.Thread(target=call) for _ in range(count)]
        start = time.perf_counter()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        rate = len(taken) / (time.perf_counter() - start)
        found.append(f"{rate:.1f} / {np.percentile(taken, 99) * 1e3:.2f}")
    return found


PARTS: Mapping[str, Callable[[Run], list[str]]] = {"gaps": gaps, "callers": callers}


def measure(engine: str, threads: int, name: str, parts: Sequence[str]) -> dict[str, list[str]]:
    run = started(engine, threads, CATALOGUE[name])
    for _ in range(10):
        run()
    return {part: PARTS[part](run) for part in parts}


def columns(part: str) -> list[str]:
    """Return the titles of a part's columns."""
    if part == "gaps":
        return ["model", "engine", *(f"{gap} ms" for gap in GAPS)]
    return ["model", "engine", *(f"{n} caller{'s' * (n > 1)}" for n in CALLERS)]


NOTES = {
    "gaps": "Median milliseconds of a run after pauses of so many milliseconds.",
    "callers": "Runs a second, and the 99th percentile of a run's milliseconds, of so many callers at once.",
}


def keep(found: Mapping[str, Sequence[Sequence[str]]]) -> None:
    """Put rows into the stored results, in place of rows with the same model and engine."""
    path, parts = FOLDER / "served.json", []
    stored = json.loads(path.read_text())["parts"] if path.is_file() else []
    for part, note in NOTES.items():
        old = next((p["rows"] for p in stored if isinstance(p, dict) and p["columns"] == columns(part)), [])
        rows = {(row[0], row[1]): row for row in (*old, *found.get(part, ()))}
        parts += [
            f"`python benchmarks/served.py --keep`: {note}",
            Table(columns(part), sorted(rows.values())),
        ]
    print(f"written to {Section('Served', parts).save('served')}")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--models", default=",".join(MODELS), help="default: %(default)s")
    parser.add_argument("--parts", default=",".join(PARTS), help="default: %(default)s")
    parser.add_argument(
        "--ways", default="0,1,2,3", help="which of the engines to run (default: %(default)s)"
    )
    parser.add_argument("--label", default="Jangin", help="the name of Jangin's rows")
    parser.add_argument("--keep", action="store_true", help="add the rows to the stored results")
    args = parser.parse_args()
    parts, found = args.parts.split(","), {part: [] for part in args.parts.split(",")}
    for name in args.models.split(","):
        for engine, threads in (WAYS[int(n)] for n in args.ways.split(",")):
            with multiprocessing.get_context("spawn").Pool(1) as pool:
                taken = pool.apply(measure, (engine, threads, name, parts))
            label = (args.label if engine == "Jangin" else engine) + f", {threads or 'default'} threads"
            for part, figures in taken.items():
                found[part].append([CATALOGUE[name].title, label.replace("1 threads", "1 thread"), *figures])
                print("  ".join(found[part][-1]), flush=True)
    if args.keep:
        keep(found)


if __name__ == "__main__":
    main()
