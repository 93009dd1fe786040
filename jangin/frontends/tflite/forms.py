"""Write the values of a graph as tensors of a TensorFlow Lite file, in up to four forms.

A form has the channels in the model's order or last, and it has floats or int8. A form is made when an
operator first reads it."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b
from typing import Any

import numpy as np

from jangin.frontends.tails import Tail, tail
from jangin.frontends.tflite.file import CODES, File, Operator, Scales, Tensor
from jangin.frontends.tflite.gelu import gelus
from jangin.frontends.writer import Name, Pattern, Words, Writer
from jangin.ir.dtype import BOOL, F32, I8, I32, I64, DType
from jangin.ir.expr import Binary, Call, Cast, Const, Expr, Select, Var
from jangin.ir.graph import Array, CompileError, Graph, Node
from jangin.ops import activation

BINARIES = {
    "add": "ADD", "sub": "SUB", "mul": "MUL", "div": "DIV", "pow": "POW", "min": "MINIMUM", "max": "MAXIMUM",
    "and": "LOGICAL_AND", "or": "LOGICAL_OR", "lt": "LESS", "le": "LESS_EQUAL", "gt": "GREATER",
    "ge": "GREATER_EQUAL", "eq": "EQUAL", "ne": "NOT_EQUAL",
}  # fmt: skip
WHOLE_BINARIES = ("add", "sub", "mul", "min", "max", "lt", "le", "gt", "ge", "eq", "ne")
"""Binary operations that LiteRT's operators also compute on integers."""
TRUTHS = {"LOGICAL_AND", "LOGICAL_OR", "LOGICAL_NOT", *list(BINARIES.values())[9:]}
CALLS = {
    "neg": "NEG", "abs": "ABS", "not": "LOGICAL_NOT", "sqrt": "SQRT", "rsqrt": "RSQRT", "exp": "EXP",
    "log": "LOG", "sin": "SIN", "cos": "COS", "tanh": "TANH", "sigmoid": "LOGISTIC", "floor": "FLOOR",
    "ceil": "CEIL", "round": "ROUND", "sign": "SIGN",
}  # fmt: skip
ACTIVATIONS = {(-np.inf, np.inf): 0, (0.0, np.inf): 1, (-1.0, 1.0): 2, (0.0, 6.0): 3}
"""The schema's number of a fused activation, by the activation's lower and upper bound."""
BOUNDS = {1: "RELU", 2: "RELU_N1_TO_1", 3: "RELU6"}
"""Operators that only apply an activation, by the schema's number of that activation."""
X, ALPHA = Var("x0", F32), Var("Alpha", F32)
PATTERNS: tuple[Pattern, ...] = (
    (activation.clip(X, -1, 1), "RELU_N1_TO_1", ()),
    (activation.clip(X, 0, 6), "RELU6", ()),
    (activation.relu(X), "RELU", ()),
    (activation.leaky_relu(X, ALPHA), "LEAKY_RELU", ("Alpha",)),
    (activation.hard_swish(X), "HARD_SWISH", ()),
    (activation.elu(X), "ELU", ()),
    (activation.gelu(X), "GELU", ()),
)

Form = tuple[str, bool, bool]
"""A value's form: the value's name, whether its channels are last, and whether it is int8."""


def turned(rank: int) -> list[int]:
    """Return the order of a value's axes with the channels last. The value has `rank` axes, and the channels
    are axis 1."""
    return [0, *range(2, rank), 1] if rank > 2 else list(range(rank))


