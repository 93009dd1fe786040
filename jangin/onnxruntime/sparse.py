"""`SparseTensor`: a tensor that stores its nonzero elements and their places. Models compute with its dense
array, because compiled models take and return dense tensors."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NoReturn

import numpy as np

from jangin.frontends.onnx.types import element_name
from jangin.ir.dtype import from_numpy
from jangin.ir.graph import Array
from jangin.ir.records import dataclass
from jangin.onnxruntime.devices import OrtDevice
from jangin.onnxruntime.enums import OrtSparseFormat
from jangin.onnxruntime.errors import Fail, InvalidArgument, NotImplemented

COO, CSR = OrtSparseFormat.ORT_SPARSE_COO, OrtSparseFormat.ORT_SPARSE_CSRC


def tensor_name(array: Array) -> str:
    """Return the type of an array in ONNX's notation, such as "tensor(int64)"."""
    text = array.dtype.kind in "OUS"
    return f"tensor({'string' if text else element_name(from_numpy(array.dtype))})"


@dataclass(frozen=True)
class SparseCooView:
    """The places of the elements in COO format: numbers of elements, or rows of coordinates."""

    _indices: Array

    def indices(self) -> Array:
        return self._indices


@dataclass(frozen=True)
class SparseCsrView:
    """The places of the elements in CSR format: the columns, and each row's first and last element."""

    _inner: Array
    _outer: Array

    def inner(self) -> Array:
        return self._inner

    def outer(self) -> Array:
        return self._outer


