"""The quantization of one model: its parts, the kinds that they can have, and the resulting model,
measured."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from jangin.compiler.cases import imported
from jangin.compiler.driver import compile_by
from jangin.files import write_whole
from jangin.frontends.dialect import Imported
from jangin.frontends.format import ModelSource
from jangin.frontends.lower import lower
from jangin.frontends.tflite.format import WRITES
from jangin.frontends.writer import outputs_named
from jangin.ir.dtype import I4, I8
from jangin.ir.graph import Array, CompileError, Graph
from jangin.ir.limits import within
from jangin.ir.records import dataclass
from jangin.options import Options
from jangin.quantization.balance import corrected, equalized, smoothed
from jangin.quantization.data import Feeds
from jangin.quantization.decide import Report
from jangin.quantization.engine import Engine, Seen, Tell
from jangin.quantization.gptq import gptq
from jangin.quantization.parts import Part, bias_of, find_parts, prepared
from jangin.quantization.quality import Outputs, Quality, Score, quality
from jangin.quantization.scales import Scheme, of_pairs, of_weights
from jangin.quantization.writer import Chosen, Quantization, quantized_values, written
from jangin.runtime.load import Runnable
from jangin.runtime.sizes import TensorSpec

KINDS = ("int8", "int4", "float16")
BITS = 8, 7
"""The possible bits of int8 weights. With 7 bits, two products with bytes can be added in an int16.

Weights of 7 bits are from -64 to 64. A weight may be larger if its neighbour is smaller by as much."""
NARROW = 64
"""The largest weight of 7 bits. Two products of such weights with bytes always fit an int16."""
BIAS_ROOM = 1 << 30
"""The largest absolute value of a bias, in units of both scales. It is half of int32's range, so that a sum
of products can be added without overflow."""


@dataclass(frozen=True)
class Quantized:
    """A quantized model.

    `model` has the bytes of its ONNX file. `tflite` returns those of its TensorFlow Lite file, or raises
    CompileError that names what the format can't express. `chosen` has the kind of each quantized part.
    `drop` is how much worse its outputs are by `quality`. `report` has the reasons if the kinds were chosen
    part by part. `bits` are the bits of int8 weights."""

    model: bytes
    chosen: Mapping[str, Chosen]
    quality: Quality
    drop: float
    executable: Runnable
    owners: Mapping[str, str]
    tflite: Callable[[], bytes]
    report: Report | None = None
    bits: int = I8.bits

    def __repr__(self) -> str:
        kinds = ", ".join(sorted({c.kind for c in self.chosen.values()})) or "none"
        parts = f"{len(self.chosen)} parts ({kinds})"
        return f"<Quantized {self.executable.name!r}: {parts}, drop {self.drop:.3g}>"

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the model as an .onnx, .tflite or .jgn file, by the name's ending. Raises ValueError for
        another ending."""
        path = Path(path)
        if path.suffix == ".jgn":
            self.executable.save(path)
        elif path.suffix == ".onnx":
            write_whole(path, lambda file: file.write(self.model))
        elif path.suffix == ".tflite":
            content = self.tflite()
            write_whole(path, lambda file: file.write(content))
        else:
            raise ValueError(f"{path}: a quantized model is written as NAME.onnx, NAME.tflite or NAME.jgn")


