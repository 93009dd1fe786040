"""Declare a model's C API in other languages: a C++ class, a Rust crate, and C#'s P/Invoke."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

from jangin.ahead.declarations import ERRORS, PARALLEL, signatures
from jangin.ahead.header import element_type
from jangin.ahead.model import Model, identifiers
from jangin.ahead.threads import START, STOP
from jangin.backends.clike.plain import comment


class CType(NamedTuple):
    """A type in C: a plain one, or a pointer to one, whose target may be constant."""

    name: str
    pointer: bool
    const: bool


def c_type(text: str) -> CType:
    """Return the parts of a type as C writes it."""
    return CType(text.replace("const ", "").replace("*", "").strip(), "*" in text, text.startswith("const "))


class CFunction(NamedTuple):
    """A function of the API: its name, its result's type (None for void), and its parameters."""

    name: str
    result: CType | None
    params: tuple[tuple[str, CType], ...]


def functions(model: Model) -> list[tuple[CFunction, str]]:
    """Return the functions of a model's API, with their documentation."""
    texts = [(s.text, doc) for s, doc in signatures(model).values()]
    if model.has_threads:
        texts += [(t, "") for t in (START, STOP)]
    p, up = model.prefix, model.prefix.upper()

    def named(text: str) -> str:
        return text.replace("{p}", p).replace("{P}", up)

    return [(_function(named(text)), named(doc)) for text, doc in texts]


def _function(text: str) -> CFunction:
    head, params = text.rstrip(")").split("(")
    result, name = _split(head)
    parameters = () if params == "void" else tuple(_split(p) for p in params.split(", "))
    return CFunction(
        name,
        None if result.strip() == "void" else c_type(result),
        tuple((n, c_type(t)) for t, n in parameters),
    )


def _split(declared: str) -> tuple[str, str]:
    """Return the type and the name of a declaration."""
    match = re.fullmatch(r"(.*?)(\w+)", declared)
    assert match is not None, declared
    return match[1], match[2]


def constants(model: Model) -> Iterator[tuple[str, str, int | float]]:
    """Yield the constants of a model's header: a name without the prefix, its type in C, and its value."""
    for code, (name, _) in ERRORS.items():
        yield f"ERROR_{name}", "int32_t", code
    for n, symbol in enumerate(identifiers(model.symbols) if model.training is None else ()):
        yield f"SIZE_{symbol}", "int32_t", n
    if not model.symbols:
        yield "ARENA_BYTES", "int64_t", model.typical_bytes()[0]
    if model.state is not None:
        yield "STATE_BYTES", "int64_t", model.state.size
    for kind, tensors in (("INPUT", model.inputs), ("OUTPUT", model.outputs)):
        for t in tensors:
            if t.quantization is not None:
                yield f"{kind}_{t.field}_SCALE", "float", t.quantization.scale
                yield f"{kind}_{t.field}_ZERO", "int32_t", t.quantization.zero


def structs(model: Model) -> Iterator[tuple[str, list[tuple[str, CType, str]]]]:
    """Yield the API's structs: a name, and each field with its type and the name of its tensor."""
    for name, tensors in model.structs.items():
        fields = [(t.field, CType(element_type(t.dtype), True, name != "outputs"), t.name) for t in tensors]
        yield f"{model.prefix}_{name}", fields or [("none", CType("void", True, True), "")]
    if model.training is None:
        fields = [("scale", CType("float", False, False), ""), ("zero", CType("int32_t", False, False), "")]
        yield f"{model.prefix}_quantization", fields


# --- C++


def cpp_header(model: Model) -> str:
    """Return the text of a C++17 header with a class that owns a model's working memory and state."""
    marks = {
        "<NAME>": comment(model.name),
        "<P>": model.prefix,
        "<STATE, >": "",
        "<MEMBERS>": "",
        "<RESET>": "",
    }
    if model.state is not None:
        marks |= {"<STATE, >": "state_, ", "<MEMBERS>": _CPP_STATE, "<RESET>": " reset();"}
    marks["<WEIGHTS>"] = _CPP_WEIGHTS if model.beside else ""
    text = _CPP
    for mark in ("<MEMBERS>", "<WEIGHTS>", "<STATE, >", "<RESET>", "<NAME>", "<P>"):
        text = text.replace(mark, marks[mark])
    return text


