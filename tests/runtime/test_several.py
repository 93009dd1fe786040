"""One model on several devices at once. Here, both devices are the processor."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

import jangin
from jangin.bench.trace import several_events
from jangin.commands.placement import devices_table
from jangin.compiler import several as compiling
from jangin.compiler.place import Placing, Times, Unit, branches, runs, stages
from jangin.ir.graph import Node
from jangin.runtime.artifact import ArtifactError
from jangin.runtime.several import SeveralExecutable
from jangin.runtime.several_artifact import SeveralArtifact
from jangin.runtime.shares import Trials, shared_out

sys.path.insert(0, str(Path(__file__).parent.parent / "backends"))
from test_toy_backend import branches as steps
from test_toy_backend import network

BOTH = "cpu+x86-64-v2"
pytestmark = pytest.mark.skipif(
    jangin.targets.resolve("cpu").triple.partition("-")[0] != "x86_64", reason="this processor runs no x86-64"
)


def forked() -> onnx.ModelProto:
    """Return two branches of the same work, and a join, for any batch."""
    rng = np.random.default_rng(1)
    arrays = {n: rng.standard_normal((16, 16)).astype(np.float32) for n in ("a", "b", "c")}
    nodes = [
        helper.make_node("MatMul", ["x", "a"], ["stem"]),
        helper.make_node("MatMul", ["stem", "b"], ["left"]),
        helper.make_node("MatMul", ["stem", "c"], ["right"]),
        helper.make_node("Tanh", ["right"], ["tanh"]),
        helper.make_node("Add", ["left", "tanh"], ["y"]),
    ]
    ends = [helper.make_tensor_value_info(n, TensorProto.FLOAT, ["batch", 16]) for n in "xy"]
    constants = [numpy_helper.from_array(a, n) for n, a in arrays.items()]
    graph = helper.make_graph(nodes, "forked", ends[:1], ends[1:], constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)])


def both(model: onnx.ModelProto) -> SeveralExecutable:
    made = jangin.compile(model, BOTH, cache=False)
    assert isinstance(made, SeveralExecutable)
    return made


def test_a_batch_is_shared_out(tmp_path: Path) -> None:
    model = network()
    exe = both(model)
    assert exe.artifact.rows == "batch"
    exe.save(tmp_path / "m.jgn")
    again = jangin.load(tmp_path / "m.jgn")
    assert isinstance(again, SeveralExecutable) and again.artifact.names == ("cpu", "x86-64-v2")
    for run in (exe, again):
        x = (
            np.random.default_rng(0).standard_normal((60, 3, 8, 8)).astype(np.float32)
        )  # a busy device has one
        (expected,) = ReferenceEvaluator(model).run(None, {"x": x})
        worked: set[int] = set()
        run.record = lambda device, what, start, end, worked=worked: worked.add(device)
        found = run.ways({"x": x})
        assert found is not None
        while not found.settled:
            np.testing.assert_allclose(run(x), expected, rtol=1e-5, atol=1e-6)
        assert worked == {0, 1}
        assert any(not isinstance(w, str) and min(w) > 0 for w in found.seconds)
        np.testing.assert_allclose(run(x[:1]), expected[:1], rtol=1e-5, atol=1e-6)


def test_constants_are_in_a_file_once(tmp_path: Path) -> None:
    weights = np.random.default_rng(0).standard_normal((300, 300)).astype(np.float32)
    value = [helper.make_tensor_value_info(n, TensorProto.FLOAT, ["n", 300]) for n in "xy"]
    node = helper.make_node("Add", ["x", "w"], ["y"])
    graph = helper.make_graph([node], "g", value[:1], value[1:], [numpy_helper.from_array(weights[:1], "w")])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)])
    made = jangin.build(model, BOTH, cache=False)
    assert isinstance(made, SeveralArtifact)
    first, second = (p.plan.constants for p in made.parts)  # type: ignore[union-attr]
    assert {id(a) for a in first.values()} == {id(a) for a in second.values()}


def test_what_is_wrong_is_said_as_by_one_device() -> None:
    exe = both(network())
    with pytest.raises(TypeError, match="got dtype float64"):
        exe(np.zeros((2, 3, 8, 8)))
    with pytest.raises(ValueError, match="must be 8, got shape"):
        exe(np.zeros((2, 3, 8, 9), np.float32))
    with pytest.raises(ValueError, match="expected 1 inputs, got 2"):
        exe(np.zeros(1), np.zeros(1))
    with pytest.raises(ValueError, match="no input is named 'z'"):
        exe.run({"z": np.zeros(1)})
    with pytest.raises(ValueError, match=r"cpu.cpu. has .* twice: name each device once"):
        jangin.compile(network(), "cpu+cpu")
    with pytest.raises(ValueError, match="unknown target 'nothing'"):
        jangin.compile(network(), "cpu+nothing")


def test_a_model_that_cannot_be_shared_out() -> None:
    exe = both(steps())
    assert not exe.artifact.rows and "steps" in exe.artifact.reason
    x = np.float32([1, 2, 3])
    for _ in range(8):
        np.testing.assert_array_equal(exe(np.array(True), x), x + 2)


def test_a_damaged_file(tmp_path: Path) -> None:
    path = tmp_path / "m.jgn"
    both(network()).save(path)
    whole = path.read_bytes()
    for at in (20, 80, len(whole) // 2, len(whole) - 5):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 255]) + whole[at + 1 :])
        with pytest.raises(ArtifactError):
            jangin.load(path)(np.zeros((1, 3, 8, 8), np.float32))
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ArtifactError):
        jangin.load(path)


# --- streams


def items(count: int) -> Iterator[Mapping[str, Any]]:
    for n in range(count):
        yield {"x": np.full((1 + n % 3, 16), n, np.float32)}


def test_a_stream_keeps_its_order() -> None:
    model = forked()
    exe, reference = both(model), ReferenceEvaluator(model)
    count = 0
    for feeds, made in zip(items(20), exe.stream(items(20)), strict=True):
        (expected,) = reference.run(None, dict(feeds))
        np.testing.assert_allclose(made["y"], expected, rtol=1e-4, atol=1e-4)
        count += 1
    assert count == 20 and not list(exe.stream([]))


def test_a_stream_that_fails_or_is_left() -> None:
    exe = both(forked())

    def broken() -> Iterator[Mapping[str, Any]]:
        yield from items(3)
        raise OSError("the camera is gone")

    with pytest.raises(OSError, match="the camera is gone"):
        list(exe.stream(broken()))
    with pytest.raises(ValueError, match="must be 16"):
        list(exe.stream([{"x": np.zeros((1, 17), np.float32)}]))
    first = next(exe.stream(items(1000)))
    assert first["y"].shape == (1, 16)
    assert exe(np.zeros((1, 16), np.float32)).shape == (1, 16)


# --- placements


@pytest.fixture
def placed(monkeypatch: pytest.MonkeyPatch) -> SeveralExecutable:
    """Return a model with kept placements. The given times make each device take a branch."""

    def measured(parts: list[Unit], *_: object) -> Times:
        return Times([[1.0] * len(parts), [1.0] * len(parts)], 0.0, 0.0)

    monkeypatch.setattr(compiling, "_measured", measured)
    monkeypatch.setattr(compiling, "STAGES_WORTH", 2.0)
    return both(forked())


def test_placements_compute_the_same(placed: SeveralExecutable, tmp_path: Path) -> None:
    placed.save(tmp_path / "m.jgn")
    again = jangin.load(tmp_path / "m.jgn")
    assert isinstance(again, SeveralExecutable)
    reference = ReferenceEvaluator(forked())
    for exe in (placed, again):
        assert set(exe.artifact.placed) == {"branches", "stages"}
        for feeds, made in zip(items(9), exe.stream(items(9)), strict=True):
            (expected,) = reference.run(None, dict(feeds))
            np.testing.assert_allclose(made["y"], expected, rtol=1e-4, atol=1e-4)
            for _ in range(9):  # some of the runs take the branches
                np.testing.assert_allclose(exe.run(feeds)["y"], expected, rtol=1e-4, atol=1e-4)
        way = exe.ways({"x": np.zeros((1, 16), np.float32)})
        assert way is not None and "branches" in way.seconds


def test_a_placement_s_segments_are_on_both(placed: SeveralExecutable) -> None:
    worked: set[tuple[int, str]] = set()
    placed.record = lambda device, what, start, end: worked.add((device, threading.current_thread().name))
    list(placed.stream(items(4)))
    assert {d for d, _ in worked} == {0, 1} and len(worked) == 2
    table = devices_table(placed.artifact)
    cells = [str(c) for column in table.columns for c in column.cells]
    assert any("cpu, segment" in c for c in cells) and any("x86-64-v2, segment" in c for c in cells)


def test_a_trace_has_a_track_for_each_device(placed: SeveralExecutable) -> None:
    feeds = {"x": np.ones((4, 16), np.float32)}
    events = several_events(placed, feeds, 1)
    tracks = {e["args"]["name"]: e["tid"] for e in events if e["name"] == "thread_name"}
    assert tracks == {"cpu": 0, "x86-64-v2": 1}
    pieces = [e for e in events if e["ph"] == "X"]
    assert pieces and all(e["dur"] >= 0 and e["tid"] in (0, 1) for e in pieces)


def unit(*needs: int) -> Unit:
    return Unit((), dict.fromkeys(needs, 1000))


def diamond() -> list[Unit]:
    return [unit(), unit(0), unit(0), unit(1, 2)]


def test_branches_go_side_by_side() -> None:
    same = Times([[1.0, 4.0, 4.0, 1.0]] * 2, 0.1, 0.0)
    found = branches(diamond(), same)
    assert found.device[1] != found.device[2] and found.seconds == pytest.approx(6.1)
    far = Times([[1.0, 4.0, 4.0, 1.0]] * 2, 5.0, 0.0)
    assert branches(diamond(), far).seconds == pytest.approx(10)
    apt = Times([[1.0, 1.0, 9.0, 1.0], [9.0, 9.0, 1.0, 9.0]], 0.1, 0.0)
    assert list(branches(diamond(), apt).device) == [0, 0, 1, 0]


def test_stages_are_of_equal_length() -> None:
    chain = [unit(), *(unit(n) for n in range(5))]
    found = stages(chain, Times([[1.0] * 6, [2.0] * 6], 0.0, 0.0))
    assert found.seconds == pytest.approx(4) and list(found.device) in ([0] * 4 + [1] * 2, [1] * 2 + [0] * 4)
    apt = stages(chain, Times([[1.0] * 3 + [9.0] * 3, [9.0] * 3 + [1.0] * 3], 0.0, 0.0))
    assert apt.seconds == pytest.approx(3) and list(apt.device) == [0] * 3 + [1] * 3
    moved = stages(chain, Times([[1.0] * 6] * 2, 0.0, 1.0))
    assert set(moved.device) == {0} or set(moved.device) == {1}


def test_runs_wait_for_each_other_at_their_ends_alone() -> None:
    nodes = [Node(f"n{n}", (), (), None) for n in range(5)]  # type: ignore[arg-type]
    needs = [(), (0,), (0,), (2,), (1, 3)]
    parts = [Unit((node,), dict.fromkeys(need, 1)) for node, need in zip(nodes, needs, strict=True)]
    made = runs(parts, Placing([0, 1, 0, 0, 0], range(5), 1.0))
    assert [(d, [n.name for n in run]) for d, run in made] == [
        (0, ["n0"]), (1, ["n1"]), (0, ["n2", "n3"]), (0, ["n4"])
    ]  # fmt: skip


# --- shares


def run_of(trials: Trials, seconds: list[float], slowed: float = 1.0) -> tuple[int, ...]:
    """Simulate a run on devices of known speeds. Side by side, they are slower by `slowed`."""
    way = trials.next()
    assert not isinstance(way, str)
    factor = slowed if sum(map(bool, way)) > 1 else 1.0
    each = [share * s * factor for share, s in zip(way, seconds, strict=True)]
    trials.took(way, max(each), each)
    return way


def settle(rows: int, seconds: list[float], slowed: float = 1.0) -> Trials:
    """Return trials that have ended."""
    found = Trials(len(seconds), rows, 1)
    for _ in range(100):
        assert sum(run_of(found, seconds, slowed)) == rows
        if found.settled:
            return found
    raise AssertionError("the trials never end")


@pytest.mark.parametrize(
    ("seconds", "slowed", "expected"),
    [
        ([1.0, 1.0], 1.0, (4, 4)),
        ([1.0, 3.0], 1.0, (6, 2)),
        ([1.0, 30.0], 1.0, (8, 0)),
        ([30.0, 1.0], 1.0, (0, 8)),
        ([1.0, 1.0], 1.5, (4, 4)),
        ([1.0, 1.0], 2.5, (8, 0)),  # the two devices are one processor
        ([1.0, 1.0, 2.0], 1.0, (3, 3, 2)),
    ],
)
def test_the_quickest_way_stays(seconds: list[float], slowed: float, expected: tuple[int, ...]) -> None:
    found = settle(8, seconds, slowed)
    way = found.next()
    assert not isinstance(way, str)
    best = max(share * s for share, s in zip(expected, seconds, strict=True))
    best *= slowed if sum(map(bool, expected)) > 1 else 1.0
    assert found.seconds[way] == pytest.approx(best)
    assert found.seconds[way] <= min(8 * s for s in seconds)


def test_a_busy_start_isnt_held_against_a_device() -> None:
    """The second device is busy at first, so that the first one alone wins. Later the second is free, and the
    first is busy."""
    found = settle(8, [1.0, 12.0])
    assert found.next() == (8, 0)
    ways = [run_of(found, [1.0, 1.0]) for _ in range(1500)]
    assert ways[-1] == (4, 4)
    assert sum(way != ways[-1] for way in ways[-500:]) < 20  # such runs cost a fiftieth of the time
    assert [run_of(found, [3.0, 1.0]) for _ in range(1500)][-1] == (2, 6)


def test_shares() -> None:
    assert shared_out(1, [2.0, 1.0]) == (0, 1)
    assert shared_out(7, [1.0, 1.0], fewest=4) == (7, 0) or shared_out(7, [1.0, 1.0], fewest=4) == (4, 3)
    assert shared_out(0, [1.0, 1.0]) == (0, 0)
