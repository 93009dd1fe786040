"""Peers that don't read ONNX files. Each converts the model first, in the way that its makers recommend.

The conversion counts as compile time. All peers compute in single precision."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from jangin.bench.engine import Engine, Job
from jangin.ir.graph import Array


def ncnn(job: Job, *, vulkan: bool = False) -> Engine:
    """Return ncnn with a model converted by `pnnx`, on the processor or on Vulkan's first device."""
    import ncnn as library

    converter = find_spec("pnnx")
    if converter is None or not converter.submodule_search_locations:
        raise ModuleNotFoundError("pnnx, ncnn's converter, is not installed: pip install pnnx")
    tool = Path(converter.submodule_search_locations[0], "pnnx")  # importing pnnx would import PyTorch
    feeds = job.feeds()
    start = time.perf_counter()
    net = library.Net()
    net.opt.num_threads = job.threads
    net.opt.use_vulkan_compute = vulkan
    net.opt.use_fp16_packed = net.opt.use_fp16_storage = net.opt.use_fp16_arithmetic = False
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "model.onnx").symlink_to(Path(job.model).resolve())
        sizes = ",".join(f"{list(a.shape)}{_suffix(a)}".replace(" ", "") for a in feeds.values())
        _convert([str(tool), "model.onnx", "fp16=0", f"inputshape={sizes}"], folder)
        if not (folder / "model_ncnn.py").is_file():
            raise ValueError("pnnx couldn't convert the model to ncnn's format")
        names = (folder / "model_ncnn.py").read_text()
        if net.load_param(str(folder / "model.ncnn.param")) or net.load_model(str(folder / "model.ncnn.bin")):
            raise ValueError("ncnn could not load the converted model: it lacks a layer")
    inputs = re.findall(r'ex\.input\("(\w+)", ncnn\.Mat\(\w+\.numpy\(\)(, batch_index=0)?\)', names)
    outputs = re.findall(r'ex\.extract\("(\w+)"\)', names)
    mats = [
        (name, library.Mat(_narrow(array), **({"batch_index": 0} if batched else {})).clone())
        for (name, batched), array in zip(inputs, feeds.values(), strict=True)
    ]
    seconds = time.perf_counter() - start
    batched = ", batch_index=0" in names

    def call() -> Mapping[str, Array]:
        arrays = []
        with net.create_extractor() as extractor:
            for name, mat in mats:
                extractor.input(name, mat)
            for name in outputs:
                status, mat = extractor.extract(name)
                if status:
                    raise ValueError(f"ncnn could not compute {name!r}")
                arrays.append(mat.numpy(batch_index=0) if batched else np.array(mat))
        return dict(zip(job.outputs, arrays, strict=True))

    return Engine(call, metadata.version("ncnn"), seconds)


def _suffix(array: Array) -> str:
    """Return the name of an array's element type in pnnx's notation."""
    return {"f": "f", "i": "i", "u": "u"}[array.dtype.kind] + str(8 * array.itemsize)


def _narrow(array: Array) -> Array:
    return np.ascontiguousarray(array, np.int32) if array.dtype.kind == "i" else array


MNN_CONVERT = "import sys, _tools; _tools.mnnconvert(sys.argv)"
"""The call of MNN's converter without its own command line, which installs packages and reports to its
maker."""


def mnn(job: Job) -> Engine:
    """Return MNN with a model converted by MNN's own package."""
    import MNN

    feeds = job.feeds()
    start = time.perf_counter()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        tool = [sys.executable, "-c", MNN_CONVERT, "-f", "ONNX"]
        _convert([*tool, "--modelFile", str(Path(job.model).resolve()), "--MNNModel", "model.mnn"], folder)
        settings = {"backend": "CPU", "numThread": job.threads, "precision": "high"}
        runtime = MNN.nn.create_runtime_manager((settings,))
        module = MNN.nn.load_module_from_file(
            str(folder / "model.mnn"), list(feeds), list(job.outputs), runtime_manager=runtime
        )
    arrays = [_narrow(array) for array in feeds.values()]
    kinds = [MNN.expr.int if array.dtype.kind == "i" else MNN.expr.float for array in arrays]
    variables = [
        MNN.expr.placeholder(list(array.shape), MNN.expr.NCHW, kind)
        for array, kind in zip(arrays, kinds, strict=True)
    ]
    seconds = time.perf_counter() - start

    def call() -> Mapping[str, Array]:
        for variable, array in zip(variables, arrays, strict=True):
            variable.write(array)
        results = module.forward(variables)
        outputs = results if isinstance(results, list) else [results]
        if len(outputs) != len(job.outputs):
            raise ValueError("MNN could not compute the model: it lacks an operator or a type")
        return {name: np.array(r.read()) for name, r in zip(job.outputs, outputs, strict=True)}

    return Engine(call, MNN.version(), seconds)


