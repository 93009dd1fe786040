"""A model compiled for several devices at once, loaded and ready to run."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import accumulate
from queue import Empty, Queue
from typing import Any

import numpy as np

from jangin.host.table import HostFunction
from jangin.ir.expr import Const
from jangin.runtime.artifact import Artifact
from jangin.runtime.called import Called, joined
from jangin.runtime.compiled import plans, signature
from jangin.runtime.device import threads_of
from jangin.runtime.device_threads import DeviceThread, Later
from jangin.runtime.executable import SHAPES, Executable
from jangin.runtime.pickled import Loaded
from jangin.runtime.placed import Placed, Record
from jangin.runtime.several_artifact import SeveralArtifact
from jangin.runtime.shares import Trials, Way
from jangin.runtime.sizes import Signature, Sizes, TensorSpec
from jangin.runtime.tensors import is_on_gpu, on_host
from jangin.runtime.threads import counted
from jangin.runtime.variants import single

AHEAD = 2
"""Inputs of a stream that are in progress at once, as a multiple of the number of devices. While a device
works on one, the next one already waits."""


class SeveralExecutable(Called, Loaded[SeveralArtifact]):
    """Runs a compiled model on several devices, as `Executable` does on one: `exe(x)`, `exe.run({"x": x})`,
    or `exe.stream(feeds)` for many inputs one after another.

    The first runs for inputs of each size try all ways. A way is one device alone, the batch divided by the
    devices' measured speeds, or independent branches on different devices. After that the quickest way stays,
    and a fiftieth of the time goes into trying the others again.

    The caller's thread does the first device's work, and each other device has its own thread. `threads` is
    the number of the processor's threads for all of this. Devices that are the processor share them
    equally."""

    def __init__(
        self,
        artifact: SeveralArtifact,
        threads: int | None = None,
        functions: Mapping[str, HostFunction] | None = None,
    ) -> None:
        self._artifact, self._given = artifact, (threads, functions)
        self._threads = counted(threads)
        first = [next(plans(p)) for p in artifact.parts]
        named = [(p.device, p.plan.target) for p in first]
        counts = threads_of(named, self._threads)
        self.parts = [single(p, n, functions) for p, n in zip(artifact.parts, counts, strict=True)]
        self.inputs, self.outputs = signature(artifact)
        self._names = [s.name for s in self.inputs]
        self._batched = [n for n, s in enumerate(self.inputs) if artifact.rows in s.shape[:1]]
        self._devices = [DeviceThread() for _ in artifact.names]
        self._placed = {name: self._placement(name, named) for name in artifact.placed}
        self._trials: OrderedDict[tuple[Sizes, ...], Trials] = OrderedDict()
        self._lock = threading.Lock()
        self.record: Record = nobody

    def _placement(self, name: str, named: Sequence[tuple[str, str]]) -> Placed:
        artifact = self._artifact.placed[name]
        segments = []
        for part in artifact.parts:
            device = named.index((part.device, part.plan.target))
            whole = self.parts[device]
            share = whole if isinstance(whole, Executable) else None
            segments.append((device, Executable(part, whole.threads, share)))
        return Placed(artifact, segments, self._devices)

    @property
    def name(self) -> str:
        return self.parts[0].name

    @property
    def threads(self) -> int:
        return self._threads

    def release(self) -> None:
        """Drop the working memory of finished runs, on all devices."""
        for part in (*self.parts, *self._placed.values()):
            part.release()

    def explain_shapes(self) -> str:
        """Describe the sizes as `Executable.explain_shapes` does."""
        return self.parts[0].explain_shapes()

    def __call__(self, /, *values: Any, **named: Any) -> Any:
        """Run the model. Return the output, or a tuple if there are several. Raises TypeError for a wrong
        dtype, and ValueError for a wrong count or shape."""
        if named:
            values = tuple(joined(self.inputs, values, named))
        if len(values) != len(self._names):
            return self.parts[0](*values)  # it says what is wrong
        by_name = self.run(dict(zip(self._names, values, strict=True)))
        results = [by_name[s.name] for s in self.outputs]
        return results[0] if len(results) == 1 else tuple(results)

    def run(self, feeds: Mapping[str, Any]) -> dict[str, Any]:
        """Run the model with inputs and outputs by name, in the way that is tried next or is the quickest."""
        trials = self._found(feeds)
        if trials is None:
            return self.parts[0].run(feeds)
        way = trials.next()
        start = time.perf_counter()
        outputs, each = self._run(way, feeds)
        trials.took(way, time.perf_counter() - start, each)
        return outputs

    def ways(self, feeds: Mapping[str, Any]) -> Trials | None:
        """Return the trials for inputs of these sizes, which choose the way of the next run. Return None if
        the inputs' names are wrong."""
        return self._found(feeds)

    def _found(self, feeds: Mapping[str, Any]) -> Trials | None:
        """Return the trials for inputs of these sizes. Return None if names are wrong, which the first device
        then reports."""
        if set(feeds) != set(self._names):
            return None
        shapes = tuple(_shape(feeds[s.name], s) for s in self.inputs)
        with self._lock:
            trials = self._trials.get(shapes)
            if trials is None:
                rows = {shapes[n][0] if shapes[n] else 0 for n in self._batched}
                several = rows.pop() if len(rows) == 1 else 0
                fewest = self._fewest()
                others = ["branches"] if "branches" in self._placed else []
                trials = Trials(len(self.parts), several if several >= fewest else 0, fewest, others)
                self._trials[shapes] = trials
                if len(self._trials) > SHAPES:
                    self._trials.popitem(last=False)
        return trials

    def _fewest(self) -> int:
        """Return the smallest batch that the model takes, at least 1."""
        whole = self._artifact.parts[0]
        ranges = dict(whole.plan.symbols).items() if isinstance(whole, Artifact) else ()
        low = next((low for v, (low, _) in ranges if v.name == self._artifact.rows), None)
        return max(1, int(low.value)) if isinstance(low, Const) else 1

    # --- one run

    def _run(self, way: Way, feeds: Mapping[str, Any]) -> tuple[dict[str, Any], list[float]]:
        """Run the inputs in one way. Return the outputs, and the seconds of each device."""
        if isinstance(way, str):
            return self._begin(way, feeds)(), []
        jobs = {}
        for d, (share, end) in enumerate(zip(way, accumulate(way), strict=True)):
            if share:
                rows = feeds if share == sum(way) else self._cut(feeds, end - share, end)
                jobs[d] = partial(self._timed, d, rows)
        others = {d: self._devices[d].submit(job) for d, job in jobs.items() if d}
        try:
            done = {0: jobs[0]()} if 0 in jobs else {}
        finally:
            for later in others.values():
                later.wait()
        done |= {d: later.result() for d, later in others.items()}
        each = [done[d][1] if d in done else 0.0 for d in range(len(way))]
        parts = [done[d][0] for d in sorted(done)]
        if len(parts) == 1:
            return parts[0], each
        return {s.name: np.concatenate([m[s.name] for m in parts]) for s in self.outputs}, each

    def _timed(self, device: int, feeds: Mapping[str, Any]) -> tuple[dict[str, Any], float]:
        start = time.perf_counter()
        outputs = self.parts[device].run(feeds)
        end = time.perf_counter()
        self.record(device, self.name, start, end)
        return outputs, end - start

    def _cut(self, feeds: Mapping[str, Any], low: int, high: int) -> dict[str, Any]:
        """Return the inputs with the rows from `low` to `high` of the batch."""
        batched = {self._names[n] for n in self._batched}
        return {n: np.asarray(x)[low:high] if n in batched else x for n, x in feeds.items()}

    def _begin(self, name: str, feeds: Mapping[str, Any]) -> Any:
        """Begin a run by the placement `name`, which says what each device runs. Return a function that waits
        for the outputs, and returns them by name."""
        whole = self.parts[0]
        assert isinstance(whole, Executable)
        arrays = whole.accept([feeds[n] for n in self._names])
        bound = Signature(whole.plan)
        sizes = bound.bind([a.shape for a in arrays]) if bound.symbols else ()
        symbols = {v.name: n for v, n in zip(bound.symbols, sizes, strict=True)}
        results = self._placed[name].submit(arrays, symbols, self.record)
        return lambda: dict(zip([s.name for s in self.outputs], results(), strict=True))

    # --- streams

    def stream(self, feeds: Iterable[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
        """Yield the outputs of many inputs, in order. Several inputs are in progress at once.

        Each device takes the next input when it has finished one. If measured times favour stages, each input
        goes through all devices instead, each of which runs a part of the model."""
        if "stages" in self._placed:
            yield from self._pipeline(feeds)
            return
        order: Queue[Later[dict[str, Any]] | None] = Queue(AHEAD * len(self.parts))
        taken, ended = threading.Lock(), threading.Event()
        source = iter(feeds)

        def work(device: int) -> None:
            while not ended.is_set():
                later: Later[dict[str, Any]] = self._devices[device].later()
                with taken:
                    if ended.is_set():
                        return
                    try:
                        item = next(source)
                    except StopIteration:
                        ended.set()
                        order.put(None)
                        return
                    except BaseException as error:  # whoever asks for the result gets it
                        ended.set()
                        later.fail(error)
                        order.put(later)
                        order.put(None)
                        return
                    order.put(later)
                try:
                    later.set(self._timed(device, item)[0])
                except BaseException as error:  # whoever asks for the result gets it
                    later.fail(error)

        running = [device.submit(partial(work, n)) for n, device in enumerate(self._devices)]
        try:
            while (later := order.get()) is not None:
                yield later.result()
        finally:
            ended.set()
            while not all(f.done() for f in running):
                try:
                    order.get(timeout=0.01)
                except Empty:
                    continue

    def _pipeline(self, feeds: Iterable[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
        running = []
        for item in feeds:
            running.append(self._begin("stages", item))
            if len(running) == AHEAD * len(self.parts):
                yield running.pop(0)()
        for results in running:
            yield results()


def _shape(value: Any, want: TensorSpec) -> tuple[int, ...]:
    """Return the shape of an input. Raises TypeError for a tensor on a GPU, because several devices take
    arrays of the host."""
    if type(value) is not np.ndarray and is_on_gpu(value):
        raise on_host(value, want)
    return np.shape(value)


def nobody(device: int, what: str, start: float, end: float) -> None:
    """Do nothing with a finished piece of work."""
