"""The compiled kernels of routines: one for each type and choice of options, for all sizes."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from functools import cache

from jangin.blas.routine import AGAIN, Routine
from jangin.blas.table import ROUTINES
from jangin.compiler.cache import Cache, key, source_digest
from jangin.ir.graph import Array
from jangin.options import Options
from jangin.runtime.artifact import Artifact
from jangin.runtime.compiled import checked, read_artifact
from jangin.runtime.executable import Executable
from jangin.runtime.threads import counted

_making = threading.RLock()
_chosen: list[int | None] = [None]


def set_threads(threads: int | None) -> None:
    """Let all later calls run on `threads` threads. None, the default, means as many as the process may
    use."""
    _chosen[0] = None if threads is None else counted(threads)


def run(
    routine: Routine,
    letter: str,
    options: Mapping[str, str],
    arrays: Mapping[str, Array],
    sizes: Mapping[str, int],
) -> list[Array]:
    """Run a routine's kernel on its operands by name. Return what it writes, in memory of its own unless the
    kernel updates an operand. A matrix is given by its first element and its leading dimension, which is "ld"
    and its name."""
    letters = tuple(options[o] for o in routine.options)
    made, inputs, order = _loaded(routine.name, letter, letters, counted(_chosen[0]))
    return made.execute([arrays[n] for n in inputs], tuple([sizes[n] for n in order]))


@cache
def _loaded(
    name: str, letter: str, letters: tuple[str, ...], threads: int
) -> tuple[Executable, tuple[str, ...], tuple[str, ...]]:
    """Return a kernel, and the names of its operands and of its sizes in order. All kernels share the threads
    of one."""
    with _making:
        made = _artifact(ROUTINES[name], letter, letters, threads)
        shared = _first(threads) if (name, letter) != _FIRST[:2] else None
        inputs = tuple(n.removesuffix(AGAIN) for n in made.plan.inputs)
        return Executable(made, threads, shared), inputs, tuple(v.name for v, _ in made.plan.symbols)


_FIRST = "copy", "s", ()


def _first(threads: int) -> Executable:
    return _loaded(*_FIRST, threads)[0]


def _artifact(routine: Routine, letter: str, letters: tuple[str, ...], threads: int) -> Artifact:
    """Return a compiled kernel, from the cache's folder if it is there."""
    options, entries = Options(threads=threads), Cache()
    name = key([source_digest(), options.key(), "blas", f"{letter}{routine.name}", *letters])
    kept = entries.load(name, lambda path: checked(read_artifact(path)))
    if isinstance(kept, Artifact):
        return kept
    from jangin.blas.kernel import Kernel  # a kernel from the cache needs no compiler
    from jangin.compiler.pipeline import build_plan

    chosen = dict(zip(routine.options, letters, strict=True))
    made = build_plan(Kernel(routine, letter, chosen).graph(), options)
    entries.put(name, made.save)
    return made
