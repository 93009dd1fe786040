"""Linear models and support vector machines: products with constant matrices."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from jangin.ir.expr import Buffer, Expr, Load, Var, call, const, maximum, minimum, ne, select
from jangin.ir.graph import Array, CompileError
from jangin.ir.loop import Alloc, For, If, Stmt, Store, block
from jangin.ops.builder import Builder
from jangin.ops.elementwise import power
from jangin.ops.values import Tensor

HERE = (const(0),)


def affine(b: Builder, x: Tensor, weights: Array, offsets: Sequence[float]) -> Tensor:
    """Return x [rows, n] times weights [outputs, n], plus an offset for each output."""
    scores = b.matmul(x, b.const(weights.astype(x.dtype.numpy)), transpose_b=True)
    if not len(offsets):
        return scores
    return b.map(lambda s, o: s + o, scores, b.const(np.asarray(offsets, x.dtype.numpy)))


def opposed(b: Builder, scores: Tensor) -> Tensor:
    """Return the scores of two classes [rows, 2], from the score of the second: its negative comes first."""
    return b.concat([b.map(lambda s: -s, scores), scores], 1)


def kernel(b: Builder, x: Tensor, vectors: Array, kind: str, params: Sequence[float]) -> Tensor:
    """Return [rows, vectors]: the kernel function of each row and each vector."""
    gamma, offset, degree = params or (0.0, 0.0, 0.0)
    held = b.const(vectors.astype(x.dtype.numpy))
    if kind == "RBF":

        def square(bufs: Sequence[Buffer], i: Sequence[Expr], k: Sequence[Expr]) -> Expr:
            away = bufs[0][i[0], k[0]] - bufs[1][i[1], k[0]]
            return away * away

        shape = (x.shape[0], const(len(vectors)))
        return b.reduction(
            x.dtype, shape, [x.shape[1]], "sum", [x, held], square, lambda acc, _: call("exp", acc * -gamma)
        )
    dots = b.matmul(x, held, transpose_b=True)
    if kind == "LINEAR":
        return dots
    if kind == "POLY":
        return b.map(lambda d: power(d * gamma + offset, float(int(degree))), dots)
    if kind == "SIGMOID":
        return b.map(lambda d: call("tanh", d * gamma + offset), dots)
    raise CompileError(f"kernel_type {kind!r} is none of LINEAR, POLY, RBF, SIGMOID")


def pairs(coefficients: Array, counts: Sequence[int]) -> tuple[Array, Array]:
    """Return the weights [pairs, vectors] of each pair's decision, and votes [classes, pairs].

    A vote is 1 if a positive decision counts for the class, -1 if a negative one does. A vote is 0 for a
    class outside the pair.
    """
    ends = np.cumsum(counts)
    parts = [slice(int(e) - n, int(e)) for e, n in zip(ends, counts, strict=True)]
    pairs = [(i, j) for i in range(len(counts)) for j in range(i + 1, len(counts))]
    weights = np.zeros((len(pairs), int(ends[-1])))
    won = np.zeros((len(counts), len(pairs)))
    for p, (i, j) in enumerate(pairs):
        weights[p, parts[i]] = coefficients[j - 1, parts[i]]
        weights[p, parts[j]] = coefficients[i, parts[j]]
        won[i, p], won[j, p] = 1, -1
    return weights, won


def probabilities(
    b: Builder, decisions: Tensor, classes: int, slopes: Sequence[float], offsets: Sequence[float]
) -> Tensor:
    """Return class probabilities [rows, classes] from pairwise decisions.

    Each decision's sigmoid is a pairwise probability; iteration fits the classes to them (Wu, Lin & Weng
    2004, second method).
    """

    def chance(s: Expr, slope: Expr, offset: Expr) -> Expr:
        return minimum(maximum(call("sigmoid", -(s * slope + offset)), 1e-7), 1 - 1e-7)

    dtype = decisions.dtype
    curve = [b.const(np.asarray(v, dtype.numpy)) for v in (slopes, offsets)]
    pairwise = b.map(chance, decisions, *curve)
    order = np.zeros((classes, classes), np.int64)
    upper = np.triu_indices(classes, 1)
    order[upper] = order.T[upper] = np.arange(len(upper[0]))

    def placed(bufs: Sequence[Buffer], n: Expr, i: Expr, j: Expr) -> Expr:
        value = bufs[0][n, bufs[1][i, j]]
        return select(i < j, value, 1.0 - value)

    shape = (decisions.shape[0], classes, classes)
    table = b.compute(dtype, shape, [pairwise, b.const(order)], placed)
    return _coupled(b, table, classes)


def _coupled(b: Builder, table: Tensor, classes: int) -> Tensor:
    """Return the class probabilities that fit a table of pairwise ones, by an iteration for each row by
    itself."""
    dtype, size = table.dtype, const(classes)
    shape = (table.shape[0], size)
    r, out = Buffer("x0", dtype, table.shape), Buffer("out", dtype, shape)
    q, qp = Buffer("q", dtype, (size, size), "scratch"), Buffer("qp", dtype, (size,), "scratch")
    total, worst, diff = (Buffer(n, dtype, (const(1),), "register") for n in ("total", "worst", "diff"))
    row, t, j, turn = (Var(n) for n in ("row", "t", "j", "turn"))
    zero = const(0, dtype)

    def p(i: Expr) -> Expr:
        return Load(out, (row, i))

    def add(to: Buffer, at: tuple[Expr, ...], value: Expr) -> Stmt:
        return Store(to, at, Load(to, at) + value)

    rival = Load(r, (row, j, t))
    matrix = For(t, size, block(
        Store(out, (row, t), const(1 / classes, dtype)),
        Store(q, (t, t), zero),
        For(j, size, If(ne(j, t), block(
            add(q, (t, t), rival * rival),
            Store(q, (t, j), -rival * Load(r, (row, t, j))),
        ))),
    ))  # fmt: skip
    away = call("abs", Load(qp, (t,)) - Load(total, HERE))
    measure = block(
        Store(total, HERE, zero), Store(worst, HERE, zero),
        For(t, size, block(
            Store(qp, (t,), zero),
            For(j, size, add(qp, (t,), Load(q, (t, j)) * p(j))),
            add(total, HERE, p(t) * Load(qp, (t,))),
        )),
        For(t, size, Store(worst, HERE, maximum(Load(worst, HERE), away))),
    )  # fmt: skip
    d = Load(diff, HERE)
    grown = Load(total, HERE) + d * (d * Load(q, (t, t)) + Load(qp, (t,)) * 2.0)
    step = For(t, size, block(
        Store(diff, HERE, (Load(total, HERE) - Load(qp, (t,))) / Load(q, (t, t))),
        add(out, (row, t), d),
        Store(total, HERE, grown / ((d + 1.0) * (d + 1.0))),
        For(j, size, block(
            Store(out, (row, j), p(j) / (d + 1.0)),
            Store(qp, (j,), (Load(qp, (j,)) + d * Load(q, (t, j))) / (d + 1.0)),
        )),
    ))  # fmt: skip
    unfinished = Load(worst, HERE) >= const(0.005 / classes, dtype)
    rounds = For(turn, const(max(100, classes)), If(unfinished, block(measure, If(unfinished, step))))
    body: Stmt = block(Store(worst, HERE, const(1, dtype)), matrix, rounds)
    for buffer in (q, qp, total, worst, diff):
        body = Alloc(buffer, body)
    return b.loop_nest([table], For(row, shape[0], body, "parallel"), dtype, shape)
