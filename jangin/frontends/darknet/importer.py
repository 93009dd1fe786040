"""Import Darknet's networks as graphs. The importer computes each layer's shape, because the sizes of its
weights follow from it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace

from jangin.frontends.assemble import ShapeBindings, Symbols, model_graph
from jangin.frontends.darknet.boxes import Boxes
from jangin.frontends.darknet.sections import Section
from jangin.frontends.darknet.shortcuts import Size, balanced, in_step
from jangin.ir.dtype import F32
from jangin.ir.graph import CompileError, Graph, Value

ALIASES = {
    "avg": "avgpool", "conn": "connected", "conv": "convolutional", "deconv": "deconvolutional",
    "local_avg": "local_avgpool", "max": "maxpool", "soft": "softmax",
}  # fmt: skip
"""Sections' other names, with the names that the importer uses."""
IGNORED = frozenset({"cost", "dropout", "detection_loss"})
"""Sections that have an effect only in training."""


class Network(Boxes):
    """The import of one cfg with its weights."""

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

    def _layer(self, n: int, section: Section) -> None:
        section = replace(section, kind=ALIASES.get(section.kind, section.kind))
        self.place, self.section = n, section
        known: Mapping[str, Callable[[], None]] = {
            "convolutional": self._convolutional, "connected": self._connected, "maxpool": self._maxpool,
            "avgpool": self._avgpool, "route": self._route, "shortcut": self._shortcut,
            "upsample": self._upsample, "reorg": self._reorg, "reorg3d": self._reorg,
            "softmax": self._softmax, "activation": self._activation, "batchnorm": self._batchnorm,
            "yolo": self._yolo, "gaussian_yolo": self._gaussian_yolo, "detection": self._detection,
            "region": self._region, "scale_channels": self._scale_channels, "sam": self._sam,
            "crop": self._crop, "local": self._local, "local_avgpool": self._maxpool,
            "deconvolutional": self._deconvolutional,
            **dict.fromkeys(("implicit", "implicit_add", "implicit_mul"), self._implicit),
            **dict.fromkeys(("shift_channels", "control_channels"), self._by_channels),
            **dict.fromkeys(("rnn", "gru", "lstm"), self._recurrent), "crnn": self._crnn,
        }  # fmt: skip
        section.only(dontload=0, dontloadscales=0)
        if section.kind == "contrastive":
            raise CompileError(f"[contrastive] layer {n} is a loss, which only training has")
        if section.kind in IGNORED:
            self.layers.append(self.last)
        elif section.kind in known:
            known[section.kind]()
            self._all_read(section, f"[{section.kind}] layer {n}")
        else:
            self._add(self.last.size, [self.last.name], {})  # the dialect reports the unknown section

    def _convolutional(self) -> None:
        s, (c, h, w) = self.section, self.last.size
        s.only(
            antialiasing=0, binary=0, bin_output=0, coordconv=0, flipped=0, rotate=0, stretch=0,
            stretch_sway=0, sway=0, xnor=0,
        )  # fmt: skip
        if "share_index" in s.options:
            raise CompileError(f"[convolutional] layer {self.place}: share_index is not supported")
        filters, size, groups = s.whole("filters", 1, 1), s.whole("size", 1, 1), s.whole("groups", 1, 1)
        strides, dilation = self._strides(), s.whole("dilation", 1, 1) if size > 1 else 1
        s.asked.update(("dilation", "padding"))
        padding = dilation * (size // 2 if s.whole("pad", 0) else s.whole("padding", 0, 0))
        if c % groups or filters % groups:
            raise CompileError(
                f"layer {self.place}: {groups} groups don't divide {c} channels and {filters} filters"
            )
        normalized = bool(s.whole("batch_normalize", 0)) | bool(s.whole("cbn", 0))
        inputs = [self.last.name, self._take([filters], "biases")]
        if normalized:
            inputs += [self._take([filters], what) for what in ("scales", "mean", "variance")]
        inputs.insert(1, self._take([filters, c // groups, size, size], "weights"))
        span = (size - 1) * dilation + 1
        out = tuple((d + 2 * padding - span) // n + 1 for d, n in zip((h, w), strides, strict=True))
        theirs = tuple((d + 2 * padding // dilation - size) // n + 1
                       for d, n in zip((h, w), strides, strict=True))  # fmt: skip
        if out != theirs:
            raise CompileError(
                f"[convolutional] layer {self.place}: with dilation={dilation} Darknet gives {theirs}, and "
                f"its windows fit {out} times, which is not supported"
            )
        attrs = {"strides": strides, "padding": padding, "dilation": dilation, "groups": groups}
        self._add((filters, out[0], out[1]), inputs, {**attrs, **self._activated()})

    def _strides(self) -> tuple[int, int]:
        """Return the vertical and horizontal strides."""
        stride = self.section.whole("stride", 1, 1)
        down, across = (self.section.whole(f"stride_{a}", stride) for a in "yx")
        return down if down > 0 else stride, across if across > 0 else stride

    def _deconvolutional(self) -> None:
        s, (c, h, w) = self.section, self.last.size
        filters, size, stride = s.whole("filters", 1, 1), s.whole("size", 1, 1), s.whole("stride", 1, 1)
        padding = size // 2 if s.whole("pad", 0) else s.whole("padding", 0, 0)
        s.asked.add("padding")
        inputs = [self.last.name, self._take([filters], "biases")]
        if s.whole("batch_normalize", 0):
            inputs += [self._take([filters], what) for what in ("scales", "mean", "variance")]
        inputs.insert(1, self._take([c, filters, size, size], "weights"))
        height, width = ((d - 1) * stride + size - 2 * padding for d in (h, w))
        self._add(
            (filters, height, width), inputs, {"stride": stride, "padding": padding, **self._activated()}
        )

    def _local(self) -> None:
        """Add a convolution that has other filters at each position."""
        s, (c, h, w) = self.section, self.last.size
        filters, size, stride = s.whole("filters", 1, 1), s.whole("size", 1, 1), s.whole("stride", 1, 1)
        pad = s.whole("pad", 0, 0)
        out = tuple((d - (1 if pad else size)) // stride + 1 for d in (h, w))
        if out != tuple((d + 2 * pad - size) // stride + 1 for d in (h, w)):
            raise CompileError(f"[local] layer {self.place}: pad={pad} with size={size} is not supported")
        height, width = out
        biases = self._take([filters, height, width], "biases")
        weights = self._take([height * width, filters, c, size, size], "weights")
        attrs = {"stride": stride, "padding": pad, **self._activated()}
        self._add((filters, height, width), [self.last.name, weights, biases], attrs)

    def _crop(self) -> None:
        """Add a crop of an image's centre. Numbers from 0 to 1 are scaled to -1 to 1 unless `noadjust` is
        set."""
        c, h, w = self.last.size
        height, width = (self.section.whole(f"crop_{n}", 1, 1) for n in ("height", "width"))
        if height > h or width > w:
            raise CompileError(f"[crop] layer {self.place} can't cut {height} x {width} out of {h} x {w}")
        attrs = {"adjust": not self.section.whole("noadjust", 0)}
        self._add((c, height, width), [self.last.name], attrs)

    def _implicit(self) -> None:
        """Add a constant of learned numbers, which is the same for all images."""
        filters, atoms = self.section.whole("filters", 128, 1), self.section.whole("atoms", 1, 1)
        self._add((filters, atoms, 1), [self.last.name, self._take([filters, atoms, 1], "weights")], {})

    def _by_channels(self) -> None:
        """Add a layer that adds one number for each channel to the last layer, or multiplies by it, as its
        section tells."""
        (other,) = [self._other(i) for i in self.section.numbers("from")]
        if other.size != (self.last.size[0], 1, 1):
            raise CompileError(
                f"[{self.section.kind}] layer {self.place} takes one number for each of "
                f"{self.last.size[0]} channels, and the layer in from= gives {other.size}"
            )
        self._add(self.last.size, [self.last.name, other.name], {})

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
        """Take the weights of a layer inside a recurrent section, and return their names. In the file, a
        convolution's statistics precede its weights. The statistics of other layers follow the weights."""
        out = shape[:1]
        taken = {"biases": self._take(out, f"{name}.biases")}
        statistics = ("scales", "mean", "variance") if normalized else ()
        order = [*statistics, "weights"] if len(shape) == 4 else ["weights", *statistics]
        for what in order:
            taken[what] = self._take(shape if what == "weights" else out, f"{name}.{what}")
        return [taken["weights"], taken["biases"], *(taken[s] for s in statistics)]

    def _stepped(self, size: Size, shapes: Mapping[str, list[int]], state: list[int], count: int) -> None:
        """Add a node that computes one step. Its state is an input and an output of the network."""
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
        kind, size = self.section.kind, math.prod(self.last.size)
        out = self.section.whole("output", 1, 1)
        hidden = self.section.whole("hidden", out, 1) if kind == "rnn" else out
        shapes = {"input": [hidden, size], "self": [hidden, hidden], "output": [out, hidden]}
        if kind != "rnn":
            gates = "zrh" if kind == "gru" else "ifog"
            shapes = {f"w{g}": [out, out] for g in gates} | {f"u{g}": [out, size] for g in gates}
        self._stepped((out, 1, 1), shapes, [hidden], 2 if kind == "lstm" else 1)

    def _crnn(self) -> None:
        s, (c, h, w) = self.section, self.last.size
        out, hidden = (s.whole(n, None, 1) if n in s.options else s.whole(f"{n}_filters", 1, 1)
                       for n in ("output", "hidden"))  # fmt: skip
        s.only(xnor=0)
        padding = 1 if s.whole("pad", int("output_filters" in s.options)) else s.whole("padding", 0)
        s.asked.add("padding")
        if padding != 1 or any(
            s.whole(n, d) != d for n, d in (("size", 3), ("stride", 1), ("dilation", 1), ("groups", 1))
        ):
            raise CompileError(
                f"[crnn] layer {self.place}: only 3 x 3 convolutions of stride 1 and padding 1 are supported"
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
        size = s.whole("size", s.whole("stride", 1, 1), 1)
        strides, padding = self._strides(), s.whole("padding", size - 1, 0)
        if s.kind == "maxpool":
            s.only(antialiasing=0)
            few = s.whole("out_channels", 1, 1)
            if s.whole("maxpool_depth", 0):
                if c % few:
                    raise CompileError(
                        f"[maxpool] layer {self.place}: {few} groups don't divide {c} channels"
                    )
                self._add((few, h, w), [self.last.name], {"channels": few})
                return
        height, width = ((d + padding - size) // n + 1 for d, n in zip((h, w), strides, strict=True))
        self._add(
            (c, height, width), [self.last.name], {"size": size, "strides": strides, "padding": padding}
        )

    def _avgpool(self) -> None:
        self._add((self.last.size[0], 1, 1), [self.last.name], {})

    def _route(self) -> None:
        s = self.section
        parts = [self._other(i) for i in s.numbers("layers")]
        groups, group = s.whole("groups", 1, 1), s.whole("group_id", 0, 0)
        if not parts or len({p.size[1:] for p in parts}) > 1 or any(p.size[0] % groups for p in parts):
            raise CompileError(
                f"[route] layer {self.place} can't join layers of the sizes {[p.size for p in parts]}"
            )
        channels = sum(p.size[0] // groups for p in parts)
        attrs = {"groups": groups, "group_id": group, "channels": [p.size[0] for p in parts]}
        self._add((channels, *parts[0].size[1:]), [p.name for p in parts], attrs)

    def _shortcut(self) -> None:
        """Add a sum of layers, optionally with a weight for each layer or for each of its channels.

        Layers of other sizes are fitted first. Rows and columns may differ only between two layers without
        weights."""
        s = self.section
        others = [self._other(i) for i in s.numbers("from")]
        apart = [o for o in others if o.size[1:] != self.last.size[1:]]
        plain = len(others) == 1 and s.text("weights_type", "none") == "none"
        if not others or (apart and not plain) or any(not in_step(o.size, self.last.size) for o in apart):
            raise CompileError(
                f"[shortcut] layer {self.place} adds {[o.size for o in others]} to {self.last.size}: "
                "it is not supported"
            )
        kinds = {"none": 0, "per_feature": 1, "per_layer": 1, "per_channel": self.last.size[0]}
        kind, norm = s.text("weights_type", "none"), s.text("weights_normalization", "none")
        if kind not in kinds or norm not in ("none", "relu", "avg_relu", "softmax"):
            raise CompileError(
                f"[shortcut] layer {self.place}: weights_type={kind}, weights_normalization={norm} "
                "is not supported"
            )
        weights = []
        if kinds[kind]:
            weights = [self._take([len(others) + 1, kinds[kind]], "weights")]
            self.constants[weights[0]] = balanced(self.constants[weights[0]], norm)
        attrs = {**self._linear(), "weighted": bool(weights)}
        self._add(self.last.size, [self.last.name, *(o.name for o in others), *weights], attrs)

    def _upsample(self) -> None:
        c, h, w = self.last.size
        stride, scale = self.section.whole("stride", 2), self.section.number("scale", 1)
        attrs = {"stride": stride, "scale": scale}
        if stride >= 1:
            self._add((c, h * stride, w * stride), [self.last.name], attrs)
            return
        if not stride or h % stride or w % stride:
            raise CompileError(f"[upsample] layer {self.place}: stride={stride} doesn't fit {h} x {w}")
        self._add((c, h // -stride, w // -stride), [self.last.name], attrs)

    def _reorg(self) -> None:
        """Add [reorg], which orders elements in Darknet's own way, or [reorg3d], which moves blocks of pixels
        into channels."""
        kind, (c, h, w) = self.section.kind, self.last.size
        s, back = self.section.whole("stride", 1, 1), bool(self.section.whole("reverse", 0))
        fits = c % (s * s) == 0 if back or kind == "reorg" else True
        if not fits or (not back and (h % s or w % s)) or (back and kind == "reorg3d"):
            raise CompileError(f"[{kind}] layer {self.place} of {self.last.size} by {s} is not supported")
        size = (c // (s * s), h * s, w * s) if back else (c * s * s, h // s, w // s)
        self._add(size, [self.last.name], {"stride": s, "back": back})

    def _softmax(self) -> None:
        self.section.only(spatial=0)
        if "tree" in self.section.options:
            raise CompileError(f"[softmax] layer {self.place}: trees are not supported")
        attrs = {
            "groups": self.section.whole("groups", 1, 1),
            "temperature": self.section.number("temperature", 1),
        }
        self._add(self.last.size, [self.last.name], attrs)

    def _activation(self) -> None:
        self._add(self.last.size, [self.last.name], self._linear())

    def _scale_channels(self) -> None:
        (other,) = [self._other(i) for i in self.section.numbers("from")]
        if self.section.whole("scale_wh", 0) or self.last.size != (other.size[0], 1, 1):
            raise CompileError(
                f"[scale_channels] layer {self.place} can't scale {other.size} by {self.last.size}"
            )
        self._add(other.size, [other.name, self.last.name], self._linear())

    def _sam(self) -> None:
        (other,) = [self._other(i) for i in self.section.numbers("from")]
        if self.last.size != other.size:
            raise CompileError(f"[sam] layer {self.place} can't multiply {self.last.size} by {other.size}")
        self._add(other.size, [other.name, self.last.name], self._linear())
