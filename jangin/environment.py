"""Read the environment for the library. The command line's options have their own variables in `cli`."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

TARGET = "JANGIN_TARGET"
"""The variable that names a target, in the form that `resolve` takes."""

HOST = ("cpu", "host")
"""The names of the target for the machine that a process runs on."""


def cache_folder() -> Path:
    """Return the folder of compiled models and tuning findings: `JANGIN_CACHE_DIR`, or the user's cache
    folder."""
    from pathlib import Path  # importing pathlib takes as long as the rest of starting the compiler's process

    named = os.environ.get("JANGIN_CACHE_DIR")
    if not named:
        import platformdirs  # loading a model doesn't need it

        named = platformdirs.user_cache_dir("jangin")
    return Path(named)


def target_name() -> str | None:
    """Return the default target of compilations: `JANGIN_TARGET`, or None for this machine's own."""
    return os.environ.get(TARGET) or None


def origin(target: object) -> str:
    """Return the words that an error adds if the name of a target comes from the environment, else "". It
    does if `target`, the requested one, is None."""
    return f" (the environment's {TARGET})" if target is None and target_name() else ""


def meter() -> str | None:
    """Return the external meter of energy in `JANGIN_METER`: a command or a plug-in's name, or None."""
    return os.environ.get("JANGIN_METER") or None


def farm_key() -> str | None:
    """Return the file of the private key by which a farm's worker signs: `JANGIN_FARM_KEY`, or None."""
    return os.environ.get("JANGIN_FARM_KEY") or None


def options_in_models() -> bool:
    """Return whether sessions take their options from the model, which `ORT_LOAD_CONFIG_FROM_MODEL` requests
    of ONNX Runtime too."""
    return os.environ.get("ORT_LOAD_CONFIG_FROM_MODEL") == "1"


def everything() -> dict[str, str]:
    """Return the whole environment for a process that is started now."""
    return {**os.environ}


def opencl_vendors() -> Path | None:
    """Return the folder of OpenCL's drivers in `OCL_ICD_VENDORS`, or None."""
    from pathlib import Path

    named = os.environ.get("OCL_ICD_VENDORS")
    return Path(named) if named else None


def cuda_home() -> Path | None:
    """Return the folder of the CUDA toolkit in `CUDA_HOME`, or None."""
    from pathlib import Path

    named = os.environ.get("CUDA_HOME")
    return Path(named) if named else None


def tell_drivers(settings: Mapping[str, str]) -> None:
    """Set variables that OpenCL's loader and drivers read when they are loaded. Variables that are set
    already stay."""
    for name, value in settings.items():
        os.environ.setdefault(name, value)


def has_columns() -> bool:
    """Tell if COLUMNS gives the width of a terminal."""
    return os.environ.get("COLUMNS", "").isdigit()
