"""The cells of recurrences: how each phase of a step finishes the sums of its products (`ops.rounds`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from typing import Any

from jangin.ir.expr import Expr, Load
from jangin.ir.loop import Stmt, Store
from jangin.ir.records import dataclass
from jangin.ops.activation import ACTIVATIONS, clip
from jangin.ops.rounds import INNER, Activation, Phase, Scan, Sums

SIGMOID, TANH = ACTIVATIONS["sigmoid"], ACTIVATIONS["tanh"]


@dataclass(frozen=True)
class Cell:
    """A kind of recurrent cell.

    - `function` is the name of the layer's function, with its `settings`.
    - `gates` are in the order of the weights.
    - `states` are named by the inputs they begin with.
    - `phases` lists, for each phase of a step, the gates whose products with the state are summed; they are
      neighbours in the weights.
    - `usual` are the default activations.
    - `kept` is the number of values that a phase keeps for the next.
    - `apart` is the gate whose recurrent bias is an input "bias" of its own, not a part of x.
    - `saved` is the number of values that each step saves for a gradient.
    """

    function: str
    gates: tuple[str, ...]
    states: tuple[str, ...]
    phases: tuple[tuple[str, ...], ...]
    step: Callable[[Scan, Sequence[Activation]], Sequence[Phase]]
    usual: tuple[Activation, ...]
    settings: Mapping[str, Any] = field(default_factory=dict)
    kept: int = 0
    apart: str = ""
    saved: int = 0


def rnn_step(scan: Scan, fns: Sequence[Activation]) -> list[Phase]:
    new, at = scan.register(0)

    def finish(sums: Sums) -> list[Stmt]:
        return [Store(new, at, fns[0](sums["hidden"])), *scan.advance(Load(new, at))]

    starts = {"hidden": scan.gate("hidden")}
    return scan.products(0, scan.state(0, INNER), starts, finish, new)


def gru_step(scan: Scan, fns: Sequence[Activation], reset_after: bool) -> list[Phase]:
    f, g = fns
    new, at = scan.register(0)

    def mixed(update: Expr, candidate: Expr) -> list[Stmt]:
        blend = Load(new, at) + update * (scan.state(0) - Load(new, at))
        return [Store(new, at, candidate), Store(new, at, blend), *scan.advance(Load(new, at))]

    def after(sums: Sums) -> list[Stmt]:
        candidate = g(scan.gate("candidate") + f(sums["reset"]) * sums["candidate"])
        return mixed(f(sums["update"]), candidate)

    def before(sums: Sums) -> list[Stmt]:
        return [scan.keep(0, f(sums["update"])), scan.keep(1, f(sums["reset"]) * scan.state(0))]

    starts = {n: scan.gate(n) for n in scan.gates if reset_after or n != "candidate"}
    h = scan.state(0, INNER)
    if reset_after:
        starts["candidate"] = scan.vector("bias", scan.gates.index("candidate"))
        return scan.products(0, h, starts, after, new)
    last = {"candidate": scan.gate("candidate")}
    second = scan.products(
        1, scan.kept(1, INNER), last, lambda sums: mixed(scan.kept(0), g(sums["candidate"])), new
    )
    return [*scan.products(0, h, starts, before), *second]


def lstm_step(
    scan: Scan, fns: Sequence[Activation], coupled: bool, limit: float, bound: float = 0.0
) -> list[Phase]:
    """Return the phases of one LSTM step. If there are projection weights, a second phase projects h and
    clips it to `bound` (0: no clipping)."""
    f, g, squash = fns
    (h, at), (c, _) = scan.register(0), scan.register(1)
    old, projects = scan.state(1), "r1" in scan.inputs

    def peeped(total: Expr, row: int, cell: Expr) -> Expr:
        return total + scan.vector("p", row) * cell if "p" in scan.inputs else total

    def finish(sums: Sums) -> list[Stmt]:
        enter = f(peeped(sums["input"], 0, old))
        keep = 1.0 - enter if coupled else f(peeped(sums["forget"], 2, old))
        held = keep * old + enter * g(sums["candidate"])
        new = Load(h, at), Load(c, at)
        return [
            Store(c, at, clip(held, -limit, limit) if limit else held),
            Store(h, at, f(peeped(sums["output"], 1, Load(c, at))) * squash(Load(c, at))),
            *([scan.keep(n, v) for n, v in enumerate(new)] if projects else scan.advance(*new)),
        ]

    def projected(sums: Sums) -> list[Stmt]:
        total = sums["projection"]
        return scan.advance(clip(total, -bound, bound) if bound else total, scan.kept(1))

    starts = {n: scan.gate(n) for n in scan.gates}
    first = scan.products(0, scan.state(0, INNER), starts, finish, h, c)
    if not projects:
        return first
    offset = {"projection": scan.vector("offset")}
    return [*first, *scan.products(1, scan.kept(0, INNER), offset, projected)]


def lstm_saving_step(scan: Scan, fns: Sequence[Activation]) -> list[Phase]:
    """Return the phase of one step of a plain LSTM. It saves the gates, in their order, and the cell."""
    f, g, squash = fns
    held = {name: scan.register(n) for n, name in enumerate((*scan.gates, "c", "h"))}
    v = {name: Load(buffer, at) for name, (buffer, at) in held.items()}

    def finish(sums: Sums) -> list[Stmt]:
        gates = {n: (g if n == "candidate" else f)(total) for n, total in sums.items()}
        gates["c"] = v["forget"] * scan.state(1) + v["input"] * v["candidate"]
        gates["h"] = v["output"] * squash(v["c"])
        return [
            *(Store(*held[name], value) for name, value in gates.items()),
            *(scan.save(n, v[name]) for n, name in enumerate((*scan.gates, "c"))),
            *scan.advance(v["h"], v["c"]),
        ]

    starts = {n: scan.gate(n) for n in scan.gates}
    return scan.products(0, scan.state(0, INNER), starts, finish, *(buffer for buffer, _ in held.values()))
