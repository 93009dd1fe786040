"""A training step as C or object code: the same numbers as in Python, without allocation."""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch", reason="PyTorch isn't installed: the extra `torch` brings it")

import torch
from torch import nn

import jangin
from jangin import optim
from jangin.ahead.emit import Emitted
from jangin.ahead.source import compiler_flags
from jangin.compiler.pipeline import build_plan
from jangin.ir.graph import Array
from jangin.options import Options
from jangin.runtime.load import executable
from jangin.training.emitted import Whole, numbers_graph
from jangin.training.trainer import Trainer

GCC = shutil.which("gcc")
needs_gcc = pytest.mark.skipif(GCC is None, reason="gcc isn't installed")
STRICT = ("-Wall", "-Wextra", "-Werror")
SANITIZED = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all")


def layers() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(
        nn.Flatten(), nn.Linear(50, 9), nn.BatchNorm1d(9), nn.ReLU(), nn.Dropout(0.3), nn.Linear(9, 5)
    )


def convolutions() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(
        nn.Conv2d(2, 9, 3, bias=False), nn.BatchNorm2d(9), nn.ReLU(), nn.Flatten(), nn.Dropout(0.3),
        nn.Linear(81, 5),
    )  # fmt: skip


RNG = np.random.default_rng(2)
BATCHES = [(RNG.random((4, 2, 5, 5), np.float32), np.arange(4) % 5 + n % 2) for n in range(3)]


def trainer_of(optimizer: Any = "adamw", module: nn.Module | None = None) -> Trainer:
    module = layers() if module is None else module
    return jangin.train(module, "cross_entropy", optimizer, BATCHES[0], threads=1, seed=77 << 32 | 5)


