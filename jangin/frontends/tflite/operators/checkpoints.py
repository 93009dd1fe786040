"""Lower TensorFlow's operators that write and read checkpoints, in the signatures "save" and "restore"."""

from __future__ import annotations

from jangin.frontends.registry import lowers
from jangin.frontends.tflite.operators.common import Call
from jangin.ir.dtype import STRING
from jangin.ir.expr import const
from jangin.ir.graph import CompileError, Shape, static_shape
from jangin.ir.types import tensor_type
from jangin.ops.nontensor import Item, NonTensor, host
from jangin.ops.values import Tensor


@lowers("FlexSave")
def save(c: Call) -> Item:
    """Write tensors to the file whose path is input 0. Input 1 has their names. Return the path."""
    path, tensors = c.inputs[0], c.inputs[2:]
    names = _names(c)
    if len(names) != len(tensors) or not all(isinstance(t, Tensor) for t in tensors):
        raise CompileError(f"{len(names)} names don't fit {len(tensors)} tensors")
    (saved,) = host(c.b, "SaveTensors", [path, *tensors], [tensor_type(STRING, ())], {"names": names})
    return saved  # type: ignore[no-any-return]


@lowers("FlexRestore")
def restore(c: Call) -> Item:
    """Return the tensor of the file whose path is input 0. Input 1 is the tensor's name."""
    names, dtype = _names(c), c.out.dtype
    if len(names) != 1 or dtype is None:
        raise CompileError(f"one tensor of numbers is read at a time, not {', '.join(names) or 'none'}")
    sizes = c.options["shapes"][0]
    known = sizes is not None and min(sizes, default=0) >= 0
    attrs = {"name": names[0], "dtype": dtype.numpy.name, "shape": sizes if known else None}
    shape: Shape | None = None
    if sizes is not None:
        shape = tuple(const(n) if n >= 0 else c.b.symbol() for n in sizes)
    (tensor,) = host(c.b, "RestoreTensor", [c.inputs[0]], [tensor_type(dtype, shape)], attrs)
    return tensor  # type: ignore[no-any-return]


@lowers("FlexEnsureShape")
def ensure_shape(c: Call) -> Item:
    """Return the input, whose shape must be the declared one."""
    x, sizes, dtype = c.inputs[0], c.options["shapes"][0], c.out.dtype
    if sizes is None or min(sizes, default=0) < 0:
        raise CompileError("the file must declare all sizes of the result")
    if isinstance(x, Tensor):
        if static_shape(x.shape) not in (None, tuple(sizes)):
            raise CompileError(f"{x} doesn't have the sizes {list(sizes)}")
        return c.b.reshape(x, [const(n) for n in sizes])
    (tensor,) = host(c.b, "Identity", [x], [tensor_type(dtype, tuple(map(const, sizes)))])
    return tensor  # type: ignore[no-any-return]


def _names(c: Call) -> tuple[str, ...]:
    """Return the constant texts of input 1."""
    x = c.inputs[1] if len(c.inputs) > 1 else None
    array = c.b.constants.get(x.name) if isinstance(x, NonTensor) else None
    if array is None:
        raise CompileError("the tensors' names must be constants")
    return tuple(map(str, array.reshape(-1)))
