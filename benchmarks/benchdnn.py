"""Time problems of oneDNN's test program benchdnn beside ONNX Runtime and oneDNN.

    python benchmarks/benchdnn.py FOLDER --prepare
    python benchmarks/benchdnn.py FOLDER --threads 1 2 --write

FOLDER is `tests/benchdnn/inputs` of oneDNN's source, which isn't part of this repository. `--prepare`
compiles the problems into the compile cache, and compares the results of all engines. Only the second line
needs a quiet machine then. A seed draws the sample. oneDNN is called through PyTorch if that is installed.
Weights are then packed before, and arrays come and go in the order that ONNX has. `--write` keeps the figures
in `benchmarks/results/benchdnn.json`, beside those of earlier calls with another `--part`.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from benchdnn_problems import DRIVERS, FLOAT, INT8, Problem, Skipped, case_of, operations, problems, sample
from operators import TOLERANCE, Case, model_of
from sections import FOLDER, Section, Table

import jangin
from jangin.runtime.system.processor import processor_name

TURN = 0.012
"""Seconds of a turn. The engines take turns."""
TURNS = 5
SETTLE = 0.035
"""Seconds after a turn of several threads. ONNX Runtime's threads keep spinning for some 30 ms."""
MOST = 2e9
"""Most operations of a problem, so that a sample takes a minute."""
LARGEST = 1 << 26
"""Most bytes of a problem's inputs and weights."""
COLUMNS = ("problem", "type", "threads", "Jangin ms", "ONNX Runtime ms", "oneDNN ms", "times the better")
Sides = dict[str, Callable[[], Any]]


def _quantized(case: Case) -> tuple[bytes, dict[str, Any]]:
    """Return a model of int8 with scales for the case's data: Quantize, DequantizeLinear, the operator."""
    from onnx import helper, numpy_helper

    (x,), (w,) = case.inputs, case.constants
    numbers = {"xs": np.float32(np.abs(x).max() / 127), "ws": np.float32(np.abs(w).max() / 127)}
    quantized = np.clip(np.round(w / numbers["ws"]), -127, 127).astype(np.int8)
    nodes = [
        helper.make_node("DequantizeLinear", ["x0", "xs", "z"], ["x"]),
        helper.make_node("DequantizeLinear", ["q", "ws", "z"], ["w"]),
        helper.make_node(case.op, ["x", "w"], ["r"], **case.attrs),
        helper.make_node("QuantizeLinear", ["r", "ys", "z"], ["y0"]),
    ]
    # A sum of n products of normal numbers is about normal here: weights are divided by the root of n.
    constants = {**numbers, "ys": np.float32(5 / 127), "z": np.int8(0), "q": quantized}
    graph = helper.make_graph(
        nodes, "case", [helper.make_tensor_value_info("x0", onnx.TensorProto.INT8, x.shape)],
        [onnx.ValueInfoProto(name="y0")],
        [numpy_helper.from_array(np.asarray(v), n) for n, v in constants.items()],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)
    data = onnx.shape_inference.infer_shapes(model).SerializeToString()
    return data, {"x0": np.clip(np.round(x / numbers["xs"]), -127, 127).astype(np.int8)}


def _of_onednn(case: Case, threads: int) -> Callable[[], Any] | None:
    """Return a call of oneDNN through PyTorch, or None if PyTorch is missing or has no such call."""
    try:
        import torch
        from torch.utils import mkldnn
    except ImportError:
        return None
    torch.set_num_threads(threads)
    torch.set_grad_enabled(False)
    inputs = [torch.from_numpy(x) for x in case.inputs]
    constants = [torch.from_numpy(c) for c in case.constants]
    attrs = case.attrs
    if case.op == "MatMul":
        operands = [*inputs, *constants]
        return lambda: torch.matmul(*operands)
    pads = attrs.get("pads", [])
    rank = len(pads) // 2
    if case.op not in ("Conv", "ConvTranspose", "MaxPool") or pads[:rank] != pads[rank:]:
        return None
    if case.op == "MaxPool":
        pool = (torch.nn.MaxPool1d, torch.nn.MaxPool2d, torch.nn.MaxPool3d)[rank - 1]
        module = pool(attrs["kernel_shape"], attrs["strides"], pads[:rank])
        return lambda: module(inputs[0])
    given = (attrs["kernel_shape"], attrs["strides"], pads[:rank])
    settings = {"groups": attrs["group"], "dilation": tuple(attrs["dilations"]), "bias": False}
    x, w = case.inputs[0], case.constants[0]
    if case.op == "ConvTranspose":
        kind = (torch.nn.ConvTranspose1d, torch.nn.ConvTranspose2d, torch.nn.ConvTranspose3d)[rank - 1]
        layer = kind(x.shape[1], w.shape[1] * attrs["group"], *given, 0, **settings)
    else:
        layer = (torch.nn.Conv1d, torch.nn.Conv2d, torch.nn.Conv3d)[rank - 1](
            x.shape[1], w.shape[0], *given, **settings
        )
    layer.weight.data = constants[0]
    if case.op == "ConvTranspose" or rank == 1:  # PyTorch packs no weights of these
        return lambda: layer(inputs[0])
    packed = mkldnn.to_mkldnn(layer.eval())
    return lambda: packed(inputs[0].to_mkldnn()).to_dense()


