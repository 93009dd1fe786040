"""SmolLM2-135M with a cache of symbolic length: one plan reads prompts and adds tokens, and its text is
ONNX Runtime's."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from compared import error

import jangin

pytestmark = pytest.mark.slow

for module in ("gguf", "tokenizers"):
    pytest.importorskip(module, reason=f"{module} is not installed (see the extra `models`)")

TOKENS, THREADS = 64, 2
PROMPTS = (
    "The capital of France is",
    "Once upon a time, in a village by the sea,",
    "<|im_start|>user\nWhat is a compiler?<|im_end|>\n<|im_start|>assistant\n",
)


@pytest.fixture(scope="module")
def file() -> Any:
    from generate import weights

    return weights()


@pytest.fixture(scope="module")
def compiled(file: Any) -> Any:
    from generate import compiled, onnx_model

    exe = compiled(onnx_model(file), THREADS, cache=False)
    assert isinstance(exe, jangin.Executable)  # one plan, nothing in Python
    return exe


def test_text_is_onnx_runtimes(file: Any, compiled: Any) -> None:
    from generate import generate, onnx_model, onnxruntime
    from llama import build_tokenizer

    tokenizer = build_tokenizer(file)
    theirs = onnxruntime(onnx_model(file), THREADS)
    for text in PROMPTS:
        prompt = tokenizer.encode(text).ids
        assert tokenizer.decode(prompt, skip_special_tokens=False) == text
        ours, speed = generate(compiled.run, file, prompt, TOKENS)
        expected, their_speed = generate(theirs, file, prompt, TOKENS)
        print(f"\nJangin: {speed}; ONNX Runtime: {their_speed}\n{text}{tokenizer.decode(ours)}")
        assert ours == expected
        if text == PROMPTS[0]:
            assert tokenizer.decode(ours).startswith(" Paris.")


def test_the_cache_stands_for_what_was_read(compiled: Any) -> None:
    tokens = np.random.default_rng(0).integers(100, 40000, (1, 48))
    empty = {s.name: np.zeros((1, 3, 0, 64), np.float32) for s in compiled.inputs if s.name != "tokens"}
    whole = compiled.run({"tokens": tokens, **empty})["logits"]
    part = compiled.run({"tokens": tokens[:, :31], **empty})
    cache = {name: part[name.replace("past", "present")] for name in empty}
    assert error(compiled.run({"tokens": tokens[:, 31:], **cache})["logits"], whole) < 1e-4
