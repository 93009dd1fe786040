"""Chooses the machine's Product for each of a graph's products of small numbers (see `integers`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from jangin.ir.core import Conv, Map, MatMul, Pad, Reshape, Transpose
from jangin.ir.dtype import I16, I32
from jangin.ir.expr import Binary, Const, Var, cast
from jangin.ir.graph import Graph, Node, static_shape
from jangin.ir.products import DOT2, DOT4U, Product
from jangin.ir.records import dataclass
from jangin.ops.numbers import Numbers
from jangin.passes.precision.integer_readings import of_one_row, reading_of, words_of
from jangin.passes.windows.winograd_cost import Estimate, is_window
from jangin.passes.windows.winograd_transform import MOST, exact_of
from jangin.targets.target import Target


@dataclass(frozen=True)
class Choice:
    """How a product is made. `less` is subtracted from the left operand, so that both operands are in the
    range of the words' numbers."""

    dot: Product
    less: int


def is_small(node: Node, graph: Graph) -> bool:
    """Return whether a node is an i32 product of integers of at most 16 bits, or a float product that is
    multiplied in words."""
    if dot_of_floats(node, graph) is not None:
        return True
    if not isinstance(node.attrs, (Conv, MatMul)) or node.attrs.dtype is not I32:
        return False
    return all(graph.dtype(n).is_int and graph.dtype(n).bits <= 16 for n in node.inputs)


def dot_of_floats(node: Node, graph: Graph) -> Product | None:
    """Return the Product for floats that are multiplied in words; None if they are multiplied one by one."""
    if not isinstance(node.attrs, (Conv, MatMul)) or not graph.dtype(node.inputs[0]).is_float:
        return None
    return node.attrs.dot if node.attrs.dot and node.attrs.dot.terms_of_word > 1 else None


def offset(node: Node, graph: Graph) -> int | None:
    """Return the zero point that a map subtracts from 8-bit numbers while it widens them to int16, or None
    for any other map."""
    if not isinstance(node.attrs, Map) or len(node.inputs) != 1 or graph.dtype(node.inputs[0]).bits != 8:
        return None
    whole = cast(I16, Var("x0", graph.dtype(node.inputs[0])))
    body = node.attrs.body
    if body == whole:
        return 0
    if isinstance(body, Binary) and body.op == "sub" and body.a == whole and isinstance(body.b, Const):
        return int(body.b.value)
    return None


