"""Gradients of PyTorch's operators, as the sample inputs of its own OpInfo database call them."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from opinfo_database import op_db
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils import _pytree as pytree

from jangin.frontends.dialect import Imported
from jangin.frontends.lower import lower
from jangin.frontends.torch.decompositions import table
from jangin.frontends.torch.dialect import ATEN
from jangin.frontends.torch.element_types import array_of
from jangin.frontends.torch.errors import without_errors
from jangin.frontends.torch.model import Traced
from jangin.frontends.torch.trace import traced_graph
from jangin.gradients.reverse import differentiate
from jangin.ir.graph import Graph

TABLE = table()


@dataclass(frozen=True)
class Call:
    """One operator with one sample input."""

    info: Any
    number: int
    sample: Any

    def __str__(self) -> str:
        return f"{self.name}[{self.number}]"

    @property
    def name(self) -> str:
        return title(self.info)

    @property
    def arguments(self) -> tuple[Any, ...]:
        return (self.sample.input, self.sample.args, self.sample.kwargs)

    def tensors(self) -> list[Any]:
        return [v for v in pytree.tree_leaves(self.arguments) if isinstance(v, torch.Tensor)]

    def loss(self, tensors: list[Any]) -> Any:
        """The results' floats, each times a number of its own, added up."""
        flat, spec = pytree.tree_flatten(self.arguments)
        rest = iter(tensors)
        flat = [next(rest) if isinstance(v, torch.Tensor) else v for v in flat]
        first, args, kwargs = pytree.tree_unflatten(flat, spec)
        found = self.info.op(first, *args, **kwargs)
        floats = [
            o for o in pytree.tree_leaves(found) if isinstance(o, torch.Tensor) and o.is_floating_point()
        ]
        total = None
        for o in floats:
            weight = torch.linspace(0.5, 1.5, o.numel(), dtype=o.dtype).reshape(o.shape)
            part = (o * weight).sum()
            total = part if total is None else total + part
        return total

    @property
    def dtype(self) -> Any:
        """The type of the operands that have gradients."""
        return next((t.dtype for t in self.tensors() if t.requires_grad), torch.float64)

    def wanted(self) -> list[Any]:
        """The gradients by PyTorch in float64, None of what isn't asked for."""
        return self._autograd(torch.float64)

    def wanted_here(self) -> list[Any]:
        """PyTorch's gradients in the operands' own type."""
        return self._autograd(self.dtype)

    def _autograd(self, dtype: Any) -> list[Any]:
        given = self._copies(dtype)
        asked = [t for t in given if t.requires_grad]
        found = iter(torch.autograd.grad(self.loss(given), asked, allow_unused=True))
        return [next(found) if t.requires_grad else None for t in given]

    def _copies(self, dtype: Any) -> list[Any]:
        """Return copies of the operands, whose floats have another type."""
        return [
            t.detach().clone().to(dtype if t.dtype == self.dtype else t.dtype).requires_grad_(t.requires_grad)
            for t in self.tensors()
        ]

    def value(self) -> float:
        """The loss, by PyTorch in float64."""
        return float(self.loss([t.detach() for t in self._copies(torch.float64)]).detach())

    def value_here(self) -> float:
        """The loss, by PyTorch in the operands' own type."""
        return float(self.loss([t.detach() for t in self._copies(self.dtype)]).detach())

    def lowered(self) -> tuple[Graph, Traced]:
        given = [t.detach().clone() for t in self.tensors()]

        def losses(*tensors: Any) -> tuple[Any]:
            """Leave buffers, which a call may change, as they are."""
            pairs = zip(tensors, self.tensors(), strict=True)
            return (self.loss([t if own.requires_grad else t.clone() for t, own in pairs]),)

        whole = torch.func.functionalize(losses, remove="mutations_and_views")
        with torch.no_grad():
            made = make_fx(whole, decomposition_table=TABLE, tracing_mode="fake")(*given)
            if any(_writes(node) for node in made.graph.nodes):  # decompositions may write in place
                whole = torch.func.functionalize(made, remove="mutations_and_views")
                made = make_fx(whole, decomposition_table=TABLE, tracing_mode="fake")(*given)
        without_errors(made.graph)
        traced = traced_graph(made.graph, {})
        return lower(Imported(traced.model.bound({}), ATEN, {}), unchecked=True), traced

    def differentiated(self) -> tuple[Graph, dict[str, Any], dict[str, str]]:
        """The graph with gradients, its inputs, and the outputs' names by those of the inputs."""
        graph, traced = self.lowered()
        pairs = [(n, t) for n, t in zip(traced.inputs, self.tensors(), strict=True) if n]
        wrt = [n for n, t in pairs if t.requires_grad]
        made = differentiate(graph, graph.outputs[0], wrt)
        feeds = {n: np.array(array_of(t)) for n, t in pairs if n in made.inputs}
        return made, feeds, dict(zip(wrt, made.outputs[1:], strict=True))

    def inputs(self, names: tuple[str, ...]) -> Iterator[tuple[str, Any]]:
        yield from zip(names, self.tensors(), strict=True)


