"""What the environment says to the library; the command line's options have their own variables in `cli`."""

from __future__ import annotations

import os
from pathlib import Path

import platformdirs


def cache_folder() -> Path:
    """Where compiled models and what tuning found are kept: `JANGIN_CACHE_DIR`, or the user's own."""
    return Path(os.environ.get("JANGIN_CACHE_DIR") or platformdirs.user_cache_dir("jangin"))
