"""Wheels and source distributions of `jangin` and `jangin-runtime`: each file is in one of them."""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from email.parser import Parser
from importlib.util import find_spec
from pathlib import Path

import pytest

import jangin

ROOT = Path(__file__).resolve().parent.parent
MAIN, RUNTIME = ROOT, ROOT / "packaging" / "runtime"
TOOLS = ("build", "hatchling", "twine")
MISSING = [tool for tool in TOOLS if find_spec(tool) is None]
BUILT = ["jangin", "packaging", "pyproject.toml", "README.md", "CHANGELOG.md", "LICENSE"]
"""The files from which distributions are built."""
EARLY = 1_000_000_000
"""A time for all files of an archive, in seconds since 1970, as SOURCE_DATE_EPOCH takes it."""
LARGEST = 10e6
"""The most bytes of jangin-runtime, installed or as a wheel."""


def settings(project: Path) -> dict[str, object]:
    """Return hatchling's settings of a project's builds."""
    read = tomllib.loads((project / "pyproject.toml").read_text())
    found: dict[str, object] = read["tool"]["hatch"]["build"]
    return found


def runtimes_files() -> list[str]:
    """Return the files and folders of jangin-runtime, from the repository's root."""
    return settings(RUNTIME)["hooks"]["custom"]["files"]  # type: ignore[index, no-any-return]


def is_runtimes(path: str) -> bool:
    return any(path == name or path.startswith(f"{name}/") for name in runtimes_files())


def test_both_projects_have_one_list() -> None:
    left_out = settings(MAIN)["targets"]["sdist"]["exclude"]  # type: ignore[index]
    assert [f"/{name}" for name in runtimes_files()] == left_out
    assert all((ROOT / name).exists() for name in runtimes_files())
    assert (RUNTIME / "LICENSE").read_bytes() == (ROOT / "LICENSE").read_bytes()


@pytest.mark.sampled(2)
def test_the_runtime_imports_nothing_else_of_jangin() -> None:
    """Imports inside functions count. Imports for the type checker don't, nor does the package's surface.

    Lowering a caller's own operator is the compiler's work, for which it calls the operator."""
    files = [p for p in sorted((ROOT / "jangin").rglob("*.py")) if is_runtimes(str(p.relative_to(ROOT)))]
    assert len(files) > 100
    for path in [p for p in files if p != ROOT / "jangin" / "__init__.py"]:
        for module in _imported(ast.parse(path.read_text())):
            there = module.replace(".", "/")
            found = [name for name in (there, f"{there}.py") if (ROOT / name).exists()]
            if path.stem == "custom" and module.startswith("jangin.ops."):
                continue
            assert not found or is_runtimes(found[0]), f"{path.relative_to(ROOT)} imports {module}"


def _imported(tree: ast.AST) -> list[str]:
    """Return the names of modules, and of what is imported from them, that begin with `jangin.`."""
    names = []
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            continue
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names += [f"{node.module}.{alias.name}" for alias in node.names] + [node.module or ""]
        names += _imported(node)
    return [name for name in names if name.startswith("jangin.")]


slow = pytest.mark.slow
built = pytest.mark.skipif(bool(MISSING), reason=f"{', '.join(MISSING)} of the extra `dev` isn't installed")


