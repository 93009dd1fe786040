"""Lower ONNX's control flow, If, Loop and Scan, to the general forms of `frontends.control`."""

from __future__ import annotations

from collections.abc import Sequence

from jangin.frontends import control
from jangin.frontends.dialect import Bodies, Inputs
from jangin.ir.graph import CompileError, Graph, ImportedAttributes, Node, static_shape
from jangin.ir.program import Slicing
from jangin.ops.axes import axis_of
from jangin.ops.builder import Builder
from jangin.ops.nontensor import Item
from jangin.ops.values import Tensor


def branch(b: Builder, node: Node, inputs: Inputs, bodies: Bodies) -> list[Item]:
    """Lower `If`: run one of two sub-graphs, chosen by a condition."""
    (condition,) = inputs
    assert isinstance(condition, Tensor)
    attrs = node.of(ImportedAttributes)
    branches = attrs["then_branch"], attrs["else_branch"]
    return control.branch(b, bodies.run, condition, branches, b.scope)


def loop(b: Builder, node: Node, inputs: Inputs, bodies: Bodies) -> list[Item]:
    """Lower `Loop`: run a sub-graph repeatedly, up to a count of iterations or until its condition is
    false."""
    trips, condition, *carried = inputs
    body: Graph = node.of(ImportedAttributes)["body"]
    stacking = (Slicing(),) * (len(body.outputs) - 1 - len(carried))
    iteration = control.Iteration(
        body, control.scalar(b, trips), control.scalar(b, condition), [v for v in carried if v is not None],
        [], (), stacking, True,
    )  # fmt: skip
    return control.iterate(b, bodies.run, iteration, b.scope)


def scan(b: Builder, node: Node, inputs: Inputs, bodies: Bodies) -> list[Item]:
    """Lower `Scan`: run a sub-graph for each slice of some inputs."""
    attrs = node.of(ImportedAttributes)
    if attrs["opset"] < 9:
        return _of_each_entry(b, node, inputs, bodies)
    values = [v for v in inputs if v is not None]
    first = len(values) - attrs["num_scan_inputs"]
    return _scan(
        b, bodies, attrs["body"], values[:first], [v for v in values[first:] if isinstance(v, Tensor)],
        (attrs.get("scan_input_axes"), attrs.get("scan_input_directions")),
        (attrs.get("scan_output_axes"), attrs.get("scan_output_directions")),
    )  # fmt: skip


Ways = tuple[Sequence[int] | None, Sequence[int] | None]
"""The axis of each scanned tensor's slices, and whether its slices are taken backwards. None means axis 0 and
forwards for all."""


def _scan(
    b: Builder, bodies: Bodies, body: Graph, carried: list[Item], scanned: list[Tensor], ins: Ways, outs: Ways
) -> list[Item]:
    axes, backward = (way or (0,) * len(scanned) for way in ins)
    slicing = tuple(
        Slicing(axis_of(a, t.rank), bool(d)) for a, t, d in zip(axes, scanned, backward, strict=True)
    )
    axes, backward = (way or (0,) * (len(body.outputs) - len(carried)) for way in outs)
    stacking = tuple(Slicing(a, bool(d)) for a, d in zip(axes, backward, strict=True))
    trips = b.reshape(b.sizes([scanned[0].shape[slicing[0].axis]]), ())
    iteration = control.Iteration(body, trips, None, carried, scanned, slicing, stacking, False)
    return control.iterate(b, bodies.run, iteration, b.scope)


def _of_each_entry(b: Builder, node: Node, inputs: Inputs, bodies: Bodies) -> list[Item]:
    """Lower `Scan` of opset 8, whose inputs have a batch axis before the scanned axis. The entries of the
    batch are scanned one after another. Raises CompileError if the batch size isn't fixed."""
    if inputs[0] is not None:
        raise CompileError("sequence_lens is not supported; export the model with opset 9 or newer")
    tensors = [v for v in inputs[1:] if isinstance(v, Tensor)]
    batch = static_shape(tensors[0].shape[:1])
    if batch is None:
        raise CompileError("the batch size must be known; export the model with opset 9 or newer")
    first = len(tensors) - node.of(ImportedAttributes)["num_scan_inputs"]
    rows = []
    for n in range(batch[0]):
        entry = [b.gather(v, b.reshape(b.sizes([n]), ()), 0) for v in tensors]
        results = _scan(
            b, bodies, node.of(ImportedAttributes)["body"], [*entry[:first]], entry[first:],
            (None, node.of(ImportedAttributes).get("directions")), (None, None),
        )  # fmt: skip
        rows.append([b.reshape(v, (1, *v.shape)) for v in results if isinstance(v, Tensor)])
    return [b.concat(list(parts), 0) for parts in zip(*rows, strict=True)]
