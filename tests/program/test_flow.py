"""Branches and loops with known sizes run as native code, without Python between their segments."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from build import body, info, model
from onnx import TensorProto, helper

import jangin
from jangin.runtime.executable import Executable
from jangin.runtime.program import ProgramExecutable

ROWS = 100
"""More rows than are unrolled."""
Array = np.ndarray[Any, Any]


execute = Executable.execute


@pytest.fixture(autouse=True)
def no_python(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make it an error for Python to start a segment by itself."""

    def refuse(*_: object) -> None:
        raise AssertionError("a segment was started from Python")

    monkeypatch.setattr(Executable, "execute", refuse)


def check(m: onnx.ModelProto, *arrays: Array) -> ProgramExecutable:
    """Check that one executable gives ONNX Runtime's results in every call."""
    exe = jangin.compile(m, cache=False)
    assert isinstance(exe, ProgramExecutable)
    names = [s.name for s in exe.inputs]
    m.ir_version = 10
    session = ort.InferenceSession(m.SerializeToString(), providers=["CPUExecutionProvider"])
    expected = session.run(None, dict(zip(names, arrays, strict=True)))
    for _ in range(2):
        given = exe.run(dict(zip(names, arrays, strict=True)))
        for ours, theirs in zip(given.values(), expected, strict=True):
            assert ours.dtype == theirs.dtype
            np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)
    return exe


def scan(directions: tuple[int, int], axes: tuple[int, int]) -> onnx.ModelProto:
    """Make a recurrence of two values that change places. Each iteration takes a slice of x, and gives a
    slice of y."""
    inner = body(
        "recurrence",
        [
            helper.make_node("MatMul", ["a", "w"], ["aw"]),
            helper.make_node("Add", ["aw", "slice"], ["sum"]),
            helper.make_node("Tanh", ["sum"], ["next"]),
            helper.make_node("Sub", ["next", "b"], ["part"]),
        ],
        [info("a", ["n", 4]), info("b", ["n", 4]), info("slice", ["n", 4])],
        ["b", "next", "part"],
    )
    node = helper.make_node(
        "Scan", ["h", "c", "x"], ["last_h", "last_c", "y"], body=inner, num_scan_inputs=1,
        scan_input_directions=[directions[0]], scan_output_directions=[directions[1]],
        scan_input_axes=[axes[0]], scan_output_axes=[axes[1]],
    )  # fmt: skip
    shape: list[int | str] = ["n", 4]
    shape.insert(axes[0], ROWS)
    w = np.random.default_rng(1).standard_normal((4, 4)).astype(np.float32)
    inputs = [info("h", ["n", 4]), info("c", ["n", 4]), info("x", shape)]
    return model([node], inputs, ["last_h", "last_c", "y"], {"w": w})


@pytest.mark.parametrize("directions", [(0, 0), (1, 0), (0, 1)])
@pytest.mark.parametrize("axes", [(0, 0), (1, 2)])
def test_scan(directions: tuple[int, int], axes: tuple[int, int]) -> None:
    rng = np.random.default_rng(0)
    m = scan(directions, axes)
    exe = jangin.compile(m, cache=False)
    for n in (1, 3):
        shape = [n, 4]
        shape.insert(axes[0], ROWS)
        h, c = rng.standard_normal((2, n, 4)).astype(np.float32)
        x = rng.standard_normal(shape).astype(np.float32)
        expected = recurrence(h, c, np.moveaxis(x, axes[0], 0), m, directions)
        expected[2] = np.moveaxis(expected[2], 0, axes[1])
        for ours, theirs in zip(exe(h, c, x), expected, strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)


def recurrence(h: Array, c: Array, x: Array, m: onnx.ModelProto, directions: tuple[int, int]) -> list[Array]:
    w = onnx.numpy_helper.to_array(m.graph.initializer[0])
    parts = []
    for row in x[::-1] if directions[0] else x:
        after = np.tanh(h @ w + row)
        parts.append(after - c)
        h, c = c, after
    return [h, c, np.stack(parts[::-1] if directions[1] else parts)]


