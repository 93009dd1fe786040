"""A build hook: distributions of `jangin` that lack the runtime's files require `jangin-runtime`.

A source distribution leaves these files out, and its PKG-INFO tells it from a checkout. A wheel that is built
from a checkout has all files and requires nothing more.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class RequiresRuntime(BuildHookInterface[Any]):
    """The build hook that hatchling finds in this file."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Add the requirement to a source distribution, and to everything that is built from one."""
        if self.target_name == "sdist" or Path(self.root, "PKG-INFO").exists():
            build_data["dependencies"].append(f"jangin-runtime=={self.metadata.version}")
