"""A model format from outside the package: a JSON list of dense layers. Nothing of Jangin is patched.

[{"inputs": 4}, {"kind": "dense", "weights": [[...], ...], "bias": [...], "activation": "relu"}, ...]
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from models import classifier

import jangin
from jangin.frontends.assemble import ShapeBindings, Symbols, body_graph, model_graph
from jangin.frontends.control import Iteration, iterate
from jangin.frontends.dialect import Bodies, Dialect, Imported, Inputs, Lowering
from jangin.frontends.format import Contents, Format
from jangin.ir.dtype import F32
from jangin.ir.expr import const, maximum
from jangin.ir.graph import Array, CompileError, ImportedAttributes, Node, Value
from jangin.ir.sources import Sources
from jangin.ops.builder import Builder
from jangin.ops.nontensor import Item
from jangin.ops.values import Tensor

TOLERANCE = 1e-5
"""The largest difference, as a share of the largest value: sums of at most eight products in float32."""


def dense(b: Builder, node: Node, inputs: Inputs, bodies: Bodies) -> Tensor:
    x, weights, bias = (v for v in inputs if isinstance(v, Tensor))
    if x.shape[-1] != weights.shape[0]:
        raise CompileError(f"its weights take {weights.shape[0]} numbers, and it is given {x.shape[-1]}")
    y = b.map(lambda v, w: v + w, b.matmul(x, weights), bias)
    return b.map(lambda v: maximum(v, 0.0), y) if node.of(ImportedAttributes)["activation"] == "relu" else y


def repeat(b: Builder, node: Node, inputs: Inputs, bodies: Bodies) -> Sequence[Item]:
    """Lower layers that are applied to their own result several times."""
    (x,) = inputs
    assert x is not None
    attrs = node.of(ImportedAttributes)
    times = b.reshape(b.sizes([attrs["times"]]), ())
    iteration = Iteration(attrs["body"], times, None, [x], [], (), (), False)
    return iterate(b, bodies.run, iteration, b.scope)


def halve(b: Builder, node: Node, inputs: Inputs, bodies: Bodies) -> Tensor:
    (x,) = inputs
    assert isinstance(x, Tensor)
    return b.map(lambda v: v * const(0.5, F32), x)


class Layers(Format, Dialect):
    name = "layers"
    domain = "layers"
    lowerings: Mapping[str, Lowering] = {
        "layers.dense": dense,
        "layers.halve": halve,
        "layers.repeat": repeat,
    }

    def reads(self, contents: Contents) -> bool:
        return contents.data[:1] == b"["

    def load(self, contents: Contents, shapes: ShapeBindings) -> Imported:
        try:
            first, *layers = json.loads(bytes(contents.data))
            symbols = Symbols(shapes)
            x = Value("x", F32, symbols.shape("x", ["batch", first["inputs"]]))
            constants: dict[str, Array] = {}
            nodes = self._nodes(layers, "x", constants)
        except (ValueError, KeyError, TypeError) as error:
            raise CompileError(f"{contents} is not a list of layers: {error!r}") from error
        last = nodes[-1].outputs if nodes else ("x",)
        graph = model_graph("layers", [x], last, nodes, constants, symbols)
        return Imported(graph, self, {"description": f"{len(layers)} layers"})

    def _nodes(self, layers: Sequence[Any], x: str, constants: dict[str, Array], of: str = "") -> list[Node]:
        inputs = (x, *(f"y{n}" for n in range(len(layers))))
        return [self._node(n, layer, inputs[n], constants, of) for n, layer in enumerate(layers)]

    def _node(self, n: int, layer: Mapping[str, Any], x: str, constants: dict[str, Array], of: str) -> Node:
        source = Sources.of(f"layer {n} ({layer['kind']}){of}")
        inputs = [x]
        for name in ("weights", "bias"):
            if name in layer:
                constants[f"{name}{n}"] = np.array(layer[name], np.float32)
                inputs.append(f"{name}{n}")
        attrs: dict[str, Any] = {"activation": layer.get("activation", "")}
        if "layers" in layer:
            own: dict[str, Array] = {}
            inner = self._nodes(layer["layers"], "state", own, f" of {source}")
            body = body_graph("body", ["state"], inner[-1].outputs, inner, own)
            attrs = {"times": layer["times"], "body": body}
        given = ImportedAttributes(f"layers.{layer['kind']}", attrs)
        return Node(f"layer{n}", tuple(inputs), (f"y{n}",), given, source)

    def lowering(self, node: Node) -> Lowering | None:
        return self.lowerings.get(node.op)

    def remedy(self, node: Node) -> str:
        return f"there are layers of the kinds {', '.join(k.split('.')[1] for k in self.lowerings)}"


def layer(seed: int, rows: int, columns: int, **more: Any) -> dict[str, Any]:
    random = np.random.default_rng(seed)
    weights, bias = random.standard_normal((rows, columns)), random.standard_normal(columns)
    return {"kind": "dense", "weights": weights.tolist(), "bias": bias.tolist(), **more}


def encoded(*layers: Mapping[str, Any], inputs: int = 4) -> bytes:
    return json.dumps([{"inputs": inputs}, *layers]).encode()


def expected(layers: Sequence[Mapping[str, Any]], x: Array) -> Array:
    """Return the result in float64."""
    y = x.astype(np.float64)
    for each in layers:
        y = y @ np.array(each["weights"]) + np.array(each["bias"])
        y = np.maximum(y, 0) if each.get("activation") == "relu" else y
    return y


MODEL = (layer(0, 4, 8, activation="relu"), layer(1, 8, 3))


def test_compiled_and_run(tmp_path: Path) -> None:
    """The model is recognized by content, whatever its file is called. No cache entry is made."""
    path = tmp_path / "model.onnx"
    path.write_bytes(encoded(*MODEL))
    x = np.random.default_rng(2).standard_normal((5, 4)).astype(np.float32)
    exe = jangin.compile(path, threads=1, formats=[Layers()], cache=tmp_path / "cache")
    wanted = expected(MODEL, x)
    np.testing.assert_allclose(exe(x), wanted, rtol=0, atol=TOLERANCE * np.abs(wanted).max())
    assert exe.artifact.metadata == {"description": "2 layers"}
    assert not list((tmp_path / "cache").glob("**/*.jgn"))
    with pytest.raises(ValueError, match="can't go to another process"):
        jangin.compile(path, formats=[Layers()], isolated=True)


@pytest.mark.parametrize("times", [3, 100])
def test_loops(times: int) -> None:
    """Loops of few iterations are unrolled, and loops of many iterations run in steps. 100 halvings are
    exact."""
    exe = jangin.compile(
        encoded({"kind": "repeat", "times": times, "layers": [{"kind": "halve"}]}),
        threads=1, formats=[Layers()], cache=False,
    )  # fmt: skip
    x = np.arange(8, dtype=np.float32).reshape(2, 4)
    np.testing.assert_array_equal(exe(x), x * np.float32(0.5**times))


def test_sizes_are_bound_and_named_as_in_any_model() -> None:
    exe = jangin.compile(encoded(*MODEL), threads=1, shapes={"batch": 2}, formats=[Layers()], cache=False)
    assert exe(np.zeros((2, 4), np.float32)).shape == (2, 3)
    with pytest.raises(CompileError, match=r"shapes has 'seq', .* inputs and symbols: x, batch"):
        jangin.compile(encoded(*MODEL), shapes={"seq": 2}, formats=[Layers()], cache=False)


def test_other_formats_are_read_beside_it() -> None:
    exe = jangin.compile(classifier().SerializeToString(), threads=1, formats=[Layers()], cache=False)
    assert exe(np.zeros((1, 3, 6, 6), np.float32)).shape == (1, 5)


def test_unknown_layers_are_listed_at_once() -> None:
    model = encoded(
        MODEL[0],
        {"kind": "conv"},
        {"kind": "repeat", "times": 2, "layers": [{"kind": "halve"}, {"kind": "pool"}]},
    )
    with pytest.raises(CompileError) as error:
        jangin.compile(model, formats=[Layers()], cache=False)
    assert str(error.value) == (
        "2 nodes are not supported:\n"
        "  layer 1 (conv): there are layers of the kinds dense, halve, repeat\n"
        "  layer 1 (pool) of layer 2 (repeat): there are layers of the kinds dense, halve, repeat"
    )


def test_own_operators_are_of_its_domain() -> None:
    @jangin.operator("twice", domain="layers")
    def twice(b: Any, x: Any, *, activation: str) -> Any:
        return b.map(lambda v: v * 2, x)

    model = encoded({"kind": "twice"}, {"kind": "halve"})
    exe = jangin.compile(model, threads=1, formats=[Layers()], operators=[twice], cache=False)
    x = np.arange(4, dtype=np.float32).reshape(1, 4)
    np.testing.assert_array_equal(exe(x), x)


def test_a_layer_that_does_not_fit_is_named() -> None:
    with pytest.raises(CompileError, match=r"^layer 1 \(dense\), inputs \(y0: f32\[batch, 8\].*take 7"):
        jangin.compile(encoded(MODEL[0], layer(1, 7, 3)), formats=[Layers()], cache=False)


@pytest.mark.parametrize("data", [b"[", b"[]", b'[{"inputs": 4}, {"weights": 3}]', b'[{"inputs": 4}, 5]'])
def test_a_malformed_model(data: bytes) -> None:
    with pytest.raises(CompileError, match=r"^the model is not a list of layers: "):
        jangin.compile(data, formats=[Layers()], cache=False)


def test_a_size_that_is_none() -> None:
    with pytest.raises(CompileError, match=r"^input 'x' has a dimension of -4; sizes are from 0"):
        jangin.compile(encoded(*MODEL, inputs=-4), formats=[Layers()], cache=False)


def test_a_format_that_nobody_reads() -> None:
    with pytest.raises(CompileError, match=r"starts with b'\{\}', is of no format .* \(layers, .*ONNX\)"):
        jangin.compile(b"{}", formats=[Layers()], cache=False)
