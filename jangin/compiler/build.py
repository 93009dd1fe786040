"""Makes a plan's kernels and their machine code on several cores at once, by the target's back end."""

from __future__ import annotations

import importlib
import math
import os
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import NamedTuple

from jangin.backends.backend import Kernel, backend_of
from jangin.compiler.account import Account, KernelSeconds
from jangin.compiler.kernels import Job
from jangin.compiler.processes.forked import Workers
from jangin.compiler.shared import Made, SharedKernels
from jangin.ir import limits
from jangin.ir.graph import CompileError
from jangin.ir.library import LibraryCall
from jangin.ir.loop import Func
from jangin.ir.plan import Plan
from jangin.ir.sources import NO_SOURCE, Sources
from jangin.runtime.artifact import Artifact
from jangin.runtime.threads import default_threads
from jangin.targets.target import Target
from jangin.templates.scheduled import Scheduled
from jangin.version import __version__

CODE = "jangin.backends.llvm.code"
"""The module that makes the code of most targets. It takes longest to import."""
SECONDS_PER_PROCESS = 0.15
"""Estimated seconds of work for each worker process. A process that is forked for less saves little, because
it begins with page faults: the memory it shares is copied when it is written."""

Progress = Callable[[float, float], None]


class Build:
    """A plan's kernels and code under construction. It is a context manager, which ends its threads.

    Without `workers`, the caller's thread makes kernels, while other threads compile the earlier ones. With
    workers, these processes make and compile all kernels. Either way, equal kernels in equal order give
    identical bytes. Kernels found in `shared` aren't made again. The `account` gets the seconds of each of
    the others."""

    def __init__(
        self,
        target: Target,
        workers: Workers | None = None,
        shared: SharedKernels | None = None,
        account: Account | None = None,
    ) -> None:
        self._target, self._backend = target, backend_of(target)
        self._workers = workers
        self._threads = ThreadPoolExecutor(os.cpu_count() or 1)
        self._running: list[tuple[Future[bytes], float]] = []
        self._shared = SharedKernels() if shared is None else shared
        self._account = Account() if account is None else account
        self._new: dict[str, tuple[Scheduled, Future[bytes]]] = {}
        self._runner: Callable[[], tuple[tuple[bytes, ...], str]] | None = None

    def __enter__(self) -> Build:
        return self

    def __exit__(self, error: type[BaseException] | None, *_: object) -> None:
        self._threads.shutdown(wait=error is None, cancel_futures=True)

    def make(self, jobs: Sequence[Job], progress: Progress | None = None) -> list[Scheduled]:
        """Carry out the jobs, and return their kernels in order. Their code is compiled in the background,
        for `artifact`. `progress(done, total)` counts the estimated seconds of the kernels that aren't shared
        yet."""
        shared = self._shared.get(job.identity for job in jobs)
        new = [job for job in jobs if job.identity not in shared]
        self._new |= dict(zip((job.identity for job in new), self._make(new, progress), strict=True))
        kernels: list[Scheduled] = []
        for job in jobs:
            if job.identity in shared:
                kernel, code = shared[job.identity]
                self._running.append((_done(code), 0.0))
                kernels.append(replace(kernel, func=replace(kernel.func, name=job.name)))
            else:
                kernel, running = self._new[job.identity]
                self._running.append((running, job.seconds))
                kernels.append(kernel)
        return kernels

    def _make(
        self, jobs: Sequence[Job], progress: Progress | None
    ) -> Iterator[tuple[Scheduled, Future[bytes]]]:
        weights = [job.seconds for job in jobs]
        if self._workers is not None and jobs:
            budget = limits.current()
            work = [partial(_compiled, self._target, job, budget) for job in jobs]
            most = math.ceil(sum(weights) / SECONDS_PER_PROCESS)
            results = self._workers.do(
                work,
                most,
                progress,
                weights=weights,
                forks=self._backend.forks,
                names=[str(j.sources) for j in jobs],
            )
            for kernel, code, seconds in results:
                self._account.kernels.append(seconds)
                yield kernel, _done(code)
            return
        for n, job in enumerate(jobs):
            if progress is not None:
                progress(sum(weights[:n]), sum(weights))
            start = time.thread_time()
            kernel = job()
            taken = time.thread_time() - start
            yield kernel, self._threads.submit(limits.in_thread(self._code), kernel, taken, job.sources)

    def _code(self, kernel: Kernel, schedule: float = 0.0, sources: Sources = NO_SOURCE) -> bytes:
        """Return the machine code of a kernel, and add its seconds to the account."""
        code, seconds = _code(self._target, kernel, schedule, sources)
        self._account.kernels.append(seconds)
        return code

    def add(self, kernel: Kernel) -> None:
        """Start to compile a kernel in the background. `artifact` will contain its code."""
        self._running.append((self._threads.submit(limits.in_thread(self._code), kernel), 1.0))

    def begin(self, plan: Plan) -> None:
        """Start to make the code that runs the plan's launches. It doesn't need the plan's constants."""
        job = partial(_runner, replace(plan, constants={}, kernels={}, calls={}), self._target)
        if self._workers is None:
            self._runner = partial(limits.wait, self._threads.submit(job))
        else:
            self._runner = self._workers.ask(job)

    def artifact(self, plan: Plan, progress: Progress | None = None) -> Artifact:
        """Return the artefact: the plan, with the code of the kernels that were made or added before.
        Kernels that were compiled here are kept in the shared kernels, from which later builds take them.

        `progress(done, total)` is called as kernels finish, in estimated seconds. Raises CompileError, which
        names the model's nodes, if a kernel's code can't be made."""
        if self._runner is None:
            self.begin(plan)
        assert self._runner is not None
        codes = [*self._codes(progress)]
        self._shared.put({i: Made(kernel, code.result()) for i, (kernel, code) in self._new.items()})
        runner, made_by = self._runner()
        objects = (*runner, *dict.fromkeys(codes))
        return Artifact(plan, objects, device=self._target.device_name, made_by=made_by)

    def _codes(self, progress: Progress | None) -> Iterator[bytes]:
        done, total = 0.0, sum(seconds for _, seconds in self._running)
        for code, seconds in self._running:
            limits.tick()  # code that is ready isn't waited for
            yield limits.wait(code)
            done += seconds
            if progress is not None:
                progress(done, total)


