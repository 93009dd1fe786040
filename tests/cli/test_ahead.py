"""`jangin compile --emit`: what it says, what it writes, and what it refuses."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from command_line import Cli


@pytest.mark.sampled(3)
def test_an_object_and_what_it_takes(cli: Cli, model: Path, tmp_path: Path) -> None:
    done = cli(
        "compile", model, "--emit", "object", "--name", "net", "--shape", "batch=1", "-o", tmp_path / "o"
    )
    assert done.status == 0, done.err
    assert "bytes of code" in done.out and "bytes of weights" in done.out and "bytes of arena" in done.out
    files = ["CMakeLists.txt", "main.c", "net.h", "net.o", "net_threads.o"]
    assert sorted(os.listdir(tmp_path / "o")) == files
    again = cli(
        "compile", model, "--emit", "object", "--name", "net", "--shape", "batch=1", "-o", tmp_path / "o"
    )
    assert again.status == 1 and "nothing was written" in again.err and "--force" in again.err
    forced = cli(
        "compile",
        model,
        "--emit",
        "c",
        "--name",
        "net",
        "--constants",
        "beside",
        "--force",
        "-o",
        tmp_path / "o",
    )
    assert forced.status == 0 and (tmp_path / "o" / "net.bin").exists(), forced.err


def test_a_microcontroller(cli: Cli, model: Path, tmp_path: Path) -> None:
    command = ("compile", model, "--target", "cortex-m4", "--shape", "batch=1", "-o", tmp_path / "out")
    done = cli(*command, "--emit", "c", "--name", "net")
    assert done.status == 0 and "-mcpu=cortex-m4" in (tmp_path / "out" / "net.c").read_text(), done.err
    open_sizes = cli(*command[:4], "--emit", "c", "-o", tmp_path / "open")
    assert "--shape batch=1" in open_sizes.out, open_sizes.out
    refused = cli(*command, "--emit", "object", "--force")
    assert refused.status == 1 and "no 'object' is made for cortex-m4: c can be" in refused.err
    assert "no .jgn file is made for cortex-m4" in cli(*command).err


def test_what_can_not_be(cli: Cli, model: Path, tmp_path: Path) -> None:
    command = ("compile", model, "-o", tmp_path / "out")
    assert "known: object, shared, c, web, and jgn" in cli(*command, "--emit", "elf").err
    assert "constants='away' is unknown" in cli(*command, "--emit", "c", "--constants", "away").err
    assert "did you mean cortex-a7" in cli(*command, "--emit", "c", "--target", "cortex-a73").err
    feature = cli(*command, "--emit", "c", "--target", "aarch64+dotprodd").err
    assert "unknown target 'dotprodd': features come with targets (dotprod: cortex-a76 or" in feature
    assert cli(*command, "--emit", "c", "--timings").status == 2
    (tmp_path / "file").write_text("mine")
    refused = cli("compile", model, "--emit", "c", "-o", tmp_path / "file")
    assert refused.status == 1 and "is a file: give a folder" in refused.err
    assert cli("--libraries", "openblas", "compile", model, "--emit", "c", "-o", tmp_path / "out").status == 1
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("more", [(), ("--emit", "c")])
def test_outputs_are_looked_at_before_any_work(
    cli: Cli, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, more: tuple[str, ...]
) -> None:
    """A model isn't overwritten, and a folder without write permission is reported at once. os.access is
    patched, because root may write everywhere."""
    before = model.read_bytes()
    assert "is the model itself" in cli("compile", model, "-o", model, *more).err
    assert model.read_bytes() == before
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path) != tmp_path)
    refused = cli("compile", model, "-o", tmp_path / "new" / "out.jgn", *more)
    assert refused.status == 1 and f"{tmp_path}: Permission denied" in refused.err and not refused.out
    assert list(tmp_path.iterdir()) == [model]


def test_a_folder_for_a_file(cli: Cli, model: Path, tmp_path: Path) -> None:
    assert cli("compile", model, "-o", tmp_path).status == 0
    assert (tmp_path / f"{model.stem}.jgn").exists()


def test_devices_say_what_is_made_for_each(cli: Cli) -> None:
    lines = cli("devices").out.splitlines()
    assert any("neoverse-n1" in line and "4 × i8" in line for line in lines)
    assert any("cortex-m7" in line and "object" not in line for line in lines)
    assert any("aarch64" in line and "jgn, object, shared, c" in line for line in lines)
