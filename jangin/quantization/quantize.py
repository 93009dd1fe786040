"""`jangin.quantize`: quantize a model's products, calibrate on data, and keep the loss of quality within a
limit."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any, Unpack

from jangin.frontends.format import ModelSource
from jangin.ir.graph import Array, CompileError
from jangin.options import Common, Options, takes
from jangin.pictures import pixels_of
from jangin.quantization.auto import decided
from jangin.quantization.data import Data, Feeds, Reading, present, read, read_labels
from jangin.quantization.engine import Seen, Tell
from jangin.quantization.job import BITS, KINDS, Job, Quantized
from jangin.quantization.observers import METHODS
from jangin.quantization.quality import Quality, Score
from jangin.runtime.threads import counted

AUTO, AUTO_DROP = "auto", 0.005
BLOCK = 32
"""The number of 4-bit weights that share a scale, as in GGUF's Q4_0. A scale of f16 then adds half a bit to
each weight."""


class DropMissed(CompileError):
    """The quality can't be kept within the allowed drop. `best` is the best model found."""

    def __init__(self, message: str, best: Quantized) -> None:
        super().__init__(message)
        self.best = best


@takes(Common)
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
    weight_bits: int | None = None,
    smooth: float | None = None,
    equalize: bool = False,
    pixels: str | None = None,
    crop: float = 1.0,
    tokenizer: str | os.PathLike[str] | None = None,
    limit: int | None = None,
    shapes: Mapping[str, Any] | None = None,
    threads: int | None = None,
    progress: Tell | None = None,
    **given: Unpack[Common],
) -> Quantized:
    """Quantize a model's convolutions and matrix products that have constant weights.

    `data` is used for calibration and measurement. It is a folder of pictures or arrays, a file of arrays, a
    text, or the inputs of runs (see `data.Data`). At most `limit` runs are read. `pixels` and `crop` decide
    how pictures become inputs (see `jangin.pictures`). `tokenizer` splits a text.

    `kind` is "int8", "int4", "float16" or "auto". The kind "int8" has a scale for each channel and applies to
    activations and weights. The kind "int4" has a scale for each `block` of terms and applies to weights of
    matrix products. For "auto", each part gets the kind that gains time on this machine, as far as the drop
    allows (by default half a percent). See `decide`.

    `weight_bits` are the bits of int8 weights: 8, or 7 (-64 to 64, or larger if a neighbour is smaller).
    Weights of 7 bits are quicker on processors that add two products of bytes in 16 bits (x86-64 without
    VNNI). The default is 7 on these processors if the drop can be met, else 8. For "auto" it is the quicker
    one.

    Weights of 4 bits are rounded by `gptq`. The biases of int8 convolutions are corrected (`balance`).
    `smooth`, 0 to 1, is the share of the outliers in matrix products' inputs that first moves into their
    weights. `equalize` balances the weights of consecutive convolutions.

    `method` chooses ranges (see `observers.METHODS`). The default is the first method that meets the drop.
    `drop` is how much worse outputs may be (0.005 is half a percent). It is measured by `score`, by `labels`,
    the right classes, or by `quality.quality`.

    Raises DropMissed, with the best model found, if the drop can't be met. Raises ValueError if data doesn't
    fit, and CompileError if the model can't be quantized."""
    _check(kind, method, drop, smooth, weight_bits, block, limit)
    present(data)
    threads = None if threads is None else counted(threads)
    job = Job(model, Options(None, shapes, threads, **given), progress, equalize)
    reading = pixels or pixels_of(job.metadata)
    feeds = read(data, job.inputs, Reading(reading, crop, Path(tokenizer) if tokenizer else None, limit))
    rated = job.rated(feeds, None if labels is None else read_labels(labels, len(feeds)), score)
    if not job.parts:
        raise CompileError("there is nothing to quantize: no float32 product has constant weights")
    seen = job.watched(feeds, smooth if kind in ("int8", AUTO) else None)
    methods = [method] if method else [*METHODS] if kind in ("int8", AUTO) else ["minmax"]
    if kind == AUTO:
        allowed = AUTO_DROP if drop is None else drop
        return decided(job, feeds, rated, seen, methods, block, weight_bits, allowed)
    several = [weight_bits] if weight_bits else BITS[::-1] if kind == "int8" and job.narrow else BITS[:1]
    return _first_within(drop, job, kind, several, methods, block, seen, feeds, rated)


def _first_within(
    drop: float | None, job: Job, kind: str, several: Sequence[int], methods: Sequence[str], block: int,
    seen: Seen, feeds: Feeds, rated: Quality,
) -> Quantized:  # fmt: skip
    """Quantize by each number of bits and each method, until a model meets the drop. Raises DropMissed."""
    models: list[Quantized] = []
    for bits, name in product(several, methods):
        ranges = seen.ranges(name)
        made = job.made(job.chosen(kind, ranges, block, seen, bits), ranges, feeds, rated)
        models.append(replace(made, bits=bits))
        if drop is None or made.drop <= drop:
            return models[-1]
    assert drop is not None, "else the first was taken"
    best = min(models, key=lambda q: q.drop)
    raise DropMissed(
        f"a drop of {drop:.3%} can't be met in {kind}: the best found is {best.drop:.3%} ({rated.title}); "
        "nothing is written. Allow a larger drop, or choose another kind",
        best,
    )


def _check(
    kind: str, method: str | None, drop: float | None, smooth: float | None, weight_bits: int | None,
    block: int, limit: int | None,
) -> None:  # fmt: skip
    if kind not in (*KINDS, AUTO):
        raise ValueError(f"kind={kind!r} is unknown; known: {', '.join((*KINDS, AUTO))}")
    if method is not None and method not in METHODS:
        raise ValueError(f"method={method!r} is unknown; known: {', '.join(METHODS)}")
    if smooth is not None and not 0 <= smooth <= 1:
        raise ValueError(f"smooth={smooth} must be from 0 to 1")
    if smooth is not None and kind not in ("int8", AUTO):
        raise ValueError(f"smooth= is for the kind int8, and the kind is {kind}: leave smooth= out")
    if block < 1:
        raise ValueError(f"block={block} must be at least 1, the number of weights that share a scale")
    if limit is not None and limit < 1:
        raise ValueError(f"limit={limit} leaves no runs to calibrate with: give 1 or more")
    if weight_bits is not None and weight_bits not in BITS:
        raise ValueError(f"weight_bits={weight_bits} must be 7 or 8")
    if weight_bits is not None and kind not in ("int8", AUTO):
        raise ValueError(f"weight_bits= is for the kind int8, and the kind is {kind}: leave weight_bits= out")
    if drop is not None and not 0 <= drop < 1:
        raise ValueError(f"drop={drop} must be at least 0 and below 1: 0.005 is half a percent")
