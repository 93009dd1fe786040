"""Import Caffe's networks as graphs: the layers of the phase TEST. Each write to a blob becomes a separate
value."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from jangin.frontends.assemble import ShapeBindings, Symbols, model_graph
from jangin.frontends.caffe import upgrade
from jangin.frontends.caffe.prototxt import Message, parse
from jangin.ir.dtype import F32
from jangin.ir.graph import Array, CompileError, Graph, ImportedAttributes, Node, Value
from jangin.ir.sources import Sources

PHASE = "TEST"
DATA = frozenset(
    {"Data", "AnnotatedData", "DummyData", "HDF5Data", "ImageData", "Input", "MemoryData", "WindowData"}
)
"""Types of layers whose tops become the network's inputs."""
TRAINING = frozenset({
    "Accuracy", "ContrastiveLoss", "DetectionEvaluate", "EuclideanLoss", "HDF5Output", "HingeLoss",
    "InfogainLoss", "MultiBoxLoss", "MultinomialLogisticLoss", "SigmoidCrossEntropyLoss", "Silence",
    "SmoothL1Loss",
    "SoftmaxWithLoss",
})  # fmt: skip
"""Types of layers that compare with labels or do nothing. They are removed, and their bottoms become the
network's outputs."""
APART = frozenset({
    "name", "type", "bottom", "top", "blobs", "include", "exclude", "param", "phase", "loss_weight",
    "blobs_lr", "weight_decay", "propagate_down", "blob_share_mode",
})  # fmt: skip
"""Fields of a layer that aren't its operator's: its place in the network, and fields that only training
reads."""


class Network:
    """The import of a prototxt with the blobs of its layers."""

    def __init__(self, text: str, blobs: Mapping[str, Sequence[Array]]) -> None:
        self.net = parse(text)
        self.blobs = blobs
        self.layers = [m for m in upgrade.layers(self.net) if _included(m)]
        self.nodes: list[Node] = []
        self.constants: dict[str, Array] = {}
        self.inputs: dict[str, list[int] | None] = {}
        kept = (m for m in self.layers if m.word("type") not in TRAINING)
        self.left = Counter([*self.net.words("input"), *(top for m in kept for top in m.words("top"))])
        self.current: dict[str, str] = {}
        self.unread: dict[str, None] = {}

    def imported(self, shapes: ShapeBindings) -> Graph:
        for name, dims in self._declared():
            self._input(name, dims)
        for layer in self.layers:
            self._layer(layer)
        if not self.nodes:
            raise CompileError("the prototxt has no layers that compute anything")
        symbols = Symbols(shapes)
        read = {i for n in self.nodes for i in n.inputs}
        inputs = [
            Value(name, F32, symbols.shape(name, self._sizes(name, dims, shapes)))
            for name, dims in self.inputs.items()
            if name in read
        ]
        outputs = [name for name in self.unread if name not in self.inputs]
        return model_graph(self.name, inputs, outputs, self.nodes, self.constants, symbols)

    @property
    def name(self) -> str:
        return self.net.word("name") or "model"

    def _declared(self) -> list[tuple[str, list[int] | None]]:
        """Return the names and sizes of the inputs that the prototxt declares outside of layers, in the old
        syntax."""
        names = self.net.words("input")
        dims = [_whole(d, "input_dim") for d in self.net.scalars("input_dim")]
        shapes = [_dims(m) for m in self.net.messages("input_shape")]
        if dims:
            if shapes or len(dims) != 4 * len(names):
                raise CompileError(f"{len(names)} inputs need 4 input_dim each: the prototxt has {len(dims)}")
            shapes = [dims[4 * n : 4 * n + 4] for n in range(len(names))]
        if len(shapes) not in (0, len(names)):
            raise CompileError(f"the prototxt has {len(names)} inputs and {len(shapes)} shapes of them")
        return [(name, shapes[n] if shapes else None) for n, name in enumerate(names)]

    def _sizes(self, name: str, dims: list[int] | None, shapes: ShapeBindings) -> list[int | str]:
        """Return an input's sizes. The caller may change the prototxt's sizes, because Caffe's networks can
        be reshaped at any time."""
        wanted = shapes.get(name)
        sizes = [] if wanted is None or isinstance(wanted, int) else list(wanted)
        declared = sizes if dims is None else [*dims]
        if not declared or None in declared:
            example = f"shapes={{'{name}': (1, 3, 224, 224)}}"
            raise CompileError(f"the prototxt doesn't say what shape '{name}' has: give it, as in {example}")
        if sizes and len(declared) != len(sizes):
            raise CompileError(f"input '{name}' is of rank {len(declared)}, shapes gives it {sizes}")
        return [d if g is None else g for d, g in zip(declared, sizes or declared, strict=True)]  # type: ignore[misc]

    def _input(self, name: str, dims: list[int] | None) -> None:
        self.inputs[self._write(name, given=True)] = dims

    def _write(self, top: str, given: bool = False) -> str:
        """Return a name for a new value of a blob. An input and the blob's last value have the blob's own
        name."""
        self.left[top] -= 1
        later = self.left[top]
        name = top if given or not (later or top in self.inputs) else f"{top}@{later}"
        self.current[top] = name
        self.unread[name] = None
        return name

    def _read(self, bottom: str, source: Sources) -> str:
        if bottom not in self.current:
            raise CompileError(f"{source} reads the blob '{bottom}', which no layer before it gives")
        name = self.current[bottom]
        self.unread.pop(name, None)
        return name

    def _layer(self, layer: Message) -> None:
        kind, name, tops = layer.word("type"), layer.word("name"), layer.words("top")
        if not kind:
            raise CompileError(f"the layer '{name}' in line {layer.line} has no type")
        source = Sources.of(kind, name, place=f"line {layer.line}")
        if kind in DATA:
            shapes = _data_shapes(layer, kind)
            for n, top in enumerate(tops):
                self._input(
                    top, shapes[min(n, len(shapes) - 1)] if shapes and (n == 0 or kind == "Input") else None
                )
            return
        if kind in TRAINING:
            return
        inputs = [self._read(bottom, source) for bottom in layer.words("bottom")]
        for n, blob in enumerate(self.blobs.get(name, ())):
            constant = f"{name}.{n}"
            self.constants[constant] = blob
            inputs.append(constant)
        attrs: dict[str, Any] = {"bottoms": len(layer.words("bottom"))}
        rest = Message(layer.line, {k: v for k, v in layer.fields.items() if k not in APART})
        attrs.update(rest.flat())
        outputs = tuple(self._write(top) for top in tops)
        called = name or (*outputs, str(source))[0]
        self.nodes.append(
            Node(called, tuple(inputs), outputs, ImportedAttributes(f"caffe.{kind}", attrs), source)
        )


