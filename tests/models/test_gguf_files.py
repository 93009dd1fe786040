"""GGUF files of LLaMA's family. Each architecture and block type is compared with the network in float64.
Files that can't be read give clear errors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from compared import error

import jangin

gguf = pytest.importorskip("gguf", reason="gguf is not installed (see the extra `gguf`)")

from gguf_files import vocabulary, write  # noqa: E402
from llama_reference import logits  # noqa: E402

from jangin.compiler.source import Source  # noqa: E402
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


@pytest.mark.sampled(2)
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


@pytest.mark.sampled(2)
@pytest.mark.parametrize("shared", [False, True])
def test_weights_in_blocks(shared: bool, tmp_path: Path) -> None:
    path = write(tmp_path / "m.gguf", kind=gguf.GGMLQuantizationType.Q8_0, shared=shared)
    exe = jangin.compile(path, threads=1, cache=False)
    assert error(exe.run(given(exe, TOKENS))["logits"][0, 0], logits(File(path), TOKENS)) < 1e-5


@pytest.mark.parametrize("kind", LAYOUTS)
def test_blocks_are_read_as_ggml_does(kind: str) -> None:
    """Blocks of random bytes with finite scales are read as ggml reads them."""
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
    with pytest.raises(jangin.CompileError, match=r"lacks the tensor blk\.1\.ffn_up\.weight"):
        jangin.compile(path, cache=False)
    path.write_bytes(whole[:2000])
    with pytest.raises(jangin.CompileError, match="damaged GGUF file"):
        jangin.compile(path, cache=False)
    with pytest.raises(jangin.CompileError, match="from a path, not from bytes"):
        jangin.compile(whole, cache=False)


def test_pieces_with_scores(tmp_path: Path) -> None:
    """The vocabulary of LLaMA's first files works as in SentencePiece: the best scores are joined first, and
    bytes stand for unknown letters."""
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
    assert text.decode(text.encode("abc ab é")) == "abc ab é" and text.ends == {2}


def test_damaged_files_give_one_error(refused: Any, tmp_path: Path) -> None:
    path = write(tmp_path / "m.gguf")
    assert refused(path, [path]) > 0.3


HUGE = [
    ("block_count", 2**31 - 1, "2147483647 blocks by its settings"),
    ("block_count", 2**32 - 1, "is 4294967295, and should be a whole number below"),
    ("context_length", 2**31 - 1, r"context_length = 2147483647.*of memory, an array of"),
    ("embedding_length", 2**31 - 1, "heads of 536870911 by its settings"),
    ("embedding_length", 0, "has 4 heads"), ("attention.head_count", 2**31 - 1, "has 2147483647 heads"),
    ("attention.head_count_kv", 2**31 - 1, "2147483647 of keys"),
    ("rope.freq_base", 2**31 - 1, "is nan, and should be a number"),
]  # fmt: skip


@pytest.mark.parametrize(("key", "value", "why"), HUGE)
def test_settings_beyond_what_the_file_has(key: str, value: int, why: str, tmp_path: Path) -> None:
    """Settings that don't fit the file are refused early. As a float, the bits of 2**31 - 1 are NaN."""
    data = write(tmp_path / "net.gguf").read_bytes()
    name = f"llama.{key}".encode()
    kind = b"\x06" if key == "rope.freq_base" else b"\x04"
    at = data.index(name + kind + bytes(3)) + len(name) + 4
    (tmp_path / "huge.gguf").write_bytes(data[:at] + value.to_bytes(4, "little") + data[at + 4 :])
    with pytest.raises(jangin.CompileError, match=why):
        jangin.compile(tmp_path / "huge.gguf", cache=False, isolated=False)


SETTINGS = [
    ("add_sliding_window", 16, r"attention\.sliding_window = 16 is not supported"),
    ("add_expert_count", 8, r"expert_count = 8 is not supported"),
    ("add_logit_scale", 0.5, r"logit_scale = 0\.5 is not supported"),
    ("add_value_length", 8, "keys and values of different lengths"),
    ("add_rope_scaling_type", gguf.RopeScalingType.YARN, "positions scaled by yarn"),
]


@pytest.mark.parametrize(("add", "value", "why"), SETTINGS)
def test_settings_that_are_not_known_are_refused(add: str, value: Any, why: str, tmp_path: Path) -> None:
    path = write(tmp_path / "m.gguf", more=lambda writer: getattr(writer, add)(value))
    with pytest.raises(jangin.CompileError, match=why):
        jangin.compile(path, cache=False, isolated=False)


def test_settings_without_effect(tmp_path: Path) -> None:
    def more(writer: Any) -> None:
        writer.add_vocab_size(40)
        writer.add_sliding_window(0)
        writer.add_expert_count(0)
        writer.add_tensor_data_layout("Meta AI original pth")

    path = write(tmp_path / "m.gguf", more=more)
    exe = jangin.compile(path, threads=1, cache=False, isolated=False)
    assert error(exe.run(given(exe, TOKENS))["logits"][0, 0], logits(File(path), TOKENS)) < 1e-5


def test_heads_of_each_block(tmp_path: Path) -> None:
    """A number of heads for each block is the same as one for all, if they are equal."""
    path = write(tmp_path / "m.gguf", groups=[2, 2])
    exe = jangin.compile(path, threads=1, cache=False, isolated=False)
    alike = write(tmp_path / "one.gguf")
    assert error(exe.run(given(exe, TOKENS))["logits"][0, 0], logits(File(alike), TOKENS)) < 1e-5
    for groups in ([2, 1], [2, 2, 2]):
        with pytest.raises(jangin.CompileError, match=r"head_count_kv = \[2, .*blocks must have the same"):
            jangin.compile(write(path, groups=groups), cache=False, isolated=False)


