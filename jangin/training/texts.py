"""Optimizers and schedules as texts on the command line: `adamw:lr=1e-3,betas=(0.9,0.99)`."""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any, TypeVar

from jangin.optim import BY_NAME as OPTIMIZERS
from jangin.optim import Optimizer
from jangin.training.schedules import BY_NAME as SCHEDULES
from jangin.training.schedules import Schedule

T = TypeVar("T")


def parsed_optimizer(text: str) -> Optimizer:
    """Return the optimizer of a text. Raises ValueError for an unknown name or setting."""
    return _parsed(text, OPTIMIZERS, "optimizer")


def parsed_schedule(text: str) -> Schedule:
    """Return the schedule of a text. Raises ValueError for an unknown name or setting."""
    return _parsed(text, SCHEDULES, "schedule")


def parsed_optimizers(texts: Sequence[str]) -> Optimizer | dict[str, Optimizer]:
    """Return one optimizer, or optimizers by patterns of parameters' names: `*.bias=adamw:lr=1e-3`. A text
    without a pattern is for the parameters that are left. Raises ValueError for wrong texts."""
    by_pattern: dict[str, Optimizer] = {}
    for text in texts:
        # a setting has an equals sign too, but it stands behind an optimizer's name
        own = re.fullmatch(rf"(?P<pattern>.+)=(?P<rest>(?:{'|'.join(OPTIMIZERS)})(?::.*)?)", text)
        if own is not None and text.partition(":")[0] not in OPTIMIZERS:
            by_pattern.setdefault(own["pattern"], parsed_optimizer(own["rest"]))
            continue
        optimizer = parsed_optimizer(text)
        if len(texts) == 1:
            return optimizer
        if "" in by_pattern:
            raise ValueError(f"{text} is a second optimizer for all parameters: write '*.bias={text}'")
        by_pattern[""] = optimizer
    rest = by_pattern.pop("", None)
    return by_pattern if rest is None else {**by_pattern, "*": rest}


def parsed_scale(text: str) -> float | str | None:
    """Return the scale of losses that a text names, or None for "". Other words than numbers stay."""
    try:
        return float(text) if text else None
    except ValueError:
        return text


def _parsed(text: str, kinds: Mapping[str, type[T]], what: str) -> T:
    name, _, settings = text.partition(":")
    if name not in kinds:
        raise ValueError(f"{name!r} is no {what}; there are {', '.join(kinds)}")
    known = [f.name for f in fields(kinds[name])]  # type: ignore[arg-type]
    options: dict[str, Any] = {}
    for part in re.split(r",(?=\s*\w+=)", settings) if settings else ():
        key, _, value = part.partition("=")
        try:
            options[key.strip()] = ast.literal_eval(value.strip())
        except (ValueError, SyntaxError):
            example = f"{known[0]}={getattr(kinds[name](), known[0])}"
            raise ValueError(f"{part!r} is no setting of {name}: write {example}") from None
    if unknown := options.keys() - known:
        raise ValueError(f"{name} has no {min(unknown)!r}; it has {', '.join(known)}")
    for key, value in options.items():
        usual = getattr(kinds[name](), key)
        if not _is_alike(value, usual):
            raise ValueError(f"{key}={value!r} is no setting of {name}: write it as {key}={usual}")
    return kinds[name](**options)


def _is_alike(value: Any, usual: Any) -> bool:
    """Return whether a setting has the form of the usual one: a boolean, a finite number, or as many."""
    if isinstance(usual, tuple):
        alike = isinstance(value, tuple) and len(value) == len(usual)
        return alike and all(map(_is_alike, value, usual))
    if isinstance(usual, bool) or isinstance(value, bool):
        return isinstance(usual, bool) and isinstance(value, bool)
    return isinstance(value, (int, float)) and math.isfinite(value)
