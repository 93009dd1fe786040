"""The text forms of the three IRs. `ir.parse` reads back the printed text: parse(print(x)) == x.

The forms share these rules.

```
    name   = identifier, dots inside allowed | "any text, escaped as in JSON"
    type   = DTYPE "[" [expr {"," expr}] "]"                  shapes are i64 expressions
    expr   = expr INFIX expr | "(" expr ")" | INTEGER (i64) | FLOAT (f32) | "true" | "false"
           | name | name "[" indices "]"                      variable, load
           | DTYPE "(" number ")" | DTYPE "(" expr ")"        constant, cast
           | FUNCTION "(" expr {"," expr} ")" | "select" "(" cond "," then "," else ")"
    INFIX  = * / // %, then + -, << >>, comparisons, &, ^, |  (tightest first)
    ranges = "symbols" "(" name "in" [expr] ".." [expr] {"," ...} ")"
    bound  = "bound" "(" {name "=" INTEGER ","} ")"            symbols that were given one size
    joined = "joined" "(" {name source ","} ")"                inputs' axes that a node needs to be as long
    known  = [ranges] [bound] [joined]
    updates = "updates" "(" {name "=" name ","} ")"           outputs that are the next state of inputs
    source = ["from" "(" {origin ","} ")"]                    the model's nodes (`ir.sources`)
    origin = name [name [name [INTEGER [name]]]]              operator, name, domain, version, place
```

These are the rules of Loop IR.

```
    func   = "func" name "(" {name ":" ["out"] [MEMORY] type} ")" [ranges] "{" {stmt} "}"
    stmt   = KIND name "in" expr "{" {stmt} "}"
           | "alloc" MEMORY name ":" type                     lives to the end of its braces
           | "let" name "=" expr                              likewise
           | "if" expr "{" {stmt} "}" ["else" "{" {stmt} "}"]
           | name "[" indices "]" "=" expr
           | "prefetch" name "[" indices "]"                  a hint; may lie outside the buffer
           | "{" {stmt} "}"
    KIND   = "serial" | "parallel" | "vector" | "unroll" | "block" | "thread" | "warp"
```

These are the rules of Graph IR. DTYPE or shape is `?` if it isn't inferred yet.

```
    graph  = "graph" name "(" {name ":" type} ")" "->" "(" {name} ")" known [updates] "{" {line} "}"
    line   = "const" name [":" type] "=" data                 an initializer
           | "outer" name ":" type                            a value of an enclosing graph
           | "require" expr source
           | {name [":" type] ","} "=" OP [node name] "(" {name} ")" ["{" {attr} "}"] source
    attr   = name "=" value
    value  = none | true | false | number | "string" | DTYPE | "(" {value ","} ")" | "[" {value} "]"
           | "array" DTYPE "[" sizes "]" "=" data | graph
           | "fn" decls expr | "nest" decls "{" {stmt} "}"    expression, loop statement
           | "stage" decls name ":" type axes "=" ["reduce" COMBINER axes] expr ["then" expr]
    decls  = "(" {name ":" (DTYPE | ["out"] [MEMORY] type)} ")" free variables and buffers, typed
    axes   = "[" {name "in" expr} "]"
    data   = "{" numbers "}" | sha256.DIGEST                  large arrays are kept beside the text
```

These are the rules of plans. Constants and kernels are kept beside the text.

```
    plan   = "plan" name "target" string known "{" "inputs" names "outputs" names [updates] {item} "}"
    item   = "require" expr source
           | "check" name ["signed"] "within" "(" {expr} ")" source
           | ("input" | "output" | "constant" | "arena" | "alias") name ":" type ["of" name]
             ["at" INTEGER] ["live" INTEGER ".." INTEGER]
           | "launch" kernel ["as" function] "(" {name} ")" ["symbols" "(" {expr} ")"]
             ["rounds" expr] "tasks" expr ["local" "(" {INTEGER ","} ")"] "grain" expr
             "scratch" expr ["common" expr] ["calls" name]
             ["by" string "flops" expr "bytes" expr] source
```
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from jangin.ir.checks import Check
from jangin.ir.dtype import DType, from_numpy
from jangin.ir.expr import Binary, Buffer, Expr, Load, Var
from jangin.ir.graph import Array, Graph
from jangin.ir.loop import Alloc, Block, For, Func, If, Let, Prefetch, Stmt, Store, expressions, statements
from jangin.ir.plan import ONE, ZERO, Launch, Plan, PlanBuffer
from jangin.ir.program import Program
from jangin.ir.simplify import Range
from jangin.ir.sources import Source, Sources
from jangin.ir.traversal import walk
from jangin.ir.words import INFIX, quote

INLINE = 16
"""Arrays of at most this many elements are printed in the text. Larger arrays are printed as a digest."""


def print_func(func: Func) -> str:
    """Return the text of a loop nest."""
    first_out = len(func.params) - func.outputs
    params = (declare(b, "out " if i >= first_out else "") for i, b in enumerate(func.params))
    head = f"func {quote(func.name)}({', '.join(params)}){print_ranges(func.symbols)} {{"
    return "\n".join([head, *indent(_stmt(func.body)), "}"]) + "\n"


def print_plan(plan: Plan) -> str:
    """Return the text of a plan, without its constants' data and its kernels."""
    known = print_known(plan.symbols, plan)
    lines = [f"plan {quote(plan.name)} target {print_string(plan.target)}{known} {{"]
    ends = f"inputs {print_names(plan.inputs)} outputs {print_names(plan.outputs)}"
    lines.append(f"  {ends}{print_updates(plan.updates)}")
    lines += [f"  require {e}{print_source(source)}" for e, source in plan.constraints.items()]
    lines += [f"  {_plan_buffer(b)}" for b in plan.buffers]
    lines += [f"  {_launch(x)}" for x in plan.launches]
    lines += [f"  {_check(c)}" for c in plan.checks]
    return "\n".join([*lines, "}"]) + "\n"


