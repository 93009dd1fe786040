"""Core ML's operations that compare, with NaN, infinities, both zeros and ties, against MIL's documentation.

Core ML runs only on Apple's systems. So the reference is MIL's description of each operation, in NumPy, as
coremltools folds constants. NaN is treated as in NumPy, as in all formats.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from functools import cache, reduce
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import jangin

ct = pytest.importorskip("coremltools", reason="coremltools isn't installed: the extra `coreml` brings it")

sys.path.insert(0, str(Path(__file__).parents[2] / "ops"))

from coremltools.converters.mil import Builder as mb  # noqa: E402
from coremltools.converters.mil.mil import types  # noqa: E402
from numbers_in_order import LEFT, RIGHT, ROWS, all_told, pooled, softmax  # noqa: E402

from jangin.compiler.pipeline import build_plan  # noqa: E402
from jangin.frontends.coreml.mil.operators import OPERATIONS  # noqa: E402
from jangin.frontends.coreml.rows.models import MODELS, likeliest  # noqa: E402
from jangin.ir.dtype import F32  # noqa: E402
from jangin.ir.expr import const  # noqa: E402
from jangin.ops.builder import Builder  # noqa: E402
from jangin.ops.values import Tensor  # noqa: E402
from jangin.options import Options  # noqa: E402
from jangin.runtime.executable import Executable  # noqa: E402
from jangin.targets import host  # noqa: E402

Array = np.ndarray[Any, Any]
IMAGE = ROWS.reshape(1, 2, 8, 8)
GIVEN = {"x": ROWS, "left": LEFT, "right": RIGHT, "image": IMAGE}
SLOPES = np.full(2, 0.2, np.float32)
PLACES = np.zeros((8, 4), np.int32)
Case = tuple[Callable[..., Any], Callable[..., Any]]


def leaky(x: Array, alpha: float) -> Array:
    return np.where(x < 0, x * alpha, x)


def elu(x: Array) -> Array:
    return np.where(x > 0, x, 0.5 * np.expm1(x))


def ordered(x: Array, ascending: bool) -> Array:
    """Return the positions of elements in order. NaN is the largest, and the first of equals is first."""
    if ascending:
        return np.argsort(x, 1, kind="stable")
    ranks = np.unique(x, return_inverse=True)[1].reshape(x.shape)
    return np.argsort(-ranks, 1, kind="stable")


def scattered(pick: Any) -> Callable[[Array], Array]:
    def oracle(x: Array) -> Array:
        y = x.copy()
        y[:, 0] = reduce(pick, [x[:, 0], *x[:, 3:7].T])
        return y

    return oracle


def log_sum_exp(x: Array) -> Array:
    return np.log(np.exp(x).sum(1))


UNARY: dict[str, Case] = {
    "abs": (lambda x: mb.abs(x=x), np.abs), "sign": (lambda x: mb.sign(x=x), np.sign),
    "relu": (lambda x: mb.relu(x=x), lambda x: np.maximum(x, 0)),
    "relu6": (lambda x: mb.relu6(x=x), lambda x: np.minimum(np.maximum(x, 0), 6)),
    "clamped_relu": (
        lambda x: mb.clamped_relu(x=x, alpha=0.2, beta=2.0), lambda x: np.minimum(leaky(x, 0.2), 2),
    ),
    "clip": (lambda x: mb.clip(x=x, alpha=-1.0, beta=2.0), lambda x: np.minimum(np.maximum(x, -1), 2)),
    "elu": (lambda x: mb.elu(x=x, alpha=0.5), elu),
    "leaky_relu": (lambda x: mb.leaky_relu(x=x, alpha=0.2), lambda x: leaky(x, 0.2)),
    "sigmoid_hard": (
        lambda x: mb.sigmoid_hard(x=x, alpha=0.2, beta=0.5), lambda x: np.clip(0.2 * x + 0.5, 0, 1),
    ),
    "softplus": (lambda x: mb.softplus(x=x), lambda x: np.logaddexp(x, 0)),
    "threshold": (lambda x: mb.threshold(x=x, alpha=0.5), lambda x: np.maximum(x, 0.5)),
    "thresholded_relu": (lambda x: mb.thresholded_relu(x=x, alpha=1.0), lambda x: np.where(x < 1, 0, x)),
    "cast": (lambda x: mb.cast(x=x, dtype="bool"), lambda x: x != 0),
    "softmax": (lambda x: mb.softmax(x=x, axis=1), lambda x: softmax(x, 1)),
    "reduce_max": (lambda x: mb.reduce_max(x=x, axes=[1], keep_dims=False), lambda x: x.max(1)),
    "reduce_min": (lambda x: mb.reduce_min(x=x, axes=[0], keep_dims=True), lambda x: x.min(0, keepdims=True)),
    "reduce_argmax": (lambda x: mb.reduce_argmax(x=x, axis=1, keep_dims=False), lambda x: x.argmax(1)),
    "reduce_argmin": (lambda x: mb.reduce_argmin(x=x, axis=1, keep_dims=False), lambda x: x.argmin(1)),
    "reduce_log_sum_exp": (
        lambda x: mb.reduce_log_sum_exp(x=x, axes=[1], keep_dims=False), log_sum_exp,
    ),
    "argsort": (lambda x: mb.argsort(x=x, axis=1, ascending=True), lambda x: ordered(x, True)),
    "argsort down": (lambda x: mb.argsort(x=x, axis=1, ascending=False), lambda x: ordered(x, False)),
    "topk": (lambda x: mb.topk(x=x, k=5, axis=1)[1], lambda x: ordered(x, False)[:, :5]),
    "topk up": (lambda x: mb.topk(x=x, k=5, axis=1, ascending=True)[1], lambda x: ordered(x, True)[:, :5]),
    "topk values": (
        lambda x: mb.topk(x=x, k=5, axis=1)[0], lambda x: np.take_along_axis(x, ordered(x, False)[:, :5], 1),
    ),
    "scatter_along_axis": (
        lambda x: mb.scatter_along_axis(data=x, indices=PLACES, updates=part(x), axis=1, mode="max"),
        scattered(np.maximum),
    ),
    "scatter_along_axis min": (
        lambda x: mb.scatter_along_axis(data=x, indices=PLACES, updates=part(x), axis=1, mode="min"),
        scattered(np.minimum),
    ),
    "scatter_nd": (
        lambda x: mb.scatter_nd(data=x, indices=np.zeros((3, 1), np.int32), updates=rows(x), mode="max"),
        lambda x: np.concatenate([x[[0, 2, 3, 4]].max(0, keepdims=True), x[1:]]),
    ),
    "non_zero": (lambda x: mb.non_zero(x=x), lambda x: np.argwhere(x != 0)),
}  # fmt: skip
OF_PAIRS: dict[str, Case] = {
    "maximum": (lambda x, y: mb.maximum(x=x, y=y), np.maximum),
    "minimum": (lambda x, y: mb.minimum(x=x, y=y), np.minimum),
    "equal": (lambda x, y: mb.equal(x=x, y=y), np.equal),
    "not_equal": (lambda x, y: mb.not_equal(x=x, y=y), np.not_equal),
    "greater": (lambda x, y: mb.greater(x=x, y=y), np.greater),
    "greater_equal": (lambda x, y: mb.greater_equal(x=x, y=y), np.greater_equal),
    "less": (lambda x, y: mb.less(x=x, y=y), np.less),
    "less_equal": (lambda x, y: mb.less_equal(x=x, y=y), np.less_equal),
    "select": (
        lambda x, y: mb.select(cond=mb.greater(x=x, y=y), a=x, b=y), lambda x, y: np.where(x > y, x, y),
    ),
}  # fmt: skip
OF_IMAGES: dict[str, Case] = {
    "prelu": (lambda i: mb.prelu(x=i, alpha=SLOPES), lambda x: leaky(x, 0.2)),
    "softplus_parametric": (
        lambda i: mb.softplus_parametric(x=i, alpha=SLOPES, beta=SLOPES),
        lambda x: 0.2 * np.logaddexp(x * 0.2, 0),
    ),
    "max_pool": (
        lambda i: mb.max_pool(x=i, kernel_sizes=[2, 2], strides=[2, 2], pad_type="valid"),
        lambda x: pooled(x, 2, 2),
    ),
    "max_pool padded": (
        lambda i: mb.max_pool(x=i, kernel_sizes=[3, 3], strides=[2, 2], pad_type="custom", pad=[1] * 4),
        lambda x: pooled(x, 3, 2, 1),
    ),
}  # fmt: skip
CASES = {**UNARY, **OF_PAIRS, **OF_IMAGES}
ATTENDING = ("scaled_dot_product_attention",)
APART = {
    # functions of one number, which compare nothing
    "acos", "acosh", "asin", "asinh", "atan", "atanh", "ceil", "cos", "cosh", "erf", "exp", "exp2", "floor",
    "sin", "sinh", "sqrt", "tan", "tanh", "identity", "round", "sigmoid", "silu", "softsign", "square",
    "inverse", "linear_activation", "log", "rsqrt", "scaled_tanh", "gelu",
    # arithmetic, and logic of booleans
    "add", "sub", "mul", "real_div", "pow", "floor_div", "mod", "logical_and", "logical_or", "logical_xor",
    "logical_not",
    # operators that move elements, by known positions
    "concat", "stack", "split", "sliding_windows", "reshape", "flatten2d", "transpose", "expand_dims",
    "squeeze", "slice_by_index", "slice_by_size", "pad", "tile", "shape", "fill", "range_1d", "reverse",
    "depth_to_space", "space_to_depth", "pixel_shuffle", "pixel_unshuffle", "band_part", "gather",
    "gather_along_axis", "gather_nd", "one_hot",
    # sums and products
    "reduce_sum", "reduce_mean", "reduce_prod", "reduce_l1_norm", "reduce_l2_norm", "reduce_sum_square",
    "reduce_log_sum", "cumsum", "conv", "conv_transpose", "avg_pool", "l2_pool", "linear", "matmul", "einsum",
    "batch_norm", "instance_norm", "layer_norm", "l2_norm", "local_response_norm",
    "upsample_nearest_neighbor", "upsample_bilinear", "resize_bilinear", "resize_nearest_neighbor",
    # their activations are listed by themselves
    "lstm", "gru", "rnn",
}  # fmt: skip
"""Operations that compare no elements."""
ROWS_OF_FEATURES = {"imputer", "likeliest", "normalizer"}
ROWS_APART = {
    # the models compare numbers with trained ones: trees, votes and neighbours are compared with scikit-learn
    "treeEnsembleClassifier", "treeEnsembleRegressor", "glmClassifier", "supportVectorClassifier",
    "kNearestNeighborsClassifier", "supportVectorRegressor", "glmRegressor",
    "arrayFeatureExtractor", "featureVectorizer", "identity", "scaler",
    "oneHotEncoder",  # these are integers
}  # fmt: skip


def part(x: Any) -> Any:
    return mb.slice_by_index(x=x, begin=[0, 3], end=[8, 7])


def rows(x: Any) -> Any:
    return mb.slice_by_index(x=x, begin=[2, 0], end=[5, 16])


@cache
def results() -> Mapping[str, Array]:
    """Return the results of all operations, in one program. Booleans are converted to numbers."""

    def body(x: Any, left: Any, right: Any, image: Any) -> Any:
        made = []
        for n, (name, (case, _)) in enumerate(CASES.items()):
            y = case(x) if name in UNARY else case(left, right) if name in OF_PAIRS else case(image)
            if y.is_tensor_or_scalar_of(dtype="bool"):
                y = mb.cast(x=y, dtype="fp32")
            made.append(mb.identity(x=y, name=f"y{n}"))
        return tuple(made)

    specs = [mb.TensorSpec(a.shape, dtype=types.fp32) for a in GIVEN.values()]
    program = mb.program(input_specs=specs, opset_version=ct.target.iOS17)(body)
    return compiled(program, ct.target.iOS17).run(GIVEN)


def compiled(program: Any, system: Any) -> Any:
    """Compile a program as it is written, without coremltools' passes."""
    model = ct.convert(
        program, minimum_deployment_target=system, skip_model_load=True,
        compute_precision=ct.precision.FLOAT32, pass_pipeline=ct.PassPipeline.EMPTY,
    )  # fmt: skip
    return jangin.compile(model.get_spec(), threads=1, cache=False, isolated=False)


