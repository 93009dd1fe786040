"""Run llama.cpp as an engine that reads and writes tokens, alone in a process that doesn't import Jangin.

    python benchmarks/llamacpp.py MODEL THREADS < PROMPTS

PROMPTS is a JSON list of lists of tokens. The script prints the peak memory of the process in MiB, after a
text has been written behind each prompt. It needs llama-cpp-python, which builds llama.cpp in some minutes.
"""

from __future__ import annotations

import ctypes
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

COUNT, PROMPT, CONTEXT = 64, 512, 2048
Array = np.ndarray[Any, Any]


class Engine(Protocol):
    """An engine that reads tokens, and keeps what it has read until it is reset."""

    def reset(self) -> None:
        """Forget the tokens that were read."""

    def read(self, tokens: Sequence[int]) -> Array:
        """Return the logits [vocabulary] after these tokens and all earlier ones since `reset`."""


class LlamaCpp:
    """llama.cpp by its plain calls, without the code of llama-cpp-python around them."""

    def __init__(self, model: Path, threads: int) -> None:
        import llama_cpp

        self.api = llama_cpp
        self.silent = llama_cpp.llama_log_callback(lambda *_: None)
        llama_cpp.llama_log_set(self.silent, ctypes.c_void_p(0))
        llama_cpp.llama_backend_init()
        path = str(model).encode()
        self.model = llama_cpp.llama_model_load_from_file(path, llama_cpp.llama_model_default_params())
        params = llama_cpp.llama_context_default_params()
        params.n_ctx, params.n_batch, params.n_ubatch = CONTEXT, PROMPT, PROMPT
        params.n_threads = params.n_threads_batch = threads
        self.context = llama_cpp.llama_init_from_model(self.model, params)
        self.words = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(self.model))

    def reset(self) -> None:
        self.api.llama_memory_clear(self.api.llama_get_memory(self.context), False)

    def read(self, tokens: Sequence[int]) -> Array:
        given = (self.api.llama_token * len(tokens))(*tokens)
        if self.api.llama_decode(self.context, self.api.llama_batch_get_one(given, len(tokens))):
            raise RuntimeError("llama.cpp could not read the tokens")
        logits = self.api.llama_get_logits_ith(self.context, -1)
        return np.ctypeslib.as_array(logits, (self.words,))


def decoded(engine: Engine, prompt: Sequence[int]) -> tuple[list[int], float]:
    """Return the likeliest tokens after a prompt, and the speed in tokens a second after the first."""
    engine.reset()
    found = [int(engine.read(prompt).argmax())]
    start = time.perf_counter()
    while len(found) < COUNT:
        found.append(int(engine.read(found[-1:]).argmax()))
    return found, (COUNT - 1) / (time.perf_counter() - start)


def peak() -> float:
    """Return this process's peak memory so far, in MiB."""
    status = Path("/proc/self/status").read_text()
    return next(int(x.split()[1]) for x in status.splitlines() if x.startswith("VmHWM")) / 1024


def main() -> None:
    engine = LlamaCpp(Path(sys.argv[1]), int(sys.argv[2]))
    for prompt in json.load(sys.stdin):
        decoded(engine, prompt)
    print(peak())


if __name__ == "__main__":
    main()
