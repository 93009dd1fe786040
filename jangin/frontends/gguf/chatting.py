"""A program that renders chat templates, in a separate process.

A template may loop forever or take all memory, in ways that jinja2's sandbox doesn't prevent.

Each line of standard input is a JSON object. `template` is the text, `names` are values for the template,
`path` is where modules are, and `most` is the most characters of the result. Each line of standard output is
the answer, a JSON object. It has the `text`, or `refused`, the template's objection to the conversation, or
an `error`."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Callable
from datetime import datetime
from typing import Any

MOST_BYTES = 512 << 20
"""The most bytes of memory that the process of a template may take, its own code included. A faulty template
could otherwise take all memory."""
LONGEST = 300
"""Messages of jinja2 are cut to this many characters, because they may repeat the template."""


class Refused(Exception):
    """The template refuses the conversation."""


def _bounded() -> None:
    try:
        import resource
    except ImportError:  # this system has no resource limits
        return
    for what, limit in (("AS", MOST_BYTES), ("CORE", 0)):
        resource.setrlimit(getattr(resource, f"RLIMIT_{what}"), (limit, limit))


def _refuse(reason: object) -> None:
    raise Refused(str(reason))


def _json(
    value: object, ensure_ascii: bool = False, indent: int | None = None,
    separators: tuple[str, str] | None = None, sort_keys: bool = False,
) -> str:  # fmt: skip
    """Return a value as JSON; the filter `tojson`. Unlike jinja2's own, it doesn't escape characters for web
    pages."""
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _now(form: str) -> str:
    return datetime.now().strftime(form)


def _tools() -> Any:
    """Return a jinja2 environment with the filters, functions and tags that Transformers gives chat
    templates."""
    from jinja2 import nodes
    from jinja2.ext import Extension, loopcontrols
    from jinja2.parser import Parser
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Generation(Extension):  # type: ignore[misc]
        """The tag `{% generation %}`, which marks the assistant's words for training. Only its body is
        rendered."""

        tags = {"generation"}  # noqa: RUF012  (jinja2 declares it so)

        def parse(self, parser: Parser) -> nodes.Node:
            line = next(parser.stream).lineno
            body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
            return nodes.CallBlock(self.call_method("_body"), [], [], body).set_lineno(line)

        def _body(self, caller: Callable[[], str]) -> str:
            return caller()

    extensions = [Generation, loopcontrols]
    tools = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=extensions)
    tools.filters["tojson"] = _json
    tools.globals |= {"raise_exception": _refuse, "strftime_now": _now}
    return tools


def _rendered(asked: dict[str, Any]) -> dict[str, Any]:
    tools = _tools()
    parts, length = list[str](), 0
    try:
        template = tools.from_string(asked["template"])
        for part in template.generate(**asked["names"]):
            parts.append(part)
            length += len(part)
            if length > asked["most"]:
                return {"error": f"it gives more than {asked['most']} characters"}
    except Refused as reason:
        return {"refused": str(reason)[:LONGEST]}
    except MemoryError:
        return {"error": f"it takes more than {MOST_BYTES >> 20} MiB of memory"}
    except Exception as error:  # jinja2's exceptions, and any exception of a template's expressions
        return {"error": f"{type(error).__name__}: {error}"[:LONGEST]}
    return {"text": "".join(parts)}


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C in a terminal is for the parent process
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
