"""Compare SmolLM2-135M token by token with llama.cpp, both from its Q4_1 file, and the products of a token
with ONNX Runtime's MatMulNBits.

    python benchmarks/tokens.py [--threads 1 2] [--turns 5] [--activations int8] [--caches]

`--activations` is the type of Jangin's operands of weights; llama.cpp's are int8. `--caches` measures a token
after a long text instead, by the type of the cache of keys and values.

The script needs `jangin[gguf]`, onnx, onnxruntime and llama-cpp-python, which builds llama.cpp in some
minutes. Engines take turns, each in this process. The peak memory is that of a process with one engine alone.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import llamacpp
import numpy as np
from llamacpp import COUNT, PROMPT, Engine, LlamaCpp, decoded, peak

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "examples"))
from catalogue import ROOT
from generate import Cache, compiled, smollm

import jangin
from jangin.frontends.format import ACTIVATIONS
from jangin.frontends.gguf.format import CACHES
from jangin.frontends.gguf.text import Text
from jangin.frontends.onnx.format import OnnxFormat

TEXT = "The capital of France is"
LONG = 1024
LAYERS, WIDTH, HEADS, HIDDEN, BLOCK = 30, 576, 192, 1536, 32
"""The sizes of SmolLM2-135M that decide its products."""
RUNS = 10
Array = np.ndarray[Any, Any]


class Jangin:
    """Jangin as an engine. `read(tokens)` returns the logits after these tokens and all earlier ones since
    `reset`."""

    def __init__(self, threads: int, activations: str) -> None:
        self.exe = compiled(smollm(), threads, activations=activations)
        self.cache = Cache(self.exe)

    def reset(self) -> None:
        self.cache.count = 0

    def read(self, tokens: Sequence[int]) -> Array:
        return self.cache.read(self.exe.run, list(tokens)).reshape(-1)


ENGINES: dict[str, Callable[[int, str], Engine]] = {
    "Jangin": Jangin, "llama.cpp": lambda threads, _: LlamaCpp(smollm(), threads),
}  # fmt: skip


def read(engine: Engine, prompt: Sequence[int]) -> float:
    """Return the tokens of a prompt that are read a second."""
    engine.reset()
    start = time.perf_counter()
    engine.read(prompt)
    return len(prompt) / (time.perf_counter() - start)


def prompts() -> tuple[list[int], list[int]]:
    """Return a short prompt, and one of `PROMPT` tokens."""
    return Text(smollm()).encode(TEXT), np.random.default_rng(0).integers(100, 40000, PROMPT).tolist()


def alone(name: str, threads: int, activations: str) -> float:
    """Return the peak memory in MiB of a process in which one engine reads each prompt and writes.
    llama.cpp's process doesn't import Jangin."""
    command = [sys.executable, __file__, "--alone", "--threads", str(threads), "--activations", activations]
    if name != "Jangin":
        command = [sys.executable, llamacpp.__file__, str(smollm()), str(threads)]
    given = json.dumps(prompts())
    return float(subprocess.run(command, check=True, capture_output=True, text=True, input=given).stdout)


def cache_rows(threads: int, turns: int) -> Iterator[str]:
    """Yield a row for each type of the cache.

    A row has the median milliseconds of a token after `LONG` others, and the cache's memory. It also has the
    largest difference of the logits to float32's, as a share of their largest."""
    text = Text(smollm()).encode((ROOT / "docs" / "overview.md").read_text(encoding="utf-8"))[: LONG + 1]
    runs, found, times = {}, {}, {kind: list[float]() for kind in CACHES}
    for kind in CACHES:
        exe = compiled(smollm(), threads, kept=kind)
        cache = Cache(exe)
        cache.read(exe.run, text[:LONG])
        runs[kind] = (cache, exe)
    for _ in range(turns * RUNS):
        for kind, (cache, exe) in runs.items():
            cache.count = LONG
            start = time.perf_counter()
            found[kind] = cache.read(exe.run, text[LONG:])
            times[kind].append(time.perf_counter() - start)
    exact = found["float32"]
    for kind, (cache, _) in runs.items():
        held = sum(a[:, :LONG].nbytes for a in cache.arrays.values()) / 2**20
        off = float(np.abs(found[kind] - exact).max() / np.abs(exact).max())
        yield f"| {kind} | {threads} | {statistics.median(times[kind]) * 1e3:.2f} | {held:.1f} | {off:.1e} |"


