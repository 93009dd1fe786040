"""Indices that only a run knows, in the formats other than ONNX. If the format has no place for an index, the
run fails, and the error names the layer.

PyTorch, TensorFlow Lite, Caffe and GGUF have no place for negative indices, except for indexing by tensors in
PyTorch. NNEF's and Core ML's count from the end, as in ONNX."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper

import jangin
from jangin import IndexOutOfRange

for folder in ("frontends/tflite_format", "frontends/caffe_format", "models"):
    sys.path.insert(0, str(Path(__file__).parents[1] / folder))

Array = np.ndarray[Any, Any]
Case = tuple[Any, Mapping[str, Array], str]
"""A model, its inputs, and the name of the input that holds indices."""
TABLE = np.arange(12, dtype=np.float32).reshape(4, 3)
GOOD = np.array([3, 0], np.int32)


def tflite(
    name: str, shape: tuple[int, ...], options: Mapping[str, Any] = {}, *, first: bool = False
) -> Callable[[Path], Case]:
    """Return a maker of a file with one operator of a table and indices of a shape. `first` says that the
    indices are its first input."""

    def make(folder: Path) -> Case:
        pytest.importorskip("tflite", reason="tflite isn't installed: the extra `tflite` brings it")
        from files import Operator, Tensor, written

        title = name.title().replace("_", "")
        tensors = [Tensor([4, 3]), Tensor(shape, "int32"), Tensor([2, 3])]
        operator = Operator(name, [1, 0] if first else [0, 1], [2], f"{title}Options", options)
        if name == "EMBEDDING_LOOKUP":
            operator = Operator(name, [1, 0], [2])
        return written(tensors, [operator], [0, 1], [2]), {"t0": TABLE, "t1": GOOD.reshape(shape)}, "t1"

    return make


def tflite_written(name: str) -> Callable[[Path], Case]:
    """Return a maker of a file that writes two numbers at indices into a vector of 4."""

    def make(folder: Path) -> Case:
        pytest.importorskip("tflite", reason="tflite isn't installed: the extra `tflite` brings it")
        from files import Operator, Tensor, written

        tensors = [
            Tensor([2, 1], "int32"), Tensor([2]), Tensor([1], "int32", data=[4]), Tensor([], data=7.0),
            Tensor([4]),
        ]  # fmt: skip
        inputs = [0, 1, 2] if name == "SCATTER_ND" else [0, 2, 1, 3]
        table = "ScatterNdOptions" if name == "SCATTER_ND" else "SparseToDenseOptions"
        model = written(tensors, [Operator(name, inputs, [4], table)], [0, 1], [4])
        return model, {"t0": GOOD.reshape(2, 1), "t1": TABLE[0, :2]}, "t0"

    return make


def tflite_sparse(folder: Path) -> Case:
    pytest.importorskip("tflite", reason="tflite isn't installed: the extra `tflite` brings it")
    from files import Operator, Tensor, written

    tensors = [
        Tensor([2], "int32"), Tensor([2, 2], "int32", data=[0, 0, 1, 0]), Tensor([2], "int32", data=[2, 2]),
        Tensor([2], data=[1, 1]), Tensor([4, 3]), Tensor([2, 3]),
    ]  # fmt: skip
    sums = {"Combiner": 0}
    operator = Operator("EMBEDDING_LOOKUP_SPARSE", [0, 1, 2, 3, 4], [5], "EmbeddingLookupSparseOptions", sums)
    return written(tensors, [operator], [0, 4], [5]), {"t0": GOOD, "t4": TABLE}, "t0"


def torch(call: Callable[..., Any]) -> Callable[[Path], Case]:
    """Return a maker of a program that calls a function of a table and indices."""

    def make(folder: Path) -> Case:
        api = pytest.importorskip("torch", reason="PyTorch isn't installed: the extra `torch` brings it")

        class Module(api.nn.Module):  # type: ignore[misc, name-defined]
            def forward(self, table: Any, i: Any) -> Any:
                return call(api, table, i)

        feeds = {"table": TABLE, "i": GOOD.astype(np.int64)}
        return api.export.export(Module(), tuple(map(api.tensor, feeds.values()))), feeds, "i"

    return make


def gguf(kind: str) -> Callable[[Path], Case]:
    """Return a maker of a network whose table of 40 tokens has weights of a type."""

    def make(folder: Path) -> Case:
        api = pytest.importorskip("gguf", reason="gguf isn't installed: the extra `gguf` brings it")
        from gguf_files import VOCABULARY, write

        path = write(folder / "m.gguf", kind=getattr(api.GGMLQuantizationType, kind))
        assert VOCABULARY == 40
        empty = np.zeros((1, 0, 2, 16), np.float32)
        caches = {f"past_{part}.{n}": empty for part in ("key", "value") for n in range(2)}
        return path, {"tokens": np.array([[39, 0]]), **caches}, "tokens"

    return make


def caffe(folder: Path) -> Case:
    from test_caffe import layer, write

    text = 'input: "i"\ninput_shape { dim: 2 }\n'
    text += layer("Embed", "embed_param { input_dim: 4 num_output: 3 bias_term: false }", "i")
    return write(folder, text, {"l": [(4, 3)]}), {"i": GOOD.astype(np.float32)}, "i"


def embeddings(folder: Path) -> Case:
    """ONNX Runtime's sum of embeddings refuses negative indices, unlike ONNX's Gather."""
    names = ["i", "", "table", "table", "", "scale", "scale"]
    node = helper.make_node("EmbedLayerNormalization", names, ["y", "mask"], "l", domain="com.microsoft")
    kinds = {
        "i": (TensorProto.INT32, [1, 2]),
        "table": (TensorProto.FLOAT, [4, 3]),
        "scale": (TensorProto.FLOAT, [3]),
    }
    inputs = [helper.make_tensor_value_info(n, *kind) for n, kind in kinds.items()]
    graph = helper.make_graph([node], "g", inputs, [helper.make_tensor_value_info("y", 1, [1, 2, 3])])
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    feeds = {"i": GOOD.reshape(1, 2), "table": TABLE, "scale": TABLE[1]}
    return helper.make_model(graph, opset_imports=opsets), feeds, "i"


CASES: dict[str, tuple[Callable[[Path], Case], int]] = {
    "GATHER": (tflite("GATHER", (2,), {"Axis": 0}), 4),
    "GATHER_ND": (tflite("GATHER_ND", (2, 1)), 4),
    "EMBEDDING_LOOKUP": (tflite("EMBEDDING_LOOKUP", (2,), first=True), 4),
    "EMBEDDING_LOOKUP_SPARSE": (tflite_sparse, 4),
    "SCATTER_ND": (tflite_written("SCATTER_ND"), 4),
    "SPARSE_TO_DENSE": (tflite_written("SPARSE_TO_DENSE"), 4),
    "aten.embedding": (torch(lambda t, w, i: t.nn.functional.embedding(i, w)), 4),
    "aten.index_select": (torch(lambda t, w, i: w.index_select(0, i)), 4),
    "aten.gather": (torch(lambda t, w, i: w.gather(0, i[None])), 4),
    "aten.scatter": (torch(lambda t, w, i: w.scatter(0, i[None], 5.0)), 4),
    "get_rows 'token_embd'": (gguf("Q8_0"), 40),
    "Embed": (caffe, 4),
    "EmbedLayerNormalization": (embeddings, 4),
}


def several(results: Any) -> list[Array]:
    """Return one or several results, of NumPy or PyTorch, as arrays."""
    return [np.asarray(r) for r in (results if isinstance(results, (tuple, list)) else [results])]


@pytest.mark.parametrize("name", CASES)
def test_indices_that_a_format_has_no_place_for(name: str, tmp_path: Path) -> None:
    make, size = CASES[name]
    model, feeds, where = make(tmp_path)
    exe = jangin.compile(model, threads=1, cache=False, isolated=False)
    right = exe(*feeds.values())
    for bad in (-1, size):
        wrong = feeds[where].copy()
        wrong.reshape(-1)[1] = bad
        with pytest.raises(
            IndexOutOfRange, match=f"{name}.*index {bad} is out of range, which is 0 to {size - 1}"
        ):
            exe(*{**feeds, where: wrong}.values())
    for value, again in zip(several(right), several(exe(*feeds.values())), strict=True):
        np.testing.assert_array_equal(value, again)


def test_indexing_by_tensors_counts_from_the_end() -> None:
    model, *_ = torch(lambda t, w, i: w[i])(Path())
    exe = jangin.compile(model, threads=1, cache=False, isolated=False)
    np.testing.assert_array_equal(exe(TABLE, np.array([-1, -4])), TABLE[[3, 0]])
    with pytest.raises(IndexOutOfRange, match="index -5 is out of range, which is -4 to 3"):
        exe(TABLE, np.array([0, -5]))