def _sides(case: Case, kind: str, threads: int) -> Sides:
    import onnxruntime

    model, feeds = _quantized(case) if kind == INT8 else model_of(case)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = threads, 4
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    exe = jangin.compile(model, threads=threads)
    sides: Sides = {"Jangin": lambda: exe.run(feeds), "ONNX Runtime": lambda: session.run(None, feeds)}
    other = _of_onednn(case, threads) if kind == FLOAT else None
    return sides if other is None else {**sides, "oneDNN": other}


def _first(result: Any) -> Any:
    """Return an engine's first result as an array."""
    if isinstance(result, Mapping):
        result = next(iter(result.values()))
    return np.asarray(result[0] if isinstance(result, (list, tuple)) else result)


def prepare(case: Case, kind: str) -> None:
    """Compile a case and compare the engines' results. Raises ValueError if they differ."""
    found = {side: _first(run()) for side, run in _sides(case, kind, 1).items()}
    want = found["ONNX Runtime"].astype(np.float64)
    most = 1.0 if kind == INT8 else TOLERANCE * max(1.0, float(np.abs(want).max()))
    for side, got in found.items():
        if float(np.abs(got - want).max(initial=0)) > most:  # an int8 half is rounded either way
            raise ValueError(f"{side} differs from ONNX Runtime by {np.abs(got - want).max()}")


def measure(case: Case, kind: str, threads: int) -> dict[str, float]:
    """Return each engine's median milliseconds."""
    runs = _sides(case, kind, threads)
    took: dict[str, list[float]] = {side: [] for side in runs}
    for run in runs.values():
        run()
    for _ in range(TURNS):
        for side, run in runs.items():
            end = time.perf_counter() + TURN
            while True:
                start = time.perf_counter()
                run()
                took[side].append(time.perf_counter() - start)
                if time.perf_counter() > end:
                    break
            time.sleep(SETTLE if threads > 1 else 0.0)
    return {side: 1e3 * float(np.median(found)) for side, found in took.items()}


def cases(args: argparse.Namespace, found: Sequence[Problem]) -> Iterator[tuple[str, str, Case]]:
    """Yield the part's problems, types and cases of the sample. Problems that are too large are left out."""
    part, parts = (int(n) for n in args.part.split("/"))
    count = 0
    for number, problem in enumerate(sample(found, len(found), args.seed)):
        for kind in args.types:
            try:
                case = case_of(problem, kind, args.batch, np.random.default_rng(number))
            except Skipped:
                continue
            size = sum(a.nbytes for a in (*case.inputs, *case.constants))
            if operations(case) > MOST or size > LARGEST:
                continue
            if count % parts == part - 1:
                yield str(problem), kind, case
            count += 1
            if count == args.count:
                return


def save(rows: Mapping[tuple[str, str, str], list[str]], seed: int, batch: int) -> None:
    said = (
        "Written by `benchmarks/benchdnn.py`: problems of oneDNN's test program, drawn with seed "
        f"{seed}, with at most {batch} images. Medians of interleaved turns. oneDNN is called through "
        f"PyTorch, for float32 alone. Processor: {processor_name()}."
    )
    table = Table(COLUMNS, [[*key, *figures] for key, figures in sorted(rows.items())])
    Section("Problems of oneDNN's test program", [said, table]).save("benchdnn")


def load() -> dict[tuple[str, str, str], list[str]]:
    path = FOLDER / "benchdnn.json"
    parts = Section.load(path).parts if path.exists() else ()
    rows = [row for part in parts if isinstance(part, Table) for row in part.rows]
    return {(name, kind, threads): figures for name, kind, threads, *figures in rows}


def main() -> None:
    parser = argparse.ArgumentParser(description="times problems of oneDNN's test program")
    parser.add_argument("folder", type=Path, help="tests/benchdnn/inputs of oneDNN's source")
    parser.add_argument("--prepare", action="store_true", help="compile and compare only")
    parser.add_argument("--drivers", nargs="+", choices=DRIVERS, default=list(DRIVERS))
    parser.add_argument("--files", nargs="+", default=["shapes_*"], help="names of files; default: shapes_*")
    parser.add_argument("--types", nargs="+", choices=(FLOAT, INT8), default=[FLOAT, INT8])
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--batch", type=int, default=1, help="most images; 0: those of the problem")
    parser.add_argument("--count", type=int, default=60)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--part", default="1/1", help="2/4: the second of four parts of the sample")
    parser.add_argument("--write", action="store_true", help="keep the figures")
    args = parser.parse_args()
    found = problems(args.folder, args.drivers, args.files)
    if not found:
        parser.error(f"{args.folder} has no problems; give tests/benchdnn/inputs of oneDNN's source")
    rows = load() if args.write else {}
    for name, kind, case in cases(args, found):
        if args.prepare:
            prepare(case, kind)
            print(f"{kind:5} {name}", flush=True)
            continue
        for threads in args.threads:
            times = measure(case, kind, threads)
            ratio = min(t for side, t in times.items() if side != "Jangin") / times["Jangin"]
            shown = [f"{times[s]:.3f}" if s in times else "" for s in COLUMNS_OF]
            print(f"{ratio:6.2f} {threads} {kind:5} {name:70} {' '.join(shown)}", flush=True)
            rows[name, kind, str(threads)] = [*shown, f"{ratio:.2f}"]
    if args.write:
        save(rows, args.seed, args.batch)


COLUMNS_OF = ("Jangin", "ONNX Runtime", "oneDNN")
"""The engines in the order of the table's columns."""


if __name__ == "__main__":
    main()