def _included(layer: Message) -> bool:
    """Tell if a layer's rules include it when the network is tested."""
    include, exclude = layer.messages("include"), layer.messages("exclude")
    if include:
        return any(map(_met, include))
    return not any(map(_met, exclude))


def _met(rule: Message) -> bool:
    """Tell if a rule applies to the state in which Caffe tests, which has no stages and level 0."""
    low, high = rule.scalars("min_level"), rule.scalars("max_level")
    levels = all(float(v) <= 0 for v in low) and all(float(v) >= 0 for v in high)
    return rule.word("phase", PHASE) in (PHASE, "1") and levels and not rule.scalars("stage")


def _data_shapes(layer: Message, kind: str) -> list[list[int]]:
    """Return the shapes that a data layer declares for its tops. The list may be shorter than that of the
    tops."""
    if kind in ("Input", "DummyData"):
        parameter = "input_param" if kind == "Input" else "dummy_data_param"
        return [_dims(shape) for m in layer.messages(parameter) for shape in m.messages("shape")]
    if kind == "MemoryData":
        sizes = [m.scalars(k) for m in layer.messages("memory_data_param")
                 for k in ("batch_size", "channels", "height", "width")]  # fmt: skip
        return [[_whole(s[-1], "a size") for s in sizes]] if sizes and all(sizes) else []
    crops = [v for m in layer.messages("transform_param") for v in m.scalars("crop_size")]
    batches = [v for k, ms in layer.fields.items() if k.endswith("data_param")
               for m in ms if isinstance(m, Message) for v in m.scalars("batch_size")]  # fmt: skip
    if crops and batches:
        crop = _whole(crops[-1], "crop_size")
        return [[_whole(batches[-1], "batch_size"), 3, crop, crop]]
    return []


def _dims(shape: Message) -> list[int]:
    return [_whole(d, "dim") for d in shape.scalars("dim")]


def _whole(value: object, what: str) -> int:
    if not isinstance(value, (int, float)) or not math.isfinite(value) or value != int(value):
        raise CompileError(f"{what} is {value!r}, and should be a whole number")
    return int(value)
