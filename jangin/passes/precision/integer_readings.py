"""How a product packs its operands into words of several numbers: along an axis, across a window's pixels, or
across its rows.

An image's few channels are padded to a power of two, so that a word holds several pixels, if windows begin
with a word. A depthwise convolution joins words at its reads, from the bytes of four rows of a window
(`ops.core_rows`).
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from jangin.ir.core import Conv, MatMul, Reshape
from jangin.ir.dtype import I8, I16, I32, U8, U16, DType
from jangin.ir.expr import const
from jangin.ir.graph import Array, Graph, Node, static_shape
from jangin.ir.products import Product
from jangin.ir.sources import Sources
from jangin.ops.core_rows import ROWS
from jangin.targets.target import Target

if TYPE_CHECKING:
    from jangin.passes.precision.integers import Integers

FEWEST = 3
"""Fewest channels of a group that are packed into words of more than 16 bits. With fewer, too much would be
padding."""
FEWEST_OF_SHORT = 8
"""Fewest channels of a group that are packed into words of 16 bits: a vector has this many words. With fewer
channels, broadcasting pairs of bytes to all lanes would take the time that multiply-adds save. Rows of f16
are read by whole vectors."""
FEWEST_ROWS, MOST_TAPS = 3, 25
"""Fewest rows and most taps of a depthwise convolution's window whose rows are packed into words. With fewer
rows much is padding; larger windows have a template of their own."""


class Reading:
    """The way in which a product's operands are read as words. Here a word has consecutive terms: channels of
    a convolution, or terms of a matrix product."""

    def __init__(self, node: Node, dot: Product, graph: Graph) -> None:
        self.node, self.dot, self.graph = node, dot, graph
        self.at, self.of = axes(node, graph)

    def fits(self, target: Target) -> bool:
        """Return whether the product's operands can be read in this way."""
        graph, (x, w), attrs, dot = self.graph, self.node.inputs, self.node.attrs, self.dot
        sizes = [static_shape(graph.shape(n)[a : a + 1]) for n, a in ((x, self.at), (w, self.of))]
        if any(s is None for s in sizes) or U16 in (graph.dtype(x), graph.dtype(w)):
            return False
        if dot.of_matrices and not of_matrices(self.node, graph, dot):
            return False
        if not isinstance(attrs, Conv):
            return True
        terms = int(str(graph.shape(w)[1]))
        few = terms < fewest(dot) or (attrs.groups > 1 and terms % dot.terms > 0)
        return attrs.layout == "last" and not few and w in graph.constants

    def weights(self) -> Array:
        """Return constant weights packed into words."""
        return words_of(self.graph.constants[self.node.inputs[1]], self.of, self.dot.right, self.dot.word)

    def left(self, run: Integers, less: int) -> str:
        """Return the name of the left operand's words, of its numbers minus `less`."""
        return run.words(self.node.inputs[0], self.at, self.dot.left, self.dot.word, less)

    def border(self, less: int) -> int:
        """Return the left operand's word outside the image, where each number is -`less`."""
        return int(words_of(np.full(self.dot.terms, -less), 0, self.dot.left, self.dot.word)[0])

    def operands(self, run: Integers, less: int) -> tuple[list[str], Conv | MatMul]:
        """Return the names of the operands, and the attributes, of the product of words. `less` is subtracted
        from the left operand."""
        read, attrs, w = self.left(run, less), self.node.attrs, self.node.inputs[1]
        own: Conv | MatMul
        if isinstance(attrs, Conv):
            own = replace(attrs, dot=self.dot)
            if less and any(attrs.pads):  # elements outside the image are no longer 0
                read = run.padded(read, attrs.pads, self.border(less))
                own = replace(own, pads=(0,) * len(attrs.pads))
        else:
            own = self.node.of(MatMul)
            turned = own.transpose_b or w not in run.constants
            own = replace(own, dot=self.dot, transpose_a=False, transpose_b=turned)
        return [read, run.words(w, self.of, self.dot.right, self.dot.word)], own


