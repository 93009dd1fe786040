"""A training step as code that runs without Jangin. `ahead.state` describes its memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from jangin.ahead.emit import Emitted, emitted, for_kind, lies_beside
from jangin.ahead.header import element_type
from jangin.ahead.memory import buffer_bytes
from jangin.ahead.model import Model, Weights, identifier
from jangin.ahead.state import Entry, Place, Training, aside, fields_of, rate_at
from jangin.ahead.training_api import INITIAL
from jangin.compiler.pipeline import lowered_plan
from jangin.ir import limits
from jangin.ir.dtype import F32, F64, I64
from jangin.ir.expr import Const, Expr
from jangin.ir.graph import Array, Graph
from jangin.ir.plan import Plan
from jangin.ir.records import dataclass
from jangin.ops.builder import Builder
from jangin.optim import Optimizer
from jangin.options import Options
from jangin.training.step import SKIPPED, StepGraph

COUNT, RATE = "step", "rate"


@dataclass(frozen=True)
class Whole:
    """All that a training step's code is made of.

    - `kept` has the arrays that the code begins with, by the step's inputs.
    - `rates` are the learning rates, one for each optimizer.
    - `evaluation` is the graph of the loss in evaluation mode, and `inference` that of the outputs, or None.
      `names` has the step's input for each of their inputs with weights.
    - `checkpoint` is the most bytes of the step's arena, if that is limited."""

    step: StepGraph
    kept: Mapping[str, Array]
    optimizers: Sequence[Optimizer]
    rates: Sequence[float]
    count: int
    seed: int
    evaluation: StepGraph
    inference: StepGraph | None
    names: Mapping[str, str]
    checkpoint: int | None = None


def emit_step(whole: Whole, options: Options, kind: str, name: str, constants: str) -> Emitted:
    """Compile a training step ahead of time. Raises ValueError for a kind or a target for which no training
    step is emitted."""
    options = for_kind(options, kind, constants)
    if kind == "web" or "wasm" in options.target.triple:
        raise ValueError(f"no training step is emitted for {options.target.name}, only for processors")
    graphs = [whole.step.graph, numbers_graph(whole), whole.evaluation.graph]
    graphs += [whole.inference.graph] if whole.inference is not None else []
    with limits.within(options.limits):
        limits_of = [whole.checkpoint, *([None] * (len(graphs) - 1))]
        plans = [lowered_plan(g, options, arena=a) for g, a in zip(graphs, limits_of, strict=True)]
    step = _model(whole, plans, options, name, lies_beside(options.target, kind, constants))
    return emitted(step, kind)


def numbers_graph(whole: Whole) -> Graph:
    """Return the graph that computes the optimizers' numbers from the step's number and the rates. Steps that
    changed no parameter don't count."""
    b = Builder("numbers", {})
    count = b.input(COUNT, I64, ())
    rates = [b.input(f"{RATE}{n}", F64, ()) for n in range(len(whole.rates))]
    updates = b.cast(count, F64)
    if whole.step.scaling:
        skipped = b.input(whole.step.scaling[SKIPPED], F32, ())
        updates = b.map(lambda all_steps, without: all_steps - without, updates, b.cast(skipped, F64))
    results = []
    for n, key in whole.step.numbers.values():
        optimizer = whole.optimizers[n]

        def number(count: Expr, rate: Expr, optimizer: Optimizer = optimizer, key: str = key) -> Expr:
            expr: Expr = optimizer.numbers(count, rate)[key]
            return expr

        results.append(b.map(number, updates, rates[n]))
    return b.graph(results, list(whole.step.numbers))


def _model(whole: Whole, plans: Sequence[Plan], options: Options, name: str, beside: bool) -> Model:
    step = whole.step
    fields = fields_of(whole.kept, rate_at(len(whole.rates)))
    places = {f.name: Place("state", f.offset) for f in fields}
    own = {i: places[n] for i, n in whole.names.items()}
    places |= {n: Place("number", k) for k, n in enumerate(step.numbers)}
    step_entry, size = _step_entry(plans[0], step, places)
    rates = {f"{RATE}{n}": Place("state", rate_at(n)) for n in range(len(whole.rates))}
    entries = [step_entry, _numbers_entry(plans[1], {**places, **rates, COUNT: Place("count")})]
    entries += [
        _read_entry(plan, graph, own)
        for plan, graph in zip(plans[2:], (whole.evaluation, whole.inference), strict=False)
        if graph is not None
    ]
    loss = plans[0].buffer(step.loss).dtype
    training = Training(
        fields, tuple(entries), tuple(whole.rates), whole.seed, whole.count, element_type(loss)
    )
    initial = {f"{INITIAL}{f.name}": f.value for f in fields if f.filling is None}
    weights = Weights.of([*(p.constants for p in plans), {INITIAL: training.head, **initial}])
    parts = Model.of(name, "", options.target, [(p, {}) for p in plans], beside).parts
    return Model(
        name, identifier(name), options.target, (parts[0].with_aside(size), *parts[1:]), weights, beside,
        training,
    )  # fmt: skip


def _step_entry(plan: Plan, step: StepGraph, known: Mapping[str, Place]) -> tuple[Entry, int]:
    """Return the places of a step's inputs and outputs, and the bytes of memory aside. The next states that
    don't lie in their inputs are made aside."""
    inputs = tuple(_source(n, step, known) for n in plan.inputs)
    states = {out: state for state, out in step.after.items()}
    copied = [n for n in plan.outputs if n in states and n not in plan.updates]
    sizes = [_bytes(plan, n) for n in copied]
    starts, size = aside(sizes)
    kept = tuple((at, known[states[n]].at, s) for at, n, s in zip(starts, copied, sizes, strict=True))
    places = {n: Place("aside", at) for n, at in zip(copied, starts, strict=True)}
    places |= {**dict.fromkeys(plan.updates, Place("updated")), step.loss: Place("loss")}
    return Entry(inputs, tuple(places[n] for n in plan.outputs), kept), size


def _bytes(plan: Plan, name: str) -> int:
    size = buffer_bytes(plan.buffer(name))
    assert isinstance(size, Const)
    return int(size.value)


def _source(name: str, step: StepGraph, known: Mapping[str, Place]) -> Place:
    if name in known:
        return known[name]
    return Place("random") if name == step.random else Place("given", step.inputs.index(name))


def _numbers_entry(plan: Plan, known: Mapping[str, Place]) -> Entry:
    """Return the places of the part that computes the optimizers' numbers."""
    return Entry(tuple(known[n] for n in plan.inputs), tuple(known[n] for n in plan.outputs))


def _read_entry(plan: Plan, graph: StepGraph, known: Mapping[str, Place]) -> Entry:
    """Return the places of a part that reads the state alone."""
    inputs = tuple(_source(n, graph, known) for n in plan.inputs)
    places = (Place("loss") if n == graph.loss else Place("made", k) for k, n in enumerate(plan.outputs))
    return Entry(inputs, tuple(places))
