"""Python work in forked processes, because Python's threads can't run side by side.

A fork copies only one thread, so only a process that runs no other thread (`compiler.processes.isolated`)
may use it.
"""

from __future__ import annotations

import gc
import os
import pickle
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from typing import Any, NoReturn, TypeVar

from jangin.ir import limits
from jangin.runtime.system import processes
from jangin.runtime.system.watching import end_with

T = TypeVar("T")
Progress = Callable[[float, float], None]

AHEAD = 2
"""Jobs that a worker has at most: the one it carries out, and one that waits in its pipe. A worker thus never
waits for the process that gives jobs."""


class Workers:
    """Up to `count` processes that carry out jobs. It is a context manager, which ends them.

    One process is forked at once and runs `prepare` (imports, for example) while this process goes on. It
    forks the others when there is work for them, so that they inherit everything prepared. An exception of
    `prepare` is ignored: the jobs that need its result raise it again.

    `running` is the number of running processes. A process forked from this one may use the workers while
    this one doesn't, and must then report their new number."""

    def __init__(self, count: int, prepare: Callable[[], object]) -> None:
        pipes = [Pipe() for _ in range(count)]
        self._pipes = [ours for ours, _ in pipes]
        self.running = 1
        own = [theirs for _, theirs in pipes]
        self._first = fork(lambda: _first(own, prepare), self._pipes)
        for theirs in own:
            theirs.close()

    def __enter__(self) -> Workers:
        return self

    def __exit__(self, error: type[BaseException] | None, *_: object) -> None:
        self.close()
        if error is not None:
            processes.kill(self._first)
        processes.reap(self._first)

    def begin(self, job: Callable[[], object]) -> None:
        """Have the first worker run `job` in the background, to prepare later jobs. Its result and exceptions
        are dropped."""
        # the worker is gone, which the jobs will report
        with suppress(BrokenPipeError, ConnectionResetError):
            self._pipes[0].send(job)

    def close(self) -> None:
        """Have the workers end after their current work. This process doesn't wait for them."""
        for pipe in self._pipes:
            pipe.close()

    def ask(self, job: Callable[[], T]) -> Callable[[], T]:
        """Have the first worker do a job in the background. Return a function that waits for the job, and
        returns its result or raises its exception."""
        first = self._pipes[0]
        with _told():
            first.send(pickle.dumps([job], pickle.HIGHEST_PROTOCOL))
            first.send(0)

        def result() -> T:
            with _told():
                _, value, error = first.recv()
            if error is not None:
                raise error
            answer: T = value
            return answer

        return result

    def do(
        self,
        jobs: Sequence[Callable[[], T]],
        most: int,
        progress: Progress | None = None,
        *,
        weights: Sequence[float] = (),
        forks: bool = True,
        names: Sequence[str] = (),
    ) -> list[T]:
        """Return the jobs' results, in the jobs' order, computed by up to `most` processes. Jobs and results
        travel pickled.

        `progress(done, total)` counts in `weights` if each job has a weight, else in jobs. The heaviest jobs
        begin first, so that no heavy job is left for the others to wait for. `forks` says whether a process
        can be forked after it has done such a job. If it can't, all `count` processes are forked before the
        first job. `names` says for error messages what each job is for.

        Raises the first exception of a job, and ChildProcessError if a process dies. The other processes get
        no more work after an error."""
        used = self._pipes[: max(1, min(most, len(jobs)))]
        wanted = len(used) if forks else len(self._pipes)
        with _told():
            if wanted > self.running:
                self._pipes[0].send(("fork", wanted - self.running))
                self.running = wanted
            return _handed_out(jobs, used, progress, weights or [1.0] * len(jobs), names or [""] * len(jobs))


@contextmanager
def _told() -> Iterator[None]:
    """Inside this context, raise ChildProcessError if a pipe turns out to be closed because its process
    died."""
    try:
        yield
    except (EOFError, BrokenPipeError, ConnectionResetError):
        raise ChildProcessError(f"{limits.where()}: a process that made kernels ended early") from None


def _handed_out(
    jobs: Sequence[Callable[[], T]],
    pipes: Sequence[Connection],
    progress: Progress | None,
    weights: Sequence[float],
    names: Sequence[str],
) -> list[T]:
    """Give jobs to processes so that each has at most `AHEAD`, and return the results in the jobs' order."""
    order = sorted(range(len(jobs)), key=lambda n: -weights[n])
    left, results = iter(order), dict[int, T]()
    # most of a job is the target, which all jobs share
    together = pickle.dumps(jobs, pickle.HIGHEST_PROTOCOL)
    for pipe in pipes:
        pipe.send(together)
    for pipe, n in zip([*pipes] * AHEAD, left, strict=False):
        pipe.send(n)
    while len(results) < len(jobs):
        for ready in wait(pipes, limits.left()) or _late(names[n] for n in order if n not in results):
            assert isinstance(ready, Connection)
            done, result, error = ready.recv()
            if error is not None:
                raise error
            results[done] = result
            if progress is not None:
                progress(sum(weights[n] for n in results), sum(weights))
            if (more := next(left, None)) is not None:
                ready.send(more)
    return [results[n] for n in range(len(jobs))]


def _late(waiting: Iterator[str]) -> NoReturn:
    """Raise the CompileError that the compilation's time is over. It names the first job in `waiting`."""
    limits.late(next(waiting))


def fork(life: Callable[[], object], others: Sequence[Connection]) -> int:
    """Fork a process that runs `life` and then ends, and return its process id. It also ends if this process
    ends. It first closes its copies of the pipes `others`."""
    parent = os.getpid()
    child = processes.fork()
    if child:
        return child
    try:
        end_with(parent)
        gc.disable()  # a collection would copy the pages of every object
        for pipe in others:
            pipe.close()
        life()
    finally:
        os._exit(0)


def _first(pipes: Sequence[Connection], prepare: Callable[[], object]) -> None:
    with suppress(Exception):
        prepare()
    spare = [*pipes]
    children = _work(spare.pop(0), spare)
    for child in children:
        processes.reap(child)


def _work(pipe: Connection, spare: list[Connection]) -> list[int]:
    """Carry out the messages that arrive by a pipe until it is closed. Return the ids of the forked
    processes.

    A message is bytes (a list of jobs, pickled), the number of a job to do, or a function that prepares later
    jobs. It may also be ("fork", count), an order to fork that many processes for `spare` pipes."""
    jobs: Sequence[Callable[[], Any]] = ()
    children: list[int] = []
    with suppress(EOFError):
        while True:
            said = pipe.recv()
            if isinstance(said, bytes):
                jobs = pickle.loads(said)
            elif isinstance(said, int):
                pipe.send((said, *_result(jobs[said])))
            elif callable(said):
                _result(said)
            else:
                for _ in range(said[1]):
                    own = spare.pop(0)
                    children.append(fork(partial(_work, own, []), [pipe, *spare]))
                    own.close()
    return children


def _result(job: Callable[[], T]) -> tuple[T | None, Exception | None]:
    try:
        return job(), None
    except Exception as error:  # the parent raises it
        return None, sendable(error)


def sendable(error: Exception) -> Exception:
    """Return the exception itself if it can be pickled, else a RuntimeError with its class and text."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:  # any class may refuse, in its own way
        return RuntimeError(f"{type(error).__name__}: {error}")
    return error
