"""Compiles LLVM IR to object code.

Only few LLVM passes run. Kernels come with explicit vectors and schedules, so the loop and SLP vectorizers
and the unroller stay off. Whole-program pipelines cost time and gain nothing. If all sizes are constant,
LLVM's loop passes are off too. Subscripts are then a base and constants, and hoisting them out of a register
tile's loops would only make spills.
"""

from __future__ import annotations

import ctypes
from collections.abc import Collection, Sequence
from contextlib import ExitStack
from functools import cache
from threading import local
from typing import Any

from jangin.backends.llvm.module import emit_kernel, is_fixed
from jangin.backends.llvm.several import FENCE, end_blocks
from jangin.ir.loop import Func
from jangin.llvm import binding
from jangin.targets.target import Target

llvm = binding()
PASS_LEVEL = 1
"""LLVM's function simplification at -O1 (SROA, early CSE, LICM, instruction combining, CFG simplification),
with unrolling and vectorization off."""
CODEGEN_LEVEL = 2
"""LLVM's code generation at -O2, with instruction scheduling and the full register allocator."""
EMPTY = (b".bss", b"__bss")
"""The sections of COFF and Mach-O that have no contents in the file."""


def compile_modules(
    texts: Sequence[tuple[str, str]],
    target: Target,
    exported: Collection[str] | None = None,
    *,
    fixed: bool = False,
    as_object: bool = True,
) -> bytes:
    """Return one relocatable object, or assembly text, of several (name, LLVM IR module text). `exported`:
    the visible functions, if not all are visible. `fixed`: see `is_fixed`."""
    compiler = _compiler(target)
    merged = None
    with llvm.create_context() as context, ExitStack() as modules:
        for name, text in texts:
            module = compiler.optimized(name, text, context, modules, fixed)
            if merged is None:
                merged = module
            else:
                merged.link_in(module)
        assert merged is not None
        if exported is not None:
            for function in merged.functions:
                if not function.is_declaration and function.name not in exported:
                    function.linkage = "internal"
        return compiler.emitted(merged, as_object)


def assembly(func: Func, target: Target) -> str:
    """Return a kernel's assembly text, as `build` compiles it."""
    texts = [(func.name, emit_kernel(func, target))]
    return compile_modules(texts, target, fixed=is_fixed(func, target), as_object=False).decode()


def section_bytes(made: bytes) -> int:
    """Return the bytes of the sections of an object in COFF or Mach-O, apart from those without contents."""
    return sum(s.size() for s in llvm.ObjectFileRef.from_data(made).sections() if s.name() not in EMPTY)


def target_machine(target: Target) -> Any:
    """Return LLVM's TargetMachine for position-independent code. Raises ValueError for a triple that this
    LLVM doesn't know."""
    _initialize(target.triple.split("-")[0] == llvm.get_process_triple().split("-")[0])
    try:
        kind = llvm.Target.from_triple(target.triple)
    except RuntimeError as error:
        raise ValueError(
            f"this LLVM has no target {target.triple!r} ({error}): install llvmlite from PyPI, which has all"
        ) from None
    return kind.create_target_machine(
        cpu=target.cpu, features=target.features, opt=CODEGEN_LEVEL,
        reloc="static" if target.triple.startswith("wasm") else "pic", codemodel="default",
        abiname=target.abi.name,
    )  # fmt: skip


@cache
def _initialize(native: bool) -> None:
    """Initialize LLVM for this machine's kind of processor, or for all kinds, which takes memory."""
    if native:
        llvm.initialize_native_target()
        llvm.initialize_native_asmprinter()
    else:
        llvm.initialize_all_targets()
        llvm.initialize_all_asmprinters()


def _compiler(target: Target) -> _Compiler:
    """Return this thread's compiler for a target."""
    key = target.triple, target.cpu, target.features, target.abi.name
    known: dict[object, _Compiler] = _threads.__dict__.setdefault("compilers", {})
    if key not in known:
        known[key] = _Compiler(target)
    return known[key]


_threads = local()


class _Compiler:
    """Compiles modules for a target, on one thread. It is kept, because making a TargetMachine and its tables
    of processor features takes a fifth of a small kernel's compilation."""

    def __init__(self, target: Target) -> None:
        self._machine = target_machine(target)
        self._triple, self._layout = self._machine.triple, str(self._machine.target_data)
        options = llvm.create_pipeline_tuning_options(PASS_LEVEL)
        options.loop_unrolling = options.loop_interleaving = False
        options.loop_vectorization = options.slp_vectorization = False
        self._builder = llvm.create_pass_builder(self._machine, options)
        self._few = llvm.create_new_function_pass_manager()
        self._few.add_sroa_pass()
        self._few.add_instruction_combine_pass()
        self._few.add_simplify_cfg_pass()
        self._most = self._builder.getFunctionPassManager()

    def optimized(self, name: str, text: str, context: Any, modules: ExitStack, fixed: bool) -> Any:
        """Return the optimized module of a text. Raises RuntimeError, which names the kernel, if LLVM refuses
        it.

        `modules` disposes of the module: LLVM requires this before its context ends, and garbage collection
        doesn't promise the order.
        """
        try:
            module = modules.enter_context(llvm.parse_assembly(text, context))
            module.triple, module.data_layout = self._triple, self._layout
            module.verify()
        except RuntimeError as error:
            raise RuntimeError(
                f"LLVM refuses kernel {name!r}, a defect of Jangin: report it with the model. {error}"
            ) from None
        passes = self._few if fixed else self._most
        for function in module.functions:
            if not function.is_declaration:
                _unlocked(llvm.ffi.lib.LLVMPY_RunNewFunctionPassManager)(passes, function, self._builder)
        if FENCE in text:
            return modules.enter_context(llvm.parse_assembly(end_blocks(str(module)), context))
        return module

    def emitted(self, module: Any, as_object: bool) -> bytes:
        """Return the module's object file or assembly text. Raises RuntimeError if LLVM can't generate
        code."""
        lib = llvm.ffi.lib
        with llvm.ffi.OutputString() as error:
            emit = _unlocked(lib.LLVMPY_TargetMachineEmitToMemory)
            buffer = emit(self._machine, module, int(as_object), error)
            if not buffer:
                raise RuntimeError(
                    "LLVM can't make machine code, a defect of Jangin or LLVM: report it with the model. "
                    f"{error}"
                )
        try:
            return ctypes.string_at(lib.LLVMPY_GetBufferStart(buffer), lib.LLVMPY_GetBufferSize(buffer))
        finally:
            lib.LLVMPY_DisposeMemoryBuffer(buffer)


def _unlocked(function: Any) -> Any:
    """Return llvmlite's binding without its process-wide lock, so that threads, each with its own context,
    compile side by side."""
    return getattr(function, "_cfn", function)
