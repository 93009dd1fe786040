"""A fused kernel's tensor expressions: producers inlined into reads, consumers into the epilogue."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import replace

from jangin.ir.core import Kernel, LoopNest
from jangin.ir.expr import Buffer, Expr, Load, Var, const, is_const
from jangin.ir.graph import Array, Graph, Node
from jangin.ir.loop import Alloc, For, Func, Stmt, block, map_stmt
from jangin.ir.rounding import apart, is_product, loosened
from jangin.ir.simplify import Range, simplify
from jangin.ir.te import Axis, Stage, compute, identity, inline, nest, redirect, sums_products
from jangin.ir.traversal import loads, rewrite, substitute
from jangin.ops.core import core_op

Staged = tuple[tuple[Stage, ...], tuple[Buffer, ...], tuple[Buffer, ...]]
"""A kernel's (stages, inputs, results), as `stages` returns them."""


def is_opaque(kernel: Node) -> bool:
    """Return whether the kernel has loop nests. `opaque_func` returns its function; `stages` can't express
    it."""
    return any(isinstance(n.attrs, LoopNest) for n in kernel.of(Kernel).body.nodes)


def stages(kernel: Node) -> Staged:
    """Return (stages, inputs, results) of a kernel, over buffers named like the graph's values.

    The last stages compute the results; all others are local. Conditions and indices are simplified for the
    symbols' ranges.
    """
    body = kernel.of(Kernel).body
    buffers = {n: Buffer(n, body.dtype(n), body.shape(n)) for n in body.values}
    done = {n: _scalar(buffers[n], array) for n, array in body.constants.items()}
    anchored: list[Stage] = []
    for node in body.nodes:
        core, out = core_op(node), buffers[node.outputs[0]]
        own = core.te(tuple(buffers[n] for n in node.inputs), out, node.attrs)
        if core.kind == "injective":
            done[out.name] = _rounded(own[0], _inlined(own[0], done))
        else:
            anchored = _joined(anchored, _attached(own, done, anchored), body.outputs)
        # a result that was to be inlined is stored and read from memory
        if out.name in body.outputs and out.name in done:
            final = done.pop(out.name)
            last = anchored[-1].out.name if anchored else ""
            if last and anchored[-1].out.shape == out.shape and _leads_only_to(out.name, last, body):
                anchored[-1] = _finished(anchored[-1], final)
            else:
                anchored.append(final)
    whole = tuple(simplified(s, body.symbols) for s in anchored)
    return whole, tuple(buffers[n] for n in body.inputs), tuple(buffers[n] for n in body.outputs)


def _leads_only_to(result: str, name: str, body: Graph) -> bool:
    """Return whether all results that depend on a value depend on it only through `result`."""
    reached = {name}
    for node in body.nodes:
        if result not in node.outputs and not reached.isdisjoint(node.inputs):
            reached.update(node.outputs)
    return reached.isdisjoint(body.outputs)


def structure(kernel: Node) -> Hashable:
    """Return a hashable key of a kernel's stages that ignores the values' names. A model's layers have few
    different structures."""
    body, number = kernel.of(Kernel).body, dict[str, int]()
    of = [number.setdefault(name, len(number)) for name in body.inputs]
    nodes = []
    for node in body.nodes:
        attrs = (repr(v) if isinstance(v, float) else v for v in vars(node.attrs).values())
        ends = tuple(number.setdefault(name, len(number)) for name in (*node.inputs, *node.outputs))
        nodes.append((type(node.attrs), *attrs, ends))
    types = tuple((body.dtype(name), body.shape(name)) for name in number)
    held = tuple((number[n], a.dtype.str, a.tobytes()) for n, a in body.constants.items() if n in number)
    return (
        tuple(of),
        tuple(nodes),
        types,
        held,
        tuple(number[n] for n in body.outputs),
        tuple(body.symbols.items()),
    )


def _scalar(buffer: Buffer, array: Array) -> Stage:
    value = const(array.item(), buffer.dtype)
    return compute(buffer, lambda *_: value)


