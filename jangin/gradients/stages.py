"""The general rule: gradients of any operator that has tensor expressions.

A node's stages are differentiated one by one, the last one first. The adjoint of each load in a stage's body
is a term over the stage's loops. The gradient of an element is the sum of this term over all iterations in
which the load reads the element.

If `indices` finds these iterations, the gradient is one more tensor expression, a guarded sum. Otherwise a
loop nest scatters the terms: it adds each term to the element that the iteration reads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from jangin.gradients.indices import Readers, readers
from jangin.gradients.scalars import adjoints, converted, reached
from jangin.ir.dtype import BOOL, I64
from jangin.ir.expr import Buffer, Expr, Load, Var, cast, const, eq, is_const, land, ne, select
from jangin.ir.graph import CompileError
from jangin.ir.loop import If, Store, block
from jangin.ir.simplify import Range, simplify
from jangin.ir.te import Axis, Stage, redirect
from jangin.ir.traversal import loads, rewrite, row_major, substitute
from jangin.ops.builder import Builder
from jangin.ops.index import index_vars, nest
from jangin.ops.operands import wide
from jangin.ops.values import Tensor

MOST_TRIED = 64
"""The most iterations that a guarded sum may try for each element. If there are more, a loop nest scatters
the terms instead, whose time doesn't depend on them."""
G = "gradient"
"""The name that the adjoint of a stage's result has in expressions."""


