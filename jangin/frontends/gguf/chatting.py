"""A program that renders chat templates, run in a process of its own: a template may loop for ever or take
all memory, in ways that jinja2's sandbox doesn't know.

Standard input, line by line: a JSON object of `template`, `names` (what it may use), `path` (where modules
lie) and `most`, the characters of the longest text. Standard output, a line for each: an object with the
`text`, or with `refused`, what the template says against the conversation, or with `error`.
"""

from __future__ import annotations

import json
import signal
import sys
from typing import Any

MOST_BYTES = 512 << 20
"""Memory that the process may take, its own included."""
LONGEST = 300
"""Characters of jinja2's messages, which may repeat the template."""


class Refused(Exception):
    """By the template."""


def _bounded() -> None:
    try:
        import resource
    except ImportError:  # no such thing on this system
        return
    for what, limit in (("AS", MOST_BYTES), ("CORE", 0)):
        resource.setrlimit(getattr(resource, f"RLIMIT_{what}"), (limit, limit))


def _refuse(reason: object) -> None:
    raise Refused(str(reason))


def _rendered(asked: dict[str, Any]) -> dict[str, Any]:
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    tools = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    parts, length = list[str](), 0
    try:
        template = tools.from_string(asked["template"])
        for part in template.generate(**asked["names"], raise_exception=_refuse):
            parts.append(part)
            length += len(part)
            if length > asked["most"]:
                return {"error": f"it gives more than {asked['most']} characters"}
    except Refused as reason:
        return {"refused": str(reason)[:LONGEST]}
    except MemoryError:
        return {"error": f"it takes more than {MOST_BYTES >> 20} MiB of memory"}
    except Exception as error:  # jinja2's own, and whatever a template's expressions raise
        return {"error": f"{type(error).__name__}: {error}"[:LONGEST]}
    return {"text": "".join(parts)}


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal's Ctrl-C is for the process that asks
    _bounded()
    for line in sys.stdin:
        asked = json.loads(line)
        sys.path[:] = asked["path"]
        try:
            answer = _rendered(asked)
        except ImportError:
            answer = {"error": "it needs the package jinja2: pip install 'jangin[gguf]'"}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
