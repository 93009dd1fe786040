"""Random operators give, for a seed, the numbers of NumPy's RandomState, with their distributions' moments.
Optimizers take right steps."""

from __future__ import annotations

import numpy as np
import pytest
from one_node import Array, lowered, model, run

import jangin


def compiled(op: str, inputs: list[Array | None], opset: int = 22, **settings: object) -> tuple[Array, ...]:
    exe = jangin.compile(model(op, inputs, opset, **settings), cache=False)  # type: ignore[arg-type]
    out = exe(
        *[a for i, a in enumerate(inputs) if a is not None and f"in{i}" in {s.name for s in exe.inputs}]
    )
    return out if isinstance(out, tuple) else (out,)


@pytest.mark.parametrize("seed", [0, 7, 4294967295])
def test_a_seed_gives_numpys_numbers(seed: int) -> None:
    want = np.random.RandomState(seed).random_sample((40, 17)) * 3 - 1
    (out,) = compiled("RandomUniform", [], shape=[40, 17], seed=float(seed), low=-1.0, high=2.0, dtype=11)
    if seed < 1 << 24:  # seeds are float32 attributes, which hold such integers exactly
        np.testing.assert_allclose(out, want, 1e-15)
    assert out.min() >= -1 and out.max() < 2


def test_numbers_of_an_unknown_count() -> None:
    """Random numbers of symbolic sizes take more than one turn of the generator. Each run gives the same
    numbers."""
    x = np.zeros((50, 60), np.float32)
    exe = jangin.compile(model("RandomUniformLike", [x], 22, dims={0: ["n", "m"]}, seed=3.0), cache=False)
    for shape in ((50, 60), (2, 3), (50, 60)):
        want = np.random.RandomState(3).random_sample(shape).astype(np.float32)
        np.testing.assert_allclose(exe(np.zeros(shape, np.float32)), want, 1e-6)


def test_without_a_seed_nodes_differ_but_runs_do_not() -> None:
    (first,), (again,) = (compiled("RandomUniform", [], shape=[9]) for _ in range(2))
    (other,) = compiled("RandomNormal", [], shape=[9])
    np.testing.assert_array_equal(first, again)
    assert not np.allclose(first, other)


def test_normal_numbers() -> None:
    (out,) = compiled("RandomNormal", [], shape=[200, 100], mean=2.0, scale=3.0, seed=1.0)
    assert out.dtype == np.float32
    assert abs(out.mean() - 2) < 0.1 and abs(out.std() - 3) < 0.1
    assert abs(np.mean(((out - 2) / 3) ** 4) - 3) < 0.3


def test_bernoulli_by_probability() -> None:
    p = np.repeat(np.float32([[0, 0.2, 0.9, 1]]), 4000, 0)
    (out,) = compiled("Bernoulli", [p], seed=2.0, dtype=9)
    assert out.dtype == np.bool_
    np.testing.assert_allclose(out.mean(0), [0, 0.2, 0.9, 1], atol=0.03)


def test_multinomial_by_probability() -> None:
    share = np.array([[0.1, 0.2, 0.7], [1.0, 0.0, 0.0]])
    logits = np.log(np.maximum(share, 1e-30)).astype(np.float32) + 5
    (out,) = compiled("Multinomial", [logits], sample_size=5000, seed=4.0, dtype=7)
    counts = np.stack([np.bincount(row, minlength=3) / 5000 for row in out])
    assert out.dtype == np.int64
    np.testing.assert_allclose(counts, share, atol=0.03)


@pytest.mark.parametrize("fixed", [True, False])
def test_dropout_in_training(fixed: bool) -> None:
    x, ratio, on = np.ones((30, 20), np.float32), np.float32(0.25), np.bool_(True)
    constants = {1: np.asarray(ratio), 2: np.asarray(on)} if fixed else {}
    inputs: list[Array | None] = [x, np.asarray(ratio), np.asarray(on)]
    y, mask = compiled("Dropout", inputs, constants=constants, outputs=2, seed=5)
    want = np.random.RandomState(5).random_sample(x.shape) >= 0.25
    np.testing.assert_array_equal(mask, want)
    np.testing.assert_allclose(y, want / 0.75, 1e-6)


def test_dropout_that_a_run_turns_off() -> None:
    x = np.ones((3, 4), np.float32)
    y, mask = compiled("Dropout", [x, np.asarray(np.float32(0.5)), np.asarray(False)], outputs=2)
    np.testing.assert_array_equal(y, x)
    assert mask.all()


def test_optimizers_take_all_weights_at_once() -> None:
    """Results are grouped by kind, in the order of the inputs."""
    x1, x2, g1, g2 = (np.float32([n, n + 0.5]) for n in range(4))
    zero = np.zeros(2, np.float32)
    inputs: list[Array | None] = [np.asarray(np.float32(0.1)), np.asarray(0), x1, x2, g1, g2, zero, zero]
    settings = {"alpha": 0.9, "beta": 0.5, "mode": "standard", "norm_coefficient": 0.0}
    outs = run("Momentum", inputs, 22, domain="ai.onnx.preview.training", outputs=4, **settings)
    for out, want in zip(outs, [x1 - 0.1 * g1, x2 - 0.1 * g2, g1, g2], strict=True):
        np.testing.assert_allclose(out, want, 1e-6)


def test_large_constants_of_nests_are_left_to_the_machine() -> None:
    """Large constants stay loop nests for compiled code. The interpreter would take minutes for them."""
    assert any(n.op == "loop_nest" for n in lowered("RandomUniform", [], 22, shape=[1000, 1000]).nodes)
