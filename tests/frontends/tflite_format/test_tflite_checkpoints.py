"""The signatures "save" and "restore" of train graphs: checkpoints in TensorFlow's format of one file."""

from __future__ import annotations

import base64
import os
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import jangin
from jangin import CompileError
from jangin.host import checkpoints
from jangin.protobuf import encoded, integer, message
from jangin.runtime.script import StepError

pytest.importorskip("tflite", reason="the package tflite isn't installed: the extra `tflite` brings it")
pytest.importorskip("crc32c", reason="the package crc32c isn't installed: the extra `tflite` brings it")

from files import Operator, SubGraph, Tensor, flex, written

TENSORFLOWS = zlib.decompress(base64.b64decode(
    "eNpjYIjniuUS5mJMFWITYhBi4mCSYFZi4WIAQn4uxgwhFrCQsBITUICTizFPiEGCUwksVwKWY5bgAsuJcjGWC3GAFIM1MELMALIZGbh4"
    "GVIZGBmZGuob6oW4QTaB5aQYGNmFMoASjEBhAZBdQHOk2LNYGwoafjAxsojmMTAyCAmD7ZTiCeL6+R8KGBnZBUqg+vhA7gDpY41iZgSK"
    "ccqXw62SBTkJYpWQlgADwwF7BiDBwODgkC/UbA1kA80HAq6vXkpwzoFPCzcwMAKNamSCi3X6f1ZoY+KYzMTPQBCE/27oVil1vw0A1kkv"
    "9g=="
))  # fmt: skip
"""A checkpoint that TensorFlow 2.21 wrote by `tf.raw_ops.Save`, with the tensors `HELD`."""
HELD: dict[str, Any] = {
    "w": np.array([[1.5, -2], [3, 4e-3]], np.float32),
    "n": np.array(-7, np.int64),
    "h": np.array([0.5, -1], np.float16),
    "t": np.array([True, False, True]),
    "e": np.zeros((0, 2), np.int32),
}
NAMES = zlib.decompress(base64.b64decode(
    "eNpjYFDkkufiEWIRYuJgkmBTYuJi4OLmYmY4vFKIQYJRiQEozMjALsrAwMjI2FAvJCwEVCDFa8X9HwYYGZjYBP8fXsnAyCDED9UoxabF"
    "wsDA4ADEQGEgWPGecQWcc+DTwg0MjEyMDKlwoSvGZT+zOMr5GIgA4b8bulVK3W8DAKebH5E="
))  # fmt: skip
"""A checkpoint that TensorFlow 2.21 wrote, with the tensors `NAMED`. TensorFlow doesn't write empty names."""
NAMED: dict[str, Any] = {"": np.array([-1, 0], np.int8), "\0é": np.array(2, np.float32)}
SHAPE = (3, 2)
ODD = (0, 1, 0x7F, 0x80, 0xFF)
"""Bytes at the ends of what fields and numbers hold."""


def path_of(file: Path) -> Any:
    return np.array(str(file), object)


def read(file: Path, name: str, like: Any) -> Any:
    return checkpoints.restore(path_of(file), name=name, dtype=like.dtype.name, shape=like.shape)


def saving(*operators: Operator, constant: Any = None) -> bytes:
    """Return a file whose signature writes the tensor 2 to the path 0. Tensor 1 has its name. The path is
    constant if `constant` is one."""
    tensors = [Tensor((), "string", data=constant), Tensor((1,), "string", data=[b"w"]), Tensor(SHAPE)]
    inputs = [2] if constant is not None else [0, 2]
    return written(tensors, operators, inputs, [2] if constant is not None else [0])


def test_what_tensorflow_wrote_is_read(tmp_path: Path) -> None:
    (tmp_path / "theirs").write_bytes(TENSORFLOWS)
    for name, array in HELD.items():
        held = read(tmp_path / "theirs", name, array)
        assert held.dtype == array.dtype
        np.testing.assert_array_equal(held, array, strict=True)


