"""The code generation of the LLVM back end: object files of loop nests, and of the code that runs them."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

from jangin.backends.backend import Kernel
from jangin.backends.llvm.call import call_text
from jangin.backends.llvm.entry import entry_module
from jangin.backends.llvm.flow import flow_module
from jangin.backends.llvm.library import REST, library_module
from jangin.backends.llvm.module import emit_kernel, is_fixed
from jangin.backends.llvm.objects import assembly, compile_modules
from jangin.backends.llvm.pool import pool_module
from jangin.backends.llvm.take import take_module
from jangin.ir.plan import Plan
from jangin.targets.target import Target

FORMS = {"llvm": emit_kernel, "asm": assembly}
"""See `backends.backend.Backend`."""


def code(kernel: Kernel, target: Target, written: Callable[[], object]) -> bytes:
    """See `backends.backend.Backend`."""
    func, call, name = kernel.func, kernel.call, kernel.function or kernel.func.name
    if call is None:
        texts = [(func.name, emit_kernel(func, target, name))]
    else:
        texts = [(func.name, library_module(name, call))]
        if call.rest is not None:
            texts.append((func.name, emit_kernel(call.rest, target, f"{name}{REST}")))
    written()
    return compile_modules(texts, target, fixed=is_fixed(func, target))


def runner(plan: Plan, target: Target) -> tuple[bytes, ...]:
    """Return the thread pool's object file and the entry's."""
    return _pool_object(target), compile_modules([("entry", entry_module(plan, target))], target)


@cache
def flow(target: Target) -> bytes:
    """See `backends.backend.Backend`."""
    return compile_modules([("flow", flow_module(target.triple))], target)


@cache
def _pool_object(target: Target) -> bytes:
    """Return the object file of the thread pool and of the functions that take Python's objects, which is the
    same in every model. Compiling them takes longer than a small model's kernels."""
    taking = take_module(target) + call_text()
    return compile_modules([("pool", pool_module(target)), ("take", taking)], target)
