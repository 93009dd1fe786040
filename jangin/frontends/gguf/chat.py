"""Render chat templates in a separate process (see `chatting`)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import weakref
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from threading import Lock, Timer
from typing import Any

from jangin.ir.graph import CompileError

SECONDS = 10.0
"""A template that runs longer than this many seconds is stopped. A usual template takes thousands of times
less."""
MOST_TEXT = 4 << 20
"""The most characters that a template may add to the conversation. A template that writes without end is
stopped by it."""


class Renderer:
    """Renders one template. Its process starts at the first call, and ends with this process."""

    def __init__(self, template: str) -> None:
        self._template = template
        self._process: subprocess.Popen[bytes] | None = None
        self._owner = 0
        self._lock = Lock()

    def __call__(self, names: Mapping[str, Any]) -> str:
        """Render the template, and return the text. `names` has the values that the template may use. Raises
        CompileError if the template fails or doesn't end."""
        try:
            most = len(json.dumps(names)) + MOST_TEXT
        except (TypeError, ValueError) as error:
            raise CompileError(
                f"a conversation may have only texts, numbers, lists and dictionaries: {error}"
            ) from None
        asked = {"template": self._template, "names": names, "most": most, "path": sys.path}
        with self._lock:
            answer = self._answer(json.dumps(asked).encode() + b"\n")
        if "refused" in answer:
            raise CompileError(f"the chat template refuses this conversation: {answer['refused']}")
        if "error" in answer:
            raise CompileError(f"the model's chat template can't be used: {answer['error']}")
        return str(answer["text"])

    def _answer(self, line: bytes) -> dict[str, Any]:
        """Send a line to the process, and return its answer. A process without a valid answer is killed, so
        that a late answer isn't taken for that of the next line."""
        process = self._running()
        assert process.stdin is not None and process.stdout is not None
        late = Timer(SECONDS, process.kill)
        late.start()
        said = b""
        try:
            with suppress(BrokenPipeError):
                process.stdin.write(line)
                process.stdin.flush()
            said = process.stdout.readline()
        finally:
            stopped = late.finished.is_set()
            late.cancel()
            if not said.endswith(b"\n"):
                self._process = None
                _end(process, os.getpid())
        if said.endswith(b"\n"):
            answer: dict[str, Any] = json.loads(said)
            return answer
        ended = f"the process that renders it ended ({process.returncode})"
        return {"error": f"it doesn't end in {SECONDS:g} seconds" if stopped else ended}

    def _running(self) -> subprocess.Popen[bytes]:
        """Return the running process. It is started if there is none, or if this process was forked since its
        start."""
        if self._process is None or self._owner != os.getpid():
            command = [sys.executable, "-I", str(Path(__file__).with_name("chatting.py"))]
            self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
            self._owner = os.getpid()
            weakref.finalize(self, _end, self._process, self._owner)
        return self._process


def _end(process: subprocess.Popen[bytes], owner: int) -> None:
    if os.getpid() == owner:  # a forked process must not kill it
        process.kill()
        process.communicate()
