"""`IOBinding`: inputs and outputs of runs that are bound in advance, in arrays or in a caller's memory."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from jangin.ir.graph import Array
from jangin.onnxruntime.devices import OrtDevice, on_cpu
from jangin.onnxruntime.errors import InvalidArgument
from jangin.onnxruntime.said import nearest
from jangin.onnxruntime.values import OrtValue, OrtValueVector, at_address

if TYPE_CHECKING:
    from jangin.onnxruntime.session import Session


class IOBinding:
    """An IOBinding has the inputs that `run_with_iobinding` reads, and the places of the outputs that it
    writes.

    Inputs are read in place. An output is copied at the end of a run if it is bound to memory."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self._inputs: dict[str, OrtValue] = {}
        self._outputs: dict[str, OrtValue | None] = {}
        self._made: dict[str, OrtValue] = {}

    @property
    def feeds(self) -> dict[str, Any]:
        return {name: value.python() for name, value in self._inputs.items()}

    @property
    def wanted(self) -> list[str]:
        return [*self._outputs]

    def bind_cpu_input(self, name: str, arr_on_cpu: Any) -> None:
        """Bind an input to an array. Runs read the array in place."""
        self._known(name, (i.name for i in self.session.get_inputs()))
        self._inputs[name] = OrtValue.holding(np.asarray(arr_on_cpu, order="C"))

    def bind_input(
        self,
        name: str,
        device_type: str,
        device_id: int,
        element_type: Any,
        shape: Sequence[int],
        buffer_ptr: int,
    ) -> None:
        """Bind an input to the memory at an address. Runs read it in place."""
        on_cpu(device_type, device_id)
        self._known(name, (i.name for i in self.session.get_inputs()))
        self._inputs[name] = OrtValue.holding(at_address(buffer_ptr, shape, element_type))

    def bind_ortvalue_input(self, name: str, ortvalue: OrtValue) -> None:
        self._known(name, (i.name for i in self.session.get_inputs()))
        self._inputs[name] = ortvalue

    def bind_output(
        self,
        name: str,
        device_type: str = "cpu",
        device_id: int = 0,
        element_type: Any = None,
        shape: Sequence[int] | None = None,
        buffer_ptr: int | None = None,
    ) -> None:
        """Bind an output to the memory at an address. Without an address, each run makes a new array for
        it."""
        on_cpu(device_type, device_id)
        self._known(name, (o.name for o in self.session.get_outputs()))
        if buffer_ptr is None:
            self._outputs[name] = None
        elif element_type is None or shape is None:
            raise ValueError(
                "`element_type` and `shape` are to be provided if pre-allocated memory is provided"
            )
        else:
            self._outputs[name] = OrtValue.holding(at_address(buffer_ptr, shape, element_type))

    def bind_ortvalue_output(self, name: str, ortvalue: OrtValue) -> None:
        self._known(name, (o.name for o in self.session.get_outputs()))
        self._outputs[name] = ortvalue

    def synchronize_inputs(self) -> None:
        """Does nothing, because inputs are in the CPU's memory."""

    def synchronize_outputs(self) -> None:
        """Does nothing, because a run ends when its outputs are written."""

    def get_outputs(self) -> list[OrtValue]:
        """Return the bound outputs of the last run, in the order in which they were bound."""
        return [self._made[name] for name in self._outputs if name in self._made]

    def get_outputs_as_ortvaluevector(self) -> OrtValueVector:
        return OrtValueVector(self.get_outputs())

    def copy_outputs_to_cpu(self) -> list[Any]:
        """Return the bound outputs of the last run as `InferenceSession.run` returns outputs."""
        return [value.python() for value in self.get_outputs()]

    def clear_binding_inputs(self) -> None:
        self._inputs.clear()

    def clear_binding_outputs(self) -> None:
        self._outputs.clear()
        self._made.clear()

    def take(self, made: Mapping[str, Any]) -> None:
        """Store a run's outputs as they are bound. Raises InvalidArgument if one has another shape or type
        than the memory that it is bound to."""
        for name, value in made.items():
            place = self._outputs[name]
            self._made[name] = OrtValue.holding(value) if place is None else _written(name, place, value)

    def _known(self, name: str, names: Iterable[str]) -> None:
        known = [*names]
        if name not in known:
            raise RuntimeError(
                f"Failed to find NodeArg with name: {name} in the def list{nearest(name, known)}"
            )


class SessionIOBinding(IOBinding):
    """An IOBinding with the name and the calls of ONNX Runtime's inner class."""

    def bind_input(self, name: str, *how: Any) -> None:
        """Bind an input to an array, or to a device, an element type, a shape and an address."""
        if len(how) == 1:
            self.bind_cpu_input(name, how[0])
        elif isinstance(how[0], OrtDevice):
            super().bind_input(name, "cpu", 0, *how[1:])
        else:
            super().bind_input(name, *how)

    def bind_output(self, name: str, *how: Any) -> None:
        """Bind an output to a device, or also to an element type, a shape and an address."""
        if how and isinstance(how[0], OrtDevice):
            super().bind_output(name, "cpu", 0, *how[1:])
        else:
            super().bind_output(name, *how)


def _written(name: str, place: OrtValue, value: Array) -> OrtValue:
    try:
        place.update_inplace(value)
    except ValueError as error:
        raise InvalidArgument.said(f"the memory bound to output {name}: {error}") from None
    return place
