"""A user reads one message for each error, with status 1 and no traceback."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from command_line import Cli, small_model
from onnx import TensorProto, helper, numpy_helper


def graph(nodes: list[onnx.NodeProto], **constants: np.ndarray) -> onnx.ModelProto:
    return helper.make_model(
        helper.make_graph(
            nodes,
            "g",
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 3])],
            [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
            [numpy_helper.from_array(a, n) for n, a in constants.items()],
        ),
        opset_imports=[helper.make_opsetid("", 17)],
        ir_version=8,
    )


def truncated(path: Path) -> None:
    path.write_bytes(small_model().SerializeToString()[:-200])


def not_onnx(path: Path) -> None:
    path.write_text("# Not a model\n")


def empty(path: Path) -> None:
    path.write_bytes(b"")


def unknown_operator(path: Path) -> None:
    nodes = [helper.make_node("Frobnicate", ["x"], ["y"], name="odd", domain="com.example")]
    onnx.save(graph(nodes), path)


def mismatched(path: Path) -> None:
    onnx.save(
        graph([helper.make_node("MatMul", ["x", "w"], ["y"], name="mm")], w=np.ones((4, 5), "f4")), path
    )


def cyclic(path: Path) -> None:
    nodes = [
        helper.make_node("Add", ["x", "b"], ["a"], name="one"),
        helper.make_node("Add", ["x", "a"], ["b"], name="two"),
        helper.make_node("Relu", ["a"], ["y"], name="three"),
    ]
    onnx.save(graph(nodes), path)


def missing_data(path: Path) -> None:
    model = graph([helper.make_node("MatMul", ["x", "w"], ["y"], name="mm")], w=np.ones((3, 5), "f4"))
    onnx.save(model, path, save_as_external_data=True, location="gone.data", size_threshold=0)
    path.with_name("gone.data").unlink()


def dangling(path: Path) -> None:
    onnx.save(graph([helper.make_node("Relu", ["nowhere"], ["y"], name="lost")]), path)


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    ("make", "says"),
    [
        (truncated, []),
        (not_onnx, []),
        (empty, []),
        (unknown_operator, ["Frobnicate", "odd", "com.example"]),
        (mismatched, ["mm", "MatMul"]),
        (cyclic, ["one"]),
        (missing_data, ["gone.data"]),
        (dangling, ["nowhere"]),
    ],
    ids=lambda p: getattr(p, "__name__", ""),
)
@pytest.mark.parametrize("command", ["run", "inspect"])
def test_bad_models(cli: Cli, tmp_path: Path, make: object, says: list[str], command: str) -> None:
    path = tmp_path / "bad.onnx"
    make(path)  # type: ignore[operator]
    done = cli(command, path)
    assert done.status == 1, done.out
    assert done.err.startswith("error:")
    assert "Traceback" not in done.err and "a defect of Jangin" not in done.err, done.err
    for text in says:
        assert text in done.err, done.err


def test_missing_file(cli: Cli) -> None:
    done = cli("run", "nowhere.onnx")
    assert done.status == 1
    assert "nowhere.onnx" in done.err


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--shape", "batch"], "write batch=1"),
        (["--shape", "batch=one"], "write batch=1"),
        (["--shape", "depth=1"], "depth"),
        (["--shape", "batch=1", "--input", "nobody=random"], "image"),
        (["--shape", "batch=1", "--input", "image=photo.doc"], "photo.doc"),
        (["--shape", "batch=1", "--input", "image=nowhere.npy"], "nowhere.npy"),
        (["--target", "z80"], "x86-64-v3"),
    ],
)
def test_bad_arguments(cli: Cli, model: Path, arguments: list[str], says: str) -> None:
    done = cli("run", model, *arguments)
    assert done.status == 1
    assert says in done.err
    assert "Traceback" not in done.err


def test_wrong_array(cli: Cli, model: Path, tmp_path: Path) -> None:
    np.save(tmp_path / "wide.npy", np.zeros((1, 3, 9, 8), np.float32))
    np.save(tmp_path / "double.npy", np.zeros((1, 3, 8, 8)))
    assert "must be 8" in cli("run", model, "--input", tmp_path / "wide.npy").err
    assert "float64" in cli("run", model, "--input", tmp_path / "double.npy").err


def test_damaged_artefact(cli: Cli, model: Path, tmp_path: Path) -> None:
    file = tmp_path / "small.jgn"
    cli("compile", model, "-o", file)
    file.write_bytes(file.read_bytes()[:-100])
    done = cli("run", file)
    assert done.status == 1
    assert "cut short" in done.err


def test_sizes_are_asked_for_by_the_option(cli: Cli, model: Path, tmp_path: Path) -> None:
    """The remedy has Python's words, and the command's option for its users."""
    done = cli("convert", model, tmp_path / "out.nnef")
    assert done.status == 1 and list(tmp_path.glob("out*")) == []
    assert "give 'batch' by shapes=" in done.err and "shapes= is the option --shape" in done.err


def test_sizes_are_given_by_the_option(cli: Cli, model: Path, tmp_path: Path) -> None:
    pytest.importorskip(
        "nnef", reason="nnef, which checks what is written, isn't installed: the extra `nnef`"
    )
    assert cli("convert", model, tmp_path / "out.nnef", "--shape", "batch=2").status == 0


def test_a_format_that_is_not_written(cli: Cli, model: Path, tmp_path: Path) -> None:
    done = cli("convert", model, tmp_path / "out.pb")
    assert done.status == 1 and all(f"NAME.{end}" in done.err for end in ("onnx", "tflite", "nnef"))


def test_usage_is_told_with_status_2(cli: Cli) -> None:
    assert cli("frobnicate").status == 2
    assert cli("run").status == 2


def test_debug_shows_the_traceback(cli: Cli) -> None:
    with pytest.raises(Exception, match="nowhere"):
        cli("--debug", "run", "nowhere.onnx")


@pytest.mark.sampled(4)
@pytest.mark.parametrize("given", ["1.5", "True", "two", "0", "-1"])
def test_threads_are_whole_numbers(
    cli: Cli, model: Path, given: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for done in (cli("run", model, "--threads", given), cli("tune", model, "--threads", given)):
        assert done.status == 2 and "threads" in done.err
    done = cli("bench", model, "--threads", given)
    assert done.status == 1 and "--threads" in done.err and "write 1,2" in done.err
    monkeypatch.setenv("JANGIN_THREADS", given)
    assert cli("run", model).status != 0
