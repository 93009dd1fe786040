"""What a model is read from: the contents that the compile cache's key takes, and whether they stay so.

Names, sizes and times of files say nothing certain of their contents (archives, `cp -p`, Nix and Bazel give
them back; a write into a mapped page may leave them), so that all that is read is hashed, each time.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from jangin.frontends.onnx.file import Folder, locations
from jangin.mapped import digest, map_file

if TYPE_CHECKING:
    import onnx


@dataclass(frozen=True)
class Source:
    """`digests`: of the model's bytes, and of each file of external data that it names, with the name.
    `files`: those read, each with its state before that."""

    digests: tuple[bytes, ...]
    files: tuple[tuple[Path, tuple[int, ...]], ...] = ()

    @classmethod
    def of(cls, model: str | Path | bytes | onnx.ModelProto) -> Source | None:
        """None where what it names can't be found out: such a model is in no cache."""
        if isinstance(model, bytes):
            return cls((digest(model),))
        if not isinstance(model, (str, os.PathLike)):
            return cls((digest(model.SerializeToString(deterministic=True)),))
        path, folder = Path(model), Folder(Path(model))
        if not path.is_file():
            return None
        try:
            files = [(path, _state(path))]
            data = map_file(path)
            digests = [digest(data)]
            for location in locations(memoryview(data)):
                digests.append(os.fsencode(location))
                try:
                    file = folder.find(location)
                except ValueError:  # it may be of a tensor that nothing needs
                    digests.append(b"")
                else:
                    files.append((file, _state(file)))
                    digests.append(digest(map_file(file)))
        except (OSError, ValueError):  # compiling says what is wrong with it
            return None
        return cls(tuple(digests), tuple(files))

    def unchanged(self) -> bool:
        """Whether the files are those that were hashed, after they were read once more to compile them."""
        try:
            return all(_state(path) == state for path, state in self.files)
        except OSError:
            return False


def _state(path: Path) -> tuple[int, ...]:
    """What a write changes: the last time, of the inode's change, can't be set back."""
    status = path.stat()
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns
