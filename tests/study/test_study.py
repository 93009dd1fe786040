"""Studies: each engine gets its row, whatever it does; what was measured stays."""

from __future__ import annotations

import errno
import json
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import BinaryIO

import numpy as np
import onnx
import pytest
from fake import WORK, meter

from jangin.bench.arrays import load_arrays
from jangin.bench.files import Unprepared
from jangin.options import Options
from jangin.study import measure
from jangin.study import run as running
from jangin.study import settings as folders
from jangin.study.models import Models
from jangin.study.products import Product
from jangin.study.rows import Group, Row, RowFile
from jangin.study.run import run
from jangin.study.settings import Settings, recorded_engines
from jangin.study.tables import label

QUICK = {"rounds": 1, "seconds": 0.01}
Study = Callable[..., dict[str, Row]]
FAILING = {
    "crashing": "the process ended by SIGSEGV",
    "unreadable": "ValueError: no operator Conv",
    "lacking": "no_such_package_of_an_engine is not installed",
    "wrong": "wrong numbers: an output differs by 0.1 of its largest value",
    "no_numbers": "wrong numbers: an output differs by inf of its largest value",
    "dying": "the process ended with status 7",
    "raising": "RuntimeError: the device was lost",
}
"""The problem in the row of each failing engine."""
NO_GROUP = '{"model": [], "precision": "int8", "batch": 1, "threads": 1, "engine": "e"}'


@pytest.mark.sampled(3)
def test_an_engine_that_crashes_and_one_that_is_wrong_beside_a_good_one(study: Study) -> None:
    """Without a source of energy there are no joules, and the reason stands in their place."""
    rows = study("good", "crashing", "wrong", energy=True)
    assert {e: r.problem for e, r in rows.items()} == {
        "good": "", **{e: FAILING[e] for e in ("crashing", "wrong")}
    }  # fmt: skip
    good = rows["good"]
    assert good.median > 0 and good.whole
    if not good.energy:  # no GPU whose driver tells its energy
        assert good.joules is None and good.no_energy.startswith("no source of energy figures. RAPL:")
    assert not rows["crashing"].no_energy


@pytest.mark.slow
def test_failing_engines_get_their_rows_and_others_go_on(study: Study) -> None:
    rows = study("good", *FAILING, "slow")
    assert {e: r.problem for e, r in rows.items()} == {**FAILING, "good": "", "slow": ""}
    assert [e for e, r in rows.items() if r.absent] == ["lacking"]
    assert all(not r.median and not r.energy for e, r in rows.items() if e in FAILING)
    good, slow = rows["good"], rows["slow"]
    assert 0 < good.low <= good.median <= good.high <= good.p95 <= good.p99
    assert slow.median > 5 and slow.kept == slow.turns == 2 and slow.calls >= 2
    assert good.error is not None and good.error < 1e-6 and "in float64" in good.reference
    assert good.first > 0 and good.peak_bytes > 1 << 20 and not good.no_energy


@pytest.mark.slow
@pytest.mark.parametrize(
    ("engine", "problem"),
    [("hanging", "it gave no answer within 10 s"), ("leaving", "the process ended by SIGSEGV")],
)
def test_what_an_engine_started_ends_with_it(study: Study, tmp_path: Path, engine: str, problem: str) -> None:
    rows = study(engine, "good", limit=10.0)
    assert rows[engine].problem == problem and rows["good"].median
    child = int((tmp_path / "child").read_text())
    for _ in range(100):  # the system may take a moment to end it
        state = Path(f"/proc/{child}/stat")
        if not state.exists() or state.read_text().rpartition(")")[2].split()[0] == "Z":
            return
        time.sleep(0.05)
    os.kill(child, 0)
    raise AssertionError(f"process {child} runs on")


