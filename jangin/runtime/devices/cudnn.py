"""Convolutions by cuDNN on NVIDIA's GPUs, enqueued between a plan's own kernels. Numbers are float32, and
nothing is rounded to tf32.

Numbers of types, formats and modes are those of cuDNN's headers."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from functools import cache
from threading import Lock
from typing import Any

from jangin.ir.library import Convolution
from jangin.runtime.device import LoadError
from jangin.runtime.devices.cuda_objects import WORKSPACE, Context, Queue, timed
from jangin.runtime.devices.driver import DriverError, Kernel
from jangin.runtime.devices.products import Product
from jangin.runtime.libraries import absent, find

_INT, _SIZE, _HANDLE = ctypes.c_int, ctypes.c_size_t, ctypes.c_void_p
FLOAT32, FMA_ONLY, NOT_MIRRORED, CHANNELS_LAST = 0, 3, 1, 1
"""The numbers of float32, of its full products, of windows that aren't mirrored, and of the order of weights
(`CUDNN_DATA_FLOAT`, `CUDNN_FMA_MATH`, `CUDNN_CROSS_CORRELATION`, `CUDNN_TENSOR_NHWC`)."""
WAYS = 8
"""The number of ways to make a convolution (`CUDNN_CONVOLUTION_FWD_ALGO_COUNT`)."""
NO_MEMORY = (4003, 4004)
"""The statuses of failed allocations, on the host and on the device."""
_NO_WAY = "it knows no way to make this convolution in full float32"
TYPES: Mapping[str, tuple[Any, ...]] = {
    "Create": (_HANDLE,),
    "SetStream": (_HANDLE, _HANDLE),
    "CreateTensorDescriptor": (_HANDLE,),
    "DestroyTensorDescriptor": (_HANDLE,),
    "SetTensor4dDescriptorEx": (_HANDLE, *(_INT,) * 9),
    "CreateFilterDescriptor": (_HANDLE,),
    "DestroyFilterDescriptor": (_HANDLE,),
    "SetFilter4dDescriptor": (_HANDLE, *(_INT,) * 6),
    "CreateConvolutionDescriptor": (_HANDLE,),
    "DestroyConvolutionDescriptor": (_HANDLE,),
    "SetConvolution2dDescriptor": (_HANDLE, *(_INT,) * 8),
    "SetConvolutionGroupCount": (_HANDLE, _INT),
    "SetConvolutionMathType": (_HANDLE, _INT),
    "GetConvolutionForwardAlgorithm_v7": (*(_HANDLE,) * 5, _INT, _HANDLE, _HANDLE),
    "ConvolutionForward": (*(_HANDLE,) * 7, _INT, _HANDLE, _SIZE, *(_HANDLE,) * 3),
}
"""The library's functions that return a status, with their arguments' types."""


class _Way(ctypes.Structure):
    """A way to make a convolution (`cudnnConvolutionFwdAlgoPerf_t`)."""

    _fields_ = (
        ("number", _INT), ("status", _INT), ("time", ctypes.c_float), ("memory", _SIZE),
        ("same_bits", _INT), ("products", _INT), ("reserved", _INT * 3),
    )  # fmt: skip


class Failed(DriverError):
    """cuDNN could not enqueue a convolution. `status` is its error, or 0."""

    def __init__(self, text: str, status: int = 0) -> None:
        super().__init__(text)
        self.status = status

    @property
    def full(self) -> bool:
        return self.status in NO_MEMORY


@cache
def _functions() -> Mapping[str, Any]:
    """Return the library's functions. Raises LoadError if the library is missing."""
    library = find("cudnn")
    if library is None:
        raise LoadError(f"the model was compiled to call another library: {absent('cudnn')}")
    kinds = {name: ctypes.CFUNCTYPE(_INT, *types) for name, types in TYPES.items()}
    kinds["GetErrorString"] = ctypes.CFUNCTYPE(ctypes.c_char_p, _INT)
    return {name: kind(library.functions[name]) for name, kind in kinds.items()}


