"""Products that another maker's library enqueues between a device's own kernels: CLBlast's and
cuBLAS's products of matrices, and cuDNN's convolutions."""

from __future__ import annotations

import itertools
import json
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any, Self

from jangin.ir.library import Convolution, Matrix, Sgemm
from jangin.runtime.device import LoadError
from jangin.runtime.devices.driver import Kernel


def packed(product: Sgemm | Convolution) -> bytes:
    """Return a product's description as bytes, to be stored beside a kernel's code."""
    return json.dumps(asdict(product), separators=(",", ":")).encode()


def unpacked(text: bytes) -> Sgemm | Convolution:
    """Return the product that `packed` described. Raises LoadError if the bytes are damaged."""
    try:
        record = json.loads(text)
        if "window" in record:
            sizes: dict[str, Any] = {n: tuple(v) if isinstance(v, list) else v for n, v in record.items()}
            return Convolution(**sizes)
        left, right = (Matrix(**{**record[n], "outer": tuple(record[n]["outer"])}) for n in ("left", "right"))
        return Sgemm(**{**record, "left": left, "right": right, "outer": tuple(record["outer"])})
    except (ValueError, TypeError, KeyError) as error:
        raise LoadError(f"a product's description is damaged: {error}; compile the model again") from None


def starts(s: Sgemm) -> Iterator[tuple[int, int, int]]:
    """Yield the index of the first element of both operands and of the result, for each call of the library.
    The last outer axis is one batch, and calls go over the other outer axes."""
    size, many = s.rows * s.columns, s.outer[-1] if s.outer else 1
    for n, place in enumerate(itertools.product(*map(range, s.outer[:-1]))):
        left, right = (
            m.start + sum(step * at for step, at in zip(m.outer, place, strict=False))
            for m in (s.left, s.right)
        )
        yield left, right, n * many * size


class Product(ABC):
    """A kernel that calls a library. `params` are the numbers of its arguments: both operands and the result.

    `rest` is the kernel of the operators fused behind the product, or None. It has the same arguments as the
    replaced kernel. The methods are those of `runtime.devices.driver.Kernel`."""

    def __init__(self, params: Sequence[int], rest: Kernel | None) -> None:
        self._params, self.rest = params, rest
        self._given: dict[int, Any] = {}

    @abstractmethod
    def copy(self) -> Self: ...

    @abstractmethod
    def _enqueue_product(self, queue: Any) -> None: ...

    @abstractmethod
    def seconds(self, queue: Any) -> float: ...

    @property
    def _memory(self) -> Sequence[Any]:
        """The buffers of both operands and of the result."""
        return [self._given[n] for n in self._params]

    def set_arg(self, number: int, value: Any) -> None:
        if number in self._params and not isinstance(value, int):
            self._given[number] = value
        if self.rest is not None:
            self.rest.set_arg(number, value)

    def set_size(self, items: int, local: int) -> None:
        """Set the size of the kernel `rest`. The product's size is fixed."""
        if self.rest is not None:
            self.rest.set_size(items, local)

    def enqueue(self, queue: Any) -> None:
        """Enqueue the product, then `rest`. Raises DriverError."""
        self._enqueue_product(queue)
        if self.rest is not None:
            self.rest.enqueue(queue)
