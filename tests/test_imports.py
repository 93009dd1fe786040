"""The import rule: imports point one way, and the runtime doesn't depend on the compiler."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent / "jangin"

ANYWHERE = ("once", "protobuf")
"""Modules without imports of their own that every other one may use."""
ALLOWED = {
    "version": set(),
    "llvm": set(),
    "visible": set(),
    "once": set(),
    "protobuf": set(),
    "ir": {"runtime.system", "visible"},
    "targets": {"environment", "ir", "llvm", "runtime", "runtime.system"},
    "host": {"files"},
    "files": set(),
    "mapped": {"runtime.system"},
    "runtime.system": set(),
    "runtime": {"environment", "files", "host", "ir", "mapped", "runtime.system", "version", "visible"},
    "ops": {"ir"},
    "gradients": {"ir", "ops", "passes"},
    "custom": {"ir", "ops"},
    "frontends": {"files", "ir", "mapped", "ops", "passes"},
    "frontends.nnef": {"frontends", "ir", "mapped", "ops"},
    "frontends.onnx": {"frontends", "gradients", "ir", "mapped", "ops"},
    "frontends.table": {
        "frontends", "frontends.caffe", "frontends.coreml", "frontends.darknet", "frontends.gguf",
        "frontends.nnef",
        "frontends.onnx", "frontends.tflite", "frontends.torch", "ir",
    },
    "frontends.caffe": {"frontends", "ir", "mapped", "ops"},
    "frontends.coreml": {"frontends", "ir", "mapped", "ops"},
    "frontends.darknet": {"frontends", "ir", "mapped", "ops"},
    "frontends.gguf": {"frontends", "ir", "ops"},
    "frontends.tflite": {"frontends", "gradients", "ir", "mapped", "ops"},
    "frontends.torch": {"frontends", "gradients", "ir", "mapped", "ops"},
    "passes": {"ir", "mapped", "ops", "runtime", "targets", "templates"},
    "schedule": {"ir"},
    "templates": {"ir", "mapped", "schedule", "targets"},
    "libraries": {"ir", "runtime", "schedule", "targets", "templates"},
    "backends": {"environment", "ir", "llvm", "passes", "runtime", "runtime.system", "targets", "templates"},
    "compiler.account": set(),
    "compiler.build": {
        "backends", "compiler.account", "compiler.kernels", "compiler.shared", "processes.forked", "ir",
        "runtime", "targets", "templates", "version",
    },
    "compiler.shared": {"compiler.cache", "ir", "schedule", "templates"},
    "environment": set(),
    "compiler.cache": {"environment"},
    "compiler.source": {"frontends", "frontends.table", "ir", "mapped"},
    "options": {"environment", "frontends.table", "targets"},
    "compiler.plans": {
        "backends", "compiler.kernels", "ir", "mapped", "options", "passes", "runtime", "templates",
    },
    "compiler.kernels": {
        "backends", "compiler.cache", "options", "ir", "libraries", "mapped", "passes", "runtime",
        "schedule", "targets", "templates",
    },
    "tune": {
        "compiler.build", "compiler.cache", "compiler.kernels", "compiler.plans", "options", "energy",
        "environment", "ir",
        "ops", "passes", "runtime", "runtime.system", "targets", "templates",
    },
    "compiler.hints": {"frontends", "ir", "passes"},
    "compiler.cases": {
        "compiler.hints", "frontends", "frontends.table", "ir",
        "ops", "options", "passes", "runtime", "targets",
    },
    "compiler.interpreted": {"compiler.cases", "frontends", "ir", "ops", "options", "passes", "runtime"},
    "compiler.awaited": {
        "compiler.interpreted", "compiler.local", "compiler.request", "compiler.source", "environment",
        "frontends", "ir", "options", "processes.isolated", "runtime", "runtime.system", "targets",
    },
    "compiler.pipeline": {
        "backends", "compiler.account", "compiler.build", "compiler.cases", "processes.forked",
        "compiler.kernels", "compiler.plans", "options", "compiler.shared", "frontends",
        "frontends.table", "ir",
        "mapped", "ops", "passes", "runtime", "templates", "tune",
    },
    "compiler.request": {
        "compiler.account", "compiler.cache", "options", "compiler.pipeline", "compiler.several",
        "compiler.shared", "compiler.source", "ir", "runtime", "targets", "tune",
    },
    "compiler.place": {"ir", "runtime"},
    "compiler.several": {
        "compiler.account", "compiler.cases", "processes.forked", "options",
        "compiler.pipeline", "compiler.place",
        "compiler.shared", "frontends", "frontends.table", "ir", "passes", "runtime", "targets", "tune",
    },
    "compiler.driver": {
        "compiler.awaited", "compiler.cache", "processes.interrupts", "processes.isolated",
        "compiler.local", "environment",
        "options", "runtime", "runtime.system",
    },
    "processes.interrupts": set(),
    "compiler.objective": {
        "compiler.cache", "compiler.pipeline", "compiler.request", "compiler.source", "energy", "environment",
        "frontends", "ir", "options", "runtime", "targets", "tune",
    },
    "compiler.local": {
        "compiler.cache", "compiler.objective", "processes.isolated", "options", "compiler.request",
        "compiler.source", "environment", "frontends", "frontends.table", "ir", "runtime", "targets",
    },
    "processes.handed": {"files", "ir", "mapped", "runtime", "runtime.system"},
    "processes.isolated": {
        "processes.handed", "environment", "frontends", "ir", "runtime", "runtime.system",
    },
    "processes.server": {
        "compiler.build", "processes.forked", "processes.handed", "processes.isolated", "compiler.pipeline",
        "compiler.request", "frontends", "frontends.table", "ir", "mapped", "runtime", "runtime.system",
    },
    "processes.forked": {"ir", "runtime.system"},
    "ahead": {
        "backends", "options", "compiler.cases", "compiler.pipeline", "compiler.request", "custom",
        "environment", "files", "frontends", "frontends.table", "ir", "passes", "runtime", "runtime.system",
        "targets", "tune", "version",
    },
    "optim": {"ir", "ops"},
    "blas": {
        "ahead", "compiler.cache", "compiler.pipeline", "ir", "ops", "options", "runtime", "runtime.system",
        "targets",
    },
    "training": {
        "ahead", "compiler.cases", "compiler.driver", "compiler.pipeline", "environment", "files",
        "frontends", "frontends.onnx", "frontends.table", "frontends.torch", "gradients", "ir", "ops",
        "optim", "options", "passes", "pictures", "runtime", "jangin",
    },
    "onnxruntime": {
        "environment", "files", "frontends.onnx", "ir", "quantization", "runtime", "runtime.system",
        "version", "jangin",
    },
    "onnx_backend": {"ir", "runtime", "jangin"},
    "torch_backend": {"compiler.local", "frontends.torch", "ir", "options", "jangin"},
    "bench": {
        "ahead", "backends", "compiler.driver", "compiler.interpreted", "files", "frontends",
        "frontends.table", "ir", "llvm", "options", "runtime", "runtime.system", "targets", "jangin",
    },
    "batches": {"compiler.driver", "ir", "options", "runtime"},
    "farm": {
        "bench", "study", "compiler.pipeline", "environment", "ir", "options", "runtime", "runtime.system",
        "targets", "templates", "tune",
    },
    "energy": {"ir", "runtime.system"},
    "study": {
        "bench", "compiler.request", "energy", "files", "frontends", "frontends.table", "ir", "options",
        "version",
    },
    "pictures": {"ir", "runtime"},
    "quantization": {
        "compiler.cases", "compiler.driver", "compiler.pipeline", "files",
        "frontends", "frontends.onnx", "frontends.table",
        "frontends.tflite", "ir", "ops", "options", "passes", "pictures", "runtime", "targets", "jangin",
    },
    "commands": {
        "ahead", "backends", "bench", "blas", "compiler.account",
        "compiler.build", "compiler.cases", "compiler.driver",
        "compiler.kernels",
        "compiler.local", "compiler.objective", "compiler.plans", "options", "compiler.pipeline",
        "compiler.request", "energy", "environment", "farm", "files",
        "frontends", "frontends.gguf", "frontends.nnef", "frontends.onnx", "frontends.table",
        "frontends.tflite", "host", "ir", "llvm", "passes", "pictures", "quantization", "runtime", "schedule",
        "study", "targets", "templates", "training", "tune", "visible", "jangin",
    },
    "commands.templates": {
        "commands", "compiler.kernels", "options", "compiler.pipeline", "ir", "ops", "targets",
        "templates",
    },
    "cli": {"commands", "commands.templates", "options", "pictures", "runtime", "schedule", "version"},
    "__main__": {"cli"},
    "jangin": {"version"},
}  # fmt: skip
"""The parts that each part may import. "jangin" is the package's own surface (`jangin.compile` and so on).