@pytest.mark.parametrize("isolated", [False, True])
def test_split_files(isolated: bool, tmp_path: Path) -> None:
    whole = write(tmp_path / "whole.gguf")
    path = write(tmp_path / "part.gguf", several=True)
    exe = jangin.compile(path, threads=1, cache=False, isolated=isolated)
    assert error(exe.run(given(exe, TOKENS))["logits"][0, 0], logits(File(whole), TOKENS)) < 1e-5


def test_the_cache_knows_all_files_of_a_split_model(tmp_path: Path) -> None:
    path = write(tmp_path / "part.gguf", several=True)
    before = Source.of(path)
    third = path.with_name(path.name.replace("00001", "00003", 1))
    third.write_bytes(third.read_bytes()[:-4] + b"\0\0\x80?")
    assert before is not None and not before.unchanged() and before != Source.of(path)


def test_split_files_that_lack_a_part(tmp_path: Path) -> None:
    path = write(tmp_path / "part.gguf", several=True)
    second = path.with_name(path.name.replace("00001", "00002", 1))
    with pytest.raises(jangin.CompileError, match="file 2 of 3; the first is the one to give"):
        jangin.compile(second, cache=False, isolated=False)
    second.unlink()
    with pytest.raises(jangin.CompileError, match=r"first of 3 files, but there is no .*00002-of-00003"):
        jangin.compile(path, cache=False, isolated=False)
    path = path.rename(tmp_path / "model.gguf")
    with pytest.raises(jangin.CompileError, match="name must end in -00001-of-00003"):
        jangin.compile(path, cache=False, isolated=False)


# --- tokens and conversations


def text_of(path: Path, **options: Any) -> Any:
    pytest.importorskip("tokenizers", reason="tokenizers is not installed (see the extra `gguf`)")
    from jangin.frontends.gguf.text import Text

    template = options.pop("template", "")

    def more(writer: Any) -> int:
        if template:
            writer.add_chat_template(template)
        return vocabulary(writer, **options)

    return Text(write(path, more=more))


def test_marks_of_users_are_whole(tmp_path: Path) -> None:
    """User-defined tokens are text for a reader of the answer, and control tokens aren't."""
    text = text_of(tmp_path / "m.gguf")
    tokens = text.encode("a<think>b<tool call><|im_end|>")
    assert tokens == [97, 258, 98, 259, 257]
    assert text.decode(tokens) == "a<think>b<tool call>"
    assert text.decode(tokens, marks=True) == "a<think>b<tool call><|im_end|>"


def test_ends_of_turns(tmp_path: Path) -> None:
    """The end of a turn is found by its token's name, and the end of the text by its number."""
    assert text_of(tmp_path / "m.gguf").ends == {257, 260}


def test_a_tokenizer_that_is_not_known(tmp_path: Path) -> None:
    with pytest.raises(jangin.CompileError, match="pre is 'unheard-of', which is not supported; default"):
        text_of(tmp_path / "m.gguf", pre="unheard-of")


TOOLS = [{"type": "function", "function": {"name": "f", "description": "d'é <b>"}}]
TALK = [
    {"role": "system", "content": "be"}, {"role": "user", "content": "who?"},
    {"role": "assistant", "content": "me", "calls": [{"function": {"name": "f", "arguments": {"x": 1}}}]},
]  # fmt: skip
RENDERED = {
    "{{ tools | tojson }}": """[{"type": "function", "function": {"name": "f", "description": "d'é <b>"}}]""",
    "{{ tools[0].function | tojson(indent=1, ensure_ascii=True) }}":
        '{\n "name": "f",\n "description": "d\'\\u00e9 <b>"\n}',
    "{{ documents is none }}{{ documents is defined }}{{ custom }}": "TrueTrueyes",
    "{{ bos_token }}|{{ pad_token is defined }}": "<|start|>|False",
    "{% for m in messages %}{% if m.role == 'assistant' %}{% break %}{% endif %}{{ m.role }},{% endfor %}":
        "system,user,",
    "{% for m in messages %}{% if loop.first %}{% continue %}{% endif %}{{ m.content }}{% endfor %}":
        "who?me",
    "{% for m in messages %}{% generation %}{{ m.content }};{% endgeneration %}{% endfor %}": "be;who?;me;",
    "{{ strftime_now('%d %b %Y') | length }}": "11",
    "{{ messages[2].calls[0].function.arguments | tojson }}": '{"x": 1}',
    "{% if add_generation_prompt %}go{% endif %}": "go",
}  # fmt: skip


@pytest.mark.parametrize("template", RENDERED)
def test_templates_see_what_transformers_gives_them(template: str, tmp_path: Path) -> None:
    """The expected texts are from `apply_chat_template` in Transformers 5.24."""
    pytest.importorskip("jinja2", reason="jinja2 is not installed (see the extra `gguf`)")
    text = text_of(tmp_path / "m.gguf", template=template)
    assert text.chat(TALK, tools=TOOLS, custom="yes") == RENDERED[template]


def test_a_template_for_tools(tmp_path: Path) -> None:
    pytest.importorskip("jinja2", reason="jinja2 is not installed (see the extra `gguf`)")
    several = [{"name": "default", "template": "plain"}, {"name": "tool_use", "template": "with tools"}]
    text = text_of(tmp_path / "m.gguf", template=several)
    assert (text.chat(TALK), text.chat(TALK, tools=TOOLS)) == ("plain", "with tools")
