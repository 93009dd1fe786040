"""Executables: results, symbolic sizes, aliases, errors, and calls from many threads."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from plans import N, affine, buffer, chain, compiled, first_symbol, launch, plan, through_scratch

from jangin.ir.dtype import BF16, BOOL, F32, I64
from jangin.runtime import processor
from jangin.runtime.device import LoadError
from jangin.runtime.executable import Executable
from jangin.runtime.layout import LAYOUTS
from jangin.runtime.system import processor as system
from jangin.targets.x86 import V4_AMX, V4_BF16, V4_VBMI


def expected(x: np.ndarray) -> np.ndarray:
    return (x * 2 + 1) * 3 + 5


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.usefixtures("plain_memory")
def test_chain(threads: int) -> None:
    exe = Executable(chain(), threads)
    x = np.arange(1000, dtype=np.float32)
    for _ in range(50):
        np.testing.assert_array_equal(exe(x), expected(x))
    assert exe.threads == threads
    assert list(exe.run({"x": x})) == ["y"]
    assert str(exe.inputs[0]) == "x float32[1000]"
    assert exe.arena_bytes() == 4032 + 4000


@pytest.mark.usefixtures("plain_memory")
def test_outputs_are_the_callers_own() -> None:
    exe = Executable(chain(), 2)
    x = np.ones(1000, np.float32)
    first = exe(x)
    kept = first.copy()
    exe(x * 7)
    np.testing.assert_array_equal(first, kept)
    assert first.flags.owndata and first.flags.writeable


def test_inputs_of_many_kinds() -> None:
    exe = Executable(chain(), 2)
    x = np.arange(2000, dtype=np.float32)[::2]
    np.testing.assert_array_equal(exe(x), expected(x))
    unaligned = np.empty(4001, np.uint8)[1:].view(np.float32)
    unaligned[:] = x
    np.testing.assert_array_equal(exe(unaligned), expected(x))
    fixed = x.copy()
    fixed.flags.writeable = False
    np.testing.assert_array_equal(exe(fixed), expected(x))
    np.testing.assert_array_equal(exe(x.tolist()), expected(x))
    fixed = fixed.view(np.recarray)  # DLPack refuses this subclass, because it is read-only
    np.testing.assert_array_equal(exe(fixed), expected(x))

    class Tensor:
        def __dlpack__(self, **options: object) -> object:
            return x.copy().__dlpack__(**options)

        def __dlpack_device__(self) -> tuple[int, int]:
            return x.__dlpack_device__()

    np.testing.assert_array_equal(exe(Tensor()), expected(x))


def symbolic() -> Executable:
    made = plan(
        [
            buffer("x", "input", N, 2),
            buffer("z", "input", N * 2),
            buffer("t", "arena", N * 2, live=(0, 1)),
            buffer("y", "output", N * 2),
            buffer("s", "output", N),
        ],
        [
            launch("double", ["x", "t"], N * 2, grain=4),
            launch("scratch", ["t", "y"], N * 2, grain=4, scratch=N * 4),
            launch("symbol", ["x", "s"], N, symbols=[(N * 3 - 7) // 2 % 5]),
        ],
        symbols=[(N, (1, 512))],
        constraints=[(N % 3).__lt__(2)],
    )
    return Executable(
        compiled(made, [affine("double", 2.0, 0.0), through_scratch("scratch", 3), first_symbol("symbol")]), 3
    )


@pytest.mark.usefixtures("plain_memory")
def test_symbolic_sizes() -> None:
    exe = symbolic()
    assert [s.shape for s in exe.inputs] == [("n", 2), ("(n * 2)",)]
    for n in [1, 3, 4, 7, 510, 1, 6, 9, 12, 15, 18, 21, 24, 27, 3]:
        x = np.random.default_rng(n).random((n, 2), np.float32)
        y, s = exe(x, np.zeros(2 * n, np.float32))
        np.testing.assert_array_equal(y, x.reshape(-1) * 2 + 3)
        np.testing.assert_array_equal(s, np.full(n, (n * 3 - 7) // 2 % 5))
    assert len(exe._layouts) == LAYOUTS
    assert exe.arena_bytes(n=100) == 1024  # the size is rounded up to 128
    with pytest.raises(ValueError, match="give each of the sizes: n"):
        exe.arena_bytes()


@pytest.mark.usefixtures("plain_memory")
def test_sizes_that_grow_leave_the_memory_as_it_is() -> None:
    exe = symbolic()
    exe(np.ones((300, 2), np.float32), np.zeros(600, np.float32))
    (memory,) = exe._idle
    table, scratch = memory.table, memory._scratch
    for size in range(303, 331, 3):
        exe(np.ones((size, 2), np.float32), np.zeros(2 * size, np.float32))
        assert memory.table is table and memory._scratch is scratch


def test_symbolic_errors() -> None:
    exe = symbolic()
    x = np.zeros((4, 2), np.float32)
    with pytest.raises(ValueError, match=r"dimension 0 must be 8, got shape \(9,\) \(with n = 4\)"):
        exe(x, np.zeros(9, np.float32))
    with pytest.raises(ValueError, match="the size n is 600, but may be 1 to 512"):
        exe(np.zeros((600, 2), np.float32), np.zeros(1200, np.float32))
    with pytest.raises(ValueError, match=r"the sizes n = 5 do not meet \(\(n % 3\) < 2\)"):
        exe(np.zeros((5, 2), np.float32), np.zeros(10, np.float32))


def test_a_symbol_seen_only_in_a_linear_dimension() -> None:
    made = plan(
        [buffer("x", "input", N * 2 + 1), buffer("y", "output", N)],
        [launch("symbol", ["x", "y"], N, symbols=[N])],
        symbols=[(N, (0, 100))],
    )
    exe = Executable(compiled(made, [first_symbol("symbol")]), 1)
    np.testing.assert_array_equal(exe(np.zeros(7, np.float32)), [3, 3, 3])
    assert exe(np.zeros(1, np.float32)).shape == (0,)
    with pytest.raises(ValueError, match="dimension 0 must be 7"):
        exe(np.zeros(8, np.float32))


def test_errors_say_what_was_expected() -> None:
    exe = Executable(chain(), 1)
    x = np.zeros(1000, np.float32)
    with pytest.raises(ValueError, match="expected 1 inputs, got 2; the inputs are: x float32"):
        exe(x, x)
    with pytest.raises(ValueError, match="missing input 'x', no input is named 'y'; the inputs are"):
        exe.run({"y": x})
    with pytest.raises(TypeError, match="got dtype float64; the inputs are: x float32"):
        exe(x.astype(np.float64))
    with pytest.raises(ValueError, match=r"has rank 1, got shape \(1000, 1\)"):
        exe(x[:, None])
    with pytest.raises(ValueError, match=r"dimension 0 must be 1000, got shape \(999,\)"):
        exe(x[1:])
    with pytest.raises(TypeError, match="is no array that can be read"):
        exe(object())
    with pytest.raises(ValueError, match="threads must be at least 1"):
        Executable(chain(), 0)


def test_aliases_are_copied() -> None:
    made = plan(
        [
            buffer("x", "input", 2, 3),
            buffer("flat", "alias", 6, base="x"),
            buffer("k", "constant", 2, dtype=I64),
            buffer("t", "arena", 6),
            buffer("t2", "alias", 3, 2, base="t"),
            buffer("y", "output", 6),
            buffer("y2", "alias", 2, 3, base="y"),
        ],
        [launch("double", ["flat", "t2"], 6), launch("double", ["t", "y2"], 6)],
        outputs=["y", "x", "flat", "k", "t2", "y2", "y"],
        constants={"k": np.array([3, 4])},
    )
    exe = Executable(compiled(made, [affine("double", 2.0, 0.0)]), 1)
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    y, x1, flat, k, t2, y2, again = results = exe(x)
    np.testing.assert_array_equal(y, x.reshape(-1) * 4)
    np.testing.assert_array_equal(x1, x)
    np.testing.assert_array_equal(flat, x.reshape(-1))
    np.testing.assert_array_equal(k, [3, 4])
    np.testing.assert_array_equal(t2, x.reshape(3, 2) * 2)
    np.testing.assert_array_equal(y2, x * 4)
    np.testing.assert_array_equal(again, y)
    everything = [*results, x, exe.plan.constants["k"]]
    for i, a in enumerate(everything):
        assert not any(np.shares_memory(a, b) for b in everything[:i])


def test_dtypes_and_nothing_to_do() -> None:
    values = np.array([1.5, -2], ml_dtypes.bfloat16)
    made = plan(
        [
            buffer("x", "input", 2, dtype=BF16),
            buffer("flag", "input", dtype=BOOL),
            buffer("none", "input", 0, 3),
            buffer("w", "constant", 2, dtype=BF16),
            buffer("empty", "output", 0, dtype=F32),
        ],
        [launch("double", ["none", "empty"], 0)],
        outputs=["x", "flag", "none", "w", "empty"],
        constants={"w": values},
    )
    exe = Executable(compiled(made, [affine("double", 2.0, 0.0)]), 2)
    x, flag, none, w, empty = exe(values * 2, np.array(True), np.empty((0, 3), np.float32))
    assert x.dtype == w.dtype == ml_dtypes.bfloat16 and x.tolist() == [3, -4] and w.tolist() == [1.5, -2]
    assert flag.shape == () and flag.dtype == np.bool_ and bool(flag)
    assert none.shape == (0, 3) and empty.shape == (0,)


def test_concurrent_calls_of_one_executable() -> None:
    exe = symbolic()
    wrong: list[int] = []

    def work(seed: int) -> None:
        rng = np.random.default_rng(seed)
        for _ in range(150):
            n = int(rng.integers(1, 12)) * 3
            x = rng.random((n, 2), np.float32)
            y, _ = exe(x, np.zeros(2 * n, np.float32))
            if not np.array_equal(y, x.reshape(-1) * 2 + 3):
                wrong.append(seed)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong


def test_code_and_threads_are_released() -> None:
    artifact = chain()
    x = np.ones(1000, np.float32)
    gc.collect()
    before = threads_of_this_process()
    for _ in range(20):
        exe = Executable(artifact, 4)
        np.testing.assert_array_equal(exe(x), expected(x))
        del exe
    gc.collect()
    assert threads_of_this_process() == before


_EXIT = """
import sys, threading, time
import numpy as np
from jangin.runtime.load import load
exe = load(sys.argv[1], threads=3)
x = np.ones(1000, np.float32)