def run(*command: object, cwd: Path) -> str:
    """Run a command with a fixed time for archives and without this tree on Python's path."""
    around = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    around["SOURCE_DATE_EPOCH"] = str(EARLY)
    done = subprocess.run(
        [*map(str, command)], cwd=cwd, env=around, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def build(tree: Path, out: Path) -> None:
    """Build a wheel and a source distribution of both projects, as `python -m build` does it."""
    for project in (tree, tree / "packaging" / "runtime"):
        run(sys.executable, "-m", "build", "--no-isolation", "--outdir", out, project, cwd=tree)


def copy_of_the_tree(folder: Path) -> Path:
    folder.mkdir()
    for name in BUILT:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__", "dist"))
        else:
            shutil.copyfile(ROOT / name, folder / name)
    return folder


@pytest.fixture(scope="module")
def distributions(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with all four distributions, built from a copy of the tree."""
    folder = tmp_path_factory.mktemp("distributions")
    build(copy_of_the_tree(folder / "tree"), folder / "dist")
    return folder / "dist"


def wheel(folder: Path, name: str) -> Path:
    (found,) = folder.glob(f"{name}-*.whl")
    return found


def required(path: Path) -> list[str]:
    """Return what a wheel requires without any extra."""
    with zipfile.ZipFile(path) as file:
        (metadata,) = (n for n in file.namelist() if n.endswith(".dist-info/METADATA"))
        told = Parser().parsestr(file.read(metadata).decode())
    return [r for r in told.get_all("Requires-Dist", []) if "extra ==" not in r]


def package_files(path: Path) -> set[str]:
    with zipfile.ZipFile(path) as file:
        return {n for n in file.namelist() if ".dist-info/" not in n}


def packed(folder: Path, name: str) -> set[str]:
    """Return the files of the package `jangin` in a source distribution."""
    (found,) = folder.glob(f"{name}-*.tar.gz")
    with tarfile.open(found) as archive:
        return {n.partition("/")[2] for n in archive.getnames() if "/jangin/" in n}


@slow
@built
def test_no_file_is_in_two_wheels(distributions: Path) -> None:
    mains, runtimes = (wheel(distributions, name) for name in ("jangin", "jangin_runtime"))
    sources = {str(p.relative_to(ROOT)) for p in (ROOT / "jangin").rglob("*") if p.is_file()}
    sources = {name for name in sources if "__pycache__" not in name}
    assert package_files(mains) == {name for name in sources if not is_runtimes(name)}
    assert package_files(runtimes) == {name for name in sources if is_runtimes(name)}
    assert required(runtimes) == ["numpy>=2.0"]
    assert f"jangin-runtime=={jangin.__version__}" in required(mains)
    unpacked = sum(i.file_size for i in zipfile.ZipFile(runtimes).infolist())
    assert unpacked < LARGEST and runtimes.stat().st_size < LARGEST
    (source,) = distributions.glob("jangin-*.tar.gz")
    with tarfile.open(source) as archive:
        told = archive.extractfile(f"jangin-{jangin.__version__}/PKG-INFO").read().decode()  # type: ignore[union-attr]
    assert f"Requires-Dist: jangin-runtime=={jangin.__version__}\n" in told
    ours, theirs = (packed(distributions, name) for name in ("jangin", "jangin_runtime"))
    assert len(ours) > 300 and len(theirs) > 100 and not ours & theirs


@slow
@built
def test_tags_are_true_and_descriptions_right(distributions: Path) -> None:
    """The wheels hold no machine code, so they are for every system and every Python from 3.11 on."""
    for path in distributions.glob("*.whl"):
        assert path.name.endswith("-py3-none-any.whl")
        with zipfile.ZipFile(path) as file:
            for name in file.namelist():
                assert not file.read(name).startswith((b"\x7fELF", b"MZ", b"\xcf\xfa\xed\xfe")), name
                assert not name.endswith((".pyc", ".so", ".pyd", ".dylib", ".a", ".o")), name
    said = run(
        sys.executable, "-m", "twine", "check", "--strict", *distributions.iterdir(), cwd=distributions
    )
    assert len(re.findall("PASSED", said)) == 4


@slow
@built
def test_the_same_tree_gives_the_same_bytes(distributions: Path, tmp_path: Path) -> None:
    """The tree's folder, its files' times and others' permissions change nothing."""
    tree = copy_of_the_tree(tmp_path / "elsewhere")
    for path in tree.rglob("*"):
        os.utime(path, (EARLY - 5, EARLY - 5))
        path.chmod(0o700 if path.is_dir() else 0o600)
    build(tree, tmp_path / "dist")
    made = sorted(distributions.iterdir())
    assert len(made) == 4
    for path in made:
        assert (tmp_path / "dist" / path.name).read_bytes() == path.read_bytes(), path.name


def environment(folder: Path, *packages: str) -> Path:
    """Return the Python of a fresh virtual environment, which has some of this one's packages by links."""
    run(sys.executable, "-m", "venv", folder, cwd=folder.parent)
    (site,) = folder.glob("lib/python*/site-packages")
    for package in packages:
        (found,) = find_spec(package).submodule_search_locations or ()  # type: ignore[union-attr]
        for path in Path(found).parent.glob(f"{package}*"):
            if not (site / path.name).exists():
                (site / path.name).symlink_to(path)
    return folder / "bin" / "python"


ADDS = """
import sys, time
start = time.process_time()
import numpy as np
numpys = time.process_time()
import jangin
exe = jangin.load(sys.argv[1], threads=1)
assert exe(np.full((2, 3), 4, np.float32)).tolist() == [[5.0] * 3] * 2
print(numpys - start, time.process_time() - numpys)
"""


@slow
@built
def test_the_runtime_is_installed_alone(distributions: Path, tmp_path: Path) -> None:
    """A model that is compiled here runs there. The compiler comes and goes without harm to the runtime."""
    from onnx import parser

    text = '<ir_version: 8, opset_import: ["": 17]> g (float[2,3] x) => (float[2,3] y) { y = Add(x, one) }'
    model = parser.parse_model(text.replace("{ y", "<float one = {1}> { y"))
    jangin.build(model, threads=1, cache=False).save(tmp_path / "model.jgn")
    python = environment(tmp_path / "venv", "numpy")
    install = [python, "-m", "pip", "install", "-q", "--no-index"]
    run(*install, wheel(distributions, "jangin_runtime"), cwd=tmp_path)
    numpys, ours = map(float, run(python, "-c", ADDS, tmp_path / "model.jgn", cwd=tmp_path).split())
    assert ours < 5 * numpys  # it takes about as long as importing NumPy
    run(*install, "--no-deps", wheel(distributions, "jangin"), cwd=tmp_path)
    assert run(python, "-c", "from jangin.compiler import account; print(account.__file__)", cwd=tmp_path)
    run(python, "-m", "pip", "uninstall", "-q", "-y", "jangin", cwd=tmp_path)
    run(python, "-c", ADDS, tmp_path / "model.jgn", cwd=tmp_path)


@slow
@built
@pytest.mark.parametrize("editable", [False, True])
def test_a_checkout_needs_no_second_package(editable: bool, tmp_path: Path) -> None:
    """README's `pip install .` and `pip install -e .` work although no registry has jangin-runtime."""
    tree = copy_of_the_tree(tmp_path / "tree")
    tools = ("hatchling", "packaging", "pathspec", "pluggy", "trove_classifiers")
    python = environment(tmp_path / "venv", "numpy", *tools)
    how = ["--no-index", "--no-deps", "--no-build-isolation", *(["-e"] if editable else [])]
    run(python, "-m", "pip", "install", "-q", *how, tree, cwd=tmp_path)
    told = run(
        python, "-c",
        "import jangin.compiler.account, jangin.runtime.load, importlib.metadata as m;"
        "print(jangin.__file__, 'jangin-runtime' in str(m.requires('jangin')))",
        cwd=tmp_path,
    )  # fmt: skip
    where, requires = told.split()
    assert requires == "False" and Path(where).is_relative_to(tree if editable else tmp_path / "venv")
