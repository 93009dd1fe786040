"""The names of ONNX Runtime's compiled module: exceptions, enumerations, and the inner classes."""

from __future__ import annotations

from jangin.onnxruntime.adapters import AdapterFormat, LoraAdapter
from jangin.onnxruntime.binding import SessionIOBinding
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
from jangin.onnxruntime.devices import (
    OrtArenaCfg,
    OrtDevice,
    OrtEpDevice,
    OrtHardwareDevice,
    OrtMemoryInfo,
    OrtSyncStream,
    get_ep_devices,
    get_hardware_devices,
)
from jangin.onnxruntime.enums import (
    ArenaExtendStrategy,
    ExecutionMode,
    ExecutionOrder,
    GraphOptimizationLevel,
    ModelPackageWriteMode,
    OrtAllocatorType,
    OrtCompileApiFlags,
    OrtCompiledModelCompatibility,
    OrtDeviceEpIncompatibilityReason,
    OrtDeviceMemoryType,
    OrtExecutionProviderDevicePolicy,
    OrtHardwareDeviceType,
    OrtMemoryInfoDeviceType,
    OrtMemType,
    OrtSparseFormat,
)
from jangin.onnxruntime.errors import (
    DeviceReset,
    EngineError,
    EPFail,
    Fail,
    InvalidArgument,
    InvalidGraph,
    InvalidProtobuf,
    ModelLoadCanceled,
    ModelLoaded,
    ModelRequiresCompilation,
    NoModel,
    NoSuchFile,
    NotFound,
    NotImplemented,
    RuntimeException,
)
from jangin.onnxruntime.options import RunOptions, SessionOptions
from jangin.onnxruntime.process import (
    create_and_register_allocator,
    create_and_register_allocator_v2,
    disable_telemetry_events,
    enable_telemetry_events,
    get_build_info,
    get_device,
    get_version_string,
    has_collective_ops,
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
from jangin.onnxruntime.sparse import SparseCooView, SparseCsrView, SparseTensor
from jangin.onnxruntime.values import OrtValue, OrtValueVector, copy_tensors

kNextPowerOfTwo, kSameAsRequested = ArenaExtendStrategy


def get_default_session_options() -> SessionOptions:
    """Return options with their default values."""
    return SessionOptions()


def is_dlpack_uint8_tensor(capsule: object) -> bool:
    """Return False, because a DLPack capsule alone doesn't tell if its bytes are truth values."""
    return False


__all__ = [
    "AdapterFormat", "ArenaExtendStrategy", "DeviceReset", "EPFail", "EngineError", "ExecutionMode",
    "ExecutionOrder", "Fail", "GraphOptimizationLevel", "InferenceSession", "InvalidArgument", "InvalidGraph",
    "InvalidProtobuf", "LoraAdapter", "ModelCompiler", "ModelLoadCanceled", "ModelLoaded", "ModelMetadata",
    "ModelPackage", "ModelPackageComponentContext", "ModelPackageContext", "ModelPackageOptions",
    "ModelPackageWriteMode", "ModelRequiresCompilation", "NoModel", "NoSuchFile", "NodeArg", "NotFound",
    "NotImplemented", "OrtAllocatorType", "OrtArenaCfg", "OrtCompileApiFlags",
    "OrtCompiledModelCompatibility", "OrtDevice", "OrtDeviceEpIncompatibilityReason", "OrtDeviceMemoryType",
    "OrtEpAssignedNode", "OrtEpAssignedSubgraph", "OrtEpContextData", "OrtEpContextDataBuffer", "OrtEpDevice",
    "OrtExecutionProviderDevicePolicy", "OrtExternalInitializerInfo", "OrtHardwareDevice",
    "OrtHardwareDeviceType", "OrtMemType", "OrtMemoryInfo", "OrtMemoryInfoDeviceType", "OrtSparseFormat",
    "OrtSyncStream", "OrtValue", "OrtValueVector", "RunOptions", "RuntimeException", "SessionIOBinding",
    "SessionOptions", "SparseCooView", "SparseCsrView", "SparseTensor", "copy_tensors",
    "create_and_register_allocator", "create_and_register_allocator_v2", "disable_telemetry_events",
    "enable_telemetry_events", "get_all_providers", "get_available_providers", "get_build_info",
    "get_default_session_options", "get_device", "get_ep_devices", "get_hardware_devices",
    "get_version_string", "has_collective_ops", "is_dlpack_uint8_tensor", "kNextPowerOfTwo",
    "kSameAsRequested", "register_execution_provider_library", "set_default_logger_callback",
    "set_default_logger_severity", "set_default_logger_verbosity", "set_global_thread_pool_sizes", "set_seed",
    "unregister_execution_provider_library",
]  # fmt: skip
