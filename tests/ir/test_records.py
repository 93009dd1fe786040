"""`records.dataclass` makes the same classes as the standard library's."""

from __future__ import annotations

import dataclasses
import pickle
from collections.abc import Callable
from dataclasses import FrozenInstanceError, astuple, dataclass, field, fields, replace
from typing import Any

import numpy as np
import pytest

from jangin.ir import records


def classes(make: Callable[..., Any]) -> dict[str, Any]:
    """Make classes of each kind, by either decorator."""

    @make(frozen=True)
    class Empty:
        pass

    @make(frozen=True)
    class One:
        a: Any

    @make(frozen=True)
    class Some:
        """With a docstring."""

        a: int
        b: str = "b"
        c: list[int] = field(default_factory=list, compare=False)
        d: tuple[int, ...] = field(default=(), repr=False)

        def __post_init__(self) -> None:
            if self.a < 0:
                raise ValueError("negative")

    @make(frozen=True)
    class More(Some):
        e: float = 0.5

    @make(frozen=True)
    class Own:
        a: int

        def __repr__(self) -> str:
            return "own"

        def __eq__(self, other: object) -> bool:
            return True

        def __hash__(self) -> int:
            return 7

    @make(frozen=True, kw_only=True)
    class Named(Some):
        f: int

    return {c.__name__: c for c in (Empty, One, Some, More, Own, Named)}


OURS, STANDARD = classes(records.dataclass), classes(dataclass)
CALLS: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = [
    ("Empty", (), {}), ("One", (1,), {}), ("One", (float("nan"),), {}), ("Some", (1,), {}),
    ("Some", (1, "x", [2]), {"d": (3,)}), ("Some", (), {"a": 2, "c": [1]}), ("More", (1,), {"e": 2.0}),
    ("Own", (3,), {}), ("Named", (1,), {"f": 2}),
]  # fmt: skip


@pytest.mark.parametrize(("name", "args", "named"), CALLS)
def test_values_are_the_standards(name: str, args: tuple[Any, ...], named: dict[str, Any]) -> None:
    ours, standard = OURS[name](*args, **named), STANDARD[name](*args, **named)
    assert repr(ours) == repr(standard)
    assert astuple(ours) == astuple(standard) and vars(ours) == vars(standard)
    assert [f.name for f in fields(ours)] == [f.name for f in fields(standard)]
    assert ours == OURS[name](*args, **named) and (ours != standard or name == "Own")
    assert hash(ours) == hash(standard) == hash(OURS[name](*args, **named))
    for change in (setattr, lambda o, n, _: delattr(o, n)):
        with pytest.raises(FrozenInstanceError):
            change(ours, "a", 1)


def test_what_differs_is_not_equal() -> None:
    some = OURS["Some"]
    assert some(1) != some(2) and some(1) != OURS["More"](1) and some(1) != 1
    assert some(1, c=[1]) == some(1, c=[2]), "that field isn't compared"
    array = np.zeros(3)
    assert OURS["One"](array) == OURS["One"](array), "an object equals itself, as in tuples"
    assert replace(some(1), b="c") == some(1, "c")


@pytest.mark.parametrize("given", [((), {}), ((1, 2, [], (), 5), {}), ((1,), {"z": 1}), ((-1,), {})])
def test_wrong_arguments_are_errors(given: tuple[tuple[Any, ...], dict[str, Any]]) -> None:
    args, named = given
    for known in (OURS, STANDARD):
        with pytest.raises((TypeError, ValueError)):
            known["Some"](*args, **named)


def test_either_kind_derives_from_the_other() -> None:
    with pytest.raises(TypeError, match="non-frozen"):
        dataclass(type("Loose", (OURS["Some"],), {"__annotations__": {"z": int}, "z": 1}))
    later: Any = dataclass(frozen=True)(
        type("Later", (OURS["Some"],), {"__annotations__": {"z": int}, "z": 1})
    )
    assert later(1, z=3) == later(1, z=3) and later(1) != later(1, z=2)
    assert dataclasses.is_dataclass(later)


@records.dataclass(frozen=True)
class Kept:
    a: int
    b: tuple[int, ...] = ()


def test_it_is_pickled() -> None:
    assert pickle.loads(pickle.dumps(Kept(1, (2,)))) == Kept(1, (2,))
