"""Matrix products by cuBLASLt on NVIDIA's GPUs, enqueued between a plan's own kernels. Numbers are float32,
and nothing is rounded to tf32.

cuBLASLt's matrices have columns one behind the other. So it makes the transposed product, whose first operand
is the product's right one. Numbers of types, attributes and operations are those of cublasLt.h."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from functools import cache
from typing import Any

from jangin.ir.library import Matrix, Sgemm
from jangin.runtime.device import LoadError
from jangin.runtime.devices.cuda_objects import WORKSPACE, Context, Queue, timed
from jangin.runtime.devices.driver import DriverError, Kernel
from jangin.runtime.devices.products import Product, starts
from jangin.runtime.libraries import absent, find

_INT, _SIZE, _LONG, _HANDLE, _WORD = (
    ctypes.c_int, ctypes.c_size_t, ctypes.c_int64, ctypes.c_void_p, ctypes.c_uint64,
)  # fmt: skip
FLOAT32, COMPUTE = 0, 68
"""The numbers of float32 and of its full products (`CUDA_R_32F`, `CUBLAS_COMPUTE_32F`)."""
TRANSPOSED_A, TRANSPOSED_B, TRANSPOSED = 3, 4, 1
"""The numbers of a product's attributes for both operands, and the value of a transposed one."""
BATCH, STEP, MOST_WORKSPACE = 5, 6, 1
"""The numbers of attributes of matrices, for their count and distance, and of the most memory of a way."""
_NO_HEURISTIC = "it knows no way to make this product"
TYPES: Mapping[str, tuple[Any, ...]] = {
    "Create": (_HANDLE,),
    "MatmulDescCreate": (_HANDLE, _INT, _INT),
    "MatmulDescSetAttribute": (_HANDLE, _INT, _HANDLE, _SIZE),
    "MatrixLayoutCreate": (_HANDLE, _INT, _WORD, _WORD, _LONG),
    "MatrixLayoutSetAttribute": (_HANDLE, _INT, _HANDLE, _SIZE),
    "MatmulPreferenceCreate": (_HANDLE,),
    "MatmulPreferenceSetAttribute": (_HANDLE, _INT, _HANDLE, _SIZE),
    "MatmulAlgoGetHeuristic": (*(_HANDLE,) * 7, _INT, _HANDLE, _HANDLE),
    "Matmul": (_HANDLE, _HANDLE, _HANDLE, *(_WORD, _HANDLE) * 2, _HANDLE, *(_WORD, _HANDLE) * 2, _HANDLE,
               _WORD, _SIZE, _HANDLE),
    **{f"{name}Destroy": (_HANDLE,) for name in ("MatmulDesc", "MatrixLayout", "MatmulPreference")},
}  # fmt: skip
"""The library's functions, with their arguments' types. Each returns a status."""


class _Way(ctypes.Structure):
    """A way to make a product (`cublasLtMatmulHeuristicResult_t`)."""

    _fields_ = (
        ("algorithm", _WORD * 8), ("workspace", _SIZE), ("state", _INT), ("waves", ctypes.c_float),
        ("reserved", _INT * 4),
    )  # fmt: skip


class Failed(DriverError):
    """cuBLASLt could not enqueue a product."""


@cache
def _functions() -> Mapping[str, Any]:
    """Return the library's functions. Raises LoadError if the library is missing."""
    library = find("cublas")
    if library is None:
        raise LoadError(f"the model was compiled to call another library: {absent('cublas')}")
    return {name: ctypes.CFUNCTYPE(_INT, *types)(library.functions[name]) for name, types in TYPES.items()}


def _call(name: str, *given: Any) -> None:
    status = _functions()[name](*given)
    if status:
        raise Failed(f"cublasLt{name} gives the error {status}")


