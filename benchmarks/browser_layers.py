"""Write an ONNX model as layers for TensorFlow.js, whose own converter needs TensorFlow.

ONNX Runtime folds constants first. Images are channels-last, as TensorFlow has them. A convolution or product
takes its bias and its activation with it (`tf.fused`), as TensorFlow's converter does it.
`browser_layers.mjs` runs the layers.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

Array = np.ndarray[Any, np.dtype[Any]]
ACTIVATIONS = {"Relu": "relu", "LeakyRelu": "leakyrelu"}
"""Operators that are activations of `tf.fused`. So is Clip between 0 and 6."""
LOWEST = float(np.finfo(np.float32).min)
"""The value of padding instead of minus infinity, which JSON lacks."""
SAME = {"Relu", "LeakyRelu", "Clip", "Sigmoid", "Add", "Mul", "Sub", "Div", "Concat", "Softmax", "Pad"}
"""Operators whose result is channels-last if an operand is."""


def folded(path: Path, sizes: Mapping[str, int], into: Path) -> onnx.ModelProto:
    """Return a model of known sizes, without nodes whose result is constant."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
    options.optimized_model_filepath = str(into)
    for name, size in sizes.items():
        options.add_free_dimension_override_by_name(name, size)
    onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    return onnx.load(into)


