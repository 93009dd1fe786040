"""Measure WebGPU outside of browsers, beside other code on the same chip and ncnn's Vulkan.

    python benchmarks/webgpu.py [--on webgpu cuda opencl ncnn] [--folder webgpu] [--minutes 5] [--save]

It needs a Vulkan driver (Mesa's lavapipe is one for processors) and the package wgpu. All else may be absent,
such as ncnn with pnnx, or an NVIDIA GPU. Networks have weights from a seed, or are benchmark models of
make_models.py. `--small` takes small sizes, for lavapipe and simulated devices.

Expected results are ONNX Runtime's, or native code's if it isn't installed. Compiling a network and running
it are steps, each in a process of its own, so that a crash or a hang stops no other. The folder keeps what is
done, and the next call goes on there. `--one` does one step more, and leaves out what has failed before.

A time is the median of runs after two others, with inputs from the host and outputs back to it. `device` is
the time of a run's kernels by the device's clock. `processor` is the least time that processors worked for a
run. `memory` is what the process holds after the runs. All processes import NumPy and this file. `error` is
the largest difference, as a share of the largest value. All compute in single precision, and without tensor
cores.

The last lines say how WebGPU compares with CUDA, with the bar. benchmarks/cuda.py runs this part on a GPU.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from apart import row_apart
from catalogue import BRIEF, CATALOGUE
from cuda_bars import WEBGPU, judged
from gpu_networks import NETWORKS, bert, feeds
from sections import Section, Table

import jangin
from jangin.bench.arrays import load_arrays, save_arrays
from jangin.bench.engine import Job
from jangin.runtime.device import LoadError

MADE: Mapping[str, Callable[..., onnx.ModelProto]] = {
    **NETWORKS, "encoder": partial(bert, layers=6, width=384),
}  # fmt: skip
"""The networks made here, by name. `encoder` has MiniLM's layers."""
MODELS = {**CATALOGUE, **BRIEF}
TITLES = {
    "squeezenet": "SqueezeNet 1.1", "mobilenetv2": "MobileNetV2", "resnet50": "ResNet-50",
    "encoder": "encoder, 6 layers of 384, 128 tokens",
}  # fmt: skip
"""The networks that are measured unless others are named."""
ON = ("webgpu", "cuda", "opencl", "ncnn")
SECONDS = 180
"""The most seconds of a step."""
SETTLE, REPEATS = 2, 10
"""The number of runs before those that are timed, and of those."""
SMALL = {"size": 32}, {"rows": 8, "layers": 1, "width": 64}
"""The small sizes of networks of images and of transformers."""
FIGURES = ("time", "device", "processor", "memory", "error")
Row = dict[str, Any]
Outputs = Mapping[str, np.ndarray]


def network(name: str, small: bool) -> onnx.ModelProto:
    """Return a network. Benchmark models have one size only."""
    if name not in MADE:
        return onnx.load(MODELS[name].path)
    sizes = SMALL[name in ("bert", "gpt2", "encoder")] if small else {}
    return MADE[name]("float32", 1, **sizes)


def shapes(name: str) -> dict[str, int] | None:
    """Return the sizes that a benchmark model leaves open."""
    return None if name in MADE else dict(MODELS[name].sizes) or None


def named(on: str) -> str:
    """Return the name of the device that a target means. Raises LoadError if it isn't here."""
    kind, _, which = on.partition("@")[0].partition(":")
    if kind == "cuda":
        from jangin.runtime.devices.cuda_devices import select

        return str(select("" if which.startswith("sm_") else which))
    if kind == "opencl":
        from jangin.runtime.devices import opencl_devices

        return str(opencl_devices.select(which))
    from jangin.runtime.devices import webgpu_adapters

    return str(webgpu_adapters.select(which))


# --- steps, each in its own process


class Files:
    """The files of one network in a folder."""

    def __init__(self, folder: Path, name: str) -> None:
        self.model, self.inputs, self.wanted = (
            folder / f"{name}.{kind}" for kind in ("onnx", "inputs.npz", "wanted.npz")
        )
        self._folder, self._name = folder, name

    def compiled(self, on: str) -> Path:
        return self._folder / f"{self._name}.{on}.jgn"


def prepare(files: Files, name: str, small: bool) -> Row:
    """Write a network, inputs, and the expected outputs."""
    model = network(name, small)
    native = jangin.compile(model, shapes=shapes(name))
    given = {n: v if v.dtype.kind == "f" else np.ones_like(v) for n, v in feeds(native).items()}
    onnx.save(model, files.model)
    save_arrays(files.inputs, given)
    try:
        from onnxruntime import InferenceSession
    except ImportError:
        wanted, by = native.run(given), "native code"
    else:
        session = InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
        outputs, by = [o.name for o in model.graph.output], "ONNX Runtime"
        wanted = dict(zip(outputs, session.run(outputs, given), strict=True))
    save_arrays(files.wanted, wanted)
    return {"reference": by}


