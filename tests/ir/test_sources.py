"""The sources of nodes are records. Whatever a name contains, it stays one name in all texts."""

from __future__ import annotations

import json
import pickle
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import jangin
from jangin.bench.layers import Account, as_json
from jangin.bench.layers import account as measured
from jangin.bench.roofs import Roofs
from jangin.commands import placement
from jangin.compiler.pipeline import import_model, plan_model
from jangin.ir.checks import Check
from jangin.ir.core import Map
from jangin.ir.dtype import F32
from jangin.ir.expr import Var, const
from jangin.ir.graph import Graph, Node, Value
from jangin.ir.graph_text import parse_graph, print_graph
from jangin.ir.parse import parse_plan
from jangin.ir.plan import Launch, Plan, PlanBuffer
from jangin.ir.program import Bind, HostCall, Program, Region
from jangin.ir.program_text import parse_program, print_program
from jangin.ir.sources import NO_SOURCE, Source, Sources
from jangin.ir.text import print_plan, print_source
from jangin.options import Options
from jangin.runtime.artifact import ArtifactError
from jangin.runtime.compiled import read_artifact
from jangin.runtime.load import load

NAMES = [
    "a; b", "a, b) c", "two\nlines", "tab\there", '"quoted"', "it's 'so'", "", " ", "from", "ai.onnx 13", "+",
    "名前", "é; ñ + ü", "\\n", "(ai.onnx 13)", "0", "-1", "a.b/c:0",
]  # fmt: skip
N = Var("N")


def every_source() -> Sources:
    """Return sources with each name in each field of a record. The other fields have their defaults."""
    return Sources(
        [
            *(Source(n) for n in NAMES if n),
            *(Source("Conv", n) for n in NAMES),
            *(Source("Conv", n, "ai.onnx", 13) for n in NAMES),
            *(Source("Conv", "", n, 7, place) for n in NAMES for place in ("", "line 3")),
            *(Source("Conv", "", "", 0, n) for n in NAMES),
        ]
    )


@pytest.mark.parametrize("sources", [every_source(), NO_SOURCE, *(Sources([s]) for s in every_source())])
def test_texts_of_irs_give_them_back(sources: Sources) -> None:
    values = {n: Value(n, F32, (N,)) for n in "xy"}
    node = Node("n", ("x",), ("y",), Map(Var("x0", F32)), sources)
    graph = Graph(
        "g", ("x",), ("y",), (node,), {}, values, {N: (None, None)}, {N > 1: sources}, {}, {"x[0]": sources}
    )
    assert parse_graph(print_graph(graph)) == graph
    buffers = tuple(PlanBuffer(n, F32, (N,), kind) for n, kind in (("x", "input"), ("y", "output")))
    launches = tuple(Launch("k", ("x", "y"), (N,), N, const(1), const(0), s) for s in (sources, NO_SOURCE))
    checks = (Check("y", (N,), True, sources), Check("y", (N,), False, sources))
    plan = Plan(
        "p", "cpu", ("x",), ("y",), ((N, (None, None)),), {N > 1: sources}, buffers, launches, {},
        joined={"x[0]": sources, "x[1]": sources}, checks=checks,
    )  # fmt: skip
    assert parse_plan(print_plan(plan), {}) == plan
    steps = (HostCall("f", ("x",), ("y",), {}, sources), Bind("y", (N,), sources))
    program = Program("q", "cpu", {}, Region(("x",), ("y",), values, steps), joined={"x[0]": sources})
    assert parse_program(print_program(program)) == program


def test_they_travel_and_sort_as_values() -> None:
    sources = every_source()
    assert pickle.loads(pickle.dumps(sources)) == sources
    assert Source("Conv") in sources and len({*sources}) == len(sources) - 1, "one is there twice"
    assert Sources(Source(**s) for s in json.loads(json.dumps([s._asdict() for s in sources]))) == sources
    assert Sources.joined([sources[:3], sources[1:5], NO_SOURCE]) == sources[:5]


def test_texts_for_people() -> None:
    assert str(Source("Conv", "c", "ai.onnx", 13)) == "Conv 'c' (ai.onnx 13)"
    assert str(Source("Mine", "m", "my.domain")) == "Mine 'm' (my.domain)"
    assert str(Source("CONV_2D", "c", "", 2, "operator 5")) == "CONV_2D 'c' (operator 5, version 2)"
    assert str(Source("Convolution", "c", place="line 12")) == "Convolution 'c' (line 12)"
    assert str(Sources([Source("Conv", "c"), Source("layout of x")])) == "Conv 'c'; layout of x"
    assert str(NO_SOURCE) == "" and not Source("layout of x").is_own and Source("Conv", "c").is_own


