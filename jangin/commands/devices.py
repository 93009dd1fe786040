"""`jangin devices`: describe this machine and what Jangin can use on it."""

from __future__ import annotations

from importlib.metadata import version

import numpy as np
from rich.table import Table

from jangin import llvm
from jangin.backends.cuda import nvrtc
from jangin.bench.engines import PEERS, TITLES, installed
from jangin.bench.report import machine
from jangin.commands.common import terminal
from jangin.environment import TARGET, target_name
from jangin.ir.dtype import F32
from jangin.ir.products import Product
from jangin.llvm import LlvmError
from jangin.runtime.device import LoadError
from jangin.runtime.devices import cuda_devices, opencl_devices, webgpu_adapters
from jangin.runtime.libraries import TITLES as TITLES_OF_LIBRARIES
from jangin.runtime.libraries import find
from jangin.runtime.threads import default_threads
from jangin.targets import NAMED, Target, resolve
from jangin.targets.cuda import CUDA
from jangin.targets.rows import PORTABLE


def devices() -> None:
    """Print the processor, the available targets, and the installed libraries."""
    console = terminal()
    here = machine()
    host = resolve("cpu")
    console.print(f"{here['processor']}, {here['system']}, Python {here['python']}")
    if named := target_name():
        console.print(f"target where none is named: {named} ({TARGET})", markup=False)
    console.print(f"threads this process may use: {default_threads()}")
    table = Table("target", "LLVM", "vector", "registers", "FMA", "dot", "caches", "--emit", "")
    for target in NAMED.values():
        table.add_row(*_row(host if target.name == host.name else target, target.name == host.name))
    console.print(table)
    console.print(_opencl())
    console.print(_cuda())
    console.print(_webgpu())
    libraries = Table("library", "version", "used for")
    libraries.add_row("llvmlite (LLVM)", _llvm(), "all code that Jangin generates")
    libraries.add_row("NumPy", np.__version__, "arrays; its SGEMM as a yardstick")
    for name, title in TITLES_OF_LIBRARIES.items():
        library = find(name)
        libraries.add_row(title, library.version if library else "absent", "kernels, with --libraries")
    for peer in PEERS:
        libraries.add_row(TITLES[peer], installed(peer) or "absent", "comparison in `jangin bench`")
    console.print(libraries)


def _opencl() -> Table | str:
    """Return a table of the OpenCL devices, with their figures and missing features. If there are none,
    return the reason as text."""
    try:
        there = opencl_devices.devices()
    except LoadError as error:
        return f"OpenCL: {error}"
    table = Table("OpenCL", "platform", "device", "driver", "kind", "units", "vector", "memory", "lacks")
    for d in there:
        lacks = [f for f in opencl_devices.EXTENSIONS if f not in d.features]
        vector, memory = f"{32 * d.lanes} bits", f"{d.memory >> 20} MiB{', the host' if d.unified else ''}"
        name = f"opencl:{d.number}"
        table.add_row(
            name, d.platform, d.name, d.driver, d.kind, str(d.units), vector, memory, ", ".join(lacks)
        )
    return table


def _cuda() -> Table | str:
    """Return NVIDIA's GPUs with their figures, or the reason why there are none and the targets that can be
    compiled for."""
    compilers = ", ".join(map(str, nvrtc.found())) or "none; pip install 'jangin[cuda]'"
    caption = f"targets: {', '.join(CUDA)}; compiler: {compilers}"
    try:
        there = cuda_devices.devices()
    except LoadError as error:
        return f"CUDA: {error}\n  {caption}"
    table = Table(
        "CUDA", "device", "capability", "driver", "units", "clock", "memory", "GB/s", caption=caption
    )
    for d in there:
        version = ".".join(map(str, d.version))
        clock, memory = f"{d.clock / 1e6:.2f} GHz", f"{d.memory >> 20} MiB"
        capability, rate = f"{d.major}.{d.minor}", f"{d.bandwidth / 1e9:.0f}"
        table.add_row(f"cuda:{d.number}", d.name, capability, version, str(d.units), clock, memory, rate)
    return table


def _webgpu() -> Table | str:
    """Return the WebGPU adapters with the limits that decide what runs on them, or the reason why there are
    none."""
    try:
        there = webgpu_adapters.adapters()
    except LoadError as error:
        return f"WebGPU: {error}"
    table = Table("WebGPU", "adapter", "driver", "kind", "by", "buffers", "binding", "group", "shared", "has")
    for a in there:
        binding, shared = _size(a.limit(webgpu_adapters.BINDING)), _size(a.limit(webgpu_adapters.ROOM))
        counts = (str(a.limit(n)) for n in (webgpu_adapters.STORAGE, webgpu_adapters.GROUP))
        buffers, group = counts
        has = ", ".join(f for f in webgpu_adapters.TOLD if f in a.features)
        table.add_row(
            f"webgpu:{a.number}", a.name, a.driver, a.kind, a.interface, buffers, binding, group, shared, has
        )
    return table


def _products(product: Product, target: Target) -> str:
    """Return a description of a product instruction: the number of terms that it sums, their types, and
    whether it multiplies small matrices."""
    left, right = product.left, product.right
    matrices = target.matrix_row(product) is not None
    numbers = f"{left}·{right}" if left is not right else str(left)
    return f"{product.terms} × {numbers}" + (", matrices" if matrices else "")


def _size(size: int) -> str:
    """Return a cache's size in KiB or MiB."""
    return f"{size >> 20}M" if size % (1 << 20) == 0 else f"{size >> 10}K"


def _row(target: Target, here: bool) -> list[str]:
    processor = target.processor
    caches = "/".join(map(_size, (processor.l1, processor.l2, processor.l3)))
    vector = f"{8 * processor.vector_bytes} bits"
    fma = "no" if target.row("fma", F32) in PORTABLE else "yes"
    return [
        target.name,
        target.cpu,
        vector,
        str(processor.registers),
        fma,
        next((_products(p, target) for p in processor.products if not p.clamps), ""),
        caches,
        ", ".join(target.outputs),
        "this machine (cpu)" if here else "",
    ]


def _llvm() -> str:
    """Return the versions of llvmlite and LLVM, or the reason why LLVM can't be used."""
    try:
        release = llvm.version()
    except LlvmError as error:
        return str(error)
    known = "" if llvm.is_checked() else ", with which Jangin wasn't checked"
    return f"{version('llvmlite')} ({release}{known})"
