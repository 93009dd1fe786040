"""The protocol `Format`: how a model format recognizes, loads and explains its files.

`frontends.table` lists Jangin's formats. `jangin.compile(model, formats=[...])` adds others, which are tried
first. Cached models are recognized too. A format's module therefore imports what only loading needs when it
loads."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
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
        """Return the message as the bytes of a file of its format."""


@dataclass(frozen=True)
class Written:
    """A message's bytes in a file without a name. They are written once. This process hashes them, and
    another process reads them."""

    file: BinaryIO

    def mapped(self) -> mmap:
        return mmap(self.file.fileno(), 0, access=ACCESS_READ)


@contextmanager
def written(model: ModelSource) -> Iterator[ModelSource]:
    """Inside this context, have the model in a form that can be sent to another process: a message becomes
    `Written`.

    A message with a method `write` writes itself to the file, so that its bytes are never in memory as a
    whole."""
    if not hasattr(model, "SerializeToString"):
        yield model
        return
    import tempfile  # few models need it, and it imports ten modules

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
    """A model whose structure and weights are two files that may lie in different folders."""

    structure: str | os.PathLike[str]
    weights: str | os.PathLike[str]


ModelSource = str | os.PathLike[str] | bytes | mmap | Message | Written | Paired
"""A model in the forms that a caller may give: a path, bytes, a mapped file, a message or two paths. The
compiler passes messages on as `Written`."""


def paired(model: Any, weights: str | os.PathLike[str] | None) -> Any:
    """Return a model together with the path of its weights, or the model alone if `weights` is None. Raises
    ValueError if weights are given and the model isn't a path."""
    if weights is None or isinstance(model, Paired):
        return model
    if not isinstance(model, (str, os.PathLike)):
        raise ValueError(
            "weights= needs the model as a path, because both are files: give the path, or leave weights= out"
        )
    return Paired(model, weights)


def is_live(model: object) -> bool:
    """Tell if a model is a framework's object, which is traced instead of read."""
    is_stored = isinstance(model, (str, os.PathLike, bytes, bytearray, memoryview, mmap, Paired))
    return not is_stored and not hasattr(model, "SerializeToString")


@dataclass(frozen=True)
class Contents:
    """An opened model.

    A message has only `message`. Other models have their bytes as `data`. It is mapped if they are in a file,
    and empty for a folder. `path` and `weights` are set if given. A file must not change while arrays view
    it."""

    data: mmap | bytes = b""
    path: Path | None = None
    message: Message | None = None
    weights: Path | None = None

    def __str__(self) -> str:
        return "the model" if self.path is None else str(self.path)


def opened(model: ModelSource) -> Contents:
    """Open a model, without interpreting it by any format.

    Raises CompileError if there is nothing to read. The error is also a FileNotFoundError if there is no
    file."""
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
    """Example arguments of a framework's live model. `dynamic_shapes` tells which of their sizes may change,
    in the framework's notation."""

    args: Sequence[Any] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    dynamic_shapes: Any = None


class Prepared(Protocol):
    """A live model of a framework, ready to be compiled."""

    @property
    def model(self) -> ModelSource:
        """The model that is compiled."""

    def finished(self, executable: Any, again: Callable[[], Any]) -> Any:
        """Return the object that the caller gets for the compiled `executable`. It is called like the live
        model. `again()` compiles the live model once more, as after a change of its weights."""


class Format(Protocol):
    """A model format. A custom format derives from this class to inherit its defaults."""

    name: str
    """The format's name in messages, such as "ONNX"."""
    modules: Sequence[str] = ()
    """The modules that `load` imports. A process that will load several models imports them in advance."""

    def reads(self, contents: Contents) -> bool:
        """Tell if the model is of this format, by its contents alone. File names don't count."""

    def explains(self, contents: Contents) -> str:
        """Return a text about a model that no format reads: what kind of model of this framework it is, and
        what to do with it.

        Return "" if the framework doesn't write such models."""
        return ""

    def beside(self, contents: Contents) -> Mapping[str, Path | None]:
        """Return the other files that loading the model may read, by their names in the model. A file that
        won't be read, such as a missing one, has the path None.

        The key of the compile cache depends on the files' contents. Raises ValueError if the files can't be
        determined."""
        return {}

    def prepare(self, model: object, example: Example) -> Prepared | None:
        """Trace a live model of the format's framework by running it, and return it ready to be compiled.
        Return None if the model isn't this framework's."""
        return None

    def load(self, contents: Contents, shapes: ShapeBindings) -> Imported:
        """Load the model, and return it in the operators of its format.

        `shapes` binds sizes by name: {"batch": 1} a symbol, {"seq": (1, 512)} a symbol's inclusive range,
        {"image": (1, 3, 224, 224)} a whole input. None keeps a dimension of an input. See
        `frontends.assemble`. Raises CompileError if the model is malformed."""


ACTIVATIONS = ("float32", "int8")
"""The types to which a format's setting `activations` may round the operands of blockwise quantized
weights."""


def check_activations(activations: str) -> None:
    """Raise ValueError if the type isn't one of ACTIVATIONS."""
    if activations not in ACTIVATIONS:
        raise ValueError(f"activations={activations!r} is unknown; known: {', '.join(ACTIVATIONS)}")


class TwoFiles(Format):
    """The base of formats that have structure and weights in two files.

    A model's path is the path of its structure. The weights have the same name with the ending `suffix`
    (".weights"), unless their path is given. `structure` is the structure's name in messages ("a Darknet
    cfg")."""

    structure: str
    suffix: str

    def beside(self, contents: Contents) -> Mapping[str, Path | None]:
        path = self._weights(contents)
        return {path.name: path if path.is_file() else None}

    def found(self, contents: Contents) -> Path:
        """Return the path of the file of weights. Raises CompileError if there is none."""
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
"""An archive may unpack to at most this many times its own size. Weights hardly compress, so a larger growth
is taken for an attack."""
LEAST_LIMIT = 1 << 26
"""An archive may always unpack to this many bytes, 64 MiB. Small archives of constants such as zeros shrink
by more than `MOST_GROWTH`."""


def most_unpacked(size: int) -> int:
    """Return the most bytes that an archive of `size` bytes may unpack to."""
    return max(LEAST_LIMIT, size * MOST_GROWTH)
