"""A prepared graph, compiled here so that what lies inside a run can be read."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from jangin.compiler.options import Options
from jangin.compiler.pipeline import build_plan
from jangin.ir.graph import Array, Graph
from jangin.quantization.data import Feeds
from jangin.quantization.observers import Observer
from jangin.runtime.executable import Executable
from jangin.runtime.sizes import TensorSpec

Tell = Callable[[float, float, str], None]
"""Is told of progress: done, of how much, what."""


class Engine:
    """Runs a graph and gives values of it, outputs or not: `values`."""

    def __init__(
        self, graph: Graph, options: Options, threads: int | None, values: Sequence[str] = ()
    ) -> None:
        inner = [v for v in values if v not in graph.inputs and v not in graph.outputs]
        whole = graph.with_nodes(graph.nodes, outputs=(*graph.outputs, *inner))
        self.outputs = graph.outputs
        self.executable = Executable(build_plan(whole, options), threads)

    @property
    def inputs(self) -> tuple[TensorSpec, ...]:
        return self.executable.inputs

    def run(self, feeds: Mapping[str, Array]) -> dict[str, Array]:
        """All values by name, inputs among them."""
        return {**feeds, **self.executable.run(feeds)}


def watch(engine: Engine, values: Sequence[str], feeds: Feeds, tell: Tell) -> dict[str, Observer]:
    """What each value was in all runs. ValueError where one is no number."""
    seen = {v: Observer() for v in values}
    for n, run in enumerate(feeds):
        tell(n, len(feeds), "calibrate")
        found = engine.run(run)
        for name, observer in seen.items():
            try:
                observer.see(found[name])
            except ValueError as error:
                raise ValueError(f"{error}: value '{name}' in run {n} of the data") from None
    return seen