def program(made: Emitted, kind: str, folder: Path) -> Path:
    """Build the emitted example. C is built with sanitizers, and no warning is let through."""
    flags = (*STRICT, *SANITIZED, *compiler_flags(made.model.target)) if kind == "c" else ()
    ending = {"c": "c", "object": "o", "shared": "so"}[kind]
    sources = [n for n in made.files if n.endswith(f".{ending}") and n != "main.c"]
    command = [str(GCC), *flags, "main.c", *sources, "-o", "example", "-Wl,-rpath,.", "-lm", "-lpthread"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[:4000]
    return folder / "example"


def losses_of(folder: Path, steps: int, rate: str = "-") -> list[float]:
    """Run the example on the batches, from the state of its last run."""
    for n, name in enumerate(("inputs", "labels")):
        np.stack([b[n] for b in BATCHES]).tofile(folder / name)
    command = ["./example", str(steps), rate, "state", "inputs", "labels"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[:4000]
    return [float(line) for line in done.stdout.split()]


def state_of(made: Emitted, folder: Path) -> dict[str, Array]:
    assert made.model.training is not None
    return made.model.training.arrays((folder / "state").read_bytes())


def check_state(trainer: Trainer, state: dict[str, Array]) -> None:
    assert state.keys() == trainer._kept.keys()
    for name, array in trainer._kept.items():
        np.testing.assert_array_equal(state[name], array, name)


@needs_gcc
@pytest.mark.skipif(shutil.which("nm") is None, reason="nm isn't installed")
@pytest.mark.parametrize(("kind", "made_of"), [
    ("object", layers), pytest.param("c", convolutions, marks=pytest.mark.slow),
])  # fmt: skip
def test_twenty_steps_give_pythons_losses(kind: str, made_of: Any, tmp_path: Path) -> None:
    """Losses, weights, running statistics, moments and dropout are the same to the bit, through a saved state
    and a new rate. Nothing is allocated."""
    trainer = trainer_of(module=made_of())
    made = trainer.emit(kind, tmp_path)
    program(made, kind, tmp_path)
    if kind == "c":
        flags = compiler_flags(made.model.target)
        subprocess.run([str(GCC), *flags, "-c", "model.c"], cwd=tmp_path, check=True)
    check_references(tmp_path)
    found = losses_of(tmp_path, 9) + losses_of(tmp_path, 4, "0.02") + losses_of(tmp_path, 7)
    wanted = []
    for n in range(20):
        # the batch of a step is that of its number; a given rate lasts
        trainer.lr = 0.02 if n >= 9 else None
        wanted.append(trainer.step(BATCHES[n % 3]))
    assert found == wanted
    check_state(trainer, state_of(made, tmp_path))


def check_references(folder: Path) -> None:
    """The code refers to no function but C's copies and mathematics. No call can reach an allocator."""
    listed = subprocess.run(["nm", "-u", "model.o"], cwd=folder, capture_output=True, text=True, check=True)
    wanted = set(re.findall(r"U (\w+)", listed.stdout))
    assert wanted <= {"memcpy", "memset", "memmove", "pow", "model_weights", "_GLOBAL_OFFSET_TABLE_"}


class Library:
    """An emitted shared library, called by ctypes."""

    def __init__(self, made: Emitted, folder: Path) -> None:
        self.lib = ctypes.CDLL(str(folder / f"lib{made.model.prefix}.so"))
        self.p = made.model.prefix
        for name in ("state_bytes", "arena_bytes", "steps"):
            self.named(name).restype = ctypes.c_int64
        self.arena = aligned(self("arena_bytes", 1))
        self.state = aligned(self("state_bytes"))

    def named(self, name: str) -> Any:
        return getattr(self.lib, f"{self.p}_{name}")

    def __call__(self, name: str, *given: Any) -> int:
        return int(self.named(name)(*(pointer(g) if isinstance(g, np.ndarray) else g for g in given)))

    def run(self, name: str, batch: Sequence[Array], *given: Any) -> int:
        """Call a function of a state and a batch."""
        room = ctypes.c_int64(len(self.arena))
        return self(name, self.state, table(batch), *given, self.arena, room, 1)


def pointer(array: Array) -> ctypes.c_void_p:
    return ctypes.c_void_p(array.ctypes.data)


def table(arrays: Sequence[Array]) -> Any:
    return (ctypes.c_void_p * len(arrays))(*(a.ctypes.data for a in arrays))


def aligned(size: int) -> Array:
    whole = np.zeros(size + 64, np.uint8)
    start = -whole.ctypes.data % 64
    return whole[start : start + size]


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> tuple[Trainer, Emitted, Library]:
    folder, trainer = tmp_path_factory.mktemp("step"), trainer_of()
    made = trainer.emit("shared", folder)
    return trainer, made, Library(made, folder)


def test_evaluation_and_inference(library: tuple[Trainer, Emitted, Library]) -> None:
    trainer, made, lib = library
    assert lib("init", lib.state) == 0
    loss, outputs = np.zeros(1, np.float32), np.zeros((4, 5), np.float32)
    for batch in BATCHES:
        assert lib.run("step", batch, None, loss) == 0
        assert float(loss[0]) == trainer.step(batch)
    assert lib("steps", lib.state) == 3
    assert lib.run("evaluate", BATCHES[0], loss) == 0
    assert float(loss[0]) == trainer.evaluate(BATCHES[0])
    assert lib.run("infer", BATCHES[0][:1], table([outputs])) == 0
    module = layers().eval()
    module.load_state_dict({n: torch.from_numpy(a) for n, a in trainer.state_dict().items()}, strict=False)
    wanted = module(torch.from_numpy(BATCHES[0][0])).detach().numpy()
    np.testing.assert_allclose(outputs, wanted, 1e-5, 1e-6)  # PyTorch adds in another order
    assert made.model.training is not None
    check_state(trainer, made.model.training.arrays(lib.state.tobytes()))


def test_wrong_calls_change_nothing(library: tuple[Trainer, Emitted, Library]) -> None:
    _, _, lib = library
    assert lib("init", lib.state) == 0
    loss, before = np.zeros(1, np.float32), lib.state.tobytes()
    text = lib.named("error_text")
    text.restype = ctypes.c_char_p

    def said(code: int) -> str:
        assert code < 0
        return str(text(code).decode())

    x, labels = BATCHES[0]
    assert "index is out of range" in said(lib.run("step", (x, labels + 7), None, loss))
    assert "a pointer is null" in said(lib.run("step", (x, labels), None, None))
    room = ctypes.c_int64(100)
    given = (table((x, labels)), None, loss, lib.arena)
    assert "arena is too small" in said(lib("step", lib.state, *given, room, 1))
    assert "the number of threads" in said(lib("step", lib.state, *given, room, 0))
    saved = aligned(len(lib.state))
    assert "not this model's" in said(lib("restore", lib.state, saved, ctypes.c_int64(len(saved))))
    assert "not this model's" in said(lib("restore", lib.state, saved, ctypes.c_int64(5)))
    assert "not this model's" in said(lib("step", saved, *given, ctypes.c_int64(len(lib.arena)), 1))
    assert lib.state.tobytes() == before
    assert lib("restore", saved, lib.state, ctypes.c_int64(len(saved))) == 0
    assert saved.tobytes() == before


def test_states_without_updates_in_place(tmp_path: Path) -> None:
    """A next state that can't lie in its input is made aside, and copied at the end of the step."""
    trainer = trainer_of(optim.SGD(0.1, 0.9, 0.5))
    step = trainer._runner.step
    trainer._runner.step = replace(step, graph=replace(step.graph, updates={}))
    made = trainer.emit("shared", tmp_path)
    training = made.model.training
    assert training is not None and len(training.entries[0].kept) == len(step.after)
    lib, loss = Library(made, tmp_path), np.zeros(1, np.float32)
    assert lib("init", lib.state) == 0
    for batch in BATCHES:
        assert lib.run("step", batch, None, loss) == 0
        assert float(loss[0]) == trainer.step(batch)
    check_state(trainer, training.arrays(lib.state.tobytes()))


def test_groups_of_a_torch_optimizer(tmp_path: Path) -> None:
    """Each group has a rate of its own."""
    module = layers()
    first, *rest = module.parameters()
    given = torch.optim.Adam([{"params": [first], "lr": 0.01}, {"params": rest}], lr=0.003)
    trainer = jangin.train(module, "cross_entropy", given, BATCHES[0], threads=1)
    trainer.step(BATCHES[0])  # the code goes on from the trainer's state
    lib = Library(trainer.emit("shared", tmp_path), tmp_path)
    loss = np.zeros(1, np.float32)
    assert lib("init", lib.state) == 0 and lib("steps", lib.state) == 1
    for rates in (None, np.array([0.02, 0.001])):
        if rates is not None:
            for group, rate in zip(given.param_groups, rates.tolist(), strict=True):
                group["lr"] = rate
        for batch in BATCHES:
            assert lib.run("step", batch, rates, loss) == 0
            assert float(loss[0]) == trainer.step(batch)


def test_a_loss_scale_and_running_means(tmp_path: Path) -> None:
    """A step whose gradients overflow changes the scale alone, and Adam doesn't count it."""
    module = nn.Sequential(nn.Flatten(), nn.Linear(50, 5))
    trainer = jangin.train(
        module, "cross_entropy", "adam", BATCHES[0], threads=1, loss_scale="dynamic", average=0.9
    )
    trainer.step(BATCHES[0])
    made = trainer.emit("shared", tmp_path)
    lib, loss = Library(made, tmp_path), np.zeros(1, np.float32)
    assert lib("init", lib.state) == 0
    for n, (x, labels) in enumerate((*BATCHES, *BATCHES)):
        batch = (x * np.float32(np.inf if n % 2 else 1), labels)
        assert lib.run("step", batch, None, loss) == 0
        np.testing.assert_array_equal(loss[0], np.float32(trainer.step(batch)))
    assert trainer.count == 7 and trainer.updates == 4
    assert made.model.training is not None
    check_state(trainer, made.model.training.arrays(lib.state.tobytes()))


@pytest.mark.parametrize("optimizer", [
    optim.SGD(0.1, 0.9, 0.3), optim.AdamW(), optim.Adagrad(lr_decay=0.1), optim.RMSprop(), optim.Lion(),
], ids=lambda o: type(o).__name__)  # fmt: skip
def test_numbers_of_optimizers_are_pythons(optimizer: optim.Optimizer, tmp_path: Path) -> None:
    trainer = trainer_of(optimizer)
    whole = Whole(
        trainer._runner.step, {}, [optimizer], [0.1], 0, 0, trainer._runner.step, None, {}
    )  # fmt: skip
    made = executable(build_plan(numbers_graph(whole), Options(None)), 1)
    for count in (1, 2, 3, 10, 1000, 10**6):
        found = made.run({"step": np.asarray(count), "rate0": np.asarray(0.1)})
        wanted = optimizer.numbers(count, 0.1)
        for name, (_, key) in trainer._runner.step.numbers.items():
            # a power of C's library may differ from Python's in its last bit
            np.testing.assert_allclose(found[name], wanted[key], 4e-16)


def test_what_cant_be_emitted() -> None:
    trainer = trainer_of("sgd")
    with pytest.raises(ValueError, match="no training step is emitted for wasm32"):
        trainer.emit("shared", "never", "wasm32")
    with pytest.raises(ValueError, match="nothing is emitted as 'elf'"):
        trainer.emit("elf", "never")
    assert not os.path.exists("never")
