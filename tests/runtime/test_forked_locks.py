"""Locks of modules are free in forked processes, whichever thread holds them in the parent."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import jangin

LOCK = re.compile(r"^(\w+)(?:: \w+)? = (?:threading\.)?R?Lock\(\)$", re.MULTILINE)
SCRIPT = """
import importlib, os, sys, threading
names = [line.split() for line in sys.stdin.read().splitlines()]
modules = {m: importlib.import_module(m) for m, _ in names}
held, go = threading.Event(), threading.Event()
def hold():
    for m, name in names:
        getattr(modules[m], name).acquire()
    held.set()
    go.wait()
threading.Thread(target=hold, daemon=True).start()
held.wait()
child = os.fork()
if not child:
    closed = [m for m, name in names if not getattr(modules[m], name).acquire(blocking=False)]
    print(*closed, sep="\\n", flush=True)
    os._exit(0)
os.waitpid(child, 0)
os._exit(0)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no forks")
def test_locks_of_all_modules_are_free_in_a_forked_process() -> None:
    root = Path(jangin.__file__).parent
    found = []
    for path in sorted(root.rglob("*.py")):
        module = ".".join(("jangin", *path.relative_to(root).with_suffix("").parts))
        found += [f"{module} {name}" for name in LOCK.findall(path.read_text())]
    assert len(found) > 5, "the pattern no longer finds the locks of modules"
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], input="\n".join(found), capture_output=True, text=True, timeout=100
    )
    assert (done.stderr, done.stdout.split()) == ("", []), f"held in a forked process: {done}"
