"""`InferenceSession` as ONNX Runtime has it, so that code moves by changing one import."""

from __future__ import annotations

import difflib
import os
import re
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field, fields
from enum import IntEnum
from typing import Any

from jangin.frontends.onnx.types import element_name
from jangin.ir.dtype import DTYPES, STRING, from_numpy
from jangin.ir.graph import Array
from jangin.ir.records import dataclass
from jangin.runtime.load import Runnable
from jangin.runtime.sizes import TensorSpec
from jangin.runtime.threads import counted

PROVIDER = "CPUExecutionProvider"


class GraphOptimizationLevel(IntEnum):
    ORT_DISABLE_ALL = 0
    ORT_ENABLE_BASIC = 1
    ORT_ENABLE_EXTENDED = 2
    ORT_ENABLE_LAYOUT = 3
    ORT_ENABLE_ALL = 99


class ExecutionMode(IntEnum):
    ORT_SEQUENTIAL = 0
    ORT_PARALLEL = 1


class _Named:
    """Options whose names are known: others are misspelt."""

    def __setattr__(self, name: str, value: object) -> None:
        known = [f.name for f in fields(self)]  # type: ignore[arg-type]
        if name not in known:
            raise AttributeError(f"{type(self).__name__} has no option {name!r}{_nearest(name, known)}")
        super().__setattr__(name, value)


@dataclass
class SessionOptions(_Named):
    """`intra_op_num_threads` (0: what the process may use) and the free dimension overrides have
    effect. The rest is accepted for compatibility, as the compiler has one way of working; a session
    warns of those that were changed."""

    intra_op_num_threads: int = 0
    inter_op_num_threads: int = 0
    graph_optimization_level: int = GraphOptimizationLevel.ORT_ENABLE_ALL
    execution_mode: int = ExecutionMode.ORT_SEQUENTIAL
    enable_cpu_mem_arena: bool = True
    enable_mem_pattern: bool = True
    enable_mem_reuse: bool = True
    enable_profiling: bool = False
    log_severity_level: int = 2
    log_verbosity_level: int = 0
    logid: str = ""
    optimized_model_filepath: str = ""
    use_deterministic_compute: bool = False
    use_per_session_threads: bool = True
    profile_file_prefix: str = "onnxruntime_profile_"
    shapes: dict[str, int] = field(default_factory=dict)
    config: dict[str, str] = field(default_factory=dict)

    def add_free_dimension_override_by_name(self, name: str, size: int) -> None:
        """Fix the size symbol `name`."""
        self.shapes[name] = size

    def add_session_config_entry(self, name: str, value: str) -> None:
        self.config[name] = value

    def get_session_config_entry(self, name: str) -> str:
        return self.config[name]


@dataclass
class RunOptions(_Named):
    """Accepted for compatibility; nothing in it has effect, and a run warns of what was changed."""

    log_severity_level: int = 2
    log_verbosity_level: int = 0
    logid: str = ""
    only_execute_path_to_fetches: bool = False


_EFFECTIVE = ("intra_op_num_threads", "shapes", "log_severity_level", "log_verbosity_level", "logid")
"""The options of which no session needs to warn: they change something, or ask how much to log, where Jangin
logs nothing."""
_ACCEPTED = ("disabled_optimizers", "enable_fallback", "read_config_from_model")
"""Arguments that ONNX Runtime's sessions take beside the named ones; they change nothing here."""


@dataclass(frozen=True)
class NodeArg:
    """An input or output: `type` as in "tensor(float)"; `shape` has integers and symbol names."""

    name: str
    type: str
    shape: list[int | str]


@dataclass(frozen=True)
class ModelMetadata:
    graph_name: str
    producer_name: str = ""
    domain: str = ""
    description: str = ""
    graph_description: str = ""
    version: int = 0
    custom_metadata_map: dict[str, str] = field(default_factory=dict)


