"""Weights and the optimizer's state are held once: a step updates them in place."""

from __future__ import annotations

import math
import os
import signal
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch", reason="PyTorch isn't installed: the extra `torch` brings it")

import torch
from torch import nn

import jangin
from jangin import optim
from jangin.compiler.pipeline import build_plan, lowered_plan
from jangin.ir.checks import IndexOutOfRange
from jangin.ir.graph import Graph, static_shape
from jangin.ir.graph_text import parse_graph, print_graph
from jangin.ir.interpret import run_plan
from jangin.ir.loop import block
from jangin.ir.parse import parse_plan
from jangin.ir.plan import Plan, aligned
from jangin.ir.text import print_plan
from jangin.ir.verify import VerifyError
from jangin.ir.verify_plan import verify_plan
from jangin.options import Options
from jangin.passes.memory.updates import _Order
from jangin.runtime.executable import Executable
from jangin.runtime.load import executable
from jangin.training.parameters import Trainable
from jangin.training.step import StepBuilder, StepGraph
from jangin.training.task import Task


def layers() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(
        nn.Conv2d(2, 9, 3, bias=False), nn.BatchNorm2d(9), nn.ReLU(), nn.Flatten(), nn.Linear(81, 5)
    )


def batch(most: int = 5) -> tuple[Any, Any]:
    rng = np.random.default_rng(2)
    return rng.random((4, 2, 5, 5), np.float32), np.arange(4) % 5 + (most - 5)


def step_of(optimizer: optim.Optimizer) -> StepGraph:
    task = Task(layers(), "cross_entropy", batch(), None, Options(None))
    model: Trainable = task.trainable()
    return StepBuilder(model, *task.added).updated([optimizer], dict.fromkeys(model.parameters, 0))


def plan_of(step: StepGraph) -> Plan:
    return lowered_plan(step.graph, Options(None))


def compiled(graph: Graph) -> Executable:
    return executable(build_plan(graph, Options(None)), 1)


def test_the_same_arrays_are_held_from_step_to_step() -> None:
    trainer = jangin.train(layers(), "cross_entropy", "adamw", batch(), threads=1)
    held = {n: id(a) for n, a in trainer._kept.items()}
    before = trainer.state_dict()
    trainer.step(batch())
    trainer.step(batch())
    assert {n: id(a) for n, a in trainer._kept.items()} == held
    assert all(not np.array_equal(a, before[n]) for n, a in trainer.state_dict().items())
    plan = trainer._runner.executable.plan
    assert [b.name for b in plan.buffers if b.kind == "output"] == [trainer._runner.step.loss]


def test_a_step_gives_what_it_gives_with_other_memory() -> None:
    """The same graph with and without updates, compiled and by the plan's interpreter."""
    step = step_of(optim.SGD(0.1, 0.9, nesterov=True))
    numbers = {n: np.asarray(0.1) for n in step.numbers}
    feeds = {**dict(zip(step.inputs, batch(), strict=True)), **step.kept, **numbers}
    plain = compiled(replace(step.graph, updates={})).run(feeds)
    plan = plan_of(step)
    assert len(plan.updates) == len(step.after)
    by_nests = run_plan(plan, feeds)
    own = {n: a.copy() for n, a in feeds.items()}
    found = compiled(step.graph).run(own)
    for name in plain:
        np.testing.assert_array_equal(found[name], plain[name], name)
        # the interpreter rounds sums in another order
        np.testing.assert_allclose(by_nests[name], plain[name], 1e-4, 1e-5, err_msg=name)
    assert all(found[out] is own[state] for out, state in plan.updates.items())


def test_arrays_that_cant_be_written_are_copied() -> None:
    step = step_of(optim.SGD(0.1))
    feeds = {**dict(zip(step.inputs, batch(), strict=True)), **step.kept}
    feeds |= {n: np.asarray(0.1) for n in step.numbers}
    state = next(iter(step.after))
    feeds[state].flags.writeable = False
    before = feeds[state].copy()
    found = compiled(step.graph).run(feeds)
    np.testing.assert_array_equal(feeds[state], before)
    assert not np.array_equal(found[step.after[state]], before)


def test_texts_name_the_updates() -> None:
    step = step_of(optim.SGD(0.1))
    read = parse_graph(print_graph(step.graph))
    assert read.updates == step.graph.updates == {out: state for state, out in step.after.items()}
    plan = plan_of(step)
    assert parse_plan(print_plan(plan), plan.constants).updates == plan.updates


