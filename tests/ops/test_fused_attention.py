"""ONNX Runtime's transformer operators give ONNX Runtime's results."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from against import check, ints, onnxruntime_outputs
from one_node import Array, f32, model, run

MS = {"domain": "com.microsoft"}
B, S, H, D = 2, 5, 4, 8


@pytest.mark.parametrize("masked", ["", "lengths", "keys", "queries"])
@pytest.mark.parametrize("causal", [0, 1])
def test_attention_with_its_projections(masked: str, causal: int) -> None:
    masks: dict[str, Array | None] = {
        "": None,
        "lengths": np.array([3, 5], np.int32),
        "keys": np.array([[1, 1, 0, 1, 1], [1, 1, 1, 1, 0]], np.int32),
        "queries": np.tril(np.ones((B, S, S), np.int32)),
    }
    inputs = [f32(B, S, 12), f32(12, 3 * H * D, seed=1), f32(3 * H * D, seed=2), masks[masked]]
    dims = {0: ["n", "s", 12]} if not masked else {}
    settings = {"num_heads": H, "unidirectional": causal, **MS}
    check("Attention", inputs, 17, dims=dims, tolerance=1e-4, **settings)


def test_attention_with_a_past() -> None:
    inputs: list[Array | None] = [f32(B, S, 12), f32(12, 3 * H * D, seed=1), f32(3 * H * D, seed=2), None]
    settings = {"num_heads": H, "unidirectional": 1, "outputs": 2, "tolerance": 1e-4, **MS}
    check("Attention", [*inputs, f32(2, B, H, 3, D, seed=3)], 17, dims={4: [2, "n", H, "p", D]}, **settings)
    settings |= {"outputs": 1}
    check("Attention", [*inputs, None, f32(1, H, S, S, seed=4)], 17, dims={0: ["n", S, 12]}, **settings)


@pytest.mark.parametrize("packed", ["", "all", "keys"])
def test_multi_head_attention(packed: str) -> None:
    q, k, v = (f32(B, S, H * D, seed=n) for n in range(3))
    parts = [t.reshape(B, S, H, 1, D) for t in (q, k, v)]
    apart: list[Array | None] = [q, k, v]
    packs: dict[str, list[Array | None]] = {
        "": apart, "all": [np.concatenate(parts, 3)], "keys": [q, np.concatenate(parts[1:], 3)],
    }  # fmt: skip
    settings = {"num_heads": H, **MS}
    proto = model("MultiHeadAttention", apart, 17, **settings)
    want = onnxruntime_outputs(proto, {"in0": q, "in1": k, "in2": v})
    inputs = packs[packed]
    dims = {i: ["n", *a.shape[1:]] for i, a in enumerate(inputs) if a is not None}
    check("MultiHeadAttention", inputs, 17, want=want, dims=dims, **settings)


def test_multi_head_attention_with_everything() -> None:
    q, k, v = f32(B, S, H * D), f32(B, 6, H * D, seed=1), f32(B, 6, H * D, seed=2)
    mask = np.array([[1, 1, 0, 1, 1, 1], [1, 1, 1, 1, 0, 0]], np.int32)
    inputs = [q, k, v, f32(3 * H * D, seed=3), mask, f32(B, H, S, 6, seed=4)]
    check("MultiHeadAttention", inputs, 17, num_heads=H, scale=0.3, dims={0: ["n", "s", H * D]}, **MS)


def test_multi_head_attention_with_a_past() -> None:
    q, k, v = (f32(B, 2, H * D, seed=n) for n in range(3))
    past = [f32(B, H, 3, D, seed=n) for n in (4, 5)]
    inputs: list[Array | None] = [q, k, v, None, None, None, *past]
    settings = {"num_heads": H, "unidirectional": 1, "outputs": 3, **MS}
    check("MultiHeadAttention", inputs, 17, dims={6: ["n", H, "past", D], 7: ["n", H, "past", D]}, **settings)


def grouped(past: int, tokens: int, **attrs: Any) -> None:
    total = past + tokens
    heads = (8, 2)
    q, k, v = (f32(B, tokens, n * 16, seed=s) for s, n in enumerate((heads[0], heads[1], heads[1])))
    caches = [f32(B, 2, past, 16, seed=s) for s in (3, 4)]
    angle = np.outer(np.arange(20), 1 / 10 ** np.linspace(0, 2, 8))
    tables = [np.cos(angle).astype(np.float32), np.sin(angle).astype(np.float32)]
    rotary = tables if attrs.get("do_rotary") else []
    lengths = np.full(B, total - 1, np.int32)
    inputs: list[Array | None] = [q, k, v, *caches, lengths, np.asarray(total, np.int32), *rotary]
    settings = {"num_heads": heads[0], "kv_num_heads": heads[1], "outputs": 3, **MS, **attrs}
    feeds = {f"in{i}": a for i, a in enumerate(inputs) if a is not None}
    want = onnxruntime_outputs(model("GroupQueryAttention", inputs, 17, **settings), feeds)
    got = run("GroupQueryAttention", inputs, 17, **settings)
    for g, w in zip(got, want, strict=True):
        np.testing.assert_allclose(g, w, 1e-4, 1e-5)


@pytest.mark.parametrize("past", [0, 4])
@pytest.mark.parametrize(
    "attrs",
    [
        {},
        {"do_rotary": 1},
        {"do_rotary": 1, "rotary_interleaved": 1},
        {"local_window_size": 3},
        {"softcap": 5.0, "scale": 0.2},
    ],
    ids=str,
)
def test_group_query_attention(past: int, attrs: dict[str, Any]) -> None:
    grouped(past, 1 if past else 6, **attrs)


def test_items_of_unequal_length() -> None:
    """Prompts of 5 and 3 tokens, followed by one token each, in a cache of fixed size."""
    settings = {"num_heads": 4, "kv_num_heads": 2, "outputs": 3, **MS}
    q, k, v = f32(B, 1, 64), f32(B, 1, 32, seed=1), f32(B, 1, 32, seed=2)
    caches = [f32(B, 2, 9, 16, seed=s) for s in (3, 4)]
    inputs: list[Array | None] = [q, k, v, *caches, np.array([5, 3], np.int32), np.asarray(6, np.int32)]
    feeds = {f"in{i}": a for i, a in enumerate(inputs) if a is not None}
    want = onnxruntime_outputs(model("GroupQueryAttention", inputs, 17, **settings), feeds)
    y, keys, values = run(
        "GroupQueryAttention", inputs, 17, constants={6: np.asarray(6, np.int32)}, **settings
    )
    np.testing.assert_allclose(y, want[0], 1e-4, 1e-5)
    for n, length in enumerate((6, 4)):
        np.testing.assert_allclose(keys[n, :, :length], want[1][n, :, :length])
        np.testing.assert_allclose(values[n, :, :length], want[2][n, :, :length])


@pytest.mark.parametrize("interleaved", [0, 1])
@pytest.mark.parametrize("position", [ints(3), np.arange(10).reshape(2, 5)])
def test_rotary_embedding(interleaved: int, position: Array) -> None:
    angle = f32(12, 4)
    inputs = [f32(2, 5, 24), position, np.cos(angle), np.sin(angle)]
    dims = {0: ["n", "s", 24]} if position.size == 1 else {}
    check("RotaryEmbedding", inputs, 17, interleaved=interleaved, dims=dims, **MS)


def test_embeddings() -> None:
    rng = np.random.default_rng(0)
    words, segments = rng.integers(0, 9, (2, 5), np.int32), rng.integers(0, 2, (2, 5), np.int32)
    tables = [f32(9, 12), f32(7, 12, seed=1), f32(2, 12, seed=2), f32(12, seed=3), f32(12, seed=4)]
    mask = np.array([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]], np.int32)
    check("EmbedLayerNormalization", [words, segments, *tables, mask], 17, outputs=3, epsilon=1e-5,
          dims={0: ["n", "s"], 1: ["n", "s"], 7: ["n", "s"]}, **MS)  # fmt: skip
