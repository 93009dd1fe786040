"""Write branches and loops as ONNX's If and Loop. Their bodies read values of the graph around them by
name."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence

import onnx
from onnx import helper

from jangin.frontends.onnx.wholes import Wholes
from jangin.frontends.writer import Name
from jangin.ir import core
from jangin.ir.dtype import BOOL, DType
from jangin.ir.expr import Expr
from jangin.ir.graph import CompileError, Graph, Node, Shape
from jangin.ir.program import Slicing


class Steps(Wholes):
    """The part of ONNX's writer that writes a program's steps, except calls. The writer of a body has the
    writer of the graph around it as `outer`."""

    tensors: list[onnx.TensorProto]

    @abstractmethod
    def inner(self, graph: Graph, given: Mapping[str, Name]) -> Steps:
        """Return a writer for a body. `given` has the names of outer values for some of the body's inputs."""

    @abstractmethod
    def scalar(self, e: Expr) -> Name:
        """Return the name of a tensor without axes that holds a size."""

    @abstractmethod
    def typed(self, name: Name, dtype: DType, shape: Shape) -> onnx.ValueInfoProto:
        """Return ONNX's description of a value's type and shape."""

    def write_if(self, node: Node, attrs: core.IfStep) -> None:
        """Write If. The operands after the condition are the outer values that the two bodies read."""
        condition, *read = map(self.named, node.inputs)
        bodies = []
        for graph in (attrs.then, attrs.orelse):
            own, read = read[: len(graph.inputs)], read[len(graph.inputs) :]
            body = self.inner(graph, dict(zip(graph.inputs, own, strict=True)))
            body.body()
            bodies.append(body.proto((), body.ends(graph.outputs)))
        outputs = [self.named(n) for n in node.outputs]
        attributes = {"then_branch": bodies[0], "else_branch": bodies[1]}
        self.nodes.append(helper.make_node("If", [condition], outputs, str(outputs[0]), **attributes))

    def write_loop(self, node: Node, attrs: core.LoopStep) -> None:
        """Write Loop. ONNX's body isn't given slices, so that it gathers them by the number of the iteration.
        Raises CompileError if results are stacked along another axis than 0, or backwards."""
        if any(s != Slicing() for s in attrs.collected):
            raise CompileError(
                "a loop that stacks along another axis, or backwards, can't be expressed in ONNX"
            )
        graph, count = attrs.body, 2 + attrs.carried
        operands = [self.named(n) if n else Name("") for n in node.inputs]
        last = count + len(attrs.scanned)
        body = self.inner(graph, dict(zip(graph.inputs[last:], operands[last:], strict=True)))
        own = [body.named(n) for n in graph.inputs[:count]]
        for at, slicing in zip(range(count, last), attrs.scanned, strict=True):
            size = self.graph.shape(node.inputs[at])[slicing.axis]
            place = body.emit("Sub", self.scalar(size - 1), own[0]) if slicing.reverse else own[0]
            name = graph.inputs[at]
            body.emit("Gather", operands[at], place, result=name, axis=slicing.axis)
        body.body()
        results = body.ends(graph.outputs)
        if not attrs.conditional:
            results = [body.typed(body.emit("Identity", own[1]), BOOL, ()), *results]
        formal = zip(own, graph.inputs, strict=False)
        inputs = [body.typed(name, graph.dtype(n), graph.shape(n)) for name, n in formal]
        outputs = [self.named(n) for n in node.outputs]
        proto = body.proto(inputs, results)
        self.nodes.append(helper.make_node("Loop", operands[:count], outputs, str(outputs[0]), body=proto))

    def ends(self, outputs: Sequence[str]) -> list[onnx.ValueInfoProto]:
        """Return the descriptions of a body's results. A result that isn't made by a node, or that occurs
        twice, is copied first."""
        produced = {o for node in self.graph.nodes for o in node.outputs}
        infos = []
        for name in outputs:
            own = self.named(name) if name in produced else self.emit("Identity", self.named(name))
            produced.discard(name)
            infos.append(self.typed(own, self.graph.dtype(name), self.graph.shape(name)))
        return infos

    def proto(
        self, inputs: Sequence[onnx.ValueInfoProto], outputs: Sequence[onnx.ValueInfoProto]
    ) -> onnx.GraphProto:
        """Return the body as ONNX's graph."""
        return helper.make_graph(self.nodes, self.graph.name or "body", inputs, outputs, self.tensors)
