"""Compare training steps under `torch.compile` with Jangin, with Inductor, and by PyTorch itself ("eager").

    python benchmarks/torch_train.py [--models A,B] [--threads 2] [--turns N] [--lock FILE] [--write]

    python benchmarks/torch_train.py --out results.jsonl --minutes 8  # again, until all rows are there

The script needs the extra `torch`, pytorchcv, transformers, and g++ for Inductor. A step is the forward and
backward graphs and PyTorch's SGD with momentum, on random batches. Each way has a process of its own for a
model. It first makes three steps, in which all is compiled. Steps are then timed in turns of a fraction of a
second, one process at a time. All then meet the same phases of a busy machine. `--lock FILE` holds a lock
while anything is timed.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
import time
import warnings
from collections.abc import Sequence
from pathlib import Path
from statistics import geometric_mean, median
from typing import Any

import torch_compile
from sections import Section, Table

WAYS = ("jangin", "inductor", "eager")
ASKED, LEAST = 1.2, 0.95
STEPS = 3


def worker(way: str, name: str) -> None:
    """Make the first steps and print their losses. Then answer each line of the standard input,
    {"seconds": S}, with the median seconds of a step during S seconds."""
    warnings.filterwarnings("ignore")
    import torch
    from training_models import training

    threads = json.loads(sys.stdin.readline())["threads"]
    torch.set_num_threads(threads)
    made = training(name, small=False)
    optimizer = torch.optim.SGD(made.model.parameters(), lr=0.01, momentum=0.9)
    run: Any = made.model if way == "eager" else torch.compile(made.model, backend=way)
    batches = [made.batch(step) for step in range(STEPS)]
    torch.manual_seed(1)

    def step(n: int = 0) -> float:
        optimizer.zero_grad()
        loss = made.loss(run, **batches[n])
        loss.backward()
        optimizer.step()
        return loss.item()

    print(json.dumps([step(n) for n in range(STEPS)]), flush=True)
    for asked in map(json.loads, sys.stdin):
        print(json.dumps(torch_compile.timed(step, asked["seconds"])), flush=True)


def compared(name: str, threads: int, turns: int, seconds: float, lock: str | None) -> dict[str, Any]:
    """Return a row: medians over the turns in milliseconds. `ratio` is the time of the better of Inductor and
    eager over Jangin's. `error` is the largest difference of the first losses to eager's, as a share."""
    with contextlib.ExitStack() as stack:
        asks = {way: stack.enter_context(torch_compile.started(way, name, __file__)) for way in WAYS}
        losses = {way: ask(threads=threads) for way, ask in asks.items()}
        found: dict[str, list[float]] = {way: [] for way in WAYS}
        with torch_compile.held(lock):
            for turn in range(turns):
                for way in WAYS if turn % 2 else WAYS[::-1]:
                    found[way].append(asks[way](seconds=seconds))
    pairs = zip(losses["jangin"], losses["eager"], strict=True)
    row: dict[str, Any] = {way: median(times) * 1e3 for way, times in found.items()}
    best = min(row["inductor"], row["eager"])
    error = max(abs(a - b) / abs(b) for a, b in pairs)
    return {"model": name, "threads": threads, **row, "ratio": best / row["jangin"], "error": error}


def section(rows: list[dict[str, Any]]) -> Section:
    """Return the section with the comparison."""
    said = (
        "`python benchmarks/torch_train.py`: a step of forward, backward and SGD with momentum, float32, "
        "random weights and batches; medians of turns. *ratio*: the time of the better of Inductor and eager "
        "over Jangin's; *error*: of Jangin's first losses against eager's, as a share."
    )
    header = ["model", "threads", "Jangin ms", "Inductor ms", "eager ms", "ratio", "error"]
    cells = [
        [
            r["model"],
            str(r["threads"]),
            *(f"{r[way]:.1f}" for way in WAYS),
            f"{r['ratio']:.2f}",
            f"{r['error']:.0e}",
        ]
        for r in rows
    ]
    means = []
    for threads in sorted({r["threads"] for r in rows}):
        these = [r["ratio"] for r in rows if r["threads"] == threads]
        means.append(
            f"Threads: {threads}. {geometric_mean(these):.2f} times as fast on the geometric mean of "
            f"{len(these)} models ({ASKED} asked), below {LEAST} on {sum(r < LEAST for r in these)}."
        )
    return Section(
        "`torch.compile` in training: Jangin, Inductor and eager", [said, Table(header, cells), *means]
    )


def main(given: Sequence[str] | None = None) -> None:
    from training_models import MODELS

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--threads", default="2")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=0.3, help="of a turn")
    parser.add_argument("--lock", help="a file whose lock is held while steps are timed")
    parser.add_argument("--out", type=Path, help="where results are kept, a line each; those there are kept")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="no model begins after so many")
    parser.add_argument("--write", action="store_true", help="keep the table in benchmarks/results")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    asked = parser.parse_args(given)
    models = asked.models.split(",")
    if asked.worker:
        worker(asked.worker, models[0])
        return
    kept = asked.out.read_text().splitlines() if asked.out and asked.out.exists() else []
    rows = [json.loads(line) for line in kept]
    done, begin = {(r["model"], r["threads"]) for r in rows}, time.monotonic()
    wanted = [(name, int(threads)) for threads in asked.threads.split(",") for name in models]
    for name, threads in wanted:
        if (name, threads) in done or time.monotonic() - begin > 60 * asked.minutes:
            continue
        try:
            rows.append(compared(name, threads, asked.turns, asked.seconds, asked.lock))
        except RuntimeError as error:
            print(error, file=sys.stderr, flush=True)
            continue
        print(json.dumps(rows[-1]), flush=True)
        if asked.out:
            with asked.out.open("a") as file:
                file.write(json.dumps(rows[-1]) + "\n")
    rows.sort(key=lambda r: (MODELS.index(r["model"]), r["threads"]))
    print(section(rows).markdown() if rows else "no row yet: give more --minutes")
    if asked.write:
        section(rows).save("torch_train")


if __name__ == "__main__":
    main()
