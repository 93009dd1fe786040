"""Models that answer before they are compiled.

Another process compiles the model in the background, from the end of the first run on. It would otherwise
take time from the first answer. Until it is done, NumPy computes the runs (see `compiler.interpreted`). The
compiled model takes over between two runs, or within the first if that takes long.
"""

from __future__ import annotations

import atexit
import os
import sys
import threading
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from jangin.compiler import local
from jangin.compiler.interpreted import Overtaken, Unsuitable, interpreted
from jangin.compiler.request import Progress, Request
from jangin.compiler.source import Files, Source
from jangin.frontends.format import ModelSource, paired
from jangin.ir.errors import CompileError
from jangin.options import Options
from jangin.runtime.called import Called
from jangin.runtime.load import Runnable
from jangin.runtime.sizes import TensorSpec
from jangin.runtime.system import in_children
from jangin.runtime.threads import counted
from jangin.targets import origin

if TYPE_CHECKING:
    from jangin.compiler.processes.isolated import Apart

T = TypeVar("T")
PATIENCE = 1.0
"""Seconds after which a model is compiled if its first run hasn't ended. Most first runs take less."""
HANDING = 5.0
"""The most seconds for which a program's end waits until the compiler's process has the request."""
_turn = [threading.Lock()]
"""The lock of the one compilation that runs in the background. Models of one program are compiled one after
another, so that they don't take the time of each other's first runs."""


_begun: list[_Task] = []
"""The compilations that have begun and whose requests the compiler's process doesn't have yet."""


def _new_turn() -> None:
    _turn[0] = threading.Lock()
    _begun.clear()


def _hand_over() -> None:
    """Wait at the program's end until a compilation that has begun has been requested. It fills the cache."""
    if _begun and getattr(sys, "last_type", None) is not KeyboardInterrupt:
        _begun[0].requested.wait(HANDING)


in_children(_new_turn)
atexit.register(_hand_over)


def ready_soon(model: ModelSource, options: Options, progress: Progress | None, lacking: bool) -> Any:
    """Return the model from the cache, or else an `Awaited` one, which is compiled in the background. Return
    the compiled model if NumPy can't compute it. A cache that is off or empty (`lacking`) isn't asked, which
    would take the hashes of the model and of the compiler."""
    local.device_for(options.target, origin(options.asked))
    source = (Files if lacking else Source).of(paired(model, options.weights))
    kept = local.kept(model, options, source) if isinstance(source, Source) else None
    if kept is not None:
        return kept
    task = _Task(*_from_anywhere(model, options), source, progress)
    try:
        first = interpreted(model, options, task.is_done)
    except Unsuitable:
        return task.wait()
    return Awaited(first, task)


def _from_anywhere(model: ModelSource, options: Options) -> tuple[ModelSource, Options]:
    """Return a model and its options with absolute paths. The caller may go to another folder meanwhile."""
    if isinstance(model, (str, os.PathLike)):
        model = os.path.abspath(model)
    weights = None if options.weights is None else Path(os.path.abspath(options.weights))
    entries = Request(model, options).entries
    cache = False if entries is None else Path(os.path.abspath(entries.folder))
    return model, options.but(weights=weights, cache=cache)


