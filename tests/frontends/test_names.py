"""Reports and errors call layers as the model's author did, in every format."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fuzz.formats import FORMATS, save
from typer.testing import CliRunner

from jangin.bench import roofs
from jangin.cli import app
from jangin.commands import run
from jangin.frontends import table
from jangin.ir.graph import Graph
from jangin.ir.sources import Source

NAMED = {
    "tflite": "CONV_2D t3",
    "nnef": "relu a",
    "darknet": "[convolutional] layer 0",
    "torch": "aten.layer_norm.default norm.layer_norm",
    "caffe": "Convolution c",
    "coreml": "convolution conv",
    "gguf": "mul_mat blk.0.attn_q",
}
"""The name of a kernel of each format's first model."""


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jangin.bench.layers.SECONDS", 0.01)
    monkeypatch.setattr(roofs, "ROUNDS", 1)
    # measured times decide which launches are the longest, so all are listed
    monkeypatch.setattr(run, "PROFILED", 1000)


def sources(graph: Graph) -> Iterator[Source]:
    for node in graph.nodes:
        yield from node.source
        for value in node.attrs.named().values():
            if isinstance(value, Graph):
                yield from sources(value)


def jangin(*words: Any) -> str:
    done = CliRunner().invoke(app, ["--no-cache", *map(str, words)], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.output


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", FORMATS)
def test_reports_call_layers_as_the_model_does(name: str, tmp_path: Path) -> None:
    """`--placement`, `--layers` (its table and its trace) and `--profile` use the model's names."""
    if not FORMATS[name].here:
        pytest.skip(f"{', '.join(FORMATS[name].needs)}, which {name} needs, isn't installed: an extra has it")
    model = save(next(iter(FORMATS[name].models())), tmp_path)
    graph = table.load(model).graph
    called = set(sources(graph))
    sizes = [word for size in graph.symbols for word in ("--shape", f"{size}=2")]
    placed, layers, trace = (tmp_path / f"{n}.json" for n in ("placed", "layers", "trace"))
    jangin("inspect", model, "--placement", "--json", placed, *sizes)
    assert {row["node"] for row in json.loads(placed.read_text())["nodes"]} == {str(s) for s in called}
    jangin("bench", "--layers", model, "--threads", "1", "--json", layers, "--trace", trace, *sizes)
    (account,) = json.loads(layers.read_text())["accounts"]
    found = {Source(**s) for layer in account["layers"] for s in layer["sources"]}
    # the compiler adds sources such as "layout of x.last"
    added = (s.operator.split()[-1] for s in found - called)
    assert all(any(s.startswith(value) for value in graph.values) for s in added), found - called
    events = [e["name"] for e in json.loads(trace.read_text())["traceEvents"] if e["ph"] == "X"]
    assert any(NAMED[name] in e for e in events), events
    profile = jangin("run", model, "--profile", *sizes)
    assert all(layer["sources"][0]["operator"] in profile for layer in account["layers"])
