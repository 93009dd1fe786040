"""Operators that NumPy computes on whole arrays give the reference's results, and overwrite nothing that is
needed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from repeatable import RNG

from jangin.ir.core import Concat, Conv, Map
from jangin.ir.dtype import F32, F64, I32, DType, from_numpy
from jangin.ir.expr import Buffer, Expr, Var, call, cast, const, eq, maximum, select
from jangin.ir.graph import Array, Node
from jangin.ir.interpret import evaluate_stage
from jangin.ops import quick
from jangin.ops.core import core_op
from jangin.ops.quick import Memory, quick_node

X, Y, N = Var("x0", F32), Var("x1", F32), Var("n")
BITS = call("bitcast_i32", X)
SIZES = {"n": 7}
MAPS: dict[str, tuple[Expr, DType]] = {
    "a chain": ((X * Y + Y) * X, F32),
    "a difference from itself": ((X - Y) * (X + Y), F32),
    "a choice": (select(eq(X, Y), X + const(1.0, F32), call("exp", X)), F32),
    "functions": (call("sigmoid", call("tanh", X)) - call("sqrt", call("abs", Y)), F32),
    "another type": (cast(F64, X) * cast(F64, Y), F64),
    "the operand itself": (maximum(call("rounded", X), X * X), F32),
    "the operand's bits": ((cast(F32, BITS) + call("exp", X)) * cast(F32, BITS + const(1, I32)), F32),
    "a size": (X * cast(F32, N) + Y, F32),
}


@pytest.fixture(autouse=True)
def small_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have small arrays take the ways of large ones."""
    for limit, size in {"LARGE": 64, "PIECE": 1 << 12, "BLOCK": 32, "COLUMNS": 256}.items():
        monkeypatch.setattr(quick, limit, size)
    for limit in ("SHARED", "SHARED_ALONE"):
        monkeypatch.setattr(quick, limit, 0)


def right(attrs: Any, dtype: DType, inputs: Sequence[Array], shape: Sequence[int]) -> Array:
    node = Node("out", tuple(f"in{i}" for i in range(len(inputs))), ("out",), attrs)
    buffers = [
        Buffer(n, from_numpy(a.dtype), tuple(map(const, a.shape)))
        for n, a in zip(node.inputs, inputs, strict=True)
    ]
    arrays: dict[str, Array] = dict(zip(node.inputs, inputs, strict=True))
    for stage in core_op(node).te(tuple(buffers), Buffer("out", dtype, tuple(map(const, shape))), attrs):
        arrays[stage.out.name] = evaluate_stage(stage, arrays, SIZES)
    return arrays["out"]


def quickly(
    attrs: Any, dtype: DType, inputs: Sequence[Array], unused: Sequence[int] = (), threads: int = 1
) -> Array | None:
    node = Node("out", tuple(f"in{i}" for i in range(len(inputs))), ("out",), attrs)
    return quick_node(node, dtype, [*inputs], SIZES, Memory(), threads, unused)


def floats(*shape: int) -> Array:
    return np.asarray(RNG.standard_normal(shape), np.float32)


@pytest.mark.parametrize("unused", [(), (0,), (1,), (0, 1)], ids=str)
@pytest.mark.parametrize(
    "shapes",
    [
        ((3, 40), (3, 40)), ((40,), (3, 1)), ((3, 40), (40,)),
        ((2, 3, 40), (2, 3, 40)), ((3, 1), (2, 1, 40)), ((2, 3, 40), ()), ((5, 7, 2), (5, 7, 1)),
    ],
    ids=str,
)  # fmt: skip
@pytest.mark.parametrize("name", MAPS)
def test_maps(name: str, shapes: Sequence[Sequence[int]], unused: Sequence[int]) -> None:
    """The arrays are larger than two blocks of 32 elements, which three threads share."""
    body, dtype = MAPS[name]
    inputs = [floats(*shape) for shape in shapes]
    want = right(Map(body), dtype, inputs, np.broadcast_shapes(*map(np.shape, inputs)))
    got = quickly(Map(body), dtype, [v.copy() for v in inputs], unused, threads=3)
    assert got is not None and got.shape == want.shape and got.dtype == want.dtype
    np.testing.assert_allclose(got, want, 1e-5, 1e-6)  # a few roundings in single precision


