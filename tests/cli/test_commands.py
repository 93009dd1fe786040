"""Each command on a small model."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from command_line import Cli
from onnx import helper

import jangin
from jangin import llvm
from jangin.commands.common import share
from jangin.commands.inspect import SCHEDULE
from jangin.ir.parse import parse_func, parse_plan
from jangin.passes.table import GRAPH_PASSES
from jangin.version import __version__

IMAGE = np.random.default_rng(1).random((1, 3, 8, 8), np.float32)


def reference(model: Path, image: np.ndarray) -> np.ndarray:
    session = ort.InferenceSession(str(model), providers=["CPUExecutionProvider"])
    return np.asarray(session.run(None, {"image": image})[0])


def test_run_on_a_file_keeps_the_outputs(cli: Cli, model: Path, tmp_path: Path) -> None:
    np.save(tmp_path / "image.npy", IMAGE)
    done = cli("run", model, "--input", f"image={tmp_path}/image.npy", "--output", tmp_path / "out")
    assert done.status == 0, done.err
    assert "y: float32[1, 12]" in done.out
    assert done.out.count("class ") == 5
    assert "random" not in done.out
    np.testing.assert_allclose(np.load(tmp_path / "out" / "y.npy"), reference(model, IMAGE), rtol=1e-4)


def test_profile_lists_the_launches(cli: Cli, model: Path) -> None:
    out = cli("run", model, "--shape", "batch=2", "--profile").out
    assert "ms a run" in out and "conv1" in out


def test_run_on_random_numbers_needs_the_sizes(cli: Cli, model: Path) -> None:
    done = cli("run", model)
    assert (done.status, done.out) == (1, "")
    assert "--shape batch=1" in done.err
    assert "image is random" in cli("run", model, "--shape", "batch=2").out


@pytest.mark.parametrize("pixels", ["unit", "signed", "imagenet", "bytes"])
def test_run_on_a_picture(cli: Cli, model: Path, tmp_path: Path, pixels: str) -> None:
    from PIL import Image

    Image.fromarray(np.full((20, 30, 3), 128, np.uint8)).save(tmp_path / "grey.png")
    arguments = ["run", model, "--input", tmp_path / "grey.png", "--pixels", pixels, "--output", tmp_path]
    assert cli(*arguments).status == 0
    grey = np.full((1, 3, 8, 8), 128 / 255, np.float32)
    mean, deviation = {
        "unit": ([0.0], [1.0]),
        "signed": ([0.5], [0.5]),
        "imagenet": ([0.485, 0.456, 0.406], [0.229, 0.224, 0.225]),
        "bytes": ([0.0], [1 / 255]),
    }[pixels]
    wide = (np.reshape(v, (1, -1, 1, 1)).astype(np.float32) for v in (mean, deviation))
    low, span = wide
    expected = reference(model, (grey - low) / span)
    np.testing.assert_allclose(np.load(tmp_path / "y.npy"), expected, rtol=1e-3, atol=1e-4)


def test_compile_then_run_and_inspect_the_file(cli: Cli, model: Path, tmp_path: Path) -> None:
    file = tmp_path / "small.jgn"
    done = cli("--no-cache", "compile", model, "-o", file, "--shape", "batch=1")
    assert done.status == 0, done.err
    assert "arena" in done.out
    np.save(tmp_path / "image.npy", IMAGE)
    done = cli("run", file, "--input", tmp_path / "image.npy", "--output", tmp_path)
    assert done.status == 0, done.err
    np.testing.assert_allclose(np.load(tmp_path / "y.npy"), reference(model, IMAGE), rtol=1e-4)
    assert parse_plan(cli("inspect", file, "--after", "plan").out).name == "small"
    assert f"Jangin {__version__}, LLVM {llvm.version()}" in cli("inspect", file).out
    assert cli("inspect", file, "--kernel", "conv1").status == 1


def test_inspect_summary(cli: Cli, model: Path) -> None:
    out = cli("inspect", model, "--shape", "batch=1").out
    for text in ("1 Conv", "input image", "GFLOP", "conv1"):
        assert text in out


def test_inspect_finds_the_shapes_of_outputs(cli: Cli, model: Path, tmp_path: Path) -> None:
    """The model doesn't declare the outputs' shapes."""
    message = onnx.load(model)
    message.graph.output[0].type.tensor_type.ClearField("shape")
    onnx.save(message, tmp_path / "unsaid.onnx")
    assert "output y: f32[1, 12]" in cli("inspect", tmp_path / "unsaid.onnx", "--shape", "batch=1").out


def test_inspect_shows_the_models_names_of_sizes(cli: Cli, model: Path, tmp_path: Path) -> None:
    """The compiler has another name for a size that is called as its own loops are."""
    message = onnx.load(model)
    for value in (message.graph.input[0], message.graph.output[0]):
        value.type.tensor_type.shape.dim[0].dim_param = "n"
    onnx.save(message, tmp_path / "n.onnx")
    out = cli("inspect", tmp_path / "n.onnx").out
    assert "input image: f32[n, 3, 8, 8]" in out and "output y: f32[n, 12]" in out


def test_inspect_shows_names_with_brackets(cli: Cli, model: Path, tmp_path: Path) -> None:
    """Brackets in names aren't taken for markup."""
    message = onnx.load(model)
    message.graph.node[0].name = "layer[0]"
    path = tmp_path / "brackets.onnx"
    onnx.save(message, path)
    assert "layer[0]" in cli("inspect", path, "--shape", "batch=1").out


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", ["import", "lower", *(p.name for p in GRAPH_PASSES), "plan"])
def test_inspect_after_each_pass(cli: Cli, model: Path, name: str) -> None:
    done = cli("inspect", model, "--after", name)
    assert done.status == 0, done.err
    assert done.out.startswith("plan " if name == "plan" else "graph ")


