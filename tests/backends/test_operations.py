"""Every operation and conversion, on every type, at its edges, as scalar and as vector code."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from casts import BEYOND, INTS
from machine import run, runnable, target
from onnx import helper

from jangin.ir.arithmetic import convert
from jangin.ir.dtype import BF16, BOOL, DTYPES, F16, F32, F64, I8, I16, I32, U8, DType
from jangin.ir.expr import Buffer, Expr, Var, binary, call, cast, const, maximum, minimum
from jangin.ir.graph import Array
from jangin.ir.interpret import run_func
from jangin.ir.loop import For, Func, Store, block
from jangin.ir.products import PRODUCTS
from jangin.ir.traversal import substitute
from jangin.ir.words import COMPARE
from jangin.runtime.system.processor import architecture

pytestmark = pytest.mark.sampled(2)

FLOATS = (F16, BF16, F32, F64)
ARITHMETIC = ("add", "sub", "mul", "div", "floordiv", "mod", "rem", "min", "max", "pow")
BITS = ("and", "or", "xor", "shl", "shr")
UNARY = ("neg", "abs", "floor", "ceil", "trunc", "sign")
FUNCTIONS = (
    "sqrt", "rsqrt", "exp", "exp2", "log", "log2", "log1p", "expm1", "sin", "cos", "tan", "asin", "acos",
    "atan", "sinh", "cosh", "tanh", "asinh", "acosh", "atanh", "erf", "sigmoid",
)  # fmt: skip
LANES = 8
RTOL = {"f16": 2e-3, "bf16": 1e-2, "f32": 1e-6, "f64": 2e-15}


def edges(dtype: DType) -> Array:
    if dtype is BOOL:
        return np.array([True, False])
    if dtype.is_int:
        low, high = (-(1 << (dtype.bits - 1)), (1 << (dtype.bits - 1)) - 1)
        if dtype.kind == "u":
            low, high = 0, 2 * high + 1
        values = [low, low + 1, high, high - 1, 0, 1, 2, 3, 7, 8, 31, 40, 63, 64, 100]
        return np.array(values + ([-1, -2, -3, -7, -64] if dtype.kind == "i" else []), dtype.numpy)
    exact = [0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 1.5, -1.5, 2.5, 3.0, -7.25, 100.0, np.inf, -np.inf, np.nan]
    return np.array([*exact, 1e-3, 0.3], np.float32).astype(dtype.numpy)


def pairs(dtype: DType) -> tuple[Array, Array]:
    e = edges(dtype)
    return np.repeat(e, e.size), np.tile(e, e.size)


def check(operands: dict[str, Array], dtype: DType, values: dict[str, Expr]) -> None:
    """Compare one kernel that computes all `values` of the operands with the interpreter, on every target, as
    scalar and as vector code."""
    count = -(-next(iter(operands.values())).size // LANES) * LANES
    arrays = {n: np.resize(a, count) for n, a in operands.items()}
    ins = {n: Buffer(n, dtype, (const(count),)) for n in operands}
    outs = {n: Buffer(n, v.dtype, (const(count),)) for n, v in values.items()}
    arrays |= {n: np.zeros(count, b.dtype.numpy) for n, b in outs.items()}

    def kernel(lanes: int) -> Func:
        i, v = Var("i"), Var("v")
        at = i * lanes + v
        given = {Var(n, dtype): b[at] for n, b in ins.items()}
        body = block(*(Store(outs[n], (at,), substitute(e, given)) for n, e in values.items()))
        nest = For(i, const(count // lanes), For(v, const(lanes), body, "vector"))
        return Func(f"k{lanes}", (*ins.values(), *outs.values()), len(outs), (), nest)

    expected = {k: v.copy() for k, v in arrays.items()}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        run_func(kernel(1), expected, {})
    for on in runnable():
        for lanes in (1, LANES):
            got = run(kernel(lanes), arrays, {}, target(on))
            for name, e in values.items():
                _compare(got[name], expected[name], e, f"{name}: {e} on {on}, {lanes} lanes", arrays)


def _compare(got: Array, want: Array, e: Expr, what: str, arrays: dict[str, Array]) -> None:
    wrong = got != want
    if e.dtype.is_float:
        with np.errstate(all="ignore"):
            g, w = got.astype(np.float64), want.astype(np.float64)
            close = np.abs(g - w) <= RTOL[e.dtype.name] * np.abs(w)
        wrong = ~(close | (g == w) | (np.isnan(g) & np.isnan(w)))
    if wrong.any():
        n = int(np.argmax(wrong))
        operands = {k: v[n] for k, v in arrays.items() if k in "ab"}
        raise AssertionError(f"{what}: of {operands} got {got[n]!r}, not {want[n]!r}")


TYPES = (*INTS, *FLOATS)
each_type = pytest.mark.parametrize("dtype", TYPES, ids=str)


@pytest.mark.sampled(8)
@each_type
def test_binary(dtype: DType) -> None:
    x, y = Var("a", dtype), Var("b", dtype)
    left, right = pairs(dtype)
    names = [n for n in ARITHMETIC if dtype.is_int or n not in ("floordiv", "mod", "pow")]
    names += [*sorted(COMPARE), *(BITS if dtype.is_int else ())]
    check({"a": left, "b": right}, dtype, {op: binary(op, x, y) for op in names})


@pytest.mark.sampled(8)
@each_type
def test_binary_with_a_constant(dtype: DType) -> None:
    x = Var("a", dtype)
    values = [1, 2, 3, 7, *((-1, -3) if dtype.kind != "u" else ())]
    operations = ["div", "min", "max", *(("floordiv", "mod", "pow") if dtype.is_int else ())]
    exprs = {f"{op}{n}": binary(op, x, const(v, dtype)) for op in operations for n, v in enumerate(values)}
    if dtype.is_float:
        nan = const(float("nan"), dtype)
        exprs |= {"low": binary("min", x, nan), "high": binary("max", nan, x)}
    check({"a": edges(dtype)}, dtype, exprs)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_float_power(dtype: DType) -> None:
    """NumPy gives NaN for -inf ** 0.5. C and this compiler give inf."""
    left, right = pairs(dtype)
    keep = ~(np.isneginf(left.astype(np.float32)) & (np.abs(right.astype(np.float32)) == 0.5))
    x, y = Var("a", dtype), Var("b", dtype)
    check({"a": left[keep], "b": right[keep]}, dtype, {"power": binary("pow", x, y)})
    exponents = [0.0, 1.0, 2.0, 3.0, -1.0, 0.5, -0.5, 2.5]
    values = {f"p{n}": binary("pow", x, const(v, dtype)) for n, v in enumerate(exponents)}
    bases = edges(dtype)
    check({"a": bases[~np.isneginf(bases.astype(np.float32))]}, dtype, values)


@pytest.mark.sampled(8)
@each_type
def test_unary(dtype: DType) -> None:
    x = Var("a", dtype)
    names = [*UNARY, *(("round", *FUNCTIONS, "isnan", "isinf") if dtype.is_float else ("not",))]
    check({"a": edges(dtype)}, dtype, {fn: call(fn, x) for fn in names})


def test_bool() -> None:
    x, y = Var("a", BOOL), Var("b", BOOL)
    left, right = pairs(BOOL)
    values = {op: binary(op, x, y) for op in ("and", "or", "xor", "eq", "ne", "lt", "min", "max")}
    check({"a": left, "b": right}, BOOL, values | {"not": call("not", x)})


@pytest.mark.sampled(8)
@pytest.mark.parametrize("source", list(DTYPES.values()), ids=str)
def test_cast(source: DType) -> None:
    """Floats may be beyond the integer type's range."""
    x = edges(source)
    check({"a": x}, source, {t.name: cast(t, Var("a", source)) for t in (*FLOATS, BOOL)})
    if source.is_float:
        with np.errstate(over="ignore"):
            x = np.concatenate([x, np.array(BEYOND).astype(source.numpy)])
    check({"a": x}, source, {t.name: cast(t, Var("a", source)) for t in INTS})