def loaded(stage: Stage) -> list[str]:
    """Return the names of the buffers that a stage loads, one for each load."""
    parts = (stage.body,) if stage.epilogue is None else (stage.body, stage.epilogue)
    return [n.buffer.name for e in parts for n in loads(e)]


def _inlined(stage: Stage, done: Mapping[str, Stage]) -> Stage:
    for name in dict.fromkeys(loaded(stage)):
        if name in done:
            stage = inline(stage, done[name])
    return stage


def _attached(own: Sequence[Stage], done: dict[str, Stage], before: Sequence[Stage]) -> list[Stage]:
    """Return the anchor's stages, preceded by local stages for some producers.

    A producer becomes a local stage if the anchor reads it more than once, or if it depends on the result of
    an anchor `before`. Producers that only rename elements are always inlined.
    """
    reads = [n for s in own for n in loaded(s)]
    ready = {s.out.name for s in before}
    often = [n for n in done if reads.count(n) > 1 or (n in reads and not ready.isdisjoint(loaded(done[n])))]
    kept = [n for n in often if not _is_view(done[n])]
    local = [done.pop(n) for n in kept]
    return [*local, *(_rounded(s, _inlined(s, done)) for s in own)]


def _rounded(own: Stage, whole: Stage) -> Stage:
    """Return an operator's stage with its inlined producers. Every operation rounds, except in sums of the
    operator's own products."""
    if sums_products(own):
        return whole
    epilogue = None if whole.epilogue is None else apart(whole.epilogue)
    rounded = whole.combiner == "sum" and is_product(whole.body)
    return replace(whole, body=apart(whole.body), epilogue=epilogue, rounded=rounded)


def _joined(before: Sequence[Stage], own: Sequence[Stage], kept: Sequence[str]) -> list[Stage]:
    """Return the stages of one anchor followed by those of the next.

    If the next begins by finishing each element of the former's result, its first stage becomes an epilogue.
    A result in `kept` gets no epilogue.
    """
    if before and before[-1].reduce_axes and not own[0].reduce_axes and before[-1].out.name not in kept:
        name = before[-1].out.name
        point = tuple(const(0) if a.extent == const(1) else a.var for a in own[0].axes)
        reads = [n for s in own for n in loads(s.body) if n.buffer.name == name]
        if reads and loaded(own[0]).count(name) == len(reads) and all(n.index == point for n in reads):
            return [*before[:-1], _finished(before[-1], own[0]), *own[1:]]
    return [*before, *own]


def _is_view(stage: Stage) -> bool:
    """Return whether a stage reads no buffer, or is a load whose last index runs along the last axis.
    Evaluating it is as quick as reading a copy."""
    body = stage.body
    if not isinstance(body, Load):
        return not loaded(stage)
    return not body.index or body.index[-1] == stage.axes[-1].var


def _finished(anchor: Stage, final: Stage) -> Stage:
    """Return the anchor's last stage with `final` at the same point as its epilogue. After a sum of products,
    the epilogue may use multiply-adds."""
    if not anchor.reduce_axes:
        return inline(final, anchor)
    point = {a.var: b.var for a, b in zip(final.axes, anchor.axes, strict=True)}
    body = substitute(final.body, dict(point))

    def result(e: Expr) -> Expr | None:
        return anchor.result if isinstance(e, Load) and e.buffer.name == anchor.out.name else None

    epilogue = rewrite(body, result)
    epilogue = loosened(epilogue, anchor.acc) if sums_products(anchor) else apart(epilogue)
    return replace(anchor, out=final.out, epilogue=epilogue)


