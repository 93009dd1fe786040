"""Run the examples that train, whole, and keep what they show: accuracies, losses and times beside PyTorch's.

    python benchmarks/training_examples.py [PART ...] --out results.jsonl [--write]

The parts are `fashion`, `efficientnet`, `last` (PyTorch with channels last), `tiny`, `own` (PyTorch against
itself), `double`, `opencl`, `characters` and `adapters`. Rows are kept in the file of `--out`. A part with a
row there isn't run again. The script needs the extra `torch`, scikit-learn, onnxruntime and ai-edge-litert.
Debian's apt brings Fashion-MNIST, and PoCL for `opencl`.

Within a part, the ways train in turns of a few steps with the same batches. Times are medians of steps, so a
machine that stands still for a while moves them little.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from sections import Section, Table

ROOT = Path(__file__).resolve().parent.parent
sys.path.append(str(ROOT / "examples"))

Row = dict[str, Any]
THREAD = ("--threads", "1")
"""PyTorch's threads wait for each other, so that several take much longer on a busy machine."""
FASHION = ("--epochs", "2", *THREAD)
EFFICIENTNET = ("--epochs", "2", "--size", "96", "--tested", "4000", *THREAD)
CHANNELS_LAST = (
    *("--pictures", "600", "--epochs", "1", "--tested", "500"),
    *("--ways", "jangin,torch-channels-last", *THREAD),
)
TINY = ("--steps", "200", *THREAD)
OPENCL = ("--steps", "20", "--ways", "opencl,jangin", *THREAD)
DEEP = ("MobileNet", "ResNet-8")
"""The networks with many normalizations, each of which enlarges what roundings have changed."""


def fashion() -> Iterator[Row]:
    import train_fashion

    yield from timed("ResNet-8, 60,000 pictures", train_fashion.main(FASHION))


def efficientnet() -> Iterator[Row]:
    import finetune_efficientnet

    yield from timed(
        "EfficientNet-Lite0, 2,000 pictures of 96 x 96", finetune_efficientnet.main(EFFICIENTNET)
    )


def last() -> Iterator[Row]:
    import finetune_efficientnet

    yield from timed("EfficientNet-Lite0, 600 pictures", finetune_efficientnet.main(CHANNELS_LAST))


def timed(name: str, runs: Sequence[tuple[Any, float]]) -> Iterator[Row]:
    """Yield a row for each way that trained a network."""
    for run, share in runs:
        yield {
            "network": name, "way": run.way, "steps": len(run.losses), "accuracy": share,
            "step": float(np.median(run.seconds)), "processor": run.processor / len(run.seconds),
            "compiled": run.compiled,
        }  # fmt: skip


def tiny() -> Iterator[Row]:
    import train_tiny

    for name in train_tiny.NETWORKS:
        yield losses(name, TINY)


def double() -> Iterator[Row]:
    import train_tiny

    for name in train_tiny.NETWORKS:
        yield losses(name, (*TINY, "--double"), "float64")


def own() -> Iterator[Row]:
    """Yield how PyTorch's own losses differ if it computes with channels last."""
    for name in DEEP:
        yield losses(name, (*TINY, "--ways", "torch-channels-last,torch"))


def opencl() -> Iterator[Row]:
    for name in ("autoencoder", "DS-CNN", *DEEP):
        yield losses(name, OPENCL)


def losses(name: str, given: Sequence[str], dtype: str = "float32") -> Row:
    """Train one of MLPerf Tiny's networks, and return how its losses differ."""
    import train_tiny

    run, other = train_tiny.main(("--networks", name, *given))[name]
    first, final, apart = train_tiny.compared(run, other)
    each = np.abs(np.subtract(run.losses, other.losses)) / np.abs(other.losses)
    return {
        "network": name, "dtype": dtype, "way": run.way, "other": other.way, "steps": len(run.losses),
        "first": first, "last": final, "apart": apart, "step_apart": float(each.max()),
        "early": float(each[:10].max()),
    }  # fmt: skip


