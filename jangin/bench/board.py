"""Run an emitted model with Python's standard library alone, as a benchmark worker does.

`python board.py LIBRARY PREFIX THREADS SIZES` runs the shared library that `jangin compile --emit shared`
made, on a machine that needs nothing else. The inputs' bytes are in LIBRARY.inputs, and SIZES are the
model's free sizes with commas. The lines of JSON are those of `bench/worker.py`, and two more: outputs are
answered as text in "data", and {"op": "clock"} with {"clock"}.

No part of Jangin is imported, and the syntax is that of Python 3.8."""

from __future__ import annotations

import base64
import ctypes
import json
import os
import sys
import threading
import time
import zlib
from collections.abc import Callable
from typing import Any

ALIGNMENT = 64
"""The alignment of memory for a run, in bytes: a cache line's."""


class Net:
    """An emitted model, loaded as a shared library. `inputs` are the addresses of its inputs, and this object
    has the memory of its outputs."""

    def __init__(self, path: str, prefix: str, threads: int, sizes: list[int]) -> None:
        self._library, self._prefix, self._threads = ctypes.CDLL(path), prefix, threads
        self._sizes = (ctypes.c_int64 * max(1, len(sizes)))(*sizes)
        self.input_bytes = self._all("input")
        self.outputs = [aligned(n) for n in self._all("output")]
        room = self._known("arena_bytes", self._sizes, threads)
        self._arena, self._room = aligned(room), ctypes.c_int64(room)
        self._run = self._function("run", ctypes.c_int32)
        start = f"{prefix}_start_threads"
        if threads > 1 and hasattr(self._library, start) and getattr(self._library, start)(threads):
            raise OSError(f"the model's {threads} threads could not be started")
        self._state = aligned(self._known("state_bytes")) if self._keeps_state else None
        if self._state is not None:
            self._known("reset", ctypes.c_void_p(address(self._state)))

    @property
    def _keeps_state(self) -> bool:
        """Whether the model has a state, which is then the first argument of its runs."""
        return hasattr(self._library, self._prefix + "_state_bytes")

    def _function(self, name: str, gives: Any) -> Any:
        function = getattr(self._library, self._prefix + "_" + name)
        function.restype = gives
        return function

    def _known(self, name: str, *arguments: Any) -> int:
        kind = ctypes.c_int64 if name.endswith("_bytes") else ctypes.c_int32
        number = int(self._function(name, kind)(*arguments))
        if number < 0:
            raise ValueError(self._text(number))
        return number

    def _text(self, code: int) -> str:
        text = self._function("error_text", ctypes.c_char_p)(code)
        return f"error {code}" if text is None else str(text.decode())

    def _all(self, kind: str) -> list[int]:
        return [self._known(kind + "_bytes", n, self._sizes) for n in range(self._known(kind + "_count"))]

    @property
    def version(self) -> str:
        return str(self._function("version", ctypes.c_char_p)().decode())

    def shape(self, index: int) -> list[int]:
        """Return the shape of an output."""
        rank = self._known("output_shape", index, self._sizes, None)
        dims = (ctypes.c_int64 * max(1, rank))()
        self._known("output_shape", index, self._sizes, dims)
        return list(dims)[:rank]

    def type(self, index: int) -> str:
        """Return the type of an output's elements, such as f32."""
        return str(self._function("output_type", ctypes.c_char_p)(index).decode())

    def call(self, inputs: list[int]) -> Callable[[], None]:
        """Return a function that runs the model on inputs at these addresses."""
        tables = [
            (ctypes.c_void_p * max(1, len(addresses)))(*addresses)
            for addresses in (inputs, [address(o) for o in self.outputs])
        ]
        at = ctypes.c_void_p(address(self._arena))
        state = [] if self._state is None else [ctypes.c_void_p(address(self._state))]
        arguments = (*state, *tables, self._sizes, at, self._room, self._threads)

        def run() -> None:
            code = self._run(*arguments)
            if code:
                raise ValueError(self._text(code))

        return run


def aligned(size: int) -> Any:
    """Return writable memory of some bytes that begins at a multiple of ALIGNMENT."""
    room = ctypes.create_string_buffer(size + ALIGNMENT)
    return (ctypes.c_char * size).from_buffer(room, -ctypes.addressof(room) % ALIGNMENT)


def address(memory: Any) -> int:
    return ctypes.addressof(memory)


def turn(call: Callable[[], None], seconds: float) -> dict[str, Any]:
    """Call a function for about `seconds`. Return the nanoseconds of each call, and the times when the first
    began and the last ended."""
    call()
    times: list[int] = []
    began, busy = time.monotonic(), _busy()
    end = time.perf_counter() + seconds
    while not times or time.perf_counter() < end:
        start = time.perf_counter_ns()
        call()
        times.append(time.perf_counter_ns() - start)
    ended, others = time.monotonic(), _busy() - busy
    return {
        "nanoseconds": times, "began": began, "ended": ended, "others": max(0.0, others / (ended - began))
    }  # fmt: skip


def _busy() -> float:
    """Return the processor seconds of all other processes, or 0 if the system doesn't tell."""
    try:
        with open("/proc/stat") as file:
            fields = [int(n) for n in file.readline().split()[1:]]
    except OSError:
        return 0.0
    used = _used()
    return float(sum(fields[:3] + fields[5:8]) / os.sysconf("SC_CLK_TCK") - used.ru_utime - used.ru_stime)


def _used() -> Any:
    import resource  # some systems lack it, and the class `Net` doesn't need it

    return resource.getrusage(resource.RUSAGE_SELF)


def outputs(net: Net, call: Callable[[], None]) -> dict[str, Any]:
    call()
    data = [base64.b85encode(zlib.compress(bytes(o.raw), 1)).decode() for o in net.outputs]
    shapes = [net.shape(n) for n in range(len(data))]
    types = [net.type(n) for n in range(len(data))]
    peak = _used().ru_maxrss << 10
    return {"peak_bytes": peak, "data": data, "shapes": shapes, "types": types}


def main(library: str, prefix: str, threads: str, sizes: str) -> None:
    """Answer requests from standard input, until the input ends or the process that started this one ends."""
    parent = os.getppid()
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()

    def answer(message: dict[str, Any]) -> None:
        print(json.dumps(message), flush=True)

    try:
        start = time.perf_counter()
        net = Net(library, prefix, int(threads), [int(n) for n in sizes.split(",") if n])
        held = []
        with open(library + ".inputs", "rb") as file:
            for size in net.input_bytes:
                memory = aligned(size)
                memory.raw = file.read(size)
                held.append(memory)
        call = net.call([address(m) for m in held])
        call()
        first = time.perf_counter() - start
    except (OSError, ValueError, AttributeError) as error:
        answer({"error": f"{type(error).__name__}: {error}", "absent": False})
        return
    answer(
        {"version": net.version, "compile_seconds": 0.0, "first_seconds": first, "work": 0.0, "memory": {}}
    )
    for line in sys.stdin:
        request = json.loads(line)
        try:
            if request["op"] == "turn":
                answer(turn(call, request["seconds"]))
            elif request["op"] == "clock":
                answer({"clock": time.monotonic()})
            else:
                answer(outputs(net, call))
        except ValueError as error:
            answer({"error": str(error), "absent": False})


def _end_with(parent: int) -> None:
    """End this process when the process `parent` has ended, for example after a broken connection."""
    while os.getppid() == parent:
        time.sleep(1.0)
    os._exit(1)


if __name__ == "__main__":
    main(*sys.argv[1:])
