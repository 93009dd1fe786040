"""Random nets through layout, fusion and tensor expressions: the results never change."""

from __future__ import annotations

import random

import numpy as np
import pytest
from nets import TARGET, N, Net, feeds

from jangin.ir.core import Kernel
from jangin.ir.expr import call
from jangin.ir.graph import Graph
from jangin.ir.interpret import bind_symbols, evaluate_stage
from jangin.ops.interpret import run_graph
from jangin.ops.values import Tensor
from jangin.passes.fusion.fuse import fuse
from jangin.passes.fusion.stages import stages
from jangin.passes.layouts.layout import layout

C, H, W = 4, 3, 2


def step(t: Net, r: random.Random, pool: list[Tensor]) -> Tensor:
    """Add one more value of shape [N, C, H, W], made from those in the pool."""
    x, y = r.choice(pool[-4:]), r.choice(pool)
    b = t.b
    choices = [
        lambda: t.conv(x, C, r.choice([1, 3]), groups=r.choice([1, C])),
        lambda: t.bias(x),
        lambda: t.silu(x),
        lambda: t.add(x, y),
        lambda: t.mul(x, b.reduce("max", y, r.choice([(2, 3), (1,), (3,)]), True)),
        lambda: t.add(x, b.reshape(b.reduce("sum", y, (2, 3)), [N, C, 1, 1])),
        lambda: b.slice(b.concat([x, y], 1), [0, 1, 0, 0], [N, C, H, W], [1, r.choice([1, 2]), 1, 1]),
        lambda: b.slice(b.pad(x, [0, 1, 0, 1] * 2), [0, 2, 0, 0], [N, C, H, W], [1] * 4),
        lambda: b.softmax(x, r.choice([1, 2, 3])),
        lambda: b.normalize(x, r.choice([(1,), (2, 3), (1, 2, 3)]), 1e-3),
        lambda: b.transpose(t.relu(b.transpose(x, (0, 2, 3, 1))), (0, 3, 1, 2)),
        lambda: b.reshape(b.transpose(b.reshape(x, [N, 2, 2, H, W]), (0, 2, 1, 3, 4)), [N, C, H, W]),
        lambda: b.transpose(b.reshape(b.transpose(x, (0, 1, 3, 2)), [N, C, W, H]), (0, 1, 3, 2)),
        lambda: b.matmul(b.matmul(x, b.transpose(y, (0, 1, 3, 2))), x),
        lambda: b.reshape(t.linear(b.reshape(x, [N, C * H * W]), C * H * W), [N, C, H, W]),
        lambda: b.gather(x, b.const(np.array([3, 0, 0, -3], np.int64)), 1),
        lambda: b.expand(b.slice(x, [0, 1, 0, 0], [N, 1, H, W], [1] * 4), [N, C, H, W]),
        lambda: t.pool(b.pad(b.map(lambda v: call("tanh", v), x), [0, 0, 1, 1] * 2, value=-9), 3, 1),
        lambda: b.compute(
            x.dtype, x.shape, [x, y], lambda z, n, c, i, j: z[0][n, c, i, j] - z[1][n, c, i, 0]
        ),
    ]
    return r.choice(choices)()


def net(seed: int) -> Graph:
    t, r = Net(seed), random.Random(seed)
    pool = [t.input("x", N, C, H, W)]
    for _ in range(14):
        pool.append(step(t, r, pool))
    return t.done(pool[-1], r.choice(pool))


def by_stages(graph: Graph, x: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return the outputs of a fused graph. Each kernel runs as tensor expressions."""
    symbols = bind_symbols([(i, graph.shape(i), x[i].shape) for i in graph.inputs], graph.symbols)
    values = {**graph.constants, **x}
    for node in graph.nodes:
        if node.op == "kernel":
            for stage in stages(node)[0]:
                values[stage.out.name] = evaluate_stage(stage, values, symbols)
        else:
            alone = Graph("alias", node.inputs, node.outputs, (node,), {}, graph.values)
            values |= run_graph(alone, values, symbols)
    return {n: values[n] for n in graph.outputs}


@pytest.mark.sampled(4)
@pytest.mark.parametrize("seed", range(40))
def test_random_net(seed: int) -> None:
    graph = net(seed)
    x = feeds(graph)
    want = run_graph(graph, x)
    turned = layout(graph, TARGET)
    fused = fuse(turned, TARGET)
    assert sum(len(k.of(Kernel).body.nodes) for k in fused.nodes if k.op == "kernel") + sum(
        k.op == "reshape" for k in fused.nodes
    ) == len(turned.nodes)
    for got in (run_graph(turned, x), run_graph(fused, x), by_stages(fused, x)):
        for name, value in want.items():
            assert graph.shape(name) == fused.shape(name)
            np.testing.assert_allclose(got[name], value, rtol=1e-3, atol=1e-3 * np.abs(value).max())
