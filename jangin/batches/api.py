"""`jangin.batch`: run a model on all rows of a data set, on the workers of the engine that holds it."""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Mapping, Sequence
from importlib import import_module
from io import BytesIO
from pathlib import Path
from typing import Any, Unpack

from jangin.batches.asked import Asked
from jangin.options import Given, Options, takes
from jangin.runtime.compiled import Compiled, read_artifact, signature
from jangin.runtime.frames import PROBLEM
from jangin.runtime.rows import Sent, batch_size
from jangin.runtime.sizes import TensorSpec

ENGINES = {
    "dask": "jangin.batches.dask_engine",
    "dask_expr": "jangin.batches.dask_engine",
    "ray": "jangin.batches.ray_engine",
    "pyspark": "jangin.batches.spark_engine",
}
"""The modules that run models on data sets, by the package of the data set's class."""
FEWEST, MOST = 32, 256
"""The default of the most rows in a run lies between these numbers. More rows need more memory. A run reads
all weights, so that few rows of a large model wait for memory, which all processors share."""
SMALL = 1 << 14
"""The bytes of all rows of a run by default, if they are more than FEWEST. Larger rows would take much
memory within the model."""


@takes(Given)
def batch(
    model: Any,
    dataset: Any,
    inputs: Mapping[str, str | Sequence[str]] | None = None,
    *,
    keep: Sequence[str] | None = None,
    rows: int | None = None,
    threads: int | None = None,
    workers: int | None = None,
    target: str | None = None,
    shapes: Mapping[str, Any] | None = None,
    **given: Unpack[Given],
) -> Any:
    """Run a model on all rows of a data set, and return the results as a data set of the same kind and order.

    `dataset` is a Dask DataFrame, Bag or Array, a Ray Dataset, or a Spark DataFrame. Nothing runs before the
    engine computes the result.

    `model` is anything that `jangin.compile` takes, a `.jgn` file, or a model that is loaded already. It is
    compiled once, and each worker gets it once. Its inputs and outputs must begin with the batch's size.

    - `inputs` gives the column of each input, or the columns that make up its rows: {"x": ["height",
      "width"]}. By default a column has the input's name.
    - `keep` lists the columns that stay in the result. By default all stay.
    - `rows` is the most rows of one run. By default it is 32, or up to 256 for rows of few numbers.
    - `threads` is the threads of a run. By default it is the processors that the engine gives a task.
    - `workers` is the number of Ray's actors, by default 1. Dask and Spark have their workers.
    - `target` and `shapes` are those of `jangin.compile`.

    The result has the outputs by name. A row that the model can't take has none, and `problem` has the
    reason. The result of a Dask Array is a dict of arrays.

    Raises TypeError for a data set of another kind, and ValueError for a model or columns that don't fit."""
    for name, count in (("rows", rows), ("workers", workers)):
        if count is not None and count < 1:
            raise ValueError(f"{name} must be at least 1, got {count}")
    package = type(dataset).__module__.partition(".")[0]
    if package not in ENGINES:
        kinds = "a Dask DataFrame, Bag or Array, a Ray Dataset or a Spark DataFrame"
        raise TypeError(
            f"the data set must be {kinds}, not {type(dataset).__module__}.{type(dataset).__name__}"
        )
    options = Options(target, shapes, threads, **given)
    compiled, data = _compiled(model, options)
    batch_size(compiled)
    specs, outputs = signature(compiled)
    names = {s.name: s.name for s in specs}
    if unknown := [n for n in inputs or {} if n not in names]:
        raise ValueError(f"no input is named {unknown[0]!r}: there are {', '.join(names)}")
    if PROBLEM in {s.name for s in outputs}:
        raise ValueError(
            f"the model's output {PROBLEM!r} has the name of the column of errors: rename the output"
        )
    sent = Sent(hashlib.sha256(data).hexdigest(), data, rows or _rows(specs))
    asked = Asked(
        sent, tuple(outputs), {**names, **(inputs or {})}, inputs is not None, keep, threads, workers
    )
    return import_module(ENGINES[package]).run(asked, dataset)


def _rows(inputs: Sequence[TensorSpec]) -> int:
    """Return the most rows of a run by default, given the model's inputs."""
    sizes = [d for spec in inputs for d in spec.shape[1:]]
    if not all(isinstance(d, int) for d in sizes):
        return FEWEST
    row = sum(spec.dtype.itemsize * math.prod(map(int, spec.shape[1:])) for spec in inputs)
    return min(MOST, max(FEWEST, SMALL // max(row, 1)))


def _compiled(model: Any, options: Options) -> tuple[Compiled, bytes]:
    """Return the compiled model, and the bytes of its file."""
    if hasattr(model, "artifact"):
        compiled: Compiled = model.artifact
    elif isinstance(model, (str, os.PathLike)) and Path(model).suffix == ".jgn":
        data = Path(model).read_bytes()
        return read_artifact(model), data
    else:
        from jangin.compiler.driver import build_by

        compiled = build_by(options, model)
    file = BytesIO()
    compiled.write(file)
    return compiled, file.getvalue()
