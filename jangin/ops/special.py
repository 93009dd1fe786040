"""Special functions of an expression: error functions and the gamma function's logarithm and derivatives.

They are computed in f64, so that results of f32 are rounded once."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from jangin.ir.dtype import F64
from jangin.ir.expr import Expr, call, cast, const, eq, land, select

Function = Callable[[Expr], Expr]
_ERFCX = (
    0.3580023023627799,
    0.29446481772329297,
    0.1967427857013676,
    0.10348908730032906,
    0.03984258709573409,
    0.00894241153786806,
    -0.0004041388749870603,
    -0.0010113539570887728,
    -0.00018276990598902794,
    9.225899512771738e-05,
    3.5853885449595844e-05,
    -1.013156283309012e-05,
    -5.82374722681329e-06,
    1.5800864969572258e-06,
    9.223786145720273e-07,
    -3.2794192935327655e-07,
    -1.3698477467135753e-07,
    7.23798791311114e-08,
    1.647213179132514e-08,
    -1.3159668631609655e-08,
    -1.1137746412760201e-09,
    1.3405666455077527e-09,
    -1.1365971769947809e-11,
)
"""erfcx(z) / t is this polynomial in 2 t - 1 with t = 3 / (3 + z), for z >= 0. It interpolates 23 Chebyshev
nodes, and its relative error is 7e-16."""
_SHIFT = 10
"""Sums for the gamma function begin at x + 10, from where the asymptotic series are good to 1e-16, the
precision of f64."""
_BERNOULLI = (1 / 6, -1 / 30, 1 / 42, -1 / 30, 5 / 66, -691 / 2730, 7 / 6)
"""The numbers B2, B4, ..., B14."""
_CENTRE = (
    (3.3871328727963666080, 133.14166789178437745, 1971.5909503065514427, 13731.693765509461125,
     45921.953931549871457, 67265.770927008700853, 33430.575583588128105, 2509.0809287301226727),
    (1.0, 42.313330701600911252, 687.18700749205790830, 5394.1960214247511077, 21213.794301586595867,
     39307.895800092710610, 28729.085735721942674, 5226.4952788528545610),
)  # fmt: skip
_MIDDLE = (
    (1.42343711074968357734, 4.63033784615654529590, 5.76949722146069140550, 3.64784832476320460504,
     1.27045825245236838258, 0.241780725177450611770, 0.0227238449892691845833, 7.74545014278341407640e-4),
    (1.0, 2.05319162663775882187, 1.67638483018380384940, 0.689767334985100004550, 0.148103976427480074590,
     0.0151986665636164571966, 5.47593808499534494600e-4, 1.05075007164441684324e-9),
)  # fmt: skip
_TAIL = (
    (6.65790464350110377720, 5.46378491116411436990, 1.78482653991729133580, 0.296560571828504891230,
     0.0265321895265761230930, 0.00124266094738807843860, 2.71155556874348757815e-5,
     2.01033439929228813265e-7),
    (1.0, 0.599832206555887937690, 0.136929880922735805310, 0.0148753612908506148525,
     7.86869131145613259100e-4, 1.84631831751005468180e-5, 1.42151175831644588870e-7,
     2.04426310338993978564e-15),
)  # fmt: skip
"""Quotients of polynomials for the normal distribution's quantiles (Wichura 1988, algorithm AS 241)."""


def in_f64(function: Function) -> Function:
    """Return a function of floats that is computed in f64."""
    return lambda x: cast(x.dtype, function(cast(F64, x)))


def _polynomial(coefficients: Sequence[float], x: Expr) -> Expr:
    """Return the polynomial with these coefficients, that of x^0 first."""
    y: Expr = const(coefficients[-1], x.dtype)
    for c in reversed(coefficients[:-1]):
        y = y * x + c
    return y


def erfcx(x: Expr) -> Expr:
    """Return exp(x^2) erfc(x)."""
    y = _scaled(_size(x))
    return select(x < 0.0, call("exp", x * x) * 2.0 - y, y)


def erfc(x: Expr) -> Expr:
    """Return 1 - erf(x) with a small relative error for large x too."""
    y = _scaled(_size(x)) * call("exp", -(x * x))
    return select(x < 0.0, 2.0 - y, y)


def _scaled(z: Expr) -> Expr:
    t = const(3.0, F64) / (z + 3.0)
    return _polynomial(_ERFCX, t * 2.0 - 1.0) * t


