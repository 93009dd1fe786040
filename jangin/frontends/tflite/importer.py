"""Import TensorFlow Lite files as graphs. The package `tflite` parses them by version 3 of the schema."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tflite

from jangin.frontends.assemble import ShapeBindings, Symbols, body_graph, model_graph
from jangin.frontends.tflite.control import calls
from jangin.frontends.tflite.operators import custom
from jangin.frontends.tflite.options import OPERATORS, options_of
from jangin.frontends.tflite.signatures import signatures_of
from jangin.frontends.tflite.tensors import (
    KINDS,
    TYPES,
    contents,
    declared_shape,
    ints,
    is_text,
    wrongly_quantized,
)
from jangin.frontends.tflite.text import Table, table
from jangin.frontends.tflite.variables import Parts, Variables, before, stateful
from jangin.ir.dtype import F32, I64, STRING, DType
from jangin.ir.expr import Var, const
from jangin.ir.graph import Array, CompileError, Graph, ImportedAttributes, Node, Shape, Value
from jangin.ir.sources import Sources
from jangin.ir.types import tensor_type

NONE: Mapping[int, str] = {}
BODIES = {
    "IF": ("then", "else"),
    "WHILE": ("cond", "body"),
}
"""The sub-graphs of the operators for control flow, by their names in the schema's options."""
DRAWING = frozenset({"MULTINOMIAL", "RANDOM_STANDARD_NORMAL", "RANDOM_UNIFORM"})
"""Operators for random numbers, which continue in each run after those of the run before. A variable has the
number of blocks drawn so far."""
SHAPED = frozenset({tflite.BuiltinOperator.CUSTOM, tflite.BuiltinOperator.STABLEHLO_RNG_BIT_GENERATOR})
"""Operators whose lowering needs the declared sizes of the results."""
FILES = frozenset({"FlexSave", "FlexRestore"})
"""Operators whose first input is the path of a checkpoint."""
JOINING = {
    "STABLEHLO_SCATTER": "update_computation_subgraph_index",
    "STABLEHLO_REDUCE_WINDOW": "body_subgraph_index",
}
"""Operators whose sub-graph combines two numbers. The value is the option that has the sub-graph's number."""


