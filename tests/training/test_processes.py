"""Several processes that train together have the numbers of one."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch", reason="PyTorch isn't installed: the extra `torch` brings it")

import torch
from torch import nn

import jangin
from jangin import optim
from jangin.ir.graph import Array
from jangin.training.processes import Processes, _send

NEAR = {"rtol": 1e-12, "atol": 1e-14}
"""Float64 sums of few terms, in another order."""
STEPS = 4
SCRIPT = """
import sys, numpy as np, torch, torch.distributed as dist
sys.path.insert(0, sys.argv[1])
from test_processes import batch, net, optim, STEPS
import jangin
from jangin.training.reduced import over_processes
rank = int(sys.argv[3])
dist.init_process_group("gloo", init_method="file://" + sys.argv[2] + "/meeting", rank=rank, world_size=2)
half = lambda n: tuple(a[rank * 4 : rank * 4 + 4] for a in batch(n))
mean = over_processes()
trainer = jangin.train(net(), "cross_entropy", optim.AdamW(lr=0.01), half(0), threads=1, reduce=mean)
losses = [trainer.step(half(n)) for n in range(STEPS)]
np.savez(sys.argv[2] + f"/found{rank}.npz", losses=losses, **trainer.state_dict())
"""


def net() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3)).double()


def batch(step: int) -> tuple[Any, Any]:
    drawn = torch.Generator().manual_seed(step)
    x = torch.randn(8, 6, dtype=torch.float64, generator=drawn)
    return x, torch.randint(0, 3, (8,), generator=drawn)


def trainer(**settings: Any) -> jangin.training.trainer.Trainer:
    given = {"clip_norm": 0.1, **settings}
    return jangin.train(net(), "cross_entropy", optim.AdamW(lr=0.01), batch(0), threads=1, **given)


def test_two_processes_have_the_numbers_of_one() -> None:
    """A process that is killed gives one error. The step changes nothing, and the next one goes on."""
    one, two = trainer(), trainer(processes=2)
    for n in range(STEPS):
        assert two.step(batch(n)) == pytest.approx(one.step(batch(n)), rel=1e-12)
    state = two.state_dict()
    assert isinstance(two._runner, Processes)
    (other,) = two._runner._others
    assert os.getsid(other.pid) != os.getsid(0), "Ctrl-C at a terminal reaches all processes of its session"
    other.kill()
    with pytest.raises(RuntimeError, match="process 1 of 2 with status -9"):
        two.step(batch(STEPS))
    assert all((two.state_dict()[name] == a).all() for name, a in state.items())
    assert two.step(batch(STEPS)) == pytest.approx(one.step(batch(STEPS)), rel=1e-12)
    two.load_state_dict(one.state_dict())
    assert two.step(batch(0)) == pytest.approx(one.step(batch(0)), rel=1e-12)
    for name, wanted in one.state_dict().items():
        np.testing.assert_allclose(two.state_dict()[name], wanted, **NEAR)
    assert two.evaluate(batch(0)) == pytest.approx(one.evaluate(batch(0)), rel=1e-12)
    _send(two._runner._others[0], ("no batch", None, {}, 0))
    with pytest.raises(
        RuntimeError, match="process 1 of 2 with status 1: ValueError: a batch must have 2 arrays"
    ):
        two.step(batch(0))


def test_a_process_that_does_not_start_says_why(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The others wait for it, so they are ended. The next step starts new ones."""
    python = tmp_path / "python"
    python.write_text(
        f'#!/bin/sh\n[ "$4" = 1 ] && echo no memory >&2 && exit 3\nexec {sys.executable} "$@"\n'
    )
    python.chmod(0o755)
    four = trainer(processes=4)
    with (
        monkeypatch.context() as patch,
        pytest.raises(RuntimeError, match="process 1 of 4 with status 3: no m"),
    ):
        patch.setattr(sys, "executable", str(python))
        four.step(batch(0))
    assert isinstance(four._runner, Processes)
    assert not four._runner._others


def test_the_mean_is_a_function_that_others_fill() -> None:
    """Gradients of half the size are those of half the learning rate."""
    seen: list[int] = []

    def halves(arrays: Sequence[Array]) -> None:
        seen.append(len(arrays))
        for array in arrays[1:]:
            array *= 0.5

    x, y = batch(0)
    half = jangin.train(net(), "cross_entropy", optim.SGD(lr=0.2), (x, y), threads=1, reduce=halves)
    whole = jangin.train(net(), "cross_entropy", optim.SGD(lr=0.1), (x, y), threads=1)
    assert [half.step((x, y)) for _ in range(3)] == pytest.approx([whole.step((x, y)) for _ in range(3)])
    assert seen == [5, 5, 5], "the loss, and the gradients of four parameters"


def test_a_step_that_fails_keeps_running_statistics() -> None:
    def refused(arrays: Sequence[Array]) -> None:
        raise RuntimeError("nobody answers")

    made = nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4))
    x, y = torch.randn(8, 6), torch.randint(0, 4, (8,))
    alone = jangin.train(made, "cross_entropy", "sgd", (x, y), threads=1, reduce=refused)
    before = alone.state_dict()
    with pytest.raises(RuntimeError, match="nobody answers"):
        alone.step((x, y))
    assert all((alone.state_dict()[name] == a).all() for name, a in before.items())


def test_what_cannot_be_shared_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"shape \(8, 6\) has no 3 equal parts"):
        trainer(processes=3)
    with pytest.raises(ValueError, match="follows one plan to the first fault"):
        trainer(processes=2, check="nan")
    with pytest.raises(ValueError, match="at least 1"):
        trainer(processes=0)


@pytest.mark.parametrize("way", [{}, {"accumulate": 2}, {"processes": 2}], ids=str)
def test_batches_unlike_the_example_are_told(way: dict[str, Any]) -> None:
    """The error names the batch's array and whole shapes. No process is started or ended for it."""
    ours, (x, y) = trainer(**way), batch(0)
    for wrong, message in (
        (
            (x[:4], y[:4]),
            r"array 1 of the batch has the shape \[4, 6\], and the example's has \[8, 6\]: leave",
        ),
        ((x, y[:4]), r"array 2 of the batch has the shape \[4\], and the example's has \[8\]"),
        ((x.float(), y), r"array 1 of the batch is float32, and the example's is float64: convert"),
        ((x, y, y), "a batch must have 2 arrays, as the example had, not 3"),
    ):
        with pytest.raises((ValueError, TypeError), match=message) as caught:
            ours.step(wrong)
        assert len(str(caught.value)) < 200
    assert ours.count == 0 and not getattr(ours._runner, "_others", None)
    if "processes" not in way:
        assert ours.step((x, y)) == pytest.approx(trainer().step((x, y)), rel=1e-12)


def test_processes_of_torch_distributed_have_the_numbers_of_one(tmp_path: Path) -> None:
    here = Path(__file__).resolve().parent
    around = {**os.environ, "PYTHONPATH": os.pathsep.join([str(here.parents[1]), *sys.path])}
    command = [sys.executable, "-c", SCRIPT, str(here), str(tmp_path)]
    others = [subprocess.Popen([*command, str(rank)], env=around) for rank in range(2)]
    assert [other.wait(600) for other in others] == [0, 0]
    one = trainer(clip_norm=None)
    losses = [one.step(batch(n)) for n in range(STEPS)]
    for rank in range(2):
        with np.load(tmp_path / f"found{rank}.npz") as found:
            np.testing.assert_allclose(found["losses"], losses, **NEAR)
            for name, wanted in one.state_dict().items():
                np.testing.assert_allclose(found[name], wanted, **NEAR)
