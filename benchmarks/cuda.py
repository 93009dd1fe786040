"""Measure an NVIDIA GPU: errors, bandwidth, products, networks and launches. The most valuable figures come
first.

    python3 benchmarks/cuda.py --prepare --architecture sm_90a --carried kernels    # before, without a GPU
    python3 benchmarks/cuda.py --minutes 7 --json cuda.json [--architecture sm_90a --carried kernels]

Other options are --device cuda:0, --only products and --part 1. The second command is the one to run first
where a GPU is. It needs NumPy, onnx, llvmlite and NVRTC, which PyTorch's packages have, and no network. Each
job runs in a process of its own, so that a crash or a hang stops no other. It ends after --seconds, or when
--minutes are over. Figures are written as soon as a job ends, and a second call continues from there.

Errors are found side by side, which also compiles the networks. Times are taken one after the other. The jobs
are in five parts of at most 3 minutes. Jobs that don't begin or end within their part follow behind the last
part.

With --prepare all kernels are made for an architecture, without a device, and kept in a folder. The jobs then
find them there and compile none. The machines may have other versions of llvmlite, NumPy and onnx.

A sixth part measures WebGPU by benchmarks/webgpu.py, beside CUDA and OpenCL on the same chip. Its results
lie in a folder beside the figures.

The last lines say what to read, with every bar beside its figure. Networks and weights are made from a seed.
`--small` takes sizes for a simulated device. A job says "absent" if its peer isn't there: PyTorch, JAX,
Triton, cuBLASLt, cuDNN, TensorRT, ONNX Runtime's provider for CUDA, or NVIDIA's compute-sanitizer.
"""

from __future__ import annotations

if __name__ == "cuda":
    # PyTorch looks for NVIDIA's package of this name, and a script beside this file would give it this one
    raise ImportError("benchmarks/cuda.py is a program, not NVIDIA's package")

import argparse
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from apart import row_apart
from cuda_bars import reading
from cuda_jobs import BATCHES, parts
from cuda_peers import Row
from cuda_place import Place, Prepared, as_prepared, unpack, without_models
from cuda_work import device
from sections import Section, Table

# NVIDIA's package `cuda` comes before this file
sys.path.append(sys.path.pop(sys.path.index(str(Path(__file__).parent))))

SECONDS = 150
"""The most seconds of a job. A GPU may be available for minutes only."""
MINUTES, DAY = 60, 24 * 60
"""The most minutes of a measurement, and of making all kernels before."""
PART = 180
"""The most seconds of a part. The jobs that it leaves follow behind the last part."""


# --- the whole measurement


def kept(path: Path) -> dict[str, Row]:
    rows: dict[str, Row] = json.loads(path.read_text()) if path.exists() else {}
    return rows


def keep(path: Path, done: Mapping[str, Row]) -> None:
    """Write the figures to a new file, and rename it. An interruption leaves the last file whole."""
    unfinished = path.with_suffix(".part")
    unfinished.write_text(json.dumps(done, indent=1))
    unfinished.replace(path)


def place(arguments: argparse.Namespace) -> Place:
    target = f"cuda:{arguments.architecture}" if arguments.architecture else arguments.device
    return Place(arguments.device, target, arguments.carried, arguments.prepare)


def command_of(name: str, arguments: argparse.Namespace) -> list[str]:
    small = ["--small"] if arguments.small else []
    return [*place(arguments).command, "--job", name, *small]


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
    parser.add_argument("--seconds", type=float, help=f"of a job at most ({SECONDS}, a day to prepare)")
    parser.add_argument("--minutes", type=float, help="after which no job begins (60, a day to prepare)")
    parser.add_argument("--part", type=int, choices=range(1, 7), help="one part of the jobs alone")
    parser.add_argument("--again", action="store_true", help="do what is done once more")
    parser.add_argument("--small", action="store_true", help="small sizes, for a simulated device")
    parser.add_argument("--architecture", default="", help="the target of models, such as sm_90a")
    parser.add_argument("--carried", default="", help="the folder of kernels that --prepare made")
    parser.add_argument("--prepare", action="store_true", help="make the kernels, for a later call elsewhere")
    parser.add_argument("--save", action="store_true", help="keep the figures in benchmarks/results")
    parser.add_argument("--job", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    for name, value, most in (("seconds", SECONDS, 60 * DAY), ("minutes", MINUTES, DAY)):
        if getattr(arguments, name) is None:  # no GPU waits for kernels that are made before
            setattr(arguments, name, most if arguments.prepare else value)
    if arguments.prepare and not (arguments.architecture and arguments.carried):
        parser.error("--prepare needs --architecture and --carried")
    if arguments.carried:
        os.environ["JANGIN_CACHE_DIR"] = str(Path(arguments.carried).resolve())
        if not arguments.job:
            unpack(Path(arguments.carried))
        as_prepared(Path(arguments.carried), arguments.prepare)
    if arguments.job:
        print(json.dumps(done_here(arguments)))
        return
    if arguments.prepare:
        arguments.json = None
    done = {} if arguments.prepare else kept(arguments.json)
    wanted = [[*part] for part in parts(arguments.small)]
    chosen = wanted if arguments.part is None else wanted[arguments.part - 1 : arguments.part]
    end, left = time.monotonic() + 60 * arguments.minutes, list[str]()
    for names in chosen:
        part = end if arguments.prepare else min(end, time.monotonic() + PART)
        left += measure(names, done, arguments, part)
    for name in measure(left, done, arguments, end):
        print(f"{name} is left for the next call: the {arguments.minutes:g} minutes are over", flush=True)
    if arguments.prepare:
        print(without_models(Path(arguments.carried)))
    elif arguments.save:
        print(section(done).save("cuda"))
    if not arguments.prepare:
        if arguments.part in (None, len(wanted) + 1) and "webgpu".startswith(arguments.only):
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
        row = every[arguments.job](on)
        return row if on.prepares else {**row, "on": str(device(on))}
    except Prepared:
        return {"prepared": time.monotonic() - start}


def measure(names: list[str], done: dict[str, Row], arguments: argparse.Namespace, end: float) -> list[str]:
    """Run the jobs that are wanted and not done yet, until `end`, and keep their figures. Return the names of
    those that are left, or that the end cut. Errors are found side by side."""
    alone, left = threading.Lock(), list[str]()
    wanted = [name for name in names if name.startswith(arguments.only)]
    again = [name for name in wanted if arguments.again or name not in done or "problem" in done[name]]

    def finish(name: str) -> None:
        seconds = end - time.monotonic()
        if seconds <= 0:
            left.append(name)
            return
        row = apart(name, arguments, seconds)
        with alone:
            if "problem" in row and time.monotonic() >= end and seconds < arguments.seconds:
                left.append(name)
                return
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
    return left


if __name__ == "__main__":
    main()
