"""`jangin opt`: read text IR, apply passes, and print text IR or code."""

from __future__ import annotations

import ast
import sys
from collections.abc import Sequence
from typing import Any

from jangin.backends.backend import backend_of
from jangin.commands.common import say
from jangin.frontends.dialect import Imported
from jangin.frontends.lower import lower
from jangin.frontends.onnx.dialect import ONNX
from jangin.ir.expr import Const, Var
from jangin.ir.graph import Graph
from jangin.ir.graph_text import parse_graph, print_graph
from jangin.ir.loop import For, Func, Store, statements
from jangin.ir.parse import parse_func
from jangin.ir.text import print_func
from jangin.ir.verify import verify_func, verify_graph
from jangin.passes.table import anywhere
from jangin.schedule.checks import ScheduleError
from jangin.schedule.steps import PRIMITIVES, usage
from jangin.targets import Target, resolve


def opt(file: str, passes: Sequence[str], emit: str, target: str | None) -> None:
    """Apply passes to the loop nest or graph in `file` ("-" is standard input), and print the result."""
    resolved = resolve(target)
    forms = ("ir", *backend_of(resolved).forms)
    if emit not in forms:
        raise ValueError(f"--emit {emit!r} is unknown; known: {', '.join(forms)}")
    if file == "-":
        text = sys.stdin.read()
    else:
        with open(file, encoding="utf-8") as source:
            text = source.read()
    if text.lstrip().startswith("graph"):
        say(opt_graph(text, passes, emit, resolved))
    else:
        say(opt_func(text, passes, emit, resolved))


def opt_graph(text: str, passes: Sequence[str], emit: str, target: Target) -> str:
    if emit != "ir":
        raise ValueError(f"a graph has no {emit}: --emit {emit} is for loop nests")
    graph = parse_graph(text)
    verify_graph(graph)
    known = {"lower": anywhere(_lowered), **{p.name: p.run for p in backend_of(target).passes(target)}}
    for name in passes:
        if name not in known:
            raise ValueError(f"no graph pass is called {name!r}; there are {', '.join(known)}")
        graph = known[name](graph, target)
        verify_graph(graph)
    return print_graph(graph)


def _lowered(graph: Graph) -> Graph:
    """Return a graph in core operators. It is taken for one imported from ONNX, because a graph's text
    doesn't tell its format."""
    return lower(Imported(graph, ONNX))


def opt_func(text: str, passes: Sequence[str], emit: str, target: Target) -> str:
    func = parse_func(text)
    verify_func(func)
    for spec in passes:
        func = apply_pass(func, spec, target)
        verify_func(func)
    if emit == "ir":
        return print_func(func)
    return backend_of(target).forms[emit](func, target)


def apply_pass(func: Func, spec: str, target: Target) -> Func:
    """Apply `simplify`, or a scheduling primitive with its arguments: "split:i,16", "reorder:[k,i]".

    Without arguments, `vectorize` takes the innermost loop that runs along a row of the result. It splits the
    loop to the target's vector width. Without arguments, `parallelize` takes the outermost loop."""
    name, _, rest = spec.partition(":")
    if name not in PRIMITIVES:
        raise ValueError(f"no loop pass is called {name!r}; there are {', '.join(PRIMITIVES)}")
    arguments = _arguments(rest, spec)
    try:
        if not arguments and name == "vectorize":
            return _vectorize(func, target)
        if not arguments and name == "parallelize":
            arguments = [_outermost(func).var.name]
        return PRIMITIVES[name](func, *arguments)
    except TypeError as error:
        raise ValueError(f"--pass {spec!r}: {error}\n{usage(name)}") from None
    except ScheduleError as error:
        hint = "print the nest without this pass to see its loops and buffers"
        raise ScheduleError(f"--pass {spec!r}: {error}; {hint}\n{usage(name)}") from error


def _arguments(text: str, spec: str) -> list[Any]:
    """Parse names, integers and lists of them, separated by commas."""
    try:
        parsed = ast.parse(f"[{text}]", mode="eval").body
        assert isinstance(parsed, ast.List)
        return [_plain(item) for item in parsed.elts]
    except (SyntaxError, ValueError):
        raise ValueError(f"--pass {spec!r} is not understood: write it like split:i,16") from None


def _plain(item: ast.expr) -> Any:
    if isinstance(item, ast.Name):
        return item.id
    if isinstance(item, (ast.List, ast.Tuple)):
        return [_plain(i) for i in item.elts]
    return ast.literal_eval(item)


def _vectorize(func: Func, target: Target) -> Func:
    for loop in (s for s in statements(func.body) if isinstance(s, For)):
        stores = [s for s in statements(loop.body) if isinstance(s, Store)]
        inner = any(isinstance(s, For) for s in statements(loop.body))
        rows = [s for s in stores if s.index and s.index[-1] == Var(loop.var.name)]
        if inner or not rows or len(rows) < len(stores):
            continue
        lanes = target.machine.lanes(max(s.buffer.dtype.bytes for s in rows))
        name = loop.var.name
        if not isinstance(loop.extent, Const) or int(loop.extent.value) > lanes:
            func = PRIMITIVES["split"](func, name, lanes)
            name += "i"
        return PRIMITIVES["vectorize"](func, name)
    raise ScheduleError(f"{func.name}: no innermost loop runs along a row of its result; name one")


def _outermost(func: Func) -> For:
    for s in statements(func.body):
        if isinstance(s, For):
            return s
    raise ScheduleError(f"{func.name} has no loop")
