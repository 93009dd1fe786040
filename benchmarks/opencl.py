"""Compare OpenCL devices with native code, CLBlast and OpenCV: models, launches, matrix products, and
loading.

    python benchmarks/opencl.py opencl:intel opencl:pocl --threads 2 [--parts launches load]

Everything is measured in turns in one process. Models are measured in one process for each turn. Beside
OpenCV they are measured in one for each device, because OpenCV uses one device in a process. CLBlast is
Debian's libclblast1, and OpenCV the package opencv-python-headless.
"""

from __future__ import annotations

import argparse
import ctypes
import ctypes.util
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import onnx
from catalogue import CATALOGUE
from onnx import TensorProto, helper, numpy_helper

import jangin
from jangin.bench.arrays import random_array
from jangin.runtime.devices.opencl_devices import PREFIX, Found, select
from jangin.runtime.devices.opencl_library import COPY_HOST, READ_WRITE, Buffer, Queue
from jangin.runtime.devices.opencl_programs import opened
from jangin.study.quiet import quiet

PARTS = ("opencv", "products", "launches", "load", "models")
SIZES = (256, 512, 1024, 2048)
TINY = 60
SETTLE, TURN, PROCESS = 10, 0.5, 5
"""Runs of a model before timed runs, seconds of a turn, and turns of a process."""
ROW_MAJOR, AS_IT_IS = 101, 111
"""CLBlast's numbers for row-major matrices that aren't transposed."""
PEERS = ("squeezenet1_1", "mobilenetv2", "resnet18", "resnet50")
"""Models beside OpenCV, which builds and tunes its kernels for a minute or more at a model's first run."""
LOADED = "resnet50"
LOAD = """
import sys, time
start = time.perf_counter()
import numpy as np
import jangin
called = time.perf_counter()
from jangin.runtime.devices import opencl_programs
opencl_programs.build_program = None
model, target, threads, cache = sys.argv[1:]
exe = jangin.compile(model, target, threads=int(threads), cache=cache)
exe(np.zeros(exe.inputs[0].shape, np.float32))
end = time.perf_counter()
print(end - called, end - start)
"""
"""A program that loads without the compiler. It prints the seconds to a result, from the call and from its
first statement."""


def medians(runs: Sequence[Callable[[], object]], turns: int) -> list[float]:
    """Return the median seconds of each, measured in turns."""
    return [statistics.median(t) for t in seconds(runs, turns)]


def seconds(runs: Sequence[Callable[[], object]], turns: int) -> list[list[float]]:
    """Return the seconds of each in each turn but the first."""
    taken: list[list[float]] = [[] for _ in runs]
    for _ in range(turns + 1):
        for run, times in zip(runs, taken, strict=True):
            start = time.perf_counter()
            run()
            times.append(time.perf_counter() - start)
    return [t[1:] for t in taken]


def models(names: Sequence[str], devices: Sequence[str], threads: int, turns: int) -> None:
    """Measure models in processes of their own, in turns, because the threads of one runtime disturb
    another."""
    shares: dict[str, list[float]] = {d: [] for d in devices}
    for name in names:
        taken: dict[str, list[float]] = {d: [] for d in ("cpu", *devices)}
        for _ in range(max(1, turns // PROCESS)):
            for device, times in taken.items():
                command = [sys.executable, __file__, device, "--model-alone", name, "--threads", str(threads)]
                said = subprocess.run(command, check=True, capture_output=True, text=True).stdout
                times.append(float(said.split()[-1]))
        native, *others = (statistics.median(t) for t in taken.values())
        texts = []
        for device, taken_there in zip(devices, others, strict=True):
            shares[device].append(native / taken_there)
            texts.append(f"{device} {taken_there * 1e3:.2f} ms ({native / taken_there:.2f})")
        print(f"{CATALOGUE[name].title}: native {native * 1e3:.2f} ms, {', '.join(texts)}", flush=True)
    for device, found in shares.items():
        if found:
            print(f"{device}: {statistics.geometric_mean(found):.2f} of native code's speed (geometric mean)")


def model_alone(name: str, device: str, threads: int) -> float:
    """Return the median seconds of a run."""
    entry, rng = CATALOGUE[name], np.random.default_rng(0)
    exe, feeds, times = jangin.compile(entry.path, device, threads=threads), {}, list[float]()
    for spec in exe.inputs:
        shape = [d if isinstance(d, int) else entry.sizes[str(d)] for d in spec.shape]
        feeds[spec.name] = random_array(rng, spec.dtype, shape, "mask" in spec.name)
    for _ in range(SETTLE):
        exe.run(feeds)
    end = time.perf_counter() + TURN
    while time.perf_counter() < end:
        start = time.perf_counter()
        exe.run(feeds)
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def tiny_model() -> onnx.ModelProto:
    """Return a model of kernels that nothing fuses, because each adds to a number that a reduction gives."""
    nodes = []
    for n in range(TINY // 2):
        nodes.append(helper.make_node("ReduceMax", [f"x{n}"], [f"m{n}"], keepdims=1))
        nodes.append(helper.make_node("CumSum", [f"x{n}", "axis"], [f"c{n}"]))
        nodes.append(helper.make_node("Sub", [f"c{n}", f"m{n}"], [f"x{n + 1}"]))
    ends = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [1, 16]) for n in ("x0", f"x{TINY // 2}")]
    axis = [numpy_helper.from_array(np.int64(1), "axis")]
    graph = helper.make_graph(nodes, "tiny", ends[:1], ends[1:], axis)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)])


