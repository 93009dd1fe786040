"""These functions concern the whole process: loggers, telemetry, seeds, threads, and version and build."""

from __future__ import annotations

import platform
from collections.abc import Callable, Mapping

from jangin.onnxruntime.devices import OrtArenaCfg, OrtMemoryInfo
from jangin.onnxruntime.errors import NotImplemented
from jangin.runtime.threads import counted
from jangin.version import __version__ as jangin_version

VERSION = "1.31.1"
"""The version of ONNX Runtime whose names and calls this package has."""
LEVELS = range(5)
"""Severities of messages, from verbose to fatal."""
_THREADS = {"intra": 0}


def get_version_string() -> str:
    """Return the version of ONNX Runtime whose names and calls this package has."""
    return VERSION


def get_build_info() -> str:
    return f"ORT Build Info: jangin={jangin_version}, python={platform.python_version()}"


def get_device() -> str:
    return "CPU"


def has_collective_ops() -> bool:
    """Return False, because a run never spreads over several machines."""
    return False


def set_default_logger_severity(severity: int) -> None:
    """Does nothing, because Jangin logs nothing. Raises RuntimeError for an unknown severity."""
    _check_level(severity)


def set_default_logger_verbosity(verbosity: int) -> None:
    """Does nothing, because Jangin logs nothing."""


def set_default_logger_callback(callback: Callable[..., object] | None, severity: int = 2) -> None:
    """Does nothing, because Jangin logs nothing and never calls the callback."""
    _check_level(severity)
    if callback is not None and not callable(callback):
        raise RuntimeError("a logger's callback must be callable, or None")


def _check_level(severity: int) -> None:
    if severity not in LEVELS:
        raise RuntimeError(f"Invalid logging severity level: {severity}; there are 0 to {LEVELS[-1]}")


def enable_telemetry_events() -> None:
    """Does nothing, because Jangin sends no telemetry."""


def disable_telemetry_events() -> None:
    """Does nothing, because Jangin sends no telemetry."""


def set_seed(seed: int) -> None:
    """Does nothing to a model. Random operators without a seed are refused when a model is compiled, or
    seeded anew in each run.

    Raises TypeError if the seed is no integer."""
    int(seed)


def set_global_thread_pool_sizes(intra_op_num_threads: int = 0, inter_op_num_threads: int = 0) -> None:
    """Set the number of threads for sessions whose options say `use_per_session_threads = False`.

    `inter_op_num_threads` has no effect, because operators run one after another."""
    _THREADS["intra"] = counted(intra_op_num_threads, "intra_op_num_threads") if intra_op_num_threads else 0


def global_threads() -> int:
    """Return the number of threads set by `set_global_thread_pool_sizes`. 0 stands for all processors that
    the process may use."""
    return _THREADS["intra"]


def create_and_register_allocator(memory: OrtMemoryInfo, settings: OrtArenaCfg | None = None) -> None:
    """Does nothing, because a compiled model's memory is planned and sessions share no allocator."""


def create_and_register_allocator_v2(
    provider: str,
    memory: OrtMemoryInfo,
    options: Mapping[str, str],
    settings: OrtArenaCfg | None = None,
) -> None:
    """Does nothing, because a compiled model's memory is planned and sessions share no allocator."""


def register_execution_provider_library(name: str, path: str) -> None:
    """Raise NotImplemented, because ONNX Runtime's providers can't run Jangin's compiled code."""
    raise NotImplemented.said(f"the provider {name!r} ({path}) is ONNX Runtime's: Jangin can't load it")


def unregister_execution_provider_library(name: str) -> None:
    """Raise NotImplemented, because no provider can have been registered."""
    raise NotImplemented.said(f"no provider {name!r} is registered")


def preload_dlls(
    cuda: bool = True, cudnn: bool = True, msvc: bool = True, directory: str | None = None
) -> None:
    """Does nothing, because Jangin needs no libraries of CUDA or of Microsoft's compiler."""


def print_debug_info() -> None:
    """Print the information that belongs in a report of an error."""
    print(f"jangin version: {jangin_version}, as onnxruntime {VERSION}")
    print(f"platform: {platform.platform()}")
    print(f"Python: {platform.python_version()}")
