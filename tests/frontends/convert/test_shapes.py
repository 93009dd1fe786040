"""Written models have the shapes and types of the originals.

Tests have computed sizes, random models, and wrong writers, which `convert` reports. `pytest -m slow` on this
file tries 600 more random models."""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from jangin.commands import convert as command
from jangin.commands.common import Settings
from jangin.commands.convert import convert
from jangin.frontends import table
from jangin.frontends.lower import lower
from jangin.frontends.onnx.writer import written
from jangin.frontends.tflite.format import written as tflite_written
from jangin.ir.expr import Const, const
from jangin.ir.graph import Array, CompileError, Graph
from jangin.ir.simplify import simplify
from jangin.ir.traversal import substitute
from jangin.ops.interpret import run_graph
from jangin.passes.partition import has_steps

sys.path.insert(0, str(Path(__file__).parents[2] / "properties"))
from onnx_nets import Net
from onnx_operators import random_net

node = helper.make_node


def model(nodes: Sequence[Any], outputs: Sequence[str], shape: Sequence[int | str], **held: Any) -> bytes:
    inits = [numpy_helper.from_array(np.asarray(v), k) for k, v in held.items()]
    ends = [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)]
    graph = helper.make_graph(
        nodes, "net", ends, [helper.make_empty_tensor_value_info(n) for n in outputs], inits
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    return bytes(made.SerializeToString())


SHAPE = node("Shape", ["x"], ["s"])
TWO = node("Gather", ["s", "two"], ["n"])
COMPUTED: dict[str, list[Any]] = {
    "a scalar": [node("Identity", ["n"], ["y"])],
    "one element": [node("Unsqueeze", ["n", "zero"], ["y"])],
    "one element, cast and less one": [
        node("Unsqueeze", ["n", "zero"], ["u"]), node("Cast", ["u"], ["c"], to=6),
        node("Sub", ["c", "one32"], ["y"]),
    ],
    "of two axes": [node("Unsqueeze", ["n", "axes"], ["y"])],
    "a float": [node("Unsqueeze", ["n", "zero"], ["u"]), node("Cast", ["u"], ["y"], to=1)],
    "all sizes": [node("Mul", ["s", "s"], ["y"])],
    "sizes joined": [node("Unsqueeze", ["n", "zero"], ["u"]), node("Concat", ["u", "s"], ["y"], axis=0)],
    "a comparison": [node("Unsqueeze", ["n", "zero"], ["u"]), node("Greater", ["u", "zero"], ["y"])],
    "beside elements": [
        node("Unsqueeze", ["n", "zero"], ["u"]), node("Cast", ["u"], ["c"], to=1),
        node("Add", ["x", "c"], ["y"]),
    ],
    "an element of one": [
        node("ReduceSum", ["x", "all"], ["r"], keepdims=1), node("GatherND", ["r", "first"], ["y"]),
    ],
    "a pool of the last windows": [node("MaxPool", ["x"], ["y"], kernel_shape=[2], strides=[2], ceil_mode=1)],
}  # fmt: skip
HELD = {
    "two": np.int64(2), "zero": np.array([0]), "axes": np.array([0, 1]), "one32": np.int32(1),
    "all": np.array([0, 1, 2]), "first": np.array([[0, 0, 0]]),
}  # fmt: skip


@pytest.mark.parametrize("name", COMPUTED)
def test_computed_sizes(name: str, tmp_path: Path) -> None:
    """The sizes are those that ONNX's checker infers of the written model."""
    nodes = [SHAPE, TWO, *COMPUTED[name]]
    data = model(nodes, ["y"], [1, 1, "T"], **HELD)
    graph = lower(table.load(data))
    out = written(lower(table.load(data), whole=True))
    onnx.checker.check_model(out, full_check=True)
    for size in (1, 3, 6, 7):
        feeds = {"x": np.arange(size, dtype=np.float32).reshape(1, 1, size)}
        assert_alike(run_graph(graph, feeds), run_graph(lower(table.load(out)), feeds), f"{name}, {size}")


def assert_alike(want: dict[str, Array], got: dict[str, Array], what: str) -> None:
    for (name, a), b in zip(want.items(), got.values(), strict=True):
        assert (np.shape(a), np.asarray(a).dtype) == (np.shape(b), np.asarray(b).dtype), f"{what}: {name}"
        np.testing.assert_array_equal(a, b, f"{what}: {name}")


# --- random models


def allowed(graph: Graph, size: int) -> bool:
    """Tell if a model accepts a size of its symbol."""
    known = {v: const(size) for v in graph.symbols}
    met = [simplify(substitute(c, known)) for c in graph.constraints]
    return all(not isinstance(c, Const) or bool(c.value) for c in met)


def round_trip(net: Net) -> str:
    """Return the outcome of a random model that is written with open sizes and read again."""
    symbolic = any("n" in shape for shape in net.symbolic.values())
    source, shapes = net.model(), {"n": (1, 64)} if symbolic else None
    try:
        graph, whole = (lower(table.load(source, shapes), whole=w) for w in (False, True))
        data = written(whole)
    except CompileError:
        return "refused"
    if has_steps(graph):
        return "steps"
    again = lower(table.load(data))
    for size in (net.size, 1, 5) if symbolic else (net.size,):
        feeds = net.feeds if size == net.size else net.resized(size)
        if feeds is not None and net.results(feeds) is not None and allowed(graph, size):
            assert_alike(run_graph(graph, feeds), run_graph(again, feeds), f"n = {size}")
    return "same"


def tried(seeds: Sequence[int]) -> Counter[str]:
    done: Counter[str] = Counter()
    for seed in seeds:
        length = (1, 1, 2, 3, 4)[seed % 5]
        net = random_net(seed, length)
        try:
            done[round_trip(net) if net.steps else "empty"] += 1
        except Exception as error:
            operators = ", ".join(s.node.op_type for s in net.steps)
            raise AssertionError(f"random_net({seed}, {length}): {operators}: {error}") from error
    return done


WRONG_ONCE = (33, 87, 465, 638, 839, 854, 874, 1343)
"""Seeds of models that were once written wrongly. The reasons were a missing axis, empty tensors, a type that
is newer in ONNX, and a window."""


def test_random_models() -> None:
    assert tried([*WRONG_ONCE, *range(20)])["same"] > 20


@pytest.mark.slow
@pytest.mark.parametrize("first", range(2000, 2600, 100))
def test_many_random_models(first: int) -> None:
    assert tried(range(first, first + 100))["same"] > 80


def test_random_models_of_fixed_sizes() -> None:
    """Random models are written as TensorFlow Lite, which can express few of them."""
    pytest.importorskip("tflite", reason="tflite isn't installed: the extra `tflite` brings it")
    right = 0
    for seed in range(30):
        net = random_net(seed, 1)
        try:
            graph = lower(table.load(net.model(), {"n": net.size} if "n" in str(net.symbolic) else None))
            again = lower(table.load(tflite_written(graph)))
        except CompileError:
            continue
        feeds = dict(zip(again.inputs, map(net.feeds.__getitem__, graph.inputs), strict=True))
        want, got = run_graph(graph, net.feeds), run_graph(again, feeds)
        for a, b in zip(want.values(), got.values(), strict=True):
            assert (np.shape(a), np.asarray(a).dtype) == (np.shape(b), np.asarray(b).dtype), f"seed {seed}"
        right += 1
    assert right > 5


# --- a writer that is wrong


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ([SHAPE, node("Gather", ["s", "two"], ["y"])], r"output 'y' is int64\[\], not int64\[1\]"),
        ([SHAPE, node("Gather", ["s", "last"], ["u"]), node("Cast", ["u"], ["y"], to=6)],
         r"output 'y' is int32\[1\], not int64\[1\]"),
        ([node("Identity", ["three"], ["y"])], r"output 'y' differs by up to 3"),
    ],
)  # fmt: skip
def test_convert_sees_it(
    wrong: list[Any], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last case is right at the first size that is tried."""
    source, output = tmp_path / "a.onnx", tmp_path / "b.onnx"
    source.write_bytes(
        model([SHAPE, TWO, node("Unsqueeze", ["n", "zero"], ["y"])], ["y"], [1, 1, "T"], **HELD)
    )
    held = {"two": np.int64(2), "last": np.array([2]), "three": np.array([command.SIZE])}
    made = model(wrong, ["y"], [1, 1, "T"], **held)
    monkeypatch.setattr(command.onnx, "written", lambda *_: made)
    with pytest.raises(CompileError, match=message):
        convert(source, Settings(cache=False), output, [])
    assert not output.exists()


@pytest.mark.parametrize("size", ["n", "x0", "acc", "batch"])
def test_sizes_keep_the_models_names(size: str) -> None:
    """The compiler marks those that it might make itself."""
    source = model([node("Relu", ["x"], ["r"]), node("Concat", ["r", "r"], ["y"], axis=0)], ["y"], [size, 3])
    graph = onnx.load_from_string(written(lower(table.load(source), whole=True))).graph
    ends = (v.type.tensor_type.shape.dim for v in (*graph.input, *graph.output))
    (x, _), (y, _) = ([d.dim_param for d in dims] for dims in ends)
    assert x == size and re.fullmatch(rf"\W*2\W+{size}\W*|\W*{size}\W+2\W*", y), (x, y)
