"""Convert an exported PyTorch program to a graph of ATen's operators. Only this module reads the data
structures of PyTorch's programs."""

from __future__ import annotations

import operator
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, OutputKind
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols

from jangin.frontends.bodies import BRANCH, LOOP
from jangin.frontends.torch.decompositions import table
from jangin.frontends.torch.element_types import SHARED_NAMES, array_of, element_type
from jangin.frontends.torch.errors import without_errors
from jangin.frontends.torch.model import Output, Traced, TracedModel
from jangin.frontends.torch.sizes import FAR, Sizes
from jangin.frontends.torch.strided import STRIDED, lying
from jangin.ir.dtype import BOOL, DTYPES, F64, I64, DType
from jangin.ir.expr import Const, Expr, const
from jangin.ir.graph import Array, CompileError, Graph, ImportedAttributes, Node, Value
from jangin.ir.sources import Sources
from jangin.ir.traversal import free_vars

UNUSED = frozenset({"memory_format", "device", "layout", "pin_memory", "non_blocking", "generator"})
"""Arguments that only determine how and on which device a result is stored, or that only matter for random
numbers."""
OPERANDS = ("self", "other", "exponent", "min", "max")
"""Arguments of elementwise operators that are tensors or numbers. Their types determine the type of the
computation."""


def traced(program: ExportedProgram, names: Mapping[Any, str] | None = None) -> Traced:
    """Return a program as a traced model. `names` are the caller's names of symbols of sizes, by PyTorch's
    symbols.

    Raises CompileError that names the part of the program that isn't supported."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", category=FutureWarning, module="copyreg")  # PyTorch's trees warn
        program = program.run_decompositions(table())
    without_errors(program.graph)
    signature = program.graph_signature
    changed = set(signature.buffers_to_mutate.values())
    held = {**program.constants, **program.state_dict}
    constants: dict[str, torch.Tensor] = {}
    inputs: list[str] = []
    for node, spec in zip(placeholders(program.graph), signature.input_specs, strict=True):
        if spec.kind is InputKind.USER_INPUT:
            inputs.append(node.name if isinstance(node.meta.get("val"), torch.Tensor) else "")
        elif spec.kind is InputKind.TOKEN:
            continue
        elif spec.kind not in HELD:
            raise CompileError(
                f"input '{node.name}' of the exported program has an unsupported kind: {spec.kind.name}"
            )
        elif spec.target not in changed:
            constants[node.name] = held[spec.target]
    arguments = next(iter(reversed(program.graph.nodes))).args[0]
    results = [
        (argument, spec) for argument, spec in zip(arguments, signature.output_specs, strict=True)
        if spec.kind is not OutputKind.TOKEN
    ]  # fmt: skip
    written = [
        spec.target if spec.kind in WRITTEN else ("" if spec.kind is OutputKind.USER_OUTPUT else None)
        for _, spec in results
    ]
    if None in written:
        raise CompileError("the exported program gives gradients: export it for inference")
    trace = _Trace(program.graph, constants, Sizes(names or {}, program.range_constraints))
    trace.tokens = {s.arg.name for s in signature.input_specs if s.kind is InputKind.TOKEN}
    model, outputs = trace.model([argument for argument, _ in results], [w or "" for w in written])
    return Traced(model, tuple(inputs), outputs)


def traced_graph(graph: Any, constants: Mapping[str, torch.Tensor], sizes: Sizes | None = None) -> Traced:
    """Return a graph of operators, which has no signature, as a traced model. `constants` are the values of
    some inputs by name. New symbols are added to `sizes`."""
    sizes = sizes or Sizes({}, {})
    trace = _Trace(graph, constants, sizes)
    trace.tokens = {n.name for n in placeholders(graph) if not n.users}
    values = (n.meta.get("val") for n in placeholders(graph))
    passed = {v.node.expr for v in values if isinstance(v, (torch.SymInt, torch.SymFloat))}
    sizes.passed |= {e for e in passed if e.is_Symbol and free_unbacked_symbols(e)}
    inputs = tuple(
        n.name if isinstance(n.meta.get("val"), torch.Tensor) and n.name not in {*constants, *trace.tokens}
        else "" for n in placeholders(graph)
    )  # fmt: skip
    arguments = next(iter(reversed(graph.nodes))).args[0]
    model, outputs = trace.model(arguments, [""] * len(arguments))
    return Traced(model, inputs, outputs, (*sizes.given, *sizes.fractions))


HELD = (InputKind.PARAMETER, InputKind.BUFFER, InputKind.CONSTANT_TENSOR)
WRITTEN = (OutputKind.BUFFER_MUTATION, OutputKind.USER_INPUT_MUTATION)


def placeholders(graph: Any) -> list[Any]:
    """Return the nodes of a graph's inputs, in order."""
    return [n for n in graph.nodes if n.op == "placeholder"]


