"""Write lowered graphs as TensorFlow Lite files, with LiteRT's builtin operator for each core operator.

Convolutions and pools have the channels last, and so have the values between them. Inputs and outputs keep
the model's order. Values with a scale are int8 if the operators that make and read them support it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np

from jangin.frontends.tails import Tail, clamped, mean
from jangin.frontends.tflite.file import Scales, Tensor
from jangin.frontends.tflite.forms import ACTIVATIONS, BINARIES, BOUNDS, X, turned
from jangin.frontends.tflite.products import Products
from jangin.frontends.writer import Name, Offer
from jangin.ir import core
from jangin.ir.dtype import F32, I8, I32, I64
from jangin.ir.expr import Binary, Call, Expr, Var, const, select
from jangin.ir.graph import CompileError, Graph, Node, static_shape
from jangin.ir.traversal import free_vars
from jangin.ops import activation
from jangin.ops.builder import Builder
from jangin.ops.resize import Style, resize, sized_lines
from jangin.ops.resize_positions import align_corners, asymmetric, half_pixel, pixel_centre
from jangin.ops.values import Tensor as Operand

MOST_BYTES = (1 << 31) - (1 << 20)
"""The weights may take at most this many bytes. A flatbuffer is limited to 2 GiB, of which 1 MiB is left for
everything else."""
REDUCTIONS = {"sum": "SUM", "max": "REDUCE_MAX", "min": "REDUCE_MIN", "prod": "REDUCE_PROD",
              "or": "REDUCE_ANY", "and": "REDUCE_ALL"}  # fmt: skip
FIXED = {
    "LOGISTIC": Scales((1 / 256,), (-128,)), "TANH": Scales((1 / 128,), (0,)),
    "SOFTMAX": Scales((1 / 256,), (-128,)), "LOG_SOFTMAX": Scales((16 / 256,), (127,)),
}  # fmt: skip
"""The quantization that LiteRT's specification demands of the int8 results of some operators."""
FUSING = ("ADD", "SUB", "MUL", "DIV")
RESIZES: Sequence[tuple[str, Style, dict[str, bool]]] = (
    ("RESIZE_BILINEAR", Style("linear", half_pixel, "floor"), {"HalfPixelCenters": True}),
    ("RESIZE_BILINEAR", Style("linear", align_corners, "floor"), {"AlignCorners": True}),
    ("RESIZE_BILINEAR", Style("linear", asymmetric, "floor"), {}),
    ("RESIZE_NEAREST_NEIGHBOR", Style("nearest", asymmetric, "floor"), {}),
    ("RESIZE_NEAREST_NEIGHBOR", Style("nearest", pixel_centre, "floor"), {"HalfPixelCenters": True}),
    ("RESIZE_NEAREST_NEIGHBOR", Style("nearest", align_corners, "half_up"), {"AlignCorners": True}),
)  # fmt: skip


def written(graph: Graph, description: str = "") -> bytes:
    """Return a lowered graph as the bytes of a TensorFlow Lite file.

    Raises CompileError that names all parts that TFLite can't express, or if sizes aren't fixed."""
    return TfliteWriter(graph).model(description)


def check(graph: Graph) -> None:
    """Raise CompileError if `written` would raise it. The file itself isn't made, because this takes several
    times the memory of the weights."""
    TfliteWriter(graph).laid()


def step(node: Node) -> str:
    """Return the name of the int8 operator for a map, or "" if there is none."""
    match node.of(core.Map).body:
        case Binary("add" | "sub" | "mul" as op, Var(), Var()):
            return BINARIES[op]
        case Call("sigmoid", (Var(),)):
            return "LOGISTIC"
        case Call("tanh", (Var(),)):
            return "TANH"
        case body if body == activation.hard_swish(X):
            return "HARD_SWISH"
    return ""


