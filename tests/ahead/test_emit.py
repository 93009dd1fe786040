"""Models compiled ahead of time run without Jangin, give the same bits, and refuse what is wrong."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from built import (
    COMPILERS,
    STRICT,
    Api,
    api_of,
    layers,
    library,
    narrow_network,
    same_bits,
    small_network,
)
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

import jangin
from jangin.ahead import link, source
from jangin.ahead.emit import Emitted, emit
from jangin.ahead.sharing import RANGES
from jangin.ahead.source import compiler_flags
from jangin.backends.clike.tidy import needed
from jangin.ir.graph import CompileError
from jangin.llvm import version
from jangin.runtime.load import Runnable
from jangin.targets import resolve
from jangin.version import __version__

pytestmark = pytest.mark.skipif(not COMPILERS, reason="no C compiler here: neither gcc nor clang")
KINDS = ("object", "c")
EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


@cache
def net(kind: str) -> Emitted:
    """Emit `layers`, which many tests use."""
    return emit(layers(), kind, name="net")


@cache
def compiled() -> Runnable:
    return jangin.compile(layers(), cache=False, threads=1)


def feeds(rows: int) -> np.ndarray:
    return np.random.default_rng(rows).standard_normal((rows, 24)).astype(np.float32)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("kind", "compiler"), [("object", ""), *(("c", c) for c in COMPILERS)])
def test_the_same_bits_for_any_size(kind: str, compiler: str, tmp_path: Path) -> None:
    """The bits are equal on several threads too, and for outputs that copy an input. There may be more
    threads than `RANGES`, and fewer of them started."""
    exe = compiled()
    api = api_of(net(kind), kind, tmp_path, compiler)
    assert api("start_threads", 3) == 0
    for rows in (1, 2, 7, 64, 500, 3000):
        x = feeds(rows)
        want = exe(x)
        for threads in (1, 3, RANGES + 3):
            got = api.run([x], [rows], threads)
            assert all(same_bits(g, w) for g, w in zip(got, want, strict=True))
    api.library.net_stop_threads()


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("kind", "compiler"), [("object", ""), *(("c", c) for c in COMPILERS)])
def test_rows_that_end_in_a_vector_of_one(kind: str, compiler: str, tmp_path: Path) -> None:
    """The output type is narrower than the computed type. `Api.run` checks the bytes beside each output."""
    rng = np.random.default_rng(7)
    given = {
        "x": rng.uniform(0, 100, (3, 33)).astype(np.float32), "n": rng.integers(0, 2, (3, 33)),
        "q": rng.integers(0, 256, (3, 24), np.uint8),
    }  # fmt: skip
    api = api_of(emit(narrow_network(), kind, name="net"), kind, tmp_path, compiler)
    for got, want in zip(
        api.run([*given.values()]), ReferenceEvaluator(narrow_network()).run(None, given), strict=True
    ):
        assert same_bits(got, want)


@pytest.mark.parametrize("compiler", COMPILERS)
@pytest.mark.parametrize("others", [0, 1])
def test_nothing_is_made_for_what_makes_nothing(others: int, compiler: str, tmp_path: Path) -> None:
    """A kernel without tasks isn't in the file, and neither are empty arrays of arguments. Compilers would
    warn of both."""
    nodes = [
        helper.make_node("Slice", ["x", "at", "at", "one"], ["y"]),
        helper.make_node("Neg", ["x"], ["z"]),
    ]
    outputs = [helper.make_empty_tensor_value_info(n) for n in "yz"[: 1 + others]]
    graph = helper.make_graph(
        nodes[: 1 + others], "g", [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 5])], outputs,
        [numpy_helper.from_array(np.array([n]), name) for name, n in (("at", 2), ("one", 1))],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    made = emit(model, "c", name="net", cache=False)
    x = np.ones((3, 5), np.float32)
    got = api_of(made, "c", tmp_path, compiler).run([x], [3])
    assert [len(y) for y in got] == [0, 60][: 1 + others] and len(made.model.kernels) == others


def test_definitions_that_nothing_uses_are_left_out() -> None:
    definitions = {"f32x8": "typedef f32x8;", "add": "f32x8 add();", "masked_add": "f32x8 masked_add();"}
    assert needed(definitions, ["add(x);"]) == ["typedef f32x8;", "f32x8 add();"]
    assert needed(definitions, ["masked_add(x);"]) == ["typedef f32x8;", "f32x8 masked_add();"]
    assert needed(definitions, ["x;"]) == []


@pytest.mark.sampled(4)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("constants", ["inside", "beside"])
def test_weights_inside_and_beside(kind: str, constants: str, tmp_path: Path) -> None:
    exe = jangin.compile(small_network(), cache=False, threads=1)
    x = np.random.default_rng(2).standard_normal((1, 3, 19, 23)).astype(np.float32)
    made = emit(small_network(), kind, name="net", constants=constants)
    api = api_of(made, kind, tmp_path)
    if constants == "beside":
        data = np.fromfile(tmp_path / "net.bin", np.uint8)
        room = np.zeros(len(data) + 64, np.uint8)
        start = -room.ctypes.data % 64
        room[start : start + len(data)] = data
        at, size = ctypes.c_void_p(room.ctypes.data + start), ctypes.c_int64(len(data))
        out = [np.zeros(api("output_bytes", 0, None), np.uint8)]
        arena = np.zeros(api("arena_bytes", None, 1), np.uint8)
        assert api.run_in([x], out, None, arena.ctypes.data, len(arena), 1) == -6, "no weights were given"
        assert api("use_weights", None, size) == -1
        assert api("use_weights", at, ctypes.c_int64(len(data) - 1)) == -6
        assert api("use_weights", ctypes.c_void_p(room.ctypes.data + start + 4), size) == -6
        assert api("use_weights", at, size) == 0
    assert api("weights_bytes") == made.weights
    (got,) = api.run([x])
    assert same_bits(got, exe(x))


@pytest.mark.sampled(3)
def test_large_weights_are_an_assemblers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Large weights become assembly, because C compilers take long for an array of 100 MB."""
    monkeypatch.setattr(source, "LARGE", 1000)
    made = emit(layers(), "c", name="net")
    made.save(tmp_path)
    assert "net_weights.S" in made.files and "net_weights.c" not in made.files
    x = feeds(3)
    want = compiled()(x)
    for compiler in COMPILERS:
        flags = (*STRICT, *compiler_flags(made.model.target), "-I.")
        path = library(tmp_path, ["net.c", "net_weights.S", "net_threads.c"], flags, compiler)
        got = Api(path.rename(tmp_path / f"{compiler}.so"), "net").run([x], [3])
        assert all(same_bits(g, w) for g, w in zip(got, want, strict=True))