def test_every_type_and_shape_comes_back(tmp_path: Path) -> None:
    """TensorFlow reads the same file: it was tried with `tf.raw_ops.Restore` of TensorFlow 2.21."""
    random = np.random.default_rng(5)
    arrays = {}
    for kind in checkpoints.KINDS:
        for shape in ((), (300,), (0, 4), (2, 1, 5)):
            numbers = random.normal(size=shape) * 50
            signed = np.asarray(abs(numbers) if kind[0] in "ub" else numbers)
            arrays[f"{kind}/{len(shape)}"] = signed.astype(kind)
    checkpoints.save(path_of(tmp_path / "ours"), *arrays.values(), names=list(arrays))
    for name, array in arrays.items():
        np.testing.assert_array_equal(read(tmp_path / "ours", name, array), array, strict=True)
    assert os.listdir(tmp_path) == ["ours"]


def test_our_bytes_are_tensorflows_table(tmp_path: Path) -> None:
    """The first value and the tensors' values are those of TensorFlow's file. Blocks may be cut elsewhere."""
    (tmp_path / "theirs").write_bytes(TENSORFLOWS)
    checkpoints.save(path_of(tmp_path / "ours"), *HELD.values(), names=list(HELD))
    keys = [b"", *(checkpoints._key(name, array.ndim) for name, array in HELD.items())]
    with open(tmp_path / "ours", "rb") as ours, open(tmp_path / "theirs", "rb") as theirs:
        tables = [checkpoints._Table(file) for file in (ours, theirs)]
        for key in keys:
            mine, other = (bytes(table.value(key)) for table in tables)
            assert mine and (mine == other or key == b""), "the order in the first value may differ"
        descriptions = [dict(checkpoints._described(table.value(b""))) for table in tables]
    assert descriptions[0] == descriptions[1]


def test_a_damaged_checkpoint_is_an_error(tmp_path: Path) -> None:
    """A file cut short, or with any byte changed, gives an error or the right numbers."""
    for at in range(len(TENSORFLOWS)):
        changed = bytearray(TENSORFLOWS)
        changed[at] ^= 0x41
        for data in (TENSORFLOWS[:at], bytes(changed)):
            (tmp_path / "bad").write_bytes(data)
            try:
                held = read(tmp_path / "bad", "w", HELD["w"])
            except ValueError as error:
                assert "bad" in str(error)
            else:
                np.testing.assert_array_equal(held, HELD["w"])


def test_integers_of_all_lengths() -> None:
    """Arrays are encoded as single numbers are. A number of eleven bytes, or without an end, is an error."""
    random = np.random.default_rng()
    edges = [(1 << shift) + more for shift in range(64) for more in (-1, 0, 1)]
    drawn = (random.integers(0, 1 << 63, 99, np.uint64) >> random.integers(0, 64, 99, np.uint64)).tolist()
    numbers = [n % (1 << 64) for n in (*edges, *drawn, -1)]
    written = b"".join(map(encoded, numbers))
    assert checkpoints._varints(np.array(numbers, np.uint64)) == written
    assert checkpoints._numbers(written).tolist() == numbers
    assert checkpoints._numbers(b"").tolist() == []
    for bad in (b"\x80", written + b"\xff", b"\x80" * 10 + b"\0"):
        with pytest.raises(ValueError, match="doesn't end"):
            checkpoints._numbers(bad)


def test_odd_names_of_tensors(tmp_path: Path) -> None:
    (tmp_path / "theirs").write_bytes(NAMES)
    checkpoints.save(path_of(tmp_path / "ours"), *NAMED.values(), names=list(NAMED))
    for file in ("theirs", "ours"):
        for name, array in NAMED.items():
            np.testing.assert_array_equal(read(tmp_path / file, name, array), array, strict=True)


