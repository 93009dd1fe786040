"""Lower Gradient (ai.onnx.preview.training): reverse-mode differentiation of the core nodes built so far."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from jangin.frontends.onnx.operators.training import DOMAIN
from jangin.frontends.onnx.registry import op
from jangin.ir.core import Concat, Expand, Map, MatMul, Reduce, Reshape, Softmax, Transpose
from jangin.ir.expr import Binary, Call, Cast, Expr, Select, Var, call, cast, const, is_const, select
from jangin.ir.expr import binary as operation
from jangin.ir.graph import CompileError, Node
from jangin.ir.traversal import substitute
from jangin.ops.builder import Builder
from jangin.ops.operands import typed
from jangin.ops.values import Tensor

# -- scalar bodies -------------------------------------------------------------------------------

Local = Callable[[Expr, Expr], Expr]
"""The derivative of a function of one argument, computed from the argument and the value."""
FUNCTIONS: Mapping[str, Local] = {
    "neg": lambda x, y: const(-1, x.dtype),
    "abs": lambda x, y: call("sign", x),
    "exp": lambda x, y: y,
    "exp2": lambda x, y: y * math.log(2),
    "expm1": lambda x, y: y + 1.0,
    "log": lambda x, y: 1.0 / x,
    "log2": lambda x, y: 1.0 / (x * math.log(2)),
    "log1p": lambda x, y: 1.0 / (x + 1.0),
    "sqrt": lambda x, y: 0.5 / y,
    "rsqrt": lambda x, y: y * y * y * -0.5,
    "sin": lambda x, y: call("cos", x),
    "cos": lambda x, y: -call("sin", x),
    "tan": lambda x, y: y * y + 1.0,
    "asin": lambda x, y: 1.0 / call("sqrt", 1.0 - x * x),
    "acos": lambda x, y: -1.0 / call("sqrt", 1.0 - x * x),
    "atan": lambda x, y: 1.0 / (x * x + 1.0),
    "sinh": lambda x, y: call("cosh", x),
    "cosh": lambda x, y: call("sinh", x),
    "tanh": lambda x, y: 1.0 - y * y,
    "asinh": lambda x, y: 1.0 / call("sqrt", x * x + 1.0),
    "acosh": lambda x, y: 1.0 / call("sqrt", x * x - 1.0),
    "atanh": lambda x, y: 1.0 / (1.0 - x * x),
    "sigmoid": lambda x, y: y * (1.0 - y),
    "erf": lambda x, y: call("exp", -(x * x)) * (2 / math.sqrt(math.pi)),
}
FLAT = frozenset({"sign", "floor", "ceil", "round", "trunc"})


def derivative(e: Expr, by: Var) -> Expr:
    """Return d e / d `by`. At a corner of a function the derivative is that of one side. Rounding has no
    derivative."""
    zero = const(0, e.dtype)
    if e == by:
        return const(1, e.dtype)
    if isinstance(e, Binary) and e.dtype.is_float:
        return _of_binary(e, derivative(e.a, by), derivative(e.b, by))
    if isinstance(e, Select):
        return select(e.cond, derivative(e.a, by), derivative(e.b, by))
    if isinstance(e, Cast) and e.a.dtype.is_float and e.dtype.is_float:
        return cast(e.dtype, derivative(e.a, by))
    if isinstance(e, Call) and e.dtype.is_float and e.fn not in FLAT:
        if e.fn not in FUNCTIONS:
            raise CompileError(f"the derivative of {e.fn} is not known")
        inner = derivative(e.args[0], by)
        return zero if is_const(inner, 0) else FUNCTIONS[e.fn](e.args[0], e) * inner
    return zero


def _of_binary(e: Binary, da: Expr, db: Expr) -> Expr:
    a, b, zero = e.a, e.b, const(0, e.dtype)
    if e.op in ("add", "sub"):
        left, right = da, db if e.op == "add" else -db
    elif e.op == "mul":
        left, right = _times(da, b), _times(db, a)
    elif e.op == "div":
        left, right = _times(da, 1.0 / b), _times(db, -a / (b * b))
    elif e.op in ("min", "max"):
        first = operation("le" if e.op == "min" else "ge", a, b)
        return select(first, da, db)
    elif e.op == "pow":
        left = _times(da, b * operation("pow", a, b - 1.0))
        right = _times(db, e * call("log", a))
    elif is_const(da, 0) and is_const(db, 0):
        return zero
    else:
        raise CompileError(f"the derivative of {e.op} is not known")
    return right if is_const(left, 0) else left if is_const(right, 0) else left + right


def _times(d: Expr, factor: Expr) -> Expr:
    return d if is_const(d, 0) else d * factor


def _scaled(slope: Expr, g: Expr, *xs: Expr) -> Expr:
    """Return a gradient times the derivative `slope` of a body over x0, x1, ..."""
    at: dict[Var, Expr] = {Var(f"x{n}", x.dtype): x for n, x in enumerate(xs)}
    return cast(slope.dtype, g * cast(g.dtype, substitute(slope, at)))


# -- core operators ------------------------------------------------------------------------------


class _Reverse:
    """The gradients of values found so far, from the result backwards."""

    def __init__(self, b: Builder) -> None:
        self.b = b
        self.found: dict[str, Tensor] = {}

    def add(self, to: Tensor, part: Tensor) -> None:
        """Add one more part of a value's gradient, summed over the axes that were broadcast."""
        b = self.b
        extra = part.rank - to.rank
        axes = [
            i
            for i, d in enumerate(part.shape)
            if i < extra or (is_const(to.shape[i - extra], 1) and not is_const(d, 1))
        ]
        part = b.reshape(b.reduce("sum", part, axes, keepdims=True), to.shape) if axes else part
        known = self.found.get(to.name)
        self.found[to.name] = part if known is None else b.map(lambda v, w: v + w, known, part)

    def node(self, node: Node, inputs: Sequence[Tensor], out: Tensor) -> None:
        """Add the gradients of a node's inputs, computed from its result's gradient."""
        g, b, attrs = self.found[out.name], self.b, node.attrs
        if isinstance(attrs, Map):
            self._map(attrs.body, inputs, g)
        elif isinstance(attrs, MatMul):
            self._matmul(inputs, g, attrs.transpose_a, attrs.transpose_b)
        elif isinstance(attrs, Reduce) and attrs.combiner == "sum":
            kept = [const(1) if i in attrs.axes else d for i, d in enumerate(inputs[0].shape)]
            self.add(inputs[0], b.expand(b.reshape(g, kept), inputs[0].shape))
        elif isinstance(attrs, Transpose):
            perm = attrs.perm
            self.add(inputs[0], b.transpose(g, [perm.index(i) for i in range(len(perm))]))
        elif isinstance(attrs, Reshape):
            self.add(inputs[0], b.reshape(g, inputs[0].shape))
        elif isinstance(attrs, Expand):
            self.add(inputs[0], g)
        elif isinstance(attrs, Softmax) and not attrs.log:
            weighted = b.map(lambda v, w: v * w, g, out)
            total = b.reduce("sum", weighted, [attrs.axis], keepdims=True)
            self.add(inputs[0], b.map(lambda w, y, t: w - y * t, weighted, out, total))
        elif isinstance(attrs, Concat):
            self._concat(inputs, g, attrs.axis)
        else:
            raise CompileError(f"there is no gradient of {node.op}, which {node.source} consists of")

    def _map(self, body: Expr, inputs: Sequence[Tensor], g: Tensor) -> None:
        for i, x in enumerate(inputs):
            if not x.dtype.is_float:
                continue
            slope = derivative(body, Var(f"x{i}", x.dtype))
            if not is_const(slope, 0):
                self.add(x, self.b.map(partial(_scaled, slope), g, *inputs))

    def _matmul(self, inputs: Sequence[Tensor], g: Tensor, turned_a: bool, turned_b: bool) -> None:
        x, y = inputs
        b = self.b
        if turned_a:
            self.add(x, b.matmul(y, g, transpose_a=turned_b, transpose_b=True))
        else:
            self.add(x, b.matmul(g, y, transpose_b=not turned_b))
        if turned_b:
            self.add(y, b.matmul(g, x, transpose_a=True, transpose_b=turned_a))
        else:
            self.add(y, b.matmul(x, g, transpose_a=not turned_a))

    def _concat(self, inputs: Sequence[Tensor], g: Tensor, axis: int) -> None:
        start: Expr = const(0)
        for x in inputs:
            starts = [start if i == axis else const(0) for i in range(x.rank)]
            self.add(x, self.b.slice(g, starts, x.shape, [1] * x.rank))
            start = start + x.shape[axis]