@pytest.mark.parametrize("show", (*SCHEDULE, "llvm", "asm"))
def test_inspect_a_kernel(cli: Cli, model: Path, show: str) -> None:
    done = cli("inspect", model, "--kernel", "conv1", "--show", show)
    assert done.status == 0, done.err
    mark = {"naive": "func ", "steps": "template ", "loop": "func ", "llvm": "define", "asm": ".text"}[show]
    assert mark in done.out


def test_inspect_memory(cli: Cli, model: Path) -> None:
    assert "arena" in cli("inspect", model, "--memory", "--shape", "batch=1").out


def test_inspect_says_what_there_is(cli: Cli, model: Path) -> None:
    assert "lower, " in cli("inspect", model, "--after", "nonsense").err
    assert "there are" in cli("inspect", model, "--kernel", "nonsense").err
    assert "naive" in cli("inspect", model, "--kernel", "conv1", "--show", "nonsense").err


NEST = """
func axpy(x: f32[100], y: f32[100], z: out f32[100]) {
  serial i in 100 {
    z[i] = x[i] * 2.0 + y[i]
  }
}
"""


@pytest.mark.parametrize(
    "passes", [["vectorize"], ["split:i,8,cut", "vectorize:ii", "simplify"], ["parallelize"], []]
)
def test_opt_keeps_what_a_nest_computes(cli: Cli, tmp_path: Path, passes: list[str]) -> None:
    from jangin.ir.interpret import run_func

    (tmp_path / "axpy.loop").write_text(NEST)
    done = cli("opt", tmp_path / "axpy.loop", *(part for p in passes for part in ("--pass", p)))
    assert done.status == 0, done.err
    if passes:
        assert ("parallel" if passes == ["parallelize"] else "vector") in done.out
    x, y = np.random.default_rng(0).random((2, 100)).astype(np.float32)
    results = []
    for text in (NEST, done.out):
        z = np.zeros(100, np.float32)
        run_func(parse_func(text), {"x": x, "y": y, "z": z}, {})
        results.append(z)
    np.testing.assert_allclose(results[0], 2 * x + y, rtol=1e-6)
    np.testing.assert_array_equal(*results)


def test_opt_emits_code_and_reads_graphs(cli: Cli, model: Path, tmp_path: Path) -> None:
    (tmp_path / "axpy.loop").write_text(NEST)
    assert "define" in cli("opt", tmp_path / "axpy.loop", "--emit", "llvm").out
    assert ".text" in cli("opt", tmp_path / "axpy.loop", "--emit", "asm").out
    (tmp_path / "g.graph").write_text("graph g(x: f32[2, 3]) -> (x) {\n}\n")
    assert cli("opt", tmp_path / "g.graph", "--pass", "dce").out.startswith("graph g(")
    for wrong in ("nonsense", "split:i", "split:(", "vectorize:j"):
        assert cli("opt", tmp_path / "axpy.loop", "--pass", wrong).status == 1


