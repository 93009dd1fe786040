"""The bars for an NVIDIA GPU, and the figures of `benchmarks/cuda.py` beside them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Row = Mapping[str, Any]

ERRORS = {"float32": 1e-5, "tf32": 5e-3, "bfloat16": 5e-2, "float16": 1e-2, "int8": 0.0}
"""Most error of a result, as a share of its largest number. Sums are f32, and 16-bit results have 8 or 11
bits. Numbers of tf32 have 11. The errors of networks grow with their layers. Sums of bytes are exact."""


@dataclass(frozen=True)
class Bar:
    """A bar of the figure `figure` of all jobs for which `of` returns it. `least`: more is better."""

    name: str
    figure: str
    of: Callable[[list[str]], float | None]
    least: bool = True


def _error(parts: list[str]) -> float | None:
    return ERRORS.get(parts[-1]) if parts[0] == "errors" else None


def _product(kinds: Mapping[str, float]) -> Callable[[list[str]], float | None]:
    return lambda parts: kinds.get(parts[-1]) if parts[0] in ("products", "shapes") else None


def _network(batches: Mapping[str, float]) -> Callable[[list[str]], float | None]:
    return lambda parts: batches.get(parts[2]) if parts[0] in ("networks", "compilers") else None


def _training(parts: list[str]) -> float | None:
    return 1.0 if parts[0] == "training" else None


def _estimates(parts: list[str]) -> float | None:
    return 0.8 if parts[0] == "estimates" else None


def _nothing(parts: list[str]) -> float | None:
    return None


BARS = (
    Bar("nothing wrong: errors against float64", "error", _error, least=False),
    Bar(
        "nothing wrong: compute-sanitizer's exit",
        "exit",
        lambda p: 0.0 if p[0] == "sanitizer" else None,
        False,
    ),
    Bar("float32 products 0.9 of cuBLAS", "of cuBLAS", _product({"float32": 0.9})),
    Bar(
        "mma products 0.6 of cuBLAS",
        "of cuBLAS",
        _product(dict.fromkeys(("tf32", "bfloat16", "float16"), 0.6)),
    ),
    Bar("wgmma products 0.85 of cuBLAS (not built)", "of cuBLAS", _nothing),
    Bar("models at batch 1: 1.2 of the best that is there", "of the best", _network({"1": 1.2})),
    Bar("models at batch 32 and 64: 0.9 of the best", "of the best", _network({"32": 0.9, "64": 0.9})),
    Bar("the first choice within 10 % of the best for 0.8 of kernels", "near", _estimates),
    Bar("training steps level with torch.compile", "of torch.compile", _training),
)
WEBGPU = Bar(
    "WebGPU 0.6 of CUDA without tensor cores", "of CUDA", lambda p: 0.6 if p[0] == "webgpu" else None
)
"""The bar of `benchmarks/webgpu.py`, for runs and for their kernels."""


def judged(done: Mapping[str, Row], bars: Sequence[Bar] = BARS) -> Iterator[tuple[bool, str]]:
    """Yield for each figure whether it needs no reading, and its line with the bar."""
    for bar in bars:
        found = 0
        for name, row in done.items():
            least = bar.of(name.split("/"))
            if least is None or bar.figure not in row:
                continue
            found += 1
            met = row[bar.figure] >= least if bar.least else row[bar.figure] <= least
            sign = "at least" if bar.least else "at most"
            said = f"{name}: {bar.figure} {row[bar.figure]:.3g}, {sign} {least:g} asked"
            yield met, f"{'met' if met else 'MISSED'}  {said}"
        if not found:
            yield True, f"none  {bar.name}: not measured"


def reading(done: Mapping[str, Row]) -> list[str]:
    """Return what to read: each figure with its bar, the missed ones first, and what wasn't measured."""
    found = [*judged(done)]
    for name, row in done.items():
        for lack in ("problem", "absent", "failed"):
            if lack in row:
                word = "none" if lack == "absent" else "FAILED"
                found.append((lack == "absent", f"{word}  {name}: {row[lack]}"))
        if row.get("exit"):
            found.append((False, f"FAILED  {name}: exit {row['exit']}: {row['said']}"))
    return [text for _, text in sorted(found, key=lambda item: item[0])]
