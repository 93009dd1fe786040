"""LSTM, GRU and RNN in machine code, with each round shared among threads, against plain float64 loops."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from against import check
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from one_node import Array, f32, lowered, model

from jangin.compiler.build import build
from jangin.compiler.cases import register_tile
from jangin.compiler.interpreted import interpreted
from jangin.compiler.kernels import schedule_kernels
from jangin.compiler.pipeline import optimize
from jangin.compiler.plans import make_plan
from jangin.frontends.lower import lower
from jangin.frontends.table import load
from jangin.ir.core import Kernel
from jangin.ir.expr import const
from jangin.ir.graph import Graph, Node
from jangin.ops.register_tiles import ANY_MACHINE, BATCHED, FEWEST_BLOCKS, RegisterTile, Tile
from jangin.options import Options
from jangin.runtime.executable import Executable
from jangin.targets import NAMED, resolve

GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
Seeds = st.integers(0, 2**32 - 1)


def sigmoid(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))


def lstm_step(
    x: Array, r: Array, rb: Array, h: Array, c: Array, p: Array, how: dict[str, Any]
) -> tuple[Array, ...]:
    i, o, f, g = np.split(x + h @ r.T + rb, 4, 1)
    pi, po, pf = np.split(p, 3)
    clipped = clip(how)
    enter = sigmoid(clipped(i + pi * c))
    keep = 1 - enter if how.get("input_forget") else sigmoid(clipped(f + pf * c))
    cell = keep * c + enter * np.tanh(clipped(g))
    return sigmoid(clipped(o + po * cell)) * np.tanh(clipped(cell)), cell


def gru_step(
    x: Array, r: Array, rb: Array, h: Array, c: Array, p: Array, how: dict[str, Any]
) -> tuple[Array, ...]:
    (xz, xr, xh), (rz, rr, rh), (bz, br, bh) = np.split(x, 3, 1), np.split(r, 3), np.split(rb, 3)
    clipped = clip(how)
    z, reset = sigmoid(clipped(xz + h @ rz.T + bz)), sigmoid(clipped(xr + h @ rr.T + br))
    after = how.get("linear_before_reset")
    product = reset * (h @ rh.T + bh) if after else (reset * h) @ rh.T + bh
    return (1 - z) * np.tanh(clipped(xh + product)) + z * h, c


def rnn_step(
    x: Array, r: Array, rb: Array, h: Array, c: Array, p: Array, how: dict[str, Any]
) -> tuple[Array, ...]:
    return np.tanh(clip(how)(x + h @ r.T + rb)), c


STEPS: dict[str, Callable[..., tuple[Array, ...]]] = {"LSTM": lstm_step, "GRU": gru_step, "RNN": rnn_step}


def clip(how: dict[str, Any]) -> Callable[[Array], Array]:
    bound = how.get("clip", np.inf)
    return lambda v: np.clip(v, -bound, bound)


def reference(name: str, given: Sequence[Array | None], how: dict[str, Any]) -> list[Array]:
    """Return Y, Y_h (and Y_c) in float64, sequence by sequence."""
    x, w, r, bias, lengths, h0, c0, p = [None if a is None else a.astype(np.float64) for a in given]
    assert x is not None and w is not None and r is not None
    (steps, batch, _), (directions, _, hidden) = x.shape, r.shape
    y, last = np.zeros((steps, directions, batch, hidden)), np.zeros((2, directions, batch, hidden))
    for d in range(directions):
        back = how["direction"] == "reverse" or d == 1
        b = np.zeros((2, w.shape[1])) if bias is None else bias[d].reshape(2, -1)
        peep = np.zeros(3 * hidden) if p is None else p[d]
        for n in range(batch):
            h, c = (np.zeros((1, hidden)) if s is None else s[d, n : n + 1] for s in (h0, c0))
            length = steps if lengths is None else int(lengths[n])
            for t in reversed(range(length)) if back else range(length):
                h, c = STEPS[name](x[t, n : n + 1] @ w[d].T + b[0], r[d], b[1], h, c, peep, how)
                y[t, d, n] = h
            last[0, d, n], last[1, d, n] = h, c
    return [y, *(last if name == "LSTM" else last[:1])]


def shared(graph: Graph, threads: int) -> Executable:
    """Compile the graph. Every launch is shared among the threads, however small it is."""
    options = Options(resolve(), verify=True)
    graph = optimize(graph, options)
    plan = make_plan(graph, schedule_kernels(graph, options), options)
    launches = tuple(replace(x, grain=const(1)) for x in plan.launches)
    return Executable(build(replace(plan, launches=launches), options.target), threads)


def drawn(name: str, rng: np.random.Generator) -> tuple[list[Array | None], dict[str, Any]]:
    """Draw a node's inputs and attributes. Any optional ones may be left out."""
    direction = str(rng.choice(["forward", "reverse", "bidirectional"]))
    d, gates = 1 + (direction == "bidirectional"), GATES[name]
    steps, batch, size, hidden = (int(rng.integers(1, n)) for n in (6, 8, 6, 40))

    def floats(*shape: int) -> Array:
        return (rng.standard_normal(shape) * 0.5).astype(np.float32)

    def maybe(value: Array, wanted: bool = True) -> Array | None:
        return value if wanted and rng.random() < 0.5 else None

    inputs = [
        floats(steps, batch, size), floats(d, gates * hidden, size), floats(d, gates * hidden, hidden),
        maybe(floats(d, 2 * gates * hidden)), maybe(rng.integers(0, steps + 1, batch).astype(np.int32)),
        maybe(floats(d, batch, hidden)), maybe(floats(d, batch, hidden), name == "LSTM"),
        maybe(floats(d, 3 * hidden), name == "LSTM"),
    ]  # fmt: skip
    how: dict[str, Any] = {"direction": direction, "hidden_size": hidden}
    if rng.random() < 0.3:
        how["clip"] = 0.4
    if name == "LSTM":
        how["input_forget"] = int(rng.random() < 0.3)
    if name == "GRU":
        how["linear_before_reset"] = int(rng.random() < 0.5)
    return inputs, how


