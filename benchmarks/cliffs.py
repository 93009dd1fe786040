"""Time the operators that once were far slower than ONNX Runtime's: each alone, in turns with it.

    python benchmarks/cliffs.py --prepare
    python benchmarks/cliffs.py --threads 1 2 --rest 0 0.05 --label after --write

`--prepare` compiles all cases into the compile cache, and compares their results with ONNX Runtime's. Only
the second line needs a quiet machine then. Times are medians of turns. `--rest` are seconds without
work before each run of a turn: a server's requests come apart. `--write` keeps the figures under `--label`
in `benchmarks/results/cliffs.json`, beside those of the other label.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from operators import TOLERANCE, Case, model_of
from sections import FOLDER, Section, Table

import jangin
from jangin.runtime.system.processor import processor_name

LABELS = ("before", "after")
FIGURES = ("Jangin ms", "ONNX Runtime ms", "times")
Kept = dict[tuple[str, str, str], dict[str, list[str]]]
"""The texts of `FIGURES` by case, threads and rest, and by label."""
TURN = 0.02
"""Seconds of a turn. The two engines take turns."""
TURNS = 7
SETTLE = 0.15
"""Seconds after a turn of several threads. ONNX Runtime's threads keep spinning for up to 0.1 s."""


def _floats(*shape: int) -> Any:
    return np.random.default_rng(shape).standard_normal(shape).astype(np.float32)


def _conv(image: Sequence[int], weights: Sequence[int], op: str = "Conv", **attrs: Any) -> Case:
    w = _floats(*weights)
    rank = len(weights) - 2
    given = {"strides": [1] * rank, "pads": [0] * 2 * rank, "group": 1, **attrs}
    return Case(op, [_floats(*image)], [w / math.sqrt(w[0].size)], given)


def _resize(image: Sequence[int], size: Sequence[int], **attrs: Any) -> Case:
    return _OfSizes("Resize", [_floats(*image)], [np.array(size)], attrs)


class _OfSizes(Case):
    """A resize to given sizes, without a region or scales."""


def _lstm(batch: int, steps: int, width: int, hidden: int) -> Case:
    weights = [_floats(2, 4 * hidden, n) * np.float32(0.1) for n in (width, hidden)]
    attrs = {"hidden_size": hidden, "direction": "bidirectional"}
    return Case("LSTM", [_floats(steps, batch, width)], weights, attrs)


def _scatter(table: Sequence[int], updates: int, width: int) -> Case:
    rng = np.random.default_rng(updates)
    at = rng.permutation(table[0])[:updates].reshape(-1, 1)
    return Case("ScatterND", [_floats(*table), at, _floats(updates, *table[1:])])


CASES: Mapping[str, Callable[[], Case]] = {
    **{
        f"bilinear {x[1]}x{x[2]}x{x[3]} to {z[2]}x{z[3]} {mode}": (
            lambda x=x, z=z, mode=mode: _resize(x, z, mode="linear", coordinate_transformation_mode=mode)
        )
        for x, z in (
            ((1, 32, 120, 160), (1, 32, 240, 320)),
            ((1, 64, 64, 64), (1, 64, 128, 128)),
            ((1, 21, 65, 65), (1, 21, 513, 513)),
        )
        for mode in ("half_pixel", "align_corners", "asymmetric")
    },
    "cubic 3x224x224 to 381x381": lambda: _resize((1, 3, 224, 224), (1, 3, 381, 381), mode="cubic"),
    "antialiased linear 3x720x1280 to 224x224": lambda: _resize(
        (1, 3, 720, 1280), (1, 3, 224, 224), mode="linear", antialias=1
    ),
    "antialiased cubic 3x720x1280 to 224x224": lambda: _resize(
        (1, 3, 720, 1280), (1, 3, 224, 224), mode="cubic", antialias=1
    ),
    **{
        f"computed product 64x{k} by {k}x768": lambda k=k: Case("MatMul", [_floats(64, k), _floats(k, 768)])
        for k in (3072, 12565, 50257)
    },
    **{
        f"computed product {m}x{k} by {k}x{n}": (
            lambda m=m, k=k, n=n: Case("MatMul", [_floats(m, k), _floats(k, n)])
        )
        for m, k, n in ((1, 16384, 1024), (1, 1024, 1024), (1, 1024, 4096), (1, 4096, 256), (4, 4096, 1024))
    },
    "weights' gradient 8192x384 by 8192x256": lambda: Case(
        "Gemm", [_floats(8192, 384), _floats(8192, 256)], attrs={"transA": 1}
    ),
    "scatter of 8 rows into 1024x64": lambda: _scatter((1024, 64), 8, 64),
    "scatter of 64 rows into 4096x128": lambda: _scatter((4096, 128), 64, 128),
    "scatter of 64 elements into 65536": lambda: _scatter((65536,), 64, 1),
    "depthwise 7x7 384x28x28": lambda: _conv((1, 384, 28, 28), (384, 1, 7, 7), pads=[3] * 4, group=384),
    "depthwise 7x7 96x56x56": lambda: _conv((1, 96, 56, 56), (96, 1, 7, 7), pads=[3] * 4, group=96),
    "depthwise 5x5 by 2 72x56x56": lambda: _conv(
        (1, 72, 56, 56), (72, 1, 5, 5), pads=[2] * 4, group=72, strides=[2, 2]
    ),
    "depthwise 5x5 by 2 240x28x28": lambda: _conv(
        (1, 240, 28, 28), (240, 1, 5, 5), pads=[2] * 4, group=240, strides=[2, 2]
    ),
    "convolution 3x3 13 to 27 57x61": lambda: _conv((1, 13, 57, 61), (27, 13, 3, 3), pads=[1] * 4),
    "pointwise in 3 groups 240x28x28": lambda: _conv((1, 240, 28, 28), (240, 80, 1, 1), group=3),
    "pointwise in 3 groups 480x14x14": lambda: _conv((1, 480, 14, 14), (480, 160, 1, 1), group=3),
    "transposed 2x2 by 2 64 to 32 64x64": lambda: _conv(
        (1, 64, 64, 64), (64, 32, 2, 2), "ConvTranspose", strides=[2, 2]
    ),
    "transposed 2x2 by 2 256 to 128 28x28": lambda: _conv(
        (1, 256, 28, 28), (256, 128, 2, 2), "ConvTranspose", strides=[2, 2]
    ),
    "stem 7x7 by 2 3 to 64 224x224": lambda: _conv(
        (1, 3, 224, 224), (64, 3, 7, 7), pads=[3] * 4, strides=[2, 2]
    ),
    "bidirectional LSTM batch 32, 128 to 128": lambda: _lstm(32, 50, 128, 128),
    "bidirectional LSTM batch 32, 256 to 256": lambda: _lstm(32, 30, 256, 256),
}
"""The cases by name, each with the function that draws its data."""