class Layers:
    """The steps of a model, with its weights. Raises ValueError for an operator that isn't known here."""

    def __init__(self, model: onnx.ModelProto) -> None:
        graph = onnx.shape_inference.infer_shapes(model).graph
        self.constants = {t.name: numpy_helper.to_array(t) for t in graph.initializer}
        for n in graph.node:
            if n.op_type == "Constant":
                self.constants[n.output[0]] = numpy_helper.to_array(n.attribute[0].t)
        values = [*graph.input, *graph.value_info, *graph.output]
        self.ranks = {v.name: len(v.type.tensor_type.shape.dim) for v in values}
        self.nodes = [n for n in graph.node if n.op_type != "Constant"]
        self.users: dict[str, list[onnx.NodeProto]] = {}
        for n in self.nodes:
            for name in n.input:
                self.users.setdefault(name, []).append(n)
        self.inputs = [i.name for i in graph.input if i.name not in self.constants]
        self.outputs = [o.name for o in graph.output]
        self.last: set[str] = set()  # values that are channels-last
        self.steps: list[dict[str, Any]] = []
        self.weights: list[Array] = []
        self._places: dict[str, list[Any]] = {}
        self._done: set[int] = set()
        for n in self.nodes:
            if id(n) not in self._done:
                self._step(n)

    def save(self, folder: Path) -> None:
        (folder / "layers.bin").write_bytes(b"".join(w.tobytes() for w in self.weights))
        told = {
            "steps": self.steps, "weights": self._places, "inputs": self.inputs,
            "outputs": [self._first(name) for name in self.outputs],
        }  # fmt: skip
        (folder / "layers.json").write_text(json.dumps(told))

    # --- values

    def _weight(self, name: str, array: Array) -> str:
        """Return the name of a constant of the page, in 32 bits."""
        if name not in self._places:
            kind = "float32" if array.dtype.kind == "f" else "int32"
            at = sum(w.nbytes for w in self.weights)
            self._places[name] = [kind, at, list(array.shape)]
            self.weights.append(np.ascontiguousarray(array.astype(kind)))
        return name

    def _value(self, name: str, *, last: bool) -> str:
        """Return the name of a value as the page has it, in the asked order of axes."""
        if name in self.constants:
            array = self.constants[name]
            if last and array.ndim in (3, 4):
                array = np.moveaxis(array, -3, -1)
            return self._weight(f"{name} last" if last else name, array)
        if last and name not in self.last and self.ranks[name] == 4:
            return self._turned(name, [0, 2, 3, 1], f"{name} last")
        return name if last else self._first(name)

    def _first(self, name: str) -> str:
        return self._turned(name, [0, 3, 1, 2], f"{name} first") if name in self.last else name

    def _turned(self, name: str, order: Sequence[int], to: str) -> str:
        if not any(s["to"] == to for s in self.steps):
            self.steps.append({"op": "Transpose", "of": [name], "to": to, "perm": list(order)})
        return to

    # --- steps

    def _step(self, node: onnx.NodeProto) -> None:
        self._done.add(id(node))
        kind, (to, *_) = node.op_type, node.output
        options = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
        options = {k: v.decode() if isinstance(v, bytes) else v for k, v in options.items()}
        if kind in ("Conv", "MatMul", "Gemm") and (kind == "Conv" or node.input[1] in self.constants):
            self._fused(node, options)
            return
        if kind in ("MaxPool", "AveragePool", "GlobalAveragePool", "Resize"):
            last = True
        else:
            last = kind in SAME and any(n in self.last for n in node.input)
        if last:
            self.last.add(to)
            if "axis" in options:
                options["axis"] = {0: 0, 1: 3, 2: 1, 3: 2}[options["axis"] % 4]
        self._settings(node, options)
        of = [self._value(n, last=last) for n in node.input if n and n not in options.get("settings", ())]
        options.pop("settings", None)
        if kind == "Cast":
            options["kind"] = options.pop("to")
        if kind == "Pad":
            ends = np.reshape(options.pop("pads"), (2, -1)).T
            options["ends"] = ends[[0, 2, 3, 1]].tolist() if last else ends.tolist()
            options["value"] = max(options.get("value", 0.0), LOWEST)
        self.steps.append({"op": kind, "of": of, "to": to, **options})

    def _settings(self, node: onnx.NodeProto, options: dict[str, Any]) -> None:
        """Move constant operands that are settings into the options."""
        names = {
            "Reshape": ["shape"], "Clip": ["min", "max"], "Slice": ["starts", "ends", "axes", "steps"],
            "Unsqueeze": ["axes"], "Squeeze": ["axes"], "Resize": ["roi", "scales", "sizes"],
            "Pad": ["pads", "value"],
        }.get(node.op_type, [])  # fmt: skip
        for name, source in zip(names, node.input[1:], strict=False):
            if source:
                options[name] = self.constants[source].tolist()
        if names:
            options["settings"] = [n for n in node.input[1:] if n]

    def _fused(self, node: onnx.NodeProto, options: dict[str, Any]) -> None:
        """Add a convolution or a product with its bias and its activation."""
        weight, bias = self.constants[node.input[1]], None
        if len(node.input) > 2:
            bias = self.constants[node.input[2]]
        to = node.output[0]
        if bias is None and (add := self._only(to)) is not None and add.op_type == "Add":
            other = [n for n in add.input if n != to]
            if len(other) == 1 and getattr(self.constants.get(other[0]), "ndim", 0) == 1:
                bias, to = self.constants[other[0]], self._taken(add)
        told: dict[str, Any] = {"op": node.op_type, "activation": "linear"}
        if (after := self._only(to)) is not None and (name := self._activation(after)):
            told["activation"], to = name, self._taken(after)
            told["alpha"] = next((a.f for a in after.attribute if a.name == "alpha"), 0.01)
        if node.op_type == "Conv":
            self.last.add(to)
            is_line = weight.ndim == 3
            if is_line:  # an image of one row
                weight = weight[:, :, None]
                self.last.discard(to)
            depthwise = options.get("group", 1) > 1
            if depthwise and weight.shape[1] != 1:
                raise ValueError("convolutions by groups aren't in TensorFlow.js")
            told |= {k: options[k] for k in ("strides", "pads", "dilations") if k in options}
            told |= {"line": is_line, "depthwise": depthwise}
            weight = weight.transpose(2, 3, 0, 1) if depthwise else weight.transpose(2, 3, 1, 0)
            x = node.input[0] if is_line else self._value(node.input[0], last=True)
        else:
            weight = weight.T if options.get("transB") else weight
            x = self._first(node.input[0])
        told["of"] = [x, self._weight(f"{node.output[0]} weight", weight)]
        if bias is not None:
            told["of"].append(self._weight(f"{node.output[0]} bias", bias))
        self.steps.append({**told, "to": to})

    def _only(self, name: str) -> onnx.NodeProto | None:
        """Return the only user of a value, or None."""
        users = self.users.get(name, [])
        return users[0] if len(users) == 1 and name not in self.outputs else None

    def _taken(self, node: onnx.NodeProto) -> str:
        self._done.add(id(node))
        return str(node.output[0])

    def _activation(self, node: onnx.NodeProto) -> str:
        if node.op_type == "Clip":
            limits = [float(self.constants[n]) for n in node.input[1:]]
            return "relu6" if limits == [0, 6] else ""
        return ACTIVATIONS.get(node.op_type, "")
