"""`SessionOptions` and `RunOptions`. They tell which options have an effect, and refuse misspelt ones."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import field, fields
from typing import Any

from jangin.ir.graph import Array
from jangin.ir.records import dataclass
from jangin.onnxruntime.devices import OrtEpDevice
from jangin.onnxruntime.enums import (
    ExecutionMode,
    ExecutionOrder,
    GraphOptimizationLevel,
    OrtExecutionProviderDevicePolicy,
)
from jangin.onnxruntime.errors import Fail, InvalidArgument, NotImplemented
from jangin.onnxruntime.said import nearest
from jangin.onnxruntime.values import OrtValue

EXTERNAL_FILE = "session.optimized_model_external_initializers_file_name"
"""The key of the file that gets the initializers of the model at `optimized_model_filepath`."""
EXTERNAL_SIZE = "session.optimized_model_external_initializers_min_size_in_bytes"
"""The key of the least size of such initializers in bytes."""
CONFIG = (
    "ep.context_enable", "ep.context_embed_mode", "ep.context_file_path", "ep.share_ep_contexts",
    "mlas.use_lut_gemm", "session.allow_released_opsets_only", "session.debug_layout_transformation",
    "session.disable_aot_function_inlining", "session.disable_cpu_ep_fallback",
    "session.disable_double_qdq_remover", "session.disable_prepacking", "session.disable_quant_qdq",
    "session.disable_specified_optimizers", "session.dynamic_block_base",
    "session.enable_gelu_approximation", "session.enable_quant_qdq_cleanup", "session.force_spinning_stop",
    "session.graph_optimizations_loop_level",
    "session.inter_op.allow_spinning", "session.intra_op.allow_spinning",
    "session.intra_op_thread_affinities", "session.load_model_format",
    "session.model_external_initializers_file_folder_path", EXTERNAL_FILE, EXTERNAL_SIZE,
    "session.qdq_matmulnbits_accuracy_level", "session.qdqisint8allowed",
    "session.record_ep_graph_assignment_info", "session.save_model_format",
    "session.save_external_prepacked_constant_initializers", "session.set_denormal_as_zero",
    "session.use_device_allocator_for_initializers", "session.use_env_allocators",
    "session.use_memory_mapped_ort_model", "session.use_ort_model_bytes_directly",
    "session.use_ort_model_bytes_for_initializers", "session.x64quantprecision",
    "optimization.enable_memory_optimizer", "optimization.minimal_build_optimizations",
)  # fmt: skip
"""Keys of ONNX Runtime's session configuration, by which misspelt keys are recognized."""
RUN_CONFIG = (
    "disable_synchronize_execution_providers", "gpu_graph_id", "memory.enable_memory_arena_shrinkage",
    "qnn.lora_config", "qnn.rpc_control_latency",
)  # fmt: skip
"""Keys of ONNX Runtime's configuration of a run."""
ALIKE = 0.85
"""An unknown key counts as misspelt if its similarity to a known key is at least this, on difflib's scale to
1. One wrong letter in seven gives 0.857."""
SHRINKAGE = "memory.enable_memory_arena_shrinkage"
"""The key of a run's configuration that requests to release the run's memory after it."""
WAIT = "jangin.wait"
"""The key of a session's configuration that requests to compile the model before the session is there."""
_MET = {
    "session.load_model_format": "ONNX",
    "session.save_model_format": "ONNX",
    "session.disable_cpu_ep_fallback": "0",
    "session.use_env_allocators": "0",
    "session.set_denormal_as_zero": "0",
    "session.record_ep_graph_assignment_info": "1",
}
"""Entries of the configuration with the value that Jangin always fulfils."""


class _Named:
    """Options whose names are known. Any other name is refused as misspelt."""

    def __setattr__(self, name: str, value: object) -> None:
        known = [f.name for f in fields(self)]  # type: ignore[arg-type]
        if name not in known:
            raise AttributeError(f"{type(self).__name__} has no option {name!r}{nearest(name, known)}")
        super().__setattr__(name, value)