class TfliteWriter(Products):
    def model(self, description: str = "") -> bytes:
        return self.file.data(*self.laid(), description)

    def laid(self) -> tuple[list[Name], list[Name]]:
        """Add all tensors and operators to the file. Return the names of its inputs and outputs."""
        graph = self.graph
        if sum(a.nbytes for a in graph.constants.values()) > MOST_BYTES:
            raise CompileError("the weights don't fit into one TFLite file: it holds 2 GB")
        inputs = [self.give(n) for n in graph.inputs if not self.check(n)]  # type: ignore[func-returns-value]
        self.body()
        return inputs, [self.read(n) for n in graph.outputs]

    # -- moving data ----------------------------------------------------------------------------

    def write_reshape(self, node: Node, attrs: core.Reshape) -> None:
        x, y = node.inputs[0], node.outputs[0]
        if attrs.dtype is not None:
            raise CompileError("bytes of one type that are read as another can't be expressed in TFLite")
        whole = x in self.scales
        last = self.is_last(x) and self.in_order(x)
        self.reshaped(self.read(x, last, whole), self.give(y, False, whole))

    def write_transpose(self, node: Node, attrs: core.Transpose) -> None:
        """Write a transpose of the form that exists. No operator is written if this form is already another
        form of the result."""
        x, y, rank = node.inputs[0], node.outputs[0], len(attrs.perm)
        whole, last = x in self.scales, self.is_last(x)
        if not last and rank > 2 and [attrs.perm[i] for i in turned(rank)] == list(range(rank)):
            self.made[y, True, whole] = self.read(x, False, whole)
            return
        order = turned(rank) if last else list(range(rank))
        perm = [order.index(p) for p in attrs.perm]
        source = self.read(x, last, whole)
        if perm == list(range(rank)):
            self.made[y, False, whole] = source
            if y in self.graph.outputs and not whole:
                self.reshaped(source, self.give(y))
            return
        self.emit("TRANSPOSE", source, self.integers(perm), result=self.give(y, False, whole))

    def write_expand(self, node: Node, attrs: core.Expand) -> None:
        x, y = node.inputs[0], node.outputs[0]
        sizes = self.integers(self.sizes(y))
        self.emit("BROADCAST_TO", self.read(x), sizes, result=self.give(y))

    def write_slice(self, node: Node, attrs: core.Slice) -> None:
        x, y = node.inputs[0], node.outputs[0]
        shape, starts, counts = self.sizes(x), static_shape(attrs.starts), self.sizes(y)
        if starts is None:
            raise CompileError("the start of a slice isn't fixed")
        whole, last = x in self.scales, self.is_last(x)
        order = turned(len(shape)) if last else range(len(shape))
        rows = [(starts[i], attrs.steps[i], counts[i]) for i in order]
        source, result = self.read(x, last, whole), self.give(y, last, whole)
        if all(s == 1 for _, s, _ in rows):
            self.emit(
                "SLICE", source, self.integers([b for b, _, _ in rows]),
                self.integers([n for _, _, n in rows]), result=result,
            )  # fmt: skip
            return
        ends = [b + (n - 1) * s + (1 if s > 0 else -1) for b, s, n in rows]
        parts = ([b for b, _, _ in rows], ends, [s for _, s, _ in rows])
        mask = sum(1 << i for i, e in enumerate(ends) if e < 0)
        self.emit("STRIDED_SLICE", source, *map(self.integers, parts), result=result, EndMask=mask)

    def write_concat(self, node: Node, attrs: core.Concat) -> None:
        y = node.outputs[0]
        whole = y in self.scales and all(n in self.scales for n in node.inputs)
        last = self.follows(node.inputs, len(self.sizes(y)))
        axis = turned(len(self.sizes(y))).index(attrs.axis) if last else attrs.axis
        parts = [self._rescaled(self.read(n, last, whole), y, whole) for n in node.inputs]
        self.emit("CONCATENATION", *parts, result=self.give(y, last, whole), Axis=axis)

    def _rescaled(self, x: Name, y: str, whole: bool) -> Name:
        """Return an int8 tensor, rescaled to the scale of the value y if it has another one."""
        held = self.file.tensors[x]
        if not whole or held.scales == self.scales[y]:
            return x
        return self.emit(
            "QUANTIZE", x, result=self.tensor(Tensor(held.shape, I8, self.scales[y]), f"{x}.rescaled")
        )

    def write_pad(self, node: Node, attrs: core.Pad) -> None:
        x, y = node.inputs[0], node.outputs[0]
        pads, rank = static_shape(attrs.pads), len(self.sizes(x))
        if pads is None or min(pads, default=0) < 0 or attrs.mode not in ("constant", "reflect"):
            raise CompileError(
                f"padding by '{attrs.mode}', or negative padding, can't be expressed in TFLite"
            )
        whole, last = x in self.scales and attrs.value == 0, self.is_last(x)
        order = turned(rank) if last else range(rank)
        sides = self.array(np.array([(pads[i], pads[i + rank]) for i in order], np.int32), "pads")
        source, result = self.read(x, last, whole), self.give(y, last, whole)
        if attrs.mode == "reflect":
            self.emit("MIRROR_PAD", source, sides, result=result, Mode=0)
        elif attrs.value == 0:
            self.emit("PAD", source, sides, result=result)
        else:
            fill = self.array(np.array(attrs.value, self.graph.dtype(x).numpy), "fill")
            self.emit("PADV2", source, sides, fill, result=result)

    def write_gather(self, node: Node, attrs: core.Gather) -> None:
        (x, at), y = node.inputs, node.outputs[0]
        if self.graph.dtype(at) not in (I32, I64):
            raise CompileError(f"indices of {self.graph.dtype(at)} are none of TFLite's")
        places = self._places(at, self.sizes(x)[attrs.axis])
        self.emit("GATHER", self.read(x), places, result=self.give(y), Axis=attrs.axis)

    def _places(self, name: str, size: int) -> Name:
        """Return indices that count from 0, for indices that count from the end if they are negative. `size`
        is the number of entries."""
        dtype = self.graph.dtype(name)
        if name in self.graph.constants:
            held = self.graph.constants[name]
            return self.array(np.where(held < 0, held + size, held).astype(dtype.numpy), name)
        i = Var("i", dtype)
        return Name(self.expression(select(i < 0, i + size, i), {i: self.read(name)}, hint=name))

    # -- computing ------------------------------------------------------------------------------

    def follows(self, names: Sequence[str], rank: int) -> bool:
        """Tell if an operator on values of `rank` axes is to compute with the channels last. This is so if
        one of its operands has them last."""
        return any(len(self.sizes(n)) == rank and self.is_last(n) for n in names)

    def write_map(self, node: Node, attrs: core.Map) -> None:
        y, name = node.outputs[0], step(node)
        rank = len(self.sizes(y))
        last = self.follows(node.inputs, rank)
        whole = all(n in self.scales for n in node.inputs)
        tail = self.tail(y, whole=whole) if name in FUSING else Tail(y)
        bounds = ACTIVATIONS.get(clamped(attrs.body) or (0, 0), 0)
        whole &= bool(name or bounds) and tail.result in self.scales
        operands: dict[Expr, Name] = {
            Var(f"x{i}", self.graph.dtype(n)): self._operand_of(n, rank, last, whole)
            for i, n in enumerate(node.inputs)
        }
        if name not in FUSING and not whole:
            self._floats(node, attrs.body, operands, last)
            return
        body: Any = attrs.body
        parts = [operands[v] for v in ((body.a, body.b) if isinstance(body, Binary) and name else (X,))]
        options: dict[str, Any] = self.fused(tail) if name in FUSING else {}
        self.emit(name or BOUNDS[bounds], *parts, result=self.give(tail.result, last, whole), **options)

    def _floats(self, node: Node, body: Expr, operands: dict[Expr, Name], last: bool) -> None:
        y = node.outputs[0]
        read = [operands[v] for v in operands if v in free_vars(body)]
        shape = self.sizes(y)
        wanted = tuple(shape[i] for i in turned(len(shape))) if last else shape
        if np.broadcast_shapes(*(self.file.tensors[n].shape for n in read)) == wanted:
            self.expression(body, operands, result=self.give(y, last), hint=node.name)
            return
        part = self.expression(body, operands, hint=node.name)
        self.emit("BROADCAST_TO", part, self.integers(wanted), result=self.give(y, last))

    def _operand_of(self, name: str, rank: int, last: bool, whole: bool) -> Name:
        """Return an operand's tensor in a form that can be broadcast with values of `rank` axes. `last` and
        `whole` describe the form, as in `read`."""
        shape = self.sizes(name)
        if not last or len(shape) in (0, rank):
            return self.read(name, last, whole)
        padded = (*[1] * (rank - len(shape)), *shape)
        moved = tuple(padded[i] for i in turned(rank))
        x = self.read(name, False, whole)
        held = self.file.tensors[x]
        if held.data is not None:
            data = held.data.reshape(padded).transpose(turned(rank))
            return self.array(data, f"{name}.last", held.scales)
        raised = self.tensor(Tensor(padded, held.dtype, held.scales), f"{name}.raised")
        self.reshaped(x, raised)
        y = self.tensor(Tensor(moved, held.dtype, held.scales), f"{name}.last")
        return self.emit("TRANSPOSE", raised, self.integers(turned(rank)), result=y)

    def write_reduce(self, node: Node, attrs: core.Reduce) -> None:
        x = node.inputs[0]
        after = mean(self.graph, node, self.users)
        if after is not None:
            self.done.add(after.name)
            self.reduced("MEAN", x, after.outputs[0], attrs.axes, attrs.keepdims)
        elif attrs.combiner in REDUCTIONS:
            self.reduced(REDUCTIONS[attrs.combiner], x, node.outputs[0], attrs.axes, attrs.keepdims)
        else:
            raise CompileError(f"a reduction by '{attrs.combiner}' is none of TFLite's")

    def write_softmax(self, node: Node, attrs: core.Softmax) -> None:
        """Write a softmax. It is computed over the last axis, to which another axis is moved first."""
        x, y, rank = node.inputs[0], node.outputs[0], len(self.sizes(node.inputs[0]))
        operation = "LOG_SOFTMAX" if attrs.log else "SOFTMAX"
        whole, last = x in self.scales and y in self.scales, attrs.axis == 1 and rank > 2
        options: dict[str, Any] = {} if attrs.log else {"Beta": 1.0}
        if last or attrs.axis == rank - 1:
            self.emit(operation, self.read(x, last, whole), result=self.give(y, last, whole), **options)
            return
        order = [*(i for i in range(rank) if i != attrs.axis), attrs.axis]
        shape = tuple(self.sizes(x)[i] for i in order)
        one, other = (self.tensor(Tensor(shape, F32), f"{y}.turned") for _ in range(2))
        self.emit("TRANSPOSE", self.read(x), self.integers(order), result=one)
        self.emit(operation, one, result=other, **options)
        back = [order.index(i) for i in range(rank)]
        self.emit("TRANSPOSE", other, self.integers(back), result=self.give(y))

    def write_normalize(self, node: Node, attrs: core.Normalize) -> None:
        """Write a normalization as several operators."""
        x, y = node.inputs[0], node.outputs[0]
        centred, axes = self.read(x), self.integers(attrs.axes)
        kept = tuple(1 if i in attrs.axes else d for i, d in enumerate(self.sizes(x)))

        def averaged(of: Name) -> Name:
            return self.emit(
                "MEAN", of, axes, result=self.tensor(Tensor(kept, F32), f"{y}.mean"), KeepDims=True
            )

        if not attrs.rms:
            centred = self.emit("SUB", centred, averaged(centred), hint=y)
        spread = averaged(self.emit("MUL", centred, centred, hint=y))
        moved = self.emit("ADD", spread, self.array(np.array(attrs.epsilon, np.float32), "epsilon"), hint=y)
        self.emit("MUL", centred, self.emit("RSQRT", moved, hint=y), result=self.give(y))

    def write_compute(self, node: Node, attrs: core.Compute) -> None:
        """Write the resize operator whose lowering is the same computation. Raises CompileError if there is
        none."""
        offer = self.matched(node, self._resizes(node)) if len(node.inputs) == 1 else None
        if offer is None:
            self.other(node, attrs)
            return
        x, y = node.inputs[0], node.outputs[0]
        operation, options = offer
        whole = x in self.scales
        sizes = self.integers(self.sizes(y)[2:])
        self.emit(operation, self.read(x, True, whole), sizes, result=self.give(y, True, whole), **options)

    def _resizes(self, node: Node) -> Iterator[Offer]:
        old, new = self.sizes(node.inputs[0]), self.sizes(node.outputs[0])
        if len(old) == len(new) == 4 and old[:2] == new[:2] and self.graph.dtype(node.inputs[0]) is F32:
            for operation, style, options in RESIZES:
                yield (operation, options), partial(_resized, style, new[2:])


def _resized(style: Style, sizes: Sequence[int], b: Builder, x: Operand) -> Operand:
    return resize(b, x, sized_lines(b, x, [2, 3], [const(n) for n in sizes]), style)
