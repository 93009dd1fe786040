"""Lower operators on text, which the host computes, and hashes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from jangin.frontends.registry import lowers
from jangin.frontends.tflite.operators.common import Call
from jangin.ir.dtype import F64, I32, I64, STRING, U32, U64
from jangin.ir.expr import Buffer, Expr, binary, cast, const
from jangin.ir.graph import CompileError
from jangin.ir.types import tensor_type
from jangin.ops.axes import product
from jangin.ops.elementwise import bitcast
from jangin.ops.nontensor import Item, NonTensor, host, type_of
from jangin.ops.values import Tensor


@lowers("HASHTABLE_FIND")
def find(call: Call) -> Item:
    """Return the value of each key in a constant table, or the table's default for unknown keys."""
    x = call.inputs[0]
    assert x is not None
    keys, values, default = (call.options[n] for n in ("keys", "values", "default"))
    text = isinstance(default, str)
    result = tensor_type(STRING if text else I64, type_of(x).shape)
    attrs = {"keys": keys, "values": values, "default": default, "dtype": "object" if text else "int64"}
    (item,) = host(call.b, "LabelEncoder", [x], [result], attrs)
    return item  # type: ignore[no-any-return]


@lowers("HASHTABLE_SIZE")
def size(call: Call) -> Tensor:
    return call.b.const(np.array([len(call.options["keys"])], np.int64))


@lowers("SKIP_GRAM")
def skip_gram(call: Call) -> Item:
    """Return groups of `ngram_size` words of a text. At most `max_skip_size` words are left out between two
    neighbours in a group."""
    o = call.options
    attrs = {"size": o["ngram_size"], "skips": o["max_skip_size"], "shorter": bool(o["include_all_ngrams"])}
    x = call.inputs[0]
    if not isinstance(x, NonTensor):
        raise CompileError("SKIP_GRAM takes text")
    (groups,) = host(call.b, "SkipGram", [x], [tensor_type(STRING, (call.b.symbol(),))], attrs)
    return groups  # type: ignore[no-any-return]


# -- hashes --------------------------------------------------------------------------------------

PRIME = 0x9AE16A3B2F90404F
DENSE = 2
"""FarmHash's constant k2, and TFLite's number of the type of projection that gives one bit an element."""


def _u64(value: int) -> Expr:
    return const(value % (1 << 64), U64)


def _turned(v: Expr, bits: int) -> Expr:
    return binary("or", binary("shr", v, _u64(bits)), binary("shl", v, _u64(64 - bits)))


def _mixed(v: Expr) -> Expr:
    return binary("xor", v, binary("shr", v, _u64(47)))


def fingerprint(first: Expr, last: Expr, length: int) -> Expr:
    """Return FarmHash's fingerprint of 8 to 16 bytes. `first` and `last` are their first and last eight bytes
    as u64."""
    factor = _u64(PRIME + 2 * length)
    start = first + _u64(PRIME)
    c = _turned(last, 37) * factor + start
    d = (_turned(start, 25) + last) * factor
    inner = _mixed(binary("xor", c, d) * factor)
    return _mixed(binary("xor", d, inner) * factor) * factor


@lowers("LSH_PROJECTION")
def lsh_projection(call: Call) -> Tensor:
    """Return bits [functions * bits]. With a sparse type, return a number of `bits` bits for each function.

    A bit tells if the weighted sum of the hashes of the rows of x is positive. The hashed bytes begin with a
    seed, and seeds are [functions, bits]."""
    b, seeds, x = call.b, call.x(), call.x(1)
    (functions, bits), each = seeds.shape, x.dtype.bytes
    if (x.rank > 1 and product(x.shape[1:]) != const(1)) or each not in (4, 8):
        raise CompileError(f"hashes are supported for rows of 4 or 8 bytes only, not for {x}")
    rows = b.reshape(x, [x.shape[0]])
    words = bitcast(b, rows, U64 if each == 8 else U32)
    starts = bitcast(b, b.reshape(seeds, [functions * bits, 1]), U32)

    def hashed(seed: Expr, word: Expr) -> Expr:
        last = cast(U64, word)
        first = binary("or", cast(U64, seed), binary("shl", last, _u64(32)))
        return cast(F64, cast(I64, fingerprint(first, last if each == 8 else first, 4 + each)))

    hashes, weights = b.map(hashed, starts, words), call.optional(2)
    if weights is not None:
        hashes = b.map(lambda v, w: v * cast(F64, w), hashes, weights)
    flags = b.map(lambda v: cast(I32, v > 0.0), b.reduce("sum", hashes, [1]))
    if call.options["type"] == DENSE:
        return flags
    apart = b.reshape(flags, [functions, bits])

    def joined(bufs: Sequence[Buffer], index: Sequence[Expr], k: Sequence[Expr]) -> Expr:
        return binary("shl", bufs[0][index[0], k[0]], cast(I32, bits - 1 - k[0]))

    numbers = b.reduction(I32, [functions], [bits], "sum", [apart], joined)
    step = binary("shl", const(1, I32), cast(I32, bits))
    return b.compute(I32, [functions], [numbers], lambda bufs, i: bufs[0][i] + cast(I32, i) * step)
