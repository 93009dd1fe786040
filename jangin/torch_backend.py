"""`torch.compile(model, backend="jangin")`: TorchDynamo's graphs, compiled by Jangin.

PyTorch finds the back end by the entry point `torch_dynamo_backends`. Graph breaks, guards and recompiling go
by PyTorch's own rules; options are those of `jangin.compile` (`torch.compile(model, backend="jangin",
options={"winograd": False})`).
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch._dynamo.backends.common import aot_autograd
from torch._functorch._aot_autograd.utils import make_boxed_func
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx.experimental.symbolic_shapes import has_free_unbacked_symbols

import jangin
from jangin.frontends.torch.attention import keep_attention
from jangin.frontends.torch.decompositions import table
from jangin.frontends.torch.sizes import Sizes, numbers
from jangin.frontends.torch.tensors import Run, on_tensors
from jangin.frontends.torch.trace import OPERANDS, number_tensor, placeholders, traced_graph
from jangin.frontends.torch.views import part_views
from jangin.ir.graph import CompileError
from jangin.ir.own_names import own_name

Boxed = Callable[[list[Any]], list[Any]]
Numbers = Callable[[Sequence[Any]], list[Any]]


def backend(graph: torch.fx.GraphModule, inputs: Sequence[Any], **given: Any) -> Callable[..., Any]:
    """What `torch.compile` calls for each graph. CompileError, which PyTorch shows within its own, lists the
    operators that aren't supported."""
    options = {"cache": False, **(given.get("options") or {})}
    parts: list[_Compiled] = []

    def inference(lowered: torch.fx.GraphModule, example: Sequence[Any]) -> Boxed:
        _fix_numbers(lowered)
        context = torch._guards.TracingContext.try_get()
        metadata = None if context is None else context.fw_metadata
        static = [] if metadata is None else metadata.static_input_indices
        parts.append(_Compiled(lowered, static, options))
        return _boxed(parts[-1])

    if not torch.is_grad_enabled():
        keep_attention(graph)
    made: Callable[..., Any] = aot_autograd(
        fw_compiler=_training, inference_compiler=inference, decompositions=table()
    )(graph, inputs)
    for part in parts:
        part.settle(inputs)
    return made


def _boxed(fn: Boxed) -> Boxed:
    fn._boxed_call = True  # type: ignore[attr-defined]
    return fn


def _fix_numbers(lowered: torch.fx.GraphModule) -> None:
    """Fractions that follow from sizes become constants, except operands of elementwise operators and what
    tensors are filled with: for other sizes PyTorch compiles anew then."""
    for node in lowered.graph.nodes:
        value = node.meta.get("val")
        known = isinstance(value, torch.SymFloat) and not has_free_unbacked_symbols(value)
        if known and not all(_takes_fraction(user, node) for user in node.users):
            node.meta["val"] = float(value)


def _takes_fraction(user: torch.fx.Node, fraction: torch.fx.Node) -> bool:
    """Whether a node hands a fraction on, or may take it as it takes a tensor."""
    if not isinstance(user.target, torch._ops.OpOverload):
        numbers = torch.SymFloat, torch.SymInt, torch.SymBool
        return user.op == "output" or isinstance(user.meta.get("val"), numbers)
    names = [a.name for a in user.target._schema.arguments]
    given = {**dict(zip(names, user.args, strict=False)), **user.kwargs}
    used = {name for name, value in given.items() if value is fraction}
    taken = OPERANDS if torch.Tag.pointwise in user.target.tags else FILLS.get(user.target, ())
    return bool(used) and used <= {*taken}


FILLS = {
    torch.ops.aten.full.default: ("fill_value",),
    torch.ops.aten.full_like.default: ("fill_value",),
    torch.ops.aten.scalar_tensor.default: ("s",),
}


