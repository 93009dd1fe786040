"""Search for slow operators: each alone, in shapes drawn as networks have them, against ONNX Runtime.

    python benchmarks/operators.py --seed 0 --cases 40 --threads 1
    python benchmarks/operators.py --minutes 10 --threads 1 2 --write

Each case is one operator in a model of its own, in a shape that the seed draws from the table below. Its
results must agree with ONNX Runtime's. The script prints, slowest first, the speed relative to ONNX Runtime
and the reached share of the bound.

The bound is the time of its operations at the speed of multiply-adds in registers, or of its bytes at the
bandwidth of a set. Both speeds are measured here. `--only NUMBER` with the same seed runs one case.
"""

from __future__ import annotations

import argparse
import itertools
import math
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper
from sections import Section, Table

import jangin
from jangin.bench.roofs import Roofs
from jangin.bench.roofs import measure as measure_roofs
from jangin.runtime.system.processor import processor_name

TURN = 0.03
"""Seconds of a turn. The two engines take turns."""
TURNS = 5
REST = 0.05
"""Seconds of rest after a turn of several threads. ONNX Runtime's threads keep spinning for some 30 ms."""
WORST = 20
"""The number of slowest cases that are listed."""
CLIFF = 0.5
"""A case is slow if its speed is below this share of ONNX Runtime's."""
TOLERANCE = 1e-3
"""The largest difference of results, as a share of the largest value. Sums are taken in other orders."""


@dataclass(frozen=True)
class Case:
    """A node over `inputs`, then `constants`. `flops` is the least that it needs."""

    op: str
    inputs: list[Any]
    constants: list[Any] = field(default_factory=list)
    attrs: Mapping[str, Any] = field(default_factory=dict)
    outputs: int = 1
    flops: float = 0.0

    def __str__(self) -> str:
        shapes = " ".join("x".join(map(str, a.shape)) or "scalar" for a in (*self.inputs, *self.constants))
        given = {k: v for k, v in self.attrs.items() if k not in ("pads", "kernel_shape")}
        return f"{self.op} {shapes} {' '.join(f'{k}={v}' for k, v in given.items())}".strip()


Draw = Callable[[np.random.Generator], Case]


def _pick(rng: np.random.Generator, *items: Any) -> Any:
    return items[rng.integers(len(items))]


def _floats(rng: np.random.Generator, *shape: int) -> Any:
    return rng.standard_normal(shape).astype(np.float32)


