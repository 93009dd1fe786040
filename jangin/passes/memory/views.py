"""Values without memory of their own: they are parts of other values.

The pass `in_place` leaves concatenations and slices between kernels that move no bytes. `views` gives the
place of their operands and results in another value's memory. Kernels are then made over the whole values
(`Part`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from jangin.ir.core import Concat, Slice
from jangin.ir.expr import Buffer, Expr, Load, Var, const, is_const
from jangin.ir.graph import Graph, static_shape
from jangin.ir.loop import Func, replace_buffer
from jangin.ir.records import dataclass
from jangin.ir.simplify import Range, simplify
from jangin.ir.te import Stage
from jangin.ir.traversal import rewrite


@dataclass(frozen=True)
class View:
    """A value that lies in the memory of the value `base`, from the element `start` on in every axis."""

    base: str
    start: tuple[int, ...]


def views(graph: Graph) -> dict[str, View]:
    """Return the views of a fused graph, by the values that have no memory of their own."""
    direct: dict[str, View] = {}
    for node in graph.nodes:
        (out, *_) = node.outputs
        if isinstance(node.attrs, Slice):
            direct[out] = View(node.inputs[0], _numbers(node.attrs.starts))
        elif isinstance(node.attrs, Concat):
            start, axis = 0, node.attrs.axis
            for name in node.inputs:
                shape = graph.shape(name)
                direct[name] = View(out, tuple(start if d == axis else 0 for d in range(len(shape))))
                start += _numbers(shape[axis : axis + 1])[0]
    return {name: _resolved(name, direct) for name in direct}


def _numbers(sizes: Sequence[Expr]) -> tuple[int, ...]:
    numbers = static_shape(tuple(sizes))
    assert numbers is not None
    return numbers


def _resolved(name: str, direct: Mapping[str, View]) -> View:
    view = direct[name]
    while view.base in direct:
        outer = direct[view.base]
        view = View(outer.base, tuple(a + b for a, b in zip(view.start, outer.start, strict=True)))
    return view


@dataclass(frozen=True)
class Part:
    """The buffer `whole` that replaces a kernel's parameter, and the `start` of the parameter in it.

    The result's start is a symbol of the kernel (`symbols`), so that kernels that only write different parts
    of one tensor are one kernel.
    """

    whole: Buffer
    start: tuple[Expr, ...]
    symbols: Mapping[Var, Range]

    def index(self, index: Sequence[Expr]) -> tuple[Expr, ...]:
        """Return the index in the whole buffer of an element of the part."""
        return tuple(simplify(i + a) for i, a in zip(index, self.start, strict=True))


def parameter_parts(
    inputs: Sequence[Buffer],
    results: Sequence[Buffer],
    args: Sequence[str],
    found: Mapping[str, View],
    graph: Graph,
) -> dict[str, Part]:
    """Return a `Part` for each parameter of a kernel whose argument is a view, by the parameter's name."""
    parts: dict[str, Part] = {}
    for p, arg in zip((*inputs, *results), args, strict=True):
        if arg in found:
            whole = replace(p, shape=graph.shape(found[arg].base))
            start: list[Expr] = [const(n) for n in found[arg].start]
            ranges: dict[Var, Range] = {}
            if p in results:
                for d, symbol in enumerate(start_symbols(p)):
                    if not is_const(start[d], 0):
                        start[d] = symbol
                        ranges[symbol] = (const(0), simplify(whole.shape[d] - p.shape[d]))
            parts[p.name] = Part(whole, tuple(start), ranges)
    return parts


def start_symbols(out: Buffer) -> tuple[Var, ...]:
    """Return the symbols of the start of a kernel's result in its whole buffer, one for each axis."""
    return tuple(Var(f"{out.name}.at{d}") for d in range(len(out.shape)))


def stages_over_wholes(stages: Sequence[Stage], parts: Mapping[str, Part]) -> tuple[Stage, ...]:
    """Return a kernel's stages over whole buffers instead of parts of them."""
    placed = []
    for stage in (_loading(s, parts) for s in stages):
        part = parts.get(stage.out.name)
        placed.append(stage if part is None else replace(stage, out=part.whole, at=part.start))
    return tuple(placed)


def func_over_wholes(func: Func, parts: Mapping[str, Part]) -> Func:
    """Return a loop nest over whole buffers instead of parts of them."""
    body = func.body
    for name, part in parts.items():
        body = replace_buffer(body, name, part.whole, part.index)
    params = tuple(parts[p.name].whole if p.name in parts else p for p in func.params)
    symbols = (*func.symbols, *(s for part in parts.values() for s in part.symbols.items()))
    return replace(func, params=params, symbols=symbols, body=body)


def _loading(stage: Stage, parts: Mapping[str, Part]) -> Stage:
    def load(e: Expr) -> Expr | None:
        part = parts.get(e.buffer.name) if isinstance(e, Load) else None
        return Load(part.whole, part.index(e.index)) if part and isinstance(e, Load) else None

    epilogue = None if stage.epilogue is None else rewrite(stage.epilogue, load)
    return replace(stage, body=rewrite(stage.body, load), epilogue=epilogue)
