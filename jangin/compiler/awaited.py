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
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from jangin.compiler import local
from jangin.compiler.interpreted import Overtaken, Unsuitable, interpreted
from jangin.compiler.request import Progress, Request
from jangin.compiler.source import Files, Source
from jangin.environment import origin
from jangin.frontends.format import ModelSource, paired
from jangin.ir.errors import CompileError
from jangin.options import Options
from jangin.runtime.called import Called
from jangin.runtime.load import Runnable
from jangin.runtime.sizes import TensorSpec
from jangin.runtime.system import in_children
from jangin.runtime.threads import counted

if TYPE_CHECKING:
    from jangin.compiler.processes.isolated import Apart

T = TypeVar("T")
PATIENCE = 1.0
"""Seconds after which a model is compiled if its first run hasn't ended. Most first runs take less."""
CALM = 0.05
"""Seconds without a first answer, after which a model is compiled. A program may need several runs for its
first result, and then rests longer."""
HANDING = 5.0
"""The most seconds for which a program's end waits until the compiler's processes have the requests. Usually
it takes hundredths of a second, and a user shouldn't wait longer for a cache."""
AT_END = 4
"""The most models of a program that are compiled side by side when the program ends. Each takes a process and
a processor, and small machines have four."""


class _Turns:
    """The order of first answers and compilations. Models of one program are compiled one after another, and
    after the first answers, so that they don't take the time of these."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._compiling, self._most, self._answers, self._last = 0, 1, 0, 0.0

    @contextmanager
    def answer(self) -> Iterator[None]:
        """The time in which a first answer is made."""
        with self._changed:
            self._answers += 1
        try:
            yield
        finally:
            with self._changed:
                self._answers, self._last = self._answers - 1, time.monotonic()

    @contextmanager
    def compilation(self, task: _Task) -> Iterator[None]:
        """The time in which a model is compiled, once it is its turn."""
        with self._changed:
            self._changed.wait_for(lambda: self._compiling < self._most)
            self._compiling += 1
        try:
            self._wait_for_calm(task)
            yield
        finally:
            with self._changed:
                self._compiling -= 1
                self._changed.notify_all()

    def _wait_for_calm(self, task: _Task) -> None:
        patience = time.monotonic() + PATIENCE
        while (now := time.monotonic()) < patience and self._most == 1:
            rest = CALM if self._answers else self._last + CALM - now
            if rest <= 0 or task.hurry.wait(rest):
                return

    def end(self) -> None:
        """Let several models be compiled at once, because the program ends."""
        with self._changed:
            self._most = AT_END
            self._changed.notify_all()


_turns = [_Turns()]
_begun: list[_Task] = []
"""The compilations that have begun and whose requests the compiler's processes don't have yet."""


def _new_turns() -> None:
    _turns[0] = _Turns()
    _begun.clear()


def _hand_over() -> None:
    """Wait at the program's end until the compilations that have begun have been requested. They fill the
    cache."""
    if not _begun or getattr(sys, "last_type", None) is KeyboardInterrupt:
        return
    _turns[0].end()
    latest = time.monotonic() + HANDING
    for task in _begun[:AT_END]:
        task.hurry.set()
        task.requested.wait(max(0.0, latest - time.monotonic()))


in_children(_new_turns)
atexit.register(_hand_over)


def ready_soon(model: ModelSource, options: Options, progress: Progress | None, lacking: bool) -> Any:
    """Return the model from the cache, or else an `Awaited` one, which is compiled in the background. Return
    the compiled model if NumPy can't compute it. A cache that is off or empty (`lacking`) isn't asked, which
    would take the hashes of the model and of the compiler."""
    if not options.for_host:
        local.device_for(options.target, origin(options.asked))
    source = (Files if lacking else Source).of(paired(model, options.weights))
    kept = local.kept(model, options, source) if isinstance(source, Source) else None
    if kept is not None:
        return kept
    task = _Task(*_from_anywhere(model, options), source, progress)
    try:
        with _turns[0].answer():
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
        self._done, self._needed, self.hurry = (threading.Event() for _ in range(3))
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
        self.hurry.set()
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
            with _turns[0].compilation(self):
                self.made = self._compiled()
        except Exception as error:  # `wait` raises it for the caller
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
                with _turns[0].answer():
                    return use(self._first)
            finally:
                self._task.compile()
        except Overtaken:
            return use(self.wait())
        except Exception:
            try:
                executable = self.wait()
            except Exception as error:  # the first answer failed too, and its error is raised
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
