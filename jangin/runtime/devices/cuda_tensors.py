"""Tensors on an NVIDIA GPU as inputs and outputs of a run, without a copy by the host.

A contiguous tensor at an aligned address is used in place, and any other is copied on the device. A run waits
for the tensors' streams by events. If an input is a tensor on the GPU, all outputs are `DeviceTensor`s."""

from __future__ import annotations

import ctypes
import math
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from jangin.ir.graph import Array
from jangin.runtime import dlpack
from jangin.runtime.devices.cuda_host import ALIGNED, HostMemory
from jangin.runtime.devices.cuda_library import Error
from jangin.runtime.devices.cuda_objects import Buffer, Context, Event, Queue
from jangin.runtime.devices.driver import Buffer as AnyBuffer
from jangin.runtime.devices.queued import Code
from jangin.runtime.devices.queued_faults import failed
from jangin.runtime.layout import Layout
from jangin.runtime.sizes import TensorSpec
from jangin.runtime.tensors import Piece, Taken, pieces, shape_of, taken

GRAPHS = 8
"""The most sets of addresses whose launches stay recorded. Callers' allocators give the same few addresses
again."""
UNTIMED = 2
"""The flag of events that measure no time, which are quicker."""
ORDINAL = 9
"""The driver's number of the question which GPU has an address (CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL)."""
_ON_DEVICE = 2
"""The driver's number of the GPU's memory (CU_MEMORYTYPE_DEVICE)."""


_SIDE = (
    ("x", ctypes.c_size_t), ("y", ctypes.c_size_t), ("memory", ctypes.c_int), ("host", ctypes.c_void_p),
    ("device", ctypes.c_uint64), ("array", ctypes.c_void_p), ("pitch", ctypes.c_size_t),
)  # fmt: skip
"""The fields of CUDA_MEMCPY2D for each of the source and the destination."""


class _Copy2D(ctypes.Structure):
    """CUDA_MEMCPY2D, which describes a copy of rows."""

    _fields_ = (
        *((side + name, kind) for side in ("src_", "dst_") for name, kind in _SIDE),
        ("width", ctypes.c_size_t),
        ("height", ctypes.c_size_t),
    )


def _copy_rows(queue: Queue, to: int, at: int, piece: Piece) -> None:
    """Enqueue a copy of rows on the device, from the address `at` to the address `to`."""
    if piece.rows == 1:
        queue.context.call("cuMemcpyDtoDAsync_v2", to, at, piece.width, queue.handle)
        return
    rows = _Copy2D(
        src_memory=_ON_DEVICE, src_device=at, src_pitch=piece.pitch,
        dst_memory=_ON_DEVICE, dst_device=to, dst_pitch=piece.to_pitch,
        width=piece.width, height=piece.rows,
    )  # fmt: skip
    queue.context.call("cuMemcpy2DAsync_v2", ctypes.byref(rows), queue.handle)


def _copy(queue: Queue, to: int, tensor: Taken) -> None:
    """Enqueue a contiguous copy of a tensor to an address. Raises ValueError if its strides need too many
    copies."""
    for piece in pieces(tensor) if tensor.nbytes else ():
        _copy_rows(queue, to + piece.to, tensor.address + piece.at, piece)


