"""`OrtValue`: a tensor, sparse tensor, sequence, map or empty optional, in NumPy's memory or a caller's."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Self

import numpy as np

from jangin.frontends.onnx.types import TEXT, TYPES
from jangin.ir.dtype import from_numpy
from jangin.ir.graph import Array
from jangin.onnxruntime.devices import OrtDevice, OrtMemoryInfo, on_cpu
from jangin.onnxruntime.enums import OrtDeviceVendorId
from jangin.onnxruntime.sparse import SparseTensor, tensor_name

CPU = 1
"""DLPack's number of the CPU's memory (kDLCPU)."""
_CODES = {dtype.name: code for code, dtype in TYPES.items()}


class OrtValue:
    """An OrtValue is an input or output of a model. A tensor uses the memory of the array it was made of."""

    _value: Any

    def __init__(self, ortvalue: OrtValue, numpy_obj: Array | None = None, session: Any = None) -> None:
        if not isinstance(ortvalue, OrtValue):
            raise ValueError(f"not an OrtValue but {type(ortvalue).__name__}: use ortvalue_from_numpy")
        self._value = ortvalue._value

    @classmethod
    def holding(cls, value: Any) -> Self:
        """Return an OrtValue that contains an array, a sparse tensor, a list (a sequence), a dictionary (a
        map) or None (an empty optional)."""
        holder = cls.__new__(cls)
        holder._value = value
        return holder

    @classmethod
    def of(cls, value: Any) -> OrtValue:
        """Return an OrtValue unchanged, or an OrtValue that contains any other value."""
        return value if isinstance(value, OrtValue) else cls.holding(value)

    @property
    def _ortvalue(self) -> OrtValue:
        return self

    def _get_c_value(self) -> OrtValue:
        return self

    @classmethod
    def ortvalue_from_numpy(
        cls,
        numpy_obj: Array,
        /,
        device_type: str | OrtDevice = "cpu",
        device_id: int = 0,
        vendor_id: int | OrtDeviceVendorId = -1,
    ) -> OrtValue:
        """Return a tensor in the array's own memory, or in a copy if the array isn't contiguous."""
        if isinstance(device_type, str):
            on_cpu(device_type, device_id, vendor_id)
        if not isinstance(numpy_obj, np.ndarray):
            raise RuntimeError(f"an OrtValue is made of a NumPy array, not of {type(numpy_obj).__name__}")
        return cls.holding(np.asarray(numpy_obj, order="C"))

    @classmethod
    def ortvalue_from_numpy_with_onnx_type(cls, data: Array, /, onnx_element_type: int) -> OrtValue:
        """Return a tensor in the array's memory, with the elements reinterpreted as another type of the same
        size."""
        dtype = dtype_of(onnx_element_type)
        if dtype.itemsize != data.dtype.itemsize:
            raise RuntimeError(f"{data.dtype} elements aren't as large as those of type {onnx_element_type}")
        return cls.holding(data.view(dtype))

    @classmethod
    def ortvalue_from_shape_and_type(
        cls,
        shape: Sequence[int],
        element_type: Any,
        device_type: str = "cpu",
        device_id: int = 0,
        vendor_id: int | OrtDeviceVendorId = -1,
        memory_info: OrtMemoryInfo | None = None,
    ) -> OrtValue:
        """Return a tensor of this shape with uninitialized elements. The type is NumPy's or ONNX's."""
        on_cpu(device_type, device_id, vendor_id)
        return cls.holding(np.empty(tuple(shape), dtype_of(element_type)))

    @classmethod
    def ort_value_from_sparse_tensor(cls, sparse_tensor: SparseTensor) -> OrtValue:
        return cls.holding(SparseTensor(sparse_tensor))

    @classmethod
    def from_dlpack(cls, data: Any, /, is_bool_tensor: bool = False) -> OrtValue:
        """Return a tensor in another framework's memory, by the DLPack protocol or from a capsule.

        With `is_bool_tensor`, bytes are taken as truth values."""
        source = data if hasattr(data, "__dlpack__") else _Capsule(data)
        array = np.from_dlpack(source)
        return cls.holding(array.view(np.bool_) if is_bool_tensor and array.dtype == np.uint8 else array)

    def as_sparse_tensor(self) -> SparseTensor:
        """Return the sparse tensor. Raises RuntimeError if the value is none."""
        if not isinstance(self._value, SparseTensor):
            raise RuntimeError("the OrtValue has no sparse tensor")
        return self._value

    def data_ptr(self) -> int:
        """Return the address of the tensor's first element."""
        return int(self.numpy().__array_interface__["data"][0])

    def device_name(self) -> str:
        return "cpu"

    def shape(self) -> list[int]:
        return self._value.dense_shape() if self.is_sparse_tensor() else [*self.numpy().shape]

    def data_type(self) -> str:
        """Return the type in ONNX's notation, such as "tensor(int64)"."""
        return _type_of(self._value)

    def element_type(self) -> int:
        """Return ONNX's number of the tensor's element type."""
        dtype = self.numpy().dtype
        return TEXT if dtype.kind in "OUS" else _CODES[from_numpy(dtype).name]

    def tensor_size_in_bytes(self) -> int:
        return self.numpy().nbytes

    def has_value(self) -> bool:
        return self._value is not None

    def is_tensor(self) -> bool:
        return isinstance(self._value, np.ndarray)

    def is_sparse_tensor(self) -> bool:
        return isinstance(self._value, SparseTensor)

    def is_tensor_sequence(self) -> bool:
        return isinstance(self._value, list) and not any(isinstance(v, Mapping) for v in self._value)

    def numpy(self) -> Array:
        """Return the tensor's array, in the same memory. Raises RuntimeError if the value is no tensor."""
        if not isinstance(self._value, np.ndarray):
            raise RuntimeError("Only OrtValues that are Tensors are currently supported")
        return self._value

    def python(self) -> Any:
        """Return the value that a run takes or gives: an array, a sparse tensor, a list, a dictionary or
        None."""
        return self._value

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        return np.array(self.numpy(), dtype=dtype, copy=copy)

    def __dlpack__(self, *, stream: Any = None, **how: Any) -> Any:
        return self.numpy().__dlpack__(**how)

    def __dlpack_device__(self) -> tuple[int, int]:
        return CPU, 0

    def to_dlpack(self) -> Any:
        return self.__dlpack__()

    def update_inplace(self, data: Array | OrtValue) -> None:
        """Copy an array's numbers into the tensor, which keeps its address. Raises ValueError for another
        shape or dtype."""
        new = data.numpy() if isinstance(data, OrtValue) else data
        if not isinstance(new, np.ndarray):
            raise TypeError("data must be a numpy.ndarray or an OrtValue.")
        if new.shape != self.numpy().shape or new.dtype != self.numpy().dtype:
            mine = f"{self.numpy().dtype}{self.shape()}"
            raise ValueError(f"a tensor {mine} can't hold one {new.dtype}{[*new.shape]}")
        np.copyto(self.numpy(), new)


