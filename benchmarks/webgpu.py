"""Measure WebGPU outside of browsers, beside other devices' code and ncnn's Vulkan.

    python benchmarks/webgpu.py [--on webgpu ncnn cuda opencl] [--folder webgpu] [--one] [--save]

It needs a Vulkan driver (Mesa's lavapipe is one for processors) and the packages wgpu, ncnn, pnnx and
onnxruntime. Networks and weights are made from a seed. A first step compiles a network and computes its
expected results by ONNX Runtime. Each engine then runs it in a process of its own. The folder keeps
each result, and the next call goes on there. `--one` does one step more, if anything is left.

A time is the median of runs after two others, with inputs from the host and outputs back to it. `processor`
is the least time that processors worked for a run. `loaded` is the time until the model can run. `memory`
is what the process holds after the runs; both engines' processes import NumPy and this file. `error` is the
largest difference to ONNX Runtime, as a share of the largest value. All compute in single precision.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from gpu_networks import NETWORKS, bert, feeds
from sections import Section, Table

from jangin.bench.arrays import load_arrays, save_arrays
from jangin.bench.engine import Job

ALL = {**NETWORKS, "encoder": partial(bert, layers=6, width=384)}
"""The networks by name. `encoder` has MiniLM's layers."""
TITLES = {
    "squeezenet": "SqueezeNet 1.1", "mobilenetv2": "MobileNetV2", "resnet50": "ResNet-50",
    "encoder": "encoder, 6 layers of 384, 128 tokens",
}  # fmt: skip
ON = ("webgpu", "ncnn")
SECONDS = 180
"""The most seconds of a process."""
SETTLE, REPEATS = 2, 10
"""The number of runs before those that are timed, and of those."""
Row = dict[str, Any]
Outputs = Mapping[str, np.ndarray]


def prepare(folder: Path, network: str, targets: list[str]) -> None:
    """Write a network, its compiled models, inputs, and the expected outputs."""
    import onnx
    import onnxruntime

    import jangin

    model = ALL[network]("float32", 1)
    for target in targets:
        jangin.build(model, target).save(folder / f"{network}.{target}.jgn")
    given = feeds(jangin.compile(model))
    onnx.save(model, folder / f"{network}.onnx")
    save_arrays(folder / f"{network}.inputs.npz", given)
    outputs = [o.name for o in model.graph.output]
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    wanted = zip(outputs, session.run(outputs, given), strict=True)
    save_arrays(folder / f"{network}.wanted.npz", dict(wanted))


def opened(folder: Path, network: str, on: str, wanted: Outputs) -> tuple[Callable[[], Outputs], str]:
    """Return a call that runs a network, and the name of the device."""
    inputs = folder / f"{network}.inputs.npz"
    if on != "ncnn":
        import jangin

        exe, given = jangin.load(folder / f"{network}.{on}.jgn"), load_arrays(inputs)
        return lambda: exe.run(dict(given)), on
    import ncnn

    from jangin.bench import peers

    job = Job("ncnn", 1, str(folder / f"{network}.onnx"), str(inputs), tuple(wanted))
    engine = peers.ncnn(job, vulkan=True)
    return engine.call, f"ncnn {engine.version} on {ncnn.get_gpu_info(0).device_name()}"


def alone(folder: Path, network: str, on: str) -> Row:
    """Return the figures of an engine in this process."""
    wanted = load_arrays(folder / f"{network}.wanted.npz")
    start = time.perf_counter()
    run, device = opened(folder, network, on, wanted)
    loaded, times, worked = time.perf_counter() - start, list[float](), list[float]()
    for _ in range(SETTLE):
        got = run()
    for _ in range(REPEATS):
        start, busy = time.perf_counter(), time.process_time()
        got = run()
        times.append(time.perf_counter() - start)
        worked.append(time.process_time() - busy)
    far = [np.abs(got[n].reshape(v.shape) - v).max() / np.abs(v).max() for n, v in wanted.items()]
    return {
        "on": device, "ms": 1e3 * statistics.median(times), "processor": 1e3 * min(worked), "loaded": loaded,
        "memory": _held(), "error": float(max(far)),
    }  # fmt: skip