_CPP = """// <NAME>: a C++17 class around <P>.h, by Jangin.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <stdexcept>
#include <utility>
#include <vector>

#include "<P>.h"

namespace <P> {

/// An error of a run, with its code (see <P>.h).
class error : public std::runtime_error {
 public:
  explicit error(std::int64_t code)
      : std::runtime_error(<P>_error_text(static_cast<std::int32_t>(code))),
        code(static_cast<std::int32_t>(code)) {}
  std::int32_t code;
};

/// Gives a function's result, or throws its error.
inline std::int64_t checked(std::int64_t code) {
  if (code < 0) throw error(code);
  return code;
}
<WEIGHTS>
/// A model with working memory of its own. Several may run at the same time, each in one thread at a time.
/// Only the constructor allocates.
class model {
 public:
  /// `sizes` has the sizes that are known only at run time, in the model's order.
  explicit model(std::vector<std::int64_t> sizes = {}, std::int32_t threads = 1)
      : sizes_(std::move(sizes)), threads_(threads) {
    if (sizes_.size() != static_cast<std::size_t>(<P>_size_count()))
      throw std::invalid_argument("the model takes another number of sizes");
    bytes_ = checked(<P>_arena_bytes(sizes_.data(), threads_));
    arena_ = std::make_unique<unsigned char[]>(static_cast<std::size_t>(bytes_));<RESET>
  }

  /// Runs the model. The structs' fields point to memory of the caller's: input_bytes and output_bytes of it.
  void run(const <P>_inputs &inputs, const <P>_outputs &outputs) {
    checked(<P>_run(<STATE, >&inputs, &outputs, sizes_.data(), arena_.get(), bytes_, threads_));
  }

  std::size_t input_bytes(std::int32_t index) const {
    return static_cast<std::size_t>(checked(<P>_input_bytes(index, sizes_.data())));
  }
  std::size_t output_bytes(std::int32_t index) const {
    return static_cast<std::size_t>(checked(<P>_output_bytes(index, sizes_.data())));
  }
  std::vector<std::int64_t> input_shape(std::int32_t index) const { return shape(<P>_input_shape, index); }
  std::vector<std::int64_t> output_shape(std::int32_t index) const { return shape(<P>_output_shape, index); }
<MEMBERS>
 private:
  template <typename Function>
  std::vector<std::int64_t> shape(Function of, std::int32_t index) const {
    std::vector<std::int64_t> found(static_cast<std::size_t>(checked(of(index, sizes_.data(), nullptr))));
    checked(of(index, sizes_.data(), found.data()));
    return found;
  }

  std::vector<std::int64_t> sizes_;
  std::int32_t threads_;
  std::int64_t bytes_ = 0;
  std::unique_ptr<unsigned char[]> arena_;
};

}  // namespace <P>
"""
_CPP_STATE = """
  /// Fills the state that is kept from run to run as it is before the first.
  void reset() {
    memory_ = std::make_unique<unsigned char[]>(static_cast<std::size_t>(<P>_state_bytes()) + 63);
    auto at = reinterpret_cast<std::uintptr_t>(memory_.get());
    state_ = memory_.get() + (64 - at % 64) % 64;
    checked(<P>_reset(state_));
  }

 private:
  std::unique_ptr<unsigned char[]> memory_;
  unsigned char *state_ = nullptr;
"""
_CPP_WEIGHTS = """
/// Says where the bytes of <P>.bin lie, at a multiple of 64, before the first run and as long as runs go on.
inline void use_weights(const void *weights, std::int64_t bytes) { checked(<P>_use_weights(weights, bytes)); }
"""

# --- Rust

_RUST = {
    "float": "f32", "double": "f64", "char": "u8", "void": "c_void", "int8_t": "i8", "int16_t": "i16",
    "int32_t": "i32", "int64_t": "i64", "uint8_t": "u8", "uint16_t": "u16", "uint32_t": "u32",
    "uint64_t": "u64",
}  # fmt: skip
_RUST_WORDS = frozenset(
    [
        "abstract",
        "as",
        "async",
        "await",
        "become",
        "box",
        "break",
        "const",
        "continue",
        "do",
        "dyn",
        "else",
        "enum",
        "extern",
        "false",
        "final",
        "fn",
        "for",
        "if",
        "impl",
        "in",
        "let",
        "loop",
        "macro",
        "match",
        "mod",
        "move",
        "mut",
        "override",
        "priv",
        "pub",
        "ref",
        "return",
        "static",
        "struct",
        "trait",
        "true",
        "try",
        "type",
        "typeof",
        "unsafe",
        "unsized",
        "use",
        "virtual",
        "where",
        "while",
        "yield",
    ]
)
_RUST_NAMES = frozenset({"self", "Self", "super", "crate"})
"""Words that can't be names even behind "r#"."""


def _rust_type(t: CType) -> str:
    name = _RUST.get(t.name, t.name)
    return f"*{'const' if t.const else 'mut'} {name}" if t.pointer else name


def _rust_name(name: str) -> str:
    if name in _RUST_NAMES:
        return f"{name}_"
    return f"r#{name}" if name in _RUST_WORDS else name