def drawn() -> tuple[Conv, Array, Array, list[int]]:
    """Draw a convolution, its operands and the shape of its result."""
    while True:
        rank = int(RNG.integers(1, 3))
        groups, depth, each = (int(RNG.choice(c)) for c in ([1, 1, 2, 6], [1, 2, 5], [1, 3]))
        kernel, strides, dilations = (tuple(map(int, RNG.integers(1, 5, rank))) for _ in range(3))
        pads = tuple(map(int, RNG.integers(0, 4, 2 * rank)))
        sizes = [int(n) for n in RNG.integers(4, 20, rank)]
        attrs = Conv(kernel, strides, dilations, pads, groups)
        extents = [
            (n + pads[i] + pads[i + rank] - (kernel[i] - 1) * dilations[i] - 1) // strides[i] + 1
            for i, n in enumerate(sizes)
        ]
        if min(extents) >= 1:
            x, w = floats(2, groups * depth, *sizes), floats(groups * each, depth, *kernel)
            return attrs, x, w, [2, groups * each, *extents]


@pytest.mark.parametrize("threads", [1, 3])
def test_convolutions(threads: int) -> None:
    done = 0
    for _ in range(12):
        attrs, x, w, shape = drawn()
        got = quickly(attrs, F32, [x, w], threads=threads)
        if got is not None:  # several results of each channel are left to tensor expressions
            done += 1
            want = right(attrs, F32, [x, w], shape)
            # at most 80 products of normal numbers, whose sum may round by 1e-6 of its terms
            np.testing.assert_allclose(got, want, 1e-4, 1e-4, err_msg=str((attrs, x.shape)))
    assert done


@pytest.mark.parametrize("types", [(np.uint8, np.int8), (np.int8, np.int32), (np.int32, np.int32)], ids=str)
@pytest.mark.parametrize("bits", [7, 13, 17])
def test_convolutions_of_integers_are_exact(types: tuple[Any, Any], bits: int) -> None:
    """Sums are single floats while these are exact, and else double floats, which may leave 32 bits."""
    done = 0
    for _ in range(8):
        attrs, x, w, shape = drawn()
        x, w = (
            RNG.integers(-1 << bits, 1 << bits, v.shape).astype(kind)
            for v, kind in zip((x, w), types, strict=True)
        )
        got = quickly(attrs, I32, [x, w])
        if got is not None:
            done += 1
            want = right(attrs, I32, [x, w], shape)
            assert got.dtype == want.dtype and np.array_equal(got, want), (attrs, x.shape)
    assert done
    huge = np.full((1, 1, 9), -1 << 31, np.int32)
    assert quickly(Conv((2,), (1,), (1,), (0, 0), 1), I32, [huge, huge[..., :2]]) is None


def test_convolutions_that_are_left_to_tensor_expressions() -> None:
    x, w = floats(2, 3, 9), floats(4, 3, 2)
    assert quickly(Conv((2,), (1,), (1,), (2, -1), 1), F32, [x, w]) is None
    assert quickly(Conv((2,), (1,), (1,), (0, 0), 1), F32, [x[:0], w]) is None


def test_concatenation() -> None:
    parts = [floats(3, 4, 5), floats(3, 1, 5)]
    got = quickly(Concat(1), F32, parts)
    assert got is not None and np.array_equal(got, np.concatenate(parts, 1))


def test_only_memory_that_nobody_needs_is_taken() -> None:
    memory = Memory()
    values = {n: memory.empty((40,), np.dtype(np.float32)) for n in ("alone", "viewed", "held")}
    values["own"], values["view"], mine = np.zeros(40), values["viewed"][:3], values["held"]
    names = ["alone", "viewed", "held", "own", "alive", "twice", "twice"]
    values["alive"], values["twice"] = np.zeros(40), np.zeros(40)
    assert memory.ends(values, names, {*names} - {"alive"}) == [0, 3]
    assert not np.shares_memory(memory.empty((40,), mine.dtype), mine)
    address = values.pop("alone").ctypes.data
    assert memory.empty((30,), mine.dtype).ctypes.data == address


def test_an_error_of_a_thread_is_raised() -> None:
    def fail(block: int) -> None:
        raise IndexError(block)

    with pytest.raises(IndexError, match="5"):
        quick.shared(fail, [5] * 4, 2)
