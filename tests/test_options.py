"""The record of options: what doors show and refuse, which options are in keys, and that no given option is
lost."""

from __future__ import annotations

import inspect
import pickle
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from option_values import FORMATS, lost, network, values, watched

import jangin
from jangin.bench import measure
from jangin.compiler import local, pipeline
from jangin.custom import CustomOperator
from jangin.ir.limits import Limits
from jangin.options import ABOUT, Common, Given, Options, Ready
from jangin.templates.template import Candidate

GROUPS = {
    "batch": Given,
    "build": Given,
    "compile": Ready,
    "emit": Common,
    "quantize": Common,
    "compare": Common,
}
"""The doors that make a record, and the options that each takes by keyword."""
PLACED = {"asked", "threads", "shapes"}
"""The options that doors take by place. `asked` is called `target` there."""
INNER = {"verify", "choices"}
"""The fields that no caller gives."""


@pytest.mark.parametrize("name", GROUPS)
def test_a_door_shows_each_option(name: str) -> None:
    """A door shows each option with the record's type, default and help text."""
    door, group = getattr(jangin, name), GROUPS[name]
    shown = inspect.signature(door).parameters
    for option in group.__annotations__:
        assert shown[option].kind == inspect.Parameter.KEYWORD_ONLY
        assert shown[option].default == ABOUT[option].default
        assert shown[option].annotation == Options.__annotations__[option]
        assert ABOUT[option].help in door.__doc__
    assert not any(p.kind == inspect.Parameter.VAR_KEYWORD for p in shown.values())
    assert name in inspect.getsource(door).partition("\n")[2]


def test_types_for_checkers_are_those_of_the_record() -> None:
    given = {name: hint.__forward_arg__ for name, hint in Ready.__annotations__.items()}
    assert given == {n: t for n, t in Options.__annotations__.items() if n not in PLACED | INNER}
    assert {*ABOUT} == {*Options.__annotations__}


@pytest.mark.parametrize("name", [*GROUPS, "Options"])
def test_an_unknown_option_is_refused_with_the_nearest(name: str) -> None:
    door = Options if name == "Options" else getattr(jangin, name)
    with pytest.raises(TypeError, match=rf"{name}\(\).*'winogard': did you mean winograd\?"):
        door(b"", b"", b"", winogard=False)
    with pytest.raises(TypeError, match=r"'zzz'; there are .*winograd"):
        door(b"", b"", b"", zzz=False)


@pytest.mark.parametrize("name", ["emit", "quantize", "compare"])
def test_a_door_refuses_what_means_nothing_there(name: str) -> None:
    with pytest.raises(TypeError, match="'isolated'"):
        getattr(jangin, name)(b"", b"", b"", isolated=True)


def test_a_record_never_changes() -> None:
    options = Options("x86-64-v2", {"n": 1}, winograd=False)
    with pytest.raises(AttributeError, match="never change"):
        options.winograd = True
    other = options.but(winograd=True, target="x86-64-v3")
    assert (options.winograd, options.target.name) == (False, "x86-64-v2")
    assert (other.winograd, other.target.name, other.shapes) == (True, "x86-64-v3", {"n": 1})
    assert pickle.loads(pickle.dumps(options)) == options != other
    assert repr(options) == "Options(asked='x86-64-v2', shapes={'n': 1}, winograd=False)"


def test_a_resolved_target_travels() -> None:
    """The resolved target goes to another process, whose environment may name another default."""
    options = Options("cpu").but(threads=2)
    assert "target" not in vars(options)
    here = replace(options.target, name="here")
    vars(options)["target"] = here
    assert pickle.loads(pickle.dumps(options.but(threads=1))).target == here


OTHERS: dict[str, Any] = {
    "asked": "x86-64-v2", "threads": 3, "shapes": {"n": 1}, "weights": Path("w"), "winograd": False,
    "libraries": "auto", "unchecked": True, "bf16": False, "tf32": True,
    "operators": (CustomOperator("a", "b", print),),
    "formats": FORMATS, "cache": False, "limits": Limits(nodes=5), "tune": "1s", "objective": "edp",
    "sizes": {"n": 2}, "isolated": True, "wait": False, "verify": True, "deterministic_time": True,
    "choices": {"digest": Candidate("nest", {})},
}  # fmt: skip
"""A value of each field that isn't its default."""


def test_keys_differ_for_the_fields_that_say_so() -> None:
    """Keys differ by the fields that say so. Models for several devices differ by more fields, because
    measured times place their nodes."""
    assert {*OTHERS} == {*ABOUT}
    for target, kinds in (("x86-64-v3", [True]), ("x86-64-v3+x86-64-v2", [True, "for several"])):
        plain = Options(target)
        differing = {n for n, value in OTHERS.items() if plain.but(**{n: value}).key() != plain.key()}
        assert differing == {n for n, about in ABOUT.items() if about.keyed in kinds}
    for name, value in OTHERS.items():
        assert value != ABOUT[name].default


