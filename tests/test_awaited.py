"""`wait=False`: a model answers before it is compiled, and the compiled model takes over."""

from __future__ import annotations

import copy
import os
import pickle
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import jangin
from jangin.compiler import awaited, local
from jangin.compiler.awaited import Awaited
from jangin.compiler.interpreted import Interpreter
from jangin.onnxruntime import InferenceSession, SessionOptions
from jangin.runtime import libraries

F32 = TensorProto.FLOAT
X = np.random.default_rng(0).standard_normal((3, 4), np.float32)


def saved(
    path: Path, *nodes: onnx.NodeProto, shape: list[Any], constants: dict[str, Any] | None = None
) -> Path:
    given = [numpy_helper.from_array(np.asarray(a), n) for n, a in (constants or {}).items()]
    ends = helper.make_tensor_value_info("x", F32, shape), helper.make_tensor_value_info("y", F32, None)
    graph = helper.make_graph(nodes, "net", [ends[0]], [ends[1]], given)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)]), path)
    return path


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A model whose batch is open, with a different result for a batch of 1."""
    w = np.random.default_rng(1).standard_normal((4, 5), np.float32)
    nodes = helper.make_node("MatMul", ["x", "w"], ["m"]), helper.make_node("Softmax", ["m"], ["y"])
    return saved(tmp_path / "net.onnx", *nodes, shape=["n", 4], constants={"w": w})


@pytest.fixture
def deep(tmp_path: Path) -> Path:
    """A model of many sizes, which takes a second and more to compile."""
    random, sizes, nodes, constants = np.random.default_rng(1), [4, *range(7, 47), 5], [], {}
    for n, (rows, columns) in enumerate(pairwise(sizes)):
        constants[f"w{n}"] = random.standard_normal((rows, columns), np.float32)
        nodes.append(helper.make_node("MatMul", [f"y{n}" if n else "x", f"w{n}"], [f"m{n}"]))
        last = n + 2 == len(sizes)
        nodes.append(helper.make_node("Softmax", [f"m{n}"], ["y" if last else f"y{n + 1}"]))
    return saved(tmp_path / "deep.onnx", *nodes, shape=["n", 4], constants=constants)


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Compilations in the background wait until the event is set."""
    opened, plain = threading.Event(), local.compile

    def slow(*given: Any) -> Any:
        assert opened.wait(60)
        return plain(*given)

    monkeypatch.setattr(awaited.local, "compile", slow)
    yield opened
    opened.set()


def test_the_compiled_model_takes_over_between_two_runs(model: Path, tmp_path: Path, gate: Any) -> None:
    exe: Any = jangin.compile(model, wait=False, cache=tmp_path / "cache")
    assert isinstance(exe, Awaited) and not exe.ready
    assert "NumPy runs it meanwhile" in repr(exe) and "x float32[n, 4] -> y float32[n, 5]" in repr(exe)
    early, other = exe(X), exe.run({"x": X[:1]})["y"]
    assert [s.name for s in exe.inputs] == ["x"] and exe.name == "net"
    gate.set()
    assert exe.wait().ready and exe.ready
    assert repr(exe).startswith("<Executable 'net'")
    np.testing.assert_allclose(exe(x=X), early, rtol=1e-6)
    np.testing.assert_allclose(exe(X[:1]), other, rtol=1e-6)
    again = jangin.compile(model, wait=False, cache=tmp_path / "cache")
    assert isinstance(again, jangin.Executable), "the cache has it"
    assert np.array_equal(again(X), exe(X)) and again.wait() is again