def model(names: Sequence[str]) -> onnx.ModelProto:
    """Make a model of products and functions in turn, so that there are several kernels of several nodes."""
    nodes, x = [], "x"
    w = np.random.default_rng(0).standard_normal((16, 16)).astype(np.float32)
    for n, name in enumerate(names):
        op, inputs = ("MatMul", [x, "w"]) if n % 3 == 0 else (("Relu", "Tanh")[n % 2], [x])
        x = f"y{n}"
        nodes.append(helper.make_node(op, inputs, [x], name=name))
    kinds = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [4, 16]) for n in ("x", x)]
    graph = helper.make_graph(nodes, "net", kinds[:1], kinds[1:], [onnx.numpy_helper.from_array(w, "w")])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.fixture(scope="module")
def compiled() -> Any:
    return jangin.compile(model(NAMES), threads=1, cache=False)


def told(sources: Sources) -> set[str]:
    """Return the names of a model's nodes. A node without a name is called after its first result."""
    return {"" if s.name == f"y{NAMES.index('')}" else s.name for s in sources if s.is_own}


def test_files_and_profiles_have_every_name(compiled: Any, tmp_path: Path) -> None:
    compiled.save(tmp_path / "net.jgn")
    loaded = load(tmp_path / "net.jgn", threads=1)
    feeds = {"x": np.ones((4, 16), np.float32)}
    for exe in (compiled, loaded):
        found = [t.launch.sources for t in exe.profile(feeds)]
        assert told(Sources.joined(found)) == {*NAMES}
        assert any(len(s) > 1 for s in found), "no kernel is of several nodes"
    assert [x.sources for x in loaded.plan.launches] == [x.sources for x in compiled.plan.launches]


def test_accounts_have_every_name(compiled: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jangin.bench.layers.SECONDS", 0.01)
    roofs = Roofs(1, 1e9, ((1 << 20, 1e9),))
    found: Account = measured("net", {}, compiled, {"x": np.ones((4, 16), np.float32)}, roofs)
    (kept,) = json.loads(json.dumps(as_json([found])))["accounts"]
    sources = Sources(Source(**s) for layer in kept["layers"] for s in layer["sources"])
    assert told(sources) == {*NAMES}


def test_every_node_is_placed() -> None:
    """The placement has every node, also nodes with names inside other names, and nodes that a pass
    folded."""
    imported = import_model(model(NAMES), Options("x86-64-v3"), until="import")
    rows = placement.placement(imported, plan_model(model(NAMES), Options("x86-64-v3")))
    assert [row.runs for row in rows] == ["compiled"] * len(NAMES)
    assert [row.node for row in rows] == [str(n.source) for n in imported.nodes]


def test_files_of_version_6_have_texts(
    compiled: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sources in files of version 6 are texts. They are read as sources of that name."""
    text = print_plan(compiled.plan)
    first = compiled.plan.launches[0].sources
    old = text.replace(print_source(first), " from (\"A 'a' (ai.onnx 13)\", \"B 'b'\")")
    assert old != text
    constants = dict(compiled.plan.constants)
    read = parse_plan(old, constants).launches[0].sources
    assert [*map(str, read)] == ["A 'a' (ai.onnx 13)", "B 'b'"]
    require = "  require (N < 3) from \"Add 'a'\"\n"
    head = 'plan p target "t" symbols (N in ..) {\n  inputs () outputs ()\n' + require + "}"
    assert [str(s) for s in parse_plan(head, {}).constraints.values()] == ["Add 'a'"]
    compiled.save(tmp_path / "new.jgn")
    monkeypatch.setattr("jangin.runtime.artifact.VERSION", 6)
    with pytest.raises(ArtifactError, match="has format version 7, and this program reads 5 to 6"):
        read_artifact(tmp_path / "new.jgn")


def test_a_formats_own_text_becomes_a_source() -> None:
    """A format from outside may still give texts as sources, with a warning."""
    with pytest.warns(DeprecationWarning, match=r"Sources\.of"):
        node = Node("n", (), (), Map(Var("x0", F32)), "layer 1 (dense)")  # type: ignore[arg-type]
    assert node.source == Sources.of("layer 1 (dense)")
