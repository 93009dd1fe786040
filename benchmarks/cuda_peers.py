"""The same networks and products in PyTorch and in JAX on an NVIDIA GPU, where they are."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from cuda_onnx import jax_network, tensor, torch_module

REPEATS, SETTLE = 20, 3
"""The number of runs that are timed, and of runs before."""
Row = dict[str, Any]
Feeds = Mapping[str, np.ndarray]


def run_seconds(run: Callable[[], object]) -> float:
    """Return the median seconds of whole runs."""
    for _ in range(SETTLE):
        run()
    taken = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        run()
        taken.append(time.perf_counter() - start)
    return statistics.median(taken)


def torch_with_cuda() -> Any:
    """Return PyTorch if it is here and has a device, or None."""
    try:
        import torch
    except ImportError:
        return None
    return torch if torch.cuda.is_available() else None


def jax_with_cuda() -> Any:
    """Return JAX if it is here and has a GPU, or None. JAX then leaves the device's memory to others too."""
    os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"
    try:
        import jax

        return jax if jax.default_backend() == "gpu" else None
    except (ImportError, RuntimeError):
        return None


def torch_product(kind: str, rows: int, terms: int, columns: int, ours: float) -> Row:
    """Measure a product in PyTorch, which calls cuBLAS. Its float32 products use tf32 only if told to."""
    torch = torch_with_cuda()
    if torch is None:
        return {"absent": "PyTorch with CUDA"}
    torch.backends.cuda.matmul.allow_tf32 = kind == "tf32"
    dtype = getattr(torch, "float32" if kind == "tf32" else kind)
    x, y = (torch.randn(*shape, device="cuda", dtype=dtype) for shape in ((rows, terms), (terms, columns)))
    theirs = torch_seconds(torch, lambda: torch.mm(x, y))
    return {"cuBLAS": theirs, "of cuBLAS": theirs / ours}


def torch_seconds(torch: Any, run: Callable[[], object]) -> float:
    """Return the median seconds of PyTorch's kernels, by the device's clock."""
    taken = []
    for _ in range(SETTLE + REPEATS):
        events = [torch.cuda.Event(enable_timing=True) for _ in range(2)]
        events[0].record()
        run()
        events[1].record()
        torch.cuda.synchronize()
        taken.append(events[0].elapsed_time(events[1]) / 1e3)
    return statistics.median(taken[SETTLE:])


def torch_network(model: onnx.ModelProto, given: Feeds, kind: str, compiled: bool) -> Row:
    """Measure a network in PyTorch: eager as one CUDA graph, or by torch.compile. Inputs are on the device,
    and the wait for the result counts. Images lie in the quicker of both orders."""
    torch = torch_with_cuda()
    if torch is None or kind == "int8":
        return {"absent": "PyTorch with CUDA" if torch is None else "PyTorch's network of bytes"}
    try:
        net, names = torch_module(torch, model)
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = kind == "tf32"
        torch.backends.cudnn.benchmark = True
        net, inputs = net.eval().cuda(), [tensor(torch, given[n]).cuda() for n in names]
        taken = []
        for order in orders(torch, inputs):
            net = net.to(memory_format=order)
            ordered = [x.contiguous(memory_format=order) if x.dim() == 4 else x for x in inputs]
            with torch.inference_mode():
                taken.append((by_compiler if compiled else by_graph)(torch, net, ordered))
    except Exception as error:  # a network that PyTorch can't run is only reported
        return {"failed": f"PyTorch: {str(error)[:200]}"}
    return {"torch.compile" if compiled else "PyTorch": min(taken)}


def orders(torch: Any, inputs: Sequence[Any]) -> list[Any]:
    """Return the orders in which images may lie: channels first, and last if there are images."""
    images = any(x.dim() == 4 for x in inputs)
    return [torch.contiguous_format, *([torch.channels_last] if images else [])]


def by_graph(torch: Any, run: Any, inputs: Sequence[Any]) -> float:
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(SETTLE):
            run(*inputs)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run(*inputs)
    return run_seconds(lambda: (graph.replay(), torch.cuda.synchronize()))


def by_compiler(torch: Any, net: Any, inputs: Sequence[Any]) -> float:
    run = torch.compile(net, mode="max-autotune")
    return run_seconds(lambda: (run(*inputs), torch.cuda.synchronize()))


def jax_time(model: onnx.ModelProto, given: Feeds, kind: str) -> Row:
    """Measure a network in JAX, compiled by XLA, with its inputs and constants on the device."""
    jax = jax_with_cuda()
    if jax is None or kind == "int8":
        return {"absent": "JAX with CUDA" if jax is None else "JAX's network of bytes"}
    try:
        with jax.default_matmul_precision("tensorfloat32" if kind == "tf32" else "float32"):
            run, constants = jax_network(jax, model)
            inputs = {name: jax.numpy.asarray(value) for name, value in given.items()}
            return {"JAX": run_seconds(lambda: run(constants, inputs).block_until_ready())}
    except Exception as error:  # a network that JAX can't run is only reported
        return {"failed": f"JAX: {str(error)[:200]}"}


def ours_on_device(exe: Any, given: Feeds) -> float | None:
    """Return the median seconds of a run whose input is a tensor of the device, as PyTorch's is."""
    torch = torch_with_cuda()
    if torch is None:
        return None
    inputs = {n: tensor(torch, v).cuda() for n, v in given.items()}
    return run_seconds(lambda: (exe.run(inputs), torch.cuda.synchronize()))


def absent_engines() -> Row:
    """Tell which other engines aren't here: TensorRT, and ONNX Runtime's provider for CUDA."""
    lacking = []
    try:
        import tensorrt  # noqa: F401
    except ImportError:
        lacking.append("TensorRT")
    try:
        import onnxruntime

        there = onnxruntime.get_available_providers()
    except ImportError:
        there = []
    if "CUDAExecutionProvider" not in there:
        lacking.append("ONNX Runtime's provider for CUDA")
    return {"absent": " and ".join(lacking)} if lacking else {"here": "TensorRT and ONNX Runtime"}
