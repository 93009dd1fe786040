"""Memory planning: the buffer of each value of a fused graph."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from jangin.ir.graph import CompileError, Graph, Node, static_shape
from jangin.ir.plan import PlanBuffer
from jangin.runtime.arena import layout

MOST_BYTES = 1 << 38
"""Most bytes of a value of known shape (256 GiB). A larger one is a mistake in a model, or an attack."""


def plan_buffers(
    graph: Graph,
    order: Sequence[Node],
    lasting: Collection[str] = (),
    places: Mapping[str, str] | None = None,
) -> tuple[PlanBuffer, ...]:
    """Return the buffers of a fused graph run in `order` (kernels and reshapes; launch i is the i-th kernel).
    `lasting` values live to the end. `places` has the values in whose memory others lie.

    A reshape is an alias of its operand. If a model output is a reshape of a kernel's result, the kernel
    writes the output itself. The kernel's result is then an alias of the output. An output that is an alias
    of an input or a constant stays one. An output that updates an input is an alias of it. Untouched values
    get no buffer. Offsets are set if every arena buffer has a static shape. Raises CompileError if a value of
    known shape is larger than `MOST_BYTES`.
    """
    bases = _bases(graph, order, places or {})
    touched = _touched(order)
    lives: dict[str, tuple[int, int]] = {}
    for name, (first, last) in touched.items():
        base = bases[name]
        low, high = lives.get(base, (first, last))
        lives[base] = (min(low, first), max(high, last))
    last = sum(n.op != "reshape" for n in order) - 1
    lives |= {bases[n]: (lives[bases[n]][0], last) for n in lasting}
    needed = [n for n in bases if n in touched or n in graph.inputs or n in graph.outputs]
    wanted = dict.fromkeys([*graph.inputs, *(bases[n] for n in needed), *needed])
    buffers = [_buffer(graph, n, bases[n], lives.get(bases[n], (0, 0))) for n in wanted]
    sources = {n: node.source or node.name for node in order for n in node.outputs}
    for b in buffers:
        _check_size(b, sources.get(b.name, "an input or constant"))
    return with_offsets(buffers)


def _check_size(b: PlanBuffer, source: object) -> None:
    shape = static_shape(b.shape)
    if shape is not None and math.prod(shape) * b.dtype.bytes > MOST_BYTES:
        raise CompileError(
            f"{source}: the value '{b.name}' {b.dtype}[{', '.join(map(str, shape))}] takes "
            f"{math.prod(shape) * b.dtype.bytes} bytes; one may take {MOST_BYTES}"
        )


def _bases(graph: Graph, order: Sequence[Node], places: Mapping[str, str]) -> dict[str, str]:
    """Return the value whose memory each value shares. A value with memory of its own maps to itself."""
    fixed = {*graph.inputs, *graph.constants}
    bases = {n: n for n in (*graph.inputs, *graph.constants)}
    for node in order:
        for name in node.outputs:
            own = bases[places[name]] if name in places else name
            bases[name] = bases[node.inputs[0]] if node.op == "reshape" else own
    for name in graph.outputs:
        old = bases[name]
        if old != name and old not in fixed and old not in graph.outputs:
            bases = {n: name if b == old else b for n, b in bases.items()}
    return {n: graph.updates.get(b, b) for n, b in bases.items()}


def _touched(order: Sequence[Node]) -> dict[str, tuple[int, int]]:
    """Return the first and the last launch that has each value as an argument."""
    lives: dict[str, tuple[int, int]] = {}
    launches = [n for n in order if n.op != "reshape"]
    for i, node in enumerate(launches):
        for name in (*node.inputs, *node.outputs):
            lives[name] = (lives.get(name, (i, i))[0], i)
    return lives


def _buffer(graph: Graph, name: str, base: str, live: tuple[int, int]) -> PlanBuffer:
    dtype, shape = graph.dtype(name), graph.shape(name)
    if base != name:
        return PlanBuffer(name, dtype, shape, "alias", live, base=base)
    if name in graph.inputs:
        kind = "input"
    elif name in graph.constants:
        kind = "constant"
    else:
        kind = "output" if name in graph.outputs else "arena"
    return PlanBuffer(name, dtype, shape, kind, live)


def with_offsets(buffers: Sequence[PlanBuffer]) -> tuple[PlanBuffer, ...]:
    """Return the buffers with arena offsets if all sizes are known, else unchanged."""
    sizes: dict[str, int] = {}
    for b in buffers:
        if b.kind == "arena":
            shape = static_shape(b.shape)
            if shape is None:
                return tuple(buffers)
            sizes[b.name] = math.prod(shape) * b.dtype.bytes
    lives = {b.name: b.live for b in buffers}
    offsets, _ = layout([(name, size, *lives[name]) for name, size in sizes.items()])
    return tuple(replace(b, offset=offsets.get(b.name)) for b in buffers)
