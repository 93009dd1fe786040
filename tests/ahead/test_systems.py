"""Programs for Android, iOS, macOS and Windows: names of targets, formats of files, and runs under Wine."""

from __future__ import annotations

import os
import shutil
import struct
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from built import small_network

import jangin
from jangin.ahead.elf import defined, undefined
from jangin.ahead.link import LinkError
from jangin.runtime.processor import why_not
from jangin.targets import resolve

ZIG = pytest.mark.skipif(not find_spec("ziglang"), reason="Zig, which links for other systems, isn't here")
NAMES = {
    "cortex-a76-android": ("cortex-a76-android", "aarch64-unknown-linux-android28"),
    "aarch64-linux-android": ("aarch64-android", "aarch64-unknown-linux-android28"),
    "armv7a-linux-androideabi": ("armv7-android", "armv7-unknown-linux-androideabi28"),
    "x86_64-linux-android21": ("x86-64-v2-android", "x86_64-unknown-linux-android28"),
    "arm64-apple-ios": ("aarch64-ios", "aarch64-apple-ios12.0.0"),
    "arm64-apple-macos": ("aarch64-macos", "aarch64-apple-macosx13.0.0"),
    "arm64-apple-macosx14.2": ("aarch64-macos", "aarch64-apple-macosx13.0.0"),
    "x86_64-apple-darwin": ("x86-64-v2-macos", "x86_64-apple-macosx13.0.0"),
    "x86_64-pc-windows-msvc": ("x86-64-v2-windows-msvc", "x86_64-pc-windows-msvc"),
    "x86_64-pc-windows-gnu": ("x86-64-v2-windows", "x86_64-pc-windows-gnu"),
    "x86-64-v3-windows": ("x86-64-v3-windows", "x86_64-pc-windows-gnu"),
    "arm64": ("aarch64", "aarch64-unknown-linux-gnu"),
    "cortex-m0+": ("cortex-m0plus", "thumbv6m-none-eabi"),
    "riscv64gc": ("riscv64", "riscv64-unknown-linux-gnu"),
}
MAGIC = {"windows": b"\x64\x86", "macos": struct.pack("<II", 0xFEEDFACF, 0x0100000C)}
"""The first bytes of COFF for x86-64, and of Mach-O for 64-bit Arm."""


@pytest.mark.parametrize("name", NAMES)
def test_names(name: str) -> None:
    target = resolve(name)
    assert (target.name, target.triple) == NAMES[name]
    assert resolve(target.name) == target


@pytest.mark.parametrize(
    "name, message",
    [
        ("riscv64-ios", "riscv64 doesn't run ios: that is for aarch64"),
        ("cortex-m4-windows", "cortex-m4 doesn't run windows: that is for aarch64, x86_64"),
        ("nonsense-windows", "unknown target 'nonsense-windows'"),
    ],
)
def test_systems_that_a_processor_lacks(name: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        resolve(name)


@pytest.mark.parametrize("name, system", [("x86-64-v3-windows", "windows"), ("arm64-apple-macos", "macos")])
def test_objects(name: str, system: str) -> None:
    """The weights lie beside, and the size of the code is known."""
    made = jangin.emit(small_network(), "object", name, name="model")
    (data,) = made.files["model.o"]
    assert isinstance(data, bytes) and data.startswith(MAGIC[system])
    assert made.code is not None and 5000 < made.code < 50000
    assert set(made.files) == {"model.h", "model.o", "model.bin", "main.c", "CMakeLists.txt"}
    assert b"_model_run" in data if system == "macos" else b"model_run" in data


def test_what_a_system_has_no_linker_for() -> None:
    with pytest.raises(ValueError, match="no 'shared' is made for aarch64-ios: object, c can be"):
        jangin.emit(small_network(), "shared", "arm64-apple-ios")
    with pytest.raises(ValueError, match=r"no \.jgn file is made for aarch64-macos"):
        jangin.build(small_network(), target="arm64-apple-macos")


@ZIG
def test_androids_library_names_what_it_needs() -> None:
    """Android's loader looks for a function only in the libraries that a file names."""
    made = jangin.emit(small_network(), "shared", "cortex-a76-android", name="model")
    (library,) = made.files["libmodel.so"]
    assert isinstance(library, bytes) and library[18:20] == struct.pack("<H", 183)
    assert b"libc.so\0" in library and "syscall" in undefined(library)
    assert {"model_run", "model_start_threads"} <= set(defined(library))
    count, size = struct.unpack_from("<HH", library, 56)[0], 56
    (table,) = struct.unpack_from("<Q", library, 32)
    segments = [struct.unpack_from("<IIQQQQQQ", library, table + n * size) for n in range(count)]
    assert {s[7] for s in segments if s[0] == 1} == {16384}, "the alignment of loaded segments"
    with pytest.raises(LinkError, match="come with the NDK's compiler"):
        jangin.emit(small_network(), "shared", "armv7a-linux-androideabi")


def zig(folder: Path, *options: str) -> None:
    subprocess.run([sys.executable, "-m", "ziglang", "cc", *options], cwd=folder, check=True)


@ZIG
@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("wine"), reason="Debian's wine isn't here")
@pytest.mark.skipif(bool(why_not(str(resolve("x86-64-v3")))), reason="no x86-64-v3 here to run the code")
@pytest.mark.parametrize("kind, file", [("object", "model.o"), ("shared", "model.dll")])
def test_windows_under_wine(kind: str, file: str, tmp_path: Path) -> None:
    """The numbers are the same as Linux's, to the bit."""
    jangin.emit(small_network(), kind, "x86-64-v3-windows", name="model").save(tmp_path)
    x = np.random.default_rng().standard_normal((1, 3, 19, 23)).astype(np.float32)
    x.tofile(tmp_path / "x.bin")
    zig(tmp_path, "-target", "x86_64-windows-gnu", "-O1", "main.c", file, "-o", "example.exe")
    command = ["wine", "example.exe", "x.bin", "y.bin"]
    subprocess.run(command, cwd=tmp_path, check=True, env={**os.environ, "WINEDEBUG": "-all"})
    want = jangin.compile(small_network(), target="x86-64-v3", threads=1)(x)
    got = np.fromfile(tmp_path / "y.bin", np.float32).reshape(want.shape)
    np.testing.assert_array_equal(got.view(np.int32), want.view(np.int32))


@ZIG
@pytest.mark.slow
@pytest.mark.parametrize("processor", ["aarch64", "x86_64"])
def test_macos_links(processor: str, tmp_path: Path) -> None:
    """No macOS is here to run the program."""
    jangin.emit(small_network(), "object", f"{processor}-apple-macos", name="model").save(tmp_path)
    zig(tmp_path, "-target", f"{processor}-macos", "-O1", "main.c", "model.o", "-o", "example")
    assert (tmp_path / "example").read_bytes()[:4] == struct.pack("<I", 0xFEEDFACF)
    made = jangin.emit(small_network(), "shared", f"{processor}-apple-macos", name="model")
    (library,) = made.files["libmodel.dylib"]
    assert isinstance(library, bytes) and b"_model_run" in library
