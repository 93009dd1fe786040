"""llama.cpp as a peer, by its C functions. The package xllamacpp has them in its extension module, and offers
only a server in Python, whose sampling and messages would be timed too.

Structures are passed as blocks that are larger than any version's. Only three of their fields are set, which
come first, and the engine confirms them."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Mapping
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from jangin.bench.engine import Engine, Job
from jangin.ir.graph import Array

LEAST = 256
"""llama.cpp's contexts are multiples of this number of tokens."""
_Log = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)


class _Block(ctypes.Structure):
    """A structure of llama.cpp as words. The largest has some 200 bytes."""

    _fields_ = (("words", ctypes.c_uint32 * 256),)


def _library() -> Any:
    """Return the functions of llama.cpp, with the types that they take and return."""
    spec = find_spec("xllamacpp")
    places = spec.submodule_search_locations if spec else None
    if not places:
        raise ModuleNotFoundError("xllamacpp, which is llama.cpp, is not installed: pip install xllamacpp")
    library = ctypes.CDLL(str(next(Path(places[0]).glob("xllamacpp*.so"))))
    pointer, number, text = ctypes.c_void_p, ctypes.c_int32, ctypes.c_char_p
    types: dict[str, tuple[Any, list[Any]]] = {
        "llama_log_set": (None, [_Log, pointer]),
        "llama_backend_init": (None, []),
        "llama_model_default_params": (_Block, []),
        "llama_context_default_params": (_Block, []),
        "llama_model_load_from_file": (pointer, [text, _Block]),
        "llama_init_from_model": (pointer, [pointer, _Block]),
        "llama_n_ctx": (ctypes.c_uint32, [pointer]),
        "llama_n_batch": (ctypes.c_uint32, [pointer]),
        "llama_n_ubatch": (ctypes.c_uint32, [pointer]),
        "llama_set_n_threads": (None, [pointer, number, number]),
        "llama_model_get_vocab": (pointer, [pointer]),
        "llama_vocab_n_tokens": (number, [pointer]),
        "llama_get_memory": (pointer, [pointer]),
        "llama_memory_seq_rm": (ctypes.c_bool, [pointer, number, number, number]),
        "llama_batch_get_one": (_Block, [pointer, number]),
        "llama_decode": (number, [pointer, _Block]),
        "llama_get_logits_ith": (ctypes.POINTER(ctypes.c_float), [pointer, number]),
    }
    for name, (result, arguments) in types.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library


def llama_cpp(job: Job) -> Engine:
    """Return llama.cpp, which reads the job's tokens and returns the last token's logits.

    If the job has a cache of earlier tokens, llama.cpp first reads as many tokens of its own, because it
    takes no cache from outside. It then returns nothing, because its logits can't be compared."""
    if Path(job.model).suffix != ".gguf":
        raise ValueError(f"llama.cpp takes a .gguf file, not {job.model}")
    feeds = job.feeds()
    given = np.ascontiguousarray(feeds["tokens"].reshape(-1), np.int32)
    past = next((a.shape[1] for name, a in feeds.items() if name.startswith("past_key.")), 0)
    api = _library()
    silent = _Log(lambda *_: None)
    api.llama_log_set(silent, None)
    start = time.perf_counter()
    api.llama_backend_init()
    model = api.llama_model_load_from_file(job.model.encode(), api.llama_model_default_params())
    if not model:
        raise ValueError(
            f"llama.cpp could not load {job.model}: run its own program on the file for the reason"
        )
    asked = [-(-(past + len(given)) // LEAST) * LEAST, max(past, len(given)), max(past, len(given))]
    settings = api.llama_context_default_params()
    settings.words[:3] = asked
    context = api.llama_init_from_model(model, settings)
    if not context or [api.llama_n_ctx(context), api.llama_n_batch(context)] != asked[:2]:
        raise ValueError(
            "llama.cpp gave no context: install the version of xllamacpp that the extra `llamacpp` names, "
            "or use a smaller model"
        )
    api.llama_set_n_threads(context, job.threads, job.threads)
    memory, words = api.llama_get_memory(context), api.llama_vocab_n_tokens(api.llama_model_get_vocab(model))

    def read(tokens: Array) -> None:
        if len(tokens) and api.llama_decode(
            context, api.llama_batch_get_one(tokens.ctypes.data, len(tokens))
        ):
            raise ValueError(f"llama.cpp could not read {len(tokens)} tokens: give fewer")

    read(np.ones(past, np.int32))

    def call() -> Mapping[str, Array]:
        api.llama_memory_seq_rm(memory, 0, past, -1)
        read(given)
        logits = np.ctypeslib.as_array(api.llama_get_logits_ith(context, -1), (words,))
        return {} if past else {"logits": logits.reshape(1, 1, -1).copy()}

    call.keep = (api, silent, model)  # type: ignore[attr-defined]
    return Engine(call, metadata.version("xllamacpp"), time.perf_counter() - start)
