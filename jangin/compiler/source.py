"""The source of a model: the contents that determine the compile cache's key, and whether they stay the same.

Names, sizes and times of files don't prove their contents. Archives, `cp -p`, Nix and Bazel restore them, and
a write into a mapped page may leave them unchanged. Therefore everything that is read is hashed, each
time."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from jangin.frontends.format import ModelSource, Paired, opened
from jangin.frontends.table import format_of
from jangin.ir.graph import CompileError
from jangin.ir.records import dataclass
from jangin.mapped import Digests, map_file


@dataclass(frozen=True)
class Files:
    """The files of a model. `files` has those that are read, each with its state before reading."""

    files: tuple[tuple[Path, tuple[int, ...]], ...] = ()

    @staticmethod
    def of(model: ModelSource) -> Files | None:
        """Return the files of a model, which aren't hashed. Return None if one of them can't be read."""
        read = _read(model)
        return None if read is None else Files(read.files)

    def held(self) -> Held | None:
        """Open the file of a model that has just one. Return None for other models, and for a file that is
        gone already."""
        if len(self.files) != 1:
            return None
        try:
            return Held(*self.files[0])
        except OSError:
            return None

    def unchanged(self) -> bool:
        """Return whether the files still have the state that they had before reading. It is called
        after the compilation has read them too."""
        try:
            return all(_state(path) == state for path, state in self.files)
        except OSError:
            return False


@dataclass(frozen=True)
class Source(Files):
    """The contents of a model. `digests` has the digest of the model's bytes, then the name and digest of
    each other file that it names."""

    digests: tuple[bytes, ...] = ()

    @staticmethod
    def of(model: ModelSource) -> Source | None:
        """Hash a model, and return its source. Return None if the model, or a file that it names, can't be
        read. Such a model isn't cached."""
        return Source.begun(model)()

    @staticmethod
    def begun(model: ModelSource) -> Callable[[], Source | None]:
        """Start to hash a model on threads in the background. Return a function that waits for them, and
        returns what `of` returns."""
        read = _read(model)
        if read is None:
            return lambda: None
        digests = Digests([*read.contents.values()], passing=True)

        def source() -> Source:
            hashes = dict(zip(read.contents, digests.wait(), strict=True))
            return Source(read.files, tuple(hashes.get(n, part) for n, part in enumerate(read.parts)))

        return source


class _Read(NamedTuple):
    """The files of a model, the parts of its source, and the contents whose digests replace parts, by their
    numbers."""

    files: tuple[tuple[Path, tuple[int, ...]], ...]
    parts: Sequence[bytes]
    contents: Mapping[int, memoryview]


def _read(model: ModelSource) -> _Read | None:
    """Return what a model consists of, or None if a part of it can't be read."""
    structure = model.structure if isinstance(model, Paired) else model
    path = Path(structure) if isinstance(structure, (str, os.PathLike)) else None
    if path is not None and not path.is_file():
        return None
    try:
        files = [] if path is None else [(path, _state(path))]
        opening = opened(model)
        message = opening.message
        data = opening.data if message is None else message.SerializeToString(deterministic=True)
        parts, contents = [b""], {0: memoryview(data)}
        for name, file in format_of(opening).beside(opening).items():
            parts += os.fsencode(name), b""
            if file is not None:
                files.append((file, _state(file)))
                contents[len(parts) - 1] = memoryview(map_file(file))
    except (OSError, ValueError, CompileError):  # compiling reports what is wrong with it
        return None
    return _Read(tuple(files), parts, contents)


class Held:
    """The one file of a model, held open. It can be read after it was removed or replaced."""

    def __init__(self, path: Path, state: tuple[int, ...]) -> None:
        self._file, self._state = path.open("rb"), state

    def read(self) -> bytes | None:
        """Return the contents, or None if they may have been written to since the file had its state."""
        data = self._file.read()
        now = _numbers(os.fstat(self._file.fileno()))
        return data if now[:-1] == self._state[:-1] else None  # removing a file changes its last time

    def close(self) -> None:
        self._file.close()


def _state(path: Path) -> tuple[int, ...]:
    """Return a file's device, inode, size and times, at least one of which any write changes. The inode's
    change time can't be set back."""
    return _numbers(path.stat())


def _numbers(status: os.stat_result) -> tuple[int, ...]:
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns
