"""NNEF's operations that compare, with NaN, infinities, both zeros and ties, against NNEF-Tools' interpreter.

If the interpreter lacks an operation or contradicts the standard, the reference is the standard's definition
in NumPy. NaN is treated as in NumPy, as in all formats.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from nnef_operations import here, reference, torched, value

sys.path.insert(0, str(Path(__file__).parents[2] / "ops"))

from numbers_in_order import LEFT, RIGHT, ROWS, all_told, pooled, softmax

import jangin
from jangin.frontends.nnef.operators import OPERATIONS

__all__ = ["here"]

Array = np.ndarray[Any, Any]
Case = tuple[str, dict[str, Any], Callable[..., Any] | None]
IMAGE = ROWS.reshape(1, 2, 8, 8)
GIVEN = {"x": ROWS, "l": LEFT, "r": RIGHT, "i": IMAGE, "p": LEFT > RIGHT, "s": np.full((1, 16), 0.2, "f4")}
WINDOW = {"size": [1, 1, 2, 2], "stride": [1, 1, 2, 2], "border": "ignore", "padding": [(0, 0)] * 4}
PADDED = {**WINDOW, "size": [1, 1, 3, 3], "padding": [(0, 0), (0, 0), (1, 1), (1, 1)]}
ALONE = ("abs", "relu", "elu", "silu", "softplus")
PAIRS = ("min", "max", "lt", "gt", "le", "ge", "eq", "ne")


def places(find: Callable[..., Array]) -> Callable[[Array], Array]:
    return lambda x: find(x, axis=1)[:, None]


CASES: dict[str, Case] = {
    **{f"{name}(x)": (name, {}, None) for name in ALONE},
    **{f"{name}(l, r)": (name, {}, None) for name in PAIRS},
    "sign(x)": ("sign", {}, np.sign),
    "selu(x)": ("selu", {}, lambda x: 1.0507009873 * np.where(x > 0, x, 1.6732632423 * np.expm1(x))),
    "leaky_relu(x)": ("leaky_relu", {"alpha": 0.2}, None),
    "hard_sigmoid(x)": ("hard_sigmoid", {}, lambda x: np.clip(0.2 * x + 0.5, 0, 1)),
    "prelu(x, s)": ("prelu", {}, lambda x, s: np.where(x < 0, x * s, x)),
    "select(p, l, r)": ("select", {}, np.where),
    "clamp(x)": ("clamp", {"a": -1.0, "b": 2.0}, lambda x: np.maximum(np.minimum(x, 2), -1)),
    "crossed clamp(x)": ("clamp", {"a": 2.0, "b": -1.0}, lambda x: np.maximum(np.minimum(x, -1), 2)),
    "cast<logical>(x)": ("cast", {}, lambda x: x != 0),
    "softmax(x)": ("softmax", {"axes": [1]}, lambda x: softmax(x, 1)),
    "softmax(i)": ("softmax", {"axes": [2, 3]}, lambda x: softmax(x.reshape(1, 2, 64), 2).reshape(x.shape)),
    "log_softmax(x)": ("log_softmax", {"axes": [1]}, lambda x: np.log(softmax(x, 1))),
    "max_reduce(x)": ("max_reduce", {"axes": [1]}, lambda x: x.max(1, keepdims=True)),
    "max_reduce(i)": ("max_reduce", {"axes": [0, 3]}, lambda x: x.max((0, 3), keepdims=True)),
    "min_reduce(x)": ("min_reduce", {"axes": [0]}, lambda x: x.min(0, keepdims=True)),
    "any_reduce(p)": ("any_reduce", {"axes": [1]}, lambda x: x.any(1, keepdims=True)),
    "all_reduce(p)": ("all_reduce", {"axes": [1]}, lambda x: x.all(1, keepdims=True)),
    "argmax_reduce(x)": ("argmax_reduce", {"axes": [1]}, places(np.argmax)),
    "argmin_reduce(x)": ("argmin_reduce", {"axes": [1]}, places(np.argmin)),
    "max_pool(i)": ("max_pool", WINDOW, lambda x: pooled(x, 2, 2)),
    "padded max_pool(i)": ("max_pool", PADDED, lambda x: pooled(x, 3, 2, 1)),
    "min_max_linear_quantize(x)": (
        "min_max_linear_quantize", {"min": -1.0, "max": 2.0, "bits": 4, "signed": False, "symmetric": False},
        lambda x: np.round((np.clip(x, -1, 2) + 1) / 3 * 15) / 15 * 3 - 1,
    ),
    "linear_quantize(x)": (
        "linear_quantize", {"min": -1.0, "max": 2.0, "bits": 4},
        lambda x: np.round((np.clip(x, -1, 2) + 1) / 3 * 15) / 15 * 3 - 1,
    ),
    "zero_point_linear_quantize(x)": (
        "zero_point_linear_quantize",
        {"zero_point": 3, "scale": 0.5, "bits": 4, "signed": True, "symmetric": False},
        lambda x: (np.clip(np.round(x / 0.5) + 3, -8, 7) - 3) * 0.5,
    ),
    "logarithmic_quantize(x)": (
        "logarithmic_quantize", {"max": 4.0, "bits": 3},
        lambda x: np.sign(x) * 2.0 ** np.round(np.clip(np.log2(np.abs(x)), 2 - 7, 2)),
    ),
}  # fmt: skip
DECLARED = {
    "hard_sigmoid": "x: tensor<scalar>", "log_softmax": "x: tensor<scalar>, axes: integer[]",
}  # fmt: skip
"""Operations beyond the standard, which a model declares."""
WHERE = ("max_pool_with_index", "argmax_pool")
REGION = ("max_roi_pool", "max_roi_align")
COMPARING = {name for name, _, _ in CASES.values()} | {*WHERE, *REGION}
APART = {
    # functions of one number
    "exp", "log", "log2", "sin", "cos", "tan", "sinh", "cosh", "tanh", "asin", "acos", "atan", "asinh",
    "acosh", "atanh", "floor", "ceil", "round", "sqrt", "sigmoid", "erf", "neg", "rcp", "sqr", "rsqr",
    "rsqrt", "gelu", "softabs",
    # arithmetic, and logic of booleans
    "add", "sub", "mul", "div", "pow", "add_n", "and", "or", "not", "copy", "copy_n", "update",
    # operators that move elements
    "pad", "reshape", "transpose", "concat", "split", "slice", "squeeze", "unsqueeze", "stack", "unstack",
    "tile", "gather", "sample", "desample", "max_unpool", "avg_unpool", "nearest_upsample",
    # sums
    "mean_reduce", "sum_reduce", "moments", "layer_normalization", "rms_normalization",
    "batch_normalization", "matmul", "linear", "avg_pool", "roi_resample", "avg_roi_pool", "avg_roi_align",
    "conv", "deconv", "box", "debox", "multilinear_upsample", "local_response_normalization",
}  # fmt: skip
"""Operations that compare no elements. The standard defines those of `DEFINED` by other operations."""


def text() -> str:
    kinds = {"f": "scalar", "b": "logical"}
    lines = [f"{n} = external<{kinds[a.dtype.kind]}>(shape = {list(a.shape)});" for n, a in GIVEN.items()]
    for n, (call, (name, given, _)) in enumerate(CASES.items()):
        inputs = call[call.index("(") + 1 : -1]
        more = "".join(f", {k} = {value(v)}" for k, v in given.items())
        lines.append(f"y{n} = {call.split('(')[0] if name == 'cast' else name}({inputs}{more});")
    more = "".join(f", {k} = {value(v)}" for k, v in WINDOW.items())
    lines += [f"best, at = max_pool_with_index(i{more});", f"place = argmax_pool(i{more});"]
    declared = "".join(
        f"fragment {name}( {given} ) -> ( y: tensor<scalar> ); " for name, given in DECLARED.items()
    )
    outputs = [*(f"y{n}" for n in range(len(CASES))), "best", "at", "place"]
    head = f"version 1.0; extension KHR_enable_fragment_definitions; {declared}"
    return f"{head} graph G({', '.join(GIVEN)}) -> ({', '.join(outputs)}) {{ {' '.join(lines)} }}"


@cache
def results() -> Mapping[str, Array]:
    exe = jangin.compile(text().encode(), threads=1, cache=False, isolated=False)
    return exe.run(GIVEN)


@pytest.mark.parametrize("call", CASES)
def test_as_the_standard_says(call: str) -> None:
    name, given, oracle = CASES[call]
    inputs = [GIVEN[n] for n in call[call.index("(") + 1 : -1].split(", ")]
    with np.errstate(all="ignore"):
        if oracle is None:
            wanted = reference[name](*map(torched, inputs), **given).numpy()
        else:
            wanted = oracle(*(a.astype(np.float64) if a.dtype.kind == "f" else a for a in inputs))
    got = results()[f"y{list(CASES).index(call)}"]
    assert got.shape == wanted.shape
    np.testing.assert_allclose(got.astype(np.float64), wanted.astype(np.float64), 1e-5, 1e-6)


def test_where_maxima_stand() -> None:
    """The index of a maximum is at the first NaN of a window, or at the first of equal maxima."""
    best, at, place = (results()[n] for n in ("best", "at", "place"))
    np.testing.assert_array_equal(best, pooled(IMAGE, 2, 2))
    np.testing.assert_array_equal(place, at)
    windows = np.lib.stride_tricks.sliding_window_view(IMAGE, (2, 2), (2, 3))[:, :, ::2, ::2]
    first = windows.reshape(*windows.shape[:4], 4).argmax(-1)
    rows, columns = np.meshgrid(range(0, 8, 2), range(0, 8, 2), indexing="ij")
    np.testing.assert_array_equal(at.reshape(first.shape), (rows + first // 2) * 8 + columns + first % 2)


@pytest.mark.parametrize("name", REGION)
def test_maxima_of_regions(name: str) -> None:
    """The region is as large as the image, and each cell is a quarter of it. A NaN is the maximum of its
    cell."""
    more = ", sampling_rate = [2, 2]" if name == "max_roi_align" else ""
    graph = (
        "version 1.0; graph G(i, x, b) -> (y) { i = external<scalar>(shape = [1, 2, 8, 8]); "
        "x = external<scalar>(shape = [1, 4]); b = external<integer>(shape = [1]); "
        f"y = {name}(i, x, b, output_size = [2, 2]{more}); }}"
    )
    exe = jangin.compile(graph.encode(), threads=1, cache=False, isolated=False)
    feeds = {"x": np.array([[0, 0, 8, 8]], np.float32), "b": np.zeros(1, np.int64)}
    image = np.random.default_rng(0).integers(-3, 3, (1, 2, 8, 8)).astype(np.float32)
    (plain,) = exe.run({**feeds, "i": image}).values()
    if name == "max_roi_pool":
        np.testing.assert_array_equal(plain, pooled(image, 4, 4))
    image[0, 0, :3, :3], image[0, 1, 5:, 5:] = np.nan, np.inf
    (got,) = exe.run({**feeds, "i": image}).values()
    plain[0, 0, 0, 0], plain[0, 1, 1, 1] = np.nan, np.inf if name == "max_roi_pool" else got[0, 1, 1, 1]
    np.testing.assert_array_equal(got, plain)


def test_every_operation_is_told() -> None:
    all_told(OPERATIONS, COMPARING, APART)