def test_the_verifier_refuses_a_reader_behind_the_writer() -> None:
    plan = plan_of(step_of(optim.SGD(0.1, 0.9)))
    verify_plan(plan)
    out = next(iter(plan.updates))
    writer = next(n for n, x in enumerate(plan.launches) if out in x.args)
    reader = next(n for n, x in enumerate(plan.launches) if plan.updates[out] in x.args)
    assert reader < writer
    again = (*plan.launches, plan.launches[reader])
    with pytest.raises(VerifyError, match="writes its next state over it"):
        verify_plan(replace(plan, launches=again, buffers=tuple(forever(plan))))


def forever(plan: Plan) -> Any:
    """Buffers that live in all launches, so that only the order of launches is wrong. None overlap."""
    at = 0
    for b in plan.buffers:
        if b.kind == "arena":
            yield replace(b, live=(0, len(plan.launches)), offset=at)
            at += aligned(math.prod(static_shape(b.shape) or ()) * b.dtype.bytes)
        else:
            yield replace(b, live=(0, len(plan.launches)))


def test_the_verifier_refuses_a_writer_that_reads_later() -> None:
    plan = plan_of(step_of(optim.SGD(0.1)))
    out = next(iter(plan.updates))
    launch = next(x for x in plan.launches if out in x.args)
    func = plan.kernels[launch.kernel]
    twice = replace(func, body=block(func.body, func.body))
    with pytest.raises(VerifyError, match=r"in place: .* may be read after"):
        verify_plan(replace(plan, kernels={**plan.kernels, launch.kernel: twice}))


def wide_layers() -> nn.Module:
    torch.manual_seed(5)
    first, second, third = (nn.Sequential(nn.Linear(n, 33), nn.ReLU()) for n in (7, 33, 33))
    return nn.Sequential(first, second, third, nn.Linear(33, 5))


