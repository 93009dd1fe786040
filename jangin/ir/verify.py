"""Verifiers of the three IRs. Each raises a `VerifyError` that names the fault and its place.

Passes may assume verified input and must give verified output. The pipeline verifies between passes if the
options request it, and text is always verified when it is read. Modules that only kernels or graphs need are
imported when these are verified, so that loading a plan doesn't import them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NoReturn, Protocol

from jangin.ir.dtype import BOOL, F32, I16, I64, DType
from jangin.ir.expr import Binary, Buffer, Call, Const, Expr, Load, Select, Var
from jangin.ir.graph import CompileError, Graph, Node, Shape, Value, static_shape
from jangin.ir.loop import (
    FOR_KINDS,
    MEMORY,
    TASK_KINDS,
    Alloc,
    For,
    Func,
    If,
    Let,
    Prefetch,
    Stmt,
    Store,
    sub_statements,
)
from jangin.ir.simplify import Range, simplify
from jangin.ir.traversal import free_vars, walk
from jangin.ir.words import ARITY, BINARY, INTRINSICS, PAIR_OF_BYTES, ROUNDINGS

MAX_BYTES = 1 << 47
"""The number of bytes that a process can address: x86-64 and AArch64 give programs 47 or 48 bits. No size is
larger."""


class VerifyError(CompileError):
    """An IR breaks its own rules."""


class Operator(Protocol):
    """A core operator as `verify_graph` needs it: it infers the type of its result."""

    @property
    def infer(self) -> Any: ...


# --- expressions -----------------------------------------------------------------------------


class Scope:
    """Checks expressions against the variables and buffers that are defined where the expressions are."""

    def __init__(self, where: str, variables: Mapping[str, DType], buffers: Mapping[str, Buffer]) -> None:
        self.where = where
        self.variables = dict(variables)
        self.buffers = dict(buffers)

    def fail(self, message: str) -> NoReturn:
        raise VerifyError(f"{self.where}: {message}")

    def define(self, var: Var) -> None:
        if var.name in self.variables:
            self.fail(f"variable {var} is defined twice")
        self.variables[var.name] = var.dtype

    def expr(self, e: Expr, dtype: DType | None = None, what: str = "") -> None:
        for n in walk(e):
            self.node(n)
        if dtype is not None and e.dtype != dtype:
            self.fail(f"{what or e} must be {dtype}, not {e.dtype}: {e}")

    def node(self, n: Expr) -> None:
        if isinstance(n, Var):
            if n.name not in self.variables:
                self.fail(f"variable {n} is not defined")
            if self.variables[n.name] != n.dtype:
                self.fail(f"variable {n} is {self.variables[n.name]}, used as {n.dtype}")
        elif isinstance(n, Load):
            self.access(n.buffer, n.index)
        elif isinstance(n, Binary):
            if n.op not in BINARY:
                self.fail(f"unknown operation {n.op}")
            if n.a.dtype != n.b.dtype:
                self.fail(f"{n.op} of {n.a.dtype} and {n.b.dtype}: {n}")
            if n.op in ("and", "or", "xor", "shl", "shr") and n.dtype.is_float:
                self.fail(f"{n.op} of {n.dtype}: {n}")
        elif isinstance(n, Select):
            if n.cond.dtype != BOOL or n.a.dtype != n.b.dtype:
                self.fail(f"select of {n.cond.dtype}, {n.a.dtype}, {n.b.dtype}: {n}")
        elif isinstance(n, Call):
            if n.fn not in INTRINSICS or len(n.args) != ARITY.get(n.fn, 1):
                self.fail(f"unknown function {n.fn} of {len(n.args)} argument(s)")
            if any(a.dtype != n.args[0].dtype for a in n.args):
                self.fail(f"{n.fn} of {', '.join(str(a.dtype) for a in n.args)}: {n}")
            if n.fn in ROUNDINGS and n.dtype is not F32:
                self.fail(f"{n.fn} rounds f32, not {n.dtype}: {n}")
            if n.fn == PAIR_OF_BYTES and n.args[0].dtype is not I16:
                self.fail(f"{n.fn} takes a word of i16, not {n.args[0].dtype}: {n}")
            if n.product is not None and n.args[0].dtype is not n.product.word:
                self.fail(f"{n.fn} multiplies words of {n.product.word}, not of {n.args[0].dtype}: {n}")

    def access(self, buffer: Buffer, index: Sequence[Expr]) -> None:
        known = self.buffers.get(buffer.name)
        if known is None:
            self.fail(f"buffer {buffer.name} is not declared here")
        if (known.dtype, known.memory) != (buffer.dtype, buffer.memory):
            self.fail(
                f"buffer {buffer.name} is {known.memory} {known.dtype}, "
                f"used as {buffer.memory} {buffer.dtype}"
            )
        if len(index) != len(known.shape):
            self.fail(f"buffer {buffer.name} has rank {len(known.shape)}, accessed with {len(index)} indices")
        for i in index:
            self.expr(i, I64, f"an index of {buffer.name}")

    def ranges(self, symbols: Iterable[tuple[Var, Range]]) -> None:
        symbols = tuple(symbols)
        for var, _ in symbols:
            self.define(var)
        for _, bounds in symbols:
            for bound in bounds:
                if bound is not None:
                    self.expr(bound, I64, "a symbol's bound")


# --- loop nests ------------------------------------------------------------------------------


def verify_func(func: Func) -> None:
    """Verify a kernel. Names must be defined once, before their use, and types must agree. Loops and
    allocations must keep their kinds' rules. Inputs must not be stored to, and threads of a work-group must
    not race."""
    from jangin.ir.verify_groups import verify_groups
    from jangin.ir.verify_meetings import verify_meetings

    scope = Scope(f"func {func.name}", {}, {})
    scope.ranges(func.symbols)
    if not 0 <= func.outputs <= len(func.params):
        scope.fail(f"{func.outputs} outputs among {len(func.params)} parameters")
    for p in func.params:
        if p.name in scope.buffers:
            scope.fail(f"buffer {p.name} is declared twice")
        if p.memory != "global":
            scope.fail(f"parameter {p.name} is in {p.memory} memory")
        for d in p.shape:
            scope.expr(d, I64, f"the shape of {p.name}")
        scope.buffers[p.name] = p
    _verify_stmt(func.body, scope, frozenset(b.name for b in func.inputs), ())
    verify_groups(func, scope.fail)
    verify_meetings(func, scope.fail)


def _verify_stmt(s: Stmt, scope: Scope, inputs: frozenset[str], loops: tuple[For, ...]) -> None:
    if isinstance(s, For):
        _verify_loop(s, scope, loops)
        loops = (*loops, s)
    elif isinstance(s, Store):
        if s.buffer.name in inputs:
            scope.fail(f"input {s.buffer.name} is stored to")
        scope.access(s.buffer, s.index)
        scope.expr(s.value, s.buffer.dtype, f"what is stored to {s.buffer.name}")
    elif isinstance(s, Prefetch):
        scope.access(s.buffer, s.index)
    elif isinstance(s, If):
        scope.expr(s.cond, BOOL, "the condition")
    elif isinstance(s, Let):
        scope.expr(s.value, s.var.dtype, f"the value of {s.var}")
    elif isinstance(s, Alloc):
        _verify_alloc(s, scope)
    for sub in sub_statements(s):
        inner = Scope(scope.where, scope.variables, scope.buffers)
        if isinstance(s, (For, Let)):
            inner.define(s.var)
        elif isinstance(s, Alloc):
            inner.buffers[s.buffer.name] = s.buffer
        _verify_stmt(sub, inner, inputs, loops)


def _verify_loop(s: For, scope: Scope, loops: tuple[For, ...]) -> None:
    if s.kind not in FOR_KINDS:
        scope.fail(f"loop {s.var} is of unknown kind {s.kind}")
    scope.expr(s.extent, I64, f"the extent of loop {s.var}")
    if s.var.dtype != I64:
        scope.fail(f"loop variable {s.var} must be i64, not {s.var.dtype}")
    if s.kind in ("vector", "unroll") and not isinstance(s.extent, Const):
        scope.fail(f"{s.kind} loop {s.var} needs a constant extent, not {s.extent}")
    rounds = len(loops) == 1 and loops[0].kind == "serial" and loops[0].body == s
    if s.kind in TASK_KINDS and loops and not rounds:
        scope.fail(f"{s.kind} loop {s.var} must be outermost, it is inside loop {loops[-1].var}")
    if s.kind == "vector" and any(outer.kind == "vector" for outer in loops):
        scope.fail(f"vector loop {s.var} is inside another vector loop")


def _verify_alloc(s: Alloc, scope: Scope) -> None:
    b = s.buffer
    if b.memory not in MEMORY[1:]:
        scope.fail(f"{b.name} can't be allocated in {b.memory} memory")
    if b.name in scope.buffers:
        scope.fail(f"buffer {b.name} is declared twice")
    if b.memory == "tile" and len(b.shape) < 2:
        scope.fail(f"tile buffer {b.name} has no rows and columns")
    for d in b.shape:
        scope.expr(d, I64, f"the shape of {b.name}")
        if b.memory != "scratch" and not isinstance(d, Const):
            scope.fail(f"{b.memory} buffer {b.name} needs a constant shape, not {d}")


# --- graphs ----------------------------------------------------------------------------------


def verify_graph(graph: Graph, operators: Mapping[str, Operator] | None = None) -> None:
    """Verify a graph and its sub-graphs. Values must be typed, and defined once, before their use. With
    `operators` (the core ones), each node must be one of them or a kernel, and its result must have the
    inferred type."""
    _verify_graph(graph, operators, frozenset(), frozenset())


def _verify_graph(
    g: Graph, operators: Mapping[str, Operator] | None, outer: frozenset[str], symbols: frozenset[Var]
) -> None:
    from jangin.ir.core import Kernel

    def fail(message: str) -> NoReturn:
        raise VerifyError(f"graph {g.name}: {message}")

    symbols |= frozenset(g.symbols)
    defined = set(outer)
    later = {o for node in g.nodes for o in node.outputs}

    def define(name: str, by: str) -> None:
        if name in defined:
            fail(f"value {name!r} is defined twice, the second time by {by}")
        defined.add(name)

    _verify_values(g, symbols, (*g.inputs, *g.constants, *sorted(later - {""})), fail)
    for e in g.constraints:
        if e.dtype != BOOL or not free_vars(e) <= symbols:
            fail(f"{e} is no condition on its symbols")
    for name in dict.fromkeys((*g.inputs, *g.constants)):
        define(name, "an input or constant")
    for node in g.nodes:
        what = f"node {node.op} {node.name!r}"
        for name in node.inputs:
            if name and name not in defined:
                why = "before it is made" if name in later else "but it is not defined"
                fail(f"{what} uses value {name!r} {why}")
        for name in node.outputs:
            if name:
                define(name, what)
        for sub in _sub_graphs(node.attrs.named().values()):
            _verify_graph(
                sub, operators, frozenset() if isinstance(node.attrs, Kernel) else frozenset(defined), symbols
            )
        _verify_node(g, node, operators, fail)
    for name in g.outputs:
        if name not in defined:
            fail(f"output {name!r} is not defined")
    for out, state in g.updates.items():
        if out not in g.outputs or state not in g.inputs:
            fail(f"{out!r} can't update {state!r}: they must be an output and an input")


def _sub_graphs(attrs: Iterable[Any]) -> Iterable[Graph]:
    for value in attrs:
        if isinstance(value, Graph):
            yield value
        elif isinstance(value, (tuple, list)):
            yield from _sub_graphs(value)


def _verify_values(g: Graph, symbols: frozenset[Var], names: Iterable[str], fail: Any) -> None:
    for name in names:
        if name not in g.values:
            fail(f"value {name!r} has no entry in values")
    for name, value in g.values.items():
        if value.name != name:
            fail(f"value {name!r} is entered as {value.name!r}")
        for d in value.shape or ():
            unknown = free_vars(d) - symbols
            if unknown:
                fail(f"the shape of {name!r} mentions unknown symbol {next(iter(unknown))}")
            if d.dtype != I64 or (isinstance(d, Const) and d.value < 0):
                fail(f"the shape of {name!r} has dimension {d} ({d.dtype})")
    for name, array in g.constants.items():
        value = g.values[name]
        shape = None if value.shape is None else static_shape(value.shape)
        if value.dtype is not None and (array.dtype != value.dtype.numpy or array.shape != shape):
            fail(f"constant {name!r} is {value}, its data {array.dtype}{list(array.shape)}")


def _verify_node(g: Graph, node: Node, operators: Mapping[str, Operator] | None, fail: Any) -> None:
    from jangin.ir.core import Kernel

    if isinstance(node.attrs, Kernel):
        body = node.attrs.body
        if (len(body.inputs), len(body.outputs)) != (len(node.inputs), len(node.outputs)):
            fail(f"kernel {node.name!r} has other numbers of inputs or outputs than its body")
        for outside, inside in zip((*node.inputs, *node.outputs), (*body.inputs, *body.outputs), strict=True):
            _same_type(g.values[outside], body.values[inside], f"kernel {node.name!r}: {outside!r}", fail)
    elif operators is not None:
        if node.op not in operators:
            fail(f"node {node.name!r}: {node.op} is not a core operator")
        if len(node.outputs) != 1:
            fail(f"node {node.op} {node.name!r} has {len(node.outputs)} outputs, not 1")
        dtype, shape = operators[node.op].infer([g.values[n] for n in node.inputs], node.attrs)
        result = node.outputs[0]
        _same_type(g.values[result], Value(result, dtype, shape), f"node {node.op} {result!r}", fail)


def _same_type(a: Value, b: Value, what: str, fail: Any) -> None:
    """Check that two types agree. Dimensions disagree only if their difference is known not to be 0."""
    if a.dtype != b.dtype or (a.shape is None) != (b.shape is None):
        fail(f"{what} is {a}, should be {b}")
    if a.shape is not None and b.shape is not None and not may_equal(a.shape, b.shape):
        fail(f"{what} is {a}, should be {b}")


def may_equal(a: Shape, b: Shape) -> bool:
    if len(a) != len(b):
        return False
    gaps = (simplify(x - y) for x, y in zip(a, b, strict=True) if x is not y)
    return not any(isinstance(gap, Const) and gap.value != 0 for gap in gaps)


def checked(stage: str, check: Callable[..., None], *args: Any) -> None:
    """Call `check(*args)`, which verifies an IR. Its error gets the name of the stage that broke the IR."""
    try:
        check(*args)
    except VerifyError as error:
        raise VerifyError(f"after {stage}: {error}") from error
