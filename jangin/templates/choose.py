"""The table of templates, and the choice among their candidates for a kernel."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from jangin.ir.expr import Const
from jangin.ir.loop import Func, task_loops
from jangin.templates import (
    attention,
    contraction,
    elementwise,
    joint,
    planes,
    rows,
    separable,
    transpose,
    weight_blocks,
    window,
    winograd,
)  # fmt: skip
from jangin.templates.gpu import nests
from jangin.templates.nest_work import operations
from jangin.templates.scheduled import Recorder, Scheduled
from jangin.templates.template import Candidate, Template, Workload

Match = Callable[[Workload], Template | None]
"""A function that returns the template for a workload, or None if the template doesn't fit."""

TEMPLATES: Mapping[str, Match] = {
    "attention": attention.match,
    "separable": separable.match,
    "contraction": contraction.match,
    "weight_blocks": weight_blocks.match,
    "window": window.match,
    "planes": planes.match,
    "transpose": transpose.match,
    "elementwise": elementwise.match,
    "joint": joint.match,
    "rows": rows.match,
}
"""The templates by name, the most special first."""


def candidates(
    workload: Workload, others: Sequence[Template] = (), templates: Mapping[str, Match] = TEMPLATES
) -> list[tuple[Candidate, float]]:
    """Return all candidates for a kernel, the quickest first, each with its estimated seconds.

    `others`: templates from elsewhere (see `jangin.libraries`).
    """
    return _ranked(_fitting(workload, others, templates))


def choose(
    workload: Workload,
    wanted: Candidate | None = None,
    others: Sequence[Template] = (),
    templates: Mapping[str, Match] = TEMPLATES,
) -> Scheduled:
    """Return the kernel scheduled by the candidate `wanted`, or else by the one with the lowest estimate.

    A candidate of `others` is used only if it is wanted. If `wanted` doesn't fit the kernel, it is ignored.
    Some template of `templates` fits every kernel.
    """
    fitting = _fitting(workload, others, templates)
    known = [c for c, _ in _ranked(fitting)]
    best = wanted if wanted in known else next(c for c in known if c.template in templates)
    return fitting[best.template].schedule(best.params)


def _fitting(
    workload: Workload, others: Sequence[Template], templates: Mapping[str, Match]
) -> dict[str, Template]:
    own = {name: match(workload) for name, match in templates.items()}
    by_name = {**own, **{template.name: template for template in others}}
    one = workload.outputs == 1
    return {
        name: candidate
        for name, candidate in by_name.items()
        if candidate is not None and (one or candidate.several)
    }


def _ranked(fitting: Mapping[str, Template]) -> list[tuple[Candidate, float]]:
    estimates = [(Candidate(n, p), t.estimate(p)) for n, t in fitting.items() for p in t.space()]
    return sorted(estimates, key=lambda c: c[1])


NEST_COST = 2000.0
"""Least cost of a nest's task, in vector operations. Most nests (a sort, a scan) have loops over unknown
sizes or conditions, so that their work can't be counted. The number is a guess: ten such tasks are worth
another thread (`templates.grain.GRAIN_OPS`)."""


def opaque(func: Func, workload: Workload) -> Scheduled:
    """Schedule a kernel that came as a loop nest.

    On a processor, the nest stays unchanged, and its own parallel loop, if any, gives the tasks. On a device
    with work-groups, the tasks become threads. If the workload has stages, the kernel is a convolution by
    Winograd's method: several nests around the stages.
    """
    if workload.target.groups:
        return nests.schedule(func, workload)
    if workload.stages:
        return winograd.schedule(func, workload)
    nest = Recorder(func).finish("nest", {}, NEST_COST)
    if task_loops(nest.func.body)[1] is None:
        return nest
    work = operations(nest.func.body, dict(nest.func.symbols))
    if isinstance(work, Const):
        return replace(nest, cost=max(NEST_COST, float(work.value)))
    return replace(nest, work=work)