def _call(name: str, *given: Any) -> None:
    status = _functions()[name](*given)
    if status:
        said = (_functions()["GetErrorString"](status) or b"").decode(errors="replace")
        raise Failed(f"cudnn{name} gives the error {status} ({said})", status)


class _Descriptor:
    """A description of the library's, which is released with this Python object."""

    def __init__(self, kind: str, setter: str, *given: int) -> None:
        self._kind, handle = kind, _HANDLE()
        _call(f"Create{kind}Descriptor", ctypes.byref(handle))
        self.handle = handle.value
        _call(setter, self.handle, *given)

    def __del__(self) -> None:
        if getattr(self, "handle", None):
            _functions()[f"Destroy{self._kind}Descriptor"](self.handle)


def _image(images: int, channels: int, rows: int, columns: int) -> _Descriptor:
    """Return the description of dense images, whose channels are last."""
    row = columns * channels
    return _Descriptor(
        "Tensor", "SetTensor4dDescriptorEx", FLOAT32, images, channels, rows, columns, rows * row, 1, row,
        channels,
    )  # fmt: skip


class _Opened:
    """The library's handle of a context, with which it goes. Only one thread at a time may use it."""

    def __init__(self, context: Context) -> None:
        self.lock, handle = Lock(), _HANDLE()
        with context.entered():
            _call("Create", ctypes.byref(handle))
        self.handle = handle.value


class Cudnn(Product):
    """A convolution by cuDNN (see `runtime.devices.products`)."""

    def __init__(self, context: Context, of: Convolution, rest: Kernel | None) -> None:
        super().__init__(of.params, rest)
        self._context, self._of = context, of
        if "cudnn" not in context.libraries:
            context.libraries["cudnn"] = _Opened(context)
        self._library: _Opened = context.libraries["cudnn"]
        self._x = _image(of.images, of.channels[0], *of.size)
        self._y = _image(of.images, of.channels[1], *of.outputs)
        each = of.channels[0] // of.groups
        sizes = FLOAT32, CHANNELS_LAST, of.channels[1], each, *of.window
        self._weights = _Descriptor("Filter", "SetFilter4dDescriptor", *sizes)
        steps = *of.pads, *of.strides, *of.dilations, NOT_MIRRORED, FLOAT32
        self._windows = _Descriptor("Convolution", "SetConvolution2dDescriptor", *steps)
        _call("SetConvolutionGroupCount", self._windows.handle, of.groups)
        _call("SetConvolutionMathType", self._windows.handle, FMA_ONLY)
        self._way = self._best()

    def _best(self) -> int:
        """Return the way that the library thinks the quickest, of those whose results are always the same."""
        ways, count = (_Way * WAYS)(), _INT()
        what = (d.handle for d in (self._x, self._weights, self._windows, self._y))
        with self._library.lock, self._context.entered():
            _call("GetConvolutionForwardAlgorithm_v7", self._library.handle, *what, WAYS, ctypes.byref(count),
                  ways)  # fmt: skip
        for way in ways[: count.value]:
            full = way.products == FMA_ONLY
            if not way.status and way.memory <= WORKSPACE and way.same_bits and full:
                return int(way.number)
        raise Failed(_NO_WAY)

    def copy(self) -> Cudnn:
        return Cudnn(self._context, self._of, self.rest and self.rest.copy())

    def seconds(self, queue: Queue) -> float:
        """Run the convolution and `rest`, and return their seconds by the device's clock."""
        return timed(self._context, queue, lambda: self.enqueue(queue))

    def _enqueue_product(self, queue: Queue) -> None:
        one, none = ctypes.c_float(1.0), ctypes.c_float(0.0)
        x, weights, y = (m.handle for m in self._memory)
        room, handle = queue.workspace(), self._library.handle
        with self._library.lock, self._context.entered():
            _call("SetStream", handle, queue.handle)
            _call("ConvolutionForward", handle, ctypes.byref(one), self._x.handle, x, self._weights.handle,
                  weights, self._windows.handle, self._way, room.handle, room.size, ctypes.byref(none),
                  self._y.handle, y)  # fmt: skip