class _Configured:
    """Configuration entries: texts by name."""

    config: dict[str, str]

    def _put(self, name: str, value: str, known: Sequence[str]) -> None:
        if name not in known:
            import difflib

            if close := difflib.get_close_matches(name, known, 1, ALIKE):
                raise ValueError(f"there is no configuration entry {name!r}: did you mean {close[0]}?")
        self.config[name] = value

    def _got(self, name: str, what: str) -> str:
        try:
            return self.config[name]
        except KeyError:
            raise RuntimeError(f"{what} does not have configuration with key: {name}") from None


@dataclass
class SessionOptions(_Named, _Configured):
    """These are a session's options. A session warns once of each changed option that has no effect.

    - `intra_op_num_threads` sets the number of threads; 0 stands for all processors that the process may use.
    - If `use_per_session_threads` is off, `set_global_thread_pool_sizes` gives the default number of threads.
    - Free dimension overrides, initializers and files of external initializers change the compiled model.
    - `enable_profiling` writes a trace, and `profile_file_prefix` begins its name.
    - `optimized_model_filepath` gets the model unchanged.
    - The entry `jangin.wait` of the configuration, with the value "1", makes a session wait until the model
      is compiled. Without it another process compiles, and NumPy computes the first runs.
    - `inter_op_num_threads` has no effect because operators run one after the other.
    - `use_deterministic_compute` has no effect because the same inputs always give the same outputs.
    - The options of logging have no effect because Jangin logs nothing.
    """

    intra_op_num_threads: int = 0
    inter_op_num_threads: int = 0
    graph_optimization_level: int = GraphOptimizationLevel.ORT_ENABLE_ALL
    execution_mode: int = ExecutionMode.ORT_SEQUENTIAL
    execution_order: int = ExecutionOrder.DEFAULT
    enable_cpu_mem_arena: bool = True
    enable_mem_pattern: bool = True
    enable_mem_reuse: bool = True
    enable_profiling: bool = False
    log_severity_level: int = -1
    log_verbosity_level: int = 0
    logid: str = ""
    optimized_model_filepath: str = ""
    use_deterministic_compute: bool = False
    use_per_session_threads: bool = True
    profile_file_prefix: str = "onnxruntime_profile_"
    shapes: dict[str, int] = field(default_factory=dict)
    denotations: dict[str, int] = field(default_factory=dict)
    config: dict[str, str] = field(default_factory=dict)
    initializers: dict[str, Array] = field(default_factory=dict)
    external_files: dict[str, memoryview] = field(default_factory=dict)
    providers: dict[str, dict[str, str]] = field(default_factory=dict)
    canceled: bool = False

    def add_free_dimension_override_by_name(self, name: str, size: int) -> None:
        """Fix the size symbol `name` of the model's inputs to `size`."""
        self.shapes[name] = size

    def add_free_dimension_override_by_denotation(self, denotation: str, size: int) -> None:
        """Fix the sizes of inputs with this denotation in the model ("DATA_BATCH")."""
        self.denotations[denotation] = size

    def add_session_config_entry(self, name: str, value: str) -> None:
        """Set an entry of the configuration. Raises ValueError for an unknown key that is similar to one of
        ONNX Runtime's."""
        self._put(name, value, CONFIG)

    def get_session_config_entry(self, name: str) -> str:
        return self._got(name, "SessionOptions")

    def add_initializer(self, name: str, value: Any) -> None:
        """Replace the model's initializer of this name, if there is one, by an OrtValue."""
        self.initializers[name] = OrtValue.of(value).numpy()

    def add_external_initializers(self, names: Sequence[str], values: Sequence[Any]) -> None:
        """Replace initializers of these names by OrtValues."""
        for name, value in zip(names, values, strict=True):
            self.add_initializer(name, value)

    def add_external_initializers_from_files_in_memory(
        self, names: Sequence[str], buffers: Sequence[Any], lengths: Sequence[int]
    ) -> None:
        """Give the contents of files of external data. `names` are the files' names in the model, and
        `lengths` their bytes."""
        for name, data, length in zip(names, buffers, lengths, strict=True):
            self.external_files[name] = memoryview(data).cast("B")[:length]

    def register_custom_ops_library(self, path: str) -> None:
        """Raise NotImplemented, because the library's operators are made for ONNX Runtime's own interface."""
        if not os.path.exists(path):
            raise Fail.said(f"Failed to load library {path} with error: there is no such file")
        raise NotImplemented.said(
            f"operators compiled for ONNX Runtime ({path}) can't be called by Jangin: write them with "
            "jangin.operator or jangin.hosted, and compile with jangin.compile(model, operators=[...])"
        )

    def add_provider(self, name: str, options: Mapping[str, str]) -> None:
        """Request a provider, as the session's argument `providers` does."""
        self.providers[name] = dict(options)

    def add_provider_for_devices(self, devices: Sequence[OrtEpDevice], options: Mapping[str, str]) -> None:
        """Request the providers of these devices."""
        for device in devices:
            self.add_provider(device.ep_name, options)

    def has_providers(self) -> bool:
        return bool(self.providers)

    def set_provider_selection_policy(self, policy: OrtExecutionProviderDevicePolicy) -> None:
        """Does nothing, because there is one provider."""

    def set_provider_selection_policy_delegate(self, delegate: Callable[..., Any]) -> None:
        """Does nothing, because there is one provider."""

    def set_load_cancellation_flag(self, canceled: bool) -> None:
        """Make new sessions with these options raise ModelLoadCanceled if `canceled`. A session that is being
        made goes on."""
        self.canceled = canceled

    def set_ep_context_data_read_func(self, read: Callable[..., None], max_data_size: int) -> None:
        """Does nothing, because no model has parts that a provider compiled."""

    def clear_ep_context_data_read_func(self) -> None:
        """Does nothing, because no model has parts that a provider compiled."""