The modules of `compiler` stand on several levels, so that each has a line. The front ends' common part knows
no format, and only `frontends.table` knows them all."""

NEUTRAL = {
    "backends", "compiler.driver", "compiler.kernels", "compiler.local", "compiler.pipeline",
    "compiler.request",
    "compiler.source", "custom", "frontends", "ir", "libraries", "ops", "passes", "schedule", "targets",
    "templates", "tune",
}  # fmt: skip
"""The parts whose code names no model format. Their comments may name one as an example."""
A_FORMATS_WORDS = re.compile("onnx|opset|auto_pad", re.IGNORECASE)

RUNTIME_SEES = {
    "arithmetic", "checks", "dtype", "expr", "graph", "integers", "library", "loop", "parse", "plan",
    "program", "program_text", "reader", "records", "simplify", "sources", "text", "traversal", "types",
    "verify", "verify_plan", "verify_program", "words",
}  # fmt: skip


def part(module: str) -> str:
    """Return the line of ALLOWED for a module."""
    pieces = module.split(".")[1:]
    if pieces[:2] == ["compiler", "processes"]:
        return ".".join(pieces[1:])
    if len(pieces) > 1 and (pieces[0] == "compiler" or ".".join(pieces[:2]) in ALLOWED):
        return ".".join(pieces[:2])
    return pieces[0] if pieces else "jangin"


def imports(tree: ast.AST, *, types: bool = False) -> Iterator[str]:
    """Yield the module of every import that happens when the program runs, or, with `types`, of all
    imports."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.expr):
            continue
        if not types and isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            for alias in node.names:
                inner = ROOT.parent / (node.module or "").replace(".", "/") / alias.name
                found = inner.exists() or inner.with_suffix(".py").exists()
                yield f"{node.module}.{alias.name}" if found else node.module or ""
        else:
            yield from imports(node, types=types)


