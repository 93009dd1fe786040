"""What a model format says of its files: the protocol `Format`.

`frontends.table` lists those that Jangin has; `jangin.compile(model, formats=[...])` takes others, which are
asked first. What a format says is asked of models in the cache too, so that a format's module imports what
only loading needs where it loads.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import field, replace
from mmap import ACCESS_READ, mmap
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Protocol, cast

from jangin.files import writing
from jangin.ir.errors import CompileError, MissingError, UnreadError
from jangin.ir.records import dataclass
from jangin.mapped import map_file

if TYPE_CHECKING:
    from jangin.frontends.assemble import ShapeBindings
    from jangin.frontends.dialect import Imported


class Message(Protocol):
    """A model that a library holds as an object, such as a protobuf message."""

    def SerializeToString(self, *, deterministic: bool = ...) -> bytes:
        """Its bytes, as the format's files have them."""


@dataclass(frozen=True)
class Written:
    """A message's bytes in a file that has no name: they are written once, to be hashed here and read by
    another process."""

    file: BinaryIO

    def mapped(self) -> mmap:
        return mmap(self.file.fileno(), 0, access=ACCESS_READ)


@contextmanager
def written(model: ModelSource) -> Iterator[ModelSource]:
    """A model, as `Written` where it is a message: the bytes of one that can `write` itself are never in
    memory together."""
    if not hasattr(model, "SerializeToString"):
        yield model
        return
    with tempfile.TemporaryFile() as unnamed:
        file = cast(BinaryIO, unnamed)
        write = getattr(model, "write", None)
        with writing(tempfile.gettempdir()):
            if write is None:
                file.write(cast(Message, model).SerializeToString(deterministic=True))
            else:
                write(file)
            file.flush()
        yield Written(file)


@dataclass(frozen=True)
class Paired:
    """A model whose structure and weights are two files, which don't lie beside each other."""

    structure: str | os.PathLike[str]
    weights: str | os.PathLike[str]


ModelSource = str | os.PathLike[str] | bytes | mmap | Message | Written | Paired
"""A model as a caller gives it: a path, its bytes (which may be a mapped file's), a message or two paths; and
as the compiler hands one on, `Written`."""


def paired(model: Any, weights: str | os.PathLike[str] | None) -> Any:
    """A model with its weights in a file of their own, if that is given. ValueError where the model is no
    path."""
    if weights is None or isinstance(model, Paired):
        return model
    if not isinstance(model, (str, os.PathLike)):
        raise ValueError("weights= goes with the path of a model's structure")
    return Paired(model, weights)


def is_live(model: object) -> bool:
    """Whether a model is an object of a framework, which is traced rather than read."""
    given = isinstance(model, (str, os.PathLike, bytes, bytearray, memoryview, mmap, Paired))
    return not given and not hasattr(model, "SerializeToString")


@dataclass(frozen=True)
class Contents:
    """A model that was opened: `message` alone, or its bytes (mapped where they are a file's; none for a
    folder), its path where it has one, and that of its weights where it was given. A file must stay as it
    is while arrays that lie in it are used."""

    data: mmap | bytes = b""
    path: Path | None = None
    message: Message | None = None
    weights: Path | None = None

    def __str__(self) -> str:
        return "the model" if self.path is None else str(self.path)


def opened(model: ModelSource) -> Contents:
    """The model, read by no format yet. CompileError where there is nothing to
    read, which is FileNotFoundError too where there is no file."""
    if isinstance(model, Paired):
        return replace(opened(model.structure), weights=Path(model.weights))
    if isinstance(model, (mmap, Written)):
        contents = Contents(model if isinstance(model, mmap) else model.mapped())
    elif isinstance(model, (bytes, bytearray, memoryview)):
        contents = Contents(bytes(model))
    elif not isinstance(model, (str, os.PathLike)):
        return Contents(message=model)
    else:
        path = Path(model)
        if path.is_dir():
            return Contents(path=path)
        if path.exists() and not path.is_file():  # a pipe can't be read twice
            raise CompileError(f"{path} is no file: read it, and give the bytes")
        try:
            contents = Contents(map_file(path), path)
        except OSError as error:
            kind = MissingError if isinstance(error, FileNotFoundError) else UnreadError
            raise kind(error.errno, error.strerror or str(error), str(path)) from None
    if not contents.data:
        raise CompileError(f"{contents} is empty")
    return contents


