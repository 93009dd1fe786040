"""Batch inference on Spark's data frames. Spark broadcasts the model once to each executor."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any
from zipimport import zipimporter

import numpy as np

from jangin.batches.asked import Asked
from jangin.runtime.frames import PROBLEM, Columns, run_frames
from jangin.runtime.rows import LOADS, Sent
from jangin.runtime.sizes import TensorSpec

TYPES = {
    "bool": "BooleanType", "int8": "ByteType", "int16": "ShortType", "int32": "IntegerType",
    "int64": "LongType", "uint8": "ShortType", "uint16": "IntegerType", "uint32": "LongType",
    "float32": "FloatType", "float64": "DoubleType", "object": "StringType",
}  # fmt: skip
"""Spark's types of outputs, by NumPy's. Unsigned integers need the next larger type."""


def run(asked: Asked, dataset: Any) -> Any:
    """Return the results for a Spark DataFrame: its kept columns, the outputs and the problems."""
    from pyspark.sql.types import StringType, StructField, StructType

    columns = asked.columns(dataset.columns)
    kept = [field for field in dataset.schema.fields if field.name in columns.keep]
    columns = columns._replace(keep=[field.name for field in kept])
    added = [StructField(s.name, _type(s)) for s in asked.outputs]
    schema = StructType([*kept, *added, StructField(PROBLEM, StringType())])
    return dataset.mapInPandas(_function(columns, _broadcast(dataset, asked.sent), asked.threads), schema)


def _broadcast(dataset: Any, sent: Sent) -> Callable[[], Sent]:
    """Return a function that returns the model in a worker. Spark broadcasts the model if this process has a
    Spark context. Otherwise the function itself carries the model."""
    context = getattr(dataset.sparkSession, "sparkContext", None)
    if context is None:
        return lambda: sent
    shared = context.broadcast(tuple(sent))
    return lambda: Sent(*shared.value)


def _function(
    columns: Columns, sent: Callable[[], Sent], threads: int | None
) -> Callable[[Iterable[Any]], Iterator[Any]]:
    def work(frames: Iterable[Any]) -> Iterator[Any]:
        from pyspark import TaskContext

        task = TaskContext.get()
        count = threads or (task.cpus() if task is not None else 1)
        before = _loads()
        for frame in run_frames(columns, sent(), count, frames):
            yield _plain(columns, frame)
        _shorten_pause(_loads() > before)

    return work


def _loads() -> int:
    """Return how many models this process has loaded."""
    return len(LOADS)


def _shorten_pause(first: bool) -> None:
    """Make the pause until this worker's next task short. `first` tells whether this task loaded a model.

    Spark collects garbage after each task. The objects of the first one are left out from now on. Before each
    task Spark lets Python look for new modules. Python before 3.13 then reads the directory of pyspark.zip
    for each package that came from it. Dropped finders are made again when a module is imported from them."""
    if first:
        gc.collect()
        gc.freeze()
    for path, finder in [*sys.path_importer_cache.items()]:
        if isinstance(finder, zipimporter):
            sys.path_importer_cache.pop(path, None)


def _plain(columns: Columns, frame: Any) -> Any:
    """Return a frame with its Arrow lists as Python objects. Spark's converter refuses missing lists of
    Arrow."""
    import pandas as pd

    lists = [name for name, (_, axes) in columns.outputs.items() if axes]
    cells = {name: frame[name].to_numpy(dtype=object, na_value=None) for name in lists}
    return frame.assign(**{n: pd.Series(c, frame.index, dtype=object) for n, c in cells.items()})


def _type(spec: TensorSpec) -> Any:
    """Return the Spark type of an output's rows. Raises ValueError for a dtype that Spark hasn't got."""
    from pyspark.sql import types

    name = TYPES.get(np.dtype(spec.dtype).name)
    if name is None:
        raise ValueError(
            f"Spark has no type for the output {spec}: convert it in the model, to float32 for example"
        )
    spark_type = getattr(types, name)()
    for _ in spec.shape[1:]:
        spark_type = types.ArrayType(spark_type)
    return spark_type
