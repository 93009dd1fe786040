"""Every public name of onnxruntime is in `jangin.onnxruntime`, with its members and parameters. Differences
are listed with their reasons."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Iterator
from enum import Enum
from types import ModuleType
from typing import Any

import onnxruntime
import pytest

import jangin.onnxruntime

MODULES = (
    "", ".capi", ".capi._pybind_state", ".capi.onnxruntime_pybind11_state",
    ".capi.onnxruntime_inference_collection", ".capi.onnxruntime_validation", ".quantization", ".backend",
    ".backend.backend", ".backend.backend_rep", ".datasets",
)  # fmt: skip

HELPERS = "a helper of that module, which isn't for others"
WEIGHTS = "makes a file's weights for ONNX Runtime's own kernels; jangin.quantize(kind='int4') makes ours"
KERNELS = "tells of ONNX Runtime's own kernels, of which Jangin has none"
INNER = "a part of ONNX Runtime's own quantizer, which jangin.quantize isn't made of"
ONE_CLASS = "one class here is both the public one and the inner one, which is made of numbers"
INNERS = (
    "CalibraterBase", "CudaQuantizer", "MinMaxCalibrater", "QDQQuantizer", "TensorData", "TensorsData",
    "base_quantizer", "calibrate", "create_calibrator", "cuda_quantizer", "fusions", "get_qdq_config",
    "load_tensors_data", "onnx_model", "onnx_quantizer", "operators", "qdq_quantizer", "quant_utils",
    "registry", "save_tensors_data", "shape_inference", "tensor_quant_overrides", "write_calibration_table",
)  # fmt: skip

MISSING = {
    ".capi": {"_ld_preload": HELPERS, "build_and_package_info": HELPERS},
    "": {"contextlib": HELPERS},
    ".capi._pybind_state": {
        "os": HELPERS, "platform": HELPERS, "warnings": HELPERS, "_ld_preload": HELPERS,
    },
    ".capi.onnxruntime_pybind11_state": {
        "SessionObjectInitializer": HELPERS, "get_session_initializer": HELPERS,
        "SparseBlockSparseView": "no operator reads tensors of blocks",
        "get_all_operator_schema": KERNELS, "get_all_opkernel_def": KERNELS, "opkernel": KERNELS,
        "get_registered_ep_kernel_defs": KERNELS, "schemadef": KERNELS,
        "get_compatibility_info_from_model": "no provider compiles into ONNX files",
        "get_compatibility_info_from_model_bytes": "no provider compiles into ONNX files",
        "get_model_compatibility_for_ep_devices": "no provider compiles into ONNX files",
        "get_hardware_device_ep_incompatibility_details": "there is one provider, and it runs everywhere",
        "pack_fp4_weights_for_cuda_moe_gemm": WEIGHTS, "quantize_matmul_2bits": WEIGHTS,
        "quantize_matmul_4bits": WEIGHTS, "quantize_matmul_8bits": WEIGHTS, "quantize_matmul_bnb4": WEIGHTS,
        "quantize_qdq_matmul_2bits": WEIGHTS, "quantize_qdq_matmul_4bits": WEIGHTS,
    },
    ".capi.onnxruntime_inference_collection": {
        "C": HELPERS, "IntEnum": HELPERS, "Any": HELPERS, "Callable": HELPERS, "Sequence": HELPERS,
        "collections": HELPERS, "np": HELPERS, "os": HELPERS, "typing": HELPERS, "warnings": HELPERS,
        "weakref": HELPERS, "annotations": HELPERS, "get_ort_device_type": HELPERS,
        "get_vendor_id_for_device_type": HELPERS,
        "make_get_initializer_location_func_wrapper": HELPERS,
        "GetInitializerLocationFunc": HELPERS, "GetInitializerLocationWrapperFunc": HELPERS,
    },
    ".quantization": dict.fromkeys(INNERS, INNER),
    ".backend.backend": {
        "ModelProto": HELPERS, "check_model": HELPERS, "get_available_providers": HELPERS, "helper": HELPERS,
        "packaging": HELPERS, "unittest": HELPERS, "version": HELPERS,
    },
    ".capi.onnxruntime_validation": {"linecache": HELPERS, "platform": HELPERS, "warnings": HELPERS},
}  # fmt: skip
MISSING[".capi._pybind_state"] |= MISSING[".capi.onnxruntime_pybind11_state"]

OPENS = "the inner session is made by the public one, and is opened in two steps"


def ours(name: str) -> ModuleType:
    return importlib.import_module("jangin.onnxruntime" + name)


def theirs(name: str) -> ModuleType:
    return importlib.import_module("onnxruntime" + name)


def public(thing: object) -> set[str]:
    """Return the names of a thing's members. For a class they include its instances' members."""
    names = {*dir(thing)}
    if isinstance(thing, type):
        names |= {n for c in thing.__mro__ for n in getattr(c, "__annotations__", {})}
        names |= {"name", "value", *thing.__members__} if issubclass(thing, Enum) else set()
    return {n for n in names if not n.startswith("_")}


@pytest.mark.parametrize("name", MODULES)
def test_a_module_has_every_name(name: str) -> None:
    listed = MISSING.get(name, {})
    lacking = {n for n in dir(theirs(name)) if not n.startswith("__")} - {*dir(ours(name))}
    private = {n for n in lacking if n.startswith("_") and not isinstance(getattr(theirs(name), n), type)}
    assert lacking - private == {*listed} - private
    assert all(listed.values()), "each has its reason"


def classes() -> Iterator[tuple[str, type, type]]:
    for name in MODULES:
        for n, real in inspect.getmembers(theirs(name), inspect.isclass):
            mine = getattr(ours(name), n, None)
            if isinstance(mine, type) and n not in MISSING.get(name, {}):
                yield f"{name}.{n}", real, mine


MEMBERS = {
    ".capi._pybind_state.InferenceSession": OPENS,
    ".capi._pybind_state.OrtValue": "those for other devices' memory",
}
"""Inner classes without some of their members here, with the reasons."""


def test_classes_have_every_member() -> None:
    found = {where: public(real) - public(mine) for where, real, mine in classes()}
    lacking = {where: names for where, names in found.items() if names}
    listed = {where for where, why in MEMBERS.items() if why}
    twice = {where.replace("._pybind_state.", ".onnxruntime_pybind11_state.") for where in listed}
    assert {*lacking} == listed | twice, lacking


def functions() -> Iterator[tuple[str, Any, Any]]:
    """Yield the calls that onnxruntime writes in Python, so that their parameters can be read."""
    for name in MODULES:
        for n, real in inspect.getmembers(theirs(name), inspect.isfunction):
            mine = getattr(ours(name), n, None)
            if mine is not None and not n.startswith("_"):
                yield n, real, mine
    for where, real_class, mine_class in classes():
        for n, real in inspect.getmembers(real_class, inspect.isroutine):
            mine = inspect.getattr_static(mine_class, n, None)
            written = inspect.isfunction(getattr(real, "__func__", real)) and mine is not None
            if written and (n == "__init__" or not n.startswith("_")):
                yield f"{where}.{n}", real, getattr(mine_class, n)


CALLS = {
    "quant_pre_process": "what has no effect is taken by name only, and said",
    ".capi.onnxruntime_inference_collection.Session.__init__": "it is made by its subclass alone",
    ".OrtDevice.__init__": ONE_CLASS,
    ".capi.onnxruntime_inference_collection.OrtDevice.__init__": ONE_CLASS,
}


def test_calls_have_every_parameter_in_order() -> None:
    differs = set()
    for where, real, mine in functions():
        wanted = [n for n, p in inspect.signature(real).parameters.items() if p.kind.name != "VAR_KEYWORD"]
        given = [*inspect.signature(mine).parameters]
        if given[: len(wanted)] != wanted:
            differs.add((where, (*wanted,), (*given,)))
    listed = {where for where, why in CALLS.items() if why}
    assert {where for where, *_ in differs} == listed, differs


def test_enumerations_have_the_same_numbers() -> None:
    for _, real, mine in classes():
        members = getattr(real, "__members__", None)
        if members is not None:
            assert {n: int(m.value) for n, m in members.items()} == {
                n: int(m.value) for n, m in mine.__members__.items()
            }


def test_options_are_the_same_by_default() -> None:
    for name in ("SessionOptions", "RunOptions"):
        real, mine = getattr(onnxruntime, name)(), getattr(jangin.onnxruntime, name)()
        for n in public(real):
            if not callable(getattr(real, n)):
                value = getattr(real, n)
                assert getattr(mine, n) == getattr(value, "value", value), n


def test_it_says_for_which_version_it_stands() -> None:
    assert jangin.onnxruntime.__version__ == onnxruntime.__version__
    assert jangin.onnxruntime.get_all_providers() == onnxruntime.get_all_providers()
