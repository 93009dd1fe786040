"""Figures of benchmark runs: kept in a file after each model, and what is computed from them."""

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
"""The name of whichever peer is the fastest on a model."""
Comparison = Mapping[str, Any]
"""One model at one thread count, as `jangin.bench.as_json` has it."""


@dataclass
class Figures:
    """`comparisons`: by mode (untuned, tuned), then by `model/threads`; `neighbours`: by model."""

    machine: Mapping[str, Any] = field(default_factory=dict)
    comparisons: dict[str, dict[str, Comparison]] = field(default_factory=dict)
    neighbours: dict[str, dict[str, Any]] = field(default_factory=dict)

    @classmethod
    def load(cls, path: Path) -> Figures:
        return cls(**json.loads(path.read_text())) if path.is_file() else cls()

    def save(self, path: Path) -> None:
        """All at once, so that an interruption leaves the old file or the new one."""
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_suffix(".part")
        part.write_text(json.dumps(vars(self), indent=1) + "\n")
        part.rename(path)

    def of(self, mode: str, threads: int) -> Iterator[tuple[str, Comparison]]:
        """(name, comparison) of the models measured, in the catalogue's order."""
        found = self.comparisons.get(mode, {})
        for name in CATALOGUE:
            if (key := f"{name}/{threads}") in found:
                yield name, found[key]


def result(c: Comparison, engine: str) -> Mapping[str, Any] | None:
    """An engine's figures, or None where it has none."""
    found: Iterable[Mapping[str, Any]] = c["results"]
    return next((r for r in found if r["engine"] == engine and not r["problem"]), None)


def fastest_peer(c: Comparison) -> str | None:
    timed = {peer: r["median"] for peer in PEERS if (r := result(c, peer))}
    return min(timed, key=timed.__getitem__, default=None)


def ratio(c: Comparison, peer: str) -> float | None:
    """How many times as fast Jangin is as a peer (or `BEST`); None where either has no time."""
    name = fastest_peer(c) if peer == BEST else peer
    ours, theirs = result(c, "jangin"), result(c, name) if name else None
    return theirs["median"] / ours["median"] if ours and theirs else None


def ratios(figures: Figures, mode: str, threads: int, peer: str) -> dict[str, float]:
    """By model, of those at batch 1."""
    found = {name: ratio(c, peer) for name, c in figures.of(mode, threads) if CATALOGUE[name].batch == 1}
    return {name: value for name, value in found.items() if value is not None}


def geometric_mean(values: Iterable[float]) -> float | None:
    logs = [math.log(v) for v in values]
    return math.exp(sum(logs) / len(logs)) if logs else None
