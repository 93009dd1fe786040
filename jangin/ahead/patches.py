"""Plans that fit: the first layers run patch by patch if a model would take more memory than there is."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from jangin.ahead.estimates import VECTOR_BYTES, Layer, layers
from jangin.ahead.memory import memory_of, typical_sizes
from jangin.compiler.pipeline import lowered_plan, optimize
from jangin.ir.graph import Graph, Node, static_shape
from jangin.ir.plan import Plan
from jangin.options import Options
from jangin.passes.memory.overlaps import all_distances, bytes_between
from jangin.passes.windows.patches import Cost, Region, Split, operations, patched, region, splits

if TYPE_CHECKING:
    from jangin.compiler.request import Progress

LAST, FIRST = "dce", "chains"
"""Patches are made between these two passes. Layers have their final form then, and aren't kernels yet."""
MOST = 16
"""Most patches of a split. With more, borders that are computed twice are most of the work."""
MOST_EXTRA = 2.0
"""Most additional operations, as a share of those of the layers in patches. With more, the first layers take
over three times as long, which hardly any use allows."""
TRIES = 10
"""Plans that are made of one model at most. Each takes a second or two."""
FEW, LITTLE, WORTH, SLOWER = 4, 0.01, 0.9, 1.02
"""Most patches that nobody asked for. Their additional operations are at most the second share of the
model's. They take at most the third share of the arena and the fourth of the estimated cycles. Without the
last bound, short rows take up to a fifth more time."""
MOST_TRIED = 0.1
"""Most additional operations of such patches as a share of those of the layers in patches. With more, these
layers would have to be under a tenth of the model."""


class Choice(NamedTuple):
    """A split, its cost, the estimated bytes of the arena, and the additional operations as a share of the
    model's."""

    split: Split
    cost: Cost
    bytes: float
    extra: float

    @property
    def last(self) -> str:
        """The last layer that runs in patches."""
        return _named(self.split.region)

    def __str__(self) -> str:
        share = 100 * self.cost.extra
        more = f"{abs(share):.0f} % {'fewer' if share < 0 else 'more'} operations"
        return (
            f"the first layers, up to {self.last}, run in {self.split.count} patches, "
            f"with {more} in these layers"
        )


class Fitted(NamedTuple):
    """The plan with the smallest arena that was found, and whole sentences that say how it came about."""

    plan: Plan
    text: str


def arena_bytes(plan: Plan) -> int:
    """Return the bytes of a plan's arena and of one thread's scratch memory, for typical sizes."""
    return memory_of(plan).bytes(typical_sizes(plan))


def fitted(graph: Graph, plan: Plan, options: Options, budget: int, progress: Progress | None) -> Fitted:
    """Return a plan of a lowered graph, in patches, whose arena takes at most `budget` bytes. Return the one
    with the smallest arena if none fits. `plan` is the graph's plan without patches."""
    found, why = choices(graph, plan, options)
    best, text = plan, f"no layers can run in patches: {why}"
    for choice in [c for c in found if c.bytes <= budget or c is found[-1]][:TRIES]:
        attempt = planned(graph, choice, options, progress)
        if arena_bytes(attempt) < arena_bytes(best):
            best, text = attempt, str(choice)
        if arena_bytes(best) <= budget:
            break
    return Fitted(best, text)


def planned(graph: Graph, choice: Choice, options: Options, progress: Progress | None) -> Plan:
    """Return the plan of a lowered graph with some layers in patches."""
    graph = patched(optimize(graph, options, until=LAST), choice.split)
    return lowered_plan(graph, options, progress, since=FIRST)


def cheap(graph: Graph, plan: Plan, options: Options, progress: Progress | None) -> Fitted:
    """Return a plan of a lowered graph with few patches that save much memory and cost next to no time.
    Return `plan`, which has no patches, if there is none. On a machine with vectors none are made: short rows
    don't fill vectors, and the estimates don't tell what this costs."""
    if options.target.machine.vector_bytes >= VECTOR_BYTES:
        return Fitted(plan, "")
    most, (found, _) = WORTH * arena_bytes(plan), choices(graph, plan, options, FEW, MOST_TRIED)
    for choice in [c for c in reversed(found) if c.bytes <= most and c.extra <= LITTLE]:
        attempt = planned(graph, choice, options, progress)
        slower = _cycles(attempt, options) > SLOWER * _cycles(plan, options)
        if arena_bytes(attempt) <= most and not slower:
            return Fitted(attempt, str(choice))
    return Fitted(plan, "")


