"""Transcendental functions of f32 as expressions: polynomials that vectorize.

Range reductions follow Cody and Waite (Software Manual for the Elementary Functions, 1980). Coefficients are
minimax fits (Lawson's reweighted least squares on Chebyshev nodes), rounded to f32. `MAX_ULP` is the largest
error against f64 over the tested samples, for targets with fused multiply-add. NaN, infinities, zeros and
subnormal numbers are as in C, with one exception: `FLUSHED` functions may give 0 for results below
`FLUSH_BELOW`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import cache

from jangin.ir.dtype import F32, F64, I32, DType
from jangin.ir.expr import Const, Expr, Var, binary, call, cast, const, eq, maximum, minimum, select
from jangin.targets.small import ARGUMENT

MAX_ULP: Mapping[str, float] = {
    "exp": 1, "exp2": 1.5, "expm1": 1.5, "log": 1, "log2": 1.5, "log1p": 1, "sigmoid": 2.5, "tanh": 2.5,
    "erf": 2, "sin": 2, "cos": 2, "tan": 3.5,
}  # fmt: skip

LARGEST: Mapping[str, float] = {"sin": 8192.0, "cos": 8192.0, "tan": 8192.0}
"""Magnitudes of arguments up to which an expansion is right. Beyond, the reduction by multiples of pi would
need more digits of pi, and the C library is called."""

FLUSHED = ("exp", "exp2", "sigmoid")
"""Functions that give 0 for subnormal results (see `FLUSH_BELOW`)."""
FLUSH_BELOW = 2.0**-126
"""The smallest normal number. A subnormal result may be 0, because a right one takes a second scaling."""

_LN2_HIGH, _LN2_LOW = 0.693359375, -2.12194440054690583e-4
"""The natural logarithm of 2 as a sum. The first part has 9 bits, so that its product with an exponent is
exact in f32 (Cody and Waite, 1980)."""
_LOG2_E = 1.44269504088896341
"""The logarithm of e to base 2, by which an argument becomes an exponent of 2."""
_EXP = (0.4999999403953552, 0.16666696965694427, 0.041668184101581573, 0.008326935581862926,
        0.0013833435950800776, 0.00023280411551240832)  # fmt: skip
"""(exp(r) - 1 - r) / r**2 for -ln(2)/2 <= r <= ln(2); relative error of exp 2**-29."""
_EXP_NEAR = (0.4999999403953552, 0.1666651964187622, 0.04166840761899948, 0.008368921466171741,
        0.0013814173871651292)  # fmt: skip
"""The same polynomial as `_EXP` for |r| <= ln(2)/2; relative error of exp 2**-28."""
_EXPM1 = (0.5, 0.1666666567325592, 0.04166635870933533, 0.008333389647305012, 0.0013940926874056458,
          0.00019845901988446712)  # fmt: skip
"""The same polynomial as `_EXP`, in the same range, for expm1, whose relative error is 2**-31."""
_LOG = (0.3333331346511841, -0.25000008940696716, 0.2000211924314499, -0.1666799634695053,
        0.14219552278518677, -0.1240558922290802, 0.11888162791728973, -0.11675651371479034,
        0.0674663856625557)  # fmt: skip
"""(log(1 + f) - f + f**2/2) / f**3 for sqrt(1/2) - 1 <= f <= sqrt(2) - 1; relative error 2**-30."""
_ERF = (0.1283791065216064, -0.3761262595653534, 0.1128358542919159, -0.026853812858462334,
        0.005188327748328447, -0.0008010193705558777, 7.853860734030604e-05)  # fmt: skip
"""erf(x) / x - 1 in x**2, |x| <= 1; relative error of erf 2**-29."""
_ERFC = (0.0004069316200911999, -0.002178080379962921, 0.005446652416139841, -0.008353236131370068,
         0.008615318685770035, -0.006103246472775936, 0.0028181744273751974, -0.0005703705246560276,
         -0.0002865065180230886, 0.00027890040655620396, -6.188760016812012e-05, -2.1040621504653245e-05,
         9.124665666604415e-06)  # fmt: skip
"""1 - erf(x) in x - 2.5, 1 <= x <= 3.92; absolute error 2**-25."""
_SIN = (-0.1666666716337204, 0.008333329111337662, -0.0001983925758395344, 2.7175681225344306e-06)
"""(sin(r) - r) / r**3 in r**2, |r| <= pi/4; relative error of sin 2**-37."""
_COS = (0.0416666679084301, -0.0013888883404433727, 2.4799437596811913e-05, -2.720333895922522e-07)
"""(cos(r) - 1 + r**2/2) / r**4 in r**2, |r| <= pi/4; absolute error of cos 2**-43."""
_HALF_PI = (1.5703125, 0.0004837512969970703, 7.549533620476723e-08, 2.5633440682570896e-12)
"""Parts of pi/2. Products of the first three and integers below 2**13 are exact."""


def _c(value: float) -> Const:
    return const(value, F32)


def _i(value: int) -> Const:
    return const(value, I32)


def _horner(coefficients: Sequence[float], x: Expr) -> Expr:
    out: Expr = _c(coefficients[-1])
    for c in coefficients[-2::-1]:
        out = call("fma", out, x, _c(c))
    return out


def _in_pairs(coefficients: Sequence[float], x: Expr) -> Expr:
    """Return the polynomial, computed as one in x**2 whose coefficients are pairs. x**2 is needed anyway. It
    has as many operations and half the latency."""
    pairs = [_horner(coefficients[k : k + 2], x) for k in range(0, len(coefficients), 2)]
    out = pairs.pop()
    while pairs:
        out = call("fma", out, x * x, pairs.pop())
    return out


def _bits(x: Expr) -> Expr:
    return call("bitcast_i32", x)


def _float(bits: Expr) -> Expr:
    return call("bitcast_f32", bits)


_MAGIC = 1.5 * 2.0**23
"""Added to |n| < 2**22, it leaves n, rounded to the nearest, in the lowest bits. Numbers from 2**23 on have
no fractional bits in f32."""


def _power(x: Expr, scale: float, bias: int = 127, most: int | None = None) -> tuple[Expr, Expr]:
    """Return n as a float, and 2**(n + bias - 127), which is 0 if n is -bias.

    n is x * scale rounded to an integer, and at most `most`.

    The bias is added together with _MAGIC, whose own bits the shift drops.
    """
    magic = _MAGIC + bias
    shifted = call("fma", x, _c(scale), _c(magic))
    if most is not None:
        shifted = minimum(shifted, _c(magic + most))
    return shifted - _c(magic), _float(binary("shl", _bits(shifted), _i(23)))


def _nearest(x: Expr, scale: float) -> tuple[Expr, Expr]:
    """Return x * scale rounded to an integer: as a float, and as i32."""
    shifted = call("fma", x, _c(scale), _c(_MAGIC))
    return shifted - _c(_MAGIC), _bits(shifted) - _i(0x4B400000)


def _power_of_two(n: Expr) -> Expr:
    """Return 2**n for -127 < n < 128, and 0 for -127."""
    return _float(binary("shl", n + _i(127), _i(23)))


def _scaled_exp(x: Expr, scale: float, reduced: Callable[[Expr], Expr]) -> Expr:
    """Return exp(r) * 2**n, where n is x * scale rounded, and `reduced` computes r, the remainder of x, from
    n.

    Normal numbers have exponents from -126 to 127, so n is at most 127. At this n, r goes up to ln(2). Beyond
    it the product overflows, as it should, and never gives NaN. An n of -127 gives 0.
    """
    n, power = _power(x, scale, most=127)
    r = reduced(n)
    return call("fma", call("fma", _horner(_EXP, r), r * r, r), power, power)


def _exp(x: Expr) -> Expr:
    x = maximum(x, _c(-88.0))
    return _scaled_exp(x, _LOG2_E, lambda n: call("fma", n, _c(-_LN2_LOW), call("fma", n, _c(-_LN2_HIGH), x)))


def _exp2(x: Expr) -> Expr:
    x = maximum(x, _c(-127.0))
    return _scaled_exp(x, 1.0, lambda n: (x - n) * _c(math.log(2)))


def _expm1_reduced(x: Expr, n: Expr) -> Expr:
    """Return expm1(x - n*ln(2))."""
    r = call("fma", n, _c(-_LN2_LOW), call("fma", n, _c(-_LN2_HIGH), x))
    return call("fma", _in_pairs(_EXPM1, r), r * r, r)


def _expm1(x: Expr) -> Expr:
    """Return 2**n * expm1(r) + (2**n - 1), halved and doubled so that n = 128 stays finite."""
    bounded = minimum(maximum(x, _c(-20.0)), _c(89.0))
    n, i = _nearest(bounded, _LOG2_E)
    q = _expm1_reduced(bounded, n)
    half = _power_of_two(i - _i(1))
    large = call("fma", q, half, half - _c(0.5)) * _c(2.0)
    return select(eq(i, _i(0)), q, large)


_SQRT_HALF_BITS = 0x3F3504F3
"""The bits of sqrt(1/2) in f32. An offset by them puts mantissas between sqrt(1/2) and sqrt(2)."""


def _log_parts(x: Expr) -> tuple[Expr, Expr, Expr]:
    """Return (e, f, m) with x = 2**e * m, f = m - 1, m in [sqrt(1/2), sqrt(2)); x must be positive and
    normal."""
    offset = _bits(x) - _i(_SQRT_HALF_BITS)
    exponent = binary("shr", offset, _i(23))
    m = _float(binary("and", offset, _i(0x7FFFFF)) + _i(_SQRT_HALF_BITS))
    return cast(F32, exponent), m - _c(1.0), m


def _normal(x: Expr) -> tuple[Expr, Expr]:
    """Return a subnormal x scaled up to a normal number, and the exponent that corrects it."""
    small = x < _c(2.0**-126)
    return select(small, x * _c(2.0**23), x), select(small, _c(-23.0), _c(0.0))


def _edges(x: Expr, value: Expr) -> Expr:
    """Return the logarithm `value` of x, with the right values at 0, at infinity and below 0. NaN stays."""
    value = select(eq(x, _c(math.inf)), x, value)
    value = select(eq(x, _c(0.0)), _c(-math.inf), value)
    return select(binary("ge", x, _c(0.0)), value, _c(math.nan))


def _log_tail(f: Expr) -> Expr:
    """Return log(1 + f) - f."""
    square = f * f
    return call("fma", _in_pairs(_LOG, f) * f, square, square * _c(-0.5))


def _log(x: Expr) -> Expr:
    scaled, shift = _normal(x)
    e, f, _ = _log_parts(scaled)
    e = e + shift
    low = call("fma", e, _c(_LN2_LOW), _log_tail(f))
    return _edges(x, call("fma", e, _c(_LN2_HIGH), f + low))


def _log2(x: Expr) -> Expr:
    """Return log2(x). log2(e), in two parts, keeps the product exact enough if the exponent is 0."""
    scaled, shift = _normal(x)
    e, f, _ = _log_parts(scaled)
    high, low = 1.44269502162933349609, 1.92596299112661746887e-8
    tail = _log_tail(f)
    product = call("fma", f, _c(high), call("fma", f, _c(low), tail * _c(high)))
    return _edges(x, e + shift + product)


def _log1p(x: Expr) -> Expr:
    """Return log(u) + c/u, where u is 1 + x rounded, and c its rounding error."""
    u = x + _c(1.0)
    lost = select(x < _c(1.0), x - (u - _c(1.0)), _c(1.0) - (u - x))
    e, f, _ = _log_parts(u)
    correction = select(x < _c(2.0**30), lost / u, _c(0.0))
    low = call("fma", e, _c(_LN2_LOW), _log_tail(f) + correction)
    value = call("fma", e, _c(_LN2_HIGH), f + low)
    return select(call("abs", x) < _c(2.0**-20), x - _c(0.5) * x * x, _edges(u, value))


def _exp_minus(x: Expr) -> Expr:
    """Return exp(-x), computed without negating x."""
    x = minimum(maximum(x, _c(-89.0)), _c(87.3))
    n, half = _power(x, -_LOG2_E, 126)
    r = call("fma", n, _c(_LN2_LOW), call("fma", n, _c(_LN2_HIGH), x))
    signed = [2 * c * (-1) ** k for k, c in enumerate(_EXP_NEAR)]
    twice = call("fma", _in_pairs(signed, r), r * r, call("fma", r, _c(-2.0), _c(2.0)))
    return twice * half


def _sigmoid(x: Expr) -> Expr:
    return const(1.0, x.dtype) / _sigmoid_divisor(x)


def _sigmoid_divisor(x: Expr) -> Expr:
    return const(1.0, x.dtype) + (call("exp", -x) if x.dtype is F64 else _exp_minus(x))


def _with_sign(size: Expr, x: Expr) -> Expr:
    """Return a nonnegative value with the sign of x."""
    return _float(binary("or", _bits(size), binary("and", _bits(x), _i(-1 << 31))))


def _tanh(x: Expr) -> Expr:
    """Return (1 - e) / (1 + e) with e = exp(-2|x|) = 2**n * (1 - 2q), which neither overflows nor cancels.

    One part of ln(2) is enough, because its error counts 2**n times.
    """
    size = minimum(call("abs", x), _c(10.0))
    n, twice = _power(size, -2 * _LOG2_E, 128)
    r = call("fma", n, _c(math.log(2) / 2), size)
    q = call("fma", _in_pairs([c * (-2.0) ** (k + 1) for k, c in enumerate(_EXP_NEAR)], r), r * r, r)
    below, above = (call("fma", twice, _c(c), _c(1.0)) for c in (-0.5, 0.5))
    return _with_sign(call("fma", q, twice, below) / call("fma", -q, twice, above), x)


def _erf(x: Expr, polynomial: Callable[[Sequence[float], Expr], Expr] = _in_pairs) -> Expr:
    size = call("abs", x)
    near = call("fma", x, polynomial(_ERF, x * x), x)
    far = _c(1.0) - polynomial(_ERFC, minimum(size, _c(3.92)) - _c(2.5))
    return select(size < _c(1.0), near, _with_sign(far, x))


def _quadrant(x: Expr) -> tuple[Expr, Expr, Expr]:
    """Return (i, sine, cosine) of r, with x = i*pi/2 + r and |r| <= pi/4."""
    n, i = _nearest(x, 2 / math.pi)
    r = x
    for part in _HALF_PI:
        r = call("fma", n, _c(-part), r)
    u = r * r
    sine = call("fma", u * r, _horner(_SIN, u), r)
    cosine = call("fma", u * u, _horner(_COS, u), call("fma", u, _c(-0.5), _c(1.0)))
    return i, sine, cosine


def _odd(i: Expr) -> Expr:
    return eq(binary("and", i, _i(1)), _i(1))


def _turned(i: Expr, value: Expr) -> Expr:
    """Return the value, negated if the second bit of i is set."""
    return _float(binary("xor", _bits(value), binary("shl", binary("and", i, _i(2)), _i(30))))


def _sin(x: Expr) -> Expr:
    """Return sin(x); -0 stays -0."""
    i, sine, cosine = _quadrant(x)
    return select(eq(x, _c(0.0)), x, _turned(i, select(_odd(i), cosine, sine)))


def _cos(x: Expr) -> Expr:
    i, sine, cosine = _quadrant(x)
    return _turned(i + _i(1), select(_odd(i), sine, cosine))


def _tan(x: Expr) -> Expr:
    i, sine, cosine = _quadrant(x)
    odd = _odd(i)
    ratio = select(odd, -cosine, sine) / select(odd, sine, cosine)
    return select(eq(x, _c(0.0)), x, ratio)


_F32: Mapping[str, Callable[[Expr], Expr]] = {
    "exp": _exp, "exp2": _exp2, "expm1": _expm1, "log": _log, "log2": _log2, "log1p": _log1p,
    "sigmoid": _sigmoid, "tanh": _tanh, "erf": _erf,
    "sin": _sin, "cos": _cos, "tan": _tan,
}  # fmt: skip


@cache
def expansion(fn: str, dtype: DType, short: bool = False) -> Expr | None:
    """Return an intrinsic as an expression of the variable ARGUMENT, or None if the C library computes it.

    `short`: a form with fewer operations and registers, in which each operation waits for the one before.
    """
    if fn == "erf" and dtype is F32 and short:
        return _erf(Var(ARGUMENT, F32), _horner)
    if fn == "sigmoid" and dtype is F64:
        return _sigmoid(Var(ARGUMENT, F64))
    make = _F32.get(fn) if dtype is F32 else None
    return None if make is None else make(Var(ARGUMENT, F32))


@cache
def divisor(fn: str, dtype: DType) -> Expr | None:
    """Return an expression d of the variable ARGUMENT with fn(ARGUMENT) = 1/d, or None if there is none. A
    product with fn is then one division."""
    return _sigmoid_divisor(Var(ARGUMENT, dtype)) if fn == "sigmoid" and dtype in (F32, F64) else None
