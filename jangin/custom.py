"""A caller's own operators, given to `jangin.compile(model, operators=[...])`.

One that is written with tensor expressions is compiled, and fused, like any other:

    @jangin.operator("Swish", domain="mine")
    def swish(b, x, *, beta=1.0):
        return b.map(lambda v: v / (1 + exp(v * -beta)), x)     # exp is of jangin.ir.expr

One that is a function of NumPy arrays runs in Python; `infer` gives each result's dtype and shape from
the inputs, None being a size that only a run tells:

    @jangin.hosted("Median", domain="mine", infer=lambda x, **_: [(x.dtype, x.shape[:-1])])
    def median(x):
        return np.median(x, -1).astype(x.dtype)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from jangin.ir.expr import wrap
from jangin.ir.records import dataclass
from jangin.ir.types import tensor_type
from jangin.ops.builder import Builder
from jangin.ops.nontensor import Item, host

Infer = Callable[..., Sequence[tuple[Any, Sequence[Any]]]]


@dataclass(frozen=True)
class CustomOperator:
    """`lower` is as for the operators of `jangin.ops`; `function` runs in Python, if any does."""

    domain: str
    name: str
    lower: Callable[..., Any]
    function: Callable[..., Any] | None = None

    @property
    def host_name(self) -> str:
        return f"{self.domain}.{self.name}"


def operator(name: str, domain: str) -> Callable[[Callable[..., Any]], CustomOperator]:
    """The decorated function lowers the operator: it takes a `Builder`, the inputs as `Tensor`s (None for
    an absent one) and the attributes, and gives a Tensor or a tuple of them."""
    return lambda lower: CustomOperator(domain, name, lower)


def hosted(name: str, domain: str, infer: Infer) -> Callable[[Callable[..., Any]], CustomOperator]:
    """The decorated function computes the operator: it takes arrays and the attributes, and gives an array
    or a tuple of them. `infer(*inputs, **attributes)` gives (dtype, shape) of each result."""

    def decorate(function: Callable[..., Any]) -> CustomOperator:
        def lower(b: Builder, *inputs: Item | None, **attrs: Any) -> tuple[Any, ...]:
            types = [
                tensor_type(dtype, tuple(b.symbol() if d is None else wrap(d) for d in shape))
                for dtype, shape in infer(*inputs, **attrs)
            ]
            return host(b, f"{domain}.{name}", inputs, types, attrs)

        return CustomOperator(domain, name, lower, function)

    return decorate
