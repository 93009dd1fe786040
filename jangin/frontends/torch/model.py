"""A traced PyTorch model: an imported graph and its constants. It is compiled without PyTorch.

Its bytes are little-endian: 8 bytes of magic, the header's length as u64, the header, then the constants.
Each constant lies at a multiple of 64 bytes.

The header is JSON. It has the text of the graph without its constants, the model's metadata, and tables of
constants. A table has the type, shape and position of each constant by name, and of each large array
attribute by digest."""

from __future__ import annotations

import io
import json
import math
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field, replace
from typing import Any, BinaryIO

import numpy as np

from jangin.frontends.assemble import ShapeBindings, Symbols, model_graph, substituted
from jangin.ir.dtype import DTYPES, from_numpy
from jangin.ir.expr import Const, Expr, Var
from jangin.ir.graph import Array, CompileError, Graph, ImportedAttributes, Value
from jangin.ir.graph_text import graph_arrays, parse_graph, print_graph
from jangin.ir.plan import aligned
from jangin.ir.records import dataclass
from jangin.ir.simplify import linear
from jangin.ir.traversal import free_vars, substitute

MAGIC = b"\x8aJGT\r\n\x1a\n"
PREFIX = struct.Struct("<8sQ")


@dataclass(frozen=True)
class TracedModel:
    """A traced model, which is compiled without PyTorch.

    Nodes of `graph` are ATen's operators ("aten.add.Tensor"), with their arguments as attributes by name. The
    attribute `tensors` names the arguments that are the node's inputs. `gives` has the types and shapes of
    the results. `common` is the type to which operands are converted. `late` has symbols of sizes that a run
    computes. The node's last inputs have their values. Symbols have PyTorch's ranges."""

    graph: Graph
    metadata: Mapping[str, Any] = field(default_factory=dict)

    def SerializeToString(self, *, deterministic: bool = True) -> bytes:
        """Return the model as bytes, from which the compile cache makes its key."""
        file = io.BytesIO()
        self.write(file)
        return file.getvalue()

    def write(self, file: BinaryIO) -> None:
        """Write the model to a file, for another process. Constants are written without a copy, and those
        that share memory are written once."""
        bare = replace(self.graph, constants={})
        places, at = dict[object, int](), 0
        tables: dict[str, list[Any]] = {}
        stored: list[Array] = []
        for kind, arrays in (("constants", self.graph.constants), ("arrays", graph_arrays(bare))):
            table = tables[kind] = []
            for name, array in arrays.items():
                same = array.ctypes.data, array.dtype, array.shape, array.strides
                if same not in places:
                    places[same] = at
                    stored.append(array)
                    at += aligned(array.nbytes)
                table.append([name, from_numpy(array.dtype).name, list(array.shape), places[same]])
        content = {"graph": print_graph(bare), "metadata": dict(self.metadata), **tables}
        header = json.dumps(content, ensure_ascii=False).encode()
        header = header.ljust(aligned(PREFIX.size + len(header)) - PREFIX.size)
        file.write(PREFIX.pack(MAGIC, len(header)) + header)
        for array in stored:
            file.write(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
            file.write(bytes(aligned(array.nbytes) - array.nbytes))

    @classmethod
    def parse(cls, data: Any) -> TracedModel:
        """Return the model in bytes that `SerializeToString` made. Its constants are views of `data`. Raises
        CompileError for any other bytes."""
        try:
            magic, length = PREFIX.unpack_from(data)
            if magic != MAGIC:
                raise ValueError("it does not begin as one")
            start = PREFIX.size + length
            content = json.loads(bytes(data[PREFIX.size : start]))
            arrays: dict[tuple[Any, ...], Array] = {}

            def read(kind: str) -> dict[str, Array]:
                return {name: array(*place) for name, *place in content[kind]}

            def array(dtype: str, shape: list[int], at: int) -> Array:
                key = dtype, tuple(shape), at
                if key not in arrays:
                    arrays[key] = _array(data, start + at, dtype, shape)
                return arrays[key]

            graph = replace(parse_graph(content["graph"], read("arrays")), constants=read("constants"))
            return cls(graph, content["metadata"])
        except (ValueError, KeyError, TypeError, struct.error) as error:
            raise CompileError(f"the traced PyTorch model is damaged: {error}") from error

    def bound(self, shapes: ShapeBindings) -> Graph:
        """Return the graph with the sizes that the caller fixed by `shapes`. Raises CompileError for a symbol
        that no input's size determines."""
        graph = self.graph
        symbols = Symbols(shapes, dict(_limits(graph)))
        known: dict[Var, Expr] = {}
        for name in graph.inputs:
            shape = graph.value(name).shape
            assert shape is not None
            for dim, size in zip(shape, symbols.shape(name, [*map(_declared, shape)]) or (), strict=True):
                if isinstance(dim, Var):
                    known[dim] = size
        known |= {Var(name): e for name, e in symbols.names.items()}
        inputs = [_sized(graph.value(n), known) for n in graph.inputs]
        _check_found(inputs)
        nodes = [replace(n, attrs=substituted(n.of(ImportedAttributes), known)) for n in graph.nodes]
        return model_graph(graph.name, inputs, graph.outputs, nodes, graph.constants, symbols)


def _limits(graph: Graph) -> Iterator[tuple[str, tuple[int, int]]]:
    for var, (low, high) in graph.symbols.items():
        assert isinstance(low, Const) and isinstance(high, Const)
        yield var.name, (int(low.value), int(high.value))


def _declared(dim: Expr) -> int | str | Expr:
    return int(dim.value) if isinstance(dim, Const) else dim.name if isinstance(dim, Var) else dim


def _check_found(inputs: Sequence[Value]) -> None:
    """Raise CompileError if a symbol can't be computed from any input's size (see `runtime.sizes.solved`)."""
    dims = [(d, v.name, i) for v in inputs for i, d in enumerate(v.shape or ())]
    symbols = {d for d, _, _ in dims if isinstance(d, Var)}
    for dim, name, axis in dims:
        unknown = free_vars(dim) - symbols
        if len(unknown) == 1 and linear(dim, *unknown) is not None:
            symbols |= unknown
        elif unknown:
            raise CompileError(
                f"input '{name}' has {dim} entries along axis {axis}: no input has the size that this "
                "follows from",
                [dim],
            )


def _sized(value: Value, known: Mapping[Var, Expr]) -> Value:
    assert value.shape is not None
    return replace(value, shape=tuple(substitute(d, known) for d in value.shape))


def _array(data: Any, at: int, dtype: str, shape: list[int]) -> Array:
    count = math.prod(shape)
    return np.frombuffer(data, DTYPES[dtype].numpy, count, at).reshape(shape)


@dataclass(frozen=True)
class Output:
    """One output of a program.

    `name` is the name of the model's output, or "" if the output is the value `constant`. If `written` isn't
    "", the output isn't returned, but written to the buffer or input of this name. `size` tells if the output
    is an integer."""

    name: str = ""
    constant: Any = None
    written: str = ""
    size: bool = False


@dataclass(frozen=True)
class Traced:
    """A traced model, and how its inputs and outputs belong to a program's.

    `inputs` has the model's input for each of the program's flat arguments, or "" if the argument is no
    tensor. The model's last inputs are the numbers `given`, which are SymPy expressions. Their values are
    passed in the form of `number_tensor`."""

    model: TracedModel
    inputs: tuple[str, ...]
    outputs: tuple[Output, ...]
    given: tuple[Any, ...] = ()
