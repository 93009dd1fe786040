"""Exact models on other machines' processors, under QEMU's user mode, with all memory of a run guarded. For
machines that nothing here runs, models are only planned.

Debian's packages: qemu-user-static, gcc-aarch64-linux-gnu, gcc-arm-linux-gnueabihf and
gcc-riscv64-linux-gnu."""

from __future__ import annotations

import math
import struct
import subprocess
import tempfile
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from exact_runs import Case, Skipped, differs
from guarded import UNTOUCHED, placed_apart
from onnx_nets import Array, numpy_type

import jangin
from jangin.compiler.pipeline import plan_model
from jangin.ir.plan import ALIGN, Plan
from jangin.options import Options
from jangin.runtime.artifact import Artifact
from jangin.runtime.layout import Frame, Layout
from jangin.runtime.sizes import Evaluator
from jangin.targets import NAMED

RUN_C = Path(__file__).resolve().parents[2] / "benchmarks" / "arm" / "run.c"
_V = "rv64,v=true,vlen={},vext_spec=v1.0"
MACHINES = {
    "aarch64": ("aarch64-linux-gnu-gcc", "qemu-aarch64-static", "cortex-a53"),
    "neoverse-n1": ("aarch64-linux-gnu-gcc", "qemu-aarch64-static", "neoverse-n1"),
    "neoverse-v1": ("aarch64-linux-gnu-gcc", "qemu-aarch64-static", "max"),
    "cortex-a7": ("arm-linux-gnueabihf-gcc", "qemu-arm-static", "cortex-a7"),
    "riscv64-v": ("riscv64-linux-gnu-gcc", "qemu-riscv64-static", _V.format(128)),
}


UNTRANSLATED = "decode_save_opc: Assertion"
"""QEMU 7.2 ends with this message at RISC-V's vector conversions from float to integer that don't round."""


@cache
def _main(compiler: str) -> bytes:
    """Compile run.c. It calls a model's entry with the memory in a file, and writes the memory after the call
    to another."""
    with tempfile.TemporaryDirectory() as folder:
        made = Path(folder) / "run.o"
        arm = ["-marm"] if compiler.startswith("arm-") else []
        subprocess.run([compiler, *arm, "-O1", "-c", RUN_C, "-o", made], check=True, timeout=600)
        return made.read_bytes()


def emulated(target: str, case: Case) -> list[str]:
    """Run a plan of known sizes in QEMU, twice with the same memory, and return the faults in its results and
    guards."""
    compiler, emulator, processor = MACHINES[target]
    artifact = jangin.build(case.model, target, 1, case.shapes, winograd=False, cache=False, isolated=False)
    if not isinstance(artifact, Artifact) or not artifact.plan.is_static:
        raise Skipped
    (run,) = case.runs
    image = Image(artifact.plan, run.feeds)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for n, code in enumerate((_main(compiler), *artifact.objects)):
            (folder / f"{n}.o").write_bytes(bytes(code))
        objects = sorted(folder.glob("*.o"))
        linked = [compiler, "-static", "-no-pie", "-pthread", "-o", folder / "program", *objects, "-lm"]
        subprocess.run(linked, check=True, timeout=600)
        (folder / "image").write_bytes(image.file)
        command = [emulator, "-cpu", processor, folder / "program", folder / "image", folder / "after"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=600)
        if UNTRANSLATED in done.stderr:
            raise Skipped
        if done.returncode:
            return [f"the program ended with {done.returncode}: {done.stderr[-300:]}"]
        after = np.fromfile(folder / "after", np.uint8)
    results = (
        (n, image.read(after, n, numpy_type(run.wanted[n].dtype)), run.wanted[n]) for n in case.outputs
    )
    return [*(d for n, y, w in results if (d := differs(n, y.reshape(w.shape), w))), *image.faults(after)]


def planned(case: Case) -> list[str]:
    """Check that each kernel has a schedule for one of all targets."""
    name = list(NAMED)[case.number % len(NAMED)]
    try:
        plan_model(case.model, Options(NAMED[name], case.shapes or {}, winograd=False, verify=True))
    except Exception as error:
        return [f"for {name}: {type(error).__name__}: {error}"]
    return []


class Image:
    """All memory of a run in the form that `run.c` reads, with guards between any two buffers."""

    def __init__(self, plan: Plan, feeds: Mapping[str, Array]) -> None:
        layout, self.plan = Layout(Frame(plan), (), Evaluator({})), plan
        given = {**plan.constants, **feeds}
        sizes = {n: a.nbytes for n, a in given.items()}
        sizes |= {
            b.name: b.dtype.bytes * math.prod(layout.shapes[b.name])
            for b in plan.buffers
            if b.kind in ("output", "arena")
        }
        sizes["scratch "] = layout.stride
        self.sizes, self.places = sizes, placed_apart(list(sizes.items()), ALIGN)
        memory = np.full(self.places.arena, UNTOUCHED, np.uint8)
        for name, array in given.items():
            self._part(memory, name)[:] = np.frombuffer(np.ascontiguousarray(array).tobytes(), np.uint8)
        self.base = {b.name: b.base if b.kind == "alias" else b.name for b in plan.buffers}
        table = [self.places.offsets[base] for base in self.base.values()]
        whole = len(memory)
        head = (len(table), 0, whole, whole, self.places.offsets["scratch "], layout.stride, 0, whole)
        self.file = struct.pack(f"<{len(head) + len(table)}q", *head, *table) + memory.tobytes()

    def _part(self, memory: Array, name: str) -> Array:
        start = self.places.offsets[name]
        return memory[start : start + self.sizes[name]]

    def read(self, memory: Array, name: str, dtype: np.dtype[Any]) -> Array:
        return self._part(memory, self.base[name]).view(dtype)

    def faults(self, memory: Array) -> list[str]:
        names = sorted(self.sizes, key=lambda n: self.places.offsets[n])
        ends = {self.places.offsets[n] + self.sizes[n]: n for n in names}
        written = ((a, int((memory[a:b] != UNTOUCHED).sum())) for a, b in self.places.gaps)
        return [f"{count} bytes written behind {ends.get(at, at)}" for at, count in written if count]
