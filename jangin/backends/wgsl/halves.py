"""16-bit floats in WGSL (see `runtime.devices.wgsl_halves`).

Operators compute them in f32 and round each result. A sum, difference or product of two 16-bit floats that is
rounded at once becomes one operation on `Half`, which adapters with f16 have. Long sums stay in f32."""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from jangin.backends.walk.writer import Value
from jangin.backends.wgsl.prelude import HELPERS
from jangin.backends.wgsl.writer import WgslWriter
from jangin.ir.dtype import F16, F32, U16, DType
from jangin.ir.expr import Scalar
from jangin.targets.rows import Row

_ROUNDED = ("add", "sub", "mul")
"""The operations of f32 for which there is one of `Half`."""
_NAN = "is_nan(half_float({1}))"
_KEEPING = {
    "min_number": "select({2}, {1}, half_more({2}, {1}))",
    "max_number": "select({2}, {1}, half_more({1}, {2}))",
    "min": f"select(select({{2}}, {{1}}, half_more({{2}}, {{1}})), {{1}}, {_NAN})",
    "max": f"select(select({{2}}, {{1}}, half_more({{1}}, {{2}})), {{1}}, {_NAN})",
    **dict.fromkeys(("floor", "ceil", "trunc", "round"), "half_exact({0})"),
}  # fmt: skip
"""The rows of f32 whose result is a 16-bit float if their operands are, as text of the f32 result and of the
operands."""


def _literal(number: Scalar) -> str:
    return f"half_of_bits({int(np.float16(number).view(np.uint16))}u)"


class HalfWriter(WgslWriter):
    """Writes 16-bit floats.

    - `halves` has them as text, by the names of their values in f32.
    - `roundings` has the text of the 16-bit float that an f32 value rounds to, by the value's name.
    - `terms` has the operands of sums of 16-bit floats, by the sums' texts."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.halves: dict[str, str] = {}
        self.roundings: dict[str, str] = {}
        self.terms: dict[str, tuple[str, ...]] = {}

    def has_text(self, row: Row) -> bool:
        return row.name in ("widen", "narrow") and F16 in row.dtypes

    def literal(self, number: Scalar, dtype: DType) -> str:
        if dtype is not F16:
            return super().literal(number, dtype)
        self.helper("half_of_bits")
        return _literal(number)

    def bitcast(self, dtype: DType, x: Value) -> Value:
        if x.dtype is dtype:
            return x
        if x.dtype is F16:
            bits = self.op(f"{self.helper('bits_of_half')}({x.ref})", U16)
            return self.bitcast(dtype, bits)
        if dtype is F16:
            return self.op(f"{self.helper('half_of_bits')}({super().bitcast(U16, x).ref})", F16)
        return super().bitcast(dtype, x)

    # --- conversions

    def instruction(self, name: str, dtype: DType, result: DType, *values: Value) -> Value:
        if name == "widen" and dtype is F16:
            wide = self.op(f"{self.helper('half_float')}({values[0].ref})", F32)
            self.halves.setdefault(wide.ref, values[0].ref)
            if values[0].ref in self.signs:
                self.signs.setdefault(wide.ref, self.signs[values[0].ref])
            return wide
        if name == "narrow" and dtype is F16:
            return self._rounded(values[0])
        value = super().instruction(name, dtype, result, *values)
        return self._keeping(value, _KEEPING[name], *values) if name in _KEEPING else value

    def _rounded(self, x: Value) -> Value:
        """Return the 16-bit float that an f32 value rounds to."""
        text = self.halves.get(x.ref) or self.roundings.get(x.ref) or f"half_rounded({x.ref})"
        if text.isidentifier():
            return Value(text, F16)
        for name in re.findall(r"\w+", text):
            if name in HELPERS:
                self.helper(name)
        half = self.op(text, F16)
        if text in self.terms:
            self.terms[half.ref] = self.terms[text]
        if self.signs.get(x.ref, "").removeprefix("-") in self.halves:
            self.signs[half.ref] = self.signs[x.ref]
        return half

    def _half(self, x: Value) -> str:
        """Return an f32 value as the text of a 16-bit float, or "" if it may be none. A subnormal constant is
        none, because devices may take it for 0."""
        if x.dtype is not F32:
            return ""
        if x.number is None:
            return self.halves.get(x.ref, "")
        number = float(x.number)
        with np.errstate(over="ignore"):
            same = float(np.float16(number)) == number
        normal = not number or abs(number) >= 2.0**-14
        return _literal(number) if same and normal else ""

    def _keeping(self, value: Value, text: str, *operands: Value) -> Value:
        """Return a value. If its operands are 16-bit floats, it is noted as one with this text."""
        halves = [self._half(v) for v in operands]
        if all(halves) and value.number is None:
            self.halves.setdefault(value.ref, text.format(value.ref, *halves))
        return value

    # --- arithmetic

    def binary(self, op: str, x: Value, y: Value) -> Value:
        value = super().binary(op, x, y)
        if op not in _ROUNDED or x.dtype is not F32 or value.number is not None:
            return value
        a, b = self._half(x), self._half(y)
        if a and b and value.ref not in self.roundings:
            if op == "mul":
                hidden = [v.number == 0 for v in (x, y)]
            else:
                hidden = [b in self.terms.get(a, ()), a in self.terms.get(b, ()) or self.cancels(op, x, y)]
            parts = [f"half_hidden({h})" if hide else h for h, hide in zip((a, b), hidden, strict=True)]
            text = self.roundings[value.ref] = f"half_{op}({', '.join(parts)})"
            if op != "mul":
                self.terms[text] = (a, b)
        return value

    def select(self, cond: Value, x: Value, y: Value) -> Value:
        value = super().select(cond, x, y)
        return self._keeping(value, f"select({{2}}, {{1}}, {cond.ref})", x, y)

    def negate(self, x: Value) -> Value:
        return self._keeping(super().negate(x), "half_neg({1})", x)

    def absolute(self, x: Value) -> Value:
        return self._keeping(super().absolute(x), "half_exact({0})", x)
