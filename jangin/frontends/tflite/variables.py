"""Variables: what VAR_HANDLE names, READ_VARIABLE gives and ASSIGN_VARIABLE keeps for the next run.

A graph has no such thing: a variable is one more input, the value from the run before, and one more output.
What CALL_ONCE assigns to it counts as long as the input `STARTED` doesn't hold, which is in the first run.
"""

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
    """Those of one graph while it is read: by a handle's name its variable; by variable, what it holds
    now, and its type."""

    handles: dict[str, str] = field(default_factory=dict)
    now: dict[str, str] = field(default_factory=dict)
    types: dict[str, tuple[DType, Shape]] = field(default_factory=dict)

    def handle(self, name: str, options: Mapping[str, Any]) -> None:
        """VAR_HANDLE: variables of one name are one."""
        found = [options.get(k) for k in ("container", "shared_name")]
        texts = [v.decode(errors="replace") if isinstance(v, bytes) else v or "" for v in found]
        self.handles[name] = "/".join(filter(None, texts)) or name

    def read(self, handle: str, dtype: DType, shape: Shape) -> str:
        """READ_VARIABLE: the name of the value that is held."""
        return self.value(self.of(handle), dtype, shape)

    def value(self, name: str, dtype: DType, shape: Shape) -> str:
        """The name of the value that a variable holds now."""
        self.types.setdefault(name, (dtype, shape))
        return self.now.setdefault(name, before(name))

    def last(self, name: str) -> str:
        """The name of what a variable holds in the end."""
        return self.now.get(name, before(name))

    def unchanged(self) -> set[str]:
        """Variables that hold what they did before."""
        return {name for name, value in self.now.items() if value == before(name)}

    def assign(self, handle: str, value: str, dtype: DType, shape: Shape) -> None:
        """ASSIGN_VARIABLE."""
        name = self.of(handle)
        self.types.setdefault(name, (dtype, shape))
        self.now[name] = value

    def of(self, handle: str) -> str:
        """The variable of a handle."""
        if handle not in self.handles:
            raise CompileError(f"'{handle}' is no variable's handle that the graph knows")
        return self.handles[handle]


def before(name: str) -> str:
    """The value that a variable holds as a run begins."""
    return f"state.{name}.before"


@dataclass
class Parts:
    """What the main graph consists of. `state`: for inputs that are kept from run to run, the outputs
    that they are next."""

    inputs: list[Value]
    outputs: list[str]
    nodes: list[Node]
    state: dict[str, str] = field(default_factory=dict)

    def keep(self, name: str, dtype: DType, shape: Shape, node: Node) -> None:
        """A value that is kept: what the node gives is it in the next run."""
        self.inputs.append(Value(name, dtype, shape))
        self.outputs.append(node.outputs[0])
        self.nodes.append(node)
        self.state[name] = node.outputs[0]


def stateful(main: Parts, variables: Variables, start: Graph | None, started: Variables) -> None:
    """Add the state to the main graph. `start`: what CALL_ONCE runs, whose results are what the variables
    `started` hold then."""
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