def files() -> list[Path]:
    return sorted(ROOT.rglob("*.py"))


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


@cache
def imported(path: Path) -> frozenset[str]:
    return frozenset(imports(parsed(path)))


@pytest.fixture(autouse=True, scope="module")
def trees() -> Iterator[None]:
    """Syntax trees, which are large, are freed after the last test of this file."""
    yield
    parsed.cache_clear()


def test_imports_point_one_way() -> None:
    for path in files():
        own = part(module_of(path))
        if own in ("compiler", "processes"):
            continue  # the packages themselves are empty
        assert own in ALLOWED, f"{own} has no line in ALLOWED"
        for module in imported(path):
            if module != "jangin" and not module.startswith("jangin."):
                continue
            other = part(module)
            allowed = other in (own, *ANYWHERE) or other in ALLOWED[own]
            name = path.relative_to(ROOT)
            assert allowed, f"{name} imports {module}: {own} may import {sorted(ALLOWED[own])}"
            if own == "runtime" and other == "ir":
                assert module.split(".")[2] in RUNTIME_SEES, f"{name} of the runtime imports {module}"


def module_of(path: Path) -> str:
    return ".".join(p for p in path.relative_to(ROOT.parent).with_suffix("").parts if p != "__init__")


def test_no_modules_import_each_other_in_a_circle() -> None:
    """Modules don't import each other in a circle, even within a part. Imports inside functions count.
    TopologicalSorter's error names the circle."""
    paths = {module_of(path): path for path in files()}
    graph = {name: {m for m in imported(path) if m in paths} for name, path in paths.items()}
    del graph["jangin"]  # the package's own surface imports its parts when they are first used
    TopologicalSorter(graph).prepare()


def test_no_parts_know_each_other_s_types_in_a_circle() -> None:
    """Imports for the type checker count if they leave a part, because a part can't depend on types that it
    can't name.

    A target must not know a back end: its list of passes knows templates, and they know targets. There once
    was such a circle of 40 modules."""
    paths = {module_of(path): path for path in files()}
    graph: dict[str, set[str]] = {}
    for name, path in paths.items():
        typed = {m for m in imports(parsed(path), types=True) if part(m) != part(name)}
        graph[name] = {m for m in imported(path) | typed if m in paths and m != "jangin"}
    del graph["jangin"]
    TopologicalSorter(graph).prepare()


READS_FIGURES = {
    "processor": ("backends.llvm", "bench", "commands.devices", "targets", "templates"),
    "gpu": ("targets", "templates.gpu", "templates.template"),
}
"""The modules that may read each property of a target that gives its machine. Other modules read
`Target.machine`, which has what both kinds of machine have."""
READS_NO_PROCESSOR = "templates.gpu"


def test_the_figures_of_a_kind_of_machine_are_read_by_its_own_code() -> None:
    """Only allowed modules read a machine's figures. The type checker ensures that they read no others."""
    for path in files():
        own = module_of(path).removeprefix("jangin.")
        for node in ast.walk(parsed(path)):
            if not isinstance(node, ast.Attribute) or ast.unparse(node.value) == "platform":
                continue
            if readers := READS_FIGURES.get(node.attr):
                allowed = any(own == r or own.startswith(f"{r}.") for r in readers)
                allowed &= node.attr != "processor" or not own.startswith(READS_NO_PROCESSOR)
                assert allowed, f"{own}:{node.lineno} reads .{node.attr}"


