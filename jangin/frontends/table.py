"""The model formats that Jangin has. The first that recognizes a model loads it."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from jangin.frontends.caffe.format import CaffeFormat
from jangin.frontends.coreml.format import CoreMLFormat
from jangin.frontends.darknet.format import DarknetFormat
from jangin.frontends.format import (
    Contents,
    Example,
    Format,
    ModelSource,
    Prepared,
    TwoFiles,
    opened,
)
from jangin.frontends.gguf.format import GgufFormat
from jangin.frontends.nnef.format import NnefFormat
from jangin.frontends.onnx.format import OnnxFormat
from jangin.frontends.tflite.format import TfliteFormat
from jangin.frontends.torch.format import TorchFormat
from jangin.ir.errors import CompileError, FormatError
from jangin.ir.limits import sized, within

if TYPE_CHECKING:
    from jangin.frontends.assemble import ShapeBindings
    from jangin.frontends.dialect import Imported

FORMATS: tuple[Format, ...] = (
    TorchFormat(), TfliteFormat(), GgufFormat(), CoreMLFormat(), NnefFormat(), DarknetFormat(),
        CaffeFormat(), OnnxFormat(),
)  # fmt: skip
"""The formats in the order in which they are tried. Those that accept almost any bytes come last."""

ANEW = "copy the file again, or export or convert the model again"
"""The remedy for a damaged file."""


def is_own(reader: Format) -> bool:
    """Tell if a format is one of Jangin's formats, with whatever settings."""
    return any(type(reader) is type(known) for known in FORMATS)


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
    for reader in (*first, *FORMATS):
        prepared = reader.prepare(model, example)
        if prepared is not None:
            return prepared
    if isinstance(model, (str, os.PathLike)):
        reader = format_of(opened(model), first)
        raise CompileError(f"{os.fspath(model)} is {reader.name}: leave example_inputs out")
    names = ", ".join(f.name for f in (*first, *FORMATS))
    raise CompileError(f"a {type(model).__name__} is no model that is read here ({names})")


def format_of(contents: Contents, first: Sequence[Format] = ()) -> Format:
    """Return the format that recognizes a model. Formats in `first` are tried before Jangin's. Raises
    FormatError if no format does."""
    formats = (*first, *FORMATS)
    reader = next((f for f in formats if f.reads(contents)), None)
    if reader is None:
        if why := next(filter(None, (f.explains(contents) for f in formats)), ""):
            raise FormatError(why)
        names = ", ".join(f.name for f in formats)
        raise FormatError(f"{contents}, {_kind(contents)}, is of no format that is read here ({names})")
    return reader


def _kind(contents: Contents) -> str:
    """Return a description of a model for messages."""
    if contents.message is not None:
        return f"a {type(contents.message).__name__}"
    return f"which starts with {contents.data[:16]!r}" if contents.data else "a directory"
