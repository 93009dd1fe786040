"""Saved artifacts: that they load as they were, what loading imports and costs, and damaged files."""

from __future__ import annotations

import struct
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from plans import buffer, chain, compiled, plan

from jangin.ir.dtype import BF16, BOOL, F16
from jangin.runtime import artifact
from jangin.runtime.artifact import MAGIC, PLACE, Artifact, ArtifactError
from jangin.runtime.compiled import read_artifact
from jangin.runtime.executable import Executable
from jangin.runtime.load import load
from jangin.targets.arm import AARCH64
from jangin.targets.x86 import V3, V4


def big(words: int = 1000) -> Artifact:
    constants = {
        "half": np.arange(5, dtype=np.float16),
        "brain": np.arange(3).astype(ml_dtypes.bfloat16).reshape(3, 1),
        "flags": np.array([True, False, True]),
        "none": np.zeros((0, 2), np.float32),
        "scalar": np.array(3, np.float32),
        "words": np.arange(words, dtype=np.float32),
    }
    buffers = [
        buffer("half", "constant", 5, dtype=F16),
        buffer("brain", "constant", 3, 1, dtype=BF16),
        buffer("flags", "constant", 3, dtype=BOOL),
        buffer("none", "constant", 0, 2),
        buffer("scalar", "constant"),
        buffer("words", "constant", words),
    ]
    return compiled(plan(buffers, [], outputs=list(constants), constants=constants), [])


def test_round_trip(tmp_path: Path) -> None:
    made = big()
    made.save(tmp_path / "a.jgn")
    read = read_artifact(tmp_path / "a.jgn")
    assert read.objects == made.objects
    for name, array in made.plan.constants.items():
        back = read.plan.constants[name]
        np.testing.assert_array_equal(back, array)
        assert back.dtype == array.dtype and back.shape == array.shape and not back.flags.writeable
        assert array.size == 0 or back.ctypes.data % PLACE == 0
    assert list(load(tmp_path / "a.jgn", 1).run({})) == list(made.plan.constants)
    read.save(tmp_path / "b.jgn")
    big().save(tmp_path / "c.jgn")
    assert len({(tmp_path / f"{n}.jgn").read_bytes() for n in "abc"}) == 1
    assert not [p for p in tmp_path.iterdir() if p.suffix != ".jgn"]


def test_plan_comes_back(tmp_path: Path) -> None:
    exe = Executable(chain(), 1)
    exe.save(tmp_path / "m.jgn")
    again = load(tmp_path / "m.jgn", threads=2)
    x = np.arange(1000, dtype=np.float32)
    np.testing.assert_array_equal(exe(x), again(x))
    assert again.plan.launches == exe.plan.launches and again.plan.buffers == exe.plan.buffers


_FRESH = """
import sys, time
start = time.process_time()
import numpy as np
numpys = {*sys.modules}
from jangin.runtime.load import load
exe = load(sys.argv[1])
x = np.ones(1000, np.float32)
assert exe(x)[0] == 14
seconds = time.process_time() - start
compiler = ["jangin.backends", "jangin.compiler", "jangin.frontends", "jangin.ops"]
others = ["ml_dtypes", "onnx", "llvmlite", "pydantic"]
pythons = ["concurrent", "difflib", "secrets", "subprocess", "tempfile"]
for heavy in [*compiler, *others, *pythons]:
    assert not [m for m in {*sys.modules} - numpys if m == heavy or m.startswith(heavy + ".")], heavy
peak = int(next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM")))
print(seconds, peak)
"""


def test_fresh_process_is_light(tmp_path: Path) -> None:
    chain().save(tmp_path / "m.jgn")
    command = [sys.executable, "-c", _FRESH, str(tmp_path / "m.jgn")]
    results = [subprocess.run(command, capture_output=True, text=True, check=False) for _ in range(3)]
    assert results[0].returncode == 0, results[0].stderr
    times, peaks = zip(*((float(n) for n in r.stdout.split()) for r in results), strict=True)
    assert min(times) < 1.0  # seconds of processor time; it takes about 0.2
    assert min(peaks) < 60 * 1024  # kB


def test_constants_are_mapped(tmp_path: Path) -> None:
    big(8 << 20).save(tmp_path / "big.jgn")
    words = read_artifact(tmp_path / "big.jgn").plan.constants["words"]
    with open("/proc/self/maps") as maps:
        mapped = [line for line in maps if line.rstrip().endswith("big.jgn")]
    assert mapped and words[-1] == (8 << 20) - 1


@pytest.mark.parametrize("share", [0.0, 0.0001, 0.001, 0.02, 0.3, 0.9, 0.9999])
def test_cut_short(tmp_path: Path, share: float) -> None:
    path = tmp_path / "m.jgn"
    big(100_000).save(path)
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * share)])
    with pytest.raises(ArtifactError, match=r"m\.jgn is (cut short|not a compiled model)"):
        load(path)


def test_damaged_anywhere(tmp_path: Path) -> None:
    path = tmp_path / "m.jgn"
    chain().save(path)
    data = path.read_bytes()
    rng = np.random.default_rng(0)
    for at in [0, 8, 12, 16, 47, *rng.integers(48, len(data), 60).tolist()]:
        damaged = bytearray(data)
        damaged[at] ^= 1 << int(rng.integers(8))
        path.write_bytes(damaged)
        try:
            exe = load(path, 1)
        except ArtifactError as error:
            assert str(path) in str(error)
        else:  # the changed byte is padding
            assert exe(np.ones(1000, np.float32))[0] == 14
    path.write_bytes(data + b"\0")
    with pytest.raises(ArtifactError, match="bytes, and should have"):
        load(path)


def test_other_files(tmp_path: Path) -> None:
    path = tmp_path / "m.jgn"
    path.write_bytes(b"\x08\x07\x12\x07pytorch")
    with pytest.raises(ArtifactError, match="is not a compiled model"):
        load(path)
    path.write_bytes(MAGIC + struct.pack("<II32s", 99, 10, b""))
    with pytest.raises(ArtifactError, match="has format version 99"):
        load(path)
    with pytest.raises(FileNotFoundError):
        load(tmp_path / "absent.jgn")


def test_a_file_says_what_made_it(tmp_path: Path) -> None:
    """A file names its compiler. Files of version 5 don't, and their code for AVX-512 may write beyond
    rows."""
    path = tmp_path / "m.jgn"
    for target, readable in ((V4, False), (V3, True), (AARCH64, True)):
        made = replace(big(), made_by="Jangin 0.1.0, LLVM 22.1.0")
        made = replace(made, plan=replace(made.plan, target=str(target)))
        made.save(path)
        assert read_artifact(path).made_by == made.made_by
        _as_of_version_5(made, path)
        if readable:
            assert read_artifact(path).made_by == ""
        else:
            with pytest.raises(
                ArtifactError, match="code for AVX-512 may write beyond rows: compile it again"
            ):
                read_artifact(path)


def _as_of_version_5(made: Artifact, path: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(artifact, "VERSION", 5)
        replace(made, made_by="").save(path)


def test_a_failed_save_leaves_nothing(tmp_path: Path) -> None:
    made = chain()
    broken = Artifact(made.plan, ("not bytes",))  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        broken.save(tmp_path / "m.jgn")
    assert not list(tmp_path.iterdir())