class OrtValueVector(list[OrtValue]):
    """A list of OrtValues."""

    def push_back(self, value: OrtValue) -> None:
        self.append(OrtValue.of(value))

    def push_back_batch(
        self, tensors: Sequence[Any], addresses: Sequence[int], element_types: Sequence[Any],
        shapes: Sequence[Sequence[int]], devices: Sequence[Any],
    ) -> None:  # fmt: skip
        """Append tensors in memory given by addresses, which `tensors` must keep alive."""
        for address, kind, shape in zip(addresses, element_types, shapes, strict=True):
            self.append(OrtValue.holding(at_address(address, shape, kind)))

    def element_type_at(self, idx: int) -> int:
        return self[idx].element_type()

    def bool_tensor_indices(self) -> list[int]:
        return [i for i, v in enumerate(self) if v.is_tensor() and v.numpy().dtype == np.bool_]

    def dlpack_at(self, idx: int) -> Any:
        return self[idx].__dlpack__()

    def to_dlpacks(self, to_tensor: Callable[[Any], Any] | None = None) -> list[Any]:
        capsules = [v.__dlpack__() for v in self]
        return [*map(to_tensor, capsules)] if to_tensor else capsules

    def reserve(self, count: int) -> None:
        """Does nothing, because Python's lists grow by themselves."""

    def shrink_to_fit(self) -> None:
        """Does nothing, because Python's lists shrink by themselves."""


class _Capsule:
    """An object that offers a bare DLPack capsule by the protocol that `np.from_dlpack` reads."""

    def __init__(self, capsule: Any) -> None:
        self._capsule = capsule

    def __dlpack__(self, **how: Any) -> Any:
        return self._capsule

    def __dlpack_device__(self) -> tuple[int, int]:
        return CPU, 0


def dtype_of(element_type: Any) -> np.dtype[Any]:
    """Return NumPy's type of an element type, which may be ONNX's number. Raises RuntimeError for an unknown
    one."""
    if not isinstance(element_type, int):
        dtype: np.dtype[Any] = np.dtype(element_type)
        return dtype
    if element_type == TEXT:
        return np.dtype(object)
    if element_type not in TYPES:
        raise RuntimeError(f"there is no ONNX element type {element_type}")
    numpy_type: np.dtype[Any] = TYPES[element_type].numpy
    return numpy_type


def at_address(address: int, shape: Sequence[int], element_type: Any) -> Array:
    """Return an array that uses the caller's memory at an address."""
    dtype = dtype_of(element_type)
    size = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    if not size:
        return np.empty(tuple(shape), dtype)
    memory = memoryview((ctypes.c_char * size).from_address(address)).cast("B")
    flat: Array = np.frombuffer(memory, np.uint8).view(dtype)
    return flat.reshape(tuple(shape))


def copy_tensors(src: Iterable[OrtValue], dst: Iterable[OrtValue], stream: Any = None) -> None:
    """Copy each tensor's numbers into the tensor at the same position of `dst`."""
    for a, b in zip(src, dst, strict=True):
        b.update_inplace(a)


def _type_of(value: Any) -> str:
    if isinstance(value, np.ndarray):
        return tensor_name(value)
    if isinstance(value, SparseTensor):
        return value.data_type()
    if isinstance(value, Mapping):
        key, of = next(iter(value.items()), (0, 0.0))
        return f"map({_type_of(np.array(key))[7:-1]},{_type_of(np.asarray(of))})"
    if isinstance(value, list):
        return f"seq({_type_of(value[0]) if value else 'tensor(float)'})"
    return "optional()" if value is None else _type_of(np.asarray(value))
