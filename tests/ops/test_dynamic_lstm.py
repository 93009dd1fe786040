"""DynamicQuantizeLSTM as ONNX Runtime computes it on one thread: inputs and states are rounded to 8 bits, and
products are of integers.

A state that differs in its last bit may be rounded to another level. This is no error of the step that gave
it. So each step is compared with a reference step from the states that the same run gave before. Both have
the same levels, and only the roundings of gates differ."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from one_node import Array, model
from test_recurrent import shared, sigmoid

from jangin.compiler.interpreted import interpreted
from jangin.compiler.pipeline import plan_model
from jangin.frontends.lower import lower
from jangin.frontends.onnx.writer import written
from jangin.frontends.table import load
from jangin.ops.interpret import run_graph
from jangin.options import Options
from jangin.targets import resolve

CLOSE = 3e-6
"""The largest difference. Gates are functions of sums of some ten float32 products near 1, and states are
below 1."""
WEIGHTS = ["w_scale", "w_zero", "r_scale", "r_zero"]
NAMES = ["x", "w", "r", "bias", "lengths", "h", "c", "peepholes", *WEIGHTS]


@dataclass
class Case:
    """A node's inputs by name, and its attributes."""

    inputs: dict[str, Array]
    how: dict[str, Any] = field(default_factory=dict)

    def model(self, fixed: bool = True, symbolic: bool = False) -> onnx.ModelProto:
        given = [self.inputs.get(n) for n in NAMES]
        kept = ["w", "r", *WEIGHTS] if fixed else []
        constants = {NAMES.index(n): self.inputs[n] for n in kept}
        directions, batch = self.inputs["w"].shape[0], "n" if symbolic else self.inputs["x"].shape[1]
        states = [directions, batch, self.how["hidden_size"]]
        dims = {0: ["t", batch, self.inputs["x"].shape[2]], 4: [batch], 5: states, 6: states}
        return model(
            "DynamicQuantizeLSTM", given, 17, constants=constants, outputs=3, domain="com.microsoft",
            dims=dims if symbolic else None, **self.how,
        )  # fmt: skip

    def feeds(self, proto: onnx.ModelProto) -> dict[str, Array]:
        kept = {i.name for i in proto.graph.input}
        return {n: a for i, name in enumerate(NAMES) if (n := f"in{i}") in kept for a in [self.inputs[name]]}


def drawn(rng: np.random.Generator, dtype: str, most: tuple[int, ...] = (8, 6, 20, 70)) -> Case:
    """Draw a node. Weights of int8 are at most 63, because on AVX2 without VNNI ONNX Runtime clamps sums of
    two products."""
    direction = str(rng.choice(["forward", "reverse", "bidirectional"]))
    d = 1 + (direction == "bidirectional")
    steps, batch, size, hidden = (int(rng.integers(1, n)) for n in most)

    def floats(*shape: int) -> Array:
        return (rng.standard_normal(shape) * 0.3).astype(np.float32)

    low, high = (-63, 64) if dtype == "int8" else (0, 256)
    by_column = rng.random() < 0.5
    inputs = {"x": floats(steps, batch, size)}
    for name, rows in (("w", size), ("r", hidden)):
        inputs[name] = rng.integers(low, high, (d, rows, 4 * hidden)).astype(dtype)
        shape = (d, 4 * hidden) if by_column else (d,)
        inputs[f"{name}_scale"] = ((0.5 + rng.random(shape)) / 60 / np.sqrt(rows)).astype(np.float32)
        zero = 0 if dtype == "int8" and by_column else int(rng.integers(-9, 10))
        inputs[f"{name}_zero"] = np.full(shape, zero + 128 * (dtype == "uint8"), dtype)
    more = {
        "bias": floats(d, 8 * hidden), "lengths": rng.integers(1, steps + 1, batch).astype(np.int32),
        "h": floats(d, batch, hidden), "c": floats(d, batch, hidden), "peepholes": floats(d, 3 * hidden),
    }  # fmt: skip
    inputs |= {n: a for n, a in more.items() if rng.random() < 0.5}
    how = {"direction": direction, "hidden_size": hidden, "input_forget": int(rng.random() < 0.3)}
    if rng.random() < 0.3:
        how["clip"] = 0.4
    if rng.random() < 0.3:
        how["activations"] = ["Sigmoid", "Tanh", "Sigmoid"] * d
    return Case(inputs, how)


def levels(rows: Array) -> tuple[Array, np.float32]:
    """Quantize float32 numbers to 8 bits, and return them less the zero point, with their scale."""
    low, high = np.minimum(rows.min(), np.float32(0)), np.maximum(rows.max(), np.float32(0))
    scale = (high - low) / np.float32(255) if high > low else np.float32(1)
    zero = np.rint(np.clip(-low / scale, 0, 255))
    return (np.clip(np.rint(rows / scale) + zero, 0, 255) - zero).astype(np.int64), scale


def product(rows: Array, name: str, case: Case, d: int) -> Array:
    inputs, (whole, scale) = case.inputs, levels(rows)
    weights = inputs[name][d].astype(np.int64) - inputs[f"{name}_zero"][d].astype(np.int64)
    return (whole @ weights) * (scale * inputs[f"{name}_scale"][d]).astype(np.float64)


