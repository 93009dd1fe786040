"""A benchmark worker: `python -m jangin.bench.worker JOB` runs one engine in a process of its own.

The worker exchanges lines of JSON. It first sends {"version", "compile_seconds", ...} or {"error", "absent"}.

It answers {"op": "turn", "seconds"} with {"nanoseconds": [...], "began", "ended"}, in seconds of the system's
monotonic clock. It answers {"op": "outputs", "path"} with
{"peak_bytes"} after writing an .npz file. It answers {"op": "save", "path"} with {} after Jangin wrote its
compiled model, and {"op": "layers"} with the seconds of each operator. A request that fails is
answered with {"error"}. The worker ends when its input ends, or with the process that started it."""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any

from jangin.bench.arrays import save_arrays
from jangin.bench.engine import Engine, Job
from jangin.bench.engines import PEERS, lacking, make
from jangin.runtime.system.usage import peak_bytes
from jangin.runtime.system.watching import end_with

LONG_SECONDS = 0.1
"""A call of this many seconds needs no untimed one before it. Caches are filled anew within 5 ms."""


def main() -> None:
    end_with()
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # prints of an engine must not mix with the answers

    def answer(message: dict[str, Any]) -> None:
        print(json.dumps(message), file=answers)

    start = time.perf_counter()
    job = Job(**json.loads(sys.argv[1]))
    try:
        engine = make(job)
        engine.call()
        answer(
            {
                "version": engine.version,
                "compile_seconds": engine.compile_seconds,
                "first_seconds": time.perf_counter() - start,
                "work": engine.work,
                "memory": dict(engine.memory),
                "layers": engine.layers is not None,
            }
        )
    except ModuleNotFoundError as error:
        told = lacking(job.engine) if job.engine in PEERS else ""
        told = told or (f"{error.name} is not installed" if error.name else str(error))
        answer({"error": told, "absent": True})
        return
    except Exception as error:  # an engine's own error types become one line of the report
        answer({"error": _said(error), "absent": False})
        return
    for line in sys.stdin:
        try:
            answer(_answered(engine, json.loads(line)))
        except Exception as error:  # the process answers, and its caller raises
            answer({"error": _said(error), "absent": False})


def _said(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


def _answered(engine: Engine, request: dict[str, Any]) -> dict[str, Any]:
    if request["op"] == "turn":
        return turn(engine, request["seconds"])
    if request["op"] == "layers" and engine.layers is not None:
        return {"layers": dict(engine.layers())}
    if request["op"] == "save" and engine.save is not None:
        engine.save(request["path"])
        return {}
    return {"peak_bytes": save(engine, request["path"])}


def turn(engine: Engine, seconds: float) -> dict[str, Any]:
    """Call an engine for about `seconds`, at least once. Return the nanoseconds of each call, and the times
    when the first began and the last ended.

    An untimed call comes first. It is left out if a call takes so long that the contents of the caches don't
    matter.
    """
    began = time.monotonic()
    first = _nanoseconds(engine)
    if first > max(seconds, LONG_SECONDS) * 1e9:
        return {"nanoseconds": [first], "began": began, "ended": time.monotonic()}
    times: list[int] = []
    began = time.monotonic()
    end = time.perf_counter() + seconds
    while not times or time.perf_counter() < end:
        times.append(_nanoseconds(engine))
    return {"nanoseconds": times, "began": began, "ended": time.monotonic()}


def _nanoseconds(engine: Engine) -> int:
    start = time.perf_counter_ns()
    engine.call()
    return time.perf_counter_ns() - start


def save(engine: Engine, path: str) -> int:
    save_arrays(path, engine.call())
    return peak_bytes()


if __name__ == "__main__":
    main()
