"""Quantize part by part. This module measures what `decide` needs, and races the models that it proposes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from jangin.ir.dtype import I8
from jangin.quantization.data import Feeds
from jangin.quantization.decide import (
    FLOAT,
    WORTH,
    Decision,
    Option,
    Report,
    explained,
    most,
    others,
    owned,
    raced,
    ranked,
    title,
    uniform,
)
from jangin.quantization.engine import Seen
from jangin.quantization.job import BITS, KINDS, Job, Quantized
from jangin.quantization.quality import Quality, error
from jangin.quantization.scales import Scheme
from jangin.quantization.simulate import Simulator
from jangin.quantization.writer import Chosen

EFFECT = 2
"""The number of runs on which each part's effect on the outputs is measured. Each part is tried alone, so the
time grows with this number times the number of parts."""
Kinds = Mapping[str, Mapping[str, Chosen]]
"""For each kind of numbers, the parts that suit it, quantized to it, by name."""


def decided(
    job: Job, feeds: Feeds, rated: Quality, seen: Seen, methods: Sequence[str], block: int,
    bits: int | None, allowed: float,
) -> Quantized:  # fmt: skip
    """Return the quickest model on this machine whose outputs are at most `allowed` worse. It is float32 if
    nothing is quicker.

    `bits` are the bits of int8 weights: 8 or 7. None chooses the quicker number."""
    return _Deciding(job, feeds, rated, seen, methods, block, bits, allowed).run()


def together(taken: Sequence[Decision], kinds: Kinds) -> dict[str, Chosen]:
    """Return the chosen parts by name, each quantized to the kind of numbers that was chosen for it."""
    return {d.name: kinds[d.kind][d.name] for d in taken}


@dataclass
class _Won:
    """The quickest model so far.

    - `best` is the quantized model, and `taken` are the decisions that made it.
    - `kinds` has the model's parts, quantized to each kind of numbers.
    - `before` is the seconds of a run in float32, or 0 if no model was timed against float32 yet.
    - `after` is the seconds of a run of `best`, or 0 if nothing was quicker than float32.
    """

    best: Quantized
    kinds: Kinds = field(default_factory=dict)
    taken: Sequence[Decision] = ()
    before: float = 0.0
    after: float = 0.0


class _Deciding:
    def __init__(
        self, job: Job, feeds: Feeds, rated: Quality, seen: Seen, methods: Sequence[str],
        block: int, bits: int | None, allowed: float,
    ) -> None:  # fmt: skip
        self.job, self.feeds, self.rated, self.allowed = job, feeds, rated, allowed
        job.tell(0, 1, "compile")
        self.simulator = Simulator(job.graph, job.parts, job.options)
        self.few = feeds[:EFFECT]
        self.reference = job.outputs(job.engine.run, self.few)
        each = map(seen.ranges, methods)
        self.ranges = min(each, key=lambda r: self.cost(job.chosen("int8", r, block, seen), r))
        self.kinds = {k: c for k in KINDS if (c := self.suited(k, block, seen, bits or BITS[0]))}
        narrow = bits is None and job.narrow
        self.narrow = self.kinds | {"int8": self.suited("int8", block, seen, BITS[1])} if narrow else None

    def cost(self, chosen: Mapping[str, Chosen], ranges: Mapping[str, Scheme]) -> float:
        """Return the squared error of the outputs, as a share of their squares, if only the given parts are
        quantized."""
        run = self.simulator.runner(chosen, ranges)
        return error(self.reference, self.job.outputs(run, self.few))

    def suited(self, kind: str, block: int, seen: Seen, bits: int) -> dict[str, Chosen]:
        """Return the parts that suit a kind of numbers, quantized to it, by name."""
        return self.job.chosen(kind, self.ranges, block, seen, bits, lenient=True)

    def run(self) -> Quantized:
        plain = self.made([], self.kinds)
        decisions = self.decisions(plain)
        fitting = most(ranked(decisions), self.fits)
        proposals = [(fitting, self.kinds)]
        for kinds in (self.kinds, self.narrow):
            if kinds and kinds.get("int8"):
                proposals.append((most(uniform(decisions, "int8"), partial(self.fits, kinds=kinds)), kinds))
        won = _Won(plain)
        for proposal, kinds in proposals:
            self.race(won, plain, proposal, kinds)
        more = others(decisions, won.taken, partial(self.fits, kinds=won.kinds)) if won.taken else []
        if more:
            self.race(won, plain, [*won.taken, *more], won.kinds)
        bits = BITS[won.kinds is self.narrow]
        note = f"weights in int8 are of {bits} bits, which are quicker here" if bits < I8.bits else ""
        if won.best is plain:
            won.after = won.before = won.before or raced(plain.executable, plain.executable, self.feeds[0])[0]
            note = "nothing smaller is quicker here within the drop: the model stays in float32"
        shown = explained(decisions, won.taken, fitting)
        report = Report(shown, won.before, won.after, won.best.drop, self.allowed, self.rated.title, note)
        return replace(won.best, report=report, bits=bits)

    def race(self, won: _Won, plain: Quantized, proposal: Sequence[Decision], kinds: Kinds) -> None:
        """Reduce a proposal to parts within the allowed drop, and race the model against float32. It becomes
        the best if it is quicker than the best so far."""
        candidate, kept = self.allowed_of(proposal, kinds)
        if not kept:
            return
        self.job.tell(0, 1, "race")
        seconds, other = raced(plain.executable, candidate.executable, self.feeds[0])
        ratio = other / seconds
        won.before = won.before or seconds
        least = WORTH
        if won.after:  # weights of 7 bits must gain by themselves
            narrower = kinds is self.narrow and won.kinds is not self.narrow
            least = min(WORTH, won.after / won.before * (WORTH if narrower else 1.0))
        if ratio < least:
            won.best, won.taken, won.kinds, won.after = candidate, kept, kinds, won.before * ratio

    def decisions(self, plain: Quantized) -> list[Decision]:
        """Return each part's seconds and cost in float32, in int8, and in each other kind in which it is
        quicker."""
        job, seconds = self.job, {FLOAT: owned(plain.executable, self.feeds[0], plain.owners)}
        for kind, chosen in self.kinds.items():
            _, owners, executable = job.compiled(chosen, self.ranges)
            seconds[kind] = owned(executable, self.feeds[0], owners)
        decisions = []
        for n, part in enumerate(job.parts):
            job.tell(n, len(job.parts), "effects")
            own = {k: s.get(part.name, 0.0) for k, s in seconds.items()}
            options = {FLOAT: Option(own[FLOAT], 0.0)}
            for kind, chosen in self.kinds.items():
                if part.name in chosen and (kind == "int8" or own[kind] < own[FLOAT] * WORTH):
                    alone = {part.name: chosen[part.name]}
                    options[kind] = Option(own[kind], self.cost(alone, self.ranges))
            decisions.append(Decision(part.name, title(part), options))
        return decisions

    def fits(self, taken: Sequence[Decision], kinds: Kinds | None = None) -> bool:
        """Tell if the drop is within what is allowed when these parts are quantized. Fake quantization
        predicts the outputs."""
        run = self.simulator.runner(together(taken, kinds or self.kinds), self.ranges)
        return self.rated.drop(self.job.outputs(run, self.feeds)) <= self.allowed

    def made(self, taken: Sequence[Decision], kinds: Kinds) -> Quantized:
        return self.job.made(together(taken, kinds), self.ranges, self.feeds, self.rated)

    def allowed_of(self, taken: Sequence[Decision], kinds: Kinds) -> tuple[Quantized, list[Decision]]:
        """Return the model with the parts quantized, and the parts. A quarter of them is dropped, from the
        end, until the compiled model's outputs are within the allowed drop."""
        kept = list(taken)
        while True:
            model = self.made(kept, kinds)
            if model.drop <= self.allowed or not kept:
                return model, kept
            kept = kept[: len(kept) * 3 // 4]
