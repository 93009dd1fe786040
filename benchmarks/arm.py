"""Count the instructions that emulated Arm and RISC-V processors execute for a run of the benchmark models.

    python benchmarks/arm.py
    python benchmarks/arm.py --target cortex-a7 --models squeezenet1_1,mobilenet_v1 --kernels
    python benchmarks/arm.py --target neoverse-n1 --models mobilenet_v1 --int8

    python benchmarks/arm.py --target neoverse-v1 --models mobilenetv2,resnet50 --precision float16
    python benchmarks/arm.py --peers results.jsonl --write           # keeps the tables in benchmarks/results

Each model is compiled for the target, linked with arm/run.c, and run by QEMU's user mode. The plugin
arm/count.c counts the executed instructions by kind; the counts are the same in every run. The outputs are
compared with those of this machine's own code.

Runs have one thread, batch 1 and float32. `--int8` takes the models of make_quantized.py, and `--precision`
the 16-bit models of make_halves.py.

The script needs Debian's qemu-user, gcc-aarch64-linux-gnu and libc6-dev-arm64-cross. ARMv7 needs
gcc-arm-linux-gnueabihf and libc6-dev-armhf-cross, and RISC-V needs gcc-riscv64-linux-gnu and
libc6-dev-riscv64-cross. `--user-space` is a folder with another qemu/usr/bin/qemu-aarch64. `--peers` is a
file with the counts of other libraries: a JSON object in each line with peer, model, cpu and the total.
"""

from __future__ import annotations

import argparse
import bisect
import json
import shutil
import struct
import subprocess
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from catalogue import CATALOGUE, HALVES, Model, halved, quantized
from sections import Section, Table

import jangin
from jangin.bench.arrays import random_array
from jangin.ir.plan import ALIGN, Plan
from jangin.runtime.artifact import Artifact
from jangin.runtime.layout import Frame, Layout
from jangin.runtime.sizes import Evaluator
from jangin.targets import resolve

SOURCES = Path(__file__).resolve().parent / "arm"
MODELS = ("squeezenet1_1", "mobilenet_v1", "mobilenetv2", "resnet18", "minilm")
KINDS = ("FMA", "other vector", "vector loads", "vector stores", "loads", "stores", "scalar float",
         "branches", "other")  # fmt: skip
"""Kinds of instructions in the order of `count.c`."""

FLOPS = 8
"""Floating-point operations of a multiply-add of a vector of four floats."""
PEERS = {"ncnn": "ncnn", "mnn": "MNN", "armnn": "Arm NN", "litert": "LiteRT", "ort": "ONNX Runtime"}
OTHER_NAMES = {"mobilenet_v2": "mobilenetv2", "minilm_l6": "minilm"}
"""The names of some models in the peers' records."""

Counts = Counter[str]
Values = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Machine:
    """The tools of an architecture: a C compiler, and the names of its user-mode emulator."""

    compiler: str
    flags: tuple[str, ...]
    emulator: str


MACHINES: Mapping[str, Machine] = {
    "aarch64": Machine("aarch64-linux-gnu-gcc", (), "qemu-aarch64"),
    "armv7": Machine("arm-linux-gnueabihf-gcc", ("-marm",), "qemu-arm"),
    "riscv64": Machine("riscv64-linux-gnu-gcc", (), "qemu-riscv64"),
}


@dataclass(frozen=True)
class Run:
    """The instruction counts of one run by function (by the function's address), and the run's outputs."""

    counts: Mapping[str, Counts]
    outputs: Mapping[str, Values]

    @property
    def total(self) -> Counts:
        return sum(self.counts.values(), Counter())


class Bench:
    """Runs compiled models under the emulator. Intermediate files go to `folder`."""

    def __init__(self, folder: Path, user_space: Path | None) -> None:
        self.folder, self.user_space = folder, user_space
        self.plugin = folder / "count.so"
        _call(["gcc", "-O2", "-shared", "-fPIC", "-o", str(self.plugin), str(SOURCES / "count.c")])

    def run(self, artifact: Artifact, inputs: Mapping[str, Values], cpu: str) -> Run:
        machine = MACHINES[artifact.plan.target.split("-")[0]]
        program, image = self.folder / "program", self.folder / "image"
        link(artifact, program)
        places = write_image(artifact.plan, inputs, image)
        counted, outputs = self.folder / "counted", self.folder / "outputs"
        counted.unlink(missing_ok=True)
        plugin = ["-plugin", f"{self.plugin},out={counted}"]
        self._emulate(machine, [*plugin, "-cpu", cpu, str(program), str(image), str(outputs)])
        regions = counted.read_text().split("region\n")
        found = by_function(regions[-1], symbols(program))
        return Run(found, read_outputs(artifact.plan, places, outputs.read_bytes()))

    def _emulate(self, machine: Machine, arguments: Sequence[str]) -> None:
        root = self.user_space / "qemu" / "usr" if self.user_space else Path("/usr")
        program = root / "bin" / machine.emulator
        if not program.is_file():
            raise SystemExit(f"{program} is missing: install Debian's qemu-user, or give --user-space")
        libraries = {"LD_LIBRARY_PATH": str(root / "lib" / "x86_64-linux-gnu")} if self.user_space else {}
        subprocess.run([str(program), *arguments], check=True, env=libraries)


