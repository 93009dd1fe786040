"""PyTorch modules whose parameters are inputs of their graph."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch.export import ExportedProgram

from jangin.frontends.dialect import Imported
from jangin.frontends.torch.dialect import ATEN
from jangin.frontends.torch.trace import Traced, array_of, traced
from jangin.ir.graph import Array, CompileError
from jangin.options import Options
from jangin.training.parameters import Chosen, Trainable, lowered, matching


class WithLoss(torch.nn.Module):  # type: ignore[misc]
    """A module and a loss as PyTorch has it: the last input is the target."""

    def __init__(self, model: torch.nn.Module, loss: Callable[..., Any]) -> None:
        super().__init__()
        self.model, self.loss = model, loss

    def forward(self, *batch: Any) -> Any:
        *given, target = batch
        return self.loss(self.model(*given), target)


def of_module(
    module: torch.nn.Module, batch: Sequence[Any], chosen: Chosen, options: Options,
    held: Sequence[str] = (),
) -> Trainable:  # fmt: skip
    """The module in the mode that it is in. `held`: buffers that are inputs though the module doesn't change
    them. CompileError says what of it can't be exported or lowered."""
    program = _exported(module, batch)
    found, prefix = traced(program), "model." if isinstance(module, WithLoss) else ""

    def own(name: str) -> str:
        """A parameter's name in the module without its loss."""
        return name.removeprefix(prefix)

    signature = program.graph_signature
    owners = {**signature.inputs_to_parameters, **signature.inputs_to_buffers}
    tensors = {**program.state_dict, **program.constants}
    trained = [owners[n] for n in signature.inputs_to_parameters if tensors[owners[n]].requires_grad]
    wanted = set(matching([own(n) for n in trained], chosen))
    parameters = {i: _array(tensors[n]) for i, n in owners.items() if n in trained and own(n) in wanted}
    if not parameters:
        raise CompileError("no parameter of the module is trained: each has requires_grad=False")
    changed = _changed(found, {n: i for i, n in owners.items()})
    buffers = {i: _array(tensors[n]) for i, n in owners.items() if i in changed or own(n) in held}
    imported = Imported(found.model.bound(options.shapes or {}), ATEN, {})
    made = lowered(imported, parameters, buffers, changed, options)
    results = tuple(o.name for o in found.outputs if o.name and not o.written)
    inputs = tuple(n for n in found.inputs if n)
    names = {own(n): i for n, i in _names(module, owners, made).items()}
    return replace(made, inputs=inputs, outputs=results, names=names)


def _exported(module: torch.nn.Module, batch: Sequence[Any]) -> ExportedProgram:
    given = tuple(
        torch.from_numpy(np.ascontiguousarray(x)) if isinstance(x, np.ndarray) else x for x in batch
    )
    try:
        with torch.no_grad():
            program = torch.export.export(module, given, strict=False)
    except Exception as error:  # PyTorch's exporter raises anything the module's own code raises
        lines = [line for line in str(error).splitlines() if line.strip()]
        why = " ".join(lines[:3]) or type(error).__name__
        raise CompileError(f"PyTorch can't export {type(module).__name__}: {why}") from error
    for node in program.graph.nodes:  # taken apart, these would let gradients through
        if node.op == "call_function" and node.target is torch.ops.aten.detach.default:
            node.target = torch.ops.aten.detach_copy.default
    return program


def _changed(found: Traced, inputs: Mapping[str, str]) -> dict[str, str]:
    """The outputs that buffers become, by the buffers' inputs."""
    for output in found.outputs:
        if output.written and output.written not in inputs:
            raise CompileError(f"the module writes to its input {output.written}: leave that out")
    return {inputs[o.written]: o.name for o in found.outputs if o.written}


def _names(module: torch.nn.Module, owners: Mapping[str, str], made: Trainable) -> dict[str, str]:
    """The inputs by the names of the module's own parameters and buffers; shared ones have several."""
    state = module.state_dict(keep_vars=True)
    inputs = {id(state[n]): i for i, n in owners.items() if n in state}
    kept = {*made.parameters, *made.buffers}
    return {n: inputs[id(t)] for n, t in state.items() if inputs.get(id(t)) in kept}


def _array(tensor: Any) -> Array:
    return np.array(array_of(tensor))