@pytest.mark.parametrize("kind", ["float32", "bool", "int8", "float16", "int64"])
def test_malformed_tensors_with_right_checksums_are_errors(kind: str, tmp_path: Path) -> None:
    random, array = np.random.default_rng(), np.array([0, 1, 1], kind)
    whole = checkpoints._saved({"w": array})
    for n in range(300):
        entries = {key: bytearray(value) for key, value in whole.items()}
        value = entries[sorted(entries)[n % 2]]
        at = random.integers(len(value))
        value[at : at + random.integers(3)] = bytes(random.choice(ODD, random.integers(12)).tolist())
        table = checkpoints._table({key: bytes(value) for key, value in entries.items()})
        (tmp_path / "bad").write_bytes(b"".join(table))
        try:
            held = checkpoints.restore(path_of(tmp_path / "bad"), name="w", dtype=kind, shape=None)
        except ValueError as error:
            assert "bad" in str(error)
        else:
            assert held.dtype == array.dtype and held.size <= 15, "twelve more bytes are twelve more numbers"


def described(*shape: int) -> bytes:
    """Return a checkpoint whose tensor `w` is said to have this shape, and has no numbers."""
    entries = checkpoints._saved({"w": np.zeros(0, np.float32)})
    sizes = b"".join(message(2, integer(1, n)) for n in shape)
    meta = message(1, message(1, b"w") + message(2, sizes) + integer(3, 1)) + message(2, integer(1, 1))
    return b"".join(checkpoints._table({**entries, b"": message(checkpoints.META, meta)}))


@pytest.mark.parametrize("shape", [(1 << 32, 1 << 32), (0, 1 << 62, 1 << 62), (0,) * 99, (1 << 62,)], ids=str)
def test_declared_shapes_take_no_memory(shape: tuple[int, ...], tmp_path: Path) -> None:
    (tmp_path / "bad").write_bytes(described(*shape))
    with pytest.raises(ValueError, match=r"bad' (is no checkpoint|isn't stored whole)"):
        checkpoints.restore(path_of(tmp_path / "bad"), name="w", dtype="float32", shape=None)


def test_other_tensors_are_not_read(tmp_path: Path) -> None:
    """Reading all of a checkpoint's tensors takes the time of the file's size, and not of its square."""
    tensors = {f"{n:02}": np.full(9, n, np.float32) for n in range(50)}
    checkpoints.save(path_of(tmp_path / "bad"), *tensors.values(), names=list(tensors))
    data = (tmp_path / "bad").read_bytes()
    (tmp_path / "bad").write_bytes(data.replace(tensors["20"].tobytes(), bytes(36)))
    for name, array in tensors.items():
        if name == "20":
            with pytest.raises(ValueError, match="bad' is no checkpoint"):
                read(tmp_path / "bad", name, array)
        else:
            np.testing.assert_array_equal(read(tmp_path / "bad", name, array), array)


def test_keys_that_share_beginnings() -> None:
    """A block with keys of up to 50,000 bytes, each a byte longer than the one before."""
    longer = b"".join(encoded(n) + b"\1\0a" for n in range(50_000))
    block = longer + struct.pack("<II", 0, 1)
    assert [len(key) for key, _ in checkpoints._entries(memoryview(block))] == [*range(1, 50_001)]