def forever():
    while True:
        exe(x)

threading.Thread(target=forever, daemon=True).start()
time.sleep(0.05)
"""


@pytest.mark.sampled(2)
def test_exit_while_a_daemon_thread_runs(tmp_path: Path) -> None:
    chain().save(tmp_path / "m.jgn")
    command = [sys.executable, "-c", _EXIT, str(tmp_path / "m.jgn")]
    running = [subprocess.Popen(command, stderr=subprocess.PIPE, text=True) for _ in range(3)]
    errors = [p.communicate(timeout=600)[1] for p in running]
    assert [p.returncode for p in running] == [0, 0, 0], errors


def threads_of_this_process() -> int:
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("Threads:"))


def test_another_machine() -> None:
    artifact = chain()
    for target, why in [
        ("aarch64-unknown-linux-gnu/generic/", "it is for aarch64"),
        ("x86_64-unknown-linux-gnu/x/+sse4.2,+avx1024", "this processor lacks avx1024"),
    ]:
        other = replace(artifact, plan=replace(artifact.plan, target=target))
        with pytest.raises(LoadError, match=why):
            Executable(other)


@pytest.mark.parametrize("maker", ["GenuineIntel", "AuthenticAMD"])
@pytest.mark.parametrize("given", [True, False])
def test_matrix_registers_are_asked_for(given: bool, maker: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process asks Linux once for the matrix registers, if the processor has them.

    If Linux refuses, the next level is taken. On Intel's processors that level has no products of bfloat16,
    which are slow there."""
    asked: list[tuple[int, ...]] = []
    host = sys.modules["jangin.targets.host"]

    def ask(*call: int) -> int:
        asked.append(call)
        return 0 if given else -1

    names = {f.strip("+").replace("-", "").replace(".", "") for f in V4_AMX.features.split(",")}
    names |= {system.plain(n) for n in processor._LINUX_NAMES.values()}
    monkeypatch.setattr(system, "_ask", ask)
    monkeypatch.setattr(processor, "processor_features", lambda: frozenset(names))
    monkeypatch.setattr(host, "processor_features", lambda: frozenset(names))
    monkeypatch.setattr(host, "processor_maker", lambda: maker)
    monkeypatch.setattr(processor, "architecture", lambda: "x86_64")
    system.refused.cache_clear()
    why = processor.why_not(str(V4_AMX))
    level = host._of.__wrapped__("x86_64").name
    system.refused.cache_clear()
    assert asked == [(158, 0x1023, 18)]
    next_level = V4_VBMI if maker == "GenuineIntel" else V4_BF16
    assert (why, level) == ("", V4_AMX.name) if given else ("AMX" in why and level == next_level.name)
