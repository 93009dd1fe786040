"""`jangin quantize`: its files, its output, and wrong usage."""

from __future__ import annotations

import re
from html import escape
from pathlib import Path

import numpy as np
import onnx
import pytest
from command_line import Cli, small_model
from onnx import numpy_helper

import jangin


@pytest.fixture
def data(tmp_path: Path) -> Path:
    folder = tmp_path / "calib"
    folder.mkdir()
    rng = np.random.default_rng(3)
    np.save(folder / "a.npy", rng.standard_normal((3, 3, 8, 8)).astype(np.float32))
    np.savez(folder / "b.npz", image=rng.standard_normal((2, 3, 8, 8)).astype(np.float32))
    return folder


def test_both_files(cli: Cli, model: Path, data: Path, tmp_path: Path) -> None:
    done = cli("quantize", model, "--data", data, "--method", "mse", "-o", tmp_path / "out", "--threads", 1)
    assert done.status == 0, done.err
    assert "2 in int8" in done.out
    assert "of 5 runs" in done.out
    x = np.load(data / "a.npy")[:1]
    compiled = jangin.compile(tmp_path / "out.onnx", cache=False)
    np.testing.assert_array_equal(jangin.load(tmp_path / "out.jgn")(x), compiled(x))


def test_tflite(cli: Cli, model: Path, data: Path, tmp_path: Path) -> None:
    """A .tflite name writes only this file. Open sizes are refused before anything is measured."""
    pytest.importorskip("tflite", reason="the package tflite isn't installed: the extra `tflite` brings it")
    out = tmp_path / "out.tflite"
    given = ("quantize", model, "--data", data, "--method", "minmax", "-o", out, "--threads", 1)
    refused = cli(*given)
    assert refused.status == 1 and "give 'batch' by shapes=" in refused.err
    assert not out.exists()
    done = cli(*given, "--shape", "batch=1")
    assert done.status == 0, done.err
    assert [f.name for f in tmp_path.glob("out*")] == ["out.tflite"]
    x = np.load(data / "a.npy")[:1]
    assert jangin.compile(out, cache=False)(x).shape == jangin.compile(model, cache=False)(x).shape


def test_pictures(cli: Cli, model: Path, tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    rng = np.random.default_rng(3)
    for n in range(3):
        image.fromarray(rng.integers(0, 255, (20, 12, 3), np.uint8)).save(tmp_path / f"{n}.png")
    labels = tmp_path / "labels.csv"
    labels.write_text("0.png 3\n1.png 4\n2.png 5\n")
    given = ("--data", tmp_path, "--labels", labels, "--pixels", "imagenet", "--crop", 0.875)
    done = cli("quantize", model, *given, "-o", tmp_path / "out.onnx", "--threads", 1)
    assert done.status == 0, done.err
    assert "top-1 of 3 labelled runs" in done.out
    assert not (tmp_path / "out.jgn").exists()


def test_refused(cli: Cli, model: Path, data: Path, tmp_path: Path) -> None:
    """Each case has one message, and nothing is written."""
    empty = tmp_path / "empty"
    empty.mkdir()
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / "x.npy").write_bytes(b"not an array")
    out = ("-o", tmp_path / "out.onnx", "--threads", 1)
    for given, message in (
        (("--data", empty, *out), "has no file of .png"),
        (("--data", broken, *out), "x.npy can't be read as arrays"),
        (("--data", tmp_path / "nowhere", *out), "there is no such file or folder"),
        (("--data", data, *out, "--drop", "little"), "'little' is no share: write 0.5%"),
        (("--data", data, "-o", tmp_path / "out.pb"), "written as NAME.onnx, NAME.tflite or NAME.jgn"),
    ):
        done = cli("quantize", model, *given)
        assert done.status == 1
        assert message in done.err
    assert cli("quantize", model, "--data", data, *out, "--int8", "--int4").status == 2
    assert not (tmp_path / "out.onnx").exists()


@pytest.mark.parametrize("kind", ["--int8", "--int4", "--fp16"])
def test_drop_that_can_not_be_met(cli: Cli, data: Path, tmp_path: Path, kind: str) -> None:
    """The best drop is reported, and nothing is written, not even a folder. The 5 scores are no classes, so
    any difference counts."""
    proto = small_model()
    (scores,) = (t for t in proto.graph.initializer if t.name == "scores")
    scores.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(scores)[:, :5].copy(), "scores"))
    proto.graph.output[0].type.tensor_type.shape.dim[1].dim_value = 5
    model, out = tmp_path / "five.onnx", tmp_path / "new" / "out"
    onnx.save(proto, model)
    given = ("quantize", model, "--data", data, "--threads", 1, kind, "--block", 16, "-o", out, "--drop")
    missed = cli(*given, "0%")
    assert missed.status == 1
    assert re.search(r"a drop of 0.000% can't be met in \w+: the best found is \d+\.\d+%", missed.err)
    assert "nothing is written" in missed.err
    assert not out.parent.exists()
    assert cli(*given, "20%").status == 0
    assert {f.name for f in out.parent.iterdir()} == {"out.onnx", "out.jgn"}


@pytest.mark.sampled(3)
def test_auto(cli: Cli, model: Path, data: Path, tmp_path: Path) -> None:
    """Each part has its row with a reason in both reports, whichever kind is quicker here."""
    page = tmp_path / "why.html"
    given = ("--data", data, "--threads", 1, "-o", tmp_path / "out.onnx")
    done = cli("quantize", model, *given, "--auto", "--drop", "30%", "--html", page)
    assert done.status == 0, done.err
    text = page.read_text("utf-8")
    for part in ("Conv 'conv1'", "MatMul 'scores1'"):
        assert part in done.out
        assert escape(part) in text
    assert "ms" in done.out
    assert not re.search(r"(src|href)=", text)  # the page needs nothing else
    wrong = cli("quantize", model, *given, "--html", page)
    assert wrong.status == 1
    assert "--html is the report of --auto" in wrong.err
