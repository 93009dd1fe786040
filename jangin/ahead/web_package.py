"""A plan in the form that the loader of a package for WebGPU needs: all sizes are numbers, and launches have
their bindings and shaders."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from jangin.ahead.model import Model, Tensor
from jangin.ahead.web_shaders import united
from jangin.backends.wgsl.module import shader
from jangin.ir.graph import Array, CompileError
from jangin.ir.plan import Launch, Plan
from jangin.runtime.devices.queued_faults import named
from jangin.runtime.devices.wgsl import (
    ALIGNMENT,
    ENABLED,
    Bindings,
    Range,
    Shader,
    bind,
    extent,
    launch_numbers,
    rows,
)
from jangin.runtime.layout import Frame, Layout
from jangin.runtime.sizes import Evaluator
from jangin.targets.webgpu import WEBGPU

MOST_BUFFERS = 8
"""The buffers that every device gives a shader, by WebGPU's standard."""
MOST_BYTES = 128 << 20
"""The bytes that every device allows for a binding, by WebGPU's standard."""
UNITS = 32
"""The most groups with scratch memory of their own. The package doesn't know how many groups a device runs at
a time."""
MARK = "//# "
"""The beginning of the line before each shader."""
ARRAYS = {
    "f32": "Float32Array", "i8": "Int8Array", "i16": "Int16Array", "i32": "Int32Array",
    "i64": "BigInt64Array", "u8": "Uint8Array", "u16": "Uint16Array", "u32": "Uint32Array",
    "u64": "BigUint64Array", "f16": "Uint16Array", "bf16": "Uint16Array",
}  # fmt: skip
"""JavaScript's array classes by element type. Other types are arrays of bytes."""