class _Trace:
    """The tracing of one graph. Sizes that are known only during a run are values of the graph (see
    `_bind`)."""

    def __init__(self, graph: Any, held: Mapping[str, torch.Tensor], sizes: Sizes) -> None:
        self.graph = graph
        self.held = held
        self.sizes = sizes
        self.late: dict[str, str] = {}
        """The values that hold symbols known only during a run, by the symbols' names."""
        self.bound: set[Any] = set()
        """The symbols that inputs and earlier nodes determine."""
        self.values: dict[str, Value] = {}
        self.constants: dict[str, Array] = {}
        self.nodes: list[Node] = []
        self.results: dict[tuple[Any, int], str] = {}
        self.prefix = ""
        self.tokens: set[str] = set()
        """Inputs that no node reads, such as the tokens of `errors`."""

    def model(
        self, given: Sequence[Any], written: Sequence[str], prefix: str = ""
    ) -> tuple[TracedModel, tuple[Output, ...]]:
        """Return the traced model and its outputs. Names of additional outputs begin with `prefix`."""
        self.prefix = f"{prefix}." if prefix else ""
        inputs: list[str] = []
        for node in placeholders(self.graph):
            if node.name in self.held:
                self._constant(node.name, self.held[node.name])
            elif isinstance(node.meta.get("val"), torch.Tensor) and node.name not in self.tokens:
                inputs.append(node.name)
                self._input(node)
        for node in self.graph.nodes:
            if node.op == "call_function":
                self._named(node)
            elif node.op == "get_attr":
                self._attribute(node)
        outputs = self._outputs(given, written)
        names = tuple(o.name for o in outputs if o.name)
        if not names:
            raise CompileError("the model returns no tensor: return one or more")
        ranges = self.sizes.ranges()
        if not prefix:
            numbers: list[tuple[str, DType, tuple[Expr, ...]]] = []
            numbers += [(f"{v.name}.tensor", BOOL, (v + FAR, const(0))) for v in self.sizes.given.values()]
            numbers += [(name, F64, ()) for name in self.sizes.fractions.values()]
            self.values |= {name: Value(name, dtype, shape) for name, dtype, shape in numbers}
            inputs += [name for name, _, _ in numbers]
            ranges = {v: limits for v, limits in ranges.items() if v.name not in self.late}
        graph = Graph("model", tuple(inputs), names, tuple(self.nodes), self.constants, self.values, ranges)
        return TracedModel(graph), outputs

    # -- inputs and outputs ---------------------------------------------------------------------

    def _input(self, node: Any) -> None:
        tensor = node.meta["val"]
        for i, size in enumerate(tensor.shape):
            if not isinstance(size, int) and size.node.expr.is_Symbol:
                self.sizes.symbol(size.node.expr, f"{node.name}_d{i}")
                self.bound.add(size.node.expr)
        shape = tuple(map(self.sizes, tensor.shape))
        self.values[node.name] = Value(node.name, element_type(tensor.dtype), shape)

    def _constant(self, name: str, tensor: torch.Tensor) -> None:
        array = array_of(tensor)
        self.constants[name] = array
        self.values[name] = Value(name, element_type(tensor.dtype), tuple(map(const, array.shape)))

    def _attribute(self, node: Any) -> None:
        """Add a tensor that is an attribute of the graph's module, as a constant."""
        attribute: Any = node.graph.owning_module
        for part in node.target.split("."):
            attribute = getattr(attribute, part)
        if isinstance(attribute, torch.Tensor):
            self._constant(node.name, attribute)

    def _outputs(self, given: Sequence[Any], written: Sequence[str]) -> tuple[Output, ...]:
        outputs: list[Output] = []
        taken: set[str] = set()
        for place, (value, target) in enumerate(zip(given, written, strict=True)):
            if not isinstance(value, torch.fx.Node):
                outputs.append(Output(constant=value, written=target))
                continue
            size = isinstance(value.meta.get("val"), torch.SymInt)
            name = self.results.get((value, 0), value.name)
            if size or name in taken or not any(name in n.outputs for n in self.nodes):
                name = self._copy(value, name, place, size)
            taken.add(name)
            outputs.append(Output(name, None, target, size))
        return tuple(outputs)

    def _copy(self, node: Any, name: str, place: int, size: bool) -> str:
        """Add a node whose result is only an output, and return the result's name. It copies an input, a
        constant or another output, or gives a size. `place` is the output's position."""
        output = f"{self.prefix}output_{place}"
        if size:
            e = self.sizes(node.meta["val"])
            self._emit(
                output, "torch.sizes", (), (output,), {"sizes": [e]}, [(I64, ())], Sources.of("a size")
            )
        else:
            tensor = node.meta["val"]
            if not isinstance(tensor, torch.Tensor):
                raise CompileError(f"'{node.name}' is a number that only a run knows: give it as a tensor")
            kind = (element_type(tensor.dtype), tuple(map(self.sizes, tensor.shape)))
            self._emit(
                output,
                "aten.alias.default",
                (name,),
                (output,),
                {"tensors": ("self",)},
                [kind],
                Sources.of(name),
            )
        return output

    # -- sizes ----------------------------------------------------------------------------------

    def _late(self, node: Any) -> None:
        """Add the sizes that become known with a node: `torch.size` of one of its results, or `torch.item` of
        its operand."""
        value = node.meta.get("val")
        if isinstance(value, torch.SymInt) and value.node.expr.is_Symbol:
            self._bind(value.node.expr, "torch.item", node.args[0].name, {})
        if isinstance(value, torch.SymFloat) and value.node.expr.is_Symbol:
            self._read(value.node.expr, node)
        for i, tensor in enumerate(value if isinstance(value, (tuple, list)) else (value,)):
            if isinstance(tensor, torch.Tensor):
                for axis, size in enumerate(tensor.shape):
                    e = None if isinstance(size, int) else size.node.expr
                    if self.results[node, i] and e is not None and e.is_Symbol and free_unbacked_symbols(e):
                        self._bind(e, "torch.size", self.results[node, i], {"axis": axis})

    def _bind(self, symbol: Any, op: str, source: str, attrs: dict[str, Any]) -> None:
        if symbol in self.bound | self.sizes.passed:
            return
        self.bound.add(symbol)
        name = self.sizes.symbol(symbol, str(symbol)).name
        self.late[name] = name
        attributes = {"tensors": ("self",), **attrs}
        self._emit(name, op, (source,), (name,), attributes, [(I64, ())], Sources.of(f"the size {symbol}"))

    def _read(self, symbol: Any, node: Any) -> None:
        """Add a fraction that is the only element of a node's operand."""
        source, kinds = node.args[0].name, [(F64, ())]
        self._emit(
            node.name, "torch.number", (source,), (node.name,), {"tensors": ("self",)}, kinds,
            Sources.of(f"the number {symbol}"),
        )  # fmt: skip
        self.sizes.items[symbol] = node.name

    # -- nodes ----------------------------------------------------------------------------------

    def _named(self, node: Any) -> None:
        """Add the node of a call. The messages of CompileErrors are extended by its name."""
        try:
            self._call(node)
        except CompileError as error:
            raise CompileError(f"{node.target} '{self._path(node)}' can't be compiled: {error}") from None

    def _call(self, node: Any) -> None:
        value = node.meta.get("val")
        if node.target is operator.getitem:
            self.results[node, 0] = self.results[node.args[0], node.args[1]]
            return
        if node.target is torch.ops.higher_order.cond:
            self._branch(node)
            return
        if node.target is torch.ops.higher_order.while_loop:
            self._loop(node)
            return
        if not self._computes(value):
            if str(node.target) in ("aten._local_scalar_dense.default", "aten.item.default"):
                self._late(node)
            return
        op = str(node.target)
        if not isinstance(node.target, torch._ops.OpOverload):
            raise CompileError(f"'{node.name}' calls {op}, which can't be compiled: export without it")
        if node.target._schema.is_mutable:
            raise CompileError("it writes to its operand, and a compiled graph only makes new tensors")
        results = value if isinstance(value, (tuple, list)) else (value,)
        names = self._result_names(node, len(results))
        arguments = self._arguments(node)
        if node.target in STRIDED:
            asked = (self._value(arguments.get(n)) for n in ("self", "size", "stride", "storage_offset"))
            arguments |= lying(*asked)
        tensors, inputs, attrs = self._split(arguments)
        attrs["tensors"] = tensors
        common = self._common(arguments)
        if common is not None:
            attrs["common"] = common
        kinds = [self._kind(t) for t in results]
        self._emit(
            self._path(node), op, inputs, names, attrs, kinds, Sources.of(str(node.target), self._path(node))
        )
        self._late(node)

    def _kind(self, result: Any) -> tuple[DType, tuple[Expr, ...]]:
        """Return the type and shape of a node's result. A result that PyTorch leaves out, which nothing
        reads, gets the type of an empty tensor."""
        if not isinstance(result, torch.Tensor):
            return BOOL, (const(0),)
        return element_type(result.dtype), tuple(map(self.sizes, result.shape))

    # -- control flow ---------------------------------------------------------------------------

    def _branch(self, node: Any) -> None:
        """Add a branch, which is `torch.cond(condition, then, orelse, operands)` in PyTorch."""
        condition, then, orelse, operands = node.args
        if not self._is_tensor(condition):
            raise CompileError(f"'{node.name}' branches by sizes: give torch.cond a tensor as its condition")
        names = self._operands(node, operands)
        bodies = {"then": then, "orelse": orelse}
        graphs = {k: self._body(f, f"{node.name}.{k}", names) for k, f in bodies.items()}
        self._control(node, BRANCH, (self._name(condition),), graphs)

    def _loop(self, node: Any) -> None:
        """Add a loop, which is `while_loop(condition, function, carried, besides)` in PyTorch. `besides` are
        values that the functions only read. The loop's body is the function, followed by the condition of the
        next iteration."""
        condition, function, carried, besides = node.args
        first, fixed = self._operands(node, carried), self._operands(node, besides)
        start = self._body(condition, f"{node.name}.start", [*first, *fixed])
        inner = [f"{node.name}.carried{i}" for i in range(len(first))]
        step = self._body(function, f"{node.name}.body", [*inner, *fixed])
        again = self._body(condition, f"{node.name}.again", [*step.outputs, *fixed])
        inputs = (f"{node.name}.step", f"{node.name}.going", *inner)
        body = replace(
            step, inputs=inputs, outputs=(*again.outputs, *step.outputs), nodes=(*step.nodes, *again.nodes),
            constants={**step.constants, **again.constants},
            values={**again.values, **step.values, **{n: Value(n, None, None) for n in inputs}},
        )  # fmt: skip
        self._control(node, LOOP, tuple(first), {"start": start, "body": body})

    def _control(self, node: Any, op: str, inputs: tuple[str, ...], graphs: dict[str, Any]) -> None:
        results = node.meta["val"]
        kinds = [(element_type(t.dtype), tuple(map(self.sizes, t.shape))) for t in results]
        names = self._result_names(node, len(results))
        self._emit(
            self._path(node), op, inputs, names, graphs, kinds, Sources.of(str(node.target), self._path(node))
        )

    def _source(self, node: Any) -> Sources:
        return Sources.of(str(node.target), self._path(node))

    def _name(self, node: Any) -> str:
        return self.results.get((node, 0), str(node.name))

    def _operands(self, node: Any, operands: Sequence[Any]) -> list[str]:
        """Return the names of the operands of a branch's or loop's functions. Sizes are left out, because the
        functions have their symbols. Raises CompileError for operands of other kinds."""
        for operand in operands:
            size = isinstance(operand, torch.fx.Node) and isinstance(operand.meta["val"], torch.SymInt)
            if not size and not self._is_tensor(operand):
                raise CompileError(f"'{node.name}' is given {operand!r}: give tensors to its functions")
        return [self._name(o) for o in operands]

    def _body(self, function: Any, prefix: str, inputs: Sequence[str]) -> Graph:
        """Return a function as a graph on the values called `inputs`. The names of its other values begin
        with `prefix`, so that they are unique."""
        graph = getattr(function.graph.owning_module, function.target).graph
        names = iter(inputs)
        for node in graph.nodes:
            node.name = next(names) if node.op == "placeholder" else f"{prefix}.{node.name}"
        inner = _Trace(graph, {}, self.sizes)
        inner.late, inner.bound = dict(self.late), set(self.bound)
        arguments = next(iter(reversed(graph.nodes))).args[0]
        arguments = arguments if isinstance(arguments, (list, tuple)) else [arguments]
        model, _ = inner.model(arguments, [""] * len(arguments), prefix)
        if inner.late != self.late or len(model.graph.outputs) != len(arguments):
            raise CompileError(
                f"'{prefix}' returns sizes that only a run knows, or values that are no tensors"
            )
        return replace(model.graph, inputs=(), symbols={})

    def _computes(self, value: Any) -> bool:
        """Tell if a node's value is a tensor or has tensors. All other nodes compute or check sizes."""
        if isinstance(value, (tuple, list)):
            return any(isinstance(v, torch.Tensor) for v in value)
        return isinstance(value, torch.Tensor)

    def _result_names(self, node: Any, count: int) -> tuple[str, ...]:
        """Return the names of a node's results. If there are several, a result is named after the node that
        selects it, or "" if none does."""
        if not isinstance(node.meta["val"], (tuple, list)):
            self.results[node, 0] = node.name
            return (node.name,)
        picked = {n.args[1]: n.name for n in node.users if n.target is operator.getitem}
        names = tuple(picked.get(i, "") for i in range(count))
        self.results |= {(node, i): name for i, name in enumerate(names)}
        return names

    def _path(self, node: Any) -> str:
        """Return the path of the module in the author's code that the node belongs to, followed by the node's
        name."""
        stack = list((node.meta.get("nn_module_stack") or {}).values())
        path = stack[-1][0] if stack else ""
        return f"{path}.{node.name}" if path else str(node.name)

    def _arguments(self, node: Any) -> dict[str, Any]:
        """Return a call's arguments by their names in the operator's schema, with defaults. Those that are
        None or in `UNUSED` are left out."""
        schema = node.target._schema.arguments
        values = dict(zip((a.name for a in schema), node.args, strict=False)) | dict(node.kwargs)
        arguments = {}
        for argument in schema:
            value = values.get(argument.name, argument.default_value)
            if argument.name not in UNUSED and value is not None:
                arguments[argument.name] = value
        return arguments

    def _split(self, given: Mapping[str, Any]) -> tuple[tuple[Any, ...], tuple[str, ...], dict[str, Any]]:
        """Return the arguments of a call in three parts.

        The first part has the names of the arguments that are tensors, with the count for a list. The second
        has the names of those tensors. The third has all other arguments."""
        tensors: list[Any] = []
        inputs: list[str] = []
        attrs: dict[str, Any] = {}
        for name, value in given.items():
            items = value if isinstance(value, (list, tuple)) else [value]
            if any(self._is_tensor(v) for v in items):
                tensors.append((name, len(items)) if isinstance(value, (list, tuple)) else name)
                inputs += ["" if v is None else self.results.get((v, 0), v.name) for v in items]
            elif isinstance(value, torch.fx.Node) and isinstance(value.meta["val"], torch.SymFloat):
                tensors.append(name)
                inputs.append(self.sizes.fraction(value.meta["val"]))
            else:
                attrs[name] = self._plain(value)
        return tuple(tensors), tuple(inputs), attrs

    def _value(self, argument: Any) -> Any:
        """Return the value that an argument had when PyTorch traced the program."""
        if isinstance(argument, (list, tuple)):
            return [self._value(a) for a in argument]
        return argument.meta["val"] if isinstance(argument, torch.fx.Node) else argument

    def _is_tensor(self, value: Any) -> bool:
        return isinstance(value, torch.fx.Node) and isinstance(value.meta.get("val"), torch.Tensor)

    def _plain(self, value: Any) -> Any:
        """Return an argument that isn't a tensor as the value of an attribute. Raises CompileError if it
        isn't known before the run."""
        if isinstance(value, (list, tuple)):
            return [self._plain(v) for v in value]
        if isinstance(value, torch.fx.Node):
            value = value.meta["val"]
        if isinstance(value, torch.dtype):
            return element_type(value)
        if isinstance(value, torch.SymInt):
            e = self.sizes(value)
            return int(e.value) if isinstance(e, Const) else e
        if value is None or isinstance(value, (bool, int, float, str)):
            return value
        raise CompileError(f"an argument is {value!r}, which is not known before the model runs")

    def _common(self, given: Mapping[str, Any]) -> DType | None:
        """Return the type in which PyTorch computes an elementwise operator's operands. Return None if there
        are no operands, or if Jangin doesn't have the type."""
        values = [v for k, v in given.items() if k in (*OPERANDS, "tensors")]
        flat = [w for v in values for w in (v if isinstance(v, (list, tuple)) else [v])]
        real = [v.meta["val"] if isinstance(v, torch.fx.Node) else v for v in flat]
        real = [
            0 if isinstance(v, torch.SymInt) else 0.0 if isinstance(v, torch.SymFloat) else v for v in real
        ]
        if not real or any(not isinstance(v, (torch.Tensor, bool, int, float)) for v in real):
            return None
        default = torch._prims_common.ELEMENTWISE_TYPE_PROMOTION_KIND.DEFAULT
        dtype = torch._prims_common.elementwise_dtypes(*real, type_promotion_kind=default)[1]
        return DTYPES[SHARED_NAMES[dtype]] if dtype in SHARED_NAMES else None

    def _emit(
        self, name: str, op: str, inputs: Sequence[str], outputs: Sequence[str], attrs: dict[str, Any],
        kinds: Sequence[tuple[Any, Any]], source: Sources,
    ) -> None:  # fmt: skip
        """Add a node. If the node mentions sizes that are known only during a run, the values with these
        sizes become additional inputs."""
        mentioned = {v.name for e in _expressions([*attrs.values(), list(kinds)]) for v in free_vars(e)}
        late = tuple(sorted(mentioned & {n for n in self.late if n not in outputs}))
        attributes = {**attrs, "gives": tuple((dtype, tuple(shape)) for dtype, shape in kinds)}
        attributes["tensors"] = tuple(attrs.get("tensors", ()))
        if late:
            attributes["late"] = late
        for output, (dtype, _) in zip(outputs, kinds, strict=True):
            if output:
                self.values[output] = Value(output, dtype, None)
        reads = (*inputs, *(self.late[n] for n in late))
        self.nodes.append(Node(name, reads, tuple(outputs), ImportedAttributes(op, attributes), source))


def _expressions(values: Any) -> list[Expr]:
    if isinstance(values, (list, tuple)):
        return [e for v in values for e in _expressions(v)]
    return [values] if isinstance(values, Expr) else []
