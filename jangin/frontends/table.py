"""The model formats that Jangin has: a line each. The first that reads a model loads it."""

from __future__ import annotations

from collections.abc import Sequence

from jangin.frontends.assemble import ShapeBindings
from jangin.frontends.dialect import Contents, Dialect, Imported, ModelSource, opened
from jangin.frontends.onnx.dialect import ONNX
from jangin.ir.graph import CompileError

DIALECTS: tuple[Dialect, ...] = (ONNX,)
"""In the order in which they are asked: one whose files are known by more goes before one that takes any."""


def load(model: ModelSource, shapes: ShapeBindings | None = None, first: Sequence[Dialect] = ()) -> Imported:
    """Import a model by the dialect that reads it, those in `first` before Jangin's own. Raises CompileError
    where none does, and for anything malformed. `shapes`: see `Dialect.load`."""
    contents = opened(model)
    dialects = (*first, *DIALECTS)
    dialect = next((d for d in dialects if d.reads(contents)), None)
    if dialect is None:
        names = ", ".join(d.name for d in dialects)
        raise CompileError(f"{contents}, {_kind(contents)}, is of no format that is read here ({names})")
    try:
        return dialect.load(contents, shapes or {})
    except (UnicodeDecodeError, OverflowError, RecursionError, MemoryError) as error:
        why = f"{type(error).__name__}: {error}"
        raise CompileError(f"the {dialect.name} model is malformed: {why}") from error


def _kind(contents: Contents) -> str:
    """What was given, for messages."""
    if contents.message is not None:
        return f"a {type(contents.message).__name__}"
    return f"which starts with {contents.data[:16]!r}" if contents.data else "a directory"