class Reader:
    """The import of one sub-graph of a file. The main graph has the number 0.

    `inside` has the numbers of the sub-graphs around this one. `saved` has the results of the checkpoints
    written, by the names of their paths. `handles` has the variables of those inputs
    that are handles, by the inputs' positions. `named` has other names for tensors, by their numbers."""

    def __init__(
        self, data: Any, number: int = 0, inside: tuple[int, ...] = (), handles: Mapping[int, str] = NONE,
        named: Mapping[int, str] = NONE,
    ) -> None:  # fmt: skip
        self.data = data
        self.inside = (*inside, number)
        self.model = tflite.Model.GetRootAs(data, 0)
        if self.model.Version() != 3:
            raise CompileError(f"the TFLite model is of version {self.model.Version()}; 3 is read")
        if self.model.SubgraphsLength() < 1:
            raise CompileError("the TFLite model has no sub-graph")
        if not 0 <= number < self.model.SubgraphsLength():
            raise CompileError(
                f"the file is damaged: it refers to sub-graph {number} of {self.model.SubgraphsLength()}"
            )
        if number in inside:
            raise CompileError(f"sub-graph {number} calls itself")
        self.graph = self.model.Subgraphs(number)
        self.variables, self.started = Variables(), Variables()
        self.start: Graph | None = None
        self.state: Mapping[str, str] = {}
        self.tables: dict[str, int] = {}
        self.saved: dict[str, list[str]] = {}
        self.names = self._named(named)
        inputs = ints(self.graph.InputsAsNumpy())
        variable_at = {inputs[at]: variable for at, variable in handles.items() if at < len(inputs)}
        self.variables.handles = {self.names[i]: v for i, v in variable_at.items() if self._is_handle(i)}
        self.nodes = self._nodes()
        self.ones: set[Var] = set()

    def _named(self, others: Mapping[int, str]) -> list[str]:
        """Return a name of its own for each tensor, from the file or from `others`."""
        names: list[str] = []
        for i in range(self.graph.TensorsLength()):
            name = (self.graph.Tensors(i).Name() or b"").decode() or f"tensor_{i}"
            taken = name in names or name in others.values()
            names.append(others.get(i) or (f"{name}#{i}" if taken else name))
        return names

    def imported(self, shapes: ShapeBindings) -> Graph:
        symbols, constants = Symbols(shapes), self.constants()
        inputs = []
        for i in ints(self.graph.InputsAsNumpy()):
            tensor = self._tensor(i)
            shape = symbols.shape(self.names[i], declared_shape(tensor))
            own = zip(shape or (), ints(tensor.ShapeAsNumpy()), strict=True)
            self.ones |= {d for d, size in own if isinstance(d, Var) and size == 1}
            text = Value(self.names[i], None, None, tensor_type(STRING, shape))
            inputs.append(text if is_text(tensor) else Value(self.names[i], self._dtype(i), shape))
        outputs = self._outputs()
        main = Parts(inputs, outputs, list(self.nodes))
        if self.variables.types or self.started.types:
            stateful(main, self.variables, self.start, self.started)
        self.state = main.state
        return model_graph("model", main.inputs, main.outputs, main.nodes, constants, symbols)

    def _outputs(self) -> list[str]:
        """Return the names of the graph's results. Each checkpoint written is one: instead of its path, or
        behind the others."""
        outputs = [self.names[i] for i in ints(self.graph.OutputsAsNumpy())]
        last = [self.saved[name][-1] if name in self.saved else name for name in outputs]
        return last + [s for results in self.saved.values() for s in results if s not in last]

    def body(self, reads: Sequence[str] = (), gives: Sequence[str] = ()) -> Graph:
        """Return the sub-graph of an operator as a graph without handles.

        Its last inputs are the values of the variables in `reads`. Its last outputs are the values that the
        variables in `gives` have at its end."""
        sides = (self.graph.InputsAsNumpy(), self.graph.OutputsAsNumpy())
        inputs, outputs = ([self.names[i] for i in ints(s) if not self._is_handle(i)] for s in sides)
        name = (self.graph.Name() or b"").decode(errors="replace") or f"sub-graph {self.inside[-1]}"
        return body_graph(
            name, [*inputs, *map(before, reads)], [*outputs, *map(self.variables.last, gives)], self.nodes,
            self.constants(), f"sub-graph '{name}'",
        )  # fmt: skip

    def metadata(self) -> dict[str, Any]:
        description = (self.model.Description() or b"").decode(errors="replace")
        signatures = [s.key for s in signatures_of(self.model)]
        metadata: dict[str, Any] = {
            "description": description,
            "signatures": ", ".join(filter(None, signatures)),
        }
        metadata["state"] = dict(self.state)
        metadata["quantization"] = self._quantization()
        return {k: v for k, v in metadata.items() if v}

    def _quantization(self) -> dict[str, list[float]]:
        """Return the scale and the zero point of each input and output of integers that has one scale."""
        ends = (self.graph.InputsAsNumpy(), self.graph.OutputsAsNumpy())
        kinds = {self.names[i]: self._kind(i) for end in ends for i in ints(end)}
        return {
            name: [float(scales[0]), int(zeros[0])]
            for name, (_, scales, zeros, *_) in kinds.items()
            if scales is not None and scales.size == 1
        }

    # -- tensors --------------------------------------------------------------------------------

    def _tensor(self, i: int) -> Any:
        if not 0 <= i < self.graph.TensorsLength():
            raise CompileError(
                f"the file is damaged: it refers to tensor {i} of {self.graph.TensorsLength()} in a sub-graph"
            )
        return self.graph.Tensors(i)

    def _dtype(self, i: int) -> DType:
        kind = self._tensor(i).Type()
        if kind not in TYPES:
            raise CompileError(f"tensor '{self.names[i]}' is of type {KINDS.get(kind, kind)}, not supported")
        return TYPES[kind]

    def constants(self) -> dict[str, Array]:
        """Return the contents of all tensors with a buffer, by name. Arrays are views of the file unless they
        must be converted."""
        arrays = {}
        for i in range(self.graph.TensorsLength()):
            array = self._contents(self.graph.Tensors(i), f"tensor '{self.names[i]}'")
            if array is not None:
                arrays[self.names[i]] = array
        return arrays

    def _contents(self, tensor: Any, what: str) -> Array | None:
        """Return the contents of a tensor's buffer, or None if it has none, is a variable, or has an unknown
        type. Raises CompileError if the file is damaged."""
        if tensor.Buffer() >= self.model.BuffersLength():
            raise CompileError(f"{what} lies in buffer {tensor.Buffer()}, which the file doesn't have")
        known = tensor.Type() in TYPES or is_text(tensor)
        if tensor.IsVariable() or not tensor.Buffer() or not known:
            return None
        held = self.model.Buffers(tensor.Buffer())
        raw = held.DataAsNumpy()
        # a file over 2 GB keeps buffers behind the model
        if not isinstance(raw, np.ndarray) and held.Offset() > 1:
            if held.Offset() + held.Size() > len(self.data):
                raise CompileError(f"{what} lies beyond the end of the TFLite file, which was cut off")
            raw = np.frombuffer(self.data, np.uint8, held.Size(), held.Offset())
        return contents(what, tensor, raw) if isinstance(raw, np.ndarray) else None

    def _kind(self, i: int) -> tuple[Any, ...]:
        """Return a tensor's type and quantization: the element type, scales, zero points and the axis of the
        scales. The scales are None if the tensor isn't quantized. A complex tensor has a fifth entry,
        True."""
        if i < 0:
            return (None, None, None, 0)
        if self._tensor(i).Type() == tflite.TensorType.COMPLEX64:
            return (F32, None, None, 0, True)
        if is_text(self._tensor(i)):
            return (None, None, None, 0)
        dtype = self._dtype(i)
        quantization = self._tensor(i).Quantization()
        scales = None if quantization is None else quantization.ScaleAsNumpy()
        if not isinstance(scales, np.ndarray) or not scales.size:
            return (dtype, None, None, 0)
        zeros = quantization.ZeroPointAsNumpy()
        zeros = zeros if isinstance(zeros, np.ndarray) and zeros.size else np.zeros(scales.size, np.int64)
        axis = int(quantization.QuantizedDimension())
        if wrong := wrongly_quantized(scales, zeros, axis, ints(self._tensor(i).ShapeAsNumpy()), dtype):
            what = f"'{self.names[i]}' ({dtype}{ints(self._tensor(i).ShapeAsNumpy())})"
            raise CompileError(f"tensor {what} is quantized by {wrong}: convert the model again")
        return (dtype, scales.copy(), zeros.astype(np.int64), axis)

    # -- operators ------------------------------------------------------------------------------

    def _nodes(self) -> list[Node]:
        nodes = (self._node(n) for n in range(self.graph.OperatorsLength()))
        return [node for node in nodes if node is not None]

    def _node(self, n: int) -> Node | None:
        """Return the node of operator number `n`, or None if the operator only handles variables."""
        operator = self.graph.Operators(n)
        code, number, name = self._code(n, operator)
        inputs, outputs = ints(operator.InputsAsNumpy()), ints(operator.OutputsAsNumpy())
        for i in (*inputs, *outputs):
            if i >= 0:
                self._tensor(i)
        attrs = options_of(operator)
        if number == tflite.BuiltinOperator.CUSTOM:
            blob = operator.CustomOptionsAsNumpy()
            attrs = custom.options(name, blob.tobytes() if isinstance(blob, np.ndarray) else b"")
        if number in SHAPED:
            attrs["shapes"] = tuple(map(self._declared, outputs))
        called = [self.names[i] if i >= 0 else "" for i in inputs]
        results = tuple(self.names[i] for i in outputs)
        label = results[0] if results else f"operator_{n}"
        source = Sources.of(name, label, "", code.Version(), f"operator {n}")
        if name in ("VAR_HANDLE", "ASSIGN_VARIABLE", "CALL_ONCE"):
            self._variable(name, attrs, inputs, called, results)
            return None
        if name == "READ_VARIABLE":
            held = self.variables.read(called[0], self._dtype(outputs[0]), self._sizes(outputs[0]))
            return Node(label, (held,), results, ImportedAttributes("tflite.held"), source)
        if name in FILES:
            self._path(name, inputs)
            if name == "FlexSave":
                results = (f"{called[0]}.saved.{n}",)
                self.saved.setdefault(called[0], []).append(results[0])
        if name in ("HASHTABLE", "HASHTABLE_IMPORT"):
            if name == "HASHTABLE":
                self.tables[results[0]] = attrs["table_id"]
            return None
        if name in ("HASHTABLE_FIND", "HASHTABLE_SIZE"):
            entries = self._table(self.tables.get(called[0]))
            attrs |= {"keys": tuple(entries), "values": tuple(entries.values())}
            if name == "HASHTABLE_FIND":
                attrs["default"] = self._default(inputs[2])
            inputs, called = inputs[1:2], called[1:2]
        if name == "STABLEHLO_COMPOSITE":
            whole = Reader(self.data, attrs["decomposition_subgraph_index"], self.inside).body()
            return calls(whole, str(source), called, results, source)
        if name in BODIES:
            return self._control(name, attrs, inputs, outputs, label, source)
        if name in JOINING:
            attrs["body"] = self._names_in(attrs[JOINING[name]])
        attrs["inputs"] = tuple(self._kind(i) for i in inputs)
        attrs["outputs"] = tuple(self._kind(i) for i in outputs)
        if operator.IntermediatesLength():
            attrs["intermediates"] = tuple(self._kind(i) for i in ints(operator.IntermediatesAsNumpy()))
        results += self._states(name, label, inputs, called)
        return Node(label, tuple(called), results, ImportedAttributes(f"tflite.{name}", attrs), source)

    def _states(self, name: str, label: str, inputs: Sequence[int], called: list[str]) -> tuple[str, ...]:
        """Return the names of the next values of the variables that an operator changes, which are further
        results. In `called`, its inputs, a variable becomes the variable's value before."""
        changed = [
            (at, self.names[i], i) for at, i in enumerate(inputs) if i >= 0 and self._tensor(i).IsVariable()
        ]
        for at, variable, i in changed:
            called[at] = self.variables.value(called[at], self._dtype(i), self._sizes(i))
            self.variables.now[variable] = f"{label}.{variable}.after"
        states = [variable for _, variable, _ in changed]
        if name in DRAWING:
            states.append(f"{label}.drawn")
            called.append(self.variables.value(states[-1], I64, ()))
            self.variables.now[states[-1]] = f"{states[-1]}.after"
        return tuple(self.variables.now[variable] for variable in states)

    def _declared(self, i: int) -> tuple[int, ...] | None:
        """Return the sizes of a tensor, or None if the file leaves its rank open."""
        tensor = self._tensor(i)
        sizes = tuple(ints(tensor.ShapeAsNumpy()))
        return sizes if sizes or tensor.HasRank() else None

    def _path(self, name: str, inputs: Sequence[int]) -> None:
        """Raise CompileError unless the caller gives the path of an operator's file."""
        if len(self.inside) > 1 or not inputs or inputs[0] not in ints(self.graph.InputsAsNumpy()):
            raise CompileError(
                f"{name} takes its path from the model: only files that a caller names, as the signature's "
                "input, are read and written"
            )

    def _code(self, n: int, found: Any) -> tuple[Any, int, str]:
        """Return the code of operator number `n`, its number among the builtin operators, and its name."""
        if found.OpcodeIndex() >= self.model.OperatorCodesLength():
            raise CompileError(
                f"the file is damaged: operator {n} has no entry {found.OpcodeIndex()} of codes"
            )
        code = self.model.OperatorCodes(found.OpcodeIndex())
        number = max(code.BuiltinCode(), code.DeprecatedBuiltinCode())
        name = OPERATORS.get(number, str(number))
        return code, number, (code.CustomCode() or b"").decode(errors="replace") if name == "CUSTOM" else name

    def _names_in(self, number: int) -> tuple[str, ...]:
        """Return the names of the operators in a sub-graph. Raises CompileError if the sub-graph doesn't
        exist."""
        if not 0 <= number < self.model.SubgraphsLength():
            raise CompileError(
                f"the file is damaged: it refers to sub-graph {number} of {self.model.SubgraphsLength()}"
            )
        graph = self.model.Subgraphs(number)
        return tuple(self._code(n, graph.Operators(n))[2] for n in range(graph.OperatorsLength()))

    def _table(self, number: int | None) -> Table:
        """Return the values of a hash table by key. Raises CompileError unless the file fills the table with
        the same constants everywhere."""
        tables = []
        for g in range(self.model.SubgraphsLength()):
            graph, handles = self.model.Subgraphs(g), dict[int, int]()
            for n in range(graph.OperatorsLength()):
                operator = graph.Operators(n)
                inputs, outputs = ints(operator.InputsAsNumpy()), ints(operator.OutputsAsNumpy())
                name = self._code(n, operator)[2]
                if name == "HASHTABLE":
                    handles |= dict.fromkeys(outputs, options_of(operator)["table_id"])
                elif name == "HASHTABLE_IMPORT" and number is not None and handles.get(inputs[0]) == number:
                    tables.append(self._filled(f"table {number}", graph, inputs[1:]))
        if not tables or any(t != tables[0] for t in tables[1:]):
            raise CompileError("a table must be filled, and always with the same contents")
        return tables[0]

    def _filled(self, what: str, graph: Any, places: Sequence[int]) -> Table:
        inside = [i for i in places if 0 <= i < graph.TensorsLength()]
        contents = [self._contents(graph.Tensors(i), what) for i in inside]
        arrays = [a for a in contents if a is not None]
        if len(arrays) != 2:
            raise CompileError(f"{what} is filled with computed values, which is not supported")
        return table(what, *arrays)

    def _default(self, i: int) -> Any:
        default = self._contents(self._tensor(i), f"tensor '{self.names[i]}'")
        if default is None or default.size != 1:
            raise CompileError("a table's value for unknown keys must be a single constant")
        return default.reshape(-1).tolist()[0]

    def _control(
        self,
        name: str,
        attrs: dict[str, Any],
        inputs: list[int],
        outputs: list[int],
        label: str,
        source: Sources,
    ) -> Node:
        """Return the node of IF or WHILE. Handles are replaced by the values of all variables that the bodies
        use. These follow the other inputs, and the variables' new values follow the other outputs."""
        skipped = 1 if name == "IF" else 0
        passed = {at: self._held(i) for at, i in enumerate(inputs[skipped:]) if self._is_handle(i)}
        bodies = {
            key: Reader(self.data, attrs[f"{key}_subgraph_index"], self.inside, passed)
            for key in BODIES[name]
        }
        used: dict[str, tuple[DType, Shape]] = {}
        for body in bodies.values():
            used |= body.variables.types
        first = [self.names[i] if i >= 0 else "" for i in inputs if not self._is_handle(i)]
        values = [self.variables.value(v, *kind) for v, kind in used.items()]
        graphs = {}
        for key, body in bodies.items():
            if key == "cond" and body.variables.now.keys() - body.variables.unchanged():
                raise CompileError(f"{source}: its condition changes a variable, which is not supported")
            graphs[key] = body.body([*used], () if key == "cond" else [*used])
        results = [self.names[i] for i in outputs if not self._is_handle(i)]
        after = {v: f"{label}.{v}.after" for v in used}
        self.variables.now |= after
        self._handles_of(outputs, [b for key, b in bodies.items() if key != "cond"], source)
        kind = ImportedAttributes(f"tflite.{name}", graphs)
        return Node(label, (*first, *values), (*results, *after.values()), kind, source)

    def _handles_of(self, outputs: list[int], bodies: Sequence[Reader], source: Sources) -> None:
        """Record the variables of those outputs of an operator that are handles. Raises CompileError if the
        bodies give handles of different variables."""
        for at, i in enumerate(outputs):
            if self._is_handle(i):
                variables = {b._held(ints(b.graph.OutputsAsNumpy())[at]) for b in bodies}
                if len(variables) > 1:
                    raise CompileError(
                        f"{source}: '{self.names[i]}' must be the handle of one variable, not of several"
                    )
                self.variables.handles[self.names[i]] = variables.pop()

    def _is_handle(self, i: int) -> bool:
        return i >= 0 and self._tensor(i).Type() == tflite.TensorType.RESOURCE

    def _held(self, i: int) -> str:
        return self.variables.of(self.names[i])

    def _variable(
        self,
        name: str,
        attrs: Mapping[str, Any],
        inputs: list[int],
        called: list[str],
        results: Sequence[str],
    ) -> None:
        if name == "VAR_HANDLE":
            self.variables.handle(results[0], attrs)
        elif name == "ASSIGN_VARIABLE":
            self.variables.assign(called[0], called[1], self._dtype(inputs[1]), self._sizes(inputs[1]))
        elif len(self.inside) > 1:
            raise CompileError("CALL_ONCE inside of a sub-graph is not supported")
        else:
            reader = Reader(self.data, attrs["init_subgraph_index"], self.inside)
            if not reader.variables.now:  # the sub-graph fills only tables
                return
            self.start, self.started = reader.body((), [*reader.variables.now]), reader.variables

    def _sizes(self, i: int) -> Shape:
        return tuple(map(const, ints(self._tensor(i).ShapeAsNumpy())))