@dataclass
class RunOptions(_Named, _Configured):
    """These are a run's options. `terminate` makes new runs raise Fail, and runs in progress raise it at
    their end. The entry `memory.enable_memory_arena_shrinkage` releases the run's memory after it.

    No other option has an effect. A warning names each other changed option once in a process, except those
    of logging, because Jangin logs nothing."""

    log_severity_level: int = -1
    log_verbosity_level: int = 0
    logid: str = ""
    only_execute_path_to_fetches: bool = False
    terminate: bool = False
    config: dict[str, str] = field(default_factory=dict)
    adapters: list[Any] = field(default_factory=list)

    def add_run_config_entry(self, name: str, value: str) -> None:
        """Set an entry of a run's configuration. Raises ValueError for an unknown key that is similar to one
        of ONNX Runtime's."""
        self._put(name, value, RUN_CONFIG)

    def get_run_config_entry(self, name: str) -> str:
        return self._got(name, "RunOptions")

    def add_active_adapter(self, adapter: Any) -> None:
        """Let runs read a `LoraAdapter`'s tensors instead of the initializers of the same names. A session
        compiles its model once more for them."""
        self.adapters.append(adapter)


_USED = (EXTERNAL_FILE, EXTERNAL_SIZE, SHRINKAGE, WAIT)
"""Keys of the configuration that have an effect."""
_WITHOUT_EFFECT = (
    "graph_optimization_level", "execution_mode", "execution_order", "enable_cpu_mem_arena",
    "enable_mem_pattern", "enable_mem_reuse", "only_execute_path_to_fetches",
)  # fmt: skip
"""Options without an effect: Jangin has a single way to compile and run, and plans memory itself."""


def idle(options: object) -> Iterator[str]:
    """Yield the names of options that have no effect and differ from their defaults. ONNX Runtime's own
    options objects lack some of the options."""
    default = RunOptions() if hasattr(options, "terminate") else SessionOptions()
    for name in _WITHOUT_EFFECT:
        plain = getattr(default, name, 0)
        if int(getattr(options, name, plain)) != int(plain):
            yield name
    if getattr(options, "optimized_model_filepath", ""):
        yield "optimized_model_filepath (the model is written there as it came)"
    config = getattr(options, "config", {})
    yield from (n for n, v in config.items() if _MET.get(n) != v and n not in _USED)


def shrinks(options: RunOptions) -> bool:
    """Return whether the options request to release the run's memory after it.

    Raises InvalidArgument for a device other than the CPU, as ONNX Runtime does for a device without an
    arena."""
    devices = getattr(options, "config", {}).get(SHRINKAGE, "")
    for device in filter(None, devices.split(";")):
        if device != "cpu:0":
            raise InvalidArgument.said(f"{SHRINKAGE}: there is no arena for {device!r}, only for 'cpu:0'")
    return bool(devices)