@pytest.mark.sampled(3)
@pytest.mark.skipif(shutil.which("cmake") is None, reason="no cmake here")
@pytest.mark.parametrize("kind", ["object", "shared", "c"])
def test_cmake_builds_the_example(kind: str, tmp_path: Path) -> None:
    net(kind).save(tmp_path)
    for command in (["cmake", "-S", ".", "-B", "build"], ["cmake", "--build", "build"]):
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
    ran = subprocess.run([tmp_path / "build" / "example", "2", "-", "-", "-"], capture_output=True, text=True)
    assert ran.returncode == 0 and "y f32 [2, 40]" in ran.stdout, ran.stderr


@pytest.mark.sampled(2)
@pytest.mark.parametrize("kind", KINDS)
def test_what_a_model_says_of_itself(kind: str, tmp_path: Path) -> None:
    api = api_of(emit(layers(), kind, name="net", shapes={"batch": (2, 512)}), kind, tmp_path)
    assert (api("input_count"), api("output_count"), api("size_count")) == (1, 2, 1)
    assert [api.text("output_name", n) for n in (-1, 0, 1, 2)] == [None, "y", "z out", None]
    assert api.text("input_name", 0) == "x" and api.text("size_name", 0) == "batch"
    assert api.text("input_type", 0) == "f32" and api.text("input_type", 1) is None
    assert [api("output_index", n) for n in (b"y", b"z out", b"z", b"")] == [0, 1, -5, -5]
    assert api("output_index", None) == -1
    sizes, shape = (ctypes.c_int64 * 1)(9), (ctypes.c_int64 * 2)()
    assert api("output_shape", 0, sizes, shape) == 2 and list(shape) == [9, 40]
    assert api("output_shape", 0, sizes, None) == 2 and api("output_shape", 2, sizes, None) == -5
    assert api("input_bytes", 0, sizes) == 9 * 24 * 4 and api("input_bytes", 1, sizes) == -5
    llvm = f", LLVM {version()}" if kind == "object" else ""
    assert api.text("version") == f"Jangin {__version__}{llvm}, for {resolve().name}"
    assert "Apache-2.0" in str(api.text("licence"))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("kind", KINDS)
