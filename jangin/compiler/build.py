"""Kernels and their code, made on several cores at once by whichever back end the target names."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import NamedTuple

from jangin.backends.backend import Kernel, backend_of
from jangin.compiler.account import Account, KernelSeconds
from jangin.compiler.forked import in_processes
from jangin.compiler.kernels import Job
from jangin.compiler.shared import Made, SharedKernels
from jangin.ir.library import LibraryCall
from jangin.ir.loop import Func
from jangin.ir.plan import Plan
from jangin.runtime.artifact import Artifact
from jangin.targets.target import Target
from jangin.templates.scheduled import Scheduled

JOBS_PER_PROCESS = 4
"""Kernels that are worth forking a process for."""

Progress = Callable[[int, int], None]


class Build:
    """A plan's kernels and code in the making; a context, which ends its threads.

    With `processes` = 1, kernels are made on the caller's thread, while others compile the last ones. With
    more, that many forked processes (see `compiler.forked`) do all of it. Either way equal kernels in equal
    order give identical bytes. Those that are `shared` already are taken as they are; the `account` gets the
    seconds of each of the others."""

    def __init__(
        self,
        target: Target,
        processes: int = 1,
        shared: SharedKernels | None = None,
        account: Account | None = None,
    ) -> None:
        self._target, self._backend = target, backend_of(target)
        self._processes = processes
        self._threads = ThreadPoolExecutor(os.cpu_count() or 1)
        self._running: list[Future[bytes]] = []
        self._shared = SharedKernels() if shared is None else shared
        self._account = Account() if account is None else account
        self._new: dict[str, tuple[Scheduled, Future[bytes]]] = {}

    def __enter__(self) -> Build:
        return self

    def __exit__(self, error: type[BaseException] | None, *_: object) -> None:
        self._threads.shutdown(wait=error is None, cancel_futures=True)

    def make(self, jobs: Sequence[Job], progress: Progress | None = None) -> list[Scheduled]:
        """The kernels that the jobs give, each of which has been added. `progress(done, total)` of those
        that aren't shared yet."""
        found = self._shared.get(job.identity for job in jobs)
        new = [job for job in jobs if job.identity not in found]
        self._new |= dict(zip((job.identity for job in new), self._make(new, progress), strict=True))
        made: list[Scheduled] = []
        for job in jobs:
            if job.identity in found:
                kernel, code = found[job.identity]
                self._running.append(_done(code))
                made.append(replace(kernel, func=replace(kernel.func, name=job.name)))
            else:
                kernel, running = self._new[job.identity]
                self._running.append(running)
                made.append(kernel)
        return made

    def _make(
        self, jobs: Sequence[Job], progress: Progress | None
    ) -> Iterator[tuple[Scheduled, Future[bytes]]]:
        processes = min(self._processes, len(jobs) // JOBS_PER_PROCESS)
        if processes > 1:
            work = [partial(self._compile, job) for job in jobs]
            for kernel, code, seconds in in_processes(work, processes, progress):
                self._account.kernels.append(seconds)
                yield kernel, _done(code)
            return
        for n, job in enumerate(jobs):
            if progress is not None:
                progress(n, len(jobs))
            start = time.thread_time()
            kernel = job()
            yield kernel, self._threads.submit(self._code, kernel, time.thread_time() - start)

    def _compile(self, job: Job) -> tuple[Scheduled, bytes, KernelSeconds]:
        start = time.thread_time()
        kernel = job()
        code = self._code(kernel, time.thread_time() - start)
        return kernel, code, self._account.kernels[-1]

    def _code(self, kernel: Kernel, schedule: float = 0.0) -> bytes:
        """The code of a kernel whose schedule took so many seconds."""
        laps = [time.thread_time()]
        code = self._backend.code(kernel, self._target, lambda: laps.append(time.thread_time()))
        text, made = laps[-1] - laps[0], time.thread_time() - laps[-1]
        self._account.kernels.append(KernelSeconds(kernel.func.name, schedule, text, made))
        return code

    def add(self, kernel: Kernel) -> None:
        """Start making the kernel's code."""
        self._running.append(self._threads.submit(self._code, kernel))

    def artifact(self, plan: Plan, progress: Progress | None = None) -> Artifact:
        """The plan, all of whose kernels were added, with its code; new kernels are shared from now on.
        `progress(done, total)` is called as kernels finish. Raises RuntimeError that names the kernel where
        there is no code for it."""
        made = self._backend.finish(plan, self._codes(progress), self._target)
        self._shared.put({i: Made(kernel, code.result()) for i, (kernel, code) in self._new.items()})
        return replace(made, device=self._target.device_name)

    def _codes(self, progress: Progress | None) -> Iterator[bytes]:
        for n, code in enumerate(self._running, 1):
            yield code.result()
            if progress is not None:
                progress(n, len(self._running))


def _done(code: bytes) -> Future[bytes]:
    future = Future[bytes]()
    future.set_result(code)
    return future


class _Kernel(NamedTuple):
    func: Func
    call: LibraryCall | None
    function: str


def build(plan: Plan, target: Target) -> Artifact:
    """Compile a plan for a target."""
    with Build(target) as builder:
        for name, function in {launch.kernel: launch.function for launch in plan.launches}.items():
            builder.add(_Kernel(plan.kernels[name], plan.calls.get(name), function))
        return builder.artifact(plan)
