"""The command line. An environment variable may give the default of an option.

Each of the modules imported here declares its commands, and the help lists them in this order."""

from __future__ import annotations

import sys

from jangin.cli import models, performance, tools
from jangin.cli.app import BEFORE, app
from jangin.commands.common import alarm, terminal


def main() -> None:
    """Run the command `jangin`. Its exit status is 0, or 1 after an error, which is told in one message, or 2
    after wrong usage."""
    try:
        app()
    except Exception as error:  # a user reads one message and no traceback, whatever fails
        if "--debug" in sys.argv:
            raise
        from jangin.commands.errors import explain

        terminal(error=True).print(alarm("error:", explain(error)), soft_wrap=True)
        sys.exit(1)


__all__ = ["BEFORE", "app", "main", "models", "performance", "tools"]
