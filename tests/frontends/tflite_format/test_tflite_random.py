"""TFLite's random numbers equal LiteRT's, over several runs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import jangin

pytest.importorskip("tflite", reason="the package tflite isn't installed: the extra `tflite` brings it")
pytest.importorskip("ai_edge_litert.interpreter", reason="ai-edge-litert, the reference, isn't installed")

from files import Operator, Tensor, written
from test_subgraphs import steps
from test_tflite import reference

SEEDS = {"Seed": 0x1234567890, "Seed2": -77}


def numbers(name: str, options: dict[str, Any]) -> bytes:
    """Make a model that returns x and as many random numbers. It has two results, because x + 0 * itself
    would be folded."""
    sizes = Tensor([3], "int32", data=np.int32([3, 5, 7]))
    tensors = [Tensor([3, 5, 7]), sizes, Tensor([3, 5, 7]), Tensor([3, 5, 7])]
    draw = Operator(name, [1], [2], "RandomOptions", options, 1)
    return written(tensors, [draw, Operator("ADD", [0, 2], [3], "AddOptions", {}, 1)], [0], [3])


@pytest.mark.parametrize("name", ["RANDOM_UNIFORM", "RANDOM_STANDARD_NORMAL"])
def test_numbers(name: str) -> None:
    zeros = np.zeros((3, 5, 7), np.float32)
    _, found = steps(numbers(name, SEEDS), [[zeros]] * 3)
    assert len(np.unique(found)) > 310
    mean = 0.0 if "NORMAL" in name else 0.5
    assert abs(float(np.mean(found)) - mean) < 0.2


def test_numbers_without_seeds() -> None:
    """LiteRT's numbers without seeds differ between processes. Jangin's are the same in each compilation of a
    model."""
    zeros, model = np.zeros((3, 5, 7), np.float32), numbers("RANDOM_UNIFORM", {})
    one, other = (jangin.compile(model, threads=1, cache=False) for _ in range(2))
    first, second = one(zeros), one(zeros)
    np.testing.assert_array_equal(first, other(zeros))
    assert not np.array_equal(first, second) and np.min(first) >= 0 and np.max(first) < 1


@pytest.mark.parametrize("kind", ["int32", "int64"])
def test_classes(kind: str) -> None:
    random = np.random.default_rng(3)
    count = Tensor([], "int32", data=np.int32(11))
    tensors = [Tensor([3, 6]), count, Tensor([3, 11], kind)]
    model = written(tensors, [Operator("MULTINOMIAL", [0, 1], [2], "RandomOptions", SEEDS, 1)], [0], [2])
    odds = random.standard_normal((3, 6)).astype(np.float32) * 2
    odds[1, 2] = -np.inf
    _, found = steps(model, [[odds]] * 4, 0)
    assert len(np.unique(found)) > 3


@pytest.mark.parametrize("kind", ["int32", "int64", "uint32", "uint64"])
@pytest.mark.parametrize(("algorithm", "words"), [(0, 2), (1, 3), (2, 2)])
def test_bits(algorithm: int, words: int, kind: str) -> None:
    """The block counter overflows its lower word."""
    tensors = [Tensor([words], "uint64"), Tensor([words], "uint64"), Tensor([5, 3], kind)]
    options = {"Algorithm": algorithm}
    name, table = "STABLEHLO_RNG_BIT_GENERATOR", "StablehloRngBitGeneratorOptions"
    model = written(tensors, [Operator(name, [0], [1, 2], table, options, 1)], [0], [1, 2])
    state = np.array([0x123456789ABCDEF0, 0xFFFFFFFE, 0xFEDCBA9876543210][:words], np.uint64)
    got = jangin.compile(model, threads=1, cache=False)(state)
    for found, want in zip(got, reference(model, [state]), strict=True):
        assert found.dtype == want.dtype
        np.testing.assert_array_equal(found, want)
