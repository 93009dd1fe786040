"""Emitted folders as packages of build systems: CMake's find_package, and a module of Zephyr."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from built import small_network

import jangin
from jangin.targets import resolve


def needs(*programs: str) -> None:
    if missing := [p for p in programs if shutil.which(p) is None]:
        pytest.skip(f"not installed here: {', '.join(missing)}")


def cmake(folder: Path, *arguments: str) -> str:
    done = subprocess.run(["cmake", *arguments], cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout


PROGRAM = """#include <stdio.h>
#include "net.h"
static float x[3 * 19 * 23], y[16 * 8 * 10];
static char arena[NET_ARENA_BYTES];
int main(void) {
  const void *in[] = {x};
  void *out[] = {y};
  for (int n = 0; n < 3 * 19 * 23; ++n) x[n] = (float)(n % 7);
  if (net_run((const void *)in, (const void *)out, 0, arena, sizeof arena, 1)) return 1;
  return fwrite(y, 1, (size_t)net_output_bytes(0, 0), stdout) == 0;
}
"""


@pytest.mark.sampled(3)
def test_an_installed_package_is_found(tmp_path: Path) -> None:
    """`cmake --install` and `find_package` are enough to link a program."""
    needs("cmake", "gcc")
    jangin.emit(small_network(), "c", name="net", package="cmake").save(tmp_path / "net")
    cmake(tmp_path, "-S", "net", "-B", "built", f"-DCMAKE_INSTALL_PREFIX={tmp_path}/installed")
    cmake(tmp_path, "--build", "built")
    cmake(tmp_path, "--install", "built")
    user = tmp_path / "user"
    user.mkdir()
    (user / "main.c").write_text(PROGRAM)
    lists = "cmake_minimum_required(VERSION 3.16)\nproject(user C)\nfind_package(net REQUIRED)\n"
    lists += "add_executable(user main.c)\ntarget_link_libraries(user net::net)\n"
    (user / "CMakeLists.txt").write_text(lists)
    cmake(user, "-S", ".", "-B", "b", f"-DCMAKE_PREFIX_PATH={tmp_path}/installed")
    cmake(user, "--build", "b")
    found = subprocess.run(["b/user"], cwd=user, capture_output=True, check=True).stdout
    x = (np.arange(3 * 19 * 23) % 7).astype(np.float32).reshape(1, 3, 19, 23)
    want = jangin.compile(small_network(), threads=1)(x)
    np.testing.assert_array_equal(np.frombuffer(found, np.float32), want.reshape(-1))


ZEPHYR = """cmake_minimum_required(VERSION 3.16)
set(CMAKE_TRY_COMPILE_TARGET_TYPE STATIC_LIBRARY)
project(application C ASM)
set(CONFIG_JANGIN_NET y)
set(PROCESSOR -mcpu=cortex-m33 -mthumb)
macro(zephyr_library_named name)
  set(library ${name})
  add_library(${name} STATIC)
  target_compile_options(${name} PRIVATE ${PROCESSOR})
endmacro()
function(zephyr_library_sources)
  target_sources(${library} PRIVATE ${ARGN})
endfunction()
function(zephyr_library_compile_options)
  target_compile_options(${library} PRIVATE ${ARGN})
endfunction()
function(zephyr_include_directories)
  target_include_directories(${library} PUBLIC ${ARGN})
endfunction()
add_subdirectory(net/zephyr)
"""
"""Zephyr isn't here. The functions that the module calls do what Zephyr 4's documentation says."""


@pytest.mark.sampled(3)
def test_a_module_of_zephyr(tmp_path: Path) -> None:
    """The module gives Zephyr sources and options. The processor's options are Zephyr's."""
    needs("cmake", resolve("cortex-m33").c_compiler)
    jangin.emit(small_network(), "c", "cortex-m33", name="net", package="zephyr").save(tmp_path / "net")
    module = (tmp_path / "net" / "zephyr" / "module.yml").read_text()
    assert module.splitlines() == ["name: net", "build:", "  cmake: zephyr", "  kconfig: zephyr/Kconfig"]
    assert "config JANGIN_NET" in (tmp_path / "net" / "zephyr" / "Kconfig").read_text()
    (tmp_path / "CMakeLists.txt").write_text(ZEPHYR)
    toolchain = f"-DCMAKE_TOOLCHAIN_FILE={tmp_path}/net/toolchain.cmake"
    cmake(tmp_path, "-S", ".", "-B", "b", toolchain)
    said = cmake(tmp_path, "--build", "b", "--verbose")
    assert "-mfpu" not in said and "-ffp-contract=off" in said
    assert list((tmp_path / "b").rglob("libnet_model.a"))


CLASHES = [("all", ""), ("example", ""), ("all", "cmake"), ("m", "cmake")]


@pytest.mark.parametrize(("name", "package"), CLASHES)
def test_names_that_cmake_has_already(name: str, package: str, tmp_path: Path) -> None:
    """A model may be named as a target of CMake, as a library that it links, or as the example."""
    needs("cmake", "gcc")
    jangin.emit(small_network(), "c", name=name, package=package).save(tmp_path)
    cmake(tmp_path, "-S", ".", "-B", "b")