class Singly(Reading):
    """Single bytes, which loads widen to i32 for multiply-adds of i32."""

    def fits(self, target: Target) -> bool:
        attrs, (x, w) = self.node.attrs, self.node.inputs
        if U16 in (self.graph.dtype(x), self.graph.dtype(w)) or w not in self.graph.constants:
            return False
        return isinstance(attrs, MatMul) or (isinstance(attrs, Conv) and attrs.layout == "last")

    def left(self, run: Integers, less: int) -> str:
        return run.reduced(self.node.inputs[0], less, self.dot.left)

    def border(self, less: int) -> int:
        return -less

    def operands(self, run: Integers, less: int) -> tuple[list[str], Conv | MatMul]:
        (read, _), own = super().operands(run, less)
        return [read, run.cast(self.node.inputs[1], self.dot.right)], replace(own, dot=None)


class OfRows(Reading):
    """Words of a column's bytes in four rows of a depthwise convolution's window."""

    def __init__(self, node: Node, dot: Product, graph: Graph) -> None:
        super().__init__(node, dot, graph)
        self.of = 2

    def fits(self, target: Target) -> bool:
        return target.row("joined", U8, target.machine.lanes(I32.bytes)) is not None

    def left(self, run: Integers, less: int) -> str:
        return run.reduced(self.node.inputs[0], less, self.dot.left)

    def border(self, less: int) -> int:
        return -less


class AcrossPixels(Reading):
    """Words that go across the neighbouring pixels in a row of a window. `words` are the weights' words, and
    `each` is the padded number of channels of a pixel."""

    def __init__(self, node: Node, dot: Product, graph: Graph, words: Array, each: int) -> None:
        super().__init__(node, dot, graph)
        self.words, self.each = words, each

    def weights(self) -> Array:
        return self.words

    def operands(self, run: Integers, less: int) -> tuple[list[str], Conv | MatMul]:
        (x, w), dot, attrs = self.node.inputs, self.dot, self.node.of(Conv)
        size, channels = static_shape(run.shape(x)[-2:]) or (0, 0)
        narrow = run.filled(x, run.reduced(x, less, dot.left), self.each - channels)
        count = (*run.shape(x)[:-2], const(size * self.each // dot.terms), const(1))
        source = Sources.of(f"rows of {x}")
        read = run.add(Reshape(count, dot.word), [narrow], f"{x}.rows", source)
        wide = attrs.strides[-1] * self.each // dot.terms
        kernel, strides = (*attrs.kernel[:-1], self.words.shape[-1]), (*attrs.strides[:-1], wide)
        return [read, run.constant(self.words, f"{w}.rows")], replace(
            attrs, dot=dot, kernel=kernel, strides=strides
        )


def reading_of(node: Node, dot: Product, graph: Graph) -> Reading:
    """Return how the words of a product are read."""
    if dot.of_bytes and dot.terms == 1:
        return Singly(node, dot, graph)
    if _of_rows(node, graph, dot):
        return OfRows(node, dot, graph)
    across = _row_words(node, dot, graph)
    return Reading(node, dot, graph) if across is None else AcrossPixels(node, dot, graph, *across)


def axes(node: Node, graph: Graph) -> tuple[int, int]:
    """Return the axes of a product's left and right operand along which terms are packed into words, or cut
    into runs."""
    attrs = node.attrs
    if isinstance(attrs, Conv):
        return (len(graph.shape(node.inputs[0])) - 1 if attrs.layout == "last" else 1), 1
    assert isinstance(attrs, MatMul)
    left, right = (len(graph.shape(n)) for n in node.inputs)
    return left - (2 if attrs.transpose_a else 1), right - (1 if attrs.transpose_b else 2)


def words_of(array: Array, axis: int, dtype: DType, word: DType = I32) -> Array:
    """Return an array with the numbers along an axis cast to `dtype` and packed into words, the first in the
    low bits. The last word is padded with 0."""
    count = word.bytes // dtype.bytes
    rows = np.moveaxis(array, axis, -1)
    whole = np.zeros((*rows.shape[:-1], -(-rows.shape[-1] // count) * count), dtype.numpy)
    whole[..., : rows.shape[-1]] = rows
    return np.ascontiguousarray(np.moveaxis(whole.view(word.numpy), -1, axis))


def fewest(dot: Product) -> int:
    """Return the fewest input channels per group for which a convolution packs its channels into words. The
    number depends on the word's width."""
    return FEWEST_OF_SHORT if dot.word.bytes == I16.bytes else FEWEST


def of_matrices(node: Node, graph: Graph, dot: Product) -> bool:
    """Return whether a product suits instructions that multiply two rows by two columns of 64-bit words.

    The product needs constant weights, several rows and enough terms. With fewer terms, there are as many
    words of 64 bits as of 32 bits.
    """
    w, (_, of) = node.inputs[1], axes(node, graph)
    if w not in graph.constants:
        return False
    enough = 2 * graph.constants[w].shape[of] > dot.terms
    return not of_one_row(node, graph) and (enough or _row_words(node, dot, graph) is not None)


def of_one_row(node: Node, graph: Graph) -> bool:
    """Return whether every axis of a product's result but the columns has size 1."""
    sizes = list(graph.shape(node.outputs[0]))
    del sizes[1 if isinstance(node.attrs, Conv) and node.attrs.layout != "last" else -1]
    return all(d == const(1) for d in sizes)


def _of_rows(node: Node, graph: Graph, dot: Product) -> bool:
    """Return whether a product is a depthwise convolution that suits words across its windows' rows."""
    attrs, w = node.attrs, node.inputs[1]
    if not isinstance(attrs, Conv) or attrs.layout != "last":
        return False
    if (dot.left, dot.right, dot.terms) != (U8, I8, ROWS) or dot.clamps:
        return False
    shape = static_shape(graph.shape(w))
    if w not in graph.constants or shape is None or len(shape) != 4 or attrs.groups == 1:
        return False
    rows, taps = attrs.kernel[0], math.prod(attrs.kernel)
    return shape[:2] == (attrs.groups, 1) and rows >= FEWEST_ROWS and taps <= MOST_TAPS


def _row_words(node: Node, dot: Product, graph: Graph) -> tuple[Array, int] | None:
    """Return the weights of a convolution of few channels as words across pixels, and the padded channels of
    a pixel.

    The words cover a window's whole row, and are fewer than words of each pixel's channels. The channels are
    padded to a power of two if necessary. Return None if windows or rows would begin within words, or if the
    words aren't fewer.
    """
    (x, w), terms = node.inputs, dot.terms
    attrs, (size, channels) = node.attrs, static_shape(graph.shape(x)[-2:]) or (0, 0)
    if not isinstance(attrs, Conv) or attrs.layout != "last" or w not in graph.constants:
        return None
    taps, step, known = attrs.kernel[-1], attrs.strides[-1], np.moveaxis(graph.constants[w], 1, -1)
    for each in (channels, 1 << (channels - 1).bit_length()):
        words = -(-taps * each // terms)
        whole = size * each % terms == 0 == step * each % terms
        plain = attrs.groups == attrs.dilations[-1] == 1 and not any(attrs.pads)
        if not (whole and plain) or words >= taps * -(-channels // terms):
            continue
        across, wide = size * each // terms, step * each // terms
        if (across - words) // wide == (size - taps) // step and across >= words:
            filled = np.zeros((*known.shape[:-1], each), known.dtype)
            filled[..., :channels] = known
            rows = filled.reshape(*known.shape[:-2], -1)
            return words_of(rows, -1, dot.right, dot.word)[:, None], each
    return None
