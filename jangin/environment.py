"""What the environment says to the library; the command line's options have their own variables in `cli`."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

TARGET = "JANGIN_TARGET"
"""The variable that names a target, as `resolve` takes it."""


def cache_folder() -> Path:
    """Where compiled models and what tuning found are kept: `JANGIN_CACHE_DIR`, or the user's own."""
    from pathlib import Path  # which takes as long as all that starts the compiler's process

    named = os.environ.get("JANGIN_CACHE_DIR")
    if not named:
        import platformdirs  # loading a model doesn't need it

        named = platformdirs.user_cache_dir("jangin")
    return Path(named)


def target_name() -> str | None:
    """The target of compilations that name none: `JANGIN_TARGET`, or None for this machine's own."""
    return os.environ.get(TARGET) or None


def everything() -> dict[str, str]:
    """The whole environment, as a process started now has it."""
    return {**os.environ}


def opencl_vendors() -> Path | None:
    """The folder of OpenCL's drivers that `OCL_ICD_VENDORS` names, if it does."""
    from pathlib import Path

    named = os.environ.get("OCL_ICD_VENDORS")
    return Path(named) if named else None


def tell_drivers(settings: Mapping[str, str]) -> None:
    """What OpenCL's loader and drivers, once they are loaded, read of the environment, where it doesn't say
    otherwise."""
    for name, value in settings.items():
        os.environ.setdefault(name, value)


def has_columns() -> bool:
    """Whether COLUMNS says how wide a terminal is."""
    return os.environ.get("COLUMNS", "").isdigit()
