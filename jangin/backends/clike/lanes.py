"""Instruction rows as C-like functions: the row's reference for each lane."""

from __future__ import annotations

from dataclasses import dataclass

from jangin.backends.clike.dialect import Dialect, type_name
from jangin.ir.dtype import F32, I32, DType
from jangin.ir.expr import Binary, Buffer, Call, Cast, Const, Expr, Load, Select, Var, const
from jangin.ir.loop import For, If, Stmt, Store
from jangin.ir.words import BITCASTS, INFIX
from jangin.targets.rows import Row
from jangin.targets.target import Target

_FUNCTIONS = {"round": "rint"}
"""`rint` rounds half to even unless a program changes the processor's rounding mode."""


def function_name(row: Row, dtype: DType, lanes: int, space: str = "") -> str:
    """Return the name of the C function for an instruction row. It has the exact number of lanes, because
    several numbers share one vector type. It also has the address space."""
    return f"{row.name}_{dtype}x{lanes}{space.replace('__', '_').rstrip()}"


def row_function(
    row: Row, dtype: DType, lanes: int, target: Target, dialect: Dialect, space: str = ""
) -> str:
    """Return the C text of a function that carries out an instruction row on `lanes` values of a type. Its
    parameters are the row's operands. `space` is the address space of the row's memory."""
    func = row.func(dtype)
    loop, of_result = func.body, 1 if row.across else lanes
    result = type_name(func.params[-1].dtype, of_result) if row.result else "void"
    whole = dialect.row(row, dtype, lanes, target)
    if whole:
        body = f"return {whole};" if row.result else f"{whole};"
    else:
        assert isinstance(loop, For)
        body = dialect.lanes(row, [_Lane(dialect, lanes, n).statement(loop.body) for n in range(lanes)])
        body = f"{result} r; {body} return r;" if row.result else body
    params = (_parameter(p, lanes, space) for p in func.params if p.name != "r")
    name = function_name(row, dtype, lanes, space)
    return f"{dialect.inline} {result} {name}({', '.join(params)}) {{ {body} }}"


def _parameter(p: Buffer, lanes: int, space: str) -> str:
    if p.name == "memory":
        return f"{space}{type_name(p.dtype)} *memory"
    return f"{type_name(p.dtype, 1 if p.shape == (const(1),) else lanes)} {p.name}"


def _number(e: Const) -> str:
    if e.dtype.is_float:
        return f"{float(e.value)!r}{'f' if e.dtype is F32 else ''}"
    value = int(e.value)
    # C has no literal of the least number
    return f"({value + 1} - 1)" if value == e.dtype.limits[0] < 0 else str(value)


@dataclass
class _Lane:
    """Writes an instruction row's reference as C text for one lane."""

    dialect: Dialect
    lanes: int
    number: int

    def _item(self, name: str) -> str:
        return name if self.lanes == 1 else self.dialect.lane(name, self.number)

    def _place(self, buffer: Buffer, index: Expr) -> str:
        return f"memory[{self._text(index)}]" if buffer.name == "memory" else self._item(buffer.name)

    def statement(self, s: Stmt) -> str:
        if isinstance(s, If):
            return f"if ({self._text(s.cond)}) {self.statement(s.then)}"
        assert isinstance(s, Store)
        return f"{self._place(s.buffer, s.index[0])} = {self._text(s.value)};"

    def _text(self, e: Expr) -> str:
        if isinstance(e, Var):  # the lane
            return str(self.number)
        if isinstance(e, Const):
            return _number(e)
        if isinstance(e, Load):
            return self._place(e.buffer, e.index[0])
        if isinstance(e, Select):
            return f"({self._text(e.cond)} ? {self._text(e.a)} : {self._text(e.b)})"
        if isinstance(e, Cast):
            return f"({type_name(e.dtype)}){self._text(e.a)}"
        if isinstance(e, Call) and e.fn in BITCASTS:
            return self.dialect.reinterpret(type_name(e.dtype), self._text(e.args[0]), scalar=True)
        if isinstance(e, Call):
            called = self.dialect.function(_FUNCTIONS.get(e.fn, e.fn), e.dtype)
            return f"{called}({', '.join(map(self._text, e.args))})"
        assert isinstance(e, Binary)
        a, b = self._text(e.a), self._text(e.b)
        if e.op in ("min", "max"):  # NaN of either operand is the result
            nan = f"{a} != {a} || " if e.dtype.is_float else ""
            return f"({nan}{a} {'<' if e.op == 'min' else '>'} {b} ? {a} : {b})"
        text = f"({a} {INFIX[e.op]} {b})"
        narrow = e.dtype.is_int and e.dtype.bytes < I32.bytes  # C computes narrow integers as int
        return f"({type_name(e.dtype)}){text}" if narrow else text
