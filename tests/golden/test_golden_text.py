"""The text of small models and kernels before and after each stage."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import onnx
import pytest
from golden_models import MODELS
from rules import RULES, model_of
from templates.kernels import Built, buffer, conv, node, workload

from jangin.compiler.kernels import schedule_kernels
from jangin.compiler.plans import make_plan
from jangin.frontends.lower import lower
from jangin.frontends.table import load
from jangin.ir import te
from jangin.ir.core import Softmax
from jangin.ir.graph import Graph
from jangin.ir.graph_text import print_graph
from jangin.ir.text import print_func, print_plan
from jangin.ir.verify import verify_graph
from jangin.ops.core import CORE
from jangin.options import Options
from jangin.passes.table import GRAPH_PASSES
from jangin.targets import NAMED, resolve
from jangin.targets.target import Target
from jangin.templates.choose import choose

TARGET = NAMED["x86-64-v3"]
PASSES = tuple(p.name for p in GRAPH_PASSES if p.name not in ("cleanup", "shared_words", "updates"))
"""All passes with rules of their own. `cleanup` is left out, because it runs `simplify` again. ONNX can't say
what `shared_words` changes, because it shifts no numbers with a sign."""
Golden = Callable[[str, str, str], None]
KERNELS: dict[str, tuple[Built, str]] = {
    "conv": (conv((9, 9), 16, 16, 3), "contraction"),
    "depthwise": (conv((9, 9), 16, 16, 3, groups=16, pad=1), "window"),
    "softmax": (node(Softmax(axis=1, log=False), [buffer("x", 4, 50)]), "rows"),
}


def until(model: onnx.ModelProto, step: str, target: Target) -> list[Graph]:
    """Return the graph before and after a pass, which runs after all earlier ones."""
    graph = lower(load(model))
    for each in GRAPH_PASSES:
        before, graph = graph, each.run(graph, target)
        verify_graph(graph, CORE)
        if each.name == step:
            return [before, graph]
    raise ValueError(step)


@pytest.mark.parametrize("name", PASSES)
def test_rules(golden: Golden, name: str) -> None:
    """Each rule's model is shown before and after the pass."""
    texts = []
    for rule in RULES[name]:
        before, after = map(print_graph, until(model_of(rule), name, resolve(rule.target)))
        changed = after if after != before else "unchanged\n"
        texts.append(f"# {rule.does} ({rule.target})\n{before}# after {name}\n{changed}")
    assert any("unchanged" not in text for text in texts), f"no rule of {name} changes its model"
    golden("rules", name, "\n".join(texts))


@pytest.mark.parametrize("model", MODELS)
def test_lower(golden: Golden, model: str) -> None:
    imported = load(MODELS[model]())
    before, after = map(print_graph, (imported.graph, lower(imported)))
    golden("lower", model, f"# before lower\n{before}# after lower\n{after}")


@pytest.mark.parametrize("name", KERNELS)
def test_schedule(golden: Golden, name: str) -> None:
    built, template = KERNELS[name]
    stages, inputs = built
    found = choose(replace(workload(built, constants=("w",), target=TARGET), name=name))
    assert found.template == template
    naive = te.lower(name, stages, inputs, {})
    steps = "".join(f"  {s}\n" for s in found.steps)
    text = (
        f"# before\n{print_func(naive)}# schedule for {TARGET.name}\n{steps}# after\n{print_func(found.func)}"
    )
    golden("schedule", name, text)


@pytest.mark.parametrize("model", MODELS)
def test_plan(golden: Golden, model: str) -> None:
    graph = until(MODELS[model](), GRAPH_PASSES[-1].name, TARGET)[1]
    options = Options(TARGET, verify=True)
    plan = make_plan(graph, schedule_kernels(graph, options), options)
    golden("plan", model, print_plan(plan))


def test_no_golden_file_is_left_over(request: pytest.FixtureRequest) -> None:
    here = Path(__file__).parent
    stages = {
        "lower": set(MODELS),
        "plan": set(MODELS),
        "rules": set(PASSES),
        "schedule": set(KERNELS),
        "assembly": None,
    }
    for path in here.glob("*/*.txt"):
        names = stages.get(path.parent.name, set())
        assert names is None or path.stem in names, f"{path.relative_to(here)} belongs to no test"
