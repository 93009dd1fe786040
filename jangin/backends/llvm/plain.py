"""Plain functions as LLVM IR (see `backends.functions`)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from jangin.backends.functions import NULL, FunctionWriter, Signature, Value
from jangin.llvm import version
from jangin.targets.target import Target

_TYPES = {"ptr": "ptr", "i64": "i64", "i32": "i32", "i8": "i8", "bool": "i1", "void": "void"}
_OPS = {"div": "sdiv", "rem": "srem"}
_ORDERS = {"lt": "slt", "le": "sle", "gt": "sgt", "ge": "sge", "eq": "eq", "ne": "ne"}
_LINKAGE = {"exported": "", "internal": "internal ", "weak": "weak "}


class LlvmFunctions(FunctionWriter):
    """Writes one module for a target."""

    def __init__(self, name: str, target: Target) -> None:
        super().__init__()
        self.translator = f"LLVM {version()}"
        self.head = [f'source_filename = "{name}"', f'target triple = "{target.triple}"']
        self.cpu = f'"target-cpu"="{target.cpu}" "target-features"="{target.features}"'
        self.bodies: list[str] = []
        self.declared: dict[str, None] = {}
        self.lines: list[str] = []
        self.allocas: list[str] = []
        self.count = 0
        self.ends: list[str] = []

    def text(self) -> str:
        attributes = f"attributes #0 = {{ nounwind {self.cpu} }}"
        return "\n".join([*self.head, *self.declared, *self.bodies, attributes, ""])

    def _fresh(self) -> str:
        self.count += 1
        return f"%v{self.count}"

    def _line(self, text: str, type: str) -> Value:
        name = self._fresh()
        self.lines.append(f"  {name} = {text}")
        return Value(name, type)

    @staticmethod
    def _operand(v: Value) -> str:
        if v.type == "bool" and v.text in ("0", "1"):
            return f"i1 {'true' if v.text == '1' else 'false'}"
        return f"{_TYPES[v.type]} {v.text}"

    def _bare(self, v: Value) -> str:
        return self._operand(v).split(" ", 1)[1]

    @contextmanager
    def define(self, signature: Signature, linkage: str = "exported") -> Iterator[dict[str, Value]]:
        self.lines, self.allocas, self.names, self.overflows = [], [], {}, []
        self.result = signature.result
        params = ", ".join(f"{_passed(t)} %{n}" for t, n in signature.params)
        yield {n: Value(f"%{n}", t) for t, n in signature.params}
        head = f"define {_LINKAGE[linkage]}{_given(signature.result)} {_quoted(signature)}({params}) #0 {{"
        self.bodies.append("\n".join([head, "entry:", *self.allocas, *self.lines, "}"]))

    def declare(self, signature: Signature) -> None:
        params = ", ".join(_passed(t) for t, _ in signature.params)
        self.declared[f"declare {_given(signature.result)} {_quoted(signature)}({params})"] = None

    def strings(self, name: str, items: Sequence[str]) -> Value:
        for n, item in enumerate(items):
            data = item.encode()
            bytes = "".join(chr(b) if 32 <= b < 127 and b not in b'"\\' else f"\\{b:02X}" for b in data)
            self.head.append(f'@{name}.{n} = private constant [{len(data) + 1} x i8] c"{bytes}\\00"')
        table = ", ".join(f"ptr @{name}.{n}" for n in range(len(items)))
        self.head.append(f"@{name} = private constant [{len(items)} x ptr] [{table}]")
        return Value(f"@{name}", "ptr")

    def numbers(self, name: str, items: Sequence[int]) -> Value:
        table = ", ".join(f"i32 {n}" for n in items)
        self.head.append(f"@{name} = private constant [{len(items)} x i32] [{table}]")
        return Value(f"@{name}", "ptr")

    def bytes_elsewhere(self, name: str) -> Value:
        self.head.append(f"@{name} = external hidden constant i8, align 64")
        return Value(f"@{name}", "ptr")

    def variable(self, name: str) -> Value:
        self.head.append(f"@{name} = internal global ptr null")
        return Value(f"@{name}", "ptr")

    def address(self, signature: Signature) -> Value:
        return Value(_quoted(signature), "ptr")

    def local(self, type: str, count: int) -> Value:
        name = self._fresh()
        self.allocas.append(f"  {name} = alloca [{count} x {_TYPES[type]}], align 16")
        return Value(name, "ptr")

    def _place(self, type: str, base: Value, index: Value) -> str:
        return self._line(
            f"getelementptr {_TYPES[type]}, ptr {base.text}, {self._operand(index)}", "ptr"
        ).text

    def load(self, type: str, base: Value, index: Value) -> Value:
        return self._line(f"load {_TYPES[type]}, ptr {self._place(type, base, index)}", type)

    def store(self, base: Value, index: Value, value: Value) -> None:
        at = self._place(value.type, base, index)
        self.lines.append(f"  store {self._operand(value)}, ptr {at}")

    def at(self, base: Value, offset: Value) -> Value:
        return base if offset.text == "0" else Value(self._place("i8", base, offset), "ptr")

    def number_of(self, pointer: Value) -> Value:
        return self._line(f"ptrtoint ptr {pointer.text} to i64", "i64")

    def convert(self, type: str, value: Value) -> Value:
        order = ("bool", "i8", "i32", "i64")
        if value.type == type or value.text.lstrip("-").isdigit():
            return Value(value.text, type)
        how = "trunc" if order.index(value.type) > order.index(type) else "sext"
        how = "zext" if how == "sext" and value.type in ("bool", "i8") else how
        return self._line(f"{how} {self._operand(value)} to {type}", type)

    def arithmetic(self, op: str, a: Value, b: Value) -> Value:
        return self._line(f"{_OPS.get(op, op)} {self._operand(a)}, {self._bare(b)}", a.type)

    def checked(self, op: str, a: Value, b: Value) -> tuple[Value, Value]:
        function = f"@llvm.s{op}.with.overflow.i64"
        self.declared[f"declare {{ i64, i1 }} {function}(i64, i64)"] = None
        both = self._line(f"call {{ i64, i1 }} {function}(i64 {a.text}, i64 {b.text})", "both").text
        number = self._line(f"extractvalue {{ i64, i1 }} {both}, 0", "i64")
        return number, self._line(f"extractvalue {{ i64, i1 }} {both}, 1", "bool")

    def compare(self, op: str, a: Value, b: Value) -> Value:
        return self._line(f"icmp {_ORDERS[op]} {self._operand(a)}, {self._bare(b)}", "bool")

    def select(self, cond: Value, a: Value, b: Value) -> Value:
        operands = ", ".join(map(self._operand, (cond, a, b)))
        return self._line(f"select {operands}", a.type)

    def fetch_add(self, at: Value, by: int) -> Value:
        return self._line(f"atomicrmw add ptr {at.text}, i32 {by} monotonic", "i32")

    def copy(self, to: Value, source: Value, count: Value) -> None:
        self.declared["declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)"] = None
        operands = f"ptr {to.text}, ptr {source.text}, i64 {count.text}, i1 false"
        self.lines.append(f"  call void @llvm.memcpy.p0.p0.i64({operands})")

    def call(self, signature: Signature, *given: Value, at: Value | None = None) -> Value:
        passed = (f"{_passed(t)} {self._bare(v)}" for (t, _), v in zip(signature.params, given, strict=True))
        callee = _quoted(signature) if at is None else at.text
        text = f"call {_given(signature.result)} {callee}({', '.join(passed)})"
        if signature.result == "void":
            self.lines.append(f"  {text}")
            return NULL
        return self._line(text, signature.result)

    def ret(self, value: Value | None = None) -> None:
        self.lines.append("  ret void" if value is None else f"  ret {self._operand(value)}")

    def _branch(self, cond: Value) -> None:
        self.count += 1
        self.lines += [f"  br i1 {self._bare(cond)}, label %then{self.count}, label %else{self.count}"]
        self.lines += [f"then{self.count}:"]
        self.ends.append(f"else{self.count}:")

    def _end_branch(self) -> None:
        self.lines.append(self.ends.pop())

    def _loop(self) -> None:
        self.count += 1
        self.lines += [f"  br label %loop{self.count}", f"loop{self.count}:"]
        self.ends.append(f"  br label %loop{self.count}")

    def _end_loop(self) -> None:
        self.lines.append(self.ends.pop())


def _quoted(signature: Signature) -> str:
    return f'@"{signature.name}"'


def _passed(type: str) -> str:
    """Return a parameter's type. An i32 is marked for sign extension, because some ABIs require that."""
    return "i32 signext" if type == "i32" else _TYPES[type]


def _given(type: str) -> str:
    """Return a result's type. As with parameters, an i32 is marked for sign extension."""
    return "signext i32" if type == "i32" else _TYPES[type]