def launches(devices: Sequence[str], threads: int, turns: int) -> None:
    for device in devices:
        exe: Any = jangin.compile(tiny_model(), device, threads=threads)
        x = np.zeros((1, 16), np.float32)
        (taken,) = seconds([partial(exe, x)], turns)
        count = len(exe.plan.launches)
        median, least = (1e6 * t / count * TINY for t in (statistics.median(taken), min(taken)))
        print(f"{device}: {TINY} of {count} tiny kernels in {median:.0f} µs (least {least:.0f})")


class Clblast:
    """CLBlast's SGEMM on a device."""

    def __init__(self, device: Found, size: int, rng: np.random.Generator) -> None:
        name = ctypes.util.find_library("clblast")
        if name is None:
            raise OSError("CLBlast isn't here: install Debian's libclblast1")
        self._library = ctypes.CDLL(name)
        context = opened(device).context
        self.queue = Queue(context)
        self.size = size
        self.arrays = [rng.standard_normal((size, size)).astype(np.float32) for _ in "abc"]
        self.buffers = [Buffer(context, READ_WRITE | COPY_HOST, a.nbytes, a) for a in self.arrays]

    def __call__(self) -> None:
        n = ctypes.c_size_t(self.size)
        zero, queue = ctypes.c_size_t(0), ctypes.c_void_p(self.queue.handle)
        a, b, c = (ctypes.c_void_p(m.handle) for m in self.buffers)
        status = self._library.CLBlastSgemm(
            ROW_MAJOR, AS_IT_IS, AS_IT_IS, n, n, n, ctypes.c_float(1), a, zero, n, b, zero, n,
            ctypes.c_float(0), c, zero, n, ctypes.byref(queue), None,
        )  # fmt: skip
        if status:
            raise RuntimeError(f"CLBlastSgemm gave {status}")
        self.queue.finish()

    def result(self) -> Any:
        out = np.empty_like(self.arrays[2])
        self.queue.read(out, self.buffers[2])
        self.queue.finish()
        return out


def product(size: int) -> onnx.ModelProto:
    """Return the product of two square matrices."""
    ends = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [size, size]) for n in "aby"]
    node = helper.make_node("MatMul", ["a", "b"], ["y"])
    graph = helper.make_graph([node], "p", ends[:2], ends[2:])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)])


def products(devices: Sequence[str], sizes: Sequence[int], threads: int, turns: int, command: str) -> None:
    """Measure products by `jangin.blas`, by a model of one product, and by CLBlast. All are compiled before
    `command` keeps other work away.

    Jangin's take arrays of the host and return new ones. CLBlast's operands lie on the device."""
    rng = np.random.default_rng(0)
    measured: list[tuple[str, int, list[Callable[[], object]]]] = []
    jangin.blas.set_threads(threads)
    for device in devices:
        for size in sizes:
            theirs = Clblast(select(device.removeprefix(PREFIX).removeprefix(":")), size, rng)
            a, b, _ = theirs.arrays
            exe = jangin.compile(product(size), device, threads=threads)
            routine = partial(jangin.blas.on(device).sgemm, 1.0, *map(np.asfortranarray, (a, b)))
            theirs()
            want = a.astype(np.float64) @ b
            for made in (routine(), exe(a, b), theirs.result()):
                np.testing.assert_allclose(made, want, atol=1e-5 * size)
            measured.append((device, size, [routine, partial(exe, a, b), theirs]))
    with quiet(command):
        for device, size, runs in measured:
            mine, model, other = medians(runs, turns)
            work = 2e-9 * size**3
            rates = f"jangin.blas {work / mine:.1f}, a model {work / model:.1f}, CLBlast {work / other:.1f}"
            times = f"{other / mine:.1f} and {other / model:.1f} times"
            print(f"{device}, products of {size}: {rates} GFLOP/s, {times}", flush=True)


