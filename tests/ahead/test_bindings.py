"""The C API in other languages: programs in C++, Rust and C# run a streaming model as Python does."""

from __future__ import annotations

import re
import shutil
import subprocess
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest

import jangin
from jangin.ahead.emit import Emitted
from jangin.ahead.header import header
from jangin.ahead.state import State, fields_of

pytest.importorskip("tflite", reason="the package tflite isn't installed: the extra `tflite` brings it")

from built import STRICT, same_bits
from streaming import steps, wake_word

CPP = r"""
#include <cstdio>
#include "net.hpp"
int main() {
  net::model model;
  float frame[8], scores[4];
  signed char features[11], found[5];
  static_assert(sizeof(NET_INPUT_t12_SCALE) == sizeof(float), "");
  if (model.input_bytes(0) != sizeof frame || model.output_bytes(1) != sizeof found) return 2;
  if (model.input_shape(0) != std::vector<std::int64_t>{1, 1, 8}) return 3;
  try {
    net::model wrong({}, 0);
    return 4;
  } catch (const net::error &e) {
    if (e.code != NET_ERROR_BAD_THREADS) return 5;
  }
  for (int turn = 0; turn < 2; ++turn, model.reset(), std::rewind(stdin))
    while (std::fread(frame, sizeof frame, 1, stdin) && std::fread(features, sizeof features, 1, stdin)) {
      model.run({frame, features}, {scores, found});
      std::fwrite(scores, sizeof scores, 1, stdout);
      std::fwrite(found, sizeof found, 1, stdout);
    }
}
"""
RUST = r"""
extern crate net;
use std::io::{Read, Write};
#[repr(C, align(64))]
struct State([u8; net::NET_STATE_BYTES as usize]);
fn main() {
    let (mut given, mut at) = (Vec::new(), 0);
    std::io::stdin().read_to_end(&mut given).unwrap();
    let mut state = State([0; net::NET_STATE_BYTES as usize]);
    let mut arena = vec![0u8; net::NET_ARENA_BYTES as usize];
    let here = state.0.as_mut_ptr() as *mut core::ffi::c_void;
    for _ in 0..2 {
        assert_eq!(unsafe { net::net_reset(here) }, 0);
        while at + 43 <= given.len() {
            let frame: Vec<f32> = (0..8)
                .map(|n| f32::from_ne_bytes(given[at + 4 * n..at + 4 * n + 4].try_into().unwrap())).collect();
            let features: Vec<i8> = given[at + 32..at + 43].iter().map(|b| *b as i8).collect();
            let (mut scores, mut found) = ([0f32; 4], [0i8; 5]);
            let inputs = net::net_inputs { t0: frame.as_ptr(), t12: features.as_ptr() };
            let outputs = net::net_outputs { t8: scores.as_mut_ptr(), t17: found.as_mut_ptr() };
            let room = arena.len() as i64;
            let (null, at_arena) = (core::ptr::null(), arena.as_mut_ptr() as *mut core::ffi::c_void);
            assert_eq!(unsafe { net::net_run(here, &inputs, &outputs, null, at_arena, room, 1) }, 0);
            let mut out = std::io::stdout();
            for score in scores { out.write_all(&score.to_ne_bytes()).unwrap(); }
            for number in found { out.write_all(&number.to_ne_bytes()).unwrap(); }
            at += 43;
        }
        at = 0;
    }
    let quantized = unsafe { &*net::net_input_quantization(1) };
    assert_eq!((quantized.scale, quantized.zero), (net::NET_INPUT_t12_SCALE, net::NET_INPUT_t12_ZERO));
}
"""
CSHARP = r"""
using System;
using System.IO;
using Jangin.net;
public static unsafe class Program {
  public static void Main() {
    var state = new byte[Api.STATE_BYTES + 63];
    var arena = new byte[Api.ARENA_BYTES];
    var given = new MemoryStream();
    Console.OpenStandardInput().CopyTo(given);
    var bytes = given.ToArray();
    var result = Console.OpenStandardOutput();
    if (Api.Text(Api.net_input_name(0)) != "t0") throw new Exception("another name");
    if (Api.net_input_quantization(1)->zero != Api.INPUT_t12_ZERO) throw new Exception("another zero");
    try { Api.Checked(Api.net_arena_bytes(null, 0)); throw new Exception("no error"); }
    catch (InvalidOperationException e) { if (!e.Message.Contains("threads")) throw; }
    var made = new byte[21];
    fixed (byte* state0 = state, memory = arena, from = bytes, to = made) {
      void* here = (void*)(((long)state0 + 63) / 64 * 64);
      for (int turn = 0; turn < 2; ++turn) {
        Api.Checked(Api.net_reset(here));
        for (int at = 0; at + 43 <= bytes.Length; at += 43) {
          var inputs = new net_inputs { t0 = (float*)(from + at), t12 = (sbyte*)(from + at + 32) };
          var outputs = new net_outputs { t8 = (float*)to, t17 = (sbyte*)(to + 16) };
          Api.Checked(Api.net_run(here, &inputs, &outputs, null, memory, arena.Length, 1));
          result.Write(made, 0, made.Length);
        }
      }
    }
  }
}
"""


def needs(*programs: str) -> None:
    if missing := [p for p in programs if shutil.which(p) is None]:
        pytest.skip(f"not installed here: {', '.join(missing)}")


@cache
def net(kind: str) -> Emitted:
    return jangin.emit(wake_word(), kind, name="net", api=("cpp", "rust", "csharp"))


def build(folder: Path, *commands: list[str]) -> None:
    for command in commands:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr


