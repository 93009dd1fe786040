"""The two kinds of machine: each has figures of its own, and a target gives no figures of the other kind."""

from __future__ import annotations

import ast
from dataclasses import fields, replace
from pathlib import Path

import pytest

import jangin
from jangin.targets import NAMED, Target, resolve
from jangin.targets.gpu import Gpu
from jangin.targets.machine import Machine
from jangin.targets.processor import Processor

PACKAGE = Path(jangin.__file__).parent
CPU = NAMED["cortex-m4"]
GPU = replace(CPU, machine=Gpu(units=3))


def names(kind: type[Machine | Target]) -> set[str]:
    return {f.name for f in fields(kind)}


def test_each_figure_has_one_record() -> None:
    assert names(Processor) & names(Gpu) == names(Machine)
    assert not names(Target) & (names(Processor) | names(Gpu))


@pytest.mark.sampled(3)
def test_each_figure_is_read() -> None:
    trees = [ast.parse(path.read_text()) for path in PACKAGE.rglob("*.py")]
    read = {n.attr for tree in trees for n in ast.walk(tree) if isinstance(n, ast.Attribute)}
    assert names(Processor) | names(Gpu) | names(Target) <= read


def test_a_target_has_no_figures_of_the_other_kind() -> None:
    assert CPU.processor is CPU.machine and not CPU.groups
    assert GPU.gpu is GPU.machine and GPU.groups
    with pytest.raises(TypeError, match="cortex-m4 has no figures of a GPU"):
        _ = CPU.gpu
    with pytest.raises(TypeError, match="cortex-m4 has no figures of a processor"):
        _ = GPU.processor


def test_other_figures_make_another_target() -> None:
    other = CPU.with_figures(l2=1 << 20)
    assert other.processor == replace(CPU.processor, l2=1 << 20)
    assert replace(other, machine=CPU.machine) == CPU
    with pytest.raises(TypeError, match="shared"):
        CPU.with_figures(shared=1)


def test_what_is_found_of_this_machine_is_its_processor_s() -> None:
    assert resolve("cpu").processor.l1 > 0
    assert "l3=" in repr(resolve("cpu")), "the cache's keys tell machines apart"