def test_a_key_is_of_values_not_of_containers() -> None:
    one = Options("cpu", {"a": 1, "b": (1, 2)}, formats=FORMATS)
    assert one.key() == Options("cpu", {"b": (1, 2), "a": 1}, formats=[*FORMATS]).key()


def doors(model: Path, folder: Path) -> dict[str, Callable[..., object]]:
    data = np.random.default_rng(0).standard_normal((2, 3, 8, 8)).astype(np.float32)
    sized = {"shapes": {"batch": 1}, "threads": 1}

    def batch(**o: Any) -> object:
        bag = pytest.importorskip("dask.bag", reason="dask isn't installed, whose data the test needs")
        return jangin.batch(model, bag.from_sequence([]), target="cpu", **sized, **o)

    return {
        "batch": batch,
        "build": lambda **o: jangin.build(model, "cpu", **sized, **o),
        "compile": lambda **o: jangin.compile(model, "cpu", **sized, **o),
        "emit": lambda **o: jangin.emit(model, target="cpu", shapes={"batch": 1}, **o),
        "quantize": lambda **o: jangin.quantize(model, list(data[:, None]), **sized, **o),
        "compare": lambda **o: jangin.compare(model, model, list(data[:, None]), **sized, **o),
    }


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", GROUPS)
def test_every_option_given_to_a_door_arrives(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, weights = network(tmp_path)
    given = {**values(weights, tmp_path), "operators": (CustomOperator("a", "b", print),)}
    seen = watched(monkeypatch)
    if GROUPS[name] in (Given, Ready):
        given |= {"sizes": {"n": 2}, "isolated": False, "tune": "5s", "objective": "energy"}
        given |= {} if GROUPS[name] is Given else {"wait": False}
        monkeypatch.setattr(local, "_settled", lambda model, options: options)  # it would need a meter

        def tuned(model: Any, options: Options, threads: int, budget: float, *more: Any) -> Any:
            """Record the options instead of measuring, which takes long."""
            seen.append(options)
            assert (threads, budget) == (1, 5.0)
            return SimpleNamespace(choices={})

        monkeypatch.setattr(pipeline, "tune_model", tuned)
    if name == "emit":
        del given["libraries"]  # emitted code calls no libraries; another test checks that
    assert {*GROUPS[name].__annotations__} - {*given} == ({"libraries"} if name == "emit" else set())
    doors(model, tmp_path)[name](**given)
    assert lost(seen, given) == {}
    assert {(o.shapes["batch"], o.threads) for o in seen[:1]} == {(1, 1)}


def test_a_request_to_another_process_has_every_option(tmp_path: Path) -> None:
    """The limits are too small for any compilation, so that the error comes from the other process."""
    model, weights = network(tmp_path)
    code = (
        "import jangin\n"
        f"try: jangin.build({str(model)!r}, weights={str(weights)!r}, limits=jangin.Limits(nodes=1))\n"
        "except jangin.CompileError as error: print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "more than 1 nodes" in done.stdout


def test_a_benchmark_takes_the_record_whole(tmp_path: Path) -> None:
    """The timed process gets every option, except the cache, which would leave nothing to time."""
    model, weights = network(tmp_path)
    given = {**values(weights, tmp_path), "tune": "1s"}
    race = measure.Options((), shapes={"batch": 1}, compiling=Options("x86-64-v2", **given))
    taken = measure.make_jobs(model, 3, race, tmp_path)[0].options
    assert taken == race.compiling.but(shapes={"batch": 1}, threads=3, cache=False)
    assert taken.target.name == "x86-64-v2"


def test_the_old_name_of_where_constants_lie_still_works(tmp_path: Path) -> None:
    model, weights = network(tmp_path)
    model.with_suffix(".weights").write_bytes(weights.read_bytes())
    with pytest.warns(DeprecationWarning, match="constants= now") as warned:
        old = jangin.emit(model, target="cpu", shapes={"batch": 1}, weights="beside")
    assert warned[0].filename == __file__
    new = jangin.emit(model, target="cpu", shapes={"batch": 1}, constants="beside", weights=weights)
    assert old.files.keys() == new.files.keys()
    assert "model.bin" in old.files


def test_emitted_code_calls_no_library(tmp_path: Path) -> None:
    model, weights = network(tmp_path)
    with pytest.raises(ValueError, match="libraries='auto'"):
        jangin.emit(model, libraries="auto", weights=weights)


def test_the_driver_imports_little() -> None:
    """The start of the compiler's process must not wait for imports that only reading options needs."""
    code = "import sys, jangin.compiler.driver as d; print([m for m in ('dataclasses', 'inspect', 'pathlib', "
    code += "'numpy', 'jangin.targets') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
