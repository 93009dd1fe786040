"""What is emitted computes what the kernels of `tests/backends` do."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "backends"))
