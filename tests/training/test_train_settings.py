"""`jangin train`: schedules, optimizers by names, parts of batches, running means and scaled losses."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from test_train_command import call, data, model, stop  # noqa: F401

from jangin import optim
from jangin.training.schedules import BY_NAME, Cosine, Schedule
from jangin.training.texts import parsed_optimizers, parsed_scale, parsed_schedule

STEADY = ("--trainable", "*", "--epochs", "3", "--batch", "8", "--validation", "0.25", "--threads", "1")
SETTINGS = (
    *("--optimizer", "*.bias=sgd:lr=0.2", "--optimizer", "adamw:lr=0.02", "--schedule", "cosine:warmup=1"),
    *("--average", "0.8", "--accumulate", "2", "--loss-scale", "dynamic", "--clip-value", "0.1"),
    *("--clip-norm", "0.3", "--master-weights"),
)


def weights(path: Path) -> dict[str, Any]:
    return {t.name: numpy_helper.to_array(t) for t in onnx.load(path).graph.initializer}


@pytest.mark.sampled(2)
def test_a_stopped_run_with_all_settings_goes_on(
    model: Path, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch  # noqa: F811
) -> None:  # fmt: skip
    """The model has the running means, and the weights in the checkpoint are others."""
    whole, parts = tmp_path / "whole.onnx", tmp_path / "parts.onnx"
    told = call(model, data, "-o", whole, *STEADY, *SETTINGS)
    losses = [float(n) for n in re.findall(r"^epoch \d/3: loss ([\d.]+)", told, re.M)]
    assert len(losses) == 3 and losses[2] < losses[0]
    assert told.rstrip().endswith("after 18 steps")
    with np.load(tmp_path / "whole.npz") as kept:
        for name, array in weights(whole).items():
            np.testing.assert_array_equal(array, kept[f"optimizer/average/{name}"])
            assert (array != kept[f"model/{name}"]).any()
    with monkeypatch.context() as patch:
        stop(patch)
        call(model, data, "-o", parts, *STEADY, *SETTINGS, status=130)
    call(model, data, "-o", parts, *STEADY, *SETTINGS, "--resume")
    assert onnx.load(parts) == onnx.load(whole)
    without = [w for w in SETTINGS if w not in ("--average", "0.8")]
    told = call(model, data, "-o", parts, *STEADY, *without, "--resume", status=1)
    assert "parts.npz is of a trainer with running means (average=): give the same setting" in told


@pytest.mark.sampled(2)
@pytest.mark.parametrize("way", [("--accumulate", "4"), ("--processes", "2")], ids=str)
def test_parts_give_the_model_of_whole_batches(
    way: tuple[str, str], model: Path, data: Path, tmp_path: Path  # noqa: F811
) -> None:  # fmt: skip
    if "--processes" in way:
        pytest.importorskip("torch", reason="PyTorch isn't installed: the extra `torch` brings it")
    settings = ("--optimizer", "sgd:lr=0.1")
    call(model, data, "-o", tmp_path / "whole.onnx", *STEADY, *settings)
    call(model, data, "-o", tmp_path / "parts.onnx", *STEADY, *settings, *way)
    for name, array in weights(tmp_path / "whole.onnx").items():
        # 18 steps move float32 weights below 1; each rounds sums in another order
        np.testing.assert_allclose(weights(tmp_path / "parts.onnx")[name], array, atol=2e-6)


FAULTS: dict[str, tuple[tuple[str, ...], str]] = {
    "schedule": (("--schedule", "cos"), "'cos' is no schedule; there are constant, linear, cosine, steps"),
    "setting": (("--schedule", "cosine:epochs=3"), "cosine has no 'epochs'; it has warmup, end"),
    "form": (("--schedule", "cosine:0.1"), "'0.1' is no setting of cosine: write warmup=0.0"),
    "negative": (("--schedule", "cosine:warmup=-1"), "a schedule's warmup=-1 is negative"),
    "twice": (("--optimizer", "sgd", "--optimizer", "adam"), "write '*.bias=adam'"),
    "nowhere": (("--optimizer", "conv.*=sgd"), "no optimizer for head.weight: conv.* don't fit it"),
    "parts": (("--accumulate", "3"), "no 3 equal parts along its first axis"),
    "scale": (("--loss-scale", "static"), "loss_scale='static': give a positive number, or 'dynamic'"),
    "average": (("--average", "1.5"), "average=1.5: give the share that is kept, between 0 and 1"),
    "check": (("--check", "nan", "--accumulate", "2"), "follows one plan to the first fault"),
    "emit": (("--emit", "c", "--processes", "2"), "leave out --accumulate and --processes"),
    "rates": (("--emit", "c", "--schedule", "cosine"), "whose caller sets the rates"),
}


@pytest.mark.parametrize("case", FAULTS)
def test_wrong_settings_are_told(case: str, model: Path, data: Path, tmp_path: Path) -> None:  # noqa: F811
    words, message = FAULTS[case]
    told = call(model, data, "-o", tmp_path / "out.onnx", *STEADY, *words, status=1)
    assert message in " ".join(told.split()), told


def test_texts_of_settings() -> None:
    sgd, adam = optim.SGD(lr=0.1), optim.Adam()
    assert parsed_optimizers(["sgd:lr=0.1"]) == sgd
    found = parsed_optimizers(["adam", "*kernel:0=sgd:lr=0.1", "*.b=adam"])
    assert isinstance(found, dict) and [*found.items()] == [("*kernel:0", sgd), ("*.b", adam), ("*", adam)]
    assert parsed_schedule("cosine:warmup=0.5, end=0.1") == Cosine(0.5, 0.1)
    assert [parsed_scale(t) for t in ("", "8", "dynamic")] == [None, 8.0, "dynamic"]


@pytest.mark.parametrize(
    "text", ["constant:warmup=2", "linear:end=0.25", "cosine:end=0.1", "steps:every=3,by=0.5"]
)
def test_schedules_are_those_of_pytorch(text: str) -> None:
    torch = pytest.importorskip("torch", reason="PyTorch isn't installed: the extra `torch` brings it")
    rates = torch.optim.lr_scheduler
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
    epoch, epochs = 7, 5
    steps = epoch * epochs
    make = {
        "constant": lambda: rates.LinearLR(optimizer, 1 / 14, total_iters=13),
        "linear": lambda: rates.LinearLR(optimizer, 1.0, 0.25, total_iters=steps),
        "cosine": lambda: rates.CosineAnnealingLR(optimizer, steps, 0.1),
        "steps": lambda: rates.StepLR(optimizer, 3 * epoch, 0.5),
    }
    theirs, ours = make[text.partition(":")[0]](), parsed_schedule(text)
    for step in range(steps):
        # PyTorch's rates follow from the rates before, each of which is rounded
        assert ours.factor(step, steps, epoch) == pytest.approx(optimizer.param_groups[0]["lr"], rel=1e-12)
        optimizer.step()
        theirs.step()


@pytest.mark.parametrize("name", BY_NAME)
def test_schedules_begin_and_end(name: str) -> None:
    """A warm-up is followed by the whole schedule, and a run may be shorter than its warm-up."""
    schedule: Schedule = BY_NAME[name](warmup=2)
    assert [schedule.factor(n, 100, 2) for n in range(4)] == [0.25, 0.5, 0.75, 1.0]
    assert schedule.factor(4, 100, 2) == 1.0
    assert schedule.factor(1, 2, 2) == 1.0
    assert 0 <= schedule.factor(99, 100, 2) <= 1.0
