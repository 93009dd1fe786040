"""Rows of data on a model: shapes, dtypes, bad rows, fixed batches."""

from __future__ import annotations

import gc
import hashlib
import importlib
import pickle
import sys
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import numpy as np
import onnx.parser
import pytest

import jangin
from jangin.batches.api import _compiled, _rows
from jangin.batches.asked import Asked
from jangin.options import Options
from jangin.runtime.compiled import signature
from jangin.runtime.rows import LOADS, Rows, Sent, batch_size, told
from jangin.runtime.sizes import TensorSpec

HEAD = '<ir_version: 10, opset_import: ["" : 21]>'
TABLE = f"""{HEAD} table (float[n,3] x, int64[n] i) => (float[n,3] y, int64[n] k) {{
    t = Constant<value = float[4,3] {{0,1,2,3,4,5,6,7,8,9,10,11}}>() e = Gather<axis=0>(t, i)
    y = Add(x, e) k = Neg(i) }}"""
"""A model that fails for an index beyond 3, and only then."""
X = np.arange(30, dtype=np.float32).reshape(10, 3)
INDEX = np.arange(10) % 4


def rows(text: str = TABLE, most: int = 4, **shapes: int) -> Rows:
    exe = jangin.compile(onnx.parser.parse_model(text), threads=1, shapes=shapes or None)
    return Rows(exe, most)


def expected(x: Any, i: Any) -> Any:
    return x + np.arange(12, dtype=np.float32).reshape(4, 3)[i]


@pytest.mark.parametrize("shapes", [{}, {"n": 1}, {"n": 4}], ids=str)
@pytest.mark.parametrize("most", [1, 3, 100])
def test_outputs_are_those_of_one_run(shapes: dict[str, int], most: int) -> None:
    made = rows(most=most, **shapes)({"x": X, "i": INDEX})
    np.testing.assert_array_equal(made.outputs["y"], expected(X, INDEX))
    np.testing.assert_array_equal(made.outputs["k"], -INDEX)
    assert made.problems.tolist() == [None] * 10


@pytest.mark.parametrize("shapes", [{}, {"n": 4}], ids=str)
def test_bad_rows_are_set_apart_with_their_reasons(shapes: dict[str, int]) -> None:
    values: list[Any] = [*X]
    values[1], values[4], values[7] = [1, 2], None, [1, 2, "a"]
    index: list[Any] = [*INDEX]
    index[2], index[5], index[8] = 9, 1.5, "b"
    made = rows(**shapes)({"x": values, "i": index})
    reasons = {row: reason for row, reason in enumerate(made.problems) if reason}
    assert sorted(reasons) == [1, 2, 4, 5, 7, 8]
    assert "a row has shape (2,)" in reasons[1] and "None is no number" in reasons[4]
    assert "index 9 is out of range" in reasons[2] and "int64 can't hold the value" in reasons[5]
    assert "is no number" in reasons[7] and "'b' is no number" in reasons[8]
    good = [0, 3, 6, 9]
    np.testing.assert_array_equal(made.outputs["y"][good], expected(X, INDEX)[good])


def test_a_bad_row_costs_the_others_few_runs() -> None:
    """A row that fails is found by halves."""
    model, calls = rows(most=64), []
    run = model._model.run
    model._model.run = lambda feeds: (calls.append(len(feeds["x"])), run(feeds))[1]  # type: ignore[method-assign, func-returns-value]
    index = np.zeros(64, np.int64)
    index[17] = 99
    made = model({"x": np.zeros((64, 3)), "i": index})
    assert [row for row, p in enumerate(made.problems) if p] == [17]
    assert len(calls) == 1 + 2 * 6  # the whole, and two halves for each of log2(64) levels


@pytest.mark.parametrize(
    ("value", "right"),
    [
        (np.float64([1, 2, 3]), True), ([1, 2, 3], True), (np.array([[1], [2], [3]]), False),
        ([1e300, 0, 0], False), ([float("inf"), 0, 0], True), ([float("nan"), 0, 0], True),
        ([True, False, True], True), (["1", "2", "3"], False), (np.array([1 + 2j] * 3), False),
        (np.array([np.float64(1), 2, 3], object), True), (3.0, False), ({}, False),
    ],
    ids=str,
)  # fmt: skip
def test_numbers_change_by_rounding_only(value: Any, right: bool) -> None:
    made = rows()({"x": [value], "i": [0]})
    assert (made.problems[0] is None) == right, made.problems[0]


