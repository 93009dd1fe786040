"""`jangin train`: data, checkpoints, resuming, and the model that it writes."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from typer.testing import CliRunner

import jangin
from jangin.cli import app
from jangin.commands.train import curve_text
from jangin.training.loop import Run
from jangin.training.texts import parsed_optimizer
from jangin.training.trainer import Trainer


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A small net of pictures, whose batch is open."""
    rng = np.random.default_rng(0)
    weights = {
        "conv.weight": rng.normal(size=(4, 3, 3, 3)) * 0.3, "conv.bias": np.zeros(4),
        "head.weight": rng.normal(size=(4, 2)) * 0.5, "head.bias": np.zeros(2),
    }  # fmt: skip
    nodes = [
        helper.make_node("Conv", ["image", "conv.weight", "conv.bias"], ["c"], "first", pads=[1] * 4),
        helper.make_node("Relu", ["c"], ["r"], "relu"),
        helper.make_node("GlobalAveragePool", ["r"], ["p"], "pool"),
        helper.make_node("Flatten", ["p"], ["f"], "flat"),
        helper.make_node("Gemm", ["f", "head.weight", "head.bias"], ["y"], "head"),
    ]
    graph = helper.make_graph(
        nodes, "net",
        [helper.make_tensor_value_info("image", TensorProto.FLOAT, ["batch", 3, 8, 8])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", 2])],
        [numpy_helper.from_array(a.astype(np.float32), n) for n, a in weights.items()],
    )  # fmt: skip
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.save(made, tmp_path / "net.onnx")
    return tmp_path / "net.onnx"


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Pictures that are bright in the class 1."""
    rng = np.random.default_rng(1)
    labels = rng.integers(0, 2, 64)
    inputs = rng.normal(size=(64, 3, 8, 8)) + labels[:, None, None, None]
    np.savez(tmp_path / "data.npz", inputs=inputs.astype(np.float32), labels=labels)
    return tmp_path / "data.npz"


def call(*words: Any, status: int = 0) -> str:
    done = CliRunner().invoke(app, ["train", *map(str, words)])
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        return str(done.exception)
    assert done.exit_code == status, done.output
    return done.output


def stop(patch: pytest.MonkeyPatch) -> None:
    """Let a run be interrupted after its tenth step."""
    step = Run.step

    def stopped(run: Run) -> float:
        loss = step(run)
        if run.trainer.count == 10:
            raise KeyboardInterrupt
        return loss

    patch.setattr(Run, "step", stopped)


SETTINGS = ("--trainable", "*", "--optimizer", "sgd:lr=0.1,momentum=0.9", "--epochs", "3", "--batch", "8")


@pytest.mark.sampled(3)
def test_a_step_is_written_as_code(model: Path, data: Path, tmp_path: Path) -> None:
    out = tmp_path / "firmware"
    told = call(model, data, "-o", out, *SETTINGS, "--emit", "c", "--target", "cortex-m7")
    assert re.search(r"[\d,]+ bytes of state, [\d,]+ bytes of arena", told)
    header = (out / "firmware.h").read_text()
    assert "int32_t firmware_step(void *state, const firmware_batch *batch" in header
    assert re.search(r"FIRMWARE_AT_head_weight \d+ /\* head.weight f32\[4, 2\]", header)
    assert "--emit" in call(model, data, "-o", out, "--target", "cortex-m7", status=1)


def test_a_model_is_trained_and_written(model: Path, data: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.onnx"
    told = call(model, data, "-o", out, *SETTINGS, "--threads", "1", "--validation", "0.25")
    losses = [float(n) for n in re.findall(r"^epoch \d/3: loss ([\d.]+)", told, re.M)]
    assert len(losses) == 3
    assert losses[2] < 0.6 * losses[0]
    shares = [float(n) for n in re.findall(r"validation loss [\d.]+, accuracy ([\d.]+)%", told)]
    assert len(shares) == 3 and shares[-1] > 80
    assert "after 18 steps" in told
    with np.load(data) as file:
        x, labels = file["inputs"], file["labels"]
    guessed = np.asarray(jangin.compile(out, threads=1)(x)).argmax(1)
    assert (guessed == labels).mean() > 0.9
    before, after = onnx.load(model), onnx.load(out)
    assert [n.SerializeToString() for n in before.graph.node] == [
        n.SerializeToString() for n in after.graph.node
    ]
    with np.load(tmp_path / "out.npz") as file:
        for t in after.graph.initializer:
            np.testing.assert_array_equal(numpy_helper.to_array(t), file[f"model/{t.name}"])


@pytest.mark.sampled(2)
def test_a_stopped_run_goes_on_as_if_it_had_not(
    model: Path, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, parts = tmp_path / "whole.onnx", tmp_path / "parts.onnx"
    call(model, data, "-o", whole, *SETTINGS)
    stop(monkeypatch)
    told = call(model, data, "-o", parts, *SETTINGS, status=130)
    assert "stopped after 10 steps" in told
    assert "--resume" in told
    assert not parts.exists()
    monkeypatch.undo()
    assert "after 21 steps" in call(model, data, "-o", parts, *SETTINGS, "--resume")
    assert onnx.load(parts) == onnx.load(whole)


def test_a_checkpoint_that_cant_be_written_leaves_the_old_one(
    model: Path, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "out.npz"
    call(model, data, "-o", tmp_path / "out.onnx", *SETTINGS)
    before = file.read_bytes()

    def broken(to: Any, **arrays: Any) -> None:
        to.write(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(np, "savez", broken)
    assert "space" in call(model, data, "-o", tmp_path / "out.onnx", *SETTINGS)
    assert file.read_bytes() == before
    assert not list(tmp_path.glob(".*"))


def test_pictures_by_class(model: Path, tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image", reason="Pillow isn't installed: the extra `images` brings it")
    rng = np.random.default_rng(2)
    for name, low in (("dark", 0), ("light", 128)):
        (tmp_path / "photos" / name).mkdir(parents=True)
        for n in range(12):
            pixels = (rng.integers(0, 100, (9, 11, 3)) + low).astype(np.uint8)
            image.fromarray(pixels).save(tmp_path / "photos" / name / f"{n}.png")
        (tmp_path / "photos" / name / "._0.png").write_bytes(b"of a file manager")
    (tmp_path / "photos" / ".trash").mkdir()
    (tmp_path / "photos" / ".trash" / "0.png").write_bytes(b"no class")
    (tmp_path / "photos" / "dark" / "3.png").write_bytes(b"no picture")
    whole = (tmp_path / "photos" / "light" / "5.png").read_bytes()
    (tmp_path / "photos" / "light" / "5.png").write_bytes(whole[:60])
    told = call(model, tmp_path / "photos", "-o", tmp_path / "out.jgn", *SETTINGS, "--validation", "0")
    assert "after 9 steps" in told
    for name in ("dark/3.png", "light/5.png"):
        assert len(re.findall(rf"photos/{name} can't be read and is left out: \w+", told)) == 1
    assert jangin.load(tmp_path / "out.jgn").inputs[0].name == "image"


def test_a_batch_without_a_readable_picture_keeps_the_run(
    model: Path, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An error in the middle of a run is told, and the steps before it are kept."""
    steps: list[int] = []

    def step(run: Run, plain: Any = Run.step) -> float:
        if len(steps) == 3:
            raise ValueError("no picture of a batch can be read, beginning with x.png")
        steps.append(run.trainer.count)
        return float(plain(run))

    out = tmp_path / "out.onnx"
    with monkeypatch.context() as patch:
        patch.setattr(Run, "step", step)
        assert "beginning with x.png" in call(
            model, data, "-o", out, *SETTINGS, "--validation", "0", status=1
        )
    with np.load(tmp_path / "out.npz") as kept:
        assert kept["steps"] == 3
    assert "after 24 steps" in call(model, data, "-o", out, *SETTINGS, "--validation", "0", "--resume")


FAULTS: dict[str, tuple[dict[str, Any], tuple[str, ...], str]] = {
    "labels": ({"labels": np.full(64, 2)}, (), "example 0 has the label 2, and the model tells 2 classes"),
    "shape": (
        {"inputs": np.zeros((64, 3, 8, 9), np.float32)},
        (),
        r"float32\[64, 3, 8, 9\]; the model takes",
    ),
    "type": ({"inputs": np.zeros((64, 3, 8, 8), np.complex64)}, (), "inputs of complex64"),
    "names": ({"inputs": None}, (), "must have 'inputs' and 'labels'"),
    "number": ({"labels": np.zeros(9, np.int64)}, (), "64 entries of 'inputs' and 9 of 'labels'"),
    "batch": ({}, ("--batch", "100"), "too few for a batch of 100"),
    "optimizer": ({}, ("--optimizer", "adam:rate=1"), "adam has no 'rate'; it has lr, betas"),
    "no optimizer": ({}, ("--optimizer", "adams"), "'adams' is no optimizer"),
    "loss": ({}, ("--loss", "crossentropy"), "is none of cross_entropy"),
    "no numbers": ({"labels": np.full(64, "cat")}, (), "the labels <U3.64.; they must be numbers"),
    "one label": ({"labels": np.int64(1)}, (), r"the labels int64\[\]; they must be numbers"),
    "text as rate": ({}, ("--optimizer", "sgd:lr='a'"), "lr='a' is no setting of sgd: write it as lr=0.001"),
    "one beta": ({}, ("--optimizer", "adam:betas=0.9"), r"write it as betas=\(0.9, 0.999\)"),
    "infinite rate": ({}, ("--optimizer", "sgd:lr=1e999"), "lr=inf is no setting of sgd"),
    "negative norm": ({}, ("--clip-norm=-1",), "must be positive"),
    "seed": ({}, ("--seed=-1",), "seed -1 is negative"),
    "folder": ({}, ("--checkpoint", "nowhere/c.npz"), "No such file or directory: 'nowhere'"),
    "trainable": ({}, ("--trainable", "tail.*"), "none of the parameters conv.weight"),
}


@pytest.mark.parametrize("case", FAULTS)
def test_faults_are_told(case: str, model: Path, data: Path, tmp_path: Path) -> None:
    changed, words, message = FAULTS[case]
    with np.load(data) as file:
        arrays = {**file, **changed}
    np.savez(data, **{n: a for n, a in arrays.items() if a is not None})
    told = call(model, data, "-o", tmp_path / "out.onnx", *SETTINGS, *words, status=1)
    assert re.search(message, told), told


@pytest.mark.parametrize("content", [b"junk", b"PK\x03\x04junk", b""])
def test_files_without_arrays_are_told(content: bytes, model: Path, data: Path, tmp_path: Path) -> None:
    bad = tmp_path / "bad.npz"
    bad.write_bytes(content)
    out = ("-o", tmp_path / "out.onnx", *SETTINGS)
    assert "bad.npz can't be read as arrays" in call(model, bad, *out, status=1)
    assert "bad.npz can't be read" in call(model, data, *out, "--resume", "--checkpoint", bad, status=1)
    np.save(tmp_path / "one.npy", np.ones(3))
    assert "has a single array" in call(model, tmp_path / "one.npy", *out, status=1)


def test_losses_that_are_not_finite_end_no_run(model: Path, data: Path, tmp_path: Path) -> None:
    """All labels are ignored, so the mean of no losses is NaN."""
    with np.load(data) as file:
        np.savez(data, inputs=file["inputs"], labels=np.full(64, -100))
    told = call(model, data, "-o", tmp_path / "out.onnx", *SETTINGS)
    assert "loss nan ??? nan" in told


@pytest.mark.sampled(2)
def test_a_checkpoint_of_another_optimizer(model: Path, data: Path, tmp_path: Path) -> None:
    """An optimizer that keeps nothing doesn't take another one's checkpoint for its own."""
    out = ("-o", tmp_path / "out.onnx", "--trainable", "*", "--epochs", "1", "--batch", "32")
    call(model, data, *out, "--optimizer", "adam", "--validation", "0")
    told = call(model, data, *out, "--optimizer", "sgd", "--validation", "0", "--resume", status=1)
    assert "of another optimizer, which keeps exp_avg, exp_avg_sq" in told


def test_without_trainable_the_names_are_told(model: Path, data: Path, tmp_path: Path) -> None:
    told = call(model, data, "-o", tmp_path / "out.onnx", status=1)
    assert "trainable=[...] of conv.weight" in told


def test_texts_of_optimizers() -> None:
    found = parsed_optimizer("adamw:lr=1e-2,betas=(0.8, 0.9),weight_decay=0")
    assert found == jangin.optim.AdamW(1e-2, (0.8, 0.9), weight_decay=0)
    assert parsed_optimizer("sgd") == jangin.optim.SGD()


def test_the_curve_in_the_terminal() -> None:
    assert curve_text([2.0, 1.0, 0.0]) == "loss 2.0000 █▅▁ 0.0000"
    assert curve_text([2.0, float("nan"), 0.0]) == "loss 2.0000 █?▁ 0.0000"
    assert curve_text([1.0]) == "loss 1.0000 ▁ 1.0000"


def test_the_curve_as_svg(model: Path, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("matplotlib", reason="Matplotlib isn't installed: the extra `bench` brings it")
    curve = tmp_path / "curve.svg"
    call(model, data, "-o", tmp_path / "out.onnx", *SETTINGS, "--curve", curve)
    assert "<svg" in curve.read_text()
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    told = call(model, data, "-o", tmp_path / "out.onnx", *SETTINGS, "--curve", curve, status=1)
    assert "--curve needs Matplotlib" in told


def test_numbers_that_are_not_finite_are_traced_to_their_node(model: Path) -> None:
    batch = (np.ones((2, 3, 8, 8), np.float32), np.zeros(2, np.int64))

    def trainer() -> Trainer:
        return jangin.train(
            model, "cross_entropy", jangin.optim.SGD(1e30), batch, trainable=["*"], check="nan",
            shapes={"image": (2, 3, 8, 8)}, threads=1,
        )  # fmt: skip

    found = trainer()
    before = found.state_dict()
    with pytest.raises(FloatingPointError, match=r"step 1: the input 'image' has NaN already"):
        found.step((np.full((2, 3, 8, 8), np.nan, np.float32), batch[1]))
    with pytest.raises(
        FloatingPointError, match=r"step 1: .*Gemm 'head'.* gives infinity first|gives NaN first"
    ):
        found.step((batch[0] * 3e38, batch[1]))
    assert found.count == 0
    for name, array in found.state_dict().items():
        np.testing.assert_array_equal(array, before[name])
