"""Depthwise separable convolutions as one kernel: the results are right at odd sizes, and only suitable ones
are merged."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import jangin
from jangin.backends.llvm.module import emit_kernel
from jangin.backends.walk.parts import parts
from jangin.ir.expr import const
from jangin.ir.graph import Array
from jangin.ir.plan import Plan
from jangin.targets import NAMED

pytestmark = pytest.mark.sampled(3)

RNG = np.random.default_rng(7)


def net(
    size: tuple[int, int], channels: int, outputs: int, kernel: int = 3, stride: int = 1, *,
    batch: int | str = 1, act: bool = True, residual: bool = False, joined: bool = False, groups: int = 1,
    results: Sequence[str] = ("y",),
) -> onnx.ModelProto:  # fmt: skip
    """Make a depthwise and a pointwise convolution. `act`: the first is clipped. `residual`: r is added.
    `joined`: r is concatenated after the result."""
    constants = {
        "w": RNG.standard_normal((channels, 1, kernel, kernel)), "b": RNG.standard_normal(channels),
        "v": RNG.standard_normal((outputs, channels // groups, 1, 1)) / 4, "c": RNG.standard_normal(outputs),
        "low": np.array(0.0), "high": np.array(6.0),
    }  # fmt: skip
    pads, node = [kernel // 2] * 4, helper.make_node
    nodes = [node("Conv", ["x", "w", "b"], ["d"], strides=[stride] * 2, pads=pads, group=channels)]
    nodes += [node("Clip", ["d", "low", "high"], ["a"])] if act else []
    nodes.append(node("Conv", ["a" if act else "d", "v", "c"], ["p"], group=groups))
    if residual:
        nodes.append(node("Add", ["p", "r"], ["y"]))
    elif joined:
        nodes.append(node("Concat", ["p", "r"], ["y"], axis=1))
    else:
        nodes.append(node("Identity", ["p"], ["y"]))
    inputs = {"x": [batch, channels, *size]}
    inputs |= {"r": [batch, outputs, *(-(-s // stride) for s in size)]} if residual or joined else {}
    graph = helper.make_graph(
        nodes, "g",
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in inputs.items()],
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, None) for n in results],
        [numpy_helper.from_array(a.astype(np.float32), n) for n, a in constants.items()],
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)


def check(exe: Any, model: onnx.ModelProto, batch: int = 1) -> None:
    """Compare with float64. Some hundred f32 roundings of values of at most some units are allowed."""
    given = {}
    for value in model.graph.input:
        shape = [d.dim_value or batch for d in value.type.tensor_type.shape.dim]
        given[value.name] = np.random.default_rng(1).standard_normal(shape).astype(np.float32)
    names = [o.name for o in model.graph.output]
    for name, want in zip(names, evaluate(model, given, names), strict=True):
        np.testing.assert_allclose(exe.run(given)[name], want, rtol=1e-5, atol=3e-5)


def evaluate(model: onnx.ModelProto, given: Mapping[str, Array], names: Sequence[str]) -> list[Array]:
    operators: Mapping[str, Callable[..., Array]] = {
        "Add": np.add, "Clip": np.clip, "Concat": lambda *parts, axis: np.concatenate(parts, axis),
        "Conv": convolve, "Identity": np.copy,
    }  # fmt: skip
    env = {n.name: numpy_helper.to_array(n).astype(np.float64) for n in model.graph.initializer}
    env |= {n: a.astype(np.float64) for n, a in given.items()}
    for n in model.graph.node:
        attrs = {t.name: helper.get_attribute_value(t) for t in n.attribute}
        env[n.output[0]] = operators[n.op_type](*(env[i] for i in n.input), **attrs)
    return [env[n] for n in names]


def convolve(
    x: Array, w: Array, b: Array, group: int = 1, strides: Sequence[int] = (1, 1), pads: Sequence[int] = ()
) -> Array:
    top, left, bottom, right = pads or (0, 0, 0, 0)
    x = np.pad(x, ((0, 0), (0, 0), (top, bottom), (left, right)))
    windows = np.lib.stride_tricks.sliding_window_view(x, w.shape[2:], (2, 3))
    taps = windows[:, :, :: strides[0], :: strides[1]]
    n, channels, *size = taps.shape[:4]
    split = taps.reshape(n, group, channels // group, *size, *w.shape[2:])
    sums = np.einsum("ngchwij,gocij->ngohw", split, w.reshape(group, -1, *w.shape[1:]), optimize=True)
    return np.asarray(sums.reshape(n, -1, *size) + b[:, None, None])


def made(model: onnx.ModelProto, target: str = "x86-64-v3") -> Plan:
    return jangin.build(model, target, cache=False).plan


def templates(plan: Plan) -> list[str]:
    return [launch.template.split()[0] for launch in plan.launches]


@pytest.mark.parametrize(
    ("size", "channels", "outputs", "kernel"),
    [((28, 28), 16, 24, 3), ((57, 33), 20, 25, 3), ((29, 31), 9, 33, 5), ((60, 7), 24, 64, 5)],
)
@pytest.mark.parametrize("act", [True, False])
@pytest.mark.parametrize("residual", [True, False])
def test_is_one_kernel(
    size: tuple[int, int], channels: int, outputs: int, kernel: int, act: bool, residual: bool
) -> None:
    model = net(size, channels, outputs, kernel, batch=2, act=act, residual=residual)
    found = templates(made(model))
    assert found.count("separable") == 1 and not {"window", "contraction", "rows"} & {*found}
    check(jangin.compile(model, cache=False), model, 2)


@pytest.mark.parametrize("target", ["x86-64-v2", "x86-64-v3"])
def test_of_any_batch(target: str) -> None:
    model = net((28, 30), 16, 24, batch="batch")
    exe = jangin.compile(model, target, cache=False)
    assert "separable" in templates(exe.plan)
    check(exe, model, 1)
    check(exe, model, 3)


def test_two_threads_share_the_rows() -> None:
    model = net((56, 56), 32, 24)
    x = np.random.default_rng(0).standard_normal((1, 32, 56, 56)).astype(np.float32)
    one, two = (jangin.compile(model, threads=n, cache=False).run({"x": x})["y"] for n in (1, 2))
    np.testing.assert_array_equal(one, two)


def test_writes_a_part_of_a_concatenation() -> None:
    model = net((28, 28), 16, 24, joined=True)
    plan = made(model)
    (launch,) = (n for n in plan.launches if n.template.startswith("separable"))
    assert plan.kernels[launch.kernel].params[-1].shape[-1] == const(48)
    check(jangin.compile(model, cache=False), model)


@pytest.mark.sampled(9)
@pytest.mark.parametrize(
    "why",
    ["few rows", "a column", "strides", "few outputs", "many outputs", "groups", "depthwise is a result"],
)
def test_is_left_alone(why: str) -> None:
    size = {"few rows": (14, 40), "a column": (40, 1), "strides": (56, 56)}.get(why, (28, 28))
    results = ("y", "d") if why == "depthwise is a result" else ("y",)
    outputs = {"many outputs": 72, "few outputs": 16}.get(why, 24)
    groups = 2 if why == "groups" else 1
    stride = 2 if why == "strides" else 1
    model = net(size, 16, outputs, stride=stride, groups=groups, act=False, results=results)
    assert "separable" not in templates(made(model))
    check(jangin.compile(model, cache=False), model)


def test_the_convolutions_are_functions_of_their_own() -> None:
    """Each convolution is a function of its own, so that values that LLVM hoists out of one's loops take no
    registers in the other."""
    target = NAMED["x86-64-v3"]
    plan = made(net((28, 28), 16, 24), target.name)
    (launch,) = (n for n in plan.launches if n.template.startswith("separable"))
    names = [part.name for part in parts(plan.kernels[launch.kernel], target)]
    text = emit_kernel(plan.kernels[launch.kernel], target)
    assert len(names) > 1 and all(text.count(f'@"{name}.body"') == 2 for name in names)