@dataclass(frozen=True)
class Example:
    """How a live model of a framework is called: with such arguments; `dynamic_shapes` says, as the framework
    has it, which of their sizes may change."""

    args: Sequence[Any] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    dynamic_shapes: Any = None


class Prepared(Protocol):
    """A live model of a framework, ready to be compiled."""

    @property
    def model(self) -> ModelSource:
        """What is compiled."""

    def finished(self, executable: Any) -> Any:
        """What its caller gets: it is called as the model is."""


class Format(Protocol):
    """A model format. A class of its own derives from this one, for what most formats have in common."""

    name: str
    """As messages call it: "ONNX"."""
    modules: Sequence[str] = ()
    """What `load` imports, for a process that is going to load several models."""

    def reads(self, contents: Contents) -> bool:
        """Whether the model is of this format, by its content: names of files say nothing."""

    def explains(self, contents: Contents) -> str:
        """Say what kind of model this is, and what to do with it, if this framework writes it.

        The model is one that no format reads. Returns "" if the framework doesn't write this kind."""
        return ""

    def beside(self, contents: Contents) -> Mapping[str, Path | None]:
        """The other files that loading the model may read, by how it names them, None for one that it won't:
        the compile cache knows a model by their contents too. ValueError where they can't be told."""
        return {}

    def prepare(self, model: object, example: Example) -> Prepared | None:
        """A live model of the framework whose format this is, which is traced by running it; None where
        it is none."""
        return None

    def load(self, contents: Contents, shapes: ShapeBindings) -> Imported:
        """The model, read once. `shapes` binds sizes: {"batch": 1} a symbol, {"seq": (1, 512)} a symbol's
        inclusive range, {"image": (1, 3, 224, 224)} a whole input (None keeps a dimension); see
        `frontends.assemble`. CompileError for anything malformed."""


ACTIVATIONS = ("float32", "int8")
"""Of what weights in blocks are multiplied with: what the setting `activations` of a format may be."""


def check_activations(activations: str) -> None:
    """ValueError where that isn't one of ACTIVATIONS."""
    if activations not in ACTIVATIONS:
        raise ValueError(f"activations of {activations!r} are unknown; known: {', '.join(ACTIVATIONS)}")


class TwoFiles(Format):
    """What formats have in common that keep structure and weights apart: the path of a model is that of its
    structure, and the weights lie beside it under the same stem, unless their path is given.

    `structure`: what messages call that file ("a Darknet cfg"); `suffix`: the weights' (".weights")."""

    structure: str
    suffix: str

    def beside(self, contents: Contents) -> Mapping[str, Path | None]:
        path = self._weights(contents)
        return {path.name: path if path.is_file() else None}

    def found(self, contents: Contents) -> Path:
        """The weights' file. CompileError where there is none."""
        path = self._weights(contents)
        if not path.is_file():
            where = (
                "there is no such file as" if contents.weights else "whose weights should lie beside it as"
            )
            raise MissingError(f"{contents} is {self.structure}, {where} {path}; weights= names another file")
        return path

    def _weights(self, contents: Contents) -> Path:
        if contents.path is None:
            raise CompileError(f"{self.structure} is read from a path, as its weights are another file")
        return contents.weights or contents.path.with_suffix(self.suffix)


MOST_GROWTH = 200
"""How many times its own size an archive may unpack to: weights hardly shrink, and more is meant to harm."""
LEAST_LIMIT = 1 << 26


def most_unpacked(size: int) -> int:
    """How many bytes an archive of so many may unpack to: one that holds more is none of a model's."""
    return max(LEAST_LIMIT, size * MOST_GROWTH)
