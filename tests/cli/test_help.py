"""Help shows an example that parses for each command, whole words at 80 columns, plain names of types, and
flags without types. Shells complete values."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer
from command_line import Cli

from jangin.cli import app
from jangin.commands.help import EXAMPLES, among
from jangin.targets import NAMED

GROUP: Any = typer.main.get_command(app)
NAMES = [*GROUP.commands]


@pytest.mark.parametrize("name", ["", *NAMES])
def test_help_at_80_columns(cli: Cli, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    done = cli(*filter(None, [name]), "--help")
    assert done.status == 0 and "…" not in done.out
    assert {*re.findall(r"<[^=>][^>]*>", done.out)} <= {"<path>", "<str>", "<int>", "<float>"}
    command = GROUP.commands[name] if name else GROUP
    words = done.out.replace(",", " ").split()
    for param in command.get_params(command.make_context(name, ["--help"], resilient_parsing=True)):
        for flag in (*param.opts, *param.secondary_opts):
            if flag.startswith("-") and not getattr(param, "hidden", False):
                assert flag in words
    if not name:
        assert set(NAMES) <= set(words)


def test_a_newcomer_sees_the_commands_first(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    """A call without arguments shows them on one screen, and names the help, which has the options below."""
    monkeypatch.setenv("COLUMNS", "80")
    alone, asked = cli(), cli("--help")
    shown = alone.out + alone.err
    lines = [line for line in shown.splitlines() if line.strip()]
    assert len(lines) <= 36 and "jangin --help" in shown and "--deterministic-time" not in shown
    for text in (shown, asked.out):
        assert {*NAMES} <= {*re.findall(r"^│ ([a-z]+) ", text, re.M)}
    assert asked.out.index("│ devices") < asked.out.index("│ --no-cache")


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", NAMES)
def test_every_command_has_an_example_that_parses(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    lines = [line.strip() for line in cli(name, "--help").out.splitlines()]
    assert f"Example: {EXAMPLES[name]}" in lines
    program, *words = shlex.split(EXAMPLES[name])
    assert program == "jangin"
    whole = GROUP.make_context("jangin", [*words])
    GROUP.commands[name].make_context(name, words[words.index(name) + 1 :], parent=whole)


def completed(shell: str, line: str, folder: Path) -> list[str]:
    words = line.split(" ")
    said = {"COMP_WORDS": line, "COMP_CWORD": str(len(words) - 1), "_TYPER_COMPLETE_ARGS": line}
    program = "import sys; sys.argv[0] = 'jangin'; from jangin.cli import app; app(prog_name='jangin')"
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=folder, capture_output=True, text=True, timeout=600,
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": ":".join(sys.path), **said,
             "_JANGIN_COMPLETE": f"complete_{shell}"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


@pytest.mark.sampled(3)
def test_a_shell_completes_commands_and_values(tmp_path: Path) -> None:
    assert completed("bash", "jangin in", tmp_path) == ["inspect"]
    found = completed("bash", "jangin run m.onnx --target x86", tmp_path)
    assert found == [name for name in NAMED if name.startswith("x86")]
    assert among("against")("ncnn,openv") == ["ncnn,openvino"]
    for option, value in (("pixels", "unit"), ("emit", "object"), ("method", "minmax"), ("show", "steps")):
        assert value in among(option)("")
    assert among("after")("fus") == ["fuse"]
