"""Fair timing of Jangin against other engines on one machine.

Each (engine, model, threads) runs in a process of its own. The engines of one comparison are kept
alive together and take short turns in changing order, so that a slow moment of the machine falls
on all of them. Beside each turn a loop of register-only FMAs is timed: turns taken while it ran
slowly (another clock, a neighbour on the core) are thrown away.
"""

from __future__ import annotations

from jangin.bench.measure import Comparison, Options, Result, compare
from jangin.bench.report import as_json, tables

__all__ = ["Comparison", "Options", "Result", "as_json", "compare", "tables"]