def opencv(job: Job) -> Engine:
    """Return OpenCV's module for networks (dnn)."""
    import cv2

    feeds = job.feeds()
    start = time.perf_counter()
    cv2.setNumThreads(job.threads)
    with tempfile.TemporaryDirectory() as folder:
        net = cv2.dnn.readNetFromONNX(_sized(job, Path(folder)))
    net.setPreferableBackend(cv2.dnn.DNN_BACKEND_OPENCV)
    net.setPreferableTarget(cv2.dnn.DNN_TARGET_CPU)
    seconds = time.perf_counter() - start
    layers = net.getUnconnectedOutLayersNames()
    if len(layers) != len(job.outputs):
        raise ValueError(
            f"OpenCV found {len(layers)} of the model's {len(job.outputs)} outputs: it lacks an operator"
        )

    def call() -> Mapping[str, Array]:
        for name, array in feeds.items():
            net.setInput(array, name)
        return dict(zip(job.outputs, net.forward(layers), strict=True))

    return Engine(call, cv2.__version__, seconds)


def _sized(job: Job, folder: Path) -> str:
    """Return the path of a copy of the job's model in which free sizes are fixed. The engine would otherwise
    take free sizes for 1."""
    path = str(Path(job.model).resolve())
    for number, (name, size) in enumerate(job.shapes.items()):
        sized = str(folder / f"{number}.onnx")
        tool = [sys.executable, "-m", "onnxruntime.tools.make_dynamic_shape_fixed"]
        _convert([*tool, "--dim_param", name, "--dim_value", str(size), path, sized], folder)
        path = sized
    return path


def pytorch(job: Job) -> Engine:
    """Return PyTorch without a compiler. `job.model` is an exported program (.pt2)."""
    import torch

    if Path(job.model).suffix != ".pt2":
        raise ValueError(
            "PyTorch takes an exported program, not an ONNX model: torch.export.save writes a .pt2 file"
        )
    torch.set_num_threads(job.threads)
    feeds = [torch.from_numpy(array) for array in job.feeds().values()]
    start = time.perf_counter()
    module = torch.export.load(job.model).module()
    seconds = time.perf_counter() - start
    return Engine(_called(module, feeds, job.outputs), torch.__version__, seconds)


def _called(module: Any, feeds: Sequence[Any], outputs: Sequence[str]) -> Callable[[], Mapping[str, Array]]:
    """Return the function that calls a module of PyTorch without gradients."""
    import torch

    def call() -> Mapping[str, Array]:
        with torch.no_grad():
            results: Any = module(*feeds)
        tensors = results if isinstance(results, (tuple, list)) else (results,)
        return {name: r.numpy() for name, r in zip(outputs, tensors, strict=True)}

    return call


