"""Compare `torch.compile` with Jangin and with Inductor, its default, on ten models with random weights.

    python benchmarks/torch_compile.py [--models A,B] [--threads 1,2] [--turns N] [--out results.jsonl]

    python benchmarks/torch_compile.py --out results.jsonl --minutes 8  # again, until all rows are there
    python benchmarks/torch_compile.py --out results.jsonl --write      # keeps it in benchmarks/results

The script needs the extra `torch`, pytorchcv, transformers, and g++ for Inductor. Each back end has a process
of its own for a model. It first compiles a small model, so that imports and the search for compilers don't
count. Its first call is then timed, alone and with empty caches. It compiles again for another number of
threads, whose first call isn't timed.

Calls are timed in turns of a fraction of a second, one process at a time. Both back ends then meet the same
phases of a busy machine. `--lock FILE` holds a lock while anything is timed. A model on which a back end
fails is named and left out.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import importlib
import json
import os
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from statistics import geometric_mean, median
from typing import Any

from sections import Section, Table

HERE = Path(__file__).resolve().parent
BACKENDS = ("jangin", "inductor")
ASKED, FIRST_ASKED = 1.4, 2
VISION = {
    "ResNet-18": "resnet.resnet18", "ResNet-50": "resnet.resnet50",
    "MobileNetV2": "mobilenetv2.mobilenetv2_w1", "SqueezeNet": "squeezenet.squeezenet_v1_1",
    "EfficientNet-B0": "efficientnet.efficientnet_b0",
}  # fmt: skip
LANGUAGE = {"BERT-base": ("BertModel", "BertConfig"), "GPT-2": ("GPT2Model", "GPT2Config")}
IMAGES = {
    "ViT": ("ViTModel", "ViTConfig"), "Swin": ("SwinModel", "SwinConfig"),
    "ConvNeXt": ("ConvNextModel", "ConvNextConfig"),
}  # fmt: skip
MODELS = (*VISION, *LANGUAGE, *IMAGES)
HELD = {"MALLOC_MMAP_THRESHOLD_": str(1 << 30), "MALLOC_TRIM_THRESHOLD_": str(1 << 31)}
"""glibc keeps freed memory up to so many bytes. Otherwise a process gives large tensors back to the system in
some runs and not in others. A step of PyTorch's then takes 12 or 23 ms, by page faults alone."""


def module(name: str) -> tuple[Any, Any]:
    """Return a model with random weights and an input: an image of 224 x 224, or 128 tokens."""
    import torch

    torch.manual_seed(0)
    if name in VISION:
        file, _, maker = VISION[name].partition(".")
        made = getattr(importlib.import_module(f"pytorchcv.models.{file}"), maker)()
        return made.eval(), torch.randn(1, 3, 224, 224)
    import transformers

    kind, config = (LANGUAGE | IMAGES)[name]
    made = getattr(transformers, kind)(getattr(transformers, config)())
    if name in LANGUAGE:
        made.config.use_cache = False
        return made.eval(), torch.randint(0, 30000, (1, 128))
    return made.eval(), torch.randn(1, 3, 224, 224)


def first_of(result: Any) -> Any:
    return result if hasattr(result, "shape") else result[0]


def worker(backend: str, name: str) -> None:
    """Print `null` when the model is ready, then answer each line of the standard input.

    {"threads": N} compiles for N threads; the answer has the seconds of the first call and the difference to
    PyTorch. {"seconds": S} calls the model for S seconds; the answer has the median seconds of a call."""
    warnings.filterwarnings("ignore")
    import torch

    with torch.no_grad():
        torch.compile(torch.nn.Linear(4, 4), backend=backend)(torch.randn(2, 4))
        model, given = module(name)
        wanted = first_of(model(given))
        fast = model
        print("null", flush=True)
        for asked in map(json.loads, sys.stdin):
            if "seconds" in asked:
                said: Any = timed(partial(fast, given), asked["seconds"])
            else:
                torch.set_num_threads(asked["threads"])
                torch._dynamo.reset()
                fast = torch.compile(model, backend=backend)
                start = time.perf_counter()
                got = first_of(fast(given))
                first = time.perf_counter() - start
                said = {"first": first, "error": float((got - wanted).abs().max() / wanted.abs().max())}
            print(json.dumps(said), flush=True)


def timed(call: Callable[[], Any], seconds: float) -> float:
    call()
    found: list[float] = []
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(found) < 3:
        start = time.perf_counter()
        call()
        found.append(time.perf_counter() - start)
    return median(found)


