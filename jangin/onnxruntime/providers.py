"""Execution providers. There is only the CPU's, by the name that ONNX Runtime gives it."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

PROVIDER = "CPUExecutionProvider"
ALL = (
    "NvTensorRTRTXExecutionProvider", "TensorrtExecutionProvider", "CUDAExecutionProvider",
    "MIGraphXExecutionProvider", "OpenVINOExecutionProvider", "DnnlExecutionProvider",
    "VitisAIExecutionProvider", "QNNExecutionProvider", "NnapiExecutionProvider", "VSINPUExecutionProvider",
    "JsExecutionProvider", "CoreMLExecutionProvider", "ACLExecutionProvider", "DmlExecutionProvider",
    "RknpuExecutionProvider", "WebNNExecutionProvider", "WebGpuExecutionProvider",
    "XnnpackExecutionProvider", "CANNExecutionProvider", "AzureExecutionProvider", PROVIDER,
)  # fmt: skip
"""The providers that ONNX Runtime knows, most specialised first."""


def get_all_providers() -> list[str]:
    """Return the names of all providers that ONNX Runtime knows."""
    return [*ALL]


def get_available_providers() -> list[str]:
    """Return the names of the available providers."""
    return [PROVIDER]


def check_and_normalize_provider_args(
    providers: Any,
    provider_options: Sequence[Mapping[str, Any]] | None,
    available_provider_names: Sequence[str],
) -> tuple[list[str], list[dict[str, str]]]:
    """Return the names of the requested providers, and the options of each, as ONNX Runtime's own helper
    does."""
    by_name = normalized(providers, provider_options, available_provider_names)
    return [*by_name], [*by_name.values()]


def normalized(
    providers: Any, options: Sequence[Mapping[str, Any]] | None, here: Sequence[str] = (PROVIDER,)
) -> dict[str, dict[str, str]]:
    """Return the options requested for each provider, by its name. A bare string is one name.

    A warning names a provider that isn't in `here`, and the CPU runs the model. Raises ValueError if entries
    are neither names nor pairs."""
    if providers is None:
        return {}
    listed = [providers] if isinstance(providers, str) else providers
    if not isinstance(listed, Sequence):
        raise ValueError("'providers' should be a sequence.")
    by_name: dict[str, dict[str, str]] = {}
    for name, entry in _pairs(listed, options):
        if name not in here:
            warnings.warn(
                f"Specified provider '{name}' is not in available provider names. "
                f"Available providers: '{', '.join(here)}'; the model runs on the CPU",
                UserWarning,
                stacklevel=3,
            )
        if name in by_name:
            warnings.warn(f"Duplicate provider '{name}' encountered, ignoring.", UserWarning, stacklevel=3)
        else:
            by_name[name] = {str(key): str(value) for key, value in entry.items()}
    return by_name


def _pairs(
    listed: Sequence[Any], options: Sequence[Mapping[str, Any]] | None
) -> list[tuple[str, Mapping[str, Any]]]:
    if options is None:
        pairs = [(p, {}) if isinstance(p, str) else p for p in listed]
    elif not isinstance(options, Sequence):
        raise ValueError("'provider_options' should be a sequence.")
    elif len(listed) != len(options):
        raise ValueError("'providers' and 'provider_options' should be the same length if both are given.")
    elif not all(isinstance(p, str) for p in listed):
        raise ValueError("Only string values for 'providers' are supported if 'provider_options' is given.")
    elif not all(isinstance(o, Mapping) for o in options):
        raise ValueError("'provider_options' values must be dicts.")
    else:
        pairs = [*zip(listed, options, strict=True)]
    for pair in pairs:
        right = isinstance(pair, tuple) and len(pair) == 2
        if not (right and isinstance(pair[0], str) and isinstance(pair[1], Mapping)):
            raise ValueError("'providers' values must be either strings or (string, dict) tuples.")
    return pairs
