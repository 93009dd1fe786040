"""Signed models: what `trust` lets load, and what it refuses."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

import jangin
from jangin.commands.common import Settings
from jangin.commands.run import compile_file
from jangin.runtime.artifact import PREFIX, ArtifactError
from jangin.runtime.signing import sign


def model(dims: list[int | str]) -> onnx.ModelProto:
    node = helper.make_node("Relu", ["x"], ["y"])
    x = helper.make_tensor_value_info("x", 1, dims)
    graph = helper.make_graph([node], "g", [x], [helper.make_empty_tensor_value_info("y")])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 22)])


def keys(folder: Path, name: str, kind: str = "ed25519") -> tuple[Path, Path]:
    """Return PEM files of a private key and its public key."""
    pytest.importorskip("cryptography", reason="the package cryptography is not installed")
    from cryptography.hazmat.primitives import serialization as form
    from cryptography.hazmat.primitives.asymmetric import ec, ed25519

    curve = ec.generate_private_key(ec.SECP256R1())
    key = curve if kind == "ec" else ed25519.Ed25519PrivateKey.generate()
    secret = form.BestAvailableEncryption(b"word") if kind == "secret" else form.NoEncryption()
    private, public = folder / f"{name}.pem", folder / f"{name}.pub"
    private.write_bytes(key.private_bytes(form.Encoding.PEM, form.PrivateFormat.PKCS8, secret))
    spki = form.PublicFormat.SubjectPublicKeyInfo
    public.write_bytes(key.public_key().public_bytes(form.Encoding.PEM, spki))
    return private, public


def saved(folder: Path, name: str = "m", dims: list[int | str] | None = None) -> Path:
    path = folder / f"{name}.jgn"
    jangin.build(model(dims or [4]), cache=False, isolated=False).save(path)
    return path


def test_what_is_signed_is_loaded(tmp_path: Path) -> None:
    private, public = keys(tmp_path, "mine")
    path = saved(tmp_path)
    assert sign(path, private) == tmp_path / "m.jgn.sig"
    x = np.array([-1, 2, -3, 4], np.float32)
    np.testing.assert_array_equal(jangin.load(path, trust=public)(x), [0, 2, 0, 4])


def test_the_command_signs(tmp_path: Path) -> None:
    private, public = keys(tmp_path, "mine")
    onnx.save(model([4]), tmp_path / "m.onnx")
    compile_file(tmp_path / "m.onnx", Settings(cache=False), tmp_path / "m.jgn", [], None, key=private)
    assert jangin.load(tmp_path / "m.jgn", trust=public)(np.ones(4, np.float32)).all()


def test_what_is_not_signed_so_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A missing signature is refused, and one by another key, of another model, or for a changed file. No
    code is loaded."""
    private, public = keys(tmp_path, "mine")
    path, other = saved(tmp_path), saved(tmp_path, "other", [5])

    def loads(*_: object) -> None:
        raise AssertionError("code was loaded")

    monkeypatch.setattr("jangin.runtime.load.executable", loads)
    with pytest.raises(ArtifactError, match="isn't signed"):
        jangin.load(path, trust=public)
    sign(path, keys(tmp_path, "theirs")[0])
    with pytest.raises(ArtifactError, match=r"isn't what the owner of .*mine\.pub signed"):
        jangin.load(path, trust=public)
    right = sign(path, private).read_bytes()
    Path(f"{other}.sig").write_bytes(right)
    with pytest.raises(ArtifactError, match="isn't what the owner"):
        jangin.load(other, trust=public)
    for damage in (right[:-1], right + b"x", b""):
        Path(f"{path}.sig").write_bytes(damage)
        with pytest.raises(ArtifactError, match="isn't what the owner"):
            jangin.load(path, trust=public)
    Path(f"{path}.sig").write_bytes(right)
    whole = path.read_bytes()
    for at in (0, PREFIX.size - 1, PREFIX.size + 9, len(whole) // 2):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        with pytest.raises(ArtifactError):
            jangin.load(path, trust=public)


def test_a_file_of_other_content_under_the_signed_start(tmp_path: Path) -> None:
    """A signed digest before another file's header and code is a wrong checksum."""
    private, public = keys(tmp_path, "mine")
    path, other = saved(tmp_path), saved(tmp_path, "other", ["n"])
    sign(path, private)
    start, rest = path.read_bytes()[: PREFIX.size], other.read_bytes()
    magic, version, _, digest = PREFIX.unpack(start)
    length = PREFIX.unpack(rest[: PREFIX.size])[2]
    path.write_bytes(PREFIX.pack(magic, version, length, digest) + rest[PREFIX.size :])
    with pytest.raises(ArtifactError, match="checksum"):
        jangin.load(path, trust=public)


def test_keys_that_are_none(tmp_path: Path) -> None:
    private, public = keys(tmp_path, "mine")
    path = saved(tmp_path)
    sign(path, private)
    with pytest.raises(ValueError, match="no private key in PEM form"):
        sign(path, public)
    with pytest.raises(ValueError, match="no public key in PEM form"):
        jangin.load(path, trust=private)
    with pytest.raises(ValueError, match="no Ed25519 key"):
        sign(path, keys(tmp_path, "curve", "ec")[0])
    with pytest.raises(ValueError, match="has a password"):
        sign(path, keys(tmp_path, "locked", "secret")[0])
    with pytest.raises(FileNotFoundError):
        jangin.load(path, trust=tmp_path / "none.pub")


def test_without_the_package_nothing_is_trusted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = saved(tmp_path)
    (tmp_path / "m.jgn.sig").write_bytes(bytes(64))
    for name in [n for n in sys.modules if n.split(".")[0] == "cryptography"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "cryptography", None)
    with pytest.raises(RuntimeError, match=r"pip install 'jangin\[crypto\]'"):
        jangin.load(path, trust=tmp_path / "mine.pub")
