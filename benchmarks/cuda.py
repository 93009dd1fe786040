"""Measure an NVIDIA GPU: errors, bandwidth, products, networks and launches. The most valuable figures come
first.

    python3 -m venv .venv && .venv/bin/pip install -q '.[cuda]' onnxruntime-gpu
    .venv/bin/python benchmarks/cuda.py --minutes 7 [--device cuda:0] [--json cuda.json] [--only products]

Each job runs in a process of its own, for at most --seconds. Errors are found first, side by side, which also
compiles the networks. Times are taken one after the other. No job begins after --minutes. Figures are written
as soon as a job ends, and a second call continues from there. The last lines say what to read, with the bar
of each figure. Networks and weights are made from a seed. `--small` takes sizes for a simulated device.
Columns stay empty if their package is missing: PyTorch (for cuBLAS), ONNX Runtime with its CUDA provider, or
NVIDIA's compute-sanitizer.
"""

from __future__ import annotations

if __name__ == "cuda":
    # PyTorch looks for NVIDIA's package of this name, and a script beside this file would give it this one
    raise ImportError("benchmarks/cuda.py is a program, not NVIDIA's package")

import argparse
import ctypes
import json
import os
import shutil
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from gpu_networks import NETWORKS, feeds, product, windows
from sections import Section, Table

import jangin
from jangin.runtime.devices.cuda_devices import Found, select

sys.path.remove(str(Path(__file__).parent))  # `import cuda` then finds NVIDIA's package, not this file

SECONDS = 180
"""The most seconds of a job. A GPU may be available for minutes only."""
REPEATS, SETTLE = 20, 3
"""The number of runs that are timed, and of runs before."""
NOT_FINITE = "the results aren't finite"
ERRORS = {"float32": 1e-5, "tf32": 5e-3, "bfloat16": 5e-2, "float16": 1e-2}
"""Most error of a result, as a share of its largest number. Sums are f32, and 16-bit results have 8 or 11
bits. Numbers of tf32 have 11. The errors of networks grow with their layers."""
OF_CUBLAS = {"float32": 0.9, "tf32": 0.6, "bfloat16": 0.6, "float16": 0.6}
"""The least share of cuBLAS's speed that a product should have."""
OF_RUNTIME = {1: 1.2}
"""The least share of ONNX Runtime's speed that a network should have, by its batch; 0.9 for other batches."""
TF32 = "tf32"
"""Products of float32 whose numbers are rounded to tf32."""
Row = dict[str, Any]


def jobs(small: bool) -> Iterator[tuple[str, Callable[[str], Row]]]:
    """Yield every job with its name, the most valuable first."""
    sizes = (16, 33) if small else (1024, 4096, 2048, 512, 256, 8192)
    batches = {"squeezenet": (1,), "mobilenetv2": (1,), "resnet50": (1, 64), "bert": (1, 32), "gpt2": (1,)}
    kinds = ("float32", "bfloat16", "float16")
    for kind in ("bfloat16", "float16", "tf32"):  # whole tiles of the tensor cores, then others
        yield f"errors/matrices/{kind}", lambda on, k=kind: product_error(on, k, *[64 if small else 512] * 3)
    for n, kind in ((333, "float32"), (333, "bfloat16"), (333, "float16"), (333, "tf32")):
        size = 17 if small else n
        yield (
            f"errors/product/{kind}",
            lambda on, n=size, kind=kind: product_error(on, kind, n, n + 8, n - 2),
        )
    for kind in (*kinds, "tf32"):
        yield f"errors/windows/{kind}", lambda on, k=kind: windows_error(on, k)
    for name in ("resnet50", "bert", "mobilenetv2", "squeezenet", "gpt2"):
        for kind in kinds:
            yield f"errors/{name}/{kind}", lambda on, a=name, k=kind: network_error(on, a, k, small)
    for tool in ("memcheck", "racecheck"):
        yield f"sanitizer/{tool}", lambda on, t=tool: sanitized(on, t)
    yield "copy", lambda on: copied(on, 1 << 12 if small else 1 << 26)
    for kind in (*kinds, "tf32"):
        for size in sizes:
            yield f"products/{size}/{kind}", lambda on, s=size, k=kind: product_time(on, k, s)
    yield "launches", lambda on: launch_time(on, 60)
    for kind in kinds:
        for name in ("resnet50", "bert", "mobilenetv2", "squeezenet", "gpt2"):
            for batch in (1,) if small else batches[name]:
                yield (
                    f"networks/{name}/{batch}/{kind}",
                    lambda on, a=name, b=batch, k=kind: network_time(on, a, b, k, small),
                )