def test_one_place_asks_which_kind_of_machine_there_is() -> None:
    for path in files():
        asked = [ast.unparse(n) for n in ast.walk(parsed(path)) if isinstance(n, ast.Call)]
        kinds = [text for text in asked if re.fullmatch(r"isinstance\(.*\b(Gpu|Processor)\b.*\)", text)]
        assert not kinds or module_of(path) == "jangin.targets.target", f"{path.relative_to(ROOT)}: {kinds}"


def test_the_common_part_names_no_format() -> None:
    for path in files():
        if part(module_of(path)) not in NEUTRAL:
            continue
        nodes = [*ast.walk(parsed(path))]
        comments = {id(n.value) for n in nodes if isinstance(n, ast.Expr)}
        fields = (v for n in nodes if id(n) not in comments for _, v in ast.iter_fields(n))
        said = [v for v in fields if isinstance(v, str) and A_FORMATS_WORDS.search(v)]
        assert not said, f"{path.relative_to(ROOT)}: {said}"


def test_the_environment_is_read_in_two_places_only() -> None:
    for path in files():
        if path.parent.name == "cli" or path.name == "environment.py":
            continue
        for node in ast.walk(parsed(path)):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "os":
                # a child process gets the whole environment
                inherits = node.attr == "environ" and path.parent.name == "bench"
                assert inherits or node.attr not in ("environ", "getenv", "environb"), (
                    f"{path.relative_to(ROOT)} line {node.lineno} reads the environment"
                )


SYSTEMS_OWN = {
    "mmap": {"MAP_ANONYMOUS", "MAP_PRIVATE", "PROT_EXEC"},
    "os": {
        "O_ASYNC", "fork", "getpgrp", "getppid", "kill", "killpg", "memfd_create", "pidfd_open", "readv",
        "register_at_fork", "sched_getaffinity", "sched_setaffinity", "setsid", "sysconf", "uname", "waitid",
        "waitpid", "waitstatus_to_exitcode",
    },
    "select": {"epoll"},
    "signal": {"pause"},
}  # fmt: skip
"""Names that only some operating systems have, by Python's modules."""
SYSTEMS_MODULES = {"fcntl", "grp", "msvcrt", "pwd", "resource", "termios", "winreg"}
SYSTEMS_WORDS = re.compile(
    r"/proc\b|/sys/|futex|prctl|sched_get|sched_set|getauxval|mprotect|process_vm_|MADV_"
)
"""Linux's files and functions in strings: files that code opens, and LLVM IR that calls the system."""
ROOM = ROOT / "runtime" / "system"
PROGRAMS = {"board.py", "chatting.py", "parsing.py"}
"""Programs that import nothing of Jangin, and so ask the system themselves."""


def test_the_operating_system_has_one_room() -> None:
    """Only `jangin.runtime.system` uses names that some systems lack. Comments don't count."""
    outside = [p for p in files() if not p.is_relative_to(ROOM) and p.name not in PROGRAMS]
    found = {str(path.relative_to(ROOT)): [*_asked_of_the_system(parsed(path))] for path in outside}
    assert {path: names for path, names in found.items() if names} == {}
    assert {*_asked_of_the_system(parsed(ROOM / "memory.py"))} >= {"ctypes.CDLL(None)", "mmap.PROT_EXEC"}


def _asked_of_the_system(tree: ast.Module) -> Iterator[str]:
    comments = {id(n.value) for n in ast.walk(tree) if isinstance(n, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("CDLL"):
            if node.args and ast.unparse(node.args[0]) == "None":
                yield "ctypes.CDLL(None)"
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            if node.attr in SYSTEMS_OWN.get(node.value.id, ()):
                yield f"{node.value.id}.{node.attr}"
        elif isinstance(node, ast.Import):
            yield from (a.name for a in node.names if a.name in SYSTEMS_MODULES)
        elif isinstance(node, ast.ImportFrom):
            if node.module in SYSTEMS_MODULES:
                yield node.module or ""
            yield from (a.name for a in node.names if a.name in SYSTEMS_OWN.get(node.module or "", ()))
        elif isinstance(node, ast.keyword) and node.arg in ("pass_fds", "preexec_fn", "process_group"):
            yield node.arg
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in comments:
            yield from SYSTEMS_WORDS.findall(node.value)


def test_modules_of_tests_have_names_of_their_own() -> None:
    """Modules of tests in folders without `__init__.py` must have different names.

    These folders share one list of modules. Python imports only the first of two modules with one name. The
    first one depends on the installed packages."""
    files = [p for p in (ROOT.parent / "tests").rglob("*.py") if not (p.parent / "__init__.py").exists()]
    names = Counter(p.name for p in files if p.name != "conftest.py")
    assert [name for name, count in names.items() if count > 1] == []
