"""Settings and fixtures for all tests.

Every compilation verifies its IR after each pass, and equal code is compiled once. `--update-golden` writes
golden files. The number of passed official tests is printed. `refused` damages the files of a format. A
failure prints how to repeat it (`repeatable`)."""

from __future__ import annotations

import gc
import hashlib
import os
import sys
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache, partial
from pathlib import Path
from typing import Any

import hypothesis
import numpy as np
import pytest
import repeatable
import typer.main
import typer.testing
from guarded import Memory, watched

import jangin
from jangin.backends.llvm import code, objects
from jangin.compiler import build, pipeline, request
from jangin.compiler.shared import SharedKernels
from jangin.frontends.format import ModelSource
from jangin.frontends.lower import lower
from jangin.frontends.table import load
from jangin.options import Options

hypothesis.settings.register_profile(
    "no clock", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("no clock")  # a busy machine must not decide a test

pytest_configure_node = repeatable.pytest_configure_node
pytest_runtest_setup = repeatable.pytest_runtest_setup
pytest_runtest_makereport = repeatable.pytest_runtest_makereport


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="write tests/golden/*/*.txt anew")
    parser.addoption("--share", help="2/4: the second of four parts of the tests, by their names")
    parser.addoption("--all", action="store_true", help="all cases of tests of which a sample runs otherwise")
    repeatable.add_option(parser)


def pytest_configure(config: pytest.Config) -> None:
    """Switch the garbage collector off. Collected tests stay to the end, and most objects of a test are freed
    at once, so collecting gains nothing.

    Tables that commands print don't depend on the terminal's width. pytest's parallel workers set it to 80
    columns, and then measured times decided which texts were wrapped."""
    gc.disable()
    os.environ.pop("COLUMNS", None)
    repeatable.configure(config)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the tests outside of the requested share."""
    kept = [item for item in items if _is_in_share(config, item) and _is_in_sample(config, item)]
    left = {*map(id, kept)}
    config.hook.pytest_deselected(items=[item for item in items if id(item) not in left])
    items[:] = kept


def _is_in_share(config: pytest.Config, item: pytest.Item) -> bool:
    if config.option.share is None:
        return True
    part, count = map(int, config.option.share.split("/"))
    return zlib.crc32(item.nodeid.encode()) % count == part - 1


def _is_in_sample(config: pytest.Config, item: pytest.Item) -> bool:
    mark = item.get_closest_marker("sampled")
    if mark is None or config.option.all or any("::" in arg for arg in config.args):
        return True
    return zlib.crc32(f"{config.option.seed} {item.nodeid}".encode()) % int(mark.args[0]) == 0


def pytest_collection_finish() -> None:
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000)
    gc.enable()


@pytest.fixture(autouse=True, scope="session")
def verified() -> Iterator[None]:
    """Let `jangin.compile` check the IR between passes, in this process."""
    assert pipeline.__name__ in sys.modules
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(request, "Options", partial(Options, verify=True))
        yield


@pytest.fixture(autouse=True, scope="session")
def compiled_once() -> Iterator[None]:
    """Let LLVM compile each text once, whichever tests ask for it. One compilation in three repeats
    another."""
    made: dict[bytes, bytes] = {}

    def compile_modules(*args: Any, **options: Any) -> bytes:
        key = hashlib.sha256(repr((args, options)).encode()).digest()
        if key not in made:
            made[key] = objects.compile_modules(*args, **options)
        return made[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(code, "compile_modules", compile_modules)
        yield


@pytest.fixture(autouse=True, scope="session")
def commands_read_once() -> Iterator[None]:
    """Let typer read the parameters of all commands once, instead of at each call of a command."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(typer.testing, "_get_command", cache(typer.main.get_command))
        yield


@pytest.fixture(autouse=True, scope="session")
def guarded_memory() -> Iterator[Memory]:
    """Put guard bytes around everything that runs write. About half of all plans also have guards around the
    arena's buffers."""
    memory = Memory()
    with watched(memory, lambda frame: zlib.crc32(" ".join(frame.dims).encode()) % 2 == 0):
        yield memory


@pytest.fixture(autouse=True)
def nothing_is_written_beyond(guarded_memory: Memory) -> Iterator[None]:
    yield
    faults = guarded_memory.faults()
    assert not faults, "\n".join(faults[:9])


@pytest.fixture
def plain_memory(guarded_memory: Memory) -> Iterator[None]:
    """Switch guard bytes off, for tests of a run's memory."""
    guarded_memory.on = False
    yield
    guarded_memory.on = True


@pytest.fixture
def compiled_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let LLVM compile everything, for tests of repeated compilation."""
    monkeypatch.setattr(code, "compile_modules", objects.compile_modules)


@pytest.fixture(scope="module")
def shared_kernels() -> Iterator[None]:
    """Share kernels in modules whose tests make the same ones repeatedly, as models share the cache's
    kernels. Each is made once and runs on each test's inputs."""
    shared = SharedKernels()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(request.Request, "kernels", lambda *_: shared)
        for module in (build, pipeline):
            patch.setattr(module, "SharedKernels", lambda: shared)
        yield


def pytest_terminal_summary(terminalreporter: Any) -> None:
    counts: dict[str, Counter[str]] = {}
    for outcome in ("passed", "failed", "skipped"):
        for report in terminalreporter.stats.get(outcome, ()):
            group = report.nodeid.split("::")
            if len(group) == 3 and group[1].startswith("OnnxBackend"):
                counts.setdefault(group[1], Counter())[outcome] += 1
    for name, count in sorted(counts.items()):
        kind = name.removeprefix("OnnxBackend").removesuffix("ModelTest")
        terminalreporter.write_line(
            f"ONNX {kind} tests: {count['passed']} of {count.total()} pass, "
            f"{count['skipped']} are left out for a stated reason, {count['failed']} fail"
        )


LONGEST = 3000
"""The most characters of an error that a person still reads."""


@pytest.fixture(params=[pytest.param(40, id="quick"), pytest.param(1000, id="many", marks=pytest.mark.slow)])
def refused(request: pytest.FixtureRequest) -> Callable[[ModelSource, list[Path]], float]:
    """A function that returns the share of a file's damaged versions that are refused. See `_refused`."""
    return lambda model, files: _refused(model, files, request.param) / request.param / len(files)


def damaged(data: bytes, rounds: int) -> Iterator[bytes]:
    """Yield damaged versions. Every second one is cut off. The others have three changed bytes, most of them
    near the start, where the structure is."""
    rng = np.random.default_rng(0)
    for n in range(rounds):
        some = bytearray(data[: rng.integers(1, len(data))] if n % 2 else data)
        reach = len(some) if n % 3 else min(len(some), 2000)
        for at in rng.integers(0, reach, 3):
            some[at] = rng.integers(0, 256)
        yield bytes(some)


def _refused(model: ModelSource, files: list[Path], rounds: int) -> int:
    """Return how many damaged versions of the files are refused, one file at a time. Any error except
    CompileError is a defect and raised."""
    count = 0
    for file in files:
        whole = file.read_bytes()
        for some in damaged(whole, rounds):
            file.write_bytes(some)
            try:
                lower(load(model))
            except jangin.CompileError as error:
                count += 1
                assert len(str(error)) < LONGEST
        file.write_bytes(whole)
    return count
