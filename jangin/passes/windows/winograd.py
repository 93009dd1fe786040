"""Winograd's method for 3 x 3 convolutions, dilated ones included, if it should be quicker.

Constant weights are transformed here. Weights that a run computes or is given, as in training, are
transformed by one more kernel.

For a video, whose windows span several frames, each output frame is an image made of several input frames.
Their channels follow one another.

A fused convolution kernel becomes three. The first is the input transform V = B^T d B of overlapping tiles, a
loop nest that pads by itself. The second multiplies a matrix for each of the transform's points by weights
transformed here. The third is the output transform A^T M A, a loop nest that ends with the convolution's
epilogue. See `winograd_transform` for the method.

If V and M would go through memory and the weights are few, the three become stages of one kernel. It takes a
block of tiles at a time (the template `winograd`).

Integer convolutions (pairs of int16) stay exact. Float convolutions change in rounding. Errors against
float64 below are shares of the output's largest value, for normal and rectified inputs of 32 to 512 channels.
The largest error is 2e-7 to 7e-7 for F(2x2) and 0.8e-6 to 3e-6 for F(4x4). The direct sum has 1e-7 to 4e-7.
F(4x4) at the usual points 0, +-1, +-2, or at 0, +-1, +-1/2, has 3e-6 to 1e-5. Therefore the points are 0,
+-sqrt(1/2), +-sqrt(2).

16-bit weights of a model stay at 16 bits when they are transformed, if f16 has their range. The mean error is
then 3e-4 of the mean result for F(2x2), and 8e-4 for F(4x4). For comparison, f16 weights are 2e-4 away from
their unrounded values, bf16 weights 1.7e-3.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from jangin.ir.core import Compute, Conv, CoreAttributes, Kernel, LoopNest, MatMul, Reshape
from jangin.ir.dtype import BOOL, F16, F32, I32, DType
from jangin.ir.expr import Buffer, Const, Expr, Load, Select, Var, const
from jangin.ir.graph import Array, Graph, Node, static_shape
from jangin.ir.loop import Stmt
from jangin.ir.products import DOT2
from jangin.ir.records import dataclass
from jangin.ir.simplify import simplify
from jangin.ir.te import Stage, redirect, reduction, value_at
from jangin.ir.traversal import loads, substitute
from jangin.ops.editor import Editor
from jangin.ops.numbers import Numbers
from jangin.ops.operands import multiplied, widened
from jangin.passes.algebra.dce import dce
from jangin.passes.fusion.chains import merge
from jangin.passes.fusion.stages import finishing, is_opaque, stages
from jangin.passes.layouts.padding import padding
from jangin.passes.precision.byte_weights import Small, in_bytes
from jangin.passes.precision.halves import widens
from jangin.passes.windows.winograd_cost import Estimate, is_window
from jangin.passes.windows.winograd_nests import Patch, Taps, Tiling, input_nest, output_nest, weights_nest
from jangin.passes.windows.winograd_transform import F2, F4, Transform, exact_of
from jangin.targets.target import Target
from jangin.templates.template import expected

PANEL = 4
"""Most vectors of a panel of weights that change. Register tiles then have six rows."""
FEW_TILES = 64
"""Fewest tiles of all images for panels of so many vectors. With fewer, tiles of six rows overlap much, and
panels are half as wide."""
RANGE = 2.0**-6, 2.0**15
"""The range of the largest transformed weight that allows f16. f16 has no larger numbers, and too few digits
for much smaller ones."""
INDEX = (Var("n"), Var("f"), Var("h"), Var("w"), Var("c"))
"""An index of the result, with frames. Nests that compute the same at this index are equal, and made once."""


def winograd(graph: Graph, target: Target) -> Graph:
    """Return the fused graph with 3 x 3 convolutions replaced if Winograd's method should be quicker."""
    return _Winograd(graph, target).run()


@dataclass(frozen=True)
class Match:
    """A kernel that is a 3 x 3 convolution with stride 1, and its sizes. They may be symbolic, except for
    channels.

    `dilations`: down and across. `frames`: of a video; each output frame is one image, made of `depth` input
    frames (0: no video).
    """

    kernel: Node
    stage: Stage
    x: str
    weights: str
    images: Expr
    height: Expr
    width: Expr
    channels: int
    outputs: int
    pairs: bool
    halves: bool
    transforms: Sequence[Transform]
    dilations: tuple[int, ...]
    frames: int
    depth: int

    changing: bool
    """Whether a run transforms the weights."""
    stored: Small | None = None
    """Constant weights as bytes, if a run transforms them."""

    @property
    def terms(self) -> int:
        """Terms of each sum of products: the channels of all frames that an output is made of."""
        return self.depth * self.channels

    @property
    def index(self) -> Sequence[Expr]:
        return INDEX if self.frames else (INDEX[0], *INDEX[2:])

    @property
    def dtype(self) -> DType:
        """The type of the transformed values and of their products."""
        return I32 if self.pairs else F32


def match(kernel: Node, graph: Graph) -> Match | None:
    """Return the convolution that Winograd's method could compute, or None."""
    if not isinstance(kernel.attrs, Kernel) or is_opaque(kernel):
        return None
    node = next((n for n in kernel.of(Kernel).body.nodes if isinstance(n.attrs, Conv)), None)
    if node is None or not _fits(node, graph):
        return None
    *local, stage = stages(kernel)[0]
    x, weights = node.inputs
    batch, *around, height, width, last = stage.out.shape
    frames, channels = static_shape((*around,)), static_shape((*graph.shape(x)[-1:], last))
    conv = node.of(Conv)
    fixed = static_shape((height, width)) is not None or not any(d > 1 for d in conv.dilations)
    if local or frames is None or channels is None or not fixed:
        return None
    images, (terms, outputs) = batch * math.prod(frames), channels
    pairs, halves = conv.dot == DOT2, conv.halves
    fitting = _exact(x, graph.constants[weights], graph) if pairs else (F2, F4)
    return Match(
        kernel, stage, x, weights, images, height, width, terms, outputs, pairs, halves, fitting,
        conv.dilations[-2:], math.prod(frames) if frames else 0, math.prod(conv.kernel[:-2]),
        weights not in graph.constants,
    )  # fmt: skip


def _exact(x: str, weights: Array, graph: Graph) -> list[Transform]:
    """Return the transforms of pairs that are exact for the known range of the input."""
    graphs = [graph, *(n.of(Kernel).body for n in graph.nodes if isinstance(n.attrs, Kernel))]
    # nodes inside kernels are included
    producers = {o: n for g in graphs for n in g.nodes for o in n.outputs}
    owners = {name: g for g in graphs for name in (*g.values, *g.constants)}
    numbers = Numbers(graph.constants, producers, lambda name: owners[name].dtype(name))
    return exact_of(weights, *numbers.range(x))


def _fits(node: Node, graph: Graph) -> bool:
    x, weights = node.inputs
    conv = node.of(Conv)
    changing = weights not in graph.constants
    if changing and (conv.dot is not None or len(conv.kernel) > 2 or conv.halves):
        return False
    return (
        x in graph.values
        and (
            conv.dot == DOT2
            or (conv.dot is None and graph.dtype(x) == graph.dtype(weights) == F32 and conv.dtype is None)
        )
        and is_window(conv)
    )


