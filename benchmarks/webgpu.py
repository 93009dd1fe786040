"""Measure WebGPU outside of browsers, beside other devices' code and ncnn's Vulkan.

    python benchmarks/webgpu.py [--on webgpu ncnn cuda opencl] [--json webgpu.json] [--save]

It needs a Vulkan driver (Mesa's lavapipe is one for processors) and the packages wgpu, ncnn and pnnx. Each
engine runs a network in a process of its own. Its figures are written as soon as it ends, and a second call
goes on from there. Networks and weights are made from a seed.

A time is the median of runs after two others, with inputs from the host and outputs back to it. `loaded` is
the time until the model can run, and `error` the largest difference to native code, as a share of the largest
value. All compute in single precision.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from gpu_networks import NETWORKS, feeds
from sections import Section, Table

import jangin
from jangin.bench import peers
from jangin.bench.arrays import save_arrays
from jangin.bench.engine import Job

ON = ("webgpu", "ncnn")
SECONDS = 180
"""The most seconds of a process."""
SETTLE, REPEATS = 2, 10
"""The number of runs before those that are timed, and of those."""
Row = dict[str, Any]
Outputs = Mapping[str, np.ndarray]


def opened(model: onnx.ModelProto, on: str, given: Outputs) -> tuple[Callable[[], Outputs], str]:
    """Return a call that runs a network, and the name of the device."""
    if on != "ncnn":
        exe = jangin.compile(model, on)
        return lambda: exe.run(dict(given)), on
    import ncnn

    with tempfile.TemporaryDirectory() as name:
        path, inputs = Path(name, "network.onnx"), Path(name, "inputs.npz")
        onnx.save(model, path)
        save_arrays(inputs, given)
        outputs = tuple(o.name for o in model.graph.output)
        engine = peers.ncnn(Job("ncnn", 1, str(path), str(inputs), outputs), vulkan=True)
    return engine.call, f"ncnn {engine.version}, {ncnn.get_gpu_info(0).device_name()}"


def alone(network: str, on: str) -> Row:
    """Return the figures of an engine in this process."""
    model = NETWORKS[network]("float32", 1)
    native = jangin.compile(model)
    given = feeds(native)
    want = native.run(given)
    start = time.perf_counter()
    run, device = opened(model, on, given)
    loaded, times = time.perf_counter() - start, list[float]()
    for _ in range(SETTLE):
        got = run()
    for _ in range(REPEATS):
        start = time.perf_counter()
        got = run()
        times.append(time.perf_counter() - start)
    far = [np.abs(got[n].reshape(v.shape) - v).max() / np.abs(v).max() for n, v in want.items()]
    return {"on": device, "ms": 1e3 * statistics.median(times), "loaded": loaded, "error": float(max(far))}


def apart(network: str, on: str, seconds: float) -> Row:
    """Return the figures of an engine in its own process, or the problem that it has."""
    command = [sys.executable, __file__, "--alone", network, on]
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
    devices = sorted({str(row["on"]) for row in done.values() if "on" in row})
    told = f"`python benchmarks/webgpu.py --save`, single precision, batch 1. Devices: {', '.join(devices)}."
    engines = [*dict.fromkeys(name.partition("/")[2] for name in done)]
    rows = []
    for network in dict.fromkeys(name.partition("/")[0] for name in done):
        found = [done.get(f"{network}/{on}", {}) for on in engines]
        rows.append(
            [network, *(f"{r['ms']:.1f} ms" if "ms" in r else str(r.get("problem", "")) for r in found)]
        )
    return Section("WebGPU outside of browsers", [told, Table(["network", *engines], rows)])


def _cell(row: Row) -> str:
    return f"{row['ms']:.1f} ms" if "ms" in row else str(row.get("problem", ""))


def arguments() -> argparse.Namespace:
    kind = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=kind)
    parser.add_argument("--on", nargs="+", default=ON, help='targets, or "ncnn" for its Vulkan')
    parser.add_argument("--networks", nargs="+", default=[*NETWORKS], choices=NETWORKS)
    parser.add_argument("--json", type=Path, default=Path("webgpu.json"), help="the file with what is done")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="of a process at most")
    parser.add_argument("--save", action="store_true", help="keep the figures in benchmarks/results")
    parser.add_argument("--alone", nargs=2, help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> None:
    args = arguments()
    if args.alone:
        print(json.dumps(alone(*args.alone)))
        return
    done: dict[str, Row] = json.loads(args.json.read_text()) if args.json.exists() else {}
    for network in args.networks:
        for on in args.on:
            name = f"{network}/{on}"
            if "ms" not in done.get(name, {}):
                done[name] = apart(network, on, args.seconds)
                args.json.write_text(json.dumps(done, indent=1))
                print(name, json.dumps(done[name]), flush=True)
    if args.save:
        print(section(done).save("webgpu"))


if __name__ == "__main__":
    main()
