"""`InferenceSession` with ONNX Runtime's interface, so that a program changes only one import."""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import field, fields
from typing import TYPE_CHECKING, Any

import numpy as np

from jangin.frontends.onnx.types import element_name
from jangin.ir.dtype import DTYPES, STRING, from_numpy
from jangin.ir.records import dataclass
from jangin.onnxruntime.devices import OrtEpDevice, OrtMemoryInfo, cpu_memory, get_ep_devices
from jangin.onnxruntime.enums import OrtDeviceVendorId
from jangin.onnxruntime.errors import (
    Fail,
    InvalidArgument,
)
from jangin.onnxruntime.model import configured, nodes_of, overridable, without_initializers
from jangin.onnxruntime.opening import opened
from jangin.onnxruntime.options import RunOptions, SessionOptions, idle, shrinks
from jangin.onnxruntime.providers import PROVIDER, get_all_providers, normalized
from jangin.onnxruntime.said import nearest, say_idle
from jangin.onnxruntime.sparse import SparseTensor
from jangin.onnxruntime.values import OrtValue, OrtValueVector
from jangin.runtime.load import Runnable
from jangin.runtime.sizes import TensorSpec

if TYPE_CHECKING:
    from jangin.onnxruntime.binding import IOBinding
    from jangin.onnxruntime.compiler import OrtEpAssignedSubgraph
    from jangin.onnxruntime.profiling import Profile

Feeds = Mapping[str, Any]
Callback = Callable[[list[Any], Any, str], object]
_ACCEPTED = ("disabled_optimizers", "enable_fallback", "read_config_from_model")
"""Arguments that ONNX Runtime's sessions take besides the named ones."""


NO_VERSION = (1 << 63) - 1
"""This number, the largest 64-bit integer, is the version of a model that states none."""


@dataclass(frozen=True)
class NodeArg:
    """An input or output. `type` is a text such as "tensor(float)". `shape` has integers, the model's names
    of sizes, and None for nameless sizes."""

    name: str
    type: str
    shape: list[int | str | None]


@dataclass(frozen=True)
class ModelMetadata:
    graph_name: str
    producer_name: str = ""
    domain: str = ""
    description: str = ""
    graph_description: str = ""
    version: int = NO_VERSION
    custom_metadata_map: dict[str, str] = field(default_factory=dict)


