"""Floats are rounded, moved and clamped to small integers. Results are exact at ties and beyond both limits,
and take few instructions."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from loops import innermost
from machine import run, runnable, target

from jangin.backends.llvm.objects import assembly
from jangin.backends.walk.saturated import quotient, saturated
from jangin.ir.dtype import F32, I8, I16, U8, U16, DType
from jangin.ir.expr import Buffer, Expr, Var, call, cast, const, maximum, minimum
from jangin.ir.loop import For, Func, Store
from jangin.targets import Target
from jangin.targets.arm import NEOVERSE_N1
from jangin.targets.x86 import V2, V3, V4

X = Var("x", F32)


def quantized(x: Expr, dtype: DType, low: float, high: float, offset: int) -> Expr:
    whole = call("round", x) + const(float(offset), F32)
    return cast(dtype, minimum(maximum(whole, const(low, F32)), const(high, F32)))


def kernel(
    dtype: DType, low: int, high: int, offset: int, size: int, lanes: int, by: float | None = None
) -> Func:
    x, out, i, v = Buffer("x", F32, (const(size),)), Buffer("out", dtype, (const(size),)), Var("i"), Var("v")
    at = i * lanes + v
    value = x[at] if by is None else x[at] / const(by, F32)
    store = Store(out, (at,), quantized(value, dtype, low, high, offset))
    return Func("k", (x, out), 1, (), For(i, const(size // lanes), For(v, const(lanes), store, "vector")))


@pytest.mark.sampled(4)
@pytest.mark.parametrize("on", runnable())
@pytest.mark.parametrize("lanes", [1, 8, 16, 32, 64])
@pytest.mark.parametrize(
    ("dtype", "low", "high", "offset"),
    [(U8, 0, 255, 0), (U8, 0, 255, 101), (U8, 3, 200, 3), (I8, -128, 127, -7), (I8, 0, 90, 0),
     (I16, 0, 255, 0), (I16, -101, 154, 0), (I16, -32768, 32767, 11), (U16, 0, 65535, 300)],
)  # fmt: skip
def test_rounds_half_to_even_and_saturates(
    dtype: DType, low: int, high: int, offset: int, lanes: int, on: str
) -> None:
    ends = np.array([low - offset, high - offset], np.float32)
    near = (ends[:, None] + np.arange(-6, 7).astype(np.float32) / 2).reshape(-1)
    far = np.array(
        [0, -0.0, 0.5, -0.5, 1.5, 2.5, 8388609, 2.0**31, -(2.0**31), 3e9, -3e9, np.inf, -np.inf, np.nan],
        np.float32,
    )
    drawn = np.random.default_rng().uniform(2 * low - 20, 2 * high + 20, 64).astype(np.float32)
    x = np.concatenate([near, np.nextafter(near, np.float32(np.inf)), far, drawn])
    x = np.resize(x, -(-x.size // lanes) * lanes)
    exact = np.clip(np.rint(x.astype(np.float64)) + offset, low, high)
    want = np.where(np.isnan(exact), low, exact).astype(dtype.numpy)  # NaN gives ONNX Runtime's result on x86
    func = kernel(dtype, low, high, offset, x.size, lanes)
    got = run(func, {"x": x, "out": np.zeros(x.size, dtype.numpy)}, {}, target(on))["out"]
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("on", runnable())
@pytest.mark.parametrize(("dtype", "offset"), [(U8, 0), (U8, 130), (I8, -5)])
def test_quotients_step_where_divisions_do(dtype: DType, offset: int, on: str) -> None:
    """The tested floats are those next to each step, and some away from steps."""
    by = float(np.float32(np.random.default_rng().uniform(1e-3, 3.0)))
    low, high = map(int, dtype.limits)
    steps = ((np.arange(low - offset - 2, high - offset + 2) + 0.5) * by).astype(np.float32)
    near = (steps.view(np.int32)[:, None] + np.arange(-7, 8, dtype=np.int32)).view(np.float32).reshape(-1)
    x = np.concatenate([near, np.array([0, -0.0, np.inf, -np.inf, 3e38, -3e38, 1e-45], np.float32)])
    x = np.resize(x, -(-x.size // 16) * 16)
    with np.errstate(over="ignore"):
        want = np.clip(np.rint(x / np.float32(by)) + offset, low, high).astype(dtype.numpy)
    func = kernel(dtype, low, high, offset, x.size, 16, by)
    got = run(func, {"x": x, "out": np.zeros(x.size, dtype.numpy)}, {}, target(on))["out"]
    np.testing.assert_array_equal(got, want)


def test_quotients_are_products() -> None:
    for by, lanes, on in ((0.0235, 8, V3), (0.0235, 16, V4)):
        text = assembly(kernel(U8, 0, 255, 3, 64, lanes, by), on)
        assert "vfmadd" in text and "div" not in text


def test_quotients_that_have_no_products_stay() -> None:
    assert quotient(0.0235, 0, 255) is not None
    assert quotient(0.0, 0, 255) is quotient(-1.0, 0, 255) is quotient(1e-38, 0, 255) is None
    assert quotient(0.0235, -32768, 32767) is None


@pytest.mark.parametrize("on", runnable())
@pytest.mark.parametrize(("count", "lanes"), [(4, 16), (2, 8), (4, 4), (3, 8)])
def test_bytes_stored_apart_are_put_in_order(count: int, lanes: int, on: str) -> None:
    size, i, v, c = 5 * lanes, Var("i"), Var("v"), Var("c")
    x, out = Buffer("x", F32, (const(count), const(size))), Buffer("out", U8, (const(size), const(count)))
    at = i * lanes + v
    store = Store(out, (at, c), quantized(x[c, at], U8, 0, 255, 3))
    body = For(i, const(5), For(c, const(count), For(v, const(lanes), store, "vector"), "unroll"))
    func = Func("k", (x, out), 1, (), body)
    numbers = np.random.default_rng().uniform(-20, 300, (count, size)).astype(np.float32)
    got = run(func, {"x": numbers, "out": np.zeros((size, count), np.uint8)}, {}, target(on))["out"]
    np.testing.assert_array_equal(got, np.clip(np.rint(numbers) + 3, 0, 255).T.astype(np.uint8))


@pytest.mark.parametrize("on", [V2, V3, V4], ids=str)
@pytest.mark.parametrize(("dtype", "packs"), [(U8, "packuswb"), (I16, "packusdw")], ids=["u8", "i16"])
def test_no_instruction_that_rounds_alone(dtype: DType, packs: str, on: Target) -> None:
    text = assembly(kernel(dtype, 0, 255, 0, 64, 8), on)
    assert "cvtps2dq" in text and "round" not in text
    assert (packs in text and "max" not in text) or on is V4  # V4 packs unsigned numbers with saturation


@pytest.mark.parametrize(
    ("dtype", "low", "high", "offset", "lanes", "most"),
    [(U8, 0, 255, 0, 16, 10), (I8, -128, 127, -128, 16, 11), (I8, -128, 127, -7, 8, 6),
     (I16, 0, 255, 0, 8, 6), (U8, 3, 200, 3, 4, 6)],
)  # fmt: skip
def test_arm_narrows_by_clamping(
    dtype: DType, low: int, high: int, offset: int, lanes: int, most: int
) -> None:
    """Each vector is rounded and narrowed to int16 by one instruction each. Several vectors are then narrowed
    together."""
    (inner,) = innermost(assembly(kernel(dtype, low, high, offset, 64, lanes), NEOVERSE_N1))
    words = Counter(line.split()[0].rstrip("2") for line in inner)
    assert words["fcvtns"] == words["sqxtn"] - (dtype is I8 and low - offset != 0) == lanes // 4, inner
    arithmetic = [w for w in words.elements() if w not in ("ldr", "ldp", "ld1", "str", "add", "cmp", "b.ne")]
    assert len(arithmetic) <= most, inner


@pytest.mark.parametrize(("dtype", "last"), [(U8, "vpackuswb"), (I16, "vpackusdw")])
def test_avx2_packs_whole_registers(dtype: DType, last: str) -> None:
    """Sixteen numbers are two registers of sums. One instruction packs them to int16, and they are stored at
    once.

    A pack to unsigned bytes clamps negative numbers."""
    text = assembly(kernel(dtype, 0, 255, 0, 64, 16), V3)
    words = Counter(line.split()[0] for line in text.splitlines() if line.strip())
    assert words["vcvtps2dq"] == 2 * words[last] == 2 * words["vmovdqu"], text
    assert words[last] and not words["vpmaxsd"], text


@pytest.mark.parametrize(("low", "high", "of"), [(0.5, 255, U8), (0, 256, U8), (200, 100, U8), (-1, 255, U8)])
def test_other_clamps_stay(low: float, high: float, of: DType) -> None:
    e = quantized(X, of, low, high, 0)
    assert saturated(e) is None  # type: ignore[arg-type]
