"""Soft non-maximum suppression: the scores of overlapping boxes fall, instead of being dropped at once."""

from __future__ import annotations

from jangin.ir.dtype import F32, I64
from jangin.ir.expr import Buffer, Expr, Load, Var, call, const, land, lor, maximum, minimum, select
from jangin.ir.loop import Alloc, For, If, Let, Stmt, Store, block
from jangin.ops.builder import Builder
from jangin.ops.select import ABSENT, overlap_of
from jangin.ops.values import Tensor

ZERO = (const(0),)


def softly_chosen(
    b: Builder, boxes: Tensor, scores: Tensor, *, limit: Tensor, overlap: Tensor, floor: Tensor, sigma: Tensor
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Return the boxes that soft non-maximum suppression chooses (i64 [boxes]) and their scores (f32
    [boxes]), best first. Boxes are followed by -1, scores by 0 (Bodla et al. 2017).

    boxes f32 [boxes, 4] are corners; scores are f32 [boxes]; at most `limit` boxes are chosen. Each chosen
    box lowers the other scores by the factor exp(-overlap² / (2 sigma)). Boxes whose score is at most
    `floor`, or that overlap a chosen one by `overlap` or more, are dropped. The other tensors have one
    element.
    """
    (n,) = scores.shape
    settings = [b.reshape(t, [1]) for t in (b.cast(limit, I64), overlap, floor, sigma)]
    inputs = [b.reshape(boxes, [1, n, 4]), scores, *settings]
    bufs = [Buffer(f"x{i}", t.dtype, t.shape) for i, t in enumerate(inputs)]
    chosen = b.loop_nest(inputs, _choose(bufs, n), I64, (n,))
    known = [inputs[0], scores, chosen, settings[3]]
    bufs = [Buffer(f"x{i}", t.dtype, t.shape) for i, t in enumerate(known)]
    return chosen, b.loop_nest(known, _scored(bufs, n), F32, (n,))


def _fallen(score: Expr, covered: Expr, sigma: Expr) -> Expr:
    return score * call("exp", covered * covered * (const(-0.5, F32) / sigma))


def _choose(bufs: list[Buffer], n: Expr) -> Stmt:
    """Return statements that take the best remaining box and lower the others' scores, until none remains or
    `limit` boxes are chosen."""
    boxes, scores = bufs[:2]
    limit, overlap, floor, sigma = (Load(x, ZERO) for x in bufs[2:])
    out = Buffer("out", I64, (n,))
    left = Buffer("left", F32, (maximum(n, const(1)),), "scratch")
    best = Buffer("best", I64, (const(1),), "register")
    t, i, c = Var("t"), Var("i"), Var("covered", F32)
    first, mine = Load(best, ZERO), Load(left, (i,))
    fill = block(
        Store(left, (i,), select(Load(scores, (i,)) > floor, Load(scores, (i,)), const(ABSENT, F32))),
        Store(out, (i,), const(-1)),
    )
    fallen = _fallen(mine, c, sigma)
    dropped = lor(c >= overlap, fallen <= floor)
    lower = Store(left, (i,), select(dropped, const(ABSENT, F32), fallen))
    each = If(mine > ABSENT, Let(c, overlap_of(boxes, const(0), first, i), lower))
    taken = block(Store(out, (t,), first), Store(left, (first,), const(ABSENT, F32)), For(i, n, each))
    search = For(i, n, If(mine > Load(left, (first,)), Store(best, ZERO, i)))
    one = block(Store(best, ZERO, const(0)), search, If(Load(left, (first,)) > ABSENT, taken))
    return Alloc(left, Alloc(best, block(For(i, n, fill), For(t, n, If(t < limit, one)))))


def _scored(bufs: list[Buffer], n: Expr) -> Stmt:
    """Return statements that compute each chosen box's score at the time when it was chosen. The original
    score is multiplied by the factors of the boxes chosen before, in order."""
    boxes, scores, chosen, sigma = bufs
    out, score = Buffer("out", F32, (n,)), Buffer("score", F32, (const(1),), "register")
    t, j = Var("t"), Var("j")

    def box(place: Expr) -> Expr:
        return minimum(maximum(Load(chosen, (place,)), const(0)), n - 1)

    mine = Load(score, ZERO)
    lower = Store(score, ZERO, _fallen(mine, overlap_of(boxes, const(0), box(j), box(t)), Load(sigma, ZERO)))
    one = block(Store(score, ZERO, Load(scores, (box(t),))), For(j, t, lower), Store(out, (t,), mine))
    there = land(Load(chosen, (t,)) >= 0, t < n)
    return Alloc(score, For(t, n, If(there, one, Store(out, (t,), const(0.0, F32)))))
