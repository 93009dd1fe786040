"""Matrix products by CLBlast on OpenCL devices, enqueued between a plan's own kernels."""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any

from jangin.ir.library import Sgemm
from jangin.runtime.device import LoadError
from jangin.runtime.devices.driver import DriverError, Kernel
from jangin.runtime.devices.opencl_library import Queue
from jangin.runtime.devices.products import Product, starts
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


class Clblast(Product):
    """A product by CLBlast (see `runtime.devices.products`)."""

    def __init__(self, sgemm: Sgemm, rest: Kernel | None) -> None:
        super().__init__(sgemm.params, rest)
        self.sgemm = sgemm
        _functions()

    def copy(self) -> Clblast:
        return Clblast(self.sgemm, self.rest and self.rest.copy())

    def seconds(self, queue: Queue) -> float:
        """Run the product and `rest`, and return their seconds by the device's clock. `queue` must be
        timed."""
        before = queue.marker()
        self.enqueue(queue)
        after = queue.marker()
        return (after.span()[1] - before.span()[1]) / 1e9

    def _enqueue_product(self, queue: Queue) -> None:
        s, (one, batch) = self.sgemm, _functions()
        sizes = (
            ROW_MAJOR, *(TRANSPOSED if m.transposed else AS_IT_IS for m in (s.left, s.right)),
            s.rows, s.columns, s.depth, 1.0,
        )  # fmt: skip
        memory = [_HANDLE(m.handle) for m in self._memory]
        many = s.outer[-1] if s.outer else 1
        handle = ctypes.byref(_HANDLE(queue.handle))
        for first in starts(s):
            a, b, c = zip(memory, first, (s.left.lead, s.right.lead, s.columns), strict=True)
            if many == 1:
                status = one(*sizes, *a, *b, 0.0, *c, handle, None)
            else:
                steps = s.left.outer[-1], s.right.outer[-1], s.rows * s.columns
                status = batch(*sizes, *a, steps[0], *b, steps[1], 0.0, *c, steps[2], many, handle, None)
            if status:
                raise Failed(f"CLBlast gives the error {status}")
