"""LLaMA-like networks of GGUF files in float64, written from the papers, as a reference for compiled ones."""

from __future__ import annotations

from typing import Any

import numpy as np
from gguf import GGMLQuantizationType as Kind
from gguf.quants import dequantize

Array = np.ndarray[Any, Any]


def logits(file: Any, tokens: list[int]) -> Array:
    """Return the logits of the token that follows the text. The text is read at once."""
    tensors = {t.name: t for t in file._reader.tensors}
    kind = file.setting("general.architecture")

    def tensor(name: str) -> Array:
        found = tensors[name]
        plain = found.tensor_type in (Kind.F32, Kind.F16)
        return np.asarray(found.data if plain else dequantize(found.data, found.tensor_type), np.float64)

    def setting(name: str, default: Any = None) -> Any:
        return file.setting(f"{kind}.{name}", default)

    def norm(x: Array, name: str) -> Array:
        mean = (x * x).mean(-1, keepdims=True) + setting("attention.layer_norm_rms_epsilon")
        return x / np.sqrt(mean) * tensor(name)

    def linear(x: Array, name: str) -> Array:
        y = x @ tensor(f"{name}.weight").T
        return y + tensor(f"{name}.bias") if f"{name}.bias" in tensors else y

    heads, groups = setting("attention.head_count"), setting("attention.head_count_kv")
    size = setting("attention.key_length", setting("embedding_length") // heads)

    def turned(x: Array) -> Array:
        angles = np.arange(len(tokens))[:, None] * setting("rope.freq_base", 1e4) ** (
            -np.arange(0, size, 2) / size
        )
        turn = np.exp(1j * angles)
        if kind == "llama":
            pairs = (x[..., 0::2] + 1j * x[..., 1::2]) * turn
            return np.stack([pairs.real, pairs.imag], -1).reshape(x.shape)
        pairs = (x[..., : size // 2] + 1j * x[..., size // 2 :]) * turn
        return np.concatenate([pairs.real, pairs.imag], -1)

    def attended(x: Array, block: str) -> Array:
        def part(name: str, count: int) -> Array:
            y = linear(x, f"{block}.attn_{name}").reshape(len(tokens), count, size).transpose(1, 0, 2)
            return (
                norm(y, f"{block}.attn_{name}_norm.weight")
                if f"{block}.attn_{name}_norm.weight" in tensors
                else y
            )

        q, k, v = turned(part("q", heads)), turned(part("k", groups)), part("v", groups)
        k, v = (np.repeat(t, heads // groups, 0) for t in (k, v))
        scores = q @ k.transpose(0, 2, 1) / np.sqrt(size)
        scores = np.where(np.tri(len(tokens)) > 0, scores, -np.inf)
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        mixed = weights / weights.sum(-1, keepdims=True) @ v
        return linear(mixed.transpose(1, 0, 2).reshape(len(tokens), -1), f"{block}.attn_output")

    table = tensor("token_embd.weight")
    x = table[tokens]
    for i in range(setting("block_count")):
        block = f"blk.{i}"
        x = x + attended(norm(x, f"{block}.attn_norm.weight"), block)
        normal = norm(x, f"{block}.ffn_norm.weight")
        gate = linear(normal, f"{block}.ffn_gate")
        x = x + linear(gate / (1 + np.exp(-gate)) * linear(normal, f"{block}.ffn_up"), f"{block}.ffn_down")
    last = norm(x[-1], "output_norm.weight")
    return last @ (tensor("output.weight") if "output.weight" in tensors else table).T
