"""A kernel in Loop IR to LLVM IR text.

The exported function loads the buffers' addresses and the symbols' values, and calls an internal
function that has them as parameters, so that LLVM knows which buffers don't overlap.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace

from jangin.backends.llvm import arithmetic
from jangin.backends.llvm.builder import Builder
from jangin.backends.llvm.functions import head
from jangin.backends.llvm.index import Indexer, constant_shape
from jangin.backends.llvm.memory import in_memory
from jangin.backends.llvm.parts import parts
from jangin.backends.llvm.values import Value, constant, vector_type
from jangin.backends.llvm.vector import Expressions
from jangin.ir import te
from jangin.ir.dtype import BOOL, I64
from jangin.ir.expr import (
    Binary,
    Const,
    Expr,
    Load,
    Var,
    const,
    free_vars,
    loads,
    substitute,
)
from jangin.ir.graph import CompileError
from jangin.ir.kernel import SCRATCH_ALIGN, buffer_bytes, sizes
from jangin.ir.loop import (
    Alloc,
    Block,
    For,
    Func,
    If,
    Let,
    Prefetch,
    Stmt,
    Store,
    buffers_written,
    expressions,
    is_constant_extent,
    loop_range,
    replace_buffer,
    statements,
    sub_statements,
    task_loops,
)
from jangin.ir.simplify import Range, interval, linear, simplify
from jangin.runtime.functions import KERNEL
from jangin.targets.target import Target

_REDUCTIONS = {"add": "sum", "mul": "prod", "max": "max", "min": "min", "and": "and", "or": "or"}


def emit_kernel(func: Func, target: Target) -> str:
    """The LLVM IR module of a kernel, which exports the function `runtime.functions.KERNEL` under the
    kernel's name. CompileError names the kernel where there is no code for something in it."""
    kernels = [_Kernel(part, target) for part in parts(func, target)]
    for kernel in kernels:
        kernel.run()
    bodies = [kernel.text() for kernel in kernels]
    if len(kernels) > 1:
        bodies.append(_in_turn(func, [kernel.func for kernel in kernels]))
    declared = {text for kernel in kernels for text in kernel.b.declarations.values()}
    return "\n".join([f'source_filename = "{_escaped(func.name)}"', f'target triple = "{target.triple}"', "",
                      *bodies, _entry(func), *sorted(declared), "", _attributes(target), ""])  # fmt: skip


def _escaped(name: str) -> str:
    return "".join(
        c if c.isprintable() and c.isascii() and c not in '"\\' else f"\\{ord(c) & 255:02X}" for c in name
    )


def _attributes(target: Target) -> str:
    common = (
        f'"target-cpu"="{target.cpu}" "target-features"="{target.features}" '
        f'"prefer-vector-width"="{target.vector_bytes * 8}"'
    )
    return (
        f'attributes #0 = {{ nounwind "no-builtins" {common} }}\n'
        f"attributes #1 = {{ nounwind willreturn memory(none) {common} }}"
    )


def _entry(func: Func) -> str:
    """The exported function, which unpacks its arguments."""
    name = _escaped(func.name)
    lines = [f"define {head(KERNEL, name)} #0 {{"]
    given = []
    for array, kind, count in (("args", "ptr", len(func.params)), ("sizes", "i64", len(sizes(func)))):
        for n in range(count):
            at, value = f"%{array}.{n}.at", f"%{array}.{n}"
            lines.append(f"  {at} = getelementptr {kind}, ptr %{array}, i64 {n}")
            lines.append(f"  {value} = load {kind}, ptr {at}")
            given.append(f"{kind} {value}")
    given += ["i64 %lo", "i64 %hi", "ptr %scratch"]
    lines += [f'  call void @"{name}.body"({", ".join(given)})', "  ret void", "}", ""]
    return "\n".join(lines)


def _signature(func: Func) -> str:
    """The parameters of an internal function."""
    inputs = len(func.inputs)
    params = [f"ptr noalias{' readonly' if n < inputs else ''} %p{n}" for n in range(len(func.params))]
    params += [f"i64 %s{n}" for n in range(len(sizes(func)))]
    return ", ".join([*params, "i64 %lo", "i64 %hi", f"ptr noalias align {SCRATCH_ALIGN} %scratch"])