@pytest.mark.parametrize("wrong", ["split:i,0", "split", "parallelize:j", "unroll:j"])
def test_a_step_that_does_not_fit_is_told_with_its_usage(cli: Cli, tmp_path: Path, wrong: str) -> None:
    (tmp_path / "axpy.loop").write_text(NEST)
    told = cli("opt", tmp_path / "axpy.loop", "--pass", wrong)
    name = wrong.partition(":")[0]
    arguments = "loop,factor,tail" if name == "split" else "loop"
    assert told.status == 1 and f"--pass {wrong!r}: " in told.err
    assert f"{name}:{arguments} does this: {'Split' if name == 'split' else 'Mark'} " in told.err


def test_devices(cli: Cli) -> None:
    out = cli("devices").out
    for text in ("x86-64-v3", "this machine", "ONNX Runtime", "llvmlite", "OpenBLAS", "oneDNN"):
        assert text in out


def test_devices_say_that_this_llvm_wasnt_checked(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    said = "with which Jangin wasn't checked"
    assert said not in " ".join(cli("devices").out.split())
    monkeypatch.setattr(llvm, "CHECKED", frozenset[tuple[int, ...]]())
    assert said in " ".join(cli("devices").out.replace("│", " ").split())


def test_bench(cli: Cli, model: Path, tmp_path: Path) -> None:
    arguments = ["--threads", "1", "--rounds", "2", "--seconds", "0.01", "--json", tmp_path / "b.json"]
    done = cli("bench", model, "--shape", "batch=1", *arguments)
    assert done.status == 0, done.err
    assert "ONNX Runtime" in done.out
    (found,) = json.loads((tmp_path / "b.json").read_text())["comparisons"]
    ours, theirs = found["results"]
    assert (ours["engine"], theirs["engine"]) == ("jangin", "onnxruntime")
    assert ours["problem"] == theirs["problem"] == ""
    assert ours["error"] < 1e-5
    assert ours["low"] <= ours["median"] <= ours["high"]
    assert found["ratios"]["onnxruntime"] == pytest.approx(theirs["median"] / ours["median"])
    assert found["flops"] >= 2 * 16 * 64 * 27
    assert cli("bench", model, "--against", "nonsense").status == 1
    assert cli("bench", model, "--threads", "0").status == 1


def test_version(cli: Cli) -> None:
    assert cli("--version").out == f"jangin {jangin.__version__}\n"


def test_the_package_runs_as_the_command() -> None:
    command = [sys.executable, "-m", "jangin", "--version"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == f"jangin {jangin.__version__}\n"


def test_inspect_shapes(cli: Cli, model: Path, tmp_path: Path) -> None:
    out = cli("inspect", model, "--shapes").out
    assert "size batch: 0 or more, symbolic" in out and "bytes" in out
    assert cli("compile", model, "-o", tmp_path / "m.jgn").status == 0
    assert cli("inspect", tmp_path / "m.jgn", "--shapes").out == out
    assert (
        "size batch: 3, specialised by shapes=" in cli("inspect", model, "--shapes", "--shape", "batch=3").out
    )


def test_a_file_for_another_machine(cli: Cli, model: Path, tmp_path: Path) -> None:
    done = cli("compile", model, "--target", "riscv64-v", "-o", tmp_path / "m.jgn")
    assert done.status == 0 and "generic-rv64" in done.out, done.err
    assert "generic-rv64" in cli("inspect", tmp_path / "m.jgn").out
    for command in (("run", model), ("tune", model)):
        refused = cli(*command, "--target", "riscv64-v", "--shape", "batch=1")
        assert refused.status == 1 and "this machine can't run code for riscv64-v" in refused.err


def test_timings_account_for_the_whole(cli: Cli, model: Path, tmp_path: Path) -> None:
    done = cli("compile", model, "-o", tmp_path / "m.jgn", "--shape", "batch=1", "--timings")
    assert done.status == 0, done.err
    rows = [[cell.strip() for cell in line.strip("│┃").split("│")] for line in done.out.splitlines()]
    steps = {row[0]: float(row[1]) for row in rows if len(row) == 3}
    whole = steps.pop("in all")
    assert {"import", "load", "lower", "fuse", "kernels", "plan", "compile", "save"} <= steps.keys()
    assert sum(steps.values()) == pytest.approx(whole, abs=0.0005 * (len(steps) + 1))  # each is rounded
    *kernels, every = [[float(n) for n in row[1:]] for row in rows if len(row) == 5 and row[1] != "schedule"]
    assert len(kernels) > 1 and all(sum(k[:3]) == pytest.approx(k[3], abs=0.002) for k in kernels)
    assert every[2] > 0 and sum(k[3] for k in kernels) == pytest.approx(every[3], abs=0.001 * len(kernels))


def test_progress_never_goes_back() -> None:
    steps = [("lower", 0), ("place", 12), ("kernels", 0), ("kernels", 12), ("compile", 0), ("compile", 12)]
    told = [share(done, 12, what) for what, done in steps]
    assert told == sorted(told) and told[0] == 0 and told[-1] == 1


def test_run_on_a_classifier_of_maps(cli: Cli, tmp_path: Path) -> None:
    """The outputs are those of scikit-learn's exporter: labels, and a sequence of maps from label to
    probability."""
    ml = helper.make_opsetid("ai.onnx.ml", 3)
    nodes = [
        helper.make_node("Softmax", ["x"], ["p"]),
        helper.make_node("ZipMap", ["p"], ["m"], domain="ai.onnx.ml", classlabels_strings=["a", "[b]"]),
    ]
    ends = [
        helper.make_tensor_value_info("x", 1, [3, 2]),
        helper.make_empty_tensor_value_info("m"),
    ]
    graph = helper.make_graph(nodes, "g", ends[:1], ends[1:])
    opsets = [helper.make_opsetid("", 17), ml]
    onnx.save(helper.make_model(graph, opset_imports=opsets), tmp_path / "m.onnx")
    done = cli("run", tmp_path / "m.onnx")
    assert done.status == 0, done.err
    assert "m: a sequence of 3\n" in done.out and "m[0]: a: 0." in done.out and ", [b]: 0." in done.out
    done = cli("run", tmp_path / "m.onnx", "--output", tmp_path / "out")
    assert done.status == 1 and "output m is a list, which no .npy file can hold" in done.err


def test_shapes_are_told_for_each_variant(cli: Cli, tmp_path: Path) -> None:
    """Squeezing a batch of one gives another rank, so there are two variants."""
    info = helper.make_tensor_value_info
    graph = helper.make_graph(
        [helper.make_node("Squeeze", ["x"], ["y"])], "g", [info("x", 1, ["batch", 3])], [info("y", 1, None)]
    )
    path, compiled = tmp_path / "m.onnx", tmp_path / "m.jgn"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)]), path)
    text = cli("inspect", path, "--shapes").out
    general, one = text.split("variant 1, for batch = 1\n")
    assert general.startswith(
        "variants: 2, of which a run takes the last whose sizes it has\nvariant 0, for sizes in general"
    )
    assert "must hold: (batch != 1)" in general and "output y float32[batch, 3]" in general
    assert "input x float32[1, 3]" in one and "output y float32[3]" in one
    assert cli("compile", path, "-o", compiled).status == 0
    assert cli("inspect", compiled, "--shapes").out == text
    assert "sizes in general; batch = 1" in cli("inspect", compiled).out
    for show in ("--placement", "--memory"):
        assert "variant for batch = 1" in cli("inspect", compiled, show).out
    assert "y: float32[3]" in cli("run", compiled, "--shape", "batch=1", "--profile").out


def test_products_of_bfloat16_can_be_of_float32(cli: Cli, tmp_path: Path) -> None:
    """Products of bfloat16 are computed in float32 on request, if the target has an instruction for
    bfloat16."""
    bf16 = onnx.TensorProto.BFLOAT16
    graph = onnx.helper.make_graph(
        [onnx.helper.make_node("MatMul", ["x", "w"], ["y"])],
        "product",
        [onnx.helper.make_tensor_value_info("x", bf16, [5, 40])],
        [onnx.helper.make_tensor_value_info("y", bf16, [5, 24])],
        [onnx.helper.make_tensor("w", bf16, [40, 24], np.ones(960))],
    )
    opset = onnx.helper.make_opsetid("", 22)
    onnx.save(onnx.helper.make_model(graph, opset_imports=[opset], ir_version=10), tmp_path / "m.onnx")
    shown = "inspect", tmp_path / "m.onnx", "--target", "x86-64-v4-bf16", "--after", "integers"
    made, off = cli(*shown), cli("--no-bf16", *shown)
    assert 'dot = "dot2bf"' in made.out and "dot2bf" not in off.out and 'dot = ""' in off.out
