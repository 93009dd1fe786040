"""Operator fusion: groups nodes into kernels.

A kernel has at most one anchor (a contraction, reduction, or several stages over rows). It has one result,
until the passes `extrema` and `scalars` join some kernels. Maps that consume the anchor's result join its
write-back (the epilogue). Injective producers of the anchor's operands are evaluated at its reads. Every
value between a kernel's nodes is read inside it alone, so groups can't depend on each other in a circle.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from jangin.ir.core import Conv, Gather, Map
from jangin.ir.dtype import I8
from jangin.ir.expr import Binary, Call, Const, Expr, Var, const
from jangin.ir.graph import Graph, Node
from jangin.ir.sources import Sources
from jangin.ir.traversal import free_vars, walk
from jangin.ir.words import BITCASTS
from jangin.ops.core import core_op
from jangin.ops.editor import Editor, kernel_node
from jangin.passes.memory.in_place import in_place_concats
from jangin.targets.target import Target

SIZE_LIMIT = 400
"""Most expression nodes of a kernel's epilogue, or of all producers evaluated at its reads. A value that is
evaluated several times counts each time. Larger kernels take long to compile, and run out of registers."""
REGION_LIMIT = 16
"""Most maps that are examined in search of the point where a value's consumers meet again. Activations such
as GELU take about ten maps, and each examined map costs compile time."""

TABLE = 256
"""Most elements of a table from which an anchor's write-back may take its results."""

CHEAP_CALLS = frozenset(
    {"neg", "abs", "not", "floor", "ceil", "round", "trunc", "sign", "fma", "rounded", "isnan", "isinf"}
    | BITCASTS.keys()
)
"""Functions that cost no more than an addition or two."""

Classes = frozenset[str]
"""Classes of producers. A producer's class is its operator, or for maps "cheap", "dear" (with divisions or
transcendental functions) or "widening" (cheap conversions of small integers to floats)."""
NONE: Classes = frozenset()
"""No producer may be evaluated at its read."""
WIDENING: Classes = frozenset({"widening"})
"""Producers that cost less to evaluate again than to load."""
CHEAP: Classes = WIDENING | {"cheap"}
"""Producers that may be evaluated again for each of several reads."""
VIEWS: Classes = frozenset({"transpose", "slice", "expand"})
"""Producers that only read at other indices."""
EPILOGUE: Classes = CHEAP | {"slice", "expand"}
"""Producers that an anchor's write-back may evaluate."""
ONCE: Classes = VIEWS | CHEAP | {"dear", "pad", "gather"}
"""Producers that may be evaluated at a read if each element is read about once."""


def fuse(graph: Graph, target: Target) -> Graph:
    """Return the graph as kernels and reshapes. A kernel is a node of op "kernel", whose attribute `body` is
    the graph that it computes. Reshapes stay aliases.

    A concatenation whose parts can be written in place has a kernel to itself (see
    `passes.memory.in_place`). Raises CompileError if a node isn't a core operator.
    """
    return _Fuser(_Fuser(graph, target).widened_apart(), target).run()


def kind(node: Node) -> str:
    return core_op(node).kind


def is_anchor(node: Node) -> bool:
    return kind(node) not in ("injective", "alias")


def is_dear(body: Expr) -> bool:
    """Return whether evaluating the scalar expression costs far more than loading its operands."""
    for e in walk(body):
        if isinstance(e, Call) and e.fn not in CHEAP_CALLS:
            return True
        if isinstance(e, Binary) and e.op in ("div", "pow", "rem", "mod", "floordiv") and e.dtype.kind == "f":
            return True
    return False


def producer_class(node: Node) -> str:
    if not isinstance(node.attrs, Map):
        return node.op
    body = node.attrs.body
    if is_dear(body):
        return "dear"
    return "widening" if body.dtype.is_float and all(map(is_narrow, free_vars(body))) else "cheap"