class Words:
    """The choice of Products for a graph on a machine."""

    def __init__(self, graph: Graph, target: Target) -> None:
        self.graph, self.target = graph, target
        self.producers = graph.producers()
        self.numbers = Numbers(graph.constants, self.producers, graph.dtype)

    def choices(self) -> dict[str, Choice]:
        """Return the choice for each product of words, by its result.

        If some product reads numbers as pairs, all products that bytes make only a little quicker read these
        numbers as pairs too. The numbers then lie in memory once.
        """
        nodes = [n for n in self.graph.nodes if is_small(n, self.graph)]
        choices = {n.outputs[0]: c for n in nodes if (c := self.choice(n, self.dots(n))) is not None}
        read = {n.outputs[0]: self.read(n.inputs[0])[0] for n in nodes}
        pairs = {read[out] for out, choice in choices.items() if not choice.dot.of_bytes}
        for node in nodes:
            (out,) = node.outputs
            if out in choices and choices[out].dot.clamps and read[out] in pairs:
                del choices[out]
                if again := self.choice(node, [p for p in self.target.machine.products if not p.clamps]):
                    choices[out] = again
        return choices

    def dots(self, node: Node) -> Sequence[Product]:
        """Return the Products to try, the preferred first.

        A product of one row waits for its weights, and pairs take twice the words that bytes do. DOT4U is
        therefore preferred to DOT2 here, even if it takes several instructions.
        """
        dots = self.target.machine.products
        row = self.target.product_row(DOT4U, self.target.machine.lanes(I32.bytes))
        several = row is not None and row.multiplies > 1
        if DOT4U in dots or DOT2 not in dots or not several or not of_one_row(node, self.graph):
            return dots
        at = dots.index(DOT2)
        return (*dots[:at], DOT4U, *dots[at:])

    def choice(self, node: Node, dots: Sequence[Product]) -> Choice | None:
        """Return the first of `dots` that fits the product, or None."""
        if made_of := dot_of_floats(node, self.graph):
            return Choice(made_of, 0) if self.fits(node, made_of) else None
        for dot in (d for d in dots if d.left.is_int):
            less = self.less(node, dot) if self.fits(node, dot) else None
            if less is not None and (not dot.clamps or self.pays(node, Choice(dot, less))):
                return Choice(dot, less)
        return None

    def read(self, name: str) -> tuple[str, int | None]:
        """Return the name of the 8-bit numbers behind a value, and the zero point that is subtracted from
        them.

        The value may be moved and padded. For any other value, return (the value, None).
        """
        node = self.producers.get(name)
        while node is not None and isinstance(node.attrs, (Pad, Transpose, Reshape)):
            node = self.producers.get(node.inputs[0])
        zero = None if node is None else offset(node, self.graph)
        return (name, None) if node is None or zero is None else (node.inputs[0], zero)

    def bare(self, chosen: Mapping[str, Choice]) -> set[str]:
        """Return the names of the 8-bit values with zero point 0 that no product reads as pairs."""
        small = [self.read(n.inputs[0]) for n in self.graph.nodes if is_small(n, self.graph)]
        pairs = {
            self.read(n.inputs[0])[0]
            for n in self.graph.nodes
            if n.outputs[0] in chosen and not chosen[n.outputs[0]].dot.of_bytes
        }
        return {name for name, zero in small if zero == 0} - pairs

    def fits(self, node: Node, dot: Product) -> bool:
        """Return whether the product's operands can be read as words of several terms."""
        return reading_of(node, dot, self.graph).fits(self.target)

    def less(self, node: Node, dot: Product) -> int | None:
        """Return the number to subtract from the left operand so that both operands are in the range of the
        words' numbers. Return None if there is none."""
        (x, w), left = node.inputs, dot.left
        if left is I16:
            return 0 if isinstance(node.attrs, MatMul) or self.numbers.reach(x) <= MOST else None
        any_less = w in self.graph.constants
        (least, most), (low, high), (whole, zero) = left.limits, self.numbers.range(x), self.read(x)
        less = 0 if least <= low and high <= most else low - least
        if any_less and zero is not None and self.graph.dtype(whole) is left:
            less = -zero  # the bytes as they lie
        (lowest, highest), weights = dot.right_limits, self.numbers.range(w)
        inside = high - less <= most and lowest <= weights[0] and weights[1] <= highest
        return less if inside and (not less or any_less) else None

    def pays(self, node: Node, choice: Choice) -> bool:
        """Return whether a clamping Product (bytes in fours, sums of two clamped) is exact and quicker than
        pairs.

        It is exact if no sum of two is clamped, for the weights as they are packed. It takes three
        instructions a word, pairs take two.
        """
        x, w = node.inputs
        if w not in self.graph.constants:
            return False
        words, pairs = (reading_of(node, dot, self.graph).weights() for dot in (choice.dot, DOT2))
        low, high = I16.limits
        most = words.view(np.int8).reshape(-1, 2).astype(np.int64) * (self.numbers.range(x)[1] - choice.less)
        least, largest = (f(most, 0).sum(-1) for f in (np.minimum, np.maximum))
        exact = low <= least.min(initial=0) and largest.max(initial=0) <= high
        return bool(exact) and 3 * words.size < 2 * pairs.size and not self.by_winograd(node)

    def by_winograd(self, node: Node) -> bool:
        """Return whether Winograd's method should make a convolution quicker than direct sums of pairs."""
        (x, w), sizes = node.inputs, static_shape(self.graph.shape(node.outputs[0])[1:])
        if not isinstance(node.attrs, Conv) or not is_window(node.attrs) or sizes is None:
            return False
        words, (height, width, outputs) = words_of(self.graph.constants[w], 1, I16), sizes
        fitting = exact_of(words, *self.numbers.range(x))
        estimate = Estimate(
            height, width, words.shape[1], outputs, self.target.machine.winograd, fitting,
            dilations=node.attrs.dilations,
        )  # fmt: skip
        return estimate.best() is not None
