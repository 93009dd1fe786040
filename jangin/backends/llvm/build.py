"""From a plan to object code: emits kernels, pool and entry as LLVM IR and compiles them.

Few LLVM passes: kernels come with explicit vectors and schedules, so that its loop and SLP
vectorizers and its unroller stay off, and whole-program pipelines cost time and gain nothing.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from functools import cache, partial
from typing import Any, Protocol, TypeVar

import llvmlite.binding as llvm

from jangin.backends.llvm.entry import entry_module
from jangin.backends.llvm.forked import in_processes
from jangin.backends.llvm.library import library_module
from jangin.backends.llvm.module import emit_kernel
from jangin.backends.llvm.pool import pool_module
from jangin.ir.library import LibraryCall
from jangin.ir.loop import Func
from jangin.ir.plan import Plan
from jangin.runtime.artifact import Artifact
from jangin.targets.target import Target

PASS_LEVEL = 1
"""LLVM's function simplification at -O1 (SROA, early CSE, LICM, instruction combining, CFG
simplification), with unrolling and vectorization off."""
CODEGEN_LEVEL = 2
JOBS_PER_PROCESS = 4
"""Kernels that are worth forking a process for."""

K = TypeVar("K", bound="Kernel")
Progress = Callable[[int, int], None]


class Kernel(Protocol):
    """What `Builder.make` wants of a kernel: its loop nest, or the library's call that does the same."""

    @property
    def func(self) -> Func: ...
    @property
    def call(self) -> LibraryCall | None: ...


