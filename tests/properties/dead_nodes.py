"""Mutants of ONNX models that give the same results. They have more nodes of every kind, anywhere, that no
output needs.

No node reads an *idle* value. A value made *aside* comes beside a used one: the second result of a function,
a branch that isn't taken, or a loop's further results.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from random import Random
from typing import Any

import numpy as np
import onnx
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, helper, numpy_helper

TRIPS = 100
"""Iterations of a loop that isn't unrolled."""
ANY = ("NonZero", "Unique", "Identity", "Shape", "Size", "SequenceConstruct", "Optional", "Exp", "Det")
"""Operators that take a value of any type and shape, whether they allow it or not."""
OWN = "nobody.knows"
"""A domain that only these models import."""


@dataclass
class Place:
    """A list of nodes into which others are inserted: a graph's or a function's. `constants` are a graph's
    own."""

    nodes: Any
    inputs: Sequence[str]
    opsets: Any
    constants: Sequence[str] = ()


@dataclass
class Mutator:
    """Adds dead nodes of some `kinds` to one model. `added` lists the nodes that were added."""

    model: ModelProto
    rng: Random
    kinds: Sequence[str]
    added: list[str] = field(default_factory=list)

    def add(self) -> None:
        """Add nodes of one kind in one place."""
        place = self.rng.choice(list(places(self.model)))
        kind = self.rng.choice(self.kinds)
        KINDS[kind](self, place)
        self.added.append(kind)

    # -- idle values -----------------------------------------------------------------------------

    def operator(self, place: Place) -> None:
        """Add the nodes of one of ONNX's node tests, on the test's numbers."""
        imported = {o.domain: o.version for o in place.opsets}
        name, model, arrays = self.rng.choice(
            [c for c in cases()
             if all(imported.get(o.domain, o.version) == o.version for o in c[1].opset_import)]
        )  # fmt: skip
        at, tag = self._at(place), self._tag()
        place.opsets.extend([o for o in model.opset_import if o.domain not in imported])
        inside = model.graph
        fixed = [helper.make_node("Constant", [], [i.name], value=i) for i in inside.initializer]
        given = [
            helper.make_node("Constant", [], [i.name], value=a)
            for i, a in zip(inside.input, arrays, strict=True)
        ]
        made = [*fixed, *given, *inside.node]
        self._insert(place, at, [renamed(n, tag) for n in made])
        self.added.append(name)

    def reader(self, place: Place) -> None:
        """Add operators that read used values, and some that read their results."""
        at, tag = self._at(place), self._tag()
        read = self.rng.choice(self._before(place, at) or [""])
        if not read:
            return
        made = [helper.make_node(self.rng.choice(ANY), [read], [f"{tag}a"])]
        mask = numpy_helper.from_array(np.array([True, False, True]))
        made += self.rng.choice((
            [],
            [helper.make_node("Transpose", [f"{tag}a"], [f"{tag}b"])],
            [helper.make_node("Constant", [], [f"{tag}m"], value=mask),
             helper.make_node("Compress", [read, f"{tag}m"], [f"{tag}b"]),
             helper.make_node("Concat", [f"{tag}b", f"{tag}b"], [f"{tag}c"], axis=0)],
            [helper.make_node("NonZero", [read], [f"{tag}b"]),
             helper.make_node("Shape", [f"{tag}b"], [f"{tag}c"]),
             helper.make_node("ConstantOfShape", [f"{tag}c"], [f"{tag}d"])],
        ))  # fmt: skip
        self._insert(place, at, made)

    def unknown(self, place: Place) -> None:
        """Add an unknown operator that reads a used value."""
        at, tag = self._at(place), self._tag()
        if all(o.domain != OWN for o in place.opsets):
            place.opsets.add().CopyFrom(helper.make_opsetid(OWN, 1))
        read = self._before(place, at)[-1:]
        self._insert(place, at, [helper.make_node("Anything", read, [f"{tag}a"], domain=OWN)])

    def control(self, place: Place) -> None:
        """Add a branch or a loop with dead nodes inside. Nothing reads its results."""
        at, tag = self._at(place), self._tag()
        read = self.rng.choice(self._before(place, at) or [""])
        if not read:
            return
        inner = [helper.make_node("NonZero", [read], [f"{tag}i"]), identity(f"{tag}i", f"{tag}o")]
        if self.rng.random() < 0.5:
            true = truth(f"{tag}t", self.rng.random() < 0.5)
            then = helper.make_graph(inner, "then", [], [untyped(f"{tag}o")])
            orelse = helper.make_graph([identity(read, f"{tag}e")], "else", [], [untyped(f"{tag}e")])
            node = helper.make_node("If", [f"{tag}t"], [f"{tag}a"], then_branch=then, else_branch=orelse)
            self._insert(place, at, [true, node])
        else:
            self._insert(place, at, loop(tag, "", inner, f"{tag}o", self.rng.choice((3, TRIPS)))[:-1])

    # -- values made aside ----------------------------------------------------------------------

    def function(self, place: Place) -> None:
        """Pass a value through a function that has further results."""
        if place.opsets is not self.model.opset_import:
            self.reader(place)
            return
        tag, old = self._tag(), self._edge(place)
        if old is None:
            return
        at, name = old
        nodes = [identity("x", "y"), helper.make_node("NonZero", ["x"], ["z"]), identity("z", "w")]
        opsets = [o for o in self.model.opset_import if o.domain == ""]
        self.model.functions.append(helper.make_function(OWN, f"F{tag}", ["x"], ["y", "w"], nodes, opsets))
        if all(o.domain != OWN for o in self.model.opset_import):
            self.model.opset_import.append(helper.make_opsetid(OWN, 1))
        call = helper.make_node(f"F{tag}", [name], [f"{tag}a", f"{tag}b"], domain=OWN)
        self._through(place, at, name, [call], f"{tag}a")

    def taken(self, place: Place) -> None:
        """Pass a value through a branch that is known to be taken."""
        tag, old = self._tag(), self._edge(place)
        if old is None:
            return
        at, name = old
        nodes = [helper.make_node("NonZero", [name], [f"{tag}n"]), identity(f"{tag}n", f"{tag}m")]
        then = helper.make_graph([*nodes, identity(name, f"{tag}p")], "then", [], [untyped(f"{tag}p")])
        orelse = helper.make_graph(nodes, "else", [], [untyped(f"{tag}m")])
        node = helper.make_node("If", [f"{tag}t"], [f"{tag}a"], then_branch=then, else_branch=orelse)
        self._through(place, at, name, [truth(f"{tag}t", True), node], f"{tag}a")

    def carried(self, place: Place) -> None:
        """Pass a value through a loop that has further results, with sizes that depend on data."""
        tag, old = self._tag(), self._edge(place)
        if old is None:
            return
        at, name = old
        inner = [helper.make_node("NonZero", [f"{tag}v"], [f"{tag}i"]), identity(f"{tag}i", f"{tag}o")]
        made = loop(tag, name, inner, f"{tag}o", self.rng.choice((1, TRIPS)))
        self._through(place, at, name, made, f"{tag}a")

    # -- places ---------------------------------------------------------------------------------

    def _tag(self) -> str:
        return f"dead{len(self.added)}_"

    def _at(self, place: Place) -> int:
        return self.rng.randrange(len(place.nodes) + 1)

    def _before(self, place: Place, at: int) -> list[str]:
        """Return the values that exist before a node."""
        return [*place.inputs, *place.constants, *(o for n in place.nodes[:at] for o in n.output if o)]

    def _edge(self, place: Place) -> tuple[int, str] | None:
        """Return a node and an input that it reads. Constants are left out, since some must stay
        constants."""
        found = [(at, name) for at, n in enumerate(place.nodes) for name in n.input if name in place.inputs]
        return self.rng.choice(found) if found else None

    def _through(self, place: Place, at: int, name: str, made: Sequence[NodeProto], new: str) -> None:
        """Insert the nodes `made` before the node at this place, which then reads their result `new` instead
        of `name`."""
        node = place.nodes[at]
        node.input[list(node.input).index(name)] = new
        self._insert(place, at, made)

    def _insert(self, place: Place, at: int, made: Sequence[NodeProto]) -> None:
        nodes = [*place.nodes[:at], *made, *place.nodes[at:]]
        nodes = [copied(n) for n in nodes]
        del place.nodes[:]
        place.nodes.extend(nodes)