def build(files: Files, name: str, on: str) -> Row:
    """Compile a network for a device that is here."""
    device = named(on)
    jangin.build(str(files.model), on, shapes=shapes(name)).save(files.compiled(on))
    return {"on": device}


def opened(files: Files, on: str) -> tuple[Callable[[], Outputs], Callable[[], float | None], str]:
    """Return a call that runs a network, another one that returns the seconds of its kernels, and the name of
    the device."""
    if on != "ncnn":
        exe, given = jangin.load(files.compiled(on)), load_arrays(files.inputs)
        timed = partial(device_seconds, exe, given)
        return lambda: exe.run(dict(given)), timed, named(on)
    import ncnn

    from jangin.bench import peers

    wanted = load_arrays(files.wanted)
    engine = peers.ncnn(Job("ncnn", 1, str(files.model), str(files.inputs), tuple(wanted)), vulkan=True)
    return engine.call, lambda: None, f"ncnn {engine.version} on {ncnn.get_gpu_info(0).device_name()}"


def device_seconds(exe: Any, given: Mapping[str, np.ndarray]) -> float:
    return sum(launch.seconds for launch in exe.profile(given, REPEATS))


def measure(files: Files, on: str) -> Row:
    """Return the figures of an engine in this process."""
    start = time.perf_counter()
    run, timed, device = opened(files, on)
    loaded, times, worked = time.perf_counter() - start, list[float](), list[float]()
    for _ in range(SETTLE):
        got = run()
    for _ in range(REPEATS):
        start, busy = time.perf_counter(), time.process_time()
        got = run()
        times.append(time.perf_counter() - start)
        worked.append(time.process_time() - busy)
    held, wanted = _held(), load_arrays(files.wanted)
    far = [np.abs(got[n].reshape(v.shape) - v).max() / np.abs(v).max() for n, v in wanted.items()]
    row = {
        "on": device, "time": 1e3 * statistics.median(times), "processor": 1e3 * min(worked),
        "loaded": loaded, "memory": held, "error": float(np.max(far)),
    }  # fmt: skip
    kernels = timed()
    return row if kernels is None else {**row, "device": 1e3 * kernels}


def _held() -> int:
    """Return the bytes of memory that this process holds (Linux)."""
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmRSS:")[2].split()[0]) << 10


def alone(step: str, name: str, on: str, args: argparse.Namespace) -> Row:
    """Do a step in this process. A package or device that is missing is told as `absent`."""
    files = Files(args.folder, name)
    try:
        if step == "prepare":
            return prepare(files, name, args.small)
        return build(files, name, on) if step == "build" else measure(files, on)
    except (ImportError, LoadError) as error:
        return {"absent": str(error)[:400]}


def command_of(step: str, name: str, on: str, args: argparse.Namespace) -> list[str]:
    command = [sys.executable, __file__, "--folder", str(args.folder), "--alone", step, name, on]
    return [*command, "--small"] if args.small else command


def apart(step: str, name: str, on: str, args: argparse.Namespace, left: float) -> Row:
    """Do a step in its own process, for at most `left` seconds. Whatever ends it is told as its problem."""
    return row_apart(command_of(step, name, on, args), min(args.seconds, left), f"to {step}")


# --- the whole measurement


def steps(args: argparse.Namespace, done: Mapping[str, Row]) -> Iterator[tuple[str, str, str, str]]:
    """Yield the steps that are left: the name of the row, the step, the network and the target."""
    for name in args.networks:
        files = Files(args.folder, name)
        if any("time" not in done.get(f"{name}/{on}", {}) for on in args.on) and not files.wanted.exists():
            yield name, "prepare", name, "cpu"
        for on in args.on:
            if "time" in done.get(f"{name}/{on}", {}):
                continue
            if on != "ncnn" and not files.compiled(on).exists():
                yield f"{name}/{on}", "build", name, on
            yield f"{name}/{on}", "measure", name, on


def go_on(args: argparse.Namespace, done: dict[str, Row], kept: Path) -> None:
    """Do the steps that are left until the minutes are over. Each row is kept as soon as it is known."""
    end = time.monotonic() + 60 * args.minutes
    failed = {name for name, row in done.items() if args.one and "time" not in row}
    for row_name, step, name, on in steps(args, done):
        if row_name in failed or name in failed:
            continue
        left = end - time.monotonic()
        if left <= 0:
            print(f"The next call goes on with {row_name}: the {args.minutes:g} minutes are over", flush=True)
            return
        row = apart(step, name, on, args, left)
        if {"problem", "absent"} & {*row}:
            failed.add(row_name)
        done.pop(row_name, None)
        if step == "measure" or row_name in failed:
            done[row_name] = row
        keep(kept, done)
        print(row_name, step, json.dumps(row), flush=True)
        if args.one:
            return