class Package:
    """A plan of known sizes in the form that the loader needs.

    - `shaders` has the shaders' texts by name. Names begin with `prefix`.
    - `by_launch` has the loader's launches for each of the plan's."""

    def __init__(self, plan: Plan, prefix: str = "k") -> None:
        self.plan, self._prefix = plan, prefix
        self.layout = Layout(Frame(plan, ALIGNMENT), (), Evaluator({}))
        self.shaders: dict[str, str] = {}
        self._made: dict[str, Shader] = {}
        self._named: dict[tuple[str, Bindings], str] = {}
        self._programs: dict[str, tuple[Shader, Bindings]] = {}
        self.blocks: list[list[tuple[int, Array]]] = []  # blocks of weights, with the offset of each array
        self.buffers: dict[str, int] = {}
        self.places = self._placed()
        self.by_launch = [[*self._launched(launch)] for launch in plan.launches]
        self.launches = self._all_launches()

    # --- memory

    def _placed(self) -> dict[str, Range]:
        """Return the memory of each buffer of the plan."""
        places: dict[str, Range] = {}
        for b in self.plan.buffers:
            size = math.prod(self.layout.shapes[b.name]) * b.dtype.bytes
            if b.kind == "arena":
                places[b.name] = Range("arena", size, self.layout.placement.offsets[b.name])
            elif b.kind == "constant":
                places[b.name] = self._constant(b.name, size)
            elif b.kind != "alias":
                places[b.name] = Range(f"{b.kind} {b.name}", size)
                self.buffers[f"{b.kind} {b.name}"] = rows(size)
        for b in self.plan.buffers:
            if b.kind == "alias":
                size = math.prod(self.layout.shapes[b.name]) * b.dtype.bytes
                base = places[b.base]
                places[b.name] = Range(base.handle, size, base.start)
        self.buffers["arena"] = rows(max([p.end for p in places.values() if p.handle == "arena"], default=0))
        for n, block in enumerate(self.blocks):
            self.buffers[f"weights {n}"] = rows(block[-1][0] + block[-1][1].nbytes)
        return places

    def _constant(self, name: str, size: int) -> Range:
        array = np.ascontiguousarray(self.plan.constants[name]).reshape(-1).view(np.uint8)
        last = self.blocks[-1] if self.blocks else []
        at = -(-(last[-1][0] + last[-1][1].nbytes) // ALIGNMENT) * ALIGNMENT if last else 0
        if not last or at + size > MOST_BYTES:
            self.blocks.append([])
            at = 0
        self.blocks[-1].append((at, array))
        return Range(f"weights {len(self.blocks) - 1}", size, at)

    def weights(self) -> Iterator[Array]:
        """Yield the contents of all blocks, one after the other. Each block is padded to whole rows."""
        for block in self.blocks:
            end = 0
            for at, array in block:
                yield np.zeros(at - end, np.uint8)
                yield array
                end = at + array.nbytes
            yield np.zeros(rows(end) - end, np.uint8)

    # --- launches

    def data(self, model: Model) -> dict[str, Any]:
        """Return the loader's data."""
        return {
            "buffers": self.buffers,
            "weights": [self.buffers[f"weights {n}"] for n in range(len(self.blocks))],
            "inputs": [self._tensor(t, n) for t, n in zip(model.inputs, self.plan.inputs, strict=True)],
            "outputs": [self._tensor(t, n) for t, n in zip(model.outputs, self.plan.outputs, strict=True)],
            "checks": [self._check(n) for n in range(len(self.plan.checks))],
            "launches": self.launches,
        }

    def _tensor(self, tensor: Tensor, name: str) -> dict[str, Any]:
        place, shape = self.places[name], self.layout.shapes[name]
        array = ARRAYS.get(tensor.dtype.name, "Uint8Array")
        return {
            "name": tensor.name, "dtype": tensor.dtype.name, "shape": list(shape), "array": array,
            "buffer": place.handle, "at": place.start, "bytes": place.size,
        }  # fmt: skip

    def _check(self, n: int) -> dict[str, Any]:
        check = self.plan.checks[n]
        place, sizes = self.places[check.buffer], [self.layout.value(e) for e in check.sizes]
        low = [-n if check.from_end else 0 for n in sizes]
        ranges = ", or ".join(f"{a} to {b - 1}" for a, b in zip(low, sizes, strict=True))
        return {"source": str(check.source), "range": ranges, "buffer": place.handle, "at": place.start}

    def _all_launches(self) -> list[dict[str, Any]]:
        """Return all launches. Shaders that differ only in integers become one."""
        launches = [one for group in self.by_launch for one in group]
        self.shaders, places = united(self.shaders)
        for launch in launches:
            common = places[launch["shader"]]
            launch["shader"] = common.name
            launch["numbers"] += common.added
        for name, text in [*self.shaders.items()]:
            made, bindings = self._programs[name]
            for features in made.forms(bindings):
                enabled = "".join(f"enable {ENABLED[f]};\n" for f in features)
                form = made.form(text, bindings, features)
                self.shaders["+".join((name, *features))] = enabled + form
        return launches

    def _launched(self, launch: Launch) -> Iterator[dict[str, Any]]:
        """Yield a launch once for each round."""
        value = self.layout.value
        tasks, rounds = value(launch.tasks), value(launch.rounds)
        if not tasks:
            return
        program = self._shader(launch)
        groups = min(tasks, UNITS) if program.scratch else tasks
        if not launch.local:
            grain = value(launch.grain)
            groups = min(groups, max(1, tasks // grain) if grain else 1, 4 * UNITS)
        memory = [self.places[name] for name in launch.args]
        if program.scratch:
            size = rows(self.layout.stride * groups)
            self.buffers["scratch"] = max(size, self.buffers.get("scratch", 0))
            memory.append(Range("scratch", size))
        try:
            bindings, starts, parts = bind(memory, MOST_BUFFERS, MOST_BYTES)
        except ValueError as error:
            raise CompileError(f"{named(launch)}: {error}") from error
        begin = zip(program.memories, memory, starts, strict=True)
        told = {f"o{m}": (r.start - start) // 4 for m, r, start in begin}
        told |= {f"s{n}": value(e) for n, e in enumerate(launch.symbols)}
        alone = groups == 1 and not launch.local
        name = self._text(program, bindings)
        for turn in range(1 if alone else rounds):
            numbers = launch_numbers(tasks, groups, self.layout.stride, turn, rounds if alone else 1)
            yield {
                "shader": name, "nodes": str(launch.sources), "groups": extent(groups),
                "bindings": [[p.handle, p.start, rows(p.size)] for p in parts],
                "numbers": program.values({**told, **numbers}),
            }  # fmt: skip

    def _shader(self, launch: Launch) -> Shader:
        if launch.function not in self._made:
            func = self.plan.kernels[launch.kernel]
            self._made[launch.function] = shader(func, WEBGPU, launch.function)
        return self._made[launch.function]

    def _text(self, made: Shader, bindings: Bindings) -> str:
        """Return the name of a kernel's shader with these bindings, and store the shader."""
        key = made.kernel, bindings
        if key not in self._named:
            name = self._named[key] = f"{self._prefix}{len(self._named)}"
            self.shaders[name], self._programs[name] = made.text(bindings), (made, bindings)
        return self._named[key]
