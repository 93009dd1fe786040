"""GGUF files of LLaMA's family: each architecture and block type against the network in float64, and what is
said of files that can't be read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from compared import error

import jangin

gguf = pytest.importorskip("gguf", reason="gguf is not installed (see the extra `gguf`)")

from gguf_files import write  # noqa: E402
from llama_reference import logits  # noqa: E402

from jangin.frontends.gguf.blocks import LAYOUTS, product  # noqa: E402
from jangin.frontends.gguf.file import File  # noqa: E402
from jangin.ir.dtype import F32  # noqa: E402
from jangin.ir.expr import const  # noqa: E402
from jangin.ops.builder import Builder  # noqa: E402
from jangin.ops.interpret import run_graph  # noqa: E402

TOKENS = [3, 17, 39, 0, 8]


def given(exe: Any, tokens: list[int]) -> dict[str, Any]:
    caches = {s.name: np.zeros((1, 0, 2, 16), np.float32) for s in exe.inputs if s.name != "tokens"}
    return {"tokens": np.array([tokens]), **caches}


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
def test_architectures(family: str, tmp_path: Path) -> None:
    path = write(tmp_path / "m.gguf", family)
    exe = jangin.compile(path, threads=1, cache=False)
    whole = exe.run(given(exe, TOKENS))
    wanted = logits(File(path), TOKENS)
    assert error(whole["logits"][0, 0], wanted) < 1e-5
    feeds = given(exe, TOKENS[:2])
    for part in (TOKENS[2:4], TOKENS[4:]):
        found = exe.run(feeds)
        feeds = {
            n: np.concatenate([a, found[n.replace("past", "new")]], 1)
            for n, a in feeds.items()
            if n != "tokens"
        }
        feeds["tokens"] = np.array([part])
    assert error(exe.run(feeds)["logits"][0, 0], wanted) < 1e-5


@pytest.mark.parametrize("shared", [False, True])
def test_weights_in_blocks(shared: bool, tmp_path: Path) -> None:
    path = write(tmp_path / "m.gguf", kind=gguf.GGMLQuantizationType.Q8_0, shared=shared)
    exe = jangin.compile(path, threads=1, cache=False)
    assert error(exe.run(given(exe, TOKENS))["logits"][0, 0], logits(File(path), TOKENS)) < 1e-5


@pytest.mark.parametrize("kind", LAYOUTS)
def test_blocks_are_read_as_ggml_does(kind: str) -> None:
    """Of random bytes, scales of which are finite."""
    code, layout = gguf.GGMLQuantizationType[kind], LAYOUTS[kind]
    rng, width = np.random.default_rng(1), 512
    blocks = rng.integers(0, 256, (3, width // layout.size, layout.bytes)).astype(np.uint8)
    for at in {"Q6_K": (208,), "Q4_0": (0,), "Q5_0": (0,), "Q8_0": (0,)}.get(kind, (0, 2)):
        scale = rng.uniform(-0.1, 0.1, blocks.shape[:2]).astype("<f2")
        blocks[:, :, at : at + 2] = scale[..., None].view(np.uint8)
    data = blocks.reshape(3, -1)
    b = Builder("m", {})
    x = b.input("x", F32, (const(2), const(width)))
    graph = b.graph([product(b, x, b.const(data), kind, width)], ["y"])
    values = rng.standard_normal((2, width)).astype(np.float32)
    wanted = values.astype(np.float64) @ gguf.quants.dequantize(data, code).astype(np.float64).T
    np.testing.assert_allclose(
        run_graph(graph, {"x": values})["y"], wanted, rtol=0, atol=1e-5 * np.abs(wanted).max()
    )


def test_what_is_wrong_is_said(tmp_path: Path) -> None:
    path = write(tmp_path / "m.gguf", "mamba")
    with pytest.raises(
        jangin.CompileError, match="of architecture mamba; those supported are llama, qwen2, qwen3"
    ):
        jangin.compile(path, cache=False)
    whole = write(path).read_bytes()
    path.write_bytes(whole.replace(b"blk.1.ffn_up.weight", b"blk.1.ffn_ap.weight"))
    with pytest.raises(jangin.CompileError, match=r"has no tensor blk\.1\.ffn_up\.weight"):
        jangin.compile(path, cache=False)
    path.write_bytes(whole[:2000])
    with pytest.raises(jangin.CompileError, match="damaged GGUF file"):
        jangin.compile(path, cache=False)
    with pytest.raises(jangin.CompileError, match="from a path, not from bytes"):
        jangin.compile(whole, cache=False)


def test_pieces_with_scores(tmp_path: Path) -> None:
    """SentencePiece's way, as LLaMA's first files have it: best scores are joined first, bytes stand in."""
    pytest.importorskip("tokenizers", reason="tokenizers is not installed (see the extra `gguf`)")
    from jangin.frontends.gguf.text import Text

    writer = gguf.GGUFWriter(tmp_path / "t.gguf", "llama")
    tokens = ["<unk>", "<s>", "</s>", "<0xC3>", "<0xA9>", "▁", "a", "b", "c", "ab", "bc", "▁ab"]
    writer.add_tokenizer_model("llama")
    writer.add_token_list(tokens)
    writer.add_token_scores([0, 0, 0, 0, 0, -9, -9, -9, -9, -2, -1, -3])
    writer.add_token_types([2, 3, 3, 6, 6, *[1] * 7])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    text = Text(tmp_path / "t.gguf")
    found = [tokens[i] for i in text.encode("abc ab é</s>")]
    assert found == ["<s>", "▁", "a", "bc", "▁ab", "▁", "<0xC3>", "<0xA9>", "</s>"]
    assert text.decode(text.encode("abc ab é")) == "abc ab é" and text.end == 2


def test_damaged_files_give_one_error(refused: Any, tmp_path: Path) -> None:
    path = write(tmp_path / "m.gguf")
    assert refused(path, [path]) > 0.3


HUGE = [
    ("block_count", 2**31 - 1, "2147483647 blocks by its settings"),
    ("block_count", 2**32 - 1, "out of range"),
    ("context_length", 2**31 - 1, r"context_length = 2147483647.*of memory, an array of"),
    ("embedding_length", 2**31 - 1, "heads of 536870911 by its settings"),
    ("embedding_length", 0, "has 4 heads"), ("attention.head_count", 2**31 - 1, "has 2147483647 heads"),
    ("attention.head_count_kv", 2**31 - 1, "2147483647 of keys"),
    ("rope.freq_base", 2**31 - 1, "is nan, and should be a number"),
]  # fmt: skip


@pytest.mark.parametrize(("key", "value", "why"), HUGE)
def test_settings_beyond_what_the_file_has(key: str, value: int, why: str, tmp_path: Path) -> None:
    """They are refused before anything is made of them. The bits of a float of 2**31 - 1 are no number."""
    data = write(tmp_path / "net.gguf").read_bytes()
    name = f"llama.{key}".encode()
    kind = b"\x06" if key == "rope.freq_base" else b"\x04"
    at = data.index(name + kind + bytes(3)) + len(name) + 4
    (tmp_path / "huge.gguf").write_bytes(data[:at] + value.to_bytes(4, "little") + data[at + 4 :])
    with pytest.raises(jangin.CompileError, match=why):
        jangin.compile(tmp_path / "huge.gguf", cache=False, isolated=False)
