"""Matrix products by CLBlast on OpenCL devices, enqueued between a plan's own kernels."""

from __future__ import annotations

import ctypes
import itertools
import json
from collections.abc import Sequence
from dataclasses import asdict
from functools import cache
from typing import Any

from jangin.ir.library import Matrix, Sgemm
from jangin.ir.records import dataclass
from jangin.runtime.device import LoadError
from jangin.runtime.devices.driver import DriverError, Kernel
from jangin.runtime.devices.opencl_library import Buffer, Queue
from jangin.runtime.libraries import absent, find

ROW_MAJOR, AS_IT_IS, TRANSPOSED = 101, 111, 112
"""CLBlast's codes for the layout and for plain and transposed operands (clblast_c.h)."""
_SIZE, _FLOAT, _HANDLE = ctypes.c_size_t, ctypes.c_float, ctypes.c_void_p
_OPERAND = (_HANDLE, _SIZE, _SIZE)
_SGEMM = (*(ctypes.c_int,) * 3, *(_SIZE,) * 3, _FLOAT, *_OPERAND, *_OPERAND, _FLOAT, *_OPERAND)
_BATCH = (
    *(ctypes.c_int,) * 3, *(_SIZE,) * 3, _FLOAT, *_OPERAND, _SIZE, *_OPERAND, _SIZE, _FLOAT, *_OPERAND,
    _SIZE, _SIZE,
)  # fmt: skip
_QUEUE = (ctypes.POINTER(_HANDLE), _HANDLE)


class Failed(DriverError):
    """CLBlast could not enqueue a product."""


def packed(sgemm: Sgemm) -> bytes:
    """Return a product's description as bytes, to be stored beside a kernel's code."""
    return json.dumps(asdict(sgemm), separators=(",", ":")).encode()


def unpacked(text: bytes) -> Sgemm:
    """Return the product that `packed` described. Raises LoadError if the bytes are damaged."""
    try:
        record = json.loads(text)
        left, right = (Matrix(**{**record[n], "outer": tuple(record[n]["outer"])}) for n in ("left", "right"))
        return Sgemm(**{**record, "left": left, "right": right, "outer": tuple(record["outer"])})
    except (ValueError, TypeError, KeyError) as error:
        raise LoadError(f"a product's description is damaged: {error}; compile the model again") from None


@cache
def _functions() -> tuple[Any, Any]:
    """Return CLBlast's SGEMM and its batched SGEMM. Raises LoadError if the library is missing."""
    library = find("clblast")
    if library is None:
        raise LoadError(f"the model was compiled to call another library: {absent('clblast')}")
    kinds = {"sgemm": (*_SGEMM, *_QUEUE), "batch": (*_BATCH, *_QUEUE)}
    one, batch = (
        ctypes.CFUNCTYPE(ctypes.c_int, *kinds[n])(library.functions[f"jangin_clblast_{n}"]) for n in kinds
    )
    return one, batch


@dataclass
class Product:
    """A kernel that calls CLBlast.

    `rest` is the kernel of the operators fused behind the product, or None. It has the same arguments as the
    replaced kernel. The methods are those of `runtime.devices.driver.Kernel`.
    """

    sgemm: Sgemm
    rest: Kernel | None

    def __post_init__(self) -> None:
        self._given: dict[int, Buffer] = {}
        _functions()

    def copy(self) -> Product:
        return Product(self.sgemm, self.rest and self.rest.copy())

    def set_arg(self, number: int, value: int | Buffer) -> None:
        s = self.sgemm
        if number in (s.left.param, s.right.param, s.result) and not isinstance(value, int):
            self._given[number] = value
        if self.rest is not None:
            self.rest.set_arg(number, value)

    def set_size(self, items: int, local: int) -> None:
        """Set the size of the kernel `rest`. The product's size is fixed."""
        if self.rest is not None:
            self.rest.set_size(items, local)

    def enqueue(self, queue: Queue) -> None:
        """Enqueue the product, then `rest`. Raises Failed."""
        self._enqueue_product(queue)
        if self.rest is not None:
            self.rest.enqueue(queue)

    def seconds(self, queue: Queue) -> float:
        """Run the product and `rest`, and return their seconds by the device's clock. `queue` must be
        timed."""
        before = queue.marker()
        self.enqueue(queue)
        after = queue.marker()
        return (after.span()[1] - before.span()[1]) / 1e9

    def _enqueue_product(self, queue: Queue) -> None:
        """Enqueue the product. The last outer axis is computed as one batch, and a loop goes over the other
        outer axes."""
        s, (one, batch) = self.sgemm, _functions()
        sizes = (
            ROW_MAJOR, *(TRANSPOSED if m.transposed else AS_IT_IS for m in (s.left, s.right)),
            s.rows, s.columns, s.depth, 1.0,
        )  # fmt: skip
        memory = [_HANDLE(self._given[n].handle) for n in (s.left.param, s.right.param, s.result)]
        places = list(itertools.product(*map(range, s.outer[:-1])))
        size = s.rows * s.columns
        many = s.outer[-1] if s.outer else 1
        handle = ctypes.byref(_HANDLE(queue.handle))
        for n, place in enumerate(places):
            starts = _from(s.left, place), _from(s.right, place), n * many * size
            a, b, c = zip(memory, starts, (s.left.lead, s.right.lead, s.columns), strict=True)
            if many == 1:
                status = one(*sizes, *a, *b, 0.0, *c, handle, None)
            else:
                steps = s.left.outer[-1], s.right.outer[-1], size
                status = batch(*sizes, *a, steps[0], *b, steps[1], 0.0, *c, steps[2], many, handle, None)
            if status:
                raise Failed(f"CLBlast gives the error {status}")


def _from(m: Matrix, place: Sequence[int]) -> int:
    """Return the index of an operand's first element, given indices of all outer axes but the last."""
    return m.start + sum(step * at for step, at in zip(m.outer, place, strict=False))
