"""The compiled kernels of routines: one for each type and choice of options, for all sizes."""

from __future__ import annotations

import contextlib
import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from functools import cache

import numpy as np

from jangin.blas.routine import NUMPY, PAIRS, Routine
from jangin.blas.table import on_device, routine_of
from jangin.compiler.cache import Cache, key, source_digest
from jangin.ir.graph import Array, CompileError
from jangin.options import Options
from jangin.runtime.arrays import address
from jangin.runtime.artifact import Artifact
from jangin.runtime.compiled import checked, read_artifact
from jangin.runtime.executable import Executable
from jangin.runtime.functions import ENTRY
from jangin.runtime.system import renew_lock
from jangin.runtime.threads import counted
from jangin.targets import Target

_making = threading.RLock()
_chosen: list[int | None] = [None]


renew_lock(globals(), "_making", threading.RLock)


def set_number(threads: int | None) -> None:
    """Let all kernels that are loaded later run on `threads` threads (see `calls.set_threads`)."""
    _chosen[0] = None if threads is None else counted(threads)


def set_to() -> int | None:
    """Return the number that `set_number` was given last."""
    return _chosen[0]


def run(
    routine: Routine,
    letter: str,
    options: Mapping[str, str],
    arrays: Mapping[str, Array],
    sizes: Mapping[str, int],
    target: str | None = None,
) -> list[Array]:
    """Run a routine's kernel for a target on its operands by name. Return what it writes: the operand itself
    if the kernel updates it where it lies, else memory of its own. A matrix is given by its first element and
    its leading dimension, which is "ld" and its name. A device with memory of its own gets whole matrices."""
    executable, inputs, order = loaded(routine, letter, options, target)
    ordered = tuple([sizes[n] for n in order])
    if not routine.in_place(letter):
        given = (arrays[n] for n in inputs)
        outputs = executable.execute([_parts(a) for a in given] if routine.placed else [*given], ordered)
        of_pairs = letter in PAIRS and not routine.is_real
        both = zip(routine.written, outputs, strict=True)
        return [_whole(a) if of_pairs and name not in routine.real else a for name, a in both]
    ready = _readied(executable, ordered)
    try:
        ready.run([address(arrays[n]) for n in (*inputs, *routine.written)])
    finally:
        _kept(executable, ordered, ready)
    return [arrays[n] for n in routine.written]


def _parts(a: Array) -> Array:
    """Return an operand as a device's kernel takes it: columns without gaps, and the parts of complex numbers
    side by side."""
    whole = np.asarray(a.T, order="C")
    if whole.dtype.kind != "c":
        return whole
    return (whole if whole.ndim else whole.reshape(1)).view(whole.real.dtype)


def _whole(parts: Array) -> Array:
    """Return the complex numbers whose parts lie side by side."""
    return parts.view(np.result_type(parts, np.complex64))


class Ready:
    """A kernel for some sizes, with working memory of its own. It runs on operands given by address."""

    def __init__(self, made: Executable, sizes: tuple[int, ...]) -> None:
        call = made.native_call(sizes)
        self.table, self._held = call.table, call
        self.words, self.caller = call.words, call.caller
        self.entry = ENTRY.prepared(*call.words)
        self.places = [*call.inputs, *(call.outputs[n] for n in made.plan.outputs if n in call.outputs)]

    def run(self, addresses: Sequence[int]) -> None:
        """Run on the `addresses` of the inputs, then of the outputs that aren't inputs."""
        for at, places in zip(addresses, self.places, strict=True):
            for i in places:
                self.table[i] = at
        self.entry()


CALLS = 32
"""The most kernels with sizes whose working memory is kept. Programs call few routines with few sizes in
turn, and each one's memory may take megabytes."""
_idle: OrderedDict[tuple[Executable, tuple[int, ...]], Ready] = OrderedDict()


def _readied(made: Executable, sizes: tuple[int, ...]) -> Ready:
    return _idle.pop((made, sizes), None) or Ready(made, sizes)


def _kept(made: Executable, sizes: tuple[int, ...], ready: Ready) -> None:
    """Keep working memory for the next call of the same sizes."""
    _idle[made, sizes] = ready
    if len(_idle) > CALLS:
        with contextlib.suppress(KeyError):  # another thread may have taken the last ones
            _idle.popitem(last=False)


def loaded(
    routine: Routine, letter: str, options: Mapping[str, str], target: str | None = None
) -> tuple[Executable, tuple[str, ...], tuple[str, ...]]:
    """Return a routine's kernel, and the names of its operands and of its sizes in order."""
    letters = tuple(options[o] for o in routine.options)
    return _loaded(routine.name, letter, letters, counted(_chosen[0]), target)


@cache
def _loaded(
    name: str, letter: str, letters: tuple[str, ...], threads: int, target: str | None = None
) -> tuple[Executable, tuple[str, ...], tuple[str, ...]]:
    """Return a kernel, and the names of its operands and of its sizes in order. All kernels of a processor
    share the threads of one."""
    with _making:
        is_placed = is_device(target)
        routine = on_device(name, letter) if is_placed else routine_of(name, letter)
        artifact = _artifact(routine, letter, letters, threads, target)
        is_first = is_placed or (name, letter) == _FIRST[:2]
        shared = None if is_first else _loaded(*_FIRST, threads, target)[0]
        inputs = tuple(artifact.plan.inputs)
        return Executable(artifact, threads, shared), inputs, tuple(v.name for v, _ in artifact.plan.symbols)


def forget() -> None:
    """Drop all kernels and their memory."""
    _loaded.cache_clear()
    is_device.cache_clear()
    _idle.clear()


_FIRST = "copy", "s", ()


@cache
def is_device(target: str | None) -> bool:
    """Return whether a target is a device with memory of its own. None is the usual target, which is looked
    up once, as it is for kernels."""
    return Options(target=target).target.device != "cpu"


def _why_not(routine: Routine, letter: str, target: Target, error: CompileError) -> str:
    """Return the text of an error for a routine that a target can't run."""
    dtype, name = np.dtype(np.float64 if "dsdot" in routine.name else NUMPY[letter]), routine.named(letter)
    lacks = dtype.char in "dD" and not target.has("fp64")
    why = "the device has no numbers of 64 bits" if lacks else str(error)
    remedy = f"call jangin.blas.{name}, which runs on this processor"
    if lacks and letter in "dz":
        remedy += f", or {routine.named({'d': 's', 'z': 'c'}[letter])} on the device"
    return f"{name} can't compute in {dtype} on {target.name}: {why}; {remedy}"


def _artifact(
    routine: Routine, letter: str, letters: tuple[str, ...], threads: int, target: str | None
) -> Artifact:
    """Return a compiled kernel, from the cache's folder if it is there."""
    options, entries = Options(target=target, threads=threads), Cache()
    words = [source_digest(), options.key(), "blas", f"{letter}{routine.name}", *letters]
    name = key([*words, str(threads)])  # a kernel shares its tasks by the number of threads
    kept = entries.load(name, lambda path: checked(read_artifact(path)))
    if isinstance(kept, Artifact):
        return kept
    from jangin.blas.kernel import Kernel  # a kernel from the cache needs no compiler
    from jangin.compiler.pipeline import build_plan

    chosen = dict(zip(routine.options, letters, strict=True))
    graph = Kernel(routine, letter, chosen, options.target.machine, threads).graph()
    try:
        artifact = build_plan(graph, options)
    except CompileError as error:
        raise CompileError(_why_not(routine, letter, options.target, error)) from error
    entries.put(name, artifact.save)
    return artifact
