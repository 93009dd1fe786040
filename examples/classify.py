"""Classify 20 photographs with EfficientNet-Lite0, compiled by Jangin.

The script downloads the pretrained weights and the labelled pictures (18 MB) on the first run. It compiles
the network for this machine and prints the class of each picture. It also compares the time with ONNX
Runtime's, if that is installed.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from efficientnet import build_model, class_names, pictures
from packages import CACHE
from rich.console import Console
from rich.table import Table

import jangin
from jangin.runtime.system.usage import peak_bytes

ROUNDS = 15
TURN_SECONDS = 0.15
COMPILED = CACHE / "efficientnet_lite0.jgn"
console = Console(width=None if sys.stdout.isatty() else 110)


def softmax(logits: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    e = np.exp(logits - logits.max())
    return np.asarray(e / e.sum())


def show_predictions(logits: np.ndarray[Any, Any], found: list[tuple[str, Any, int]]) -> None:
    names = class_names()
    table = Table("picture", "what it shows", "prediction", "probability", "second guess", "")
    first = top5 = 0
    for row, (file, _, label) in zip(logits, found, strict=True):
        p = softmax(row)
        best = np.argsort(-p)[:5]
        first += int(best[0] == label)
        top5 += int(label in best)
        mark = "✓" if best[0] == label else ("top 5" if label in best else "✗")
        guesses = [f"{names[i]} {p[i]:.1%}" for i in best[:2]]
        table.add_row(file, names[label], names[best[0]], f"{p[best[0]]:.1%}", guesses[1], mark)
    console.print(table)
    console.print(f"top-1 accuracy: [bold]{first}/{len(found)}[/]   top-5: {top5}/{len(found)}")


def interleaved(engines: dict[str, Callable[[], Any]]) -> dict[str, list[float]]:
    """Return the milliseconds of a call, one median for each short turn. The engines take turns, so that a
    slow moment of the machine affects all of them."""
    times: dict[str, list[float]] = {name: [] for name in engines}
    for _ in range(ROUNDS):
        for name, call in engines.items():
            time.sleep(0.01)  # lets the other engine's threads go to sleep
            call()
            turn = []
            end = time.perf_counter() + TURN_SECONDS
            while not turn or time.perf_counter() < end:
                start = time.perf_counter()
                call()
                turn.append((time.perf_counter() - start) * 1e3)
            times[name].append(statistics.median(turn))
    return times


def compare(model: bytes, compiled: Path, images: np.ndarray[Any, Any]) -> None:
    """Compare the latency at batch 1 with ONNX Runtime's, and print the largest difference of the logits."""
    try:
        import onnxruntime as ort
    except ImportError:
        console.print("ONNX Runtime isn't installed, so there is nothing to compare with.")
        return
    x = images[:1]
    table = Table("threads", "Jangin", "ONNX Runtime", "Jangin is")
    for threads in (1, 2):
        exe = jangin.load(compiled, threads=threads)
        options = ort.SessionOptions()
        options.intra_op_num_threads = threads
        session = ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        if threads == 1:
            ours = np.concatenate([np.asarray(exe(i[None])) for i in images])
            theirs = np.concatenate([session.run(None, {"images": i[None]})[0] for i in images])
        calls = {"j": lambda e=exe: e(x), "o": lambda s=session: s.run(None, {"images": x})}
        ms = {name: statistics.median(turns) for name, turns in interleaved(calls).items()}
        table.add_row(
            str(threads), f"{ms['j']:.2f} ms", f"{ms['o']:.2f} ms", f"{ms['o'] / ms['j']:.2f}× as fast"
        )
    console.print(table)
    error = np.abs(ours - theirs).max() / np.abs(theirs).max()
    console.print(f"largest difference of the logits: {error:.1e} of ONNX Runtime's largest")


def main() -> None:
    found = pictures()
    images = np.stack([pixels for _, pixels, _ in found])
    model = build_model().SerializeToString()
    start = time.perf_counter()
    exe = jangin.compile(model, shapes={"batch": 1}, cache=False)
    seconds = time.perf_counter() - start
    exe.save(COMPILED)
    start = time.perf_counter()
    exe = jangin.load(COMPILED)
    load_seconds = time.perf_counter() - start
    weights = sum(array.nbytes for array in exe.plan.constants.values())
    logits = np.concatenate([np.asarray(exe(image[None])) for image in images])
    show_predictions(logits, found)
    console.print(
        f"compiled in {seconds:.2f} s into {len(exe.plan.launches)} kernels, saved and loaded again in "
        f"{load_seconds:.3f} s; {exe.threads} threads\nmemory: weights {weights / 1e6:.1f} MB, arena "
        f"{exe.arena_bytes() / 1e6:.1f} MB, "
        f"peak of this process, which made the ONNX file too, {peak_bytes() / 1e6:.0f} MB"
    )
    compare(model, COMPILED, images)


if __name__ == "__main__":
    main()