def simplified(stage: Stage, symbols: Mapping[Var, Range]) -> Stage:
    """Return the stage with simplified expressions. A reduction that is known to have no terms becomes its
    finished start value."""
    if any(is_const(a.extent, 0) for a in stage.reduce_axes):
        start = substitute(stage.result, {stage.acc: identity(stage.combiner, stage.body.dtype)})
        stage = replace(stage, body=start, reduce_axes=(), combiner="", epilogue=None)

    def ranges(axes: Sequence[Axis]) -> dict[Var, Range]:
        return {**symbols, **{a.var: (const(0), simplify(a.extent - 1, symbols)) for a in axes}}

    inner = ranges((*stage.axes, *stage.reduce_axes))
    epilogue = None if stage.epilogue is None else simplify(stage.epilogue, ranges(stage.axes))
    return replace(stage, body=simplify(stage.body, inner), epilogue=epilogue)


def canonical(
    stages: Sequence[Stage], inputs: Sequence[Buffer], results: Sequence[Buffer], symbols: Mapping[Var, Range]
) -> tuple[tuple[Stage, ...], tuple[Buffer, ...], tuple[Buffer, ...], str]:
    """Return the kernel's stages, inputs and results with canonical names, and the SHA-256 (hex) of its text.
    Equal keys mean equal kernels for equal sizes.

    Inputs are b0, b1, ..., locals t0, t1, ..., results `out`, out1, ..., axes i0, i1, ... and k0, k1, ....
    """
    names = {b.name: replace(b, name=f"b{i}") for i, b in enumerate(inputs)}
    names |= {s.out.name: replace(s.out, name=f"t{i}") for i, s in enumerate(stages[: -len(results)])}
    names |= {b.name: replace(b, name=f"out{i or ''}") for i, b in enumerate(results)}
    renamed = tuple(_numbered(redirect(s, names)) for s in stages)
    params = tuple(names[b.name] for b in inputs)
    outs = tuple(names[b.name] for b in results)
    lines = [_declared(b) for b in (*params, *outs)]
    lines += [f"{var} in {low}..{high}" for var, (low, high) in symbols.items()]
    lines += [_text(s) for s in renamed]
    return renamed, params, outs, hashlib.sha256("\n".join(lines).encode()).hexdigest()


def with_symbols(
    stages: Sequence[Stage], inputs: Sequence[Buffer], names: Mapping[Var, Expr], symbols: Mapping[Var, Range]
) -> tuple[tuple[Stage, ...], tuple[Buffer, ...]]:
    """Return the kernel's stages and inputs with size symbols renamed, or replaced by expressions of other
    symbols. `symbols` are the new ranges."""

    def sizes(given: Sequence[Expr]) -> tuple[Expr, ...]:
        return tuple(simplify(substitute(e, names), symbols) for e in given)

    def axes(given: Sequence[Axis]) -> tuple[Axis, ...]:
        return tuple(map(Axis, (a.var for a in given), sizes([a.extent for a in given])))

    of = {b.name: replace(b, shape=sizes(b.shape)) for b in (*inputs, *(s.out for s in stages))}
    renamed = []
    for stage in (redirect(s, of) for s in stages):
        epilogue = None if stage.epilogue is None else substitute(stage.epilogue, names)
        new = replace(
            stage, axes=axes(stage.axes), reduce_axes=axes(stage.reduce_axes), at=sizes(stage.at),
            body=substitute(stage.body, names), epilogue=epilogue,
        )  # fmt: skip
        renamed.append(simplified(new, symbols))
    return tuple(renamed), tuple(of[b.name] for b in inputs)


def _numbered(stage: Stage) -> Stage:
    """Return the stage with its axes named by position, because a change of layout leaves them in another
    order."""
    axes = tuple(Axis(Var(f"i{d}"), a.extent) for d, a in enumerate(stage.axes))
    over = tuple(Axis(Var(f"k{d}"), a.extent) for d, a in enumerate(stage.reduce_axes))
    old = (*stage.axes, *stage.reduce_axes)
    names: dict[Var, Expr] = {a.var: n.var for a, n in zip(old, (*axes, *over), strict=True)}
    epilogue = None if stage.epilogue is None else substitute(stage.epilogue, names)
    body = substitute(stage.body, names)
    return replace(stage, axes=axes, reduce_axes=over, body=body, epilogue=epilogue)