def log_ndtr(x: Expr) -> Expr:
    """Return the logarithm of the normal distribution function."""
    z = x * -math.sqrt(0.5)
    return select(x < -1.0, call("log", erfcx(z) * 0.5) - z * z, call("log1p", erfc(-z) * -0.5))


def erfinv(x: Expr) -> Expr:
    """Return y with erf(y) = x."""
    tail = (1.0 - call("abs", x)) * 0.5
    return _quantile(x * 0.5, tail) * math.sqrt(0.5)


def ndtri(p: Expr) -> Expr:
    """Return y that a normal random variable exceeds with probability 1 - p."""
    return _quantile(p - 0.5, select(p < 0.5, p, 1.0 - p))


def _quantile(q: Expr, tail: Expr) -> Expr:
    """Return the quantile for the probability 1/2 + q. `tail` is 1/2 - abs(q)."""
    centre = q * _quotient(_CENTRE, 0.180625 - q * q)
    r = call("sqrt", -call("log", tail))
    far = select(r <= 5.0, _quotient(_MIDDLE, r - 1.6), _quotient(_TAIL, r - 5.0))
    far = select(eq(tail, const(0.0, F64)), -call("log", tail), far)  # infinite, and so is its slope
    return select(call("abs", q) <= 0.425, centre, select(q < 0.0, -far, far))


def _quotient(both: Sequence[Sequence[float]], x: Expr) -> Expr:
    above, below = both
    return _polynomial(above, x) / _polynomial(below, x)


def lgamma(x: Expr) -> Expr:
    """Return the logarithm of the gamma function's absolute value, by Stirling's series. Its slope at 0 is
    infinite."""
    a = _size(x)
    below = a < float(_SHIFT)
    steps: Expr = a + 1.0
    for k in range(2, _SHIFT):
        steps = steps * (a + float(k))
    z = select(below, a + float(_SHIFT), a)
    series = [b / (2 * k * (2 * k - 1)) for k, b in enumerate(_BERNOULLI, 1)]
    inverse = 1.0 / z
    y = (z - 0.5) * (call("log", z) - 1.0) + (0.5 * math.log(2 * math.pi) - 0.5)
    y = y + _polynomial(series, inverse * inverse) * inverse
    # the slope of log(a * steps) would be 0 / 0 at 0
    y = y - select(below, call("log", a) + call("log", steps), const(0.0, F64))
    sine = call("abs", call("sin", _fraction(x) * math.pi))
    mirrored = math.log(math.pi) - call("log", a) - call("log", sine) - y  # a product could underflow
    return select(x < 0.0, select(a < math.inf, mirrored, a), y)


def digamma(x: Expr) -> Expr:
    """Return the derivative of the gamma function's logarithm. It is NaN at negative whole numbers, and an
    infinity of the other sign at 0 and -0."""
    a = select(x < 0.0, 1.0 - x, x)
    z = a + float(_SHIFT)
    series = [b / (2 * k) for k, b in enumerate(_BERNOULLI, 1)]
    inverse = 1.0 / z
    square = inverse * inverse
    y = call("log", z) - inverse * 0.5 - _polynomial(series, square) * square
    y = y - 1.0 / a  # a + 0 would lose the sign of -0
    for k in range(1, _SHIFT):
        y = y - 1.0 / (a + float(k))
    mirrored = y - math.pi / call("tan", _fraction(x) * math.pi)
    undefined = select(_whole(x), const(math.nan, F64), const(0.0, F64))  # the slope stays infinite
    return select(x < 0.0, mirrored + undefined, y)


def trigamma(x: Expr) -> Expr:
    """Return the derivative of `digamma`. It is infinite at whole numbers up to 0."""
    a = select(x < 0.0, 1.0 - x, x)
    z = a + float(_SHIFT)
    inverse = 1.0 / z
    square = inverse * inverse
    y = inverse + square * 0.5 + _polynomial(_BERNOULLI, square) * square * inverse
    for k in range(_SHIFT):
        step = 1.0 / (a + float(k) if k else a)
        y = y + step * step
    sine = call("sin", _fraction(x) * math.pi)
    return select(x < 0.0, math.pi**2 / (sine * sine) - y, y)


def _size(x: Expr) -> Expr:
    """Return the absolute value of x. Its slope at 0 is 1, so that sums of functions of it have theirs."""
    return select(x < 0.0, -x, x)


def _fraction(x: Expr) -> Expr:
    """Return the distance from the nearest whole number, so that multiples of pi are exact."""
    return x - call("round", x)


def _whole(x: Expr) -> Expr:
    return land(eq(call("floor", x), x), x < 0.0)
