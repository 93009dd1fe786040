"""Run a model on many rows of data, some at a time, and set those apart that it can't take.

This is the part of `jangin.batch` that a worker needs, so it stands in the runtime. It knows no engine.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from pickle import PickleBuffer
from typing import Any, NamedTuple

import numpy as np

from jangin.ir.graph import Array
from jangin.mapped import InMemory
from jangin.runtime.compiled import Compiled, read_memory, signature
from jangin.runtime.load import Runnable, executable
from jangin.runtime.sizes import TensorSpec
from jangin.runtime.system import renew_lock
from jangin.visible import visible

KEPT = 4
"""The most models that a process keeps ready for rows. The latest stay."""
FAULTS = (ValueError, TypeError, IndexError, ArithmeticError)
"""Errors that a row's values may cause in a run. Any other error is not a row's, and is raised."""
SHOWN = 200
"""The most characters of a row's reason, so that a faulty column doesn't fill the results."""


class Made(NamedTuple):
    """The outputs of rows by name, and the reason of each row without outputs, or None.

    An output is one array, or one of objects if its rows differ in shape. Bad rows have zeros or None
    there."""

    outputs: dict[str, Array]
    problems: Array

    @property
    def bad(self) -> Array:
        """For each row, whether it has no outputs."""
        return self.problems.astype(bool)


def batch_size(made: Compiled) -> int | None:
    """Return the number of rows that a run of the model takes, or None if it takes any number.

    Raises ValueError for a model whose inputs and outputs don't all begin with one axis of rows."""
    inputs, outputs = signature(made)
    if made.metadata.get("state"):
        raise ValueError("the model keeps state between runs, so its rows aren't independent")
    values = [*inputs, *outputs]
    odd = next((s for s in values if s.type or not s.shape), None)
    if odd is not None:
        raise ValueError(f"{odd} has no axis of rows: each input and output must begin with the batch's size")
    first = {s.shape[0] for s in inputs}
    fixed = {n for n in first if isinstance(n, int)}
    if len(first) != 1 or any(isinstance(s.shape[0], int) != bool(fixed) for s in outputs):
        listed = "; ".join(map(str, values))
        raise ValueError(f"inputs and outputs must begin with one axis of rows: {listed}")
    if fixed and any(s.shape[0] not in fixed for s in outputs):
        raise ValueError(
            f"inputs have {fixed.pop()} rows, and outputs others: {'; '.join(map(str, outputs))}"
        )
    return fixed.pop() if fixed else None


class Rows:
    """A loaded model that runs on rows. `most` rows run at once if the model takes any number."""

    def __init__(self, model: Runnable, most: int) -> None:
        self._model, self._fixed = model, batch_size(model.artifact)
        self._most = self._fixed or most
        self._specs = {s.name: s for s in model.inputs}

    def __call__(self, columns: Mapping[str, Any]) -> Made:
        """Run the model on columns by input name. Each has one value a row: an array, or nested lists."""
        count = len(next(iter(columns.values())))
        problems = np.full(count, None, object)
        cells = [_column(self._specs[name], values, problems) for name, values in columns.items()]
        outputs = [_Gathered(count) for _ in self._model.outputs]
        for rows in _alike(cells, problems):
            for start in range(0, len(rows), self._most):
                some = rows[start : start + self._most]
                self._attempt(some, {n: _taken(c, some) for n, c in zip(columns, cells, strict=True)},
                              outputs, problems)  # fmt: skip
        specs = self._model.outputs
        return Made({s.name: o.whole(s) for s, o in zip(specs, outputs, strict=True)}, problems)

    def _attempt(
        self, rows: Array, feeds: Mapping[str, Array], outputs: Sequence[_Gathered], problems: Array
    ) -> None:
        """Run some rows. If that fails, run each half, so that a single row has the reason in the end."""
        try:
            results = self._run(len(rows), feeds)
        except FAULTS as error:
            if len(rows) == 1:
                problems[rows[0]] = told(error)
                return
            middle = len(rows) // 2
            for part in (slice(None, middle), slice(middle, None)):
                self._attempt(rows[part], {n: a[part] for n, a in feeds.items()}, outputs, problems)
            return
        for output, result in zip(outputs, results, strict=True):
            output.put(rows, result)

    def _run(self, count: int, feeds: Mapping[str, Array]) -> list[Array]:
        """Return the outputs of rows. If the model has a fixed batch, the last row is repeated to fill it."""
        short = (self._fixed or count) - count
        if short:
            feeds = {n: np.concatenate([a, np.repeat(a[-1:], short, 0)]) for n, a in feeds.items()}
        outputs = self._model.run(feeds)
        results = [np.asarray(outputs[s.name])[:count] for s in self._model.outputs]
        odd = next((r for r in results if len(r) != count), None)
        if odd is not None:
            raise RuntimeError(
                f"an output has {len(odd)} rows for {count} rows of input: only models that treat rows "
                "apart can run by rows"
            )
        return results


