"""Run a program with Jangin in place of `onnxruntime`: `python -m jangin.onnxruntime script.py ...`."""

from __future__ import annotations

import os
import runpy
import sys

from jangin.onnxruntime.installing import install

USAGE = """usage: python -m jangin.onnxruntime [-m MODULE | SCRIPT] [ARGUMENTS ...]

Run a Python program whose `import onnxruntime` gives Jangin."""


def main(arguments: list[str]) -> int:
    """Run the script, or the module after -m, with the other arguments. Return the exit code."""
    as_module = arguments[:1] == ["-m"]
    rest = arguments[as_module:]
    if not rest or (rest[0] in ("-h", "--help") and not as_module):
        print(USAGE, file=sys.stdout if rest else sys.stderr)
        return 0 if rest else 2
    if not as_module and not os.path.exists(rest[0]):
        print(f"python -m jangin.onnxruntime: there is no file {rest[0]}", file=sys.stderr)
        return 2
    install()
    sys.argv = rest
    if as_module:
        sys.path[0] = ""
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
    else:
        sys.path[0] = os.path.dirname(os.path.realpath(rest[0]))
        runpy.run_path(rest[0], run_name="__main__")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
