"""The operators of ggml that LLaMA-like networks need, as a dialect."""

from __future__ import annotations

from collections.abc import Mapping

from jangin.frontends.dialect import Bodies, Dialect, Inputs, Lowering
from jangin.frontends.gguf import blocks
from jangin.ir.dtype import F32, I64
from jangin.ir.expr import const
from jangin.ir.graph import CompileError, ImportedAttributes, Node
from jangin.ops.activation import swish
from jangin.ops.attention import (
    Kept,
    Window,
    attend_one,
    attention,
    join_heads,
    keep,
    rotary_embedding,
    split_heads,
    unkept,
)
from jangin.ops.builder import Builder
from jangin.ops.normalize import rms_norm
from jangin.ops.values import Tensor


def _tensors(inputs: Inputs) -> list[Tensor]:
    return [x for x in inputs if isinstance(x, Tensor)]


def get_rows(b: Builder, node: Node, inputs: Inputs, bodies: Bodies) -> Tensor:
    o = node.of(ImportedAttributes)
    table, places = _tensors(inputs)
    return blocks.rows(b, table, o["type"], o["width"], places)


def mul_mat(b: Builder, node: Node, inputs: Inputs, bodies: Bodies) -> Tensor:
    """Return x times the transpose of weights [outputs, inputs], plus a bias if there is one. With `heads`,
    the result's columns are split into heads: [1, heads, seq, size]."""
    o = node.of(ImportedAttributes)
    x, w, *bias = _tensors(inputs)
    flat = b.reshape(x, [x.shape[1], x.shape[2]])
    y = blocks.product(b, flat, w, o["type"], o["width"], o["rounded"])
    for offset in bias:
        y = b.map(lambda v, c: v + c, y, offset)
    whole = b.reshape(y, [1, *y.shape])
    return split_heads(b, whole, o["heads"]) if o["heads"] else whole


def norm(b: Builder, node: Node, inputs: Inputs, bodies: Bodies) -> Tensor:
    x, scale = _tensors(inputs)
    return rms_norm(b, x, scale, epsilon=node.of(ImportedAttributes)["epsilon"])


def rope(b: Builder, node: Node, inputs: Inputs, bodies: Bodies) -> Tensor:
    """Rotate x [1, heads, seq, size] by the tokens' positions, which begin after those in the cache."""
    x, cosines, sines, tokens, past = _tensors(inputs)
    start = past.shape[1]
    places = b.compute(I64, tokens.shape, [], lambda bufs, n, s: s + start)
    width = 2 * int(cosines.shape[1].value)  # type: ignore[attr-defined]
    halves = node.of(ImportedAttributes)["halves"]
    return rotary_embedding(b, x, cosines, sines, places, interleaved=not halves, width=width)


def attend(b: Builder, node: Node, inputs: Inputs, bodies: Bodies) -> tuple[Tensor, ...]:
    """Compute causal attention of queries [1, heads, seq, size] over the cache [1, past, heads, size] and the
    new tokens.

    The other results are the new keys and values in the cache's form, and their scales if the cache is int8.
    A single query reads the cache without copying it."""
    q, k, v, *cache = _tensors(inputs)
    keys, values = Kept(*cache[::2]), Kept(*cache[1::2])
    if q.shape[2] == const(1):
        y = attend_one(b, q, (keys, values), (k, v))
    else:
        past_key, past_value = (unkept(b, kept, F32) for kept in (keys, values))
        joined = b.concat([past_key, k], 2), b.concat([past_value, v], 2)
        y = attention(b, q, *joined, window=Window(causal=True), past=past_key.shape[2]).y
    new = [keep(b, t, node.of(ImportedAttributes)["cache"]) for t in (k, v)]
    entries = [*(t.numbers for t in new), *(t.scales for t in new if t.scales is not None)]
    return join_heads(b, y), *entries


def swiglu(b: Builder, node: Node, inputs: Inputs, bodies: Bodies) -> Tensor:
    return b.map(lambda g, u: swish(g) * u, *_tensors(inputs))


def add(b: Builder, node: Node, inputs: Inputs, bodies: Bodies) -> Tensor:
    x, y = _tensors(inputs)
    if x.shape != y.shape:
        raise CompileError(f"{x} and {y} must have the same shape")
    return b.map(lambda v, w: v + w, x, y)


def view(b: Builder, node: Node, inputs: Inputs, bodies: Bodies) -> Tensor:
    """Return the last token's row of x [1, seq, width], as [1, 1, width]."""
    (x,) = _tensors(inputs)
    return b.slice(x, [0, x.shape[1] - 1, 0], [1, 1, x.shape[2]], [1] * 3)


OPERATORS: Mapping[str, Lowering] = {
    "add": add, "flash_attn_ext": attend, "get_rows": get_rows, "mul_mat": mul_mat, "rms_norm": norm,
    "rope": rope, "swiglu": swiglu, "view": view,
}  # fmt: skip


class Ggml(Dialect):
    """The dialect of ggml's operators. A lowering is found by the operator's name ("ggml.mul_mat")."""

    domain = "ggml"

    def lowering(self, node: Node) -> Lowering | None:
        return OPERATORS.get(node.op.removeprefix("ggml."))


GGML = Ggml()
