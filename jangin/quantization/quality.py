"""Measure how much worse a model's outputs are than those of a reference."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from jangin.ir.graph import Array
from jangin.ir.records import dataclass

CLASSES = 10
"""An output [rows, n] counts as a classifier's if n is at least this number. Common small classifiers
(digits, CIFAR-10) have ten classes, and boxes have fewer numbers."""
Outputs = Sequence[Sequence[Array]]
"""The output arrays of each run."""
Score = Callable[[Outputs], float]


@dataclass(frozen=True)
class Quality:
    """A measure of quality. `title` describes it.

    `drop` returns how much worse outputs are than the reference's (0.01 is one percent). `reference` is the
    model's own quality as text, or ""."""

    title: str
    drop: Callable[[Outputs], float]
    reference: str = ""


def quality(reference: Outputs, labels: Array | None = None, score: Score | None = None) -> Quality:
    """Return the measure of quality, with `reference` as the outputs to compare with.

    If `score` is given, the drop is how much the score falls; a higher score is better. With `labels` it is
    how much the share of right classes falls. Without both, it is the share of a classifier's runs whose
    class changes. For any other model it is 1 minus the cosine of the outputs."""
    if score is not None:
        own = score(reference)
        return Quality("your score", lambda found: own - score(found), f"{own:.4g}")
    if labels is not None:
        if not _is_classifier(reference):
            raise ValueError("labels are for models whose first output is a row of class scores")
        classes = min(run[0].shape[1] for run in reference)
        outside = labels[(labels < 0) | (labels >= classes)]
        if outside.size:
            raise ValueError(
                f"a label of {outside[0]}, and the model's classes are 0 to {classes - 1}: "
                "do the labels count from 1?"
            )
        right = float((_classes(reference) == labels).mean())
        title = f"top-1 of {len(labels)} labelled runs"
        return Quality(title, lambda found: right - float((_classes(found) == labels).mean()), f"{right:.1%}")
    if _is_classifier(reference):
        same = _classes(reference)
        return Quality(
            f"classes that become others, of {same.size} runs",
            lambda found: float((_classes(found) != same).mean()),
        )
    return Quality("1 - cosine of the outputs", lambda found: angle(reference, found))


def _is_classifier(outputs: Outputs) -> bool:
    first = [run[0] for run in outputs]
    return all(a.dtype.kind == "f" and a.ndim == 2 and a.shape[1] >= CLASSES for a in first)


def _classes(outputs: Outputs) -> Array:
    return np.concatenate([run[0].argmax(-1).reshape(-1) for run in outputs])


def angle(reference: Outputs, found: Outputs) -> float:
    """Return 1 minus the cosine of the angle between two models' outputs, as the mean over runs and float
    outputs."""
    parts = [
        _angle(a.astype(np.float64).reshape(-1), b.astype(np.float64).reshape(-1))
        for one, other in zip(reference, found, strict=True)
        for a, b in zip(one, other, strict=True)
        if a.dtype.kind == "f" and a.size
    ]
    return float(np.mean(parts)) if parts else 0.0


def _angle(a: Array, b: Array) -> float:
    length = np.sqrt((a @ a) * (b @ b))
    if not np.isfinite(length):
        return 1.0
    return float(1 - (a @ b) / length) if length else float(not np.array_equal(a, b))


def error(reference: Outputs, found: Outputs) -> float:
    """Return the squared error of all float outputs, as a share of the reference's squares. Errors of single
    parts add up roughly to that of all."""
    wrong = whole = 0.0
    for one, other in zip(reference, found, strict=True):
        for a, b in zip(one, other, strict=True):
            if a.dtype.kind == "f":
                wrong += float(((a.astype(np.float64) - b) ** 2).sum())
                whole += float((a.astype(np.float64) ** 2).sum())
    return wrong / whole if whole else wrong