class Forms(Writer):
    """The part of TFLite's writer that makes tensors of a lowered graph's values. `scales` has the
    quantization of the values that are int8."""

    format = "TFLite"
    patterns = PATTERNS
    copy = "copy"

    def __init__(self, graph: Graph) -> None:
        super().__init__(gelus(graph))
        self.scales: dict[str, Scales] = {}
        self.file = File()
        self.made: dict[Form, Name] = {}
        self.numbers: dict[Any, Name] = {}
        self.users, self.makers = self.graph.consumers(), self.graph.producers()
        self.done: set[str] = set()
        self.failed = False

    # -- values ---------------------------------------------------------------------------------

    def check(self, value: str) -> None:
        held = self.graph.value(value)
        if held.dtype is None:
            raise CompileError(f"'{value}' is a {held}, and only tensors of numbers are written as TFLite")
        self.type(held.dtype)
        self.sizes(value)

    def type(self, dtype: DType) -> DType:
        if dtype not in (F32, I32, I64, BOOL):
            raise CompileError(
                f"tensors of {dtype} can't be written as TFLite: convert them to float32 or int32"
            )
        return dtype

    def constant(self, name: str) -> None:
        """Do nothing, because a constant is written in the form in which an operator reads it."""

    def read(self, value: str, last: bool = False, whole: bool = False) -> Name:
        """Return the name of a value's tensor in a form. It is made from another form if it doesn't exist
        yet. The channels are `last`, and the tensor is int8 if `whole` is set."""
        last = last and len(self.sizes(value)) > 2
        form = value, last, whole
        if form in self.made:
            return self.made[form]
        if value in self.graph.constants:
            array = self.graph.constants[value]
            array = array.transpose(turned(array.ndim)) if last else array
            scales = self.scales[value] if whole else None
            self.made[form] = self.array(array if scales is None else scales.quantized(array), value, scales)
        elif (value, last, not whole) in self.made:
            x = self.read(value, last, not whole)
            self.emit("QUANTIZE" if whole else "DEQUANTIZE", x, result=self.give(*form))
        elif self.failed and not any((value, not last, w) in self.made for w in (False, True)):
            # make the tensor anyway, so that readers are checked too; the error is already reported
            return self.give(*form)
        else:
            x, shape = self.read(value, not last, whole), self.sizes(value)
            order = turned(len(shape)) if last else list(np.argsort(turned(len(shape))))
            y = self.give(*form)
            if self.in_order(value):
                self.reshaped(x, y)
            else:
                self.emit("TRANSPOSE", x, self.integers(order), result=y)
        return self.made[form]

    def give(self, value: str, last: bool = False, whole: bool = False) -> Name:
        """Add the tensor that an operator then fills with a value in a form, and return its name."""
        shape = self.sizes(value)
        last = last and len(shape) > 2
        shape = tuple(shape[i] for i in turned(len(shape))) if last else shape
        suffix = ".last" * last + ".int8" * whole
        name = self.fresh(value + suffix) if suffix else self.named(value)
        dtype, scales = (I8, self.scales[value]) if whole else (self.graph.dtype(value), None)
        self.file.tensors[name] = Tensor(shape, self.type(dtype) if not whole else dtype, scales)
        self.made[value, last, whole] = name
        return name

    def is_last(self, value: str) -> bool:
        """Tell if a value exists only in forms with the channels last."""
        flags = [(value, last, whole) in self.made for last in (False, True) for whole in (False, True)]
        return not any(flags[:2]) and any(flags[2:])

    def in_order(self, value: str) -> bool:
        """Tell if a value's elements are in the same order with its channels last."""
        shape = self.sizes(value)
        long = [i for i in turned(len(shape)) if shape[i] != 1]
        return long == sorted(long)

    def array(self, array: Array, hint: str, scales: Scales | None = None) -> Name:
        """Add a constant, unless there is an equal one, and return its name."""
        array = np.ascontiguousarray(array).reshape(array.shape)
        content = blake2b(
            array.reshape(-1).view(np.uint8).data
        ).digest()  # a key with the bytes would keep a copy
        key = array.dtype, array.shape, content, scales
        if key not in self.numbers:
            self.numbers[key] = self.fresh(hint)
            dtype = next(d for d in CODES if d.numpy == array.dtype)
            self.file.tensors[self.numbers[key]] = Tensor(array.shape, dtype, scales, array)
        return self.numbers[key]

    def integers(self, values: Sequence[int]) -> Name:
        return self.array(np.array(values, np.int32), "numbers")

    # -- operators ------------------------------------------------------------------------------

    def _node(self, node: Node) -> None:
        if node.name in self.done:
            return
        try:
            super()._node(node)
        except CompileError:
            self.failed = True
            raise

    def emit(
        self, operation: str, *inputs: Any, result: str = "", hint: str = "", dtype: DType | None = None,
        **options: Any,
    ) -> Name:  # fmt: skip
        """Add an operator, and return the name of its result.

        `result` is the name of an existing tensor to fill. By default a new tensor is added. It has the
        operands' broadcast shape, and the type `dtype` or the operands'."""
        name = Name(result) if result else self._between(operation, inputs, hint, dtype)
        if operation == self.copy:
            self.reshaped(inputs[0], name)
            return name
        if operation == "CAST":
            kinds = self.file.tensors[inputs[0]].dtype, self.file.tensors[name].dtype
            options = {"InDataType": CODES[kinds[0]], "OutDataType": CODES[kinds[1]]}
        self.file.operators.append(Operator(operation, inputs, name, options))
        return name

    def _between(self, operation: str, inputs: Sequence[Name], hint: str, dtype: DType | None) -> Name:
        tensors = [self.file.tensors[n] for n in inputs]
        shape = np.broadcast_shapes(*(t.shape for t in tensors))
        own = BOOL if operation in TRUTHS else dtype or tensors[-1].dtype
        return self.tensor(Tensor(shape, own), f"{hint or 'made'}.{operation.lower()}")

    def tensor(self, made: Tensor, hint: str) -> Name:
        name = self.fresh(hint)
        self.file.tensors[name] = made
        return name

    def reshaped(self, x: Name, y: Name) -> None:
        shape = list(self.file.tensors[y].shape)
        self.emit("RESHAPE", x, self.integers(shape), result=y, NewShape=shape)

    def tail(self, value: str, axis: int | None = None, whole: bool = False) -> Tail:
        """Return the bias and the activation to fuse into the operator that makes a value. An int8 result
        (`whole`) may have any bounds, because its quantization already limits it to them."""
        ending = tail(self.graph, value, self.users, axis)
        if (ending.low, ending.high) not in ACTIVATIONS and not whole:
            assert ending.clamp is not None
            ending = Tail(ending.clamp.inputs[0], ending.bias)
        self.done |= {n.name for n in (ending.bias, ending.clamp) if n is not None}
        return ending

    def fused(self, found: Tail) -> dict[str, Any]:
        return {"FusedActivationFunction": ACTIVATIONS.get((found.low, found.high), 0)}

    # -- expressions ----------------------------------------------------------------------------

    def number(self, e: Const) -> Name:
        return self.array(np.array(e.value, self.type(e.dtype).numpy), "number")

    def attribute(self, e: Expr) -> Any:
        return float(super().attribute(e))

    def words(self, e: Expr) -> Words | None:
        self.type(e.dtype)
        match e:
            case Select(cond, a, b):
                return Words("SELECT_V2", (cond, a, b))
            case Cast():
                return Words("CAST", (e.a,), {"dtype": e.dtype})
            case Binary(op, a, b) if op in (BINARIES if a.dtype in (F32, BOOL) else WHOLE_BINARIES):
                return Words(BINARIES[op], (a, b))
            case Call("isnan", (a,)):
                return Words("NOT_EQUAL", (a, a))
            case Call(fn, args) if fn in CALLS and args[0].dtype in (F32, BOOL):
                return Words(CALLS[fn], args)
        return None
