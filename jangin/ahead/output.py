"""Write several files to a folder: all or none, and none over an existing file unless requested."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from jangin.files import writing
from jangin.ir.graph import Array

Content = Sequence[bytes | Array]
"""The contents of a file, in consecutive pieces."""


def write_files(folder: Path, files: Mapping[str, Content], *, force: bool) -> None:
    """Write files to a folder, which is created if necessary. They are written under temporary names, then
    renamed.

    Raises FileExistsError for existing files, unless `force` replaces them."""
    if folder.exists() and not folder.is_dir():
        raise FileExistsError(f"{folder} is a file: give a folder to write to")
    there = [name for name in files if (folder / name).exists()]
    if there and not force:
        raise FileExistsError(
            f"{folder} has {', '.join(there)} already, and nothing was written: give another folder, or "
            "--force (force=True) to replace them"
        )
    is_new = not folder.exists()
    try:
        with writing(folder):
            folder.mkdir(parents=True, exist_ok=True)
            _put(folder, files)
    except BaseException:
        if is_new:
            shutil.rmtree(folder, ignore_errors=True)
        raise


def _put(folder: Path, files: Mapping[str, Content]) -> None:
    aside = Path(tempfile.mkdtemp(prefix=".jangin-", dir=folder))
    try:
        for name, content in files.items():
            (aside / name).parent.mkdir(parents=True, exist_ok=True)
            with open(aside / name, "wb") as file:
                for piece in content:
                    file.write(piece if isinstance(piece, bytes) else piece.data)
        for name in files:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            os.replace(aside / name, folder / name)
    finally:
        shutil.rmtree(aside, ignore_errors=True)
