"""The CUDA C back end. NVRTC compiles each kernel, on machines without a GPU too."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

from jangin.backends.backend import Kernel
from jangin.backends.clike.module import emit_kernels, exported
from jangin.backends.cuda import nvrtc
from jangin.backends.cuda.dialect import Cuda, asked_shared
from jangin.ir.graph import CompileError
from jangin.ir.loop import Func
from jangin.ir.plan import Plan
from jangin.passes.table import GPU_PASSES, Pass
from jangin.runtime.devices.cuda_code import Built
from jangin.runtime.devices.cuda_library import driver_version
from jangin.runtime.devices.products import packed
from jangin.targets.target import Target
from jangin.templates.choose import Match
from jangin.templates.gpu.table import TEMPLATES

DIALECT = Cuda()


def source(func: Func, target: Target) -> str:
    """Return a kernel as a complete CUDA C program."""
    return emit_kernels([func], target, DIALECT)


def ptx(func: Func, target: Target) -> str:
    """Return a kernel as PTX, the text that NVIDIA's drivers compile."""
    compiled = _nvrtc(target).compiled(source(func, target), target.cpu)
    return compiled.ptx.rstrip(b"\0").decode()


def usage(func: Func, target: Target) -> str:
    """Return the compiler's log, which tells the registers and the memory that a kernel takes."""
    return _nvrtc(target).compiled(source(func, target), target.cpu).log


def _nvrtc(target: Target) -> nvrtc.Nvrtc:
    return nvrtc.for_architecture(target.cpu, driver_version())


class CudaBackend:
    """See `backends.backend.Backend`. A kernel's code contains machine code for the target's architecture,
    and PTX that the drivers of later devices compile."""

    libraries, forks = ("cublas", "cudnn"), True

    forms: Mapping[str, Callable[[Func, Target], str]] = MappingProxyType(
        {"cuda": source, "ptx": ptx, "usage": usage}
    )

    def templates(self, target: Target) -> Mapping[str, Match]:
        return TEMPLATES

    def passes(self, target: Target) -> Sequence[Pass]:
        return GPU_PASSES

    def code(self, kernel: Kernel, target: Target, written: Callable[[], object]) -> bytes:
        ours, product = kernel.func, b""
        if kernel.call is not None:
            product = packed(kernel.call.product)
            if kernel.call.rest is None:
                written()
                return Built(kernel.function or ours.name, "", (0, 0), b"", b"", product=product).packed
            ours = kernel.call.rest
        func = replace(ours, name=kernel.function or kernel.func.name)
        text = source(func, target)
        written()
        compiler = _nvrtc(target)
        try:
            program = compiler.compiled(text, target.cpu)
            if target.cpu.endswith("a"):  # whose text no later device takes
                later = compiler.compiled(text, f"compute_{target.cpu[3:-1]}").ptx
            else:
                later = program.ptx
        except CompileError as error:
            raise CompileError(f"{kernel.func.name}: {error}") from error
        return Built(
            exported(func), target.cpu, compiler.version, program.cubin, later, asked_shared(func), product
        ).packed

    def runner(self, plan: Plan, target: Target) -> tuple[bytes, ...]:
        return ()

    def made_by(self) -> str:
        return ", ".join(map(str, nvrtc.found()))

    def flow(self, target: Target) -> bytes:
        return b""


BACKEND = CudaBackend()
