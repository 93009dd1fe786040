"""The workers' part of `jangin.batch`: rows in pandas frames, in records and in arrays."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from jangin.ir.graph import Array
from jangin.runtime.rows import Made, Sent

PROBLEM = "problem"
"""The column, or the record's key, that has the reason of a row without outputs."""


class Columns(NamedTuple):
    """The columns of a frame that a model reads, and those that its results keep.

    `inputs` has one column of values for each input, or a list of columns that make up a row. `outputs` has
    the NumPy name of each output's dtype, and the number of axes of a row."""

    inputs: Mapping[str, str | Sequence[str]]
    outputs: Mapping[str, tuple[str, int]]
    keep: Sequence[str]

    def run(self, sent: Sent, threads: int | None, frame: Any) -> Any:
        """Return a pandas frame with the kept columns of `frame`, the outputs and the problems, by the same
        index."""
        import pandas as pd

        batch = sent.ready(threads)({name: self._values(frame, c) for name, c in self.inputs.items()})
        added = {n: pd.Series(self._cells(n, a, batch), frame.index) for n, a in batch.outputs.items()}
        problems = pd.Series(batch.problems, frame.index, dtype=object)
        return pd.concat([frame[[*self.keep]], pd.DataFrame({**added, PROBLEM: problems})], axis=1)

    def empty(self, frame: Any) -> Any:
        """Return the result's columns without rows, given a frame's."""
        import pandas as pd

        added = {n: pd.Series([], dtype=self._dtype(n)) for n in self.outputs}
        result = frame[[*self.keep]].assign(**added)
        return result.assign(**{PROBLEM: pd.Series([], dtype=object)})

    @staticmethod
    def _values(frame: Any, columns: str | Sequence[str]) -> Any:
        cells = frame[columns if isinstance(columns, str) else [*columns]]
        return cells.to_numpy()

    def _dtype(self, name: str) -> Any:
        """Return the pandas dtype of an output. Numbers without a NaN get a type that has missing values, and
        rows of numbers get Arrow's type of lists."""
        dtype, axes = self.outputs[name]
        kind = np.dtype(dtype).kind
        if kind not in "biuf":
            return "object"
        if axes:
            import pandas as pd

            return pd.ArrowDtype(_lists(dtype, axes))
        return (
            dtype if kind == "f" else "boolean" if kind == "b" else dtype.replace("i", "I").replace("u", "U")
        )

    def _cells(self, name: str, values: Array, made: Made) -> Any:
        """Return an output's cells. Bad rows have none."""
        import pandas as pd

        bad, (dtype, axes) = made.bad, self.outputs[name]
        numbers = np.dtype(dtype).kind in "biuf"
        if axes and numbers:
            return pd.arrays.ArrowExtensionArray(_as_lists(values, dtype, axes, bad))
        if not numbers:
            cells = np.empty(len(values), object)
            for row, value in enumerate(values):
                cells[row] = None if bad[row] else nested(value)
            return cells
        if np.dtype(dtype).kind == "f":
            values[bad] = np.nan
            return values
        column = pd.array(values, dtype=self._dtype(name))
        column[bad] = None
        return column


def _lists(dtype: str, axes: int) -> Any:
    """Return Arrow's type of rows: lists of numbers within lists."""
    import pyarrow as pa

    kind = pa.from_numpy_dtype(dtype)
    for _ in range(axes):
        kind = pa.list_(kind)
    return kind


def _as_lists(values: Array, dtype: str, axes: int, bad: Array) -> Any:
    """Return rows of numbers as an array of Arrow, with nulls for bad rows.

    It is one block of memory, which travels between processes and into files as it is."""
    import pyarrow as pa

    if values.dtype == object:  # rows of different shapes
        cells = [None if bad[row] else nested(value) for row, value in enumerate(values)]
        return pa.array(cells, _lists(dtype, axes))
    lists = pa.array(values.reshape(-1))
    for axis in range(axes, 0, -1):
        size = values.shape[axis]
        starts = pa.array(np.arange(math.prod(values.shape[:axis]) + 1) * size, pa.int32())
        lists = pa.ListArray.from_arrays(starts, lists, mask=pa.array(bad) if axis == 1 else None)
    return lists


def nested(value: Any) -> Any:
    """Return an array as nested lists of one-dimensional arrays, which is the form that Arrow takes."""
    return [nested(v) for v in value] if isinstance(value, np.ndarray) and value.ndim > 1 else value


def run_records(sent: Sent, threads: int | None, records: Iterable[Any], names: Sequence[str]) -> list[Any]:
    """Return a record for each one: a dict of outputs and the problem, with the record's own keys if it is a
    dict. A record that isn't a dict is the value of the only input in `names`."""
    rows = [*records]
    if not rows:
        return []
    dicts = [r if isinstance(r, Mapping) else {names[0]: r} if len(names) == 1 else {} for r in rows]
    batch = sent.ready(threads)({name: [d.get(name) for d in dicts] for name in names})
    own = [r if isinstance(r, Mapping) else {} for r in rows]
    return [
        {
            **own[row],
            **{n: None if problem is not None else a[row] for n, a in batch.outputs.items()},
            PROBLEM: problem,
        }
        for row, problem in enumerate(batch.problems)
    ]


def run_block(sent: Sent, threads: int | None, block: Array, name: str) -> dict[str, Array]:
    """Return the outputs of an array's rows, and their problems. Bad rows of floats are NaN."""
    batch = sent.ready(threads)({name: block})
    bad = batch.bad
    for values in batch.outputs.values():
        if values.dtype.kind == "f":
            values[bad] = np.nan
    return {**batch.outputs, PROBLEM: batch.problems}


def run_frames(columns: Columns, sent: Sent, threads: int | None, frames: Iterable[Any]) -> Iterator[Any]:
    """Yield the result of each frame."""
    for frame in frames:
        yield columns.run(sent, threads, frame)