def step(sums: Array, c: Array, case: Case, d: int) -> tuple[Array, Array]:
    """Return the next h and c. The cell is never clipped."""
    squash = sigmoid if "activations" in case.how else np.tanh
    bound = case.how.get("clip", np.inf)
    seen = (
        np.split(case.inputs["peepholes"][d].astype(np.float64), 3) if "peepholes" in case.inputs else [0] * 3
    )
    i, o, f, g = np.split(sums, 4, 1)

    def gate(v: Array) -> Array:
        return sigmoid(np.clip(v, -bound, bound))

    enter = gate(i + seen[0] * c)
    keep = 1 - enter if case.how.get("input_forget") else gate(f + seen[2] * c)
    cell = keep * c + enter * np.tanh(np.clip(g, -bound, bound))
    return gate(o + seen[1] * cell) * squash(cell), cell


def errors(case: Case, found: Mapping[str, Array] | list[Array]) -> dict[str, float]:
    """Return each result's difference from float64. Every step of the reference starts at the found
    states."""
    y, last_h, last_c = found.values() if isinstance(found, Mapping) else found
    (steps, batch, _), hidden, off = case.inputs["x"].shape, case.how["hidden_size"], [0.0] * 3
    lengths = case.inputs.get("lengths", np.full(batch, steps))
    rows = np.arange(batch)
    for d in range(len(case.inputs["w"])):
        backward = case.how["direction"] == "reverse" or d == 1
        x = case.inputs["x"][: lengths.max()]
        sums = product(x.reshape(-1, x.shape[2]), "w", case, d).reshape(len(x), batch, -1)
        if "bias" in case.inputs:
            sums = sums + case.inputs["bias"][d].astype(np.float64).reshape(2, -1).sum(0)
        h, c = (case.inputs.get(n, np.zeros((d + 1, batch, hidden), np.float32))[d] for n in "hc")
        c = c.astype(np.float64)
        for s in range(lengths.max()):
            at, live = np.where(backward & (s < lengths), lengths - 1 - s, s), s < lengths
            new, cell = step(sums[at, rows] + product(h, "r", case, d), c, case, d)
            c = np.where(live[:, None], cell, c)
            off[0] = max(off[0], float(np.abs(np.where(live[:, None], new, 0) - y[at, d, rows]).max()))
            h = y[at, d, rows]
        assert not y[lengths.max() :, d].any()
        ends = np.zeros_like(lengths) if backward else lengths - 1
        off[1] = max(off[1], float(np.abs(last_h[d] - y[ends, d, rows]).max()))
        off[2] = max(off[2], float(np.abs(last_c[d] - c).max()))
    return dict(zip(("y", "h", "c"), off, strict=True))


def by_onnxruntime(proto: onnx.ModelProto, feeds: dict[str, Array]) -> list[Array]:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    proto.ir_version = 8
    session = onnxruntime.InferenceSession(proto.SerializeToString(), options)
    return [np.asarray(a) for a in session.run(None, feeds)]


@pytest.mark.sampled(3)
@settings(max_examples=8, derandomize=True, phases=[Phase.explicit, Phase.generate])
@given(
    st.integers(0, 1 << 32),
    st.sampled_from(["int8", "uint8"]),
    st.integers(1, 3),
    st.booleans(),
    st.booleans(),
)
def test_each_step_is_onnxruntimes(seed: int, dtype: str, threads: int, symbolic: bool, fixed: bool) -> None:
    case = drawn(np.random.default_rng(seed), dtype)
    proto = case.model(fixed, symbolic)
    feeds = case.feeds(proto)
    for engine, found in (
        ("ONNX Runtime", by_onnxruntime(proto, feeds)),
        ("Jangin", shared(lower(load(proto)), threads).run(feeds)),
        ("Jangin's NumPy", interpreted(proto, Options(), lambda: False).run(feeds)),
    ):
        off = errors(case, found)
        assert max(off.values()) < CLOSE, f"{engine}, drawn({seed}, {dtype}): {off}, {case.how}"


def test_the_interpreter_agrees() -> None:
    case = drawn(np.random.default_rng(7), "uint8", (4, 4, 6, 9))
    graph = lower(load(case.model()))
    assert max(errors(case, run_graph(graph, case.feeds(case.model()))).values()) < CLOSE


@pytest.mark.parametrize(("seed", "dtype"), [(0, "int8"), (3, "uint8"), (5, "int8"), (6, "uint8")])
def test_it_is_written_as_itself(seed: int, dtype: str) -> None:
    """The node is written for ONNX Runtime with its clip, functions and zero points."""
    case = drawn(np.random.default_rng(seed), dtype)
    whole = lower(load(case.model()), whole=True)
    made = onnx.load_from_string(written(whole))
    assert [n.op_type for n in made.graph.node if n.domain] == ["DynamicQuantizeLSTM"]
    assert max(errors(case, by_onnxruntime(made, case.feeds(made))).values()) < CLOSE


@pytest.mark.parametrize("target", ["x86-64-v3", "x86-64-v4-vnni", "neoverse-n1", "cortex-a53", "riscv64"])
def test_weights_stay_bytes(target: str) -> None:
    """Weights of the state stay bytes, because a step's cost is to read all of them."""
    case = drawn(np.random.default_rng(7), "int8")
    rows = 64
    case.how |= {"hidden_size": rows, "direction": "forward"}
    for name, shape in (("w", (1, 8, 4 * rows)), ("r", (1, rows, 4 * rows))):
        case.inputs[name] = np.ones(shape, np.int8)
        case.inputs |= {f"{name}_scale": np.full(1, 0.01, np.float32), f"{name}_zero": np.zeros(1, np.int8)}
    case.inputs = {n: a for n, a in case.inputs.items() if n[0] in "wr"} | {
        "x": np.ones((3, 1, 8), np.float32)
    }
    (plan,) = plan_model(case.model(), Options(resolve(target))).plans
    assert max(a.nbytes for a in plan.constants.values()) == case.inputs["r"].nbytes