def countdown(limit: bool) -> onnx.ModelProto:
    """Make a loop in which x grows by its own half, by a branch in each iteration, while it is less than
    1000."""
    more = body("more", [helper.make_node("Add", ["v", "half"], ["m"])], [], ["m"])
    less = body("less", [helper.make_node("Sub", ["v", "half"], ["l"])], [], ["l"])
    inner = body(
        "step",
        [
            helper.make_node("Mul", ["v", "point5"], ["half"]),
            helper.make_node("Greater", ["v", "zero"], ["positive"]),
            helper.make_node("If", ["positive"], ["new"], then_branch=more, else_branch=less),
            helper.make_node("Less", ["new", "thousand"], ["going"]),
        ],
        [info("i", [], TensorProto.INT64), info("c", [], TensorProto.BOOL), info("v", [])],
        ["going", "new"],
    )
    node = helper.make_node("Loop", ["trips" if limit else "", "", "x"], ["y"], body=inner)
    inputs = [*([info("trips", [], TensorProto.INT64)] if limit else []), info("x", [])]
    constants = {"point5": np.float32(0.5), "zero": np.float32(0), "thousand": np.float32(1000)}
    return model([node], inputs, ["y"], constants)


def test_a_loop_ends_by_its_condition() -> None:
    exe = check(countdown(False), np.array(1, np.float32))
    assert exe(np.array(990, np.float32)) == pytest.approx(1485)


def test_a_loop_ends_by_its_count(tmp_path: Path) -> None:
    exe = check(countdown(True), np.array(5), np.array(1, np.float32))
    assert exe(np.array(0), np.array(7, np.float32)) == 7
    assert exe(np.array(-3), np.array(7, np.float32)) == 7
    exe.save(tmp_path / "loop.jgn")
    loaded = jangin.load(tmp_path / "loop.jgn")
    assert loaded(np.array(2), np.array(2, np.float32)) == 4.5


def collatz(kind: int) -> onnx.ModelProto:
    """Make a loop of the Collatz numbers from `start` to 1, each with a row of y, whose middle doubles.
    Nothing tells the number of iterations before."""
    step = [
        helper.make_node("Mod", ["v", "two"], ["odd"]),
        helper.make_node("Div", ["v", "two"], ["half"]),
        helper.make_node("Mul", ["v", "three"], ["triple"]),
        helper.make_node("Add", ["triple", "one"], ["more"]),
        helper.make_node("Equal", ["odd", "one"], ["is_odd"]),
        helper.make_node("Where", ["is_odd", "more", "half"], ["next"]),
        helper.make_node("Greater", ["next", "one"], ["going"]),
        helper.make_node("Identity", ["v"], ["number"]),
        helper.make_node("Cast", ["v"], ["scale"], to=kind),
        helper.make_node("Mul", ["row", "scale"], ["rows"]),
        helper.make_node("Add", ["row", "scale"], ["next_row"]),
    ]
    inner = body(
        "collatz", step,
        [
            info("i", [], TensorProto.INT64), info("c", [], TensorProto.BOOL),
            info("v", [], TensorProto.INT64), info("row", ["n", 3], kind),
        ],
        ["going", "next", "next_row", "number", "rows"],
    )  # fmt: skip
    node = helper.make_node(
        "Loop", ["trips", "", "start", "x"], ["last", "last_row", "numbers", "rows"], body=inner
    )
    total = helper.make_node("ReduceSum", ["numbers"], ["total"], keepdims=0)
    counts = [info(name, [], TensorProto.INT64) for name in ("trips", "start")]
    inputs = [*counts, info("x", ["n", 3], kind)]
    constants = {name: np.array(n) for n, name in enumerate(("one", "two", "three"), 1)}
    return model([node, total], inputs, ["last", "last_row", "numbers", "rows", "total"], constants)