def title(info: Any) -> str:
    """Return the name of an operator or a module."""
    variant = info.variant_test_name
    return f"{info.name}.{variant}" if variant else str(info.name)


def _writes(node: Any) -> bool:
    """Whether a node of PyTorch's graph changes one of its operands."""
    schema = getattr(node.target, "_schema", None)
    return schema is not None and bool(schema.is_mutable)


def operators() -> list[Any]:
    """PyTorch's operators that have gradients in float64."""
    return [i for i in op_db if i.supports_autograd and torch.float64 in i.supported_backward_dtypes("cpu")]


def calls(infos: Iterable[Any], samples: int, dtype: Any = torch.float64) -> Iterator[Call]:
    """Up to so many sample inputs of each operator."""
    for info in infos:
        torch.manual_seed(0)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                given = iter(info.sample_inputs("cpu", dtype, requires_grad=True))
                found = [s for s, _ in zip(given, range(samples), strict=False)]
            except (ImportError, OSError, RuntimeError):  # a few generators need libraries that may be absent
                continue
        for n, sample in enumerate(found):
            yield Call(info, n, sample)


@dataclass(frozen=True)
class Info:
    """A module of PyTorch's as an operator. Its first argument has the parameters and buffers by name."""

    name: str
    op: Callable[..., Any]
    variant_test_name: str = ""


@dataclass(frozen=True)
class Sample:
    input: dict[str, torch.Tensor]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


def modules(names: Iterable[str] = (), samples: int = 4) -> Iterator[Call]:
    """Yield up to so many sample inputs of modules of PyTorch's `module_db`, in evaluation and training mode.
    Without names, all modules are meant. Dropout is off, because another generator draws its numbers."""
    from torch.testing._internal.common_modules import module_db

    for info in module_db:
        for training in (False, True) if not names or info.name in names else ():
            torch.manual_seed(0)
            given = {"device": "cpu", "dtype": torch.float64, "requires_grad": True, "training": training}
            for n, sample in enumerate(info.module_inputs_func(info, **given)[:samples]):
                yield _of_module(f"{info.name}.{'train' if training else 'eval'}", n, info, sample, training)


def _of_module(name: str, number: int, info: Any, sample: Any, training: bool) -> Call:
    made = sample.constructor_input
    net = info.module_cls(*made.args, **made.kwargs).to(torch.float64).train(training)
    forward = sample.forward_input
    if any("Lazy" in type(part).__name__ for part in net.modules()):
        net(*forward.args, **forward.kwargs)  # its parameters get their sizes
    for part in net.modules():
        if isinstance(part, torch.nn.modules.dropout._DropoutNd):
            part.p = 0.0
        elif isinstance(getattr(part, "dropout", None), float):
            part.dropout = 0.0
    buffers = dict(net.named_buffers())
    held = {**dict(net.named_parameters()), **buffers}

    def run(state: dict[str, torch.Tensor], *args: Any, **kwargs: Any) -> Any:
        own = {n: t.clone() if n in buffers else t for n, t in state.items()}  # the module may write to them
        return torch.func.functional_call(net, own, args, kwargs)

    return Call(Info(name, run), number, Sample(held, forward.args, forward.kwargs))