def test_wrong_calls_give_a_code_and_touch_nothing(kind: str, tmp_path: Path) -> None:
    api = api_of(emit(layers(), kind, name="net", shapes={"batch": (2, 512)}), kind, tmp_path)
    x, outs = feeds(4), [np.full(4 * 40 * 4, 7, np.uint8), np.full(4 * 24 * 4, 7, np.uint8)]
    sizes = (ctypes.c_int64 * 1)(4)
    need = api("arena_bytes", sizes, 1)
    arena = np.full(need, 7, np.uint8)
    at = arena.ctypes.data

    def code(inputs: object = (x,), outputs: object = outs, sizes: object = sizes, at: int = at,
             room: int = need, threads: int = 1) -> int:  # fmt: skip
        return api.run_in(inputs, outputs, sizes, at, room, threads)  # type: ignore[arg-type]

    wrong = {
        "a pointer is null": [
            {"at": 0}, {"sizes": None}, {"inputs": (np.empty(0, np.uint8)[:0].reshape(0),)[:0] or None},
        ],
        "the arena is too small": [{"room": 0}, {"room": need - 65}, {"room": -1}],
        "threads must be": [{"threads": 0}, {"threads": -1}, {"threads": 1 << 30}],
        "batch may be 2 to 512": [{"sizes": (ctypes.c_int64 * 1)(n)} for n in (1, 513, -4, 1 << 62)],
    }  # fmt: skip
    del wrong["a pointer is null"][2]
    for text, calls in wrong.items():
        for call in calls:
            found = code(**call)  # type: ignore[arg-type]
            assert found < 0 and text in str(api.text("error_text", found)), (call, found)
    nothing = (ctypes.c_void_p * 2)()
    table = (ctypes.c_void_p * 1)(x.ctypes.data)
    place, room = ctypes.c_void_p(at), ctypes.c_int64(need)
    for pair in ((nothing, nothing), (table, nothing), (None, nothing), (table, None)):
        assert api("run", *pair, sizes, place, room, 1) == -1
    assert (arena == 7).all() and all((o == 7).all() for o in outs)
    assert api("arena_bytes", (ctypes.c_int64 * 1)(513), 1) < 0
    assert api("arena_bytes", sizes, 0) == -4
    for unknown in (1, -8, -15, -999, 1 << 31 - 1):
        assert "no error of this model" in str(api.text("error_text", unknown))
    assert code() == 0


def test_sizes_beyond_memory_are_refused(tmp_path: Path) -> None:
    api = api_of(net("object"), "object", tmp_path)
    for size in (1 << 62, (1 << 63) - 1, 1 << 57):
        found = api("arena_bytes", (ctypes.c_int64 * 1)(size), 1)
        assert found < 0, size
    assert api("arena_bytes", (ctypes.c_int64 * 1)(-1), 1) < 0


def test_a_shared_library(tmp_path: Path) -> None:
    made = net("shared")
    api = api_of(made, "shared", tmp_path)
    x = feeds(5)
    want = compiled()(x)
    assert all(same_bits(g, w) for g, w in zip(api.run([x], [5]), want, strict=True))


def test_where_nothing_links(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link, "find_spec", lambda _: None)
    monkeypatch.setattr(shutil, "which", lambda _: None)
    with pytest.raises(link.LinkError, match=r"nothing here links .* pip install 'jangin\[aot\]'"):
        emit(layers(), "shared")