class InferenceSession:
    """A model ready to run. `path_or_bytes`: an ONNX file or its bytes, or a compiled `.jgn` file.

    `sess_options` may be ONNX Runtime's own, of which the number of threads has effect (its free dimension
    overrides can't be read: use the `SessionOptions` of this module for those).

    `providers`: None, or a list (of names, or of (name, options)) that has the CPU's; another one
    alone raises ValueError, as nothing is moved silently. An argument that no session has raises TypeError;
    those that change nothing are named in a warning."""

    def __init__(
        self,
        path_or_bytes: str | os.PathLike[str] | bytes,
        sess_options: SessionOptions | None = None,
        providers: Sequence[Any] | None = None,
        provider_options: Sequence[Mapping[str, Any]] | None = None,
        **others: Any,
    ) -> None:
        for name in others:
            if name not in _ACCEPTED:
                known = ["sess_options", "providers", "provider_options", *_ACCEPTED]
                raise TypeError(f"InferenceSession takes no argument {name!r}{_nearest(name, known)}")
        names = [p if isinstance(p, str) else p[0] for p in providers or (PROVIDER,)]
        if PROVIDER not in names:
            raise ValueError(f"providers {names} are not available; {PROVIDER} is")
        self._options = sess_options or SessionOptions()
        idle = [*_changed(self._options, SessionOptions()), *(n for n, value in others.items() if value)]
        _say_idle([*idle, *(["provider_options"] if any(provider_options or ()) else [])])
        self._executable = _open(path_or_bytes, self._options)
        self._outputs = [o.name for o in self._executable.outputs]

    @property
    def executable(self) -> Runnable:
        return self._executable

    def run(
        self,
        output_names: Sequence[str] | None,
        input_feed: Mapping[str, Any],
        run_options: RunOptions | None = None,
    ) -> list[Array]:
        """The outputs named (all of them: None or empty), in that order. Raises ValueError for a name
        or size, TypeError for a dtype, that isn't the model's."""
        if output_names and (unknown := [n for n in output_names if n not in self._outputs]):
            known = f"the outputs are: {self._outputs}"
            raise ValueError(f"no output is named {', '.join(map(repr, unknown))}; {known}")
        if run_options is not None:
            _say_idle(_changed(run_options, RunOptions()))
        results = self._executable.run(input_feed)
        return [results[n] for n in output_names or self._outputs]

    def get_inputs(self) -> list[NodeArg]:
        return [_node_arg(s) for s in self._executable.inputs]

    def get_outputs(self) -> list[NodeArg]:
        return [_node_arg(s) for s in self._executable.outputs]

    def get_overridable_initializers(self) -> list[NodeArg]:
        return []

    def get_providers(self) -> list[str]:
        return [PROVIDER]

    def get_provider_options(self) -> dict[str, dict[str, str]]:
        return {PROVIDER: {}}

    def get_session_options(self) -> SessionOptions:
        return self._options

    def get_modelmeta(self) -> ModelMetadata:
        kept = self._executable.artifact.metadata
        return ModelMetadata(
            self._executable.name, **{f.name: kept[f.name] for f in fields(ModelMetadata) if f.name in kept}
        )


def get_available_providers() -> list[str]:
    return [PROVIDER]


def get_device() -> str:
    return "CPU"


def _nearest(name: str, known: Iterable[str]) -> str:
    """What a misspelt name should be, or what there is."""
    known = sorted(known)
    near = difflib.get_close_matches(name, known, 1)
    return f": did you mean {near[0]}?" if near else f"; there are {', '.join(known)}"


def _changed(options: object, default: SessionOptions | RunOptions) -> list[str]:
    """The options without effect that aren't as they are by default (ONNX Runtime's own lack some)."""
    names = [f.name for f in fields(default) if f.name not in _EFFECTIVE]
    return [n for n in names if getattr(options, n, getattr(default, n)) != getattr(default, n)]


def _say_idle(names: Sequence[str]) -> None:
    if names:
        what = ", ".join(names)
        warnings.warn(f"these options change nothing in Jangin: {what}", UserWarning, stacklevel=3)


def _open(model: str | os.PathLike[str] | bytes, options: SessionOptions) -> Runnable:
    import jangin

    asked = options.intra_op_num_threads
    threads = None if asked == 0 and not isinstance(asked, bool) else counted(asked, "intra_op_num_threads")
    if not isinstance(model, bytes) and os.fspath(model).endswith(".jgn"):
        loaded: Runnable = jangin.load(model, threads=threads)
        return loaded
    compiled: Runnable = jangin.compile(model, threads=threads, shapes=dict(getattr(options, "shapes", {})))
    return compiled


def _node_arg(spec: TensorSpec) -> NodeArg:
    if spec.type:
        return NodeArg(spec.name, _type_name(spec.type), list(spec.shape))
    return NodeArg(spec.name, f"tensor({element_name(from_numpy(spec.dtype))})", list(spec.shape))


def _type_name(text: str) -> str:
    """A type as ONNX Runtime writes it: seq(f32[?]) is seq(tensor(float))."""
    dtypes = {"string": STRING, **DTYPES}
    return re.sub(r"(\w+)\[[^\]]*\]", lambda found: f"tensor({element_name(dtypes[found[1]])})", text)
