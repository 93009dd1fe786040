"""Time batch inference on two workers of Dask, Ray and Spark, each pinned to one processor, against one
process on one processor.

    python -m benchmarks.batch dask ray spark

It prints the figures of `benchmarks/results/batch.json`. `--quiet` has a command as `jangin study` takes it.
Each engine first runs once untimed, so that workers are started
and hold the model. Ray starts actors for each run, so its time is from an actor's first call to the last.
Two plain processes are timed in the same minute: they tell what the second processor itself brings. Ray and
Spark drop the results, and Dask moves them to the caller."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pandas as pd
from onnx import TensorProto, helper, numpy_helper

import jangin
from jangin.batches.api import _compiled, _rows
from jangin.batches.asked import Asked
from jangin.options import Options
from jangin.runtime.compiled import signature
from jangin.runtime.frames import Columns
from jangin.runtime.rows import Sent
from jangin.study.quiet import quiet

COLUMNS, WIDTH, DEPTH = 16, 1536, 3
"""The columns of a row, and the size and number of the model's hidden layers."""
ROWS, PARTS = 131_072, 16
TURNS = {"dask": 3, "ray": 2, "spark": 2}
"""The timed runs of each engine. The quickest counts, as the least disturbed one."""
INPUTS = {"x": [f"c{n}" for n in range(COLUMNS)]}


def model() -> onnx.ModelProto:
    """Return a perceptron with rows of COLUMNS numbers."""
    rng, nodes, constants, last, sizes = np.random.default_rng(0), [], [], "x", [COLUMNS, *[WIDTH] * DEPTH, 4]
    for n, (a, b) in enumerate(pairwise(sizes)):
        constants.append(
            numpy_helper.from_array((rng.standard_normal((a, b)) / a**0.5).astype(np.float32), f"w{n}")
        )
        nodes += [
            helper.make_node("MatMul", [last, f"w{n}"], [f"m{n}"]),
            helper.make_node("Relu", [f"m{n}"], [f"r{n}"]),
        ]
        last = f"r{n}"
    ends = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", size])
        for name, size in (("x", COLUMNS), (last, 4))
    ]
    graph = helper.make_graph(nodes, "perceptron", ends[:1], ends[1:], constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


def frame(seed: int = 0) -> pd.DataFrame:
    values = np.random.default_rng(seed).random((ROWS, COLUMNS)).astype(np.float32)
    return pd.DataFrame(values, columns=INPUTS["x"])


def timed(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def parts(data: pd.DataFrame) -> list[pd.DataFrame]:
    return [data[n : n + ROWS // PARTS] for n in range(0, ROWS, ROWS // PARTS)]


def plain(processor: int, sent: Sent, columns: Columns, share: int, start: Any, end: Any) -> None:
    """Run every `share`th part on one processor in this process, between two barriers."""
    os.sched_setaffinity(0, {processor})
    mine = parts(frame())[processor % share :: share]
    columns.run(sent, 1, mine[0])
    start.wait()
    for part in mine:
        columns.run(sent, 1, part)
    end.wait()


def processes(sent: Sent, columns: Columns, count: int) -> float:
    """Return the seconds of `count` plain processes for all rows."""
    context = get_context("spawn")
    start, end = context.Barrier(count + 1), context.Barrier(count + 1)
    started = [
        context.Process(target=plain, args=(n, sent, columns, count, start, end)) for n in range(count)
    ]
    for process in started:
        process.start()
    start.wait()
    taken = timed(end.wait)
    for process in started:
        process.join()
    return taken


def pin_all(processor: int) -> None:
    """Pin all threads of this process to a processor."""
    for thread in os.listdir("/proc/self/task"):
        os.sched_setaffinity(int(thread), {processor})


@contextmanager
def dask(made: Any) -> Iterator[Callable[[], float]]:
    import dask.dataframe as dd
    from distributed import Client, LocalCluster, wait

    with (
        LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster,
        Client(cluster) as client,
    ):
        workers = [*client.scheduler_info()["workers"]]
        for processor, address in enumerate(workers):
            client.run(pin_all, processor, workers=[address])
        seeds, kept = iter(range(99)), []

        def work() -> float:
            """Time other data each time, because Dask keeps the results of equal tasks. Each worker holds
            half of the data. A task runs where its data lie, so that other shares would be uneven."""
            held = [
                client.scatter(p, workers=[workers[n % 2]]) for n, p in enumerate(parts(frame(next(seeds))))
            ]
            wait(held)
            data = dd.from_delayed(held, meta=frame(0)[:0], verify_meta=False)
            kept.append(jangin.batch(made, data, INPUTS, keep=[]))
            client.submit(os.getpid, pure=False).result()  # the model has arrived
            return timed(kept[-1].compute)

        yield work


@contextmanager
def ray(made: Any) -> Iterator[Callable[[], float]]:
    import tempfile

    import ray

    from jangin.batches import ray_engine

    folder = tempfile.mkdtemp()

    class Pinned(ray_engine.Actor):
        def __init__(self, *given: Any) -> None:
            for processor in (0, 1):
                try:
                    Path(folder, f"{os.getppid()}-{processor}").touch(exist_ok=False)
                except FileExistsError:
                    continue
                os.sched_setaffinity(0, {processor})
                break
            super().__init__(*given)

        def __call__(self, part: Any) -> Any:
            start = time.time()
            done = super().__call__(part)
            with open(Path(folder, "calls"), "a") as file:
                file.write(f"{start} {time.time()}\n")
            return done

    ray_engine.Actor = Pinned  # type: ignore[misc]
    ray.init(num_cpus=3, include_dashboard=False, log_to_driver=False)
    data = ray.data.from_pandas(parts(frame()))

    def work() -> float:
        for taken in Path(folder).iterdir():
            taken.unlink()
        jangin.batch(made, data, INPUTS, keep=[], workers=2).materialize()
        spans = [[*map(float, line.split())] for line in Path(folder, "calls").read_text().splitlines()]
        return max(end for _, end in spans) - min(start for start, _ in spans)

    try:
        yield work
    finally:
        ray.shutdown()


@contextmanager
def spark(made: Any) -> Iterator[Callable[[], float]]:
    from pyspark.sql import SparkSession

    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    session = builder.config("spark.driver.host", "127.0.0.1").getOrCreate()
    data = session.createDataFrame(frame()).repartition(PARTS).cache()
    data.count()
    try:
        results = jangin.batch(made, data, INPUTS, keep=[]).write.format("noop").mode("overwrite")
        yield lambda: timed(results.save)
    finally:
        session.stop()


def main() -> None:
    made = jangin.compile(model(), threads=1)
    artifact, data = _compiled(made, Options())
    sent = Sent("perceptron", data, _rows(signature(artifact)[0]))
    columns = Asked(sent, tuple(signature(artifact)[1]), INPUTS, True, [], 1, 2).columns(INPUTS["x"])
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("engines", nargs="+", choices=TURNS)
    parser.add_argument("--quiet", default="", help="a command that keeps others away from the timing")
    args = parser.parse_args()
    kept: dict[str, Any] = {}
    for name in args.engines:
        with globals()[name](made) as work:
            work()
            with quiet(args.quiet):
                taken = [work() for _ in range(TURNS[name])]
                one, two = (processes(sent, columns, count) for count in (1, 2))
        ratios = {"ratio": one / min(taken), "of_processes": two / min(taken)}
        kept[name] = {"one": one, "two": min(taken), "two_processes": two, **ratios}
        print(name, kept[name], flush=True)


if __name__ == "__main__":
    main()
