"""Compare training steps with Jangin, with JAX, with Inductor, and by PyTorch itself ("eager").

    python benchmarks/torch_train.py [--models A,B] [--threads 2] [--turns N] [--lock FILE] [--write]

    python benchmarks/torch_train.py --out results.jsonl --minutes 8  # again, until all rows are there

The script needs the extra `torch`, pytorchcv, transformers, jax, and g++ for Inductor. The twelve models of
`training_models` train under `torch.compile`, with PyTorch's SGD with momentum. The eight of
`training_networks` train by `jangin.train`, whose step includes the update, and in JAX (`jax_training`).
These are two tables, and `--tables` chooses. Batches are random.

Each way has a process of its own for a model. It first makes some steps, in which all is compiled, and their
losses are compared. Steps are then timed in turns of a fraction of a second, one process at a time. All then
meet the same phases of a busy machine. `--lock FILE` holds a lock while anything is timed. `--ways` leaves
out slow compilers, and `--caches` keeps what they compile for another call.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from statistics import geometric_mean, median
from typing import Any

import torch_compile
from sections import Section, Table

WAYS = ("jangin", "jax", "inductor", "channels last", "eager")
LEAST = 0.95
TITLES = {"torch_train": "`torch.compile` in training", "train": "`jangin.train`: steps of training"}
ASKED = {
    "MLP": 1.7, "LeNet": 1.9, "ResNet-8": 2.0, "encoder": 2.0, "ResNet-18": 1.3, "MobileNetV2": 1.2,
    "GPT-2 of 2 layers": 1.5, "LSTM 2x512": 1.3,
}  # fmt: skip
"""The ratios that the networks are to reach at 2 threads."""
LR, MOMENTUM = 0.01, 0.9


def worker(way: str, name: str) -> None:
    """Make the first steps and print their losses. Then answer each line of the standard input,
    {"seconds": S}, with the median seconds of a step during S seconds."""
    warnings.filterwarnings("ignore")
    table, threads, steps = json.loads(sys.stdin.readline()).values()
    if way == "jax":
        import jax_training

        jax_training.with_threads(threads)
    import torch
    from training_models import training
    from training_networks import network

    torch.set_num_threads(threads)
    made = network(name) if table == "train" else training(name, small=False)
    torch.manual_seed(1)
    if way == "jax":
        step = jax_training.stepped(made.model, name, LR, MOMENTUM)
    else:
        step = trained(made, threads)[1] if way == "jangin" and table == "train" else stepped(made, way)
    batches = [made.batch(n) for n in range(steps)]
    print(json.dumps([step(batch) for batch in batches]), flush=True)
    for asked in map(json.loads, sys.stdin):
        print(json.dumps(torch_compile.timed(lambda: step(batches[0]), asked["seconds"])), flush=True)


def trained(made: Any, threads: int, optimizer: Any = None) -> tuple[Any, Callable[[Any], float]]:
    """Return the trainer of a network, and its step. The default optimizer is SGD with momentum."""
    import jangin

    optimizer = optimizer or jangin.optim.SGD(lr=LR, momentum=MOMENTUM)
    example = tuple(made.batch(0).values())
    trainer = jangin.train(made.model, "cross_entropy", optimizer, example=example, threads=threads)
    return trainer, lambda batch: trainer.step(tuple(batch.values()))


def stepped(made: Any, way: str) -> Callable[[Any], float]:
    """Return a step of PyTorch's, with its optimizer."""
    import torch

    run: Any = made.model
    if way == "channels last":
        run.to(memory_format=torch.channels_last)
    elif way != "eager":
        run = torch.compile(run, backend=way)
    optimizer = torch.optim.SGD(made.model.parameters(), lr=LR, momentum=MOMENTUM)

    def step(batch: Any) -> float:
        optimizer.zero_grad()
        loss = made.loss(run, **batch)
        loss.backward()
        optimizer.step()
        found: float = loss.item()
        return found

    return step


