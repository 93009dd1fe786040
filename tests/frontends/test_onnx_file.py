"""Large constants stay where they lie in a model's file. Everything else is as protobuf parses it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

import jangin
from jangin.frontends.onnx import file as onnx_file
from jangin.frontends.onnx.file import split
from jangin.frontends.table import load
from jangin.ir.graph import CompileError
from jangin.mapped import map_file

SMALL = 8
"""Bytes from which on these tests take a constant as large."""


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(onnx_file, "LARGE", SMALL)


def model_of(tensors: list[TensorProto]) -> onnx.ModelProto:
    """Make a model whose outputs are its constants."""
    nodes = [helper.make_node("Identity", [t.name], [f"{t.name}.out"]) for t in tensors]
    outputs = [helper.make_tensor_value_info(f"{t.name}.out", t.data_type, list(t.dims)) for t in tensors]
    return helper.make_model(helper.make_graph(nodes, "constants", [], outputs, tensors))


def tensor(number: int, kind: str, size: int) -> TensorProto:
    values = np.random.default_rng(number).integers(-4, 4, size)
    name = f"c{number}"
    if kind == "int4":
        return helper.make_tensor(name, TensorProto.INT4, [size], values)
    if kind == "fields":
        return helper.make_tensor(name, TensorProto.FLOAT, [size], values.astype(np.float32))
    return numpy_helper.from_array(values.astype(kind), name)


def delimited(number: int, content: bytes) -> bytes:
    """Return a length-delimited field of 128 to 16383 bytes, encoded as protobuf encodes it."""
    return bytes([number << 3 | 2, len(content) & 0x7F | 0x80, len(content) >> 7]) + content


KINDS = st.sampled_from(["float32", "float16", "int64", "uint8", "bool", "int4", "fields"])


@given(st.lists(st.tuples(KINDS, st.integers(0, 40)), min_size=1, max_size=6))
def test_what_is_split_off_comes_back(parts: list[tuple[str, int]]) -> None:
    proto = model_of([tensor(n, *p) for n, p in enumerate(parts)])
    data = proto.SerializeToString()
    found, whole = load(data).graph, load(proto).graph
    for name, array in whole.constants.items():
        assert found.constants[name].dtype == array.dtype
        np.testing.assert_array_equal(found.constants[name], array)
    pieces = split(memoryview(data))
    parsed = onnx.ModelProto.FromString(pieces.message)
    large = {n for n, t in enumerate(proto.graph.initializer) if len(t.raw_data) >= SMALL}
    assert set(pieces.contents) == large
    for n in large:
        parsed.graph.initializer[n].raw_data = bytes(pieces.contents[n])
    assert parsed == proto


def test_a_graph_in_two_fields() -> None:
    """Protobuf merges the two fields, and the numbers of constants go on through the second."""
    first = model_of([tensor(0, "float32", 9), tensor(1, "float32", 9)])
    second = onnx.ModelProto(graph=onnx.GraphProto(initializer=[tensor(2, "int64", 9)]))
    data = first.SerializeToString() + second.SerializeToString()
    pieces = split(memoryview(data))
    parsed = onnx.ModelProto.FromString(pieces.message)
    assert [t.name for t in parsed.graph.initializer] == ["c0", "c1", "c2"]
    assert bytes(pieces.contents[2]) == second.graph.initializer[0].raw_data


def test_contents_given_twice() -> None:
    """The later contents of a tensor count if there are two, as in protobuf."""
    once = tensor(0, "float32", 40)
    again = TensorProto(raw_data=bytes(160))
    twice = TensorProto.FromString(once.SerializeToString() + again.SerializeToString())
    proto = model_of([once])
    body = once.SerializeToString() + again.SerializeToString()
    graph = onnx.GraphProto.FromString(proto.graph.SerializeToString())
    del graph.initializer[:]
    content = graph.SerializeToString() + delimited(onnx_file.INITIALIZER, body)
    rest = onnx.ModelProto(ir_version=proto.ir_version, opset_import=proto.opset_import)
    data = rest.SerializeToString() + delimited(onnx_file.GRAPH, content)
    np.testing.assert_array_equal(load(data).graph.constants["c0"], numpy_helper.to_array(twice))


def test_a_model_cut_short_anywhere() -> None:
    """`split` leaves a file that it can't follow to protobuf."""
    data = model_of([tensor(n, "float32", 30) for n in range(3)]).SerializeToString()
    for end in range(1, len(data)):
        pieces = split(memoryview(data[:end]))
        assert pieces.contents or pieces.message == data[:end]
        if parsed(data[:end]) is None:
            with pytest.raises(CompileError):
                load(data[:end])


def parsed(data: bytes) -> onnx.ModelProto | None:
    try:
        return onnx.ModelProto.FromString(data)
    except Exception:  # protobuf's DecodeError; the class depends on its implementation
        return None


@given(st.binary(max_size=60), st.sampled_from([b"", b"\x3a", b"\x3a\x20", b"\x3a\x20\x2a\x1c"]))
def test_bytes_that_are_no_model(data: bytes, start: bytes) -> None:
    pieces = split(memoryview(start + data))
    if not pieces.contents:
        assert parsed(pieces.message) == parsed(start + data)


def test_what_was_compiled_needs_no_file(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    weights = np.random.default_rng(0).standard_normal((24, 40)).astype(np.float32)
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["y"]),
        helper.make_node("Gather", ["w", "i"], ["row"], axis=0),
    ]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [3, 24])
    i = helper.make_tensor_value_info("i", TensorProto.INT64, [2])
    ends = [helper.make_tensor_value_info(n, TensorProto.FLOAT, None) for n in ("y", "row", "w")]
    graph = helper.make_graph(nodes, "g", [x, i], ends, [numpy_helper.from_array(weights, "w")])
    onnx.save(helper.make_model(graph), path)
    exe = jangin.compile(path, cache=False)
    path.write_bytes(b"")
    a = np.ones((3, 24), np.float32)
    y, row, w = exe(a, np.array([5, 23]))
    np.testing.assert_allclose(y, a.astype(np.float64) @ weights, rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(row, weights[[5, 23]])
    np.testing.assert_array_equal(w, weights)


def test_an_empty_file(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(b"")
    assert map_file(path) == b""
    with pytest.raises(CompileError, match="is empty"):
        load(path)