@pytest.mark.parametrize("name", CASES)
def test_as_documented(name: str) -> None:
    _, oracle = CASES[name]
    inputs = [ROWS] if name in UNARY else [LEFT, RIGHT] if name in OF_PAIRS else [IMAGE]
    with np.errstate(all="ignore"):
        wanted = oracle(*(a.astype(np.float64) for a in inputs))
    got = results()[f"y{list(CASES).index(name)}"]
    assert got.shape == wanted.shape
    np.testing.assert_allclose(got.astype(np.float64), wanted.astype(np.float64), 1e-5, 1e-6)


def test_attention() -> None:
    """A query with NaN gives NaN alone. A key with a score of -inf counts for nothing. Ties have equal
    weights."""
    rng = np.random.default_rng(0)
    q, v = (rng.standard_normal((1, 2, 5, 8)).astype(np.float32) for _ in range(2))
    k, mask = np.repeat(q[:, :, :1], 5, 2), np.zeros((5, 5), np.float32)
    q[0, 0, 1, 3], mask[:, 2] = np.nan, -np.inf

    def body(q: Any, k: Any, v: Any, m: Any) -> Any:
        return mb.scaled_dot_product_attention(query=q, key=k, value=v, attn_mask=m, name="y")

    specs = [mb.TensorSpec(a.shape, dtype=types.fp32) for a in (q, k, v, mask)]
    program = mb.program(input_specs=specs, opset_version=ct.target.iOS18)(body)
    (got,) = compiled(program, ct.target.iOS18).run(dict(zip("qkvm", (q, k, v, mask), strict=True))).values()
    wanted = softmax(q @ k.swapaxes(2, 3) / np.sqrt(8) + mask, 3) @ v
    np.testing.assert_allclose(got, wanted, 1e-5, 1e-6)


def of_rows(kind: str, given: Mapping[str, Any]) -> Array:
    b = Builder(kind, {})
    y = MODELS[kind](b, [b.input("x", F32, (const(8), const(16)))], given)
    found: Array = Executable(build_plan(b.graph([y], ["y"]), Options(host())), 1)(ROWS)
    return found


def test_models_of_rows() -> None:
    new = np.arange(16, dtype=np.float32)
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(
            of_rows("imputer", {"old": np.nan, "new": new}), np.where(np.isnan(ROWS), new, ROWS)
        )
        np.testing.assert_array_equal(
            of_rows("imputer", {"old": 0.0, "new": new}), np.where(ROWS == 0, new, ROWS)
        )
        for kind, order in (("LMax", np.inf), ("L1", 1), ("L2", 2)):
            size = np.maximum(np.linalg.norm(ROWS, order, 1, keepdims=True), 1e-30)
            np.testing.assert_allclose(of_rows("normalizer", {"norm": kind}), ROWS / size, 1e-6)


def test_the_likeliest_class() -> None:
    """The first of equal scores, or of several NaN, is chosen."""
    b = Builder("likeliest", {})
    labels, _ = likeliest(b, [b.input("x", F32, (const(8), const(16)))], {"labels": tuple(range(16))})
    assert isinstance(labels, Tensor)
    exe = Executable(build_plan(b.graph([labels], ["label"]), Options(host())), 1)
    np.testing.assert_array_equal(exe(ROWS), ROWS.argmax(1))


def test_every_operation_is_told() -> None:
    walked = {name.split(" ")[0] for name in CASES}
    all_told(OPERATIONS, [*walked, *ATTENDING], APART)
    all_told(MODELS, ROWS_OF_FEATURES, ROWS_APART)
