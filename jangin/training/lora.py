"""Low-rank adapters of matrix products (Hu et al. 2021, "LoRA: Low-Rank Adaptation of Large Language
Models").

A product with a frozen weight gets a second term, x Aᵀ Bᵀ, whose two small matrices alone are trained."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from jangin.gradients.reverse import builder_of
from jangin.ir.core import MatMul
from jangin.ir.expr import const
from jangin.ir.graph import Array, CompileError, Node
from jangin.ops.builder import Builder
from jangin.ops.operands import typed
from jangin.ops.values import Tensor
from jangin.training.parameters import Adapter, Lora, Trainable, matching


def lora(rank: int = 8, alpha: float | None = None, targets: Sequence[str] = ("*",), seed: int = 0) -> Lora:
    """Return what `trainable=` of `jangin.train` takes to train low-rank adapters.

    - `rank` is the number of rows of each A, and of columns of each B.
    - `alpha` divided by the rank scales the adapters. By default it is the rank.
    - `targets` names weights of matrix products, by names or patterns. By default all get adapters.
    - `seed` decides the numbers that A begins with. B begins with zeros.

    Raises ValueError for a rank below 1."""
    if rank < 1:
        raise ValueError(f"rank={rank} must be at least 1")
    return Lora(rank, float(rank) if alpha is None else alpha, tuple(targets), seed)


def adapted(model: Trainable, given: Lora, own: Mapping[str, str]) -> Trainable:
    """Return a frozen model with adapters. `own` has the model's own names of its constants. Raises
    CompileError if no product has a chosen weight."""
    graph = model.graph
    chosen = _weights(graph.nodes, {n: a for n, a in graph.constants.items() if n in own})
    names = {own[n]: n for n in chosen}
    if not names:
        raise CompileError("lora: no matrix product of the model has a constant weight of two axes")
    wanted = [names[n] for n in matching([*names], given.targets)]
    rng, b = np.random.default_rng(given.seed), builder_of(graph)
    b.nodes, adapters, parameters = [], {}, {}
    for weight in wanted:
        terms, outputs = graph.constants[weight].shape
        if chosen[weight]:
            terms, outputs = outputs, terms
        base = own[weight].removesuffix(".weight")
        first = rng.uniform(-1, 1, (given.rank, terms)) / math.sqrt(terms)
        pair = {f"{base}.lora_A.weight": first, f"{base}.lora_B.weight": np.zeros((outputs, given.rank))}
        inputs = []
        for name, array in pair.items():
            value = b.values[weight]
            inputs.append(b.input(b.fresh(name), *typed(value)[:1], tuple(const(d) for d in array.shape)))
            parameters[inputs[-1].name] = array.astype(graph.constants[weight].dtype)
        first_input, second_input = (t.name for t in inputs)
        change = Adapter(first_input, second_input, graph.constants[weight], chosen[weight], given.scale)
        adapters[own[weight]] = change
        names |= dict(zip(pair, (t.name for t in inputs), strict=True))
    by_weight = {w: adapters[own[w]] for w in wanted}
    for node in graph.nodes:
        weight = node.inputs[1] if _is_product(node) else ""
        if weight in by_weight:
            _with_term(b, node, by_weight[weight])
        else:
            b.emit(node)
    whole = replace(
        graph, nodes=tuple(b.nodes), inputs=tuple(b.inputs), values=b.values, constants=b.constants
    )
    known = {n: i for n, i in names.items() if i in parameters}
    return replace(
        model, graph=whole, parameters=parameters, names={**model.names, **known}, adapters=adapters
    )


def _is_product(node: Node) -> bool:
    attrs = node.attrs
    return isinstance(attrs, MatMul) and not attrs.transpose_a and attrs.dtype is None


def _weights(nodes: Sequence[Node], constants: Mapping[str, Array]) -> dict[str, bool]:
    """Return the constants of two axes that are a product's right operand. The value tells whether all
    products transpose it."""
    turned_weights: dict[str, bool] = {}
    for node in nodes:
        weight = node.inputs[1] if _is_product(node) else ""
        if weight in constants and constants[weight].ndim == 2 and constants[weight].dtype.kind == "f":
            turned = node.of(MatMul).transpose_b
            if turned_weights.setdefault(weight, turned) != turned:
                raise CompileError(
                    f"lora: {weight} is multiplied both as it is and transposed: leave it out of targets"
                )
    return turned_weights


def _with_term(b: Builder, node: Node, adapter: Adapter) -> None:
    """Write a product with the term of its adapter."""
    (out,) = node.outputs
    b.prefix, b.source = out, node.source
    x, frozen = (Tensor(n, *typed(b.values[n])) for n in (node.inputs[0], out))
    plain = b.fresh(f"{out}.frozen")
    b.values[plain] = replace(b.values[out], name=plain)
    b.emit(replace(node, name=plain, outputs=(plain,)))
    first, second = (Tensor(n, *typed(b.values[n])) for n in (adapter.first, adapter.second))
    narrow = b.matmul(x, first, transpose_b=True)
    term = b.matmul(narrow, second, transpose_b=True)
    b.map(lambda v, w: v + w * adapter.scale, replace(frozen, name=plain), term)
    last = b.nodes.pop()
    b.emit(replace(last, name=node.name, outputs=(out,)))