def compared(table: str, name: str, threads: int, asked: argparse.Namespace) -> dict[str, Any]:
    """Return a row: medians over the turns in milliseconds. `ratio` is the time of the best of the other ways
    over Jangin's. `error` is the largest difference of the first losses to eager's, as a share.

    Networks with many normalizations enlarge each rounding. Eager's own third loss of MobileNetV2 moves by
    0.3 % if all its weights move by a share of 1e-7."""
    from training_models import VISION
    from training_networks import CONVOLUTIONS

    pictures = VISION if table == "torch_train" else CONVOLUTIONS
    lacking = {way for way, names in {"channels last": pictures, "jax": ASKED}.items() if name not in names}
    if table == "torch_train":
        lacking.add("jax")
    given = [way for way in asked.ways.split(",") if way not in lacking]
    with contextlib.ExitStack() as stack:
        asks = {
            way: stack.enter_context(torch_compile.started(way, name, __file__, asked.caches))
            for way in given
        }
        losses = {way: ask(table=table, threads=threads, steps=asked.steps) for way, ask in asks.items()}
        found: dict[str, list[float]] = {way: [] for way in given}
        with torch_compile.held(asked.lock):
            for turn in range(asked.turns):
                for way in given if turn % 2 else given[::-1]:
                    found[way].append(asks[way](seconds=asked.seconds))
    errors = {way: _error(found, losses["eager"]) for way, found in losses.items()}
    if odd := [way for way, error in errors.items() if error > 0.05]:
        raise RuntimeError(f"{name}: other losses than eager's from {', '.join(odd)}: {losses}")
    row: dict[str, Any] = {"table": table, "model": name, "threads": threads, "steps": asked.steps}
    row["error"] = errors["jangin"]
    if not asked.turns:
        return {**row, "first": losses["jangin"][0], "last": losses["jangin"][-1]}
    row |= {way: median(times) * 1e3 for way, times in found.items()}
    best = min(row[way] for way in given if way != "jangin")
    return {**row, "ratio": best / row["jangin"]}


def _error(losses: list[float], wanted: list[float]) -> float:
    """Return the largest difference as a share."""
    return max(abs(a - b) / abs(b) for a, b in zip(losses, wanted, strict=True))


def tables() -> dict[str, Sequence[str]]:
    """Return the models of each table."""
    from training_models import MODELS
    from training_networks import NETWORKS

    return {"torch_train": MODELS, "train": NETWORKS}


def sections(rows: list[dict[str, Any]]) -> Iterator[tuple[str, Section]]:
    """Yield a section for each way of training with Jangin that has rows, with its name as a file."""
    for file, names in tables().items():
        title = TITLES[file]
        found = [r for r in rows if r["table"] == file]
        found.sort(key=lambda r: (names.index(r["model"]), r["threads"]))
        if timed := [r for r in found if "ratio" in r]:
            yield file, section(title, timed)
        if untimed := [r for r in found if "ratio" not in r]:
            yield f"{file}_losses", of_losses(title, untimed)


def of_losses(title: str, rows: list[dict[str, Any]]) -> Section:
    """Return a section with the losses of steps that weren't timed."""
    said = (
        "`python benchmarks/torch_train.py --turns 0 --steps 20`: SGD with momentum, float32, random weights "
        "and batches, another batch a step. *error*: the largest difference of a step's loss to eager's, as "
        "a share of eager's."
    )
    cells = [
        [r["model"], str(r["steps"]), f"{r['first']:.4f}", f"{r['last']:.4f}", f"{r['error']:.0e}"]
        for r in rows
    ]
    return Section(f"{title}: losses", [said, Table(["model", "steps", "first", "last", "error"], cells)])


