"""The OpenCL C back end: one program for each kernel, built for the device if it is here.

A single program for all of a plan's kernels takes as long to build and load. But several processes couldn't
build it at once, and no other model could share a part of it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

from jangin.backends.backend import Kernel
from jangin.backends.clike.module import emit_kernels, exported
from jangin.backends.opencl.check import require_right
from jangin.backends.opencl.dialect import OpenCL
from jangin.backends.opencl.groups import GroupedOpenCL
from jangin.backends.types import require_types
from jangin.ir.graph import CompileError
from jangin.ir.loop import Func
from jangin.ir.plan import Plan
from jangin.passes.table import GPU_PASSES, GRAPH_PASSES, Pass
from jangin.runtime.device import LoadError
from jangin.runtime.devices.opencl_devices import of_target
from jangin.runtime.devices.opencl_programs import Built, build_program, load_kernel
from jangin.runtime.devices.products import packed
from jangin.targets.target import Target
from jangin.templates.choose import TEMPLATES, Match
from jangin.templates.gpu.table import TEMPLATES as GPU_TEMPLATES

DIALECT = OpenCL()
GROUPED = GroupedOpenCL()


def source(func: Func, target: Target) -> str:
    """Return the OpenCL C program of one kernel."""
    return emit_kernels([func], target, GROUPED if target.groups else DIALECT)


class OpenCLBackend:
    """See `backends.backend.Backend`. A kernel's code is its program's source, with the binary that the
    device's driver built."""

    libraries, forks = ("clblast",), False

    forms: Mapping[str, Callable[[Func, Target], str]] = MappingProxyType({"opencl": source})

    def templates(self, target: Target) -> Mapping[str, Match]:
        return GPU_TEMPLATES if target.groups else TEMPLATES

    def passes(self, target: Target) -> Sequence[Pass]:
        return [*(GPU_PASSES if target.groups else GRAPH_PASSES), Pass("types", require_types)]

    def code(self, kernel: Kernel, target: Target, written: Callable[[], object]) -> bytes:
        product, ours = b"", kernel.func
        if kernel.call is not None:
            product = packed(kernel.call.product)
            if kernel.call.rest is None:
                written()
                return Built(kernel.function or ours.name, b"", product=product).packed
            ours = kernel.call.rest
        func = replace(ours, name=kernel.function or kernel.func.name)
        text = source(func, target).encode()
        written()
        try:
            device = of_target(str(target))
        except LoadError:  # whoever loads it builds it
            return Built(exported(func), text, product=product).packed
        try:
            program = build_program(device, text)
        except LoadError as error:
            raise CompileError(f"{kernel.func.name}: {error}") from error
        built = Built(exported(func), text, program.binary())
        if not device.known:
            require_right(load_kernel(device, built, same=True), device, ours)
        return replace(built, product=product).packed

    def runner(self, plan: Plan, target: Target) -> tuple[bytes, ...]:
        return ()

    def made_by(self) -> str:
        return ""

    def flow(self, target: Target) -> bytes:
        return b""


BACKEND = OpenCLBackend()
