"""A kernel's arithmetic operations and bytes, for bounds and reports."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

from jangin.ir.expr import Buffer, Const, Expr, Var, const, minimum, product_of
from jangin.ir.graph import Graph, Node
from jangin.ir.loop import Func
from jangin.ir.simplify import Range, filled, simplify
from jangin.ir.te import Stage
from jangin.ir.traversal import loads
from jangin.passes.fusion.stages import is_opaque, opaque_stages, stages

Symbols = Mapping[Var, Range]


def stages_work(
    parts: Sequence[Stage], inputs: Sequence[Buffer], symbols: Symbols, outputs: int = 1
) -> tuple[Expr, Expr]:
    """Return the (operations, bytes) of a kernel.

    Operations are two for each multiply-add of a sum of products. Bytes are the operands and the results,
    each counted once. An operand that is read in part (a gather, a slice) counts no more than the number of
    reads. Both figures are estimates, because each symbolic size is taken to be at least 1.
    """
    symbols = filled(symbols)
    reads: dict[str, Expr] = {b.name: const(0) for b in inputs}
    for stage in parts:
        points = _product(a.extent for a in stage.axes)
        inner = points * _product(a.extent for a in stage.reduce_axes)
        for expr, count in ((stage.body, inner), (stage.epilogue, points)):
            for load in () if expr is None else loads(expr):
                if load.buffer.name in reads:
                    reads[load.buffer.name] = reads[load.buffer.name] + count
    written = _sum(_product(a.extent for a in s.axes) * s.out.dtype.bytes for s in parts[-outputs:])
    moved = _sum(_least(b, simplify(reads[b.name], symbols), symbols) for b in inputs) + written
    return simplify(_sum(map(_operations, parts)), symbols), simplify(moved, symbols)


def nest_work(func: Func, parts: Sequence[Stage]) -> tuple[Expr, Expr]:
    """Return the (operations, bytes) of a kernel of loop nests. Only the stages' operations are known."""
    symbols = dict(func.symbols)
    return simplify(_sum(map(_operations, parts)), symbols), simplify(_sum(map(_bytes, func.params)), symbols)


def flops(graph: Graph) -> int | None:
    """Return the number of operations of the convolutions and matrix products of a fused static graph, or
    None if a size is symbolic."""
    kernels = [n for n in graph.nodes if n.op == "kernel"]
    total = simplify(_sum(_operations(s) for n in kernels for s in _parts(n)), graph.symbols)
    return int(total.value) if isinstance(total, Const) else None


def kernel_flops(node: Node, symbols: Symbols) -> int:
    """Return the number of operations of the products in a kernel of static sizes."""
    total = simplify(_sum(map(_operations, _parts(node))), symbols)
    return int(total.value) if isinstance(total, Const) else 0


def _parts(kernel: Node) -> Sequence[Stage]:
    return opaque_stages(kernel) if is_opaque(kernel) else stages(kernel)[0]


def _operations(stage: Stage) -> Expr:
    if stage.combiner != "sum" or stage.sometimes:
        return const(0)
    words = product_of(stage.body)
    return 2 * (words.terms if words else 1) * _product(a.extent for a in (*stage.axes, *stage.reduce_axes))


def _least(buffer: Buffer, reads: Expr, symbols: Symbols) -> Expr:
    """Return the bytes of the elements of `buffer`, or of `reads` of them if they may be fewer."""
    fewer = simplify(reads < _product(buffer.shape), symbols)
    if isinstance(fewer, Const) and not fewer.value:
        return _bytes(buffer)
    return minimum(_bytes(buffer), reads * buffer.dtype.bytes)


def _bytes(buffer: Buffer) -> Expr:
    return _product(buffer.shape) * buffer.dtype.bytes


def _product(sizes: Iterable[Expr]) -> Expr:
    return math.prod(sizes, start=const(1))


def _sum(terms: Iterable[Expr]) -> Expr:
    return sum(terms, start=const(0))
