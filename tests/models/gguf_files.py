"""Small GGUF files of LLaMA's family with random weights."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from gguf import GGMLQuantizationType as Kind
from gguf import GGUFWriter
from gguf.quants import quantize

WIDTH, HIDDEN, HEADS, GROUPS, VOCABULARY, LAYERS, CONTEXT = 64, 96, 4, 2, 40, 2, 32


MARKS = {"<|start|>": 3, "<|im_end|>": 3, "<think>": 4, "<tool call>": 4, "<pad>": 5}
"""Special tokens that are not in the vocabulary below, with their types: control (3), user-defined (4) and
unused (5)."""


def letters() -> list[str]:
    """Return the letter that stands for each byte in vocabularies of bytes (Radford et al. 2019)."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = iter(range(256, 512))
    return [chr(b if b in plain else next(others)) for b in range(256)]


def vocabulary(
    writer: GGUFWriter, pre: str | None = None, merged: Sequence[bytes] = (), whole: Sequence[bytes] = ()
) -> int:
    """Write a vocabulary and return its size. It has all bytes, pairs of `merged` bytes, `whole` words that
    no merge makes, and special tokens."""
    letter = letters()
    pairs = [(letter[a], letter[b]) for a, b in merged]
    words = ["".join(letter[b] for b in word) for word in whole]
    texts = [*letter, *(a + b for a, b in pairs), *words]
    writer.add_tokenizer_model("gpt2")
    if pre is not None:
        writer.add_tokenizer_pre(pre)
    writer.add_token_list([*texts, *MARKS])
    writer.add_token_types([1] * len(texts) + [*MARKS.values()])
    writer.add_token_merges([f"{a} {b}" for a, b in pairs] or ["! !"])
    writer.add_bos_token_id(len(texts))
    writer.add_eos_token_id(len(texts) + 4)
    return len(texts) + len(MARKS)


def pieces(writer: GGUFWriter, **settings: bool) -> int:
    """Write a vocabulary of LLaMA's first kind and return its size. It has pieces with scores, all bytes, and
    special tokens. `settings` are flags of the tokenizer."""
    joined = [
        "he", "ll", "lo", "hello", "wor", "ld", "world", "▁h", "▁he", "▁hello", "▁w", "▁wor", "▁world", "▁▁",
        "▁▁▁", "ab", "abc", "▁a", "▁G", "é",
    ]  # fmt: skip
    plain = ["▁", *map(chr, range(33, 127)), *joined]
    texts = ["<unk>", "<s>", "</s>", *(f"<0x{b:02X}>" for b in range(256)), *plain, "<mark>", "<|user|>"]
    scores = np.zeros(len(texts))
    scores[259 : 259 + len(plain)] = -np.random.default_rng(3).uniform(1, 50, len(plain))
    writer.add_tokenizer_model("llama")
    writer.add_token_list(texts)
    writer.add_token_scores(scores.tolist())
    writer.add_token_types([2, 3, 3, *[6] * 256, *[1] * len(plain), 3, 4])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    for key, flag in settings.items():
        writer.add_bool(f"tokenizer.ggml.{key}", flag)
    return len(texts)


def write(
    path: Path, family: str = "llama", kind: Kind = Kind.F32, shared: bool = False,
    more: Callable[[GGUFWriter], int | None] | None = None, groups: int | Sequence[int] = GROUPS,
    several: bool = False,
) -> Path:  # fmt: skip
    """Write a network of two layers, and return its path.

    Matrices are of `kind` if their rows are whole blocks. `more` adds settings, and returns the size of a
    vocabulary if it adds one. `several` splits the tensors over several files; the first one is returned."""
    rng = np.random.default_rng(0)
    writer = GGUFWriter(path, family, split_max_tensors=8 if several else 0)
    tokens = (more and more(writer)) or VOCABULARY
    writer.add_block_count(LAYERS)
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(WIDTH)
    writer.add_feed_forward_length(HIDDEN)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(groups)
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
    matrix("token_embd", tokens, WIDTH)
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
        matrix("output", tokens, WIDTH)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path.with_name(f"{path.stem}-00001-of-00003.gguf") if several else path