def _check(c: Check) -> str:
    signed = " signed" if c.from_end else ""
    sizes = ", ".join(map(str, c.sizes))
    return f"check {quote(c.buffer)}{signed} within ({sizes}){print_source(c.source)}"


def digest(array: Array) -> str:
    """Return the name of a large array in text: a digest of its dtype, shape and bytes, 24 hexadecimal
    digits."""
    from hashlib import sha256  # which loads OpenSSL

    hashed = sha256(f"{array.dtype}{array.shape}".encode())
    if array.dtype == object:
        hashed.update(repr(array.tolist()).encode())
    else:
        hashed.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    return hashed.hexdigest()[:24]


# --- pieces ----------------------------------------------------------------------------------


def indent(lines: Iterable[str]) -> Iterator[str]:
    return ("  " + line for line in lines)


def print_source(sources: Sources) -> str:
    return f" from ({', '.join(map(_source, sources))})" if sources else ""


def _source(source: Source) -> str:
    """Return the text of a source's fields, without trailing fields that have their defaults."""
    parts = [quote(source.operator), quote(source.name), quote(source.domain), str(source.version)]
    parts.append(quote(source.place))
    while parts[1:] and parts[-1] in ('""', "0"):
        parts.pop()
    return " ".join(parts)


def print_string(text: str) -> str:
    """Return a text in quotes, even if it is an identifier."""
    quoted = quote(text)
    return quoted if quoted.startswith('"') else f'"{quoted}"'


def print_names(names: Iterable[str]) -> str:
    return f"({', '.join(map(quote, names))})"


def print_type(dtype: DType | None, shape: Sequence[Expr] | None) -> str:
    return f"{dtype or '?'}[{'?' if shape is None else ', '.join(map(str, shape))}]"


def declare(b: Buffer, out: str = "") -> str:
    memory = "" if b.memory == "global" else b.memory + " "
    return f"{quote(b.name)}: {out}{memory}{print_type(b.dtype, b.shape)}"


def print_ranges(symbols: Iterable[tuple[Var, Range]]) -> str:
    def show(e: Expr | None) -> str:
        return "" if e is None else str(e)

    parts = [f"{v} in {show(lo)}..{show(hi)}" for v, (lo, hi) in symbols]
    return f" symbols ({', '.join(parts)})" if parts else ""


def print_known(symbols: Iterable[tuple[Var, Range]], whole: Graph | Plan | Program) -> str:
    """Return the text of a graph's, a plan's or a program's symbols, bound sizes and joined axes."""
    bound = ", ".join(f"{quote(n)} = {size}" for n, size in whole.bound.items())
    joined = ", ".join(f"{quote(axis)}{print_source(source)}" for axis, source in whole.joined.items())
    text = print_ranges(symbols) + (f" bound ({bound})" if bound else "")
    return text + (f" joined ({joined})" if joined else "")


def print_updates(updates: Mapping[str, str]) -> str:
    """Return the text of the outputs that are the next state of inputs."""
    pairs = ", ".join(f"{quote(out)} = {quote(state)}" for out, state in updates.items())
    return f" updates ({pairs})" if updates else ""


def bare(e: Expr) -> str:
    """Return an expression's text without its outermost parentheses."""
    return str(e)[1:-1] if isinstance(e, Binary) and e.op in INFIX else str(e)


def _stmt(s: Stmt) -> list[str]:
    if isinstance(s, Block):
        lines: list[str] = []
        for n, k in enumerate(s.body):
            scoped = isinstance(k, (Alloc, Let)) and n < len(s.body) - 1
            lines += ["{", *indent(_stmt(k)), "}"] if scoped else _stmt(k)
        return lines
    if isinstance(s, For):
        return [f"{s.kind} {s.var} in {s.extent} {{", *indent(_stmt(s.body)), "}"]
    if isinstance(s, Store):
        return [f"{quote(s.buffer.name)}[{', '.join(map(str, s.index))}] = {bare(s.value)}"]
    if isinstance(s, Prefetch):
        return [f"prefetch {quote(s.buffer.name)}[{', '.join(map(str, s.index))}]"]
    if isinstance(s, Alloc):
        kind = s.buffer.memory
        return [
            f"alloc {kind} {quote(s.buffer.name)}: {print_type(s.buffer.dtype, s.buffer.shape)}",
            *_stmt(s.body),
        ]
    if isinstance(s, If):
        orelse = [] if s.orelse is None else ["} else {", *indent(_stmt(s.orelse))]
        return [f"if {bare(s.cond)} {{", *indent(_stmt(s.then)), *orelse, "}"]
    assert isinstance(s, Let)
    return [f"let {s.var} = {bare(s.value)}", *_stmt(s.body)]