@pytest.mark.usefixtures("plain_memory")
@pytest.mark.parametrize("threads", [1, 3])
def test_gradients_lie_over_what_only_they_read(threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A step with the same bits takes less memory: the arena has the saved values, and hardly more."""
    example = np.random.default_rng(6).random((19, 7), np.float32), np.arange(19) % 5

    def steps() -> tuple[int, list[float], dict[str, Any]]:
        trainer = jangin.train(wide_layers(), "cross_entropy", optim.SGD(0.1, 0.9), example, threads=threads)
        return trainer.arena_bytes, [trainer.step(example) for _ in range(3)], trainer.state_dict()

    small, losses, state = steps()
    for module in ("kernels", "plans"):
        monkeypatch.setattr(f"jangin.compiler.{module}.overwritten", lambda graph: {})
    large, expected, plain = steps()
    assert losses == expected
    for name, value in plain.items():
        np.testing.assert_array_equal(state[name], value, name)
    each = aligned(4 * 19 * 33)
    assert small < 3 * each + 1024, "three saved values, and small ones"
    assert small <= large - each + 512, "the gradient beside them, apart from small values"


class Shifted(nn.Module):
    """A layer whose results meet a constant of their shape."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.first, self.last = nn.Linear(7, 33), nn.Linear(33, 5)
        self.register_buffer("constant", torch.rand(19, 33))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h, c = self.first(x), self.constant
        result: torch.Tensor = self.last((c - h).softmax(-1) * c + c.exp() * h)
        return result


def test_no_gradient_lies_over_a_constant() -> None:
    """A constant is never overwritten, though a later step reads it and no later kernel does."""
    example = np.zeros((19, 7), np.float32), np.arange(19) % 5
    task = Task(Shifted(), "cross_entropy", example, None, Options(None))
    model = task.trainable()
    step = StepBuilder(model, *task.added).updated([optim.SGD(0.1)], dict.fromkeys(model.parameters, 0))
    plan = plan_of(step)
    verify_plan(plan)
    assert any(b.base and plan.buffer(b.base).kind == "arena" for b in plan.buffers)


def test_the_verifier_refuses_a_reader_of_what_was_overwritten() -> None:
    example = np.zeros((19, 7), np.float32), np.arange(19) % 5
    task = Task(wide_layers(), "cross_entropy", example, None, Options(None))
    model = task.trainable()
    step = StepBuilder(model, *task.added).updated([optim.SGD(0.1, 0.9)], dict.fromkeys(model.parameters, 0))
    plan = plan_of(step)
    verify_plan(plan)
    arena = [(b, plan.buffer(b.base)) for b in plan.buffers if b.base]
    over = {b.name: a.name for b, a in arena if a.kind == "arena" and a.shape == b.shape}
    reader, out = next((n, a) for n, x in enumerate(plan.launches) for a in x.args[:-1] if a in over)
    args = tuple(over[a] if a == out else a for a in plan.launches[reader].args)
    launches = list(plan.launches)
    launches[reader] = replace(launches[reader], args=args)
    with pytest.raises(
        VerifyError, match=rf"'{over[out]}' is read when launch \d+ has written '{out}' over it"
    ):
        verify_plan(replace(plan, launches=tuple(launches)))


@pytest.mark.usefixtures("plain_memory")
def test_a_padded_copy_is_made_again_behind_many_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    """The weights' gradient of a strided convolution reads a new copy. The first isn't kept for it."""
    torch.manual_seed(7)
    first = nn.Conv2d(3, 16, 1), nn.ReLU(), nn.Conv2d(16, 16, 3, 2, 1), nn.ReLU(), nn.Flatten()
    net = nn.Sequential(
        *first, nn.Linear(576, 9), *(nn.Sequential(nn.Linear(9, 9), nn.ReLU()) for _ in range(6))
    )
    example = np.random.default_rng(8).random((3, 3, 12, 12), np.float32), np.arange(3)

    def step() -> tuple[int, Any, dict[str, Any]]:
        options: dict[str, Any] = {"target": "x86-64-v3", "threads": 1}
        trainer = jangin.train(net, "cross_entropy", optim.SGD(0.1, 0.9), example, **options)
        again = [x for x in trainer._runner.executable.plan.launches if "again" in str(x.sources)]
        return len(again), trainer.step(example), trainer.state_dict()

    count, loss, state = step()
    monkeypatch.setattr("jangin.passes.memory.recompute.with_copies_again", lambda graph, order: graph)
    none, plain_loss, plain = step()
    assert count == 1
    assert not none
    assert loss == plain_loss
    for name, value in plain.items():
        np.testing.assert_array_equal(state[name], value, name)


def test_labels_out_of_range_change_nothing() -> None:
    trainer = jangin.train(layers(), "cross_entropy", "adam", batch(), threads=1)
    trainer.step(batch())
    before = {n: a.copy() for n, a in trainer._kept.items()}
    with pytest.raises(IndexOutOfRange, match="loss"):
        trainer.step(batch(most=8))
    assert trainer.count == 1
    for name, array in before.items():
        np.testing.assert_array_equal(trainer._kept[name], array, name)


def test_a_batch_of_another_shape_or_type_changes_nothing() -> None:
    trainer = jangin.train(layers(), "cross_entropy", "adam", batch(), threads=1)
    x, labels = batch()
    before = {n: a.copy() for n, a in trainer._kept.items()}
    with pytest.raises(ValueError, match="shape"):
        trainer.step((x[:, :, :4], labels))
    with pytest.raises(TypeError, match="float64"):
        trainer.step((x.astype(np.float64), labels))
    for name, array in before.items():
        np.testing.assert_array_equal(trainer._kept[name], array, name)


def test_ctrl_c_waits_for_the_end_of_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    one, other = (jangin.train(layers(), "cross_entropy", "adam", batch(), threads=1) for _ in range(2))
    run = one._runner.executable.run

    def interrupted(feeds: Any) -> Any:
        found = run(feeds)
        os.kill(os.getpid(), signal.SIGINT)
        return found

    monkeypatch.setattr(one._runner.executable, "run", interrupted)
    with pytest.raises(KeyboardInterrupt):
        one.step(batch())
    other.step(batch())
    assert one.count == other.count == 1
    for name, array in one.state_dict().items():
        np.testing.assert_array_equal(array, other.state_dict()[name], name)


@pytest.mark.usefixtures("plain_memory")
def test_a_result_waits_no_longer_than_its_operand_is_held(monkeypatch: pytest.MonkeyPatch) -> None:
    """A padded copy that only the weights' gradient reads is made for it, and not beside the convolution."""
    torch.manual_seed(3)
    wide = [nn.Conv2d(16, 16, 3, padding=1, bias=False), nn.ReLU()]
    net = nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), *wide, nn.Flatten(), nn.Linear(2304, 5))
    rng = np.random.default_rng(4)
    example = rng.random((4, 3, 12, 12), np.float32), np.arange(4)

    def step() -> tuple[int, float, dict[str, Any]]:
        options: dict[str, Any] = {"target": "x86-64-v3", "threads": 1}
        trainer = jangin.train(net, "cross_entropy", optim.SGD(0.1, 0.9), example, **options)
        return trainer.arena_bytes, trainer.step(example), trainer.state_dict()

    late = step()
    monkeypatch.setattr(_Order, "_late", lambda self, order, after: [*order])
    early = step()
    assert late[0] <= early[0] - 4 * 12 * 12 * 16 * 4
    assert late[1] == early[1] and all(np.array_equal(late[2][n], a) for n, a in early[2].items())
