"""MiniLM-L6 at five sequence lengths from one compiled plan, against PyTorch's embeddings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from bert import INPUTS, build_minilm
from compared import compiled, error, onnxruntime

GOLDEN = Path(__file__).with_name("minilm_golden.npz")
"""The token ids and PyTorch's embeddings of `packages.SENTENCES`, made by `benchmarks/make_models.py`."""
SENTENCES = 5


@pytest.fixture(scope="module")
def model() -> bytes:
    from packages import minilm

    return build_minilm(minilm())


@pytest.fixture(scope="module")
def exe(model: bytes) -> Any:
    return compiled(model, shapes={"batch": (1, 8), "seq": (1, 512)})


@pytest.fixture(scope="module")
def golden() -> list[tuple[Any, Any]]:
    with np.load(GOLDEN) as stored:
        return [(stored[f"ids{i}"].astype(np.int64), stored[f"embedding{i}"]) for i in range(SENTENCES)]


def feeds(ids: Any, mask: Any = None) -> dict[str, Any]:
    mask = np.ones_like(ids) if mask is None else mask
    return dict(zip(INPUTS, (ids, mask, np.zeros_like(ids)), strict=True))


def embedding(hidden: Any) -> Any:
    mean = hidden.mean(axis=0)
    return mean / np.linalg.norm(mean)


def test_embeddings_equal_pytorchs(exe: Any, golden: list[tuple[Any, Any]]) -> None:
    assert len({len(ids) for ids, _ in golden}) == SENTENCES
    for ids, expected in golden:
        hidden = exe.run(feeds(ids[None]))["last_hidden_state"]
        assert np.abs(embedding(hidden[0]) - expected).max() < 1e-4


def test_paraphrases_are_near_and_others_are_not(exe: Any, golden: list[tuple[Any, Any]]) -> None:
    runs = (exe.run(feeds(ids[None]))["last_hidden_state"] for ids, _ in golden)
    e = np.stack([embedding(hidden[0]) for hidden in runs])
    cosines = e @ e.T
    assert cosines[1, 2] == pytest.approx(0.767, abs=0.005)
    others = [cosines[i, j] for i in range(SENTENCES) for j in range(i) if {i, j} != {1, 2}]
    assert max(others) <= 0.2


def test_a_padded_batch_agrees_with_onnx_runtime(
    model: bytes, exe: Any, golden: list[tuple[Any, Any]]
) -> None:
    ids = np.zeros((3, 24), np.int64)
    mask = np.zeros_like(ids)
    for row, (tokens, _) in enumerate(golden[1:4]):
        ids[row, : len(tokens)] = tokens
        mask[row, : len(tokens)] = 1
    ours = exe.run(feeds(ids, mask))["last_hidden_state"]
    assert error(ours, onnxruntime(model, feeds(ids, mask))["last_hidden_state"]) < 1e-4
    for row, (tokens, expected) in enumerate(golden[1:4]):
        assert np.abs(embedding(ours[row, : len(tokens)]) - expected).max() < 1e-4
