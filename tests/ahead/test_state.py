"""Models that keep state between runs: the C API keeps it in a block of the caller's memory."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import jangin
from jangin.ahead.emit import Emitted
from jangin.ahead.model import Quantization
from jangin.ahead.source import compiler_flags
from jangin.bench.board import Net, address, aligned
from jangin.ir.graph import Array

pytest.importorskip("tflite", reason="the package tflite isn't installed: the extra `tflite` brings it")
if shutil.which("gcc") is None:
    pytest.skip("not installed here: gcc", allow_module_level=True)

from built import STRICT, api_of, same_bits
from streaming import SCALES, ZEROS, steps, wake_word

STEPS = 25
NULL, BAD_STATE = -1, -7


class Stream:
    """A model's C API with a state of its own."""

    def __init__(self, made: Emitted, kind: str, folder: Path) -> None:
        self.api = api_of(made, kind, folder)
        self.state = self.fresh()

    def fresh(self) -> Array:
        """Return memory for a state at a multiple of 64, filled with ones."""
        whole = np.ones(self.api("state_bytes") + 64, np.uint8)
        start = -whole.ctypes.data % 64
        return whole[start : start + self.api("state_bytes")]

    def reset(self) -> int:
        return self.api("reset", ctypes.c_void_p(self.state.ctypes.data))

    def run(self, given: Sequence[Any], state: Array | None = None, room: int = 0) -> Any:
        """Return the outputs of a step as bytes, or the code of an error."""
        state = self.state if state is None else state
        outputs = [
            np.zeros(self.api("output_bytes", n, None), np.uint8) for n in range(self.api("output_count"))
        ]
        tables = [
            (ctypes.c_void_p * len(arrays))(*(a.ctypes.data for a in arrays)) for arrays in (given, outputs)
        ]
        arena = np.zeros(self.api("arena_bytes", None, 1), np.uint8)
        size = ctypes.c_int64(room or len(arena))
        at = ctypes.c_void_p(state.ctypes.data)
        code = self.api("run", at, *tables, None, ctypes.c_void_p(arena.ctypes.data), size, 1)
        return code or outputs


