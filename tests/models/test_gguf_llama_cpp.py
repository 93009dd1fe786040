"""GGUF files beside llama.cpp: the tokens of each pre-tokenizer, and the logits of each setting of
positions."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import numpy as np
import pytest

import jangin

xllamacpp = pytest.importorskip("xllamacpp", reason="xllamacpp, which is llama.cpp, isn't installed")
gguf = pytest.importorskip("gguf", reason="gguf is not installed (see the extra `gguf`)")
pytest.importorskip("tokenizers", reason="tokenizers is not installed (see the extra `gguf`)")

from gguf_files import pieces, vocabulary, write  # noqa: E402

from jangin.frontends.gguf.text import Text  # noqa: E402
from jangin.frontends.gguf.words import GPT4O, TEKKEN, WORDS  # noqa: E402

PIECES = (
    "a", "Z", "é", "ß", "中文", "の", "ア", "１２", "12345", "9", "'s", "'LL", "don't", " ", "  ", "\t", "\n",
    "\r\n", "\n\n", "!", "...", "$", "+=", "`", "~", "<|", "=>", "^", "_", "-", "/", "//", "🙂", "Ω", "ي",
    "x1y22z333", "HelloWorld", "fooBAR", "ǅ", "²", "½", "\u3000", "\u00a0", "(", ")", "#!", "zebra",
    "<think>", "<|im_end|>",
)  # fmt: skip
"""Texts that pre-tokenizers split differently."""
ONES = b" aZ19'sLdonte!.$+=`~<|>^_-/xyzHlWrfBARO(#\t\n\r"
PAIRS = [bytes((a, b)) for a in ONES for b in ONES]
PAIRS += [bytes((a, b)) for a in range(0xC2, 0xF1) for b in range(0x80, 0xC0)]
"""Pairs of bytes that are merged within a word, so that tokens show where words are split."""
UNCASED = tuple(piece for piece in PIECES if piece.isascii() or piece.lower() == piece.upper())
BY_CASE = ("gpt-4o", "llama4", "tekken")
"""Pre-tokenizers that split between small and capital letters. llama.cpp knows case in ASCII only. Elsewhere
it takes each letter as both, and the models' own tokenizers don't."""
TEXTS = 100
COUNT = 20
"""The number of likeliest tokens that are compared."""


class LlamaCpp:
    """llama.cpp's server, called over HTTP as its users call it."""

    def __init__(self, path: Path) -> None:
        params = xllamacpp.CommonParams()
        params.model.path, params.n_ctx, params.verbosity = str(path), 256, -1
        params.cpuparams.n_threads, params.n_parallel, params.port = 1, 1, 0
        params.warmup = params.fit_params = False
        self._server = xllamacpp.Server(params)

    def __call__(self, what: str, **asked: Any) -> Any:
        body = json.dumps(asked).encode()
        request = Request(
            f"{self._server.listening_address}/{what}", body, {"Content-Type": "application/json"}
        )
        with urlopen(request, timeout=600) as answer:
            return json.load(answer)


@pytest.mark.parametrize("pre", [None, *WORDS])
def test_tokens(pre: str | None, tmp_path: Path) -> None:
    path = write(tmp_path / "m.gguf", more=lambda w: vocabulary(w, pre, PAIRS, [b"zebra"]))
    theirs, ours = LlamaCpp(path), Text(path)
    seed = random.randrange(1 << 31)
    draw = random.Random(seed)
    pieces = UNCASED if pre in BY_CASE else PIECES
    for _ in range(TEXTS):
        text = "".join(draw.choice(pieces) for _ in range(draw.randint(1, 9)))
        wanted = theirs("tokenize", content=text, parse_special=True, add_special=True)["tokens"]
        assert ours.encode(text) == wanted, f"{text!r}, seed {seed}"