@contextlib.contextmanager
def held(lock: str | None) -> Iterator[None]:
    if lock is None:
        yield
        return
    with open(lock, "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


@contextlib.contextmanager
def started(
    backend: str, name: str, script: str = __file__, caches: Path | None = None
) -> Iterator[Callable[..., Any]]:
    """Yield a function that asks a process with a model, a worker of the script. Its arguments are a line's
    fields; without any, it returns the first line. The process has empty caches, or those of a folder.

    The function raises RuntimeError if the process has ended."""
    with tempfile.TemporaryDirectory() as cache, tempfile.TemporaryFile("w+") as errors:
        command = [sys.executable, script, "--worker", backend, "--models", name]
        empty = dict.fromkeys(("TORCHINDUCTOR_CACHE_DIR", "JANGIN_CACHE_DIR"), str(caches or cache))
        with subprocess.Popen(
            command, env=os.environ | HELD | empty,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True,
        ) as process:  # fmt: skip
            assert process.stdin is not None and process.stdout is not None
            asked, said = process.stdin, process.stdout

            def ask(**fields: float) -> Any:
                if fields:
                    asked.write(json.dumps(fields) + "\n")
                    asked.flush()
                line = said.readline()
                if not line:
                    errors.seek(0)
                    why = (errors.read().strip().splitlines() or ["it said nothing"])[-1]
                    raise RuntimeError(f"{backend} failed on {name}: {why}")
                return json.loads(line)

            try:
                yield ask
            finally:
                process.kill()


def compared(
    name: str, threads: Sequence[int], turns: int, seconds: float, lock: str | None
) -> Iterator[dict[str, Any]]:
    """Yield a row for each number of threads: medians over the turns in milliseconds.

    The first row also has the seconds of the first call, of each back end alone on the machine."""
    with contextlib.ExitStack() as stack:
        asks = {backend: stack.enter_context(started(backend, name)) for backend in BACKENDS}
        for ask in asks.values():
            ask()
        for count in threads:
            with held(lock):
                row: dict[str, Any] = {"model": name, "threads": count}
                row |= {backend: ask(threads=count) for backend, ask in asks.items()}
                found: dict[str, list[float]] = {backend: [] for backend in BACKENDS}
                for turn in range(turns):
                    for backend in BACKENDS if turn % 2 else BACKENDS[::-1]:
                        found[backend].append(asks[backend](seconds=seconds))
            for backend in BACKENDS:
                row[backend]["ms"] = median(found[backend]) * 1e3
                if count != threads[0]:
                    del row[backend]["first"]  # the kernels of the first compilation were cached
            row["ratio"] = median(i / j for i, j in zip(found["inductor"], found["jangin"], strict=True))
            yield row


def section(rows: list[dict[str, Any]]) -> Section:
    """Return the section with the comparison."""
    said = (
        "`python benchmarks/torch_compile.py`: batch 1, images of 224 x 224, 128 tokens, random weights, "
        "float32; medians of turns. *ratio*: Inductor's time over Jangin's; *error*: of Jangin against "
        "PyTorch, as a share of the largest value."
    )
    header = ["model", "threads", "Jangin ms", "Inductor ms", "ratio", "first call, Jangin s", "Inductor s"]
    cells, means = [], []
    for r in rows:
        j, i = r["jangin"], r["inductor"]
        first = [f"{b['first']:.1f}" if "first" in b else "" for b in (j, i)]
        times = [f"{j['ms']:.1f}", f"{i['ms']:.1f}", f"{r['ratio']:.2f}"]
        cells.append([r["model"], str(r["threads"]), *times, *first, f"{j['error']:.0e}"])
    for threads in sorted({r["threads"] for r in rows}):
        these = [r for r in rows if r["threads"] == threads]
        speed = geometric_mean(r["ratio"] for r in these)
        means.append(
            f"Threads: {threads}. {speed:.2f} times as fast on the geometric mean of {len(these)} models "
            f"({ASKED} asked), slower on {sum(r['ratio'] < 1 for r in these)}."
        )
    firsts = [r["inductor"]["first"] / r["jangin"]["first"] for r in rows if "first" in r["jangin"]]
    if firsts:
        means.append(
            f"The first call {geometric_mean(firsts):.1f} times as fast ({FIRST_ASKED} asked), "
            f"at least {min(firsts):.1f} times."
        )
    return Section("`torch.compile`: Jangin and Inductor", [said, Table([*header, "error"], cells), *means])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--threads", default="1,2")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=0.3, help="of a turn")
    parser.add_argument("--lock", help="a file whose lock is held while calls are timed")
    parser.add_argument("--out", type=Path, help="where results are kept, a line each; those there are kept")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="no model begins after so many")
    parser.add_argument("--write", action="store_true", help="keep the table in benchmarks/results")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    given = parser.parse_args()
    models, threads = given.models.split(","), [int(t) for t in given.threads.split(",")]
    if given.worker:
        worker(given.worker, models[0])
        return
    kept = given.out.read_text().splitlines() if given.out and given.out.exists() else []
    rows = [json.loads(line) for line in kept]
    done = {(r["model"], r["threads"]) for r in rows}
    begin = time.monotonic()
    for name in models if not (given.write and given.out) else ():
        left = [t for t in threads if (name, t) not in done]
        if not left or time.monotonic() - begin > 60 * given.minutes:
            continue
        try:
            for row in compared(name, left, given.turns, given.seconds, given.lock):
                rows.append(row)
                print(json.dumps(row), flush=True)
                if given.out:
                    with given.out.open("a") as file:
                        file.write(json.dumps(row) + "\n")
        except RuntimeError as error:
            print(error, file=sys.stderr, flush=True)
    rows.sort(key=lambda r: (MODELS.index(r["model"]), r["threads"]))
    print(section(rows).markdown() if rows else "no row yet: give more --minutes")
    if given.write:
        section(rows).save("torch_compile")


if __name__ == "__main__":
    main()
