"""ONNX Runtime's `ModelCompiler`, and its nodes compiled by a provider. On the CPU no provider compiles a
part of an ONNX file, so models are written unchanged."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

from jangin.files import write_whole
from jangin.ir.records import dataclass
from jangin.onnxruntime.enums import GraphOptimizationLevel, OrtCompileApiFlags
from jangin.onnxruntime.errors import Fail, InvalidArgument, NotImplemented
from jangin.onnxruntime.options import SessionOptions


@dataclass(frozen=True)
class OrtExternalInitializerInfo:
    """This names the file, offset and size in bytes of an initializer's data."""

    filepath: str
    file_offset: int
    byte_size: int


class ModelCompiler:
    """Writes a model in which providers have compiled parts. No provider compiles for the CPU, so the model
    is written unchanged.

    Jangin's own compiled models are `.jgn` files (`jangin.build(model).save("model.jgn")`)."""

    def __init__(
        self,
        sess_options: SessionOptions,
        input_model_path_or_bytes: str | os.PathLike[str] | bytes,
        embed_compiled_data_into_model: bool = False,
        external_initializers_file_path: str | os.PathLike[str] | None = None,
        external_initializers_size_threshold: int = 1024,
        flags: int = OrtCompileApiFlags.NONE,
        graph_optimization_level: GraphOptimizationLevel = GraphOptimizationLevel.ORT_DISABLE_ALL,
        get_initializer_location_func: Callable[..., Any] | None = None,
    ) -> None:
        if not isinstance(input_model_path_or_bytes, (str, os.PathLike, bytes)):
            raise TypeError(f"Unable to load from type '{type(input_model_path_or_bytes)}'")
        if not input_model_path_or_bytes:
            raise ValueError("the input model is empty")
        if external_initializers_file_path or get_initializer_location_func:
            raise NotImplemented.said(
                "initializers aren't moved out of a model: use onnx.save(save_as_external_data=True)"
            )
        self._model, self._flags = input_model_path_or_bytes, flags

    def compile_to_bytes(self) -> bytes:
        if self._flags & OrtCompileApiFlags.ERROR_IF_NO_NODES_COMPILED:
            raise Fail.said("no node was compiled, as the CPU runs them all")
        return self._model if isinstance(self._model, bytes) else Path(self._model).read_bytes()

    def compile_to_file(self, output_model_path: str | os.PathLike[str] | None = None) -> None:
        """Write the model unchanged. The default path is the model's, with `_ctx.onnx` in place of
        `.onnx`."""
        if output_model_path is not None:
            path = os.fspath(output_model_path)
        elif isinstance(self._model, bytes):
            raise InvalidArgument.said("a model that was given as bytes needs the path of an output")
        else:
            path = f"{os.fspath(self._model).removesuffix('.onnx')}_ctx.onnx"
        if self._flags & OrtCompileApiFlags.ERROR_IF_OUTPUT_FILE_EXISTS and os.path.exists(path):
            raise Fail.said(f"{path} exists already")
        data = self.compile_to_bytes()
        write_whole(path, lambda file: file.write(data))

    def compile_to_stream(self, write_function: Callable[[bytes], object]) -> None:
        write_function(self.compile_to_bytes())

    def set_ep_context_data_write_func(self, write_func: Callable[..., None]) -> None:
        """Does nothing, because no provider compiles anything."""

    def set_ep_context_binary_information(
        self, output_directory: str | os.PathLike[str], model_name: str
    ) -> None:
        """Does nothing, because no provider compiles anything."""

    def clear_ep_context_data_write_func(self) -> None:
        """Does nothing, because no provider compiles anything."""


@dataclass(frozen=True)
class OrtEpAssignedNode:
    """A node that a provider runs."""

    name: str
    domain: str
    op_type: str


@dataclass(frozen=True)
class OrtEpAssignedSubgraph:
    """Nodes that a provider runs."""

    ep_name: str
    nodes: Sequence[OrtEpAssignedNode]

    def get_nodes(self) -> list[OrtEpAssignedNode]:
        return [*self.nodes]


class OrtEpContextData:
    """This stands for data that a provider compiled. It is empty because no provider compiles here."""

    size = 0

    def read(self, offset: int = 0, length: int | None = None) -> bytes:
        return b""


class OrtEpContextDataBuffer:
    """This stands for a buffer of a provider's data. It refuses data because no provider reads any."""

    size = max_size = 0
    is_allocated = False

    def allocate(self, size: int) -> None:
        raise Fail.said("no provider of Jangin reads data of compiled nodes: leave this out")

    def write(self, data: bytes, offset: int = 0) -> None:
        raise Fail.said("no provider of Jangin reads data of compiled nodes: leave this out")


def _no_packages(*arguments: Any, **named: Any) -> NoReturn:
    """Raise NotImplemented, because model packages aren't read."""
    raise NotImplemented.said("model packages aren't read: give the ONNX file of one of its variants")


class _Refused:
    """A class of model packages. Making an instance raises NotImplemented."""

    __init__ = _no_packages

    def __init_subclass__(cls, methods: str = "") -> None:
        for name in methods.split():
            setattr(cls, name, staticmethod(_no_packages))


class ModelPackage(
    _Refused,
    methods="""add_shared_asset close commit compute_directory_hash get_component_json get_info
    get_variant_json open prune remove_component remove_shared_asset remove_variant
    remove_variant_executor_info resolve_asset_uri resolve_string_ref set_additional_metadata_json
    set_component_external set_component_inline set_layout set_metadata set_variant
    set_variant_executor_info_external set_variant_executor_info_inline""",
):
    """Model packages are refused: they choose among files that were compiled for providers."""


class ModelPackageContext(
    _Refused,
    methods="""get_component_count get_component_names get_schema_version get_variant_count
    get_variant_ep_name get_variant_names resolve_string_ref select_component""",
):
    """Model packages are refused: they choose among files that were compiled for providers."""


class ModelPackageOptions(_Refused):
    """Model packages are refused: they choose among files that were compiled for providers."""


class ModelPackageComponentContext(
    _Refused, methods="get_selected_variant_folder_path get_selected_variant_name"
):
    """Model packages are refused: they choose among files that were compiled for providers."""

    def create_session(self, sess_options: SessionOptions | None = None) -> NoReturn:
        _no_packages()