BESIDE = (
    "hello", "world", " ", "  ", "   ", "abc", "G", "<s>", "</s>", "<mark>", "<|user|>", "é", "日", "\n",
    "\t", "a", " hello", "#",
)  # fmt: skip
"""Texts that may stand beside special tokens, where engines put spaces that don't belong there."""


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"add_space_prefix": False},
        {"add_bos_token": False},
        {"add_bos_token": False, "add_eos_token": True},
    ],
)
def test_pieces(settings: dict[str, bool], tmp_path: Path) -> None:
    path = write(tmp_path / "m.gguf", more=lambda w: pieces(w, **settings))
    theirs, ours = LlamaCpp(path), Text(path)
    seed = random.randrange(1 << 31)
    draw = random.Random(seed)
    for _ in range(TEXTS):
        text = "".join(draw.choice(BESIDE) for _ in range(draw.randint(1, 7)))
        wanted = theirs("tokenize", content=text, parse_special=True, add_special=True)["tokens"]
        assert ours.encode(text) == wanted, f"{text!r}, seed {seed}"


@pytest.mark.parametrize(
    ("text", "words"),
    [("हि x", ["हि", " x"]), ("zebraΩzebra", ["zebra", "Ωzebra"]), ("éZa", ["é", "Za"]), ("ǅa", ["ǅa"])],
)
def test_marks_and_case_beyond_ascii(text: str, words: list[str]) -> None:
    """The models' own expressions, tried by their own tokenizer, split correctly at marks and capitals.

    llama.cpp lacks Unicode's classes of marks and cases. It splits a word before a mark, and doesn't split
    before a Greek capital."""
    from tokenizers import Regex, pre_tokenizers

    for pattern in (GPT4O, TEKKEN):
        cut = pre_tokenizers.Split(Regex(pattern), "isolated")
        assert [word for word, _ in cut.pre_tokenize_str(text)] == words


def positions(*settings: tuple[str, str | float]) -> Callable[[Any], int]:
    def more(writer: Any) -> int:
        for key, value in settings:
            add = writer.add_string if isinstance(value, str) else writer.add_float32
            add(f"llama.rope.{key}", value)
        return vocabulary(writer)

    return more


POSITIONS = {
    "plain": (), "a factor alone": (("scaling.factor", 4.0),), "the old key": (("scale_linear", 4.0),),
    "linear": (("scaling.type", "linear"), ("scaling.factor", 4.0)),
    "none": (("scaling.type", "none"), ("scaling.factor", 4.0)),
    "both": (("scaling.factor", 2.0), ("scale_linear", 4.0)),
    "a factor of attention": (("scaling.factor", 2.0), ("scaling.attn_factor", 1.5)),
}  # fmt: skip


@pytest.mark.parametrize("settings", POSITIONS)
def test_logits(settings: str, tmp_path: Path) -> None:
    """Logarithms of probabilities differ by at most 0.02, because llama.cpp keeps keys and values in float16.
    A wrong factor makes them differ by 0.2 to 3."""
    path = write(tmp_path / "m.gguf", more=positions(*POSITIONS[settings]))
    theirs, rng = LlamaCpp(path), np.random.default_rng(7)
    answer: dict[str, Any] = {}
    while not answer.get("completion_probabilities"):  # it has none if the likeliest token ends the text
        tokens = rng.integers(0, 256, 30).tolist()
        answer = theirs("completion", prompt=tokens, n_predict=1, n_probs=COUNT, temperature=0)
    found = answer["completion_probabilities"][0]["top_logprobs"]
    exe = jangin.compile(path, threads=1, cache=False, isolated=False)
    past = {s.name: np.zeros((1, 0, 2, 16), np.float32) for s in exe.inputs if s.name != "tokens"}
    logits = exe.run({"tokens": np.array([tokens]), **past})["logits"].reshape(-1).astype(np.float64)
    ours = logits - np.log(np.exp(logits - logits.max()).sum()) - logits.max()
    for token in found:
        assert abs(ours[token["id"]] - token["logprob"]) < 0.02, token
