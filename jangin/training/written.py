"""Models with trained weights, as files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from jangin.compiler import cases
from jangin.files import write_whole
from jangin.frontends.format import opened
from jangin.frontends.lower import lower
from jangin.frontends.onnx import writer
from jangin.frontends.onnx.format import OnnxFormat
from jangin.frontends.table import format_of
from jangin.ir.graph import Array
from jangin.options import Options

FILES = (".onnx", ".jgn")


def write_trained(model: Any, weights: Mapping[str, Array], output: Path, options: Options) -> None:
    """Write a model with other weights, as .onnx or .jgn. An ONNX model stays as it is but for the weights,
    and its sizes stay open. Raises ValueError for another ending."""
    if output.suffix not in FILES:
        raise ValueError(f"{output}: trained models are written as NAME.onnx or NAME.jgn")
    content = _onnx(model, weights, options.but(shapes={}))
    if output.suffix == ".onnx":
        write_whole(output, lambda file: file.write(content))
        return
    from jangin.compiler.driver import compile_by

    compile_by(options.but(shapes={}, weights=None), content).save(output)


def _onnx(model: Any, weights: Mapping[str, Array], options: Options) -> bytes:
    """Return the model in ONNX's format."""
    imported = cases.imported(model, options)
    if isinstance(format_of(opened(model)), OnnxFormat):
        import onnx
        from onnx import numpy_helper

        proto = onnx.load(model) if isinstance(model, (str, Path)) else onnx.load_from_string(bytes(model))
        places = {t.name: t for t in proto.graph.initializer}
        if weights.keys() <= places.keys():
            for name, array in weights.items():
                places[name].CopyFrom(numpy_helper.from_array(array, name))
            return bytes(proto.SerializeToString())
    constants = {**imported.graph.constants, **weights}
    graph = lower(
        replace(imported, graph=replace(imported.graph, constants=constants)), options.lowerings, whole=True
    )
    return writer.written(graph, imported.metadata)
