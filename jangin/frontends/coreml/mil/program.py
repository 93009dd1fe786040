"""Import MIL programs as graphs. Each operation becomes a node, and constants become the graph's
constants."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from jangin.frontends.assemble import body_graph
from jangin.frontends.bodies import branching, looping
from jangin.frontends.coreml.mil import weights_of
from jangin.frontends.coreml.mil.values import TYPES, Value, Weights, value
from jangin.ir.dtype import DType, from_numpy
from jangin.ir.graph import Array, CompileError, Graph, ImportedAttributes, Node
from jangin.ir.sources import Sources

Names = dict[str, str]


class Program:
    """The import of a program's function `main` into a graph's nodes and constants."""

    def __init__(self, message: Any, weights: Weights) -> None:
        self.weights = weights
        functions = message.functions
        name = "main" if "main" in functions else next(iter(functions), "")
        if not name:
            raise CompileError("the program has no functions")
        self.function = functions[name]
        self.block = self.function.block_specializations.get(self.function.opset)
        if self.block is None:
            raise CompileError(
                f"the program's function {name} has no block for its opset {self.function.opset}"
            )
        self.nodes: list[Node] = []
        self.constants: dict[str, Array] = {}
        self.texts: dict[str, Value] = {}
        self.called: dict[str, str] = {}
        """Maps the names of a block's inputs to the values that they stand for."""
        self.fresh = 0
        self.inside = 0
        """The number of bodies around the current operation."""
        self.held: dict[str, str] = {}
        """Maps each state to the value that it holds at this point."""

    def types(self) -> Mapping[str, tuple[DType, list[int | str]]]:
        """Return the inputs' element types and sizes, by name. A size is "" if any size is allowed. States
        aren't included."""
        types = {}
        for parameter in self.function.inputs:
            if parameter.type.WhichOneof("type") != "stateType":
                types[parameter.name] = _tensor(parameter.name, parameter.type)
        return types

    def states(self) -> Mapping[str, tuple[DType, list[int | str]]]:
        """Return the element types and sizes of the states that are kept between runs, by name, like
        `types`."""
        kept = [i for i in self.function.inputs if i.type.WhichOneof("type") == "stateType"]
        return {i.name: _tensor(i.name, i.type.stateType.wrappedType) for i in kept}

    def read(self) -> list[str]:
        """Import all operations, and return the names of the outputs. A state also becomes an input, and its
        value after the run is called "NAME.next"."""
        self.held = {name: name for name in self.states()}
        for operation in self.block.operations:
            self._operation(operation)
        for name, held in self.held.items():
            self._identity(held, f"{name}.next", Sources.of("state", name))
        return list(self.block.outputs)

    def _state(self, kind: str, operation: Any, names: list[str]) -> None:
        """Import an operation that reads a state's current value or sets its value. Raises CompileError if a
        branch or loop sets it."""
        state, *_ = (a.name for a in operation.inputs["input"].arguments)
        source = Sources.of(kind, state)
        if state not in self.held:
            raise CompileError(f"{source}: the program's function has no state of this name")
        if kind == "read_state":
            self._identity(self.held[state], names[0], source)
            return
        if self.inside:
            raise CompileError(f"{source} inside of a branch or loop is not supported")
        self.held[state] = self._argument(operation.inputs["data"].arguments[0], f"data of {source}")

    def _identity(self, name: str, made: str, source: Sources) -> None:
        attrs = ImportedAttributes("coreml.mil.identity", {"inputs": (("x", 1),)})
        self.nodes.append(Node(made, (name,), (made,), attrs, source))

    # -- control flow ---------------------------------------------------------------------------

    def _control(self, operation: Any, names: list[str], source: Sources) -> None:
        """Import `cond` with its two blocks, or `while_loop` with the blocks of its condition and its body.
        Both blocks of a loop have the carried values as inputs."""
        if operation.type not in ("cond", "while_loop") or len(operation.blocks) != 2:
            raise CompileError(
                f"{source}: operations with blocks, other than cond and while_loop, are not supported"
            )
        args = {
            k: [self._argument(a, f"{k} of {source}") for a in v.arguments]
            for k, v in operation.inputs.items()
        }
        first, second = operation.blocks
        if operation.type == "cond":
            then, orelse = self._body(first), self._body(second)
            self.nodes.append(branching(names[0], args["pred"][0], then, orelse, names, source))
            return
        carried = args["loop_vars"]
        inside = [i.name for i in second.inputs]
        start = self._body(first, carried)
        step = self._body(second)
        again = self._body(first, step.outputs)
        body = body_graph(
            names[0], [f"{names[0]} step", f"{names[0]} on", *inside], [*again.outputs, *step.outputs],
            [*step.nodes, *again.nodes], {},
        )  # fmt: skip
        self.nodes.append(looping(names[0], start, body, carried, names, source))

    def _body(self, block: Any, given: Sequence[str] = ()) -> Graph:
        """Return a block as a graph, which may read the values around it. The block's inputs are replaced by
        the values `given`, or keep their names if there are none."""
        around = self.nodes, self.called
        self.nodes, self.called = (
            [],
            {**self.called, **dict(zip((i.name for i in block.inputs), given, strict=False))},
        )
        self.inside += 1
        for operation in block.operations:
            self._operation(operation)
        self.inside -= 1
        outputs = [self.called.get(n, n) for n in block.outputs]
        graph = body_graph("block", [], outputs, self.nodes, {})
        self.nodes, self.called = around
        return graph

    def _operation(self, operation: Any) -> None:
        names = [o.name for o in operation.outputs]
        kind = operation.type
        if kind in ("read_state", "write_state"):
            self._state(kind, operation, names)
            return
        if not names:
            raise CompileError(f"the program is damaged: an operation {kind} has no outputs")
        source = Sources.of(kind, names[0])
        if kind == "const":
            self._constant(names[0], value(operation.attributes["val"], self.weights, str(source)))
            return
        if operation.blocks:
            self._control(operation, names, source)
            return
        texts: dict[str, Any] = {}
        args: dict[str, Any] = {}
        for key, argument in sorted(operation.inputs.items()):
            operands = [self._argument(a, f"{key} of {source}") for a in argument.arguments]
            if any(name in self.texts for name in operands):
                texts[key] = self.texts[operands[0]]
            else:
                args[key] = operands
        for key, attribute in operation.attributes.items():
            if key != "name" and kind.startswith("constexpr_"):
                args[key] = [self._literal(attribute, f"{key} of {source}")]
        if kind.startswith("constexpr_"):
            for name, array in zip(names, self._decompressed(kind, {**args, **texts}, source), strict=True):
                self._constant(name, array)
            return
        lists = tuple((k, len(v)) for k, v in args.items())
        key = ImportedAttributes(f"coreml.mil.{kind}", {**texts, "inputs": lists})
        self.nodes.append(
            Node(names[0], tuple(n for v in args.values() for n in v), tuple(names), key, source)
        )

    def _constant(self, name: str, found: Value) -> None:
        if isinstance(found, (str, list)):
            self.texts[name] = found
        else:
            self.constants[name] = found

    def _argument(self, argument: Any, what: str) -> str:
        return (
            self.called.get(argument.name, str(argument.name))
            if argument.WhichOneof("binding") == "name"
            else self._literal(argument.value, what)
        )

    def _literal(self, message: Any, what: str) -> str:
        self.fresh += 1
        name = f"{what} {self.fresh}"
        self._constant(name, value(message, self.weights, what))
        return name

    def _decompressed(self, kind: str, given: Mapping[str, Any], source: Sources) -> list[Array]:
        """Return the results of a constexpr operation, computed from its arguments. Raises CompileError if an
        argument isn't constant."""
        arrays = {}
        for key, names in given.items():
            if isinstance(names, str) or names[0] in self.texts:
                arrays[key] = np.asarray(names if isinstance(names, str) else self.texts[names[0]])
                continue
            if names[0] not in self.constants:
                raise CompileError(f"{source}: its {key} must be a constant")
            arrays[key] = self.constants[names[0]]
        return weights_of.decompressed(kind, arrays, source)


def _tensor(name: str, kind: Any) -> tuple[DType, list[int | str]]:
    """Return an input's element type and sizes. A size is "" if any size is allowed. Raises CompileError if
    it isn't a tensor of a supported type."""
    tensor = kind.tensorType
    if kind.WhichOneof("type") != "tensorType" or tensor.dataType not in TYPES:
        raise CompileError(f"the input '{name}' is no tensor of a type that is supported")
    sizes = [
        int(d.constant.size) if d.WhichOneof("dimension") == "constant" else "" for d in tensor.dimensions
    ]
    return from_numpy(np.dtype(TYPES[tensor.dataType])), sizes
