"""The model formats that Jangin has. The first that recognizes a model loads it."""

from __future__ import annotations

import importlib
import os
import re
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from typing import TYPE_CHECKING

from jangin.frontends.format import (
    Contents,
    Example,
    Format,
    ModelSource,
    Prepared,
    TwoFiles,
    opened,
)
from jangin.frontends.onnx.format import OnnxFormat
from jangin.ir.errors import CompileError, FormatError
from jangin.ir.limits import sized, within

if TYPE_CHECKING:
    from jangin.frontends.assemble import ShapeBindings
    from jangin.frontends.dialect import Imported

_CLASSES = {
    "torch": "TorchFormat", "tflite": "TfliteFormat", "gguf": "GgufFormat", "coreml": "CoreMLFormat",
    "nnef": "NnefFormat", "darknet": "DarknetFormat", "caffe": "CaffeFormat", "onnx": "OnnxFormat",
}  # fmt: skip
"""The folders and classes of the formats, in the order in which formats are tried. Those that accept almost
any bytes come last."""

ANEW = "copy the file again, or export or convert the model again"
"""The remedy for a damaged file."""


@cache
def formats() -> tuple[Format, ...]:
    """Return Jangin's formats in the order in which they are tried."""
    classes = ((importlib.import_module(f"jangin.frontends.{n}.format"), c) for n, c in _CLASSES.items())
    return tuple(getattr(module, name)() for module, name in classes)


def is_own(reader: Format) -> bool:
    """Tell if a format is one of Jangin's formats, with whatever settings."""
    return any(type(reader) is type(known) for known in formats())


def load(model: ModelSource, shapes: ShapeBindings | None = None, first: Sequence[Format] = ()) -> Imported:
    """Import a model by the format that recognizes it. The formats in `first` precede Jangin's own. `shapes`
    is that of `Format.load`.

    Raises CompileError if no format recognizes the model, or if it is malformed."""
    contents = opened(model)
    reader = format_of(contents, first)
    if contents.weights is not None and not isinstance(reader, TwoFiles):
        raise CompileError(
            f"{contents} is {reader.name}, which has its weights in itself: leave weights= out"
        )
    with within():
        sized(bytes_of(contents, reader))
        try:
            return reader.load(contents, shapes or {})
        except (CompileError, OSError, ImportError, MemoryError, RecursionError) as error:
            if type(error) is not CompileError or not (remedy := _remedy(str(error))):
                raise
            raise CompileError(f"{error}: {remedy}") from error
        except Exception as error:  # the model's contents don't fit its format
            why = f"{type(error).__name__}: {error}"
            raise CompileError(f"the {reader.name} model is malformed ({why}): {ANEW}") from error


def _remedy(reason: str) -> str:
    """Return what a model's author can do about a reason for which a file isn't read, or ""."""
    if reason.endswith("not supported"):
        return "export or convert the model without it"
    return ANEW if re.search(r"damaged|cut (short|off)", reason) else ""


def bytes_of(contents: Contents, reader: Format) -> int:
    """Return the size of a model's files or message in bytes."""
    if contents.message is not None:
        return int(getattr(contents.message, "ByteSize", lambda: 0)())
    size = len(contents.data)
    with suppress(ValueError, OSError, CompileError):  # loading reports errors of these files
        size += sum(p.stat().st_size for p in reader.beside(contents).values() if p is not None)
    return size


def prepare(model: object, example: Example, first: Sequence[Format] = ()) -> Prepared:
    """Trace a live model by the framework that it belongs to, and return it ready to be compiled. Raises
    CompileError if no format knows it."""
    for reader in (*first, *formats()):
        prepared = reader.prepare(model, example)
        if prepared is not None:
            return prepared
    if isinstance(model, (str, os.PathLike)):
        reader = format_of(opened(model), first)
        raise CompileError(f"{os.fspath(model)} is {reader.name}: leave example_inputs out")
    names = ", ".join(f.name for f in (*first, *formats()))
    raise CompileError(f"a {type(model).__name__} is no model that is read here ({names})")


def format_of(contents: Contents, first: Sequence[Format] = ()) -> Format:
    """Return the format that recognizes a model. Formats in `first` are tried before Jangin's. A file is an
    ONNX model if its name and its first bytes say so; no other format is then imported. Raises FormatError if
    no format recognizes the model."""
    reader = next((f for f in first if f.reads(contents)), None)
    if reader is None and contents.path is not None and contents.path.suffix == ".onnx":
        reader = next((f for f in (OnnxFormat(),) if f.reads(contents)), None)
    if reader is None:
        reader = next((f for f in formats() if f.reads(contents)), None)
    if reader is None:
        known = (*first, *formats())
        if why := next(filter(None, (f.explains(contents) for f in known)), ""):
            raise FormatError(why)
        names = ", ".join(f.name for f in known)
        raise FormatError(f"{contents}, {_kind(contents)}, is of no format that is read here ({names})")
    return reader


def _kind(contents: Contents) -> str:
    """Return a description of a model for messages."""
    if contents.message is not None:
        return f"a {type(contents.message).__name__}"
    return f"which starts with {contents.data[:16]!r}" if contents.data else "a directory"
