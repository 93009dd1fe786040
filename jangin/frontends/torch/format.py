"""Recognize and load PyTorch's programs: those saved by `torch.export.save` (.pt2), exported programs, and
those traced by Jangin."""

from __future__ import annotations

import io
import os
import sys
import warnings
from typing import TYPE_CHECKING, Any

from jangin.frontends.format import Contents, Example, Format, Prepared, most_unpacked, opened
from jangin.ir.graph import CompileError

if TYPE_CHECKING:
    from jangin.frontends.assemble import ShapeBindings
    from jangin.frontends.dialect import Imported

TRACED = b"\x8aJGT\r\n\x1a\n"
INSIDE = ("serialized_exported_program.json", "archive_format", "models/model.json")
"""Endings of file names in the archives of exported programs. The files may be in any folder of the
archive."""
SCRIPT = "/constants.pkl"
"""The ending of a file name in the archives of TorchScript."""


class TorchFormat(Format):
    name = "PyTorch"

    def reads(self, contents: Contents) -> bool:
        message: Any = contents.message
        if message is not None:
            return type(message).__name__ == "TracedModel"
        return contents.data[:8] == TRACED or _holds(contents, (*INSIDE, SCRIPT))

    def explains(self, contents: Contents) -> str:
        if contents.message is not None:
            return ""
        from jangin.frontends.torch.pickles import explained

        return explained(contents)

    def prepare(self, model: object, example: Example) -> Prepared | None:
        model = _script(model)
        if not _is_live(model):
            return None
        from jangin.frontends.torch.module import PreparedModule

        return PreparedModule(model, example)

    def load(self, contents: Contents, shapes: ShapeBindings) -> Imported:
        from jangin.frontends.dialect import Imported
        from jangin.frontends.torch.dialect import ATEN
        from jangin.frontends.torch.model import TracedModel

        message: Any = contents.message
        if isinstance(message, TracedModel):
            model = message
        elif message is None and contents.data[:8] == TRACED:
            model = TracedModel.parse(contents.data)
        else:
            model = _traced(contents)
        return Imported(model.bound(shapes), ATEN, dict(model.metadata))


def _script(model: object) -> object:
    """Return the module of a TorchScript archive if a model is the path of one, else the model itself. Raises
    CompileError if PyTorch isn't installed."""
    if not isinstance(model, (str, os.PathLike)) or not os.path.isfile(model):
        return model
    contents = opened(model)
    if not _holds(contents, (SCRIPT,)) or _holds(contents, INSIDE):
        return model
    try:
        import torch
    except ImportError:
        raise CompileError(
            f"{contents} is a TorchScript archive, which PyTorch reads: pip install 'jangin[torch]'"
        ) from None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # PyTorch warns about its own format
        return torch.jit.load(os.fspath(model), map_location="cpu")


def _is_live(model: object) -> bool:
    """Tell if an object is a PyTorch module or exported program. PyTorch isn't imported for this, because
    such an object needs a process that has already imported it."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(model, (torch.nn.Module, torch.export.ExportedProgram))


def _holds(contents: Contents, names: tuple[str, ...]) -> bool:
    """Tell if a model is a zip archive with a file whose name ends with one of `names`."""
    if contents.data[:4] != b"PK\x03\x04":
        return False
    import zipfile

    try:
        with zipfile.ZipFile(io.BytesIO(contents.data)) as archive:
            return any(name.endswith(names) for name in archive.namelist())
    except (zipfile.BadZipFile, NotImplementedError, ValueError):  # damaged, or too new
        return False


def _traced(contents: Contents) -> Any:
    try:
        import torch
    except ImportError:
        raise CompileError(
            f"{contents} is an exported PyTorch program, which PyTorch reads: pip install 'jangin[torch]'"
        ) from None
    import zipfile

    from jangin.frontends.torch.trace import traced

    with zipfile.ZipFile(io.BytesIO(contents.data)) as archive:
        size = sum(entry.file_size for entry in archive.infolist())
    if size > most_unpacked(len(contents.data)):
        raise CompileError(
            f"{contents} unpacks to {size} bytes, far more than its size allows: it is not read"
        )
    if not _holds(contents, INSIDE):
        raise CompileError(
            f"{contents} is a TorchScript archive, which has no example of its inputs: "
            "give its path and example_inputs=(...)"
        )
    try:
        return traced(torch.export.load(io.BytesIO(contents.data))).model
    except CompileError:
        raise
    except Exception as error:  # PyTorch raises any exception for a damaged archive
        first = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise CompileError(f"{contents}: PyTorch can't read the exported program: {first}") from error
