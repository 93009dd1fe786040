"""A build hook: the wheel and the source distribution of `jangin-runtime` take their files from the main
project's tree."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class TakeFiles(BuildHookInterface[Any]):
    """The build hook that hatchling finds in this file."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Add the files that `pyproject.toml` lists, from the repository's root or the unpacked source
        distribution.

        Raises ValueError for an editable installation, because the main project has all files."""
        here = Path(self.root)
        if version == "editable":
            raise ValueError("jangin-runtime isn't installed from a checkout: install the main project")
        root = here if (here / "jangin").is_dir() else here.parent.parent
        for name in self.config["files"]:
            build_data["force_include"][str(root / name)] = name
