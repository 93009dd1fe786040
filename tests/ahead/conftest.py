"""Emitted code computes the same as the kernels of `tests/backends`."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "backends"))
