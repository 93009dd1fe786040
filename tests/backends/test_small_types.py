"""Small element types: every code is decoded, and float32 around every code is encoded, as in ml_dtypes."""

from __future__ import annotations

import numpy as np
import pytest
from machine import run, runnable, target

from jangin.ir.dtype import BF16, F8E8M0, F16, F32, SMALL, DType
from jangin.ir.expr import Buffer, Var, call, cast, const
from jangin.ir.graph import Array, static_shape
from jangin.ir.interpret import run_func
from jangin.ir.loop import For, Func, Store
from jangin.ir.parse import parse_func

LANES = 8
FLOATS = [t for t in SMALL if t.is_float]


def converted(x: Array, source: DType, to: DType, on: str) -> Array:
    """Return `x` cast by a vector loop."""
    count = x.size // LANES
    ins, out = (Buffer(n, t, (const(x.size),)) for n, t in (("x", source), ("out", to)))
    i, v = Var("i"), Var("v")
    at = i * LANES + v
    body = For(i, const(count), For(v, const(LANES), Store(out, (at,), cast(to, ins[at])), "vector"))
    arrays = {"x": x, "out": np.zeros(x.size, to.numpy)}
    return run(Func("k", (ins, out), 1, (), body), arrays, {}, target(on))["out"]


def every_code(dtype: DType) -> Array:
    codes = np.arange(max(1 << dtype.bits, LANES)) % (1 << dtype.bits)
    return codes.astype(np.uint8).view(dtype.numpy)


@pytest.mark.parametrize("on", runnable())
@pytest.mark.parametrize("dtype", SMALL, ids=str)
def test_decodes(dtype: DType, on: str) -> None:
    codes = every_code(dtype)
    np.testing.assert_array_equal(converted(codes, dtype, F32, on), codes.astype(np.float32))


@pytest.mark.parametrize("on", runnable())
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_encodes_to_the_nearest(dtype: DType, on: str) -> None:
    """Codes, the midpoints between them, and their neighbours in float32 are encoded to the nearest code."""
    values = every_code(dtype).astype(np.float32)
    values = np.unique(values[np.isfinite(values)])
    with np.errstate(all="ignore"):
        middles = (values[1:] + values[:-1]) / 2
        known = np.concatenate([values, middles, [np.inf, -np.inf, 1e30, -1e30, 1e-30]]).astype(np.float32)
        x = np.concatenate([known, np.nextafter(known, np.float32(np.inf)), np.nextafter(known, -np.inf)])
        if dtype is F8E8M0:  # ml_dtypes doesn't round subnormal numbers to the nearest
            x = x[(x == 0) | (np.abs(x) >= np.finfo(np.float32).tiny)]
        x = np.resize(x, -(-x.size // LANES) * LANES).astype(np.float32)
        want = x.astype(dtype.numpy).view(np.uint8)
    got = converted(x, F32, dtype, on).view(np.uint8)
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("dtype", SMALL, ids=str)
def test_bits_are_kept(dtype: DType) -> None:
    """Moving a value and reading its bits change no bit, not even of a NaN."""
    codes = every_code(dtype)
    np.testing.assert_array_equal(
        converted(codes, dtype, dtype, runnable()[0]).view(np.uint8), codes.view(np.uint8)
    )
    assert call(f"bitcast_{dtype}", Var("x", dtype)).dtype is dtype


@pytest.mark.sampled(4)
@pytest.mark.parametrize("on", runnable())
@pytest.mark.parametrize("lanes", [4, 8, 16, 32])
@pytest.mark.parametrize("dtype", [F16, BF16], ids=str)
def test_sums_of_products_round_as_each_operation_does(dtype: DType, lanes: int, on: str) -> None:
    """Sums in the type itself, with masked stores, round each product. No multiply-add skips a product's
    rounding."""
    m, k, n = 21, 5, 87
    func = parse_func(f"""func k(a: {dtype}[{m}, {k}], b: {dtype}[{k}, {n}], out: out {dtype}[{m}, {n}]) {{
      parallel i in {m} {{
        serial jo in {-(-n // lanes)} {{
          vector z in {lanes} {{
            if z + jo * {lanes} < {n} {{
              out[i, z + jo * {lanes}] = {dtype}(0.0)
            }}
          }}
          serial k in {k} {{
            vector j in {lanes} {{
              if j + jo * {lanes} < {n} {{
                out[i, j + jo * {lanes}] = out[i, j + jo * {lanes}] + a[i, k] * b[k, j + jo * {lanes}]
              }}
            }}
          }}
        }}
      }}
    }}""")
    rng = np.random.default_rng()
    arrays = {p.name: rng.standard_normal(static_shape(p.shape)).astype(dtype.numpy) for p in func.params}
    want = {name: a.copy() for name, a in arrays.items()}
    run_func(func, want, {})
    got = run(func, arrays, {}, target(on))["out"]
    np.testing.assert_array_equal(got.view(np.uint16), want["out"].view(np.uint16))
