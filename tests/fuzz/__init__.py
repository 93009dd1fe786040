"""Mutated models, files and inputs. Nothing that comes from outside may crash, hang or confuse Jangin.

`python -m tests.fuzz --minutes 10` runs mutants for that time, and `test_fuzz_quick.py` for some seconds."""