def compiled(model: onnx.ModelProto, on: str, kind: str) -> Any:
    """Return a model compiled for a kind of numbers, of which tf32 is float32 with another option."""
    return jangin.compile(model, on, tf32=kind == TF32)


def typed(kind: str) -> str:
    """Return the element type of a kind of numbers."""
    return "float32" if kind == TF32 else kind


def network(name: str, kind: str, batch: int, small: bool) -> onnx.ModelProto:
    """Return one of the networks. Small ones have one layer, or few pixels."""
    if not small:
        return NETWORKS[name](kind, batch)
    if name in ("bert", "gpt2"):
        return NETWORKS[name](kind, batch, 8, layers=1, width=64)
    return NETWORKS[name](kind, batch, size=32)


def device(on: str) -> Found:
    return select(on.removeprefix("cuda").removeprefix(":"))


# --- errors


def worst(got: Mapping[str, np.ndarray], want: Mapping[str, np.ndarray]) -> float:
    """Return the largest difference, as a share of the largest value. Raises ValueError for a result that
    isn't finite."""
    found = 0.0
    for name, value in want.items():
        a, b = got[name].astype(np.float64), value.astype(np.float64)
        if not np.isfinite(a).all():
            raise ValueError(NOT_FINITE)
        found = max(found, float(np.abs(a - b).max() / np.abs(b).max()))
    return found


def product_error(on: str, kind: str, rows: int, terms: int, columns: int) -> Row:
    exe = compiled(product(typed(kind), rows, terms, columns), on, kind)
    given = feeds(exe)
    x, y = (v.astype(np.float64) for v in given.values())
    found = worst(exe.run(given), {exe.outputs[0].name: x @ y})
    return {"error": found, "kernel": exe.plan.launches[0].template}


def network_error(on: str, name: str, kind: str, small: bool) -> Row:
    return error_of(on, network(name, kind, 1, small), network(name, "float64", 1, small), kind)


def windows_error(on: str, kind: str) -> Row:
    return error_of(on, windows(typed(kind)), windows("float64"), kind)


def error_of(on: str, model: onnx.ModelProto, in_float64: onnx.ModelProto, kind: str) -> Row:
    """Return the error against the same network in float64 on the processor, with weights that aren't
    rounded."""
    exe = compiled(model, on, kind)
    given = feeds(exe)
    exact = jangin.compile(in_float64, "cpu")
    want = exact.run({n: v.astype(np.float64) for n, v in given.items()})
    return {"error": worst(exe.run(given), want), "launches": len(exe.plan.launches)}


def sanitized(on: str, tool: str) -> Row:
    """Run a small network's kernels under NVIDIA's checker."""
    checker = shutil.which("compute-sanitizer")
    if checker is None:
        return {"absent": "compute-sanitizer"}
    own = [sys.executable, __file__, "--device", on, "--small", "--job", "errors/squeezenet/float32"]
    done = subprocess.run(
        [checker, "--tool", tool, "--error-exitcode", "9", *own], capture_output=True, text=True
    )
    return {"exit": done.returncode, "said": done.stdout[-400:]}


# --- times


def device_seconds(exe: Any, given: Mapping[str, np.ndarray]) -> float:
    """Return the seconds of a run's launches, by the device's clock."""
    return sum(launch.seconds for launch in exe.profile(given, REPEATS))


def run_seconds(run: Callable[[], object]) -> float:
    """Return the median seconds of whole runs, from the host's arrays to the host's arrays."""
    for _ in range(SETTLE):
        run()
    taken = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        run()
        taken.append(time.perf_counter() - start)
    return statistics.median(taken)


def copied(on: str, count: int) -> Row:
    """Measure a kernel that reads and writes the same number of bytes."""
    from onnx import TensorProto, helper, numpy_helper

    info = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [count]) for n in "xy"]
    two = numpy_helper.from_array(np.float32(2), "two")
    graph = helper.make_graph([helper.make_node("Mul", ["x", "two"], ["y"])], "g", info[:1], info[1:], [two])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)
    exe = jangin.compile(model, on)
    seconds = device_seconds(exe, feeds(exe))
    return {"seconds": seconds, "GB/s": 8e-9 * count / seconds, "ceiling": device(on).bandwidth / 1e9}


def product_time(on: str, kind: str, size: int) -> Row:
    exe = compiled(product(typed(kind), size, size, size), on, kind)
    seconds, flops = device_seconds(exe, feeds(exe)), 2 * size**3
    row = {"seconds": seconds, "TFLOP/s": 1e-12 * flops / seconds}
    label = exe.plan.launches[0].template
    return {**row, "kernel": label, **torch_product(kind, size, seconds)}


