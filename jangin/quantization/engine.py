"""Compile a prepared graph so that its inner values can be read."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from jangin.compiler.pipeline import build_kernels, build_plan
from jangin.ir.graph import Array, Graph
from jangin.ir.limits import within
from jangin.options import Options
from jangin.quantization.observers import Observer
from jangin.quantization.parts import Part, observed, scores
from jangin.quantization.scales import Scheme, of_range
from jangin.runtime.executable import Executable
from jangin.runtime.sizes import TensorSpec

Tell = Callable[[float, float, str], None]
"""A function that gets the progress: done, total, and a description."""


class Engine:
    """A compiled graph whose `values` can be read, outputs or not.

    With `kernels`, the graph is already fused, and the values are results of its kernels."""

    def __init__(
        self, graph: Graph, options: Options, values: Sequence[str] = (), kernels: bool = False
    ) -> None:
        inner = [v for v in values if v not in graph.inputs and v not in graph.outputs]
        whole = graph.with_nodes(graph.nodes, outputs=(*graph.outputs, *inner))
        self.outputs = graph.outputs
        with within(options.limits):
            artifact = (build_kernels if kernels else build_plan)(whole, options)
        self.executable = Executable(artifact, options.threads)

    @property
    def inputs(self) -> tuple[TensorSpec, ...]:
        return self.executable.inputs

    def run(self, feeds: Mapping[str, Array]) -> dict[str, Array]:
        """Run the graph, and return its outputs, the readable values and the inputs by name."""
        return {**feeds, **self.executable.run(feeds)}


class Seen:
    """The statistics of values over calibration data.

    `observers` has the histograms of values that become integers. For what the convolutions read, `means` has
    each channel's mean. For what matrix products read, `largest` has each column's largest absolute value,
    and `moments` the second moments x.T @ x."""

    def __init__(self, graph: Graph, parts: Sequence[Part]) -> None:
        self.observers = {v: Observer() for v in observed(graph, parts)}
        self.scores = {*scores(graph, parts).values()}
        self.convolved = {p.x for p in parts if p.is_conv}
        self.multiplied = {p.x for p in parts if not p.is_conv}
        self.means: dict[str, Array] = {}
        self.largest: dict[str, Array] = {}
        self.moments: dict[str, Array] = {}
        self.runs = 0

    @property
    def values(self) -> list[str]:
        return list(dict.fromkeys((*self.observers, *self.convolved, *self.multiplied)))

    def see(self, found: Mapping[str, Array]) -> None:
        """Add the values of one more run. Raises ValueError, which names value and run, if an observed value
        is NaN or infinite."""
        for name, observer in self.observers.items():
            try:
                observer.see(found[name])
            except ValueError as error:
                raise ValueError(f"{error}: value '{name}' in run {self.runs} of the data") from None
        for name in self.convolved:
            x = found[name]
            mean = x.mean((0, *range(2, x.ndim)), dtype=np.float64)
            self.means[name] = (self.means.get(name, 0) * self.runs + mean) / (self.runs + 1)
        for name in self.multiplied:
            rows = found[name].reshape(-1, found[name].shape[-1])
            self.largest[name] = np.maximum(self.largest.get(name, 0), np.abs(rows).max(0))
            self.moments[name] = self.moments.get(name, 0) + (rows.T @ rows).astype(np.float64)
        self.runs += 1

    def ranges(self, method: str) -> dict[str, Scheme]:
        """Return the scheme of each observed value. `method` is the name of the method that chooses its
        range. Scores, the results of layers on single rows, keep their whole range."""
        ways = {v: "minmax" if v in self.scores else method for v in self.observers}
        return {v: of_range(*o.range(ways[v])) for v, o in self.observers.items()}