class _Gathered:
    """An output whose rows come in parts."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._parts: list[tuple[Array, Array]] = []

    def put(self, rows: Array, values: Array) -> None:
        self._parts.append((rows, values))

    def whole(self, spec: TensorSpec) -> Array:
        """Return all rows in one array."""
        shapes = {v.shape[1:] for _, v in self._parts}
        if len(shapes) > 1:
            whole = np.full(self._count, None, object)
            for rows, values in self._parts:
                for row, value in zip(rows, values, strict=True):
                    whole[row] = value
            return whole
        known = tuple(d if isinstance(d, int) else 0 for d in spec.shape[1:])
        whole = np.zeros((self._count, *(shapes.pop() if shapes else known)), spec.dtype)
        for rows, values in self._parts:
            whole[rows] = values
        return whole


def _column(spec: TensorSpec, values: Any, problems: Array) -> Array | list[Array | None]:
    """Return an input's rows as one array, or as a list of arrays if they can't be converted together. A row
    that the input can't take is None, and its reason is put into `problems`."""
    if isinstance(values, np.ndarray) and values.dtype != object:
        try:
            return _fitted(spec, values, len(values))
        except FAULTS:
            pass  # the rows are looked at one by one
    else:
        try:
            return _fitted(spec, np.stack([np.asarray(v) for v in values]), len(values))
        except FAULTS:
            pass
    cells: list[Array | None] = []
    for row, value in enumerate(values):
        try:
            cells.append(_fitted(spec, np.asarray(_plain(value))))
        except FAULTS as error:
            cells.append(None)
            problems[row] = problems[row] or told(error)
    return cells


def _plain(value: Any) -> Any:
    """Return nested arrays of objects as nested lists, which NumPy makes one array of."""
    return [_plain(v) for v in value] if isinstance(value, np.ndarray) and value.dtype == object else value


def _fitted(spec: TensorSpec, given: Array, *count: int) -> Array:
    """Return one row, or `count` rows, with an input's dtype and shape. Flat rows get the shape.

    Numbers may be rounded, but not otherwise changed. Raises ValueError for values that the input can't
    take."""
    if (given.dtype.kind not in "biufV") != (spec.dtype.kind == "O"):
        shown = visible(repr(given.tolist()))[:40]
        raise ValueError(f"input {spec}: {shown} is no {'text' if spec.dtype.kind == 'O' else 'number'}")
    wanted, shape = spec.shape[1:], given.shape[len(count) :]
    sizes = [n for n in wanted if isinstance(n, int)]
    if len(shape) == 1 != len(wanted) and len(sizes) == len(wanted) and shape[0] == np.prod(sizes):
        given = given.reshape(*count, *sizes)
    elif len(shape) != len(wanted) or any(
        isinstance(w, int) and w != n for w, n in zip(wanted, shape, strict=True)
    ):
        raise ValueError(f"input {spec}: a row has shape {shape}, not that of the input's rows")
    with np.errstate(over="ignore", invalid="ignore"):
        cast = given.astype(spec.dtype)
    if spec.dtype.kind in "biu" and not np.array_equal(cast, given):
        raise ValueError(f"input {spec}: {spec.dtype} can't hold the value")
    if spec.dtype.kind == "f" and given.dtype.kind in "iuf" and np.any(np.isinf(cast) & np.isfinite(given)):
        raise ValueError(f"input {spec}: a value is too large for {spec.dtype}")
    return cast


def _alike(columns: Sequence[Array | list[Array | None]], problems: Array) -> Iterator[Array]:
    """Yield the good rows in groups whose inputs have equal shapes."""
    good = np.flatnonzero(~problems.astype(bool))
    ragged = [c for c in columns if isinstance(c, list)]
    if not ragged:
        yield good
        return
    groups: dict[tuple[Any, ...], list[int]] = {}
    for row in good:
        groups.setdefault(tuple(_present(c[row]).shape for c in ragged), []).append(int(row))
    yield from map(np.array, groups.values())


def _taken(column: Array | list[Array | None], rows: Array) -> Array:
    return np.stack([_present(column[r]) for r in rows]) if isinstance(column, list) else column[rows]


def _present(row: Array | None) -> Array:
    assert row is not None, "a row without a problem has a value"
    return row


def told(error: Exception) -> str:
    """Return a row's reason in one line."""
    return visible(" ".join(str(error).split()))[:SHOWN] or type(error).__name__


class Sent(NamedTuple):
    """A compiled model as an engine sends it to its workers.

    `digest` and `data` are those of its `.jgn` file, and `most` is the most rows of a run. `data` is pickled
    as a buffer, which Dask and Ray move without copies."""

    digest: str
    data: bytes | bytearray | memoryview
    most: int

    def __reduce_ex__(self, protocol: Any) -> Any:
        data = PickleBuffer(self.data) if protocol >= 5 else bytes(self.data)
        return Sent, (self.digest, data, self.most)

    def ready(self, threads: int | None) -> Rows:
        """Return the model, ready to run on `threads` threads. A process loads it once."""
        key = self.digest, threads, self.most
        with _LOCK:
            ready = _READY.pop(key, None)
            if ready is None:
                size = memoryview(self.data).nbytes
                memory = InMemory(size)
                memory[:size] = self.data
                model = read_memory(memory, "the model of jangin.batch")
                ready = Rows(executable(model, threads), self.most)
                LOADS.append(self.digest)
            _READY[key] = ready
            while len(_READY) > KEPT:
                del _READY[next(iter(_READY))]
            return ready


_LOCK = threading.Lock()


renew_lock(globals(), "_LOCK", threading.Lock)
_READY: dict[tuple[str, int | None, int], Rows] = {}
LOADS: list[str] = []
"""The digests of the models that this process has loaded, once for each loading."""