@pytest.mark.parametrize("value", [2**31, -(2**31) - 1, 0.5, float("nan")])
def test_integers_never_wrap(value: float) -> None:
    text = f"{HEAD} g (int32[n] i) => (int32[n] o) {{ o = Neg(i) }}"
    made = rows(text)({"i": [1, value, 2.0]})
    assert [p is None for p in made.problems] == [True, False, True]
    assert made.outputs["o"][[0, 2]].tolist() == [-1, -2]


def test_flat_rows_get_the_inputs_shape() -> None:
    text = f"{HEAD} g (float[n,2,3] x) => (float[n,3,2] y) {{ y = Transpose<perm=[0,2,1]>(x) }}"
    flat = np.arange(24.0).reshape(4, 6)
    wanted = flat.reshape(4, 2, 3).transpose(0, 2, 1)
    for values in (flat, [*flat], np.array([*map(list, flat)], object)):
        np.testing.assert_array_equal(rows(text)({"x": values}).outputs["y"], wanted)


def test_rows_of_different_lengths_keep_their_order() -> None:
    text = f"""{HEAD} g (float[n,m] x) => (float[n,m] y, float[n] s) {{
        y = Add(x, x) a = Constant<value = int64[1] {{1}}>() s = ReduceSum<keepdims=0>(x, a) }}"""
    lengths = [3, 1, 3, 2, 1]
    made = rows(text)({"x": [np.full(n, row + 1.0) for row, n in enumerate(lengths)]})
    assert [v.tolist() for v in made.outputs["y"]] == [[2.0 * (r + 1)] * n for r, n in enumerate(lengths)]
    assert made.outputs["s"].tolist() == [(r + 1.0) * n for r, n in enumerate(lengths)]


@pytest.mark.parametrize(
    ("signature_text", "told_as"),
    [
        ("(float x, float[n] z) => (float[n] y) { y = Add(z, x) }", "no axis of rows"),
        ("(float[n,2] x) => (float[2,n] y) { y = Transpose<perm=[1,0]>(x) }", "one axis of rows"),
        ("(float[4,2] x) => (float[2,4] y) { y = Transpose<perm=[1,0]>(x) }", "4 rows, and outputs others"),
    ],
)
def test_a_model_without_rows_is_refused(signature_text: str, told_as: str) -> None:
    made = jangin.build(onnx.parser.parse_model(f"{HEAD} g {signature_text}"))
    with pytest.raises(ValueError, match=told_as):
        batch_size(made)


def test_errors_that_are_no_rows_are_raised() -> None:
    model = rows()

    def fails(feeds: object) -> None:
        raise MemoryError("no memory")

    model._model.run = fails  # type: ignore[method-assign, assignment]
    with pytest.raises(MemoryError):
        model({"x": X, "i": INDEX})


def test_reasons_are_short_and_safe() -> None:
    assert (
        told(ValueError("a\n\x1b[31m" + "b" * 999)).startswith("a ")
        and len(told(ValueError("b" * 999))) == 200
    )
    assert "\x1b" not in told(ValueError("\x1b[31m")) and told(ValueError()) == "ValueError"


def test_a_process_loads_a_model_once() -> None:
    _, data = _compiled(onnx.parser.parse_model(TABLE), Options())
    before = len(LOADS)
    for _ in range(3):
        Sent("a digest", bytes(data), 8).ready(1)
    assert LOADS[before:] == ["a digest"]


def test_columns_are_checked_before_anything_runs() -> None:
    made = jangin.build(onnx.parser.parse_model(TABLE))
    specs = signature(made)[1]

    def asked(keep: list[str] | None = None, **inputs: Any) -> Asked:
        return Asked(Sent("", b"", 1), specs, {"x": "x", "i": "i", **inputs}, True, keep, None, None)

    assert asked(x=["a", "b"]).columns(["a", "b", "i"]).outputs == {
        "y": ("float32", 1),
        "k": ("int64", 0),
    }
    with pytest.raises(ValueError, match="no column 'x', but a, i"):
        asked().columns(["a", "i"])
    with pytest.raises(ValueError, match="no column 'z'"):
        asked(keep=["z"]).columns(["x", "i"])
    for name in ("y", "problem"):
        with pytest.raises(ValueError, match=f"two columns '{name}'"):
            asked().columns(["x", "i", name])
    with pytest.raises(ValueError, match="one value a row"):
        asked().only_input("an array")


