"""The example that trains on a device: a microcontroller and AArch64, both emulated, give Python's losses."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from jangin.ahead.source import compiler_flags

EXAMPLE = Path(__file__).parent.parent.parent / "examples" / "finetune" / "run.py"
ORDER = {"rtol": 1e-5, "atol": 1e-6}
"""The differences that are let through: another target may add in another order."""


def needs(*programs: str) -> None:
    missing = [p for p in programs if shutil.which(p) is None]
    if missing:
        pytest.skip(f"not installed here: {', '.join(missing)}")


@pytest.fixture(scope="module")
def example() -> ModuleType:
    spec = importlib.util.spec_from_file_location("finetune", EXAMPLE)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.mark.slow
def test_a_microcontroller_trains(example: ModuleType, tmp_path: Path) -> None:
    """The losses fall, and equal this machine's. The last layers' weights do too. All fits into 256 KB."""
    needs("arm-none-eabi-gcc", "qemu-system-arm")
    trainer = example.trainer()
    made = trainer.emit("c", tmp_path, "cortex-m7")
    there = example.train_on_board(made, tmp_path)
    assert there.ram >= made.ram + made.model.training.size
    assert there.ram < 256 << 10
    losses = [trainer.step(batch) for batch in zip(*example.examples(), strict=True)]
    np.testing.assert_allclose(there.losses, losses, **ORDER)
    assert np.mean(there.losses[-example.WORDS :]) < 0.6 * np.mean(there.losses[: example.WORDS])
    state = made.model.training.arrays(there.state)
    assert set(example.LAST) < set(state)
    for name, array in trainer.state_dict().items():
        np.testing.assert_allclose(state[name], array, **ORDER, err_msg=name)


@pytest.mark.slow
def test_aarch64_trains(example: ModuleType, tmp_path: Path) -> None:
    needs("aarch64-linux-gnu-gcc", "qemu-aarch64-static")
    trainer = example.trainer()
    made = trainer.emit("c", tmp_path, "aarch64")
    sources = ("main.c", "model.c", "model_weights.c", "model_threads.c")
    flags = (*compiler_flags(made.model.target), "-Wall", "-Wextra", "-Werror", "-static")
    command = ("aarch64-linux-gnu-gcc", *flags, *sources, "-o", "trains", "-lm", "-lpthread")
    subprocess.run(command, cwd=tmp_path, check=True)
    example.write_examples(tmp_path)
    words = ("./trains", str(example.STEPS), "-", "state", "inputs.bin", "labels.bin")
    done = subprocess.run(
        ["qemu-aarch64-static", *words], cwd=tmp_path, capture_output=True, text=True, check=True, timeout=60
    )
    losses = [trainer.step(batch) for batch in zip(*example.examples(), strict=True)]
    np.testing.assert_allclose([float(x) for x in done.stdout.split()], losses, **ORDER)
