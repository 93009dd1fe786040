"""Lower operators on text, and other operators that aren't compiled, to calls of host functions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from jangin.frontends.onnx.registry import Lowering, one_of, op
from jangin.frontends.onnx.types import TEXT, element_type
from jangin.ir.dtype import BOOL, F32, I64, STRING, U8, DType
from jangin.ir.expr import Buffer, Expr, const, eq
from jangin.ir.graph import Array, CompileError, Shape
from jangin.ir.traversal import row_major
from jangin.ir.types import Type, sequence_of, tensor_type
from jangin.ops.axes import product
from jangin.ops.builder import Builder
from jangin.ops.nontensor import Item, NonTensor, host, type_of
from jangin.ops.operands import broadcast
from jangin.ops.values import Tensor


def _shape(x: Item) -> Shape | None:
    return type_of(x).shape


def _joint(x: Item, y: Item) -> Shape | None:
    a, b = _shape(x), _shape(y)
    return None if a is None or b is None else broadcast(a, b)


@op("StringConcat", since=20)
def string_concat(b: Builder, x: Item, y: Item) -> Item:
    return one(b, "StringConcat", [x, y], tensor_type(STRING, _joint(x, y)))


def one(b: Builder, function: str, inputs: Sequence[Item | None], result: Type, **attrs: Any) -> Item:
    """Add a call of a host function with one result, and return the result. `result` is its type."""
    (item,) = host(b, function, inputs, [result], attrs)
    return item  # type: ignore[no-any-return]


@op("Equal", since=19)
def equal(b: Builder, x: Item, y: Item) -> Item:
    """Return whether elements are equal. From opset 19 on, they may be text."""
    if isinstance(x, Tensor) and isinstance(y, Tensor):
        return b.map(eq, x, y)
    return one(b, "StringEqual", [x, y], tensor_type(BOOL, _joint(x, y)))


def string_cast(b: Builder, x: Item, to: int | DType) -> Item:
    """Convert elements to text, or text to numbers."""
    if to == TEXT:
        return x if isinstance(x, NonTensor) else one(b, "StringOf", [x], tensor_type(STRING, x.shape))
    dtype = element_type(to)
    return one(b, "NumberOf", [x], tensor_type(dtype, _shape(x)), dtype=dtype.numpy.name)


@op("StringSplit", since=20)
def string_split(
    b: Builder, x: Item, *, delimiter: str = "", maxsplit: int | None = None
) -> tuple[Item, ...]:
    shape = _shape(x)
    parts = None if shape is None else (*shape, b.symbol())
    types = [tensor_type(STRING, parts), tensor_type(I64, shape)]
    return host(b, "StringSplit", [x], types, {"delimiter": delimiter, "maxsplit": maxsplit})


@op("StringNormalizer", since=10)
def string_normalizer(
    b: Builder,
    x: Item,
    *,
    case_change_action: str = "NONE",
    is_case_sensitive: int = 0,
    locale: str = "",
    stopwords: Sequence[str] = (),
) -> Item:
    """Return normalized text. `locale` has no effect, because Unicode's rules for upper and lower case are
    the same in all locales."""
    one_of("case_change_action", case_change_action, ("NONE", "LOWER", "UPPER"))
    shape = _shape(x)
    result = tensor_type(STRING, None if shape is None else (*shape[:-1], b.symbol()))
    return one(
        b, "StringNormalizer", [x], result, case_change_action=case_change_action,
        is_case_sensitive=is_case_sensitive, stopwords=tuple(stopwords),
    )  # fmt: skip


@op("RegexFullMatch", since=20)
def regex_full_match(b: Builder, x: Item, *, pattern: str = "") -> Item:
    return one(b, "RegexFullMatch", [x], tensor_type(BOOL, _shape(x)), pattern=pattern)


@op("Tokenizer", domain="com.microsoft")
def tokenizer(
    b: Builder, x: Item, *, mark: int, mincharnum: int, pad_value: str, separators: Sequence[str] = (),
    tokenexp: str = "",
) -> Item:  # fmt: skip
    shape = _shape(x)
    if shape is not None and len(shape) not in (1, 2):
        raise CompileError(f"its texts are an array of 1 or 2 dimensions, not {len(shape)}")
    if bool(separators) == bool(tokenexp):
        raise CompileError("it must have either separators or a tokenexp")
    characters = list(separators) == [""] or tokenexp == "."
    if mincharnum < 1 or (mincharnum > 1 and characters):
        raise CompileError(f"mincharnum {mincharnum} must be at least 1, and 1 where characters are tokens")
    return one(
        b, "Tokenizer", [x], tensor_type(STRING, None if shape is None else (*shape, b.symbol())),
        mark=bool(mark), pad=pad_value, shortest=mincharnum,
        separators=("",) if characters else tuple(separators), expression=tokenexp,
    )  # fmt: skip


MOST_COLUMNS = 1 << 28
"""A vectorizer's result has at most this many columns. A row with so many takes 1 GiB."""