def _held() -> int:
    """Return the bytes of memory that this process holds (Linux)."""
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmRSS:")[2].split()[0]) << 10


def apart(folder: Path, network: str, on: str, seconds: float) -> Row:
    """Return the figures of an engine in its own process, or the problem that it has."""
    command = [sys.executable, __file__, "--folder", str(folder), "--alone", network, on]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=seconds)
    except subprocess.TimeoutExpired:
        return {"problem": f"it took longer than {seconds} seconds"}
    if done.returncode:
        return {
            "problem": done.stderr.strip().rpartition("\n")[2][:400] or f"it ended with {done.returncode}"
        }
    found: Row = json.loads(done.stdout.strip().rpartition("\n")[2])
    return found


def section(done: Mapping[str, Row]) -> Section:
    engines = [*dict.fromkeys(name.partition("/")[2] for name in done)]
    devices = {
        e: {str(r["on"]) for n, r in done.items() if n.endswith(f"/{e}") and "on" in r} for e in engines
    }
    named = "; ".join(f"{e} is {', '.join(sorted(d))}" for e, d in devices.items() if d - {e})
    told = (
        "`python benchmarks/webgpu.py --save`, single precision, batch 1, each engine in a process of its "
        f"own. Columns by engine: the median time of a run, the least processor time of a run, memory that "
        f"the process holds, error against ONNX Runtime. {named}."
    )
    figures = ("time", "processor", "memory", "error")
    columns = ["network", *(f"{e}: {f}" for f in figures for e in engines)]
    networks = dict.fromkeys(name.partition("/")[0] for name in done)
    rows = [
        [TITLES.get(n, n), *(_cell(done.get(f"{n}/{e}", {}), f) for f in figures for e in engines)]
        for n in networks
    ]
    return Section("WebGPU outside of browsers", [told, Table(columns, rows)])


def _cell(row: Row, figure: str) -> str:
    if "ms" not in row:
        return str(row.get("problem", ""))
    return {
        "time": f"{row['ms']:.0f} ms", "processor": f"{row['processor']:.0f} ms",
        "memory": f"{row['memory'] / 1e6:.0f} MB", "error": f"{row['error']:.0e}",
    }[figure]  # fmt: skip


def arguments() -> argparse.Namespace:
    kind = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=kind)
    parser.add_argument("--on", nargs="+", default=ON, help='targets, or "ncnn" for its Vulkan')
    parser.add_argument("--networks", nargs="+", default=[*TITLES], choices=ALL)
    parser.add_argument("--folder", type=Path, default=Path("webgpu"), help="for what is done")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="of a process at most")
    parser.add_argument("--one", action="store_true", help="do one step more")
    parser.add_argument("--save", action="store_true", help="keep the figures in benchmarks/results")
    parser.add_argument("--alone", nargs=2, help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> None:
    args = arguments()
    if args.alone:
        print(json.dumps(alone(args.folder, *args.alone)))
        return
    args.folder.mkdir(parents=True, exist_ok=True)
    kept = args.folder / "done.json"
    done: dict[str, Row] = json.loads(kept.read_text()) if kept.exists() else {}
    for network in args.networks:
        if not (args.folder / f"{network}.wanted.npz").exists():
            prepare(args.folder, network, [on for on in args.on if on != "ncnn"])
            if args.one:
                return
        for on in args.on:
            name = f"{network}/{on}"
            if "ms" not in done.get(name, {}):
                done[name] = apart(args.folder, network, on, args.seconds)
                kept.write_text(json.dumps(done, indent=1))
                print(name, json.dumps(done[name]), flush=True)
                if args.one:
                    return
    if args.save:
        print(section(done).save("webgpu"))


if __name__ == "__main__":
    main()
