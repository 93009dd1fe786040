"""Reads the problems of oneDNN's test program benchdnn: lines such as `mb1ic64ih56oc64oh56kh3ph1n"a name"`.

A problem's driver is the name of the folder in which its file lies, such as conv. The letters before a number
say which size it is. Sizes that a line leaves out follow from others, as benchdnn's documents say.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from operators import Case

DRIVERS = ("conv", "deconv", "matmul", "pool", "resampling", "rnn")
SIZE = re.compile(r"([a-z]+)(\d+)_?")
PRODUCT = re.compile(r"(\d+(?:x\d+)+):(\d+(?:x\d+)+)")
FLOAT, INT8 = "f32", "int8"


class Skipped(Exception):
    """A problem that has no single ONNX operator. The message says why."""


@dataclass(frozen=True)
class Problem:
    """A problem of one driver, with the folder's file and the line that it comes from."""

    driver: str
    file: str
    line: str

    @property
    def sizes(self) -> str:
        """The line without the problem's name."""
        return self.line.split('n"')[0].strip("_")

    def __str__(self) -> str:
        return f"{self.driver} {self.sizes}"


def problems(folder: Path, drivers: Sequence[str], patterns: Sequence[str]) -> list[Problem]:
    """Return the problems in the files of a folder's drivers whose names match a pattern, each line once."""
    found: dict[tuple[str, str], Problem] = {}
    for driver in drivers:
        for path in sorted({p for pattern in patterns for p in (folder / driver).glob(pattern)}):
            for line in path.read_text().splitlines():
                text = line.split("#")[0].strip()
                if text and not text.startswith("-"):
                    problem = Problem(driver, path.name, text)
                    found.setdefault((driver, problem.sizes), problem)
    return list(found.values())


def case_of(problem: Problem, kind: str, batch: int, rng: np.random.Generator) -> Case:
    """Return the operator with random data. Raises Skipped.

    `batch`: most images of a problem, or 0 for the line's own number.
    """
    if problem.driver == "matmul":
        return _product(problem.sizes, kind, rng)
    sizes = {name: int(number) for name, number in SIZE.findall(problem.sizes)}
    if batch and sizes.get("mb", 2) > batch:
        sizes["mb"] = batch
    return _MAKERS[problem.driver](sizes, kind, rng)


