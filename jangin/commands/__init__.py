"""What the command line's commands do; their options are declared in `jangin.cli`."""