def _declared(b: Buffer) -> str:
    return f"{b.name}: {b.dtype}[{', '.join(map(str, b.shape))}]"


def _text(stage: Stage) -> str:
    axes = ", ".join(f"{a.var}:{a.extent}" for a in stage.axes)
    over = ", ".join(f"{a.var}:{a.extent}" for a in stage.reduce_axes)
    types = ", ".join(sorted({str(stage.body.dtype), str(stage.result.dtype)}))
    head = f"{_declared(stage.out)} [{axes}] {stage.combiner}[{over}] {'rounded ' * stage.rounded}{types}"
    return f"{head} = {stage.body} -> {stage.result}"


def opaque_params(kernel: Node) -> tuple[Buffer, ...]:
    """Return the parameters of a kernel of loop nests: b0, b1, ... and `out`."""
    body = kernel.of(Kernel).body
    inputs = (Buffer(f"b{i}", body.dtype(n), body.shape(n)) for i, n in enumerate(body.inputs))
    (name,) = body.outputs
    return (*inputs, Buffer("out", body.dtype(name), body.shape(name)))


def opaque_func(kernel: Node) -> Func:
    """Return the function of a kernel of loop nests and `opaque_stages`, over `opaque_params`."""
    body = kernel.of(Kernel).body
    params, of = opaque_params(kernel), _opaque_buffers(kernel)
    between = {s.out.name: nest(s) for s in opaque_stages(kernel)}
    nests = [between.get(of[n.outputs[0]].name) or _named(n, of) for n in body.nodes]
    if len(nests) > 1:  # tasks can't share the loops of several nests
        nests = [replace(s, kind="serial") if isinstance(s, For) else s for s in nests]
    whole = block(*nests)
    for node in body.nodes[:-1]:
        whole = Alloc(of[node.outputs[0]], whole)
    return Func(kernel.name, params, 1, tuple(body.symbols.items()), whole)


def opaque_stages(kernel: Node) -> tuple[Stage, ...]:
    """Return the tensor expressions of a kernel with loop nests, over the buffers of its function."""
    body = kernel.of(Kernel).body
    of, stages = _opaque_buffers(kernel), list[Stage]()
    for node in body.nodes:
        if not isinstance(node.attrs, LoopNest):
            inputs, out = (tuple(of[n] for n in names) for names in (node.inputs, node.outputs))
            stages += core_op(node).te(inputs, out[0], node.attrs)
    return tuple(redirect(s, of) for s in stages)


def _opaque_buffers(kernel: Node) -> dict[str, Buffer]:
    """Return the buffer of each value: the parameters, and locals t0, t1, ...."""
    body = kernel.of(Kernel).body
    inner = (n.outputs[0] for n in body.nodes[:-1])
    of = {n: Buffer(f"t{i}", body.dtype(n), body.shape(n), "scratch") for i, n in enumerate(inner)}
    return {**of, **dict(zip((*body.inputs, *body.outputs), opaque_params(kernel), strict=True))}


def _named(node: Node, of: Mapping[str, Buffer]) -> Stmt:
    """Return a loop nest over the buffers of its values."""
    names = {"out": of[node.outputs[0]], **{f"x{i}": of[n] for i, n in enumerate(node.inputs)}}

    def load(e: Expr) -> Expr | None:
        new = names.get(e.buffer.name) if isinstance(e, Load) else None
        return Load(new, e.index) if new is not None and isinstance(e, Load) else None

    return map_stmt(node.of(LoopNest).body, lambda e: rewrite(e, load), lambda b: names.get(b.name, b))


def finishing(stage: Stage) -> Callable[[Expr, Sequence[Expr]], Expr]:
    """Return a function that applies a stage's epilogue to an accumulated sum at an index."""

    def finish(acc: Expr, at: Sequence[Expr]) -> Expr:
        point = {a.var: i for a, i in zip(stage.axes, at, strict=True)}
        return substitute(stage.result, {stage.acc: acc, **point})

    return finish
