"""Write a CMakeLists.txt that builds the emitted files."""

from __future__ import annotations

from jangin.ahead.model import Model
from jangin.ahead.source import compiler_flags, weights_name
from jangin.targets.systems import system_of


def library(model: Model) -> str:
    """Return CMake's name for the model's library. It differs from every reserved name, such as `all`, and
    from the libraries and programs that are linked or built beside it."""
    return f"{model.prefix}_model"


def cmake_lists(model: Model, kind: str) -> str:
    """Return the text of a CMake project that builds the model as a library, and the example program."""
    p, own, threads = model.prefix, library(model), model.has_threads
    lines = ["cmake_minimum_required(VERSION 3.16)", f"project({p} C ASM)", "set(CMAKE_C_STANDARD 11)"]
    lines += ["if(NOT CMAKE_BUILD_TYPE)", "  set(CMAKE_BUILD_TYPE Release)", "endif()"]
    if kind == "c":
        files = [f"{p}.c", *([] if model.beside else [weights_name(model)])]
        lines += [f"add_library({own} STATIC {' '.join(files)})"]
        lines += [f"target_compile_options({own} PRIVATE {' '.join(compiler_flags(model.target))})"]
    elif kind == "object":
        lines += [f"add_library({own} STATIC {p}.o)"]
        lines += [f"set_target_properties({own} PROPERTIES LINKER_LANGUAGE C)"]
    else:
        lines += [f"add_library({own} SHARED IMPORTED)"]
        place = f"${{CMAKE_CURRENT_SOURCE_DIR}}/{system_of(model.target).library.format(p)}"
        lines += [f"set_target_properties({own} PROPERTIES IMPORTED_LOCATION {place} IMPORTED_NO_SONAME ON)"]
        if place.endswith(".dll"):  # GNU's linkers take the library itself
            lines += [f"set_target_properties({own} PROPERTIES IMPORTED_IMPLIB {place})"]
    scope = "INTERFACE" if kind == "shared" else "PUBLIC"
    lines += [f"target_include_directories({own} {scope} ${{CMAKE_CURRENT_SOURCE_DIR}})"]
    ending = {"c": "c", "object": "o"}.get(kind)
    pool = [f"{p}_threads.{ending}"] if threads and ending else []
    lines += [f"add_executable(example {' '.join(['main.c', *pool])})"]
    windows = "windows" in model.target.triple
    libraries = [own, *([] if windows else ["m"]), *(["pthread"] if threads else [])]
    lines += [f"target_link_libraries(example PRIVATE {' '.join(libraries)})"]
    return "\n".join([*lines, ""])
