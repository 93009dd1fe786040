"""The graph passes, in order. Each takes a graph and its target, and returns a graph."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from jangin.ir.graph import Graph
from jangin.ir.records import dataclass
from jangin.passes.algebra.batchnorm import batchnorm
from jangin.passes.algebra.cse import cse
from jangin.passes.algebra.dce import dce
from jangin.passes.algebra.fold import fold
from jangin.passes.algebra.needed import needed
from jangin.passes.algebra.simplify import simplify
from jangin.passes.fusion.attention import attention
from jangin.passes.fusion.deep_products import deep_products
from jangin.passes.fusion.extrema import extrema
from jangin.passes.fusion.fuse import fuse
from jangin.passes.fusion.reductions import reductions
from jangin.passes.fusion.scalars import scalars
from jangin.passes.fusion.updates import joined_updates
from jangin.passes.layouts.layout import all_last, layout
from jangin.passes.memory.in_place import in_place
from jangin.passes.precision.bf16 import bf16, tf32
from jangin.passes.precision.byte_weights import byte_weights
from jangin.passes.precision.halves import halves
from jangin.passes.precision.integers import integers
from jangin.passes.precision.lookups import lookups
from jangin.passes.precision.shared_words import shared_words
from jangin.passes.precision.widen import widen
from jangin.passes.windows.chains import chains
from jangin.passes.windows.large_windows import large_windows
from jangin.passes.windows.pools import windows
from jangin.passes.windows.separable import separable
from jangin.passes.windows.taps import taps
from jangin.passes.windows.winograd import winograd
from jangin.targets.target import Target


@dataclass(frozen=True)
class Pass:
    """A step from a lowered graph to kernels. An `optional` pass runs only if the option of its name is
    on."""

    name: str
    run: Callable[[Graph, Target], Graph]
    optional: bool = False


def anywhere(run: Callable[[Graph], Graph]) -> Callable[[Graph, Target], Graph]:
    """Return `run` as a pass, which does the same for all machines."""
    return lambda graph, _: run(graph)


GRAPH_PASSES: Sequence[Pass] = (
    Pass("simplify", anywhere(simplify)),
    Pass("needed", anywhere(needed)),
    Pass("batchnorm", anywhere(batchnorm)),
    Pass("bf16", bf16, optional=True),
    Pass("widen", anywhere(widen)),
    Pass("tf32", tf32, optional=True),
    Pass("windows", anywhere(windows)),
    Pass("taps", anywhere(taps)),
    Pass("layout", layout),
    Pass("cleanup", anywhere(simplify)),
    Pass("fold", anywhere(fold)),
    Pass("cse", anywhere(cse)),
    Pass("dce", anywhere(dce)),
    Pass("chains", chains),
    Pass("reductions", anywhere(reductions)),
    Pass("deep_products", deep_products),
    Pass("integers", integers),
    Pass("shared_words", shared_words),
    Pass("lookups", lookups),
    Pass("fuse", fuse),
    Pass("attention", attention),
    Pass("separable", separable),
    Pass("winograd", winograd, optional=True),
    Pass("large_windows", large_windows),
    Pass("halves", halves),
    Pass("byte_weights", byte_weights),
    Pass("extrema", extrema),
    Pass("scalars", scalars),
    Pass("updates", joined_updates),
    Pass("in_place", anywhere(in_place)),
)
"""The passes for processors, which follow `lower`. After `fuse` every node is a kernel or a reshape.
`in_place` adds concatenations and slices that move nothing."""

_LEFT_OUT = frozenset(
    {"deep_products", "shared_words", "lookups", "large_windows", "extrema", "scalars", "updates"}
)
"""Passes that pay on processors alone. A GPU computes a function sooner than it reads a table. Templates for
work-groups neither cache large windows' rows nor give several results."""
_REPLACED: Mapping[str, Pass] = {"layout": Pass("layout", all_last)}
"""The passes that replace those of the same name. Templates for work-groups have no planes, so channels-last
needs no comparison."""

GPU_PASSES: Sequence[Pass] = tuple(_REPLACED.get(p.name, p) for p in GRAPH_PASSES if p.name not in _LEFT_OUT)
"""The passes for machines whose kernels are for work-groups."""