class Session:
    """This class has the methods that all sessions share, whatever they are made of."""

    _executable: Runnable
    _model: Any
    _others: dict[frozenset[str], Runnable]
    _options: SessionOptions
    _outputs: list[str]
    _profile: Profile | None = None
    _has_text: bool = False
    _sparse: frozenset[str] = frozenset()
    """The names of the inputs and outputs that the model declares as sparse."""
    _began: int = 0
    _provider_options: dict[str, dict[str, str]]

    @property
    def _sess(self) -> Session:
        return self

    @property
    def _model_path(self) -> str | None:
        """The path of the model, or None. Programs read it by this name."""
        return os.fspath(self._model) if isinstance(self._model, (str, os.PathLike)) else None

    @property
    def executable(self) -> Runnable:
        return self._executable

    def run(
        self, output_names: Sequence[str] | None, input_feed: Feeds, run_options: RunOptions | None = None
    ) -> list[Any]:
        """Run the model, and return the named outputs in order, or all outputs if the names are None or
        empty.

        Raises InvalidArgument, which is a ValueError and a TypeError, for a name, size or dtype that isn't
        the model's."""
        results = self._ran(output_names, input_feed, run_options)
        return [results[n] for n in output_names or self._outputs]

    def _ran(self, names: Sequence[str] | None, feeds: Feeds, options: RunOptions | None) -> dict[str, Any]:
        if names and (unknown := [n for n in names if n not in self._outputs]):
            known = f"the outputs are: {self._outputs}"
            raise InvalidArgument.said(f"no output is named {', '.join(map(repr, unknown))}; {known}")
        if options is not None:
            say_idle(idle(options), stacklevel=4)
            _check_ended(options)
            for adapter in getattr(options, "adapters", ()):
                feeds = {**adapter.tensors, **feeds}
        if self._has_text or self._sparse:
            feeds = {n: _given(v) for n, v in feeds.items()}
        try:
            outputs = self._executable.run(feeds) if self._profile is None else self._profiled(feeds)
        except (ValueError, TypeError, IndexError) as error:
            outputs = self._otherwise(feeds, error)
        if options is not None:
            _check_ended(options)
            if shrinks(options):
                self._executable.release()
        if self._sparse:
            outputs = {n: SparseTensor.of_dense(v) if n in self._sparse else v for n, v in outputs.items()}
        return outputs

    def _otherwise(self, feeds: Feeds, error: Exception) -> dict[str, Any]:
        """Repeat a failed run with the contents of OrtValues as arrays. If initializers are fed, a model runs
        whose initializers are inputs. Raises ONNX Runtime's exceptions if the run fails again."""
        plain = {n: _given(v) for n, v in feeds.items()}
        executable = self._freed(plain)
        if executable is not None or any(plain[n] is not feeds[n] for n in plain):
            try:
                outputs: dict[str, Any] = (executable or self._executable).run(plain)
                return outputs
            except (ValueError, TypeError, IndexError) as again:
                error = again
        if missing := [i.name for i in self._executable.inputs if i.name not in plain]:
            what = f"Required inputs ({missing}) are missing from input feed ({[*plain]})"
            raise ValueError(f"{what}: {error}") from None
        raise InvalidArgument.said(error) from error

    def _freed(self, feeds: Feeds) -> Runnable | None:
        """Return a model in which the fed initializers are inputs, or None if none is fed. It is compiled
        when it is first needed."""
        names = frozenset(feeds) - {i.name for i in self._executable.inputs}
        if not names or not names <= {i.name for i in self.get_overridable_initializers()}:
            return None
        if names not in self._others:
            self._others[names] = opened(without_initializers(self._model, names), self._options)
        return self._others[names]

    def _profiled(self, feeds: Feeds) -> dict[str, Any]:
        assert self._profile is not None
        return self._profile.run(self._executable, feeds)

    def run_async(
        self,
        output_names: Sequence[str] | None,
        input_feed: Feeds,
        callback: Callback,
        user_data: Any,
        run_options: RunOptions | None = None,
    ) -> None:
        """Run the model in a new thread, which calls `callback(results, user_data, error)` at the end.
        `error` is "" after success."""

        def work() -> None:
            try:
                results, error = self.run(output_names, input_feed, run_options), ""
            except Exception as problem:  # the callback gets it
                results, error = [], str(problem)
            callback(results, user_data, error)

        threading.Thread(target=work, name="jangin run_async", daemon=True).start()

    def run_with_ort_values(
        self,
        output_names: Sequence[str] | None,
        input_dict_ort_values: Mapping[str, OrtValue],
        run_options: RunOptions | None = None,
    ) -> OrtValueVector:
        """Run as `run` does, with OrtValues as inputs and outputs. ONNX Runtime's inner sessions take the
        inputs before the names, which is accepted too."""
        names, feeds = output_names, input_dict_ort_values
        if isinstance(names, Mapping):
            names, feeds = feeds, names
        return OrtValueVector(map(OrtValue.holding, self.run(names, feeds, run_options)))

    def io_binding(self) -> IOBinding:
        from jangin.onnxruntime.binding import IOBinding

        return IOBinding(self)

    def run_with_iobinding(self, iobinding: IOBinding, run_options: RunOptions | None = None) -> None:
        """Run the model on the bound inputs, and store the bound outputs. Raises ValueError for another
        session's binding."""
        if iobinding.session is not self:
            raise ValueError("IOBinding must be used with the session that created it.")
        outputs = self._ran(iobinding.wanted, iobinding.feeds, run_options)
        iobinding.take({name: outputs[name] for name in iobinding.wanted})

    def run_with_ortvaluevector(
        self,
        run_options: RunOptions | None,
        feed_names: Sequence[str],
        feeds: Sequence[OrtValue],
        fetch_names: Sequence[str],
        fetches: OrtValueVector,
        fetch_devices: Sequence[Any],
    ) -> None:
        """Run as `run` does, on lists of OrtValues. Results replace the values in `fetches`, or are
        appended."""
        outputs = self.run(fetch_names, dict(zip(feed_names, feeds, strict=True)), run_options)
        for n, value in enumerate(outputs):
            if n < len(fetches) and fetches[n].has_value():
                fetches[n].update_inplace(value)
            else:
                fetches[n : n + 1] = [OrtValue.holding(value)]

    def create_ortvalue_from_shape_and_type(
        self,
        shape: Sequence[int],
        element_type: Any,
        device_type: str,
        device_id: int = 0,
        vendor_id: int | OrtDeviceVendorId = -1,
    ) -> OrtValue:
        return OrtValue.ortvalue_from_shape_and_type(shape, element_type, device_type, device_id, vendor_id)

    def get_inputs(self) -> list[NodeArg]:
        return _node_args(self._executable.inputs, self._executable.inputs, self._sparse)

    def get_outputs(self) -> list[NodeArg]:
        return _node_args(self._executable.outputs, self._executable.inputs, self._sparse)

    def get_overridable_initializers(self) -> list[NodeArg]:
        """Return the initializers that the model lists among its inputs. A run that feeds one uses a model
        compiled with it as an input."""
        return [NodeArg(*described) for described in overridable(self._model)]

    def get_input_memory_infos(self) -> list[OrtMemoryInfo]:
        return [cpu_memory() for _ in self._executable.inputs]

    def get_output_memory_infos(self) -> list[OrtMemoryInfo]:
        return [cpu_memory() for _ in self._executable.outputs]

    def get_input_epdevices(self) -> list[OrtEpDevice]:
        return [get_ep_devices()[0] for _ in self._executable.inputs]

    def get_providers(self) -> list[str]:
        return [*self._provider_options]

    def get_provider_options(self) -> dict[str, dict[str, str]]:
        return {name: dict(options) for name, options in self._provider_options.items()}

    def get_provider_graph_assignment_info(self) -> list[OrtEpAssignedSubgraph]:
        """Return the model's nodes, each in a subgraph of its own. (`jangin inspect --placement` shows
        kernels.)"""
        entry = "session.record_ep_graph_assignment_info"
        if getattr(self._options, "config", {}).get(entry) != "1":
            raise Fail.said(f"Session configuration entry '{entry}' must be set to \"1\"")
        from jangin.onnxruntime.compiler import OrtEpAssignedNode, OrtEpAssignedSubgraph

        return [OrtEpAssignedSubgraph(PROVIDER, [OrtEpAssignedNode(*n)]) for n in nodes_of(self._model)]

    def set_providers(self, providers: Any = None, provider_options: Any = None) -> None:
        """Request other providers; the CPU still runs the model. Raises RuntimeError for a provider that ONNX
        Runtime doesn't know."""
        asked = normalized(providers, provider_options)
        for name in asked:
            if name not in get_all_providers():
                raise RuntimeError(f"Unknown Provider Type: {name}{nearest(name, get_all_providers())}")
        self._provider_options = _provided(asked)

    def enable_fallback(self) -> None:
        """Does nothing, because the CPU runs the model and no fallback exists."""

    def disable_fallback(self) -> None:
        """Does nothing, because the CPU runs the model and no fallback exists."""

    def get_session_options(self) -> SessionOptions:
        return self._options

    def get_modelmeta(self) -> ModelMetadata:
        kept = self._executable.metadata
        said = {f.name: kept[f.name] for f in fields(ModelMetadata) if f.name in kept}
        version = said.pop("version", 0) or NO_VERSION
        return ModelMetadata(self._executable.name, **said, version=version)

    def end_profiling(self) -> str:
        """Write the trace, and return the name of its file. Return "" if `enable_profiling` is off."""
        profile, self._profile = self._profile, None
        return "" if profile is None else profile.write()

    def get_profiling_start_time_ns(self) -> int:
        """Return the time at which the trace began, by `time.monotonic_ns`, or 0 if `enable_profiling` is
        off."""
        return self._began

    def get_tuning_results(self) -> list[Any]:
        """Return an empty list, because the findings of `jangin tune` are in Jangin's cache."""
        return []

    def set_tuning_results(self, results: Any, *, error_on_invalid: bool = False) -> None:
        """Does nothing, because ONNX Runtime's choices of kernels don't apply to Jangin."""

    def set_ep_dynamic_options(self, options: Mapping[str, str]) -> None:
        """Warn that the options have no effect, because the CPU has no options that change between runs."""
        say_idle(options)

    def release_captured_graph(self, graph_annotation_id: int = 0) -> None:
        """Does nothing, because no graph is captured."""


