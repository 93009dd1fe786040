"""Placement on several devices: the parts of a graph, their measured times, and two ways to place them.

A unit is a chain of nodes whose inner values no other node needs. `branches` runs each unit on the device
where it ends first, and units on the critical path go first. Its source is Topcuoglu, Hariri, Wu:
"Performance-effective and low-complexity task scheduling for heterogeneous computing", 2002. `stages` cuts
the sequence of units into one part for each device, such that the slowest part is as quick as possible."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import permutations
from math import inf

from jangin.ir.graph import Graph, Node
from jangin.ir.plan import Launch
from jangin.ir.records import dataclass
from jangin.ir.sources import Source
from jangin.runtime.sizes import Evaluator


@dataclass(frozen=True)
class Unit:
    """A chain of nodes. `needs` maps the numbers of the units whose results it reads to the bytes read."""

    nodes: tuple[Node, ...]
    needs: Mapping[int, int]


@dataclass(frozen=True)
class Times:
    """Measured seconds. `units` has the seconds on each device, by device and unit. `switch` is the cost to
    go on with another device, and `byte` the cost of each byte that moves to it."""

    units: Sequence[Sequence[float]]
    switch: float
    byte: float

    def move(self, size: int, source: int, goal: int) -> float:
        return 0.0 if source == goal else self.switch + size * self.byte


@dataclass(frozen=True)
class Placing:
    """The `device` of each unit, and the `order` in which units begin. `seconds` is the time of a run, or for
    stages the time between two results of a stream."""

    device: Sequence[int]
    order: Sequence[int]
    seconds: float


def units(graph: Graph, value: Evaluator) -> list[Unit]:
    """Return the units of a lowered graph, in an order in which they can run. `value` evaluates the graph's
    sizes."""
    maker = {o: n for n, node in enumerate(graph.nodes) for o in node.outputs}
    needs = [dict.fromkeys(maker[i] for i in node.inputs if i in maker) for node in graph.nodes]
    users = [0] * len(graph.nodes)
    for one in needs:
        for n in one:
            users[n] += 1
    kept = {maker[o] for o in graph.outputs if o in maker}
    group: list[int] = []
    members: list[list[int]] = []
    for n, one in enumerate(needs):
        before = next(iter(one), -1)
        if len(one) == 1 and users[before] == 1 and before not in kept:
            group.append(group[before])
            members[group[before]].append(n)
        else:
            group.append(len(members))
            members.append([n])
    order = sorted(range(len(members)), key=lambda g: members[g][-1])
    number = {g: k for k, g in enumerate(order)}
    units = []
    for g in order:
        sizes: dict[int, int] = {}
        for n in members[g]:
            for name in graph.nodes[n].inputs:
                if name in maker and group[maker[name]] != g:
                    size = graph.dtype(name).bytes
                    for extent in value.shape(graph.shape(name)):
                        size *= extent
                    source = number[group[maker[name]]]
                    sizes[source] = sizes.get(source, 0) + size
        units.append(Unit(tuple(graph.nodes[n] for n in members[g]), sizes))
    return units


def unit_seconds(parts: Sequence[Unit], launches: Sequence[Launch], seconds: Sequence[float]) -> list[float]:
    """Return the seconds of each unit, computed from those of the whole model's launches. A launch's time is
    divided equally among the units of its nodes."""
    places: dict[Source | None, list[int]] = {}
    for n, unit in enumerate(parts):
        for source in dict.fromkeys(s for node in unit.nodes for s in node.source or (None,)):
            places.setdefault(source, []).append(n)
    totals = [0.0] * len(parts)
    for launch, taken in zip(launches, seconds, strict=True):
        numbers = [n for source in launch.sources or (None,) for n in places.get(source, ())]
        for n in numbers:
            totals[n] += taken / len(numbers)
    return totals


def branches(parts: Sequence[Unit], times: Times) -> Placing:
    """Place units on devices such that a single run ends as early as possible."""
    devices = range(len(times.units))
    mean = [sum(t[n] for t in times.units) / len(devices) for n in range(len(parts))]
    rank = list(mean)
    for n in reversed(range(len(parts))):
        for source, size in parts[n].needs.items():
            rank[source] = max(rank[source], mean[source] + times.move(size, 0, 1) / 2 + rank[n])
    order = sorted(range(len(parts)), key=lambda n: -rank[n])
    free = [0.0] * len(devices)
    end = [0.0] * len(parts)
    device = [0] * len(parts)
    for n in order:

        def ends(d: int, n: int = n) -> float:
            needs = parts[n].needs.items()
            ready = max((end[s] + times.move(size, device[s], d) for s, size in needs), default=0.0)
            return max(ready, free[d]) + times.units[d][n]

        device[n] = min(devices, key=ends)
        end[n] = free[device[n]] = ends(device[n])
    return Placing(device, order, max(end, default=0.0))


def stages(parts: Sequence[Unit], times: Times) -> Placing:
    """Cut the sequence of units into one stage for each device, such that the slowest stage is as quick as
    possible. Every order of the devices is tried."""
    count, best = len(parts), Placing([0] * len(parts), range(len(parts)), inf)
    for devices in permutations(range(len(times.units))):
        least, cuts = _cut(parts, times, devices)
        if least < best.seconds:
            ends = [*cuts, count]
            device = [devices[next(k for k, end in enumerate(ends) if n < end)] for n in range(count)]
            best = Placing(device, range(count), least)
    return best


def _cut(parts: Sequence[Unit], times: Times, devices: Sequence[int]) -> tuple[float, list[int]]:
    """Return the seconds of the slowest stage in the best cut, and the number of the first unit of each stage
    after the first. The stages run on `devices`, in this order."""
    count = len(parts)
    best = [(_stage(parts, times, devices, 0, 0, n), list[int]()) for n in range(count + 1)]
    for k in range(1, len(devices)):
        after = []
        for end in range(count + 1):
            cuts = [
                (max(best[cut][0], _stage(parts, times, devices, k, cut, end)), [*best[cut][1], cut])
                for cut in range(end + 1)
            ]
            after.append(min(cuts))
        best = after
    return best[count]


def _stage(parts: Sequence[Unit], times: Times, devices: Sequence[int], k: int, low: int, high: int) -> float:
    """Return the seconds of stage `k`, which consists of the units from `low` to `high`. They include the
    time to move values from other stages to it."""
    if low == high:
        return 0.0
    moved = [size for n in range(low, high) for s, size in parts[n].needs.items() if s < low]
    return sum(times.units[devices[k]][low:high]) + (times.switch if k else 0.0) + sum(moved) * times.byte


def runs(parts: Sequence[Unit], placing: Placing) -> list[tuple[int, list[Node]]]:
    """Return the placed units as lists of nodes with their device, in the order in which they begin.

    Consecutive units on a device are joined to one list, with two exceptions. One is that another device
    needs a result of the earlier units. The other is that the later unit needs a value of another device."""
    needed = {s for n, unit in enumerate(parts) for s in unit.needs if placing.device[s] != placing.device[n]}
    last: dict[int, int] = {}
    runs: list[tuple[int, list[Node]]] = []
    before: dict[int, set[int]] = {}
    for n in placing.order:
        device, unit = placing.device[n], parts[n]
        waits = any(placing.device[s] != device for s in unit.needs)
        number = last.get(device)
        if number is not None and not waits and before[device].isdisjoint(needed):
            runs[number][1].extend(unit.nodes)
            before[device].add(n)
            continue
        last[device] = len(runs)
        before[device] = {n}
        runs.append((device, list(unit.nodes)))
    return runs