class SparseTensor:
    """A sparse tensor in the memory of the arrays that it is made of.

    A run makes it dense, and makes a sparse output of the dense result's nonzero elements."""

    _shape: tuple[int, ...]
    _values: Array
    _view: SparseCooView | SparseCsrView

    def __init__(self, sparse_tensor: SparseTensor) -> None:
        if not isinstance(sparse_tensor, SparseTensor):
            raise ValueError(
                f"a SparseTensor is made of a SparseTensor, not of {type(sparse_tensor).__name__}"
            )
        self._shape, self._values = sparse_tensor._shape, sparse_tensor._values
        self._view = sparse_tensor._view

    @classmethod
    def sparse_coo_from_numpy(
        cls, dense_shape: Any, values: Array, coo_indices: Any, ort_device: OrtDevice
    ) -> SparseTensor:
        """Return a tensor of n values, with n numbers of elements or n rows of coordinates. Raises
        InvalidArgument if the arrays don't fit each other."""
        shape, values = _checked(dense_shape, values, ort_device)
        places = _places(coo_indices, "coo_indices")
        rank = len(shape)
        if places.ndim == 1 and rank > 1 and len(places) == rank * len(values) != len(values):
            places = places.reshape(-1, rank)
        if places.shape not in ((len(values),), (len(values), rank)):
            raise InvalidArgument.said(
                f"{len(values)} values of a tensor {[*shape]} need as many indices, or as many rows of "
                f"{rank} coordinates, not an array {[*places.shape]}"
            )
        limits = np.array(shape if places.ndim == 2 else [math.prod(shape)], np.int64)
        _check_range(places.reshape(len(values), -1), limits, shape)
        return cls._of(shape, values, SparseCooView(_fixed(places)))

    @classmethod
    def sparse_csr_from_numpy(
        cls, dense_shape: Any, values: Array, inner_indices: Any, outer_indices: Any, ort_device: OrtDevice
    ) -> SparseTensor:
        """Return a matrix of n values: `inner_indices` has their columns, and `outer_indices` the number of
        the first value in each row, and n. Raises InvalidArgument if the arrays don't fit each other."""
        shape, values = _checked(dense_shape, values, ort_device)
        inner, outer = _places(inner_indices, "inner_indices"), _places(outer_indices, "outer_indices")
        if len(shape) != 2:
            raise InvalidArgument.said(f"CSR is for matrices, and the shape is {[*shape]}")
        if inner.shape != (len(values),) or outer.shape != (shape[0] + 1,):
            raise InvalidArgument.said(
                f"{len(values)} values of a matrix {[*shape]} need {len(values)} inner and {shape[0] + 1} "
                f"outer indices, not arrays {[*inner.shape]} and {[*outer.shape]}"
            )
        if outer[0] != 0 or outer[-1] != len(values) or (np.diff(outer) < 0).any():
            raise InvalidArgument.said(
                f"outer indices must rise from 0 to {len(values)}: {outer.tolist()[:9]}"
            )
        _check_range(inner.reshape(-1, 1), np.array(shape[1:], np.int64), shape)
        return cls._of(shape, values, SparseCsrView(_fixed(inner), _fixed(outer)))

    @classmethod
    def blocksparse_from_numpy(cls, *arguments: Any) -> SparseTensor:
        """Raise NotImplemented, because no operator reads tensors of blocks."""
        raise NotImplemented.said("sparse tensors of blocks aren't supported: use COO or CSR format")

    @classmethod
    def of_dense(cls, array: Array) -> SparseTensor:
        """Return a dense array's nonzero elements as a tensor in COO format."""
        places = np.flatnonzero(array).astype(np.int64)
        return cls._of(array.shape, array.reshape(-1)[places], SparseCooView(_fixed(places)))

    @classmethod
    def _of(cls, shape: Sequence[int], values: Array, view: SparseCooView | SparseCsrView) -> SparseTensor:
        tensor = cls.__new__(cls)
        tensor._shape, tensor._values, tensor._view = tuple(shape), _fixed(values), view
        return tensor

    def _get_c_tensor(self) -> SparseTensor:
        return self

    def dense(self) -> Array:
        """Return the tensor as a dense array. Elements without a value are 0, or "" in a tensor of text."""
        text = self._values.dtype.kind == "O"
        array: Array = np.full(self._shape, "", object) if text else np.zeros(self._shape, self._values.dtype)
        if isinstance(self._view, SparseCsrView):
            rows = np.repeat(np.arange(self._shape[0]), np.diff(self._view.outer()))
            array[rows, self._view.inner()] = self._values
        elif self._view.indices().ndim == 1:
            array.reshape(-1)[self._view.indices()] = self._values
        else:
            array[tuple(self._view.indices().T)] = self._values
        return array

    def values(self) -> Array:
        return self._values

    def as_coo_view(self) -> SparseCooView:
        if not isinstance(self._view, SparseCooView):
            raise Fail.said("the tensor isn't in COO format: use as_csrc_view")
        return self._view

    def as_csrc_view(self) -> SparseCsrView:
        if not isinstance(self._view, SparseCsrView):
            raise Fail.said("the tensor isn't in CSR format: use as_coo_view")
        return self._view

    def as_blocksparse_view(self) -> NoReturn:
        raise Fail.said("the tensor doesn't consist of blocks: use as_coo_view or as_csrc_view")

    get_coo_data, get_csrc_data, get_blocksparse_data = as_coo_view, as_csrc_view, as_blocksparse_view

    def to_cuda(self, ort_device: OrtDevice) -> SparseTensor:
        """Raise Fail, because tensors are in the CPU's memory."""
        raise Fail.said("sparse tensors can't be moved: Jangin's sessions run on the CPU")

    def format(self) -> OrtSparseFormat:
        return COO if isinstance(self._view, SparseCooView) else CSR

    def dense_shape(self) -> list[int]:
        return [*self._shape]

    def data_type(self) -> str:
        return f"sparse_{tensor_name(self._values)}"

    def device_name(self) -> str:
        return "cpu"


def _checked(dense_shape: Any, values: Array, device: OrtDevice) -> tuple[tuple[int, ...], Array]:
    """Return a tensor's shape and values. Text becomes objects. Raises InvalidArgument for other than one
    row of values, a negative size, or a device that isn't the CPU."""
    shape = tuple(int(d) for d in dense_shape)
    if not isinstance(values, np.ndarray) or values.ndim != 1:
        raise InvalidArgument.said("the values of a sparse tensor must be a NumPy array with one axis")
    if any(d < 0 for d in shape):
        raise InvalidArgument.said(f"a sparse tensor's shape {[*shape]} has a negative size")
    if device.device_type() != OrtDevice.cpu():
        raise InvalidArgument.said("sparse tensors are in the CPU's memory only")
    return shape, values.astype(object) if values.dtype.kind in "US" else values


def _places(indices: Any, name: str) -> Array:
    array = np.asarray(indices)
    if array.dtype.kind not in "iu":
        raise InvalidArgument.said(f"{name} must be integers, not {array.dtype}")
    return array.astype(np.int64, copy=False)


def _check_range(places: Array, limits: Array, shape: Sequence[int]) -> None:
    if (places < 0).any() or (places >= limits).any():
        raise InvalidArgument.said(f"an index is outside of the tensor's shape {[*shape]}")


def _fixed(array: Array) -> Array:
    """Return a view of the array that can't be written to."""
    view: Array = array.view()
    view.flags.writeable = False
    return view
