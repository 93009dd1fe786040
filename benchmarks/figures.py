"""Figures of benchmark runs: they are stored in a file after each model, and statistics are computed from
them."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from catalogue import CATALOGUE, ROOT

STORE = ROOT / ".cache" / "benchmarks.json"
PEERS = ("onnxruntime", "openvino", "ncnn", "mnn", "inductor", "litert")
BEST = "best"
"""The name for the fastest peer on a model."""
Comparison = Mapping[str, Any]
"""One model at one thread count, in the form of `jangin.bench.as_json`."""


@dataclass
class Figures:
    """The figures. `comparisons` are by mode (untuned, tuned), then by `model/threads`. `neighbours` are by
    model."""

    machine: Mapping[str, Any] = field(default_factory=dict)
    comparisons: dict[str, dict[str, Comparison]] = field(default_factory=dict)
    neighbours: dict[str, dict[str, Any]] = field(default_factory=dict)

    @classmethod
    def load(cls, path: Path) -> Figures:
        return cls(**json.loads(path.read_text())) if path.is_file() else cls()

    def save(self, path: Path) -> None:
        """Write the file at once, so that an interruption leaves the old file or the new one."""
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_suffix(".part")
        part.write_text(json.dumps(vars(self), indent=1) + "\n")
        part.rename(path)

    def of(self, mode: str, threads: int) -> Iterator[tuple[str, Comparison]]:
        """Yield (name, comparison) of the measured models, in the catalogue's order."""
        found = self.comparisons.get(mode, {})
        for name in CATALOGUE:
            if (key := f"{name}/{threads}") in found:
                yield name, found[key]


def result(c: Comparison, engine: str) -> Mapping[str, Any] | None:
    """Return an engine's figures, or None if it has none."""
    found: Iterable[Mapping[str, Any]] = c["results"]
    return next((r for r in found if r["engine"] == engine and not r["problem"]), None)


def fastest_peer(c: Comparison) -> str | None:
    timed = {peer: r["median"] for peer in PEERS if (r := result(c, peer))}
    return min(timed, key=timed.__getitem__, default=None)


def ratio(c: Comparison, peer: str) -> float | None:
    """Return how many times as fast as a peer (or `BEST`) Jangin is, or None if either has no time."""
    name = fastest_peer(c) if peer == BEST else peer
    ours, theirs = result(c, "jangin"), result(c, name) if name else None
    return theirs["median"] / ours["median"] if ours and theirs else None


def ratios(figures: Figures, mode: str, threads: int, peer: str) -> dict[str, float]:
    """Return the ratios by model, for models at batch 1."""
    found = {name: ratio(c, peer) for name, c in figures.of(mode, threads) if CATALOGUE[name].batch == 1}
    return {name: value for name, value in found.items() if value is not None}


def geometric_mean(values: Iterable[float]) -> float | None:
    logs = [math.log(v) for v in values]
    return math.exp(sum(logs) / len(logs)) if logs else None
