"""`jangin.quantize`: a model's products in smaller numbers, calibrated on data, held to what it may cost."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import jangin
from jangin.compiler.options import Options
from jangin.frontends import table
from jangin.frontends.format import ModelSource, paired
from jangin.frontends.lower import lower
from jangin.ir.dtype import I4, I8
from jangin.ir.graph import Array, CompileError, Graph
from jangin.ir.records import dataclass
from jangin.pictures import pixels_of
from jangin.quantization.data import Data, Feeds, Reading, read, read_labels
from jangin.quantization.engine import Engine, Tell, watch
from jangin.quantization.observers import METHODS
from jangin.quantization.parts import Part, bias_of, find_parts, observed, prepared
from jangin.quantization.quality import Outputs, Quality, Score, quality
from jangin.quantization.scales import Scheme, of_range, of_weights
from jangin.quantization.writer import Chosen, Quantization, quantized_values, written
from jangin.runtime.load import Runnable
from jangin.targets import resolve

KINDS = ("int8", "int4", "float16")
BLOCK = 32
"""Weights of 4 bits that share a scale."""
BIAS_ROOM = 1 << 30
"""What a bias is at most, in units of both scales."""


@dataclass(frozen=True)
class Quantized:
    """A quantized model: `model`, the bytes of its ONNX file; `chosen`, what each part became (parts that
    stay float32 aren't there); `drop`, how much worse its outputs are by `quality`."""

    model: bytes
    chosen: Mapping[str, Chosen]
    quality: Quality
    drop: float
    executable: Runnable

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write it as an .onnx or a .jgn file, by the name's end; ValueError for another."""
        path = Path(path)
        if path.suffix == ".jgn":
            self.executable.save(path)
        elif path.suffix == ".onnx":
            path.write_bytes(self.model)
        else:
            raise ValueError(f"{path} is neither an .onnx nor a .jgn file")


class DropMissed(CompileError):
    """A drop that can't be met; `best` is the best that was found."""

    def __init__(self, message: str, best: Quantized) -> None:
        super().__init__(message)
        self.best = best


def quantize(
    model: ModelSource,
    data: Data,
    kind: str = "int8",
    *,
    drop: float | None = None,
    method: str | None = None,
    labels: str | os.PathLike[str] | Sequence[int] | Array | None = None,
    score: Score | None = None,
    block: int = BLOCK,
    pixels: str | None = None,
    crop: float = 1.0,
    tokenizer: str | os.PathLike[str] | None = None,
    limit: int | None = None,
    shapes: Mapping[str, Any] | None = None,
    weights: str | Path | None = None,
    threads: int | None = None,
    progress: Tell | None = None,
) -> Quantized:
    """Quantize a model's convolutions and matrix products that have constant weights.

    `data`: what it is calibrated and measured on: a folder of pictures or arrays, a file of arrays, a text,
    or the inputs of runs (see `data.Data`), of which `limit` are read; `pixels`, `crop`: how pictures become
    inputs (see `jangin.pictures`), `tokenizer`: what splits a text.
    `kind`: "int8" (activations and weights, a scale a channel), "int4" (weights of matrix products, a scale
    for each `block` of terms) or "float16".
    `method`: how ranges are chosen (see `observers.METHODS`); by default the first of them all that meets the
    drop. `drop`: how much worse outputs may be (0.005: half a percent) by `score`, by `labels`, the right
    classes, or as `quality.quality` says.
    Raises DropMissed, with the best that was found, where that can't be met; ValueError for data that doesn't
    fit; CompileError for a model that can't be quantized."""
    _check(kind, method, drop)
    job = Job(model, shapes, weights, threads, progress)
    given = pixels or pixels_of(job.metadata)
    feeds = read(data, job.inputs, Reading(given, crop, Path(tokenizer) if tokenizer else None, limit))
    rated = job.rated(feeds, None if labels is None else read_labels(labels, len(feeds)), score)
    if not job.parts:
        raise CompileError("there is nothing to quantize: no float32 product has constant weights")
    seen = job.watched(feeds) if kind == "int8" else {}
    found: list[Quantized] = []
    for name in [method] if method else [*METHODS] if kind == "int8" else ["minmax"]:
        ranges = {v: of_range(*seen[v].range(name)) for v in seen}
        found.append(job.made(job.chosen(kind, ranges, block), ranges, feeds, rated))
        if drop is None or found[-1].drop <= drop:
            return found[-1]
    best = min(found, key=lambda q: q.drop)
    raise DropMissed(
        f"a drop of {drop:.3%} can't be met in {kind}: the best found is {best.drop:.3%} ({rated.title}); "
        "nothing is written",
        best,
    )


def _check(kind: str, method: str | None, drop: float | None) -> None:
    if kind not in KINDS:
        raise ValueError(f"{kind!r} is no kind of numbers; there are {', '.join(KINDS)}")
    if method is not None and method not in METHODS:
        raise ValueError(f"method {method!r} is unknown; known: {', '.join(METHODS)}")
    if drop is not None and not 0 <= drop < 1:
        raise ValueError(f"a drop of {drop} isn't from 0 to 1")


class Job:
    """One model being quantized."""

    def __init__(
        self, model: ModelSource, shapes: Mapping[str, Any] | None, weights: str | Path | None,
        threads: int | None, tell: Tell | None,
    ) -> None:  # fmt: skip
        self.tell: Tell = tell or (lambda done, total, what: None)
        self.tell(0, 1, "import")
        self.options = Options(resolve("cpu"), shapes or {})
        imported = table.load(paired(model, weights), self.options.shapes)
        self.threads, self.metadata = threads, imported.metadata
        self.graph: Graph = prepared(lower(imported))
        self.parts = find_parts(self.graph)
        self.engine = Engine(self.graph, self.options, threads, observed(self.graph, self.parts))

    @property
    def inputs(self) -> Any:
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

    def watched(self, feeds: Feeds) -> Mapping[str, Any]:
        return watch(self.engine, observed(self.graph, self.parts), feeds, self.tell)

    def chosen(self, kind: str, ranges: Mapping[str, Scheme], block: int) -> dict[str, Chosen]:
        """Each part in a kind of numbers, of those that the kind is for."""
        sources = quantized_values(self.graph, self.parts, {p.name: kind for p in self.parts})
        found = {}
        for part in self.parts:
            w = part.weights(self.graph)
            if kind == "float16":
                found[part.name] = Chosen(kind, _half(w, part))
            elif kind == "int4" and not part.is_conv:
                scheme = of_weights(w, I4, 0, block)
                found[part.name] = Chosen(kind, scheme.quantized(w), scheme)
            elif kind == "int8":
                found[part.name] = _int8(self.graph, part, w, ranges[sources[part.x]])
        return found

    def made(
        self, chosen: Mapping[str, Chosen], ranges: Mapping[str, Scheme], feeds: Feeds, rated: Quality
    ) -> Quantized:
        """The model with parts as chosen, written, compiled and measured."""
        integer = {n: c for n, c in chosen.items() if c.kind == "int8"}
        sources = quantized_values(self.graph, self.parts, integer)
        values = {v: ranges[source].checked((), f"value '{v}'") for v, source in sources.items()}
        for part in self.parts:
            scheme = chosen[part.name].scheme if part.name in chosen else None
            if scheme is not None:
                scheme.checked(chosen[part.name].weights.shape, f"the weights of {part.node.source}")
        self.tell(0, 1, "write")
        model = written(self.graph, self.parts, Quantization(chosen, values), self.metadata)
        self.tell(0, 1, "compile")
        executable = jangin.compile(model, threads=self.threads, cache=False)
        drop = rated.drop(self.outputs(executable.run, feeds))
        return Quantized(model, chosen, rated, drop, executable)


def _half(w: Array, part: Part) -> Array:
    if np.abs(w).max(initial=0) > np.finfo(np.float16).max:
        raise CompileError(f"the weights of {part.node.source} are beyond float16's range")
    return w.astype(np.float16)


def _int8(graph: Graph, part: Part, w: Array, x: Scheme) -> Chosen:
    """A part's weights in int8, of scales in which its bias fits 32 bits."""
    bias = bias_of(graph, part)
    least = None if bias is None else np.abs(bias) / (float(x.scale) * BIAS_ROOM)
    scheme = of_weights(w, I8, part.axis, least=least)
    return Chosen("int8", scheme.quantized(w), scheme, bias)
