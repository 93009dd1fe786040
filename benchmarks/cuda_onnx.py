"""The networks of gpu_networks.py in PyTorch and in JAX, node by node, with the same weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

Node = onnx.NodeProto
Attributes = Mapping[str, Any]
Operator = Callable[..., Any]


class Graph:
    """A model's nodes, with its constants, and attention as one node. Calls of it run the network."""

    def __init__(self, model: onnx.ModelProto, operators: Mapping[str, Operator]) -> None:
        self._operators = operators
        self.inputs = [i.name for i in model.graph.input]
        self.constants = {c.name: numpy_helper.to_array(c) for c in model.graph.initializer}
        self.whole = {n: c for n, c in self.constants.items() if c.dtype.kind == "i"}
        self._output = model.graph.output[0].name
        self._nodes = [*model.graph.node]
        if "Attention" in operators:
            self._nodes = self._with_attention()

    def _with_attention(self) -> list[Node]:
        """Return the nodes, with one node for each attention without a mask."""
        makers = {node.output[0]: node for node in self._nodes}
        users: dict[str, list[Node]] = {}
        for node in self._nodes:
            for name in node.input:
                users.setdefault(name, []).append(node)
        replaced, gone = dict[int, Node](), set[int]()
        for soft in (node for node in self._nodes if node.op_type == "Softmax"):
            scaled = makers[soft.input[0]]
            scores, last = makers[scaled.input[0]], users[soft.output[0]][0]
            keys = makers[scores.input[1]]
            inputs = [scores.input[0], keys.input[0], last.input[1]]
            replaced[id(last)] = onnx.helper.make_node("Attention", inputs, last.output)
            gone |= {id(node) for node in (soft, scaled, scores, keys)}
        return [replaced.get(id(node), node) for node in self._nodes if id(node) not in gone]

    def __call__(self, values: Mapping[str, Any]) -> Any:
        """Return the network's output, given constants and inputs by name."""
        known = dict(values)
        for node in self._nodes:
            given = [self.whole.get(n, known.get(n)) if n else None for n in node.input]
            attributes = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
            known[node.output[0]] = self._operators[node.op_type](attributes, *given)
        return known[self._output]


def torch_operators(torch: Any) -> Mapping[str, Operator]:
    f = torch.nn.functional

    def conv(a: Attributes, x: Any, w: Any, b: Any) -> Any:
        return f.conv2d(x, w, b, a["strides"], a["pads"][:2], groups=a["group"])

    def gelu(a: Attributes, x: Any) -> Any:
        return f.gelu(x, approximate=a.get("approximate", b"none").decode())

    return {
        "Conv": conv, "Gelu": gelu,
        "Add": lambda a, x, y: x + y, "Mul": lambda a, x, y: x * y, "MatMul": lambda a, x, y: x @ y,
        "Relu": lambda a, x: f.relu(x), "Sigmoid": lambda a, x: torch.sigmoid(x),
        "Clip": lambda a, x, low, high: x.clamp(low, high),
        "Softmax": lambda a, x: f.softmax(x, a["axis"]),
        "MaxPool": lambda a, x: f.max_pool2d(x, a["kernel_shape"], a["strides"], a.get("pads", [0])[0]),
        "GlobalAveragePool": lambda a, x: x.mean((2, 3), keepdim=True),
        "Flatten": lambda a, x: x.flatten(1), "Reshape": lambda a, x, to: x.reshape(to.tolist()),
        "Transpose": lambda a, x: x.permute(*a["perm"]), "Concat": lambda a, *x: torch.cat(x, a["axis"]),
        "LayerNormalization": lambda a, x, w, b: f.layer_norm(x, x.shape[-1:], w, b),
        "GroupNormalization": lambda a, x, w, b: f.group_norm(x, a["num_groups"], w, b),
        "Resize": lambda a, x, *_: f.interpolate(x, scale_factor=2.0, mode="nearest"),
        "Attention": lambda a, q, k, v: f.scaled_dot_product_attention(q, k, v),
    }  # fmt: skip


