"""Regular expressions are RE2's: they take linear time, and no other library's syntax."""

from __future__ import annotations

import sys
import time

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import jangin

pytest.importorskip("re2", reason="the extra `text`")


def matcher(pattern: str) -> onnx.ModelProto:
    node = helper.make_node("RegexFullMatch", ["x"], ["y"], pattern=pattern)
    x = helper.make_tensor_value_info("x", TensorProto.STRING, ["n"])
    graph = helper.make_graph([node], "g", [x], [helper.make_tensor_value_info("y", TensorProto.BOOL, ["n"])])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 22)])


def matches(pattern: str, *texts: str) -> list[bool]:
    found = jangin.compile(matcher(pattern), cache=False, isolated=False)(np.array(texts, object))
    return [bool(b) for b in found]


def test_what_would_never_end() -> None:
    start = time.perf_counter()
    assert matches("(a+)+$", "a" * 40 + "b", "a" * 40) == [False, True]
    assert matches("(x+x+)+y", "x" * 5000, "xxy") == [False, True]
    assert time.perf_counter() - start < 20  # Python's own engine would take 2 ** 40 steps


def test_syntax_and_text() -> None:
    assert matches(r"www\.[\w.-]+\.\bcom\b", "www.google.com", "www.google.org") == [True, False]
    assert matches("(?P<word>장인)+", "장인", "장인장인", "장") == [True, True, False]
    assert matches("", "", "a") == [True, False]
    for pattern in ("(", r"(a)\1", "(?=a)"):
        with pytest.raises(ValueError, match="is no regular expression of RE2"):
            matches(pattern, "a")


def test_without_re2(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "re2", None)
    with pytest.raises(ValueError, match=r"pip install 'jangin\[text\]'"):
        matches("a", "a")
