"""Implement ONNX's standard backend interface (`onnx.backend.base`) by `jangin.compile`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
import onnx
from onnx.backend.base import Backend, BackendRep, namedtupledict

import jangin
from jangin.ir.graph import Array, CompileError
from jangin.runtime.load import Runnable
from jangin.runtime.sizes import TensorSpec

MAX_SIZE = (1 << 31) - 1
"""The largest size that a free dimension may have, the largest int32. It is `ir.graph.MAX_SIZE`."""
T = TypeVar("T")


class JanginRep(BackendRep):  # type: ignore[misc]
    """A prepared model. It is compiled at once if the inputs' values aren't needed, else for the values of
    each run (see `specialised`)."""

    def __init__(self, model: onnx.ModelProto, options: Mapping[str, Any]) -> None:
        self.model, self.options = model, options
        constants = {t.name for t in model.graph.initializer}
        self.inputs = [i.name for i in model.graph.input if i.name not in constants]
        self.outputs = [o.name for o in model.graph.output]
        self.exe: Runnable | None = None
        try:
            self.exe = self._compile(model)
        except CompileError:
            if not any(_may_be_setting(i) for i in model.graph.input):
                raise

    def _compile(self, model: onnx.ModelProto) -> Runnable:
        options = {"shapes": _any_size(model), "cache": False, **self.options}
        exe: Runnable = jangin.compile(model, isolated=False, **options)
        return exe

    def run(self, inputs: Sequence[Any] | Mapping[str, Any] | Any, **kwargs: Any) -> tuple[Array, ...]:
        """Return the outputs in the model's order, for inputs in order or by name."""
        if isinstance(inputs, Mapping):
            feeds = dict(inputs)
        else:
            values = inputs if isinstance(inputs, (list, tuple)) else [inputs]
            feeds = dict(zip(self.inputs, values, strict=True))
        exe = self.exe or specialised(self._compile, self.model, feeds)
        results = exe.run({i.name: _given(feeds[i.name], i) for i in exe.inputs})
        kind = namedtupledict("Outputs", self.outputs)
        outputs: tuple[Array, ...] = kind(*(results[o] for o in self.outputs))
        return outputs


def _any_size(model: onnx.ModelProto) -> dict[str, tuple[int, int]]:
    """Return ranges from 0 on for every symbol of the model's inputs."""
    tensors = (i.type.tensor_type for i in model.graph.input if i.type.HasField("tensor_type"))
    names = {d.dim_param for t in tensors for d in t.shape.dim if d.dim_param}
    return dict.fromkeys(names, (0, MAX_SIZE))


def _given(value: Any, want: TensorSpec) -> Any:
    """Return an input for the executable. Sequences and optionals stay Python values."""
    return value if want.type else np.asarray(value)


def specialised(build: Callable[[onnx.ModelProto], T], model: onnx.ModelProto, feeds: Mapping[str, Any]) -> T:
    """Build a model that can't be compiled as it is, with this run's scalars and short vectors as constants.

    Such a model gets sizes, axes or limits only at run time. Integers become constants first, and floats too
    if that fails."""
    try:
        return build(_with_constants(model, _settings(feeds, "iub")))
    except CompileError:
        return build(_with_constants(model, _settings(feeds, "iubf")))


def _settings(feeds: Mapping[str, Any], kinds: str) -> dict[str, Array]:
    return {n: np.asarray(a) for n, a in feeds.items() if _is_setting(a, kinds)}


def _with_constants(model: onnx.ModelProto, values: Mapping[str, Array]) -> onnx.ModelProto:
    fixed = onnx.ModelProto()
    fixed.CopyFrom(model)
    fixed.graph.initializer.extend(onnx.numpy_helper.from_array(a, n) for n, a in values.items())
    return fixed


def _is_setting(value: Any, kinds: str) -> bool:
    """Tell if an input may hold settings such as sizes or axes, and not data."""
    if not isinstance(value, (np.ndarray, np.generic)):
        return False
    return value.ndim == 0 or (value.dtype.kind in kinds and value.ndim == 1 and value.size <= 64)


def _may_be_setting(info: onnx.ValueInfoProto) -> bool:
    return info.type.HasField("tensor_type") and len(info.type.tensor_type.shape.dim) <= 1


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
        return JanginRep(model, kwargs)

    @classmethod
    def run_node(
        cls,
        node: onnx.NodeProto,
        inputs: Sequence[Any],
        device: str = "CPU",
        outputs_info: Any = None,
        **kwargs: Any,
    ) -> tuple[Array, ...]:
        """Run one node and return its outputs. The opset is the newest, unless `opset_version` is given."""
        opset = kwargs.pop("opset_version", onnx.defs.onnx_opset_version())
        names = [n for n in node.input if n]
        feeds = dict(zip(names, map(np.asarray, inputs), strict=True))
        codes = {n: onnx.helper.np_dtype_to_tensor_dtype(a.dtype) for n, a in feeds.items()}
        infos = [onnx.helper.make_tensor_value_info(n, codes[n], a.shape) for n, a in feeds.items()]
        outs = [onnx.helper.make_empty_tensor_value_info(n) for n in node.output if n]
        graph = onnx.helper.make_graph([node], "node", infos, outs)
        imports = [onnx.helper.make_opsetid(node.domain, opset)]
        return cls.prepare(onnx.helper.make_model(graph, opset_imports=imports), device, **kwargs).run(feeds)

    @classmethod
    def supports_device(cls, device: str) -> bool:
        return device.split(":")[0] == "CPU"


prepare = JanginBackend.prepare
run_model = JanginBackend.run_model
run_node = JanginBackend.run_node
supports_device = JanginBackend.supports_device
is_compatible = JanginBackend.is_compatible