class StageAdjoints:
    """Differentiates a node's stages, which are over buffers x0, x1, ... and `out`.

    - `known` has tensors by their names in expressions.
    - `wanted` names the buffers whose gradients are asked for.
    - `first` tells whether the first of equal extremes has the whole gradient. Otherwise they share it."""

    def __init__(
        self, b: Builder, stages: Sequence[Stage], known: Mapping[str, Tensor], wanted: set[str],
        first: bool = False,
    ) -> None:  # fmt: skip
        self.b, self.stages, self.first = b, {s.out.name: s for s in stages}, first
        self.known = dict(known)
        self.wanted = set(wanted)
        for s in stages:
            if not self.wanted.isdisjoint(_read(s)):
                self.wanted.add(s.out.name)
        self.found: dict[str, Tensor] = {}

    def run(self, g: Tensor) -> dict[str, Tensor]:
        """Return the gradients of the wanted buffers by name, given the gradient of the last stage's
        result."""
        *_, last = self.stages
        self.found[last] = g
        for stage in reversed([*self.stages.values()]):
            if stage.out.name in self.found:
                self._stage(stage, self.found[stage.out.name])
        return self.found

    def tensor(self, name: str) -> Tensor:
        """Return the tensor with this name in expressions. A local buffer's tensor is computed again, by a
        node."""
        if name not in self.known:
            self.known[name] = self._made(self.stages[name])
        return self.known[name]

    def _made(self, stage: Stage) -> Tensor:
        names = sorted(_read(stage))
        inputs = [self.tensor(n) for n in names]
        renamed = {n: _as_input(i, t) for i, (n, t) in enumerate(zip(names, inputs, strict=True))}
        out = Buffer("out", stage.out.dtype, stage.out.shape)
        return self.b.stages([redirect(stage, {**renamed, stage.out.name: out})], inputs)

    # -- one stage ------------------------------------------------------------------------------

    def _stage(self, stage: Stage, g: Tensor) -> None:
        self.known[G] = g
        if stage.at:
            raise CompileError("the gradient of a result that is written into a part of another is not known")
        point = tuple(a.var for a in stage.axes)
        seed: Expr = Load(Buffer(G, g.dtype, g.shape), point)
        if not stage.reduce_axes:
            self._loads(stage.body, seed, stage.axes)
            return
        if stage.combiner not in ("sum", "max", "min", "prod"):
            return
        seed = converted(seed, stage.result.dtype)
        ends = {stage.acc, *self._followed(stage.result)}
        parts = adjoints(stage.result, seed, ends)
        total = self._reduced(stage)
        for leaf, part in parts.items():
            part = substitute(part, {stage.acc: Load(total, point)})
            if isinstance(leaf, Load):
                self._adjoint(leaf, stage.result, part, stage.axes)
            else:
                self._reduction(stage, part, Load(total, point))

    def _followed(self, e: Expr) -> list[Load]:
        """Return an expression's loads whose adjoints are asked for."""
        return [x for x in dict.fromkeys(loads(e)) if x.buffer.name in self.wanted and x.dtype.is_float]

    def _reduced(self, stage: Stage) -> Buffer:
        """Return the buffer of a stage's reduced value. If the stage has an epilogue, one more stage computes
        the reduced value without it."""
        if stage.epilogue is None:
            return stage.out
        name = f"{stage.out.name}.reduced"
        out = Buffer(name, stage.body.dtype, stage.out.shape)
        self.stages.setdefault(name, replace(stage, out=out, epilogue=None))
        return out

    def _reduction(self, stage: Stage, g: Expr, value: Expr) -> None:
        """Add the adjoints of a reduction's terms, given its reduced `value` and the adjoint `g` of this
        value."""
        axes, body = (*stage.axes, *stage.reduce_axes), stage.body
        zero = const(0, g.dtype)
        if stage.combiner == "sum":
            self._loads(body, g, axes)
        elif stage.combiner == "prod":
            whole, zeros = self._product(stage)
            others = select(ne(body, const(0, body.dtype)), whole / body, whole)
            none = select(ne(body, const(0, body.dtype)), zeros, zeros - 1)
            self._loads(body, select(eq(none, 0), g * others, zero), axes)
        elif self.first:
            place = row_major([a.var for a in stage.reduce_axes], [a.extent for a in stage.reduce_axes])
            first = self._local(stage, "first", select(eq(body, value), place, const(1 << 62)), "min")
            self._loads(body, select(eq(place, first), g, zero), axes)
        else:
            one, none = const(1, g.dtype), const(0, g.dtype)
            ties = self._local(stage, "ties", select(eq(body, value), one, none), "sum")
            self._loads(body, select(eq(body, value), g / ties, zero), axes)

    def _product(self, stage: Stage) -> tuple[Expr, Expr]:
        """Return the product of a stage's terms that aren't 0, and the number of its terms that are 0."""
        is_zero = eq(stage.body, const(0, stage.body.dtype))
        whole = self._local(stage, "whole", select(is_zero, const(1, stage.body.dtype), stage.body), "prod")
        return whole, self._local(stage, "zeros", cast(I64, is_zero), "sum")

    def _local(self, stage: Stage, suffix: str, term: Expr, combiner: str) -> Expr:
        """Return the value of a further reduction of `term` over a stage's axes, at the stage's point."""
        out = Buffer(f"{stage.out.name}.{suffix}", term.dtype, stage.out.shape)
        self.stages[out.name] = replace(stage, out=out, body=term, combiner=combiner, epilogue=None)
        return Load(out, tuple(a.var for a in stage.axes))

    def _loads(self, e: Expr, seed: Expr, axes: Sequence[Axis]) -> None:
        seed = converted(seed, e.dtype)
        for leaf, part in adjoints(e, seed, self._followed(e)).items():
            assert isinstance(leaf, Load)
            self._adjoint(leaf, e, part, axes)

    # -- one load -------------------------------------------------------------------------------

    def _adjoint(self, load: Load, e: Expr, term: Expr, axes: Sequence[Axis]) -> None:
        """Add the sum of `term` over the axes to the gradient of the buffer that `load` reads in `e`."""
        if is_const(term, 0):
            return
        name, solution = load.buffer.name, readers(load.index, axes)
        gradient = self._scattered(load, e, term, axes) if solution.tried > MOST_TRIED else self._summed(
            load, term, solution
        )  # fmt: skip
        known = self.found.get(name)
        self.found[name] = gradient if known is None else self.b.map(lambda v, w: v + w, known, gradient)

    def _summed(self, load: Load, term: Expr, found: Readers) -> Tensor:
        """Return the gradient as a tensor expression. The expression is a sum over the axes that aren't
        solved."""
        dtype, shape = load.buffer.dtype, self.tensor(load.buffer.name).shape
        ranges: dict[Var, Range] = {a.var: (const(0), simplify(a.extent - 1)) for a in found.left}
        ranges |= {j: (const(0), simplify(d - 1)) for j, d in zip(found.place, shape, strict=True)}
        ranges |= self.b.symbols
        guard: Expr = const(True, BOOL)
        for condition in found.guards:
            guard = land(guard, condition)
        guard = simplify(guard, ranges)
        value = simplify(substitute(term, found.solved), ranges)
        value = wide(select(guard, value, const(0, value.dtype)))
        out, axes = Buffer("sum", dtype, shape), tuple(map(Axis, found.place, shape))
        if found.left:
            acc = Var("acc", value.dtype)
            epilogue = None if value.dtype is dtype else cast(dtype, acc)
            return self._made(Stage(out, axes, value, found.left, "sum", epilogue))
        return self._made(Stage(out, axes, cast(dtype, value)))

    def _scattered(self, load: Load, e: Expr, term: Expr, axes: Sequence[Axis]) -> Tensor:
        """Return the gradient by a loop nest, which adds each term to the element that the load reads. The
        sums have the wide type."""
        target = self.tensor(load.buffer.name)
        guard = simplify(reached(e, load))
        names = sorted({x.buffer.name for p in (term, guard, *load.index) for x in loads(p)})
        inputs = [self.tensor(n) for n in names]
        renamed = {n: _as_input(i, t) for i, (n, t) in enumerate(zip(names, inputs, strict=True))}

        def of_inputs(part: Expr) -> Expr:
            return rewrite(
                part, lambda n: Load(renamed[n.buffer.name], n.index) if isinstance(n, Load) else None
            )

        term = wide(of_inputs(term))
        out = Buffer("out", term.dtype, target.shape)
        index = tuple(simplify(of_inputs(i)) for i in load.index)
        places = index_vars(len(target.shape), "z")
        clear = nest(target.shape, places, Store(out, places, const(0, out.dtype)))
        update = Store(out, index, Load(out, index) + term)
        guard = of_inputs(guard)
        inner = update if is_const(guard, True) else If(guard, update)
        loops = nest([a.extent for a in axes], [a.var for a in axes], inner)
        sums = self.b.loop_nest(inputs, block(clear, loops), out.dtype, target.shape)
        return self.b.cast(sums, target.dtype)


def _read(stage: Stage) -> set[str]:
    """Return the names of the buffers that a stage loads."""
    return {x.buffer.name for e in (stage.body, stage.result) for x in loads(e)}


def _as_input(n: int, t: Tensor) -> Buffer:
    return Buffer(f"x{n}", t.dtype, t.shape)
