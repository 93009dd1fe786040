"""A launch is shared by threads only if its work, for the sizes of a run, is worth another thread."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import jangin
from jangin.ir.plan import Plan
from jangin.runtime.sizes import Evaluator


def layers(widths: tuple[int, ...], rows: int | str = "rows") -> onnx.ModelProto:
    """Return a model of fully connected layers, by default for any number of rows."""
    random, nodes, weights, last = np.random.default_rng(0), [], [], "x"
    for n, shape in enumerate(pairwise(widths)):
        weights.append(numpy_helper.from_array(random.standard_normal(shape, np.float32), f"w{n}"))
        nodes += [
            helper.make_node("MatMul", [last, f"w{n}"], [f"m{n}"]),
            helper.make_node("Relu", [f"m{n}"], [f"r{n}"]),
        ]
        last = f"r{n}"
    ends = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, [rows, width])
        for name, width in (("x", widths[0]), (last, widths[-1]))
    ]
    graph = helper.make_graph(nodes, "layers", ends[:1], ends[1:], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


def shared(plan: Plan, rows: int) -> list[bool]:
    """Return, for each launch of a plan, whether threads share it in a run of so many rows."""
    value = Evaluator({var: rows for var, _ in plan.symbols})
    return [value(x.tasks) > value(x.grain) > 0 for x in plan.launches]


@pytest.mark.parametrize("target", ["x86-64-v3", "x86-64-v4"])
def test_a_small_batch_of_a_small_model_takes_one_thread(target: str) -> None:
    widths = (64, 128, 64, 64)
    plan = jangin.build(layers(widths), target=target, threads=2, cache=False).plan
    assert not any(shared(plan, 1))
    assert all(shared(plan, 4096))


@pytest.mark.parametrize("target", ["x86-64-v3", "x86-64-v4"])
@pytest.mark.parametrize("widths", [(128, 256), (64, 128, 64)], ids=str)
def test_a_single_row_of_a_small_model_takes_one_thread(widths: tuple[int, ...], target: str) -> None:
    """The sizes are known, and the model's weights stay in the L2 cache."""
    plan = jangin.build(layers(widths, 1), target=target, threads=2, cache=False).plan
    assert not any(shared(plan, 1))
    many = jangin.build(layers(widths, 4096), target=target, threads=2, cache=False).plan
    assert all(shared(many, 4096))


def test_large_weights_are_read_by_all_threads_for_one_row() -> None:
    for rows in ("rows", 1):
        plan = jangin.build(layers((2048, 2048, 2048), rows), threads=2, cache=False).plan
        assert all(shared(plan, 1))
