"""The instruction rows' tests run on a target of `tests/backends`."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "backends"))