def torch_product(kind: str, size: int, ours: float) -> Row:
    """Measure the same product in PyTorch, which calls cuBLAS. Its float32 products use
    tf32 only if told to."""
    try:
        import torch
    except ImportError:
        return {"absent": "PyTorch"}
    if not torch.cuda.is_available():
        return {"absent": "PyTorch with CUDA"}
    torch.backends.cuda.matmul.allow_tf32 = kind == TF32
    dtype = getattr(torch, typed(kind))
    x, y = (torch.randn(size, size, device="cuda", dtype=dtype) for _ in range(2))
    taken = []
    for _ in range(SETTLE + REPEATS):
        events = [torch.cuda.Event(enable_timing=True) for _ in range(2)]
        events[0].record()
        torch.mm(x, y)
        events[1].record()
        torch.cuda.synchronize()
        taken.append(events[0].elapsed_time(events[1]) / 1e3)
    theirs = statistics.median(taken[SETTLE:])
    return {"cuBLAS": theirs, "of cuBLAS": theirs / ours}


def launch_time(on: str, count: int) -> Row:
    """Measure `count` tiny kernels that can't be fused: the seconds of each in a run, and by itself."""
    from onnx import TensorProto, helper

    nodes, name = [], "x"
    for n in range(count // 2):
        nodes.append(helper.make_node("Softmax", [name], [f"s{n}"], axis=-1))
        nodes.append(helper.make_node("ReduceMax", [f"s{n}"], [f"m{n}"], keepdims=1))
        nodes.append(helper.make_node("Add", [f"s{n}", f"m{n}"], [f"a{n}"]))
        name = f"a{n}"
    info = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [4, 64]) for n in ("x", name)]
    graph = helper.make_graph(nodes, "g", info[:1], info[1:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)
    exe = jangin.compile(model, on)
    given, launches = feeds(exe), len(exe.plan.launches)
    whole = run_seconds(lambda: exe.run(given))
    return {
        "launches": launches,
        "run": whole,
        "each": whole / launches,
        "device": device_seconds(exe, given),
    }


def network_time(on: str, name: str, batch: int, kind: str, small: bool) -> Row:
    model = network(name, kind, batch, small)
    exe = jangin.compile(model, on)
    given = feeds(exe)
    whole = run_seconds(lambda: exe.run(given))
    row: Row = {
        "run": whole, "device": device_seconds(exe, given), "launches": len(exe.plan.launches),
        "working": exe.working, **joules(lambda: exe.run(given)),
    }  # fmt: skip
    return {**row, **onnxruntime_time(model, given, whole)}


def onnxruntime_time(model: onnx.ModelProto, given: Mapping[str, np.ndarray], ours: float) -> Row:
    """Measure ONNX Runtime's CUDA provider on the same model and arrays."""
    import onnxruntime

    if "CUDAExecutionProvider" not in onnxruntime.get_available_providers():
        return {"absent": "ONNX Runtime with CUDA"}
    try:
        session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CUDAExecutionProvider"])
        theirs = run_seconds(lambda: session.run(None, dict(given)))
    except Exception as error:  # a model that ONNX Runtime can't run is only reported
        return {"ONNX Runtime failed": str(error)[:200]}
    return {"ONNX Runtime": theirs, "of ONNX Runtime": theirs / ours}


def joules(run: Callable[[], object]) -> Row:
    """Return the device's energy of a run by NVML, if NVML is installed and counts it."""
    with suppress(OSError, AttributeError):
        nvml = ctypes.CDLL("libnvidia-ml.so.1")
        device, before, after = ctypes.c_void_p(), ctypes.c_ulonglong(), ctypes.c_ulonglong()
        if nvml.nvmlInit_v2() or nvml.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(device)):
            return {}
        if nvml.nvmlDeviceGetTotalEnergyConsumption(device, ctypes.byref(before)):
            return {}
        for _ in range(REPEATS):
            run()
        nvml.nvmlDeviceGetTotalEnergyConsumption(device, ctypes.byref(after))
        return {"joules": 1e-3 * (after.value - before.value) / REPEATS}
    return {}


# --- the whole measurement


def kept(path: Path) -> dict[str, Row]:
    found: dict[str, Row] = json.loads(path.read_text()) if path.exists() else {}
    return found


def keep(path: Path, done: Mapping[str, Row]) -> None:
    """Write the figures to a new file, and rename it. An interruption leaves the last file whole."""
    unfinished = path.with_suffix(".part")
    unfinished.write_text(json.dumps(done, indent=1))
    unfinished.replace(path)