def test_the_compiler_begins_after_the_first_run_or_in_time(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It took time from the first answer."""
    begun, plain = threading.Event(), local.compile

    def compiled(*given: Any) -> Any:
        begun.set()
        return plain(*given)

    monkeypatch.setattr(awaited.local, "compile", compiled)
    monkeypatch.setattr(awaited, "PATIENCE", 60)
    exe: Any = jangin.compile(model, wait=False, cache=False)
    assert not begun.wait(0.05)
    exe(X)
    assert begun.wait(30) and exe.wait().ready
    begun.clear()
    monkeypatch.setattr(awaited, "PATIENCE", 0.01)
    exe = jangin.compile(model, wait=False, cache=False)
    assert begun.wait(30) and exe.wait().ready


def test_its_other_attributes_wait(model: Path, tmp_path: Path, gate: Any) -> None:
    exe: Any = jangin.compile(model, wait=False, cache=False)
    threading.Timer(0.2, gate.set).start()
    exe.save(tmp_path / "net.jgn")
    assert np.array_equal(jangin.load(tmp_path / "net.jgn")(X), exe(X))


def test_pickles_and_copies_are_compiled(model: Path, gate: Any) -> None:
    exe: Any = jangin.compile(model, wait=False, cache=False)
    threading.Timer(0.2, gate.set).start()
    for made in (pickle.loads(pickle.dumps(exe)), copy.deepcopy(exe)):
        assert isinstance(made, jangin.Executable)
        assert np.array_equal(made(X), exe(X))


def test_wrong_inputs_have_the_errors_of_the_compiled_model(model: Path) -> None:
    exe: Any = jangin.compile(model, wait=False, cache=False)
    for wrong, kind in ((X[:, :3], ValueError), (X.astype(np.float64), TypeError)):
        with pytest.raises(kind) as early:
            exe(wrong)
        with pytest.raises(kind) as late:
            exe.wait()(wrong)
        assert str(early.value) == str(late.value)


def test_a_failed_compilation_is_said_once_and_numpy_goes_on(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*given: Any) -> Any:
        raise jangin.CompileError("no luck today")

    monkeypatch.setattr(awaited.local, "compile", fails)
    exe: Any = jangin.compile(model, wait=False, cache=False)
    with pytest.raises(jangin.CompileError, match="no luck today"):
        exe.wait()
    with pytest.warns(RuntimeWarning, match="net couldn't be compiled, and NumPy goes on.*no luck") as said:
        first = exe(X)
    assert said[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert np.array_equal(exe(X), first)
    assert "compiling failed" in repr(exe)


def test_a_file_that_changes_meanwhile_is_not_taken_for_the_model(model: Path, gate: Any) -> None:
    exe: Any = jangin.compile(model, wait=False, cache=False)
    first = exe(X)
    saved(model, helper.make_node("Relu", ["x"], ["y"]), shape=["n", 4])
    gate.set()
    with pytest.raises(jangin.CompileError, match="changed or removed while it was compiled"):
        exe.wait()
    with pytest.warns(RuntimeWarning, match="changed or removed"):
        assert np.array_equal(exe(X), first)


@pytest.mark.parametrize("replaced", [False, True])
def test_a_file_that_is_removed_or_replaced_is_compiled_all_the_same(
    model: Path, tmp_path: Path, gate: Any, replaced: bool
) -> None:
    """A program that downloads its model to a temporary file deletes it once the session is made."""
    exe: Any = jangin.compile(model, wait=False, cache=tmp_path / "cache")
    first = exe(X)
    if replaced:
        other = saved(tmp_path / "other.onnx", helper.make_node("Relu", ["x"], ["y"]), shape=["n", 4])
        other.rename(model)
    else:
        model.unlink()
    gate.set()
    assert isinstance(exe.wait(), jangin.Executable)
    np.testing.assert_allclose(exe(X), first, rtol=1e-6)


@pytest.mark.sampled(2)
def test_a_removed_file_that_was_written_to_is_not_taken_for_the_model(model: Path, gate: Any) -> None:
    exe: Any = jangin.compile(model, wait=False, cache=False)
    with model.open("ab") as file:
        file.write(b"x")
    model.unlink()
    gate.set()
    with pytest.raises(FileNotFoundError):
        exe.wait()


@pytest.mark.parametrize("removed", [False, True])
def test_the_caller_may_go_to_another_folder(
    model: Path, tmp_path: Path, gate: Any, monkeypatch: pytest.MonkeyPatch, removed: bool
) -> None:
    """Relative paths of the model and of the cache, given or in the environment, mean what they meant."""
    began, other = tmp_path / "began", tmp_path / "other"
    began.mkdir(), other.mkdir()
    monkeypatch.setenv("JANGIN_CACHE_DIR", "../in the environment")
    monkeypatch.chdir(began)
    exes = [jangin.compile("../net.onnx", wait=False, cache=c) for c in (True, "../given")]
    os.chdir(other)
    if removed:
        began.rmdir()
    gate.set()
    for exe, cache in zip(exes, ("in the environment", "given"), strict=True):
        assert np.allclose(exe.wait()(X), exe(X))
        assert [*(tmp_path / cache).glob("*/*.jgn")]
    assert not [*other.iterdir()]


def test_models_that_can_t_be_read_fail_at_once(tmp_path: Path, gate: Any) -> None:
    path = saved(tmp_path / "odd.onnx", helper.make_node("Unheard", ["x"], ["y"]), shape=[2])
    with pytest.raises(jangin.CompileError, match="Unheard"):
        jangin.compile(path, wait=False, cache=False)
    with pytest.raises(FileNotFoundError):
        jangin.compile(tmp_path / "none.onnx", wait=False, cache=False)


@pytest.mark.sampled(3)
def test_a_branch_is_taken_by_the_first_answer_too(tmp_path: Path, gate: Any) -> None:
    branches = {
        name: helper.make_graph(
            [helper.make_node(op, ["x"], [name])], name, [], [helper.make_tensor_value_info(name, F32, None)]
        )
        for name, op in (("then", "Neg"), ("other", "Exp"))
    }
    nodes = [
        helper.make_node("ReduceSum", ["x"], ["sum"], keepdims=0),
        helper.make_node("Greater", ["sum", "zero"], ["positive"]),
        helper.make_node(
            "If", ["positive"], ["y"], then_branch=branches["then"], else_branch=branches["other"]
        ),
    ]
    path = saved(tmp_path / "if.onnx", *nodes, shape=["n"], constants={"zero": np.float32(0)})
    exe: Any = jangin.compile(path, wait=False, cache=False)
    x = np.array([0.5, 2, 3], np.float32)
    early = [exe(x), exe(-x)]
    assert isinstance(exe, Awaited) and not exe.ready
    np.testing.assert_allclose(early, [-x, np.exp(-x)], rtol=1e-6)
    gate.set()
    np.testing.assert_allclose([exe.wait()(x), exe(-x)], early, rtol=1e-6)


def test_a_loop_over_elements_waits(tmp_path: Path) -> None:
    """A running sum is a loop nest, for which Python is too slow."""
    node = helper.make_node("CumSum", ["x", "axis"], ["y"])
    path = saved(tmp_path / "sums.onnx", node, shape=[3, 4], constants={"axis": np.array(1)})
    exe: Any = jangin.compile(path, wait=False, cache=False)
    assert isinstance(exe, jangin.Executable)
    np.testing.assert_allclose(exe(X), X.cumsum(1), rtol=1e-6)


def test_a_long_first_run_ends_when_the_compiled_model_is_there(
    model: Path, gate: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    exe: Any = jangin.compile(model, wait=False, cache=False)
    plain, made = awaited.interpreted.__globals__["run_node"], []

    def slow(*given: Any) -> Any:
        made.append(given)
        gate.set()
        exe.wait()
        return plain(*given)

    monkeypatch.setitem(awaited.interpreted.__globals__, "run_node", slow)
    assert exe(X).shape == (3, 5)
    assert len(made) == 1, "the second node wasn't interpreted any more"


@pytest.mark.sampled(2)
@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no forks")
def test_a_forked_process_compiles_anew(model: Path) -> None:
    code = (
        "import os, sys, numpy as np, jangin\n"
        "exe = jangin.compile(sys.argv[1], wait=False, cache=False)\n"
        "x = np.ones((2, 4), np.float32); first = exe(x)\n"
        "child = os.fork()\n"
        "assert np.allclose(exe.wait()(x), first) and np.allclose(exe(x), first)\n"
        "if child == 0: os._exit(7)\n"
        "print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))\n"
    )
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code, str(model)], capture_output=True, text=True
    )
    assert (done.stdout.strip(), done.stderr) == ("7", "")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no forks")
def test_a_forked_process_has_numpys_threads_again() -> None:
    """A process may fork while another thread has NumPy on one thread, and holds the lock."""
    threads = libraries._threads_of_numpy()
    if threads is None:
        pytest.skip("NumPy's products aren't OpenBLAS's here, so nothing is set")
    count, _ = threads
    before = count()
    with libraries.on_one_thread(), libraries._products:
        child = os.fork()
        if child == 0:
            right = count() == before
            with libraries.on_one_thread():
                right = right and count() == 1
            os._exit(7 if right and count() == before else 8)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7 and count() == before


EARLY = """
import sys, numpy as np, jangin
from jangin.compiler.processes import isolated
exe = jangin.compile(sys.argv[1], wait=False, cache=sys.argv[2] or False)
first = exe(np.ones((2, 4), np.float32))
while not isolated._running: pass
print(first.shape, isolated._running[0].process.pid, flush=True)
"""
"""A program that ends while its model is compiled."""


def early(model: Path, cache: Path | None, more: str = "") -> int:
    """Run the program, and return the number of the process that compiles. It doesn't hold the program's
    output open."""
    command = [sys.executable, "-c", EARLY + more, str(model), str(cache or "")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.stdout.startswith("(2, 5) ") and (more or done.stderr == "")
    return int(done.stdout.split()[-1])


def ended(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return True
    return Path(f"/proc/{process}/stat").read_text().split()[2] == "Z"  # nobody may have reaped it


def until(holds: Any) -> None:
    end = time.monotonic() + 100
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.1)


def test_a_program_that_ends_early_leaves_the_model_in_the_cache(model: Path, tmp_path: Path) -> None:
    process = early(model, tmp_path / "cache")
    until(lambda: [*tmp_path.rglob("*.jgn")])
    until(lambda: ended(process))
    assert isinstance(jangin.compile(model, wait=False, cache=tmp_path / "cache"), jangin.Executable)


INTERRUPTED = """
import os, signal, time
signal.signal(signal.SIGINT, signal.default_int_handler)  # which shells' background jobs lack
os.killpg(isolated._running[0].process.pid, signal.SIGSTOP)  # it would be done before on a busy machine
os.kill(os.getpid(), signal.SIGINT)
time.sleep(60)  # another thread may take the signal, and the main thread is interrupted a little later
"""


@pytest.mark.parametrize("more", ["", INTERRUPTED], ids=["no cache", "interrupted"])
def test_nothing_goes_on_without_a_cache_or_after_an_interrupt(deep: Path, tmp_path: Path, more: str) -> None:
    process = early(deep, tmp_path / "cache" if more else None, more)
    until(lambda: ended(process))
    assert not [*tmp_path.rglob("*.jgn")]


def test_a_session_says_who_ran_it(model: Path, tmp_path: Path, gate: Any, monkeypatch: Any) -> None:
    import json

    monkeypatch.setenv("JANGIN_CACHE_DIR", str(tmp_path / "cache"))
    options = SessionOptions()
    options.enable_profiling = True
    options.profile_file_prefix = str(tmp_path / "trace")
    session = InferenceSession(model, options)
    assert session.get_modelmeta().graph_name == "net"
    (early,) = session.run(None, {"x": X})
    gate.set()
    session.executable.wait()
    (late,) = session.run(None, {"x": X})
    np.testing.assert_allclose(late, early, rtol=1e-6)
    runs = [e for e in json.loads(Path(session.end_profiling()).read_text()) if e["name"] == "model_run"]
    assert [r["args"]["run_by"].split(",")[0] for r in runs] == ["NumPy", "the compiled model"]
    options = SessionOptions()
    options.add_session_config_entry("jangin.wait", "1")
    waited = InferenceSession(
        saved(tmp_path / "relu.onnx", helper.make_node("Relu", ["x"], ["y"]), shape=[2]), options
    )
    assert isinstance(waited.executable, jangin.Executable)


def test_the_interpreter_is_no_device_of_saved_models() -> None:
    from jangin.runtime.device import DEVICES

    assert Interpreter.name not in DEVICES


SEVERAL = """
import sys, numpy as np, jangin
for path in sys.argv[2:]:
    jangin.compile(path, wait=False, cache=sys.argv[1])(np.ones((2, 4), np.float32))
"""
"""A program that runs several models once."""


def test_all_models_of_a_short_program_reach_the_cache(tmp_path: Path) -> None:
    paths = []
    for count in (2, 3, 5):
        w = np.full((4, count), 0.5, np.float32)
        node = helper.make_node("MatMul", ["x", "w"], ["y"])
        paths.append(saved(tmp_path / f"{count}.onnx", node, shape=["n", 4], constants={"w": w}))
    cache = tmp_path / "cache"
    command = [sys.executable, "-W", "error", "-c", SEVERAL, str(cache), *map(str, paths)]
    subprocess.run(command, check=True, timeout=120)
    until(
        lambda: all(isinstance(jangin.compile(p, wait=False, cache=cache), jangin.Executable) for p in paths)
    )
