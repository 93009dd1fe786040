"""The import rule: imports point one way, and the runtime knows nothing of the compiler."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent / "jangin"

ALLOWED = {
    "version": set(),
    "ir": set(),
    "te": {"ir"},
    "targets": {"ir", "runtime"},
    "host": set(),
    "runtime": {"host", "ir", "version"},
    "ops": {"ir", "te"},
    "schedule": {"ir", "te"},
    "templates": {"ir", "mapped", "te", "schedule", "targets"},
    "mapped": set(),
    "frontends": {"ir", "mapped", "ops"},
    "passes": {"ir", "te", "ops", "frontends", "mapped", "runtime"},
    "codegen": {"ir", "te", "targets", "runtime"},
    "cache": set(),
    "custom": {"ir", "ops"},
    "options": {"targets", "templates"},
    "libraries": {"ir", "te", "runtime", "schedule", "templates"},
    "kernels": {"codegen", "ir", "libraries", "mapped", "options", "passes", "runtime", "templates"},
    "tune": {"cache", "codegen", "ir", "kernels", "options", "passes", "runtime", "targets", "templates"},
    "driver": {
        "cache", "custom", "isolated", "mapped", "options", "pipeline", "runtime", "targets", "tune",
    },
    "isolated": {"driver", "ir", "runtime"},
    "pipeline": {
        "codegen", "custom", "frontends", "ir", "kernels", "mapped", "ops", "options", "passes", "runtime",
        "templates", "tune",
    },
    "session": {"ir", "runtime", "jangin"},
    "onnx_backend": {"ir", "runtime", "jangin"},
    "bench": {"codegen", "frontends", "ir", "runtime", "targets", "jangin"},
    "commands": {
        "bench", "codegen", "driver", "host", "ir", "kernels", "options", "passes", "pipeline", "runtime",
        "schedule", "targets", "te", "templates", "tune", "jangin",
    },
    "cli": {"commands", "ir", "runtime", "schedule", "version"},
    "jangin": {"version"},
}  # fmt: skip
"""What each part may import; "jangin" is the package's own surface (`jangin.compile` and so on)."""

EXCEPTIONS = {("ir", "te"), ("ir", "ops")}
"""Only inside a function: a graph's text holds tensor expressions, and its interpreter runs operators."""

RUNTIME_SEES = {
    "arithmetic", "dtype", "expr", "graph", "loop", "parse", "plan", "program", "program_text", "reader",
    "simplify", "text", "types", "words",
}  # fmt: skip


def part(module: str) -> str:
    pieces = module.split(".")
    return pieces[1] if len(pieces) > 1 else "jangin"


def imports(tree: ast.AST, inside_function: bool = False) -> Iterator[tuple[str, bool]]:
    """(module, whether inside a function) of every import that happens when the program runs."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            continue
        if isinstance(node, ast.Import):
            yield from ((alias.name, inside_function) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            if node.module == "jangin":
                yield from (
                    (f"jangin.{alias.name}" if (ROOT / alias.name).exists()
                     or (ROOT / f"{alias.name}.py").exists() else "jangin", inside_function)
                    for alias in node.names
                )  # fmt: skip
            else:
                yield node.module or "", inside_function
        else:
            nested = inside_function or isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
            yield from imports(node, nested)


def files() -> list[Path]:
    return sorted(ROOT.rglob("*.py"))


@pytest.mark.parametrize("path", files(), ids=lambda p: str(p.relative_to(ROOT)))
def test_imports_point_one_way(path: Path) -> None:
    own = path.relative_to(ROOT).parts[0].removesuffix(".py").replace("__init__", "jangin")
    assert own in ALLOWED, f"{own} has no line in ALLOWED"
    for module, inside in imports(ast.parse(path.read_text())):
        if module != "jangin" and not module.startswith("jangin."):
            continue
        other = part(module)
        allowed = other == own or other in ALLOWED[own] or (inside and (own, other) in EXCEPTIONS)
        assert allowed, f"{path.relative_to(ROOT)} imports {module}: {own} may import {sorted(ALLOWED[own])}"
        if own == "runtime" and other == "ir":
            assert module.split(".")[2] in RUNTIME_SEES, f"the runtime imports {module}"


@pytest.mark.parametrize("path", files(), ids=lambda p: str(p.relative_to(ROOT)))
def test_the_environment_is_read_in_the_command_line_only(path: Path) -> None:
    if path.name == "cli.py":
        return
    tree = ast.parse(path.read_text())
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "os":
            inherits = node.attr == "environ" and path.parent.name == "bench"  # handed on to a child whole
            assert inherits or node.attr not in ("environ", "getenv", "environb"), (
                f"{path.relative_to(ROOT)} line {node.lineno} reads the environment"
            )