@pytest.mark.parametrize("kind", ["c", "object"])
def test_a_stream_gives_pythons_results(kind: str, tmp_path: Path) -> None:
    """Each step gives the same bits as in Python, after a reset again. Two streams don't disturb each other,
    and a state is copied by its bytes."""
    model, given = wake_word(), steps(STEPS)
    exe = jangin.compile(model, threads=1, cache=False)
    stream = Stream(jangin.emit(model, kind, name="net", cache=False), kind, tmp_path)
    assert (stream.api("input_count"), stream.api("output_count")) == (2, 2)
    other, saved = stream.fresh(), stream.fresh()
    for _ in range(2):
        assert stream.reset() == 0
        other[:] = stream.state
        exe.reset()
        for n, x in enumerate(given):
            want = exe(*x)
            assert all(same_bits(g, w) for g, w in zip(stream.run(x), want, strict=True))
            assert isinstance(stream.run(given[-1 - n], other), list)
            if n == STEPS // 2:
                saved[:] = stream.state
        again = [stream.run(x, saved) for x in given[STEPS // 2 + 1 :]]
        assert all(same_bits(g, w) for g, w in zip(again[-1], want, strict=True))


def test_what_is_no_state_is_refused(tmp_path: Path) -> None:
    """A state that wasn't reset, lies at an odd address or is null is refused. An error changes nothing."""
    model, (x,) = wake_word(), steps(1)
    stream = Stream(jangin.emit(model, "object", name="net", cache=False), "object", tmp_path)
    assert stream.run(x) == BAD_STATE, "it wasn't reset"
    assert stream.api("reset", ctypes.c_void_p(stream.state.ctypes.data + 8)) == BAD_STATE
    assert stream.api("reset", None) == NULL
    assert stream.reset() == 0
    before = stream.state.tobytes()
    assert stream.run(x, room=1) == -2, "the arena is too small"
    assert stream.state.tobytes() == before
    assert stream.run(x, stream.state[8:]) == BAD_STATE
    assert "not reset" in str(stream.api.text("error_text", BAD_STATE))


class Pair(ctypes.Structure):
    _fields_ = (("scale", ctypes.c_float), ("zero", ctypes.c_int32))


@pytest.mark.parametrize("kind", ["c", "object"])
def test_quantization_can_be_read(kind: str, tmp_path: Path) -> None:
    """The scales and zero points of integers are those of the file, at run time and in the header. Floats
    have none, and neither have numbers beyond the last."""
    made = jangin.emit(wake_word(), kind, name="net", cache=False)
    library = api_of(made, kind, tmp_path).library
    found = []
    for side in ("input", "output"):
        function = getattr(library, f"net_{side}_quantization")
        function.restype = ctypes.POINTER(Pair)
        assert not function(0) and not function(2) and not function(-1)
        found.append((function(1).contents.scale, function(1).contents.zero))
    wanted = [(np.float32(s), z) for s, z in zip((SCALES[0], SCALES[-1]), ZEROS, strict=True)]
    assert found == wanted
    program = """#include <stdio.h>
    #include "net.h"
    int main(void) {
      printf("%.9g %d %.9g %d", NET_INPUT_t12_SCALE, NET_INPUT_t12_ZERO, NET_OUTPUT_t17_SCALE,
             NET_OUTPUT_t17_ZERO);
    }"""
    (tmp_path / "reads.c").write_text(program)
    command = ["gcc", *STRICT, *compiler_flags(made.model.target), "reads.c", "-o", "reads"]
    subprocess.run(command, cwd=tmp_path, check=True)
    texts = subprocess.run("./reads", cwd=tmp_path, capture_output=True, text=True).stdout.split()
    assert [(np.float32(s), int(z)) for s, z in zip(texts[::2], texts[1::2], strict=True)] == wanted


def test_programs_that_know_no_model_keep_its_state(tmp_path: Path) -> None:
    """The benchmarks' worker and the example in Python find the state of a library by its functions."""
    jangin.emit(wake_word(), "shared", name="net", cache=False).save(tmp_path)
    path = tmp_path / "libnet.so"
    net, exe = Net(str(path), "net", 1, []), jangin.compile(wake_word(), threads=1, cache=False)
    held = [aligned(n) for n in net.input_bytes]
    run = net.call([address(memory) for memory in held])
    for given in steps(3):
        for memory, array in zip(held, given, strict=True):
            memory.raw = array.tobytes()
        run()
        want = exe(*given)
    assert [bytes(o) for o in net.outputs] == [a.tobytes() for a in want]
    example = Path(__file__).parents[2] / "examples" / "ahead.py"
    command = [sys.executable, str(example), str(path), "net"]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    exe.reset()
    first = exe(*(np.ones(s.shape, s.dtype) for s in exe.inputs))[1]
    assert f"t17 int8[1, 5] {first.reshape(-1)}" in said


def test_quantization_of_an_onnx_model() -> None:
    """It is that of the nodes at the ends, if it is known. Python can read it too."""
    text = """<ir_version: 8, opset_import: ["": 18]>
    g (uint8[4] a, int8[4] b, uint8[4] c, float s) => (int8[4] y, uint8[4] z)
    <float sa = {0.5}, uint8 za = {7}, float sb = {0.25}, int8 zy = {-3}> {
        fa = DequantizeLinear(a, sa, za)
        fb = DequantizeLinear(b, sb)
        fc = DequantizeLinear(c, s)
        sum = Add(fa, fb)
        all = Add(sum, fc)
        y = QuantizeLinear(all, sa, zy)
        z = Identity(a)
    }"""
    model = onnx.parser.parse_model(text)
    made = jangin.emit(model, "c", name="net").model
    found = {t.name: t.quantization for t in (*made.inputs, *made.outputs)}
    known = {"a": [0.5, 7], "b": [0.25, 0], "y": [0.5, -3]}
    wanted = {
        n: Quantization(known[n][0], int(known[n][1])) if n in known else None
        for n in ("a", "b", "c", "s", "y", "z")
    }
    assert found == wanted
    for isolated in (False, True):
        assert jangin.compile(model, isolated=isolated, cache=False).metadata["quantization"] == known


@pytest.mark.sampled(3)
def test_the_example_program_keeps_state(tmp_path: Path) -> None:
    """The example resets a state of its own. REPEAT steps on the same files give Python's last result."""
    model, (x,) = wake_word(), steps(1)
    made = jangin.emit(model, "c", name="net", cache=False)
    made.save(tmp_path)
    for n, array in enumerate(x):
        array.tofile(tmp_path / f"{n}.in")
    sources = ["main.c", "net.c", "net_weights.c", "net_threads.c", "-lm", "-lpthread", "-o", "example"]
    flags = (*STRICT, "-fsanitize=address,undefined", *compiler_flags(made.model.target))
    subprocess.run(["gcc", *flags, *sources], cwd=tmp_path, check=True)
    exe = jangin.compile(model, threads=1, cache=False)
    for _ in range(3):
        want = exe(*x)
    command = ["./example", "0.in", "1.in", "0.out", "1.out"]
    subprocess.run(command, cwd=tmp_path, check=True, env={"REPEAT": "3"})
    for n, array in enumerate(want):
        assert same_bits(np.fromfile(tmp_path / f"{n}.out", np.uint8), array)