def section(title: str, rows: list[dict[str, Any]]) -> Section:
    """Return a section with a comparison."""
    table = rows[0]["table"]
    said = (
        f"`python benchmarks/torch_train.py --tables {table}`: a step of forward, backward and SGD with "
        "momentum, float32, random weights and batches; medians of turns, in milliseconds. *ratio*: the time "
        "of the best of the other ways over Jangin's; *asked*: of the ratio at 2 threads; *error*: of "
        "Jangin's first losses against eager's, as a share. In all ways freed memory stays with the process "
        "(`HELD` in torch_compile.py)."
    )

    def asks(r: dict[str, Any]) -> list[str]:
        if table != "train":
            return []
        return [f"{ASKED[r['model']]}" if r["threads"] == 2 else ""]

    asked = ["asked"] if table == "train" else []
    used = [way for way in WAYS if any(way in r for r in rows)]
    cells = [
        [
            r["model"],
            str(r["threads"]),
            *(f"{r[way]:.2f}" if way in r else "" for way in used),
            f"{r['ratio']:.2f}",
            *asks(r),
            f"{r['error']:.0e}",
        ]
        for r in rows
    ]
    means = []
    for threads in sorted({r["threads"] for r in rows}):
        these = [r["ratio"] for r in rows if r["threads"] == threads]
        means.append(
            f"Threads: {threads}. {geometric_mean(these):.2f} times as fast on the geometric mean of "
            f"{len(these)} models, below {LEAST} on {sum(r < LEAST for r in these)}."
        )
    return Section(title, [said, Table(["model", "threads", *used, "ratio", *asked, "error"], cells), *means])


def kept(out: Path | None) -> list[dict[str, Any]]:
    """Return the rows that earlier calls kept in the file `out`, a line each."""
    lines = out.read_text().splitlines() if out and out.exists() else []
    return [json.loads(line) for line in lines]


def keep(row: dict[str, Any], out: Path | None) -> None:
    """Print a row, and keep it in the file `out`."""
    print(json.dumps(row), flush=True)
    if out:
        with out.open("a") as file:
            file.write(json.dumps(row) + "\n")


def main(given: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--tables", default=",".join(TITLES))
    parser.add_argument("--models", help="default: all of the tables")
    parser.add_argument("--ways", default=",".join(WAYS))
    parser.add_argument("--threads", default="2")
    parser.add_argument("--steps", type=int, default=3, help="whose losses are compared, before any is timed")
    parser.add_argument("--turns", type=int, default=5, help="0 compares losses alone")
    parser.add_argument("--seconds", type=float, default=0.3, help="of a turn")
    parser.add_argument("--lock", help="a file whose lock is held while steps are timed")
    parser.add_argument("--caches", type=Path, help="a folder of caches; without it, all is compiled anew")
    parser.add_argument("--out", type=Path, help="where results are kept, a line each; those there are kept")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="no model begins after so many")
    parser.add_argument("--write", action="store_true", help="keep the tables in benchmarks/results")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    asked = parser.parse_args(given)
    if asked.worker:
        worker(asked.worker, asked.models)
        return
    rows = kept(asked.out)
    done, begin = {(r["table"], r["model"], r["threads"]) for r in rows}, time.monotonic()
    models = asked.models and asked.models.split(",")
    wanted = [
        (table, name, int(threads))
        for threads in asked.threads.split(",")
        for table, names in tables().items()
        for name in names
        if table in asked.tables.split(",") and (not models or name in models)
    ]
    for table, name, threads in wanted:
        if (table, name, threads) in done or time.monotonic() - begin > 60 * asked.minutes:
            continue
        try:
            rows.append(compared(table, name, threads, asked))
        except RuntimeError as error:
            print(error, file=sys.stderr, flush=True)
            continue
        keep(rows[-1], asked.out)
    made = [*sections(rows)]
    print("\n\n".join(part.markdown() for _, part in made) or "no row yet: give more --minutes")
    for file, part in made if asked.write else ():
        part.save(file)


if __name__ == "__main__":
    main()
