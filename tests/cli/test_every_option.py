"""Every option that stands before or after a command reaches what the command compiles."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from command_line import Cli
from option_values import lost, network, values, watched

from jangin import bench as benchmark
from jangin import cli as command_line
from jangin.options import ABOUT, Options

FLAGS = {
    "weights": "--weights {weights}", "winograd": "--no-winograd", "libraries": "--libraries auto",
    "unchecked": "--unchecked", "bf16": "--no-bf16", "tf32": "--tf32",
    "deterministic_time": "--deterministic-time", "cache": "--cache-dir {cache}",
    "limits": "--limits seconds=321,nodes=4321",
}  # fmt: skip
"""The flags of the options with the values of `values`, as they stand before a command."""
PLACED = "--shape batch=1 --target x86-64-v2"
COMMANDS = {
    "run": f"run {{model}} {PLACED} --threads 1",
    "compile": f"compile {{model}} {PLACED} -o {{out}}.jgn",
    "compile, timed": f"compile {{model}} {PLACED} -o {{out}}.jgn --timings",
    "emit": f"compile {{model}} {PLACED} -o {{out}} --emit c",
    "convert": "convert {model} {out}.onnx --shape batch=1",
    "quantize": "quantize {model} --data {data} -o {out}.onnx --shape batch=1 --threads 1",
    "quantize for TFLite": "quantize {model} --data {data} -o {out}.tflite --shape batch=1 --threads 1",
    "compare": "compare {model} {model} --data {data} --shape batch=1 --threads 1",
    "compare, replayed": "compare {model} {model} --data {data} --replay --shape batch=1 --threads 1",
    "bench, layer by layer": f"bench {{model}} --layers {PLACED} --threads 1",
    "tune": f"tune {{model}} --budget 1s {PLACED} --threads 1",
    "inspect": f"inspect {{model}} {PLACED}",
    "inspect as imported": f"inspect {{model}} {PLACED} --after import",
    "inspect after a pass": f"inspect {{model}} {PLACED} --after fuse",
    "inspect the plan": f"inspect {{model}} {PLACED} --after plan",
    "inspect where nodes run": f"inspect {{model}} {PLACED} --placement",
    "inspect memory": f"inspect {{model}} {PLACED} --memory",
    "inspect sizes": f"inspect {{model}} {PLACED} --shapes",
    "draw": f"inspect {{model}} {PLACED} --html {{out}}.html --times",
    "inspect for two devices": "inspect {model} --shape batch=1 --target cpu+x86-64-v2",
}
"""Every way in which a command compiles. `bench`, `study`, `train` and `inspect --minimize` have their own
tests."""
UNCOMPILED = {"opt", "templates", "devices", "blas"}
"""The commands that read no model."""
ELSEWHERE = {"study", "train"}
"""The commands that compile in another way, and have tests of their own."""


@pytest.fixture
def call(cli: Cli, tmp_path: Path) -> Callable[..., dict[str, Any]]:
    """A fixture that calls a command with all options except some, and returns the values that reached the
    compiler."""
    model, weights = network(tmp_path)
    rng = np.random.default_rng(0)
    np.save(tmp_path / "data.npy", rng.standard_normal((2, 3, 8, 8)).astype(np.float32))

    def called(command: str, without: Sequence[str] = ()) -> dict[str, Any]:
        given = values(weights, tmp_path)
        del given["formats"]  # no flag gives a format as a whole
        assert {*given} == {*FLAGS} == {*command_line.BEFORE}
        flags = [text for name, text in FLAGS.items() if name not in without]
        line = " ".join((*flags, command)).format(
            weights=weights, cache=tmp_path / "cache", model=model, out=tmp_path / "out",
            data=tmp_path / "data.npy",
        )  # fmt: skip
        done = cli(*line.split())
        assert done.status == 0, done.err
        return {name: value for name, value in given.items() if name not in without}

    return called


@pytest.mark.sampled(4)
@pytest.mark.parametrize("way", COMMANDS)
def test_every_option_reaches_the_pipeline(
    way: str, call: Callable[..., dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    if way == "quantize for TFLite":
        pytest.importorskip("tflite", reason="tflite isn't installed: the extra `tflite` brings it")
    seen = watched(monkeypatch)
    given = call(COMMANDS[way], ["libraries"] if way == "emit" else [])
    uncached = way == "compile, timed"
    if uncached:
        del given["cache"]
    assert lost(seen, given) == {}
    assert all(not o.cache for o in seen) == uncached
    for flag, name, value in (("--threads", "threads", 1), ("--target", "asked", "x86-64-v2")):
        if flag in COMMANDS[way] and way != "inspect for two devices":
            assert getattr(seen[0], name) in (value, seen[0].target)
    assert all(o.shapes in ({"batch": 1}, {}) for o in seen) and seen[0].shapes == {"batch": 1}


@pytest.mark.sampled(4)
# "inspect as imported" lowers no node
@pytest.mark.parametrize("way", [w for w in COMMANDS if w != "inspect as imported"])
def test_limits_hold_in_every_command(way: str, cli: Cli, tmp_path: Path) -> None:
    model, weights = network(tmp_path)
    np.save(tmp_path / "data.npy", np.zeros((2, 3, 8, 8), np.float32))
    line = COMMANDS[way].format(model=model, out=tmp_path / "out", data=tmp_path / "data.npy")
    done = cli("--weights", weights, "--limits", "nodes=1", *line.split())
    assert done.status == 1 and "more than 1 nodes; limits=Limits(nodes=...) allows more" in done.err


def test_no_command_is_left_out() -> None:
    named = {c.name or c.callback.__name__ for c in command_line.app.registered_commands if c.callback}
    assert named == {text.partition(" ")[0] for text in COMMANDS.values()} | UNCOMPILED | ELSEWHERE


def test_bench_hands_every_option_on(
    call: Callable[..., dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The benchmark's options include every option. `tests/test_options.py` tests their way to the timed
    processes."""
    taken: list[benchmark.Options] = []

    def compared(model: Path, threads: int, options: benchmark.Options, *_: Any) -> benchmark.Comparison:
        taken.append(options)
        return benchmark.Comparison(model.stem, threads, {}, 0, 0.0, 0.0, ())

    monkeypatch.setattr(benchmark, "compare", compared)
    monkeypatch.setattr(benchmark, "tables", lambda found: [])
    seen = watched(monkeypatch)
    given = call(f"bench {{model}} {PLACED} --threads 1 --tune 5s --against onnxruntime")
    assert lost(seen, given) == {}
    assert lost([taken[0].compiling], {**given, "tune": "5s", "asked": "x86-64-v2"}) == {}
    assert taken[0].shapes == {"batch": 1}


