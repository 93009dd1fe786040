"""Names of targets and devices, the code that each device runs, and the errors if none runs it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import mocked
import pytest
from test_toy_backend import network

import jangin
from jangin.backends.cuda import nvrtc
from jangin.ir.graph import CompileError
from jangin.runtime.device import LoadError, device_of
from jangin.runtime.devices import cuda_devices, cuda_library
from jangin.runtime.devices.cuda_code import Built
from jangin.runtime.devices.cuda_devices import capability
from jangin.targets import resolve
from jangin.targets.cuda import ARCHITECTURES, CUDA
from jangin.tune.store import place_of


def test_targets_without_a_gpu() -> None:
    assert [*CUDA] == [f"cuda:sm_{n}" for n in ("62", "75", "80", "86", "87", "89", "90a")]
    for name, target in CUDA.items():
        assert resolve(name) is target
        assert target.groups and target.outputs == ("jgn",) and target.device_name == "cuda"
        assert (target.row("narrow", jangin.ir.dtype.BF16).expansion is None) == target.has("bf16")
        assert target.has("min.nan") == (capability(target.cpu) >= (8, 0))
    with pytest.raises(ValueError, match=r"unknown target 'cuda:sm_99'; known: cuda:sm_62"):
        resolve("cuda:sm_99")
    with pytest.raises(ValueError, match="did you mean cuda:sm_80"):
        resolve("cuad:sm_80")


@pytest.mark.parametrize("kind", ["c", "object", "shared"])
def test_no_programs_are_emitted(kind: str) -> None:
    with pytest.raises(ValueError, match=rf"no '{kind}' is made for cuda:sm_80: jgn can be"):
        jangin.emit(network(), kind, "cuda:sm_80")


def test_tuned_kernels_are_kept_by_device() -> None:
    a100 = CUDA["cuda:sm_80"]
    a30 = a100.with_figures(units=56)
    assert place_of(a100, 1, "never", "latency") != place_of(a30, 1, "never", "latency")


def test_occupancy() -> None:
    """Occupancy follows the public tables. A warp gets registers in units of 256."""
    a100 = ARCHITECTURES["sm_80"]
    assert a100.occupancy(256, 32, 0) == 1.0
    assert a100.occupancy(256, 64, 0) == 0.5  # 65,536 registers suffice for 4 groups of 8 warps of 2,048
    assert a100.occupancy(256, 65, 0) == 0.375
    assert a100.occupancy(128, 32, 40 << 10) == 4 * 128 / 2048  # 164 KiB suffice for 4 groups of 41 KiB
    assert a100.occupancy(32, 32, 0) == 0.5  # the most groups are 32
    assert ARCHITECTURES["sm_86"].occupancy(1024, 32, 0) == 1024 / 1536


@pytest.mark.parametrize(
    ("device", "takes", "runs"),
    [
        ((6, 1), "", ""),
        ((6, 2), "62", "62"),
        ((7, 0), "", "62"),
        ((8, 0), "80", "62 75 80"),
        ((8, 6), "80 86", "62 75 80 86"),
        ((8, 7), "87", "62 75 80 86 87"),
        ((8, 9), "80 86 89", "62 75 80 86 87 89"),
        ((9, 0), "90a", "62 75 80 86 87 89 90a"),
        ((12, 0), "", "62 75 80 86 87 89 90a"),
    ],
)
def test_what_runs_where(device: tuple[int, int], takes: str, runs: str) -> None:
    """Machine code runs on devices of its major number, from its minor number on. Jetsons and code for an "a"
    architecture are apart. Text runs on all devices that are as new."""
    found = cuda_devices.Found(0, "x", *device, 1, 1, 1.0, 1, 1, (12, 0), 0)
    assert [n for n in ARCHITECTURES if found.takes(n)] == [f"sm_{n}" for n in takes.split()]
    assert [n for n in ARCHITECTURES if found.runs(n)] == [f"sm_{n}" for n in runs.split()]


@mocked.needed
@pytest.mark.parametrize(
    ("device", "architecture"),
    [((7, 5), "sm_75"), ((8, 0), "sm_80"), ((8, 6), "sm_86"), ((9, 0), "sm_90a"), ((10, 0), "sm_90a"),
     ((7, 0), "sm_62")],
)  # fmt: skip
def test_the_device_is_asked(driver: Any, device: tuple[int, int], architecture: str) -> None:
    driver.mock_device(*device, 1 << 30)
    target = resolve("cuda")
    assert target.cpu == architecture
    gpu = target.gpu
    assert (gpu.units, gpu.clock, gpu.bandwidth, gpu.l2) == (4, 1e9, 64e9, 1 << 20)
    assert resolve("cuda:mock").device_name == "cuda:mock"


@mocked.needed
def test_devices_that_are_not_here(driver: Any, tmp_path: Path) -> None:
    driver.mock_device(6, 1, 1 << 30)
    with pytest.raises(LoadError, match=r"cuda:0 \(Mock GPU 0\) is of .* 6\.1, older than any"):
        resolve("cuda")
    jangin.build(network(), "cuda:sm_80", cache=False).save(tmp_path / "m.jgn")
    with pytest.raises(LoadError, match=r"for sm_80, which no GPU here runs; here are cuda:0.*6\.1"):
        jangin.load(tmp_path / "m.jgn")
    with pytest.raises(LoadError, match=r"cuda:0 .* is of compute capability 6.1, older than sm_80"):
        jangin.load(tmp_path / "m.jgn", device=device_of("cuda:0"))
    with pytest.raises(LoadError, match=r"no NVIDIA GPU is '7'; here are cuda:0 \(Mock GPU 0\)"):
        resolve("cuda:7")


@mocked.needed
def test_no_device(driver: Any) -> None:
    driver.mock_devices(0)
    with pytest.raises(LoadError, match=r"there is no NVIDIA GPU here: .*CUDA_VISIBLE_DEVICES"):
        jangin.compile(network(), "cuda")
    mocked.forget()
    driver.mock_init_error(100)
    with pytest.raises(LoadError, match=r"doesn't start: CUDA_ERROR_NO_DEVICE, .*; there is no"):
        jangin.compile(network(), "cuda")


@mocked.needed
def test_a_driver_that_is_too_old(driver: Any) -> None:
    driver.mock_version(11080)
    with pytest.raises(LoadError, match=r"driver is too old: it has CUDA 11\.8, and Jangin needs 12\.0"):
        jangin.compile(network(), "cuda")


def test_no_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    def opened() -> None:
        raise OSError("libcuda.so.1: no such file")

    monkeypatch.setattr(cuda_library, "_opened", opened)
    mocked.forget()
    with pytest.raises(LoadError, match=r"NVIDIA's driver isn't here \(libcuda.so.1: no such file\)"):
        jangin.compile(network(), "cuda")
    assert cuda_library.driver_version() is None


def test_a_compiler_that_cannot_be_loaded_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    damaged = tmp_path / "libnvrtc.so.12"
    damaged.write_bytes(b"no library")
    monkeypatch.setattr(nvrtc, "nvidia_libraries", lambda name: [str(damaged), "none.so"])
    mocked.forget()
    with pytest.raises(CompileError, match=r"isn't here \(.*libnvrtc\.so\.12 can't be used: .*too short"):
        nvrtc.for_architecture("sm_80")
    mocked.forget()


def test_no_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvrtc, "looked_for", lambda: ([], []))
    with pytest.raises(CompileError, match=r"needs NVIDIA's compiler NVRTC.*pip install nvidia-cuda-nvrtc,"):
        jangin.build(network(), "cuda:sm_80", cache=False)
    with pytest.raises(CompileError, match="pip install nvidia-cuda-nvrtc-cu12"):
        nvrtc.for_architecture("sm_62")


def test_damaged_code() -> None:
    built = Built("k", "sm_80", (13, 5), b"cubin", b"ptx")
    assert Built.of(built.packed) == built
    for damaged in (b"", built.packed[:9], built.packed[:-1], built.packed + b"1"):
        with pytest.raises(LoadError, match="a kernel's code is damaged"):
            Built.of(damaged)
    assert Built.of(replace(built, cubin=b"").packed).cubin == b""
