"""Memory, queues and kernels of a WebGPU device (see `runtime.devices.driver`)."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from threading import Lock
from typing import Any

import numpy as np
import wgpu

from jangin.ir.graph import Array
from jangin.runtime.devices.driver import DriverError
from jangin.runtime.devices.webgpu_adapters import BINDING, STORAGE, Adapter
from jangin.runtime.devices.wgsl import (
    F16,
    SUBGROUPS,
    WORD,
    Bindings,
    Range,
    Shader,
    bind,
    extent,
    launch_numbers,
    rows,
    words,
)
from jangin.runtime.devices.wgsl_loops import ENDED, iterations

MOST = (1 << 31) - 1
"""The largest number that a launch may give a shader."""
CLOCK = "timestamp-query"
"""The feature of adapters that record when a pass begins and ends."""
FEATURES = {"subgroup": SUBGROUPS, "shader-f16": F16}
"""wgpu's names of the features for which shaders have another form, and WebGPU's."""
KEPT = 64
"""The most prepared launches that a kernel keeps, each for certain numbers and memory. If there are more, all
are dropped and prepared again when needed."""
PATIENCE = 0.5
"""Seconds after which a wait asks the device itself whether it is done. Usually wgpu's thread tells."""
TEXT = 1200
"""The most characters of a device's messages that an error repeats, some 15 lines. The first messages tell
the cause."""
_USES = wgpu.BufferUsage.STORAGE | wgpu.BufferUsage.COPY_SRC | wgpu.BufferUsage.COPY_DST
_STAGED = wgpu.BufferUsage.MAP_READ | wgpu.BufferUsage.COPY_DST


class Error(DriverError):
    """WebGPU refused a call. The text is WebGPU's."""

    def __init__(self, error: Exception | str) -> None:
        super().__init__(" ".join(str(error).split())[:TEXT])
        self._full = isinstance(error, wgpu.GPUOutOfMemoryError)

    @property
    def lost(self) -> bool:
        return "device is lost" in str(self)

    @property
    def full(self) -> bool:
        return self._full


@contextmanager
def told() -> Iterator[None]:
    """Raise WebGPU's errors as `Error`."""
    try:
        yield
    except wgpu.GPUError as error:
        raise Error(error) from error


class Opened:
    """An open device, with its adapter's values of the limits that Jangin needs, and the pipelines made on
    it."""

    def __init__(self, adapter: Adapter, limits: Sequence[str]) -> None:
        self.adapter = adapter
        wanted = {name: adapter.limit(name) for name in limits}
        with told():
            features = [f for f in (CLOCK, *FEATURES) if f in adapter.features]
            self.timed, self.features = CLOCK in features, {FEATURES[f] for f in features if f in FEATURES}
            self.device = adapter.handle.request_device_sync(
                required_features=features, required_limits=wanted
            )
            self.word = Buffer(self.device.create_buffer(size=WORD, usage=_USES), WORD)
        self.most_buffers, self.most_bytes = adapter.limit(STORAGE), adapter.limit(BINDING)
        self.ends_loops = "llvmpipe" in str(adapter)
        self._pipelines: dict[str, Any] = {}
        self._layouts: dict[int, tuple[Any, Any]] = {}
        self._lock = Lock()

    @property
    def lost(self) -> bool:
        """Whether the device is lost, which only a new object tells."""
        try:
            with told():
                self.device.create_buffer(size=WORD, usage=_USES)
        except Error as error:
            return error.lost
        return False

    def layouts(self, count: int) -> tuple[Any, Any]:
        """Return the layouts of the bindings and of the pipeline, for a shader with `count` buffers."""
        with self._lock:
            if count not in self._layouts:
                kinds = [wgpu.BufferBindingType.storage] * count + [wgpu.BufferBindingType.uniform]
                entries = [
                    {"binding": n, "visibility": wgpu.ShaderStage.COMPUTE, "buffer": {"type": kind}}
                    for n, kind in enumerate(kinds)
                ]
                group = self.device.create_bind_group_layout(entries=entries)
                whole = self.device.create_pipeline_layout(bind_group_layouts=[group])
                self._layouts[count] = group, whole
            return self._layouts[count]

    def text(self, shader: Shader, bindings: Bindings | None = None) -> str:
        """Return the text of a shader's form for the device."""
        text = shader.text(bindings, self.features)
        return f"enable f16;\n{text}" if "f16" in text and F16 in self.features else text

    def pipeline(self, text: str, count: int) -> Any:
        """Return the pipeline of a shader's text. It is made only once."""
        compiled = self._pipelines.get(text)
        if compiled is None:
            module = self.device.create_shader_module(code=text)
            compiled = self.device.create_compute_pipeline(
                layout=self.layouts(count)[1], compute={"module": module, "entry_point": "main"}
            )
            compiled = self._pipelines.setdefault(text, compiled)
        return compiled


