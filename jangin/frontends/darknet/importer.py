"""Darknet's networks as imported graphs: shapes are followed to know each layer's weights."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from jangin.frontends.assemble import ShapeBindings, Symbols, model_graph
from jangin.frontends.darknet.sections import Section, Weights, sections
from jangin.ir.dtype import F32
from jangin.ir.graph import Array, CompileError, Graph, ImportedAttributes, Node, Value
from jangin.ir.sources import Sources

Size = tuple[int, int, int]
"""Channels, rows and columns."""
IGNORED = frozenset({"cost", "dropout", "detection_loss"})
"""Sections that do nothing but in training."""
DETECTIONS = ("yolo", "region")


@dataclass
class _Layer:
    """What a layer gives: the value `name`, of `size`."""

    name: str
    size: Size


class Network:
    """One cfg with its weights."""

    def __init__(self, text: str, weights: Weights) -> None:
        self.net, *self.sections = sections(text)
        self.weights = weights
        self.layers: list[_Layer] = []
        self.nodes: list[Node] = []
        self.constants: dict[str, Array] = {}
        self.outputs: list[str] = []
        self.options: dict[str, Any] = {}
        self.given: dict[str, list[int | str]] = {}
        self.states: dict[str, str] = {}
        self.size: Size = self.net.whole("inputs", 1, 1), 1, 1
        if "inputs" not in self.net.options:
            height, width = (self.net.whole(name, None, 1) for name in ("height", "width"))
            self.size = self.net.whole("channels", 3, 1), height, width

    def imported(self, shapes: ShapeBindings) -> Graph:
        symbols = Symbols(shapes)
        x = Value("data", F32, symbols.shape("data", ["batch", *self.size]))
        for n, section in enumerate(self.sections):
            self._layer(n, section)
        self.weights.finish()
        if not self.layers:
            raise CompileError("the cfg has no layers")
        if self.options:
            self._suppressed()
        outputs = [*(self.outputs or [self.layers[-1].name]), *self.states.values()]
        states = [Value(n, F32, symbols.shape(n, s)) for n, s in self.given.items()]
        return model_graph("model", [x, *states], outputs, self.nodes, self.constants, symbols)

    def suppress(self, overlap: float, score: float, most: int) -> None:
        """Have boxes that overlap a better one left out in the end."""
        self.options = {"overlap": overlap, "score": score, "most": most}

    def _suppressed(self) -> None:
        """One output in place of the detections'."""
        if not self.outputs:
            raise CompileError("there are no boxes to suppress: the cfg has no [yolo] and no [region]")
        given = ImportedAttributes("darknet.nms", self.options)
        name = "detections"
        self.nodes.append(Node(name, tuple(self.outputs), (name,), given, Sources.of("suppressing of boxes")))
        self.outputs = [name]

    @property
    def last(self) -> _Layer:
        return self.layers[-1] if self.layers else _Layer("data", self.size)

    def _layer(self, n: int, section: Section) -> None:
        self.place, self.section = n, section
        known: Mapping[str, Callable[[], None]] = {
            "convolutional": self._convolutional, "connected": self._connected, "maxpool": self._maxpool,
            "avgpool": self._avgpool, "route": self._route, "shortcut": self._shortcut,
            "upsample": self._upsample, "reorg": self._reorg, "softmax": self._softmax,
            "activation": self._activation, "batchnorm": self._batchnorm, "yolo": self._yolo,
            "region": self._region, "scale_channels": self._scale_channels, "sam": self._sam,
            **dict.fromkeys(("rnn", "gru", "lstm"), self._recurrent), "crnn": self._crnn,
        }  # fmt: skip
        if section.kind in IGNORED:
            self.layers.append(self.last)
        elif section.kind in known:
            known[section.kind]()
        else:
            self._add(self.last.size, [self.last.name], {})  # the dialect says that there is none such

    def _add(self, size: Size, inputs: Sequence[str], attrs: Mapping[str, Any]) -> None:
        """A node for the section in hand, called as Darknet counts layers."""
        name = f"{self.section.kind}_{self.place}"
        if min(size) < 1:
            raise CompileError(f"[{self.section.kind}] layer {self.place} would give {size}")
        given = ImportedAttributes(f"darknet.{self.section.kind}", {"size_out": size, **attrs})
        source = Sources.of(f"[{self.section.kind}] layer {self.place}", place=f"line {self.section.line}")
        self.nodes.append(Node(name, tuple(inputs), (name,), given, source))
        self.layers.append(_Layer(name, size))

    def _take(self, shape: Sequence[int], what: str) -> str:
        name = f"{self.section.kind}_{self.place}.{what}"
        self.constants[name] = self.weights.take(shape, f"the {what} of layer {self.place}")
        return name

    def _other(self, index: float) -> _Layer:
        """A layer by its number, counted from this one where negative."""
        at = int(index) + self.place if index < 0 else int(index)
        if not 0 <= at < self.place:
            raise CompileError(
                f"[{self.section.kind}] layer {self.place} reads layer {at}, which isn't before it"
            )
        return self.layers[at]

    def _activated(self) -> dict[str, Any]:
        return {"activation": self.section.options.get("activation", "logistic")}

    def _convolutional(self) -> None:
        s, (c, h, w) = self.section, self.last.size
        filters, size, groups = s.whole("filters", 1, 1), s.whole("size", 1, 1), s.whole("groups", 1, 1)
        stride, dilation = s.whole("stride", 1, 1), s.whole("dilation", 1, 1)
        padding = size // 2 * dilation if s.whole("pad", 0) else s.whole("padding", 0, 0)
        if c % groups or filters % groups:
            raise CompileError(f"layer {self.place}: {groups} groups of {c} channels and {filters} filters")
        normalized = bool(s.whole("batch_normalize", 0))
        inputs = [self.last.name, self._take([filters], "biases")]
        if normalized:
            inputs += [self._take([filters], what) for what in ("scales", "mean", "variance")]
        inputs.insert(1, self._take([filters, c // groups, size, size], "weights"))
        span = (size - 1) * dilation + 1
        out = ((h + 2 * padding - span) // stride + 1, (w + 2 * padding - span) // stride + 1)
        attrs = {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups}
        self._add((filters, *out), inputs, {**attrs, **self._activated()})

    def _connected(self) -> None:
        s, (c, h, w) = self.section, self.last.size
        out = s.whole("output", 1, 1)
        inputs = [self.last.name, self._take([out], "biases")]
        inputs.insert(1, self._take([out, c * h * w], "weights"))
        if s.whole("batch_normalize", 0):
            inputs += [self._take([out], what) for what in ("scales", "mean", "variance")]
        self._add((out, 1, 1), inputs, self._activated())

    # -- recurrent ------------------------------------------------------------------------------

    def _inside(self, name: str, shape: list[int], normalized: bool) -> list[str]:
        """The weights of a layer inside: of a convolution behind its statistics, else before them."""
        out = shape[:1]
        taken = {"biases": self._take(out, f"{name}.biases")}
        statistics = ("scales", "mean", "variance") if normalized else ()
        order = [*statistics, "weights"] if len(shape) == 4 else ["weights", *statistics]
        for what in order:
            taken[what] = self._take(shape if what == "weights" else out, f"{name}.{what}")
        return [taken["weights"], taken["biases"], *(taken[s] for s in statistics)]

    def _stepped(self, size: Size, shapes: Mapping[str, list[int]], state: list[int], count: int) -> None:
        """A node of a step: its state is an input and an output of the network."""
        s, name = self.section, f"{self.section.kind}_{self.place}"
        if self.net.whole("time_steps", 1) != 1:
            raise CompileError(f"[{s.kind}] layer {self.place}: time_steps must be 1, a run is a step")
        normalized = bool(s.whole("batch_normalize", 0))
        weights = [w for part, shape in shapes.items() for w in self._inside(part, shape, normalized)]
        before = [f"{name}.state{n}" for n in range(count)]
        after = [f"{name}.state{n}.next" for n in range(count)]
        self.given |= {n: ["batch", *state] for n in before}
        self.states |= dict(zip(before, after, strict=True))
        attrs = {
            "normalized": normalized, "shortcut": s.whole("shortcut", 0), "tanh": s.whole("tanh", 0),
            "padding": len(state) > 1, **self._activated(),
        }  # fmt: skip
        self._add(size, [self.last.name, *before, *weights], attrs)
        self.nodes[-1] = replace(self.nodes[-1], outputs=(name, *after))

    def _recurrent(self) -> None:
        kind, given = self.section.kind, math.prod(self.last.size)
        out = self.section.whole("output", 1, 1)
        hidden = self.section.whole("hidden", out, 1) if kind == "rnn" else out
        shapes = {"input": [hidden, given], "self": [hidden, hidden], "output": [out, hidden]}
        if kind != "rnn":
            gates = "zrh" if kind == "gru" else "ifog"
            shapes = {f"w{g}": [out, out] for g in gates} | {f"u{g}": [out, given] for g in gates}
        self._stepped((out, 1, 1), shapes, [hidden], 2 if kind == "lstm" else 1)

    def _crnn(self) -> None:
        s, (c, h, w) = self.section, self.last.size
        out, hidden = s.whole("output_filters", 1, 1), s.whole("hidden_filters", 1, 1)
        if any(s.whole(n, d) != d for n, d in (("size", 3), ("stride", 1), ("dilation", 1), ("groups", 1))):
            raise CompileError(
                f"[crnn] layer {self.place}: only 3 x 3 convolutions of stride 1 are supported"
            )
        pairs = {"input": (hidden, c), "self": (hidden, hidden), "output": (out, hidden)}
        shapes = {name: [o, i, 3, 3] for name, (o, i) in pairs.items()}
        self._stepped((out, h, w), shapes, [hidden, h, w], 1)

    def _batchnorm(self) -> None:
        c = self.last.size[0]
        names = [self._take([c], what) for what in ("biases", "scales", "mean", "variance")]
        self._add(self.last.size, [self.last.name, *names], {})

    def _maxpool(self) -> None:
        s, (c, h, w) = self.section, self.last.size
        stride = s.whole("stride", 1, 1)
        size = s.whole("size", stride, 1)
        padding = s.whole("padding", size - 1, 0)
        out = ((h + padding - size) // stride + 1, (w + padding - size) // stride + 1)
        self._add((c, *out), [self.last.name], {"size": size, "stride": stride, "padding": padding})

    def _avgpool(self) -> None:
        self._add((self.last.size[0], 1, 1), [self.last.name], {})

    def _route(self) -> None:
        s = self.section
        parts = [self._other(i) for i in s.numbers("layers")]
        groups, group = s.whole("groups", 1, 1), s.whole("group_id", 0, 0)
        if not parts or len({p.size[1:] for p in parts}) > 1 or any(p.size[0] % groups for p in parts):
            raise CompileError(f"[route] layer {self.place} joins layers of {[p.size for p in parts]}")
        channels = sum(p.size[0] // groups for p in parts)
        attrs = {"groups": groups, "group_id": group, "channels": [p.size[0] for p in parts]}
        self._add((channels, *parts[0].size[1:]), [p.name for p in parts], attrs)

    def _shortcut(self) -> None:
        others = [self._other(i) for i in self.section.numbers("from")]
        if any(o.size != self.last.size for o in others) or not others:
            raise CompileError(
                f"[shortcut] layer {self.place} adds {[o.size for o in others]} to {self.last.size}: "
                "of other sizes it is not supported"
            )
        if self.section.options.get("weights_type", "none") != "none":
            raise CompileError(f"[shortcut] layer {self.place}: learned weights are not supported")
        attrs = {"activation": self.section.options.get("activation", "linear")}
        self._add(self.last.size, [self.last.name, *(o.name for o in others)], attrs)

    def _upsample(self) -> None:
        c, h, w = self.last.size
        stride, scale = self.section.whole("stride", 2), self.section.number("scale", 1)
        if stride < 1:
            raise CompileError(f"[upsample] layer {self.place}: stride={stride} is not supported")
        self._add((c, h * stride, w * stride), [self.last.name], {"stride": stride, "scale": scale})

    def _reorg(self) -> None:
        c, h, w = self.last.size
        s = self.section.whole("stride", 1, 1)
        if self.section.whole("reverse", 0) or c % (s * s) or h % s or w % s:
            raise CompileError(f"[reorg] layer {self.place} of {self.last.size} by {s} is not supported")
        self._add((c * s * s, h // s, w // s), [self.last.name], {"stride": s})

    def _softmax(self) -> None:
        attrs = {
            "groups": self.section.whole("groups", 1, 1),
            "temperature": self.section.number("temperature", 1),
        }
        self._add(self.last.size, [self.last.name], attrs)

    def _activation(self) -> None:
        attrs = {"activation": self.section.options.get("activation", "linear")}
        self._add(self.last.size, [self.last.name], attrs)

    def _scale_channels(self) -> None:
        (other,) = [self._other(i) for i in self.section.numbers("from")]
        if self.section.whole("scale_wh", 0) or self.last.size != (other.size[0], 1, 1):
            raise CompileError(f"[scale_channels] layer {self.place}: {self.last.size} times {other.size}")
        self._add(other.size, [other.name, self.last.name], self._linear())

    def _sam(self) -> None:
        (other,) = [self._other(i) for i in self.section.numbers("from")]
        if self.last.size != other.size:
            raise CompileError(f"[sam] layer {self.place}: {self.last.size} times {other.size}")
        self._add(other.size, [other.name, self.last.name], self._linear())

    def _linear(self) -> dict[str, Any]:
        return {"activation": self.section.options.get("activation", "linear")}

    def _yolo(self) -> None:
        s = self.section
        anchors = s.numbers("anchors")
        mask = [int(m) for m in s.numbers("mask")] or list(range(len(anchors) // 2))
        if any(not 0 <= m < len(anchors) // 2 for m in mask):
            raise CompileError(f"[yolo] layer {self.place}: mask={mask} of {len(anchors) // 2} anchors")
        chosen = [(anchors[2 * m] / self.size[2], anchors[2 * m + 1] / self.size[1]) for m in mask]
        attrs = {"scale_x_y": s.number("scale_x_y", 1), "new_coords": s.whole("new_coords", 0)}
        self._detections(s.whole("classes", 20, 1), chosen, attrs)

    def _region(self) -> None:
        s, (_, h, w) = self.section, self.last.size
        given = s.numbers("anchors")
        anchors = [(given[i] / w, given[i + 1] / h) for i in range(0, len(given) - 1, 2)]
        if s.whole("coords", 4) != 4 or "tree" in s.options or s.whole("background", 0):
            raise CompileError(
                f"[region] layer {self.place}: other coordinates, trees or a background are not supported"
            )
        self._detections(s.whole("classes", 20, 1), anchors, {"softmax": s.whole("softmax", 0)})

    def _detections(self, classes: int, anchors: list[tuple[float, float]], attrs: Mapping[str, Any]) -> None:
        c, h, w = self.last.size
        if not anchors or c != len(anchors) * (classes + 5):
            raise CompileError(
                f"[{self.section.kind}] layer {self.place} reads {c} channels, which aren't "
                f"{len(anchors)} anchors of {classes} classes and 5 more"
            )
        given = {"classes": classes, "anchors": anchors, **attrs}
        self._add((h * w * len(anchors), classes + 5, 1), [self.last.name], given)
        self.outputs.append(self.layers[-1].name)
