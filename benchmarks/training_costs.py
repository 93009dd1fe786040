"""Measure costs of training: of AdamW, of bfloat16, of compiling, and of memory.

    python benchmarks/training_costs.py --out costs.jsonl [--figures update,first] [--models A,B]

    update: the step's time with AdamW, as a share of the time with SGD
    types: the step's time in float32, over the time with a module of bfloat16
    first: the seconds of compiling and the first step, beside those of Inductor
    memory: a step's working memory, beside what PyTorch keeps for the backward pass

The networks are those of `training_networks`. As in `torch_train.py`, ways have processes of their own, and
are timed in turns. First steps are made one after the other, after imports and with empty caches.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import torch_compile
import torch_train
from sections import Section, Table

FIGURES: dict[str, tuple[str, ...]] = {
    "update": ("sgd", "momentum", "adamw"),
    "types": ("momentum", "bfloat16"),
    "first": ("jangin", "inductor"),
    "memory": ("jangin", "saved"),
}
"""The ways that each figure compares."""
BFLOAT16 = ("encoder", "GPT-2 of 2 layers", "ResNet-8", "MLP")
"""The networks whose times in bfloat16 are measured."""


def worker(way: str, name: str) -> None:
    """Answer each line of the standard input. {"threads": N, "ready": 1} makes what a way needs before it is
    timed. {"first": 1} compiles and makes a step; the answer has its seconds and bytes. {"seconds": S} gives
    the median seconds of a step during S seconds."""
    warnings.filterwarnings("ignore")
    import torch
    from training_networks import network

    threads = json.loads(sys.stdin.readline())["threads"]
    torch.set_num_threads(threads)
    if way in FIGURES["first"]:  # imports and the search for compilers don't count
        made = network("LeNet" if name == "MLP" else "MLP")  # caches then lack the measured network
        _step(way, made, threads)[0](made.batch(0))
    made = network(name)
    batch = made.batch(0)
    if way == "bfloat16":
        made.model.bfloat16()
        batch = {n: t.bfloat16() if t.is_floating_point() else t for n, t in batch.items()}
        made = made._replace(batch=lambda _: batch)
    print("null", flush=True)
    steps: list[Callable[[Any], float]] = []
    for asked in map(json.loads, sys.stdin):
        if "seconds" in asked:
            said: Any = torch_compile.timed(partial(steps[0], batch), asked["seconds"])
        elif way == "saved":
            said = {"bytes": saved_bytes(made)}
        else:
            start = time.perf_counter()
            step, count = _step(way, made, threads)
            step(batch)
            steps.append(step)
            said = {"first": time.perf_counter() - start, "bytes": count}
        print(json.dumps(said), flush=True)


def _step(way: str, made: Any, threads: int) -> tuple[Callable[[Any], float], int]:
    """Return a step, and the bytes of its working memory if they are known."""
    from torch_train import LR, stepped, trained

    import jangin

    if way == "inductor":
        return stepped(made, way), 0
    optimizers = {"sgd": jangin.optim.SGD(lr=LR), "adamw": jangin.optim.AdamW(lr=1e-4)}
    trainer, step = trained(made, threads, optimizers.get(way))
    return step, trainer.arena_bytes


def saved_bytes(made: Any) -> int:
    """Return the bytes of what PyTorch keeps for the backward pass, without the parameters and the batch.

    Tensors that share memory count once, with all of it."""
    import torch

    batch = made.batch(0)
    known = {t.untyped_storage().data_ptr() for t in (*made.model.parameters(), *batch.values())}
    sizes: dict[int, int] = {}
    kept: list[torch.Tensor] = []

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        memory = tensor.untyped_storage()
        if memory.data_ptr() not in known:
            sizes[memory.data_ptr()] = memory.nbytes()
            kept.append(tensor)  # the address isn't given to another tensor meanwhile
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        made.loss(made.model, **batch)
    return sum(sizes.values())


def measured(figure: str, name: str, threads: int, asked: argparse.Namespace) -> dict[str, Any]:
    """Return a row: for each way milliseconds, or seconds of first steps, or bytes."""
    ways = FIGURES[figure]
    row: dict[str, Any] = {"figure": figure, "model": name, "threads": threads}
    with contextlib.ExitStack() as stack:
        asks = {way: stack.enter_context(torch_compile.started(way, name, __file__)) for way in ways}
        for ask in asks.values():
            ask(threads=threads)
        if figure == "memory":
            return row | {way: ask(first=1)["bytes"] for way, ask in asks.items()}
        if figure == "first":
            with torch_compile.held(asked.lock):
                return row | {way: ask(first=1)["first"] for way, ask in asks.items()}
        for ask in asks.values():
            ask(first=1)
        times: dict[str, list[float]] = {way: [] for way in ways}
        with torch_compile.held(asked.lock):
            for turn in range(asked.turns):
                for way in ways if turn % 2 else ways[::-1]:
                    times[way].append(asks[way](seconds=asked.seconds))
    return row | {way: median(found) * 1e3 for way, found in times.items()}


COMMAND = "`python benchmarks/training_costs.py --figures {}`: "
SAID = {
    "update": "milliseconds of a step with SGD, SGD with momentum and AdamW. *share*: AdamW's time over that "
    "of SGD. 1.10 is asked at most.",
    "types": "milliseconds of a step with a module of float32 and of bfloat16, with SGD with momentum. "
    "*ratio*: float32's time over bfloat16's. 1.3 is asked on the encoder.",
    "first": "seconds of compiling and the first step with empty caches, after imports. *share*: Jangin's "
    "over Inductor's. 0.33 is asked at most.",
    "memory": "MB of a step's working memory, and of what PyTorch's autograd keeps for the backward pass, "
    "without parameters and batch. *share*: the first over the second. 1.15 is asked at most.",
}
TITLES = {
    "update": "AdamW and SGD", "types": "bfloat16 and float32", "first": "First steps",
    "memory": "Working memory",
}  # fmt: skip
HEADERS = {
    "update": ("SGD", "with momentum", "AdamW", "share"), "types": ("float32", "bfloat16", "ratio"),
    "first": ("Jangin", "Inductor", "share"), "memory": ("arena", "saved by PyTorch", "share"),
}  # fmt: skip


def quotient(row: dict[str, Any]) -> float:
    ways = FIGURES[row["figure"]]
    values: list[float] = [row[way] for way in ways]
    return values[-1] / values[0] if row["figure"] == "update" else values[0] / values[-1]


def section(rows: list[dict[str, Any]]) -> Section:
    """Return the section of all figures."""
    from training_networks import NETWORKS

    parts: list[str | Table] = []
    for figure, ways in FIGURES.items():
        found = [r for r in rows if r["figure"] == figure]
        found.sort(key=lambda r: (NETWORKS.index(r["model"]), r["threads"]))
        scale = 1e-6 if figure == "memory" else 1
        cells = [
            [r["model"], str(r["threads"]), *(f"{r[way] * scale:.2f}" for way in ways), f"{quotient(r):.2f}"]
            for r in found
        ]
        if cells:
            said = f"{TITLES[figure]}. {COMMAND.format(figure)}{SAID[figure]}"
            parts += [said, Table(["model", "threads", *HEADERS[figure]], cells)]
    return Section("`jangin.train`: costs", parts)


def wanted(asked: argparse.Namespace) -> Iterator[tuple[str, str, int]]:
    from training_networks import NETWORKS

    for figure in asked.figures.split(","):
        for name in asked.models.split(",") if asked.models else NETWORKS:
            if figure != "types" or name in BFLOAT16:
                yield figure, name, asked.threads


def main(given: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--figures", default=",".join(FIGURES))
    parser.add_argument("--models", help="default: all")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=0.3, help="of a turn")
    parser.add_argument("--lock", help="a file whose lock is held while steps are timed")
    parser.add_argument("--out", type=Path, help="where rows are kept; those there are kept")
    parser.add_argument("--write", action="store_true", help="keep the tables in benchmarks/results")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    asked = parser.parse_args(given)
    if asked.worker:
        worker(asked.worker, asked.models)
        return
    rows = torch_train.kept(asked.out)
    done = {(r["figure"], r["model"], r["threads"]) for r in rows}
    for figure, name, threads in wanted(asked):
        if (figure, name, threads) in done:
            continue
        try:
            rows.append(measured(figure, name, threads, asked))
        except RuntimeError as error:
            print(error, file=sys.stderr, flush=True)
            continue
        torch_train.keep(rows[-1], asked.out)
    print(section(rows).markdown())
    if asked.write:
        section(rows).save("training_costs")


if __name__ == "__main__":
    main()