class _Winograd(Editor):
    """One run over a fused graph. `made`: the loop nests so far, by everything that distinguishes them."""

    def __init__(self, graph: Graph, target: Target) -> None:
        super().__init__(graph.symbols, graph.values, graph.constants)
        self.graph = graph
        self.target, self.figures = target, target.machine.winograd
        self.producers = graph.producers()
        self.made: dict[object, Stmt] = {}

    def run(self) -> Graph:
        for node in self.graph.nodes:
            window = self.stored_small(match(node, self.graph))
            estimate = None if window is None else self.estimate(window)
            transform = None if estimate is None else estimate.best()
            if window is None or estimate is None or transform is None:
                self.emit(node)
                continue
            blocks = estimate.by_blocks(transform)
            kernels = self.kernels(window, transform, blocks)
            *first, product = [*kernels[:-3], merge(self.graph, kernels[-3:])] if blocks else kernels
            for kernel in (*first, product):
                self.emit(kernel)
        if self.nodes == list(self.graph.nodes):
            return self.graph
        return dce(self.rewritten(self.graph))

    def stored_small(self, m: Match | None) -> Match | None:
        """Return the match with constant weights as bytes, which a run transforms, on a machine that stores
        weights so."""
        known = None if m is None or m.changing or m.frames else self.graph.constants[m.weights]
        if m is None or known is None or not self.target.machine.fusion.byte_weights:
            return m
        stored = in_bytes(np.ascontiguousarray(known.transpose(2, 3, 1, 0)))
        return m if stored is None else replace(m, changing=True, stored=stored)

    def estimate(self, m: Match) -> Estimate | None:
        """Return the estimated cost of a match, or None for pairs on a machine without vectors, and for
        symbolic images on a machine with work-groups.

        Without vectors, adding two pairs takes six instructions. A machine without vectors also has no room
        for four times as many weights.
        """
        if m.pairs and self.target.machine.lanes(I32.bytes) == 1:
            return None
        if self.target.groups and static_shape((m.height, m.width)) is None:
            return None
        height, width = (expected(size, self.symbols) for size in (m.height, m.width))
        sizes = height, width, m.terms, m.outputs
        fusion = self.target.machine.fusion
        if m.changing and not (m.stored and fusion.prepares):
            # one transform of the weights is for all images of a batch
            images = static_shape((m.images,))
            if images is None or self.target.groups or self.target.machine.lanes(F32.bytes) == 1:
                return None
            known = m.stored is not None
            return Estimate(
                *sizes, self.figures, m.transforms, F32, m.dilations, images[0], changing=True, stored=known
            )
        batch = max(1, expected(m.images, self.symbols) // max(1, m.frames))
        return Estimate(
            *sizes, self.figures, m.transforms, self.kept(m), m.dilations, max(1, m.frames), batch=batch
        )

    def kept(self, m: Match) -> DType:
        """Return the type of transformed weights. Devices with work-groups copy panels as they are."""
        small = m.halves and widens(self.target, F16) and not self.target.groups
        return F16 if small else m.dtype

    def kernels(self, m: Match, transform: Transform, blocks: bool) -> list[Node]:
        """Return the kernels: the input transform, the products and the output transform. The transform of
        weights that change is the first."""
        out, source = m.kernel.outputs[0], m.kernel.source
        images = simplify(m.images, self.symbols)
        hints = self.target.machine.hints and not blocks  # a block stays in the cache
        tiling = Tiling(
            transform, images, m.height, m.width, self.figures.lanes, blocks, m.dtype, hints,
            self.target.machine.issue_bound, m.dilations, m.frames, m.depth,
        )  # fmt: skip
        panel = 0 if blocks or not m.changing else self.panel(m, simplify(tiling.count))
        tiling = replace(tiling, panel=panel)
        if m.changing:
            panels = (m.outputs // panel, m.terms, panel) if panel else (m.terms, m.outputs)
            u = self.declare(f"{out}.u", m.dtype, tuple(map(const, (transform.products, *panels))))
            weights, taps = self.taps(m) if m.stored is None else self.small_taps(m, m.stored)
            lanes = self.figures.lanes
            body = weights_nest(transform, m.terms, m.outputs, lanes, taps, panel, m.dtype)
            first = [self.kernel(LoopNest(body, *self.typed(u)), (weights,), u, source)]
        else:
            u, first = self.constant(self.weights(m, transform), f"{out}.u"), []
        v = self.declare(f"{out}.v", m.dtype, tiling.shape(m.terms))
        products = self.declare(f"{out}.m", m.dtype, tiling.product_shape(m.outputs))
        patch, others = self.patch(m), tuple(dict.fromkeys(e.buffer.name for e in loads(m.stage.result)))
        before, after = self.input_nest(m, tiling, patch), self.output_nest(m, tiling, others)
        if panel:
            product: CoreAttributes = self.of_panels(m, v, u, products)
        else:
            product = self.product(m, v, u, products) if blocks else _matmul(m)
        return [
            *first,
            self.kernel(LoopNest(before, *self.typed(v)), patch.inputs, v, source),
            self.kernel(product, (v, u), products, source),
            self.kernel(LoopNest(after, *self.typed(out)), (products, *others), out, source),
        ]

    def weights(self, m: Match, transform: Transform) -> Array:
        """Return the transformed weights. They are in f16 only if it has their range."""
        taps = self.graph.constants[m.weights]
        if m.frames:  # [O, C, depth, 3, 3]: a frame's channels follow those of the frame before
            taps = np.moveaxis(taps, 2, 1).reshape(m.outputs, m.terms, *taps.shape[3:])
        u = transform.weights(taps)
        low, high = RANGE
        return u.astype(F16.numpy) if self.kept(m) is F16 and low <= np.abs(u).max() <= high else u

    def small_taps(self, m: Match, stored: Small) -> tuple[str, Taps]:
        """Return the constant with the weights as bytes, [3, 3, channels, outputs], and its elements as the
        transform reads them."""
        dtype, array = stored
        x = Buffer("x0", dtype, tuple(map(const, array.shape)))
        name = self.constant(array, f"{m.weights}.taps")
        return name, lambda o, c, i, j: widened(x[i, j, c, o], m.dtype)

    def taps(self, m: Match) -> tuple[str, Taps]:
        """Return the operand of the transform of weights that change, and its elements. If a kernel only
        moves the weights, as a gradient turns them, the transform reads that kernel's operand."""
        x, node = Buffer("x0", *self.typed(m.weights)), self.producers.get(m.weights)
        while node is not None and isinstance(node.attrs, Reshape):
            node = self.producers.get(node.inputs[0])
        if node is None or not isinstance(node.attrs, Kernel) or is_opaque(node):
            return m.weights, lambda o, c, i, j: x[o, c, i, j]
        (*before, stage), inputs, _ = stages(node)
        real = [a.extent for a in stage.axes if a.extent != const(1)]
        moves = isinstance(stage.body, Load) and stage.out.dtype == x.dtype and not stage.reduce_axes
        if before or len(inputs) != 1 or not moves or real != [*x.shape]:  # a gather has two inputs
            return m.weights, lambda o, c, i, j: x[o, c, i, j]
        (source,) = inputs
        moved = redirect(stage, {source.name: Buffer("x0", source.dtype, source.shape)})

        def tap(*at: Expr | int) -> Expr:
            rest = iter(at)
            index = (const(0) if a.extent == const(1) else const(0) + next(rest) for a in stage.axes)
            return simplify(value_at(moved, tuple(index)))

        return source.name, tap

    def input_nest(self, m: Match, tiling: Tiling, patch: Patch) -> Stmt:
        key = (tiling, m.channels, patch.value(*m.index), patch.guard(*m.index[-3:-1]))
        if key not in self.made:
            self.made[key] = input_nest(tiling, patch, m.channels)
        return self.made[key]

    def output_nest(self, m: Match, tiling: Tiling, others: Sequence[str]) -> Stmt:
        """Return the output transform, which ends with the convolution's epilogue; the epilogue reads
        `others`."""
        out = m.kernel.outputs[0]
        names = {n: Buffer(f"x{i}", *self.typed(n)) for i, n in enumerate(others, start=1)}
        stage = redirect(m.stage, {**names, out: Buffer("out", *self.typed(out))})
        finish = finishing(stage)
        key = (tiling, stage.out, finish(stage.acc, m.index))
        if key not in self.made:
            self.made[key] = output_nest(tiling, stage.out, finish)
        return self.made[key]

    def product(self, m: Match, v: str, u: str, out: str) -> Compute:
        """Return the matrix product of each point, for tiles whose elements are contiguous."""
        left, right = (Buffer(f"x{i}", *self.typed(n)) for i, n in enumerate((v, u)))

        def term(at: tuple[Expr, ...], k: tuple[Expr, ...]) -> Expr:
            tile, point, column = at
            return multiplied(
                left[tile, point, k[0]], right[point, k[0], column], m.dtype, DOT2 if m.pairs else None
            )

        return Compute((reduction(Buffer(out, *self.typed(out)), [m.terms], "sum", term),))

    def panel(self, m: Match, tiles: Expr) -> int:
        """Return the columns of a panel, whose rows a product reads in place. Return 0 if all outputs are one
        panel, or panels wouldn't divide them."""
        few = isinstance(tiles, Const) and int(tiles.value) < FEW_TILES
        width = PANEL * self.target.machine.lanes(F32.bytes) // (2 if few else 1)
        return 0 if m.outputs % width or m.outputs <= width else width

    def of_panels(self, m: Match, v: str, u: str, out: str) -> Compute:
        """Return the matrix product of each point and panel."""
        left, right = (Buffer(f"x{i}", *self.typed(n)) for i, n in enumerate((v, u)))

        def term(at: tuple[Expr, ...], k: tuple[Expr, ...]) -> Expr:
            point, panel, tile, column = at
            return multiplied(
                left[point, tile, k[0]],
                right[point, panel, k[0], column],
                m.dtype,
                DOT2 if m.pairs else None,
            )

        return Compute((reduction(Buffer(out, *self.typed(out)), [m.terms], "sum", term),))

    def patch(self, m: Match) -> Patch:
        """Return the operand of the input transform. If a kernel only pads the operand, the transform reads
        that kernel's operand."""
        pad = self.producers.get(m.x)
        padded = None if pad is None else padding(pad)
        if padded is None:
            x = Buffer("x0", *self.typed(m.x))
            return Patch((m.x,), lambda *at: Load(x, at), lambda h, w: const(True, BOOL))
        stage, inputs = padded
        names = {n: Buffer(f"x{i}", *self.typed(n)) for i, n in enumerate(inputs)}
        stage = redirect(stage, names)
        body, (row, column, _) = stage.body, (a.var for a in stage.axes[-3:])
        assert isinstance(body, Select)
        inside, stage = body.cond, replace(stage, body=body.a)
        return Patch(
            inputs,
            lambda *at: value_at(stage, at),
            lambda h, w: substitute(inside, {row: h, column: w}),
        )


def _matmul(m: Match) -> MatMul:
    return MatMul(dtype=I32, dot=DOT2) if m.pairs else MatMul()