# --- attributes ------------------------------------------------------------------------------


def print_attribute(v: Any, inner: Callable[[Any], str] | None = None) -> str:
    """Return the text of an attribute. `inner` prints the items of lists. Python and NumPy scalars print
    alike."""
    inner = inner or print_attribute
    if isinstance(v, np.generic):
        v = v.item()
    if v is None or isinstance(v, bool):
        return str(v).lower()
    if isinstance(v, (int, float, DType)):
        return str(v)
    if isinstance(v, str):
        return print_string(v)
    if isinstance(v, (tuple, array)):
        return f"({', '.join(map(inner, v))}{',' if len(v) == 1 else ''})"
    if isinstance(v, list):
        return f"[{', '.join(map(inner, v))}]"
    if isinstance(v, np.ndarray):
        return f"array {_array_dtype(v)}[{', '.join(map(str, v.shape))}] = {print_data(v)}"
    if isinstance(v, Expr):
        return f"fn({print_free((v,))}) {v}"
    if isinstance(v, Stmt):
        return "\n".join([f"nest({_free_in_nest(v)}) {{", *indent(_stmt(v)), "}"])
    raise TypeError(f"the attribute {v!r} is a {type(v).__name__}, which an IR's text can't have")


def _free_in_nest(s: Stmt) -> str:
    """Return declarations of the names that a statement uses but doesn't bind. Stored buffers are marked
    `out`."""
    every = list(statements(s))
    bound = {k.var for k in every if isinstance(k, (For, Let))}
    local = {k.buffer.name for k in every if isinstance(k, Alloc)}
    stored = {k.buffer.name: k.buffer for k in every if isinstance(k, Store)}
    held = [e for k in every for e in expressions(k)]
    held += [d for k in every if isinstance(k, Alloc) for d in k.buffer.shape]
    return print_free(held, bound, local, {k: b for k, b in stored.items() if k not in local})


def print_free(
    held: Iterable[Expr],
    bound: Iterable[Var] = (),
    local: Iterable[str] = (),
    stored: Mapping[str, Buffer] | None = None,
) -> str:
    """Return declarations of the free variables, then of the buffers, that some expressions use."""
    out = dict(stored or {})
    nodes = [n for e in held for n in walk(e)]
    read = {n.buffer.name: n.buffer for n in nodes if isinstance(n, Load) and n.buffer.name not in {*local}}
    buffers = {**read, **out}
    nodes += [n for b in buffers.values() for d in b.shape for n in walk(d)]
    free = sorted({n for n in nodes if isinstance(n, Var)} - {*bound}, key=lambda v: v.name)
    parts = [f"{v}: {v.dtype}" for v in free]
    parts += [declare(b, "out " if n in out else "") for n, b in sorted(buffers.items())]
    return ", ".join(parts)


def _array_dtype(array: Array) -> str:
    try:
        return str(from_numpy(array.dtype))
    except KeyError:
        return print_string(str(array.dtype))


def is_inline(array: Array) -> bool:
    return array.size <= INLINE and not _array_dtype(array).startswith('"')


def print_data(array: Array) -> str:
    if not is_inline(array):
        return f"sha256.{digest(array)}"
    items = (float(x) if from_numpy(array.dtype).is_float else x for x in array.ravel().tolist())
    return "{" + ", ".join(map(print_attribute, items)) + "}"


# --- plans -----------------------------------------------------------------------------------


def _plan_buffer(b: PlanBuffer) -> str:
    text = f"{b.kind} {quote(b.name)}: {print_type(b.dtype, b.shape)}"
    if b.base:
        text += f" of {quote(b.base)}"
    if b.offset is not None:
        text += f" at {b.offset}"
    return text if b.live == (0, 0) else f"{text} live {b.live[0]}..{b.live[1]}"


def _launch(x: Launch) -> str:
    text = f"launch {quote(x.kernel)}"
    if x.function != x.kernel:
        text += f" as {quote(x.function)} "
    text += print_names(x.args)
    if x.symbols:
        text += f" symbols ({', '.join(map(str, x.symbols))})"
    if x.rounds != ONE:
        text += f" rounds {x.rounds}"
    text += f" tasks {x.tasks}"
    if x.local:
        text += f" local ({', '.join(map(str, x.local))})"
    text += f" grain {x.grain} scratch {x.scratch}"
    if x.common != ZERO:
        text += f" common {x.common}"
    if x.library:
        text += f" calls {quote(x.library)}"
    if x.template:
        text += f" by {print_string(x.template)} flops {x.flops} bytes {x.bytes}"
    return text + print_source(x.sources)
