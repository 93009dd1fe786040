"""Measure products and convolutions in every element type, to find types that fall behind float32.

    python benchmarks/element_types.py [--threads 1] [--only depthwise] [--write]

Each case is one layer in float32 and in smaller types. These are float16, bfloat16, bytes (QDQ, weights per
channel, as after a ReLU), and for a product blockwise weights of 4 bits. Images have their channels last, as
between layers.

The script prints milliseconds and the share of the bound that each type reaches. The bound is the time of its
operations, or of its bytes at the bandwidth of a set of their size. Operations use the best instruction for
the type, which is assumed to take as long as a multiply-add of float32. Both speeds are measured here.

A type is behind if its share is less than half of float32's; such types are marked. Shares over 100 % come
from Winograd's method. `--write` keeps the table.
"""

from __future__ import annotations

import argparse
import math
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
import onnx
from onnx import helper, numpy_helper
from page import products_at_once
from sections import Section, Table

import jangin
from jangin.bench.roofs import Roofs
from jangin.bench.roofs import measure as measure_roofs
from jangin.ir.dtype import F32, I32
from jangin.runtime.system.processor import processor_name
from jangin.targets import resolve
from jangin.targets.target import Target

Values = np.ndarray[Any, Any]
TYPES = ("float32", "float16", "bfloat16", "int8", "blocks of 4 bits")
FLOATS = {"float32": np.float32, "float16": np.float16, "bfloat16": ml_dtypes.bfloat16}
SUMS = {"bfloat16": F32, "int8": I32}
"""The types of sums for types whose instructions add several products."""
BLOCK = 32
"""Weights that share a scale."""
SECONDS = 0.1
"""Seconds of each type's turn."""
TURNS = 5
BEHIND = 0.5
"""A type is behind if its share of its bound is below this share of float32's."""


