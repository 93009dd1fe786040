"""Steps that several processes of this machine share (`jangin.train(processes=N)`).

This process compiles a step for its share of a batch. The others load the compiled code, so they need
nothing of the model. Each keeps the state. Gradients are averaged by PyTorch's collectives (gloo)."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import tempfile
import time
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from subprocess import PIPE
from typing import Any

from jangin.environment import everything
from jangin.ir.graph import Array, Graph
from jangin.training.reduced import Reduced, over_processes, shares
from jangin.training.runner import Runner

FIRST, SECOND, STEPS, MEETING = "first.jgn", "second.jgn", "steps.pickle", "meeting"
"""Files of a folder that all processes read: two plans, the meaning of their inputs, and PyTorch's store."""

ENDING = 60.0
"""Seconds to wait for the end of a process whose connections are closed. It takes some hundredths, but
seconds if other programs take all processors."""


class Processes(Reduced):
    """A step of `count` processes, of which this is the first. Others start with the first step. They end
    after an error, and the next step starts new ones with this process's state."""

    def __init__(
        self, first: Runner, second: Runner, count: int, threads: int | None, parts: int = 1
    ) -> None:
        super().__init__(first, second, self._mean, parts)
        self.count, self.threads = count, threads
        first.parts = count * parts
        self._others: list[subprocess.Popen[bytes]] = []
        self._end = weakref.finalize(self, _ended, self._others)

    def run(
        self, batch: Any, kept: Mapping[str, Array], numbers: Mapping[str, Array], draw: int = 0
    ) -> dict[str, Array]:
        parts = shares(batch, self.count)
        self.first.batch(shares(parts[0], self.parts)[0])  # a wrong one stops no process
        fresh = not self._others
        state = dict(kept) if fresh or self.is_stale else None
        try:
            if fresh:
                self._start()
            for other, part in zip(self._others, parts[1:], strict=True):
                _send(other, (part, state, dict(numbers), draw))
            outputs = super().run(parts[0], kept, numbers, draw)
        except BaseException:
            _ended(self._others)
            raise
        self.is_stale = False
        return outputs

    def _start(self) -> None:
        self._folder = tempfile.TemporaryDirectory()
        folder = Path(self._folder.name)
        self.first.executable.save(folder / FIRST)
        self.second.executable.save(folder / SECOND)
        empty = Graph("", (), (), (), {}, {}, {})
        steps = [replace(r.step, graph=empty) for r in (self.first, self.second)]
        (folder / STEPS).write_bytes(pickle.dumps((steps, self.first.seed, self.threads, self.parts)))
        around = {**everything(), "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
        for rank in range(1, self.count):
            command = [
                sys.executable,
                "-m",
                "jangin.training.processes",
                str(folder),
                str(rank),
                str(self.count),
            ]
            with (folder / f"errors{rank}").open("wb") as errors:
                # a session of its own: a terminal sends Ctrl-C to all processes of its own session
                self._others.append(
                    subprocess.Popen(
                        command, stdin=PIPE, stdout=PIPE, stderr=errors, env=around, start_new_session=True
                    )
                )
        for other in self._others:
            assert other.stdout is not None
            if not other.stdout.readline():
                raise RuntimeError(f"a process of the training didn't start: {self._said()}")
        self._reduce = over_processes(_group(folder, 0, self.count))

    def _mean(self, arrays: Sequence[Array]) -> None:
        try:
            self._reduce(arrays)
        except RuntimeError as error:
            raise RuntimeError(
                f"a process of the training has ended: {self._said()}. The step changed nothing, and the "
                "next one starts new processes"
            ) from error

    def _said(self) -> str:
        """Return the last words of the processes that have ended, each with its number and status. A process
        closes its connections just before its end, which is awaited."""
        words: list[str] = []
        begin = time.monotonic()
        while all(o.poll() is None for o in self._others) and time.monotonic() - begin < ENDING:
            time.sleep(0.01)
        for rank, other in enumerate(self._others, start=1):
            if (status := other.poll()) is not None:
                lines = (Path(self._folder.name) / f"errors{rank}").read_text(errors="replace").split("\n")
                last = [line for line in lines if line.strip()][-1:]
                words.append(": ".join([f"process {rank} of {self.count} with status {status}", *last]))
        return "; ".join(words) or "none says why"


def _send(other: subprocess.Popen[bytes], command: Any) -> None:
    assert other.stdin is not None
    try:
        pickle.dump(command, other.stdin)
        other.stdin.flush()
    except BrokenPipeError:
        other.wait()  # the mean of the gradients reports it


def _ended(others: list[subprocess.Popen[bytes]]) -> None:
    """End processes, and forget them."""
    for other in others:
        other.kill()
        other.communicate()
    others.clear()


def _group(folder: Path, rank: int, count: int) -> Any:
    import torch.distributed as dist

    return dist.ProcessGroupGloo(dist.FileStore(str(folder / MEETING), count), rank, count)


def _work(folder: Path, rank: int, count: int) -> None:
    """Run the steps that the first process asks for, until it ends."""
    from jangin.runtime.load import load

    steps, seed, threads, parts = pickle.loads((folder / STEPS).read_bytes())
    plans = (load(folder / name, threads) for name in (FIRST, SECOND))
    first, second = (Runner(s, plan, seed + (rank << 32)) for s, plan in zip(steps, plans, strict=True))
    print("ready", flush=True)
    step = Reduced(first, second, over_processes(_group(folder, rank, count)), parts)
    kept: dict[str, Array] = {}
    while True:
        try:
            batch, state, numbers, draw = pickle.load(sys.stdin.buffer)
        except EOFError:
            return
        kept = kept if state is None else state
        outputs = step.run(batch, kept, numbers, draw)
        kept = {n: outputs[out] for n, out in step.step.after.items()}


if __name__ == "__main__":
    _work(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
