"""Run the command `jangin` by `python -m jangin`, in this Python."""

from jangin.cli import main

if __name__ == "__main__":
    main()