@dataclass(frozen=True)
class Case:
    """A convolution of `x` [1, C, H, W] by `w` [O, C / groups, K, K], or a product [M, K] by [K, N]."""

    name: str
    x: tuple[int, ...]
    w: tuple[int, ...]
    groups: int = 1
    stride: int = 1

    @property
    def attrs(self) -> dict[str, Any]:
        if len(self.w) == 2:
            return {}
        return {"group": self.groups, "strides": [self.stride] * 2, "pads": [self.w[-1] // 2] * 4}

    @property
    def flops(self) -> float:
        places = self.x[0] if len(self.w) == 2 else math.prod(-(-n // self.stride) for n in self.x[2:])
        return 2.0 * math.prod(self.w) * places


CASES = (
    Case("3×3, 64 → 64, 56²", (1, 64, 56, 56), (64, 64, 3, 3)),
    Case("3×3, 256 → 256, 14²", (1, 256, 14, 14), (256, 256, 3, 3)),
    Case("3×3 by 2, 128 → 128, 28²", (1, 128, 28, 28), (128, 128, 3, 3), stride=2),
    Case("1×1, 64 → 256, 56²", (1, 64, 56, 56), (256, 64, 1, 1)),
    Case("1×1, 512 → 128, 14²", (1, 512, 14, 14), (128, 512, 1, 1)),
    Case("7×7 by 2, 3 → 64, 224²", (1, 3, 224, 224), (64, 3, 7, 7), stride=2),
    Case("3×3 in 32 groups, 256, 28²", (1, 256, 28, 28), (256, 8, 3, 3), groups=32),
    Case("depthwise 3×3, 144, 56²", (1, 144, 56, 56), (144, 1, 3, 3), groups=144),
    Case("depthwise 3×3 by 2, 144, 56²", (1, 144, 56, 56), (144, 1, 3, 3), groups=144, stride=2),
    Case("depthwise 5×5, 240, 28²", (1, 240, 28, 28), (240, 1, 5, 5), groups=240),
    Case("1 row, 768 × 3072", (1, 768), (768, 3072)),
    Case("128 rows, 768 × 768", (128, 768), (768, 768)),
    Case("128 rows, 384 × 1536", (128, 384), (384, 1536)),
)


def models(case: Case, random: np.random.Generator) -> Iterator[tuple[str, onnx.ModelProto, Values]]:
    """Yield the layer in each type that supports it, with an input."""
    x, w = random.standard_normal(case.x), random.standard_normal(case.w) / math.sqrt(math.prod(case.w[1:]))
    op = "MatMul" if len(case.w) == 2 else "Conv"
    for name, dtype in FLOATS.items():
        given = _last(x.astype(dtype))
        node = helper.make_node(op, ["x", "w"], ["y"], **case.attrs)
        yield name, _model([node], given, {"w": w.astype(dtype)}, dtype), given
    bytes_ = _last(random.integers(0, 256, case.x, np.uint8))
    yield "int8", _of_bytes(case, op, bytes_, w), bytes_
    if op == "MatMul":
        yield "blocks of 4 bits", _of_blocks(case, x.astype(np.float32), random), x.astype(np.float32)


def _last(x: Values) -> Values:
    """Return images with their channels last."""
    return np.ascontiguousarray(np.moveaxis(x, 1, -1)) if x.ndim == 4 else x


def _model(nodes: Sequence[Any], x: Values, constants: Mapping[str, Values], result: Any) -> onnx.ModelProto:
    """Return a model. Images are transposed before and after; the compiler cancels these transpositions with
    its own."""
    if x.ndim == 4:
        nodes = [
            helper.make_node("Transpose", ["x"], ["first"], perm=[0, 3, 1, 2]),
            *(_renamed(n, {"x": "first", "y": "planes"}) for n in nodes),
            helper.make_node("Transpose", ["planes"], ["y"], perm=[0, 2, 3, 1]),
        ]
    kind, made = (helper.np_dtype_to_tensor_dtype(np.dtype(d)) for d in (x.dtype, result))
    graph = helper.make_graph(
        nodes, "layer", [helper.make_tensor_value_info("x", kind, x.shape)],
        [helper.make_tensor_value_info("y", made, None)],
        [numpy_helper.from_array(v, n) for n, v in constants.items()],
    )  # fmt: skip
    opsets = [helper.make_opsetid("", 22), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def _renamed(node: Any, names: Mapping[str, str]) -> Any:
    for values in (node.input, node.output):
        values[:] = [names.get(v, v) for v in values]
    return node


def _of_bytes(case: Case, op: str, x: Values, w: Values) -> onnx.ModelProto:
    axis = 1 if op == "MatMul" else 0
    most = np.abs(w).max(tuple(n for n in range(w.ndim) if n != axis), keepdims=True)
    constants = {
        "x_scale": np.float32(0.02), "x_zero": np.uint8(0),
        "y_scale": np.float32(0.1), "y_zero": np.uint8(128),
        "w": np.rint(w / most * 127).astype(np.int8), "w_scale": (most.ravel() / 127).astype(np.float32),
        "w_zero": np.zeros(w.shape[axis], np.int8),
    }  # fmt: skip
    nodes = [
        helper.make_node("DequantizeLinear", ["x", "x_scale", "x_zero"], ["xf"]),
        helper.make_node("DequantizeLinear", ["w", "w_scale", "w_zero"], ["wf"], axis=axis),
        helper.make_node(op, ["xf", "wf"], ["yf"], **case.attrs),
        helper.make_node("QuantizeLinear", ["yf", "y_scale", "y_zero"], ["y"]),
    ]
    return _model(nodes, x, {n: np.asarray(v) for n, v in constants.items()}, np.uint8)


def _of_blocks(case: Case, x: Values, random: np.random.Generator) -> onnx.ModelProto:
    k, n = case.w
    numbers = random.integers(0, 256, (n, k // BLOCK, BLOCK // 2), np.uint8)
    scales = random.uniform(0.01, 0.02, n * k // BLOCK).astype(np.float32)
    node = helper.make_node(
        "MatMulNBits", ["x", "w", "s"], ["y"], domain="com.microsoft", K=k, N=n, bits=4, block_size=BLOCK
    )
    return _model([node], x, {"w": numbers, "s": scales}, np.float32)


@dataclass(frozen=True)
class Figure:
    """Seconds, and the reached share of the bound."""

    seconds: float
    share: float


def measure(case: Case, threads: int, roofs: Roofs, target: Target) -> dict[str, Figure]:
    """Measure each type, in turns."""
    runs, bounds, times = {}, {}, dict[str, list[float]]()
    for name, model, x in models(case, np.random.default_rng()):
        exe = jangin.compile(model.SerializeToString(), threads=threads, cache=False)
        y = exe(x)
        weights = sum(numpy_helper.to_array(t).nbytes for t in model.graph.initializer)
        moved = x.nbytes + np.asarray(y).nbytes + weights
        speed = roofs.flops * (products_at_once(target, SUMS[name]) if name in SUMS else 1)
        bounds[name] = max(case.flops / speed, moved / roofs.bandwidth(moved))
        runs[name] = (exe, x)
    for _ in range(TURNS):
        for name, (exe, x) in runs.items():
            end = time.perf_counter() + SECONDS
            while time.perf_counter() < end:
                start = time.perf_counter()
                exe(x)
                times.setdefault(name, []).append(time.perf_counter() - start)
    found = {name: statistics.median(t) for name, t in times.items()}
    return {name: Figure(s, bounds[name] / s) for name, s in found.items()}


def cells(found: Mapping[str, Figure]) -> Iterator[str]:
    whole = min(1.0, found["float32"].share)
    for name in TYPES:
        if (f := found.get(name)) is None:
            yield "–"
            continue
        mark = " **behind**" if f.share < BEHIND * whole else ""
        yield f"{f.seconds * 1e3:.3f} ms, {f.share:.0%}{mark}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--only", default="", help="cases whose name has this")
    parser.add_argument("--write", action="store_true", help="keep the table in benchmarks/results")
    args = parser.parse_args()
    roofs, target, rows, behind, count = measure_roofs(args.threads), resolve("cpu"), [], 0, 0
    for case in (c for c in CASES if args.only in c.name):
        found = measure(case, args.threads, roofs, target)
        rows.append([case.name, *cells(found)])
        behind += sum("behind" in c for c in rows[-1])
        count += len(found) - 1
        print(" | ".join(rows[-1]), flush=True)
    said = f"{count - behind} of {count} layers in small numbers reach half of float32's share of its bound."
    print(said)
    if args.write:
        section(rows, said, args.threads, target).save(f"types_{target.name}")


def section(rows: Sequence[Sequence[str]], said: str, threads: int, target: Target) -> Section:
    made = (
        f"`python benchmarks/element_types.py --threads {threads}` on {processor_name()}: milliseconds of a "
        "layer alone, channels last, and the share of its bound that it reaches: its operations by the "
        "instruction for such numbers, if that takes as long as a multiply-add of float32, or its bytes; "
        f"what is over 100 % is Winograd's method. {said}"
    )
    return Section(f"Element types, {target.name}", [made, Table(["layer", *TYPES], rows)])


if __name__ == "__main__":
    main()
