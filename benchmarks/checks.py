"""Measure what the checks of files and indices cost: load a saved model, and run gathers, with and without
checks.

    python benchmarks/checks.py [MODEL.onnx...]

All loads run in one process, with the file in the page cache. The default "as it is" copies a file of up to
128 MiB, maps a larger one, and hashes every byte. The other ways copy, map, check the signature, or decrypt.
The signature and the cipher need `jangin[crypto]`.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import onnx
from catalogue import CATALOGUE
from onnx import TensorProto, helper, numpy_helper
from rich.console import Console
from rich.table import Table

import jangin
from jangin.runtime.compiled import read_artifact
from jangin.runtime.encryption import save_encrypted
from jangin.runtime.signing import sign

MODELS = ("squeezenet1_1", "resnet50", "bert_base")
TURNS = 15
ROWS, WIDTH, INDICES = 30_000, 384, 512
"""The sizes of the gathers: a typical table of word embeddings, and as many indices as a text has tokens."""


def medians(ways: Mapping[str, Callable[[], object]], turns: int = TURNS) -> dict[str, float]:
    """Return the median seconds of each way, all in turns, after one turn that doesn't count."""
    found: dict[str, list[float]] = {name: [] for name in ways}
    for turn in range(turns + 1):
        for name, way in ways.items():
            start = time.perf_counter()
            way()
            if turn:
                found[name].append(time.perf_counter() - start)
    return {name: statistics.median(seconds) for name, seconds in found.items()}


def keys(folder: Path) -> tuple[Path, Path, Path]:
    """Write files of a private key, a public key and a cipher's key."""
    from cryptography.hazmat.primitives import serialization as form
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    private, public, secret = (folder / name for name in ("private.pem", "public.pem", "secret"))
    key = Ed25519PrivateKey.generate()
    private.write_bytes(key.private_bytes(form.Encoding.PEM, form.PrivateFormat.PKCS8, form.NoEncryption()))
    public.write_bytes(
        key.public_key().public_bytes(form.Encoding.PEM, form.PublicFormat.SubjectPublicKeyInfo)
    )
    secret.write_text("5a" * 32)
    return private, public, secret


def loads(model: Path, folder: Path) -> tuple[float, dict[str, float]]:
    """Return the size of the compiled model in MiB, and the milliseconds of loading it in each way."""
    path, closed = folder / "model.jgn", folder / "closed.jgn"
    jangin.compile(model).save(path)
    private, public, secret = keys(folder)
    sign(path, private)
    save_encrypted(closed, secret, lambda file: file.write(path.read_bytes()))
    found = medians({
        "as it is": lambda: read_artifact(path, None, None, None),
        "copied": lambda: read_artifact(path, None, None, False),
        "mapped": lambda: read_artifact(path, None, None, True),
        "signed": lambda: read_artifact(path, public, None, None),
        "encrypted": lambda: read_artifact(closed, None, secret, None),
    })  # fmt: skip
    return path.stat().st_size / 2**20, {name: seconds * 1e3 for name, seconds in found.items()}


def gathers() -> dict[str, float]:
    """Return the microseconds of a run that gathers rows of a table, with and without checks."""
    table = numpy_helper.from_array(np.ones((ROWS, WIDTH), np.float32), "table")
    graph = helper.make_graph(
        [helper.make_node("Gather", ["table", "at"], ["y"])], "gather",
        [helper.make_tensor_value_info("at", TensorProto.INT64, [INDICES])],
        [onnx.ValueInfoProto(name="y")], [table],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    feeds = {"at": np.random.default_rng(0).integers(0, ROWS, INDICES)}
    ways = {
        name: jangin.compile(model, threads=1, unchecked=unchecked)
        for name, unchecked in (("checked", False), ("unchecked", True))
    }
    found = medians({name: lambda exe=exe: exe.run(feeds) for name, exe in ways.items()}, 2000)
    return {name: seconds * 1e6 for name, seconds in found.items()}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("models", nargs="*", type=Path, metavar="MODEL.onnx")
    models = parser.parse_args().models or [CATALOGUE[name].path for name in MODELS]
    shown = Table("model", "MiB", title="milliseconds of a load")
    for model in models:
        with tempfile.TemporaryDirectory() as folder:
            size, found = loads(model, Path(folder))
        if len(shown.columns) == 2:
            for name in found:
                shown.add_column(name, justify="right")
        shown.add_row(model.stem, f"{size:.0f}", *(f"{ms:.1f}" for ms in found.values()))
    console = Console()
    console.print(shown)
    for name, us in gathers().items():
        console.print(f"gather of {INDICES} rows of {WIDTH}, {name}: {us:.1f} µs a run")


if __name__ == "__main__":
    main()