class Buffer(Range):
    """Memory of the device, or a part of it."""

    def part(self, offset: int, size: int) -> Buffer:
        return Buffer(self.handle, size, self.start + offset)


def made(opened: Opened, size: int, array: Array | None) -> Buffer:
    """Make a buffer of `size` bytes, with an array's contents if one is given."""
    with told():
        buffer = Buffer(opened.device.create_buffer(size=rows(size), usage=_USES), size)
        if array is not None:
            _write(opened, buffer, array)
    return buffer


def _write(opened: Opened, to: Buffer, array: Array) -> None:
    raw = array.reshape(-1).view(np.uint8)
    whole = len(raw) // WORD * WORD
    if whole:
        opened.device.queue.write_buffer(to.handle, to.start, raw[:whole])
    if len(raw) > whole:
        last = np.zeros(WORD, np.uint8)
        last[: len(raw) - whole] = raw[whole:]
        opened.device.queue.write_buffer(to.handle, to.start + whole, last)


def _map(opened: Opened, staged: Any) -> None:
    """Wait until a buffer can be read. Raises Error if the device is lost.

    A thread of wgpu asks the device whether it is done. It ends if the device is destroyed, so this function
    asks too."""
    try:
        promise = staged.map_async(wgpu.MapMode.READ)
        while not promise._thread_event.wait(PATIENCE):
            opened.device._poll()
        promise.sync_wait()
        gone = opened.device._poller is None
    except (AttributeError, RuntimeError) as error:
        if "poll" not in str(error).lower() and "get_token" not in str(error):
            raise
        raise Error(f"the device is lost ({error})") from error
    if gone:  # reading mapped memory of a destroyed device ends the process
        raise Error("the device is lost: it was destroyed")


class Queue:
    """Commands, which are submitted as one command buffer when the queue is finished."""

    def __init__(self, opened: Opened) -> None:
        self._opened = opened
        self._encoder: Any = None
        self._pass: Any = None
        self._clock: Any = None
        self._reads: list[tuple[Array, Any]] = []

    def write(self, to: Buffer, array: Array) -> None:
        self._submit()
        with told():
            _write(self._opened, to, array)

    def read(self, array: Array, of: Buffer) -> None:
        """Enqueue a copy to memory that the host can map. `finish` copies from there to the array."""
        with told():
            size = words(array.nbytes)
            staged = self._opened.device.create_buffer(size=size, usage=_STAGED)
            self._commands().copy_buffer_to_buffer(of.handle, of.start, staged, 0, size)
        self._reads.append((array, staged))

    def show(self, buffer: Buffer) -> None:
        """Do nothing, because the adapter's memory isn't the host's."""

    def recorded(self, enqueue: Callable[[], None]) -> Callable[[], None]:
        """Return `enqueue` itself. A command buffer is used only once, so that launches are enqueued anew."""
        return enqueue

    def finish(self) -> None:
        """Wait until all commands are done. Only a read waits, so a word is read if nothing else is."""
        if not self._reads:
            self.read(np.empty(1, np.uint32), self._opened.word)
        self._submit()
        reads, self._reads = self._reads, []
        with told():
            for array, staged in reads:
                _map(self._opened, staged)
                raw = np.frombuffer(staged.read_mapped(), np.uint8)[: array.nbytes]
                array.reshape(-1).view(np.uint8)[:] = raw
                staged.unmap()

    def dispatch(self, pipeline: Any, group: Any, groups: int) -> None:
        with told():
            if self._pass is None:
                self._commands()
                self._pass = self._encoder.begin_compute_pass(timestamp_writes=self._clock)
            self._pass.set_pipeline(pipeline)
            self._pass.set_bind_group(0, group)
            self._pass.dispatch_workgroups(*extent(groups))

    def timed_by(self, stamps: Any) -> None:
        """Let the next dispatches record when they begin and end."""
        self._submit()
        self._clock = {
            "query_set": stamps, "beginning_of_pass_write_index": 0, "end_of_pass_write_index": 1,
        }  # fmt: skip

    def stamps(self, stamps: Any) -> Array:
        """Return the begin and the end of the timed dispatches, in nanoseconds of the device's clock."""
        uses = wgpu.BufferUsage.QUERY_RESOLVE | wgpu.BufferUsage.COPY_SRC
        resolved = Buffer(self._opened.device.create_buffer(size=16, usage=uses), 16)
        self._commands().resolve_query_set(stamps, 0, 2, resolved.handle, 0)
        times, self._clock = np.empty(2, np.uint64), None
        self.read(times, resolved)
        self.finish()
        return times

    def _commands(self) -> Any:
        """Return the encoder of commands other than dispatches, after ending the current pass of
        dispatches."""
        if self._encoder is None:
            self._encoder = self._opened.device.create_command_encoder()
        if self._pass is not None:
            self._pass.end()
            self._pass = None
        return self._encoder

    def _submit(self) -> None:
        if self._encoder is None:
            return
        try:
            with told():
                self._opened.device.queue.submit([self._commands().finish()])
        finally:
            self._encoder = self._pass = None