@pytest.mark.sampled(3)
@settings(max_examples=16, derandomize=True, phases=[Phase.explicit, Phase.generate])
@given(st.sampled_from(list(GATES)), Seeds, st.integers(1, 3), st.booleans(), st.booleans())
def test_machine_code(name: str, seed: int, threads: int, symbolic: bool, fixed: bool) -> None:
    inputs, how = drawn(name, np.random.default_rng(seed))
    constants = {n: a for n in (1, 2, 3, 7) if fixed and (a := inputs[n]) is not None}
    dims: dict[int, list[int | str]] = {}
    if symbolic:
        steps = {4: ["b"], 5: [inputs[1].shape[0], "b", how["hidden_size"]]}
        dims = {0: ["t", "b", inputs[0].shape[2]], **steps, 6: steps[5]}
    used = inputs if name == "LSTM" else inputs[:6]
    outputs = 3 if name == "LSTM" else 2
    proto = model(name, used, 14, constants=constants, outputs=outputs, dims=dims, **how)
    exe = shared(lower(load(proto)), threads)
    feeds = {f"in{n}": a for n, a in enumerate(used) if a is not None and n not in constants}
    for got, want in zip(exe.run(feeds).values(), reference(name, inputs, how), strict=True):
        np.testing.assert_allclose(got, want, rtol=0, atol=3e-6)


@given(st.sampled_from(list(GATES)), Seeds)
def test_numpy_computes_a_layer_before_it_is_compiled(name: str, seed: int) -> None:
    inputs, how = drawn(name, np.random.default_rng(seed))
    used, outputs = (inputs, 3) if name == "LSTM" else (inputs[:6], 2)
    exe = interpreted(model(name, used, 14, outputs=outputs, **how), Options(), lambda: False)
    made = exe.run({f"in{n}": a for n, a in enumerate(used) if a is not None})
    for got, want in zip(made.values(), reference(name, inputs, how), strict=True):
        np.testing.assert_allclose(got, want, rtol=0, atol=3e-6)


@pytest.mark.sampled(4)
@pytest.mark.parametrize(("name", "gates"), GATES.items())
@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize("short", [False, True])
def test_against_onnxruntime(name: str, gates: int, direction: str, short: bool) -> None:
    d, hidden = (2 if direction == "bidirectional" else 1), 20
    constants = {
        1: f32(d, gates * hidden, 4, seed=1) * 0.3, 2: f32(d, gates * hidden, hidden, seed=2) * 0.3,
        3: f32(d, 2 * gates * hidden, seed=3),
    }  # fmt: skip
    lengths = np.array([5, 2, 3], np.int32) if short else None
    inputs = [f32(5, 3, 4), None, None, None, lengths, f32(d, 3, hidden, seed=9) * 0.5]
    dims = {0: ["t", "b", 4], 5: [d, "b", hidden]} | ({4: ["b"]} if short else {})
    how = {"linear_before_reset": int(short)} if name == "GRU" else {}
    check(
        name, inputs, 14, hidden_size=hidden, direction=direction, outputs=3 if name == "LSTM" else 2,
        constants=constants, dims=dims, tolerance=1e-4, **how,
    )  # fmt: skip