def _cycles(plan: Plan, options: Options) -> float:
    """Return the estimated cycles of a run of a plan of known sizes."""
    return sum(layer.kernel.cycles for layer in layers(plan, options.target))


def choices(
    graph: Graph, plan: Plan, options: Options, count: int = MOST, extra: float = MOST_EXTRA
) -> tuple[list[Choice], str]:
    """Return the ways in which the first layers of a lowered graph may run in patches, and why there are no
    others. Each way takes less memory than those before, and more operations. `count` is the most patches,
    and `extra` is the most additional operations as a share of these layers'."""
    graph = optimize(graph, options, until=LAST)
    if any(static_shape(v.shape or ()) is None for v in graph.values.values()):
        return [], "its sizes aren't known, give them with --shape"
    found, small = layers(plan, options.target), options.target.machine.fusion.small_values
    peak = max((layer.ram for layer in found), default=0)
    best: list[Choice] = []
    why: list[tuple[int, str]] = []
    ways = _ways(graph, plan, found, peak, small, why, count, extra)
    for way in sorted(ways, key=lambda c: (c.cost.extra, c.bytes, c.split.axis)):
        if way.bytes < (best[-1].bytes if best else peak):
            best.append(way)
    late = "the layers with the largest values don't come first, or such a value is read again later"
    return best, min(why)[1] if why else late


def _ways(
    graph: Graph,
    plan: Plan,
    found: Sequence[Layer],
    peak: int,
    small: bool,
    why: list[tuple[int, str]],
    count: int,
    extra: float,
) -> Iterator[Choice]:
    """Yield the ways to run the first layers in at most `count` patches, with at most the share `extra` of
    additional operations. Reasons why others aren't possible are added to `why`, with a number each: the
    less, the more the reason tells. `peak` is the most bytes of a layer. With `small`, results lie over
    operands."""
    at = {n.outputs[0]: number for number, n in enumerate(graph.nodes, 1)}
    over, total = all_distances(plan) if small else {}, operations(graph, graph.nodes)
    for b in plan.buffers:
        made = b.live[0]
        if b.kind != "arena" or b.name not in graph.values:
            continue
        behind = bytes_between(plan, over, made + 1, len(found) - 1)
        if behind >= peak:
            continue
        area = region(graph, b.name)
        if isinstance(area, str):
            why.append((0, area))
            continue
        for split, price in splits(graph, area, count, extra):
            if isinstance(price, Node):
                why.append((at[price.outputs[0]], f"{_title(price)} needs all of what it reads"))
            elif price.extra > extra:
                times = f"{1 + price.extra:.1f} times the operations"
                why.append((0, f"{split.count} patches up to {_named(area)} would take {times}"))
            else:
                before = _in_patches(graph, plan, found[: made + 1], price, b.name)
                share = operations(graph, area.nodes) / total
                yield Choice(split, price, max(behind, before), price.extra * share)


def _title(node: Node) -> str:
    return f"{node.source or node.name} ({node.op})"


def _named(area: Region) -> str:
    last = area.nodes[-1]
    return str(last.source or last.name)


def _in_patches(graph: Graph, plan: Plan, before: Sequence[Layer], price: Cost, value: str) -> float:
    """Return the estimated bytes of arena that the layers `before` take in patches. A launch whose values the
    graph doesn't name has the share of the next launch that reads its result."""
    size = math.prod(static_shape(graph.shape(value)) or ()) * graph.dtype(value).bytes
    share, most = 1.0, 0.0
    for layer, launch in reversed([*zip(before, plan.launches, strict=False)]):
        share = max((price.shares[a] for a in launch.args if a in price.shares), default=share)
        most = max(most, layer.ram * share)
    return size + most
