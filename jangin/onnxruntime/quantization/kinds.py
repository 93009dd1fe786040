"""These classes describe a quantization: number types, file formats, calibration methods and data sources."""

from __future__ import annotations

import abc
from collections.abc import Iterator
from enum import Enum
from typing import Any


class QuantType(Enum):
    QInt8 = 0
    QUInt8 = 1
    QFLOAT8E4M3FN = 2
    QInt16 = 3
    QUInt16 = 4
    QInt4 = 5
    QUInt4 = 6


class QuantFormat(Enum):
    QOperator = 0
    QDQ = 1


class CalibrationMethod(Enum):
    MinMax = 0
    Entropy = 1
    Percentile = 2
    Distribution = 3


class QuantizationMode(Enum):
    IntegerOps = 0
    QLinearOps = 1


class CalibrationDataReader(abc.ABC):
    """The inputs of runs, one after another. `get_next` returns a dictionary, and None after the last run."""

    @abc.abstractmethod
    def get_next(self) -> dict[str, Any] | None: ...

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return self

    def __next__(self) -> dict[str, Any]:
        result = self.get_next()
        if result is None:
            raise StopIteration
        return result

    def __len__(self) -> int:
        raise NotImplementedError

    def set_range(self, start_index: int, end_index: int) -> None:
        """Restrict the reader to the runs of a range, if it can."""
        raise NotImplementedError
