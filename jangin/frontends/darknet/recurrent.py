"""Lower Darknet's recurrent sections. They contain inner layers, and a state that each run takes and
returns."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from jangin.frontends.darknet.activations import ACTIVATIONS, normalized
from jangin.frontends.dialect import Bodies, Inputs
from jangin.ir.expr import Expr
from jangin.ir.graph import CompileError, ImportedAttributes, Node
from jangin.ops.activation import sigmoid, tanh
from jangin.ops.builder import Builder
from jangin.ops.conv import conv
from jangin.ops.values import Tensor

Part = Callable[[Tensor], Tensor]


def _parts(b: Builder, node: Node, weights: Sequence[Tensor]) -> list[Part]:
    """Return functions that apply the inner layers, in the order of the weights file. Each multiplies,
    normalizes and activates."""
    o = node.of(ImportedAttributes)
    if o["activation"] not in ACTIVATIONS:
        raise CompileError(f"the activation {o['activation']} is none of {', '.join(ACTIVATIONS)}")
    each = 5 if o["normalized"] else 2
    groups = [weights[n : n + each] for n in range(0, len(weights), each)]

    def part(w: Tensor, bias: Tensor, rest: Sequence[Tensor]) -> Part:
        def apply(x: Tensor) -> Tensor:
            if w.rank == 4:
                y = conv(b, x, w, pads=[int(o["padding"])] * 4)
            else:
                y = b.matmul(b.reshape(x, [x.shape[0], w.shape[1]]), w, transpose_b=True)
            return normalized(b, y, bias, rest)

        return apply

    return [part(g[0], g[1], g[2:]) for g in groups]


def recurrent(b: Builder, node: Node, inputs: Inputs, bodies: Bodies) -> tuple[Tensor, ...]:
    """Compute one step of [rnn], [crnn], [gru] or [lstm]. Return its result, then the states after it."""
    o = node.of(ImportedAttributes)
    kind = node.op.removeprefix("darknet.")
    x, *rest = (t for t in inputs if isinstance(t, Tensor))
    count = 2 if kind == "lstm" else 1
    states, parts = rest[:count], _parts(b, node, rest[count:])
    if kind in ("rnn", "crnn"):
        return _simple(b, ACTIVATIONS[o["activation"]], x, states[0], parts, bool(o["shortcut"]))
    out = (_gru if kind == "gru" else _lstm)(b, x, states, parts, bool(o["tanh"]))
    return (b.reshape(out[0], [*out[0].shape, 1, 1]), *out)


def _simple(
    b: Builder, act: Callable[[Expr], Expr], x: Tensor, state: Tensor, parts: list[Part], shortcut: bool
) -> tuple[Tensor, ...]:
    """Compute a step of [rnn] or [crnn], and return its result and the next state. The contributions of the
    input and of the state are activated separately, then added."""
    entering, own, leaving = parts
    new = b.map(lambda v, w: act(v) + act(w), entering(x), own(state))
    if shortcut:
        new = b.map(lambda v, w: v + w, new, state)
    y = b.map(act, leaving(new))
    return (y if y.rank == 4 else b.reshape(y, [*y.shape, 1, 1])), new


def _sum(b: Builder, body: Callable[[Expr], Expr], *parts: Tensor) -> Tensor:
    return b.map(lambda v, w: body(v + w), *parts)


def _gru(
    b: Builder, x: Tensor, states: Sequence[Tensor], parts: list[Part], squashed: bool
) -> tuple[Tensor, ...]:
    wz, wr, wh, uz, ur, uh = parts
    (h,) = states
    z, r = _sum(b, sigmoid, uz(x), wz(h)), _sum(b, sigmoid, ur(x), wr(h))
    candidate = _sum(b, tanh if squashed else sigmoid, uh(x), wh(b.map(lambda v, g: v * g, h, r)))
    return (b.map(lambda g, old, new: g * old + (1.0 - g) * new, z, h, candidate),)


def _lstm(
    b: Builder, x: Tensor, states: Sequence[Tensor], parts: list[Part], squashed: bool
) -> tuple[Tensor, ...]:
    """Compute a step of [lstm]. In the file, the weights for the state come first (input, forget, output and
    candidate gate), then those for the input."""
    wi, wf, wo, wg, ui, uf, uo, ug = parts
    h, c = states
    i, f, o = (_sum(b, sigmoid, w(h), u(x)) for w, u in ((wi, ui), (wf, uf), (wo, uo)))
    g = _sum(b, tanh, wg(h), ug(x))
    cell = b.map(lambda fv, cv, iv, gv: fv * cv + iv * gv, f, c, i, g)
    return b.map(lambda ov, cv: ov * tanh(cv), o, cell), cell
