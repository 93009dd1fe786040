"""What the compiler asks of a back end: everything that is a kind of code's own, and nothing else."""

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
    """What there is to make code of: a loop nest, or the library's call that does the same. `function`: what
    its code exports it as, the name of `func` where it is empty."""

    @property
    def func(self) -> Func: ...
    @property
    def call(self) -> LibraryCall | None: ...
    @property
    def function(self) -> str: ...


class Backend(Protocol):
    """Makes code of one kind, for targets that name it (`Target.backend`).

    `libraries`: the other makers' whose `LibraryCall` it can make code of. `forks`: whether a process that
    has made code can be forked. `forms`: texts that a kernel's code has, by
    name, for `jangin inspect --show`."""

    @property
    def libraries(self) -> Collection[str]: ...
    @property
    def forks(self) -> bool: ...
    @property
    def forms(self) -> Mapping[str, Callable[[Func, Target], str]]: ...

    def templates(self, target: Target) -> Mapping[str, Match]:
        """Those that make its kernels, the most special first; every workload must fit one."""

    def passes(self, target: Target) -> Sequence[Pass]:
        """All graph passes for a target, in order: those of `passes.table` that pay on its machine, and the
        back end's own."""

    def code(self, kernel: Kernel, target: Target, written: Callable[[], object]) -> bytes:
        """A kernel's code: an object file, or a text as UTF-8. Called on several threads, and in processes
        forked from this one; calls `written` once a text that it translates stands. RuntimeError or
        CompileError names the kernel where there is none."""

    def runner(self, plan: Plan, target: Target) -> tuple[bytes, ...]:
        """Code that runs a plan's kernels, which stands before theirs; none where the device needs none. The
        plan has neither kernels nor constants."""

    def made_by(self) -> str:
        """The name and version of what translates its code, as a saved model says them; empty where that is
        left to the device's driver. Called where code is made."""

    def flow(self, target: Target) -> bytes:
        """Code that runs a program's branches and loops (`runtime.script`); empty where there is none,
        which leaves them to Python."""


BACKENDS = {"llvm": "jangin.backends.llvm.backend", "opencl": "jangin.backends.opencl.backend"}
"""By the name that targets have for a back end, the module whose `BACKEND` it is: imported when needed."""


def backend_of(target: Target) -> Backend:
    """The back end that a target names, or brings along."""
    if not isinstance(target.backend, str):
        return cast("Backend", target.backend)
    found: Backend = importlib.import_module(BACKENDS[target.backend]).BACKEND
    return found
