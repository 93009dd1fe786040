"""Keeps the constants that rescale a channel's sums in one word instead of three, where memory is scarce.

A quantized layer multiplies each channel's sums by a factor of its own. LiteRT rounds the product by adding a
half and shifting it to the right. The half follows from the shift. The shift lies in the lowest bits of the
word that has the channel's bias.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from jangin.ir.core import Map
from jangin.ir.dtype import I32
from jangin.ir.expr import Binary, Expr, Var, binary, const
from jangin.ir.graph import Array, Graph, Node
from jangin.ir.records import dataclass
from jangin.ir.traversal import free_vars, rewrite, walk
from jangin.ops.editor import Editor
from jangin.passes.algebra.dce import dce
from jangin.targets.target import Target

BITS = 5
"""Bits of a word that have the shift of an i32, which is less than 32."""


@dataclass(frozen=True)
class Rounding:
    """A sum that is shifted to the right: (x + half) >> shift, with constants by channel. The half is
    (odd << (shift - 1)) + more."""

    shifted: Binary
    half: Var
    shift: Var
    odd: int
    more: int


def shared_words(graph: Graph, target: Target) -> Graph:
    """Return the graph with the halves and shifts of rescaled sums in the words of their biases."""
    return _SharedWords(graph).run() if target.machine.fusion.small_values else graph


class _SharedWords(Editor):
    """One run."""

    def __init__(self, graph: Graph) -> None:
        super().__init__(graph.symbols, graph.values, graph.constants)
        self.graph, self.producers, self.users = graph, graph.producers(), graph.consumers()

    def run(self) -> Graph:
        words, rescaled = dict[str, str](), dict[str, tuple[Rounding, str]]()
        for node in self.graph.nodes:
            rounding = self.rounding(node)
            adds = None if rounding is None else self.adds(node)
            if rounding is None or adds is None:
                continue
            bias, shift = self.constants[adds.inputs[1]], self.of(node, rounding.shift)
            together = bias.reshape(-1).astype(np.int64) * (1 << BITS) + shift.reshape(-1) - 1
            if together.min() >= I32.limits[0] and together.max() <= I32.limits[1]:
                words[adds.outputs[0]] = self.constant(together.astype(np.int32), f"{adds.inputs[1]}.shared")
                rescaled[node.outputs[0]] = rounding, words[adds.outputs[0]]
        if not rescaled:
            return self.graph
        for node in self.graph.nodes:
            (out,) = node.outputs if len(node.outputs) == 1 else ("",)
            if out in words:
                body = binary("add", Var("x0", I32), binary("shr", Var("x1", I32), const(BITS, I32)))
                node = replace(node, inputs=(node.inputs[0], words[out]), attrs=Map(body))
            self.emit(self.rounded(node, *rescaled[out]) if out in rescaled else node)
        return dce(self.rewritten(self.graph))

    def of(self, node: Node, v: Var) -> Array:
        """Return the constant that a map reads by a variable."""
        return self.constants[node.inputs[int(v.name[1:])]]

    def adds(self, node: Node) -> Node | None:
        """Return the node that adds the bias of each channel to the map's first operand, if nothing else
        reads its result; else None."""
        name = node.inputs[0]
        addition, channels = self.producers.get(name), self.shape(node.outputs[0])[-1]
        plain = binary("add", Var("x0", I32), Var("x1", I32))
        if addition is None or not isinstance(addition.attrs, Map) or addition.attrs.body != plain:
            return None
        if name in self.graph.outputs or len(self.users.get(name, ())) > 1:
            return None
        bias = self.constants.get(addition.inputs[1])
        by_channel = bias is not None and bias.shape[-1:] == (bias.size,) and const(bias.size) == channels
        return addition if by_channel else None

    def rounding(self, node: Node) -> Rounding | None:
        """Return the rounding of a map whose half follows from its shift; else None."""
        if not isinstance(node.attrs, Map):
            return None
        roundings = [r for e in walk(node.attrs.body) if (r := self._of_shift(node, e)) is not None]
        if len(roundings) != 1:
            return None
        (rounding,) = roundings
        kept = rewrite(node.attrs.body, lambda e: rounding.shifted.a if e is rounding.shifted else None)
        kept = rewrite(kept, lambda e: const(0, I32) if e is rounding.half else None)
        return None if {rounding.half, rounding.shift} & {*free_vars(kept)} else rounding

    def _of_shift(self, node: Node, e: Expr) -> Rounding | None:
        if not isinstance(e, Binary) or e.op != "shr" or e.dtype is not I32 or not isinstance(e.b, Var):
            return None
        halves = [v for v in free_vars(e.a) if v is not e.b and _adds(e.a, v)]
        named = {v: self.constants.get(node.inputs[int(v.name[1:])]) for v in (*halves, e.b)}
        shift = named[e.b]
        if shift is None or shift.size < 2 or shift.size != shift.shape[-1] or shift.min() < 1:
            return None
        for half in halves:
            wholes = named[half]
            if wholes is None or wholes.shape != shift.shape:
                continue
            below = shift.astype(np.int64) - 1
            longest = int(shift.argmax())
            odd = int(wholes.flat[longest]) >> int(below.flat[longest])
            more = wholes - (odd << below)
            if more.min() == more.max():
                return Rounding(e, half, e.b, odd, int(more.flat[0]))
        return None

    def rounded(self, node: Node, rounding: Rounding, words: str) -> Node:
        """Return the map with the half and the shift taken from the words."""
        at = int(rounding.shift.name[1:])
        low = binary("and", Var(rounding.shift.name, I32), const((1 << BITS) - 1, I32))
        half = binary("shl", const(rounding.odd, I32), low)
        if rounding.more:
            half = half + const(rounding.more, I32)
        total = rewrite(rounding.shifted.a, lambda e: half if e is rounding.half else None)
        shifted = binary("shr", binary("shr", total, low), const(1, I32))
        body = rewrite(node.of(Map).body, lambda e: shifted if e is rounding.shifted else None)
        inputs = tuple(words if n == at else name for n, name in enumerate(node.inputs))
        return _without(replace(node, inputs=inputs, attrs=Map(body)), int(rounding.half.name[1:]))


def _adds(e: Expr, v: Var) -> bool:
    """Return whether a variable is added to the rest of a sum."""
    if not isinstance(e, Binary) or e.op not in ("add", "sub"):
        return False
    return e.a is v or (e.op == "add" and e.b is v) or _adds(e.a, v) or (e.op == "add" and _adds(e.b, v))


def _without(node: Node, at: int) -> Node:
    """Return a map node without its operand number `at`, which its expression doesn't read."""
    places = [n for n in range(len(node.inputs)) if n != at]
    names = {f"x{old}": f"x{new}" for new, old in enumerate(places)}
    body = rewrite(
        node.of(Map).body,
        lambda e: Var(names[e.name], e.dtype) if isinstance(e, Var) and e.name in names else None,
    )
    return replace(node, inputs=tuple(node.inputs[n] for n in places), attrs=Map(body))
