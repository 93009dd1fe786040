"""These functions prepare the model that a session compiles. They apply the session's options to it."""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from jangin.environment import options_in_models
from jangin.files import write_whole
from jangin.frontends.onnx.types import TEXT, element_name, element_type
from jangin.onnxruntime.errors import Fail
from jangin.onnxruntime.options import EXTERNAL_FILE, EXTERNAL_SIZE, SessionOptions
from jangin.runtime.system.processor import architecture, processor_features

Source = Any
"""A path, bytes, or ONNX's message."""


def with_options(model: Source, options: SessionOptions) -> Source:
    """Return the model with the options applied: replaced initializers and files of external data, and sizes
    fixed by denotation.

    The model is returned unchanged if none of these options is set."""
    initializers = getattr(options, "initializers", {})
    files = getattr(options, "external_files", {})
    denotations = getattr(options, "denotations", {})
    if not (initializers or files or denotations):
        return model
    from onnx.numpy_helper import from_array

    proto, folder = _read(model)
    for tensor in proto.graph.initializer:
        if tensor.name in initializers:
            tensor.CopyFrom(from_array(initializers[tensor.name], tensor.name))
        elif (place := _place(tensor)).get("location") in files:
            _take(tensor, files[place["location"]], place)
    _rest(proto, folder)
    for dim in _input_dims(proto):
        if dim.denotation in denotations:
            dim.dim_value = denotations[dim.denotation]
    return proto


def own_block() -> int:
    """Return the number of channels in each block of ONNX Runtime's blocked layout on this processor."""
    return 16 if architecture() == "aarch64" or "avx512f" in processor_features() else 8


def keep(model: Source, path: str | os.PathLike[str], config: Mapping[str, str]) -> None:
    """Write the model unchanged to `path`, with its external data inside the file.

    If the configuration names a file for initializers, those of at least `EXTERNAL_SIZE` bytes are written to
    that file, which lies beside the model."""
    proto, folder = _read(model)
    _rest(proto, folder)
    if name := config.get(EXTERNAL_FILE):
        _write_beside(proto, Path(path).parent, name, int(config.get(EXTERNAL_SIZE, 1024)))
    data = proto.SerializeToString()
    write_whole(path, lambda file: file.write(data))


def _write_beside(proto: Any, folder: Path, name: str, size: int) -> None:
    """Move the initializers of at least `size` bytes from the message to the file `name` in `folder`."""
    from onnx.external_data_helper import set_external_data
    from onnx.numpy_helper import from_array, to_array

    written: list[bytes] = []
    offset = 0
    for tensor in proto.graph.initializer:
        if tensor.data_type == TEXT:
            continue
        if not tensor.HasField("raw_data"):
            tensor.CopyFrom(from_array(to_array(tensor), tensor.name))
        length = len(tensor.raw_data)
        if length >= size:
            written.append(tensor.raw_data)
            set_external_data(tensor, name, offset, length)
            tensor.ClearField("raw_data")
            offset += length
    write_whole(folder / name, lambda file: file.writelines(written))


def configured(model: Source, options: SessionOptions) -> SessionOptions:
    """Return the options in the model's metadata, if the environment requests them, and else `options`.

    Raises RuntimeError if these metadata can't be read."""
    if not options_in_models() or (not isinstance(model, bytes) and str(model).endswith(".jgn")):
        return options
    proto, _ = _read(model)
    text = next((p.value for p in proto.metadata_props if p.key == "ort_config"), None)
    if text is None:
        return options
    try:
        settings = json.loads(text).get("session_options", {})
        session_options = SessionOptions()
        for name, value in settings.items():
            setattr(session_options, name, bool(value) if name == "enable_profiling" else int(value))
        return session_options
    except (ValueError, TypeError, AttributeError) as error:
        raise RuntimeError(
            f"the model's metadata ort_config can't be read as session options: {error}"
        ) from None


def overridable(model: Source) -> list[tuple[str, str, list[int | str | None]]]:
    """Return the name, type and shape of each initializer that an ONNX model lists among its inputs. The list
    is empty for other formats."""
    from google.protobuf.message import DecodeError

    try:
        proto, _ = _read(model)
    except (DecodeError, IsADirectoryError, TypeError):  # bytes, a folder or a message of another format
        return []
    initialized = {t.name for t in proto.graph.initializer}
    return [_described(i) for i in proto.graph.input if i.name in initialized]


def _described(value: Any) -> tuple[str, str, list[int | str | None]]:
    tensor = value.type.tensor_type
    shape = [d.dim_value if d.HasField("dim_value") else d.dim_param or None for d in tensor.shape.dim]
    return value.name, f"tensor({element_name(element_type(tensor.elem_type))})", shape


def without_initializers(model: Source, names: Collection[str]) -> Source:
    """Return the model without these initializers, so that they are inputs."""
    proto, folder = _read(model)
    _rest(proto, folder)
    kept = [t for t in proto.graph.initializer if t.name not in names]
    del proto.graph.initializer[:]
    proto.graph.initializer.extend(kept)
    return proto


def nodes_of(model: Source) -> list[tuple[str, str, str]]:
    """Return the name, domain and operator of each node of a model's graph."""
    return [(n.name, n.domain, n.op_type) for n in _read(model)[0].graph.node]


def _read(model: Source) -> tuple[Any, Path | None]:
    """Return a model's ONNX message, and the folder of its external data, or None if it isn't known."""
    import onnx

    if isinstance(model, bytes):
        return onnx.ModelProto.FromString(model), None
    if isinstance(model, (str, os.PathLike)):
        return onnx.load(os.fspath(model), load_external_data=False), Path(model).resolve().parent
    copied = onnx.ModelProto()
    copied.CopyFrom(model)
    return copied, None


def _place(tensor: Any) -> dict[str, str]:
    """Return the fields that locate a tensor's external data, by name. They are empty if the tensor has
    none."""
    return {e.key: e.value for e in tensor.external_data} if tensor.data_location == 1 else {}


def _take(tensor: Any, data: memoryview, place: dict[str, str]) -> None:
    """Set a tensor's contents from a file's bytes. Raises Fail if the file is too short."""
    start = int(place.get("offset", 0))
    stop = start + int(place["length"]) if "length" in place else len(data)
    if stop > len(data):
        raise Fail.said(
            f"initializer '{tensor.name}' needs bytes {start} to {stop} of {place['location']}, which was "
            f"given with {len(data)}"
        )
    tensor.raw_data = bytes(data[start:stop])
    tensor.ClearField("external_data")
    tensor.data_location = 0


def _rest(proto: Any, folder: Path | None) -> None:
    """Load the external data that are left into the model's message. Raises Fail if their folder isn't
    known."""
    from onnx.external_data_helper import load_external_data_for_model

    left = [t.name for t in proto.graph.initializer if _place(t)]
    if left and folder is None:
        raise Fail.said(
            f"the data of initializer '{left[0]}' lie beside the model, which was given as bytes: give its "
            "path, or the file by add_external_initializers_from_files_in_memory"
        )
    if left:
        load_external_data_for_model(proto, os.fspath(folder or ""))


def _input_dims(proto: Any) -> Iterator[Any]:
    inputs: Iterable[Any] = proto.graph.input
    for value in inputs:
        yield from value.type.tensor_type.shape.dim
