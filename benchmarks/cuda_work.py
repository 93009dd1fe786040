"""The work of the jobs of benchmarks/cuda.py: errors, and times."""

from __future__ import annotations

import ctypes
import math
import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
import onnx
from cuda_peers import REPEATS, Row, jax_time, ours_on_device, run_seconds, torch_network, torch_product
from cuda_place import TF32, Place, Prepared, compiled
from gpu_networks import NETWORKS, attention, feeds, product, product_of_bytes, windows

import jangin
from jangin.compiler.pipeline import tune_model
from jangin.options import Options
from jangin.runtime import libraries
from jangin.runtime.devices.cuda_devices import Found, select
from jangin.targets import resolve

NOT_FINITE = "the results aren't finite"


def typed(kind: str) -> str:
    """Return the element type of a kind of numbers."""
    return "float32" if kind == TF32 else kind


def network(name: str, kind: str, batch: int, small: bool) -> onnx.ModelProto:
    """Return one of the networks. Small ones have one layer, or few pixels."""
    kind = typed(kind)
    if not small:
        return NETWORKS[name](kind, batch)
    if name in ("bert", "gpt2"):
        words = {"words": 100} if name == "gpt2" else {}
        return NETWORKS[name](kind, batch, 8, layers=1, width=64, **words)
    if name == "unet":
        return NETWORKS[name](kind, batch, side=8, width=32, wide=64)
    return NETWORKS[name](kind, batch, size=32)


def device(on: Place) -> Found:
    return select(on.device.removeprefix("cuda").removeprefix(":"))


# --- errors


def worst(got: Mapping[str, np.ndarray], want: Mapping[str, np.ndarray]) -> float:
    """Return the largest difference, as a share of the largest value. Raises ValueError for a result that
    isn't finite."""
    found = 0.0
    for name, value in want.items():
        a, b = got[name].astype(np.float64), value.astype(np.float64)
        if not np.isfinite(a).all():
            raise ValueError(NOT_FINITE)
        found = max(found, float(np.abs(a - b).max() / np.abs(b).max()))
    return found


def product_error(on: Place, kind: str, rows: int, terms: int, columns: int) -> Row:
    exe = compiled(product(typed(kind), rows, terms, columns), on, kind)
    given = feeds(exe)
    x, y = (v.astype(np.float64) for v in given.values())
    found = worst(exe.run(given), {exe.outputs[0].name: x @ y})
    return {"error": found, "kernel": exe.plan.launches[0].template}


def bytes_error(on: Place, rows: int, terms: int, columns: int) -> Row:
    """Return the error of a product of bytes, whose sums are exact."""
    exe = compiled(product_of_bytes(rows, terms, columns), on, "int8")
    x = np.random.default_rng(0).integers(0, 256, (rows, terms)).astype(np.uint8)
    weights = np.random.default_rng(0).integers(-128, 128, (terms, columns)).astype(np.int64)
    found = worst({"y": np.asarray(exe(x))}, {"y": x.astype(np.int64) @ weights})
    return {"error": found, "kernel": exe.plan.launches[-1].template}


def network_error(on: Place, name: str, kind: str, small: bool) -> Row:
    return error_of(on, network(name, kind, 1, small), network(name, "float64", 1, small), kind)


def windows_error(on: Place, kind: str) -> Row:
    return error_of(on, windows(typed(kind)), windows("float64"), kind)


def error_of(on: Place, model: onnx.ModelProto, in_float64: onnx.ModelProto, kind: str) -> Row:
    """Return the error against the same network in float64 on the processor, with weights that aren't
    rounded."""
    exe, exact = on.compiled((model, on.target, kind), (in_float64, on.reference, "float64"))
    given = feeds(exe)
    want = exact.run({n: v.astype(np.float64) for n, v in given.items()})
    return {"error": worst(exe.run(given), want), "launches": len(exe.plan.launches)}


def sanitized(on: Place, tool: str) -> Row:
    """Run a small network's kernels under NVIDIA's checker."""
    if on.prepares:
        return network_error(on, "squeezenet", "float32", small=True)
    checker = shutil.which("compute-sanitizer")
    if checker is None:
        return {"absent": "compute-sanitizer"}
    own = [*on.command, "--small", "--job", "errors/squeezenet/float32"]
    done = subprocess.run(
        [checker, "--tool", tool, "--error-exitcode", "9", *own], capture_output=True, text=True
    )
    return {"exit": done.returncode, "said": done.stdout[-400:]}


