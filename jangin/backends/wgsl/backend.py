"""The WGSL back end. Each kernel becomes the text of a compute shader, which any WebGPU implementation
compiles."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

from jangin.backends.backend import Kernel
from jangin.backends.types import require_types
from jangin.backends.wgsl.module import shader, source
from jangin.ir.loop import Func
from jangin.ir.plan import Plan
from jangin.passes.table import GPU_PASSES, Pass
from jangin.targets.target import Target
from jangin.templates.choose import Match
from jangin.templates.gpu.table import TEMPLATES


class WgslBackend:
    """See `backends.backend.Backend`. A kernel's code is its shader (`runtime.devices.wgsl`)."""

    libraries, forks = (), True

    forms: Mapping[str, Callable[[Func, Target], str]] = MappingProxyType({"wgsl": source})

    def templates(self, target: Target) -> Mapping[str, Match]:
        return TEMPLATES

    def passes(self, target: Target) -> Sequence[Pass]:
        return [*GPU_PASSES, Pass("types", require_types)]

    def code(self, kernel: Kernel, target: Target, written: Callable[[], object]) -> bytes:
        program = shader(kernel.func, target, kernel.function or kernel.func.name)
        written()
        return program.packed

    def runner(self, plan: Plan, target: Target) -> tuple[bytes, ...]:
        return ()

    def made_by(self) -> str:
        return ""

    def flow(self, target: Target) -> bytes:
        return b""


BACKEND = WgslBackend()
