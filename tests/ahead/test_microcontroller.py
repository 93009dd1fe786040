"""The example for microcontrollers: a network's C, built for Cortex-M, run on emulated boards."""

from __future__ import annotations

import importlib.util
import shutil
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

import jangin

EXAMPLE = Path(__file__).parent.parent.parent / "examples" / "microcontroller" / "run.py"
MISSING = [p for p in ("arm-none-eabi-gcc", "qemu-system-arm") if shutil.which(p) is None]

pytestmark = pytest.mark.skipif(bool(MISSING), reason=f"not installed here: {', '.join(MISSING)}")


def example() -> ModuleType:
    spec = importlib.util.spec_from_file_location("microcontroller", EXAMPLE)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("target", ["cortex-m4", "cortex-m7"])
def test_a_keyword_spotter(target: str, tmp_path: Path) -> None:
    """Its flash and RAM are what was said before it was built; its answer is this machine's."""
    e = example()
    model = e.keyword_spotter()
    made = jangin.emit(model, "c", target, name="model")
    firmware = e.build(made, tmp_path)
    assert (firmware.weights, firmware.code, firmware.ram) == (made.weights, made.code, made.ram)
    assert firmware.code < 16 << 10  # nothing is unrolled beyond reason
    x = np.random.default_rng().standard_normal((1, 1, 49, 10)).astype(np.float32)
    there = e.run(firmware, e.BOARDS[target], x)
    np.testing.assert_allclose(there, jangin.compile(model)(x).reshape(-1), rtol=1e-5)  # sums in other orders