# --- times


def device_seconds(exe: Any, given: Mapping[str, np.ndarray]) -> float:
    """Return the seconds of a run's launches, by the device's clock."""
    return sum(launch.seconds for launch in exe.profile(given, REPEATS))


def copied(on: Place, count: int) -> Row:
    """Measure a kernel that reads and writes the same number of bytes."""
    from onnx import TensorProto, helper, numpy_helper

    info = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [count]) for n in "xy"]
    two = numpy_helper.from_array(np.float32(2), "two")
    graph = helper.make_graph([helper.make_node("Mul", ["x", "two"], ["y"])], "g", info[:1], info[1:], [two])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)
    exe = compiled(model, on, "float32")
    seconds = device_seconds(exe, feeds(exe))
    return {"seconds": seconds, "GB/s": 8e-9 * count / seconds, "ceiling": device(on).bandwidth / 1e9}


def product_time(on: Place, kind: str, size: int) -> Row:
    return timed_product(on, kind, (size,) * 3)


def timed_product(on: Place, kind: str, shape: Sequence[int]) -> Row:
    """Measure a product of [rows, terms, columns], beside cuBLAS."""
    exe = compiled(product(typed(kind), *shape), on, kind)
    seconds, flops = device_seconds(exe, feeds(exe)), 2 * math.prod(shape)
    row = {"seconds": seconds, "TFLOP/s": 1e-12 * flops / seconds}
    label = exe.plan.launches[0].template
    return {**row, "kernel": label, **torch_product(kind, *shape, seconds)}


def shapes_time(on: Place, shapes: Sequence[Sequence[int]], kind: str) -> Row:
    """Measure products of many shapes. "of cuBLAS" is the mean of their ratios, in logarithms."""
    rows: dict[str, Row] = {}
    for shape in shapes:
        with suppress(Prepared):
            rows["x".join(map(str, shape))] = timed_product(on, kind, shape)
    if on.prepares:
        raise Prepared
    ratios = [row["of cuBLAS"] for row in rows.values() if "of cuBLAS" in row]
    found: Row = {"TFLOP/s": {name: row["TFLOP/s"] for name, row in rows.items()}}
    if not ratios:
        return {**found, "absent": "PyTorch with CUDA"}
    each = {name: row["of cuBLAS"] for name, row in rows.items()}
    return {**found, "of cuBLAS": math.exp(sum(map(math.log, ratios)) / len(ratios)), "each": each}


def triton_time(on: Place, name: str, kind: str, shape: tuple[int, ...]) -> Row:
    """Measure a product or attention beside Triton's kernel of the same."""
    model = (product if name == "product" else attention)(typed(kind), *shape)
    exe = compiled(model, on, kind)
    from cuda_triton import of_triton  # PyTorch and Triton take seconds to import

    seconds = device_seconds(exe, feeds(exe))
    return {"seconds": seconds, **of_triton(name, kind, shape, seconds)}


def library_time(on: Place, library: str, name: str, small: bool) -> Row:
    """Measure a network in float32 with our kernels, and with those of a library that fit, by the device's
    clock. Jangin calls the library itself, so PyTorch isn't needed."""
    model = network(name, "float32", 1, small)
    ours = compiled(model, on, "float32")
    if libraries.find(library) is None:
        return {"absent": libraries.absent(library)}
    theirs = jangin.compile(model, on.target, libraries=library)
    given = feeds(ours)
    error = worst(theirs.run(given), ours.run(given))
    calls = sum(launch.template == library for launch in theirs.plan.launches)
    seconds = [device_seconds(exe, given) for exe in (ours, theirs)]
    return {"device": seconds[0], library: seconds[1], "of the library": seconds[1] / seconds[0],
            "calls": calls, "error": error}  # fmt: skip


