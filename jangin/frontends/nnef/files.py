"""Find an NNEF model's files in a folder or in an archive (tar, possibly compressed). An archive is unpacked
in memory.

Nothing is written to disk, so that no name in an archive can lead outside of the model. Links and devices
don't count as files."""

from __future__ import annotations

import io
import os
import re
import zlib
from collections.abc import Mapping
from mmap import mmap
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jangin.frontends.format import Contents, most_unpacked
from jangin.ir.graph import CompileError
from jangin.mapped import map_file

if TYPE_CHECKING:
    import tarfile

GRAPH, QUANTIZATION = "graph.nnef", "graph.quant"
MOST_FILES = 100_000
"""The most files of a model. A larger folder or archive is taken for a mistake, such as a whole home folder,
and isn't listed to its end."""
BEGINS = re.compile(rb"(\s|#[^\n]*\n)*version\s+\d")


class Files:
    """A model's files by their names, with slashes ("conv1/filter.dat")."""

    def __init__(self, what: str) -> None:
        self.what = what

    def find(self, name: str) -> bytes | memoryview | None:
        """Return a file's contents, or None if there is no such file. Raises CompileError if the name leads
        outside of the model."""
        raise NotImplementedError

    def need(self, name: str) -> bytes | memoryview:
        contents = self.find(name)
        if contents is None:
            raise CompileError(f"{self.what} has no file '{name}'")
        return contents


class InFolder(Files):
    def __init__(self, folder: Path, graph: Path | None = None) -> None:
        super().__init__(str(graph or folder))
        self.folder, self.graph = folder, graph

    def path(self, name: str) -> Path | None:
        """Return the path of a file in the folder, or None if there is no such file. Raises CompileError if
        the name leads outside."""
        if self.graph is not None and name == GRAPH:
            return self.graph
        inside = _plain(name)
        try:
            file = (self.folder / inside).resolve()
            if not file.is_relative_to(self.folder.resolve()):
                raise CompileError(f"{self.what}: file '{name}' lies outside of the model's folder")
            return file if file.is_file() else None
        except (OSError, RuntimeError, ValueError) as error:
            raise CompileError(f"{self.what}: file '{name}' can't be read: {error}") from None

    def find(self, name: str) -> bytes | memoryview | None:
        file = self.path(name)
        if file is None or not file.stat().st_size:
            return None if file is None else b""
        try:
            return memoryview(map_file(file))
        except OSError as error:
            raise CompileError(f"{file}: {error.strerror or error}") from None

    def all(self) -> Mapping[str, Path | None]:
        """Return the paths of all files that the model may read, by their names. A missing file has None.
        Raises ValueError for too many files."""
        paths: dict[str, Path | None] = {}
        for name in (GRAPH, QUANTIZATION):
            paths[name] = self.path(name)
        for root, _, names in os.walk(self.folder):
            for name in sorted(names):
                if name.endswith(".dat"):
                    file = Path(root, name)
                    paths[file.relative_to(self.folder).as_posix()] = file
                    if len(paths) > MOST_FILES:
                        raise ValueError(
                            f"{self.folder} has more than {MOST_FILES} .dat files: give the folder of one "
                            "model"
                        )
        return paths


class InArchive(Files):
    def __init__(self, what: str, files: Mapping[str, bytes]) -> None:
        super().__init__(what)
        self.files = files

    def find(self, name: str) -> bytes | memoryview | None:
        return self.files.get(_plain(name))


def _plain(name: str) -> str:
    """Return the normalized form of a file's name in the model. Raises CompileError if the name may lead
    outside."""
    parts = [p for p in name.split("/") if p not in ("", ".")]
    if ".." in parts or "\0" in name or "\\" in name or not parts:
        raise CompileError(f"file '{name}' is no name of a file inside the model")
    return "/".join(parts)


NO_MEMORY = "Error -4 "
"""The beginning of zlib's messages about missing memory (Z_MEM_ERROR)."""


def is_model(contents: Contents) -> bool:
    """Tell if an opened file or folder is an NNEF model: a folder or archive with a graph.nnef, or a file
    that begins as one."""
    if contents.message is not None:
        return False
    if not contents.data:
        return contents.path is not None and (contents.path / GRAPH).is_file()
    if is_archive(contents.data):
        import tarfile

        try:
            with _opened(contents) as archive:
                return any(_plain(m.name) == GRAPH for m in archive if m.isfile())
        except (tarfile.TarError, OSError, EOFError, zlib.error, CompileError) as error:
            if NO_MEMORY in str(error):
                raise MemoryError(str(error)) from error
            return False
    return BEGINS.match(bytes(contents.data[:4096])) is not None


def files_of(contents: Contents) -> Files:
    """Return the files of an opened model. Raises CompileError if an archive is damaged or has unsafe
    names."""
    if not contents.data:
        assert contents.path is not None
        return InFolder(contents.path)
    if is_archive(contents.data):
        return InArchive(str(contents), _unpacked(contents))
    if contents.path is not None:
        return InFolder(contents.path.parent, contents.path)
    return InArchive(str(contents), {GRAPH: bytes(contents.data)})


def is_archive(data: bytes | mmap) -> bool:
    """Tell if bytes begin like a tar archive or a compressed file."""
    head = bytes(data[:512])
    return (
        head[:2] == b"\x1f\x8b"
        or head[257:262] == b"ustar"
        or head[:3] == b"BZh"
        or head[:6] == b"\xfd7zXZ\0"
    )


class _Limited(io.RawIOBase):
    """A stream that raises an error after `limit` bytes, which is the most that an archive may unpack to."""

    def __init__(self, stream: io.BufferedIOBase, limit: int) -> None:
        self.stream, self.left = stream, limit

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: object) -> int:
        data = self.stream.read(len(buffer))  # type: ignore[arg-type]
        self.left -= len(data)
        if self.left < 0:
            raise CompileError("the archive is not read: it unpacks to far more bytes than its size allows")
        buffer[: len(data)] = data  # type: ignore[index]
        return len(data)


def _opened(contents: Contents) -> tarfile.TarFile:
    import bz2
    import gzip
    import lzma
    import tarfile

    raw = io.BytesIO(contents.data)
    limit = most_unpacked(len(contents.data))
    head = bytes(contents.data[:6])
    kinds: Mapping[bytes, Any] = {b"\x1f\x8b": gzip.open, b"BZ": bz2.open, b"\xfd7": lzma.open}
    stream = kinds[head[:2]](raw) if head[:2] in kinds else raw
    return tarfile.open(fileobj=io.BufferedReader(_Limited(stream, limit)), mode="r|")


def _unpacked(contents: Contents) -> dict[str, bytes]:
    import tarfile

    files: dict[str, bytes] = {}
    try:
        with _opened(contents) as archive:
            for member in archive:
                if member.isdir():
                    continue
                if not member.isfile():
                    raise CompileError(f"{contents}: '{member.name}' in the archive is no file but a link")
                name = _plain(member.name)
                if name in files or len(files) == MOST_FILES:
                    raise CompileError(
                        f"{contents}: '{name}' is in the archive twice, "
                        f"or the archive has more than {MOST_FILES} files"
                    )
                stream = archive.extractfile(member)
                assert stream is not None
                files[name] = stream.read()
                if len(files[name]) != member.size:
                    raise CompileError(f"{contents}: '{name}' in the archive is cut short")
    except (tarfile.TarError, OSError, EOFError, zlib.error, ValueError) as error:
        raise CompileError(f"{contents} is a damaged archive: {error}") from error
    return files