@pytest.mark.parametrize("source", [F32, F64, F16], ids=str)
def test_cast_of_what_is_clamped(source: DType) -> None:
    """Clamped floats are cast like others. NaN becomes 0 in small integer types."""
    a = Var("a", source)
    values: dict[str, Expr] = {}
    for t in (I8, U8, I16):
        low, high = (const(float(end), source) for end in t.limits)
        values[t.name] = cast(t, minimum(maximum(a, low), high))
        values[f"{t}_down"] = cast(t, maximum(minimum(a, high), low))
    with np.errstate(over="ignore"):
        check({"a": np.array([*BEYOND, np.nan, 3.7, -3.7]).astype(source.numpy)}, source, values)


def test_casts_are_what_onnxruntime_gives() -> None:
    """The casts are those of x86-64 for single numbers. Vectors of uint32 differ there from the remaining
    elements."""
    onnxruntime = pytest.importorskip("onnxruntime")
    if architecture() != "x86_64":
        pytest.skip("other processors convert otherwise in ONNX Runtime")
    x = np.array([*BEYOND, np.nan, np.inf, -np.inf], np.float32)
    for dtype in INTS:
        kind = helper.np_dtype_to_tensor_dtype(dtype.numpy)
        node = helper.make_node("Cast", ["x"], ["y"], to=kind)
        ends = ([helper.make_tensor_value_info(n, t, [1])] for n, t in (("x", 1), ("y", kind)))
        graph = helper.make_graph([node], "cast", *ends)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
        session = onnxruntime.InferenceSession(model.SerializeToString())
        want = [session.run(None, {"x": v})[0][0] for v in x.reshape(-1, 1)]
        np.testing.assert_array_equal(convert(x, dtype), want, err_msg=str(dtype))


@pytest.mark.parametrize("dtype", [F16, BF16], ids=str)
def test_sixteen_bit_floats_round_once(dtype: DType) -> None:
    """Every value widens exactly. A value between two rounds to the nearest, and ties to even.

    For f64 to bf16, ml_dtypes rounds twice and is no reference."""
    every = np.arange(0, 65536, 7, dtype=np.uint16).view(dtype.numpy)
    finite = every[np.isfinite(every.astype(np.float32))].astype(np.float64)
    with np.errstate(invalid="ignore"):
        step = (every.view(np.uint16) + 1).view(dtype.numpy).astype(np.float64)
    middle = (finite + step[np.isfinite(every.astype(np.float32))]) / 2
    near = np.concatenate(
        [middle, np.nextafter(middle, np.inf), np.nextafter(middle, -np.inf), [np.nan, 1e9]]
    )
    for source, x in ((F64, near if dtype is F16 else middle), (F32, near.astype(np.float32))):
        for lanes in (1, LANES):
            x = np.resize(x, -(-x.size // LANES) * LANES)
            for on in runnable():
                got = run(
                    _narrow(source, dtype, x.size, lanes),
                    {"x": x, "y": x.astype(dtype.numpy)},
                    {},
                    target(on),
                )
                np.testing.assert_array_equal(
                    got["y"].astype(np.float32), x.astype(dtype.numpy).astype(np.float32)
                )
    check({"a": every[::5]}, dtype, {"wide": cast(F32, Var("a", dtype)), "wider": cast(F64, Var("a", dtype))})


def _narrow(source: DType, dtype: DType, count: int, lanes: int) -> Func:
    x, y = Buffer("x", source, (const(count),)), Buffer("y", dtype, (const(count),))
    i, v = Var("i"), Var("v")
    at = i * lanes + v
    nest = For(i, const(count // lanes), For(v, const(lanes), Store(y, (at,), cast(dtype, x[at])), "vector"))
    return Func("narrow", (x, y), 1, (), nest)


def test_bits_and_several_arguments() -> None:
    left, right = pairs(F32)
    x, y = Var("a", F32), Var("b", F32)
    values = {"fma": call("fma", x, y, x), "atan2": call("atan2", x, y), "bits": call("bitcast_i32", x)}
    check({"a": left, "b": right}, F32, values)
    check({"a": edges(I32)}, I32, {"floats": call("bitcast_f32", Var("a", I32))})


@pytest.mark.parametrize("name", PRODUCTS)
def test_products_of_words(name: str) -> None:
    """The numbers' products are never clamped, rounded to 0 or summed inexactly on any machine, except in the
    last place."""
    random, count, product = np.random.default_rng(), 16 * LANES, PRODUCTS[name]
    left, right = (
        random.uniform(0.5, 2, (count, product.terms)).astype(t.numpy)
        if t.is_float
        else random.integers(0, 60, (count, product.terms)).astype(t.numpy)
        for t in (product.left, product.right)
    )
    word = product.word
    operands = {"a": left.view(word.numpy)[:, 0], "b": right.view(word.numpy)[:, 0]}
    check(operands, word, {name: call(name, Var("a", word), Var("b", word))})
