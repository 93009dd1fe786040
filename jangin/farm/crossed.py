"""Build here what devices of a farm measure that can't compile."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor, Future
from typing import Any

from jangin.compiler.pipeline import tuning_graph
from jangin.farm import work
from jangin.farm.jobs import Job
from jangin.options import Options
from jangin.templates.template import Candidate
from jangin.tune.contest import Contest
from jangin.tune.tuner import TuningKernel, TuningModel, artifact_of, sizes_of

Ask = Callable[..., Any]
"""A call of a function of `work` on a device that gets some bytes."""


class Builder:
    """A model's kernels for one kind of devices. Everything is built in this process, for their target.
    Libraries don't compete, because this process doesn't know the devices' ones."""

    def __init__(self, task: work.Task, about: work.About) -> None:
        model, options, _ = pickle.loads(task.data)
        self._options: Options = options.but(asked=about.target, libraries="never")
        graph = tuning_graph(model, self._options)
        sizes = sizes_of(graph, options.sizes or {})
        self._model = TuningModel(graph, self._options, about.threads, sizes)
        self._untuned = artifact_of(graph, self._options)
        self._kernels: dict[str, TuningKernel] = {}

    def survey(self, ask: Ask) -> list[work.Found]:
        """Return the model's kernels, with their candidates. A device measures the untuned model."""
        times = ask(work.profile_built, self._packed(self._untuned))
        self._kernels = {k.digest: k for k in self._model.kernels(times, {})}
        return [*map(work.described, self._kernels.values())]

    def contests(self, job: Job) -> bytes:
        """Return a job's candidates, built to race together."""
        return pickle.dumps(self._contests(self._kernels[job.kernel], [work.read(c) for c in job.candidates]))

    def _contests(self, kernel: TuningKernel, candidates: Sequence[Candidate]) -> list[Contest | str]:
        try:
            return [self._model.contest(kernel, candidates)]
        except Exception as error:  # a defective candidate may raise anything
            if len(candidates) == 1:
                return [f"{kernel.report.name}, {candidates[0]}: {type(error).__name__}: {error}"]
        # each candidate is built alone, which shows the defective one
        return [contest for c in candidates for contest in self._contests(kernel, [c])]

    def final(self, ask: Ask, winners: Mapping[str, str]) -> tuple[float, float]:
        """Let a device run the model with the winners and without them, as `work.final` does."""
        choices = {**self._options.choices, **{k: work.read(c) for k, c in winners.items()}}
        tuned = artifact_of(self._model.graph, self._options.but(choices=choices))
        taken: tuple[float, float] = ask(work.final_built, self._packed((self._untuned, tuned)))
        return taken

    def _packed(self, built: Any) -> bytes:
        return pickle.dumps((built, self._model.threads, self._model.sizes))


class Chained:
    """A race that a device begins once its candidates are built here. It is used as a future of Dask is.

    `build()` runs in the pool. `send(built)` returns the future of the race itself."""

    def __init__(self, pool: Executor, build: Callable[[], bytes], send: Callable[[bytes], Any]) -> None:
        self._ended: Future[Any] = Future()
        self._race: Any = None
        self._building = pool.submit(self._begin, build, send)

    def _begin(self, build: Callable[[], bytes], send: Callable[[bytes], Any]) -> None:
        try:
            self._race = send(build())
            self._race.add_done_callback(lambda _: self._ended.set_result(None))
        except Exception as error:  # the race's own error, which `exception` gives as a future does
            self._ended.set_exception(error)

    @property
    def status(self) -> str:
        if self._ended.done() and self._ended.exception() is not None:
            return "error"
        return str(self._race.status) if self._race is not None else "pending"

    def result(self) -> Any:
        return self._race.result()

    def exception(self) -> Any:
        return self._ended.exception() or self._race.exception()

    def cancel(self) -> None:
        self._building.cancel()
        if self._race is not None:
            self._race.cancel()

    def add_done_callback(self, ended: Callable[[Chained], object]) -> None:
        self._ended.add_done_callback(lambda _: ended(self))
