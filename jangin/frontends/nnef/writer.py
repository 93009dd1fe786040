"""Write lowered graphs as NNEF models, by NNEF's operation for each core operator.

A `map` is written as one operation for each operation of its body. NNEF aligns shapes at their first axes to
broadcast them, so operands of fewer axes get leading axes of size 1. NNEF's numbers are float32, int64
(indices) and truth values."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import numpy as np

from jangin.frontends.nnef.fragments import EXTENSIONS, FRAGMENTS
from jangin.frontends.nnef.operators.window import METHODS, multilinear_upsample, nearest_upsample
from jangin.frontends.nnef.tensors import tensor_bytes
from jangin.frontends.writer import Name, Offer, Pattern, Words, Writer, identifier
from jangin.ir import core
from jangin.ir.dtype import BOOL, F32, I64, DType
from jangin.ir.expr import Binary, Call, Cast, Const, Expr, Select, Var, maximum, minimum, ne
from jangin.ir.graph import Array, CompileError, Graph, Node, static_shape
from jangin.ir.traversal import free_vars
from jangin.ops import activation

Sizes = tuple[int, ...]
TYPES: Mapping[DType, str] = {F32: "scalar", I64: "integer", BOOL: "logical"}
BINARIES = ("add", "sub", "mul", "div", "pow", "min", "max", "and", "or", "lt", "gt", "le", "ge", "eq", "ne")
CALLS = (
    "neg", "abs", "not", "sqrt", "exp", "log", "log2", "sin", "cos", "tan", "asin", "acos", "atan", "sinh",
    "cosh", "tanh", "asinh", "acosh", "atanh", "sigmoid", "floor", "ceil", "round", "sign",
    "rsqrt", "erf",
)  # fmt: skip
REDUCTIONS = {
    "sum": "sum_reduce",
    "max": "max_reduce",
    "min": "min_reduce",
    "or": "any_reduce",
    "and": "all_reduce",
}
BORDERS = {"constant": "constant", "edge": "replicate", "reflect": "reflect"}
X, A, B, ALPHA, BETA = (Var(name, F32) for name in ("x0", "a", "b", "alpha", "beta"))
PATTERNS: tuple[Pattern, ...] = (
    (minimum(maximum(X, A), B), "clamp", ("a", "b")),
    (maximum(minimum(X * ALPHA + BETA, 1), 0), "hard_sigmoid", ("alpha", "beta")),
    (activation.relu(X), "relu", ()),
    (activation.leaky_relu(X, ALPHA), "leaky_relu", ("alpha",)),
    (activation.swish(X), "silu", ()),
    (activation.softplus(X), "softplus", ()),
    (activation.elu(X), "elu", ()),
)
RESERVED = (
    "version", "extension", "graph", "fragment", "tensor", "integer", "scalar", "logical", "string", "true",
    "false", "for", "in", "if", "else", "yield", "shape_of", "length_of", "range_of",
)  # fmt: skip


def written(graph: Graph) -> dict[str, bytes]:
    """Return the files of an NNEF model for a lowered graph, by name.

    Raises CompileError, which names every node that NNEF can't express, or if sizes aren't fixed."""
    return _Writer(graph).files()


def _value(v: Any) -> str:
    """Return a literal in NNEF's notation."""
    if isinstance(v, (bool, np.bool_)):
        return str(bool(v)).lower()
    if isinstance(v, str):
        return f"'{v}'"
    if isinstance(v, (list, tuple)):
        marks = "()" if isinstance(v, tuple) else "[]"
        return marks[0] + ", ".join(map(_value, v)) + marks[1]
    if isinstance(v, float) and not math.isfinite(v):
        raise CompileError(f"NNEF has no number {v}")
    return repr(v)


