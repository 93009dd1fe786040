"""A caller's own operators, given to `jangin.compile(model, operators=[...])`.

An operator of tensor expressions is compiled and fused like any other operator:

    @jangin.operator("Swish", domain="mine")
    def swish(b, x, *, beta=1.0):
        return b.map(lambda v: v / (1 + exp(v * -beta)), x)     # exp is of jangin.ir.expr

An operator that is a function of NumPy arrays runs in Python. `infer` returns the dtype and shape of each
result from the inputs. None stands for a size that is known only at run time:

    @jangin.hosted("Median", domain="mine", infer=lambda x, **_: [(x.dtype, x.shape[:-1])])
    def median(x):
        return np.median(x, -1).astype(x.dtype)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from jangin.ir.errors import CompileError
from jangin.ir.expr import wrap
from jangin.ir.records import dataclass
from jangin.ir.types import tensor_type

if TYPE_CHECKING:
    from jangin.ops.builder import Builder
    from jangin.ops.nontensor import Item
    from jangin.ops.values import Tensor

Infer = Callable[..., Sequence[tuple[Any, Sequence[Any]]]]


@dataclass(frozen=True)
class CustomOperator:
    """A caller's own operator. `lower` has the form of the operators in `jangin.ops`. `function` is the
    Python function that computes a hosted operator."""

    domain: str
    name: str
    lower: Callable[..., Any]
    function: Callable[..., Any] | None = None

    @property
    def host_name(self) -> str:
        return f"{self.domain}.{self.name}"


def operator(
    name: str, domain: str, gradient: Callable[..., Any] | None = None
) -> Callable[[Callable[..., Any]], CustomOperator]:
    """Declare the decorated function as the lowering of an operator.

    The function takes a `Builder`, the inputs as `Tensor`s (None for an absent one) and the attributes. It
    returns a Tensor or a tuple of them.

    Gradients follow from the operator's tensor expressions, unless `gradient` is given. `gradient(b, inputs,
    outputs, gradients, **attributes)` returns the gradient of each input, or None for an input without one.
    A single gradient needs no tuple. `gradients` has one tensor for each result."""

    def decorate(lower: Callable[..., Any]) -> CustomOperator:
        lowering = lower if gradient is None else partial(_recorded, lower, gradient)
        return CustomOperator(domain, name, lowering)

    return decorate


def _recorded(
    lower: Callable[..., Any], gradient: Callable[..., Any], b: Builder, *inputs: Tensor | None, **attrs: Any
) -> Any:
    """Lower an operator, and remember in the builder that it has a gradient of its own."""
    from jangin.ops.values import OwnGradient  # running a compiled model doesn't need it

    tensors = tuple(None if x is None else b.materialize(x) for x in inputs)
    lowered = lower(b, *tensors, **attrs)
    results = tuple(map(b.materialize, lowered if isinstance(lowered, tuple) else (lowered,)))
    names = {x.name for x in tensors if x is not None}
    if same := [r for r in results if r.name in names or r.name in b.constants]:
        raise CompileError(
            f"an operator with a gradient of its own must not return an input or a constant: {same[0]}"
        )
    b.own_gradients.append(OwnGradient(tensors, results, partial(gradient, **attrs)))
    return results if isinstance(lowered, tuple) else results[0]


def hosted(name: str, domain: str, infer: Infer) -> Callable[[Callable[..., Any]], CustomOperator]:
    """Declare the decorated function as an operator that runs in Python.

    The function takes arrays and the attributes, and returns an array or a tuple of them. `infer(*inputs,
    **attributes)` returns (dtype, shape) of each result."""

    def decorate(function: Callable[..., Any]) -> CustomOperator:
        def lower(b: Builder, *inputs: Item | None, **attrs: Any) -> tuple[Any, ...]:
            from jangin.ops.nontensor import host  # running a compiled model doesn't need it

            types = [
                tensor_type(dtype, tuple(b.symbol() if d is None else wrap(d) for d in shape))
                for dtype, shape in infer(*inputs, **attrs)
            ]
            return host(b, f"{domain}.{name}", inputs, types, attrs)

        return CustomOperator(domain, name, lower, function)

    return decorate
