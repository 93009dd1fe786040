"""Shared code of executables of every kind: inputs by name, and self-description."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, Self

from jangin.runtime.compiled import Compiled, targets, weight_bytes
from jangin.runtime.sizes import TensorSpec, told

LISTED = 6
"""A `repr` lists at most this many inputs, and as many outputs, so that it stays a few lines."""


class Model(Protocol):
    """Any compiled model, with the properties that describe it."""

    @property
    def name(self) -> str: ...
    @property
    def artifact(self) -> Compiled: ...
    @property
    def threads(self) -> int: ...
    @property
    def inputs(self) -> Sequence[TensorSpec]: ...
    @property
    def outputs(self) -> Sequence[TensorSpec]: ...


class Called:
    """A compiled model whose `repr` describes it. `ready` and `wait` are for models that may run before they
    are compiled (`jangin.compile(..., wait=False)`); others are always ready."""

    ready = True

    def wait(self) -> Self:
        """Return the model, which is compiled."""
        return self

    @property
    def metadata(self: Model) -> Mapping[str, Any]:
        """The producer, description and other texts that the model's file contains."""
        return self.artifact.metadata

    def __repr__(self: Model) -> str:
        threads = f"{self.threads} thread{'s' * (self.threads != 1)}"
        weights = f"{_amount(weight_bytes(self.artifact))} of weights"
        return (
            f"<{type(self).__name__} {self.name!r}: {_listed(self.inputs)} -> {_listed(self.outputs)}; "
            f"{', '.join(targets(self.artifact)) or 'any target'}; {threads}; {weights}, {_working(self)}>"
        )


def _working(model: Model) -> str:
    """Return the text about a run's working memory in a `repr`."""
    size = getattr(model, "working", None)
    return "a run's memory as its sizes need" if size is None else f"{_amount(size)} for a run"


def _amount(size: int) -> str:
    """Return the text for a number of bytes. Small models don't have 0.00 MB of weights."""
    if size < 1000:
        return f"{size} bytes"
    return f"{size / 1e6:.2f} MB" if size >= 1e6 else f"{size / 1e3:.1f} KB"


def _listed(specs: Sequence[TensorSpec]) -> str:
    more = len(specs) - LISTED
    return ", ".join([*map(str, specs[:LISTED]), *([f"and {more} more"] if more > 0 else [])]) or "nothing"


def ordered(specs: Sequence[TensorSpec], feeds: Mapping[str, Any]) -> list[Any]:
    """Return the inputs in the model's order, given by name. Raises ValueError for a missing or an unknown
    name."""
    names = [s.name for s in specs]
    problems = [f"missing input {n!r}" for n in names if n not in feeds]
    problems += [f"no input is named {n!r}{_near(n, names)}" for n in feeds if n not in names]
    if problems:
        raise ValueError(f"{', '.join(problems)}; {told(specs)}")
    return [feeds[n] for n in names]


def joined(specs: Sequence[TensorSpec], given: Sequence[Any], named: Mapping[str, Any]) -> list[Any]:
    """Return the inputs in the model's order. The first are `given` by position and the others by name.
    Raises ValueError for unknown, missing or repeated inputs."""
    if len(given) > len(specs):
        raise ValueError(f"expected {len(specs)} inputs, got {len(given) + len(named)}; {told(specs)}")
    placed = {s.name: value for s, value in zip(specs, given, strict=False)}
    if twice := [n for n in named if n in placed]:
        raise ValueError(f"input {twice[0]!r} is given by position and by name; {told(specs)}")
    return ordered(specs, {**placed, **named})


def _near(name: str, names: Sequence[str]) -> str:
    from difflib import get_close_matches

    close = get_close_matches(name, names, 1)
    return f" (did you mean {close[0]!r}?)" if close else ""
