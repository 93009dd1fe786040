"""Every standard operation of NNEF, at odd sizes, against NNEF-Tools' interpreter in float64 where it has
one, else against NumPy."""

from __future__ import annotations

import functools
import io
import json
import subprocess
import tarfile
from collections.abc import Callable
from typing import Any

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto, helper

import jangin
from jangin.frontends import table
from jangin.frontends.lower import lower
from jangin.frontends.nnef import parser, parsing
from jangin.frontends.nnef.tensors import tensor_bytes
from jangin.ir.graph import CompileError
from jangin.ops.interpret import run_graph

nnef = pytest.importorskip("nnef", reason="nnef isn't installed: the extra `nnef` brings it")
torch = pytest.importorskip("torch", reason="PyTorch isn't installed: NNEF-Tools' interpreter runs on it")
reference = pytest.importorskip(
    "nnef_tools.interpreter.pytorch.nnef_operators", reason="nnef-tools isn't installed"
).Operators

TOLERANCE = 3e-6
"""Of the largest value: at most a few hundred float32 operations, each rounded to 6e-8."""
TYPES = {"f": "scalar", "i": "integer", "b": "logical"}
COVERED: set[str] = {"external", "variable", "constant"}
"""Operations that a test here is about (`covers`); those three are the tests' of whole models."""
SHOWN: set[str] = set()
"""Operations that the test that runs has shown to be right."""

Array = np.ndarray[Any, Any]


def given(*shapes: tuple[int, ...], low: float = -2.0, high: float = 2.0, seed: int = 0) -> list[Array]:
    random = np.random.default_rng(seed)
    return [random.uniform(low, high, s).astype(np.float32) for s in shapes]


def run(
    call: str, inputs: list[Array], results: str = "y", lists: int = 0, compiled: bool = False
) -> list[Array]:
    """The results of one invocation, whose tensors are x0, x1, ...; as compiled code gives them, or as the
    interpreter does."""
    names = [f"x{i}" for i in range(len(inputs))]
    lines = [
        f"{n} = external<{TYPES[a.dtype.kind]}>(shape = {list(a.shape)});"
        for n, a in zip(names, inputs, strict=True)
    ]
    outputs = [f"y{i}" for i in range(lists)] if lists else results.split(", ")
    left = f"[{', '.join(outputs)}]" if lists else results
    text = (
        f"version 1.0; graph G({', '.join(names)}) -> ({', '.join(outputs)}) "
        f"{{ {' '.join(lines)} {left} = {call}; }}"
    )
    feeds = dict(zip(names, inputs, strict=True))
    if compiled:
        found = jangin.compile(text.encode(), threads=1, cache=False).run(feeds)
    else:
        found = run_graph(lower(table.load(text.encode())), feeds)
    return [found[n] for n in outputs]


def near(got: Array, wanted: Any, what: str) -> None:
    wanted = np.asarray(wanted)
    assert got.shape == wanted.shape, what
    if got.dtype.kind != "f":
        assert np.array_equal(got, wanted), what
        return
    scale = np.abs(wanted[np.isfinite(wanted)]).max(initial=1e-9)
    np.testing.assert_allclose(got, wanted, rtol=0, atol=TOLERANCE * scale, err_msg=what)


def torched(array: Array) -> Any:
    return torch.from_numpy(array.astype(np.float64) if array.dtype.kind == "f" else array)


def value(v: Any) -> str:
    if isinstance(v, bool):
        return str(v).lower()
    if isinstance(v, str):
        return f"'{v}'"
    if isinstance(v, (list, tuple)):
        marks = "()" if isinstance(v, tuple) else "[]"
        return marks[0] + ", ".join(map(value, v)) + marks[1]
    return repr(v)


