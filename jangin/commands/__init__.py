"""The implementations of the command line's commands. `jangin.cli` declares their options."""
