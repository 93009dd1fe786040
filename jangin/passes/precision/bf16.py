"""Marks products of bfloat16 and float16 for instructions that take 16-bit numbers.

One instruction adds two products of bfloat16 to a sum of f32, while a multiply-add of f32 adds one. For
float16, Arm's FMLAL multiplies f16 and adds to f32. FMLAL makes as many products as a multiply-add of f32.
Nothing is widened for FMLAL, and registers and loads hold twice the numbers.

Products are marked here, while the types are the model's, with the Product that is to make them. `widen`
keeps the operands of marked products at 16 bits in memory. `integers` makes marked products of bfloat16 read
words of two numbers. The sums of marked products are f32.

Products of f32 whose operands are widened from 16 bits are marked as well: PyTorch's linear layers of
bfloat16 and their gradients. Weights that training changes are paired in each run.

Numbers are rounded at the model's own points, as far as the numbers go through memory. Subnormal numbers of
bfloat16 are taken for 0. FMLAL's product is exact, and its sum is rounded once, like a sum of f32. For
bfloat16, x86's instruction rounds to the nearest each time it adds a product. Arm's instruction rounds to
odd.

`tf32` marks products of float32 for instructions that multiply numbers rounded to tf32. Such a product is
exact, and its sum is one of f32. It is a pass of its own, because only some callers allow the rounding.

GPUs multiply matrices of all these types, whose numbers the work-items of a warp share. Their manual leaves
open in which order the instruction adds, and how it rounds between. Nothing is paired for it.

Some instructions multiply matrices of two rows by two columns, of four numbers each. They serve products of
several rows. Arm's matrix instruction adds two pairs, one after the other, like the instruction for pairs.
Processors with FEAT_EBF16 may be set to round sums of pairs otherwise.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from jangin.ir.core import Conv, Map, MatMul, Normalize, Pool, Reshape, Transpose
from jangin.ir.dtype import BF16, F16, F32, DType
from jangin.ir.expr import Cast, Var, call
from jangin.ir.graph import Graph, Node, static_shape
from jangin.ir.products import READY, Product
from jangin.ops.editor import Editor
from jangin.passes.precision.integer_readings import axes, fewest, of_matrices
from jangin.passes.windows.winograd_cost import Estimate, is_window
from jangin.targets.target import Target

FEWEST_USES = 128
"""The fewest multiply-adds with a number for which the number is transposed in each run. Pairs save half of
some 125 multiply-adds a nanosecond, and transposing moves about one number a nanosecond."""


def bf16(graph: Graph, target: Target) -> Graph:
    """Return the graph with the products marked that instructions for 16-bit numbers make. A product is
    marked only if that should be quicker."""
    return _with_products(
        [p for p in target.machine.products if p.left.is_float and not p.rounds], graph, target
    )


def tf32(graph: Graph, target: Target) -> Graph:
    """Return the graph with products of float32 marked whose numbers may be rounded to tf32, for instructions
    that multiply them. A number is rounded where it is computed if only left operands of such products read
    it, and where they copy it otherwise."""
    return _stored_rounded(_with_products([p for p in target.machine.products if p.rounds], graph, target))


def _stored_rounded(graph: Graph) -> Graph:
    """Return the graph in which values are rounded for all their readers at once."""
    run, consumers = Editor(graph.symbols, graph.values, graph.constants), graph.consumers()
    names = dict[str, str]()
    for node in graph.nodes:
        if node.inputs and (name := names.get(node.inputs[0])) is not None:
            assert isinstance(node.attrs, (Conv, MatMul)) and node.attrs.dot is not None
            attrs = replace(node.attrs, dot=READY[node.attrs.dot])
            node = replace(node, inputs=(name, *node.inputs[1:]), attrs=attrs)
        run.emit(node)
        if not isinstance(node.attrs, (Conv, MatMul, Map, Normalize, Pool)):
            continue
        (out,) = node.outputs
        readers = [_rounds_left(n, out) for n in consumers.get(out, ())]
        if out not in graph.outputs and readers and (fn := readers[0]) and all(readers):
            names[out] = run.add(Map(call(fn, Var("x0", F32))), [out], f"{out}.{fn}", node.source)
    return run.rewritten(graph) if names else graph


def _rounds_left(node: Node, name: str) -> str:
    """Return the function by which a node rounds a value that is its left operand alone, or ""."""
    attrs = node.attrs
    dot = attrs.dot if isinstance(attrs, (Conv, MatMul)) else None
    alone = node.inputs[0] == name not in node.inputs[1:]
    return dot.rounds if dot is not None and dot in READY and alone else ""


def _with_products(products: Sequence[Product], graph: Graph, target: Target) -> Graph:
    if not products:
        return graph
    graph = _with_narrow_operands(graph, products, target)
    marked = [_marked(n, products, graph, target) for n in graph.nodes]
    return graph if marked == list(graph.nodes) else graph.with_nodes(marked)


def _marked(node: Node, products: Sequence[Product], graph: Graph, target: Target) -> Node:
    attrs, dot = node.attrs, next((p for p in products if _pays(node, p, graph, target)), None)
    if dot is None or not isinstance(attrs, (Conv, MatMul)):
        return node
    return replace(node, attrs=replace(attrs, dot=dot))


def _with_narrow_operands(graph: Graph, products: Sequence[Product], target: Target) -> Graph:
    """Return the graph in which products of f32 read the 16-bit numbers that their operands are widened from,
    if instructions multiply those."""
    run, producers = Editor(graph.symbols, graph.values, graph.constants), graph.producers()
    narrow: dict[str, str] = {}

    def moved(name: str) -> str:
        """Return the 16-bit value that a widened one comes from, moved in the same way."""
        node = producers[name]
        attrs, hint = node.attrs, f"{name}.narrow"
        if name not in narrow and isinstance(attrs, (Reshape, Transpose)):
            narrow[name] = run.add(attrs, [moved(node.inputs[0])], hint, node.source)
        elif name not in narrow and isinstance(attrs, Map) and isinstance(attrs.body, Cast):
            body, plain = attrs.body.a, len(node.inputs) == 1 and isinstance(attrs.body.a, Var)
            narrow[name] = node.inputs[0] if plain else run.add(Map(body), node.inputs, hint, node.source)
        return narrow[name]

    for node in graph.nodes:
        attrs = node.attrs
        if isinstance(attrs, MatMul) and graph.dtype(node.outputs[0]) is F32 and not target.groups:
            types = [_widened_from(n, graph, producers) for n in node.inputs]
            if any(
                types == [p.left] * 2 and p.total is F32 and _suits(node, p, graph, target) for p in products
            ):
                inputs = tuple(map(moved, node.inputs))
                node = replace(node, inputs=inputs, attrs=replace(attrs, dtype=F32))
        run.emit(node)
    return run.rewritten(graph) if narrow else graph


def _widened_from(name: str, graph: Graph, producers: Mapping[str, Node]) -> DType | None:
    """Return the type from which a value of f32 is widened, also if it is moved later; None for others."""
    node = producers.get(name)
    while node is not None and isinstance(node.attrs, (Reshape, Transpose)):
        if graph.dtype(node.inputs[0]) is not F32:
            return None
        node = producers.get(node.inputs[0])
    if node is None or not isinstance(node.attrs, Map) or not isinstance(node.attrs.body, Cast):
        return None
    body = node.attrs.body
    return body.a.dtype if body.dtype is F32 and body.a.dtype in (BF16, F16) else None


def _pays(node: Node, dot: Product, graph: Graph, target: Target) -> bool:
    """Return whether a product has enough terms to be paired, and isn't quicker by Winograd's method in f32.
    Weights that aren't constant are paired in each run. On a GPU, return whether warps multiply it."""
    if not isinstance(node.attrs, (Conv, MatMul)):
        return False
    (result,) = (graph.dtype(n) for n in node.outputs)
    if node.attrs.dot or any(graph.dtype(n) is not dot.left for n in node.inputs):
        return False
    if result is not dot.left and (result is not dot.total or target.groups):
        return False
    return _by_warps(node, graph) if target.groups else _suits(node, dot, graph, target)