class _Task:
    """A compilation on a thread of its own, which mostly waits for the process that compiles."""

    def __init__(
        self,
        model: ModelSource,
        options: Options,
        source: Files | None,
        progress: Progress | None,
    ) -> None:
        self._model, self._options, self._source = model, options, source
        self._held = None if source is None else source.held()
        self.threads = counted(options.threads)
        self._progress = progress
        self._waiting = 0
        self._begin()

    def _begin(self) -> None:
        self._began_in = os.getpid()
        self.made: Runnable | None = None
        self.error: Exception | None = None
        self._done, self._needed = threading.Event(), threading.Event()
        self.requested = threading.Event()
        threading.Thread(target=self._compile, name="jangin compile", daemon=True).start()

    def go_on(self) -> None:
        """Begin anew in a process that was forked before the end, because it has none of the threads."""
        if self._began_in != os.getpid() and not self._done.is_set():
            self._begin()

    def compile(self) -> None:
        """Have the model compiled now. It has its turn after other models."""
        if not self._needed.is_set():
            if self._options.cache is not False:
                _begun.append(self)
            self._needed.set()

    def is_done(self) -> bool:
        """Return whether the compiled model can run."""
        return self.made is not None

    def wait(self) -> Runnable:
        """Wait for the compiled model, and return it. Raises the errors of `jangin.compile`."""
        self.go_on()
        self.compile()
        self._waiting += 1
        try:
            self._done.wait()
        finally:
            self._waiting -= 1
        if self.made is None:
            assert self.error is not None
            raise self.error
        return self.made

    def _compile(self) -> None:
        self._needed.wait(PATIENCE)
        self.compile()
        try:
            with _turn[0]:
                self.made = self._compiled()
        except Exception as error:
            self.error = error
        finally:
            self._done.set()
            self._has_requested()
            if self._held is not None:
                self._held.close()

    def _compiled(self) -> Any:
        """Compile the model, from the contents of its file if the file was removed or replaced meanwhile."""
        try:
            with self._apart() as apart:
                compiled = local.compile(apart, self._model, self._options, self._tell)
            problem: Exception = CompileError("the model's file was changed or removed while it was compiled")
        except (CompileError, OSError) as error:
            compiled, problem = None, error
        if self._source is None or self._source.unchanged():
            if compiled is None:
                raise problem
            return compiled
        data = None if self._held is None else self._held.read()
        if data is None:
            raise problem
        with self._apart() as apart:
            return local.compile(apart, data, self._options, self._tell)

    def _apart(self) -> Apart:
        from jangin.compiler.processes.isolated import Apart

        return Apart(background=True, requested=self._has_requested)

    def _has_requested(self) -> None:
        self.requested.set()
        _begun[:] = [task for task in _begun if task is not self]

    def _tell(self, done: int, total: int, what: str) -> None:
        """Report progress while somebody waits. The caller's own output isn't disturbed otherwise."""
        if self._progress is not None and (self._waiting or done >= total):
            self._progress(done, total, what)


class Awaited(Called):
    """A model that runs already while it is compiled.

    `ready` tells whether the compiled model can run. `wait()` waits for it and returns it. Its other
    attributes, such as `save` and `profile`, wait for it too. Pickling and copying give the compiled
    model.

    If compiling fails, the next run warns once, and NumPy goes on. `wait()` raises the error."""

    def __init__(self, first: Runnable, task: _Task) -> None:
        self._first, self._task, self._said = first, task, False
        self.inputs: Sequence[TensorSpec] = first.inputs
        self.outputs: Sequence[TensorSpec] = first.outputs

    @property
    def name(self) -> str:
        return self._first.name

    @property
    def threads(self) -> int:
        return self._task.threads if self._task.made is None else self._task.made.threads

    @property
    def metadata(self) -> Mapping[str, Any]:
        return self._first.metadata

    @property
    def ready(self) -> bool:  # type: ignore[override]
        return self._task.is_done()

    def wait(self) -> Any:
        """Wait until the model is compiled, and return it. Raises the errors of `jangin.compile`."""
        return self._task.wait()

    def __call__(self, /, *arrays: Any, **named: Any) -> Any:
        """Run the model, as every executable does."""
        return self._run(lambda exe: exe(*arrays, **named))

    def run(self, feeds: Mapping[str, Any]) -> dict[str, Any]:
        """Run the model with inputs and outputs by name."""
        return self._run(lambda exe: exe.run(feeds))

    def _run(self, use: Callable[[Runnable], T]) -> T:
        """Use the compiled model, or the interpreter before there is one. Runs that the interpreter can't do
        wait for the compiled model, so that all errors are those of a compiled model."""
        executable = self._task.made
        if executable is not None:
            self._first = executable  # the interpreter's memory is freed
            return use(executable)
        if self._task.error is not None:
            self._warn(self._task.error)
            return use(self._first)
        self._task.go_on()
        try:
            try:
                return use(self._first)
            finally:
                self._task.compile()
        except Overtaken:
            return use(self.wait())
        except Exception:
            try:
                executable = self.wait()
            except Exception as error:
                self._warn(error)
            if executable is None:
                raise
            return use(executable)

    def _warn(self, error: Exception) -> None:
        if not self._said:
            self._said = True
            text = f"{self.name} couldn't be compiled, and NumPy goes on to run it: {error}"
            warnings.warn(text, RuntimeWarning, stacklevel=4)

    def release(self) -> None:
        """Drop the working memory of finished runs."""
        if self._task.made is not None:
            self._task.made.release()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(f"an Awaited model has no attribute {name!r}")
        return getattr(self.wait(), name)

    def __reduce_ex__(self, protocol: Any) -> Any:
        return self.wait().__reduce_ex__(protocol)

    def __repr__(self) -> str:
        if self._task.made is not None:
            return repr(self._task.made)
        failed = "compiling failed, and NumPy runs it"
        state = failed if self._task.error else "it is being compiled; NumPy runs it meanwhile"
        ends = ", ".join(map(str, self.inputs)), ", ".join(map(str, self.outputs))
        return f"<Awaited {self.name!r}: {' -> '.join(ends)}; {state}>"
