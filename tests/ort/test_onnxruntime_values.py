"""Values of onnxruntime: tensors, sparse tensors and adapters, by the real package and by Jangin."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from both_packages import W, X, both, errors
from onnx import TensorProto, helper
from onnx.helper import make_tensor_value_info as value
from own_models import sparse_value

import jangin.onnxruntime


@both
def test_values(ort: ModuleType) -> None:
    own = X.copy()
    v = ort.OrtValue.ortvalue_from_numpy(own)
    assert (v.shape(), v.data_type(), v.element_type(), v.device_name()) == (
        [3, 2],
        "tensor(float)",
        1,
        "cpu",
    )
    assert v.is_tensor() and v.has_value() and not v.is_sparse_tensor() and not v.is_tensor_sequence()
    assert v.data_ptr() == own.ctypes.data and v.tensor_size_in_bytes() == own.nbytes
    own[0, 0] = 9
    assert v.numpy()[0, 0] == 9 and np.asarray(v)[0, 0] == 9
    v.update_inplace(X)
    np.testing.assert_array_equal(own, X)
    shared = ort.OrtValue.from_dlpack(own)
    assert shared.data_ptr() == own.ctypes.data == ort.OrtValue.from_dlpack(own.__dlpack__()).data_ptr()
    assert np.from_dlpack(v).ctypes.data == own.ctypes.data and v.__dlpack_device__() == (1, 0)
    empty = ort.OrtValue.ortvalue_from_shape_and_type([2, 3], np.int64)
    assert (empty.shape(), empty.data_type(), empty.element_type()) == ([2, 3], "tensor(int64)", 7)
    brain = ort.OrtValue.ortvalue_from_numpy_with_onnx_type(np.zeros(4, np.uint16), TensorProto.BFLOAT16)
    assert (brain.data_type(), brain.element_type()) == ("tensor(bfloat16)", 16)
    with pytest.raises(RuntimeError, match="Can't allocate memory on the device using this package"):
        ort.OrtValue.ortvalue_from_numpy(own, "cuda")
    with pytest.raises(ValueError, match=r"ortvalue|OrtValue"):
        ort.OrtValue(3)


def test_tensors_are_copied() -> None:
    """Onnxruntime refuses to copy tensors on the CPU, and Jangin copies them."""
    a, b = (jangin.onnxruntime.OrtValue.ortvalue_from_numpy(np.full(3, n)) for n in (1, 2))
    jangin.onnxruntime.copy_tensors([a], [b])
    assert b.numpy().tolist() == [1, 1, 1]


@both
def test_sparse_tensors(ort: ModuleType) -> None:
    cpu = ort.OrtDevice.make("cpu", 0)
    places, values = np.array([[0, 1], [2, 0]]), np.array([5, 6], np.float32)
    listed = ort.SparseTensor.sparse_coo_from_numpy([3, 2], values, places.reshape(-1), cpu)
    assert listed.as_coo_view().indices().tolist() == places.tolist()
    rows = ort.SparseTensor.sparse_csr_from_numpy(
        [3, 2], values, places[:, 1].copy(), np.array([0, 1, 1, 2]), cpu
    )
    assert rows.as_csrc_view().outer().tolist() == [0, 1, 1, 2]
    for tensor, view in ((rows, "as_coo_view"), (listed, "as_csrc_view"), (rows, "as_blocksparse_view")):
        with pytest.raises(RuntimeError):
            getattr(tensor, view)()
    holder = ort.OrtValue.ort_value_from_sparse_tensor(listed)
    assert holder.is_sparse_tensor() and not holder.is_tensor() and holder.as_sparse_tensor().values()[0] == 5
    assert (holder.data_type(), holder.shape()) == ("sparse_tensor(float)", [3, 2])
    with pytest.raises(RuntimeError):
        ort.OrtValue.ortvalue_from_numpy(X).as_sparse_tensor()


@both
def test_products_of_sparse_tensors(ort: ModuleType) -> None:
    node = helper.make_node("SparseToDenseMatMul", ["A", "B"], ["Y"], domain="com.microsoft", transA=1)
    inputs = [sparse_value("A", [3, 3]), value("B", TensorProto.FLOAT, [3, 4])]
    graph = helper.make_graph([node], "product", inputs, [value("Y", TensorProto.FLOAT, [3, 4])])
    imports = [helper.make_opsetid("com.microsoft", 1)]
    proto = helper.make_model(graph, opset_imports=imports, ir_version=9)
    session = ort.InferenceSession(proto.SerializeToString())
    assert session.get_inputs()[0].type == "sparse_tensor(float)"
    dense, b = np.zeros((3, 3), np.float32), np.arange(12, dtype=np.float32).reshape(3, 4)
    dense.flat[[1, 3, 5]] = 2, 3, 4
    places = np.ascontiguousarray(np.argwhere(dense))
    cpu = ort.OrtDevice.make("cpu", 0)
    a = ort.SparseTensor.sparse_coo_from_numpy([3, 3], dense[dense != 0], places, cpu)
    feeds = {"A": ort.OrtValue.ort_value_from_sparse_tensor(a), "B": ort.OrtValue.ortvalue_from_numpy(b)}
    (y,) = session.run_with_ort_values(None, feeds)
    np.testing.assert_array_equal(y.numpy(), dense.T @ b)


@pytest.mark.parametrize(
    ("places", "count"),
    [([6], 1), ([-1], 1), ([0, 1, 2], 2), ([0, 3], 1), ([0.5], 1)],
)
def test_a_sparse_tensor_is_checked(places: list[Any], count: int) -> None:
    cpu = jangin.onnxruntime.OrtDevice.make("cpu", 0)
    with pytest.raises(errors(jangin.onnxruntime).InvalidArgument):
        jangin.onnxruntime.SparseTensor.sparse_coo_from_numpy([2, 3], np.ones(count), np.array(places), cpu)
    for outer in ([0, 2, 1], [1, 1, 1], [0, 1]):
        with pytest.raises(errors(jangin.onnxruntime).InvalidArgument):
            jangin.onnxruntime.SparseTensor.sparse_csr_from_numpy(
                [2, 3], np.ones(1), np.zeros(1, int), np.array(outer), cpu
            )


TENSORS = {
    "W": np.array([7, 8], np.float32), "nothing": np.zeros((0, 3), np.float64),
    "": np.arange(3, dtype=np.int8), "scalar": np.array(3, np.int64),
    "ä": np.array([[1, 2], [3, 4]], np.int64), "truth": np.array([[True, False]]),
}  # fmt: skip


def adapter_file(ort: ModuleType, path: Path, tensors: dict[str, np.ndarray[Any, Any]]) -> str:
    adapter = ort.AdapterFormat()
    adapter.set_parameters({n: ort.OrtValue.ortvalue_from_numpy(a) for n, a in tensors.items()})
    adapter.set_adapter_version(3)
    adapter.set_model_version(-4)
    adapter.export_adapter(str(path))
    return str(path)


@pytest.mark.parametrize("writer", [onnxruntime, jangin.onnxruntime], ids=["theirs", "ours"])
@pytest.mark.parametrize("reader", [onnxruntime, jangin.onnxruntime], ids=["read by them", "read by us"])
def test_files_of_adapters(writer: ModuleType, reader: ModuleType, tmp_path: Path) -> None:
    theirs = reader is onnxruntime  # which refuses empty names, empty shapes and truth values
    tensors = {n: a for n, a in TENSORS.items() if not theirs or (n and a.ndim and a.dtype != bool)}
    read = reader.AdapterFormat.read_adapter(adapter_file(writer, tmp_path / "a", tensors))
    assert (read.get_format_version(), read.get_adapter_version(), read.get_model_version()) == (1, 3, -4)
    parameters = read.get_parameters()
    assert {*parameters} == {*tensors}
    for name, array in tensors.items():
        np.testing.assert_array_equal(parameters[name].numpy(), array, strict=True)


def test_broken_adapters_are_refused(tmp_path: Path) -> None:
    """Any byte of a file may be wrong, and the file may end early. The error then names the file."""
    data = Path(adapter_file(jangin.onnxruntime, tmp_path / "a", TENSORS)).read_bytes()
    broken = [data[:n] for n in range(0, len(data), 3)]
    broken += [data[:n] + bytes([data[n] ^ 0xFF]) + data[n + 1 :] for n in range(len(data))]
    refused = 0
    for contents in broken:
        (tmp_path / "b").write_bytes(contents)
        try:
            jangin.onnxruntime.AdapterFormat.read_adapter(tmp_path / "b")
        except errors(jangin.onnxruntime).Fail as error:
            assert str(tmp_path / "b") in str(error)
            refused += 1
    assert refused > len(broken) / 2


@both
def test_an_adapter_replaces_initializers_in_a_run(ort: ModuleType, tmp_path: Path) -> None:
    inputs = [value(n, TensorProto.FLOAT, d) for n, d in (("X", ["batch", 2]), ("W", [2]))]
    graph = helper.make_graph(
        [helper.make_node("Mul", ["X", "W"], ["Y"])], "adapted", inputs,
        [value("Y", TensorProto.FLOAT, ["batch", 2])], [onnx.numpy_helper.from_array(W, "W")],
    )  # fmt: skip
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    session, options, adapter = (
        ort.InferenceSession(proto.SerializeToString()),
        ort.RunOptions(),
        ort.LoraAdapter(),
    )
    adapter.Load(adapter_file(ort, tmp_path / "a", {"W": TENSORS["W"]}))
    options.add_active_adapter(adapter)
    np.testing.assert_array_equal(session.run(None, {"X": X}, options)[0], X * TENSORS["W"])
    np.testing.assert_array_equal(session.run(None, {"X": X})[0], X * W)


@both
def test_tensors_of_dlpack(ort: ModuleType) -> None:
    """Booleans, bytes, and tensors without elements pass through DLPack."""
    for x in (np.array([True, False]), np.array([1, 2], np.uint8), np.zeros((1, 8, 0, 3), np.float32)):
        again = ort.OrtValue.from_dlpack(ort.OrtValue.ortvalue_from_numpy(x))
        assert again.numpy().dtype == x.dtype and again.shape() == [*x.shape]
    inner = errors(ort).OrtValue.from_dlpack(np.array([1, 0], np.uint8).__dlpack__(), True)
    assert inner.numpy().tolist() == [True, False]
    assert ort.OrtDevice.make("cuda", 0).device_vendor_id() == ort.OrtDeviceVendorId.NVIDIA