@pytest.mark.sampled(3)
def test_a_study_goes_on_where_it_was_interrupted(
    study: Study, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Turns of an interrupted group are kept, and measured again. A finished study measures nothing."""

    def interrupt(done: float, total: float, what: str) -> None:
        if "2 threads: turns" in what and done % 1 > 0.5:
            raise KeyboardInterrupt

    grid = {"threads": (1, 2), "rounds": 4}
    with pytest.raises(KeyboardInterrupt):
        study("good", tell=interrupt, **grid)
    rows = RowFile(tmp_path / "report" / "rows.jsonl").rows
    assert [(r.threads, r.whole) for r in rows] == [(1, True), (2, False)] and rows[1].median > 0
    first = rows[0]
    study("good", **grid)
    rows = RowFile(tmp_path / "report" / "rows.jsonl").rows
    assert rows[0] == first and [r.whole for r in rows] == [True, True]
    monkeypatch.setattr(running, "measure_group", None)
    assert study("good", **grid)["good"] in rows


@pytest.mark.sampled(2)
def test_the_folder_of_another_study_is_refused(study: Study, model: Path, tmp_path: Path) -> None:
    report = tmp_path / "report"
    study("unreadable")
    with pytest.raises(ValueError, match=r"other settings: rounds was 2 and is 3\. Give the same settings"):
        study("unreadable", rounds=3)
    assert study("unreadable", limit=50.0), "how long an engine may take changes no figure"
    model.write_bytes(model.read_bytes() + b"\n")
    with pytest.raises(ValueError, match="other settings: the model 'small' has other bytes"):
        study("unreadable")
    (report / "settings.json").write_text("{}")
    with pytest.raises(ValueError, match="no record of a study"):
        study("unreadable")
    (report / "settings.json").unlink()
    with pytest.raises(ValueError, match=r"holds models and no study: give a new or an empty folder"):
        study("unreadable")


@pytest.mark.sampled(2)
def test_a_study_is_measured_in_parts(study: Study, model: Path, tmp_path: Path) -> None:
    """Other engines, models and threads join the study, and each row is measured once."""
    first = study("unreadable")["unreadable"]
    study("raising", threads=(2,))
    other = model.with_name("other.onnx")
    other.write_bytes(model.read_bytes())
    settings = Settings((other,), ("odd_engines:unreadable",), rounds=2, seconds=0.01)
    rows = run(settings, tmp_path / "report", Options(), lambda *_: None, str(tmp_path / "none"))
    assert [(r.model, r.threads, r.engine.partition(":")[2]) for r in rows] == [
        ("small", 1, "unreadable"), ("small", 2, "raising"), ("other", 1, "unreadable"),
    ]  # fmt: skip
    assert rows[0] == first
    record = json.loads((tmp_path / "report" / "settings.json").read_text())
    assert recorded_engines(tmp_path / "report") == ("odd_engines:unreadable", "odd_engines:raising")
    assert record["threads"] == [1, 2] and [*record["models"]] == ["small", "other"]


def test_rows_are_measured_again_on_demand(study: Study, tmp_path: Path) -> None:
    """The engine `mended` fails at first, as one does that wasn't installed."""
    assert study("mended")["mended"].problem
    (tmp_path / "mended").touch()
    assert study("mended")["mended"].problem, "a row that is there isn't measured again"
    assert study("mended", again=("crowded",))["mended"].problem
    row = study("mended", again=("failed",))["mended"]
    assert row.median > 0 and not row.problem
    file = RowFile(tmp_path / "report" / "rows.jsonl")
    file.add(replace(row, crowd=0.6, median=99.0))
    assert study("mended", again=("failed",))["mended"].median == 99.0
    assert study("mended", again=("crowded",))["mended"].median < 99.0
    with pytest.raises(ValueError, match="--again 'slow' is unknown: there are failed and crowded"):
        study("mended", again=("slow",))


def test_engines_are_timed_while_a_command_keeps_quiet(study: Study, tmp_path: Path) -> None:
    """The command begins after the engines have been compiled, and ends before the next group."""
    log = tmp_path / "log"
    code = f"import sys; log = open({str(log)!r}, 'a', 1); log.write('quiet\\n'); print(flush=True); " \
           "sys.stdin.read(); log.write('end\\n')"  # fmt: skip
    told = []

    def tell(done: float, total: float, what: str) -> None:
        told.append((what.rpartition(": ")[2], log.read_text().split() if log.exists() else []))

    study("good", tell=tell, quiet=shlex.join([sys.executable, "-c", code]), threads=(1, 2))
    assert log.read_text().split() == ["quiet", "end"] * 2
    assert [words for what, words in told if what == "compiling"] == [[], ["quiet", "end"]]
    assert [words for what, words in told if what == "turns"][1] == ["quiet"]
    with pytest.raises(ValueError, match="--quiet 'false' ended with status 1 before it printed a line"):
        study("slow", quiet="false")
    with pytest.raises(ValueError, match="--quiet 'no-such-program' can't be started: No such file"):
        study("slow", quiet="no-such-program")


def test_two_studies_in_one_folder_are_refused(study: Study, tmp_path: Path) -> None:
    """The lock ends with its process, so that nothing of a killed study is in the way of the next."""
    study("unreadable")
    code = (
        f"import sys; from pathlib import Path; from jangin.study.settings import locked\n"
        f"with locked(Path({str(tmp_path / 'report')!r})): print('in', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout is not None and other.stdout.readline() == "in\n"
        with pytest.raises(ValueError, match="in use by another study: wait for its end, or give another"):
            study("unreadable")
        other.kill()
        other.wait()
    assert study("unreadable")["unreadable"].problem == FAILING["unreadable"]


@pytest.mark.sampled(2)
def test_other_weights_in_a_file_of_their_own_are_another_model(study: Study, model: Path) -> None:
    split = onnx.load(model)
    onnx.save(split, model, save_as_external_data=True, location="weights", size_threshold=0)
    study("unreadable")
    weights = model.with_name("weights")
    weights.write_bytes(bytes(weights.stat().st_size))
    with pytest.raises(ValueError, match="other settings: the model 'small' has other bytes"):
        study("unreadable")


def test_rows_survive_a_line_that_was_cut_off(tmp_path: Path) -> None:
    file = RowFile(tmp_path / "rows.jsonl")
    rows = [Row("m", "float32", 1, t, "e", median=t, energy={"joules": 1.0}) for t in (1, 2)]
    for row in rows:
        file.add(row)
    with open(file.path, "a") as cut:
        cut.write('{"model": "m", "prec')
    again = RowFile(file.path)
    assert again.rows == rows and rows[0].joules == 1.0
    third = Row("m", "float32", 1, 3, "e")
    again.add(third)
    assert RowFile(file.path).rows == [*rows, third]
    assert again.missing(third.group, ["e", "f"]) == ["f"]
    for line in ("no json", '{"model": 1}', '{"speed": 1}', "[]", NO_GROUP):
        file.path.write_text(f"{json.dumps(vars(third) | {'energy': {}})}\n{line}\n")
        with pytest.raises(ValueError, match="line 2, is no row of a study"):
            RowFile(file.path)


def test_a_full_disk_names_the_file(tmp_path: Path) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("the system has no device that is always full")
    file = RowFile(tmp_path / "rows.jsonl")
    file.path.symlink_to("/dev/full")
    with pytest.raises(OSError, match="make room there") as error:
        file.add(Row("m", "float32", 1, 1, "e"))
    assert error.value.filename == str(file.path)


def test_a_folder_whose_record_could_not_be_written_takes_the_study(
    study: Study, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "full")

    with monkeypatch.context() as patch, pytest.raises(OSError, match="full"):
        patch.setattr(folders, "write_text", full)
        study("unreadable")
    assert study("unreadable")["unreadable"].problem == FAILING["unreadable"]


def test_inputs_that_were_cut_off_are_not_kept(
    study: Study, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full disk in the middle of a file leaves no half of it to a study that goes on."""
    models = Models(model.parent / "report", Settings((model,), ("good",)), Options())

    def cut(file: BinaryIO, array: np.ndarray, **_: object) -> None:
        file.write(b"half")
        raise OSError(errno.ENOSPC, "full")

    with monkeypatch.context() as patch, pytest.raises(OSError, match="make room there"):
        patch.setattr(np.lib.format, "write_array", cut)
        models.prepared("small", 1)
    assert [*load_arrays(models.prepared("small", 1).inputs)] == ["image"]


@pytest.mark.slow
def test_batches(study: Study, model: Path) -> None:
    """The first size is the batch. A model whose batch is fixed has no other."""
    study("good", batches=(1, 3))
    stored = sorted(p.name for p in (model.parent / "report" / "models" / "small").glob("*.npz"))
    assert stored == [f"batch{n}{f}.npz" for n in (1, 3) for f in ("-float64", "")]


def test_a_fixed_batch_is_told(study: Study, model: Path) -> None:
    fixed = onnx.load(model)
    fixed.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 2
    fixed.graph.output[0].type.tensor_type.shape.dim[0].dim_value = 2
    onnx.save(fixed, model)
    assert study("good", batches=(4,))["good"].problem == "the model's batch is fixed at 2"


def test_symbols_have_the_models_names(study: Study, model: Path) -> None:
    """The compiler has other names for the symbols `n` and `batch size`."""
    for name in ("n", "batch size"):
        named = onnx.load(model)
        named.graph.input[0].type.tensor_type.shape.dim[0].dim_param = name
        onnx.save(named, model)
        models = Models(model.parent / name, Settings((model,), ("good",)), Options())
        assert models.prepared("small", 3).sizes == {name: 3}
        assert next(iter(models.inputs("small", 3).values())).shape[0] == 3


def test_a_model_without_a_batch_has_one_row(tmp_path: Path) -> None:
    """A model without inputs, or with scalars only, isn't measured twice."""
    output = onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [])
    node = onnx.helper.make_node("Constant", [], ["y"], value_float=1.0)
    graph = onnx.helper.make_graph([node], "constant", [], [output])
    onnx.save(onnx.helper.make_model(graph, ir_version=8), tmp_path / "constant.onnx")
    models = Models(tmp_path, Settings((tmp_path / "constant.onnx",), ("good",)), Options())
    assert models.inputs("constant", 1) == {}
    with pytest.raises(Unprepared, match="batch is fixed at 1"):
        models.inputs("constant", 2)


@pytest.mark.sampled(3)
def test_sizes_are_those_of_some_model(study: Study, model: Path, tmp_path: Path) -> None:
    """A size of one model doesn't keep others from being measured. A size of no model is misspelt."""
    other = onnx.load(model)
    other.graph.input[0].type.tensor_type.shape.dim[2].dim_param = "height"
    onnx.save(other, tmp_path / "open.onnx")
    settings = Settings((model, tmp_path / "open.onnx"), ("odd_engines:unreadable",), **QUICK)
    sized = replace(settings, shapes={"height": 8})
    rows = run(sized, tmp_path / "report", Options(), lambda *_: None)
    assert [r.problem for r in rows] == [FAILING["unreadable"]] * 2
    with pytest.raises(ValueError, match=r"--shape 'hight' is a size of no model: .* are batch, height"):
        run(replace(settings, shapes={"hight": 8}), tmp_path / "other", Options(), lambda *_: None)
    named = replace(settings, models=(model,), batch_symbol="height")
    rows = run(named, tmp_path / "named", Options(), lambda *_: None)
    assert rows[0].problem == "the model has no size 'height'; its free sizes are batch"


def test_inputs_that_cannot_be_made_are_told_in_a_row(study: Study, model: Path) -> None:
    texts = onnx.load(model)
    texts.graph.input[0].type.tensor_type.elem_type = onnx.TensorProto.STRING
    onnx.save(texts, model)
    assert "string" in study("good")["good"].problem


def test_what_is_made_of_a_model_is_never_another_models(model: Path, tmp_path: Path) -> None:
    """The model `small-int8` has the name that `small` and its precision make together."""
    other = tmp_path / "small-int8.onnx"
    other.write_bytes(model.read_bytes())
    models = Models(tmp_path / "report", Settings((model, other), ("jangin",), data="d"), Options())
    models._make = lambda made, command: None  # type: ignore[method-assign]
    wanted = [
        models.file(Group(name, precision, 1, 1), "litert")[0]
        for name in ("small", "small-int8")
        for precision in ("float32", "int8")
    ]
    assert len(set(wanted)) == 4 and all(p.parent.is_dir() for p in wanted)


def test_a_model_that_cannot_be_read_is_told_in_each_row(study: Study, model: Path) -> None:
    model.write_bytes(b"no model")
    rows = study("good", "slow")
    assert len(rows) == 2
    for row in rows.values():
        assert row.problem.startswith("Jangin can't read the model, so its inputs aren't known: ")


@pytest.mark.sampled(2)
def test_missing_sizes_are_told_before_anything_is_measured(study: Study, model: Path) -> None:
    open_sized = onnx.load(model)
    open_sized.graph.input[0].type.tensor_type.shape.dim[2].dim_param = "height"
    onnx.save(open_sized, model)
    with pytest.raises(ValueError, match="give its sizes with --shape"):
        study("good")
    assert study("unreadable", shapes={"height": 8})["unreadable"].problem == FAILING["unreadable"]


@pytest.mark.slow
def test_joules_by_a_known_meter(study: Study, tmp_path: Path) -> None:
    """One engine draws 35 W above rest for 20 ms a call, the other none in the same time.

    2 % are the sensor's, and a call takes somewhat longer than 20 ms."""
    rows = study("working", "resting", meters=(meter(tmp_path),), energy=True)
    working, resting = rows["working"], rows["resting"]
    seconds = working.energy["windows"] * working.energy["seconds"] / working.energy["calls"]
    assert seconds >= 0.02
    assert working.joules == pytest.approx(WORK * seconds, rel=0.02)
    assert abs(resting.joules or 0.0) < 0.02 * WORK * seconds
    assert working.energy["gross"] > resting.energy["gross"] > 0 and len(working.energy["power"]) > 20


@pytest.mark.slow
def test_a_meter_that_dies_leaves_rows_without_joules(study: Study, tmp_path: Path) -> None:
    row = study("good", meters=(meter(tmp_path, lines=200),), energy=True)["good"]
    assert row.median > 0 and row.joules is None and "ended with status 3: out of battery" in row.no_energy


@pytest.mark.slow
def test_small_numbers_are_made_by_jangin(study: Study) -> None:
    """Both engines read the file that `jangin quantize` writes, and their errors are those of int8."""
    rows = study("jangin", "onnxruntime", precisions=("int8",))
    for row in rows.values():
        assert not row.problem and row.how == "made by jangin quantize with random inputs"
        assert row.error is not None and 1e-4 < row.error < 0.5 and row.median > 0


@pytest.mark.slow
def test_jangin_untuned_tuned_and_emitted(study: Study, tmp_path: Path) -> None:
    """The tuned row is that of its own tuning, of which a study that goes on does nothing twice."""
    rows = study("jangin", "tuned", "aot", threads=(2,), tune=1.0)
    assert {e: r.problem for e, r in rows.items()} == dict.fromkeys(("jangin", "tuned", "aot"), "")
    assert all(r.error is not None and r.error < 1e-5 and r.median > 0 for r in rows.values())
    (figures,) = (tmp_path / "report" / "models" / "small" / "tuned").glob("*.json")
    assert json.loads(figures.read_text())["threads"] == 2


def test_devices_have_groups_of_their_own(model: Path) -> None:
    """Only Jangin runs on them, and numbers of threads are of the processor."""
    settings = Settings((model,), ("jangin", "onnxruntime"), (1, 2), devices=("cpu", "opencl:0"))
    groups = [*settings.groups()]
    assert [(g.device, g.threads) for g in groups] == [("cpu", 1), ("cpu", 2), ("opencl:0", 2)]
    assert [settings.engines_of(g) for g in groups[1:]] == [("jangin", "onnxruntime"), ("jangin",)]
    models = Models(model.parent / "report", settings, Options())
    assert models.untuned(groups[2]).asked == "opencl:0" and models.untuned(groups[0]).asked is None
    product = replace(settings, models=(Path("product-24.onnx"),), products=(Product(24, 24, 24),))
    assert product.engines_of(replace(groups[2], model="product-24")) == ("jangin", "clblast")
    row = Row(**asdict(groups[2]), engine="jangin")
    assert row.group == groups[2] and label(row.group) == "small, float32, batch 1, opencl:0"


@pytest.mark.slow
def test_an_exported_program_runs_in_pytorch_and_converted_in_others(model: Path) -> None:
    torch = pytest.importorskip("torch", reason="PyTorch isn't installed (the extra `torch`)")
    torch.manual_seed(0)
    module = torch.nn.Sequential(torch.nn.Linear(5, 7), torch.nn.Tanh()).eval()
    torch.export.save(torch.export.export(module, (torch.randn(1, 5),)), model.with_suffix(".pt2"))
    settings = Settings((model.with_suffix(".pt2"),), ("pytorch", "onnxruntime"), **QUICK)
    rows = run(settings, model.parent / "report", Options(), lambda *_: None)
    assert [(r.engine, r.problem) for r in rows] == [("pytorch", ""), ("onnxruntime", "")]
    assert [r.how for r in rows] == ["", "made by jangin convert from .pt2"]
    assert all(r.error is not None and r.error < 1e-6 and r.median > 0 for r in rows)


def test_a_program_beside_the_model_is_pytorchs_own(model: Path) -> None:
    """A study with another program is another study."""
    torch = pytest.importorskip("torch", reason="PyTorch isn't installed (the extra `torch`)")
    torch.manual_seed(0)
    path = model.with_name("line.onnx")
    module = torch.nn.Linear(5, 7).eval()
    torch.export.save(torch.export.export(module, (torch.randn(1, 5),)), path.with_suffix(".pt2"))
    weights = [onnx.numpy_helper.from_array(w.detach().numpy(), n) for n, w in module.named_parameters()]
    node = onnx.helper.make_node("Gemm", ["x", "weight", "bias"], ["y"], transB=1)
    ends = [onnx.helper.make_tensor_value_info(n, 1, [1, size]) for n, size in (("x", 5), ("y", 7))]
    graph = onnx.helper.make_graph([node], "line", ends[:1], ends[1:], weights)
    onnx.save(onnx.helper.make_model(graph, ir_version=8), path)
    plain = Settings((path,), ("pytorch",), **QUICK)
    (row,) = run(plain, path.parent / "report", Options(), lambda *_: None)
    assert row.how == "from line.pt2, beside the model" and not row.problem and row.error < 1e-6
    path.with_suffix(".pt2").write_bytes(b"another")
    with pytest.raises(ValueError, match="other settings: the model 'line' has other bytes"):
        run(plain, path.parent / "report", Options(), lambda *_: None)


@pytest.mark.sampled(3)
def test_engines_are_not_blamed_for_what_quantizing_changed(
    study: Study, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All engines had wrong numbers for a model whose quantized form is far from it. `wrong` adds an error of
    its own."""
    monkeypatch.setitem(measure.WRONG, "int8", 1e-9)
    rows = study("good", "wrong", precisions=("int8",))
    (own,) = (tmp_path / "report" / "models" / "small").glob("int8-batch1-error.json")
    assert 0 < json.loads(own.read_text()) < 0.05
    assert not rows["good"].problem and rows["good"].median > 0
    assert "wrong numbers: an output differs by 0.1" in rows["wrong"].problem


@pytest.mark.sampled(2)
@pytest.mark.parametrize("threads", [1, 2])
def test_the_baseline_of_copied_windows_and_openblas(study: Study, threads: int) -> None:
    row = study("im2col", threads=(threads,), batches=(3,))["im2col"]
    assert not row.problem and row.error < 1e-6 and row.median > 0


@pytest.mark.sampled(3)
def test_layers_are_told_by_jangin_and_onnx_runtime(study: Study) -> None:
    rows = study("jangin", "onnxruntime")
    for row in rows.values():
        assert any("Conv" in name for name in row.layers) and all(s >= 0 for s in row.layers.values()), row


def test_a_file_that_cannot_be_made_is_told(model: Path) -> None:
    settings = Settings((model,), ("pytorch",), **QUICK)
    (row,) = run(settings, model.parent / "report", Options(), lambda *_: None)
    assert "can't be made of another format: put small.pt2 beside the model" in row.problem


@pytest.mark.slow
def test_files_for_litert_are_converted_at_their_batch(model: Path, tmp_path: Path) -> None:
    pytest.importorskip("tflite", reason="tflite isn't installed: the extra `tflite` brings it")
    models = Models(tmp_path / "report", Settings((model,), ("litert",), **QUICK), Options())
    quantized = "quantize with random inputs"
    for precision, batch, how in (
        ("float32", 3, "convert from .onnx"), ("int8", 3, quantized), ("int8", 2, quantized)
    ):  # fmt: skip
        path, told = models.file(Group("small", precision, batch, 1), "litert")
        assert path.read_bytes()[4:8] == b"TFL3" and path.name.endswith(f"-batch{batch}.tflite")
        assert told == f"made by jangin {how}"