def keep(path: Path, done: Mapping[str, Row]) -> None:
    """Write the figures to a new file, and rename it. An interruption leaves the last file whole."""
    unfinished = path.with_suffix(".part")
    unfinished.write_text(json.dumps(done, indent=1))
    unfinished.replace(path)


def compared(done: Mapping[str, Row]) -> dict[str, Row]:
    """Return WebGPU's speed as a share of CUDA's, by network: of whole runs, and of their kernels."""
    found: dict[str, Row] = {}
    for name, theirs in done.items():
        network, _, on = name.partition("/")
        ours = done.get(f"{network}/webgpu", {})
        if on.startswith("cuda") and "time" in theirs and "time" in ours:
            found[f"webgpu/{network}/run"] = {"of CUDA": theirs["time"] / ours["time"]}
            found[f"webgpu/{network}/kernels"] = {"of CUDA": theirs["device"] / ours["device"]}
    return found


def section(done: Mapping[str, Row]) -> Section:
    rows = {name: row for name, row in done.items() if "/" in name}
    engines = [*dict.fromkeys(name.partition("/")[2] for name in rows)]
    devices = {
        e: {str(r["on"]) for n, r in rows.items() if n.endswith(f"/{e}") and "on" in r} for e in engines
    }
    named = "; ".join(f"{e} is {', '.join(sorted(d))}" for e, d in devices.items() if d)
    told = (
        "`python benchmarks/webgpu.py --save`, single precision, batch 1, each engine in a process of its "
        "own. Columns by engine: the median time of a run, the time of its kernels by the device's clock, "
        "the least processor time of a run, memory that the process holds, error against ONNX Runtime. "
        f"{named}."
    )
    columns = [(e, f) for f in FIGURES for e in engines if (e, f) != ("ncnn", "device")]
    shares = compared(done)
    table = [
        [
            TITLES.get(n) or (MODELS[n].title if n in MODELS else n),
            *(_cell(rows.get(f"{n}/{e}", {}), f) for e, f in columns),
            *(f"{shares[key]['of CUDA']:.2f}" if (key := f"webgpu/{n}/{part}") in shares else ""
              for part in ("run", "kernels") if shares),
        ]
        for n in dict.fromkeys(name.partition("/")[0] for name in rows)
    ]  # fmt: skip
    ends = ["of CUDA: run", "of CUDA: kernels"] if shares else []
    return Section(
        "WebGPU outside of browsers",
        [told, Table(["network", *(f"{e}: {f}" for e, f in columns), *ends], table)],
    )


def _cell(row: Row, figure: str) -> str:
    if figure not in row:
        return str(row.get("problem", row.get("absent", ""))) if figure == "time" else ""
    value = row[figure]
    if figure == "memory":
        return f"{value / 1e6:.0f} MB"
    return f"{value:.0e}" if figure == "error" else f"{value:.3g} ms" if value < 10 else f"{value:.0f} ms"


def reading(done: Mapping[str, Row]) -> list[str]:
    """Return what to read: the shares of CUDA's speed with their bar, the missed ones first, and what
    failed."""
    judgements = sorted(judged(compared(done), [WEBGPU]), key=lambda item: item[0])
    lines = [text for _, text in judgements]
    for name, row in done.items():
        lines += [f"FAILED  {name}: {row['problem']}"] if "problem" in row else []
        lines += [f"none  {name}: {row['absent']}"] if "absent" in row else []
    return lines


def arguments(given: Sequence[str] | None = None) -> argparse.Namespace:
    kind = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=kind)
    names = [*MADE, *(n for n in MODELS if n not in MADE)]
    parser.add_argument("--on", nargs="+", default=ON, help='targets, or "ncnn" for its Vulkan')
    parser.add_argument("--networks", nargs="+", default=[*TITLES], choices=names, metavar="NETWORK")
    parser.add_argument("--folder", type=Path, default=Path("webgpu"), help="for what is done")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="of a step at most")
    parser.add_argument("--minutes", type=float, default=60.0, help="after which no step begins")
    parser.add_argument("--small", action="store_true", help="small sizes")
    parser.add_argument("--one", action="store_true", help="do one step more")
    parser.add_argument("--save", nargs="?", const="webgpu", help="keep the table in benchmarks/results")
    parser.add_argument("--alone", nargs=3, help=argparse.SUPPRESS)
    return parser.parse_args(given)


def main() -> None:
    args = arguments()
    if args.alone:
        print(json.dumps(alone(*args.alone, args)))
        return
    args.folder.mkdir(parents=True, exist_ok=True)
    kept = args.folder / "done.json"
    done: dict[str, Row] = json.loads(kept.read_text()) if kept.exists() else {}
    go_on(args, done, kept)
    if args.save:
        print(section(done).save(args.save))
    print(*reading(done), sep="\n")
    failed = [name for name, row in done.items() if "problem" in row]
    sys.exit(f"{len(failed)} of {len(done)} rows failed: {', '.join(failed)}" if failed else 0)


if __name__ == "__main__":
    main()