def covers(*names: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """What the decorated test is about: it must show all of that; or, where it is of one `name`, that one."""
    COVERED.update(names)

    def wrap(test: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(test)
        def run(*args: Any, **kwargs: Any) -> None:
            SHOWN.clear()
            test(*args, **kwargs)
            assert {kwargs["name"]} == SHOWN if "name" in kwargs else set(names) == SHOWN

        return run

    return wrap


def check(
    name: str,
    inputs: list[Array],
    oracle: Callable[..., Any] | None = None,
    compiled: bool = False,
    **given: Any,
) -> None:
    """One operation of single tensors, against the reference or an oracle of float64 arrays."""
    call = ", ".join(
        [*(f"x{i}" for i in range(len(inputs))), *(f"{k} = {value(v)}" for k, v in given.items())]
    )
    (got,) = run(f"{name}({call})", inputs, compiled=compiled)
    if oracle is None:
        wanted = reference[name](*map(torched, inputs), **given).numpy()
    else:
        wanted = oracle(*(a.astype(np.float64) if a.dtype.kind == "f" else a for a in inputs))
    near(got, wanted, f"{name}({call})")
    SHOWN.add(name)


@pytest.fixture(autouse=True)
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    """These hundreds of well-formed lines are parsed in this process."""

    def run(command: list[str], input: bytes, **_: Any) -> subprocess.CompletedProcess[bytes]:
        answer = parsing._parsed(json.loads(input))
        return subprocess.CompletedProcess(command, 0, json.dumps(answer).encode())

    monkeypatch.setattr(parser.subprocess, "run", run)


UNARY = {
    "exp": (-3, 3), "log": (0.1, 9), "sin": (-5, 5), "cos": (-5, 5), "tan": (-1, 1), "sinh": (-3, 3),
    "cosh": (-3, 3), "tanh": (-3, 3), "asin": (-0.9, 0.9), "acos": (-0.9, 0.9), "atan": (-5, 5),
    "asinh": (-5, 5), "acosh": (1.1, 5), "atanh": (-0.9, 0.9), "abs": (-2, 2), "sign": (-2, 2),
    "rcp": (0.2, 3), "neg": (-2, 2), "copy": (-2, 2), "floor": (-5, 5), "ceil": (-5, 5),
    "round": (-5, 5), "sqr": (-3, 3), "sqrt": (0, 9), "rsqr": (0.3, 3), "rsqrt": (0.1, 9), "log2": (0.1, 9),
    "relu": (-2, 2), "sigmoid": (-5, 5), "softplus": (-5, 5), "silu": (-5, 5),
}  # fmt: skip


@pytest.mark.parametrize("name", UNARY)
@covers(*UNARY)
def test_unary(name: str) -> None:
    check(name, given((2, 3, 5), low=UNARY[name][0], high=UNARY[name][1]))


@covers("elu", "gelu", "leaky_relu", "prelu", "selu", "softabs")
def test_activations() -> None:
    x = given((2, 3, 5))
    check("elu", x, alpha=0.7)
    check(
        "selu", x, lambda v: 1.25 * np.where(v < 0, 0.5 * (np.exp(v) - 1), v), alpha=0.5, **{"lambda": 1.25}
    )
    check("gelu", x, lambda v: v / (1 + np.exp(-1.702 * v)))
    check("leaky_relu", x, alpha=0.1)
    check("softabs", x, epsilon=0.25)
    check("prelu", given((2, 3, 5), (1, 3)), lambda v, a: np.where(v < 0, a[..., None] * v, v))


BINARY = ("add", "sub", "mul", "div", "min", "max", "lt", "gt", "le", "ge", "eq", "ne", "pow")


@pytest.mark.parametrize("name", BINARY)
@covers(*BINARY)
def test_binary(name: str) -> None:
    """Shapes are aligned at the front."""
    x, y = given((2, 3, 5), (2, 3), low=0.5)
    check(name, [x, y])
    check(name, [x, y[:, :1].copy()])
    (got,) = run(f"{name}(x0, 1.5)", [x])
    near(got, reference[name](torched(x), torch.tensor(1.5, dtype=torch.float64)).numpy(), name)


@covers("all_reduce", "and", "any_reduce", "not", "or", "select")
def test_logic() -> None:
    a, b = (g > 0 for g in given((3, 5), (3, 5)))
    check("and", [a, b])
    check("or", [a, b])
    check("not", [a])
    check("select", [a, *given((3, 5), (3, 5))])
    check("select", [a[:, :1].copy(), *given((3, 5), (1, 5))])
    check("any_reduce", [a], axes=[1])
    check("all_reduce", [a], axes=[0])


@covers("add_n", "clamp", "copy_n")
def test_many_operands() -> None:
    x, y, z = given((3, 5), (3, 5), (3,))
    check("clamp", [x, y, z])
    (got,) = run("clamp(x0, -0.5, 0.75)", [x])
    near(got, np.clip(x, -0.5, 0.75), "clamp")
    (got,) = run("add_n([x0, x1, x0])", [x, y])
    near(got, 2.0 * x + y, "add_n")
    for each in run("copy_n(x0, times = 2)", [x], lists=2):
        near(each, x, "copy_n")
    SHOWN.update({"add_n", "copy_n"})


@covers("gather", "reshape", "slice", "squeeze", "tile", "transpose", "unsqueeze")
def test_shapes() -> None:
    x = given((2, 3, 5))
    check("reshape", x, shape=[0, -1])
    check("reshape", x, shape=[5, 3], axis_start=1)
    check("reshape", x, shape=[3, 1], axis_start=1, axis_count=1)
    check("transpose", x, axes=[1, 0])
    check("transpose", x, axes=[2, 0, 1])
    check("squeeze", given((1, 3, 1, 5)), axes=[0, 2])
    check("unsqueeze", given((3, 5)), axes=[0, 3])
    check("tile", x, repeats=[2, 1, 3])
    check("slice", x, axes=[1, 2], begin=[1, -4], end=[0, -1])
    check("slice", x, axes=[2], begin=[4], end=[0], stride=[-2])
    check("slice", x, axes=[0, 2], begin=[0, 1], end=[2, 5], stride=[1, 2])
    check("gather", [x[0], np.array([[2, 0], [1, 1]], np.int64)], axis=1)
    check("gather", [x[0], np.array([1, 0], np.int64)], axis=0)


@covers("pad")
def test_pad() -> None:
    x = given((2, 3, 5))
    check("pad", x, padding=[(0, 0), (0, 0), (2, 1)], border="constant", value=0.5)
    modes = {"replicate": "edge", "reflect": "reflect", "reflect-even": "symmetric"}
    for border, mode in modes.items():
        padding = [(1, 0), (2, 1), (0, 4)]
        check(
            "pad", x, lambda v, m=mode: np.pad(v, [(1, 0), (2, 1), (0, 4)], m), padding=padding, border=border
        )


@covers("concat", "split", "stack", "unstack")
def test_several_tensors() -> None:
    x, y = given((2, 3, 5), (2, 4, 5))
    near(run("concat([x0, x1], axis = 1)", [x, y])[0], np.concatenate([x, y], 1), "concat")
    near(run("stack([x0, x0], axis = 1)", [x])[0], np.stack([x, x], 1), "stack")
    for got, wanted in zip(run("unstack(x0, axis = 1)", [x], lists=3), np.moveaxis(x, 1, 0), strict=True):
        near(got, wanted, "unstack")
    for got, wanted in zip(
        run("split(x0, axis = 1, ratios = [1, 3])", [y], lists=2), np.split(y, [1], 1), strict=True
    ):
        near(got, wanted, "split")
    SHOWN.update({"concat", "stack", "unstack", "split"})


@covers("cast")
def test_cast() -> None:
    (x,) = given((3, 5), low=-4, high=4)
    near(run("cast<integer>(x0)", [x])[0], np.trunc(x).astype(np.int64), "cast")
    near(run("cast<logical>(x0)", [np.round(x)])[0], np.round(x) != 0, "cast")
    near(run("cast<scalar>(x0)", [x > 0])[0], (x > 0).astype(np.float32), "cast")
    SHOWN.add("cast")


REDUCTIONS = ("sum_reduce", "mean_reduce", "max_reduce", "min_reduce", "argmax_reduce", "argmin_reduce")


@pytest.mark.parametrize("name", REDUCTIONS)
@covers(*REDUCTIONS)
def test_reductions(name: str) -> None:
    x = given((2, 3, 5, 2))
    for axes in ([1], [2, 3], [1, 2]):
        check(name, x, axes=axes)
    if name == "sum_reduce":
        check(name, x, axes=[1, 3], normalize=True)


@covers("moments", "softmax")
def test_moments_and_softmax() -> None:
    (x,) = given((2, 3, 5))
    mean, variance = run("moments(x0, axes = [0, 2])", [x], "m, v")
    for got, wanted in zip((mean, variance), reference["moments"](torched(x), [0, 2]), strict=True):
        near(got, wanted.numpy(), "moments")
    SHOWN.add("moments")
    check("softmax", [x])
    check("softmax", [x], axes=[2])
    e = np.exp(x.astype(np.float64))
    check("softmax", [x], lambda v: e / e.sum((1, 2), keepdims=True), axes=[1, 2])


@covers("linear", "matmul")
def test_products() -> None:
    check("matmul", given((2, 3, 7), (2, 7, 5)))
    check("matmul", given((1, 7, 3), (2, 5, 7)), transposeA=True, transposeB=True)
    check("linear", given((3, 7), (5, 7), (1, 5)))
    (got,) = run("linear(x0, x1)", given((3, 7), (5, 7)))
    x, w = given((3, 7), (5, 7))
    near(got, x.astype(np.float64) @ w.T.astype(np.float64), "linear")


WINDOWS: list[dict[str, Any]] = [
    {"padding": [], "stride": [], "dilation": []},
    {"padding": [], "stride": [2, 3], "dilation": []},
    {"padding": [(1, 1), (0, 2)], "stride": [2, 1], "dilation": []},
    {"padding": [(2, 1), (2, 2)], "stride": [1, 2], "dilation": [2, 1]},
]


@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("groups", [1, 2, 0])
@covers("conv", "deconv")
def test_conv(window: dict[str, Any], groups: int) -> None:
    filters = {1: (6, 4, 3, 3), 2: (6, 2, 3, 3), 0: (4, 1, 3, 3)}[groups]
    check("conv", given((2, 4, 7, 9), filters, (1, filters[0])), groups=groups, **window)
    filters = {1: (4, 6, 3, 3), 2: (4, 3, 3, 3), 0: (4, 1, 3, 3)}[groups]
    outputs = filters[1] * (groups or 4)
    check("deconv", given((2, 4, 5, 6), filters, (1, outputs)), groups=groups, **window)


@covers("conv", "deconv")
def test_conv_otherwise() -> None:
    for border in ("replicate", "reflect"):
        padding = [(1, 1), (0, 2)]
        x = given((2, 4, 7, 9), (6, 4, 3, 3), (1, 6))
        check("conv", x, border=border, padding=padding, stride=[1, 1], dilation=[1, 1])
    check("conv", given((2, 4, 9), (6, 4, 3), (1, 6)))
    check("conv", given((1, 2, 4, 5, 3), (3, 2, 2, 3, 1), (1, 3)))
    padding = [(1, 1), (1, 1)]
    shape = [2, 3, 10, 11]
    check(
        "deconv",
        given((2, 4, 5, 6), (4, 3, 3, 3), (1, 3)),
        padding=padding,
        stride=[2, 2],
        output_shape=shape,
    )


POOLS: list[dict[str, Any]] = [
    {"size": [1, 1, 3, 2], "padding": [], "stride": [1, 1, 2, 1], "dilation": [1, 1, 1, 1]},
    {
        "size": [1, 1, 3, 3],
        "padding": [(0, 0), (0, 0), (1, 1), (1, 0)],
        "stride": [1, 1, 2, 2],
        "dilation": [],
    },
    {"size": [1, 3, 1, 1], "padding": [], "stride": [1, 1, 1, 1], "dilation": []},
    {"size": [1, 2, 3, 1], "padding": [(0, 0)] * 4, "stride": [1, 2, 1, 1], "dilation": []},
]


@pytest.mark.parametrize("window", POOLS)
@pytest.mark.parametrize("border", ["constant", "ignore"])
@covers("avg_pool", "box", "max_pool", "rms_pool")
def test_pools(window: dict[str, Any], border: str) -> None:
    x = given((2, 4, 7, 9))
    for name in ("max_pool", "avg_pool", "rms_pool", "box"):
        check(name, x, border=border, **window)
    check("box", x, border=border, normalize=True, **window)


@covers("argmax_pool", "max_pool_with_index", "sample")
@pytest.mark.parametrize("border", ["constant", "ignore"])
def test_places_of_pools(border: str) -> None:
    x = given((2, 4, 7, 9))
    for window in (w for w in POOLS if w["size"][:2] == [1, 1]):
        check("argmax_pool", x, border=border, **window)
        call = ", ".join(f"{k} = {value(v)}" for k, v in {"border": border, **window}.items())
        best, at = run(f"max_pool_with_index(x0, {call})", x, "m, i")
        wanted = reference["max_pool_with_index"](torched(x[0]), border=border, **window)
        near(best, wanted[0].numpy(), "max_pool_with_index")
        near(at, wanted[1].numpy(), "max_pool_with_index")
        near(run(f"sample(x0, x1, {call})", [*x, at])[0], best, "sample")
        SHOWN.update({"max_pool_with_index", "sample"})


@covers("avg_unpool", "debox", "desample", "max_unpool")
def test_unpooling() -> None:
    (x,) = given((2, 4, 6, 9))
    window = {"size": [1, 1, 2, 3], "padding": [(0, 0)] * 4, "stride": [1, 1, 2, 3]}
    call = ", ".join(f"{k} = {value(v)}" for k, v in window.items())
    best, at = run(f"max_pool_with_index(x0, {call})", [x], "m, i")
    check("desample", [best, at], **window)
    check(
        "max_unpool",
        [best, at],
        lambda *_: reference["desample"](*map(torched, [best, at]), **window),
        **window,
    )
    check("avg_unpool", [best], lambda v: reference["debox"](torched(v), **window, normalize=True), **window)
    check("debox", [best], **window)
    check("debox", [best], **window, normalize=True)
    check("debox", [best], size=[1, 1, 3, 3], padding=[], stride=[1, 1, 2, 2])


@covers("area_downsample", "multilinear_upsample", "nearest_downsample", "nearest_upsample")
def test_resizing() -> None:
    x = given((2, 3, 5, 4))
    check("nearest_upsample", x, factor=[2, 3])
    check("nearest_downsample", given((2, 3, 6, 4)), factor=[3, 2])
    check("area_downsample", given((2, 3, 6, 4)), factor=[3, 2])
    check("multilinear_upsample", x, factor=[2, 3])
    check("multilinear_upsample", x, factor=[2, 2], method="aligned")


@covers("multilinear_upsample")
def test_asymmetric_upsampling() -> None:
    """Entry i lies at i / factor, as the converters mean it; NNEF-Tools' interpreter moves it."""

    def oracle(v: Array) -> Array:
        at = np.arange(2 * v.shape[-1]) / 2
        low = np.floor(at).astype(int)
        high = np.minimum(low + 1, v.shape[-1] - 1)
        return v[..., low] * (1 - (at - low)) + v[..., high] * (at - low)

    check("multilinear_upsample", given((2, 3, 5)), oracle, factor=[2], method="asymmetric")


@pytest.mark.parametrize(("method", "weights"), [("symmetric", [1, 3, 3, 1]), ("asymmetric", [2, 4, 2])])
@covers("multilinear_upsample")
def test_upsampling_from_zeros(method: str, weights: list[int]) -> None:
    """With a constant border it is a transposed convolution, whose weights the standard lists."""

    def oracle(v: Array) -> Array:
        w = torch.tensor(weights, dtype=torch.float64)[None, None] / 4
        y = torch.nn.functional.conv_transpose1d(torch.from_numpy(v).reshape(-1, 1, 5), w, stride=2)
        return y[..., 1:11].reshape(2, 3, 10).numpy()

    how = {"factor": [2], "method": method, "border": "constant"}
    check("multilinear_upsample", given((2, 3, 5)), oracle, **how)


@covers(
    "batch_normalization",
    "l1_normalization",
    "l2_normalization",
    "local_contrast_normalization",
    "local_mean_normalization",
    "local_response_normalization",
    "local_variance_normalization",
)
def test_normalizations() -> None:
    x = given((2, 5, 7, 4))
    for size in ([1, 5, 1, 1], [1, 2, 1, 1], [1, 1, 3, 3]):
        check("local_response_normalization", x, size=size, alpha=0.5, beta=0.75, bias=1.5)
        check("local_mean_normalization", x, size=size)
        check("local_variance_normalization", x, size=size, bias=0.1, epsilon=0.01)
        check("local_contrast_normalization", x, size=size, bias=0.1, epsilon=0.01)
    for axes in ([1], [2, 3]):
        check("l1_normalization", x, axes=axes, bias=0.1, epsilon=0.01)
        check("l2_normalization", x, axes=axes, bias=0.1, epsilon=0.01)
    mean, variance, offset, scale = given((1, 5), (1, 5), (1, 5), (1, 5), low=0.5)
    check("batch_normalization", [*x, mean, variance, offset, scale], epsilon=1e-3)


@covers("separable_conv", "separable_deconv")
def test_separable() -> None:
    check("separable_conv", given((2, 4, 7, 9), (4, 1, 3, 3), (6, 4, 1, 1), (1, 6)), padding=[(1, 1), (1, 1)])
    check(
        "separable_deconv", given((2, 6, 5, 6), (4, 1, 3, 3), (6, 4, 1, 1), (1, 4)), padding=[(1, 1), (1, 1)]
    )


ROIS = np.array(
    [[0, 0, 6, 8], [1, 2, 5, 3], [0.4, 1.6, 6.4, 7.7], [2.6, 3.1, 3.2, 8.9], [-1.3, 4, 4, 11.2],
     [6, 9, 8, 9.1], [3, 2, 3, 7], [1.25, 0.5, 6.875, 8.125]], np.float32,
)  # fmt: skip
"""Of a map of 7 x 9: with and without fractions, smaller than the result, empty, and beyond the borders."""
IMAGES = np.array([1, 0, 1, 1, 0, 0, 1, 0], np.int64)


def pooled_regions(x: Array, rois: Array, images: Array, size: list[int], mode: Callable[..., Any]) -> Array:
    """The standard's cells, of which the first begins where its region does; those of nothing give 0."""
    out = np.zeros((len(rois), x.shape[1], *size))
    for n, (region, image) in enumerate(zip(np.round(rois).astype(int), images, strict=True)):
        for cell in np.ndindex(*size):
            taken = []
            for axis, i in enumerate(cell):
                low, high = region[axis], region[axis + len(size)]
                first = low + i * ((high - low) // size[axis])
                taken.append(slice(max(first, 0), max(first + -((low - high) // size[axis]), 0)))
            found = x[image][(slice(None), *taken)]
            if found.size:
                out[(n, slice(None), *cell)] = mode(found, axis=tuple(range(1, found.ndim)))
    return out


def resampled_regions(x: Array, rois: Array, images: Array, size: list[int], method: str) -> Array:
    """By the standard's formulas for up-sampling by size / extent, in float64."""
    out = np.zeros((len(rois), x.shape[1], *size))
    for n, (region, image) in enumerate(zip(rois.astype(np.float64), images, strict=True)):
        at = x[image]
        for axis, count in enumerate(size):
            low, extent, i = region[axis], region[axis + len(size)] - region[axis], np.arange(count)
            place = {
                "symmetric": low + (i + 0.5) * extent / count - 0.5,
                "asymmetric": low + i * extent / count,
                "aligned": low + i * (extent - 1) / max(count - 1, 1),
            }[method]
            j, last = np.floor(place), x.shape[2 + axis] - 1
            u = (place - j).reshape(-1, *[1] * (len(size) - axis - 1))
            below, above = (np.clip(v, 0, last).astype(int) for v in (j, j + 1))
            at = at.take(below, axis + 1) * (1 - u) + at.take(above, axis + 1) * u
        out[n] = at
    return out


@covers("avg_roi_pool", "max_roi_pool")
@pytest.mark.parametrize("size", [[2, 3], [1, 1], [4, 2]])
def test_region_pools(size: list[int]) -> None:
    x = [*given((2, 3, 7, 9)), ROIS, IMAGES]
    for compiled in (False, True):
        check("avg_roi_pool", x, lambda *a: pooled_regions(*a, size, np.mean), compiled, output_size=size)
        check("max_roi_pool", x, lambda *a: pooled_regions(*a, size, np.max), compiled, output_size=size)
    line = [x[0][:, :, :, 4].copy(), ROIS[:, ::2].copy(), IMAGES[:, None]]
    check(
        "max_roi_pool",
        line,
        lambda v, r, i: pooled_regions(v, r, i[:, 0], size[:1], np.max),
        output_size=size[:1],
    )


@covers("roi_resample")
@pytest.mark.parametrize("method", ["symmetric", "asymmetric", "aligned"])
def test_resampled_regions(method: str) -> None:
    x = [*given((2, 3, 7, 9)), ROIS, IMAGES]
    for size in ([2, 3], [1, 1], [9, 8]):
        how = {"output_size": size, "method": method}
        check("roi_resample", x, lambda *a, s=size: resampled_regions(*a, s, method), size[0] == 2, **how)


@covers("avg_roi_align", "max_roi_align")
def test_aligned_regions() -> None:
    """Means also as ONNX's RoiAlign has them, where a region lies inside of the map."""
    x = given((2, 3, 7, 9))[0]
    for method, rate in (("symmetric", [2, 3]), ("aligned", [1, 2])):
        how = {"output_size": [2, 3], "sampling_rate": rate, "resize_method": method}

        def pooled(v: Array, r: Array, i: Array, mode: Any, rate: Any = rate, method: Any = method) -> Array:
            y = resampled_regions(v, r, i, [2 * rate[0], 3 * rate[1]], method)
            return mode(y.reshape(len(r), v.shape[1], 2, rate[0], 3, rate[1]), axis=(3, 5))

        check("avg_roi_align", [x, ROIS, IMAGES], lambda *a, f=pooled: f(*a, np.mean), **how)
        check("max_roi_align", [x, ROIS, IMAGES], lambda *a, f=pooled: f(*a, np.max), **how)
    session = onnxruntime.InferenceSession(roi_align())
    inside = np.array([[0.75, 1, 6, 8], [2, 0.5, 2.5, 7.25]], np.float32)
    (wanted,) = session.run(None, {"x": x, "rois": inside[:, [1, 0, 3, 2]], "images": IMAGES[:2]})
    check(
        "avg_roi_align", [x, inside, IMAGES[:2]], lambda *_: wanted, output_size=[2, 3], sampling_rate=[2, 2]
    )


def roi_align() -> bytes:
    value = helper.make_tensor_value_info
    node = helper.make_node(
        "RoiAlign", ["x", "rois", "images"], ["y"], output_height=2, output_width=3, sampling_ratio=2,
        coordinate_transformation_mode="half_pixel",
    )  # fmt: skip
    inputs = [value(n, TensorProto.FLOAT, None) for n in ("x", "rois")]
    graph = helper.make_graph(
        [node],
        "g",
        [*inputs, value("images", TensorProto.INT64, None)],
        [value("y", TensorProto.FLOAT, None)],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 16)], ir_version=9)
    return bytes(model.SerializeToString())


@pytest.mark.parametrize(
    ("call", "message"),
    [
        ("avg_roi_pool(x0, x1, x2, output_size = [2])", "spatial axis"),
        ("max_roi_pool(x0, x2, x2, output_size = [2, 2])", "4 numbers each|type"),
        ("roi_resample(x0, x1, x2, output_size = [2, 2], method = 'cubic')", "method 'cubic' is none of"),
        ("avg_roi_align(x0, x1, x2, output_size = [2, 2], sampling_rate = [0, 1])", "sampling_rate"),
    ],
)
def test_wrong_regions(call: str, message: str) -> None:
    with pytest.raises(CompileError, match=message):
        run(call, [*given((1, 3, 5, 5), (2, 4)), np.zeros(2, np.int64)])


def test_an_image_that_is_none() -> None:
    with pytest.raises(IndexError):
        run("max_roi_pool(x0, x1, x2, output_size = [1, 1])", [*given((1, 3, 5, 5)), ROIS[:1], IMAGES[:1]])


@covers("update")
def test_update() -> None:
    """Variables keep their values from run to run; each reads what it was before (the standard's example)."""
    text = (
        "version 1.0; graph G(x) -> (new_x, sum) { x = external<scalar>(shape = [2, 1]); "
        "a = variable<scalar>(shape = [2, 1], label = 'first/a'); "
        "b = variable<scalar>(shape = [2, 1], label = 'b');"
        " new_x = update(a, b); sum = add(a, x); y = add(sum, b); new_b = update(b, y); }"
    )
    a, b, x = given((2, 1), (2, 1), (2, 1))
    files = {"graph.nnef": text.encode(), "first/a.dat": tensor_bytes(a), "b.dat": tensor_bytes(b)}
    exe = jangin.compile(packed(files), threads=1, cache=False)
    for _ in range(2):
        exe.reset()
        held = [a.astype(np.float64), b.astype(np.float64)]
        for step in range(5):
            first, total = exe(x * step)
            near(first, held[1], "update")
            near(total, held[0] + x * step, "update")
            held = [held[1], held[0] + x * step + held[1]]
    SHOWN.add("update")


@covers("linear_quantize", "logarithmic_quantize", "min_max_linear_quantize", "zero_point_linear_quantize")
def test_quantization() -> None:
    (x,) = given((3, 5))
    low, high = np.full((), -1.5, np.float32), np.full((), 1.25, np.float32)
    for signed in (False, True):
        for symmetric in (False, True):
            how = {"bits": 4, "signed": signed, "symmetric": symmetric}
            check("min_max_linear_quantize", [x, low, high], **how)
            zero = np.full((), 1, np.int64)
            check("zero_point_linear_quantize", [x, zero, np.full((), 0.25, np.float32)], **how)

    def linear(v: Array, a: Array, b: Array) -> Array:
        return np.round((np.clip(v, a, b) - a) / (b - a) * 15) / 15 * (b - a) + a

    check("linear_quantize", [x, low, high], linear, bits=4)

    def logarithmic(v: Array, top: Array) -> Array:
        m = np.ceil(np.log2(top))
        return np.sign(v) * 2 ** np.round(np.clip(np.log2(np.abs(v)), m - 7, m))

    check("logarithmic_quantize", [x, high], logarithmic, bits=3)


@pytest.mark.parametrize(
    ("expression", "oracle"),
    [
        ("-a + b", lambda a, b: -a + b), ("a - -b * a", lambda a, b: a + b * a),
        ("-copy(a) - b - a", lambda a, b: -a - b - a), ("-(a + b) / b", lambda a, b: -(a + b) / b),
        ("-1.5 + b", lambda a, b: b - 1.5),
        ("select(-a < b, a, -b - a)", lambda a, b: np.where(-a < b, a, -b - a)),
    ],
)  # fmt: skip
def test_signs(expression: str, oracle: Callable[..., Any]) -> None:
    """They bind more tightly than what stands between operands, which the package's parser doesn't know."""
    inputs = dict(zip("ab", given((3, 5), (3, 5)), strict=True))
    lines = " ".join(f"{n} = external<scalar>(shape = [3, 5]);" for n in inputs)
    text = (
        "version 1.0; extension KHR_enable_operator_expressions; "
        f"graph G(a, b) -> (y) {{ {lines} y = {expression}; }} # -a + b"
    )
    found = run_graph(lower(table.load(text.encode())), inputs)["y"]
    near(found, oracle(*(v.astype(np.float64) for v in inputs.values())), expression)


def packed(files: dict[str, bytes]) -> bytes:
    held = io.BytesIO()
    with tarfile.open(fileobj=held, mode="w") as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return held.getvalue()


def test_every_operation() -> None:
    """What the tests are about is what NNEF-Tools counts as the standard."""
    assert len(nnef.StandardOperations) == 121
    assert nnef.StandardOperations == COVERED
