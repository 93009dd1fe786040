"""Channels-last (NHWC) copies of a graph's values, made if a node asks for them.

A value [N, C, ...] keeps its meaning and may get a channels-last copy: the same tensor with its `channels`
axes moved to the end. These axes follow the batch axis. There is one channel axis, or more if a reshape has
split the channels (group normalization, channel shuffle).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from jangin.ir.core import CoreAttributes, Reshape, Transpose
from jangin.ir.expr import const, is_const
from jangin.ir.graph import Array, Graph, Node, Shape
from jangin.ir.sources import Sources
from jangin.ops.editor import Editor
from jangin.targets.target import Target


def to_last(rank: int, channels: int = 1) -> tuple[int, ...]:
    """Return the permutation that moves axes 1..channels to the end."""
    return (0, *range(channels + 1, rank), *range(1, channels + 1))


def inverse(perm: Sequence[int]) -> tuple[int, ...]:
    return tuple(perm.index(i) for i in range(len(perm)))


def permuted(items: Sequence[Any], perm: Sequence[int]) -> tuple[Any, ...]:
    return tuple(items[p] for p in perm)


def moves_nothing(shape: Shape, perm: Sequence[int]) -> bool:
    """Return whether a transpose only moves axes of size 1, so that the bytes stay in place."""
    real = [p for p in perm if not is_const(shape[p], 1)]
    return real == sorted(real)


class ChannelsLast(Editor):
    """One rewriting of a graph.

    - `originals`: the names of the values that exist in their own axis order.
    - `copies`: the names of the channels-last copies, by value and number of channel axes.
    - `aligned`: operands rearranged to broadcast against channels-last values, by value, rank and number of
      channel axes.
    - `computed`: the values that are computed channels-last, with their number of channel axes.
    """

    def __init__(self, graph: Graph, target: Target) -> None:
        super().__init__(graph.symbols, graph.values, graph.constants)
        self.graph, self.target = graph, target
        self.users = graph.consumers()
        self.originals = {n: n for n in (*graph.inputs, *graph.constants)}
        self.copies: dict[tuple[str, int], str] = {}
        self.aligned: dict[tuple[str, int, int], str] = {}
        self.computed: dict[str, int] = {}

    # -- values ---------------------------------------------------------------------------------

    def original(self, name: str) -> str:
        """Return the name of the value in its own axis order. It is transposed back first if it exists only
        channels-last."""
        if not name or name in self.originals:
            return self.originals.get(name, name)
        channels = self.computed[name]
        back = inverse(to_last(len(self.shape(name)), channels))
        self.move(self.copies[name, channels], self.shape(name), back, out=name)
        self.originals[name] = name
        return name

    def last(self, name: str, channels: int) -> str:
        """Return the name of the value's copy with `channels` channel axes last, which is made if it doesn't
        exist yet."""
        if (name, channels) not in self.copies:
            perm = to_last(len(self.shape(name)), channels)
            if name in self.constants:
                out = self._rearranged(name, np.transpose(self.constants[name], perm))
            else:
                out = self.move(self.original(name), permuted(self.shape(name), perm), perm, f"{name}.last")
            self.copies[name, channels] = out
        return self.copies[name, channels]

    def operand(self, name: str, rank: int, channels: int) -> str:
        """Return the name of an operand, rearranged to broadcast against the channels-last copy of a value of
        rank `rank`."""
        shape = self.shape(name)
        if len(shape) == rank and name not in self.constants:
            return self.last(name, channels)
        if all(is_const(d, 1) for d in shape):
            return self.original(name)
        key = (name, rank, channels)
        if key not in self.aligned:
            self.aligned[key] = self._align(name, rank, to_last(rank, channels))
        return self.aligned[key]

    def _align(self, name: str, rank: int, perm: Sequence[int]) -> str:
        """Return the name of the operand expanded to full rank and permuted, without the leading axes of size
        1."""
        missing = rank - len(self.shape(name))
        whole = (*(const(1),) * missing, *self.shape(name))
        lead = next(i for i, p in enumerate(perm) if not is_const(whole[p], 1))
        if name in self.constants:
            data = self.constants[name]
            moved = np.transpose(data.reshape([1] * missing + list(data.shape)), perm)
            return self._rearranged(name, moved.reshape(moved.shape[lead:]))
        source = self.original(name)
        if not moves_nothing(whole, perm):
            wide = self.move(source, whole, range(rank), f"{name}.wide")
            source = self.move(wide, permuted(whole, perm), perm, f"{name}.turned")
        return self.move(source, permuted(whole, perm)[lead:], range(rank - lead), f"{name}.last")

    def _rearranged(self, name: str, array: Array) -> str:
        return self.constant(np.ascontiguousarray(array), f"{name}.last")

    def move(self, source: str, shape: Shape, perm: Sequence[int], hint: str = "", out: str = "") -> str:
        """Emit a transpose to `shape`, or a reshape if no byte moves (then `perm` may be of any rank).

        Return the result's name. It is the value `out`, or else a new value named after the hint.
        """
        out = out or self.declare(hint, self.dtype(source), shape)
        stays = list(perm) == list(range(len(perm))) or moves_nothing(self.shape(source), perm)
        attrs = Reshape(shape) if stays else Transpose(tuple(perm))
        self.emit(Node(out, (source,), (out,), attrs, Sources.of(f"layout of {out}")))
        return out

    # -- nodes ----------------------------------------------------------------------------------

    def compute_last(self, node: Node, channels: int, inputs: Sequence[str], attrs: CoreAttributes) -> bool:
        """Compute the node's result channels-last, and return True."""
        name = node.outputs[0]
        shape = permuted(self.shape(name), to_last(len(self.shape(name)), channels))
        known = self.dtype(name), shape
        self.copies[name, channels] = self.add(attrs, inputs, f"{name}.last", node.source, known=known)
        self.computed[name] = channels
        return True

    def compute(self, node: Node, inputs: Sequence[str], attrs: CoreAttributes) -> bool:
        """Compute the node's result in its own axis order, perhaps from rearranged inputs, and return
        True."""
        (out,) = node.outputs
        self.emit(replace(node, inputs=tuple(inputs), attrs=attrs, name=out))
        self.originals[out] = out
        return True

    def channels(self, node: Node) -> int:
        """Return the number of channel axes of operand 0 if it is computed channels-last and has the result's
        rank; else 0."""
        name = node.inputs[0]
        fits = len(self.shape(name)) == len(self.shape(node.outputs[0]))
        return self.computed.get(name, 0) if fits else 0

    def perm(self, node: Node, channels: int) -> tuple[int, ...]:
        """Return the permutation of operand 0's axes in its channels-last copy."""
        return to_last(len(self.shape(node.inputs[0])), channels)
