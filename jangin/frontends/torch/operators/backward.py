"""Lower ATen's backward operators. Each gives the gradients of a forward operator, by the rules of
`gradients`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from jangin.frontends.registry import Lowering, Table, lowers
from jangin.frontends.torch.operators.common import Result
from jangin.frontends.torch.operators.conv import POOLS, adaptive_avg_pool, convolution
from jangin.frontends.torch.operators.linear import attention
from jangin.frontends.torch.operators.move import replication_pad
from jangin.frontends.torch.operators.resize import UPSAMPLES, grid_sampler
from jangin.gradients.reverse import gradients
from jangin.ops.builder import Builder
from jangin.ops.values import Tensor


def _gradients(
    b: Builder, forward: Lowering, g: Tensor, by: Mapping[str, Tensor], **given: Any
) -> dict[str, Tensor]:
    """Return the gradients of the operands `by` of a forward operator, by their names. `g` is the gradient of
    its first result, and `given` has its other arguments.

    The operands are aliases, so that no gradient goes through what they have in common."""
    own = {name: b.map(lambda v: v, x) for name, x in by.items()}
    y = forward(b, Result(((g.dtype, g.shape),), (True,), None), **own, **given)
    return dict(zip(own, gradients(b, y, [*own.values()], g), strict=True))


def _masked(
    b: Builder,
    forward: Lowering,
    g: Tensor,
    mask: Sequence[bool],
    operands: Mapping[str, Tensor],
    **given: Any,
) -> list[Tensor | None]:  # fmt: skip
    """Return the gradients of a forward operator's operands. An operand whose `mask` is false has none."""
    pairs = list(zip(operands.items(), mask, strict=True))
    by = {name: x for (name, x), asked in pairs if asked}
    rest = {name: x for (name, x), asked in pairs if not asked}
    grads = _gradients(b, forward, g, by, **rest, **given)
    return [grads.get(name) for name in operands]


def _backward(forward: Lowering, sized: int = 0) -> Lowering:
    """Return the lowering of an operator that gives the gradient of a forward operator's operand `self`.

    The operand's values aren't needed if it is given by its sizes alone. `sized` is the number of axes whose
    sizes in the result the forward operator is given, or 0."""

    def lower(b: Builder, out: Result, grad_output: Tensor, **given: Any) -> Tensor:
        x = given.pop("self", None)
        if x is None:  # its numbers aren't read, but known ones would be folded, and then have no gradient
            ones = [1] * grad_output.rank
            first = b.slice(grad_output, [0] * grad_output.rank, ones, ones)
            x = b.expand(b.cast(b.reshape(first, ()), out.dtype), given.pop("input_size"))
        if sized:
            given["output_size"] = grad_output.shape[-sized:]
        return _gradients(b, forward, grad_output, {"self": x}, **given)["self"]

    return lower


BACKWARD = Table(
    {
        "avg_pool2d_backward": _backward(POOLS["avg_pool2d"]),
        "avg_pool3d_backward": _backward(POOLS["avg_pool3d"]),
        "_adaptive_avg_pool2d_backward": _backward(adaptive_avg_pool, 2),
        "_adaptive_avg_pool3d_backward": _backward(adaptive_avg_pool, 3),
        "replication_pad1d_backward": _backward(replication_pad),
        "replication_pad2d_backward": _backward(replication_pad),
        "replication_pad3d_backward": _backward(replication_pad),
    }
    | {f"{name}_backward": _backward(forward) for name, forward in UPSAMPLES.items()}
)


@lowers("convolution_backward")
def convolution_backward(
    b: Builder, out: Result, grad_output: Tensor, input: Tensor, weight: Tensor, output_mask: Sequence[bool],
    bias_sizes: Any = None, **given: Any,
) -> tuple[Tensor | None, ...]:  # fmt: skip
    """Return the gradients of the input, the weights and the bias, each if `output_mask` asks for it."""
    operands = {"input": input, "weight": weight}
    grads = _masked(b, convolution, grad_output, output_mask[:2], operands, **given)
    channels = input.rank - weight.rank + 1
    others = [i for i in range(grad_output.rank) if i != channels]
    return *grads, b.reduce("sum", grad_output, others) if output_mask[2] else None


@lowers("grid_sampler_2d_backward", "grid_sampler_3d_backward")
def grid_sampler_backward(
    b: Builder, out: Result, grad_output: Tensor, input: Tensor, grid: Tensor, output_mask: Sequence[bool],
    **given: Any,
) -> tuple[Tensor | None, ...]:  # fmt: skip
    operands = {"input": input, "grid": grid}
    return tuple(_masked(b, grid_sampler, grad_output, output_mask, operands, **given))


@lowers("jangin.attention_backward")
def attention_backward(
    b: Builder, out: Result, grad_output: Tensor, query: Tensor, key: Tensor, value: Tensor, **given: Any
) -> tuple[Tensor | None, ...]:
    """Return the gradients of the query, the key and the value. The weights of the keys are computed anew, so
    that the forward graph needn't keep them."""
    operands = {"query": query, "key": key, "value": value}
    return tuple(_gradients(b, attention, grad_output, operands, **given).values())
