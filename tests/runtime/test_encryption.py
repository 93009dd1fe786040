"""Encrypted models: keys that open them, files that are refused, and that nothing lies on the disk in the
clear."""

from __future__ import annotations

import secrets
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from test_signing import keys, model

import jangin
from jangin.commands.common import Settings
from jangin.commands.run import compile_file
from jangin.runtime.artifact import ArtifactError
from jangin.runtime.encryption import BLOCK, PREFIX, save_encrypted

pytest.importorskip("cryptography", reason="the package cryptography is not installed")
SECRET = np.frombuffer(b"a weight that nobody shall read!", np.float32)


def key_file(folder: Path, name: str = "key") -> Path:
    path = folder / f"{name}.hex"
    path.write_text(secrets.token_hex(32) + "\n")
    return path


def weighted(count: int = 1) -> onnx.ModelProto:
    """Return a model of y = x + weights [count * 8]."""
    m = model([8 * count])
    m.graph.node[0].op_type = "Add"
    m.graph.node[0].input.append("w")
    m.graph.initializer.append(numpy_helper.from_array(np.tile(SECRET, count), "w"))
    return m


def saved(folder: Path, key: Path, m: onnx.ModelProto) -> Path:
    path = folder / "m.jgn"
    save_encrypted(path, key, jangin.build(m, cache=False, isolated=False).write)
    return path


@pytest.mark.parametrize("dims", [[4], ["n"]])
def test_the_key_opens(tmp_path: Path, dims: list[int | str]) -> None:
    key = key_file(tmp_path)
    path = saved(tmp_path, key, model(dims))
    np.testing.assert_array_equal(
        jangin.load(path, key=key)(np.array([-1, 2, -3, 4], np.float32)), [0, 2, 0, 4]
    )


def test_variants_and_programs(tmp_path: Path) -> None:
    m = model(["n", "m"])
    m.graph.node[0].op_type = "Squeeze"
    key = key_file(tmp_path)
    exe = jangin.load(saved(tmp_path, key, m), key=key)
    assert isinstance(exe, jangin.VariantsExecutable)
    assert exe(np.ones((1, 3), np.float32)).shape == (3,)
    m.graph.node[0].op_type = "NonZero"
    exe = jangin.load(saved(tmp_path, key, m), key=key)
    assert isinstance(exe, jangin.ProgramExecutable)
    assert exe(np.ones((1, 3), np.float32)).shape == (2, 3)


def test_several_blocks_and_no_bytes_as_they_are(tmp_path: Path) -> None:
    count = BLOCK // SECRET.nbytes + 1000
    key = key_file(tmp_path)
    path = saved(tmp_path, key, weighted(count))
    data = path.read_bytes()
    assert len(data) > BLOCK
    assert SECRET.tobytes() not in data
    assert b"plan" not in data[: PREFIX.size + 200]
    x = np.ones(8 * count, np.float32)
    np.testing.assert_array_equal(jangin.load(path, key=key)(x), np.tile(SECRET, count) + 1)
    path.write_bytes(data[:BLOCK])
    with pytest.raises(ArtifactError, match="cut short or damaged"):
        jangin.load(path, key=key)


def test_equal_models_have_no_equal_files(tmp_path: Path) -> None:
    key = key_file(tmp_path)
    first = saved(tmp_path, key, weighted()).read_bytes()
    assert first != saved(tmp_path, key, weighted()).read_bytes()


def test_what_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another key, any changed byte, and missing or added bytes are refused before code or plan is read."""

    def loads(*_: object) -> None:
        raise AssertionError("something was read")

    monkeypatch.setattr("jangin.runtime.compiled._read", loads)
    key = key_file(tmp_path)
    path = saved(tmp_path, key, weighted())
    with pytest.raises(
        ArtifactError, match=r"can't be decrypted by .*other\.hex: that isn't its key, or it is cut"
    ):
        jangin.load(path, key=key_file(tmp_path, "other"))
    whole = path.read_bytes()
    for at in (12, PREFIX.size - 1, PREFIX.size, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        with pytest.raises(ArtifactError, match="can't be decrypted"):
            jangin.load(path, key=key)
    for other in (whole[:-1], whole + b"\0", whole[: PREFIX.size + 1], whole[: PREFIX.size]):
        path.write_bytes(other)
        with pytest.raises(ArtifactError, match="can't be decrypted"):
            jangin.load(path, key=key)
    path.write_bytes(whole[: PREFIX.size - 1])
    with pytest.raises(ArtifactError, match="is cut short"):
        jangin.load(path, key=key)
    path.write_bytes(whole[:8] + b"\2" + whole[9:])
    with pytest.raises(ArtifactError, match="is encrypted in format 2, and this program reads 1"):
        jangin.load(path, key=key)


def test_keys_and_files_that_do_not_fit(tmp_path: Path) -> None:
    key = key_file(tmp_path)
    path = saved(tmp_path, key, weighted())
    with pytest.raises(ArtifactError, match="is encrypted: give key="):
        jangin.load(path)
    plain = tmp_path / "plain.jgn"
    jangin.build(weighted(), cache=False, isolated=False).save(plain)
    with pytest.raises(ArtifactError, match="is not encrypted: load it without key="):
        jangin.load(plain, key=key)
    for text in ("", "0" * 63, "0" * 65, "g" * 64, "\0" * 32):
        (tmp_path / "bad.hex").write_text(text)
        with pytest.raises(ValueError, match="no key of 64 hexadecimal digits"):
            jangin.load(path, key=tmp_path / "bad.hex")
        with pytest.raises(ValueError, match="no key of 64 hexadecimal digits"):
            save_encrypted(tmp_path / "none.jgn", tmp_path / "bad.hex", lambda file: file.write(b""))
    assert not (tmp_path / "none.jgn").exists()
    with pytest.raises(FileNotFoundError):
        jangin.load(path, key=tmp_path / "none.hex")


def test_the_command_signs_and_encrypts(tmp_path: Path) -> None:
    private, public = keys(tmp_path, "mine")
    key = key_file(tmp_path)
    onnx.save(weighted(), tmp_path / "m.onnx")
    path = tmp_path / "m.jgn"
    compile_file(tmp_path / "m.onnx", Settings(cache=False), path, [], None, key=private, secret=key)
    assert jangin.load(path, trust=public, key=key)(np.zeros(8, np.float32)).tobytes() == SECRET.tobytes()
    with pytest.raises(ArtifactError, match="isn't what the owner of"):
        jangin.load(path, trust=keys(tmp_path, "theirs")[1], key=key)
    save_encrypted(path, key, jangin.build(model([4]), cache=False, isolated=False).write)
    with pytest.raises(ArtifactError, match="isn't what the owner of"):
        jangin.load(path, trust=public, key=key)


def test_without_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    key = key_file(tmp_path)
    path = saved(tmp_path, key, weighted())
    for name in [n for n in sys.modules if n.split(".")[0] == "cryptography"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "cryptography", None)
    with pytest.raises(RuntimeError, match=r"pip install 'jangin\[crypto\]'"):
        jangin.load(path, key=key)
