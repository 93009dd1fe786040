"""Another machine, reached by ssh, that needs nothing but Python: emitted models are copied there and run."""

from __future__ import annotations

import io
import json
import shlex
import shutil
import subprocess
import tarfile
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from jangin.bench import board
from jangin.bench.emitted import emit_library
from jangin.bench.engine import Job
from jangin.bench.measure import Worker
from jangin.ir.graph import CompileError

OPTIONS = {
    "BatchMode": "yes", "ConnectTimeout": "10", "ServerAliveInterval": "5", "ServerAliveCountMax": "3"
}  # fmt: skip
"""The options of ssh. No question is asked, and a connection that is dead for 15 seconds ends."""
LOST = 255
"""The status with which ssh ends if it can't connect, or if the connection breaks (ssh(1), exit status)."""
TARGETS = {
    "x86_64": "x86-64-v2", "amd64": "x86-64-v2", "aarch64": "aarch64", "armv7l": "armv7", "riscv64": "riscv64"
}  # fmt: skip
"""The targets of processors, by the names that Python gives them. They run on each processor of the kind."""
CLOCKS = 9
"""The number of times that the other clock is asked. The quickest answer counts, because its delay bounds the
clock's error. Nine questions take less than a second, even if an answer takes 0.1 s."""
ABOUT = (
    "import json, platform as p; print(json.dumps({'processor': p.node() + ', ' + p.machine(), "
    "'machine': p.machine(), 'system': p.system() + ' ' + p.release(), 'python': p.python_version()}))"
)
UNPACK = (
    "import sys, tarfile, tempfile; f = tempfile.mkdtemp(prefix='jangin-'); "
    "tarfile.open(fileobj=sys.stdin.buffer, mode='r|').extractall(f); print(f)"
)
REMOVE = "import shutil, sys; shutil.rmtree(sys.argv[1], True)"


class HostError(ConnectionError):
    """A machine can't be reached, or the connection to it broke."""


class NotEmitted(Exception):
    """A model can't be emitted for a machine. The message tells why."""


class Host:
    """A machine behind `ssh://[user@]name[:port]`. Keys and other settings are those of ssh's own files.

    Raises ValueError for another address, and HostError if the machine can't be reached or has no Python."""

    def __init__(self, address: str) -> None:
        parts = urlsplit(address)
        try:
            port = parts.port
        except ValueError:
            port = -1
        odd = parts.path.strip("/") or parts.query or parts.password or (parts.hostname or "-")[0] == "-"
        if parts.scheme != "ssh" or odd or port == -1:
            raise ValueError(
                f"--host {address!r} is not understood: write ssh://board or ssh://user@board:2222"
            )
        if shutil.which("ssh") is None:
            raise HostError("--host needs ssh, which is not installed")
        self.address = address
        name = f"{parts.username}@{parts.hostname}" if parts.username else str(parts.hostname)
        options = [word for key, value in OPTIONS.items() for word in ("-o", f"{key}={value}")]
        self._ssh = ["ssh", *options, *(["-p", str(port)] if port else []), name]
        self.about: Mapping[str, str] = self._asked()

    def command(self, *words: str) -> list[str]:
        """Return the command that runs Python with some arguments on the machine."""
        return [*self._ssh, shlex.join(["python3", *words])]

    @property
    def target(self) -> str:
        """The target of the machine's kind of processor. Raises ValueError for an unknown kind."""
        kind = self.about["machine"]
        if kind not in TARGETS:
            raise ValueError(f"{self.address} has a processor {kind!r}: name its target by --target")
        return TARGETS[kind]

    def put(self, files: Mapping[str, Path | bytes]) -> str:
        """Copy files into a new folder on the machine, and return the folder's path. Raises HostError."""
        data = io.BytesIO()
        with tarfile.open(fileobj=data, mode="w") as archive:
            for name, content in files.items():
                if isinstance(content, Path):
                    archive.add(content, name)
                else:
                    entry = tarfile.TarInfo(name)
                    entry.size = len(content)
                    archive.addfile(entry, io.BytesIO(content))
        return self._run(UNPACK, data=data.getvalue())

    def remove(self, folder: str) -> None:
        """Remove a folder that `put` made. It stays if the machine can't be reached any more."""
        subprocess.run(self.command("-c", REMOVE, folder), capture_output=True, check=False)

    def _asked(self) -> Mapping[str, str]:
        try:
            answers: Mapping[str, str] = json.loads(self._run(ABOUT))
        except ValueError:
            raise HostError(
                f"{self.address} doesn't answer as Python does: does its login shell print something?"
            ) from None
        return answers

    def _run(self, code: str, data: bytes = b"") -> str:
        done = subprocess.run(self.command("-c", code), input=data, capture_output=True, check=False)
        if done.returncode:
            words = done.stderr.decode(errors="replace").strip().splitlines()
            why = words[-1] if words else f"status {done.returncode}"
            what = "can't be reached" if done.returncode == LOST else "can't run python3 or store files"
            raise HostError(f"{self.address} {what}: {why}")
        return done.stdout.decode().strip()


class RemoteWorker(Worker):
    """A worker on another machine. This machine compiles the model ahead of time, and the other one runs it.
    Raises NotEmitted if the model can't be compiled ahead of time, and HostError if the connection breaks."""

    def __init__(self, host: Host, job: Job, limit: float | None = None) -> None:
        self._host, self._shift = host, 0.0
        with tempfile.TemporaryDirectory() as aside:
            try:
                path, prefix, sizes = emit_library(job, Path(aside))
            except (CompileError, ValueError, OSError) as error:
                raise NotEmitted(" ".join(str(error).split())) from None
            inputs = b"".join(a.tobytes() for a in job.feeds().values())
            program = Path(board.__file__)
            self._folder = host.put({"net.so": path, "net.so.inputs": inputs, "board.py": program})
        at = [f"{self._folder}/{name}" for name in ("board.py", "net.so")]
        command = host.command(*at, prefix, str(job.threads), ",".join(map(str, sizes)))
        try:
            super().__init__(job, limit=limit, command=command)
            self._check()
            if not self.problem:
                self._shift = self._measured_shift()
        except BaseException:  # an interrupt too
            host.remove(self._folder)
            raise

    def ask(self, **request: Any) -> dict[str, Any]:
        """Send a request to the worker, and return its answer. Times in the answer are converted to this
        machine's clock."""
        answer = super().ask(**request)
        self._check()
        return {k: v + self._shift if k in ("began", "ended") else v for k, v in answer.items()}

    def _check(self) -> None:
        """Raise HostError if the connection broke."""
        if self.problem and self.process.poll() == LOST:
            raise HostError(f"{self._host.address} went away: rows so far are kept; the same command goes on")

    def __exit__(self, *_: object) -> None:
        super().__exit__()
        self._host.remove(self._folder)

    def _measured_shift(self) -> float:
        """Return the seconds to add to the other machine's clock to get this machine's clock."""
        shifts = []
        for _ in range(CLOCKS):
            before = time.monotonic()
            clock = float(self.ask(op="clock").get("clock", before))
            after = time.monotonic()
            shifts.append((after - before, (before + after) / 2 - clock))
        return min(shifts)[1]


def machine_of(about: Mapping[str, str], target: str) -> dict[str, Any]:
    """Return the description of another machine for a study's record. It has the form of
    `bench.report.machine`."""
    return {**{k: v for k, v in about.items() if k != "machine"}, "target": target}


def started(host: Host | None, job: Job, limit: float) -> Worker:
    """Return a running worker for a job, on this machine or on `host`."""
    return Worker(job, limit=limit) if host is None else RemoteWorker(host, job, limit)
