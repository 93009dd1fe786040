"""Descriptions of a compiled model's sizes and of the memory that they need. Sizes are fixed, symbols of the
inputs, or known only during a run."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

from jangin.ir.expr import Const, Expr, Var, const, maximum
from jangin.ir.plan import Plan
from jangin.ir.program import Bind, Branch, Loop, Program, Region, Segment
from jangin.ir.simplify import Monomial, Range, simplify, terms
from jangin.ir.sources import Sources
from jangin.ir.traversal import free_vars, substitute
from jangin.runtime.compiled import Compiled, signature
from jangin.runtime.program_artifact import ProgramArtifact
from jangin.runtime.several_artifact import SeveralArtifact
from jangin.runtime.sizes import TensorSpec
from jangin.runtime.variants_artifact import Absent, VariantsArtifact, listed

SYMBOLIC = "symbolic: given by the inputs' shapes"
ANY_SIZE = (1 << 31) - 1
"""The end of a range whose size nobody limited."""


def explain(made: Compiled) -> str:
    """Return the description of a compiled model of any kind, as lines of text."""
    if isinstance(made, VariantsArtifact):
        parts = [
            (sizes, signature(p)[1], explain(p)) for sizes, p in zip(made.sizes, made.parts, strict=True)
        ]
        return explain_variants(parts, made.absent)
    if isinstance(made, SeveralArtifact):
        return explain(made.parts[0])
    if isinstance(made, ProgramArtifact):
        return explain_program(made.program, [p.plan for p in made.parts], signature(made)[0])
    return explain_plan(made.plan, signature(made)[0])


def explain_variants(
    parts: Sequence[tuple[Mapping[str, int], Sequence[TensorSpec], str]], absent: Sequence[Absent]
) -> str:
    """Return the description of a model of variants. For each variant it has the sizes, the outputs and the
    variant's own description."""
    if len(parts) == 1 and not absent:
        return parts[0][2]
    lines = [f"variants: {len(parts)}, of which a run takes the last whose sizes it has"]
    for n, (sizes, outputs, text) in enumerate(parts):
        lines.append(f"variant {n}, for {listed(sizes)}")
        lines += [f"  {line}" for line in (*text.splitlines(), *(f"output {s}" for s in outputs))]
    lines += map(str, absent)
    return "\n".join(lines)


def explain_plan(plan: Plan, specs: Sequence[TensorSpec]) -> str:
    """Return the description of a model that is one plan."""
    lines = [*_given(specs, plan.bound), *(_symbol(v, r, SYMBOLIC) for v, r in plan.symbols)]
    lines += [f"must hold: {c}" for c in plan.constraints]
    return "\n".join([*lines, _peak("intermediate values", plan)])


def explain_program(program: Program, plans: Sequence[Plan], specs: Sequence[TensorSpec]) -> str:
    """Return the description of a model that is a program of several plans."""
    lines = _given(specs, program.bound)
    names = _mentioned(program.region, program.region.inputs)
    known = [v for v in sorted(names, key=str) if v in program.symbols]
    lines += [_symbol(v, program.symbols[v], SYMBOLIC) for v in known]
    for var, source in _found(program.region, set(names)):
        lines.append(_symbol(var, program.symbols[var], f"depends on data: known after {source}"))
    for i, plan in enumerate(plans):
        lines += [f"segment {i} must have: {c}" for c in plan.constraints]
        lines.append(_peak(f"intermediate values of segment {i}", plan))
    return "\n".join(lines)


def _given(specs: Sequence[TensorSpec], bound: Mapping[str, int]) -> list[str]:
    fixed = [f"size {name}: {size}, specialised by shapes=" for name, size in bound.items()]
    return [*(f"input {s}" for s in specs), *fixed]


def _peak(what: str, plan: Plan) -> str:
    """Return a line with the formula of a plan's peak memory, and its value if all its symbols have an upper
    limit."""
    formula = peak(plan)
    highest = {v: high for v, (_, high) in plan.symbols}
    text = f"{what} take at most {formula} bytes"
    used = free_vars(formula)
    if used and all(isinstance(high := highest[v], Const) and int(high.value) < ANY_SIZE for v in used):
        most = simplify(substitute(formula, {v: high for v in used if (high := highest[v]) is not None}))
        text += f", {most} for the largest sizes"
    return text


def peak(plan: Plan) -> Expr:
    """Return the most bytes of intermediate values that are needed at once, as an expression of the symbols.

    The arena itself is larger, because each value is rounded up to 64 bytes. A value of symbolic size is
    rounded up by up to an eighth."""
    arena = [b for b in plan.buffers if b.kind == "arena"]
    sizes = {b.name: math.prod(b.shape, start=const(b.dtype.bytes)) for b in arena}
    ranges = dict(plan.symbols)
    sums: dict[Expr, dict[Monomial, int]] = {}
    for i in range(len(plan.launches)):
        live = (sizes[b.name] for b in arena if b.live[0] <= i <= b.live[1])
        total = simplify(sum(live, const(0)), ranges)
        sums[total] = {m: c for c, m in terms(total)}
    kept = [e for e, own in sums.items() if not any(_below(own, e, other, f) for f, other in sums.items())]
    most: Expr = kept[0] if kept else const(0)
    for e in kept[1:]:
        most = maximum(most, e)
    return most


def _below(own: dict[Monomial, int], e: Expr, other: dict[Monomial, int], f: Expr) -> bool:
    """Return whether the sum `f` is at least as large as `e` for all sizes, comparing the sums term by
    term."""
    return (
        e != f and all(c <= other.get(m, 0) for m, c in own.items()) and min(other.values(), default=0) >= 0
    )


def _symbol(var: Var, limits: Range, origin: str) -> str:
    low, high = limits
    least = 0 if low is None else low
    if high is None or (isinstance(high, Const) and int(high.value) >= ANY_SIZE):
        if isinstance(low, Const) and int(low.value) <= -ANY_SIZE:
            return f"size {var}: any number, {origin}"
        return f"size {var}: {least} or more, {origin}"
    return f"size {var}: {least} to {high}, {origin}"


def _mentioned(region: Region, names: Sequence[str]) -> set[Var]:
    shapes = (region.values[n].shape or getattr(region.values[n].type, "shape", None) or () for n in names)
    return {v for shape in shapes for d in shape for v in free_vars(d)}


def _found(region: Region, known: set[Var]) -> Iterator[tuple[Var, Sources]]:
    """Yield the symbols that a region's steps bind, each with the model's node that binds it."""
    for step in region.steps:
        if isinstance(step, Segment):
            continue
        if isinstance(step, Bind):
            new = set(step.symbols)
        else:
            new = {v for v in _mentioned(region, step.outputs) if v.name != "any"}
        for var in sorted(new - known, key=str):
            yield var, step.source
        known |= new
        for body in (step.then, step.orelse) if isinstance(step, Branch) else ():
            yield from _found(body, known)
        if isinstance(step, Loop):
            yield from _found(step.body, known | _mentioned(step.body, step.body.inputs))
