"""A terminal of 80 columns, a pipe and another program get whole words, however little room there is."""

from __future__ import annotations

import io
import random
from pathlib import Path

import pytest
from command_line import Cli
from rich.console import Console
from rich.table import Table

from jangin.bench.report import milliseconds
from jangin.commands import common
from jangin.commands.common import bar_with, terminal
from jangin.commands.study import _shown
from jangin.commands.tables import laid_out
from jangin.study.tables import Table as Studied
from jangin.targets import NAMED

SEED = 20261126


def shown(table: Table, width: int) -> str:
    file = io.StringIO()
    common._Terminal(file=file, markup=False, highlight=False, width=width).print(table)
    return file.getvalue()


@pytest.mark.parametrize("seed", range(SEED, SEED + 40))
def test_no_table_cuts_a_word(seed: int) -> None:
    rng = random.Random(seed)

    def word() -> str:
        return "".join(rng.choices("abcdefgh_-.0123", k=rng.choice((1, 4, 9, 30))))

    titles = [word() for _ in range(rng.randint(1, 9))]
    rows = [[" ".join(word() for _ in range(rng.randint(1, 4))) for _ in titles] for _ in range(3)]
    around = [" ".join(word() for _ in range(12)) for _ in range(2)]
    table = Table(title=around[0], caption=around[1])
    for title in titles:
        table.add_column(title, no_wrap=rng.random() < 0.3, justify=rng.choice(("left", "right")))
    for row in rows:
        table.add_row(*row)
    for width in (200, 80, 40):
        found = shown(table, width)
        words = found.replace("│", " ").replace("┃", " ").split()
        for wanted in [*titles, *(w for row in (around, *rows) for cell in row for w in cell.split())]:
            assert wanted in words, f"seed {seed}, {width} columns: {wanted} is cut in\n{found}"
        longest = max(len(w) for w in words)
        assert max(map(len, found.splitlines())) <= max(width, longest + 4)


def test_a_table_that_fits_stays_as_it_is() -> None:
    table = Table("one", "two")
    table.add_row("1", "2")
    assert laid_out(table, Console(width=80, file=io.StringIO())) is table


def test_short_times_keep_digits() -> None:
    assert [*map(milliseconds, (0.0, 4.2e-7, -4.2e-7, 1.5e-3))] == ["0.000", "0.00042", "-0.00042", "1.500"]


def test_words_of_a_study_begin_at_the_left() -> None:
    table = _shown(
        Studied("t", ("model", "best", "ms", "none"), (("a", "Jangin", "", ""), ("b", "", "1.5", "")))
    )
    assert [column.justify for column in table.columns] == ["left", "left", "right", "left"]


def test_devices_at_80_columns(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    done = cli("devices")
    assert "…" not in done.out and set(NAMED) <= set(done.out.split())
    # a reason why devices are missing is no table
    reasons = ("OpenCL: ", "CUDA: ", "  targets: ", "WebGPU: ")
    tables = [line for line in done.out.splitlines() if not line.startswith(reasons)]
    assert max(map(len, tables)) <= 80
    for flag in ("object,", "shared,"):
        assert flag in done.out.split()


def test_profile_and_inspect_at_80_columns(cli: Cli, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    for command in (("run", model, "--shape", "batch=1", "--profile"), ("inspect", model)):
        done = cli(*command)
        assert done.status == 0 and "…" not in done.out, done.err
        assert {"computes", "k_mean1_2", "ReduceMean", "'scores1'"} <= set(done.out.split())
        assert max(map(len, done.out.splitlines())) <= 80


def test_a_pipe_is_as_wide_as_columns_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    assert terminal().width == common.PIPED
    monkeypatch.setenv("COLUMNS", "57")
    assert terminal().width == 57 and terminal(error=True).width == 57


def test_lines_stay_whole(cli: Cli, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, model: Path) -> None:
    """A path isn't broken across lines, so that it can be copied."""
    monkeypatch.setenv("COLUMNS", "40")
    folder = tmp_path / ("a" * 30) / ("b c" * 10)
    done = cli("run", model, "--shape", "batch=1", "--output", folder)
    assert f"written to {folder / 'y.npy'}\n" in done.out


def test_plain_tables_have_tabs(cli: Cli, model: Path) -> None:
    lines = cli("--plain", "run", model, "--shape", "batch=1", "--profile").out.splitlines()
    first = lines.index("ms\tshare\tGB/s\ttasks\tkernel\tcomputes")
    assert lines[first - 1].startswith("# ") and lines[first - 1].endswith(" ms a run")
    rows = [line.split("\t") for line in lines[first + 1 :]]
    assert rows and all(len(row) == 6 for row in rows) and all(float(row[0]) >= 0 for row in rows)
    assert "┃" in cli("run", model, "--shape", "batch=1", "--profile").out


def test_flags_of_all_commands_may_stand_behind_the_command(cli: Cli, model: Path) -> None:
    before = cli("--plain", "devices").out
    assert cli("devices", "--plain").out == before != cli("devices").out
    assert cli("devices", "--plain", "--no-cache", "--verbose").out == before
    misspelt = cli("devices", "--plian")
    assert misspelt.status == 2 and "No such option: --plian. Did you mean --plain?" in misspelt.err
    assert cli("devices", "--no-bf16", "--unchecked").status == 0, "flags with two forms too"


def test_an_option_with_a_value_that_stands_behind_the_command_is_told(cli: Cli) -> None:
    told = cli("devices", "--limits", "nodes=1")
    assert told.status == 2 and "--limits stands before the command: jangin --limits ... devices" in told.err


def test_progress_appears_only_when_work_has_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = io.StringIO()
    console = Console(file=screen, force_terminal=True, width=80)
    monkeypatch.setattr(common, "terminal", lambda error=False: console)
    with pytest.raises(FileNotFoundError), bar_with("{task.description}") as bar:
        bar.add_task("import", total=1)
        raise FileNotFoundError
    assert screen.getvalue() == ""
    with bar_with("{task.description}") as bar:
        bar.update(bar.add_task("import", total=1), completed=1)
    assert "import" in screen.getvalue()