def framed(text: str, x: list[Any]) -> Any:
    """Return the results of a frame whose column `x` is a model's only input."""
    pd = pytest.importorskip("pandas", reason="pandas isn't installed")
    pytest.importorskip("pyarrow", reason="pyarrow isn't installed")
    compiled, data = _compiled(onnx.parser.parse_model(text), Options())
    sent = Sent(hashlib.sha256(data).hexdigest(), data, 32)
    asked = Asked(sent, signature(compiled)[1], {"x": "x"}, False, [], 1, None)
    columns, frame = asked.columns(["x"]), pd.DataFrame({"x": pd.Series(x, dtype=object)})
    found = columns.run(sent, 1, frame)
    assert (columns.empty(frame).dtypes == found.dtypes).all(), "Dask is told the types beforehand"
    return found


@pytest.mark.parametrize("name", ["float", "float16", "int64", "bool"])
def test_rows_of_numbers_are_lists_of_arrow(name: str) -> None:
    text = f"{HEAD} g ({name}[n,2,3] x) => ({name}[n,2,3] y) {{ y = Transpose<perm=[0,1,2]>(x) }}"
    rng = np.random.default_rng(7)
    values = [(rng.random((2, 3)) * 9).astype(name.replace("float", "float32") if name == "float" else name)
              for _ in range(5)]  # fmt: skip
    found = framed(text, [*values[:2], "no row", *values[2:]])["y"]
    assert found.isna().tolist() == [False, False, True, False, False, False]
    for row, wanted in zip(found.drop(2).to_numpy(), values, strict=True):
        assert [part.dtype for part in row] == [wanted.dtype] * 2
        np.testing.assert_array_equal(np.stack(row), wanted)


def test_rows_of_different_shapes_are_lists_of_arrow() -> None:
    text = f"{HEAD} g (float[n,m] x) => (float[n,m] y) {{ y = Add(x, x) }}"
    found = framed(text, [np.full(n, n, np.float32) for n in (3, 1, 0, 2)])["y"]
    assert [row.tolist() for row in found.to_numpy()] == [[6.0] * 3, [2.0], [], [4.0] * 2]


def test_results_travel_as_one_block() -> None:
    """Workers send results to each other and to the client. A pickled object for each row took longer than
    many models."""
    text = f"{HEAD} g (float[n,4] x) => (float[n,4] y) {{ y = Neg(x) }}"
    rows = np.random.default_rng(3).random((2048, 4)).astype(np.float32)
    found = framed(text, [*rows])[["y"]]
    assert len(pickle.dumps(found)) < rows.nbytes + 2048 * 4 + 5000  # numbers, where each row ends, names


@pytest.mark.parametrize("name", ["rows", "workers"])
def test_counts_below_one_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match=f"{name} must be at least 1, got 0"):
        jangin.batch(onnx.parser.parse_model(TABLE), [], **{name: 0})


def test_other_data_sets_and_inputs_are_refused() -> None:
    with pytest.raises(TypeError, match=r"the data set must be a Dask .* not builtins.list"):
        jangin.batch(onnx.parser.parse_model(TABLE), [1, 2])


@pytest.mark.parametrize(
    ("shapes", "rows"),
    [
        ([("n", 16)], 256),
        ([("n", 64), ("n",)], 63),
        ([("n", 3, 224, 224)], 32),
        ([("n", "length")], 32),
        ([("n",)], 256),
    ],
)
def test_rows_of_few_numbers_run_many_at_once(shapes: list[tuple[int | str, ...]], rows: int) -> None:
    specs = [TensorSpec(f"x{i}", np.dtype(np.float32), shape) for i, shape in enumerate(shapes)]
    assert _rows(specs) == rows


def test_finders_of_zip_files_are_dropped_between_sparks_tasks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Modules are still imported from the file. The first task's objects are in no later collection."""
    from jangin.batches.spark_engine import _shorten_pause

    with ZipFile(tmp_path / "both.zip", "w") as file:
        file.writestr("zipped_first.py", "")
        file.writestr("zipped_second.py", "")
    monkeypatch.syspath_prepend(tmp_path / "both.zip")
    importlib.import_module("zipped_first")
    assert str(tmp_path / "both.zip") in sys.path_importer_cache
    frozen = gc.get_freeze_count()
    try:
        _shorten_pause(False)
        assert gc.get_freeze_count() == frozen
        assert str(tmp_path / "both.zip") not in sys.path_importer_cache
        importlib.import_module("zipped_second")
        _shorten_pause(True)
        assert gc.get_freeze_count() > frozen
    finally:
        gc.unfreeze()