def _suits(node: Node, dot: Product, graph: Graph, target: Target) -> bool:
    """Return whether a product's sizes suit an instruction of a processor, whatever the operands' type is."""
    if node.inputs[1] not in graph.constants and not _pays_in_runs(node, dot, graph):
        return False
    _, axis = axes(node, graph)
    (terms,) = static_shape(graph.shape(node.inputs[1])[axis : axis + 1]) or (0,)
    if isinstance(node.attrs, Conv) and node.attrs.groups > 1 and terms % dot.terms_of_word:
        return False
    if dot.of_matrices and not of_matrices(node, graph, dot):
        return False
    return terms >= fewest(dot) and not _by_winograd(node, dot, graph, target)


def _pays_in_runs(node: Node, dot: Product, graph: Graph) -> bool:
    """Return whether it pays to pair the terms of two computed matrices in each run. A matrix whose terms
    don't lie side by side is transposed for it, and each number must then have enough products."""
    shapes = [static_shape(graph.shape(n)) for n in node.inputs]
    left, right = shapes
    if not isinstance(node.attrs, MatMul) or dot.terms_of_word < 2 or left is None or right is None:
        return False
    if len(right) != 2:
        return False
    (of_left, of_right), columns = axes(node, graph), right[0 if node.attrs.transpose_b else 1]
    rows = math.prod(size for axis, size in enumerate(left) if axis != of_left)
    turned = (rows * (of_right != 1), columns * (of_left != len(left) - 1))
    return not any(0 < uses < FEWEST_USES for uses in turned)


def _by_warps(node: Node, graph: Graph) -> bool:
    """Return whether a product is one that warps multiply by matrices. Convolutions in groups and batches of
    products of two computed values are multiplied in f32."""
    w = node.inputs[1]
    if isinstance(node.attrs, Conv):
        return node.attrs.groups == 1
    return w in graph.constants or len(graph.shape(w)) == 2


def _by_winograd(node: Node, dot: Product, graph: Graph, target: Target) -> bool:
    if target.matrix_row(dot) is not None:
        return False  # matrix registers make hundreds of products a cycle
    sizes = static_shape(graph.shape(node.outputs[0])[2:])
    if not isinstance(node.attrs, Conv) or sizes is None or len(sizes) != 2:
        return False
    outputs, terms, *_ = graph.constants[node.inputs[1]].shape
    if not is_window(replace(node.attrs, pads=(0,) * 4, layout="last")):
        return False
    estimate = Estimate(*sizes, terms, outputs, target.machine.winograd, dilations=node.attrs.dilations)
    transform = estimate.best()
    if transform is None:
        return False
    return dot.terms_of_word * min(estimate.whole(transform), estimate.blocks(transform)) < estimate.plain()
