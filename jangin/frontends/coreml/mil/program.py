"""MIL programs as imported graphs: an operation a node, its constants those of the graph."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from jangin.frontends.coreml.mil import weights_of
from jangin.frontends.coreml.mil.values import TYPES, Value, Weights, value
from jangin.ir.dtype import DType, from_numpy
from jangin.ir.graph import Array, CompileError, ImportedAttributes, Node

Names = dict[str, str]


class Program:
    """The function `main` of a program, whose nodes and constants go to those of a graph."""

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
        self.fresh = 0

    def types(self) -> Mapping[str, tuple[DType, list[int | str]]]:
        """The inputs' element types and sizes, "" for one that is free."""
        found = {}
        for given in self.function.inputs:
            tensor = given.type.tensorType
            if given.type.WhichOneof("type") != "tensorType" or tensor.dataType not in TYPES:
                raise CompileError(f"the input '{given.name}' is no tensor of a type that is supported")
            sizes = [
                int(d.constant.size) if d.WhichOneof("dimension") == "constant" else ""
                for d in tensor.dimensions
            ]
            found[given.name] = from_numpy(np.dtype(TYPES[tensor.dataType])), sizes
        return found

    def read(self) -> list[str]:
        """All operations; the names of the outputs."""
        for operation in self.block.operations:
            self._operation(operation)
        return list(self.block.outputs)

    def _operation(self, operation: Any) -> None:
        names = [o.name for o in operation.outputs]
        kind = operation.type
        if not names:
            raise CompileError(f"an operation {kind} gives nothing")
        source = f"{kind} '{names[0]}'"
        if kind == "const":
            self._constant(names[0], value(operation.attributes["val"], self.weights, source))
            return
        if operation.blocks:
            raise CompileError(f"{source}: operations with blocks (cond, while_loop, ...) are not supported")
        texts: dict[str, Any] = {}
        given: dict[str, Any] = {}
        for key, argument in sorted(operation.inputs.items()):
            found = [self._argument(a, f"{key} of {source}") for a in argument.arguments]
            if any(name in self.texts for name in found):
                texts[key] = self.texts[found[0]]
            else:
                given[key] = found
        for key, attribute in operation.attributes.items():
            if key != "name" and kind.startswith("constexpr_"):
                given[key] = [self._literal(attribute, f"{key} of {source}")]
        if kind.startswith("constexpr_"):
            self._constant(names[0], self._decompressed(kind, given, source))
            return
        lists = tuple((k, len(v)) for k, v in given.items())
        key = ImportedAttributes(f"coreml.mil.{kind}", {**texts, "inputs": lists})
        self.nodes.append(
            Node(names[0], tuple(n for v in given.values() for n in v), tuple(names), key, source)
        )

    def _constant(self, name: str, found: Value) -> None:
        if isinstance(found, (str, list)):
            self.texts[name] = found
        else:
            self.constants[name] = found

    def _argument(self, argument: Any, what: str) -> str:
        return (
            str(argument.name)
            if argument.WhichOneof("binding") == "name"
            else self._literal(argument.value, what)
        )

    def _literal(self, message: Any, what: str) -> str:
        self.fresh += 1
        name = f"{what} {self.fresh}"
        self._constant(name, value(message, self.weights, what))
        return name

    def _decompressed(self, kind: str, given: Mapping[str, list[str]], source: str) -> Array:
        """What compressed weights stand for."""
        arrays = {}
        for key, names in given.items():
            if names[0] not in self.constants:
                raise CompileError(f"{source}: its {key} must be a constant")
            arrays[key] = self.constants[names[0]]
        return weights_of.decompressed(kind, arrays, source)