KINDS: dict[str, Callable[[Mutator, Place], None]] = {
    kind.__name__: kind
    for kind in (
        Mutator.operator, Mutator.reader, Mutator.unknown, Mutator.control, Mutator.function, Mutator.taken,
        Mutator.carried,
    )
}  # fmt: skip


def with_dead_nodes(
    model: ModelProto, rng: Random, count: int, kinds: Sequence[str] = tuple(KINDS)
) -> tuple[ModelProto, list[str]]:
    """Return a copy of the model with dead nodes of `count` of these kinds, and what they are. ONNX's checker
    takes the copy."""
    while True:
        mutant = ModelProto()
        mutant.CopyFrom(model)
        mutator = Mutator(mutant, rng, kinds)
        for _ in range(count):
            mutator.add()
        try:
            check(mutant)
        except onnx.checker.ValidationError:
            continue  # the checker refused it; a body may define a captured name, for example
        return mutant, mutator.added


def check(model: ModelProto) -> None:
    """Run ONNX's checker, with types for outputs that lack them, because it asks for them. Raises
    ValidationError."""
    typed = ModelProto()
    typed.CopyFrom(model)
    for output in typed.graph.output:
        if not output.HasField("type"):
            # the checker doesn't compare it with the real type
            output.CopyFrom(scalar(output.name, TensorProto.FLOAT))
    onnx.checker.check_model(typed)