def apart(name: str, arguments: argparse.Namespace) -> Row:
    """Run a job in its own process. A failure is stored like a figure, and the next run tries the job
    again."""
    small = ["--small"] if arguments.small else []
    command = [sys.executable, __file__, "--job", name, "--device", arguments.device, *small]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=arguments.seconds)
    except subprocess.TimeoutExpired:
        return {"problem": f"it took longer than {arguments.seconds} seconds"}
    if done.returncode:
        return {"problem": done.stderr.strip().rpartition("\n")[2][:400]}
    found: Row = json.loads(done.stdout.strip().rpartition("\n")[2])
    return found


def section(done: Mapping[str, Row]) -> Section:
    """Return the section with the figures."""
    devices = ", ".join(sorted({row["on"] for row in done.values() if "on" in row}))
    parts: list[str | Table] = [f"Measured on {devices} by `python benchmarks/cuda.py --save`."]
    for group in dict.fromkeys(name.partition("/")[0] for name in done):
        rows = {name: row for name, row in done.items() if name.partition("/")[0] == group}
        columns = [*dict.fromkeys(key for row in rows.values() for key in row if key != "on")]
        cells = [[name, *(_cell(row.get(key, "")) for key in columns)] for name, row in rows.items()]
        parts.append(Table(["job", *columns], cells))
    return Section("NVIDIA GPU", parts)


def reading(done: Mapping[str, Row]) -> list[str]:
    """Return what to read: each figure with its bar, the missed ones first, and what wasn't measured."""
    found = list[tuple[bool, str]]()
    for name, row in done.items():
        parts = name.split("/")
        kind = parts[-1]
        bars = [("error", ERRORS.get(kind, 0.0), False), ("of cuBLAS", OF_CUBLAS.get(kind, 0.0), True)]
        if parts[0] == "networks":
            bars.append(("of ONNX Runtime", OF_RUNTIME.get(int(parts[2]), 0.9), True))
        for figure, bar, least in bars:
            if figure in row:
                met = (row[figure] >= bar) if least else (row[figure] <= bar)
                sign = "at least" if least else "at most"
                said = f"{name}: {figure} {row[figure]:.3g}, {sign} {bar:g} asked"
                found.append((met, f"{'met' if met else 'MISSED'}  {said}"))
        for lack in ("problem", "absent", "ONNX Runtime failed"):
            if lack in row:
                found.append(
                    (lack == "absent", f"{'none' if lack == 'absent' else 'FAILED'}  {name}: {row[lack]}")
                )
        if row.get("exit"):
            found.append((False, f"FAILED  {name}: exit {row['exit']}: {row['said']}"))
    return [text for _, text in sorted(found, key=lambda item: item[0])]


def _cell(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cuda", help="a target's name")
    parser.add_argument("--json", type=Path, default=Path("cuda.json"), help="the file with what is done")
    parser.add_argument("--only", default="", help="jobs whose names begin so")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="of a job at most")
    parser.add_argument("--minutes", type=float, default=60.0, help="after which no job begins")
    parser.add_argument("--again", action="store_true", help="do what is done once more")
    parser.add_argument("--small", action="store_true", help="small sizes, for a simulated device")
    parser.add_argument("--save", action="store_true", help="keep the figures in benchmarks/results")
    parser.add_argument("--job", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    every = dict(jobs(arguments.small))
    if arguments.job:
        print(json.dumps({**every[arguments.job](arguments.device), "on": str(device(arguments.device))}))
        return
    done = kept(arguments.json)
    measure([*every], done, arguments)
    if arguments.save:
        print(section(done).save("cuda"))
    print(*reading(done), sep="\n")
    failed = [name for name, row in done.items() if "problem" in row]
    sys.exit(f"{len(failed)} of {len(done)} jobs failed: {', '.join(failed)}" if failed else 0)


def measure(names: list[str], done: dict[str, Row], arguments: argparse.Namespace) -> None:
    """Run the jobs that are wanted and not done yet, and keep their figures. Errors are found side by
    side."""
    end, alone = time.monotonic() + 60 * arguments.minutes, threading.Lock()
    wanted = [name for name in names if name.startswith(arguments.only)]
    left = [name for name in wanted if arguments.again or name not in done or "problem" in done[name]]

    def finish(name: str) -> None:
        if time.monotonic() >= end:
            print(f"{name} is left for the next call: the {arguments.minutes:g} minutes are over", flush=True)
            return
        row = apart(name, arguments)
        with alone:
            done[name] = row
            keep(arguments.json, done)
            print(name, json.dumps(row), flush=True)

    errors = [name for name in left if name.startswith("errors/")]
    with ThreadPoolExecutor(max(1, (os.cpu_count() or 1) // 2)) as pool:
        list(pool.map(finish, errors))
    for name in left:
        if name not in errors:
            finish(name)


if __name__ == "__main__":
    main()
