"""Explain PyTorch's files that hold no program: weights by name, and pickled modules.

Nothing is unpickled, because unpickling runs any code that a file requests. The names that a file's pickle
imports tell what it is."""

from __future__ import annotations

import io
import json
import pickletools
import struct
import zipfile
from collections.abc import Iterator

from jangin.frontends.format import Contents

HEAD = 1 << 24
"""At most this many bytes of a pickle are examined, an estimate. The first imports are before the tensors."""
PICKLES = 5
"""At most this many pickles in a file are examined. Old files begin with four small ones (magic number,
protocol, system and the object)."""
_PLAIN = ("collections", "builtins", "__builtin__", "torch._utils", "torch.storage", "numpy", "_codecs")
"""Modules of tensors, numbers and their containers. An import from them doesn't tell what a file is."""
_WEIGHTS = (
    "{} has weights by name (a state dict) and no network: make the module, then "
    "module.load_state_dict({}), and jangin.compile(module.eval(), example_inputs=(...))"
)


def explained(contents: Contents) -> str:
    """Return a text that says what a model is and what to do with it, if it is PyTorch's weights or a pickle.
    Return "" for other models."""
    if _is_safetensors(contents):
        return _WEIGHTS.format(contents, f"safetensors.torch.load_file({_path(contents)})")
    imports = [*_imports(contents)]
    if not any(module.partition(".")[0] == "torch" for module, _ in imports):
        return ""
    kinds = [f"{m}.{n}" for m, n in imports if not _is_plain(m, n)]
    if not kinds:
        return _WEIGHTS.format(contents, f"torch.load({_path(contents)})")
    return (
        f"{contents} is a pickled {kinds[0]}, which only PyTorch can read, by running its code: if you trust "
        f"the file, jangin.compile(torch.load({_path(contents)}, weights_only=False).eval(), "
        "example_inputs=(...))"
    )


def _path(contents: Contents) -> str:
    return "path" if contents.path is None else repr(str(contents.path))


def _is_plain(module: str, name: str) -> bool:
    top = module.partition(".")[0]
    storage = module == "torch" and (name.endswith("Storage") or name in ("Size", "device", "dtype"))
    return storage or module in _PLAIN or top == "numpy"


def _is_safetensors(contents: Contents) -> bool:
    length = int.from_bytes(contents.data[:8], "little")
    if contents.data[8:9] != b"{" or length > min(len(contents.data) - 8, HEAD):
        return False
    try:
        header = json.loads(bytes(contents.data[8 : 8 + length]))
    except ValueError:
        return False
    entries = [v for n, v in header.items() if n != "__metadata__"]
    return all(isinstance(v, dict) and {"dtype", "shape", "data_offsets"} <= v.keys() for v in entries)


def _imports(contents: Contents) -> Iterator[tuple[str, str]]:
    """Yield the module and the name of each import in a file's pickles, up to the first byte that isn't
    readable."""
    stream = io.BytesIO(_pickle(contents))
    texts: list[str] = []
    try:
        for _ in range(PICKLES):
            for opcode, argument, _ in pickletools.genops(stream):
                if opcode.name == "GLOBAL" and isinstance(argument, str):
                    module, _, name = argument.partition(" ")
                    yield module, name
                elif opcode.name == "STACK_GLOBAL" and len(texts) > 1:
                    yield texts[-2], texts[-1]
                elif isinstance(argument, str):
                    texts.append(argument)
    except (ValueError, struct.error):  # the end, or no pickle: the imports before tell what the file is
        return


def _pickle(contents: Contents) -> bytes:
    """Return the start of a file's first pickle, which is in PyTorch's archive or is the file itself. Return
    b"" if there is none."""
    if contents.data[:4] != b"PK\x03\x04":
        return bytes(contents.data[:HEAD]) if contents.data[:1] == b"\x80" else b""
    try:
        with zipfile.ZipFile(io.BytesIO(contents.data)) as archive:
            member = next((n for n in archive.namelist() if n.endswith("data.pkl")), None)
            return b"" if member is None else archive.open(member).read(HEAD)
    except (zipfile.BadZipFile, NotImplementedError, ValueError, RuntimeError):  # damaged, or too new
        return b""
