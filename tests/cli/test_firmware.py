"""`jangin inspect` for microcontrollers: what a model takes there, and whether it fits."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from pathlib import Path

import numpy as np
import onnx
import pytest
from command_line import Cli
from onnx import TensorProto, helper, numpy_helper

import jangin
from jangin.commands.common import parse_bytes


@pytest.fixture
def network(tmp_path: Path) -> Path:
    """Two convolutions with an open batch. The second one's values take the most memory."""
    weights, nodes, x = [], [], "x"
    for n, (outputs, inputs) in enumerate(((8, 3), (16, 8))):
        w = np.random.default_rng(n).standard_normal((outputs, inputs, 3, 3)).astype(np.float32)
        weights.append(numpy_helper.from_array(w, f"w{n}"))
        nodes.append(helper.make_node("Conv", [x, f"w{n}"], [f"v{n}"], name=f"conv{n}", pads=[1] * 4))
        x = f"v{n}"
    nodes.append(helper.make_node("GlobalAveragePool", [x], ["y"], name="pool"))
    ends = (("x", ["batch", 3, 16, 16]), ("y", ["batch", 16, 1, 1]))
    given, made = (helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in ends)
    graph = helper.make_graph(nodes, "network", [given], [made], weights)
    path = tmp_path / "network.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


@pytest.mark.sampled(3)
def test_figures_are_those_of_the_emitted_code(cli: Cli, network: Path, tmp_path: Path) -> None:
    made = jangin.emit(network, "c", "cortex-m4", {"batch": 1})
    out = cli("inspect", network, "--target", "cortex-m4", "--picture", tmp_path / "memory.svg").out
    assert "batch = 1" in out
    assert f"{made.weights:,} bytes of weights" in out and f"{made.ram:,} bytes of arena" in out
    assert all(name in out for name in ("conv0", "conv1", "pool", "memory plan", "cycles"))
    (part,) = made.model.parts
    buffers = [b for b in part.plan.buffers if b.kind == "arena"]
    root = ET.parse(tmp_path / "memory.svg").getroot()
    assert len(root.findall("{http://www.w3.org/2000/svg}rect")) == len(buffers) > 1


@pytest.mark.parametrize("size", ["serving:0_d0", "x0"])
def test_open_sizes_may_have_any_name(size: str, cli: Cli, network: Path) -> None:
    """TensorFlow's names are no identifiers. The compiler itself makes names such as x0."""
    model = onnx.load(network)
    for end in (*model.graph.input, *model.graph.output):
        end.type.tensor_type.shape.dim[0].dim_param = size
    onnx.save(model, network)
    done = cli("inspect", network, "--target", "cortex-m4")
    assert done.status == 0 and f"{size} = 1" in done.out, done.err


def test_a_model_that_does_not_fit_says_what_would(cli: Cli, network: Path) -> None:
    assert cli("inspect", network, "--target", "cortex-m4", "--ram", "1M", "--flash", "1M").status == 0
    done = cli("inspect", network, "--target", "cortex-m4", "--ram", "8K", "--flash", "2K")
    assert done.status == 1 and "doesn't fit" in done.out.replace("\n", " ")
    for part in (
        "bytes of RAM",
        "8,192",
        "bytes of flash",
        "2,048",
        "conv1",
        "int8",
        "% of the height",
        "board",
    ):
        assert part in done.err, part


def test_wrong_options_are_refused(cli: Cli, network: Path) -> None:
    assert "--target cortex-m4" in cli("inspect", network, "--ram", "64K").err
    assert "--ram 64K" in cli("inspect", network, "--target", "cortex-m4", "--ram", "much").err


def test_sizes_of_memory() -> None:
    assert [parse_bytes("--ram", t) for t in ("64K", "1.5M", "200", "8 kb")] == [65536, 1572864, 200, 8192]


def test_patches_make_a_model_fit(cli: Cli, tmp_path: Path) -> None:
    """Without --ram the ways are listed. With it, the code and the table are of the same plan."""
    weights, nodes, x = [], [], "x"
    for n, (outputs, inputs, stride) in enumerate(((8, 3, 1), (8, 8, 2), (8, 8, 2))):
        w = np.random.default_rng(n).standard_normal((outputs, inputs, 3, 3)).astype(np.float32)
        weights.append(numpy_helper.from_array(w, f"w{n}"))
        given = {"pads": [1] * 4, "strides": [stride] * 2}
        nodes.append(helper.make_node("Conv", [x, f"w{n}"], [f"v{n}"], name=f"conv{n}", **given))
        x = f"v{n}"
    ends = (("x", [1, 3, 32, 32]), (x, [1, 8, 8, 8]))
    first, last = (helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in ends)
    graph = helper.make_graph(nodes, "network", [first], [last], weights)
    path = tmp_path / "network.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    on = ("--target", "cortex-m4")
    listed = cli("inspect", path, *on).out
    assert "in patches" in listed and "up to Conv 'conv" in listed.replace("\n", " ")
    plain = jangin.emit(path, "c", "cortex-m4").model.ram
    done = cli("inspect", path, *on, "--ram", str(plain * 3 // 4))
    assert done.status == 0 and "patches" in done.out
    emitted = cli("compile", path, *on, "--emit", "c", "--ram", str(plain * 3 // 4), "-o", tmp_path / "c")
    assert emitted.status == 0 and "patches" in emitted.out
    refused = cli("compile", path, *on, "--emit", "c", "--ram", "2K", "-o", tmp_path / "d")
    assert refused.status == 1 and "2,048" in refused.err and "the first layers" in refused.err
    assert not (tmp_path / "d").exists()
    assert "--ram" in cli("compile", path, "-o", tmp_path / "e.jgn", "--ram", "2K").err
