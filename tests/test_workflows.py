"""The workflow of the tests names systems, extras and files that exist."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
yaml = pytest.importorskip("yaml", reason="PyYAML isn't installed (the extra `test`)")
JOBS: dict[str, Any] = yaml.safe_load((ROOT / ".github" / "workflows" / "tests.yml").read_text())["jobs"]


def commands(job: str) -> list[str]:
    return [step["run"] for step in JOBS[job]["steps"] if "run" in step]


def test_the_quick_suite_runs_on_every_system() -> None:
    matrix = JOBS["quick"]["strategy"]["matrix"]
    kinds = {re.sub(r"-[\d.]+", "", name) for name in matrix["os"]}
    assert kinds == {"ubuntu", "ubuntu-arm", "windows", "macos", "macos-intel"}
    oldest = PROJECT["requires-python"].removeprefix(">=")
    left_out = [(e["os"], e["python"]) for e in matrix["exclude"]]
    assert oldest in matrix["python"] and not [e for e in left_out if e[1] == oldest]
    assert "python -m pytest -n auto" in commands("quick")


def test_only_systems_without_native_code_may_fail() -> None:
    allowed = {name: job["continue-on-error"] for name, job in JOBS.items() if "continue-on-error" in job}
    assert allowed == {"quick": "${{ !startsWith(matrix.os, 'ubuntu') }}"}


@pytest.mark.parametrize("job", JOBS)
def test_a_job_names_what_exists(job: str) -> None:
    for command in commands(job):
        for extras in re.findall(r'"\.\[([\w,]+)\]"', command):
            assert set(extras.split(",")) <= {*PROJECT["optional-dependencies"]}, command
        for path in re.findall(r"(?<![\w.-])(?:tests|packaging|docs)/[\w./-]+", command):
            assert (ROOT / path).exists(), command


def test_issue_templates_ask_for_commands_that_exist() -> None:
    """Each template is a form, and each `jangin` command with its options in one is a command."""
    import typer

    from jangin.cli import app

    group: Any = typer.main.get_command(app)
    known = {name: {o for p in command.params for o in p.opts} for name, command in group.commands.items()}
    own = {o for p in group.params for o in p.opts}
    forms = sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml"))
    named = []
    for path in forms:
        content = yaml.safe_load(path.read_text())
        if path.stem != "config":
            assert {part["type"] for part in content["body"]} <= {"markdown", "textarea"}
        named += re.findall(r"`jangin ([\w-]+)([^`]*)`", path.read_text())
    assert len(named) >= 6
    for command, rest in named:
        options = set(re.findall(r"--\w+", rest)) | ({command} if command.startswith("--") else set())
        assert options <= known.get(command, own), (command, rest)
