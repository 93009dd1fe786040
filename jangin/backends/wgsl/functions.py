"""The functions of C's mathematical library in WGSL, whose own functions may be inexact.

They are expressions of functions that `backends.walk.math` expands, with errors of a few units in the last
place. The polynomials are minimax fits. The relative error of `pow` is that of its exponent: about |y *
log2(x)| times 2^-24."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from jangin.backends.walk.arithmetic import Arithmetic
from jangin.backends.walk.math import expansion
from jangin.backends.walk.writer import Value
from jangin.backends.wgsl.longs import Longs
from jangin.ir.dtype import F32, I32
from jangin.ir.expr import Expr, Var, binary, call, cast, const, eq, land, lor, maximum, minimum, select
from jangin.ir.graph import CompileError
from jangin.ir.traversal import substitute
from jangin.targets.small import ARGUMENT

_X, _Y = Var(ARGUMENT, F32), Var("second", F32)
_ASIN = (0.16666752099990845, 0.07495297491550446, 0.04547037556767464, 0.02417951636016369,
         0.04216630756855011)  # fmt: skip
"""(asin(x) - x) / x**3 in x**2, |x| <= 1/2; relative error of asin 2**-27."""
_ATAN = (-0.33333316445350647, 0.19998471438884735, -0.14243532717227936, 0.1059381365776062,
         -0.060782209038734436)  # fmt: skip
"""(atan(x) - x) / x**3 in x**2, |x| <= tan(pi/8); relative error of atan 2**-28."""
_LARGE = 1e9
"""For numbers above this, x**2 + 1 rounds to x**2. In f32 this holds from 4,096 on, and squares overflow
above 1.8e19."""
_OVERFLOW = 200.0
"""Powers of 2 with exponents above this are infinite, and with exponents below its negative they are 0. In
f32 both are true from 150 on."""


def _c(value: float) -> Expr:
    return const(value, F32)


def _of(fn: str, x: Expr) -> Expr:
    formula = expansion(fn, F32)
    assert formula is not None, fn
    return substitute(formula, {Var(ARGUMENT, F32): x})


def _bits(x: Expr) -> Expr:
    return call("bitcast_i32", x)


def _negative(x: Expr) -> Expr:
    """Return whether a number's sign bit is set, even for -0."""
    return _bits(x) < const(0, I32)


def _with_sign(size: Expr, x: Expr) -> Expr:
    sign = binary("and", _bits(x), const(-1 << 31, I32))
    return call("bitcast_f32", binary("or", _bits(size), sign))


def _odd(coefficients: Sequence[float], x: Expr) -> Expr:
    """Return x + x**3 times a polynomial in x**2."""
    square = x * x
    out = _c(coefficients[-1])
    for c in coefficients[-2::-1]:
        out = call("fma", out, square, _c(c))
    return call("fma", x * square, out, x)


def _asinh(x: Expr) -> Expr:
    a = call("abs", x)
    near = _of("log1p", a + a * a / (_c(1.0) + call("sqrt", a * a + _c(1.0))))
    return _with_sign(select(a > _c(_LARGE), _of("log", a) + _c(math.log(2)), near), x)


def _acosh(x: Expr) -> Expr:
    t = x - _c(1.0)
    near = _of("log1p", t + call("sqrt", maximum(t + t + t * t, _c(0.0))))
    inverse = select(x > _c(_LARGE), _of("log", x) + _c(math.log(2)), near)
    return select(binary("ge", x, _c(1.0)), inverse, _c(math.nan))


def _atanh(x: Expr) -> Expr:
    a = call("abs", x)
    inside = _c(0.5) * _of("log1p", (a + a) / (_c(1.0) - a))
    beyond = select(eq(a, _c(1.0)), _c(math.inf), _c(math.nan))
    return _with_sign(select(a < _c(1.0), inside, beyond), x)


