"""Simulate a quantized model by fake quantization, so that parts can be quantized one by one without a new
compilation.

Weights, biases and scales are inputs of the simulated model."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from jangin.ir.core import Map
from jangin.ir.dtype import F32, U8
from jangin.ir.expr import Var, call, const, maximum, minimum, select
from jangin.ir.graph import Array, Graph, Node, Value
from jangin.ops.editor import Editor
from jangin.options import Options
from jangin.quantization.engine import Engine
from jangin.quantization.parts import Part
from jangin.quantization.scales import Scheme
from jangin.quantization.writer import Chosen, quantized_values


class Simulator:
    """A prepared graph that can run with any of its parts quantized. It returns `values` beside the
    outputs."""

    def __init__(
        self, graph: Graph, parts: Sequence[Part], options: Options, values: Sequence[str] = ()
    ) -> None:
        self.graph, self.parts = graph, parts
        self.rounded = list(quantized_values(graph, parts, {p.name: p for p in parts}))
        self.constants = list(dict.fromkeys(n for p in parts for n in (p.w, p.bias_name()) if n is not None))
        self.engine = Engine(_simulation(graph, parts, self.rounded, self.constants), options, values)

    def settings(self, chosen: Mapping[str, Chosen], schemes: Mapping[str, Scheme]) -> dict[str, Array]:
        """Return the additional inputs that decide which parts are quantized, and how. `schemes` has the
        scheme of each observed value."""
        arrays = {n: self.graph.constants[n] for n in self.constants}
        for part in self.parts:
            if part.name in chosen:
                w, bias = chosen[part.name].floats()
                arrays[part.w] = np.ascontiguousarray(part.with_weights(self.graph, w))
                if bias is not None and (name := part.bias_name()) is not None:
                    shape = (-1, *(1,) * (len(self.graph.shape(part.result)) - 2))
                    held = np.broadcast_to(bias.reshape(shape), self.graph.constants[name].shape)
                    arrays[name] = np.ascontiguousarray(held)
        whole = {n: c for n, c in chosen.items() if c.kind == "int8"}
        sources = quantized_values(self.graph, self.parts, whole)
        for v in self.rounded:
            scheme = schemes[sources[v]] if v in sources else None
            arrays[f"{v}.scale"] = np.asarray(0 if scheme is None else scheme.scale, np.float32)
            arrays[f"{v}.zero"] = np.asarray(0 if scheme is None else scheme.zero, np.float32)
        return arrays

    def runner(
        self, chosen: Mapping[str, Chosen], schemes: Mapping[str, Scheme]
    ) -> Callable[[Mapping[str, Any]], dict[str, Array]]:
        """Return a function that runs the model on its inputs with the chosen parts quantized."""
        settings = self.settings(chosen, schemes)
        return lambda feeds: self.engine.run({**feeds, **settings})


def _simulation(
    graph: Graph, parts: Sequence[Part], rounded: Sequence[str], constants: Sequence[str]
) -> Graph:
    """Return the graph with `constants` as inputs, and each value in `rounded` quantized and dequantized. A
    scale input of 0 leaves its value unrounded."""
    run = Editor(graph.symbols, graph.values, graph.constants)
    read: dict[str, str] = {}
    names_added: list[str] = []
    products = {p.node.name for p in parts}
    whole = {v for p in parts if p.is_conv for v in (p.x, p.result)}

    def round_(value: str) -> None:
        names = [f"{value}.scale", f"{value}.zero"]
        for name in names:
            run.values[name] = Value(name, F32, ())
        names_added.extend(names)
        read[value] = run.add(Map(_rounded()), [value, *names], f"{value}.rounded")

    def rewired(node: Node) -> Node:
        names = (read[n] if n in read and (node.name in products or n in whole) else n for n in node.inputs)
        return replace(node, inputs=tuple(names))

    for value in rounded:
        if value in graph.inputs:
            round_(value)
    for node in graph.nodes:
        run.emit(rewired(node))
        for value in node.outputs:
            if value in rounded:
                round_(value)
    for name in constants:
        del run.constants[name]
    simulated = run.rewritten(graph)
    used = {n for node in simulated.nodes for n in node.inputs}
    inputs = (*graph.inputs, *(n for n in (*constants, *names_added) if n in used))
    return replace(simulated, inputs=inputs)


def _rounded() -> Any:
    """Return the expression of fake quantization to u8, of x0 with scale x1 and zero point x2."""
    x, scale, zero = (Var(f"x{i}", F32) for i in range(3))
    low, high = (const(float(n), F32) for n in U8.limits)
    whole = minimum(maximum(call("round", x / scale) + zero, low), high)
    return select(scale > const(0.0, F32), (whole - zero) * scale, x)