def test_a_study_hands_every_option_on(
    call: Callable[..., dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The timed processes get the record whole. The commands that prepare models get the same flags."""
    taken: list[Any] = []

    def ran(asked: Any, output: Path, compiling: Options, *_: Any) -> list[Any]:
        taken.extend((asked, compiling))
        return []

    monkeypatch.setattr("jangin.commands.study.run", ran)
    monkeypatch.setattr("jangin.commands.study._report", lambda *_: None)
    given = call("study {model} -o {out} --engines jangin --shape batch=1")
    asked, compiling = taken
    assert lost([compiling], given) == {} and asked.shapes == {"batch": 1}
    wanted = " ".join(FLAGS.values()).replace("{weights}", str(given["weights"]))
    words = wanted.replace("{cache}", str(tmp_path / "cache")).split()
    assert sorted(asked.before) == sorted(words)


def test_training_hands_every_option_on(
    call: Callable[..., dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Steps have no cache, and no libraries' kernels are made for this small one."""
    rng = np.random.default_rng(0)
    pictures, labels = rng.random((4, 3, 8, 8), np.float32), rng.random((4, 4, 8, 8), np.float32)
    np.savez(tmp_path / "pairs.npz", inputs=pictures, labels=labels)
    seen = watched(monkeypatch)
    given = call(
        f"train {{model}} {tmp_path}/pairs.npz --loss mse --trainable * --epochs 1 --batch 2 "
        f"--shape batch=2 -o {tmp_path}/trained.onnx"
    )
    assert lost(seen, given) == {}


def test_minimizing_hands_every_option_on(
    call: Callable[..., dict[str, Any]], model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Minimizing is only for ONNX models, which contain their weights, and stores nothing."""
    broken = onnx.load(model)
    broken.graph.node[1].op_type = "NoSuchOperator"
    onnx.save(broken, tmp_path / "broken.onnx")
    seen = watched(monkeypatch)
    given = call(f"inspect {tmp_path}/broken.onnx {PLACED} --minimize {{out}}.onnx", ["weights"])
    assert lost(seen, {**given, "cache": False}) == {}


def test_formats_settings_reach_the_pipeline(
    cli: Cli, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for more in ((), ("--timings",), ("--emit", "c")):
        seen = watched(monkeypatch)
        out = tmp_path / f"out{len(more)}{more[-1:]}"
        done = cli("compile", model, "-o", out, "--activations", "int8", *more)
        assert done.status == 0, done.err
        assert [f.activations for f in seen[0].formats] == ["int8"]


def test_flags_say_what_the_record_says(cli: Cli) -> None:
    """The help text of each option is that of the record."""
    told = "".join(cli("--help").out.replace("│", " ").split())
    for name in command_line.BEFORE:
        flag, help = ABOUT[name].flag, "".join(ABOUT[name].help.split())
        assert all(part in told for part in flag.split("/"))
        assert help[:20] in told
    assert Options().winograd and "--no-winograd" in told


def test_the_old_flag_of_where_constants_lie_still_works(cli: Cli, model: Path, tmp_path: Path) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        done = cli("compile", model, "--emit", "c", "-o", tmp_path / "c", "--weights", "beside")
    assert done.status == 0 and (tmp_path / "c" / "small.bin").exists()
    assert any("--constants now" in str(w.message) for w in caught)
