"""Import variables. VAR_HANDLE names a variable, READ_VARIABLE reads it, and ASSIGN_VARIABLE sets it for
later reads and runs.

A graph has no variables. Each becomes an input, its value before the run, and an output, its value after the
run. In the first run, in which the input `STARTED` is false, the values that CALL_ONCE assigns are used."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from jangin.frontends.tflite.control import calls
from jangin.ir.dtype import BOOL, DType
from jangin.ir.graph import CompileError, Graph, ImportedAttributes, Node, Shape, Value
from jangin.ir.sources import Sources

STARTED = "state.started"


@dataclass
class Variables:
    """The variables of one graph during its import.

    `handles` has the variable of each handle. `now` has the name of the value that each variable has at this
    point, and `types` its type and shape."""

    handles: dict[str, str] = field(default_factory=dict)
    now: dict[str, str] = field(default_factory=dict)
    types: dict[str, tuple[DType, Shape]] = field(default_factory=dict)

    def handle(self, name: str, options: Mapping[str, Any]) -> None:
        """Record a VAR_HANDLE. Handles with the same container and name are of the same variable."""
        labels = [options.get(k) for k in ("container", "shared_name")]
        texts = [v.decode(errors="replace") if isinstance(v, bytes) else v or "" for v in labels]
        self.handles[name] = "/".join(filter(None, texts)) or name

    def read(self, handle: str, dtype: DType, shape: Shape) -> str:
        """Return the name of the value that READ_VARIABLE reads."""
        return self.value(self.of(handle), dtype, shape)

    def value(self, name: str, dtype: DType, shape: Shape) -> str:
        """Return the name of the value that a variable has at this point."""
        self.types.setdefault(name, (dtype, shape))
        return self.now.setdefault(name, before(name))

    def last(self, name: str) -> str:
        """Return the name of the value that a variable has after the run."""
        return self.now.get(name, before(name))

    def unchanged(self) -> set[str]:
        """Return the variables that still have their values from before the run."""
        return {name for name, value in self.now.items() if value == before(name)}

    def assign(self, handle: str, value: str, dtype: DType, shape: Shape) -> None:
        """Record an ASSIGN_VARIABLE: the variable has the value `value` from now on."""
        name = self.of(handle)
        self.types.setdefault(name, (dtype, shape))
        self.now[name] = value

    def of(self, handle: str) -> str:
        """Return the name of a handle's variable. Raises CompileError if the handle is unknown."""
        if handle not in self.handles:
            raise CompileError(f"'{handle}' is no variable's handle that the graph knows")
        return self.handles[handle]


def before(name: str) -> str:
    """Return the name of the value that a variable has before the run."""
    return f"state.{name}.before"


@dataclass
class Parts:
    """The parts of the main graph. `state` has, for each input that is kept from run to run, the output with
    its next value."""

    inputs: list[Value]
    outputs: list[str]
    nodes: list[Node]
    state: dict[str, str] = field(default_factory=dict)

    def keep(self, name: str, dtype: DType, shape: Shape, node: Node) -> None:
        """Add an input that is kept from run to run. `node` computes its value for the next run."""
        self.inputs.append(Value(name, dtype, shape))
        self.outputs.append(node.outputs[0])
        self.nodes.append(node)
        self.state[name] = node.outputs[0]


def stateful(main: Parts, variables: Variables, start: Graph | None, started: Variables) -> None:
    """Add the variables to the main graph, as inputs that are kept from run to run.

    CALL_ONCE runs the graph `start`. Its results are the first values of the variables in `started`."""
    first: dict[str, str] = {}
    if start is not None:
        first = {n: f"state.{n}.first" for n in started.now}
        main.nodes.append(calls(start, "CALL_ONCE", (), list(first.values())))
        main.keep(STARTED, BOOL, (), _node("true", (), f"{STARTED}.next"))
    for name, (dtype, shape) in (started.types | variables.types).items():
        held = f"state.{name}"
        reads = (STARTED, held, first[name]) if name in first else (held,)
        main.nodes.append(_node("held", reads, before(name)))
        main.keep(held, dtype, shape, _node("held", (variables.last(name),), f"{held}.next"))


def _node(kind: str, inputs: Sequence[str], result: str) -> Node:
    return Node(
        result, tuple(inputs), (result,), ImportedAttributes(f"tflite.{kind}"), Sources.of("variable", result)
    )