def rust_library(model: Model) -> str:
    """Return the text of a Rust library without the standard library: constants, structs and functions."""
    p, up = model.prefix, model.prefix.upper()
    lines = [
        f"//! {comment(model.name)}: declarations of {p}.h, by Jangin. Link the emitted files too.",
        "#![no_std]", "#![allow(non_camel_case_types, non_snake_case, non_upper_case_globals)]", "",
        "use core::ffi::c_void;", "",
        f"pub type {p}_task = Option<unsafe extern \"C\" fn(context: *mut c_void, worker: i32)>;", "",
    ]  # fmt: skip
    for name, kind, value in constants(model):
        number = f"{value!r}" if kind == "float" else f"{value}"
        lines.append(f"pub const {up}_{name}: {_RUST[kind]} = {number};")
    for name, fields in structs(model):
        lines += ["", "#[repr(C)]", "#[derive(Clone, Copy, Debug)]", f"pub struct {name} {{"]
        lines += [f"    pub {_rust_name(f)}: {_rust_type(t)}," for f, t, _ in fields] + ["}"]
    lines += ["", 'extern "C" {']
    for f, doc in [*functions(model), (_function(PARALLEL.replace("{p}", p)), "")]:
        lines += [f"    /// {line}" for line in doc.splitlines()]
        parameters = ", ".join(f"{_rust_name(n)}: {_rust_type(t)}" for n, t in f.params)
        lines.append(
            f"    pub fn {f.name}({parameters}){'' if f.result is None else f' -> {_rust_type(f.result)}'};"
        )
    return "\n".join([*lines, "}", ""])


def rust_crate(model: Model) -> dict[str, str]:
    """Return the files of a Rust crate by name."""
    manifest = [
        "[package]", f'name = "{model.prefix.lower()}"', 'version = "0.1.0"', 'edition = "2021"',
        'rust-version = "1.56"', "", "[lib]", 'path = "lib.rs"', "",
    ]  # fmt: skip
    return {"rust/Cargo.toml": "\n".join(manifest), "rust/lib.rs": rust_library(model)}


# --- C#

_SHARP = {
    "float": "float", "double": "double", "char": "byte", "void": "void", "int8_t": "sbyte",
    "int16_t": "short",
    "int32_t": "int", "int64_t": "long", "uint8_t": "byte", "uint16_t": "ushort", "uint32_t": "uint",
    "uint64_t": "ulong",
}  # fmt: skip


def _sharp_type(t: CType) -> str:
    return f"{_SHARP.get(t.name, t.name)}{'*' if t.pointer else ''}"


def csharp_class(model: Model) -> str:
    """Return the text of a C# class with the functions of a model's shared library."""
    p = model.prefix
    lines = [
        f"// {comment(model.name)}: declarations of {p}.h for C#, by Jangin. Compile it with -unsafe.",
        "using System;", "using System.Runtime.InteropServices;", "", f"namespace Jangin.@{p} {{",
    ]  # fmt: skip
    for name, fields in structs(model):
        lines += ["  [StructLayout(LayoutKind.Sequential)]", f"  public unsafe struct {name} {{"]
        lines += [f"    public {_sharp_type(t)} @{f};" for f, t, _ in fields] + ["  }", ""]
    lines += ["  public static unsafe class Api {", f'    const string Library = "{p}";']
    for name, kind, value in constants(model):
        number = f"{value!r}f" if kind == "float" else f"{value}"
        lines.append(f"    public const {_SHARP[kind]} {name} = {number};")
    for f, doc in functions(model):
        lines += ["", *(f"    // {line}" for line in doc.splitlines())]
        parameters = ", ".join(f"{_sharp_type(t)} @{n}" for n, t in f.params)
        result = "void" if f.result is None else _sharp_type(f.result)
        lines.append(f"    [DllImport(Library)] public static extern {result} {f.name}({parameters});")
    return "\n".join([*lines, *_SHARP_END.replace("<P>", p).splitlines(), ""])


_SHARP_END = """
    /// A text of the library, or null.
    public static string Text(byte* text) { return Marshal.PtrToStringAnsi((IntPtr)text); }

    /// Gives a function's result, or throws its error.
    public static long Checked(long code) {
      if (code < 0) throw new InvalidOperationException(Text(<P>_error_text((int)code)));
      return code;
    }
  }
}"""

# --- all

APIS: Mapping[str, Callable[[Model], dict[str, str]]] = {
    "cpp": lambda model: {f"{model.prefix}.hpp": cpp_header(model)},
    "rust": rust_crate,
    "csharp": lambda model: {f"{model.prefix}.cs": csharp_class(model)},
}
"""The files that `--api` adds, by language."""