class InferenceSession(Session):
    """A model that is ready to run.

    `path_or_bytes` is a model's file of any format that Jangin reads, its bytes, or a compiled `.jgn` file.

    `sess_options` may be ONNX Runtime's own, but only its number of threads then has an effect. The settings
    made by its methods can't be read; the `SessionOptions` of this module has them.

    `providers` is None, a name, or a list of names or of (name, options). The CPU runs the model, and a
    warning names any other provider. An argument that no session has raises TypeError. A warning names
    options without an effect."""

    def __init__(
        self,
        path_or_bytes: str | os.PathLike[str] | bytes,
        sess_options: SessionOptions | None = None,
        providers: Any = None,
        provider_options: Sequence[Mapping[str, Any]] | None = None,
        **others: Any,
    ) -> None:
        for name in others:
            if name not in _ACCEPTED:
                known = ["sess_options", "providers", "provider_options", *_ACCEPTED]
                raise TypeError(f"InferenceSession takes no argument {name!r}{nearest(name, known)}")
        if not hasattr(sess_options, "intra_op_num_threads") and sess_options is not None:
            raise TypeError(f"sess_options must be SessionOptions, not {type(sess_options).__name__}")
        options = self._options = configured(path_or_bytes, sess_options or SessionOptions())
        asked = normalized(providers, provider_options)
        self._provider_options = _provided(asked or getattr(options, "providers", {}))
        unused = ["provider_options"] if any(self._provider_options.values()) else []
        say_idle(
            [*idle(options), *unused, *(["disabled_optimizers"] if others.get("disabled_optimizers") else [])]
        )
        self._model, self._others = path_or_bytes, {}
        start = time.monotonic_ns()
        self._executable = opened(path_or_bytes, options)
        self._outputs = [o.name for o in self._executable.outputs]
        self._has_text = any("string" in i.type for i in self._executable.inputs)
        self._sparse = frozenset(self._executable.metadata.get("sparse", ()))
        if options.enable_profiling:
            self._began = start
            from jangin.onnxruntime.profiling import Profile

            self._profile = Profile(options.profile_file_prefix, start)
            self._profile.session("session_initialization", start, time.monotonic_ns())


