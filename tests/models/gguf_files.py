"""Small GGUF files of LLaMA's family with random weights."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from gguf import GGMLQuantizationType as Kind
from gguf import GGUFWriter
from gguf.quants import quantize

WIDTH, HIDDEN, HEADS, GROUPS, VOCABULARY, LAYERS = 64, 96, 4, 2, 40, 2


def write(path: Path, family: str = "llama", kind: Kind = Kind.F32, shared: bool = False) -> Path:
    """A network of two layers; matrices are of `kind` where their rows are whole blocks."""
    rng = np.random.default_rng(0)
    writer = GGUFWriter(path, family)
    writer.add_block_count(LAYERS)
    writer.add_context_length(32)
    writer.add_embedding_length(WIDTH)
    writer.add_feed_forward_length(HIDDEN)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(GROUPS)
    writer.add_rope_freq_base(1000.0)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_description("a small one")

    def matrix(name: str, rows: int, columns: int) -> None:
        data = rng.standard_normal((rows, columns)).astype(np.float32) / 8
        if kind is Kind.F32:
            writer.add_tensor(f"{name}.weight", data)
        else:
            writer.add_tensor(f"{name}.weight", quantize(data, kind), raw_dtype=kind)

    def vector(name: str, size: int) -> None:
        writer.add_tensor(name, rng.uniform(0.5, 1.5, size).astype(np.float32))

    size = WIDTH // HEADS
    matrix("token_embd", VOCABULARY, WIDTH)
    for i in range(LAYERS):
        block = f"blk.{i}"
        for part, count in (("q", HEADS), ("k", GROUPS), ("v", GROUPS)):
            matrix(f"{block}.attn_{part}", count * size, WIDTH)
            if family == "qwen2":
                vector(f"{block}.attn_{part}.bias", count * size)
            if family == "qwen3" and part != "v":
                vector(f"{block}.attn_{part}_norm.weight", size)
        matrix(f"{block}.attn_output", WIDTH, WIDTH)
        for name, rows, columns in (("gate", HIDDEN, WIDTH), ("up", HIDDEN, WIDTH), ("down", WIDTH, HIDDEN)):
            matrix(f"{block}.ffn_{name}", rows, columns)
        for name in ("attn_norm", "ffn_norm"):
            vector(f"{block}.{name}.weight", WIDTH)
    vector("output_norm.weight", WIDTH)
    if not shared:
        matrix("output", VOCABULARY, WIDTH)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
