"""The operators of ATen, PyTorch's library of tensors, as a dialect."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from jangin.frontends.assemble import substituted
from jangin.frontends.bodies import CONTROL
from jangin.frontends.dialect import Bodies, Dialect, Inputs, Lowering, Outputs, near
from jangin.frontends.torch.operators import OPERATORS
from jangin.frontends.torch.operators.common import Result
from jangin.ir.expr import Const, Expr, Var
from jangin.ir.graph import CompileError, ImportedAttributes, Node
from jangin.ops.builder import Builder
from jangin.ops.values import Tensor

MARKS = frozenset({"tensors", "gives", "common", "late"})
"""Attributes that the trace adds to a node to describe it (see `TracedModel`). A node's other attributes are
the operator's own arguments."""


class Aten(Dialect):
    """The dialect finds a lowering by an operator's name and overload ("aten.add.Tensor")."""

    domain = "aten"

    def lowering(self, node: Node) -> Lowering | None:
        return CONTROL.get(node.op) or (self._lower if _found(node.op) is not None else None)

    def _lower(self, b: Builder, node: Node, inputs: Inputs, bodies: Bodies) -> Outputs:
        attrs = node.of(ImportedAttributes)
        late: Sequence[str] = attrs.get("late", ())
        known: dict[Var, Expr] = {}
        for name, value in zip(late, inputs[len(inputs) - len(late) :], strict=True):
            assert isinstance(value, Tensor) and value.data is not None
            known[Var(name)] = value.data.item()
        attrs = substituted(attrs, known)
        result = Result(attrs["gives"], tuple(map(bool, node.outputs)), attrs.get("common"))
        lower = _found(node.op)
        assert lower is not None
        kwargs = {k: v for k, v in attrs.items() if k not in MARKS}
        results = lower(b, result, **kwargs, **_tensors(attrs, iter(inputs)))
        _check(results, result)
        outputs: Outputs = results
        return outputs

    def remedy(self, node: Node) -> str:
        name = node.op.removeprefix("aten.").split(".")[0]
        also = near(name, {n.split(".")[0] for n in OPERATORS}, 0.85)
        return (
            f"{node.op} is not supported{also}: write the module with other operators, or give "
            f'operators=[jangin.operator("{node.op.removeprefix("aten.")}", domain="aten")(...)]'
        )

    def attributes(self, node: Node) -> Mapping[str, Any]:
        return {k: v for k, v in node.of(ImportedAttributes).items() if k not in MARKS}


def _found(op: str) -> Any:
    """Return the lowering of an operator's overload, such as "aten.add.Tensor". Otherwise return the lowering
    of all overloads ("add"), or None."""
    name = op.removeprefix("aten.")
    return OPERATORS.get(name) or OPERATORS.get(name.rsplit(".", 1)[0])


def _tensors(attrs: ImportedAttributes, inputs: Iterator[Any]) -> dict[str, Any]:
    """Return a node's inputs by the names of the operator's arguments. An argument that is a list of tensors
    has a list of inputs."""
    tensors: dict[str, Any] = {}
    for entry in attrs["tensors"]:
        if isinstance(entry, str):
            tensors[entry] = next(inputs)
        else:
            name, count = entry
            tensors[name] = [next(inputs) for _ in range(count)]
    return tensors


def _check(made: Any, result: Result) -> None:
    """Raise CompileError if a result's type or shape differs from PyTorch's, to avoid a wrong answer."""
    results = made if isinstance(made, (tuple, list)) else (made,)
    for tensor, (dtype, shape) in zip(results, result.all, strict=True):
        if not isinstance(tensor, Tensor):
            continue
        sizes = zip(tensor.shape, shape, strict=False)
        apart = any(isinstance(d, Const) and isinstance(s, Const) and d != s for d, s in sizes)
        if tensor.dtype is not dtype or tensor.rank != len(shape) or apart:
            raise CompileError(
                f"the result would be {tensor}, but PyTorch gives {dtype}[{', '.join(map(str, shape))}]: "
                "please report this"
            )


ATEN = Aten()