def _model(case: Case) -> tuple[bytes, dict[str, Any]]:
    data, feeds = model_of(case)
    if isinstance(case, _OfSizes):  # the region and the scales are left out
        model = onnx.load_from_string(data)
        (node,) = model.graph.node
        node.input[:] = [node.input[0], "", "", node.input[1]]
        return onnx.shape_inference.infer_shapes(model).SerializeToString(), feeds
    return data, feeds


def _sides(name: str, threads: int) -> dict[str, Callable[[], Any]]:
    import onnxruntime

    model, feeds = _model(CASES[name]())
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = threads, 4
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    exe = jangin.compile(model, threads=threads)
    return {"jangin": lambda: exe.run(feeds), "onnxruntime": lambda: session.run(None, feeds)}


def prepare(names: Sequence[str]) -> None:
    """Compile the cases and compare their results. Raises ValueError if the engines disagree."""
    for name in names:
        runs = _sides(name, 1)
        got, want = runs["jangin"](), runs["onnxruntime"]()
        for g, w in zip(got.values() if isinstance(got, dict) else got, want, strict=False):
            off = float(np.abs(g - w).max())
            print(f"{name:45} {off:.1e} off", flush=True)
            if off > TOLERANCE * max(1.0, float(np.abs(w).max())):
                raise ValueError(f"{name}: {off} off")


def measure(name: str, threads: int, rest: float) -> dict[str, float]:
    """Return each engine's median milliseconds."""
    runs = _sides(name, threads)
    took: dict[str, list[float]] = {side: [] for side in runs}
    for run in runs.values():
        run()
    for _ in range(TURNS):
        for side, run in runs.items():
            end = time.perf_counter() + TURN
            while True:
                time.sleep(rest)
                start = time.perf_counter()
                run()
                took[side].append(time.perf_counter() - start)
                if rest or time.perf_counter() > end:
                    break
            time.sleep(SETTLE if threads > 1 else 0.0)
    return {side: 1e3 * float(np.median(found)) for side, found in took.items()}


def load() -> Kept:
    """Return the figures that are kept."""
    kept: Kept = {}
    for part in Section.load(FOLDER / "cliffs.json").parts if (FOLDER / "cliffs.json").exists() else ():
        for name, threads, rest, *texts in part.rows if isinstance(part, Table) else ():
            found = {label: texts[n * 3 : n * 3 + 3] for n, label in enumerate(LABELS)}
            kept[name, threads, rest] = {label: t for label, t in found.items() if any(t)}
    return kept


def save(kept: Kept) -> None:
    """Keep the figures as a section of the results."""
    said = (
        "Written by `benchmarks/cliffs.py`: operators that were slow, before and after they were mended. "
        f"Medians of interleaved turns. Processor: {processor_name()}."
    )
    columns = ["case", "threads", "rest", *(f"{label}: {f}" for label in LABELS for f in FIGURES)]
    rows = [[*key, *(t for label in LABELS for t in by.get(label, [""] * 3))] for key, by in kept.items()]
    Section("Operators that were slow", [said, Table(columns, rows)]).save("cliffs")


def main() -> None:
    parser = argparse.ArgumentParser(description="times operators that once were slow")
    parser.add_argument("--prepare", action="store_true", help="compile and compare only")
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--rest", type=float, nargs="+", default=[0.0], help="seconds before each run")
    parser.add_argument("--only", default="", help="cases whose names contain this")
    parser.add_argument("--label", choices=LABELS, default=LABELS[-1])
    parser.add_argument("--write", action="store_true", help="keep the figures")
    args = parser.parse_args()
    names = [n for n in CASES if any(part in n for part in args.only.split("|"))]
    if args.prepare:
        prepare(names)
        return
    kept = load()
    for name in names:
        for threads in args.threads:
            for rest in args.rest:
                found = measure(name, threads, rest)
                ratio = found["onnxruntime"] / found["jangin"]
                print(
                    f"{ratio:6.2f} {name:45} {threads} threads, rest {rest:4}: "
                    f"{found['jangin']:8.3f} ms, onnxruntime {found['onnxruntime']:8.3f}",
                    flush=True,
                )
                figures = [f"{found['jangin']:.3f}", f"{found['onnxruntime']:.3f}", f"{ratio:.2f}"]
                kept.setdefault((name, str(threads), str(rest)), {})[args.label] = figures
    if args.write:
        save(kept)


if __name__ == "__main__":
    main()