def estimates(on: Place, name: str, kind: str, seconds: float, small: bool) -> Row:
    """Measure all candidates of a network's kernels for some seconds. Tell how often the estimate's first
    choice is within 10 % of the best. Tell the share of candidates that estimates leave out, and the loss by
    this."""
    if on.prepares:
        raise Prepared  # a kernel has some hundred candidates
    options = Options(resolve(on.target), tf32=kind == TF32)
    found = tune_model(network(name, kind, 1, small), options, 1, seconds, every=True)
    rows = found.measured
    return {
        "kernels": len(rows), "near": found.near / max(1, len(rows)), "pruned": found.pruned,
        "lost": [lost - 1 for lost in found.lost], "defects": found.defects,
        "each": {r.name: [str(r.first), str(r.best), r.gain, r.tried.total(), r.known] for r in rows},
    }  # fmt: skip


def launch_time(on: Place, count: int) -> Row:
    """Measure `count` tiny kernels that can't be fused: the seconds of each in a run, and by itself."""
    from onnx import TensorProto, helper

    nodes, name = [], "x"
    for n in range(count // 2):
        nodes.append(helper.make_node("Softmax", [name], [f"s{n}"], axis=-1))
        nodes.append(helper.make_node("ReduceMax", [f"s{n}"], [f"m{n}"], keepdims=1))
        nodes.append(helper.make_node("Add", [f"s{n}", f"m{n}"], [f"a{n}"]))
        name = f"a{n}"
    info = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [4, 64]) for n in ("x", name)]
    graph = helper.make_graph(nodes, "g", info[:1], info[1:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)
    exe = compiled(model, on, "float32")
    given, launches = feeds(exe), len(exe.plan.launches)
    whole = run_seconds(lambda: exe.run(given))
    return {
        "launches": launches,
        "run": whole,
        "each": whole / launches,
        "device": device_seconds(exe, given),
    }


def network_time(on: Place, name: str, batch: int, kind: str, small: bool) -> Row:
    """Measure a network beside PyTorch. Both have their input on the device if PyTorch is there."""
    exe, given, row = timed_network(on, name, batch, kind, small)
    peers = torch_network(network(name, kind, batch, small), given, kind, compiled=False)
    return {**row, **against(exe, given, peers, "PyTorch")}


def timed_network(
    on: Place, name: str, batch: int, kind: str, small: bool
) -> tuple[Any, Mapping[str, np.ndarray], Row]:
    exe = compiled(network(name, kind, batch, small), on, kind)
    given = feeds(exe)
    whole = run_seconds(lambda: exe.run(given))
    row: Row = {
        "run": whole, "device": device_seconds(exe, given), "launches": len(exe.plan.launches),
        "working": exe.working, **joules(lambda: exe.run(given)),
    }  # fmt: skip
    return exe, given, row


def against(exe: Any, given: Mapping[str, np.ndarray], peers: Row, *names: str) -> Row:
    """Return the peers' row with our time beside it, if any peer ran."""
    theirs = [peers[name] for name in names if name in peers]
    ours = ours_on_device(exe, given) if theirs else None
    return peers if ours is None else {**peers, "on device": ours, "of the best": min(theirs) / ours}


def compilers_time(on: Place, name: str, batch: int, kind: str, small: bool) -> Row:
    """Measure a network beside torch.compile's most tuning mode, and JAX."""
    exe, given, row = timed_network(on, name, batch, kind, small)
    model = network(name, kind, batch, small)
    torch, jax = torch_network(model, given, kind, compiled=True), jax_time(model, given, kind)
    lacks = {word: "; ".join(said) for word in ("absent", "failed")
             if (said := [r[word] for r in (torch, jax) if word in r])}  # fmt: skip
    return {**row, **against(exe, given, {**torch, **jax, **lacks}, "torch.compile", "JAX")}


def joules(run: Callable[[], object]) -> Row:
    """Return the device's energy of a run by NVML, if NVML is installed and counts it."""
    with suppress(OSError, AttributeError):
        nvml = ctypes.CDLL("libnvidia-ml.so.1")
        device, before, after = ctypes.c_void_p(), ctypes.c_ulonglong(), ctypes.c_ulonglong()
        if nvml.nvmlInit_v2() or nvml.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(device)):
            return {}
        if nvml.nvmlDeviceGetTotalEnergyConsumption(device, ctypes.byref(before)):
            return {}
        for _ in range(REPEATS):
            run()
        nvml.nvmlDeviceGetTotalEnergyConsumption(device, ctypes.byref(after))
        return {"joules": 1e-3 * (after.value - before.value) / REPEATS}
    return {}
