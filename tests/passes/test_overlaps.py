"""Results over operands: they are those of buffers that lie apart, and the arena is smaller."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import jangin
from jangin.ir.dtype import F32
from jangin.ir.expr import Buffer, Load, Var, const
from jangin.ir.graph import Array, CompileError
from jangin.ir.interpret import run_func, run_plan
from jangin.ir.loop import For, Func, Stmt, Store, block
from jangin.ir.overlaps import distance, distances
from jangin.ir.plan import Plan, aligned
from jangin.ir.verify_plan import verify_plan
from jangin.passes.memory.overlaps import Item, placed
from jangin.runtime.arena import peak


def of_bytes(random: np.random.Generator) -> onnx.ModelProto:
    """Return a chain of convolutions of bytes with random sizes: padded, depthwise and pointwise ones, and
    one whose input is added to its result."""
    weights, nodes = [], []

    def known(name: str, value: Array) -> str:
        weights.append(numpy_helper.from_array(value, name))
        return name

    def node(op: str, *inputs: str, **attributes: object) -> str:
        nodes.append(helper.make_node(op, inputs, [made := f"v{len(nodes)}"], **attributes))
        return made

    def in_bytes(x: str, scale: float) -> str:
        given = [known(f"{x}_scale", np.float32(scale)), known(f"{x}_zero", np.uint8(99))]
        return node("DequantizeLinear", node("QuantizeLinear", x, *given), *given)

    channels, rows, columns = int(random.integers(1, 6)), *map(int, random.integers(4, 9, 2))
    shape = [1, channels, rows, columns]
    x = in_bytes("x", 2.0**-4)
    for n in range(4):
        kind = random.choice(["depthwise", "pointwise", "whole", "added"])
        kernel = 1 if kind == "pointwise" else 3
        more = channels if kind in ("depthwise", "added") else int(random.integers(1, 13))
        groups = channels if kind == "depthwise" else 1
        w = random.integers(-128, 128, (more, channels // groups, kernel, kernel), np.int8)
        real = node("DequantizeLinear", known(f"w{n}", w), known(f"s{n}", np.float32(2.0**-9)))
        strides = [1 if kind == "added" else int(random.integers(1, 3))] * 2
        around = {"kernel_shape": [kernel] * 2, "pads": [kernel // 2] * 4, "strides": strides}
        y = node("Conv", x, real, group=groups, **around)
        y = node("Add", x, y) if kind == "added" else y
        x, channels = in_bytes(y, 2.0**-3), more
    ends = (("x", shape), (x, None))
    given, made = (helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in ends)
    graph = helper.make_graph(nodes, "of_bytes", [given], [made], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def plan_of(model: onnx.ModelProto) -> Plan:
    """Return the plan of a model whose layers run whole."""
    (part,) = jangin.emit(model, "c", "cortex-m4", name="model", ram=1 << 30).model.parts
    return part.plan


def apart(plan: Plan) -> Plan:
    """Return the plan with every buffer in memory of its own."""
    end, buffers = 0, []
    for b in plan.buffers:
        buffers.append(b if b.offset is None else replace(b, offset=end))
        end += 0 if b.offset is None else aligned(b.bytes or 0)
    return replace(plan, buffers=tuple(buffers))


def overlapping(plan: Plan) -> Mapping[tuple[str, str], int]:
    """Return the operands and results that share memory, with their distances."""
    buffers = {b.name: b for b in plan.buffers}
    found = {}
    for n in range(len(plan.launches)):
        for (operand, result), least in distances(plan, n).items():
            a, b = buffers[operand], buffers[result]
            assert a.offset is not None and b.offset is not None and a.bytes and b.bytes
            if a.offset < b.offset + b.bytes and b.offset < a.offset + a.bytes:
                found[operand, result] = least
    return found


@pytest.mark.sampled(2)
@pytest.mark.parametrize("number", range(4))
def test_results_are_those_of_buffers_apart(number: int) -> None:
    seed = int(np.random.default_rng().integers(1 << 32))
    print(f"seed {seed}")
    random = np.random.default_rng(seed)
    plan = plan_of(of_bytes(random))
    verify_plan(plan)
    (name,) = plan.inputs
    shape = [int(str(d)) for d in plan.buffer(name).shape]
    feeds = {name: random.uniform(-8, 12, shape).astype(np.float32)}
    there, here = run_plan(plan, feeds), run_plan(apart(plan), feeds)
    for output in plan.outputs:
        np.testing.assert_array_equal(there[output], here[output])


def test_a_plan_that_overlaps_too_far_is_refused() -> None:
    plan = plan_of(of_bytes(np.random.default_rng(1)))
    found = overlapping(plan)
    assert found
    (operand, result), least = next(iter(found.items()))
    start = plan.buffer(result).offset
    assert start is not None
    moved = start + aligned(least) - 64
    buffers = tuple(replace(b, offset=moved) if b.name == operand else b for b in plan.buffers)
    with pytest.raises(CompileError, match=r"overlap|offset"):
        verify_plan(replace(plan, buffers=buffers))
    shared = tuple(replace(x, grain=const(1)) for x in plan.launches)
    with pytest.raises(CompileError, match="overlap"):  # tasks that run at the same time
        verify_plan(replace(plan, launches=shared))


X, Y = (Buffer(n, F32, (const(12),)) for n in "xy")
N, M = Var("n"), Var("m")


def kernel(body: Stmt) -> Func:
    return Func("f", (X, Y), 1, (), body)


NESTS: Mapping[str, tuple[Stmt, int]] = {
    "in order": (For(N, const(12), Store(Y, (N,), Load(X, (N,)))), 4),
    "backwards": (For(N, const(12), Store(Y, (N,), Load(X, (const(11) - N,)))), 48),
    "every second": (For(N, const(6), Store(Y, (N,), Load(X, (N * 2,)))), 4),
    "spread": (For(N, const(6), Store(Y, (N * 2,), Load(X, (N,)))), 24),
    "the next two": (For(N, const(11), Store(Y, (N,), Load(X, (N,)) + Load(X, (N + 1,)))), 4),
    "the one before": (For(N, const(11), Store(Y, (N + 1,), Load(X, (N,)))), 8),
    "lanes": (
        For(N, const(3), For(M, const(4), Store(Y, (N * 4 + M,), Load(X, (N * 4 + M,))), "vector")), 16,
    ),
    "twice": (
        block(*(For(v, const(12), Store(Y, (v,), Load(X, (v,)))) for v in (N, M))), 48,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", NESTS)
def test_the_distance_of_a_nest(name: str) -> None:
    """The result is right with the operand at this distance behind it."""
    body, least = NESTS[name]
    func = kernel(body)
    assert distance(func, ["x"], "y", ()) == least
    x = np.arange(1, 13, dtype=np.float32)
    expected = np.zeros(12, np.float32)
    run_func(func, {"x": x, "y": expected}, {})
    memory = np.zeros(12 + least // 4, np.float32)
    memory[least // 4 :] = x
    run_func(func, {"x": memory[least // 4 :], "y": memory[:12]}, {})
    written = expected != 0
    np.testing.assert_array_equal(memory[:12][written], expected[written])


def test_buffers_lie_within_each_other() -> None:
    """A chain of equal buffers, each of which may lie a bit below the one before, takes little more than
    one."""
    items = [Item(f"b{n}", 640, n, n + 1) for n in range(6)]
    offsets, total = placed(items, {(f"b{n}", f"b{n + 1}"): 64 for n in range(5)})
    assert total == 640 + 5 * 64
    assert all(offsets[f"b{n}"] - offsets[f"b{n + 1}"] >= 64 for n in range(5))


def test_an_arena_smaller_than_what_lives_at_once() -> None:
    """Buffers that lie apart need as many bytes as live at one launch. Overlapping ones need fewer."""
    arena = [b for b in plan_of(of_bytes(np.random.default_rng(1))).buffers if b.offset is not None]
    total = max((b.offset or 0) + (b.bytes or 0) for b in arena)
    assert total < 0.9 * peak([(b.name, b.bytes or 0, *b.live) for b in arena])


def test_launches_that_need_less_fit_in_the_fullest() -> None:
    """The layers of MobileNet 0.25 on a Cortex-M55. With many later layers, placing buffers by size, or by
    time, was changed too seldom for the first layers."""
    sizes = [28288, 18432, 20032, 18432, 36864, 38464, 9216, 18432, 21632, 18432, 18432, 20032, 4608, 9216]
    sizes += [12544, 9216, 9216, 10816, 2304, *[4608, 8192, 4608] * 5, 4608, 6272, 1152, 2304, 6400, 2304]
    sizes += [2304, 256, *[64] * 6]
    distances = [
        128,
        1600,
        64,
        18496,
        1600,
        64,
        9280,
        3264,
        128,
        6144,
        1600,
        128,
        4672,
        3392,
        256,
        3072,
        1664,
    ]
    distances += [192, 4544, *[3648, 192, 4608] * 5, 1728, 320, 2304, 4160, 768, 2304, 64, 64]
    last = [*range(1, 43), 44, 44, 47, 47, 47, 47]
    items = [Item(f"b{n}", size, min(n, 46), e) for n, (size, e) in enumerate(zip(sizes, last, strict=True))]
    over = {(f"b{n}", f"b{n + 1}"): d for n, d in enumerate(distances)}
    offsets, total = placed(items, over)
    assert total <= 38784  # the fifth result and the fourth need 38,592
    for n, d in enumerate(distances):
        a, b = (offsets[f"b{m}"] for m in (n, n + 1))
        assert a >= b + min(d, sizes[n + 1]) or b >= a + sizes[n]
