"""Instruction rows as C-like functions over lanes: what the row's text, or its reference, does for each."""

from __future__ import annotations

from jangin.backends.clike.dialect import Dialect, type_name
from jangin.ir.dtype import F32, DType
from jangin.ir.expr import Binary, Buffer, Call, Cast, Const, Expr, Load, Select, Var
from jangin.ir.loop import For, If, Stmt, Store
from jangin.ir.words import INFIX
from jangin.targets.rows import Row

_FUNCTIONS = {"floor": "floor", "ceil": "ceil", "trunc": "trunc", "round": "rint", "sqrt": "sqrt"}
"""`rint` rounds half to even unless a program changes how the processor rounds."""


def function_name(row: Row, dtype: DType, lanes: int) -> str:
    """By the exact number of lanes, which several may have room for."""
    return f"{row.name}_{dtype}x{lanes}"


def row_function(row: Row, dtype: DType, lanes: int, dialect: Dialect) -> str:
    """A row's function of its operands, on `lanes` values of a type."""
    func = row.func(dtype)
    result = type_name(func.params[-1].dtype, lanes) if row.result else "void"
    given = [_parameter(p, lanes) for p in func.params if p.name != "r"]
    loop = func.body
    assert isinstance(loop, For)
    if row.c:
        operands = {p.name: _item(p.name, "i", lanes) for p in func.params}
        text = row.c.format(f="f" if dtype is F32 else "", **operands)
        body = f"{operands['r']} = {text};"
    else:
        body = _statement(loop.body, lanes)
    if lanes > 1:
        body = f"for (int i = 0; i < {lanes}; ++i) {body}"
    if row.result:
        zero = "0" if lanes == 1 else "{0}"
        body = f"{result} r = {zero}; {body} return r;"
    name = function_name(row, dtype, lanes)
    return f"{dialect.inline} {result} {name}({', '.join(given)}) {{ {body} }}"


def _parameter(p: Buffer, lanes: int) -> str:
    if p.name == "memory":
        return f"{type_name(p.dtype)} *memory"
    return f"{type_name(p.dtype, lanes)} {p.name}"


def _item(name: str, index: str, lanes: int) -> str:
    return name if lanes == 1 and name != "memory" else f"{name}[{index}]"


def _statement(s: Stmt, lanes: int) -> str:
    if isinstance(s, If):
        return f"if ({_text(s.cond, lanes)}) {_statement(s.then, lanes)}"
    assert isinstance(s, Store)
    return f"{_item(s.buffer.name, _text(s.index[0], lanes), lanes)} = {_text(s.value, lanes)};"


def _text(e: Expr, lanes: int) -> str:
    if isinstance(e, Var):
        return e.name
    if isinstance(e, Const):
        return str(int(e.value))
    if isinstance(e, Load):
        return _item(e.buffer.name, _text(e.index[0], lanes), lanes)
    if isinstance(e, Select):
        return f"({_text(e.cond, lanes)} ? {_text(e.a, lanes)} : {_text(e.b, lanes)})"
    if isinstance(e, Cast):
        return f"({type_name(e.dtype)}){_text(e.a, lanes)}"
    if isinstance(e, Call):
        suffix = "f" if e.dtype is F32 else ""
        return f"{_FUNCTIONS[e.fn]}{suffix}({', '.join(_text(a, lanes) for a in e.args)})"
    assert isinstance(e, Binary)
    a, b = _text(e.a, lanes), _text(e.b, lanes)
    if e.op in ("min", "max"):  # a NaN of either comes out
        return f"({a} != {a} || {a} {'<' if e.op == 'min' else '>'} {b} ? {a} : {b})"
    return f"({a} {INFIX[e.op]} {b})"