@pytest.mark.parametrize(
    "kind", [TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.INT32, TensorProto.INT64]
)
def test_a_loop_that_says_how_many_slices_it_collects(kind: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Python starts only one segment: the one that follows the loop."""
    started: list[Any] = []

    def counted(*given: Any) -> Any:
        started.append(given)
        return execute(*given)

    monkeypatch.setattr(Executable, "execute", counted)
    dtype = helper.tensor_dtype_to_np_dtype(kind)
    exe = check(collatz(kind), np.array(10**6), np.array(27), np.arange(6).reshape(2, 3).astype(dtype))
    assert len(started) == 2
    for start, trips, count in (
        (1, 9, 3),
        (7, 99, 16),
        (27, 999, 111),
        (27, 17, 17),
        (9, 0, 0),
        (97, 500, 118),
    ):
        for n in (1, 5):
            x = np.arange(3 * n).reshape(n, 3).astype(dtype)
            expected = collatz_by_hand(start, trips, x)
            assert len(expected[2]) == count
            for ours, theirs in zip(exe(np.array(trips), np.array(start), x), expected, strict=True):
                np.testing.assert_allclose(ours, theirs, rtol=1e-5)
                assert np.shape(ours) == np.shape(theirs)


def collatz_by_hand(v: int, trips: int, row: Array) -> list[Any]:
    numbers: list[int] = []
    rows = np.empty((0, *row.shape), row.dtype)
    while len(numbers) < trips and (v > 1 or not numbers):
        numbers.append(v)
        scale = row.dtype.type(v)
        rows = np.concatenate([rows, (row * scale)[None]])
        row, v = row + scale, 3 * v + 1 if v % 2 else v // 2
    return [v, row, np.array(numbers, np.int64), rows, sum(numbers)]


def branches() -> onnx.ModelProto:
    """Make branches that give a computed value, or an existing one: a constant, an input, or one value
    twice."""
    same = [helper.make_node("Identity", [n], [f"{n}_{i}"]) for n in ("k", "x") for i in range(2)]
    square = helper.make_node("Mul", ["x", "x"], ["square"])
    twice = helper.make_node("Identity", ["square"], ["again"])
    then = body("then", [square, twice, same[0]], [], ["square", "again", "k_0"])
    minus = helper.make_node("Neg", ["x"], ["minus"])
    orelse = body("else", [minus, *same[2:]], [], ["x_0", "minus", "x_1"])
    node = helper.make_node("If", ["flag"], ["p", "q", "r"], then_branch=then, else_branch=orelse)
    inputs = [info("flag", [], TensorProto.BOOL), info("x", [3])]
    return model([node], inputs, ["p", "q", "r"], {"k": np.arange(3, dtype=np.float32)})


@pytest.mark.parametrize("flag", [False, True])
def test_results_that_a_branch_does_not_compute(flag: bool) -> None:
    check(branches(), np.array(flag), np.array([1, -2, 3], np.float32))


@pytest.mark.parametrize("trips", [0, 3, ROWS])
def test_what_a_body_gives_as_it_takes_it(trips: int) -> None:
    """A body's output that is its input, or a constant outside, is seen from outside. Its name in the body
    may be another value's name outside."""
    inner = body(
        "step",
        [
            helper.make_node("MatMul", ["v", "w"], ["vw"]),
            helper.make_node("Add", ["vw", "x"], ["sum"]),
            helper.make_node("Tanh", ["sum"], ["next"]),
            helper.make_node("Identity", ["c"], ["going"]),
        ],
        [
            info("i", [], TensorProto.INT64), info("c", [], TensorProto.BOOL), info("w", [4, 4]),
            info("v", ["n", 4]), info("x", ["n", 4]),
        ],
        ["going", "w", "next", "x"],
    )  # fmt: skip
    node = helper.make_node("Loop", ["trips", "", "k", "x", "y"], ["same", "last", "too"], body=inner)
    inputs = [info("trips", [], TensorProto.INT64), info("x", ["n", 4]), info("y", ["n", 4])]
    k = np.random.default_rng(1).standard_normal((4, 4)).astype(np.float32) / 2
    x, y = np.random.default_rng(2).standard_normal((2, 3, 4)).astype(np.float32)
    exe = check(model([node], inputs, ["same", "last", "too"], {"k": k}), np.array(trips), x, y)
    assert not any(s.shape == (4, 4) for part in exe.segments for s in part.inputs), "weights aren't constant"


def test_calls_at_once_do_not_mix() -> None:
    exe = jangin.compile(countdown(True), threads=1, cache=False)
    starts = [np.array(x, np.float32) for x in np.linspace(1, 900, 40)]
    alone = [exe(np.array(8), x) for x in starts]
    with ThreadPoolExecutor(4) as threads:
        together = list(threads.map(lambda x: exe(np.array(8), x), starts))
    np.testing.assert_array_equal(together, alone)