@op("TfIdfVectorizer", since=9)
def tf_idf_vectorizer(
    b: Builder, x: Item, *, mode: str, ngram_counts: Sequence[int], ngram_indexes: Sequence[int],
    min_gram_length: int, max_gram_length: int, max_skip_count: int, pool_int64s: Sequence[int] = (),
    pool_strings: Sequence[str] = (), weights: Sequence[float] = (),
) -> Item:  # fmt: skip
    one_of("mode", mode, ("TF", "IDF", "TFIDF"))
    shape = _shape(x)
    if not 0 <= min(ngram_indexes) <= max(ngram_indexes) < MOST_COLUMNS:
        raise CompileError(f"ngram_indexes must be between 0 and {MOST_COLUMNS - 1}")
    if not 1 <= min_gram_length <= max_gram_length or max_skip_count < 0:
        raise CompileError(
            f"there are no n-grams of {min_gram_length} to {max_gram_length} items, {max_skip_count} skipped"
        )
    pool = tuple(pool_strings or pool_int64s)
    if list(ngram_counts) != sorted(ngram_counts) or not all(0 <= n <= len(pool) for n in ngram_counts):
        raise CompileError(f"ngram_counts {list(ngram_counts)} don't lie in order in a pool of {len(pool)}")
    size = const(max(ngram_indexes) + 1)
    return one(
        b, "TfIdfVectorizer", [x], tensor_type(F32, None if shape is None else (*shape[:-1], size)),
        mode=mode, pool=pool, starts=tuple(ngram_counts),
        indexes=tuple(ngram_indexes), weights=tuple(weights), shortest=min_gram_length,
        longest=max_gram_length, skips=max_skip_count,
    )  # fmt: skip


def labels(
    b: Builder, x: Item, keys: Sequence[Any], values: Sequence[Any], default: Any, dtype: DType | None = None
) -> Item:
    """Return the value for each element of x, by a table of keys and values, or `default` for other elements.

    `dtype` is the type of the values if they are numbers. By default it is the standard's."""
    if len(keys) != len(values):
        raise CompileError(f"{len(keys)} keys with {len(values)} values: they don't fit")
    text = isinstance(values[0], str)
    if dtype is None:
        dtype = STRING if text else F32 if isinstance(values[0], float) else I64
    kind = "object" if text else dtype.numpy.name
    result = tensor_type(dtype, _shape(x))
    return one(
        b, "LabelEncoder", [x], result, keys=tuple(keys), values=tuple(values), default=default, dtype=kind
    )


@op("LabelEncoder", domain="ai.onnx.ml", since=1)
def label_encoder_1(
    b: Builder, x: Item, *, classes_strings: Sequence[str] = (), default_int64: int = -1,
    default_string: str = "_Unused",
) -> Item:  # fmt: skip
    """Return the numbers of texts, or the texts of numbers. A text's number is its position in
    `classes_strings`."""
    numbers = range(len(classes_strings))
    if isinstance(x, NonTensor):
        return labels(b, x, classes_strings, numbers, default_int64)
    return labels(b, x, numbers, classes_strings, default_string)


@op("ZipMap", domain="ai.onnx.ml")
def zip_map(
    b: Builder, x: Tensor, *, classlabels_int64s: Sequence[int] = (), classlabels_strings: Sequence[str] = ()
) -> Item:
    names = tuple(classlabels_strings or classlabels_int64s)
    key = STRING if classlabels_strings else I64
    return one(b, "ZipMap", [x], sequence_of(Type("map", key, None, tensor_type(F32, ()))), labels=names)


@op("CategoryMapper", domain="ai.onnx.ml")
def category_mapper(
    b: Builder, x: Item, *, cats_int64s: Sequence[int] = (), cats_strings: Sequence[str] = (),
    default_int64: int = -1, default_string: str = "_Unused",
) -> Item:  # fmt: skip
    if isinstance(x, NonTensor):
        return labels(b, x, cats_strings, cats_int64s, default_int64)
    return labels(b, x, cats_int64s, cats_strings, default_string)