def jax_operators(jax: Any) -> Mapping[str, Operator]:
    jnp, lax, nn = jax.numpy, jax.lax, jax.nn

    def conv(a: Attributes, x: Any, w: Any, b: Any) -> Any:
        edge = [(p, p) for p in a["pads"][:2]]
        y = lax.conv_general_dilated(x, w, a["strides"], edge, feature_group_count=a["group"])
        return y + b[:, None, None]

    def pool(a: Attributes, x: Any) -> Any:
        edge = a.get("pads", [0])[0]
        sides = ((0, 0), (0, 0), (edge, edge), (edge, edge))
        size, step = (1, 1, *a["kernel_shape"]), (1, 1, *a["strides"])
        return lax.reduce_window(x, -jnp.inf, lax.max, size, step, sides)

    def normalized(x: Any, axes: tuple[int, ...]) -> Any:
        y = x.astype(jnp.float32)
        y = y - y.mean(axes, keepdims=True)
        return (y * lax.rsqrt((y * y).mean(axes, keepdims=True) + 1e-5)).astype(x.dtype)

    def grouped(a: Attributes, x: Any, w: Any, b: Any) -> Any:
        y = normalized(x.reshape(x.shape[0], a["num_groups"], -1), (2,)).reshape(x.shape)
        return y * w[:, None, None] + b[:, None, None]

    return {
        "Conv": conv, "MaxPool": pool, "GroupNormalization": grouped,
        "Add": lambda a, x, y: x + y, "Mul": lambda a, x, y: x * y, "MatMul": lambda a, x, y: x @ y,
        "Relu": lambda a, x: nn.relu(x), "Sigmoid": lambda a, x: nn.sigmoid(x),
        "Clip": lambda a, x, low, high: jnp.clip(x, low, high),
        "Gelu": lambda a, x: nn.gelu(x, approximate=a.get("approximate") == b"tanh"),
        "Softmax": lambda a, x: nn.softmax(x, a["axis"]),
        "GlobalAveragePool": lambda a, x: x.mean((2, 3), keepdims=True),
        "Flatten": lambda a, x: x.reshape(x.shape[0], -1),
        "Reshape": lambda a, x, to: x.reshape(to.tolist()),
        "Transpose": lambda a, x: x.transpose(*a["perm"]),
        "Concat": lambda a, *x: jnp.concatenate(x, a["axis"]),
        "LayerNormalization": lambda a, x, w, b: normalized(x, (-1,)) * w + b,
        "Resize": lambda a, x, *_: x.repeat(2, 2).repeat(2, 3),
    }  # fmt: skip


def jax_network(jax: Any, model: onnx.ModelProto) -> tuple[Callable[..., Any], Any]:
    """Return a network compiled by XLA, and its constants as JAX's arrays."""
    graph = Graph(model, jax_operators(jax))
    constants = {n: jax.numpy.asarray(c) for n, c in graph.constants.items() if n not in graph.whole}
    return jax.jit(lambda constants, given: graph({**constants, **given})), constants


def torch_module(torch: Any, model: onnx.ModelProto) -> tuple[Any, list[str]]:
    """Return a network as a module, and its inputs' names. Its parameters are the constants."""
    graph = Graph(model, torch_operators(torch))

    class Network(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            for name, value in graph.constants.items():
                if name not in graph.whole:
                    self.register_parameter(name, torch.nn.Parameter(tensor(torch, value)))

        def forward(self, *given: Any) -> Any:
            return graph({**dict(self.named_parameters()), **dict(zip(graph.inputs, given, strict=True))})

    return Network(), graph.inputs


def tensor(torch: Any, value: np.ndarray) -> Any:
    """Return an array as a tensor. PyTorch takes no array of bfloat16."""
    if value.dtype.name == "bfloat16":
        return torch.from_numpy(value.view(np.int16).copy()).view(torch.bfloat16)
    return torch.from_numpy(np.array(value))