def test_the_bytes_that_are_written_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A negative number takes ten bytes, whatever its type."""
    monkeypatch.setattr(checkpoints, "LARGEST", 90)
    checkpoints.save(path_of(tmp_path / "ours"), np.zeros(10, np.int8), names=["w"])
    with pytest.raises(ValueError, match=r"'w' takes 1[12][0-9] bytes"):
        checkpoints.save(path_of(tmp_path / "ours"), np.full(10, -1, np.int8), names=["w"])


def test_a_saved_file_is_like_any_other(tmp_path: Path) -> None:
    """Others may read it as the process's mask says. A name may be as long as the system's. A link stays."""
    file, link = tmp_path / ("x" * 255), tmp_path / "link"
    link.symlink_to(file.name)
    mask = os.umask(0o027)
    try:
        checkpoints.save(path_of(link), HELD["w"], names=["w"])
    finally:
        os.umask(mask)
    assert link.is_symlink() and file.stat().st_mode & 0o777 == 0o640
    file.chmod(0o600)
    checkpoints.save(path_of(file), HELD["n"], names=["n"])
    assert file.stat().st_mode & 0o777 == 0o600
    assert sorted(os.listdir(tmp_path)) == ["link", file.name]


def test_wrong_names_types_and_shapes_are_named(tmp_path: Path) -> None:
    file = tmp_path / "theirs"
    file.write_bytes(TENSORFLOWS)
    with pytest.raises(ValueError, match=r"has no tensor 'v'\. It has e, h, n, t, w"):
        read(file, "v", HELD["w"])
    with pytest.raises(ValueError, match=r"'w' of .* is float32\[2, 2\], but must be float64\[2, 2\]"):
        read(file, "w", HELD["w"].astype(float))
    with pytest.raises(ValueError, match=r"is float32\[2, 2\], but must be float32\[4\]"):
        read(file, "w", HELD["w"].reshape(4))
    with pytest.raises(ValueError, match="no tensors of complex128, such as 'c'"):
        checkpoints.save(path_of(file), np.zeros(2, complex), names=["c"])
    assert file.read_bytes() == TENSORFLOWS


def test_a_failed_save_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "old"
    file.write_bytes(TENSORFLOWS)

    def full(handle: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        checkpoints.save(path_of(file), HELD["w"], names=["w"])
    assert file.read_bytes() == TENSORFLOWS
    assert os.listdir(tmp_path) == ["old"]


def test_a_signature_saves_and_another_restores(tmp_path: Path) -> None:
    save = jangin.compile(saving(flex("Save", [0, 1, 2], [])), threads=1, cache=False)
    w = np.random.default_rng(6).normal(size=SHAPE).astype(np.float32)
    file = tmp_path / "w"
    assert str(save(str(file), w)) == str(file)
    tensors = [Tensor((), "string"), Tensor((), "string", data=[b"w"]), Tensor(SHAPE)]
    model = written(tensors, [flex("Restore", [0, 1], [2], dt=1)], [0], [2])
    restore = jangin.compile(model, threads=1, cache=False)
    np.testing.assert_array_equal(restore(str(file)), w, strict=True)
    with pytest.raises(StepError, match="No such file"):
        restore(str(tmp_path / "none"))


def test_only_the_caller_names_files() -> None:
    """A model whose path is its own could overwrite any file."""
    own = [b"somewhere"]
    with pytest.raises(CompileError, match="only files that a caller names"):
        jangin.compile(saving(flex("Save", [0, 1, 2], []), constant=own), threads=1, cache=False)


def test_checkpoints_of_several_files_are_refused() -> None:
    with pytest.raises(CompileError, match=r"FlexSaveV2 is not supported: .*`state`"):
        jangin.compile(saving(flex("SaveV2", [0, 1, 2], [])), threads=1, cache=False)


def test_a_branch_writes_no_file() -> None:
    """A path inside of a branch isn't followed to the caller."""
    names = Tensor((1,), "string", data=[b"w"])
    body = SubGraph([Tensor((), "string"), names, Tensor(SHAPE)], [flex("Save", [0, 1, 2], [])], [0, 2], [2])
    tensors = [Tensor((), "bool"), Tensor((), "string"), Tensor(SHAPE), Tensor(SHAPE)]
    chosen = Operator("IF", [0, 1, 2], [3], "IfOptions", {"ThenSubgraphIndex": 1, "ElseSubgraphIndex": 1})
    with pytest.raises(CompileError, match="only files that a caller names"):
        jangin.compile(written(tensors, [chosen], [0, 1, 2], [3], body), threads=1, cache=False)