def _in_turn(func: Func, parts: Sequence[Func]) -> str:
    """The internal function that runs the parts of one task after the other."""
    given = [f"ptr %p{n}" for n in range(len(func.params))] + [f"i64 %s{n}" for n in range(len(sizes(func)))]
    args = ", ".join([*given, "i64 %t", "i64 %next", "ptr %scratch"])
    return "\n".join([
        f'define internal void @"{_escaped(func.name)}.body"({_signature(func)}) #0 {{',
        "entry:", "  br label %task", "task:",
        "  %t = phi i64 [ %lo, %entry ], [ %next, %task ]", "  %next = add nuw nsw i64 %t, 1",
        *(f'  call void @"{_escaped(part.name)}.body"({args})' for part in parts),
        "  %again = icmp slt i64 %next, %hi", "  br i1 %again, label %task, label %done",
        "done:", "  ret void", "}", "",
    ])  # fmt: skip


class _Kernel:
    """Writes the statements of one kernel."""

    def __init__(self, func: Func, target: Target) -> None:
        self.func = func
        self.b, self.ix = Builder(target), Indexer()
        self.bases = {p.name: f"%p{n}" for n, p in enumerate(func.params)}
        self.x = Expressions(func.name, self.b, self.ix, self.bases)
        self.depth = 0
        self.scratch: Expr = const(0)
        self._private: dict[int, Stmt] = {}
        self._agree: dict[int, bool] = {}
        self._rounds, self._split = task_loops(func.body)

    def text(self) -> str:
        """The internal function."""
        head = f'define internal void @"{_escaped(self.func.name)}.body"({_signature(self.func)}) #0 {{'
        return "\n".join([head, "entry:", *self.b.allocas, *self.b.lines, "  ret void", "}", ""])

    def run(self) -> None:
        with ExitStack() as stack:
            for n, (var, known) in enumerate(sizes(self.func)):
                stack.enter_context(self._bind(var, Value(f"%s{n}", I64), known, 0))
            if self._split is None:
                first = self.b.op("icmp eq i64 %lo, 0", BOOL)
                self.b.when(first, lambda: self.statement(self.func.body))
            else:
                self.statement(self.func.body)

    @contextmanager
    def _bind(self, var: Var, value: Value, known: Range, depth: int) -> Iterator[None]:
        before = self.x.values.get(var)
        self.x.values[var] = value
        with self.ix.bound(var, known, depth):
            yield
        if before is not None:
            self.x.values[var] = before

    def statement(self, s: Stmt) -> None:
        if isinstance(s, Block):
            for sub in s.body:
                self.statement(sub)
        elif isinstance(s, For):
            self._for(s)
        elif isinstance(s, Store):
            self._store(s)
        elif isinstance(s, Prefetch):
            self.x.memory.prefetch(s.buffer, s.index)
        elif isinstance(s, If):
            self._if(s)
        elif isinstance(s, Let):
            self._let(s)
        else:
            assert isinstance(s, Alloc)
            self._alloc(s)

    # --- loops

    def _for(self, s: For) -> None:
        extent = int(s.extent.value) if isinstance(s.extent, Const) else None
        if s.kind in ("vector", "unroll") and extent is None:
            raise CompileError(
                f"{self.func.name}: {s.kind} loop {s.var} has extent {s.extent}, which isn't constant"
            )
        if s is self._rounds:
            self.statement(s.body)
        elif s is self._split:
            self._serial(s, Value("%lo", I64), Value("%hi", I64))
        elif extent is not None and (extent <= 1 or s.kind == "unroll"):
            self._unrolled(s, extent)
        elif s.kind == "vector" and extent is not None:
            if self.ix.lane is not None:
                self._unrolled(s, extent)
            elif self._lanes_agree(s):
                self._vector(s, extent)
            else:
                self._serial(s, constant(0, I64), constant(extent, I64))
        else:
            self._serial(s, constant(0, I64), self.x.evaluate(s.extent))

    def _serial(self, s: For, first: Value, end: Value) -> None:
        for name in buffers_written(s.body):
            self.x.memory.written(name)
        self.depth += 1

        def body(i: Value) -> None:
            with self._bind(s.var, i, loop_range(s), self.depth):
                self.statement(s.body)

        self.b.loop(first, end, body, entered=s is not self._split and is_constant_extent(s))
        self.depth -= 1

    def _unrolled(self, s: For, extent: int) -> None:
        with self.ix.bound(s.var, loop_range(s), self.depth):
            before = self.ix.numbers.get(s.var)
            for n in range(extent):
                self.ix.numbers[s.var] = n
                self.statement(s.body)
            self.ix.numbers.pop(s.var, None)
            if before is not None:
                self.ix.numbers[s.var] = before

    def _vector(self, s: For, lanes: int) -> None:
        self.ix.lane, self.ix.varying, self.x.memory.lanes = s.var, {s.var}, lanes
        with self.ix.bound(s.var, loop_range(s), self.depth):
            self.statement(self._privatized(s))
        self.ix.lane, self.ix.varying, self.x.memory.lanes = None, set(), 1

    def _privatized(self, s: For) -> Stmt:
        """The body of a vector loop, with each buffer that it allocates given one element a lane."""
        body = self._private.get(id(s))
        if body is None:
            body = s.body
            for n in statements(s.body):
                if isinstance(n, Alloc):
                    wide = replace(n.buffer, shape=(*n.buffer.shape, s.extent))
                    body = replace_buffer(body, n.buffer.name, wide, lambda i: (*i, s.var))
            self._private[id(s)] = body
        return body

    def _lanes_agree(self, s: For) -> bool:
        """Whether lanes can run side by side: loop bounds agree, and a place that all lanes store
        to gets one value, or a reduction of theirs. Else the loop runs serially."""
        agree = self._agree.get(id(s))
        if agree is None:
            agree = self._agree[id(s)] = _side_by_side(self._privatized(s), frozenset({s.var}))
        return agree

    # --- stores and choices

    def _store(self, s: Store) -> None:
        uniform = self.ix.lane is not None and not any(self.ix.varies(i) for i in s.index)
        if uniform and (self.ix.varies(s.value) or _reads(s)):
            self._reduce(s)
        else:
            self.x.memory.store(s.buffer, s.index, self.x.evaluate(s.value))

    def _reduce(self, s: Store) -> None:
        """`place = op(place, value of each lane)`."""
        parts = _reduction(s)
        assert parts is not None
        op, other = parts
        value = self.b.broadcast(self.x.evaluate(other), self.x.memory.lanes)
        if self.x.memory.masks:
            neutral = te.identity(_REDUCTIONS[op], s.value.dtype)
            off = self.b.broadcast(constant(neutral.value, neutral.dtype), value.lanes)
            value = arithmetic.select(self.b, self.x.memory.masks[-1], value, off)
        total = arithmetic.across(self.b, op, value)
        place = self.x.evaluate(Load(s.buffer, s.index))
        self.x.memory.store(s.buffer, s.index, arithmetic.binary(self.b, op, place, total))

    def _if(self, s: If) -> None:
        cond = self.x.condition(s.cond)
        then, other = self._block(s.then), self._block(s.orelse)
        if cond.ref in ("true", "false"):
            chosen = then if cond.ref == "true" else other
            if chosen is not None:
                chosen()
        elif cond.lanes == 1:
            assert then is not None
            self.b.when(cond, then, other)
        elif (whole := self._whole(s)) is not None:
            self.b.when(whole, lambda: self.statement(s.then), lambda: self._masked(cond, s.then))
        else:
            self._masked(cond, s.then)
            if s.orelse is not None:
                self._masked(arithmetic.binary(self.b, "xor", cond, constant(True, BOOL)), s.orelse)

    def _whole(self, s: If) -> Value | None:
        """Whether the upper limit that `s` is about holds for all lanes, where it guards stores to
        memory: masked stores are slow on some processors, and only the last vector needs them."""
        c, lane = s.cond, self.ix.lane
        stores = any(isinstance(n, Store) and n.buffer.memory != "register" for n in statements(s.then))
        if not (isinstance(c, Binary) and c.op == "lt" and stores and s.orelse is None) or lane is None:
            return None
        slope = linear(c.a, lane)
        if slope is None or not isinstance(slope[0], Const) or slope[0].value <= 0 or self.ix.varies(c.b):
            return None
        return self.x.condition(substitute(c, {lane: const(self.x.memory.lanes - 1)}))

    def _block(self, s: Stmt | None) -> Callable[[], None] | None:
        return None if s is None else lambda: self.statement(s)

    def _masked(self, cond: Value, s: Stmt) -> None:
        """Run for the lanes where `cond` holds; skip where there is none, if it would touch memory."""
        with self.x.masked(cond) as mask:
            if self._touches_one_place(s):
                self.b.when(self.b.any_lane(mask), lambda: self.statement(s))
            else:
                self.statement(s)

    def _touches_one_place(self, s: Stmt) -> bool:
        for n in statements(s):
            if isinstance(n, Store) and not any(self.ix.varies(i) for i in n.index):
                return True
            if any(self.x.uniform_access(e) for e in expressions(n)):
                return True
        return False

    # --- bindings

    def _let(self, s: Let) -> None:
        value = self.x.evaluate(s.value)
        simple = self.ix.condition(s.value) if s.value.dtype == I64 else s.value
        varies = self.ix.varies(s.value)
        known: Range = (None, None)
        if s.value.dtype == I64 and varies and not loads(s.value):
            known = (s.value, s.value)
        elif s.value.dtype == I64:
            low, high = interval(s.value, self.ix.ranges)
            known = (None if low is None else const(low), None if high is None else const(high))
        varying = self.ix.varying
        if varies:
            self.ix.varying = {*varying, s.var}
        if isinstance(simple, Const) and s.value.dtype == I64:
            self.ix.numbers[s.var] = int(simple.value)
        with self._bind(s.var, value, known, self.ix.level((s.value,))):
            self.statement(s.body)
        self.ix.numbers.pop(s.var, None)
        self.ix.varying = varying

    def _alloc(self, s: Alloc) -> None:
        buffer, before = s.buffer, self.bases.get(s.buffer.name)
        start = self.scratch
        if buffer.memory == "register":
            shape = constant_shape(buffer)
            if shape is None:
                raise CompileError(
                    f"{self.func.name}: register buffer {buffer.name} needs a constant shape, "
                    f"not {list(buffer.shape)}"
                )
            kind = vector_type(in_memory(buffer.dtype), 1)
            self.bases[buffer.name] = self.b.alloca(f"alloca [{math.prod(shape)} x {kind}], align 64")
        elif buffer.memory == "scratch":
            at = self.x.evaluate(start)
            self.bases[buffer.name] = self.b.name(f"getelementptr i8, ptr %scratch, i64 {at.ref}")
            self.scratch = simplify(start + buffer_bytes(self.func, buffer), dict(self.func.symbols))
        else:
            raise CompileError(f"{self.func.name}: {buffer.name} is allocated in {buffer.memory} memory")
        self.x.memory.written(buffer.name)
        self.statement(s.body)
        self.scratch = start
        if before is not None:
            self.bases[buffer.name] = before


def _reads(s: Store) -> bool:
    return any(n.buffer.name == s.buffer.name for n in loads(s.value))


def _reduction(s: Store) -> tuple[str, Expr] | None:
    """(op, value) of a store `place = op(place, value)`."""
    if isinstance(s.value, Binary) and s.value.op in _REDUCTIONS:
        for place, other in ((s.value.a, s.value.b), (s.value.b, s.value.a)):
            mine = isinstance(place, Load) and place.buffer.name == s.buffer.name and place.index == s.index
            if mine and all(n.buffer.name != s.buffer.name for n in loads(other)):
                return s.value.op, other
    return None


def _side_by_side(s: Stmt, varying: frozenset[Var]) -> bool:
    def varies(e: Expr) -> bool:
        return not free_vars(e).isdisjoint(varying)

    if isinstance(s, Store):
        private = any(varies(i) for i in s.index)
        return private or not (varies(s.value) or _reads(s)) or _reduction(s) is not None
    if isinstance(s, For) and varies(s.extent):
        return False
    if isinstance(s, Let) and varies(s.value):
        varying = varying | {s.var}
    return all(_side_by_side(sub, varying) for sub in sub_statements(s))
