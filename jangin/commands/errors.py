"""Explain errors on the command line."""

from __future__ import annotations

import os

from jangin.energy import EnergyError
from jangin.ir.checks import IndexOutOfRange
from jangin.ir.graph import CompileError
from jangin.runtime.artifact import ArtifactError
from jangin.runtime.device import LoadError
from jangin.schedule.checks import ScheduleError

EXPECTED = (
    CompileError, IndexOutOfRange, ArtifactError, LoadError, ScheduleError, ValueError, TypeError, OSError,
    FloatingPointError, EnergyError,
)  # fmt: skip
"""Errors that a user's model, file or machine causes."""
SHAPES_HERE = "Here shapes= is the option --shape, once for each: --shape batch=1 --shape image=1x3x224x224"


def explain(error: Exception) -> str:
    """Return the text to print for an error. An error that no model, file or machine should cause is reported
    as a defect of Jangin."""
    if isinstance(error, FileNotFoundError) and error.filename is None and _is_gone():
        return "the working directory was removed: go to another one, or give absolute paths"
    if isinstance(error, OSError) and error.filename is not None:
        return f"{error.filename}: {error.strerror}"
    if isinstance(error, EXPECTED):
        text = str(error) or type(error).__name__
        return text if "shapes=" not in text or "--shape" in text else f"{text}\n{SHAPES_HERE}"
    return (
        f"a defect of Jangin: {type(error).__name__}: {error}\n"
        "Run again with --debug before the command and report what it prints."
    )


def _is_gone() -> bool:
    """Tell if the working directory was removed."""
    try:
        os.getcwd()
    except FileNotFoundError:
        return True
    return False