def start_workers(target: Target | None = None) -> Workers:
    """Start worker processes, at most one for each thread that Jangin uses by default, and return them. The
    first imports the modules for most targets' kernels. If the target is given, it also makes the code that
    all of the target's plans share."""
    workers = Workers(default_threads(), partial(importlib.import_module, CODE))
    if target is not None:
        prepared(workers, target)
    return workers


def prepared(workers: Workers, target: Target) -> None:
    """Have the first worker make the code that all plans of a target share, in the background."""
    nothing = Plan("", str(target), (), (), (), {}, (), (), {})
    workers.begin(partial(_runner, nothing, target))


def _compiled(
    target: Target, job: Job, budget: limits.Budget | None
) -> tuple[Scheduled, bytes, KernelSeconds]:
    """Return a kernel, its machine code and its seconds. It runs in a worker, under the budget of the
    compilation."""
    with limits.going_on(budget, alone=True):
        start = time.thread_time()
        kernel = job()
        return kernel, *_code(target, kernel, time.thread_time() - start, job.sources)


def _code(target: Target, kernel: Kernel, schedule: float, sources: Sources) -> tuple[bytes, KernelSeconds]:
    """Return a kernel's machine code and its seconds. `schedule` is the seconds that its schedule took, and
    `sources` are the model's nodes that it computes. An error names these nodes."""
    limits.at(sources)
    laps = [time.thread_time()]
    try:
        code = backend_of(target).code(kernel, target, lambda: laps.append(time.thread_time()))
    except CompileError as error:
        raise CompileError(f"{sources or kernel.func.name}: {error}") from error
    text, object_seconds = laps[-1] - laps[0], time.thread_time() - laps[-1]
    return code, KernelSeconds(kernel.func.name, schedule, text, object_seconds)


def _runner(plan: Plan, target: Target) -> tuple[tuple[bytes, ...], str]:
    """Return the code that runs a plan's launches, and the names and versions of the programs that made
    it."""
    backend = backend_of(target)
    return backend.runner(plan, target), ", ".join(filter(None, (f"Jangin {__version__}", backend.made_by())))


def _done(code: bytes) -> Future[bytes]:
    future = Future[bytes]()
    future.set_result(code)
    return future


class _Kernel(NamedTuple):
    func: Func
    call: LibraryCall | None
    function: str


def build(plan: Plan, target: Target) -> Artifact:
    """Compile a plan's kernels for a target, and return the artefact."""
    with Build(target) as builder:
        for name, function in {launch.kernel: launch.function for launch in plan.launches}.items():
            builder.add(_Kernel(plan.kernels[name], plan.calls.get(name), function))
        return builder.artifact(plan)