class Builder:
    """Makes kernels and their code on several cores at once; a context, which ends its threads.

    With `processes` = 1, kernels are made on the caller's thread, while others compile the last ones. With
    more, that many forked processes (see `backends.llvm.forked`) do all of it. Either way equal kernels in
    equal order give identical bytes."""

    def __init__(self, target: Target, processes: int = 1) -> None:
        self._target = target
        self._processes = processes
        self._threads = ThreadPoolExecutor(os.cpu_count() or 1)
        self._running: list[Future[bytes]] = []

    def __enter__(self) -> Builder:
        return self

    def __exit__(self, *_: object) -> None:
        self._threads.shutdown(cancel_futures=True)

    def make(self, jobs: Sequence[Callable[[], K]], progress: Progress | None = None) -> list[K]:
        """The kernels that the jobs give, each of which has been added. `progress(done, total)`."""
        made: list[K] = []
        processes = min(self._processes, len(jobs) // JOBS_PER_PROCESS)
        if processes > 1:
            compiled = in_processes([partial(self._compile, job) for job in jobs], processes, progress)
            for kernel, code in compiled:
                made.append(kernel)
                self._running.append(_done(code))
            return made
        for n, job in enumerate(jobs):
            if progress is not None:
                progress(n, len(jobs))
            made.append(job())
            self.add(made[-1].func, made[-1].call)
        return made

    def _compile(self, job: Callable[[], K]) -> tuple[K, bytes]:
        kernel = job()
        return kernel, compile_modules(kernel_texts(kernel.func, kernel.call, self._target), self._target)

    def add(self, func: Func, call: LibraryCall | None = None) -> None:
        """A kernel: its loop nest, or the library's call that does the same."""
        self.add_texts(kernel_texts(func, call, self._target))

    def add_texts(self, texts: Sequence[tuple[str, str]]) -> None:
        """A kernel's LLVM IR modules, by name."""
        self._running.append(self._threads.submit(compile_modules, texts, self._target))

    def artifact(self, plan: Plan, progress: Progress | None = None) -> Artifact:
        """The plan, all of whose kernels were added, with its code. `progress(done, total)` is called as
        kernels finish. Raises RuntimeError that names the kernel where LLVM refuses it."""
        target = self._target
        entry = [("entry", entry_module(plan, target.triple))]
        running = [
            self._threads.submit(_pool_object, target),
            self._threads.submit(compile_modules, entry, target),
            *self._running,
        ]
        objects: list[bytes] = []
        for done in running:
            objects.append(done.result())
            if progress is not None:
                progress(len(objects), len(running))
        return Artifact(plan, tuple(objects))


def kernel_texts(func: Func, call: LibraryCall | None, target: Target) -> list[tuple[str, str]]:
    """(name, LLVM IR) of the modules that a kernel is made of."""
    if call is None:
        return [(func.name, emit_kernel(func, target))]
    rest = [] if call.rest is None else [(call.rest.name, emit_kernel(call.rest, target))]
    return [(func.name, library_module(func.name, call)), *rest]


def _done(result: bytes) -> Future[bytes]:
    future: Future[bytes] = Future()
    future.set_result(result)
    return future


def build(plan: Plan, target: Target) -> Artifact:
    """Compile a plan for a target."""
    with Builder(target) as builder:
        for name in dict.fromkeys(launch.kernel for launch in plan.launches):
            builder.add(plan.kernels[name], plan.calls.get(name))
        return builder.artifact(plan)


@cache
def _pool_object(target: Target) -> bytes:
    """The thread pool, the same in every model: to compile it takes longer than a small model's kernels."""
    return compile_modules([("pool", pool_module(target.triple))], target)


def compile_modules(texts: Sequence[tuple[str, str]], target: Target) -> bytes:
    """One relocatable object of several (name, LLVM IR module text)."""
    machine = target_machine(target)
    merged = None
    with llvm.create_context() as context, ExitStack() as modules:
        for name, text in texts:
            module = _optimized(name, text, machine, context, modules)
            if merged is None:
                merged = module
            else:
                merged.link_in(module)
        assert merged is not None
        return _emit(machine, merged, as_object=True)


def assembly(func: Func, target: Target) -> str:
    """A kernel's assembly text, as `build` compiles it."""
    machine = target_machine(target)
    with llvm.create_context() as context, ExitStack() as modules:
        module = _optimized(func.name, emit_kernel(func, target), machine, context, modules)
        return _emit(machine, module, as_object=False).decode()


def target_machine(target: Target) -> Any:
    """LLVM's TargetMachine for position-independent code. Raises ValueError for a triple that
    this LLVM doesn't know."""
    _initialize(target.triple.split("-")[0] == llvm.get_process_triple().split("-")[0])
    try:
        kind = llvm.Target.from_triple(target.triple)
    except RuntimeError as error:
        raise ValueError(f"LLVM has no target {target.triple!r}: {error}") from None
    return kind.create_target_machine(
        cpu=target.cpu, features=target.features, opt=CODEGEN_LEVEL, reloc="pic", codemodel="default"
    )


@cache
def _initialize(native: bool) -> None:
    """Make LLVM ready for this machine's kind of processor, or, which takes memory, for all kinds."""
    if native:
        llvm.initialize_native_target()
        llvm.initialize_native_asmprinter()
    else:
        llvm.initialize_all_targets()
        llvm.initialize_all_asmprinters()


def _optimized(name: str, text: str, machine: Any, context: Any, modules: ExitStack) -> Any:
    """The module of a text. `modules` disposes of it: LLVM wants that before its context goes, which
    the garbage collector doesn't promise."""
    try:
        module = modules.enter_context(llvm.parse_assembly(text, context))
        module.triple, module.data_layout = machine.triple, str(machine.target_data)
        module.verify()
    except RuntimeError as error:
        raise RuntimeError(f"LLVM refuses kernel {name!r}: {error}") from None
    options = llvm.create_pipeline_tuning_options(PASS_LEVEL)
    options.loop_unrolling = options.loop_interleaving = False
    options.loop_vectorization = options.slp_vectorization = False
    builder = llvm.create_pass_builder(machine, options)
    passes = builder.getFunctionPassManager()
    for function in module.functions:
        if not function.is_declaration:
            _unlocked(llvm.ffi.lib.LLVMPY_RunNewFunctionPassManager)(passes, function, builder)
    return module


def _unlocked(function: Any) -> Any:
    """llvmlite's binding without its process-wide lock, so that threads, each with a context of
    its own, compile side by side."""
    return getattr(function, "_cfn", function)


def _emit(machine: Any, module: Any, *, as_object: bool) -> bytes:
    lib = llvm.ffi.lib
    with llvm.ffi.OutputString() as error:
        buffer = _unlocked(lib.LLVMPY_TargetMachineEmitToMemory)(machine, module, int(as_object), error)
        if not buffer:
            raise RuntimeError(f"LLVM's code generation failed: {error}")
    try:
        return ctypes.string_at(lib.LLVMPY_GetBufferStart(buffer), lib.LLVMPY_GetBufferSize(buffer))
    finally:
        lib.LLVMPY_DisposeMemoryBuffer(buffer)
