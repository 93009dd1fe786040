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

import jangin
from jangin.frontends.torch.module import results_of
from jangin.frontends.torch.trace import array_of, placeholders, table, traced_graph

Run = Callable[[list[Any]], list[Any]]


def backend(graph: torch.fx.GraphModule, inputs: Sequence[Any], **given: Any) -> Callable[..., Any]:
    """What `torch.compile` calls for each graph. CompileError, which PyTorch shows within its own, lists the
    operators that aren't supported."""
    options = {"cache": False, **(given.get("options") or {})}

    def inference(lowered: torch.fx.GraphModule, example: Sequence[Any]) -> Run:
        context = torch._guards.TracingContext.try_get()
        metadata = None if context is None else context.fw_metadata
        static = [] if metadata is None else metadata.static_input_indices
        return _boxed(_Compiled(lowered, static, options))

    made: Callable[..., Any] = aot_autograd(
        fw_compiler=_training, inference_compiler=inference, decompositions=table()
    )(graph, inputs)
    return made


def _boxed(fn: Run) -> Run:
    fn._boxed_call = True  # type: ignore[attr-defined]
    return fn


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
        self.graph, self.options = graph, options
        self.names = [n.name for n in placeholders(graph.graph)]
        self.static = [i for i in static if i < len(self.names)]
        self.state: list[tuple[int, int]] | None = None

    def __call__(self, args: list[Any]) -> list[Any]:
        state = [_state_of(args[i]) for i in self.static]
        if state != self.state:
            self._compile(args)
            self.state = state
        feeds = {name: array_of(args[i]) for i, name in enumerate(self.names) if name in self.wanted}
        args.clear()
        return results_of(self.outputs, self.executable.run(feeds))

    def _compile(self, args: Sequence[Any]) -> None:
        held = {self.names[i]: args[i] for i in self.static if isinstance(args[i], torch.Tensor)}
        traced = traced_graph(self.graph.graph, held)
        self.outputs = traced.outputs
        self.executable = jangin.compile(traced.model, threads=torch.get_num_threads(), **self.options)
        self.wanted = {i.name for i in self.executable.inputs}


def _state_of(tensor: Any) -> tuple[int, int]:
    """What changes where a tensor does."""
    return tensor.data_ptr(), 0 if tensor.is_inference() else tensor._version
