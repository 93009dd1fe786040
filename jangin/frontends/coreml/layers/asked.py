"""Record which parameters of a layer are read. A parameter that is set but not read is an error."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

UNSAID = frozenset({"isUpdatable"})
"""Parameters that change no result, in all layers."""
_NUMBER = frozenset({"alpha"})
_BIAS = frozenset({"bias"})
IDLE: Mapping[str, frozenset[str]] = {
    **dict.fromkeys(("add", "equal", "greaterEqual", "greaterThan", "lessEqual", "lessThan", "multiply",
                     "notEqual"), _NUMBER),
    **dict.fromkeys(("embedding", "embeddingND", "innerProduct"), _BIAS),
    **dict.fromkeys((f"reduce{n}" for n in ("L1", "L2", "LogSum", "LogSumExp", "Max", "Mean", "Min", "Prod",
                                           "Sum", "SumSquare")), frozenset({"axes"})),
    "batchedMatmul": frozenset({"bias", "transposeA", "transposeB", "weightMatrixFirstDimension",
                                "weightMatrixSecondDimension", "weights"}),
    "batchnorm": frozenset({"mean", "variance"}), "biDirectionalLSTM": frozenset({"weightParams"}),
    "convolution": frozenset({"bias", "outputShape", "same", "valid"}),
    "convolution3d": frozenset({"bias", "outputShape"}), "crop": frozenset({"offset"}),
    "gru": frozenset({"resetGateBiasVector", "outputGateBiasVector", "updateGateBiasVector"}),
    "mvn": frozenset({"epsilon"}),
    "pooling": frozenset({"avgPoolExcludePadding", "includeLastPixel", "kernelSize", "same", "stride",
                          "valid"}),
    "pooling3d": frozenset({"countExcludePadding"}), "reduce": frozenset({"epsilon"}),
    "scale": frozenset({"bias", "shapeBias"}), "simpleRecurrent": frozenset({"biasVector"}),
    "splitND": frozenset({"numSplits"}), "squeeze": frozenset({"axes"}), "topK": frozenset({"K"}),
    "unary": frozenset({"alpha", "epsilon"}), "uniDirectionalLSTM": frozenset({"weightParams"}),
    "upsample": frozenset({"linearUpsampleMode"}),
}  # fmt: skip
"""Parameters that have no effect if another parameter says so, by layer.

A bias's parameters have no effect without a bias. A window's parameters have none if a pool covers all
elements. A number has none if there are two inputs."""


class Asked:
    """A message of Core ML that records which of its fields are read. The fields are read as attributes."""

    def __init__(self, message: Any) -> None:
        self._message = message
        self._read: set[str] = set()
        self._inner: dict[str, list[Asked]] = {}

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._message, name)
        field = self._message.DESCRIPTOR.fields_by_name.get(name)
        if field is None:
            return value
        self._read.add(name)
        if field.message_type is None:
            return value
        several = not hasattr(value, "ListFields")
        inner = self._inner.setdefault(name, [*map(Asked, value if several else [value])])
        return inner if several else inner[0]

    def WhichOneof(self, name: str) -> str | None:
        field: str | None = self._message.WhichOneof(name)
        if field:
            self._read.add(field)
        return field

    def unread(self) -> Iterator[str]:
        """Yield the names of the fields that are set but weren't read. The name of a field in an inner
        message is joined to the outer field's by "."."""
        for field, value in self._message.ListFields():
            if field.name in UNSAID:
                continue
            if field.name not in self._read:
                yield field.name
            elif field.message_type is not None:
                several = not hasattr(value, "ListFields")
                inner = self._inner.get(field.name)
                messages = [*map(Asked, value if several else [value])] if inner is None else inner
                yield from (f"{field.name}.{name}" for part in messages for name in part.unread())