def opencv(names: Sequence[str], device: str, threads: int, turns: int) -> None:
    """Measure models by OpenCV in this process, on the device that its environment names."""
    import cv2

    found = select(device.removeprefix(PREFIX).removeprefix(":"))
    assert cv2.ocl.useOpenCL(), "OpenCV finds no OpenCL device: it needs the system's libOpenCL.so"
    theirs_on = cv2.ocl.Device_getDefault()
    assert theirs_on.name() == found.name, f"OpenCV runs on {theirs_on.name()}, not on {found}"
    for name in names:
        entry = CATALOGUE[name]
        exe: Any = jangin.compile(entry.path, device, threads=threads)
        net = cv2.dnn.readNetFromONNX(str(entry.path))
        net.setPreferableBackend(cv2.dnn.DNN_BACKEND_OPENCV)
        net.setPreferableTarget(cv2.dnn.DNN_TARGET_OPENCL)
        x = np.random.default_rng(0).standard_normal(exe.inputs[0].shape, np.float32)

        def theirs(net: Any = net, x: Any = x) -> Any:
            net.setInput(x)
            return net.forward()

        want = exe(x)
        np.testing.assert_allclose(theirs(), want, atol=1e-3 * np.abs(want).max())
        mine, other = medians([partial(exe, x), theirs], turns)
        times = f"Jangin {mine * 1e3:.2f} ms, OpenCV {other * 1e3:.2f} ms"
        print(f"{device}, {entry.title}: {times}, {other / mine:.1f} times", flush=True)


def beside_opencv(names: Sequence[str], devices: Sequence[str], threads: int, turns: int) -> None:
    """Run `opencv` for each device in a process of its own, whose environment names the device."""
    for device in devices:
        found = select(device.removeprefix(PREFIX).removeprefix(":"))
        env = os.environ | {
            "OPENCV_OPENCL_DEVICE": f"{found.platform}:{found.kind}:",
            "OPENCV_DNN_OPENCL_ALLOW_ALL_DEVICES": "1",
        }
        given = [device, "--opencv-alone", "--peer-models", *names, "--threads", threads, "--turns", turns]
        subprocess.run([sys.executable, __file__, *map(str, given)], env=env, check=True)


def loading(devices: Sequence[str], threads: int, turns: int) -> None:
    """Measure the time from a cached model to its first result, in fresh processes."""
    env = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    for device in devices:
        with tempfile.TemporaryDirectory() as cache:
            path = CATALOGUE[LOADED].path
            jangin.compile(path, device, threads=threads, cache=cache)
            command = [sys.executable, "-c", LOAD, str(path), device, str(threads), cache]
            said = [subprocess.run(command, env=env, check=True, capture_output=True) for _ in range(turns)]
        called, whole = zip(*([float(s) for s in run.stdout.split()] for run in said), strict=True)
        print(
            f"{device}, {LOADED} from the cache to its first result: {statistics.median(called):.3f} s from "
            f"the call (least {min(called):.3f}), {statistics.median(whole):.3f} s with imports (least "
            f"{min(whole):.3f})"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("devices", nargs="*", default=["opencl:intel", "opencl:pocl"])
    parser.add_argument("--models", nargs="*", default=[n for n, m in CATALOGUE.items() if m.batch == 1])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--turns", type=int, default=15)
    parser.add_argument("--peer-models", nargs="*", default=PEERS, help="set beside OpenCV")
    parser.add_argument("--sizes", nargs="*", type=int, default=SIZES, help="of products")
    parser.add_argument("--parts", nargs="*", choices=PARTS, default=PARTS)
    parser.add_argument("--quiet", default="", help="a command that keeps others away from timed products")
    parser.add_argument("--opencv-alone", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--model-alone", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.model_alone:
        print(model_alone(arguments.model_alone, arguments.devices[0], arguments.threads))
        return
    if arguments.opencv_alone:
        opencv(arguments.peer_models, arguments.devices[0], arguments.threads, arguments.turns)
        return
    devices, threads, turns = arguments.devices, arguments.threads, arguments.turns
    parts: dict[str, Callable[[], None]] = {
        "opencv": partial(beside_opencv, arguments.peer_models, devices, threads, turns),
        "products": partial(products, devices, arguments.sizes, threads, turns, arguments.quiet),
        "launches": partial(launches, devices, threads, 20 * turns),
        "load": partial(loading, devices, threads, turns),
        "models": partial(models, arguments.models, devices, threads, turns),
    }
    for part in arguments.parts:
        parts[part]()


if __name__ == "__main__":
    main()