def is_narrow(e: Expr) -> bool:
    return e.dtype.is_int and e.dtype.bits <= 16


@dataclass
class Group:
    """The nodes of one kernel.

    - `members`: its nodes, by output name.
    - `allowed`: for each member, the classes of producers that may be inlined into it.
    - `copies`: for each member, the number of copies of its expression.
    - `inlined`: expression nodes of all inlined producers, copies included.
    """

    anchor: Node
    result: str
    members: dict[str, Node] = field(default_factory=dict)
    allowed: dict[str, Classes] = field(default_factory=dict)
    copies: dict[str, int] = field(default_factory=dict)
    inlined: int = 0

    def add(self, node: Node, allowed: Classes, copies: int = 1) -> None:
        name = node.outputs[0]
        self.members[name] = node
        self.allowed[name] = allowed
        self.copies[name] = copies


class _Fuser:
    """Groups nodes of one graph. `across`: the machine adds up products of bytes across a vector's lanes."""

    def __init__(self, graph: Graph, target: Target) -> None:
        self.graph = graph
        self.figures = target.machine.fusion
        self.across = target.row("products_across", I8, target.machine.vector_bytes) is not None
        self.producers = graph.producers()
        self.users = graph.consumers()
        self.index = {n.outputs[0]: i for i, n in enumerate(graph.nodes)}
        self.owner: dict[str, Group] = {}
        self.in_place = in_place_concats(graph)

    def run(self) -> Graph:
        backwards = [n for n in reversed(self.graph.nodes) if kind(n) != "alias"]
        anchors = [self.start(n) for n in backwards if is_anchor(n)]
        groups = [g for g in anchors if kind(g.anchor) != "opaque"]
        for group in groups:
            self.consume(group)
        for group in groups:
            self.absorb(group)
        for node in backwards:
            if node.outputs[0] not in self.owner:
                group = self.start(node)
                anchors.append(group)
                self.absorb(group)
        kernels = {self.index[g.result]: self.kernel(g) for g in anchors}
        nodes = [
            kernels.get(i, n) for i, n in enumerate(self.graph.nodes) if i in kernels or n.op == "reshape"
        ]
        return self.graph.with_nodes(nodes)

    def widened_apart(self) -> Graph:
        """Return the graph with a separate copy of each widening map (bytes to floats) for each of its
        readers.

        A map is copied only if all readers can evaluate it. The value in memory then stays bytes.
        """
        apart = {n.outputs[0]: n for n in self.graph.nodes if self.is_apart(n)}
        if not apart:
            return self.graph
        run = Editor(self.graph.symbols, self.graph.values, self.graph.constants)
        for node in self.graph.nodes:
            if node.outputs[0] not in apart:
                read = {n: apart[n] for n in node.inputs if n in apart}
                own = {n: run.add(m.of(Map), m.inputs, n, m.source) for n, m in read.items()}
                run.emit(replace(node, inputs=tuple(own.get(n, n) for n in node.inputs)))
        return run.rewritten(self.graph)

    def is_apart(self, node: Node) -> bool:
        users = self.users.get(node.outputs[0], ())
        if len(node.inputs) != 1 or self.graph.dtype(node.inputs[0]).bits != 8 or len(users) < 2:
            return False
        return producer_class(node) in WIDENING and self.can_make(node.outputs[0], users, WIDENING)

    def can_make(self, name: str, users: Sequence[Node], made: Classes) -> bool:
        """Return whether each reader of a value may evaluate producers of all the classes `made`. It is false
        if the value is a result of the model."""
        reads = ((u, i) for u in users for i, n in enumerate(u.inputs) if n == name)
        return name not in self.graph.outputs and all(self.inlinable(u, i) >= made for u, i in reads)

    def start(self, node: Node) -> Group:
        group = Group(node, node.outputs[0])
        self.join(group, node, NONE if group.result in self.in_place else ONCE | {"concat"})
        return group

    def join(self, group: Group, node: Node, allowed: Classes, copies: int = 1) -> None:
        group.add(node, allowed, copies)
        self.owner[node.outputs[0]] = group

    # -- consumers ------------------------------------------------------------------------------

    def consume(self, group: Group) -> None:
        """Add the maps after the anchor to the epilogue, as long as each step has one result. A last widening
        map is left out if its readers can evaluate it."""
        sizes, steps = {group.result: 1}, list[list[Node]]()
        while region := self.region(group, sizes):
            steps.append(region)
            group.result = region[-1].outputs[0]
        if steps and self.widens(steps[-1]):
            (node,) = steps.pop()
            group.result = node.inputs[0]
        for node in (n for region in steps for n in region):
            self.join(group, node, EPILOGUE)

    def widens(self, region: Sequence[Node]) -> bool:
        """Return whether a step is a widening map of one operand whose only reader can evaluate it."""
        node, name = region[0], region[0].outputs[0]
        users = self.users.get(name, ())
        if len(region) > 1 or len(node.inputs) > 1 or len(users) != 1:
            return False
        if self.figures.small_values and self.is_wider(node) and producer_class(node) in CHEAP:
            return self.can_make(name, users, CHEAP)
        return producer_class(node) in WIDENING and self.can_make(name, users, WIDENING)

    def is_wider(self, node: Node) -> bool:
        """Return whether an element of a map's result has more bytes than one of its first input."""
        return self.graph.dtype(node.outputs[0]).bytes > self.graph.dtype(node.inputs[0]).bytes

    def region(self, group: Group, sizes: dict[str, int]) -> list[Node]:
        """Return the smallest set of maps that reads all of the group's result and has one result itself, in
        order. It is empty if there is none."""
        shape = self.graph.shape(group.result)
        taken: list[Node] = []
        inside = {group.result}
        pending = self.waiting(group.result)
        while pending and len(taken) < REGION_LIMIT:
            if inside & set(self.graph.outputs):
                return []
            node = self.graph.nodes[heapq.heappop(pending)]
            name = node.outputs[0]
            if node in taken:
                continue
            if not (isinstance(node.attrs, Map) or self.is_lookup(node)):
                return []
            if name in self.owner or self.graph.shape(name) != shape:
                return []
            sizes[name] = self.grown(node, sizes)
            if sizes[name] > SIZE_LIMIT:
                return []
            taken.append(node)
            if not pending or all(self.graph.nodes[i] in taken for i in pending):
                return taken
            inside.add(name)
            for i in self.waiting(name):
                heapq.heappush(pending, i)
        return []

    def waiting(self, name: str) -> list[int]:
        return sorted(self.index[n.outputs[0]] for n in self.users.get(name, ()))

    def grown(self, node: Node, sizes: dict[str, int]) -> int:
        total = node.attrs.body.size if isinstance(node.attrs, Map) else 1
        return total + sum(occurrences(node, i) * sizes.get(n, 1) for i, n in enumerate(node.inputs))

    # -- producers ------------------------------------------------------------------------------

    def absorb(self, group: Group) -> None:
        """Add the injective nodes that only this group reads, nearest first."""
        queue = [-self.index[i] for n in group.members.values() for i in n.inputs if i in self.index]
        heapq.heapify(queue)
        while queue:
            node = self.graph.nodes[-heapq.heappop(queue)]
            if node.outputs[0] in self.owner or not self.fits(group, node):
                continue
            for name in node.inputs:
                if name in self.index:
                    heapq.heappush(queue, -self.index[name])

    def fits(self, group: Group, node: Node) -> bool:
        """Add `node` to the group if all its readers are in the group and can evaluate it. Return whether it
        was added."""
        name = node.outputs[0]
        if kind(node) != "injective" or name in self.graph.outputs or name in self.in_place:
            return False
        allowed, copies = ONCE | {"concat"}, 0
        for user in self.users.get(name, ()):
            out = user.outputs[0]
            if out not in group.members:
                return False
            allowed &= group.allowed[out]
            for position, operand in enumerate(user.inputs):
                if operand == name:
                    allowed &= self.inlinable(user, position)
                    copies += group.copies[out] * occurrences(user, position)
        size = node.attrs.body.size if isinstance(node.attrs, Map) else 1
        if producer_class(node) not in allowed or group.inlined + copies * size > SIZE_LIMIT:
            return False
        group.inlined += copies * size
        self.join(group, node, allowed, copies)
        return True

    def inlinable(self, user: Node, position: int) -> Classes:
        """Return the classes of producers that `user` may evaluate at its read of this operand."""
        source, result = self.graph.shape(user.inputs[position]), self.graph.shape(user.outputs[0])
        if user.op == "map":
            return ONCE | {"concat"} if source == result else VIEWS | CHEAP
        if user.op == "expand":
            return VIEWS | CHEAP
        if user.op == "gather":
            if position == 0:
                return VIEWS | CHEAP
            return ONCE if self.is_lookup(user) else CHEAP
        if user.op in ("transpose", "slice", "pad", "reduce", "softmax", "normalize"):
            return ONCE
        if user.op == "pool":
            return CHEAP
        if isinstance(user.attrs, Conv) and position == 0 and self.is_depthwise(user):
            return WIDENING
        if self.across and self.graph.dtype(user.inputs[position]) is I8:
            return NONE  # the instruction loads neighbouring terms, which a view would separate
        # A product's inner loop reads its operands in place: other strides are possible, but no arithmetic.
        planes = user.op == "conv" and position == 0 and self.has_few(source[-1])
        return VIEWS if user.op == "matmul" or planes else NONE

    def is_lookup(self, node: Node) -> bool:
        """Return whether a node looks up each element of its result in a small table."""
        table = self.graph.constants.get(node.inputs[0]) if isinstance(node.attrs, Gather) else None
        return table is not None and table.ndim == 1 and table.size <= TABLE

    def is_depthwise(self, node: Node) -> bool:
        """Return whether a convolution is depthwise and channels-last."""
        attrs, (filters, each, *_) = node.of(Conv), self.graph.shape(node.inputs[1])
        return attrs.layout == "last" and each == const(1) and filters == const(attrs.groups)

    def has_few(self, channels: Expr) -> bool:
        return isinstance(channels, Const) and int(channels.value) < self.figures.few_channels

    # -- kernels --------------------------------------------------------------------------------

    def kernel(self, group: Group) -> Node:
        nodes = sorted(group.members.values(), key=lambda n: self.index[n.outputs[0]])
        scalars = self.scalars(nodes)
        read = dict.fromkeys(n for node in nodes for n in node.inputs if n)
        inputs = tuple(n for n in read if n not in group.members and n not in scalars)
        values = {n: self.graph.values[n] for n in (*read, *group.members)}
        constants = {n: self.graph.constants[n] for n in scalars}
        body = Graph(
            group.anchor.name, inputs, (group.result,), tuple(nodes), constants, values, self.graph.symbols
        )
        return kernel_node(body, Sources.joined(n.source for n in nodes))

    def scalars(self, nodes: Sequence[Node]) -> set[str]:
        """Return the names of constants of one element that only maps read. They become part of the code, not
        operands."""
        operands = {n for node in nodes if node.op == "map" for n in node.inputs}
        others = {n for node in nodes if node.op != "map" for n in node.inputs}
        constants = self.graph.constants
        return {n for n in operands - others if n in constants and constants[n].size == 1}


def occurrences(node: Node, position: int) -> int:
    """Return how often the node's expression mentions an operand. Several stages count once, because they
    keep repeated operands."""
    if not isinstance(node.attrs, Map):
        return 1
    return sum(1 for e in walk(node.attrs.body) if isinstance(e, Var) and e.name == f"x{position}")