class Job:
    """The quantization of one model. `narrow` tells if weights of 7 bits are quicker on this machine."""

    def __init__(
        self, model: ModelSource, options: Options, tell: Tell | None = None, equalize: bool = False
    ) -> None:
        self.tell: Tell = tell or (lambda done, total, what: None)
        self.tell(0, 1, "import")
        self.options = options
        with within(options.limits):
            graph, self.metadata = _prepared(imported(model, options), options, equalize)
        self.narrow = any(p.clamps for p in options.target.machine.products)
        self._take(graph)

    def _take(self, graph: Graph) -> None:
        self.graph, self.parts = graph, find_parts(graph)
        self.engine = Engine(graph, self.options, Seen(graph, self.parts).values)

    @property
    def inputs(self) -> tuple[TensorSpec, ...]:
        return self.engine.inputs

    def rated(self, feeds: Feeds, labels: Array | None, score: Score | None) -> Quality:
        """Return the quality measure. Its reference is the outputs of the model before quantization."""
        return quality(self.outputs(self.engine.run, feeds), labels, score)

    def outputs(self, run: Any, feeds: Feeds) -> Outputs:
        outputs = []
        for n, run_feeds in enumerate(feeds):
            self.tell(n, len(feeds), "measure")
            results = run(run_feeds)
            outputs.append([results[name] for name in self.graph.outputs])
        return outputs

    def watched(self, feeds: Feeds, smooth: float | None = None) -> Seen:
        """Run the model on the data, and return the statistics of its values. If `smooth` is given, this
        share of the activations' outliers first moves into weights."""
        seen = Seen(self.graph, self.parts)
        for n, run in enumerate(feeds):
            self.tell(n, len(feeds), "calibrate")
            seen.see(self.engine.run(run))
        if smooth is None or not seen.multiplied:
            return seen
        self._take(smoothed(self.graph, seen.largest, smooth))
        return self.watched(feeds)

    def chosen(
        self, kind: str, ranges: Mapping[str, Scheme], block: int, seen: Seen, bits: int = 8,
        lenient: bool = False,
    ) -> dict[str, Chosen]:  # fmt: skip
        """Quantize each part to a kind of numbers, and return the parts by name. `bits` are the bits of int8
        weights. Convolutions are left out for "int4".

        Raises CompileError for a part that the kind doesn't suit. If `lenient`, such a part is left out."""
        sources = quantized_values(self.graph, self.parts, {p.name: kind for p in self.parts})
        chosen = {}
        for part in self.parts:
            w = part.weights(self.graph)
            if unfit := _unfit(kind, part, w, block):
                if lenient:
                    continue
                raise CompileError(unfit)
            if kind == "float16":
                chosen[part.name] = Chosen(kind, w.astype(np.float16))
            elif kind == "int4" and not part.is_conv:
                chosen[part.name] = Chosen(kind, *gptq(w, seen.moments[part.x], I4, block))
            elif kind == "int8":
                chosen[part.name] = _int8(self.graph, part, w, ranges[sources[part.x]], seen, bits)
        return chosen

    def made(
        self, chosen: Mapping[str, Chosen], ranges: Mapping[str, Scheme], feeds: Feeds, rated: Quality
    ) -> Quantized:
        """Write, compile and measure the model with parts as chosen, and return it."""
        model, owners, executable = self.compiled(chosen, ranges)
        drop = rated.drop(self.outputs(executable.run, feeds))
        tflite = partial(_tflite, self.graph, self.parts, chosen, ranges, self.metadata)
        return Quantized(model, chosen, rated, drop, executable, owners, tflite)

    def compiled(
        self, chosen: Mapping[str, Chosen], ranges: Mapping[str, Scheme]
    ) -> tuple[bytes, dict[str, str], Runnable]:
        """Write and compile the model with parts as chosen. Return its file's bytes, the part of each node by
        the node's name, and its executable."""
        integer = {n: c for n, c in chosen.items() if c.kind == "int8"}
        sources = quantized_values(self.graph, self.parts, integer)
        values = {v: ranges[source].checked((), f"value '{v}'") for v, source in sources.items()}
        for part in self.parts:
            scheme = chosen[part.name].scheme if part.name in chosen else None
            if scheme is not None:
                scheme.checked(chosen[part.name].weights.shape, f"the weights of {part.node.source}")
        self.tell(0, 1, "write")
        model, owners = written(self.graph, self.parts, Quantization(chosen, values), self.metadata)
        self.tell(0, 1, "compile")
        return model, owners, compile_by(self.options.but(cache=False, shapes={}, weights=None), model)


def _prepared(model: Imported, options: Options, equalize: bool) -> tuple[Graph, Mapping[str, Any]]:
    """Return the graph that is quantized, and the model's metadata."""
    lowered = lower(model, options.lowerings, unchecked=options.unchecked)
    graph = outputs_named(prepared(lowered))  # the names of the writer's outputs
    return equalized(graph) if equalize else graph, model.metadata


def _tflite(*model: Any) -> bytes:
    """Call `quantization.tflite.written`. Raises CompileError if its packages aren't installed."""
    try:
        from jangin.quantization.tflite import written
    except ImportError:
        raise CompileError(WRITES) from None
    return written(*model)


def _unfit(kind: str, part: Part, w: Array, block: int) -> str:
    """Return the reason why a part can't have a kind of numbers, or "" if it can."""
    what = f"{part.node.source}: its weights [{', '.join(map(str, w.shape))}]"
    if kind == "float16" and np.abs(w).max(initial=0) > np.finfo(np.float16).max:
        return f"{what} are beyond float16's range: quantize to int8"
    if kind == "int4" and not part.is_conv and len(w) % block:
        fits = [n for n in range(2, len(w) + 1) if len(w) % n == 0]
        nearest = min(fits, key=lambda n: abs(n - block), default=1)
        return (
            f"{what} can't be cut in blocks of {block}, which don't divide {len(w)}: give blocks of {nearest}"
        )
    return ""


def _int8(graph: Graph, part: Part, w: Array, x: Scheme, seen: Seen, bits: int) -> Chosen:
    """Quantize a part's weights to int8 with `bits` bits. Scales are large enough for the bias to fit 32
    bits.

    A depthwise convolution always has 8 bits, because its products aren't added in pairs. A convolution's
    bias is corrected for the rounding of its weights."""
    bias = bias_of(graph, part)
    least = None if bias is None else np.abs(bias) / (float(x.scale) * BIAS_ROOM)
    most = I8.limits[1]
    if bits < I8.bits and w.shape[part.terms] > 1:
        if part.is_conv and w.shape[part.terms] % 2:  # its words may cross pixels
            most = NARROW
        pairs = of_pairs(w, part.axis, part.terms)
        least = pairs if least is None else np.maximum(least, pairs)
    scheme = of_weights(w, I8, part.axis, least=least, most=most)
    whole = scheme.quantized(w)
    if part.is_conv:
        bias = corrected(part, w, scheme.dequantized(whole), seen.means[part.x], bias)
    return Chosen("int8", whole, scheme, bias)
