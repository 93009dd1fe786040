"""Import NNEF models as graphs. Each operation becomes a node with the name of its first result.

A variable becomes a constant with the name of its label. An operation's literal arguments become attributes
with the standard's names. The attribute "tensors" lists the arguments that are inputs: (name, None), or
(name, count) for an array. A tensor in the quantization file is also passed through its quantization
operation.

A graph keeps nothing from run to run. A variable that is updated becomes an input, its value before the run,
and an output, its value after the run. The value in the variable's file counts while the input `STARTED` is
false, which it is in the first run."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from jangin.frontends.assemble import ShapeBindings, Symbols, model_graph
from jangin.frontends.nnef.files import GRAPH, QUANTIZATION, Files
from jangin.frontends.nnef.operators.common import DTYPES
from jangin.frontends.nnef.parser import Operation, Parsed, parse
from jangin.frontends.nnef.tensors import read_tensor
from jangin.ir.dtype import BOOL, from_numpy
from jangin.ir.expr import const
from jangin.ir.graph import Array, CompileError, Graph, ImportedAttributes, Node, Value
from jangin.ir.sources import Sources

MOST_ELEMENTS = 1 << 28
"""The most elements of a constant that repeats one number, 1 GiB of f32. Damaged files would otherwise take
all memory."""
STARTED = "state.started"
NAMES = {"scalar": "f", "integer": "iu", "logical": "b"}
"""For each type of a variable, NumPy's kinds of elements that its file may have."""


def imported_graph(files: Files, shapes: ShapeBindings) -> tuple[Graph, Mapping[str, str]]:
    """Return a model's graph, and a mapping from each input that is kept from run to run to the output that
    is its next value.

    Raises CompileError if the model is malformed."""
    parsed = parse(files.what, _text(files, GRAPH), _text(files, QUANTIZATION))
    importer = _Importer(files, parsed, Symbols(shapes))
    return importer.graph(), importer.state


def _text(files: Files, name: str) -> str:
    data = files.need(name) if name == GRAPH else files.find(name) or b""
    return bytes(data).decode()