def _given(value: Any) -> Any:
    """Return a value as an executable takes it: an OrtValue's contents, a dense array instead of a sparse
    tensor, and text instead of bytes."""
    if isinstance(value, OrtValue):
        value = value.python()
    if isinstance(value, SparseTensor):
        return value.dense()
    if isinstance(value, np.ndarray) and value.dtype.kind in "SV":
        texts = [bytes(v).decode() for v in value.reshape(-1).tolist()]
        return np.array(texts, object).reshape(value.shape)
    return value


def _provided(asked: Mapping[str, dict[str, str]]) -> dict[str, dict[str, str]]:
    """Return the options of the CPU provider, which is the only available one, by its name."""
    return {PROVIDER: dict(asked.get(PROVIDER, {}))}


def _check_ended(options: RunOptions) -> None:
    if options.terminate:
        raise Fail.said("Exiting due to terminate flag being set to true.")


def _node_args(
    specs: Sequence[TensorSpec], inputs: Sequence[TensorSpec], sparse: Collection[str]
) -> list[NodeArg]:
    """Return inputs or outputs as ONNX Runtime describes them. Jangin names a nameless size after an input
    and its axis; here it is None."""
    ours = {f"{i.name}_d{axis}" for i in inputs for axis in range(len(i.shape))}
    marks = ["sparse_" if s.name in sparse else "" for s in specs]
    return [
        NodeArg(s.name, mark + _type_of(s), [None if d in ours else d for d in s.shape])
        for s, mark in zip(specs, marks, strict=True)
    ]


def _type_of(spec: TensorSpec) -> str:
    return _type_name(spec.type) if spec.type else f"tensor({element_name(from_numpy(spec.dtype))})"


def _type_name(text: str) -> str:
    """Return a type in ONNX Runtime's notation: seq(f32[?]) becomes seq(tensor(float)), and map(i64, f32[])
    becomes map(int64,tensor(float))."""
    dtypes = {"string": STRING, **DTYPES}
    text = re.sub(r"map\((\w+), ", lambda found: f"map({element_name(dtypes[found[1]])},", text)
    return re.sub(r"(\w+)\[[^\]]*\]", lambda found: f"tensor({element_name(dtypes[found[1]])})", text)