def _halves(a: Expr) -> Expr:
    """Return exp(a) / 2, even if exp(a) itself overflows."""
    root = _of("exp", a * _c(0.5))
    return root * _c(0.5) * root


def _sinh(x: Expr) -> Expr:
    a = call("abs", x)
    e = _of("expm1", minimum(a, _c(80.0)))
    near = _c(0.5) * (e + e / (e + _c(1.0)))
    return _with_sign(select(a > _c(80.0), _halves(a), near), x)


def _cosh(x: Expr) -> Expr:
    a = call("abs", x)
    e = _of("exp", minimum(a, _c(80.0)))
    return select(a > _c(80.0), _halves(a), _c(0.5) * e + _c(0.5) / e)


def _asin_parts(x: Expr) -> tuple[Expr, Expr, Expr]:
    """Return |x|, asin(|x|), and asin(sqrt((1 - |x|) / 2)). The second is right for |x| <= 1/2, and the third
    for larger |x|. The third is NaN for |x| > 1."""
    a = call("abs", x)
    far = call("sqrt", maximum((_c(1.0) - a) * _c(0.5), _c(0.0)))
    one = _odd(_ASIN, select(a > _c(0.5), far, a))
    return a, one, select(a > _c(1.0), _c(math.nan), one)


def _asin(x: Expr) -> Expr:
    a, near, far = _asin_parts(x)
    return _with_sign(select(a > _c(0.5), _c(math.pi / 2) - (far + far), near), x)


def _acos(x: Expr) -> Expr:
    a, near, far = _asin_parts(x)
    twice = far + far
    beyond = select(_negative(x), _c(math.pi) - twice, twice)
    return select(a > _c(0.5), beyond, _c(math.pi / 2) - _with_sign(near, x))


def _atan_inside(t: Expr) -> Expr:
    """Return atan(t) for 0 <= t <= 1."""
    far = t > _c(math.tan(math.pi / 8))
    part = _odd(_ATAN, select(far, (t - _c(1.0)) / (t + _c(1.0)), t))
    return select(far, part + _c(math.pi / 4), part)


def _atan(x: Expr) -> Expr:
    a = call("abs", x)
    part = _atan_inside(select(a > _c(1.0), _c(1.0) / a, a))
    return _with_sign(select(a > _c(1.0), _c(math.pi / 2) - part, part), x)


def _atan2(y: Expr, x: Expr) -> Expr:
    a, b = call("abs", y), call("abs", x)
    same = eq(a, b)  # of two zeros the ratio is none, and of two infinities
    ratio = minimum(a, b) / select(same, _c(1.0), maximum(a, b))
    ratio = select(same, select(eq(a, _c(0.0)), _c(0.0), _c(1.0)), ratio)
    part = _atan_inside(ratio)
    part = select(a > b, _c(math.pi / 2) - part, part)
    part = select(_negative(x), _c(math.pi) - part, part)
    return select(lor(call("isnan", x), call("isnan", y)), _c(math.nan), _with_sign(part, y))


def _pow(x: Expr, y: Expr) -> Expr:
    a = call("abs", x)
    size = select(call("isinf", y), _infinite_power(a, y), _finite_power(a, y))
    whole = eq(call("floor", y), y)
    half = y * _c(0.5)
    odd = land(land(whole, call("abs", y) < _c(2.0**24)), binary("ne", call("floor", half), half))
    signed = select(land(_negative(x), odd), call("neg", size), size)
    wrong = land(land(x < _c(0.0), binary("ne", a, _c(math.inf))), call("not", whole))
    signed = select(wrong, _c(math.nan), signed)
    signed = select(lor(call("isnan", x), call("isnan", y)), _c(math.nan), signed)
    return select(lor(eq(y, _c(0.0)), eq(x, _c(1.0))), _c(1.0), signed)