def check(folder: Path, *command: str) -> None:
    """Run a program on steps. It must write the results twice, with a reset in between."""
    given = steps(11)
    (folder / "steps").write_bytes(b"".join(a.tobytes() for x in given for a in x))
    with open(folder / "steps", "rb") as file:
        done = subprocess.run(command, cwd=folder, stdin=file, capture_output=True)
    assert done.returncode == 0, done.stderr
    exe = jangin.compile(wake_word(), threads=1)
    want = np.concatenate([a.reshape(-1).view(np.uint8) for x in given for a in exe(*x)])
    assert same_bits(np.frombuffer(done.stdout, np.uint8), np.concatenate([want, want]))


def test_cpp(tmp_path: Path) -> None:
    needs("g++")
    net("object").save(tmp_path)
    (tmp_path / "main.cpp").write_text(CPP)
    flags = ("-std=c++17", *STRICT, "-fsanitize=address,undefined")
    build(
        tmp_path, ["g++", *flags, "main.cpp", "net.o", "net_threads.o", "-lm", "-lpthread", "-o", "program"]
    )
    check(tmp_path, "./program")


def test_rust(tmp_path: Path) -> None:
    needs("rustc", "gcc")
    net("object").save(tmp_path)
    (tmp_path / "main.rs").write_text(RUST)
    library = [
        "rustc",
        "-Dwarnings",
        "--edition=2021",
        "--crate-name=net",
        "--crate-type=rlib",
        "rust/lib.rs",
    ]
    linked = [f"-Clink-arg={file}" for file in ("net.o", "net_threads.o", "-lm")]
    build(tmp_path, library, ["rustc", "--edition=2021", "-L.", "main.rs", *linked, "-o", "program"])
    check(tmp_path, "./program")


def test_csharp(tmp_path: Path) -> None:
    needs("mcs", "mono")
    net("shared").save(tmp_path)
    (tmp_path / "Program.cs").write_text(CSHARP)
    build(tmp_path, ["mcs", "-unsafe", "-warnaserror", "-out:program.exe", "Program.cs", "net.cs"])
    check(tmp_path, "env", "LD_LIBRARY_PATH=.", "mono", "program.exe")


@pytest.mark.sampled(2)
def test_words_of_other_languages_are_names(tmp_path: Path) -> None:
    """Inputs may be named by words of Rust, C# and C++, and the sizes are constants."""
    import onnx

    text = """<ir_version: 8, opset_import: ["": 18]>
    g (float[n, 2] match, float[n, 2] self, float[n, 2] string, float[n, 2] class) => (float[n, 2] type) {
        a = Add(match, self)
        b = Add(a, string)
        type = Add(b, class)
    }"""
    made = jangin.emit(onnx.parser.parse_model(text), "object", name="net", api=("cpp", "rust", "csharp"))
    made.save(tmp_path)
    (tmp_path / "main.cpp").write_text(
        '#include "net.hpp"\nint main() { net::model m({3}); return NET_SIZE_n; }'
    )
    commands = {
        "g++": ["g++", "-std=c++17", *STRICT, "main.cpp", "net.o", "-o", "program"],
        "rustc": ["rustc", "-Dwarnings", "--edition=2021", "--crate-type=rlib", "rust/lib.rs"],
        "mcs": ["mcs", "-unsafe", "-warnaserror", "-target:library", "net.cs"],
    }
    found = [command for tool, command in commands.items() if shutil.which(tool)]
    if not found:
        pytest.skip(f"not installed here: {', '.join(commands)}")
    build(tmp_path, *found)


def test_sizes_may_differ_in_marks_alone(tmp_path: Path) -> None:
    """Sizes whose names become one identifier have constants of their own, in each language."""
    import onnx

    text = """<ir_version: 8, opset_import: ["": 18]>
    g (float[a, 2] x, float[b, 2] y) => (float[c, 2] z) { z = Concat<axis = 0>(x, y) }"""
    model = onnx.parser.parse_model(text)
    for given, name in zip(model.graph.input, ("n.1", "n-1"), strict=True):
        given.type.tensor_type.shape.dim[0].dim_param = name
    made = jangin.emit(model, "object", name="net", api=("cpp", "rust", "csharp"))
    made.save(tmp_path)
    defined = re.findall(r"#define (NET_SIZE_\w+) (\d)", (tmp_path / "net.h").read_text())
    assert defined == [("NET_SIZE_n_1", "0"), ("NET_SIZE_n_1_", "1")]
    for file in ("rust/lib.rs", "net.cs"):
        names = re.findall(r"SIZE_\w+", (tmp_path / file).read_text())
        assert names == ["SIZE_n_1", "SIZE_n_1_"]


def test_places_in_a_state_differ() -> None:
    """Arrays of a state whose names become one identifier have constants of their own in the header."""
    fields = fields_of({"a.b": np.zeros(3, np.float32), "a b": np.zeros(2, np.int8)}, 8)
    known = net("object").model
    assert known.state is not None
    model = replace(known, state=State(fields, known.state.entries))
    defined = re.findall(r"#define (NET_AT_\w+) (\d+)", header(model))
    assert defined == [("NET_AT_a_b", "64"), ("NET_AT_a_b_", "128")]


def test_what_is_unknown_is_refused() -> None:
    with pytest.raises(ValueError, match="api='java' is unknown; known: cpp, rust, csharp"):
        jangin.emit(wake_word(), api=["java"])
    with pytest.raises(ValueError, match="package='conan' is unknown; known: cmake, zephyr"):
        jangin.emit(wake_word(), "c", package="conan")
    with pytest.raises(ValueError, match="made of C"):
        jangin.emit(wake_word(), "object", package="cmake")
    with pytest.raises(ValueError, match="not for wasm32"):
        jangin.emit(wake_word(), "shared", "wasm32", api=["cpp"])
