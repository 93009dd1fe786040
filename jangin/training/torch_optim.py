"""Take over optimizers of `torch.optim`: their groups, settings, learning rates and state."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jangin.optim as optim
from jangin.ir.graph import CompileError
from jangin.training.groups import Groups, Kept, Names

SETTINGS: Mapping[str, tuple[type[optim.Optimizer], tuple[str, ...]]] = {
    "SGD": (optim.SGD, ("momentum", "dampening", "weight_decay", "nesterov")),
    "Adam": (optim.Adam, ("betas", "eps", "weight_decay")),
    "AdamW": (optim.AdamW, ("betas", "eps", "weight_decay")),
    "Adagrad": (optim.Adagrad, ("lr_decay", "weight_decay", "initial_accumulator_value", "eps")),
    "RMSprop": (optim.RMSprop, ("alpha", "eps", "weight_decay", "momentum", "centered")),
}
"""The optimizers of `torch.optim` by name: Jangin's counterpart, and the settings that both have."""
OTHERS = frozenset({"params", "lr", "foreach", "fused", "capturable", "differentiable", "initial_lr"})
"""Settings that don't change results, or are read elsewhere."""


class TorchGroups(Groups):
    """The parameter groups of a PyTorch optimizer. Each step reads the learning rate of its group, so that
    PyTorch's schedules keep working."""

    def __init__(self, given: Any, model: Any) -> None:
        self.given = given
        groups = given.param_groups
        super().__init__([_optimizer(type(given).__name__, group) for group in groups])
        self.rates = [_rate(group) for group in groups]
        names = {id(p): n for n, p in model.named_parameters()}
        self.owners: dict[str, int] = {}
        self.tensors: dict[str, Any] = {}
        for number, group in enumerate(groups):
            for tensor in group["params"]:
                if id(tensor) not in names:
                    raise CompileError("the optimizer has a parameter that isn't the module's")
                self.owners[names[id(tensor)]] = number
                self.tensors[names[id(tensor)]] = tensor

    def numbers(self, names: Names, parameters: Sequence[str]) -> dict[str, int]:
        owned = {i: [self.owners[n] for n in names[i] if n in self.owners] for i in parameters}
        if missing := [names[i][0] for i, numbers in owned.items() if not numbers]:
            raise CompileError(
                f"the optimizer has no group for {', '.join(missing)}: leave them out with trainable=, or "
                "set their requires_grad to False"
            )
        return {i: numbers[0] for i, numbers in owned.items()}

    def kept(self) -> tuple[Kept, int] | None:
        states = {n: self.given.state[t] for n, t in self.tensors.items() if t in self.given.state}
        counts = {int(s["step"]) for s in states.values() if "step" in s}
        if len(counts) > 1:
            raise CompileError(f"the optimizer has made {sorted(counts)} steps with different parameters")
        kept = {n: {k: v for k, v in s.items() if k != "step" and v is not None} for n, s in states.items()}
        return (kept, counts.pop() if counts else 1) if any(kept.values()) else None


def _rate(group: Mapping[str, Any]) -> Callable[[], float]:
    return lambda: float(group["lr"])


def _optimizer(kind: str, group: Mapping[str, Any]) -> optim.Optimizer:
    """Return Jangin's optimizer for a group. Raises CompileError for an optimizer or a setting that Jangin
    hasn't got."""
    if kind not in SETTINGS:
        raise CompileError(f"torch.optim.{kind} can't be taken over: there are {', '.join(SETTINGS)}")
    make, known = SETTINGS[kind]
    extra = {k: v for k, v in group.items() if k not in known and k not in OTHERS}
    asked = [k for k, v in extra.items() if v and not (k == "decoupled_weight_decay" and kind == "AdamW")]
    if asked:
        raise CompileError(f"torch.optim.{kind} with {', '.join(asked)} can't be taken over: leave that out")
    settings = {k: group[k] for k in known if k in group}
    return make(lr=float(group["lr"]), **settings)
