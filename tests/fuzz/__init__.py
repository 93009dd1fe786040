"""Mutated models, files and inputs: nothing that comes from outside may crash, hang or confuse Jangin.

`python -m tests.fuzz --minutes 10` runs them for long, `test_fuzz_quick.py` for some seconds."""
