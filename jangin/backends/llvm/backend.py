"""LLVM as a back end: object files for processors, with a thread pool and an entry of their own."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from types import MappingProxyType
from typing import TYPE_CHECKING

from jangin.backends.backend import Kernel
from jangin.backends.llvm.entry import entry_module
from jangin.backends.llvm.flow import flow_module
from jangin.backends.llvm.library import REST, SGEMM, library_module
from jangin.backends.llvm.module import emit_kernel, is_fixed
from jangin.backends.llvm.objects import assembly, compile_modules
from jangin.backends.llvm.pool import pool_module
from jangin.backends.llvm.take import take_module
from jangin.ir.loop import Func
from jangin.ir.plan import Plan
from jangin.runtime.artifact import Artifact
from jangin.targets.target import Target
from jangin.templates.choose import TEMPLATES, Match

if TYPE_CHECKING:
    from jangin.passes.table import Pass


class LLVM:
    """See `backends.backend.Backend`."""

    libraries, forks = tuple(SGEMM), True
    forms: Mapping[str, Callable[[Func, Target], str]] = MappingProxyType(
        {"llvm": emit_kernel, "asm": assembly}
    )

    def templates(self, target: Target) -> Mapping[str, Match]:
        return TEMPLATES

    def passes(self, target: Target) -> Sequence[Pass]:
        return ()

    def code(self, kernel: Kernel, target: Target, written: Callable[[], object]) -> bytes:
        func, call, name = kernel.func, kernel.call, kernel.function or kernel.func.name
        if call is None:
            texts = [(func.name, emit_kernel(func, target, name))]
        else:
            texts = [(func.name, library_module(name, call))]
            if call.rest is not None:
                texts.append((func.name, emit_kernel(call.rest, target, f"{name}{REST}")))
        written()
        return compile_modules(texts, target, fixed=is_fixed(func, target))

    def finish(self, plan: Plan, codes: Iterable[bytes], target: Target) -> Artifact:
        """The pool's object, the entry's, then the kernels'."""
        entry = [("entry", entry_module(plan, target))]
        with ThreadPoolExecutor(2) as threads:
            own = [threads.submit(_pool_object, target), threads.submit(compile_modules, entry, target)]
            kernels = [*codes]
            return Artifact(plan, (*(o.result() for o in own), *kernels))

    def flow(self, target: Target) -> bytes:
        return compile_modules([("flow", flow_module(target.triple))], target)


@cache
def _pool_object(target: Target) -> bytes:
    """The thread pool and what takes arrays, the same in every model: to compile them takes longer than a
    small model's kernels."""
    return compile_modules([("pool", pool_module(target)), ("take", take_module(target))], target)


BACKEND = LLVM()
