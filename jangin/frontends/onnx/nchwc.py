"""Find the number of channels in a block in a file that ONNX Runtime optimized for one processor.

The file doesn't contain the number. It is 16 if the processor had AVX-512 or was Arm's, else 8. The padding
of the weights often tells which."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from jangin.ir.graph import CompileError, Graph, ImportedAttributes, Node

DOMAIN = "com.microsoft.nchwc"
BLOCKS = (8, 16)
"""The possible numbers of channels in a block. ONNX Runtime takes 16 for AVX-512 and for Arm, and 8 for other
processors."""
IN_BLOCKS = ("Conv", "ReorderInput")
"""Operators whose lowering needs to know the number of channels in a block."""


class UnknownBlock(CompileError):
    """The number of channels in a block doesn't follow from the file."""


def with_blocks(graph: Graph, given: int = 0) -> Graph:
    """Return the graph, with the attribute `block` added to the operators that need it.

    `given` is the number of channels in a block, or 0 if the caller doesn't know it. Raises UnknownBlock, a
    CompileError, if the file doesn't tell the number either."""
    names = [f"{DOMAIN}.{n}" for n in IN_BLOCKS]
    nodes = [n for n in graph.nodes if n.op in names]
    if not nodes:
        return graph
    block = given or _block(graph, [n for n in nodes if n.op == names[0]])
    return replace(graph, nodes=tuple(_with(n, block) if n.op in names else n for n in graph.nodes))


def _with(node: Node, block: int) -> Node:
    attrs = node.of(ImportedAttributes)
    return replace(node, attrs=ImportedAttributes(attrs.op, {**attrs, "block": block}))


def _block(graph: Graph, convolutions: list[Node]) -> int:
    left = {block for block in BLOCKS if all(fits for fits in _fits(graph, convolutions, block))}
    if len(left) == 1:
        return left.pop()
    raise UnknownBlock(
        "ONNX Runtime optimized this file for one processor, and nothing in it tells whether channels lie in "
        "blocks of 8 or of 16: give formats=[OnnxFormat(block=16)] if that had AVX-512 or was Arm's, else "
        "block=8; or optimize the original file at its level ORT_ENABLE_EXTENDED"
    )


def _fits(graph: Graph, convolutions: list[Node], block: int) -> Iterator[bool]:
    """Yield results of tests on each convolution, which are all true if blocks may have `block` channels.

    A convolution's outputs must fill blocks, and there may be no more blocks than its kept channels need. Its
    inputs must fill blocks too, unless they are fewer than one block holds."""
    kept = _kept(graph)
    for node in convolutions:
        weights = graph.constants.get(node.inputs[1])
        if weights is None:
            continue
        outputs, inputs = weights.shape[:2]
        yield outputs % block == 0 and (inputs % block == 0 or inputs < block)
        if node.outputs[0] in kept:
            yield outputs == -(-kept[node.outputs[0]] // block) * block


def _kept(graph: Graph) -> Mapping[str, int]:
    """Return the number of channels that ReorderOutput keeps of each value in blocks, by the value's name."""
    names = f"{DOMAIN}.ReorderOutput"
    return {n.inputs[0]: n.of(ImportedAttributes)["channels"] for n in graph.nodes if n.op == names}
