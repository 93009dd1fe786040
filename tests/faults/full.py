"""Writes files of every kind to a folder that takes no more. The folder is on a full disk of its own, or its
files may take no more bytes (`limit`).

`python full.py FOLDER ELSEWHERE disk|limit WAY...` prints as JSON how each way ended: its message, and what
is wrong with the ending. A way is wrong if its message doesn't name the file and a remedy. A way is also
wrong if it leaves anything behind, or changes a file that was there before.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from functools import partial
from io import StringIO
from pathlib import Path

import numpy as np
from kinds import kind, model
from onnx import ModelProto

import jangin
from jangin import cli
from jangin.commands.errors import explain

KEPT = b"what was there before"
OVERWRITTEN = (".jgn", ".html", ".json", ".svg", ".npy", ".npz")
Way = tuple[str, str, Callable[[], str]]
"""A way to write a file: its name, the file or folder that it writes, and the function that writes and
returns the error's text."""


def large_model(folder: Path) -> Path:
    """Write a model of a product with weights of 256 KB."""
    w = np.random.default_rng(0).standard_normal((256, 256)).astype(np.float32)
    path = folder / "large.onnx"
    path.write_bytes(model("g (float[n,256] x) => (float[n,256] y) { m = MatMul(x, w) y = Relu(m) }", w=w))
    return path


def command(*arguments: object) -> str:
    """Run a command and return the text of its error, "" if there is none."""
    sys.argv = ["jangin", *map(str, arguments)]
    said = StringIO()
    with redirect_stdout(said), redirect_stderr(said):
        try:
            cli.main()
        except SystemExit as stop:
            return said.getvalue() if stop.code else ""
    return ""


def raised(act: Callable[..., object], *given: object) -> str:
    try:
        act(*given)
    except Exception as error:
        return explain(error)
    return ""


def ways(source: Path, to: Path) -> Iterator[Way]:
    for which in ("text", "plan", "steps", "variants"):
        saved = to / f"{which}.jgn"
        yield f"save {which}", saved.name, partial(raised, kind(which).compiled(isolated=False).save, saved)
    yield "compile", "b.jgn", partial(command, "compile", source, "-o", to / "b.jgn")
    yield from _trained(to)
    with suppress(ImportError):
        yield from _locked(source, to)
    for emitted in ("object", "c"):
        yield emitted, emitted, partial(command, "compile", source, "--emit", emitted, "-o", to / emitted)
    for end in (".onnx", ".nnef", ".nnef.tgz", ".tflite"):
        out = to / f"converted{end}"
        yield f"convert{end}", out.name, partial(command, "convert", source, out, "--shape", "n=3")
    data = source.with_name("data.npz")
    np.savez(data, x=np.ones((3, 256), np.float32))
    for name, output, arguments in (
        ("picture", "p.html", ("inspect", source, "--html")),
        ("placement", "p.json", ("inspect", source, "--placement", "--json")),
        ("plot", "p.svg", ("compare", source, source, "--data", data, "--plot")),
        ("account", "a.json", ("bench", source, "--layers", "--shape", "n=3", "--json")),
        ("tuning", "t.json", ("tune", source, "--budget", "1s", "--shape", "n=3", "--json")),
    ):
        yield name, output, partial(command, *arguments, to / output)
    made = jangin.quantize(
        ModelProto.FromString(source.read_bytes()), data, method="minmax", shapes={"n": 3}, limit=1
    )
    for end in (".onnx", ".tflite", ".jgn"):
        yield f"quantize{end}", f"quantized{end}", partial(raised, made.save, to / f"quantized{end}")
    yield "arrays", "y.npy", partial(command, "run", source, "--shape", "n=300", "--output", to)


def _trained(to: Path) -> Iterator[Way]:
    """Yield what a trainer writes."""
    w = np.random.default_rng(0).standard_normal((64, 64)).astype(np.float32)
    net = model("g (float[4,64] x) => (float[4,64] y) { y = MatMul(x, w) }", w=w)
    batch = np.ones((4, 64), np.float32), np.arange(4)
    trainer = jangin.train(net, "cross_entropy", "adam", batch, trainable=["w"], threads=1)
    trainer.step(batch)
    yield "checkpoint", "trained.npz", partial(raised, trainer.save, to / "trained.npz")
    for end in (".onnx", ".jgn"):
        yield f"export{end}", f"trained{end}", partial(raised, trainer.export, to / f"trained{end}")


def _locked(source: Path, to: Path) -> Iterator[Way]:
    """Yield files that are signed or encrypted."""
    from cryptography.hazmat.primitives import serialization as form
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    key, secret = source.with_name("key.pem"), source.with_name("secret")
    pem = form.Encoding.PEM, form.PrivateFormat.PKCS8, form.NoEncryption()
    key.write_bytes(Ed25519PrivateKey.generate().private_bytes(*pem))
    secret.write_text("ab" * 32)
    yield "encrypt", "c.jgn", partial(command, "compile", source, "-o", to / "c.jgn", "--encrypt", secret)
    yield "sign", "d.jgn", partial(command, "compile", source, "-o", to / "d.jgn", "--sign", key)


@contextmanager
def no_more(folder: Path, how: str) -> Iterator[None]:
    if how == "disk":
        filler = folder / "filler"
        with suppress(OSError), open(filler, "wb", buffering=0) as file:
            while file.write(bytes(1024)):
                pass
        yield
        filler.unlink()
        return
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (64, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def state(folder: Path) -> dict[str, bytes]:
    files = (p for p in sorted(folder.rglob("*")) if p.name != "filler")
    return {str(p.relative_to(folder)): p.read_bytes() if p.is_file() else b"" for p in files}


def wrong(way: Way, said: str, before: dict[str, bytes], after: dict[str, bytes]) -> str:
    """Return the fault of a way's ending, or "" if there is none."""
    if not said:
        return "nothing was said, as if it had been written"
    if way[1] not in said or "Traceback" in said or "defect" in said:
        return said
    if not ("make room there, or write it elsewhere" in said or "raise that limit" in said):
        return f"no remedy: {said}"
    return "" if before == after else f"left {sorted(set(after) ^ set(before)) or 'other contents'}"


def tried(way: Way, folder: Path, how: str) -> dict[str, str]:
    kept = folder / way[1]
    if kept.suffix in OVERWRITTEN or way[0].startswith("quantize"):
        kept.write_bytes(KEPT)
    before = state(folder)
    with no_more(folder, how):
        said = way[2]()
        after = state(folder)
    return {"way": way[0], "said": " ".join(said.split())[-200:], "wrong": wrong(way, said, before, after)}


def cached(source: Path, folder: Path, how: str, quick: bool) -> bool:
    """Tell if compiling and tuning continue although the cache can't be written."""
    all_ways = [{"isolated": False}, {"isolated": True}, {"tune": "1s", "sizes": {"n": 3}}]
    x = np.ones((3, 256), np.float32)
    with no_more(folder, how):
        made = [
            jangin.compile(source, cache=folder / "cache", **options)
            for options in all_ways[: 1 if quick else None]
        ]
        return all(exe(x).shape == (3, 256) for exe in made)


def main(folder: Path, elsewhere: Path, how: str, only: list[str]) -> None:
    os.environ["JANGIN_CACHE_DIR"] = str(elsewhere / "cache")
    source = large_model(elsewhere)
    found = []
    for way in ways(source, folder):
        if not only or way[0] in only:
            found.append(tried(way, folder, how))
        if len(found) == len(only) > 0:
            break
    print(json.dumps({"ways": found, "cache": cached(source, folder, how, bool(only))}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3], sys.argv[4:])