def test_lstm_with_everything() -> None:
    constants = {1: f32(1, 80, 4, seed=1) * 0.3, 2: f32(1, 80, 20, seed=2) * 0.3, 7: f32(1, 60, seed=4)}
    names = ["HardSigmoid", "Softsign", "Relu"]
    check(
        "LSTM", [f32(5, 3, 4)], 14, hidden_size=20, outputs=3, clip=0.5, activations=names,
        activation_alpha=[0.3], activation_beta=[0.4], constants=constants, dims={}, tolerance=1e-4,
    )  # fmt: skip


@given(st.integers(1, 600), st.integers(1, 4), st.integers(1, 40), st.sampled_from([4, 8]))
def test_tiles_fit_the_registers(hidden: int, gates: int, batch: int, element: int) -> None:
    """Register tiles fit the registers. The tiles of a batch have about the same size, so that little is
    computed twice."""
    tile = Tile.fit(hidden, gates, const(batch), element, ANY_MACHINE)
    vectors = tile.lanes * element // 32
    assert tile.rows * gates * vectors <= ANY_MACHINE.accumulators and 1 <= tile.rows <= min(
        batch, ANY_MACHINE.rows
    )
    assert -(-batch // tile.rows) * tile.rows - batch < -(-batch // tile.rows)


@given(st.integers(1, 600), st.integers(1, 4), st.integers(BATCHED, 70), st.sampled_from([4, 8]))
def test_tiles_of_batches_fit_the_registers(hidden: int, gates: int, batch: int, element: int) -> None:
    """The tiles of a large batch are of whole vectors, and overlap little. Several blocks of units are shared
    among threads."""
    most = RegisterTile(24, 64)
    tile = Tile.fit(hidden, gates, const(batch), element, replace(ANY_MACHINE, batches=most))
    vectors = tile.lanes * element // most.bytes
    assert tile.rows * gates * vectors <= most.accumulators
    assert -(-batch // tile.rows) * tile.rows - batch < -(-batch // tile.rows)
    assert vectors == 1 or tile.lanes * FEWEST_BLOCKS <= hidden


@pytest.mark.parametrize("target", ["cortex-m4", "riscv32imc", "x86-64-v2"])
@pytest.mark.parametrize("batch", [1, BATCHED])
def test_tiles_have_lanes(target: str, batch: int) -> None:
    """A number of 8 bytes is wider than the vectors of a processor that has none but words."""
    tile = Tile.fit(20, 4, const(batch), 8, register_tile(NAMED[target].machine))
    assert tile.lanes >= 1


def test_tiles_of_batches_keep_multiply_adds_busy() -> None:
    """Tiles of 6 rows made 18 rows of a batch of 16. Half vectors took twice as many multiply-adds."""
    tile = replace(ANY_MACHINE, batches=RegisterTile(24, 64))
    assert Tile.fit(512, 4, const(16), 4, tile) == Tile(4, 16)
    assert Tile.fit(512, 1, const(16), 4, tile) == Tile(8, 32)


def test_inputs_are_one_product() -> None:
    """One product takes the inputs of all steps. Constant weights need no work at run time."""
    constants = {1: f32(1, 80, 4), 2: f32(1, 80, 20), 3: f32(1, 160)}
    graph = lowered("LSTM", [f32(50, 1, 4)], 14, hidden_size=20, constants=constants)
    graph = optimize(graph, Options(resolve()))

    def anchors(node: Node) -> list[str]:
        return [n.op for n in node.of(Kernel).body.nodes if n.op in ("matmul", "loop_nest")]

    assert [a for n in graph.nodes if n.op == "kernel" for a in anchors(n)] == ["matmul", "loop_nest"]
    assert all(len(n.of(Kernel).body.nodes) <= 3 for n in graph.nodes if n.op == "kernel")