def products() -> bytes:
    """Return a model of a token's products in all layers, one after another, with blockwise weights of 4
    bits."""
    from onnx import TensorProto, helper, numpy_helper

    rng, nodes, constants = np.random.default_rng(0), [], []

    def product(x: str, width: int, columns: int) -> str:
        y, blocks = f"y{len(nodes)}", width // BLOCK
        parts = {
            "weights": rng.integers(0, 256, (columns, blocks, BLOCK // 2)).astype(np.uint8),
            "scales": (rng.random(columns * blocks) * 0.25 / width**0.5)
            .astype(np.float16)
            .astype(np.float32),
            "zeros": np.full(columns * -(-blocks // 2), 0x88, np.uint8),
        }
        constants.extend(numpy_helper.from_array(a, f"{y}.{n}") for n, a in parts.items())
        given = {"K": width, "N": columns, "bits": 4, "block_size": BLOCK}
        names = [x, *(f"{y}.{n}" for n in parts)]
        nodes.append(helper.make_node("MatMulNBits", names, [y], domain="com.microsoft", **given))
        return y

    def joined(kind: str, *inputs: str, **given: int) -> str:
        nodes.append(helper.make_node(kind, inputs, [f"y{len(nodes)}"], **given))
        return f"y{len(nodes) - 1}"

    x = "x"
    for _ in range(LAYERS):
        q, k, v = (product(x, WIDTH, n) for n in (WIDTH, HEADS, HEADS))
        attended = product(joined("Add", q, joined("Concat", k, v, k, axis=1)), WIDTH, WIDTH)
        gate, up = (product(attended, WIDTH, HIDDEN) for _ in range(2))
        x = joined("Tanh", product(joined("Mul", gate, up), HIDDEN, WIDTH))
    ends = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [1, WIDTH]) for n in ("x", x)]
    graph = helper.make_graph(nodes, "products", ends[:1], ends[1:], constants)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    return bytes(helper.make_model(graph, opset_imports=opsets, ir_version=10).SerializeToString())


def product_times(threads: int, turns: int) -> dict[str, float]:
    """Return the median milliseconds of a token's products."""
    import onnxruntime

    model, x = products(), np.random.default_rng(1).normal(size=(1, WIDTH)).astype(np.float32)
    calls: dict[str, Callable[[], Any]] = {}
    for kind in ACTIVATIONS:
        exe = jangin.compile(model, threads=threads, formats=[OnnxFormat(kind)])
        calls[f"Jangin, {kind}"] = lambda exe=exe: exe(x)
    for level in (0, 4):
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        session = onnxruntime.InferenceSession(with_level(model, level), options)
        calls[f"ONNX Runtime, accuracy level {level}"] = lambda s=session: s.run(None, {"x": x})[0]
    times: dict[str, list[float]] = {name: [] for name in calls}
    found = {name: call() for name, call in calls.items()}
    for kind, level in zip(ACTIVATIONS, (0, 4), strict=True):
        exact = found[f"ONNX Runtime, accuracy level {level}"]
        off = float(np.abs(found[f"Jangin, {kind}"] - exact).max() / np.abs(exact).max())
        print(f"products of a token by {kind}: off ONNX Runtime's at level {level} by {off:.1e}")
    for _ in range(turns * RUNS):
        for name, call in calls.items():
            start = time.perf_counter()
            call()
            times[name].append(time.perf_counter() - start)
    return {name: statistics.median(t) * 1e3 for name, t in times.items()}


def with_level(model: bytes, level: int) -> bytes:
    """Return the model with an accuracy level. Level 4 allows activations to be rounded to 8 bits."""
    import onnx

    made = onnx.load_from_string(model)
    for node in made.graph.node:
        if node.op_type == "MatMulNBits":
            node.attribute.append(onnx.helper.make_attribute("accuracy_level", level))
    return bytes(made.SerializeToString())


def measure(threads: int, turns: int, activations: str) -> list[str]:
    """Return the rows of the table for a number of threads."""
    engines = {name: make(threads, activations) for name, make in ENGINES.items()}
    short, long = prompts()
    written: dict[str, list[int]] = {}
    decoding: dict[str, list[float]] = {n: [] for n in engines}
    reading: dict[str, list[float]] = {n: [] for n in engines}
    for _ in range(turns):
        for name, engine in engines.items():
            reading[name].append(read(engine, long))
            written[name], rate = decoded(engine, short)
            decoding[name].append(rate)
    ours, theirs = written.values()
    same = next((n for n, (a, b) in enumerate(zip(ours, theirs, strict=True)) if a != b), COUNT)
    del engines
    memory = [alone(name, threads, activations) for name in ENGINES]
    rows = [row("tokens/s written", threads, [statistics.median(t) for t in decoding.values()])]
    rows.append(
        row(f"tokens/s of a prompt of {PROMPT}", threads, [statistics.median(t) for t in reading.values()])
    )
    rows.append(row("peak memory, MiB", threads, memory))
    return [*rows, f"| greedy tokens alike, of {COUNT} | {threads} | {same} | | |"]


def row(what: str, threads: int, values: Sequence[float]) -> str:
    ours, theirs = values
    return f"| {what} | {threads} | {ours:.1f} | {theirs:.1f} | {ours / theirs:.2f} |"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--activations", choices=ACTIVATIONS, default="float32", help="of Jangin")
    parser.add_argument("--alone", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--products", action="store_true", help="only the products beside ONNX Runtime")
    parser.add_argument("--caches", action="store_true", help="only the types of the cache")
    args = parser.parse_args()
    if args.caches:
        print(f"| cache of {LONG} | threads | ms a token | MiB | off float32's |")
        print("| --- | --- | --- | --- | --- |")
        for threads in args.threads:
            print("\n".join(cache_rows(threads, args.turns)), flush=True)
        return
    if args.alone:
        engine = Jangin(args.threads[0], args.activations)
        for prompt in json.load(sys.stdin):
            decoded(engine, prompt)
        print(peak())
        return
    if not args.products:
        print("| what | threads | Jangin | llama.cpp | ratio |\n| --- | --- | --- | --- | --- |")
        for threads in args.threads:
            print("\n".join(measure(threads, args.turns, args.activations)), flush=True)
    for threads in args.threads:
        times = product_times(threads, args.turns)
        print(
            f"products of a token, {threads} threads:", ", ".join(f"{n} {t:.2f} ms" for n, t in times.items())
        )


if __name__ == "__main__":
    main()
