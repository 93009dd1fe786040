"""A program that parses one NNEF model by the package `nnef`, in a separate process.

The package's parser is C++ code that recurses into the text. A text that is nested too deep ends the process.

Standard input is a JSON object of `graph` and `quantization` (texts), `lowered` (operations and fragments to
expand) and `path` (where modules are). Standard output is an object with `error`, or with `name`, `inputs`,
`outputs`, `operations` and `tensors`. In these a tensor's name is {"is": name}."""

from __future__ import annotations

import json
import sys
from typing import Any

MOST_BYTES = 2 << 30
MOST_SECONDS = 20
MOST_OPERATIONS = 250_000
"""Limits of the process that parses: bytes of memory, seconds of processor time, and operations after
fragments are expanded. Fragments may expand without bound, so a file of a few lines could otherwise take
everything."""


def _bounded() -> None:
    try:
        import resource
    except ImportError:  # this system has no resource limits
        return
    for what, limit in (("AS", MOST_BYTES), ("CPU", MOST_SECONDS), ("CORE", 0)):
        resource.setrlimit(getattr(resource, f"RLIMIT_{what}"), (limit, limit))


def _plain(value: Any) -> Any:
    """Return a value in a form that JSON can express. The name of a tensor becomes {"is": name}."""
    if type(value).__name__ == "Identifier":
        return {"is": str(value)}
    if isinstance(value, (list, tuple)):
        return [_plain(v) for v in value]
    return value.tolist() if hasattr(value, "tolist") else value


def _named(values: Any) -> dict[str, Any]:
    return {str(k): _plain(v) for k, v in values.items()}


def _parsed(asked: dict[str, Any]) -> dict[str, Any]:
    import _nnef

    try:
        graph = _nnef.parse_string(
            asked["graph"], quantization=asked["quantization"] or "", stdlib=None, lowered=asked["lowered"]
        )
    except _nnef.Error as error:
        return {"error": str(error)}
    if len(graph.operations) > MOST_OPERATIONS:
        return {"error": f"there are more than {MOST_OPERATIONS} operations, fragments expanded"}
    operations = [
        [o.name, _named(o.attribs), _named(o.inputs), _named(o.outputs), o.dtype] for o in graph.operations
    ]
    tensors = {str(n): [t.dtype, _named(t.quantization or {})] for n, t in graph.tensors.items()}
    return {
        "name": graph.name, "inputs": list(map(str, graph.inputs)), "outputs": list(map(str, graph.outputs)),
        "operations": operations, "tensors": tensors,
    }  # fmt: skip


def main() -> None:
    asked = json.load(sys.stdin)
    sys.path[:] = asked["path"]
    _bounded()
    try:
        answer = _parsed(asked)
    except ImportError:
        answer = {"missing": True}
    except MemoryError:
        answer = {"error": "parsing it takes too much memory"}
    json.dump(answer, sys.stdout)


if __name__ == "__main__":
    main()
