"""This package offers ONNX Runtime's interface over Jangin: `import jangin.onnxruntime as onnxruntime`.

Every public name of onnxruntime is here. A call that Jangin can't serve is refused, and its error names an
alternative. A warning names each option that Jangin can't honour, once. `install()`, or
`python -m jangin.onnxruntime script.py`, substitutes this module for the real one in programs that import
`onnxruntime`."""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING, Any

from jangin.runtime.collecting import uncollected

if TYPE_CHECKING:
    from jangin.onnxruntime import capi
    from jangin.onnxruntime.adapters import AdapterFormat, LoraAdapter
    from jangin.onnxruntime.binding import IOBinding, SessionIOBinding
    from jangin.onnxruntime.capi import onnxruntime_validation
    from jangin.onnxruntime.compiler import (
        ModelCompiler,
        ModelPackage,
        ModelPackageComponentContext,
        ModelPackageContext,
        ModelPackageOptions,
        OrtEpAssignedNode,
        OrtEpAssignedSubgraph,
        OrtEpContextData,
        OrtEpContextDataBuffer,
        OrtExternalInitializerInfo,
    )

with uncollected():  # collecting garbage takes a tenth of the import's time
    from jangin.onnxruntime.devices import (
        OrtArenaCfg,
        OrtDevice,
        OrtEpDevice,
        OrtHardwareDevice,
        OrtMemoryInfo,
        OrtSyncStream,
        get_ep_devices,
    )
    from jangin.onnxruntime.enums import (
        ExecutionMode,
        ExecutionOrder,
        GraphOptimizationLevel,
        ModelPackageWriteMode,
        OrtAllocatorType,
        OrtCompileApiFlags,
        OrtDeviceMemoryType,
        OrtDeviceVendorId,
        OrtExecutionProviderDevicePolicy,
        OrtHardwareDeviceType,
        OrtMemoryInfoDeviceType,
        OrtMemType,
        OrtSparseFormat,
    )
    from jangin.onnxruntime.installing import install, uninstall
    from jangin.onnxruntime.options import RunOptions, SessionOptions
    from jangin.onnxruntime.process import (
        VERSION,
        create_and_register_allocator,
        create_and_register_allocator_v2,
        disable_telemetry_events,
        enable_telemetry_events,
        get_build_info,
        get_device,
        get_version_string,
        has_collective_ops,
        preload_dlls,
        print_debug_info,
        register_execution_provider_library,
        set_default_logger_callback,
        set_default_logger_severity,
        set_default_logger_verbosity,
        set_global_thread_pool_sizes,
        set_seed,
        unregister_execution_provider_library,
    )
    from jangin.onnxruntime.providers import get_all_providers, get_available_providers
    from jangin.onnxruntime.session import InferenceSession, ModelMetadata, NodeArg
    from jangin.onnxruntime.sparse import SparseTensor
    from jangin.onnxruntime.values import OrtValue, copy_tensors

_LATER = {
    "adapters": ("AdapterFormat", "LoraAdapter"),
    "binding": ("IOBinding", "SessionIOBinding"),
    "capi": ("onnxruntime_validation",),
    "compiler": (
        "ModelCompiler", "ModelPackage", "ModelPackageComponentContext", "ModelPackageContext",
        "ModelPackageOptions", "OrtEpAssignedNode", "OrtEpAssignedSubgraph", "OrtEpContextData",
        "OrtEpContextDataBuffer", "OrtExternalInitializerInfo",
    ),
}  # fmt: skip
"""Modules that are imported when one of their names is first used. Few programs use one."""

__version__ = version = VERSION
__author__ = "Jangin"
package_name, cuda_version = "onnxruntime", ""
import_capi_exception = None

__all__ = [
    "AdapterFormat", "ExecutionMode", "ExecutionOrder", "GraphOptimizationLevel", "IOBinding",
    "InferenceSession", "LoraAdapter", "ModelCompiler", "ModelMetadata", "ModelPackage",
    "ModelPackageComponentContext", "ModelPackageContext", "ModelPackageOptions", "ModelPackageWriteMode",
    "NodeArg", "OrtAllocatorType", "OrtArenaCfg", "OrtCompileApiFlags", "OrtDevice", "OrtDeviceMemoryType",
    "OrtDeviceVendorId", "OrtEpAssignedNode", "OrtEpAssignedSubgraph", "OrtEpContextData",
    "OrtEpContextDataBuffer", "OrtEpDevice", "OrtExecutionProviderDevicePolicy", "OrtExternalInitializerInfo",
    "OrtHardwareDevice", "OrtHardwareDeviceType", "OrtMemType", "OrtMemoryInfo", "OrtMemoryInfoDeviceType",
    "OrtSparseFormat", "OrtSyncStream", "OrtValue", "RunOptions", "SessionIOBinding", "SessionOptions",
    "SparseTensor", "capi", "copy_tensors", "create_and_register_allocator",
    "create_and_register_allocator_v2", "cuda_version", "disable_telemetry_events", "enable_telemetry_events",
    "get_all_providers", "get_available_providers", "get_build_info", "get_device", "get_ep_devices",
    "get_version_string", "has_collective_ops", "import_capi_exception", "install", "onnxruntime_validation",
    "package_name", "preload_dlls", "print_debug_info", "register_execution_provider_library",
    "set_default_logger_callback", "set_default_logger_severity", "set_default_logger_verbosity",
    "set_global_thread_pool_sizes", "set_seed", "uninstall", "unregister_execution_provider_library",
    "version",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    for module, names in _LATER.items():
        if name == module or name in names:
            home = importlib.import_module(f"jangin.onnxruntime.{module}")
            return home if name == module else getattr(home, name)
    whole = sys.modules[__name__]  # by which Python names the nearest attribute
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}", name=name, obj=whole)


def __dir__() -> list[str]:
    return sorted({*__all__, *globals()})