def _training(lowered: torch.fx.GraphModule, example: Sequence[Any]) -> Any:
    """Where gradients are asked for PyTorch runs the graph, and says so once."""
    warnings.warn(
        "jangin compiles inference: where gradients are needed PyTorch runs the graph itself "
        "(use torch.no_grad(), or torch.inference_mode())",
        stacklevel=2,
    )
    return make_boxed_func(lowered.forward)


class _Compiled:
    """A graph whose parameters and buffers are constants: it is compiled when it is first called, or before
    where sizes are symbols (see `settle`), and again when one of its constants has changed since."""

    def __init__(
        self, graph: torch.fx.GraphModule, static: Sequence[int], options: Mapping[str, Any]
    ) -> None:
        self.graph, self.options, self.views = graph, options, part_views(graph)
        self.inputs = placeholders(graph.graph)
        self.static = [i for i in static if i < len(self.inputs)]
        self.addresses: list[int] | None = None
        self.versions: list[int] = []
        self.env = next((s.node.shape_env for n in self.inputs for s in _sizes(n)), None)

    def settle(self, args: Sequence[Any]) -> None:
        """Compile while PyTorch still takes guards: where a size can't be a symbol, this graph becomes one
        for the size at hand, and PyTorch compiles anew for others. `args`: those of the first call."""
        while symbols := set().union(*(s.node.expr.free_symbols for n in self.inputs for s in _sizes(n))):
            fixed = symbols
            if self._takes(args):
                try:
                    self._compile(args)
                    return
                except CompileError as error:
                    fixed = self.sizes.of_names({own_name(v) for v in error.symbols}) & symbols or symbols
            for size in (s for n in self.inputs for s in _sizes(n)):
                if size.node.expr.free_symbols & fixed:
                    int(size)

    def __call__(self, args: list[Any]) -> list[Any]:
        addresses = [args[i].data_ptr() for i in self.static]
        if addresses != self.addresses or [args[i]._version for i in self.counted] != self.versions:
            self._compile(args)
        made = list(self.run([*(args[i] for i in self.wanted), *map(number_tensor, self.numbers(args))]))
        if self.views is not None:
            made = list(self.views.make(*(args[i] for i in self.views.inputs), *made))
        args.clear()
        return made

    def _takes(self, args: Sequence[Any]) -> bool:
        """Whether the constants are known before the first call."""
        found = [args[i] for i in self.static] if len(args) == len(self.inputs) else [None]
        return all(isinstance(a, torch.Tensor) and not isinstance(a, FakeTensor) for a in found)

    def _compile(self, args: Sequence[Any]) -> None:
        held = {self.inputs[i].name: args[i] for i in self.static}
        self.run, self.wanted, self.numbers = self._compiled(held)
        self.counted = [i for i in self.static if not args[i].is_inference()]
        self.versions = [args[i]._version for i in self.counted]
        self.addresses = [args[i].data_ptr() for i in self.static]

    def _compiled(self, held: Mapping[str, torch.Tensor]) -> tuple[Run, list[int], Numbers]:
        """What computes the graph's results, which of its inputs it takes, and the numbers that it takes
        behind them."""
        if not next(iter(reversed(self.graph.graph.nodes))).args[0]:
            return lambda _: (), [], lambda _: []
        self.sizes = Sizes({}, {}, self.env)
        traced = traced_graph(self.graph.graph, held, self.sizes)
        given = numbers(traced.given, self.inputs)
        executable = jangin.compile(traced.model, threads=torch.get_num_threads(), **self.options)
        places = {node.name: i for i, node in enumerate(self.inputs)}
        taken = executable.inputs[: len(executable.inputs) - len(traced.given)]
        return on_tensors(executable), [places[i.name] for i in taken], given


def _sizes(node: torch.fx.Node) -> list[torch.SymInt]:
    """The symbolic numbers that an input of a graph is, or has."""
    value = node.meta.get("val")
    parts: tuple[Any, ...] = (value,)
    if isinstance(value, torch.Tensor):
        parts = *value.shape, *value.stride(), value.storage_offset()
    return [p for p in parts if isinstance(p, torch.SymInt) and not has_free_unbacked_symbols(p)]
