"""Exact models compiled ahead of time. C and objects are called by their API in this process, and WebAssembly
runs in Node. All memory of a run is the caller's, and guarded."""

from __future__ import annotations

import json
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from unittest import mock

import numpy as np
from built import COMPILERS, Refused, api_of
from exact_runs import THREADS, Case, Run, Skipped, differs, shared_out
from guarded import GUARD, UNTOUCHED, Memory, Range
from onnx_nets import Array, numpy_type

from jangin.ahead import model as ahead_model
from jangin.ahead.declarations import FIRST_OWN
from jangin.ahead.emit import Emitted, emit
from jangin.ahead.memory import Memory as Places
from jangin.ahead.memory import aligned, buffer_bytes, memory_of
from jangin.ir.expr import Const, Expr, Var, const
from jangin.ir.graph import CompileError
from jangin.ir.plan import Plan
from jangin.runtime.sizes import Evaluator

IN_STEPS = "steps that depend on its data"
"""The part of an error that says that a model can't be compiled ahead of time."""


def by_api(kind: str, case: Case) -> list[str]:
    """Run a model as C or as an object, linked to this process, and return its faults."""
    made, found = _emitted(case, kind, "cpu"), list[str]()
    with tempfile.TemporaryDirectory() as folder:
        api = api_of(made, kind, Path(folder), COMPILERS[case.number % len(COMPILERS)])
    api("start_threads", max(THREADS))
    for run in case.runs:
        sizes = dict.fromkeys(made.model.symbols, run.size)
        for threads in THREADS:
            at = f"{threads} threads, n = {run.size}"
            memory = Memory(case.pages)
            try:
                raw = api.run([*run.feeds.values()], [*sizes.values()], threads, memory, _gaps(made, sizes))
            except Refused as error:
                found += [f"{at}: {error}"] if run.drawn or error.args[0] > FIRST_OWN else []
            except AssertionError as error:
                found.append(f"{at}: {error}")
            else:
                found += _raw_differs(case, run, raw)
    api("stop_threads")
    return found


def _emitted(case: Case, kind: str, target: str) -> Emitted:
    try:
        with (
            mock.patch.object(ahead_model, "memory_of", _apart if case.apart else memory_of),
            shared_out(case),
        ):
            return emit(case.model, kind, target, case.shapes, name="net", winograd=False, cache=False)
    except CompileError as error:
        if IN_STEPS in str(error):
            raise Skipped from error
        raise


def _apart(plan: Plan) -> Places:
    """Place a plan's buffers apart, with guards between them."""
    steps: list[tuple[Var, Expr]] = []
    offsets: dict[str, Expr] = {}
    at: Expr = const(0)
    for n, b in enumerate(b for b in plan.buffers if b.kind == "arena"):
        offsets[b.name], end = at, at + aligned(buffer_bytes(b)) + GUARD
        at = end
        if not isinstance(end, Const):
            at = Var(f"buffer.{n}.end")
            steps.append((at, end))
    return Places(tuple(steps), offsets, at, memory_of(plan).stride)


def _gaps(made: Emitted, sizes: Mapping[str, int]) -> list[Range]:
    """Return the gaps between an arena's buffers, for given sizes of the symbols. There are none if a run
    takes one of several plans."""
    if len(made.model.parts) > 1:
        return []
    (part,) = made.model.parts
    values = {v: sizes[v.name] for v, _ in part.plan.symbols}
    for var, e in part.memory.steps:
        values[var] = Evaluator(values)(e)
    value, gaps, at = Evaluator(values), list[Range](), 0
    buffers = [b for b in part.plan.buffers if b.kind == "arena"]
    parts = sorted((value(part.memory.offsets[b.name]), value(buffer_bytes(b))) for b in buffers)
    for start, size in (*parts, (value(part.memory.arena), 0)):
        gaps += [(at, start)] if at < start else []
        at = max(at, start + size)
    return gaps


def _raw_differs(case: Case, run: Run, raw: Sequence[Array]) -> list[str]:
    """Return the faults of results that are raw bytes."""
    found = []
    for name, bytes in zip(case.outputs, raw, strict=True):
        want = run.wanted[name]
        got = bytes.view(numpy_type(want.dtype))
        found.append(differs(name, got.reshape(want.shape) if got.size == want.exact.size else got, want))
    return [f"n = {run.size}: {fault}" for fault in found if fault]


RUN_JS = """
import { load } from "./net.mjs";
import { readFileSync, writeFileSync } from "node:fs";
const [GUARD, UNTOUCHED] = [<GUARD>, <UNTOUCHED>];
const model = await load(), place = model.place.bind(model);
let guards = [];
model.place = (size) => {
  const at = place(size + 2 * GUARD) + GUARD;
  for (const from of [at - GUARD, at + size]) {
    new Uint8Array(model.memory.buffer, from, GUARD).fill(UNTOUCHED);
    guards.push(from);
  }
  return at;
};
for (const [n, run] of JSON.parse(readFileSync("runs.json")).entries()) {
  guards = [];
  const arrays = Array.from({ length: run.inputs }, (_, i) => new Uint8Array(readFileSync(`in-${n}-${i}`)));
  const raw = (y) => new Uint8Array(y.buffer, y.byteOffset, y.byteLength);
  try {
    model.run(arrays, run.sizes).forEach((y, i) => writeFileSync(`out-${n}-${i}`, raw(y)));
  } catch (error) {
    console.log(JSON.stringify({ error: error.message }));
    continue;
  }
  const bytes = guards.flatMap((from) => [...new Uint8Array(model.memory.buffer, from, GUARD)]);
  console.log(JSON.stringify({ written: bytes.filter((v) => v !== UNTOUCHED).length }));
}
""".replace("<GUARD>", str(GUARD)).replace("<UNTOUCHED>", str(UNTOUCHED))


def in_node(case: Case) -> list[str]:
    """Run a model as WebAssembly, with memory from JavaScript, and return its faults."""
    made, found = _emitted(case, "shared", "wasm32"), list[str]()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        made.save(folder)
        (folder / "run.mjs").write_text(RUN_JS)
        symbols = made.model.symbols
        runs = [{"inputs": len(r.feeds), "sizes": dict.fromkeys(symbols, r.size)} for r in case.runs]
        (folder / "runs.json").write_text(json.dumps(runs))
        for n, run in enumerate(case.runs):
            for i, array in enumerate(run.feeds.values()):
                (folder / f"in-{n}-{i}").write_bytes(array.tobytes())
        done = subprocess.run(["node", "run.mjs"], cwd=folder, capture_output=True, text=True, timeout=600)
        if done.returncode:
            return [done.stderr[-500:]]
        for n, (run, line) in enumerate(zip(case.runs, done.stdout.splitlines(), strict=True)):
            said = json.loads(line)
            if "error" in said:
                found += [f"n = {run.size}: {said['error']}"] if run.drawn else []
                continue
            found += [f"n = {run.size}: {said['written']} bytes written beyond"] if said["written"] else []
            raw = [np.fromfile(folder / f"out-{n}-{i}", np.uint8) for i in range(len(case.outputs))]
            found += _raw_differs(case, run, raw)
    return found