def inductor(job: Job) -> Engine:
    """Return PyTorch's Inductor, compiled ahead of time with frozen weights, at the sizes of the inputs.
    `job.model` is an exported program (.pt2). The compiled file stays beside it."""
    import torch

    if Path(job.model).suffix != ".pt2":
        raise ValueError(
            "Inductor takes an exported program, not an ONNX model: torch.export.save writes a .pt2 file"
        )
    torch.set_num_threads(job.threads)
    feeds = tuple(torch.from_numpy(array) for array in job.feeds().values())
    sizes = "-".join("x".join(map(str, array.shape)) for array in feeds)
    compiled = Path(job.model).with_suffix(f".{sizes}.{job.threads}.aoti.pt2")
    record = compiled.with_suffix(".json")
    if not record.is_file() or record.stat().st_mtime < Path(job.model).stat().st_mtime:
        start = time.perf_counter()
        with torch.no_grad():
            module = torch.export.load(job.model).module()
            sized = torch.export.export(module, feeds, strict=False)  # a program of any batch is slower
            torch._inductor.aoti_compile_and_package(
                sized, package_path=str(compiled), inductor_configs={"freezing": True}
            )
        record.write_text(json.dumps(time.perf_counter() - start))
    seconds: float = json.loads(record.read_text())
    module = torch._inductor.aoti_load_package(str(compiled))
    return Engine(_called(module, feeds, job.outputs), torch.__version__, seconds)


def tvm(job: Job) -> Engine:
    """Return TVM's Relax, compiled for this processor by its default passes. Tuning it takes hours."""
    import onnx
    import tvm as library
    from tvm.relax.frontend.onnx import from_onnx

    os.environ["TVM_NUM_THREADS"] = str(job.threads)
    feeds = job.feeds()
    start = time.perf_counter()
    shapes = {name: list(array.shape) for name, array in feeds.items()}
    module = from_onnx(onnx.load(job.model), shape_dict=shapes, keep_params_in_input=False)
    built = library.compile(module, target=library.target.Target.from_device("cpu"))
    machine = library.relax.VirtualMachine(built, library.cpu())
    arrays = [library.runtime.tensor(array) for array in feeds.values()]
    seconds = time.perf_counter() - start

    def call() -> Mapping[str, Array]:
        outputs = machine["main"](*arrays)
        results = [outputs] if len(job.outputs) == 1 else list(outputs)
        return {name: r.numpy() for name, r in zip(job.outputs, results, strict=True)}

    return Engine(call, library.__version__, seconds)


def litert(job: Job) -> Engine:
    """Return LiteRT with XNNPACK. `job.model` is a .tflite file, which may be channels-last and quantized to
    8 bits.

    Inputs are converted to its form before timing. Outputs are converted to floats in each call."""
    from ai_edge_litert.interpreter import Interpreter

    if Path(job.model).suffix != ".tflite":
        raise ValueError("LiteRT takes a .tflite file, not an ONNX model: `jangin convert` writes one")
    feeds = job.feeds().values()
    start = time.perf_counter()
    runner = Interpreter(job.model, num_threads=job.threads)
    runner.allocate_tensors()
    seconds = time.perf_counter() - start
    bindings = [
        (d["index"], _as_tflite(a, d)) for d, a in zip(runner.get_input_details(), feeds, strict=True)
    ]
    results = runner.get_output_details()

    def call() -> Mapping[str, Array]:
        for index, array in bindings:
            runner.set_tensor(index, array)
        runner.invoke()
        arrays = (_from_tflite(runner.get_tensor(d["index"]), d) for d in results)
        return dict(zip(job.outputs, arrays, strict=True))

    return Engine(call, metadata.version("ai-edge-litert"), seconds)


def _as_tflite(array: Array, detail: Mapping[str, Any]) -> Array:
    """Return an array in the layout and type that a .tflite file declares for an input."""
    turned = np.moveaxis(array, 1, -1) if array.shape != tuple(detail["shape"]) else array
    (scale, zero), dtype = detail["quantization"], np.dtype(detail["dtype"])
    if scale:
        limits = np.iinfo(dtype)
        turned = np.clip(np.rint(turned / scale) + zero, limits.min, limits.max)
    return np.ascontiguousarray(turned, dtype)


def _from_tflite(array: Array, detail: Mapping[str, Any]) -> Array:
    scale, zero = detail["quantization"]
    return (array.astype(np.float32) - zero) * np.float32(scale) if scale else array


def _convert(command: Sequence[str], folder: Path) -> None:
    """Run a converter in `folder`. Raises ValueError with its last line of output if it fails."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, errors="replace", env=environment, check=False
    )
    if done.returncode:
        words = (done.stdout + done.stderr).strip().splitlines()
        what = words[-1][:200] if words else f"status {done.returncode}"
        raise ValueError(f"the engine's converter failed: {what}")
