"""The interface between the compiler and a back end, which covers everything specific to one kind of code."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol, cast

from jangin.ir.library import LibraryCall
from jangin.ir.loop import Func
from jangin.ir.plan import Plan
from jangin.targets.target import Target
from jangin.templates.choose import Match

if TYPE_CHECKING:
    from jangin.passes.table import Pass


class Kernel(Protocol):
    """The input of code generation: a loop nest, or a call of a library that computes the same. `function`:
    the exported name of the code, by default the name of `func`."""

    @property
    def func(self) -> Func: ...
    @property
    def call(self) -> LibraryCall | None: ...
    @property
    def function(self) -> str: ...


class Backend(Protocol):
    """Makes code of one kind, for targets that name it (`Target.backend`).

    `libraries`: other makers' libraries whose `LibraryCall` it can make code for. `forks`: whether a process
    that has made code can be forked. `forms`: text forms of a kernel's code, by name, for `jangin inspect
    --show`.
    """

    @property
    def libraries(self) -> Collection[str]: ...
    @property
    def forks(self) -> bool: ...
    @property
    def forms(self) -> Mapping[str, Callable[[Func, Target], str]]: ...

    def templates(self, target: Target) -> Mapping[str, Match]:
        """Return the templates that make its kernels, by name, the most specialized first. Every workload
        must fit one."""

    def passes(self, target: Target) -> Sequence[Pass]:
        """Return all graph passes for a target, in order: those of `passes.table` that pay on its machine,
        and the back end's own."""

    def code(self, kernel: Kernel, target: Target, written: Callable[[], object]) -> bytes:
        """Return a kernel's code: an object file, or a text as UTF-8.

        It is called on several threads, and in processes forked from this one. It calls `written` once the
        text that it translates is complete. Raises RuntimeError or CompileError, which names the kernel, if
        its code can't be made.
        """

    def runner(self, plan: Plan, target: Target) -> tuple[bytes, ...]:
        """Return code that runs a plan's kernels and comes before theirs. It is empty if the device needs
        none. The plan has neither kernels nor constants."""

    def made_by(self) -> str:
        """Return the name and version of the code generator, for saved models. It is empty if the device's
        driver generates code. It is called by the process that makes code."""

    def flow(self, target: Target) -> bytes:
        """Return code that runs a program's branches and loops (`runtime.script`). It is empty if Python runs
        them."""


BACKENDS = {
    "llvm": "jangin.backends.llvm.backend",
    "opencl": "jangin.backends.opencl.backend",
    "cuda": "jangin.backends.cuda.backend",
    "wgsl": "jangin.backends.wgsl.backend",
}
"""Modules whose `BACKEND` is a back end, by the back end's name in targets. They are imported when needed."""


def backend_of(target: Target) -> Backend:
    """Return the back end that a target names, or the target's own back end object."""
    if not isinstance(target.backend, str):
        return cast("Backend", target.backend)
    backend: Backend = importlib.import_module(BACKENDS[target.backend]).BACKEND
    return backend