def characters() -> Iterator[Row]:
    """Train on README's characters, and run both exported files in their own engines."""
    import onnxruntime
    import torch
    import train_characters
    from ai_edge_litert.interpreter import Interpreter

    with tempfile.TemporaryDirectory() as folder:
        text = ROOT / "README.md"
        trained, ours = train_characters.main([str(text), "-o", folder])
        x, _ = train_characters.windows(train_characters.coded(text)[1], 1, 0)
        module = torch.export.load(f"{folder}/characters.pt2").module()
        wanted = module(torch.from_numpy(x)).detach().numpy()
        session = onnxruntime.InferenceSession(f"{folder}/characters.onnx")
        by_onnx = session.run(None, {session.get_inputs()[0].name: x})[0]
        runner = Interpreter(f"{folder}/characters.tflite")
        runner.allocate_tensors()
        (given,) = runner.get_input_details()
        runner.set_tensor(given["index"], x.astype(given["dtype"]))
        runner.invoke()
        by_tflite = runner.get_tensor(runner.get_output_details()[0]["index"])
    yield {
        "steps": len(trained), "first": trained[0], "last": float(np.mean(trained[-10:])), "jangin": ours,
        "onnxruntime": float(np.abs(by_onnx - wanted).max()),
        "litert": float(np.abs(by_tflite - wanted).max()), "largest": float(np.abs(wanted).max()),
    }  # fmt: skip


def adapters() -> Iterator[Row]:
    import train_lora

    before, after = train_lora.main([])
    yield {"before": before, "after": after}


PARTS: dict[str, Callable[[], Iterator[Row]]] = {
    part.__name__: part
    for part in (fashion, efficientnet, last, tiny, own, double, opencl, characters, adapters)
}


def section(rows: Sequence[Row]) -> Section:
    """Return all parts' rows as tables and sentences."""
    of = {name: [r for r in rows if r["part"] == name] for name in PARTS}
    parts: list[str | Table] = [
        "`python benchmarks/training_examples.py --out results.jsonl --write`: the examples that train, "
        "whole. The ways take turns of a few steps with the same batches. *step*, *processor*: median "
        "wall-clock time and mean processor time of a step in ms, with one thread."
    ]
    if pictures := of["fashion"] + of["efficientnet"] + of["last"]:
        columns = ["network", "way", "steps", "test accuracy", "step", "processor", "compile, s"]
        cells = [
            [r["network"], r["way"], str(r["steps"]), f"{r['accuracy']:.2%}", f"{r['step'] * 1e3:.1f}",
             f"{r['processor'] * 1e3:.1f}", f"{r['compiled']:.0f}" if r["compiled"] > 1 else ""]
            for r in pictures
        ]  # fmt: skip
        parts.append(Table(columns, cells))
    if curves := of["tiny"] + of["own"] + of["double"] + of["opencl"]:
        parts.append(
            "MLPerf Tiny's networks on Fashion-MNIST. *apart*: the largest difference of two curves of "
            "mean losses over 10 steps, as a share; *a step*: of single steps; *ten steps*: of the first "
            "ten alone. OpenCL's device is PoCL's, a processor, whose kernels have the same schedules as "
            "native code."
        )
        columns = ["network", "type", "ways", "steps", "first", "last", "apart", "a step", "ten steps"]
        cells = [
            [r["network"], r["dtype"], f"{r['way']}, {r['other']}", str(r["steps"]), f"{r['first']:.4f}",
             f"{r['last']:.4f}", *(f"{r[key]:.2g}" for key in ("apart", "step_apart", "early"))]
            for r in curves
        ]  # fmt: skip
        parts.append(Table(columns, cells))
    for r in of["characters"]:
        parts.append(
            f"Characters of README.md: the loss of a character is {r['first']:.2f} at first and "
            f"{r['last']:.2f} after {r['steps']} steps. The largest difference from the module's logits, "
            f"which reach {r['largest']:.1f}, is {r['onnxruntime']:.0e} for the ONNX file in ONNX Runtime "
            f"and {r['litert']:.0e} for the TFLite file in LiteRT."
        )
    for r in of["adapters"]:
        parts.append(
            f"Adapters (LoRA) of a transformer: {r['before']:.1%} of turned digits are recognised before, "
            f"and {r['after']:.1%} after."
        )
    return Section("Training: the examples", parts)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("parts", nargs="*", help=f"of {', '.join(PARTS)}; default: all that are missing")
    parser.add_argument("--out", type=Path, required=True, help="where rows are kept, a line each")
    parser.add_argument("--write", action="store_true", help="keep the tables in benchmarks/results")
    asked = parser.parse_args()
    if unknown := set(asked.parts) - PARTS.keys():
        parser.error(f"there is no part {', '.join(unknown)}")
    lines = asked.out.read_text().splitlines() if asked.out.exists() else []
    rows = [json.loads(line) for line in lines]
    done = {r["part"] for r in rows}
    for name in asked.parts or PARTS:
        if name in done:
            continue
        for row in PARTS[name]():
            rows.append({"part": name, **row})
            with asked.out.open("a") as file:
                file.write(json.dumps(rows[-1]) + "\n")
    made = section(rows)
    print(made.markdown())
    if asked.write:
        made.save("training_examples")


if __name__ == "__main__":
    main()
