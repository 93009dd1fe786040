"""`jangin bench --layers`: each kernel beside its bound, as table, JSON and trace."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import onnx
import pytest
from command_line import Cli
from onnx import TensorProto, helper

from jangin.bench import roofs
from jangin.bench.layers import Layer, computes
from jangin.ir.sources import NO_SOURCE, Source, Sources


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jangin.bench.layers.SECONDS", 0.01)
    monkeypatch.setattr(roofs, "ROUNDS", 1)


def test_every_kernel_has_its_time_and_bound(cli: Cli, model: Path, tmp_path: Path) -> None:
    file = tmp_path / "layers.json"
    done = cli("bench", "--layers", model, "--shape", "batch=2", "--threads", "1,2", "--json", file)
    assert done.status == 0, done.err
    assert "Conv+Relu conv1" in done.out and "gaps" in done.out and "between them" in done.out
    assert max(map(len, done.out.split("\na run")[0].splitlines())) <= 100
    one, two = json.loads(file.read_text())["accounts"]
    assert (one["roofs"]["threads"], two["roofs"]["threads"]) == (1, 2)
    for found in (one, two):
        assert found["flops"] >= 2 * 2 * 16 * 64 * 27
        assert found["run"] == pytest.approx(sum(found[k] for k in ("kernels", "disturbed", "between")))
        assert found["kernels"] == pytest.approx(sum(x["seconds"] for x in found["layers"]))
        for x in found["layers"]:
            assert x["gap"] == pytest.approx(x["seconds"] - x["bound"])
            assert x["bound"] > 0 and x["limit"] in ("flops", "bytes") and x["template"]
    (conv,) = (x for x in one["layers"] if any(s["name"] == "conv1" for s in x["sources"]) and x["flops"])
    assert conv["flops"] == 2 * 2 * 16 * 64 * 27
    assert conv["bytes"] >= 4 * (2 * 3 * 64 + 16 * 27 + 2 * 16 * 64)


def test_a_compiled_file_has_it_too(cli: Cli, model: Path, tmp_path: Path) -> None:
    cli("compile", model, "-o", tmp_path / "small.jgn")
    done = cli("bench", "--layers", tmp_path / "small.jgn", "--shape", "batch=3", "--threads", "1")
    assert done.status == 0, done.err
    assert "Conv+Relu conv1" in done.out


def test_the_trace_has_every_task_on_its_thread(cli: Cli, model: Path, tmp_path: Path) -> None:
    file = tmp_path / "trace.json"
    done = cli("bench", "--layers", model, "--shape", "batch=64", "--threads", "2", "--trace", file)
    assert done.status == 0, done.err
    events = json.loads(file.read_text())["traceEvents"]
    pieces = [e for e in events if e["ph"] == "X"]
    assert {e["tid"] for e in pieces} <= {0, 1}
    assert [e["args"]["name"] for e in events if e["name"] == "thread_name"] == ["thread 0", "thread 1"]
    kernels: dict[str, list[list[int]]] = {}
    for e in pieces:
        assert e["dur"] >= 0 and e["ts"] >= 0
        kernels.setdefault(e["args"]["kernel"], []).append([int(n) for n in e["args"]["tasks"].split("..")])
    for spans in kernels.values():
        spans.sort()
        assert spans[0][0] == 0
        assert all(a[1] == b[0] for a, b in pairwise(spans))


def test_a_model_that_computes_nothing(cli: Cli, tmp_path: Path) -> None:
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        [helper.make_node("Identity", ["x"], ["y"])],
        "same",
        [value("x", TensorProto.FLOAT, [3])],
        [value("y", TensorProto.FLOAT, [3])],
    )
    onnx.save(helper.make_model(graph, ir_version=8), tmp_path / "same.onnx")
    done = cli("bench", "--layers", tmp_path / "same.onnx", "--threads", "1")
    assert done.status == 0, done.err
    assert "kernels 0.000 ms" in done.out


def test_what_it_needs_is_said(cli: Cli, model: Path) -> None:
    done = cli("bench", "--layers", model, "--threads", "1")
    assert done.status == 1
    assert "--shape batch=1" in done.err and "Traceback" not in done.err
    assert cli("bench", model, "--trace", "t.json").status == 2
    assert "no list of counts" in cli("bench", "--layers", model, "--threads", "none").err


def test_bandwidth_is_that_of_the_next_smaller_set() -> None:
    found = roofs.measure(1)
    assert found.flops > 0
    speeds = [speed for _, speed in found.bandwidths]
    assert speeds == sorted(speeds, reverse=True) and speeds[-1] > 0
    assert found.bandwidth(1) == speeds[0]
    assert found.bandwidth(roofs.SET_SIZES[2] + 1) == found.bandwidths[2][1]
    assert found.bandwidth(1 << 40) == speeds[-1]


def test_names_of_sources() -> None:
    made = Sources(
        [Source("layout of x"), Source("Conv", "a/Conv", "ai.onnx", 18), Source("aten.relu.default", "r")]
    )
    assert computes(made) == "Conv+relu a" and computes(NO_SOURCE) == ""
    assert computes(Sources.of("layout of x")) == "layout of x"
    idle = Layer(0, "k", "rows", "", NO_SOURCE, 0.0, 0, 0, 0.0, "bytes")
    assert idle.share == 1.0 and idle.gap == 0.0