class DeviceTensor:
    """An output that a run left on the GPU. It has what PyTorch, CuPy and JAX read (DLPack and
    `__cuda_array_interface__`), and `numpy()` copies it to the host.

    It is complete when the run returns, so that nobody needs to wait for a stream. Its memory is freed when
    neither this object nor a tensor of another library uses it."""

    def __init__(self, buffer: Buffer, driver: Any, dtype: np.dtype[Any], shape: Sequence[int]) -> None:
        self._buffer, self._driver = buffer, driver
        self.dtype, self.shape = dtype, tuple(shape)

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize

    @property
    def ndim(self) -> int:
        return len(self.shape)

    def __repr__(self) -> str:
        return f"<DeviceTensor {self.dtype}[{', '.join(map(str, self.shape))}] on {self._driver}>"

    def numpy(self) -> Array:
        """Return a copy on the host. Raises RuntimeError if the device is lost."""
        array: Array = np.empty(self.shape, self.dtype)
        if self.nbytes:
            self._done("give a tensor back", lambda: self._driver.download(array, self._buffer))
        return array

    def copy(self) -> DeviceTensor:
        """Return a copy on the device. Raises MemoryError if there is no memory for it."""
        copied: DeviceTensor = self._done("copy a tensor", self._copied)
        return copied

    def _copied(self) -> DeviceTensor:
        buffer = self._driver.buffer(self._buffer.size)
        self._driver.copy(buffer, self._buffer)
        return DeviceTensor(buffer, self._driver, self.dtype, self.shape)

    def _done(self, what: str, work: Callable[[], Any]) -> Any:
        try:
            return work()
        except Error as error:
            raise failed(self._driver, what, error) from error

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        if copy is False:
            raise ValueError("a tensor on a GPU becomes an array by a copy alone")
        array = self.numpy()
        return array if dtype is None else array.astype(dtype, copy=False)

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        if self.dtype.kind not in "fiub":
            raise AttributeError(f"__cuda_array_interface__ has no {self.dtype}: take the tensor by DLPack")
        at = self._buffer.handle if self.nbytes else 0
        return {"shape": self.shape, "typestr": self.dtype.str, "data": (at, False), "version": 3,
                "strides": None, "stream": None}  # fmt: skip

    def __dlpack_device__(self) -> tuple[int, int]:
        return dlpack.CUDA, self._driver.device.number

    def __dlpack__(
        self,
        *,
        stream: int | None = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> Any:
        """Return a capsule, for `from_dlpack` of other libraries. The tensor is complete, so that `stream`
        has nothing to wait for. Raises BufferError for a device or a copy that isn't possible."""
        if stream == 0:
            raise ValueError("the stream 0 is ambiguous in DLPack: 1 is the default stream")
        versioned = max_version is not None and max_version[0] >= dlpack.VERSION[0]
        if dl_device is not None and tuple(dl_device) == (dlpack.CPU, 0) and copy is not False:
            arguments: dict[str, Any] = {"max_version": max_version} if versioned else {}
            return self.numpy().__dlpack__(**arguments)
        if dl_device is not None and tuple(dl_device) != self.__dlpack_device__():
            raise BufferError(
                f"{self!r} can't be given on the device {tuple(dl_device)}: copy it there first"
            )
        own = self.copy() if copy else self
        return dlpack.exported(
            own._buffer.handle if self.nbytes else 0, self._driver.device.number, self.dtype, self.shape,
            own._buffer, versioned=versioned, copied=bool(copy),
        )  # fmt: skip


class CudaCode(Code):
    """See `Code`. Its memory takes tensors on the device."""

    def memory(self) -> CudaMemory:
        return CudaMemory(self)

    def uploaded(self, array: Array) -> DeviceTensor:
        """Return a copy of a contiguous array on the device."""
        buffer: Any = self.buffer("an array", array, write=True)
        return DeviceTensor(buffer, self.driver, array.dtype, array.shape)


class CudaMemory(HostMemory):
    """See `Memory` and `runtime.tensors.Receiver`."""

    def __init__(self, code: Code) -> None:
        super().__init__(code)
        self._at: dict[str, int] = {}  # addresses of all that kernels were given, by name
        self._graphs: OrderedDict[tuple[int, ...], Callable[[], None] | None] = OrderedDict()
        self._ready: Event | None = None

    # --- inputs

    def received(self, value: Any, want: TensorSpec) -> Taken:
        self._check_device(value, want)
        queue = self._stream()
        try:
            tensor = taken(value, lambda: queue.handle)
        except (TypeError, ValueError, RuntimeError, BufferError) as error:
            raise TypeError(f"input {want}, {_told(value)}, can't be read: {error}") from None
        if tensor.dtype != want.dtype:
            raise TypeError(
                f"input {want} got {tensor}: convert it to {want.dtype} on the GPU (x.to(dtype) in PyTorch, "
                "x.astype(dtype) in CuPy and JAX)"
            )
        if want.name in self._code.plan.updates.values():
            raise TypeError(
                f"input {want} got {tensor}, but a run changes this input: give an array of NumPy"
            )
        if tensor.nbytes:
            self._check_address(tensor, want)
        if tensor.stream is not None:
            self._wait_for(queue, tensor.stream)
        return tensor

    def _stream(self) -> Queue:
        try:
            self._queue = self._queue or self._code.driver.queue()
        except Error as error:
            raise self._failed("make a stream", error) from error
        assert isinstance(self._queue, Queue)
        return self._queue

    def _check_device(self, value: Any, want: TensorSpec) -> None:
        """Raise ValueError if a tensor is on another GPU, before its library is told a stream of this one."""
        if hasattr(value, "__dlpack_device__"):
            self._check_number(value.__dlpack_device__()[1], _told(value), want)

    def _check_number(self, number: int, told: str, want: TensorSpec) -> None:
        own = self._code.driver.device.number  # type: ignore[attr-defined]
        if number != own:
            raise ValueError(
                f"input {want} got {told} on cuda:{number}, but the model runs on {self._code.driver}: move "
                f"it there (x.to('cuda:{own}') in PyTorch), or load the model on the device 'cuda:{number}'"
            )

    def _check_address(self, tensor: Taken, want: TensorSpec) -> None:
        """Raise ValueError if a tensor's memory is another GPU's, or is freed."""
        number = ctypes.c_int()
        try:
            if not tensor.address:
                raise Error("cuPointerGetAttribute", "CUDA_ERROR_INVALID_VALUE", "the address is 0")
            self._stream().context.call(
                "cuPointerGetAttribute", ctypes.byref(number), ORDINAL, tensor.address
            )
        except Error as error:
            if error.lost:
                raise self._failed(f"take the input '{want.name}'", error) from error
            raise ValueError(
                f"input {want} got {tensor}, whose memory at {tensor.address:#x} no GPU has: it was freed, "
                f"so give a tensor that is in use ({error})"
            ) from error
        self._check_number(number.value, str(tensor), want)

    def _wait_for(self, queue: Queue, stream: int) -> None:
        """Make a queue wait for all that the stream of a caller's library was given before."""
        context: Context = queue.context
        try:
            self._ready = self._ready or Event(context, UNTIMED)
            context.call("cuEventRecord", self._ready.handle, stream)
            context.call("cuStreamWaitEvent", queue.handle, self._ready.handle, 0)
        except Error as error:
            raise self._failed(f"wait for the stream {stream} of an input", error) from error

    def _upload(self, name: str, array: Array | Taken) -> None:
        if not isinstance(array, Taken):
            if self._maps:
                self._give(name, self._in_place(name, array))
                return
            self._give(name, self._ends[name])
            super()._upload(name, array)
        elif array.is_contiguous and array.address % ALIGNED == 0:
            self._give(name, _InPlace(array.address, array.nbytes))
        else:
            self._give(name, self._ends[name])
            self._copy_on_device(name, self._ends[name], array)

    def _copy_on_device(self, name: str, to: Any, tensor: Taken) -> None:
        try:
            _copy(self._stream(), to.handle, tensor)
        except Error as error:
            raise self._failed(f"copy the input '{name}', {tensor}", error) from error
        except ValueError as error:
            raise ValueError(f"input '{name}' is {tensor}: {error}") from None

    # --- runs

    def _prepare(self, layout: Layout) -> None:
        self._graphs.clear()
        super()._prepare(layout)

    def _give(self, name: str, memory: Any) -> None:
        if self._at.get(name) != memory.handle:
            self._at[name] = memory.handle
            super()._give(name, memory)

    def _launch(self, queue: Any) -> None:
        """Enqueue all launches. They are recorded if they use this memory's own addresses, or the caller's
        addresses for the second time."""
        addresses = tuple([self._at[name] for name in self._ends])
        is_new = addresses not in self._graphs
        self._start = self._graphs.pop(addresses, None)
        if is_new and any(self._at[name] != own.handle for name, own in self._ends.items()):  # type: ignore[attr-defined]
            self._enqueue(queue, range(len(self._kernels)))
        else:
            super()._launch(queue)
        self._graphs[addresses] = self._start
        if len(self._graphs) > GRAPHS:
            self._graphs.popitem(last=False)

    def _bind(self, layout: Layout, inputs: Sequence[Any]) -> tuple[dict[str, Any], dict[str, AnyBuffer]]:
        """See `Memory`. Outputs are tensors on the device if an input is, those that are aliases included."""
        self._lent.clear()
        if not any(isinstance(x, Taken) for x in inputs):
            if self._maps:
                return self._bind_outputs(layout), dict(self._bind_inputs(inputs))
            for name, _, _ in layout.outputs:
                self._give(name, self._ends[name])
            return super()._bind(layout, inputs)
        held, outputs = self._bind_inputs(inputs), dict[str, Any]()
        code = self._code
        for name in dict.fromkeys(code.plan.outputs):
            dtype, shape = code.plan.buffer(name).dtype.numpy, layout.shapes[name]
            buffer: Any = code.room(name, math.prod(shape) * dtype.itemsize)
            outputs[name], held[name] = DeviceTensor(buffer, code.driver, dtype, shape), buffer
        for name, _, _ in layout.outputs:
            self._give(name, held[name])
        return outputs, held

    def _take(
        self,
        queue: Any,
        layout: Layout,
        inputs: Sequence[Any],
        outputs: Mapping[str, Any],
        held: Mapping[str, AnyBuffer],
    ) -> None:
        there = {name for name, output in outputs.items() if isinstance(output, DeviceTensor)}
        in_place = {*outputs} if self._maps and not there else set[str]()
        names = {name for name, _, _ in layout.outputs}
        for name in there - names:
            self._copy_alias(queue, layout, inputs, name, held)
        super()._take(
            queue, layout, inputs, {n: x for n, x in outputs.items() if n not in there | in_place}, held
        )
        self._lent.clear()

    def _copy_alias(
        self, queue: Any, layout: Layout, inputs: Sequence[Any], name: str, held: Mapping[str, Any]
    ) -> None:
        """Enqueue a copy of an output that is an alias of an input, a constant, another output or a value
        between kernels."""
        plan, to = self._code.plan, held[name]
        buffer = plan.buffer(name)
        base = plan.buffer(buffer.base) if buffer.kind == "alias" else buffer
        size = self._bytes(layout, buffer)
        if base.kind == "input":
            source = inputs[plan.inputs.index(base.name)]
            if isinstance(source, Taken):
                self._copy_on_device(base.name, to, source)
            elif size:
                queue.write(to, source)
            return
        if base.kind == "arena":
            at: Any = self._part(layout.placement.offsets[base.name], max(1, size))
        else:
            at = self._code.constants[base.name] if base.kind == "constant" else held[base.name]
        if size:
            _copy_rows(queue, to.handle, at.handle, Piece(0, 0, size, 1, size, size))

    def _found_again(self, layout: Layout, inputs: Sequence[Any]) -> Exception | None:
        """See `Memory`. The fault has ended the memory of tensors on the device too, and zeros replace
        them."""
        there = [np.zeros(x.shape, x.dtype) if isinstance(x, Taken) else x for x in inputs]
        return super()._found_again(layout, there)


class _InPlace:
    """A caller's memory on the device, as a kernel's argument."""

    def __init__(self, handle: int, size: int) -> None:
        self.handle, self.size = handle, size


def _told(value: Any) -> str:
    """Return the description of a caller's tensor before it is taken."""
    kind = type(value)
    dtype = getattr(value, "dtype", "")
    sizes = ", ".join(map(str, shape_of(value)))
    return f"a {kind.__module__.partition('.')[0]} {kind.__name__} {dtype}[{sizes}]"
