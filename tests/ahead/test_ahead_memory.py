"""Buffers whose positions are expressions of the sizes never overlap while both are needed."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from jangin.ahead.memory import buffer_bytes, memory_of, typical_sizes
from jangin.compiler.pipeline import plan_model
from jangin.ir.expr import const
from jangin.ir.plan import ALIGN, Plan, aligned
from jangin.options import Options
from jangin.runtime.arena import peak
from jangin.runtime.sizes import Evaluator
from jangin.targets import resolve


def crossing(seed: int) -> onnx.ModelProto:
    """Products and sums of tensors of the sizes a, b and a + b (by concatenation). Each is read again at
    random."""
    rng = np.random.default_rng(seed)
    values, nodes, weights = {"x": "a", "z": "b"}, [], []
    for n in range(14):
        width = numpy_helper.from_array(rng.standard_normal((8, 8)).astype(np.float32), f"w{n}")
        weights.append(width)
        name = str(rng.choice([*values]))
        if rng.random() < 0.3:
            other = str(rng.choice([*values]))
            nodes.append(helper.make_node("Concat", [name, other], [f"j{n}"], axis=0))
            nodes.append(helper.make_node("MatMul", [f"j{n}", f"w{n}"], [f"v{n}"]))
            values[f"v{n}"] = f"{values[name]}+{values[other]}"
        else:
            nodes.append(helper.make_node("MatMul", [name, f"w{n}"], [f"p{n}"]))
            nodes.append(helper.make_node("Softmax", [f"p{n}"], [f"v{n}"]))
            values[f"v{n}"] = values[name]
    nodes.append(helper.make_node("Concat", [*values], ["y"], axis=0))
    inputs = [
        helper.make_tensor_value_info(n, TensorProto.FLOAT, [s, 8]) for n, s in (("x", "a"), ("z", "b"))
    ]
    graph = helper.make_graph(nodes, "g", inputs, [helper.make_empty_tensor_value_info("y")], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def plan_of(seed: int, **shapes: int) -> Plan:
    options = Options(resolve("x86-64-v3"), shapes)
    (plan,) = plan_model(crossing(seed), options).plans
    return plan


def placed(plan: Plan, sizes: dict[str, int]) -> tuple[int, int]:
    """Return the bytes of the arena, and the fewest that any layout needs. Buffers are checked for
    overlaps."""
    memory = memory_of(plan)
    values = {v: sizes[v.name] for v, _ in plan.symbols}
    for var, e in memory.steps:
        values[var] = Evaluator(values)(e)
    value = Evaluator(values)
    arena = value(memory.arena)
    items = []
    for b in plan.buffers:
        if b.kind == "arena":
            at, size = value(memory.offsets[b.name]), value(buffer_bytes(b))
            assert at % ALIGN == 0 and at >= 0 and at + size <= arena, (b.name, sizes)
            items.append((b.name, at, size, b.live))
    for i, (name, at, size, live) in enumerate(items):
        for other, start, length, life in items[:i]:
            alive = live[0] <= life[1] and life[0] <= live[1]
            apart = at + size <= start or start + length <= at or not size or not length
            assert apart or not alive, (name, other, sizes)
    return arena, peak([(name, size, *live) for name, _, size, live in items])


@pytest.mark.parametrize("scratch", [0, 100])
@pytest.mark.parametrize("size", [5, 16])
def test_scratch_memory_begins_at_a_whole_alignment(size: int, scratch: int) -> None:
    """It follows the arena. A Cortex-M4 faults if it loads two words from an odd address at once."""
    plan = plan_of(0, a=1, b=3)
    smaller = [replace(b, shape=(const(size),)) if b.kind == "arena" else b for b in plan.buffers]
    launches = tuple(replace(launch, scratch=const(scratch)) for launch in plan.launches)
    memory = memory_of(replace(plan, buffers=tuple(smaller), launches=launches))
    end = max((b.offset or 0) + 4 * size for b in smaller if b.kind == "arena")
    assert (end % ALIGN > 0) == (size == 5)
    assert memory.arena == const(aligned(end) if scratch else end)
    assert Evaluator({})(memory.stride) == aligned(scratch)


@pytest.mark.parametrize("seed", range(4))
def test_no_two_overlap_for_any_sizes(seed: int) -> None:
    plan = plan_of(seed)
    assert len([b for b in plan.buffers if b.kind == "arena"]) > 5
    rng = random.Random(seed)
    for _ in range(20):
        sizes = {v.name: rng.choice([1, 2, 17, 64, 300, 5000]) for v, _ in plan.symbols}
        arena, least = placed(plan, sizes)
        assert least <= arena
    typical = {v.name: n for v, n in typical_sizes(plan).items()}
    arena, least = placed(plan, typical)
    assert arena <= 1.25 * least, "for the sizes that the order was chosen by, it is close to the least"


def test_known_sizes_keep_the_plans_places() -> None:
    plan = plan_of(0, a=5, b=9)
    memory = memory_of(plan)
    assert not memory.steps
    places = {b.name: b.offset for b in plan.buffers if b.kind == "arena"}
    assert {n: int(str(e)) for n, e in memory.offsets.items()} == places
    placed(plan, {})