def _drawn(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return rng.standard_normal(shape).astype(np.float32)


def _product(text: str, kind: str, rng: np.random.Generator) -> Case:
    found = PRODUCT.match(text)
    if found is None:
        raise Skipped(f"{text} is no product of two shapes")
    left, right = ([int(n) for n in found[i].split("x")] for i in (1, 2))
    held = math.prod(right[:-2]) == 1 and math.prod(left[:-2]) == 1
    if not held and kind == INT8:
        raise Skipped("int8 products of computed operands")
    x, w = _drawn(rng, *left), _drawn(rng, *right) / np.float32(math.sqrt(right[-2]))
    return Case("MatMul", [x], [w]) if held else Case("MatMul", [x, w])


def _along(sizes: Mapping[str, int], letter: str, default: int | None) -> list[int]:
    """Return a size for each spatial axis. A line may leave out the width, or all but the depth."""
    axes = "dhw"[-_rank(sizes) :]
    found: list[int] = []
    for n, axis in enumerate(axes):
        before = found[n - 1] if n else default
        value = sizes.get(letter + axis, before)
        if value is None:
            raise Skipped(f"{letter}{axis} is missing")
        found.append(value)
    return found


def _rank(sizes: Mapping[str, int]) -> int:
    return 3 if "id" in sizes else 2 if "ih" in sizes else 1


def _window(sizes: Mapping[str, int], image: Sequence[int], result: Sequence[int]) -> dict[str, list[int]]:
    """Return the attributes of a window that gives `result` pixels of `image` pixels."""
    kernel, strides = _along(sizes, "k", 1), _along(sizes, "s", 1)
    steps = [n + 1 for n in _along(sizes, "d", 0)]
    before = _along(sizes, "p", 0)
    after = [
        (o - 1) * s + (k - 1) * d + 1 - i - p
        for o, s, k, d, i, p in zip(result, strides, kernel, steps, image, before, strict=True)
    ]
    if min((*before, *after)) < 0:
        raise Skipped("negative padding")
    return {"kernel_shape": kernel, "strides": strides, "dilations": steps, "pads": [*before, *after]}


def _results(sizes: Mapping[str, int], image: Sequence[int]) -> list[int]:
    """Return the pixels of a window's result: the line's own, or those of equal padding on both sides."""
    kernel, strides, before = _along(sizes, "k", 1), _along(sizes, "s", 1), _along(sizes, "p", 0)
    steps = [n + 1 for n in _along(sizes, "d", 0)]
    equal = [
        (i + 2 * p - (k - 1) * d - 1) // s + 1
        for i, p, k, d, s in zip(image, before, kernel, steps, strides, strict=True)
    ]
    return equal if not any(f"o{axis}" in sizes for axis in "dhw") else _along(sizes, "o", None)


def _conv(sizes: Mapping[str, int], kind: str, rng: np.random.Generator) -> Case:
    image, groups = _along(sizes, "i", None), sizes.get("g", 1)
    attrs = _window(sizes, image, _results(sizes, image))
    x = _drawn(rng, sizes.get("mb", 2), sizes["ic"], *image)
    w = _drawn(rng, sizes["oc"], sizes["ic"] // groups, *attrs["kernel_shape"])
    return Case("Conv", [x], [w / np.float32(math.sqrt(w[0].size))], {**attrs, "group": groups})


def _deconv(sizes: Mapping[str, int], kind: str, rng: np.random.Generator) -> Case:
    if kind == INT8:
        raise Skipped("ONNX has no transposed convolution of int8")
    image, groups = _along(sizes, "i", None), sizes.get("g", 1)
    attrs = _window(sizes, _along(sizes, "o", None), image)  # the other way round
    x = _drawn(rng, sizes.get("mb", 2), sizes["ic"], *image)
    w = _drawn(rng, sizes["ic"], sizes["oc"] // groups, *attrs["kernel_shape"])
    return Case("ConvTranspose", [x], [w / np.float32(math.sqrt(w[0].size))], {**attrs, "group": groups})


def _pool(sizes: Mapping[str, int], kind: str, rng: np.random.Generator) -> Case:
    if kind == INT8:
        raise Skipped("a pool computes nothing of int8 in ONNX")
    image = _along(sizes, "i", None)
    attrs = _window(sizes, image, _results(sizes, image))
    if any(d > 1 for d in attrs["dilations"]):
        raise Skipped("a dilated pool")
    if any(p >= k for p, k in zip(attrs["pads"], 2 * attrs["kernel_shape"], strict=True)):
        raise Skipped("padding of whole windows, which ONNX Runtime refuses")
    return Case("MaxPool", [_drawn(rng, sizes.get("mb", 2), sizes["ic"], *image)], [], attrs)


def _resampling(sizes: Mapping[str, int], kind: str, rng: np.random.Generator) -> Case:
    if kind == INT8:
        raise Skipped("ONNX Runtime resizes no int8 linearly")
    image, result = _along(sizes, "i", None), _along(sizes, "o", None)
    x = _drawn(rng, sizes.get("mb", 2), sizes["ic"], *image)
    scales = np.array([1, 1, *(o / i for o, i in zip(result, image, strict=True))], np.float32)
    return Case("Resize", [x], [np.zeros(0, np.float32), scales], {"mode": "linear"})


def _rnn(sizes: Mapping[str, int], kind: str, rng: np.random.Generator) -> Case:
    if kind == INT8 or sizes.get("l", 1) > 1 or "dic" in sizes:
        raise Skipped("several layers, a projection, or int8")
    inner = sizes["sic"]
    width, hidden = sizes.get("slc", inner), sizes.get("dhc", inner)
    x = _drawn(rng, sizes.get("t", 1), sizes.get("mb", 2), width)
    weights = [_drawn(rng, 1, 4 * hidden, n) / np.float32(math.sqrt(n)) for n in (width, hidden)]
    return Case("LSTM", [x], weights, {"hidden_size": hidden})


_MAKERS = {"conv": _conv, "deconv": _deconv, "pool": _pool, "resampling": _resampling, "rnn": _rnn}


def operations(case: Case) -> float:
    """Return the floating-point operations of a product, a convolution or a recurrence; else 0."""
    x, w = (*case.inputs, *case.constants)[0], (*case.inputs, *case.constants)[-1]
    match case.op:
        case "MatMul":
            return 2.0 * x.size * w.shape[-1]
        case "LSTM":
            return 2.0 * math.prod(x.shape[:2]) * sum(c.size for c in case.constants)
        case "ConvTranspose":
            return 2.0 * x.size * w[0].size
        case "Conv":
            pads, steps = case.attrs["pads"], case.attrs["strides"]
            rank = len(steps)
            spread = [
                (i + pads[n] + pads[n + rank] - d * (k - 1) - 1) // s + 1
                for n, (i, k, s, d) in enumerate(
                    zip(x.shape[2:], w.shape[2:], steps, case.attrs["dilations"], strict=True)
                )
            ]
            return 2.0 * x.shape[0] * math.prod(spread) * w.size
    return 0.0


def sample(found: Sequence[Problem], count: int, seed: int) -> Iterator[Problem]:
    """Yield problems in a random order, with as many of each driver as there are, up to `count` in all."""
    rng = np.random.default_rng(seed)
    by_driver = {d: [p for p in found if p.driver == d] for d in DRIVERS}
    orders = [iter([group[i] for i in rng.permutation(len(group))]) for group in by_driver.values() if group]
    left = count
    while orders and left:
        for order in list(orders):
            problem = next(order, None)
            if problem is None:
                orders.remove(order)
            elif left:
                left -= 1
                yield problem
