"""SmolLM2-135M from its GGUF file, with a cache of symbolic length. Two plans share their weights: one reads
prompts, and one adds tokens. Their logits are compared with the network in float64."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from compared import error

import jangin

pytestmark = pytest.mark.slow

for module in ("gguf", "tokenizers", "jinja2"):
    pytest.importorskip(module, reason=f"{module} is not installed (see the extra `gguf`)")

TOKENS, THREADS = 24, 2


@pytest.fixture(scope="module")
def file() -> Path:
    from generate import smollm

    return smollm()


@pytest.fixture(scope="module")
def compiled(file: Path) -> Any:
    from generate import compiled

    exe = compiled(file, THREADS, cache=False)
    assert isinstance(exe, jangin.VariantsExecutable)  # plans for one and for more tokens
    return exe


def test_logits_are_the_networks(file: Path, compiled: Any) -> None:
    from generate import Cache
    from llama_reference import logits

    from jangin.frontends.gguf.file import File
    from jangin.frontends.gguf.text import Text

    text = Text(file)
    tokens = text.encode("The capital of France is")
    assert text.decode(tokens, marks=True) == "The capital of France is"
    found = Cache(compiled).read(compiled.run, tokens)
    wanted = logits(File(file), tokens)
    assert error(found[0, 0], wanted) < 1e-4
    assert text.decode([int(wanted.argmax())]) == " Paris"


def test_chat_answers(file: Path, compiled: Any) -> None:
    from generate import Cache, generate

    from jangin.frontends.gguf.text import Text

    text = Text(file)
    asked = text.chat([{"role": "user", "content": "What is a compiler?"}])
    assert asked.endswith("<|im_start|>user\nWhat is a compiler?<|im_end|>\n<|im_start|>assistant\n")
    tokens, speed = generate(compiled.run, Cache(compiled), text.encode(asked), TOKENS, text.ends)
    print(f"\n{speed}\n{text.decode(tokens)}")
    assert "compiler" in text.decode(tokens)


def test_the_cache_stands_for_what_was_read(compiled: Any) -> None:
    from generate import Cache

    tokens = np.random.default_rng(0).integers(100, 40000, 48).tolist()
    whole, parts = Cache(compiled).read(compiled.run, tokens), Cache(compiled)
    for part in (tokens[:31], tokens[31:46], tokens[46:47], tokens[47:]):
        found = parts.read(compiled.run, part)
    assert error(found, whole) < 1e-4
