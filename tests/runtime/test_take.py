"""Runs read fields of array objects directly. They get what Python gives for them, and read no other
objects."""

from __future__ import annotations

import ctypes
from collections.abc import Callable

import numpy as np
import pytest
from plans import N, affine, buffer, chain, compiled, launch, plan

from jangin.backends.llvm.objects import compile_modules
from jangin.backends.llvm.take import take_module
from jangin.runtime.arrays import (
    ALIGNED,
    DESCRIBED,
    F_ORDER,
    WRITEABLE,
    array_wanted,
    number_wanted,
    object_wanted,
    wanted,
)
from jangin.runtime.elf import Image
from jangin.runtime.executable import Executable
from jangin.runtime.functions import TAKE
from jangin.targets.x86 import V2

FLOAT, HALF = np.dtype(np.float32), np.dtype(np.float16)


class Sub(np.ndarray):
    """An array type that may report another memory."""


class Taker:
    def __init__(self, *objects: list[int]) -> None:
        self.image = Image([compile_modules([("take", take_module(V2))], V2)])
        self.table, self.wanted = (ctypes.c_int64 * 8)(), wanted(objects)
        given = ctypes.addressof(self.table), ctypes.addressof(self.wanted)
        self.take = TAKE.prepared(self.image.address(TAKE.name), *given, locked=True)

    def __call__(self, *given: object) -> bool:
        self.wanted[0] = id(given)
        return bool(self.take())


def test_objects_are_as_described_here() -> None:
    assert DESCRIBED


def test_addresses_go_to_their_places() -> None:
    take = Taker(*(array_wanted(*a) for a in (((2, 3), FLOAT, [4, 1]), ((), HALF, []), ((0,), FLOAT, [2]))))
    x, s, none = np.zeros((2, 3), FLOAT), np.zeros((), HALF), np.zeros(0, FLOAT)
    assert take(x, s, none)
    assert [*take.table] == [0, x.ctypes.data, none.ctypes.data, 0, x.ctypes.data, 0, 0, 0]


def test_only_what_is_wanted_is_taken() -> None:
    take = Taker(array_wanted((2, 3), FLOAT, [0]))
    x = np.zeros((2, 3), FLOAT)
    fixed = x.copy()
    fixed.flags.writeable = False
    for fit in (x, fixed, np.zeros((4, 3), FLOAT)[1:3], np.zeros((3, 2), FLOAT).reshape(2, 3)):
        assert take(fit)
        assert take.table[0] == fit.ctypes.data
    unfit = [
        (), (x, x), (None,), (1,), ([[0.0] * 3] * 2,), (FLOAT.type(1),), (x.tobytes(),), (object(),),
        (x.astype(">f4"),), (x.astype(np.float64),), (x.view(np.int32),), (x.view(Sub),), (np.float32,),
        (np.zeros((3, 2), FLOAT),), (np.zeros((3, 2), FLOAT).T,), (np.zeros((2, 6), FLOAT)[:, ::2],),
        (np.zeros((2, 3, 1), FLOAT),), (np.zeros(6, FLOAT),), (np.zeros((2, 4), FLOAT)[:, :3],),
        (np.zeros((1, 3), FLOAT),), (np.broadcast_to(FLOAT.type(0), (2, 3)),), (x[::-1],),
    ]  # fmt: skip
    take.table[0] = 7
    for given in unfit:
        assert not take(*given), given
        assert take.table[0] == 7


