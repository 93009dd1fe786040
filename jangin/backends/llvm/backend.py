"""The LLVM back end: object files for processors, with a thread pool and an entry of their own.

A process that only needs templates and passes makes no code. The module that makes code (`code`) is imported
by processes that make code.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from jangin.backends.backend import Kernel
from jangin.ir.loop import Func
from jangin.ir.plan import Plan
from jangin.targets.target import Target
from jangin.templates.choose import TEMPLATES, Match

if TYPE_CHECKING:
    from jangin.passes.table import Pass


class LLVM:
    """See `backends.backend.Backend`."""

    forks = True

    @property
    def libraries(self) -> Sequence[str]:
        from jangin.backends.llvm.library import SGEMM

        return tuple(SGEMM)

    @property
    def forms(self) -> Mapping[str, Callable[[Func, Target], str]]:
        from jangin.backends.llvm.code import FORMS

        return FORMS

    def templates(self, target: Target) -> Mapping[str, Match]:
        return TEMPLATES

    def passes(self, target: Target) -> Sequence[Pass]:
        from jangin.passes.table import GRAPH_PASSES

        return GRAPH_PASSES

    def code(self, kernel: Kernel, target: Target, written: Callable[[], object]) -> bytes:
        from jangin.backends.llvm.code import code

        return code(kernel, target, written)

    def runner(self, plan: Plan, target: Target) -> tuple[bytes, ...]:
        from jangin.backends.llvm.code import runner

        return runner(plan, target)

    def made_by(self) -> str:
        from jangin.llvm import version

        return f"LLVM {version()}"

    def flow(self, target: Target) -> bytes:
        from jangin.backends.llvm.code import flow

        return flow(target)


BACKEND = LLVM()
