"""Time `jangin tune --farm`: two workers against one, each pinned to a processor, and the scheduler's share.

    python -m benchmarks.farm 1 2 simulated

It prints the figures of `benchmarks/results/farm.json`.
A number tunes ten kernels on so many workers, until no
candidate is left. The processor's time of this process, in which Dask's scheduler and the coordinator run, is
their share. `simulated` measures the coordinator alone with 200 to 2,000 boards."""

from __future__ import annotations

import argparse
import os
import random
import sys
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from onnx import TensorProto, helper, numpy_helper

from jangin.farm import tuning
from jangin.options import Options
from jangin.study.quiet import quiet

SIZES = (64, 96, 160, 224, 288, 352, 320, 256, 192, 128, 80)
"""The widths of ten products, each a kernel of its own."""
ROWS = 128
"""The rows of the products. They have 350 candidates, so that checks by the other device weigh little."""
BOARDS = (200, 500, 2_000)
RACE = 3.0
"""Seconds that a race takes on a device, compiling included, for the share in the simulation."""


def model() -> bytes:
    rng, nodes, constants = np.random.default_rng(0), [], []
    for n, (a, b) in enumerate(pairwise(SIZES)):
        weights = rng.standard_normal((a, b)).astype(np.float32)
        constants.append(numpy_helper.from_array(weights, f"w{n}"))
        nodes.append(helper.make_node("MatMul", [f"x{n}", f"w{n}"], [f"x{n + 1}"]))
    ends = [helper.make_tensor_value_info(f"x{n}", TensorProto.FLOAT, [ROWS, SIZES[n]]) for n in (0, 10)]
    graph = helper.make_graph(nodes, "ten products", ends[:1], ends[1:], constants)
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
    return bytes(made.SerializeToString())


def pin(processor: int) -> None:
    """Pin a worker's threads to a processor."""
    for thread in os.listdir("/proc/self/task"):
        os.sched_setaffinity(int(thread), {processor})


def tuned(count: int, command: str) -> dict[str, Any]:
    """Tune the ten kernels on some workers, and return the seconds and the numbers of races. `command` keeps
    others away."""
    from distributed import Client, LocalCluster

    devices = {"n_workers": count, "threads_per_worker": 1, "resources": {"jangin-test": 1}}
    with LocalCluster(dashboard_address=None, **devices) as cluster, Client(cluster) as client:
        for processor, address in enumerate(client.scheduler_info()["workers"]):
            client.run(pin, processor, workers=[address])
        ends = []
        tuning.tune_on(cluster.scheduler_address, model(), Options(), 1, 0.0, None, None, lambda *_: None)
        with quiet(command):
            start, spent = time.perf_counter(), time.process_time()
            (place,) = tuning.tune_on(
                cluster.scheduler_address, model(), Options(), 1, 600.0, None, None, lambda *t: ends.append(t)
            )
            taken, spent = time.perf_counter() - start, time.process_time() - spent
    assert place.outcome is not None, place.problem
    tried = sum(k.tried.total() for k in place.outcome.kernels)
    return {
        "workers": count, "seconds": taken, "scheduler_seconds": spent, "kernels": len(place.outcome.kernels),
        "candidates": tried, "winners": sum(k.best != k.first for k in place.outcome.kernels),
        "said": [*dict.fromkeys(place.said)],
    }  # fmt: skip


def simulated(count: int) -> dict[str, Any]:
    """Return the coordinator's seconds for each race with some boards, and its share of the time."""
    sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "farm"))
    from simulated import Board, Boards, coordinator, finish, kernels

    rng = random.Random(count)
    made = {f"board {n}": Board(rng.uniform(0.5, 1.5), rng.uniform(0.01, 0.5)) for n in range(count)}
    boards = Boards(made, kernels(rng, 60, 6 * max(3, count // 40)), rng)
    starts = boards.start, boards.wait, boards.devices
    outside = 0.0

    def apart(function: Any) -> Any:
        def called(*given: Any) -> Any:
            nonlocal outside
            start = time.process_time()
            try:
                return function(*given)
            finally:
                outside += time.process_time() - start

        return called

    boards.start, boards.wait, boards.devices = map(apart, starts)  # type: ignore[method-assign]
    tuning_of = coordinator(boards, [])
    start = time.process_time()
    finish(tuning_of, boards, 1e9)
    each = (time.process_time() - start - outside) / boards.jobs
    return {"boards": count, "races": boards.jobs, "seconds_a_race": each, "share": each * count / RACE}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("what", nargs="+", help="numbers of workers, and `simulated`")
    parser.add_argument("--quiet", default="", help="a command that keeps others away from the timing")
    args = parser.parse_args()
    kept: dict[str, Any] = {}
    for name in args.what:
        runs = [tuned(int(name), args.quiet)] if name.isdigit() else map(simulated, BOARDS)
        kept[name] = [*runs]
        print(*kept[name], sep="\n", flush=True)


if __name__ == "__main__":
    main()