@pytest.mark.sampled(2)
@pytest.mark.parametrize("kind", KINDS)
def test_the_example_runs(kind: str, tmp_path: Path) -> None:
    """The model's example program is built by CMakeLists.txt without warnings."""
    made = net(kind)
    made.save(tmp_path)
    sources = sorted(f for f in made.files if f.endswith((".c", ".o")))
    flags = (*STRICT, *compiler_flags(made.model.target))
    command = [COMPILERS[0], *flags, *sources, "-o", "example", "-lm", "-lpthread"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    x = feeds(3)
    x.tofile(tmp_path / "x.raw")
    run = [tmp_path / "example", "3", "x.raw", "y.raw", "-"]
    done = subprocess.run(run, cwd=tmp_path, capture_output=True, text=True, env={"THREADS": "2"})
    assert done.returncode == 0 and "y f32 [3, 40]" in done.stdout, done.stderr
    want = compiled()(x)[0]
    np.testing.assert_array_equal(np.fromfile(tmp_path / "y.raw", np.float32).reshape(3, 40), want)
    wrong = subprocess.run([tmp_path / "example", "3", "gone.raw", "-", "-"], capture_output=True, text=True)
    assert wrong.returncode == 1 and "gone.raw" in wrong.stderr


COUNTED = r"""
#include <stdio.h>
#include <stdlib.h>
static long held;
static void told(void) { printf("held: %ld\n", held); }
static void *counted(void *made) {
  if (!held++) atexit(told);
  return made;
}
void *counted_malloc(size_t n) { return counted(malloc(n)); }
void *counted_calloc(size_t n, size_t each) { return counted(calloc(n, each)); }
void *counted_aligned(size_t to, size_t n) { return counted(aligned_alloc(to, n)); }
void counted_free(void *made) {
  if (made) --held;
  free(made);
}
"""


@pytest.mark.sampled(2)
@pytest.mark.parametrize("weights", ["inside", "beside"])
def test_the_example_frees_what_it_allocates(weights: str, tmp_path: Path) -> None:
    """The program's allocations and frees are counted."""
    made = emit(small_network(), "c", name="net", weights=weights)
    made.save(tmp_path)
    (tmp_path / "counted.c").write_text(COUNTED)
    flags = (*STRICT, *compiler_flags(made.model.target), "-c")
    names = {"malloc": "malloc", "calloc": "calloc", "aligned_alloc": "aligned", "free": "free"}
    renamed = [f"-D{name}=counted_{other}" for name, other in names.items()]
    others = sorted(f for f in made.files if f.endswith(".c") and f != "main.c")
    objects = [f"{f[:-2]}.o" for f in (*others, "main.c", "counted.c")]
    for command in (
        [*flags, *renamed, "main.c"], [*flags, *others, "counted.c"],
        [*objects, "-o", "example", "-lm", "-lpthread"],
    ):  # fmt: skip
        done = subprocess.run([COMPILERS[0], *command], cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
    ends = ["-"] * (len(made.model.inputs) + len(made.model.outputs))
    run = [tmp_path / "example", *["2"] * len(made.model.symbols), *ends]
    done = subprocess.run(run, cwd=tmp_path, capture_output=True, text=True, env={"THREADS": "2"})
    assert done.returncode == 0 and "held: 0" in done.stdout, done.stdout + done.stderr


@pytest.mark.sampled(2)
@pytest.mark.parametrize("kind", KINDS)
def test_an_index_out_of_range(kind: str, tmp_path: Path) -> None:
    """A run reports the node with the index out of range."""
    table = numpy_helper.from_array(np.arange(12, dtype=np.float32).reshape(4, 3), "table")
    ends = [helper.make_tensor_value_info("i", TensorProto.INT64, [5])]
    nodes = [helper.make_node("Gather", ["table", "i"], ["y"], name="look up")]
    graph = helper.make_graph(nodes, "g", ends, [helper.make_empty_tensor_value_info("y")], [table])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    api = api_of(emit(model, kind, name="net"), kind, tmp_path)
    good = np.array([0, 3, -4, 2, 1])
    (y,) = api.run([good])
    assert same_bits(y, numpy_helper.to_array(table)[good])
    arena = np.zeros(api("arena_bytes", None, 1), np.uint8)
    for wrong in (4, -5, 1 << 40):
        found = api.run_in([np.array([0, 1, wrong, 2, 3])], [y], None, arena.ctypes.data, len(arena), 1)
        said = str(api.text("error_text", found))
        assert found < -15 and "'look up' (ai.onnx 17): an index is out of range" in said


@pytest.mark.sampled(2)
def test_two_models_in_one_program(tmp_path: Path) -> None:
    """Two models share no names, because each name begins with its model's prefix."""
    sources = []
    for name in ("one", "two"):
        made = emit(layers(), "object", name=name)
        made.save(tmp_path / name)
        sources += [f"{name}/{f}" for f in made.files if f.endswith(".o")]
    path = library(tmp_path, sources)
    x = feeds(2)
    first, second = (Api(path, name).run([x], [2]) for name in ("one", "two"))
    assert all(same_bits(a, b) for a, b in zip(first, second, strict=True))


def test_a_model_that_needs_steps_is_refused_by_node() -> None:
    nodes = [
        helper.make_node("NonZero", ["x"], ["n"], name="find"),
        helper.make_node("Cast", ["n"], ["y"], to=TensorProto.FLOAT),
    ]
    ends = [
        helper.make_tensor_value_info("x", TensorProto.FLOAT, [4]),
        helper.make_empty_tensor_value_info("y"),
    ]
    graph = helper.make_graph(nodes, "g", ends[:1], ends[1:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    with pytest.raises(CompileError, match=r"can't be compiled ahead of time.*find"):
        emit(model, "object")


def test_what_is_unknown_is_told() -> None:
    with pytest.raises(ValueError, match="nothing is emitted as 'elf'; known: object, shared, c"):
        emit(layers(), "elf")
    with pytest.raises(ValueError, match="constants='away' is unknown"):
        emit(layers(), "c", constants="away")
    with pytest.raises(ValueError, match="unknown target 'cortex-a73', did you mean cortex-a"):
        emit(layers(), "c", "cortex-a73")


def test_nothing_is_overwritten_unasked(tmp_path: Path) -> None:
    made = net("c")
    (tmp_path / "main.c").write_text("mine")
    (tmp_path / "other").write_text("mine")
    with pytest.raises(FileExistsError, match=r"main\.c already, and nothing was written"):
        made.save(tmp_path)
    assert sorted(os.listdir(tmp_path)) == ["main.c", "other"]
    made.save(tmp_path, force=True)
    assert sorted(os.listdir(tmp_path)) == sorted([*made.files, "other"])
    with pytest.raises(FileExistsError, match="is a file"):
        made.save(tmp_path / "other")


def test_nothing_half_written_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = net("c")
    folder = tmp_path / "out"

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(OSError, match="No space"):
        made.save(folder)
    assert not folder.exists()


def test_names_that_c_can_not_take() -> None:
    from jangin.ahead.model import identifier

    assert [identifier(n) for n in ("a b", "1x", "float", "", "données", "ok")] == [
        "a_b", "n1x", "float_", "model", "donn_es", "ok",
    ]  # fmt: skip


@pytest.mark.sampled(2)
@pytest.mark.parametrize("kind", KINDS)
def test_variants_are_chosen_by_the_sizes(kind: str, tmp_path: Path) -> None:
    """A size of 1 broadcasts, so it has another plan."""
    nodes = [helper.make_node("Mul", ["x", "z"], ["p"]), helper.make_node("Relu", ["p"], ["y"])]
    inputs = [
        helper.make_tensor_value_info(n, TensorProto.FLOAT, [s, 3]) for n, s in (("x", "a"), ("z", "b"))
    ]
    graph = helper.make_graph(nodes, "g", inputs, [helper.make_empty_tensor_value_info("y")])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    exe = jangin.compile(model, cache=False, threads=1)
    made = emit(model, kind, name="net")
    assert len(made.model.parts) == 3
    api = api_of(made, kind, tmp_path)
    rng = np.random.default_rng(0)
    for a, b in ((4, 4), (1, 5), (5, 1), (1, 1)):
        x, z = (rng.standard_normal((n, 3)).astype(np.float32) for n in (a, b))
        (y,) = api.run([x, z], [a, b])
        assert same_bits(y, exe(x, z))
    code = api("arena_bytes", (ctypes.c_int64 * 2)(3, 4), 1)
    assert "the sizes do not meet" in str(api.text("error_text", code))


@pytest.mark.sampled(3)
def test_the_examples_in_cpp_and_ctypes(tmp_path: Path) -> None:
    cpp = shutil.which("g++") or shutil.which("clang++")
    if cpp is None:
        pytest.skip("no C++ compiler here: neither g++ nor clang++")
    emit(layers(), "object", name="model").save(tmp_path)
    emit(layers(), "shared", name="model").save(tmp_path / "shared")
    command = [cpp, "-std=c++17", *STRICT, f"-I{tmp_path}", str(EXAMPLES / "ahead.cpp")]
    objects = [str(tmp_path / f) for f in ("model.o", "model_threads.o")]
    done = subprocess.run(
        [*command, *objects, "-lpthread", "-o", tmp_path / "ahead"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    ran = subprocess.run([tmp_path / "ahead", "3"], capture_output=True, text=True)
    assert ran.returncode == 0 and "y f32 [3, 40]" in ran.stdout and "z out f32 [3, 24] 1 1 1" in ran.stdout
    wrong = subprocess.run([tmp_path / "ahead", "-3"], capture_output=True, text=True)
    assert wrong.returncode == 1 and "the size batch may be" in wrong.stderr
    script = [sys.executable, str(EXAMPLES / "ahead.py"), str(tmp_path / "shared" / "libmodel.so"), "model"]
    ran = subprocess.run([*script, "batch=3"], capture_output=True, text=True)
    assert ran.returncode == 0 and "y float32[3, 40]" in ran.stdout, ran.stderr
    empty = subprocess.run([*script, "batch=0"], capture_output=True, text=True)
    assert empty.returncode == 0 and "y float32[0, 40]" in empty.stdout, empty.stderr
    wrong = subprocess.run([*script, "batch=-3"], capture_output=True, text=True)
    assert wrong.returncode == 1 and "the size batch may be" in wrong.stderr