class _Importer:
    """The import of one model."""

    def __init__(self, files: Files, parsed: Parsed, symbols: Symbols) -> None:
        self.files, self.parsed, self.symbols = files, parsed, symbols
        self.names: dict[str, str] = {}
        self.inputs: dict[str, Value] = {}
        self.constants: dict[str, Array] = {}
        self.nodes: list[Node] = []
        self.variables: dict[str, str] = {}
        self.updates: dict[str, str] = {}
        self.state: dict[str, str] = {}

    def graph(self) -> Graph:
        for operation in self.parsed.operations:
            if operation.name == "external":
                self._external(operation)
            elif operation.name == "variable":
                self._variable(operation)
            elif operation.name == "constant":
                self._constant(operation)
            else:
                self._node(operation)
        kept = self._kept() if self.updates else []
        outputs = [self._output(n, i) for i, n in enumerate(self.parsed.outputs)] + list(self.state.values())
        inputs = [self.inputs[n] for n in self.parsed.inputs] + kept
        return model_graph(self.parsed.name, inputs, outputs, self.nodes, self.constants, self.symbols)

    # -- values ---------------------------------------------------------------------------------

    def _external(self, operation: Operation) -> None:
        name = operation.outputs["output"]["is"]
        dtype = DTYPES.get(operation.dtype or "scalar")
        if dtype is None:
            raise CompileError(
                f"{self.files.what}: external '{name}' is of type {operation.dtype}, which is not supported"
            )
        sizes = [d if d > 0 else "" for d in operation.attributes["shape"]]
        self.inputs[name] = Value(name, dtype, self.symbols.shape(name, sizes))
        self._quantized(name)

    def _variable(self, operation: Operation) -> None:
        name, label = operation.outputs["output"]["is"], operation.attributes["label"]
        what = f"{self.files.what}: variable '{label}'"
        contents = self.files.find(f"{label}.dat")
        if contents is None:
            raise CompileError(f"{what} has no file '{label}.dat'")
        array, quantized = read_tensor(contents, f"{what} in '{label}.dat'")
        shape = tuple(operation.attributes["shape"])
        if array.shape != shape:
            raise CompileError(
                f"{what} is of shape {list(shape)}, its file has {list(array.shape)}: export the model again"
            )
        kind = operation.dtype or "scalar"
        how = self.parsed.tensors[name][1]
        stored = quantized or bool(how and array.dtype.kind in "iu")
        if stored:
            array = _dequantized(array, how, what)
        elif array.dtype.kind not in NAMES[kind]:
            raise CompileError(f"{what} is {kind}, its file has {array.dtype}: export the model again")
        taken = label in self.parsed.tensors or label in self.constants
        self.names[name] = self.variables[name] = name if taken else label
        self.constants[self.names[name]] = np.asarray(array, DTYPES[kind].numpy)
        if not stored:
            self._quantized(name)

    def _constant(self, operation: Operation) -> None:
        name, shape = operation.outputs["output"]["is"], tuple(operation.attributes["shape"])
        values = operation.attributes["value"]
        count = math.prod(shape)
        if min(shape, default=0) < 0 or len(values) not in (1, count) or count > MOST_ELEMENTS:
            raise CompileError(
                f"{self.files.what}: constant '{name}' has {len(values)} values, "
                f"and its shape {list(shape)} needs one, or one for each element"
            )
        dtype = DTYPES[operation.dtype or "scalar"].numpy
        array = np.array(values, dtype)
        self.constants[name] = array.reshape(shape) if len(values) == count else np.full(shape, array[0])
        self._quantized(name)

    def _quantized(self, name: str) -> None:
        """Quantize a tensor that is no operation's result, if the quantization file says so. Its readers then
        read the quantized tensor."""
        how = self.parsed.tensors[name][1]
        if how:
            known = self.names.get(name, name)
            self.names[name] = f"{known}.quantized"
            self._quantize(self.names[name], known, how)

    def _kept(self) -> list[Value]:
        """Return the inputs for the variables' values before the run. Add the nodes that compute the outputs
        with their next values."""
        held = [Value(STARTED, BOOL, ())]
        after = {STARTED: f"{STARTED}.value"}
        self.constants[after[STARTED]] = np.array(True)
        attrs = {"tensors": (("condition", None), ("true_value", None), ("false_value", None))}
        for name, updated in self.updates.items():
            state, first = f"{name}.state", f"{name}.first"
            array = self.constants[first] = self.constants.pop(name)
            held.append(Value(state, from_numpy(array.dtype), tuple(map(const, array.shape))))
            self._add("select", name, [STARTED, state, first], [name], attrs)
            after[state] = updated
        for state, value in after.items():
            self.state[state] = f"{state}.next"
            self._add("copy", f"{state}.next", [value], [f"{state}.next"], {"tensors": (("x", None),)})
        return held

    def _output(self, name: str, place: int) -> str:
        """Return the name of the output at `place`. An output that is an input, a constant or an earlier
        output is copied by a node."""
        known = self.names.get(name, name)
        before = self.parsed.outputs[:place]
        is_taken = name in self.inputs or name in before
        if known == name and known not in self.constants and not is_taken:
            return known
        copy = f"{name}.output{place}" if known == name or is_taken else name
        self._add("copy", copy, [known], [copy], {"tensors": (("x", None),)})
        return copy

    # -- nodes ----------------------------------------------------------------------------------

    def _node(self, operation: Operation) -> None:
        outputs = [t["is"] for o in operation.outputs.values() for t in (o if isinstance(o, list) else [o])]
        inputs: list[str] = []
        tensors: list[tuple[str, int | None]] = []
        attrs: dict[str, Any] = dict(operation.attributes)
        for name, value in operation.inputs.items():
            if isinstance(value, list):
                inputs += [self._tensor(v, f"{outputs[0]}.{name}{i}") for i, v in enumerate(value)]
                tensors.append((name, len(value)))
            elif isinstance(value, dict):
                inputs.append(self._tensor(value, ""))
                tensors.append((name, None))
            else:
                attrs[name] = value
        if operation.name == "cast":
            attrs["type"] = operation.dtype
        attrs["tensors"] = tuple(tensors)
        exact = [f"{o}.exact" if self.parsed.tensors[o][1] else o for o in outputs]
        if operation.name == "update":
            variable = self.variables[operation.inputs["variable"]["is"]]
            if variable in self.updates:
                raise CompileError(f"{self.files.what}: variable '{variable}' is updated twice")
            self.updates[variable] = exact[0]
        self._add(operation.name, outputs[0], inputs, exact, attrs)
        for name, raw in zip(outputs, exact, strict=True):
            if raw != name:
                self._quantize(name, raw, self.parsed.tensors[name][1])

    def _tensor(self, value: Any, constant: str) -> str:
        """Return the name of an input's value. A literal becomes the constant `constant`."""
        if isinstance(value, dict):
            name: str = value["is"]
            return self.names.get(name, name)
        self.constants[constant] = np.asarray(value, np.bool_ if isinstance(value, bool) else np.float32)
        return constant

    def _quantize(self, name: str, raw: str, how: Mapping[str, Any]) -> None:
        """Add a node that quantizes a tensor as the quantization file says."""
        attrs: dict[str, Any] = {"tensors": (("x", None),)}
        for key, value in how.items():
            if isinstance(value, list):
                self.constants[f"{name}.{key}"] = np.asarray(value, np.float32)
                attrs["tensors"] += ((key, None),)
            elif key != "op-name" and value is not None:
                attrs[key] = value
        reads = [raw, *(f"{name}.{key}" for key, _ in attrs["tensors"][1:])]
        self._add(how["op-name"], f"{name}.quantize", reads, [name], attrs)

    def _add(
        self, kind: str, name: str, inputs: list[str], outputs: list[str], given: Mapping[str, Any]
    ) -> None:
        attributes = ImportedAttributes(f"nnef.{kind}", given)
        self.nodes.append(Node(name, tuple(inputs), tuple(outputs), attributes, Sources.of(kind, name)))


def _dequantized(array: Array, how: Mapping[str, Any], what: str) -> Array:
    """Return the real numbers that a quantized variable's integers stand for. `how` is its entry in the
    quantization file."""

    def fitted(key: str) -> Array:
        value = np.asarray(how[key], np.float64)
        return value.reshape(*value.shape, *[1] * (array.ndim - value.ndim)) if value.ndim else value

    kind = how.get("op-name")
    try:
        if kind == "zero_point_linear_quantize":
            return np.asarray((array.astype(np.float64) - fitted("zero_point")) * fitted("scale"))
        if kind in ("min_max_linear_quantize", "linear_quantize"):
            signed, symmetric = bool(how.get("signed")), bool(how.get("symmetric"))
            levels = 2 ** int(how["bits"]) - 1 - int(signed and symmetric)
            first = 2 ** (int(how["bits"]) - 1) - int(symmetric) if signed else 0
            low, high = fitted("min"), fitted("max")
            return np.asarray((array.astype(np.float64) + first) * ((high - low) / levels) + low)
    except (KeyError, ValueError, TypeError) as error:
        raise CompileError(f"{what}: its quantization doesn't fit it: {error!r}") from None
    raise CompileError(f"{what} is quantized, and the quantization file has no linear operation for it")
