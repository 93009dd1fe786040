"""Time Jangin fairly against other engines on one machine.

Each (engine, model, threads) runs in a process of its own. The engines of one comparison stay alive together
and take short turns in changing order. A slow moment of the machine then affects all of them.

A loop of register-only FMAs is timed beside each turn. Turns are dropped if the loop ran slowly, because of
another clock rate or a neighbour on the core."""

from __future__ import annotations

from jangin.bench.measure import Comparison, Options, Result, compare
from jangin.bench.report import as_json, tables

__all__ = ["Comparison", "Options", "Result", "as_json", "compare", "tables"]