def gradients(b: Builder, y: Tensor, xs: Sequence[Tensor]) -> list[Tensor]:
    """Return d sum(y) / d x for each x. The gradient is zeros if y doesn't depend on x."""
    if not y.dtype.is_float or any(not x.dtype.is_float for x in xs):
        raise CompileError(f"gradients of {y} by {', '.join(map(str, xs))}: all must be floats")
    reverse = _Reverse(b)
    reverse.add(y, b.expand(b.scalar(1, y.dtype), y.shape))
    wanted = {x.name for x in xs}
    depends = set(wanted)
    nodes = [n for n in b.nodes if n.outputs[0] not in wanted]
    for node in nodes:
        if depends.intersection(node.inputs):
            depends.update(node.outputs)
    for node in reversed(nodes):
        if node.outputs[0] in reverse.found and node.outputs[0] in depends:
            *inputs, out = (Tensor(n, *typed(b.values[n])) for n in (*node.inputs, *node.outputs))
            reverse.node(node, inputs, out)
    return [reverse.found.get(x.name) or b.expand(b.scalar(0, x.dtype), x.shape) for x in xs]


@op("Gradient", domain=DOMAIN)
def gradient(b: Builder, *inputs: Tensor, xs: Sequence[str], y: str, zs: Sequence[str] = ()) -> list[Tensor]:
    """Return the derivatives of the value named `y`, which earlier nodes compute, by the values named `xs`.

    The inputs must be exactly the values named `xs` and `zs`."""
    named = [b.scope.get(n) for n in (*xs, *zs)]
    result = b.scope.get(y)
    if not isinstance(result, Tensor):
        raise CompileError(f"'{y}' must be computed before its gradient")
    if len(named) != len(inputs) or any(
        not isinstance(v, Tensor) or v.name != x.name for v, x in zip(named, inputs, strict=True)
    ):
        raise CompileError(f"its inputs must be the values {', '.join((*xs, *zs))} themselves")
    return gradients(b, result, inputs[: len(xs)])
