"""The model formats that Jangin has: a line each. The first that reads a model loads it."""

from __future__ import annotations

from collections.abc import Sequence
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
from jangin.ir.graph import CompileError

if TYPE_CHECKING:
    from jangin.frontends.assemble import ShapeBindings
    from jangin.frontends.dialect import Imported

FORMATS: tuple[Format, ...] = (
    TorchFormat(), TfliteFormat(), GgufFormat(), CoreMLFormat(), NnefFormat(), DarknetFormat(),
        CaffeFormat(), OnnxFormat(),
)  # fmt: skip
"""In the order in which they are asked: one that knows its files by more goes before one that takes any."""


def is_own(reader: Format) -> bool:
    """Whether a format is one of Jangin's, with whatever settings."""
    return any(type(reader) is type(known) for known in FORMATS)


def load(model: ModelSource, shapes: ShapeBindings | None = None, first: Sequence[Format] = ()) -> Imported:
    """Import a model by the format that reads it, those in `first` before Jangin's own. Raises CompileError
    where none does, and for anything malformed. `shapes`: see `Format.load`."""
    contents = opened(model)
    reader = format_of(contents, first)
    if contents.weights is not None and not isinstance(reader, TwoFiles):
        raise CompileError(
            f"{contents} is {reader.name}, which has its weights in itself: leave weights= out"
        )
    try:
        return reader.load(contents, shapes or {})
    except MemoryError as error:
        raise CompileError(f"there is no memory to read {contents} as {reader.name}: {error}") from error
    except (UnicodeDecodeError, OverflowError, RecursionError) as error:
        why = f"{type(error).__name__}: {error}"
        raise CompileError(f"the {reader.name} model is malformed: {why}") from error


def prepare(model: object, example: Example, first: Sequence[Format] = ()) -> Prepared:
    """A live model of a framework. Raises CompileError where no format knows it."""
    for reader in (*first, *FORMATS):
        found = reader.prepare(model, example)
        if found is not None:
            return found
    names = ", ".join(f.name for f in (*first, *FORMATS))
    raise CompileError(f"a {type(model).__name__} is no model that is read here ({names})")


def format_of(contents: Contents, first: Sequence[Format] = ()) -> Format:
    """The format that reads a model. Raises CompileError where none does."""
    formats = (*first, *FORMATS)
    found = next((f for f in formats if f.reads(contents)), None)
    if found is None:
        names = ", ".join(f.name for f in formats)
        raise CompileError(f"{contents}, {_kind(contents)}, is of no format that is read here ({names})")
    return found


def _kind(contents: Contents) -> str:
    """What was given, for messages."""
    if contents.message is not None:
        return f"a {type(contents.message).__name__}"
    return f"which starts with {contents.data[:16]!r}" if contents.data else "a directory"
