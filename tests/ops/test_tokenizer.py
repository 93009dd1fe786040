"""ONNX Runtime's Tokenizer and the text operators of scikit-learn's exporters give ONNX Runtime's results."""

from __future__ import annotations

import json
from random import Random
from typing import Any

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto, helper

import jangin

pytest.importorskip("re2", reason="the extra `text`")

PATTERNS = ("a", "b|bx", "q*", "[ ,]+", ",", r"\w+", r"\b\w+\b", "^a", "x$", "(a)(b)?", ".", "a*", "장", "$")
DOMAINS = {"": 15, "com.microsoft": 1, "ai.onnx.ml": 3}


def model(node: Any, kind: int, shape: list[Any]) -> bytes:
    x, y = helper.make_tensor_value_info("x", kind, shape), helper.make_empty_tensor_value_info("y")
    graph = helper.make_graph([node], "g", [x], [y])
    opsets = [helper.make_opsetid(*pair) for pair in DOMAINS.items()]
    whole: bytes = helper.make_model(graph, opset_imports=opsets, ir_version=8).SerializeToString()
    return whole


def session(made: bytes) -> onnxruntime.InferenceSession:
    return onnxruntime.InferenceSession(made, providers=["CPUExecutionProvider"])


def settings(r: Random) -> dict[str, Any]:
    """Draw the attributes of a node, with any kind of separators, or with an expression."""
    kind = r.choice(("characters", "separators", "separators", "expression"))
    aims: dict[str, Any] = {"separators": [""]} if kind == "characters" else {"tokenexp": r.choice(PATTERNS)}
    if kind == "separators":
        aims = {"separators": r.sample(PATTERNS, r.choice((1, 1, 2)))}
    shortest = 1 if kind == "characters" or aims.get("tokenexp") == "." else r.choice((1, 1, 2, 3))
    return {"mark": r.randrange(2), "pad_value": r.choice(("#", "")), "mincharnum": shortest, **aims}


def test_tokenizers() -> None:
    for seed in range(40):
        r = Random(seed)
        attrs = settings(r)
        rank = r.choice((1, 2))
        texts = ["".join(r.choice("ab ,.é장x\n") for _ in range(r.randrange(9))) for _ in range(4)]
        x = np.array(texts, object).reshape((4,) if rank == 1 else (2, 2))
        node = helper.make_node("Tokenizer", ["x"], ["y"], domain="com.microsoft", **attrs)
        made = model(node, TensorProto.STRING, ["n", 2][:rank])
        (want,) = session(made).run(None, {"x": x})
        got = jangin.compile(made, cache=False, isolated=False)(x)
        assert got.tolist() == want.tolist(), f"seed {seed}: {attrs} of {x.tolist()}"


@pytest.mark.parametrize(
    ("attrs", "message"),
    [
        ({"separators": [" "], "mincharnum": 0}, "mincharnum 0 must be at least 1"),
        ({"separators": [""], "mincharnum": 2}, "1 where characters are tokens"),
        ({"mincharnum": 1}, "either separators or a tokenexp"),
        ({"mincharnum": 1, "separators": [","], "tokenexp": "a"}, "either separators or a tokenexp"),
    ],
)
def test_what_is_no_tokenizer(attrs: dict[str, Any], message: str) -> None:
    node = helper.make_node("Tokenizer", ["x"], ["y"], domain="com.microsoft", mark=0, pad_value="#", **attrs)
    with pytest.raises(jangin.CompileError, match=message):
        jangin.compile(model(node, TensorProto.STRING, ["n"]), cache=False, isolated=False)


@pytest.mark.parametrize("lowercase", [False, True])
@pytest.mark.parametrize("name", ["CountVectorizer", "TfidfVectorizer"])
def test_text_vectorizers(name: str, lowercase: bool) -> None:
    text = pytest.importorskip("sklearn.feature_extraction.text", reason="the extra `sklearn`")
    skl2onnx = pytest.importorskip("skl2onnx", reason="the extra `sklearn`")
    kinds = pytest.importorskip("skl2onnx.common.data_types", reason="the extra `sklearn`")
    docs = ["This is a test", "another test is this", "and a third one, of more words than one"]
    vectorizer = getattr(text, name)(token_pattern=r"\b\w+\b", ngram_range=(1, 2), lowercase=lowercase)
    vectorizer.fit(docs)
    made = skl2onnx.to_onnx(vectorizer, initial_types=[("x", kinds.StringTensorType([None]))])
    x = np.array(docs, object)
    got = jangin.compile(made.SerializeToString(), cache=False, isolated=False)(x)
    np.testing.assert_allclose(got, vectorizer.transform(docs).toarray(), 1e-5)
    if not lowercase:  # ONNX Runtime needs a locale for small letters, which a machine may not have
        np.testing.assert_allclose(got, session(made.SerializeToString()).run(None, {"x": x})[0], 1e-6)


@pytest.mark.parametrize("labels", [{"classlabels_int64s": [3, 5]}, {"classlabels_strings": ["no", "yes"]}])
def test_maps_are_of_python_values(labels: dict[str, Any]) -> None:
    """Maps have Python's types, as ONNX Runtime's have, so that JSON takes them."""
    node = helper.make_node("ZipMap", ["x"], ["y"], domain="ai.onnx.ml", **labels)
    made = model(node, TensorProto.FLOAT, ["n", 2])
    x = np.array([[0.1, 0.9], [0.75, 0.25]], np.float32)
    (want,) = session(made).run(None, {"x": x})
    (got,) = jangin.compile(made, cache=False, isolated=False).run({"x": x}).values()
    assert [[(type(k), k, type(v), v) for k, v in row.items()] for row in got] == [
        [(type(k), k, type(v), v) for k, v in row.items()] for row in want
    ]
    assert json.loads(json.dumps(got))
