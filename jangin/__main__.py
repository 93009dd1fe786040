"""`python -m jangin` is the command `jangin`, of this Python."""

from jangin.cli import main

if __name__ == "__main__":
    main()
