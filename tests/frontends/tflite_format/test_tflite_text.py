"""TFLite's hash tables, n-grams and string hashes against LiteRT."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import jangin

tflite = pytest.importorskip(
    "tflite", reason="the package tflite isn't installed: the extra `tflite` brings it"
)
pytest.importorskip("ai_edge_litert.interpreter", reason="ai-edge-litert, the reference, isn't installed")

from files import Operator, SubGraph, Tensor, written  # noqa: E402
from test_tflite import reference  # noqa: E402

WORDS = [b"one", b"", "dre\u00ed".encode(), b"four", b"one", b"\xff\x00"]
HANDLE = Tensor([1], "resource")


def decoded(texts: Any) -> list[Any]:
    return [t.decode(errors="surrogateescape") if isinstance(t, bytes) else t for t in texts.reshape(-1)]


def model(text_in: bool, filled: Any = WORDS) -> bytes:
    """Make a model of a hash table: its values at [2, 4] keys, and its size. CALL_ONCE fills the table."""
    key, value = ("string", "int64") if text_in else ("int64", "string")
    kinds = {n: getattr(tflite.TensorType, n.upper()) for n in ("string", "int64")}
    options = {"TableId": 7, "KeyDtype": kinds[key], "ValueDtype": kinds[value]}
    made = Operator("HASHTABLE", [], [0], "HashtableOptions", options, 1)
    texts, numbers = Tensor([6], "string", data=filled), Tensor([6], "int64", data=np.arange(3, 9))
    pair = [texts, numbers] if text_in else [numbers, texts]
    fill = Operator("HASHTABLE_IMPORT", [0, 1, 2], [], "HashtableImportOptions", {}, 1)
    first = SubGraph([HANDLE, *pair], [made, fill], [], [])
    default = Tensor([1], value, data=[b"none"] if value == "string" else np.array([-1]))
    operators = [
        Operator("CALL_ONCE", [], [], "CallOnceOptions", {"InitSubgraphIndex": 1}, 1), made,
        Operator("HASHTABLE_FIND", [0, 1, 2], [3], "HashtableFindOptions", {}, 1),
        Operator("HASHTABLE_SIZE", [0], [4], "HashtableSizeOptions", {}, 1),
    ]  # fmt: skip
    tensors = [HANDLE, Tensor([2, 4], key), default, Tensor([2, 4], value), Tensor([1], "int64")]
    return written(tensors, operators, [1], [3, 4], first)


@pytest.mark.parametrize("text_in", [True, False])
def test_tables(text_in: bool) -> None:
    """The first of equal keys counts. Missing keys give the default value."""
    data = model(text_in)
    if text_in:
        given = np.array([*WORDS[:3], WORDS[5], WORDS[4], b"five", b"ONE", b"four"], object).reshape(2, 4)
        own = np.array(decoded(given), object).reshape(2, 4)
    else:
        given = own = np.arange(8).reshape(2, 4)
    want = reference(data, [given], "BUILTIN")  # the reference kernels lack tables
    exe = jangin.compile(data, threads=1, cache=False)
    for _ in range(2):
        found, size = exe(own)
        assert decoded(found) == decoded(want[0]) and found.shape == (2, 4)
        assert size == want[1] == (5 if text_in else 6)


def test_text_that_is_none() -> None:
    data = bytearray(model(True))
    at = bytes(data).index(np.array([6, 32], np.int32).tobytes())
    data[at + 8 : at + 12] = np.int32(10**6).tobytes()
    with pytest.raises(jangin.CompileError, match="should hold 6 texts"):
        jangin.compile(bytes(data), cache=False)


@pytest.mark.parametrize("text", ["a b  c d e", " a b c", "ab", "", "a\tbc\nd e f g", "x y "])
@pytest.mark.parametrize(("size", "skips", "shorter"), [(2, 0, False), (3, 2, True), (1, 0, False)])
def test_groups_of_words(text: str, size: int, skips: int, shorter: bool) -> None:
    options = {"NgramSize": size, "MaxSkipSize": skips, "IncludeAllNgrams": shorter}
    operator = Operator("SKIP_GRAM", [0], [1], "SkipGramOptions", options, 1)
    data = written([Tensor([1], "string"), Tensor([0], "string")], [operator], [0], [1])
    want = reference(data, [np.array([text.encode()], object)])[0]
    found = jangin.compile(data, threads=1, cache=False)(np.array([text], object))
    assert decoded(np.asarray(found)) == decoded(np.asarray(want))


@pytest.mark.parametrize("kind", ["int32", "int64", "float32"])
@pytest.mark.parametrize(("sparse", "weighted"), [(True, False), (False, True)])
def test_hashes(kind: str, sparse: bool, weighted: bool) -> None:
    random = np.random.default_rng(2)
    seeds = Tensor([5, 4], data=random.standard_normal((5, 4)))
    size = [5] if sparse else [20]
    tensors = [seeds, Tensor([9], kind), *([Tensor([9])] if weighted else []), Tensor(size, "int32")]
    last = len(tensors) - 1
    options = {"Type": 1 if sparse else 2}
    operator = Operator("LSH_PROJECTION", list(range(last)), [last], "LSHProjectionOptions", options, 1)
    given = list(range(1, last))
    data = written(tensors, [operator], given, [last])
    exe = jangin.compile(data, threads=1, cache=False)
    for _ in range(5):
        feeds = [(random.standard_normal(9) * 1000).astype(kind)]
        feeds += [random.standard_normal(9).astype(np.float32)] * weighted
        np.testing.assert_array_equal(exe(*feeds), reference(data, feeds)[0])
