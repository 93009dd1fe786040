"""Batch inference on Dask's collections.

The model is one task, which a cluster gets at once and keeps. Its result moves to each worker once, and is
made again if all workers that held it are gone."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np

from jangin.batches.asked import Asked
from jangin.runtime.frames import PROBLEM, Columns, run_block, run_records
from jangin.runtime.rows import Sent
from jangin.runtime.threads import default_threads


def run(asked: Asked, dataset: Any) -> Any:
    """Return the results for a Dask collection, as a collection of the same kind."""
    import dask

    name = f"jangin-model-{asked.sent.digest[:16]}-{asked.sent.most}"
    sent = _at_once(dask.delayed(Sent)(*asked.sent, dask_key_name=name))
    kind = type(dataset).__name__
    if kind == "DataFrame":
        columns = asked.columns([*dataset.columns])
        empty = columns.empty(dataset._meta)
        return dataset.map_partitions(_frame, columns, sent, asked.threads, meta=empty)
    if kind == "Bag":
        names = (*asked.inputs,)
        return dataset.map_partitions(_records, sent, asked.threads, names)
    if kind == "Array":
        return _array(asked, dataset, sent)
    raise TypeError(f"a Dask collection is a DataFrame, a Bag or an Array, not a {kind}")


def _at_once(sent: Any) -> Any:
    """Return the task whose result is the model, already sent to all workers of the current cluster. Without
    a cluster the task stays as it is.

    Graphs then don't contain the model, and the scheduler prefers no worker for already having it.
    """
    try:
        from distributed import default_client, futures_of

        client = default_client()
    except (ImportError, ValueError):  # another scheduler
        return sent
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Sending large graph")  # the model is sent once, and on purpose
        there = client.persist(sent)
    if not client.asynchronous and client.scheduler_info()["workers"]:
        client.replicate(futures_of(there))
    return there


def _frame(frame: Any, columns: Columns, sent: Sent, threads: int | None) -> Any:
    return columns.run(sent, threads_of_task(threads), frame)


def _records(records: Any, sent: Sent, threads: int | None, names: tuple[str, ...]) -> list[Any]:
    return run_records(sent, threads_of_task(threads), records, names)


def _block(block: Any, sent: Sent, threads: int | None, name: str) -> Any:
    return run_block(sent, threads_of_task(threads), block, name)


def _array(asked: Asked, dataset: Any, sent: Any) -> dict[str, Any]:
    """Return a Dask array for each output, and one for the problems."""
    import dask
    import dask.array

    name = asked.only_input("an array")
    blocks = dataset.rechunk(dict.fromkeys(range(1, dataset.ndim), -1)).to_delayed().ravel()
    done = [dask.delayed(_block)(block, sent, asked.threads, name) for block in blocks]

    def whole(key: str, dtype: Any, row: tuple[float, ...]) -> Any:
        parts = [
            dask.array.from_delayed(result[key], (count, *row), dtype)
            for result, count in zip(done, dataset.chunks[0], strict=True)
        ]
        return dask.array.concatenate(parts, allow_unknown_chunksizes=True)

    sizes = {s.name: tuple(d if isinstance(d, int) else np.nan for d in s.shape[1:]) for s in asked.outputs}
    return {s.name: whole(s.name, s.dtype, sizes[s.name]) for s in asked.outputs} | {
        PROBLEM: whole(PROBLEM, np.dtype(object), ())
    }


def threads_of_task(asked: int | None) -> int:
    """Return the number of threads for a run in this task: the requested number, or else the worker's. Tasks
    of a worker that run side by side share the model's threads."""
    if asked is not None:
        return asked
    try:
        from distributed import get_worker

        return min(default_threads(), int(get_worker().state.nthreads))
    except (ImportError, ValueError):  # another scheduler, in this process
        return default_threads()
