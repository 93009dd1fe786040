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
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pandas as pd
import pyarrow as pa
from onnx import TensorProto, helper, numpy_helper

import jangin
from jangin.batches.api import _compiled, _rows
from jangin.batches.asked import Asked
from jangin.options import Options
from jangin.runtime.compiled import signature
from jangin.runtime.frames import Columns
from jangin.runtime.rows import Sent
from jangin.study.quiet import quiet

CHARACTERS, LETTERS, WIDTH, LAYERS, CLASSES = 64, 128, 256, 8, 4
"""The characters of a text, the letters, the channels and number of convolutions, and the classes. A text has
256 bytes and takes 0.2 GFLOP, so that processors compute and hardly wait for memory or for the engine."""
ROWS, PARTS = 8_192, 16
TURNS = 2
"""The timed turns of an engine, of one plain process and of two. The quickest of each counts, as the least
disturbed one."""
COLUMN = "text"
INPUTS = {"x": COLUMN}


def model() -> onnx.ModelProto:
    """Return a network of convolutions over the characters of a text, which tells its class."""
    rng, nodes = np.random.default_rng(0), list[onnx.NodeProto]()
    constants: list[onnx.TensorProto] = []

    def constant(*shape: int) -> str:
        weights = (rng.standard_normal(shape) * (2 / np.prod(shape[1:])) ** 0.5).astype(np.float32)
        constants.append(numpy_helper.from_array(weights, f"w{len(constants)}"))
        return str(constants[-1].name)

    nodes += [
        helper.make_node("Gather", [constant(LETTERS, WIDTH), "x"], ["letters"]),
        helper.make_node("Transpose", ["letters"], ["r0"], perm=[0, 2, 1]),
    ]
    for n in range(LAYERS):
        nodes += [
            helper.make_node("Conv", [f"r{n}", constant(WIDTH, WIDTH, 3)], [f"c{n}"], pads=[1, 1]),
            helper.make_node("Relu", [f"c{n}"], [f"r{n + 1}"]),
        ]
    nodes += [
        helper.make_node("ReduceMean", [f"r{LAYERS}", "axes"], ["pooled"], keepdims=0),
        helper.make_node("Gemm", ["pooled", constant(CLASSES, WIDTH)], ["y"], transB=1),
    ]
    constants.append(numpy_helper.from_array(np.array([2]), "axes"))
    ends = [
        helper.make_tensor_value_info("x", TensorProto.INT32, ["n", CHARACTERS]),
        helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", CLASSES]),
    ]
    graph = helper.make_graph(nodes, "texts", ends[:1], ends[1:], constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


def frame(seed: int = 0) -> pd.DataFrame:
    letters = np.random.default_rng(seed).integers(0, LETTERS, (ROWS, CHARACTERS), np.int32)
    starts = pa.array(np.arange(ROWS + 1) * CHARACTERS, pa.int32())
    lists = pa.ListArray.from_arrays(starts, pa.array(letters.reshape(-1)))
    return pd.DataFrame({COLUMN: pd.arrays.ArrowExtensionArray(lists)})


def timed(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def right(problems: int) -> None:
    if problems:
        raise RuntimeError(f"the model couldn't take {problems} of the rows")


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
def dask_engine(made: Any) -> Iterator[Callable[[], float]]:
    import dask
    import dask.dataframe as dd
    from distributed import Client, LocalCluster

    # Two workers that are equally quick need no balance. Dask moved one task of eight nevertheless.
    dask.config.set({"distributed.scheduler.work-stealing": False})
    with (
        LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster,
        Client(cluster) as client,
    ):
        workers = [*client.scheduler_info()["workers"]]
        for processor, address in enumerate(workers):
            client.run(pin_all, processor, workers=[address])
        seeds, kept = iter(range(99)), []

        def work() -> float:
            """Time other data each time, because Dask keeps the results of equal tasks."""
            data = dd.from_pandas(frame(next(seeds)), npartitions=PARTS, sort=False)
            kept.append(jangin.batch(made, data, INPUTS, keep=[]))
            client.submit(os.getpid, pure=False).result()  # the model has arrived
            return timed(lambda: right(kept[-1].compute().problem.count()))

        yield work


@contextmanager
def ray_engine(made: Any) -> Iterator[Callable[[], float]]:
    import tempfile

    import ray

    from jangin.batches import ray_engine as engine

    folder = tempfile.mkdtemp()

    class Pinned(engine.Actor):
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

    engine.Actor = Pinned  # type: ignore[misc]
    ray.init(num_cpus=3, include_dashboard=False, log_to_driver=False)
    data = ray.data.from_pandas(parts(frame()))

    def work() -> float:
        for taken in Path(folder).iterdir():
            taken.unlink()
        results = jangin.batch(made, data, INPUTS, keep=[], workers=2).materialize()
        right(results.to_pandas().problem.count())
        spans = [[*map(float, line.split())] for line in Path(folder, "calls").read_text().splitlines()]
        return max(end for _, end in spans) - min(start for start, _ in spans)

    try:
        yield work
    finally:
        ray.shutdown()


@contextmanager
def spark_engine(made: Any) -> Iterator[Callable[[], float]]:
    from pyspark.sql import SparkSession

    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    builder = builder.config("spark.sql.execution.arrow.pyspark.enabled", "true")
    session = builder.config("spark.driver.host", "127.0.0.1").getOrCreate()
    data = session.createDataFrame(frame()).repartition(PARTS).cache()
    data.count()
    try:
        results = jangin.batch(made, data, INPUTS, keep=[])
        right(results.where("problem is not null").count())
        yield lambda: timed(results.write.format("noop").mode("overwrite").save)
    finally:
        session.stop()


ENGINES = {"dask": dask_engine, "ray": ray_engine, "spark": spark_engine}


def main() -> None:
    made = jangin.compile(model(), threads=1)
    artifact, data = _compiled(made, Options())
    sent = Sent("texts", data, _rows(signature(artifact)[0]))
    columns = Asked(sent, tuple(signature(artifact)[1]), INPUTS, True, [], 1, 2).columns([COLUMN])
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("engines", nargs="+", choices=ENGINES)
    parser.add_argument("--quiet", default="", help="a command that keeps others away from the timing")
    args = parser.parse_args()
    kept: dict[str, Any] = {}
    for name in args.engines:
        with ENGINES[name](made) as work:
            work()
            with quiet(args.quiet):
                turns = [
                    (processes(sent, columns, 1), work(), processes(sent, columns, 2)) for _ in range(TURNS)
                ]
        one, two, bare = map(min, zip(*turns, strict=True))
        kept[name] = {
            "one": one,
            "two": two,
            "two_processes": bare,
            "ratio": one / two,
            "ceiling": one / bare,
        }
        print(name, kept[name], turns, flush=True)


if __name__ == "__main__":
    main()
