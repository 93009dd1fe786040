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
from torch.fx.experimental.symbolic_shapes import has_free_unbacked_symbols

import jangin
from jangin.frontends.torch.attention import keep_attention
from jangin.frontends.torch.decompositions import table
from jangin.frontends.torch.tensors import Run, on_tensors
from jangin.frontends.torch.trace import placeholders, traced_graph
from jangin.frontends.torch.views import part_views

Boxed = Callable[[list[Any]], list[Any]]


def backend(graph: torch.fx.GraphModule, inputs: Sequence[Any], **given: Any) -> Callable[..., Any]:
    """What `torch.compile` calls for each graph. CompileError, which PyTorch shows within its own, lists the
    operators that aren't supported."""
    options = {"cache": False, **(given.get("options") or {})}

    def inference(lowered: torch.fx.GraphModule, example: Sequence[Any]) -> Boxed:
        _fix_numbers(lowered)
        context = torch._guards.TracingContext.try_get()
        metadata = None if context is None else context.fw_metadata
        static = [] if metadata is None else metadata.static_input_indices
        return _boxed(_Compiled(lowered, static, options))

    if not torch.is_grad_enabled():
        keep_attention(graph)
    made: Callable[..., Any] = aot_autograd(
        fw_compiler=_training, inference_compiler=inference, decompositions=table()
    )(graph, inputs)
    return made


def _boxed(fn: Boxed) -> Boxed:
    fn._boxed_call = True  # type: ignore[attr-defined]
    return fn


def _fix_numbers(lowered: torch.fx.GraphModule) -> None:
    """Fractions that follow from sizes become constants: for other sizes PyTorch compiles anew then."""
    for node in lowered.graph.nodes:
        value = node.meta.get("val")
        if isinstance(value, torch.SymFloat) and not has_free_unbacked_symbols(value):
            node.meta["val"] = float(value)


def _training(lowered: torch.fx.GraphModule, example: Sequence[Any]) -> Any:
    """Where gradients are asked for PyTorch runs the graph, and says so once."""
    warnings.warn(
        "jangin compiles inference: where gradients are needed PyTorch runs the graph itself "
        "(use torch.no_grad(), or torch.inference_mode())",
        stacklevel=2,
    )
    return make_boxed_func(lowered.forward)


class _Compiled:
    """A graph whose parameters and buffers are constants: it is compiled when it is first called, and again
    when one of them has changed since."""

    def __init__(
        self, graph: torch.fx.GraphModule, static: Sequence[int], options: Mapping[str, Any]
    ) -> None:
        self.graph, self.options, self.views = graph, options, part_views(graph)
        self.inputs = placeholders(graph.graph)
        self.static = [i for i in static if i < len(self.inputs)]
        self.addresses: list[int] | None = None
        self.versions: list[int] = []

    def __call__(self, args: list[Any]) -> list[Any]:
        addresses = [args[i].data_ptr() for i in self.static]
        if addresses != self.addresses or [args[i]._version for i in self.counted] != self.versions:
            self._compile(args)
            self.addresses = addresses
        made = list(self.run([args[i] for i in self.wanted]))
        if self.views is not None:
            made = list(self.views.make(*(args[i] for i in self.views.inputs), *made))
        args.clear()
        return made

    def _compile(self, args: Sequence[Any]) -> None:
        held = {self.inputs[i].name: args[i] for i in self.static}
        self.run, self.wanted = self._compiled(held)
        self.counted = [i for i in self.static if not args[i].is_inference()]
        self.versions = [args[i]._version for i in self.counted]

    def _compiled(self, held: Mapping[str, torch.Tensor]) -> tuple[Run, list[int]]:
        """What computes the graph's results, and which of its inputs it takes."""
        if not next(iter(reversed(self.graph.graph.nodes))).args[0]:
            return lambda _: (), []
        model = traced_graph(self.graph.graph, held).model
        executable = jangin.compile(model, threads=torch.get_num_threads(), **self.options)
        places = {node.name: i for i, node in enumerate(self.inputs)}
        return on_tensors(executable), [places[i.name] for i in executable.inputs]