class Kernel:
    """A shader with its own arguments. Buffers in the same memory become one binding if they overlap, or if
    there are more buffers than a shader may have."""

    def __init__(self, opened: Opened, shader: Shader) -> None:
        self._opened, self._shader = opened, shader
        self._given: dict[int, Any] = {}
        self._groups = 0
        self._ready: dict[tuple[int, ...], tuple[Any, Any]] = {}

    def copy(self) -> Kernel:
        return Kernel(self._opened, self._shader)

    def set_arg(self, number: int, value: int | Buffer) -> None:
        if isinstance(value, Buffer):
            if self._given.get(number) is not value:
                self._ready.clear()
        elif value > MOST:
            raise Error(f"a size of {value} is more than the {MOST} that WGSL counts to")
        self._given[number] = value

    def set_size(self, items: int, local: int) -> None:
        self._groups = items // local

    def enqueue(self, queue: Queue) -> None:
        pipeline, group = self._launch()
        queue.dispatch(pipeline, group, self._groups)

    def seconds(self, queue: Queue) -> float:
        """Run a launch, and return its seconds by the device's clock. If the device has no clock, the host's
        clock includes the time to submit and wait."""
        if not self._opened.timed:
            start = time.perf_counter()
            self.enqueue(queue)
            queue.finish()
            return time.perf_counter() - start
        with told():
            stamps = self._opened.device.create_query_set(type=wgpu.QueryType.timestamp, count=2)
            queue.timed_by(stamps)
            self.enqueue(queue)
            first, last = queue.stamps(stamps)
        return max(0, int(last) - int(first)) / 1e9

    def _launch(self) -> tuple[Any, Any]:
        """Return the pipeline and its bindings for the arguments set now."""
        shader = self._shader
        first = shader.buffers
        own = shader.sizes - 1 if shader.rounds else shader.sizes
        *numbers, scratch, stride = (self._given[n] for n in range(first, first + own + 5))
        sizes, (tasks, turn, rounds) = numbers[:own], numbers[own:]
        key = (*sizes, tasks, turn, rounds, stride, self._groups)
        bound = self._ready.get(key)
        if bound is None:
            if len(self._ready) >= KEPT:
                self._ready.clear()
            memory = [self._given[n] for n in range(first)] + ([scratch] if shader.scratch else [])
            values = launch_numbers(tasks, self._groups, stride, turn, rounds)
            values |= {f"s{n}": size for n, size in enumerate(sizes)}
            self._check_loops(values)
            with told():
                bound = self._ready[key] = self._bound(memory, values)
        return bound

    def _check_loops(self, values: dict[str, int]) -> None:
        """Raise Error if the adapter ends the kernel's loops too early."""
        if self._opened.ends_loops and (made := iterations(self._shader.body, values)) > ENDED:
            raise Error(
                f"it ends the loops of a work-item after {ENDED} iterations without an error, and this "
                f"kernel makes {made}"
            )

    def _bound(self, memory: Sequence[Buffer], values: dict[str, int]) -> tuple[Any, Any]:
        opened, shader = self._opened, self._shader
        try:
            bindings, starts, parts = bind(memory, opened.most_buffers, opened.most_bytes)
        except ValueError as error:
            raise Error(str(error)) from error
        for m, place, start in zip(shader.memories, memory, starts, strict=True):
            values[f"o{m}"] = (place.start - start) // WORD
        told_numbers = np.array(shader.values(values), np.int32)
        room = -(-told_numbers.nbytes // 16) * 16
        uniform = opened.device.create_buffer(
            size=room, usage=wgpu.BufferUsage.UNIFORM | wgpu.BufferUsage.COPY_DST
        )
        opened.device.queue.write_buffer(uniform, 0, told_numbers)
        entries = [
            {"binding": n, "resource": {"buffer": p.handle, "offset": p.start, "size": p.end - p.start}}
            for n, p in enumerate(parts)
        ]
        entries.append({"binding": len(parts), "resource": {"buffer": uniform, "offset": 0, "size": room}})
        group = opened.device.create_bind_group(layout=opened.layouts(len(parts))[0], entries=entries)
        text = opened.text(shader, bindings)
        return opened.pipeline(text, len(parts)), group
