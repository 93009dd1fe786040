"""Batch inference on Ray's data sets. The model lies in Ray's object store, and each actor loads it once."""

from __future__ import annotations

from typing import Any

from jangin.batches.asked import Asked
from jangin.runtime.frames import Columns
from jangin.runtime.rows import Sent

BLOCK = 8
"""The rows that an actor gets at once, in multiples of the rows of a run. Larger blocks mean fewer messages,
and smaller ones even shares."""


class Actor:
    """A worker of Ray's `map_batches`. Ray constructs it once in each process, and calls it with frames."""

    def __init__(self, sent: Any, columns: Columns, threads: int) -> None:
        import ray

        self._sent: Sent = ray.get(sent[0])
        self._columns, self._threads = columns, threads
        self._sent.ready(threads)

    def __call__(self, frame: Any) -> Any:
        return self._columns.run(self._sent, self._threads, frame)


def run(asked: Asked, dataset: Any) -> Any:
    """Return the results for a Ray Dataset, in the order of its rows."""
    import ray
    import ray.data

    columns = asked.columns([*dataset.columns()])
    threads = asked.threads or 1
    ray.data.DataContext.get_current().execution_options.preserve_order = True
    return dataset.map_batches(
        Actor,
        fn_constructor_args=([ray.put(asked.sent)], columns, threads),
        batch_format="pandas",
        batch_size=BLOCK * asked.sent.most,
        compute=ray.data.ActorPoolStrategy(size=asked.workers or 1),
        num_cpus=threads,
    )