def _convolution(rng: np.random.Generator) -> Case:
    """Draw a convolution: grouped, depthwise, with few inputs or outputs, strided, dilated, of 1 to 3
    axes."""
    rank = _pick(rng, 1, 2, 2, 2, 2, 3)
    kind = _pick(rng, "plain", "plain", "pointwise", "groups", "depthwise", "few in", "few out")
    channels = int(_pick(rng, 16, 24, 32, 40, 64, 96, 128, 192, 256, 384, 512))
    size = int({1: 40000, 2: 200704, 3: 200704}[rank] / channels) ** (1 / rank)
    extent = max(5, int(size * rng.uniform(0.5, 1.2)))
    kernel = (
        1 if kind == "pointwise" else int(_pick(rng, 3, 3, 3, 5, 7, *([31] if kind == "depthwise" else [])))
    )
    kernel = min(kernel, extent) | 1
    stride, dilation = int(_pick(rng, 1, 1, 1, 2)), int(_pick(rng, 1, 1, 1, 2)) if kernel == 3 else 1
    outputs = int(channels * _pick(rng, 0.5, 1, 1, 2)) // 8 * 8
    width = int(_pick(rng, 4, 8, 16, 24, 32))
    if kind == "few in":
        channels = int(_pick(rng, 1, 1, 3, 4))
    if kind == "few out":
        outputs = int(_pick(rng, 1, 2, 3, 21))
    groups = 1
    if kind == "depthwise":
        groups, outputs = channels, channels * int(_pick(rng, 1, 1, 1, 2))
    elif kind == "groups" and channels % width == 0:
        groups, outputs = channels // width, channels
    w = _floats(rng, outputs, channels // groups, *(kernel,) * rank)
    reach = dilation * (kernel - 1)
    attrs = {
        "pads": [reach // 2] * (2 * rank),
        "group": groups,
        "strides": [stride] * rank,
        "dilations": [dilation] * rank,
    }
    positions = ((extent + reach // 2 * 2 - reach - 1) // stride + 1) ** rank
    x = _floats(rng, 1, channels, *(extent,) * rank)
    return Case("Conv", [x], [w / math.sqrt(w[0].size)], attrs, flops=2.0 * w.size * positions)


def _product(rng: np.random.Generator) -> Case:
    """Draw a product of one to a few hundred rows, by layers of transformers and classifiers."""
    rows = int(_pick(rng, 1, 2, 5, 7, 16, 49, 128, 197, 512))
    depth, columns = (
        int(_pick(rng, 1, 10, 64, 256, 384, 512, 768, 1000, 1024, 2048, 3072)) for _ in range(2)
    )
    depth = max(depth, 8)
    a, b = _floats(rng, rows, depth), _floats(rng, depth, columns)
    return Case("MatMul", [a], [b], flops=2.0 * rows * depth * columns)


def _attention_product(rng: np.random.Generator) -> Case:
    heads, width, tokens = (
        int(_pick(rng, 4, 8, 12, 16)),
        int(_pick(rng, 32, 64, 128)),
        int(_pick(rng, 49, 128, 197, 384)),
    )
    queries = int(_pick(rng, 1, tokens))
    a, b = _floats(rng, 1, heads, queries, width), _floats(rng, 1, heads, width, tokens)
    return Case("MatMul", [a, b], flops=2.0 * heads * queries * width * tokens)


def _image(rng: np.random.Generator) -> Any:
    channels = int(_pick(rng, 3, 16, 32, 64, 96, 128, 256))
    size = max(7, int(math.sqrt(_pick(rng, 50_000, 200_000, 800_000) / channels)))
    return _floats(rng, 1, channels, size, size)


def _pooling(rng: np.random.Generator) -> Case:
    kernel = int(_pick(rng, 2, 3, 3, 5))
    attrs = {
        "kernel_shape": [kernel] * 2,
        "strides": [int(_pick(rng, 1, 2))] * 2,
        "pads": [kernel // 2] * 4 if kernel % 2 else [0] * 4,
    }
    return Case(_pick(rng, "MaxPool", "AveragePool"), [_image(rng)], attrs=attrs)


def _reduction(rng: np.random.Generator) -> Case:
    x = _pick(rng, _image(rng), _floats(rng, 128, 768), _floats(rng, 16, 197, 192))
    axes = sorted({int(a) for a in rng.integers(0, x.ndim, _pick(rng, 1, 1, 2))})
    op = _pick(rng, "ReduceMean", "ReduceMax", "ReduceSum", "ReduceL2")
    return Case(op, [x], [np.array(axes)], {"keepdims": int(rng.integers(2))})


def _transpose(rng: np.random.Generator) -> Case:
    x = _pick(
        rng, _image(rng), _floats(rng, 1, 197, 12, 64), _floats(rng, 1000, 500), _floats(rng, 8, 20, 24, 30)
    )
    return Case("Transpose", [x], attrs={"perm": [int(p) for p in rng.permutation(x.ndim)]})


def _elementwise(rng: np.random.Generator) -> Case:
    op = _pick(
        rng, "Relu", "Sigmoid", "Tanh", "Exp", "Erf", "Gelu", "Softplus", "HardSwish", "Sqrt", "Sin", "Elu"
    )
    return Case(op, [np.abs(_image(rng)) + np.float32(0.1)])


def _normalization(rng: np.random.Generator) -> Case:
    rows, width = int(_pick(rng, 1, 49, 128, 512)), int(_pick(rng, 96, 384, 768, 1000))
    x = _floats(rng, rows, width)
    if rng.integers(2):
        return Case("Softmax", [x], attrs={"axis": -1})
    return Case("LayerNormalization", [x], [_floats(rng, width), _floats(rng, width)], {"axis": -1})


def _selection(rng: np.random.Generator) -> Case:
    n = int(_pick(rng, 1000, 8400, 30_000))
    return Case("TopK", [_floats(rng, 1, n)], [np.array([int(_pick(rng, 1, 5, 100, 300))])], outputs=2)


def _moving(rng: np.random.Generator) -> Case:
    """Draw a gather of rows, a concatenation or padding of images."""
    x, kind = _image(rng), rng.integers(3)
    if kind == 0:
        table, rows = _floats(rng, 5000, int(_pick(rng, 64, 384, 768))), rng.integers(0, 5000, (1, 128))
        return Case("Gather", [table, rows])
    if kind == 1:
        return Case("Concat", [x, _floats(rng, *x.shape)], attrs={"axis": 1})
    amounts = [0, 0, 1, 1] * 2
    return Case("Pad", [x], [np.array(amounts)], {"mode": _pick(rng, "constant", "reflect", "edge")})


DRAWS: tuple[tuple[int, Draw], ...] = (
    (8, _convolution), (4, _product), (2, _attention_product), (2, _pooling), (2, _reduction),
    (2, _transpose), (2, _elementwise), (2, _normalization), (1, _selection), (2, _moving),
)  # fmt: skip
"""Kinds of cases, with their frequencies."""


def draw(seed: int, number: int) -> Case:
    """Draw case `number` of a seed."""
    rng = np.random.default_rng((seed, number))
    weights = np.array([w for w, _ in DRAWS], float)
    return DRAWS[rng.choice(len(DRAWS), p=weights / weights.sum())][1](rng)


def model_of(case: Case) -> tuple[bytes, dict[str, Any]]:
    """Return the ONNX model of one node, and its inputs."""
    feeds = {f"x{i}": x for i, x in enumerate(case.inputs)}
    held = {f"c{i}": c for i, c in enumerate(case.constants)}
    results = [f"y{i}" for i in range(case.outputs)]
    node = helper.make_node(case.op, [*feeds, *held], results, **case.attrs)
    kinds = {n: helper.np_dtype_to_tensor_dtype(x.dtype) for n, x in feeds.items()}
    inputs = [helper.make_tensor_value_info(n, kinds[n], x.shape) for n, x in feeds.items()]
    initializers = [numpy_helper.from_array(c, n) for n, c in held.items()]
    graph = helper.make_graph(
        [node], "case", inputs, [onnx.ValueInfoProto(name=n) for n in results], initializers
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)
    return onnx.shape_inference.infer_shapes(model).SerializeToString(), feeds


def _seconds(sides: Mapping[str, Callable[[], Any]], rest: float) -> dict[str, float]:
    """Return the best median of each side's turns, with a rest after each turn."""
    best = dict.fromkeys(sides, math.inf)
    for _ in range(TURNS):
        for name, run in sides.items():
            found, end = [], time.perf_counter() + TURN
            while time.perf_counter() < end or len(found) < 3:
                start = time.perf_counter()
                run()
                found.append(time.perf_counter() - start)
            best[name] = min(best[name], float(np.median(found)))
            time.sleep(rest)
    return best


@dataclass(frozen=True)
class Figure:
    """A case on some threads: the speed relative to ONNX Runtime, the share of the bound, milliseconds."""

    ratio: float
    share: float
    milliseconds: float


@dataclass(frozen=True)
class Found:
    """A case with its number and its figures by threads, or the error `wrong`."""

    number: int
    case: Case
    figures: Mapping[int, Figure] = field(default_factory=dict)
    wrong: str = ""

    @property
    def worst(self) -> float:
        return min((f.ratio for f in self.figures.values()), default=0.0)


def measure(case: Case, threads: int, roofs: Roofs) -> Figure:
    """Measure a case. Raises ValueError if the two engines disagree."""
    import onnxruntime

    model, feeds = model_of(case)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = threads, 4
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    exe = jangin.compile(model, threads=threads, cache=False, isolated=False)
    want = session.run(None, feeds)
    got = exe.run(feeds)
    for g, w in zip(got.values() if isinstance(got, dict) else got, want, strict=True):
        if w.size and not np.abs(g - w).max() <= TOLERANCE * max(1.0, float(np.abs(w).max())):
            raise ValueError(f"{case}: {np.abs(g - w).max()} off")
    sides = {"jangin": lambda: exe.run(feeds), "onnxruntime": lambda: session.run(None, feeds)}
    best = _seconds(sides, REST if threads > 1 else 0.0)
    moved = sum(a.nbytes for a in (*case.inputs, *case.constants, *want))
    bound = max(case.flops / roofs.flops, moved / roofs.bandwidth(moved))
    return Figure(best["onnxruntime"] / best["jangin"], bound / best["jangin"], best["jangin"] * 1e3)


def hunt(seed: int, numbers: Iterator[int], threads: Sequence[int], minutes: float) -> list[Found]:
    """Measure cases until there are no more numbers or the time is up. Returns them, slowest first."""
    roofs = {t: measure_roofs(t) for t in threads}
    found, end = [], time.monotonic() + 60 * minutes
    for number in numbers:
        case = draw(seed, number)
        try:
            found.append(Found(number, case, {t: measure(case, t, roofs[t]) for t in threads}))
        except (ValueError, RuntimeError) as error:
            found.append(Found(number, case, wrong=f"{type(error).__name__}: {error}"))
        if time.monotonic() > end:
            break
    return sorted(found, key=lambda f: f.worst)


def _mean(ratios: Sequence[float]) -> float:
    return math.exp(sum(map(math.log, ratios)) / len(ratios)) if ratios else math.nan


def _summary(found: Sequence[Found], threads: int) -> str:
    ratios = [f.figures[threads].ratio for f in found if threads in f.figures]
    below = sum(r < CLIFF for r in ratios)
    return f"geometric mean {_mean(ratios):.2f} over {len(ratios)}; below {CLIFF}: {below}"


def section(found: Sequence[Found], seed: int, threads: Sequence[int]) -> Section:
    """Return the section with the results of a search."""
    said = (
        f"Written by `benchmarks/operators.py` (seed {seed}, {len(found)} cases drawn from distributions of "
        "shapes that networks have; `--only NUMBER` repeats one). Times as fast as ONNX Runtime, and the "
        f"share of the bound: operations or bytes. Processor: {processor_name()}."
    )
    lines = [f"- {t} thread{'s' * (t > 1)}: {_summary(found, t)}" for t in threads]
    lines += [f"- wrong: #{f.number} {f.case}: {f.wrong}" for f in found if f.wrong]
    timed = [f for f in found if f.figures]
    by_operator = []
    for op in sorted({f.case.op for f in timed}):
        ratios = [[f.figures[t].ratio for f in timed if f.case.op == op] for t in threads]
        shares = (text for r in ratios for text in (f"{_mean(r):.2f}", f"{min(r):.2f}"))
        by_operator.append([op, str(len(ratios[0])), *shares])
    slowest = []
    for f in timed[:WORST]:
        figures = [f.figures[t] for t in threads]
        texts = (t for g in figures for t in (f"{g.ratio:.2f}", f"{g.share:.0%}", f"{g.milliseconds:.3f}"))
        slowest.append([f"#{f.number} {f.case}", *texts])
    means = [h for t in threads for h in (f"{t}: mean", "least")]
    heads = [h for t in threads for h in (f"{t}: times", "of bound", "ms")]
    parts = [said, "\n".join(lines), "### By operator", Table(["operator", "cases", *means], by_operator)]
    parts += [f"### The {WORST} slowest", Table(["case", *heads], slowest)]
    return Section("Single operators beside ONNX Runtime", parts)


def main() -> None:
    parser = argparse.ArgumentParser(description="hunts for slow operators")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--cases", type=int, help="so many (40 without --minutes)")
    parser.add_argument("--minutes", type=float, default=math.inf, help="no case begins after them")
    parser.add_argument("--threads", type=int, nargs="+", default=[1])
    parser.add_argument("--only", type=int, help="this case alone")
    parser.add_argument("--write", action="store_true", help="keep what was found in benchmarks/results")
    args = parser.parse_args()

    cases = args.cases or (40 if math.isinf(args.minutes) else None)
    numbers = itertools.islice(itertools.count(), cases) if args.only is None else iter([args.only])
    found = hunt(args.seed, numbers, args.threads, args.minutes)
    for f in found:
        for t, g in f.figures.items():
            print(
                f"{g.ratio:7.2f}x {g.share:5.0%} of bound {g.milliseconds:9.3f} ms {t} #{f.number} {f.case}"
            )
        if f.wrong:
            print(f"  wrong: #{f.number} {f.case}: {f.wrong}")
    for t in args.threads:
        print(f"{t} threads: {_summary(found, t)}")
    if args.write:
        section(found, args.seed, args.threads).save("operators")
    sys.exit(any(f.wrong for f in found))


if __name__ == "__main__":
    main()
