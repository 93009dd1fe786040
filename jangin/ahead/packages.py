"""Make an emitted folder a package of a build system: a CMake package, or a module of Zephyr."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from jangin.ahead.cmake import library
from jangin.ahead.model import Model
from jangin.ahead.source import compiler_flags, weights_name


def _sources(model: Model) -> list[str]:
    p = model.prefix
    threads = [f"{p}_threads.c"] if model.has_threads else []
    return [f"{p}.c", *([] if model.beside else [weights_name(model)]), *threads]


def cmake_package(model: Model) -> dict[str, str]:
    """Return a CMakeLists.txt for `add_subdirectory`, `FetchContent`, or `find_package` after an
    installation. The library is PREFIX::PREFIX."""
    p, own = model.prefix, library(model)
    libraries = "m pthread" if model.has_threads else "m"
    places = "$<BUILD_INTERFACE:${CMAKE_CURRENT_SOURCE_DIR}> $<INSTALL_INTERFACE:include>"
    lines = [
        "cmake_minimum_required(VERSION 3.16)",
        f"project({p} C ASM)",
        f"add_library({own} STATIC {' '.join(_sources(model))})",
        f"add_library({p}::{p} ALIAS {own})",
        f"set_target_properties({own} PROPERTIES EXPORT_NAME {p})",
        f"target_compile_options({own} PRIVATE {' '.join(compiler_flags(model.target))})",
        f"target_include_directories({own} PUBLIC {places})",
        f"target_link_libraries({own} PUBLIC {libraries})",
        f"install(TARGETS {own} EXPORT {p} ARCHIVE DESTINATION lib)",
        f'file(GLOB headers "${{CMAKE_CURRENT_SOURCE_DIR}}/{p}.h*")',
        "install(FILES ${headers} DESTINATION include)",
        f"install(EXPORT {p} NAMESPACE {p}:: DESTINATION lib/cmake/{p} FILE {p}Config.cmake)",
    ]
    return {"CMakeLists.txt": "\n".join([*lines, ""])}


def zephyr_module(model: Model) -> dict[str, str]:
    """Return the files of a module of Zephyr, which gives the options of the processor itself."""
    p, option = model.prefix, f"JANGIN_{model.prefix.upper()}"
    own = set(model.target.c_flags)
    flags = " ".join(flag for flag in compiler_flags(model.target) if flag not in own)
    module = ["name: " + p, "build:", "  cmake: zephyr", "  kconfig: zephyr/Kconfig", ""]
    kconfig = [f"config {option}", f'\tbool "The model {p}"', "\tdefault y", ""]
    lists = [
        f"if(CONFIG_{option})",
        f"  zephyr_library_named({library(model)})",
        f"  zephyr_library_sources({' '.join(f'../{name}' for name in _sources(model))})",
        f"  zephyr_library_compile_options({flags})",
        "  zephyr_include_directories(..)",
        "endif()",
        "",
    ]
    texts = {"module.yml": module, "Kconfig": kconfig, "CMakeLists.txt": lists}
    return {f"zephyr/{name}": "\n".join(lines) for name, lines in texts.items()}


PACKAGES: Mapping[str, Callable[[Model], dict[str, str]]] = {"cmake": cmake_package, "zephyr": zephyr_module}
"""The files that `--package` adds, by build system."""