def link(artifact: Artifact, program: Path) -> None:
    """Link a model's objects and run.c to a program for the objects' machine."""
    machine, objects = MACHINES[artifact.plan.target.split("-")[0]], list[str]()
    for n, code in enumerate(artifact.objects):
        objects.append(f"{program}.{n}.o")
        Path(objects[-1]).write_bytes(code)
    flags = [*machine.flags, "-O1", "-static", "-no-pie", "-pthread", "-o", str(program)]
    _call([machine.compiler, *flags, str(SOURCES / "run.c"), *objects, "-lm"])


def _call(command: Sequence[str]) -> str:
    if shutil.which(command[0]) is None:
        raise SystemExit(f"{command[0]} is missing; Debian has it in a package of its name")
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{command[0]} failed:\n{done.stderr}")
    return done.stdout


@dataclass(frozen=True)
class Places:
    """The position of each output in the written bytes, and its shape."""

    outputs: Mapping[str, tuple[int, tuple[int, ...]]]


def write_image(plan: Plan, inputs: Mapping[str, Values], path: Path) -> Places:
    """Write the memory of a run for `run.c`: constants, inputs, outputs, arena and scratch memory."""
    layout = Layout(Frame(plan), (), Evaluator({}))
    at, offsets, contents, places = 0, dict[str, int](), list[tuple[int, bytes]](), dict[str, Any]()

    def place(name: str, size: int) -> int:
        nonlocal at
        offsets[name], at = at, at + -(-max(size, 1) // ALIGN) * ALIGN
        return offsets[name]

    for name, array in (*plan.constants.items(), *inputs.items()):
        contents.append((place(name, array.nbytes), np.ascontiguousarray(array).tobytes()))
    given = start = at
    for name, shape, dtype in layout.outputs:
        places[name] = place(name, int(np.prod(shape)) * dtype.itemsize) - start, shape
    written = at - start
    arena = place("arena ", layout.placement.arena)
    offsets |= {n: arena + offset for n, offset in layout.placement.offsets.items()}
    scratch = place("scratch ", layout.stride)
    table = [offsets[b.base if b.kind == "alias" else b.name] for b in plan.buffers]
    head = (len(table), 0, at, given, scratch, layout.stride, start, written)
    memory = bytearray(given)
    for offset, data in contents:
        memory[offset : offset + len(data)] = data
    path.write_bytes(struct.pack(f"<{len(head) + len(table)}q", *head, *table) + memory)
    return Places(places)


def read_outputs(plan: Plan, places: Places, data: bytes) -> dict[str, Values]:
    types = {b.name: b.dtype.numpy for b in plan.buffers}
    return {
        name: np.frombuffer(data, types[name], int(np.prod(shape)), at).reshape(shape)
        for name, (at, shape) in places.outputs.items()
    }


def symbols(program: Path) -> list[tuple[int, str]]:
    """Return the functions of a program with their addresses."""
    lines = _call(["nm", "-n", str(program)]).splitlines()
    found = (line.split() for line in lines)
    return [
        (int(f[0], 16), f[2].split(".")[0]) for f in found if len(f) == 3 and f[1] in "tT" and f[2][0] != "$"
    ]


def by_function(region: str, functions: Sequence[tuple[int, str]]) -> dict[str, Counts]:
    """Return the counts of a region's basic blocks, summed by function."""
    starts, counts = [a for a, _ in functions], dict[str, Counts]()
    for line in region.splitlines():
        address, runs, *kinds = line.split()
        name = functions[bisect.bisect_right(starts, int(address, 16)) - 1][1]
        own = counts.setdefault(name, Counter())
        for kind, number in zip(KINDS, kinds, strict=True):
            own[kind] += int(runs) * int(number)
    return counts


def inputs_of(artifact: Artifact) -> dict[str, Values]:
    rng = np.random.default_rng(0)
    buffers = {b.name: b for b in artifact.plan.buffers}
    return {
        n: random_array(rng, buffers[n].dtype.numpy, Evaluator({}).shape(buffers[n].shape), "mask" in n)
        for n in artifact.plan.inputs
    }


def emulated(target: str) -> str:
    """Return the processor that QEMU emulates for a target."""
    if target == "riscv64-v":
        return "rv64,v=true,vlen=128,vext_spec=v1.0"
    cpu = resolve(target).cpu
    return {"generic": "max", "neoverse-v1": "max", "generic-rv64": "rv64"}.get(cpu, cpu)


def build(model: Model, target: str) -> Artifact:
    made = jangin.build(str(model.path), target, 1, dict(model.sizes) or None, cache=False)
    assert isinstance(made, Artifact)
    return made


def report(run: Run, plan: Plan) -> str:
    """Return millions of instructions by kernel, largest first: the total, the least multiply-adds of its
    sums, and each kind."""
    lines = ["   total    sums | " + " ".join(f"{k[:7]:>7}" for k in KINDS)]
    for name, counts in sorted(run.counts.items(), key=lambda c: -c[1].total()):
        if counts.total() * 1000 < run.total.total():
            continue
        own = [launch for launch in plan.launches if launch.function == name]
        sums = sum(Evaluator({})(launch.flops) for launch in own) / FLOPS
        kinds = " ".join(f"{counts[k] / 1e6:7.2f}" for k in KINDS)
        made = f"{len(own)} x {own[0].template} | {str(own[0].sources)[:50]}" if own else name
        lines.append(f"{counts.total() / 1e6:8.2f} {sums / 1e6:7.2f} | {kinds} | {made}")
    return "\n".join(lines)


def largest_error(run: Run, model: Model, inputs: Mapping[str, Values]) -> float:
    """Return the largest difference to the results of this machine's own code, as a share of the largest
    value."""
    here = jangin.compile(str(model.path), threads=1, shapes=dict(model.sizes) or None)
    expected = here(*inputs.values())
    several = expected.values() if isinstance(expected, dict) else (expected,)
    found = zip(run.outputs.values(), several, strict=True)
    return max(float(np.abs(a - b).max() / np.abs(b).max()) for a, b in found)


@dataclass(frozen=True)
class Measured:
    """A model's counts, the least multiply-adds of its sums, and its largest error."""

    counts: Counts
    sums: float
    error: float

    @property
    def total(self) -> float:
        return self.counts.total() / 1e6


def peer_totals(path: Path | None, cpu: str) -> dict[str, dict[str, float]]:
    """Return millions of instructions by peer and model."""
    found: dict[str, dict[str, float]] = {}
    for line in path.read_text().splitlines() if path else ():
        record = json.loads(line)
        name = OTHER_NAMES.get(record["model"], record["model"])
        if record.get("cpu") == cpu and record["peer"] in PEERS and record.get("total"):
            found.setdefault(record["peer"], {})[name] = record["total"] / 1e6
    return found


def section(
    target: str, measured: Mapping[str, Measured], peers: Mapping[str, Mapping[str, float]]
) -> Section:
    """Return the section with the instruction counts of a target."""
    totals, kinds = [], []
    for name, m in measured.items():
        title = CATALOGUE[name].title
        others = (f"{found[name]:.1f}" if name in found else "–" for found in peers.values())
        totals.append([title, f"{m.total:.1f}", *others])
        counts = (f"{m.counts[k] / 1e6:.1f}" for k in KINDS)
        kinds.append([title, f"{m.sums:.1f}", *counts, f"{m.error:.0e}"])
    parts = [
        f"Made by `python benchmarks/arm.py --target {target}`: millions of instructions that one run "
        "executes under QEMU (batch 1, one thread, single precision), counted by a plugin. No times.",
        Table(["model", "Jangin", *(PEERS[p] for p in peers)], totals),
        "Jangin's by kind. *Sums*: the vector multiply-adds of all products as they stand (by Winograd's "
        "method, where that is used); *error*: the largest difference to this machine's own code, as a "
        "share of the largest value.",
        Table(["model", "sums", *KINDS, "error"], kinds),
    ]
    return Section(f"Instructions on {target}", parts)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--target", default="cortex-a72")
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--user-space", type=Path)
    parser.add_argument("--int8", action="store_true", help="the models' int8 twins; not written")
    parser.add_argument("--precision", choices=HALVES, help="the models' twins of 16 bits; not written")
    parser.add_argument("--kernels", action="store_true", help="counts by kernel too")
    parser.add_argument("--peers", type=Path)
    parser.add_argument("--write", action="store_true", help="keep the tables in benchmarks/results")
    args = parser.parse_args()
    measured: dict[str, Measured] = {}
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(Path(folder), args.user_space)
        for name in args.models.split(","):
            model = CATALOGUE[name]
            if args.int8 or args.precision:
                model = halved(model, args.precision) if args.precision else quantized(model)
            artifact = build(model, args.target)
            inputs = inputs_of(artifact)
            run = bench.run(artifact, inputs, emulated(args.target))
            sums = sum(Evaluator({})(launch.flops) for launch in artifact.plan.launches) / FLOPS / 1e6
            made = measured[name] = Measured(run.total, sums, largest_error(run, model, inputs))
            if args.kernels:
                print(report(run, artifact.plan))
            kinds = ", ".join(f"{k} {n / 1e6:.1f}" for k, n in run.total.most_common())
            print(f"{name} {made.total:.1f} (sums {sums:.1f}): {kinds}; error {made.error:.1e}", flush=True)
    if args.write and not (args.int8 or args.precision):
        section(args.target, measured, peer_totals(args.peers, args.target)).save(args.target)


if __name__ == "__main__":
    main()
