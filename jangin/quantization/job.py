"""A model being quantized: its parts, what they can become, and the model that comes of it, measured."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from jangin.compiler.driver import compile_by
from jangin.compiler.pipeline import imported
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
"""Of weights in int8. Two products of bytes with weights of 7 bits add up to an int16: these are from -64 to
64, or larger where their neighbours are smaller."""
NARROW = 64
BIAS_ROOM = 1 << 30
"""What a bias is at most, in units of both scales."""


@dataclass(frozen=True)
class Quantized:
    """A quantized model: `model`, the bytes of its ONNX file; `tflite`, which makes those of its TensorFlow
    Lite file, or raises CompileError naming what that can't say; `chosen`, what each part became (parts that
    stay float32 aren't there); `drop`, how much worse its outputs are by `quality`; `report`, why, where that
    was decided part by part; `bits`, those of weights in int8."""

    model: bytes
    chosen: Mapping[str, Chosen]
    quality: Quality
    drop: float
    executable: Runnable
    owners: Mapping[str, str]
    tflite: Callable[[], bytes]
    report: Report | None = None
    bits: int = I8.bits

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write it as an .onnx, .tflite or .jgn file, by the name's end; ValueError for another."""
        path = Path(path)
        if path.suffix == ".jgn":
            self.executable.save(path)
        elif path.suffix == ".onnx":
            write_whole(path, lambda file: file.write(self.model))
        elif path.suffix == ".tflite":
            made = self.tflite()
            write_whole(path, lambda file: file.write(made))
        else:
            raise ValueError(f"{path} is neither an .onnx, nor a .tflite, nor a .jgn file")


class Job:
    """One model being quantized. `narrow`: weights of 7 bits are quicker on this machine."""

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
        """What outputs are held to: those of the model itself."""
        return quality(self.outputs(self.engine.run, feeds), labels, score)

    def outputs(self, run: Any, feeds: Feeds) -> Outputs:
        found = []
        for n, given in enumerate(feeds):
            self.tell(n, len(feeds), "measure")
            results = run(given)
            found.append([results[name] for name in self.graph.outputs])
        return found

    def watched(self, feeds: Feeds, smooth: float | None = None) -> Seen:
        """What the data makes of the values; `smooth`: how much of activations' outliers goes into weights
        first."""
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
        """Each part in a kind of numbers, of those that the kind is for; `bits`: of int8's weights. A part
        that it doesn't suit is a CompileError, or, if `lenient`, left out."""
        sources = quantized_values(self.graph, self.parts, {p.name: kind for p in self.parts})
        found = {}
        for part in self.parts:
            w = part.weights(self.graph)
            if unfit := _unfit(kind, part, w, block):
                if lenient:
                    continue
                raise CompileError(unfit)
            if kind == "float16":
                found[part.name] = Chosen(kind, w.astype(np.float16))
            elif kind == "int4" and not part.is_conv:
                found[part.name] = Chosen(kind, *gptq(w, seen.moments[part.x], I4, block))
            elif kind == "int8":
                found[part.name] = _int8(self.graph, part, w, ranges[sources[part.x]], seen, bits)
        return found

    def made(
        self, chosen: Mapping[str, Chosen], ranges: Mapping[str, Scheme], feeds: Feeds, rated: Quality
    ) -> Quantized:
        """The model with parts as chosen, written, compiled and measured."""
        model, owners, executable = self.compiled(chosen, ranges)
        drop = rated.drop(self.outputs(executable.run, feeds))
        tflite = partial(_tflite, self.graph, self.parts, chosen, ranges, self.metadata)
        return Quantized(model, chosen, rated, drop, executable, owners, tflite)

    def compiled(
        self, chosen: Mapping[str, Chosen], ranges: Mapping[str, Scheme]
    ) -> tuple[bytes, dict[str, str], Runnable]:
        """The model with parts as chosen: its file's bytes, the part that each node there is for, and what
        runs it."""
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
    """The graph that is quantized, and what the model says of itself."""
    lowered = lower(model, options.lowerings, unchecked=options.unchecked)
    graph = outputs_named(prepared(lowered))  # as what writes it calls them
    return equalized(graph) if equalize else graph, model.metadata


def _tflite(*model: Any) -> bytes:
    """As `quantization.tflite.written`, whose packages may not be there."""
    try:
        from jangin.quantization.tflite import written
    except ImportError:
        raise CompileError(WRITES) from None
    return written(*model)


def _unfit(kind: str, part: Part, w: Array, block: int) -> str:
    """Why a part can't be in a kind of numbers; "" where it can."""
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
    """A part's weights in int8, of so many bits (a depthwise convolution's of 8, as its products aren't added
    up in pairs), of scales in which its bias fits 32 bits; a convolution's bias makes good what their
    rounding adds."""
    bias = bias_of(graph, part)
    least = None if bias is None else np.abs(bias) / (float(x.scale) * BIAS_ROOM)
    most = I8.limits[1]
    if bits < I8.bits and w.shape[part.terms] > 1:
        if part.is_conv and w.shape[part.terms] % 2:  # its words may go across pixels
            most = NARROW
        pairs = of_pairs(w, part.axis, part.terms)
        least = pairs if least is None else np.maximum(least, pairs)
    scheme = of_weights(w, I8, part.axis, least=least, most=most)
    whole = scheme.quantized(w)
    if part.is_conv:
        bias = corrected(part, w, scheme.dequantized(whole), seen.means[part.x], bias)
    return Chosen("int8", whole, scheme, bias)