def places(model: ModelProto) -> Iterator[Place]:
    """Yield the lists of nodes of a model: of its graph, its functions and everything inside them."""
    yield from _of_graph(model.graph, model.opset_import)
    for function in model.functions:
        yield Place(function.node, [*function.input], function.opset_import)


def _of_graph(graph: GraphProto, opsets: Any) -> Iterator[Place]:
    constants = [t.name for t in graph.initializer]
    inputs = [i.name for i in graph.input if i.name not in constants]
    yield Place(graph.node, inputs, opsets, constants)
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("g"):
                yield from _of_graph(attribute.g, opsets)


@cache
def cases() -> list[tuple[str, ModelProto, list[TensorProto]]]:
    """Return ONNX's node tests of tensors: name, model and inputs."""
    from onnx.backend.test.loader import load_model_tests

    found = []
    for case in load_model_tests(kind="node"):
        if case.model is None or case.data_sets is None or case.model.ByteSize() > 1 << 16:
            continue
        arrays = list(case.data_sets[0][0])
        plain = all(isinstance(a, (np.ndarray, np.generic)) for a in arrays)
        names = {n for node in case.model.graph.node for n in node.input}
        if plain and not case.model.functions and "" not in names:
            given = [numpy_helper.from_array(np.asarray(a), i.name)
                     for a, i in zip(arrays, case.model.graph.input, strict=False)]  # fmt: skip
            if len(given) == len(case.model.graph.input):
                found.append((case.name, case.model, given))
    return found


def renamed(node: NodeProto, tag: str) -> NodeProto:
    """Return a node with new names for all its values, also in its sub-graphs."""
    made = copied(node)
    _rename(made, tag)
    return made


def _rename(node: NodeProto, tag: str) -> None:
    node.name = f"{tag}{node.name}" if node.name else ""
    for names in (node.input, node.output):
        names[:] = [f"{tag}{n}" if n else "" for n in names]
    for attribute in node.attribute:
        if attribute.HasField("g"):
            graph = attribute.g
            for value in (*graph.input, *graph.output, *graph.initializer, *graph.value_info):
                value.name = f"{tag}{value.name}"
            for inner in graph.node:
                _rename(inner, tag)


def loop(tag: str, value: str, inner: Sequence[NodeProto], result: str, trips: int) -> list[NodeProto]:
    """Return a loop that carries `value` unchanged, if there is one, and also gives `result` of the last
    iteration."""
    start = helper.make_node(
        "Constant", [], [f"{tag}s"], value=numpy_helper.from_array(np.zeros((1, 0), np.int64))
    )
    counted = helper.make_node(
        "Constant", [], [f"{tag}n"], value=numpy_helper.from_array(np.array(trips, np.int64))
    )
    kept = [identity(f"{tag}v", f"{tag}w")] if value else []
    body = helper.make_graph(
        [identity(f"{tag}c", f"{tag}d"), *inner, *kept], "body",
        [scalar(f"{tag}k", TensorProto.INT64), scalar(f"{tag}c", TensorProto.BOOL), untyped(f"{tag}r"),
         *([untyped(f"{tag}v")] if value else [])],
        [scalar(f"{tag}d", TensorProto.BOOL), untyped(result), *([untyped(f"{tag}w")] if value else [])],
    )  # fmt: skip
    inputs, outputs = [f"{tag}n", "", f"{tag}s"], [f"{tag}b"]
    if value:
        inputs, outputs = [*inputs, value], [*outputs, f"{tag}a"]
    return [counted, start, helper.make_node("Loop", inputs, outputs, body=body)]


def identity(source: str, goal: str) -> NodeProto:
    return helper.make_node("Identity", [source], [goal])


def truth(name: str, value: bool) -> NodeProto:
    return helper.make_node("Constant", [], [name], value=numpy_helper.from_array(np.array(value)))


def scalar(name: str, code: int) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, code, [])


def untyped(name: str) -> onnx.ValueInfoProto:
    return helper.make_empty_tensor_value_info(name)


def copied(node: NodeProto) -> NodeProto:
    made = NodeProto()
    made.CopyFrom(node)
    return made
