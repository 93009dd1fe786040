"""Write lowered graphs as ONNX models, with an operator of the standard for each core operator.

A core operator without a counterpart is written as its tensor expressions (`expressions.py`), if ONNX can
express them."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from jangin.frontends.onnx.expressions import CODES, PATTERNS, Stages, words
from jangin.frontends.onnx.importer import metadata
from jangin.frontends.onnx.nests import Said, nests
from jangin.frontends.onnx.operators.resize import COORDINATES, ROUNDING, resize_11
from jangin.frontends.onnx.steps import Steps
from jangin.frontends.writer import Name, Offer, Words, Writer
from jangin.ir import core
from jangin.ir.dtype import BF16, F4E2M1, F8E8M0, I2, I8, I32, I64, U2, U8, DType
from jangin.ir.expr import Const, Expr, Var, const, maximum
from jangin.ir.graph import CompileError, Graph, Node, Shape, static_shape
from jangin.ir.own_names import own_sizes
from jangin.ir.simplify import simplify
from jangin.ir.traversal import free_vars
from jangin.ops.builder import Builder
from jangin.ops.core import CORE
from jangin.ops.numbers import Numbers
from jangin.ops.pool import average_pool, max_pool
from jangin.ops.values import Tensor
from jangin.ops.window import Window

OPSET = 21
"""The opset of a written model, the first with integers of 4 bits and with scales by blocks. ONNX Runtime
reads it since version 1.18. The opset is later if an operator or a type needs it (`OPSETS`)."""
OPSETS: Mapping[str | DType, int] = {
    "RMSNormalization": 23, "BitCast": 26, "CumProd": 26, BF16: 22, F4E2M1: 23, F8E8M0: 24, I2: 25, U2: 25,
}  # fmt: skip
MOST_BYTES = (1 << 31) - (1 << 20)
"""The weights may take at most this many bytes. A protocol buffer is limited to 2 GiB, of which 1 MiB is left
for everything else."""
LAST = np.iinfo(np.int64).max


def written(graph: Graph, described: Mapping[str, Any] | None = None) -> bytes:
    """Return a lowered graph as the bytes of an ONNX model.

    `described` is the model's metadata, as in `Imported`. Raises CompileError that names all parts that ONNX
    can't express, or if the weights don't fit in one file."""
    size = sum(a.nbytes for a in graph.constants.values())
    if size > MOST_BYTES:
        raise CompileError(f"weights of {size / 1e9:.1f} GB don't fit into one ONNX file: it holds 2 GB")
    return OnnxWriter(graph).model(described or {})


class OnnxWriter(Stages, Steps, Writer):
    """The writer of one graph, which is a model's graph or the body of a step. `outer` is the writer of the
    graph around a body."""

    format = "ONNX"
    patterns = PATTERNS
    reserved = ("",)
    copy = "Identity"

    def __init__(self, graph: Graph, outer: OnnxWriter | None = None) -> None:
        super().__init__(graph)
        self.outer: OnnxWriter | None = outer
        if outer is not None:
            self.taken = outer.taken
        self.nodes: list[onnx.NodeProto] = []
        self.tensors: list[onnx.TensorProto] = []
        self.numbers: dict[Any, Name] = {}
        self.counted = {}
        self.held = Numbers(graph.constants, graph.producers(), graph.dtype)
        self.opset = OPSET
        self.domains: set[str] = set()

    def model(self, described: Mapping[str, Any]) -> bytes:
        graph = self.graph
        inputs, outputs = ([self._typed(n) for n in names] for names in (graph.inputs, graph.outputs))
        self.body()
        proto = helper.make_graph(self.nodes, graph.name or "graph", inputs, outputs, self.tensors)
        opsets = [helper.make_opsetid("", self.opset)]
        others = [helper.make_opsetid(d, 1) for d in sorted(self.domains)]
        model = helper.make_model(proto, opset_imports=[*opsets, *others])
        model.ir_version = helper.find_min_ir_version_for(opsets)
        known = metadata(model) | {"producer_name": "Jangin"} | {k: v for k, v in described.items() if v}
        model.producer_name, model.domain = known["producer_name"], known["domain"]
        model.doc_string = known["description"]
        model.graph.doc_string = known["graph_description"]
        model.model_version = int(known["version"])
        helper.set_model_props(model, known["custom_metadata_map"])
        data: bytes = model.SerializeToString(deterministic=True)
        return data

    # -- values ---------------------------------------------------------------------------------

    def check(self, value: str) -> None:
        held = self.graph.value(value)
        if held.dtype is None or held.dtype not in CODES:
            raise CompileError(f"'{value}' is a {held}, and only tensors of numbers are written as ONNX")
        self.opset = max(self.opset, OPSETS.get(held.dtype, 0))

    def _typed(self, name: str) -> onnx.ValueInfoProto:
        self.check(name)
        return self.typed(self.named(name), self.graph.dtype(name), self.graph.shape(name))

    def typed(self, name: Name, dtype: DType, shape: Shape) -> onnx.ValueInfoProto:
        sizes = [int(d.value) if isinstance(d, Const) else str(own_sizes(d)) for d in shape]
        return helper.make_tensor_value_info(name, CODES[dtype], sizes)

    def inner(self, graph: Graph, given: Mapping[str, Name]) -> OnnxWriter:
        writer = OnnxWriter(graph, self)
        writer.names.update(given)
        return writer

    def body(self) -> None:
        super().body()
        if self.outer is not None:
            self.outer.opset = max(self.outer.opset, self.opset)
            self.outer.domains |= self.domains

    def constant(self, name: str) -> None:
        self.check(name)
        array = np.ascontiguousarray(self.graph.constants[name])
        self.tensors.append(
            numpy_helper.from_array(array.reshape(self.graph.constants[name].shape), self.named(name))
        )

    def array(self, values: Any, dtype: DType = I64, hint: str = "value") -> Name:
        """Add a constant, unless there is an equal one, and return its name."""
        array = np.asarray(values, dtype.numpy)
        key = dtype, array.shape, array.tobytes()
        if key not in self.numbers:
            self.numbers[key] = self.fresh(hint)
            self.tensors.append(numpy_helper.from_array(array, self.numbers[key]))
        return self.numbers[key]

    def number(self, e: Const) -> Name:
        return self.array(e.value, e.dtype, "number")

    def words(self, e: Expr) -> Words | None:
        return words(e)

    def attribute(self, e: Expr) -> Any:
        return float(super().attribute(e))

    def emit(
        self, operation: str, *inputs: Any, result: str = "", hint: str = "", place: int = 0, **given: Any
    ) -> Name:
        """Add an operator, and return the name of its output number `place`. `result` is the output's name,
        if given. Attributes that are None are left out."""
        name = self.named(result) if result else self.fresh(f"{hint or 'made'}.{operation.lower()}")
        self.opset = max(self.opset, OPSETS.get(operation, 0))
        unread = [self.fresh(f"{name}.{i}") for i in range(place)]
        attributes = {k: v for k, v in given.items() if v is not None}
        self.nodes.append(
            helper.make_node(operation, list(inputs), [*unread, name], name=str(name), **attributes)
        )
        return name

    def dims(self, shape: Shape) -> Name:
        """Return the name of a vector of sizes."""
        known = static_shape(shape)
        if known is not None:
            return self.array(known, hint="shape")
        parts = [self.emit("Reshape", self.scalar(d), self.array([1]), hint="size") for d in shape]
        return parts[0] if len(parts) == 1 else self.emit("Concat", *parts, hint="shape", axis=0)

    def scalar(self, e: Expr) -> Name:
        """Return the name of a tensor without axes that holds a size."""
        if e not in self.numbers:
            self.numbers[e] = self.expression(e, {v: self._symbol(v) for v in free_vars(e)}, hint="size")
        return self.numbers[e]

    def _symbol(self, v: Var) -> Name:
        if v not in self.numbers:
            places = ((n, i) for n in self.graph.inputs for i, d in enumerate(self.graph.shape(n)) if d == v)
            place = self.counted.get(v) or next(places, None)
            if place is None and self.outer is not None:
                return self.outer.scalar(v)
            if place is None:
                raise CompileError(f"the size {v} is that of no input, so that ONNX can't express it")
            shape = self.emit("Shape", self.named(place[0]), hint=str(v))
            self.numbers[v] = self.emit("Gather", shape, self.array(place[1]), hint=str(v), axis=0)
        return self.numbers[v]

    def write_bind(self, node: Node, attrs: core.BindStep) -> None:
        """Write the elements of a tensor as sizes, which later nodes may use."""
        flat = self.emit("Reshape", self.named(node.inputs[0]), self.array([-1]), hint=node.name)
        for i, v in enumerate(attrs.symbols):
            size = self.emit("Gather", flat, self.array(i), hint=str(v), axis=0)
            self.numbers[v] = self.emit("Cast", size, hint=str(v), to=CODES[I64])

    # -- moving data ----------------------------------------------------------------------------

    def write_reshape(self, node: Node, attrs: core.Reshape) -> None:
        zero = any(d == const(0) for d in attrs.shape)
        x, shape = self.named(node.inputs[0]), self.dims(attrs.shape)
        self.emit("Reshape", x, shape, result=node.outputs[0], allowzero=1 if zero else None)

    def write_transpose(self, node: Node, attrs: core.Transpose) -> None:
        self.emit("Transpose", self.named(node.inputs[0]), result=node.outputs[0], perm=list(attrs.perm))

    def write_expand(self, node: Node, attrs: core.Expand) -> None:
        self.emit("Expand", self.named(node.inputs[0]), self.dims(attrs.shape), result=node.outputs[0])

    def write_slice(self, node: Node, attrs: core.Slice) -> None:
        """Write a slice.

        ONNX takes an end of -1 for the last entry. The end of a backward slice is therefore counted from the
        end of the axis. A slice that begins before the axis is empty, and is written as one that begins with
        the axis."""
        shape = self.graph.shape(node.inputs[0])
        whole = (const(0), 1)
        rows = zip(shape, attrs.starts, attrs.steps, attrs.shape, strict=True)
        cut = [i for i, (d, start, step, n) in enumerate(rows) if (start, step) != whole or n != d]
        if not cut:
            self.emit("Identity", self.named(node.inputs[0]), result=node.outputs[0])
            return
        begins = tuple(simplify(maximum(attrs.starts[i], 0), self.graph.symbols) for i in cut)
        ends = [b + attrs.shape[i] * attrs.steps[i] for b, i in zip(begins, cut, strict=True)]
        ends = [e - shape[i] if attrs.steps[i] < 0 else e for e, i in zip(ends, cut, strict=True)]
        axes, steps = self.array(cut), self.array([attrs.steps[i] for i in cut])
        operands = self.dims(begins), self.dims(tuple(ends)), axes, steps
        self.emit("Slice", self.named(node.inputs[0]), *operands, result=node.outputs[0])

    def write_concat(self, node: Node, attrs: core.Concat) -> None:
        self.emit("Concat", *map(self.named, node.inputs), result=node.outputs[0], axis=attrs.axis)

    def write_pad(self, node: Node, attrs: core.Pad) -> None:
        x, dtype = self.named(node.inputs[0]), self.graph.dtype(node.inputs[0])
        value = [self.array(attrs.value, dtype, "number")] if attrs.mode == "constant" else []
        self.emit("Pad", x, self.dims(attrs.pads), *value, result=node.outputs[0], mode=attrs.mode)

    def write_gather(self, node: Node, attrs: core.Gather) -> None:
        x, at = map(self.named, node.inputs)
        if self.graph.dtype(node.inputs[1]) not in (I32, I64):
            at = self.emit("Cast", at, hint=at, to=CODES[I64])
        self.emit("Gather", x, at, result=node.outputs[0], axis=attrs.axis)

    # -- computing ------------------------------------------------------------------------------

    def write_map(self, node: Node, attrs: core.Map) -> None:
        operands: dict[Expr, Name] = {
            Var(f"x{i}", self.graph.dtype(n)): self.named(n) for i, n in enumerate(node.inputs)
        }
        operands |= {v: self.scalar(v) for v in free_vars(attrs.body) if v not in operands}
        read = {v.name for v in free_vars(attrs.body)}
        shapes = [self.graph.shape(n) for i, n in enumerate(node.inputs) if f"x{i}" in read]
        out = self.graph.shape(node.outputs[0])
        if any(
            len(s) == len(out) and all(d == o or o == const(1) for d, o in zip(s, out, strict=True))
            for s in shapes
        ):
            self.expression(attrs.body, operands, result=node.outputs[0], hint=node.name)
            return
        y = self.expression(attrs.body, operands, hint=node.name)
        self.emit("Expand", y, self.dims(out), result=node.outputs[0])

    def write_reduce(self, node: Node, attrs: core.Reduce) -> None:
        x = self.named(node.inputs[0])
        self.reduced(
            attrs.combiner, x, self.graph.dtype(node.inputs[0]), attrs.axes, node.outputs[0], attrs.keepdims
        )

    def write_softmax(self, node: Node, attrs: core.Softmax) -> None:
        operation = "LogSoftmax" if attrs.log else "Softmax"
        self.emit(operation, self.named(node.inputs[0]), result=node.outputs[0], axis=attrs.axis)

    def write_normalize(self, node: Node, attrs: core.Normalize) -> None:
        """Write a normalization over the last axes. If it is over other axes, these are moved to the end
        first. Raises CompileError if their sizes aren't fixed."""
        shape, x = self.graph.shape(node.inputs[0]), self.named(node.inputs[0])
        rank, dtype = len(shape), self.graph.dtype(node.inputs[0])
        order = [*(i for i in range(rank) if i not in attrs.axes), *attrs.axes]
        sizes = static_shape(tuple(shape[i] for i in attrs.axes))
        if sizes is None:
            raise CompileError(
                "a normalization over sizes that aren't fixed can't be expressed in ONNX: give shapes="
            )
        operation = "RMSNormalization" if attrs.rms else "LayerNormalization"
        kwargs: dict[str, Any] = {"axis": rank - len(sizes), "epsilon": attrs.epsilon}
        if not sizes:  # a single element is normalized along a new axis
            behind, one = self.array([rank]), self.array(np.ones(1), dtype, "ones")
            y = self.emit(operation, self.emit("Unsqueeze", x, behind, hint=x), one, hint=x, **kwargs)
            self.emit("Squeeze", y, behind, result=node.outputs[0])
            return
        scale = self.array(np.ones(sizes), dtype, "ones")
        if order == list(range(rank)):
            self.emit(operation, x, scale, result=node.outputs[0], **kwargs)
            return
        turned = self.emit("Transpose", x, hint=x, perm=order)
        y = self.emit(operation, turned, scale, hint=x, **kwargs)
        self.emit("Transpose", y, result=node.outputs[0], perm=[order.index(i) for i in range(rank)])

    def write_matmul(self, node: Node, attrs: core.MatMul) -> None:
        kinds = [self.graph.dtype(n) for n in node.inputs]
        whole = attrs.dtype is I32 and all(k.is_int for k in kinds)
        if attrs.dtype not in (None, kinds[0]) and not whole:
            raise CompileError(
                f"a product of {kinds[0]} and {kinds[1]} in {attrs.dtype} can't be expressed in ONNX"
            )
        operands = self._in_bytes(node) if whole else [self.named(n) for n in node.inputs]
        turns = attrs.transpose_a, attrs.transpose_b
        if any(turns) and not whole and all(len(self.graph.shape(n)) == 2 for n in node.inputs):
            said: dict[str, Any] = {"transA": int(turns[0]) or None, "transB": int(turns[1]) or None}
            self.emit("Gemm", *operands, result=node.outputs[0], **said)  # Gemm's operands stay as they are
            return
        for i, turn in enumerate(turns):
            rank = len(self.graph.shape(node.inputs[i]))
            order = [*range(rank - 2), rank - 1, rank - 2]
            operands[i] = (
                self.emit("Transpose", operands[i], hint=operands[i], perm=order) if turn else operands[i]
            )
        self.emit("MatMulInteger" if whole else "MatMul", *operands, result=node.outputs[0])

    def _in_bytes(self, node: Node) -> list[Name]:
        """Return the operands of a product of integers. If one of them isn't 8-bit, both are converted to
        bytes, and their zero points follow them.

        Raises CompileError if an operand's elements don't fit in a byte."""
        if all(self.graph.dtype(n) in (I8, U8) for n in node.inputs):
            return [self.named(n) for n in node.inputs]
        pairs = [self._bytes(n) for n in node.inputs]
        return [data for data, _ in pairs] + [zero for _, zero in pairs]

    def _bytes(self, name: str) -> tuple[Name, Name]:
        low, high = self.held.range(name)
        low, high = min(low, 0), max(high, 0)
        if high - low > 255:
            raise CompileError(
                f"ONNX can't express a product of integers from {low} to {high}, which don't fit a byte"
            )
        zero = self.array(-low, U8, "zero")
        if name in self.graph.constants:
            return self.array(self.graph.constants[name].astype(np.int64) - low, U8, name), zero
        if low:
            wide = self.emit("Cast", self.named(name), hint=name, to=CODES[I32])
            moved = self.emit("Sub", wide, self.array(low, I32, "low"), hint=name)
        else:
            moved = self.named(name)
        return self.emit("Cast", moved, hint=name, to=CODES[U8]), zero

    def write_conv(self, node: Node, attrs: core.Conv) -> None:
        kinds = [self.graph.dtype(n) for n in node.inputs]
        whole = attrs.dtype is I32 and all(k.is_int for k in kinds)
        if attrs.layout != "first" or (attrs.dtype not in (None, kinds[0]) and not whole):
            raise CompileError(
                f"a convolution of {kinds[0]} and {kinds[1]} in {attrs.dtype} can't be expressed in ONNX"
            )
        operands = self._in_bytes(node) if whole else [self.named(n) for n in node.inputs]
        self.emit(
            "ConvInteger" if whole else "Conv", *operands, result=node.outputs[0],
            kernel_shape=list(attrs.kernel), strides=list(attrs.strides), dilations=list(attrs.dilations),
            pads=list(attrs.pads), group=attrs.groups,
        )  # fmt: skip

    def write_pool(self, node: Node, attrs: core.Pool) -> None:
        """Write a pool. ONNX has no pools for sums, or for averages of integers. They are written as tensor
        expressions."""
        dtype = self.graph.dtype(node.inputs[0])
        if attrs.layout != "first" or (attrs.combiner == "sum" and not (attrs.average and dtype.is_float)):
            self.other(node, attrs)
            return
        half = len(attrs.kernel)
        sizes = static_shape(self.graph.shape(node.inputs[0])[2:])
        extents = static_shape(attrs.extents)
        begins, ends = list(attrs.pads[:half]), list(attrs.pads[half:])
        ceil = None
        if sizes is None or extents is None:
            ceil = self.matched(node, [(n, partial(_pooled, attrs, n)) for n in (0, 1)])
            if ceil is None:
                raise CompileError(
                    "the ends of its windows aren't known for sizes that aren't fixed: give shapes="
                )
        else:
            spans = [k * d - d + 1 for k, d in zip(attrs.kernel, attrs.dilations, strict=True)]
            reach = [
                (n - 1) * s + k - size - b
                for n, s, k, size, b in zip(extents, attrs.strides, spans, sizes, begins, strict=True)
            ]
            if attrs.average == "all" and any(r > e for r, e in zip(reach, ends, strict=True)):
                ceil = 1
            else:
                ends = [max(e, r) for e, r in zip(ends, reach, strict=True)]
        kwargs: dict[str, Any] = {"kernel_shape": list(attrs.kernel), "strides": list(attrs.strides)}
        kwargs |= {"pads": [*begins, *ends], "ceil_mode": ceil}
        if any(d != 1 for d in attrs.dilations):  # ONNX Runtime's quantized pools don't know the attribute
            kwargs["dilations"] = list(attrs.dilations)
        if attrs.combiner == "sum":
            kwargs["count_include_pad"] = int(attrs.average == "all")
        operation = "AveragePool" if attrs.combiner == "sum" else "MaxPool"
        self.emit(operation, self.named(node.inputs[0]), result=node.outputs[0], **kwargs)

    # -- tensor expressions ---------------------------------------------------------------------

    def write_compute(self, node: Node, attrs: core.Compute) -> None:
        """Write the standard's Resize if its lowering is the same, else the tensor expression."""
        offer = self.matched(node, self._resizes(node)) if len(node.inputs) == 1 else None
        if offer is None:
            self.other(node, attrs)
            return
        sizes = self.dims(self.graph.shape(node.outputs[0]))
        self.emit("Resize", self.named(node.inputs[0]), "", "", sizes, result=node.outputs[0], **offer)

    def _resizes(self, node: Node) -> Sequence[Offer]:
        shape, wanted = self.graph.shape(node.inputs[0]), self.graph.shape(node.outputs[0])
        if len(shape) != len(wanted) or shape == wanted:
            return []
        places = [p for p in COORDINATES if p != "tf_crop_and_resize"]
        nearest = (
            {"mode": "nearest", "coordinate_transformation_mode": p, "nearest_mode": r}
            for p, r in itertools.product(places, ROUNDING)
        )
        linear = (
            {"mode": m, "coordinate_transformation_mode": p}
            for m, p in itertools.product(("linear", "cubic"), places)
        )
        return [(how, partial(_resized, wanted, how)) for how in (*nearest, *linear)]

    def write_loop_nest(self, node: Node, attrs: core.LoopNest) -> None:
        """Write the standard's operator whose lowering is the same, or else the tensor expression."""
        rank = len(self.graph.shape(node.inputs[0])) if node.inputs else 0
        said: Said | None = self.matched(node, nests(attrs, len(node.inputs), rank))
        if said is None:
            self.other(node, attrs)
            return
        more = [self.array(m) if isinstance(m, int) else self.dims((m,)) for m in said.more]
        operands = [*map(self.named, node.inputs), *more]
        result = "" if said.flat else node.outputs[0]
        y = self.emit(
            said.operation, *operands, result=result, hint=node.name, place=said.place, **said.attributes
        )
        if said.flat:
            self.emit("Reshape", y, self.array([-1]), result=node.outputs[0])

    def other(self, node: Node, attrs: Any) -> None:
        """Write the tensor expression of an operator, stage by stage. Raises CompileError if it has none."""
        if node.op not in CORE or CORE[node.op].kind in ("opaque", "alias"):
            super().other(node, attrs)
        self.staged(node, attrs)


def _resized(wanted: Shape, how: Mapping[str, Any], b: Builder, x: Tensor) -> Tensor:
    return resize_11(b, x, None, None, b.sizes(wanted), **how)


def _pooled(attrs: core.Pool, ceil: int, b: Builder, x: Tensor) -> Tensor:
    """Return a pool of x. With `ceil`, the last windows may reach beyond the input."""
    window = Window.over(
        b, x, attrs.kernel, strides=attrs.strides, dilations=attrs.dilations, pads=attrs.pads, ceil=bool(ceil)
    )
    if attrs.combiner == "max":
        return max_pool(b, x, window)
    return average_pool(b, x, window, count_padding=attrs.average == "all")