def test_flags_numbers_and_other_objects_are_taken() -> None:
    numbers = [np.zeros((), t) for t in (np.float64, np.float32, np.complex128, np.complex64)]
    samples = 1.0, np.float64(1), 1j, 1j
    flags = F_ORDER | ALIGNED | WRITEABLE
    objects = [number_wanted(s, n) for s, n in zip(samples, numbers, strict=True)]
    word = "word"
    take = Taker(array_wanted((2, 3), FLOAT, [5], flags), *objects, object_wanted(1), object_wanted(word))
    a = np.zeros((3, 2), FLOAT).T
    given = (a, 0.1, np.float64(0.3), 0.5 - 0.1j, -0.7 + 2j, 1, word)
    assert take(*given)
    assert take.table[5] == a.ctypes.data
    assert [n.item() for n in numbers] == [
        0.1,
        float(np.float32(0.3)),
        0.5 - 0.1j,
        complex(np.complex64(-0.7 + 2j)),
    ]
    fixed = a.copy(order="F")
    fixed.flags.writeable = False
    others = (
        (fixed, np.zeros((2, 3), FLOAT)),
        (1, np.float64(1)),
        (1.0,),
        (1.0,),
        (None, 1.0),
        (2, True),
        ("words",),
    )
    for n, unfit in enumerate(others):
        for one in unfit:
            assert not take(*given[:n], one, *given[n + 1 :]), (n, one)


def odd(x: np.ndarray) -> list[tuple[Callable[[Executable], object], object]]:
    """Return unusual calls, with the result or the error that each must have."""
    right, wrong = x * 2, np.zeros((3, x.size), FLOAT)
    return [
        (lambda exe: exe(x), right),
        (lambda exe: exe(x.tolist()), right),
        (lambda exe: exe(np.repeat(x, 2)[::2]), right),
        (lambda exe: exe(x.view(Sub)), right),
        (lambda exe: exe(x.astype(">f4")), TypeError("got dtype >f4")),
        (lambda exe: exe(x.astype(np.float64)), TypeError("got dtype float64")),
        (lambda exe: exe(wrong), ValueError("has rank 1, got shape")),
        (lambda exe: exe(), ValueError("expected 1 inputs, got 0")),
        (lambda exe: exe(x, x), ValueError("expected 1 inputs, got 2")),
        (lambda exe: exe(object()), TypeError("is no array that can be read")),
        (lambda exe: exe.run({"x": x})["y"], right),
        (lambda exe: exe.run({"x": x, "y": x}), ValueError("no input is named 'y'")),
    ]


@pytest.mark.parametrize("symbolic", [False, True])
def test_a_run_again_takes_and_refuses_what_the_first_does(symbolic: bool) -> None:
    size = N if symbolic else 5
    made = plan(
        [buffer("x", "input", size), buffer("y", "output", size)],
        [launch("double", ["x", "y"], size)],
        symbols=[(N, (1, 99))] if symbolic else [],
    )
    exe = Executable(compiled(made, [affine("double", 2.0, 0.0)]), 1)
    x = np.arange(5, dtype=FLOAT)
    for call, outcome in odd(x):
        for _ in range(3):
            np.testing.assert_array_equal(exe(x), x * 2)
        (memory,) = exe._idle
        assert memory.again((x,)) is not None  # the executable takes the quick way
        if isinstance(outcome, Exception):
            with pytest.raises(type(outcome), match=str(outcome)):
                call(exe)
        else:
            np.testing.assert_array_equal(call(exe), outcome)
    other = np.arange(6, dtype=FLOAT)
    for given in (x, other, x, other, other, other, other, x):
        if symbolic or given is x:
            np.testing.assert_array_equal(exe(given), given * 2)
        else:
            with pytest.raises(ValueError, match=r"dimension 0 must be 5, got shape \(6,\)"):
                exe(given)


@pytest.mark.usefixtures("plain_memory")
def test_results_of_runs_again_are_the_callers_own() -> None:
    exe = Executable(chain(), 2)
    inputs = [np.random.default_rng(n).standard_normal(1000).astype(FLOAT) for n in range(6)]
    results = [exe(x) for x in inputs]
    for x, y in zip(inputs, results, strict=True):
        np.testing.assert_array_equal(y, (x * 2 + 1) * 3 + 5)
        assert y.flags.owndata and y.flags.writeable