def _infinite_power(a: Expr, y: Expr) -> Expr:
    grows = eq(a > _c(1.0), y > _c(0.0))
    return select(eq(a, _c(1.0)), _c(1.0), select(grows, _c(math.inf), _c(0.0)))


def _finite_power(a: Expr, y: Expr) -> Expr:
    """Return 2 to the power of y * log2(a). The whole part of this exponent is split into two factors, which
    are both finite."""
    ends = select(y > _c(0.0), _c(0.0), _c(math.inf)), select(y > _c(0.0), _c(math.inf), _c(0.0))
    normal = select(land(a > _c(0.0), a < _c(math.inf)), a, _c(1.0))
    log = _of("log2", normal)
    high = maximum(minimum(call("round", log), _c(126.0)), _c(-126.0))
    rough = maximum(minimum(y * log, _c(_OVERFLOW)), _c(-_OVERFLOW))
    whole = call("round", rough)
    rest = call("fma", y, high, call("neg", whole)) + y * _of(
        "log2", normal * _power_of_two(call("neg", high))
    )
    rest = maximum(minimum(rest, _c(1.0)), _c(-1.0))
    half = call("floor", whole * _c(0.5))
    power = _of("exp2", rest) * _power_of_two(half) * _power_of_two(whole - half)
    return select(eq(a, _c(0.0)), ends[0], select(eq(a, _c(math.inf)), ends[1], power))


def _power_of_two(n: Expr) -> Expr:
    """Return 2 to the power of an integer n between -126 and 127."""
    return call("bitcast_f32", binary("shl", cast(I32, n) + const(127, I32), const(23, I32)))


FORMULAS: Mapping[str, Callable[..., Expr]] = {
    "asin": _asin, "acos": _acos, "atan": _atan, "asinh": _asinh, "acosh": _acosh, "atanh": _atanh,
    "sinh": _sinh, "cosh": _cosh, "atan2": _atan2, "pow": _pow,
}  # fmt: skip
"""Functions of f32 expressions, by the names of C's functions for f64. They take one or two expressions."""
_TURNED = ("sin", "cos", "tan")
"""Functions that are only called here for large arguments. Other arguments have expansions."""


class Functions(Longs):
    """Writes calls of C's mathematical functions."""

    def function(self, name: str, *args: Value) -> Value:
        if args[0].dtype is not F32:
            raise CompileError(f"{self.kernel}: WGSL has no {name} of {args[0].dtype}")
        arithmetic = Arithmetic(self)
        if name in _TURNED:
            return self._of_angle(arithmetic, name, args[0])
        if name not in FORMULAS:
            raise CompileError(f"{self.kernel}: WGSL has no {name}")
        variables = (_X, _Y)[: len(args)]
        return arithmetic.formula(FORMULAS[name](*variables), *args, names=[v.name for v in variables])

    def _of_angle(self, arithmetic: Arithmetic, name: str, x: Value) -> Value:
        """Return the sine, cosine or tangent of an angle. Whole quarter turns are first subtracted from it.
        An infinite angle gives NaN."""
        turns = self.name(f"{self.helper('quarters')}({x.ref})")
        angle, quarter = _X, _Y
        swaps = eq(call("floor", quarter * _c(0.5)) * _c(2.0), quarter)
        sine, cosine = _of("sin", angle), _of("cos", angle)
        of_sin = select(swaps, sine, cosine)
        of_cos = select(swaps, cosine, call("neg", sine))
        turned = binary("ge", quarter, _c(2.0))
        of_sin, of_cos = (select(turned, call("neg", v), v) for v in (of_sin, of_cos))
        value = {"sin": of_sin, "cos": of_cos, "tan": of_sin / of_cos}[name]
        operands = [self.op(f"{turns}.{part}", F32) for part in "xy"]
        result = arithmetic.formula(value, *operands, names=[angle.name, quarter.name])
        finite = self.compare("lt", self.absolute(x), self.like(math.inf, x))
        return self.select(finite, result, self.like(math.nan, x))
