"""Import PyTorch modules for training. Their parameters become inputs of the graph."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch.export import ExportedProgram

from jangin.frontends.dialect import Imported
from jangin.frontends.torch.dialect import ATEN
from jangin.frontends.torch.element_types import array_of
from jangin.frontends.torch.model import Traced
from jangin.frontends.torch.regions import detached_by_copies, detached_regions
from jangin.frontends.torch.tensors import tensor_of, torch_type
from jangin.frontends.torch.trace import traced
from jangin.ir.graph import CompileError, Graph
from jangin.options import Options
from jangin.training.lora import adapted
from jangin.training.parameters import Chosen, Lora, Trainable, is_chosen, lowered, matching


class WithLoss(torch.nn.Module):  # type: ignore[misc]
    """A module followed by a loss function of PyTorch. The last input is the target."""

    def __init__(self, model: torch.nn.Module, loss: Callable[..., Any]) -> None:
        super().__init__()
        self.model, self.loss = model, loss

    def forward(self, *batch: Any) -> Any:
        *inputs, target = batch
        return self.loss(self.model(*inputs), target)


def of_module(
    module: torch.nn.Module, batch: Sequence[Any], chosen: Chosen, options: Options,
    held: Sequence[str] = (),
) -> Trainable:  # fmt: skip
    """Return a module as a trainable graph. The module stays in its mode, training or evaluation.

    `held` names buffers that become inputs although the module doesn't change them. Raises CompileError,
    which tells the reason, if the module can't be exported or lowered."""
    prefix, state = "model." if isinstance(module, WithLoss) else "", module.state_dict(keep_vars=True)

    def own(name: str) -> str:
        """Return a parameter's name in the module without its loss."""
        return name.removeprefix(prefix)

    copied = {id(t): t for n, t in state.items() if t.requires_grad and is_chosen(own(n), chosen)}
    # new memory takes as long to be written as the export of a large module
    with ThreadPoolExecutor(1) as thread:
        copies = {i: thread.submit(np.array, array_of(t)) for i, t in copied.items()}
        program = _exported(module, batch)
        exported = traced(program)
    signature = program.graph_signature
    owners = {**signature.inputs_to_parameters, **signature.inputs_to_buffers}
    first = {id(state[n]): i for i, n in reversed(owners.items()) if n in state}
    same = {i: first[id(state[n])] for i, n in owners.items() if n in state}
    tensors = {**program.state_dict, **program.constants}
    trained = [n for i, n in owners.items() if same.get(i) == i and tensors[n].requires_grad]
    wanted = set() if isinstance(chosen, Lora) else set(matching([own(n) for n in trained], chosen))
    parameters = {
        i: copies[id(state[n])].result() for i, n in owners.items() if n in trained and own(n) in wanted
    }
    if not parameters and not isinstance(chosen, Lora):
        raise CompileError("no parameter of the module is trained: each has requires_grad=False")
    changed = _changed(exported, {n: i for i, n in owners.items()}, state)
    buffers = {i: np.array(array_of(tensors[n])) for i, n in owners.items() if i in changed or own(n) in held}
    graph = _shared(exported.model.bound(options.shapes or {}), same)
    trainable = lowered(Imported(graph, ATEN, {}), parameters, buffers, changed, options)
    results = tuple(o.name for o in exported.outputs if o.name and not o.written)
    names = {own(n): first[id(t)] for n, t in state.items() if first.get(id(t)) in {*parameters, *buffers}}
    trainable = replace(trainable, inputs=tuple(filter(None, exported.inputs)), outputs=results, names=names)
    return (
        adapted(trainable, chosen, {i: own(n) for i, n in owners.items()})
        if isinstance(chosen, Lora)
        else trainable
    )


def _shared(graph: Graph, same: Mapping[str, str]) -> Graph:
    """Return the graph with a single input for each parameter, even if several layers share the parameter."""
    nodes = [replace(n, inputs=tuple(same.get(i, i) for i in n.inputs)) for n in graph.nodes]
    return replace(graph, nodes=tuple(nodes))


def _exported(module: torch.nn.Module, batch: Sequence[Any]) -> ExportedProgram:
    tensors = tuple(
        tensor_of(np.ascontiguousarray(x), torch_type(x.dtype)) if isinstance(x, np.ndarray) else x
        for x in batch
    )
    try:
        with torch.enable_grad():  # otherwise a module's own regions without gradients aren't told apart
            program = torch.export.export(module, tensors, strict=False)
    except Exception as error:  # PyTorch's exporter raises anything the module's own code raises
        lines = [line for line in str(error).splitlines() if line.strip()]
        why = " ".join(lines[:3]) or type(error).__name__
        raise CompileError(f"PyTorch can't export {type(module).__name__}: {why}") from error
    detached_regions(program.graph, program.graph_signature.inputs_to_buffers)
    detached_by_copies(program.graph)
    return program


def _changed(found: Traced, inputs: Mapping[str, str], state: Mapping[str, Any]) -> dict[str, str]:
    """Return the outputs with the new values of changed buffers, by the inputs with their old values. Raises
    CompileError if the module changes anything but persistent buffers."""
    for output in found.outputs:
        if output.written and output.written not in inputs:
            raise CompileError(f"the module writes to its input {output.written}: leave that out")
        if output.written and output.written not in state:
            raise CompileError(f"the module changes {output.written}: make it a persistent buffer")
    return {inputs[o.written]: o.name for o in found.outputs if o.written}