@op("DictVectorizer", domain="ai.onnx.ml")
def dict_vectorizer(
    b: Builder, x: Item, *, int64_vocabulary: Sequence[int] = (), string_vocabulary: Sequence[str] = ()
) -> Item:
    keys, element = tuple(string_vocabulary or int64_vocabulary), _map_values(x)
    result = tensor_type(element, (const(len(keys)),))
    return one(b, "DictVectorizer", [x], result, keys=keys, dtype=_named(element))


@op("CastMap", domain="ai.onnx.ml")
def cast_map(
    b: Builder, x: Item, *, cast_to: str = "TO_FLOAT", map_form: str = "DENSE", max_map: int = 1
) -> Item:
    """Return a map's values as one row, as ONNX Runtime does. The standard doesn't define the row's
    length."""
    _map_values(x)
    kinds = {"TO_FLOAT": F32, "TO_INT64": I64, "TO_STRING": STRING}
    if cast_to not in kinds or map_form not in ("DENSE", "SPARSE"):
        raise CompileError(f"cast_to {cast_to!r}, map_form {map_form!r}: no such ways to cast a map")
    sparse, element = map_form == "SPARSE", kinds[cast_to]
    result = tensor_type(element, (const(1), const(max_map) if sparse else b.symbol()))
    size = max_map if sparse else None
    return one(b, "CastMap", [x], result, size=size, dtype=_named(element))


def _map_values(x: Item) -> DType:
    """Return the element type of a map's values. Raises CompileError if x isn't a map."""
    kind = type_of(x)
    if kind.kind != "map" or kind.of is None or kind.of.dtype is None:
        raise CompileError(f"its input must be a map, not {x}")
    return kind.of.dtype


def _named(dtype: DType) -> str:
    return "object" if dtype == STRING else str(dtype.numpy.name)


@op("ImageDecoder", since=20)
def image_decoder(b: Builder, encoded: Tensor, *, pixel_format: str = "RGB") -> Item:
    one_of("pixel_format", pixel_format, ("RGB", "BGR", "Grayscale"))
    channels = const(1 if pixel_format == "Grayscale" else 3)
    shape = (b.symbol(), b.symbol(), channels)
    return one(b, "ImageDecoder", [encoded], tensor_type(U8, shape), pixel_format=pixel_format)


MOVING = frozenset((
    "ArrayFeatureExtractor", "Compress", "Concat", "DepthToSpace", "Expand", "Flatten", "Gather",
    "GatherElements", "GatherND", "Reshape", "ReverseSequence", "ScatterElements", "ScatterND", "Slice",
    "SpaceToDepth", "Split", "Squeeze", "Tile", "Transpose", "Unsqueeze", "Where",
))  # fmt: skip
"""Operators whose results are elements of their inputs. The elements may be text."""
MEASURING = frozenset({"Shape", "Size"})
"""Operators that only read the sizes of their inputs."""


def is_text(x: Item | None) -> bool:
    return isinstance(x, NonTensor) and x.type.dtype == STRING and x.type.shape is not None


def moved(b: Builder, name: str, lower: Lowering, inputs: Sequence[Item | None], attrs: Any) -> list[Item]:
    """Lower an operator of `MOVING` or `MEASURING` on text. It is applied to the positions of the elements,
    by which the host then selects the texts."""
    texts = [x for x in inputs if isinstance(x, NonTensor) and is_text(x)]
    first: Expr = const(0)
    operands: list[Item | None] = []
    for x in inputs:
        if not isinstance(x, NonTensor) or x.type.shape is None:
            operands.append(x)
            continue
        operands.append(_positions(b, x.type.shape, first))
        first = first + product(x.type.shape)
    lowered = lower(b, *operands, **attrs)
    results = list(lowered) if isinstance(lowered, (tuple, list)) else [lowered]
    if name in MEASURING:
        return results
    return [one(b, "Pick", [*texts, at], tensor_type(STRING, at.shape)) for at in results]


def _positions(b: Builder, shape: Shape, first: Expr) -> Tensor:
    """Return the numbers from `first` on in a shape, in row-major order."""

    def at(bufs: Sequence[Buffer], *index: Expr) -> Expr:
        return row_major(index, shape) + first

    return b.compute(I64, shape, [], at)


def plain(array: Array) -> list[Any]:
    """Return the elements of an attribute's tensor as a list of Python values."""
    return [str(v) if isinstance(v, (str, bytes)) else v for v in np.asarray(array).reshape(-1).tolist()]
