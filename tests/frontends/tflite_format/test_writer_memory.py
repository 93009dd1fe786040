"""Measures the memory that writing a TFLite file takes beside the weights."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

pytest.importorskip("tflite", reason="the package tflite isn't installed: the extra `tflite` brings it")

import flatbuffers

import jangin
from jangin import cli
from jangin.compiler.cases import imported
from jangin.frontends.lower import lower
from jangin.frontends.tflite.file import File
from jangin.frontends.tflite.writer import check, written
from jangin.ir.graph import CompileError, Graph
from jangin.options import Options

SIZE = 1024
WEIGHTS = 2 * SIZE * SIZE * 4
MOST = 4.5
"""The most memory, as a multiple of the weights: the turned matrices, the builder, one turned constant as
bytes, and the file."""


def products() -> bytes:
    rng = np.random.default_rng(0)
    nodes = [helper.make_node("MatMul", ["x", "a"], ["h"]), helper.make_node("MatMul", ["h", "b"], ["y"])]
    ends = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [1, SIZE]) for n in "xy"]
    weights = [numpy_helper.from_array(rng.random((SIZE, SIZE), np.float32), n) for n in "ab"]
    graph = helper.make_graph(nodes, "products", ends[:1], ends[1:], weights)
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return bytes(made.SerializeToString())


def lowered() -> Graph:
    return lower(imported(products(), Options(threads=1)))


def test_a_file_takes_few_times_its_weights() -> None:
    """The writer once took 8 times the weights' memory, for constants as keys and three copies of the
    file."""
    graph = lowered()
    written(graph)  # the first call imports modules
    tracemalloc.start()
    try:
        assert len(written(graph)) > WEIGHTS
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.reset_peak()
        before = tracemalloc.get_traced_memory()[0]
        check(graph)
        looked = tracemalloc.get_traced_memory()[1] - before
    finally:
        tracemalloc.stop()
    assert peak < MOST * WEIGHTS, f"{peak / WEIGHTS:.2f} times the weights"
    assert looked < 2 * WEIGHTS, f"{looked / WEIGHTS:.2f} times the weights"


def test_the_builder_has_room_for_all_that_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    """The builder's buffer has room for everything from the start. The scales of many channels once made it
    double."""
    data = np.random.default_rng(0).random((2, 1, SIZE), np.float32)
    made = jangin.quantize(products(), list(data), threads=1)

    builders = []

    class Told(flatbuffers.Builder):  # type: ignore[misc, unused-ignore]
        def __init__(self, size: int) -> None:
            super().__init__(size)
            builders.append((self, size))

    monkeypatch.setattr(flatbuffers, "Builder", Told)
    assert len(made.tflite()) > WEIGHTS / 4
    ((builder, size),) = builders
    assert len(builder.Bytes) == size


def test_quantize_looks_before_it_measures_and_writes_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`jangin quantize` checks that a model can be written before it measures, without writing the floats."""
    onnx.save(onnx.load_from_string(products()), tmp_path / "model.onnx")
    np.save(tmp_path / "data.npy", np.random.default_rng(0).random((1, SIZE), np.float32))
    files, write = [], File.data

    def counted(self: File, *given: object) -> bytes:
        files.append(self)
        return write(self, *given)  # type: ignore[arg-type]

    monkeypatch.setattr(File, "data", counted)
    words = [
        "quantize",
        tmp_path / "model.onnx",
        "--data",
        tmp_path / "data.npy",
        "-o",
        tmp_path / "q.tflite",
    ]
    cli.app(list(map(str, words)), standalone_mode=False)
    assert len(files) == 1 and (tmp_path / "q.tflite").stat().st_size < WEIGHTS / 2


def test_looking_says_what_writing_would() -> None:
    model = onnx.load_from_string(products())
    for end in (*model.graph.input, *model.graph.output):
        end.type.tensor_type.shape.dim[0].dim_param = "rows"
    graph = lower(imported(bytes(model.SerializeToString()), Options(threads=1)))
    said = []
    for work in (check, written):
        with pytest.raises(CompileError) as refused:
            work(graph)
        said.append(str(refused.value))
    assert said[0] == said[1] and "rows" in said[0]