class _Writer(Writer):
    """The writer of one graph."""

    format = "NNEF"
    patterns = PATTERNS
    reserved = (*RESERVED, *FRAGMENTS)
    copy = "copy"

    def __init__(self, graph: Graph) -> None:
        super().__init__(graph)
        self.labels: dict[str, Array] = {}
        self.lines: list[str] = []
        self.fragments: set[str] = set()

    def files(self) -> dict[str, bytes]:
        graph = self.graph
        inputs = [self._declared(n) for n in graph.inputs]
        self.body()
        outputs = [self.names[n] for n in graph.outputs]
        body = "".join(f"    {line};\n" for line in self.lines)
        title = f"{identifier(graph.name)}({', '.join(inputs)}) -> ({', '.join(outputs)})"
        own = "".join(FRAGMENTS[name] for name in sorted(self.fragments))
        head = f"version 1.0;\n{EXTENSIONS}{own}" if own else "version 1.0;\n"
        text = f"{head}\ngraph {title}\n{{\n{body}}}\n"
        files = {"graph.nnef": text.encode()}
        return files | {f"{label}.dat": tensor_bytes(a) for label, a in self.labels.items()}

    # -- values ---------------------------------------------------------------------------------

    def plain(self, name: str) -> str:
        return identifier(name)

    def check(self, value: str) -> None:
        self._type(self.graph.dtype(value))
        self.sizes(value)

    def _type(self, dtype: DType) -> str:
        if dtype not in TYPES:
            raise CompileError(f"NNEF has no tensors of {dtype}")
        return TYPES[dtype]

    def _declared(self, name: str) -> Name:
        declaration = f"<{self._type(self.graph.dtype(name))}>(shape = {_value(list(self.sizes(name)))})"
        self.lines.append(f"{self.named(name)} = external{declaration}")
        return self.names[name]

    def constant(self, name: str) -> None:
        array = self.graph.constants[name]
        label = "/".join(p for p in re.sub(r"[^\w./-]", "_", name).split("/") if p.strip(".")) or "constant"
        while label in self.labels:
            label += "_"
        kind = self._type(self.graph.dtype(name))
        self.labels[label] = array
        self.lines.append(
            f"{self.named(name)} = variable<{kind}>(shape = {_value(list(array.shape))}, label = '{label}')"
        )

    def emit(self, operation: str, *inputs: Any, result: str = "", hint: str = "", **given: Any) -> Name:
        if operation in FRAGMENTS:
            self.fragments.add(operation)
        name = self.named(result) if result else self.fresh(hint or operation.partition("<")[0])
        arguments = [i if isinstance(i, Name) else self._listed(i) for i in inputs]
        arguments += [f"{k} = {_value(v)}" for k, v in given.items()]
        self.lines.append(f"{name} = {operation}({', '.join(arguments)})")
        return name

    def _listed(self, value: Any) -> str:
        if isinstance(value, list) and all(isinstance(v, Name) for v in value):
            return f"[{', '.join(value)}]"
        return _value(value)

    def _of_rank(self, name: str, rank: int) -> Name:
        """Write a value with leading axes of size 1 up to this rank, and return its name."""
        shape = self.sizes(name)
        if len(shape) in (0, rank):
            return self.named(name)
        return self.emit("unsqueeze", self.named(name), axes=list(range(rank - len(shape))), hint=name)

    # -- nodes ----------------------------------------------------------------------------------

    def write_reshape(self, node: Node, attrs: core.Reshape) -> None:
        shape = self.sizes(node.outputs[0])
        self.emit("reshape", self.named(node.inputs[0]), shape=list(shape), result=node.outputs[0])

    def write_transpose(self, node: Node, attrs: core.Transpose) -> None:
        self.emit("transpose", self.named(node.inputs[0]), axes=list(attrs.perm), result=node.outputs[0])

    def write_expand(self, node: Node, attrs: core.Expand) -> None:
        wanted, shape = self.sizes(node.outputs[0]), self.sizes(node.inputs[0])
        self._spread(self._of_rank(node.inputs[0], len(wanted)), shape, wanted, node.outputs[0])

    def _spread(self, x: Any, given: Sizes, wanted: Sizes, result: str) -> None:
        """Broadcast a value by repeating it, and give the result the name `result`. The value has as many
        axes as the result, or none."""
        if not given and wanted:
            x = self.emit("reshape", x, shape=[1] * len(wanted))
        padded = (*[1] * (len(wanted) - len(given)), *given)
        repeats = [w // g for w, g in zip(wanted, padded, strict=True)]
        self.emit("tile", x, repeats=repeats, result=result)

    def write_slice(self, node: Node, attrs: core.Slice) -> None:
        shape, out = self.sizes(node.inputs[0]), self.sizes(node.outputs[0])
        starts = static_shape(attrs.starts)
        if starts is None:
            raise CompileError("the start of a slice isn't fixed")
        axes = [i for i in range(len(shape)) if (starts[i], attrs.steps[i], out[i]) != (0, 1, shape[i])]
        last = [starts[i] + (out[i] - 1) * attrs.steps[i] for i in axes]
        ends = [e + (1 if attrs.steps[i] > 0 else -1) for e, i in zip(last, axes, strict=True)]
        ends = [-shape[i] - 1 if e < 0 else e for e, i in zip(ends, axes, strict=True)]
        steps = [attrs.steps[i] for i in axes]
        if all(s == 1 for s in steps):
            ends = [0 if e == shape[i] else e for e, i in zip(ends, axes, strict=True)]
        self.emit(
            "slice", self.named(node.inputs[0]), axes=axes, begin=[starts[i] for i in axes], end=ends,
            stride=steps, result=node.outputs[0],
        )  # fmt: skip

    def write_concat(self, node: Node, attrs: core.Concat) -> None:
        self.emit("concat", [self.named(n) for n in node.inputs], axis=attrs.axis, result=node.outputs[0])

    def write_pad(self, node: Node, attrs: core.Pad) -> None:
        pads = static_shape(attrs.pads)
        if pads is None or attrs.mode not in BORDERS or self.graph.dtype(node.inputs[0]) is not F32:
            raise CompileError(f"padding by '{attrs.mode}' or of integers can't be expressed in NNEF")
        half = len(pads) // 2
        self.emit(
            "pad", self.named(node.inputs[0]), padding=list(zip(pads[:half], pads[half:], strict=True)),
            border=BORDERS[attrs.mode], value=float(attrs.value), result=node.outputs[0],
        )  # fmt: skip

    def write_gather(self, node: Node, attrs: core.Gather) -> None:
        self.emit("gather", *map(self.named, node.inputs), axis=attrs.axis, result=node.outputs[0])

    def write_reduce(self, node: Node, attrs: core.Reduce) -> None:
        if attrs.combiner not in REDUCTIONS or self.graph.dtype(node.inputs[0]) is I64:
            raise CompileError(
                f"a reduction by '{attrs.combiner}' of integers or by products is none of NNEF's"
            )
        axes, operation = list(attrs.axes), REDUCTIONS[attrs.combiner]
        x = self.named(node.inputs[0])
        if attrs.keepdims:
            self.emit(operation, x, axes=axes, result=node.outputs[0])
        else:
            self.emit("squeeze", self.emit(operation, x, axes=axes), axes=axes, result=node.outputs[0])

    def write_softmax(self, node: Node, attrs: core.Softmax) -> None:
        self.emit(
            "log_softmax" if attrs.log else "softmax",
            self.named(node.inputs[0]),
            axes=[attrs.axis],
            result=node.outputs[0],
        )

    def write_normalize(self, node: Node, attrs: core.Normalize) -> None:
        operation = "rms_normalization" if attrs.rms else "layer_normalization"
        kwargs: dict[str, Any] = {"axes": list(attrs.axes), "epsilon": float(attrs.epsilon)}
        self.emit(operation, self.named(node.inputs[0]), **kwargs, result=node.outputs[0])

    def write_compute(self, node: Node, attrs: core.Compute) -> None:
        """Write the resize operation that lowers to the same computation."""
        offer = self.matched(node, self._resizes(node)) if len(node.inputs) == 1 else None
        if offer is None:
            self.other(node, attrs)
            return
        operation, kwargs = offer
        self.emit(operation, self.named(node.inputs[0]), **kwargs, result=node.outputs[0])

    def _resizes(self, node: Node) -> Iterator[Offer]:
        shape, wanted = self.sizes(node.inputs[0]), self.sizes(node.outputs[0])
        whole = len(shape) == len(wanted) > 2 and all(w % g == 0 for g, w in zip(shape, wanted, strict=True))
        if not whole or shape[:2] != wanted[:2]:
            return
        factor = [w // g for g, w in zip(shape[2:], wanted[2:], strict=True)]
        yield ("nearest_upsample", {"factor": factor}), partial(nearest_upsample, factor=factor)
        for method in METHODS:
            how: dict[str, Any] = {"factor": factor, "method": method, "border": "replicate"}
            yield ("multilinear_upsample", how), partial(multilinear_upsample, **how)

    def write_matmul(self, node: Node, attrs: core.MatMul) -> None:
        rank = len(self.sizes(node.outputs[0]))
        self.emit(
            "matmul", *(self._of_rank(n, rank) for n in node.inputs), transposeA=attrs.transpose_a,
            transposeB=attrs.transpose_b, result=node.outputs[0],
        )  # fmt: skip

    def write_conv(self, node: Node, attrs: core.Conv) -> None:
        if attrs.dtype not in (None, F32):
            raise CompileError("NNEF has no convolution of integers")
        half = len(attrs.kernel)
        self.emit(
            "conv", *map(self.named, node.inputs), border="constant",
            padding=list(zip(attrs.pads[:half], attrs.pads[half:], strict=True)), stride=list(attrs.strides),
            dilation=list(attrs.dilations), groups=attrs.groups, result=node.outputs[0],
        )  # fmt: skip

    def write_pool(self, node: Node, attrs: core.Pool) -> None:
        half = len(attrs.kernel)
        sizes, extents = self.sizes(node.inputs[0])[2:], self.sizes(node.outputs[0])[2:]
        padding = [(0, 0), (0, 0)]
        for i, (d, n) in enumerate(zip(sizes, extents, strict=True)):
            begin, end = attrs.pads[i], attrs.pads[i + half]
            reach = (n - 1) * attrs.strides[i] + (attrs.kernel[i] - 1) * attrs.dilations[i] + 1 - d - begin
            if reach > end and attrs.average == "all":
                raise CompileError(
                    "an average over windows that leave the padding can't be expressed in NNEF"
                )
            padding.append((begin, max(end, reach)))
        border = "constant" if attrs.combiner == "sum" and attrs.average != "valid" else "ignore"
        kwargs: dict[str, Any] = {"size": [1, 1, *attrs.kernel], "border": border, "padding": padding}
        kwargs |= {"stride": [1, 1, *attrs.strides], "dilation": [1, 1, *attrs.dilations]}
        if attrs.combiner == "sum":
            kwargs["normalize"] = bool(attrs.average)
        operation = "box" if attrs.combiner == "sum" else "max_pool"
        self.emit(operation, self.named(node.inputs[0]), **kwargs, result=node.outputs[0])

    # -- maps -----------------------------------------------------------------------------------

    def write_map(self, node: Node, attrs: core.Map) -> None:
        wanted = self.sizes(node.outputs[0])
        dtypes = map(self.graph.dtype, node.inputs)
        operands: dict[Expr, Name] = {
            Var(f"x{i}", dtype): self._of_rank(name, len(wanted))
            for i, (name, dtype) in enumerate(zip(node.inputs, dtypes, strict=True))
        }
        read = [
            self.sizes(n) for v, n in zip(operands, node.inputs, strict=True) if v in free_vars(attrs.body)
        ]
        shape = np.broadcast_shapes(*read)
        if shape == wanted:
            self.expression(attrs.body, operands, result=node.outputs[0])
            return
        self._spread(self.expression(attrs.body, operands), shape, wanted, node.outputs[0])

    def number(self, e: Const) -> Any:
        """Return a number as an argument. Infinity is written as the logarithm of 0, because NNEF has no
        literal for it."""
        self._type(e.dtype)
        if abs(e.value) == math.inf:
            lowest = self.emit("log", 0.0)
            return lowest if e.value < 0 else self.emit("neg", lowest)
        return bool(e.value) if e.dtype is BOOL else float(np.float32(e.value))

    def words(self, e: Expr) -> Words | None:
        self._type(e.dtype)
        match e:
            case Select(cond, a, b):
                return Words("select", (cond, a, b))
            case Cast():
                return Words(f"cast<{TYPES[e.dtype]}>", (e.a,))
            case Binary(op, a, b) if op in BINARIES and a.dtype is not I64:
                return Words(op, (a, b))
            case Call(fn, args) if fn in CALLS and e.dtype is not I64:
                return Words(fn, args)
            case Call("isnan", (a,)):
                return Words("", (ne(a, a),))
        return None