class _Object:
    """An object of the library, which is released with this Python object."""

    def __init__(self, kind: str, *given: Any) -> None:
        self._kind, handle = kind, _HANDLE()
        _call(f"{kind}Create", ctypes.byref(handle), *given)
        self.handle = handle.value

    def set(self, attribute: int, value: Any) -> None:
        _call(f"{self._kind}SetAttribute", self.handle, attribute, ctypes.byref(value), ctypes.sizeof(value))

    def __del__(self) -> None:
        if getattr(self, "handle", None):
            _functions()[f"{self._kind}Destroy"](self.handle)


def _opened(context: Context) -> Any:
    """Return the library's handle of a context. It goes with the context."""
    if "cublas" not in context.libraries:
        handle = _HANDLE()
        with context.entered():
            _call("Create", ctypes.byref(handle))
        context.libraries["cublas"] = handle.value
    return context.libraries["cublas"]


class Cublas(Product):
    """A product by cuBLASLt (see `runtime.devices.products`)."""

    def __init__(self, context: Context, sgemm: Sgemm, rest: Kernel | None) -> None:
        super().__init__(sgemm.params, rest)
        self._context, self._handle, self.sgemm, s = context, _opened(context), sgemm, sgemm
        self._what = _Object("MatmulDesc", COMPUTE, FLOAT32)
        for attribute, m in ((TRANSPOSED_A, s.right), (TRANSPOSED_B, s.left)):
            self._what.set(attribute, _INT(TRANSPOSED if m.transposed else 0))
        many, last = (s.outer[-1], -1) if s.outer else (1, 0)
        left, right = (m.outer[last] if m.outer else 0 for m in (s.left, s.right))
        self._layouts = (
            _layout(*_stored(s.right, s.depth, s.columns), many, right),
            _layout(*_stored(s.left, s.rows, s.depth), many, left),
            _layout(s.columns, s.rows, s.columns, many, s.rows * s.columns),
        )
        self._way = self._best()

    def _best(self) -> _Way:
        """Return the way that the library thinks the quickest."""
        wish, way, count = _Object("MatmulPreference"), _Way(), _INT()
        wish.set(MOST_WORKSPACE, _SIZE(WORKSPACE))
        layouts = [layout.handle for layout in (*self._layouts, self._layouts[-1])]
        with self._context.entered():
            _call("MatmulAlgoGetHeuristic", self._handle, self._what.handle, *layouts, wish.handle, 1,
                  ctypes.byref(way), ctypes.byref(count))  # fmt: skip
        if not count.value or way.state:
            raise Failed(_NO_HEURISTIC)
        return way

    def copy(self) -> Cublas:
        return Cublas(self._context, self.sgemm, self.rest and self.rest.copy())

    def seconds(self, queue: Queue) -> float:
        """Run the product and `rest`, and return their seconds by the device's clock."""
        return timed(self._context, queue, lambda: self.enqueue(queue))

    def _enqueue_product(self, queue: Queue) -> None:
        one, none = ctypes.c_float(1.0), ctypes.c_float(0.0)
        left, right, result = self._memory
        a, b, c = (layout.handle for layout in self._layouts)
        room = queue.workspace()
        with self._context.entered():
            for first in starts(self.sgemm):
                at = [m.handle + 4 * n for m, n in zip((left, right, result), first, strict=True)]
                _call("Matmul", self._handle, self._what.handle, ctypes.byref(one), at[1], a, at[0], b,
                      ctypes.byref(none), at[2], c, at[2], c, ctypes.byref(self._way), room.handle, room.size,
                      queue.handle)  # fmt: skip


def _stored(m: Matrix, rows: int, columns: int) -> tuple[int, int, int]:
    """Return the rows, the columns and their distance of an operand as the library sees it."""
    return (rows, columns, m.lead) if m.transposed else (columns, rows, m.lead)


def _layout(rows: int, columns: int, lead: int, many: int, step: int) -> _Object:
    """Return the description of matrices with `lead` elements from column to column, and `step` from one
    matrix to the next."""
    layout = _Object("MatrixLayout", FLOAT32, rows, columns, lead)
    if many > 1:
        layout.set(BATCH, _INT(many))
        layout.set(STEP, _LONG(step))
    return layout
