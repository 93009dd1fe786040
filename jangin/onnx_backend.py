"""ONNX's standard backend interface (`onnx.backend.base`) over `jangin.compile`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
import onnx
from onnx.backend.base import Backend, BackendRep, namedtupledict

import jangin
from jangin.ir.graph import Array, CompileError

T = TypeVar("T")


class JanginRep(BackendRep):  # type: ignore[misc]
    """A prepared model. What its shapes depend on may be inputs; see `specialised`."""

    def __init__(self, model: onnx.ModelProto) -> None:
        self.model = model
        constants = {t.name for t in model.graph.initializer}
        self.inputs = [i.name for i in model.graph.input if i.name not in constants]
        self.outputs = [o.name for o in model.graph.output]

    def run(self, inputs: Sequence[Any] | Mapping[str, Any] | Any, **kwargs: Any) -> tuple[Array, ...]:
        """The outputs, in the model's order, for inputs in order or by name."""
        if isinstance(inputs, Mapping):
            feeds = dict(inputs)
        else:
            given = inputs if isinstance(inputs, (list, tuple)) else [inputs]
            feeds = dict(zip(self.inputs, given, strict=True))
        exe = specialised(lambda values: jangin.compile(self.model, values=values), feeds)
        results = exe.run({i.name: np.asarray(feeds[i.name]) for i in exe.inputs})
        kind = namedtupledict("Outputs", self.outputs)
        outputs: tuple[Array, ...] = kind(*(results[o] for o in self.outputs))
        return outputs


def specialised(build: Callable[[Mapping[str, Array]], T], feeds: Mapping[str, Any]) -> T:
    """`build({})`, or where that can't be compiled (sizes, axes or limits that are only given at run
    time), the model built for the values of this run's scalars and short integer vectors."""
    try:
        return build({})
    except CompileError as error:
        small = {n: np.asarray(a) for n, a in feeds.items() if _is_setting(a)}
        if not small:
            raise
        try:
            return build(small)
        except CompileError:
            raise error from None


def _is_setting(value: Any) -> bool:
    """Whether an input may hold sizes, axes and the like rather than data."""
    if not isinstance(value, (np.ndarray, np.generic)):
        return False
    return value.ndim == 0 or (value.dtype.kind in "iub" and value.ndim == 1 and value.size <= 64)


class JanginBackend(Backend):  # type: ignore[misc]
    """`onnx.backend.base.Backend` on this machine's CPU."""

    @classmethod
    def is_compatible(cls, model: onnx.ModelProto, device: str = "CPU", **kwargs: Any) -> bool:
        try:
            cls.prepare(model, device)
        except CompileError:
            return False
        return True

    @classmethod
    def prepare(cls, model: onnx.ModelProto, device: str = "CPU", **kwargs: Any) -> JanginRep:
        super().prepare(model, device, **kwargs)
        return JanginRep(model)

    @classmethod
    def supports_device(cls, device: str) -> bool:
        return device.split(":")[0] == "CPU"


prepare = JanginBackend.prepare
run_model = JanginBackend.run_model
run_node = JanginBackend.run_node
supports_device = JanginBackend.supports_device
is_compatible = JanginBackend.is_compatible
