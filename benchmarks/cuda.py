"""Measure an NVIDIA GPU: errors, bandwidth, products, networks and launches. The most valuable figures come
first.

    python3 benchmarks/cuda.py --prepare --architecture sm_90a --carried kernels    # before, without a GPU
    python3 benchmarks/cuda.py --minutes 7 --json cuda.json [--architecture sm_90a --carried kernels]

Other options are --device cuda:0, --only products and --part 1. The second command is the one to run first
where a GPU is. It needs NumPy, onnx, llvmlite and NVRTC, which PyTorch's packages have, and no network. Each
job runs in a process of its own, so that a crash or a hang stops no other. It ends after --seconds, or when
--minutes are over. Figures are written as soon as a job ends, and a second call continues from there. Errors
are found side by side, which also compiles the networks. Times are taken one after the other. The jobs are in
three parts, each made to take at most 3 minutes on an H100.

With --prepare all kernels are made for an architecture, without a device, and kept in a folder. The jobs then
find them there and compile nothing but steps of training. Both machines need the same versions of llvmlite,
NumPy and onnx.

A fourth part measures WebGPU by benchmarks/webgpu.py, beside CUDA and OpenCL on the same chip. Its results
lie in a folder beside the figures.

The last lines say what to read, with every bar beside its figure. Networks and weights are made from a seed.
`--small` takes sizes for a simulated device. Columns stay empty if their package is missing: PyTorch with
cuBLAS, torchvision, transformers, or NVIDIA's compute-sanitizer.
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
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from apart import row_apart
from cuda_bars import reading
from cuda_peers import REPEATS, ours_on_device, run_seconds, torch_network, torch_product
from cuda_place import TF32, Place, Prepared, compiled, without_models
from cuda_training import training_error, training_time
from gpu_networks import BYTES, NETWORKS, feeds, product, product_of_bytes, windows
from sections import Section, Table

from jangin.runtime.devices.cuda_devices import Found, select

sys.path.remove(str(Path(__file__).parent))  # `import cuda` then finds NVIDIA's package, not this file

SECONDS = 150
"""The most seconds of a job. A GPU may be available for minutes only."""
NOT_FINITE = "the results aren't finite"
Row = dict[str, Any]


Job = Callable[[Place], Row]


def parts(small: bool) -> tuple[dict[str, Job], ...]:
    """Return the jobs by name, in three parts, the most valuable first."""
    return first_part(small), second_part(small), third_part(small)


def first_part(small: bool) -> dict[str, Job]:
    """Return the jobs that tell whether results are right: fragments of matrices, shared tiles, networks."""
    made: dict[str, Job] = {}
    whole, odd = (64, 17) if small else (512, 333)
    for kind in ("bfloat16", "float16", TF32):  # whole tiles of the tensor cores
        made[f"errors/matrices/{kind}"] = product_job(kind, whole, whole, whole)
    made["errors/bytes/int8"] = partial(bytes_error, rows=whole, terms=whole, columns=whole)
    for kind in ("float32", "bfloat16", "float16", TF32):
        made[f"errors/product/{kind}"] = product_job(kind, odd, odd + 8, odd - 2)
        made[f"errors/shared/{kind}"] = product_job(kind, 33, 80 * odd, 40)  # groups share tiles
        made[f"errors/windows/{kind}"] = partial(windows_error, kind=kind)
    for name, kind in ((n, k) for n in ("resnet50", "bert") for k in ("float32", "bfloat16")):
        made[f"errors/{name}/{kind}"] = partial(network_error, name=name, kind=kind, small=small)
    for tool in ("memcheck", "racecheck"):
        made[f"sanitizer/{tool}"] = partial(sanitized, tool=tool)
    return made


def second_part(small: bool) -> dict[str, Job]:
    """Return the times of products, and of ResNet-50 and BERT in float32 and bfloat16."""
    made: dict[str, Job] = {"copy": partial(copied, count=1 << 12 if small else 1 << 26)}
    for size in (16,) if small else (4096, 1024):
        for kind in ("bfloat16", "float32", TF32):
            made[f"products/{size}/{kind}"] = partial(product_time, kind=kind, size=size)
    for kind in ("bfloat16", "float32"):
        made |= timed_networks(BATCHES[:2], kind, small)
    made["launches"] = partial(launch_time, count=60)
    return made


def third_part(small: bool) -> dict[str, Job]:
    """Return all else: steps of training, and other networks, types and sizes."""
    made: dict[str, Job] = {"errors/training/bert/float32": partial(training_error, name="bert", small=True)}
    for name, batch in (("resnet50", 64), ("bert", 32)):
        some = min(batch, 2) if small else batch
        made[f"training/{name}/{batch}"] = partial(training_time, name=name, batch=some, small=small)
    kinds = ("bfloat16", "float32", "float16", TF32)
    for name, _ in BATCHES:
        for kind in kinds:
            made[f"errors/{name}/{kind}"] = partial(network_error, name=name, kind=kind, small=small)
    for kind in (*kinds, BYTES):
        made |= timed_networks(BATCHES, kind, small)
    for size in (33,) if small else (2048, 512, 256, 8192):
        for kind in kinds:
            made[f"products/{size}/{kind}"] = partial(product_time, kind=kind, size=size)
    earlier = {*first_part(small), *second_part(small)}
    return {name: job for name, job in made.items() if name not in earlier}


BATCHES = (
    ("resnet50", (1, 64)), ("bert", (1, 32)), ("mobilenetv2", (1,)), ("squeezenet", (1,)), ("gpt2", (1,)),
)  # fmt: skip
"""Networks, the most valuable first, and the batches that are timed."""


def product_job(kind: str, rows: int, terms: int, columns: int) -> Job:
    return partial(product_error, kind=kind, rows=rows, terms=terms, columns=columns)


def timed_networks(batches: Sequence[tuple[str, Sequence[int]]], kind: str, small: bool) -> dict[str, Job]:
    return {
        f"networks/{name}/{batch}/{kind}": partial(
            network_time, name=name, batch=batch, kind=kind, small=small
        )
        for name, every in batches
        for batch in every
        if batch == 1 or not small
    }


def typed(kind: str) -> str:
    """Return the element type of a kind of numbers."""
    return "float32" if kind == TF32 else kind


def network(name: str, kind: str, batch: int, small: bool) -> onnx.ModelProto:
    """Return one of the networks. Small ones have one layer, or few pixels."""
    kind = typed(kind)
    if not small:
        return NETWORKS[name](kind, batch)
    if name in ("bert", "gpt2"):
        return NETWORKS[name](kind, batch, 8, layers=1, width=64)
    return NETWORKS[name](kind, batch, size=32)


def device(on: Place) -> Found:
    return select(on.device.removeprefix("cuda").removeprefix(":"))


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


def product_error(on: Place, kind: str, rows: int, terms: int, columns: int) -> Row:
    exe = compiled(product(typed(kind), rows, terms, columns), on, kind)
    given = feeds(exe)
    x, y = (v.astype(np.float64) for v in given.values())
    found = worst(exe.run(given), {exe.outputs[0].name: x @ y})
    return {"error": found, "kernel": exe.plan.launches[0].template}


def bytes_error(on: Place, rows: int, terms: int, columns: int) -> Row:
    """Return the error of a product of bytes, whose sums are exact."""
    exe = compiled(product_of_bytes(rows, terms, columns), on, "int8")
    x = np.random.default_rng(0).integers(0, 256, (rows, terms)).astype(np.uint8)
    weights = np.random.default_rng(0).integers(-128, 128, (terms, columns)).astype(np.int64)
    found = worst({"y": np.asarray(exe(x))}, {"y": x.astype(np.int64) @ weights})
    return {"error": found, "kernel": exe.plan.launches[-1].template}


def network_error(on: Place, name: str, kind: str, small: bool) -> Row:
    return error_of(on, network(name, kind, 1, small), network(name, "float64", 1, small), kind)


def windows_error(on: Place, kind: str) -> Row:
    return error_of(on, windows(typed(kind)), windows("float64"), kind)


def error_of(on: Place, model: onnx.ModelProto, in_float64: onnx.ModelProto, kind: str) -> Row:
    """Return the error against the same network in float64 on the processor, with weights that aren't
    rounded."""
    exe, exact = on.compiled((model, on.target, kind), (in_float64, on.reference, "float64"))
    given = feeds(exe)
    want = exact.run({n: v.astype(np.float64) for n, v in given.items()})
    return {"error": worst(exe.run(given), want), "launches": len(exe.plan.launches)}


def sanitized(on: Place, tool: str) -> Row:
    """Run a small network's kernels under NVIDIA's checker."""
    if on.prepares:
        return network_error(on, "squeezenet", "float32", small=True)
    checker = shutil.which("compute-sanitizer")
    if checker is None:
        return {"absent": "compute-sanitizer"}
    own = [*command_at(on), "--small", "--job", "errors/squeezenet/float32"]
    done = subprocess.run(
        [checker, "--tool", tool, "--error-exitcode", "9", *own], capture_output=True, text=True
    )
    return {"exit": done.returncode, "said": done.stdout[-400:]}


# --- times


def device_seconds(exe: Any, given: Mapping[str, np.ndarray]) -> float:
    """Return the seconds of a run's launches, by the device's clock."""
    return sum(launch.seconds for launch in exe.profile(given, REPEATS))


def copied(on: Place, count: int) -> Row:
    """Measure a kernel that reads and writes the same number of bytes."""
    from onnx import TensorProto, helper, numpy_helper

    info = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [count]) for n in "xy"]
    two = numpy_helper.from_array(np.float32(2), "two")
    graph = helper.make_graph([helper.make_node("Mul", ["x", "two"], ["y"])], "g", info[:1], info[1:], [two])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)
    exe = compiled(model, on, "float32")
    seconds = device_seconds(exe, feeds(exe))
    return {"seconds": seconds, "GB/s": 8e-9 * count / seconds, "ceiling": device(on).bandwidth / 1e9}


def product_time(on: Place, kind: str, size: int) -> Row:
    exe = compiled(product(typed(kind), size, size, size), on, kind)
    seconds, flops = device_seconds(exe, feeds(exe)), 2 * size**3
    row = {"seconds": seconds, "TFLOP/s": 1e-12 * flops / seconds}
    label = exe.plan.launches[0].template
    return {**row, "kernel": label, **torch_product(kind, size, seconds)}


def launch_time(on: Place, count: int) -> Row:
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
    exe = compiled(model, on, "float32")
    given, launches = feeds(exe), len(exe.plan.launches)
    whole = run_seconds(lambda: exe.run(given))
    return {
        "launches": launches,
        "run": whole,
        "each": whole / launches,
        "device": device_seconds(exe, given),
    }


def network_time(on: Place, name: str, batch: int, kind: str, small: bool) -> Row:
    """Measure a network beside PyTorch. Both have their input on the device if PyTorch is there."""
    exe = compiled(network(name, kind, batch, small), on, kind)
    given = feeds(exe)
    whole = run_seconds(lambda: exe.run(given))
    row: Row = {
        "run": whole, "device": device_seconds(exe, given), "launches": len(exe.plan.launches),
        "working": exe.working, **joules(lambda: exe.run(given)),
    }  # fmt: skip
    peers = torch_network(name, batch, kind, small, compiled=False)
    if name in ("resnet50", "bert") and kind == "bfloat16" and "PyTorch" in peers:
        peers |= torch_network(name, batch, kind, small, compiled=True)
    theirs = [peers[n] for n in ("PyTorch", "torch.compile") if n in peers]
    ours = ours_on_device(exe, given) if theirs else None
    if ours is not None:
        peers |= {"on device": ours, "of the best": min(theirs) / ours}
    return {**row, **peers}


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


def place(arguments: argparse.Namespace) -> Place:
    target = f"cuda:{arguments.architecture}" if arguments.architecture else arguments.device
    return Place(arguments.device, target, arguments.carried, arguments.prepare)


def command_at(on: Place) -> list[str]:
    """Return the command of this script for a place, without a job."""
    command = [sys.executable, __file__, "--device", on.device, "--carried", on.carried]
    command += ["--architecture", on.target.removeprefix("cuda:")] if on.target != on.device else []
    return [*command, "--prepare"] if on.prepares else command


def command_of(name: str, arguments: argparse.Namespace) -> list[str]:
    small = ["--small"] if arguments.small else []
    return [*command_at(place(arguments)), "--job", name, *small]


def apart(name: str, arguments: argparse.Namespace, left: float) -> Row:
    """Run a job in its own process, for at most `left` seconds. Whatever ends it is stored like a figure, and
    the next call tries the job again."""
    return row_apart(command_of(name, arguments), min(arguments.seconds, left))


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
    parser.add_argument("--part", type=int, choices=(1, 2, 3, 4), help="one part of the jobs alone")
    parser.add_argument("--again", action="store_true", help="do what is done once more")
    parser.add_argument("--small", action="store_true", help="small sizes, for a simulated device")
    parser.add_argument("--architecture", default="", help="the target of models, such as sm_90a")
    parser.add_argument("--carried", default="", help="the folder of kernels that --prepare made")
    parser.add_argument("--prepare", action="store_true", help="make the kernels, for a later call elsewhere")
    parser.add_argument("--save", action="store_true", help="keep the figures in benchmarks/results")
    parser.add_argument("--job", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.prepare and not (arguments.architecture and arguments.carried):
        parser.error("--prepare needs --architecture and --carried")
    if arguments.carried:
        os.environ["JANGIN_CACHE_DIR"] = str(Path(arguments.carried).resolve())
    if arguments.job:
        print(json.dumps(done_here(arguments)))
        return
    if arguments.prepare:
        arguments.json = None
    done = {} if arguments.prepare else kept(arguments.json)
    wanted = [[*part] for part in parts(arguments.small)]
    chosen = wanted if arguments.part is None else wanted[arguments.part - 1 : arguments.part]
    end = time.monotonic() + 60 * arguments.minutes
    for names in chosen:
        measure(names, done, arguments, end)
    if arguments.prepare:
        print(without_models(Path(arguments.carried)))
    elif arguments.save:
        print(section(done).save("cuda"))
    if not arguments.prepare:
        if arguments.part in (None, 4) and "webgpu".startswith(arguments.only):
            subprocess.run(beside_webgpu(arguments, end))
        print(*reading(done), sep="\n")
    failed = [name for name, row in done.items() if "problem" in row]
    sys.exit(f"{len(failed)} of {len(done)} jobs failed: {', '.join(failed)}" if failed else 0)


def beside_webgpu(arguments: argparse.Namespace, end: float) -> list[str]:
    """Return the command that measures WebGPU on the same chip, until the minutes are over. Its networks are
    those whose kernels for CUDA are carried."""
    folder, minutes = arguments.json.with_suffix(".webgpu"), max(0.0, end - time.monotonic()) / 60
    command = [sys.executable, str(Path(__file__).with_name("webgpu.py")), "--folder", str(folder)]
    command += [
        "--on",
        "webgpu",
        place(arguments).target,
        "opencl",
        "--networks",
        *(n for n, _ in BATCHES[:4]),
    ]
    command += ["--minutes", f"{minutes:.3f}", "--seconds", f"{arguments.seconds:g}"]
    command += ["--small"] if arguments.small else []
    return [*command, "--save", "webgpu_gpu"] if arguments.save else command


def done_here(arguments: argparse.Namespace) -> Row:
    """Do a job in this process, or make its kernels."""
    every = {name: job for part in parts(arguments.small) for name, job in part.items()}
    on, start = place(arguments), time.monotonic()
    try:
        return {**every[arguments.job](on), "on": str(device(on))}
    except Prepared:
        return {"prepared": time.monotonic() - start}


def measure(names: list[str], done: dict[str, Row], arguments: argparse.Namespace, end: float) -> None:
    """Run the jobs that are wanted and not done yet, and keep their figures. Errors are found side by
    side."""
    alone = threading.Lock()
    wanted = [name for name in names if name.startswith(arguments.only)]
    again = [name for name in wanted if arguments.again or name not in done or "problem" in done[name]]

    def finish(name: str) -> None:
        left = end - time.monotonic()
        if left <= 0:
            print(f"{name} is left for the next call: the {arguments.minutes:g} minutes are over", flush=True)
            return
        row = apart(name, arguments, left)
        with alone:
            done[name] = row
            if arguments.json is not None:
                keep(arguments.json, done)
            print(name, json.dumps(row), flush=True)

    errors = [name for name in again if name.startswith("errors/")]
    with ThreadPoolExecutor(max(1, (os.cpu_count() or 1) // 2)) as pool:
        list(pool.map(finish, errors))
    for name in again:
        if name not in errors:
            finish(name)


if __name__ == "__main__":
    main()
