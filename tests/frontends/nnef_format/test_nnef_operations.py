"""Every standard operation of NNEF at odd sizes, compared with NNEF-Tools' interpreter in float64 if it has
it, else with NumPy."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import test_nnef_windows
from nnef_operations import (
    COVERED,
    SHOWN,
    Array,
    check,
    covers,
    given,
    here,
    near,
    nnef,
    reference,
    run,
    torch,
    torched,
)

import jangin
from jangin.frontends import table
from jangin.frontends.lower import lower
from jangin.frontends.nnef.tensors import tensor_bytes
from jangin.ops.interpret import run_graph

__all__ = ["here"]

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
    """Shapes are aligned at their first axes."""
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
    """Entry i lies at i / factor, as the converters define it. NNEF-Tools' interpreter shifts it."""

    def oracle(v: Array) -> Array:
        at = np.arange(2 * v.shape[-1]) / 2
        low = np.floor(at).astype(int)
        high = np.minimum(low + 1, v.shape[-1] - 1)
        return v[..., low] * (1 - (at - low)) + v[..., high] * (at - low)

    check("multilinear_upsample", given((2, 3, 5)), oracle, factor=[2], method="asymmetric")


@pytest.mark.parametrize(("method", "weights"), [("symmetric", [1, 3, 3, 1]), ("asymmetric", [2, 4, 2])])
@covers("multilinear_upsample")
def test_upsampling_from_zeros(method: str, weights: list[int]) -> None:
    """`multilinear_upsample` with a constant border is a transposed convolution, whose weights the standard
    lists."""

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


@covers("update")
def test_update() -> None:
    """Variables keep their values from run to run. A run reads the value from the run before (the standard's
    example)."""
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
    """Signs bind more tightly than binary operators, but the package's parser doesn't know it."""
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
    """The tests cover exactly the operations that NNEF-Tools counts as standard."""
    assert test_nnef_windows.covers is covers and len(nnef.StandardOperations) == 121
    assert nnef.StandardOperations == COVERED
