"""Measure the energy that a run of a model takes, by sensors and meters that the machine truly has.

`sources` finds them. A sampler in its own process reads them beside the measured work. Without a source there
is no figure, and an error tells why."""

from __future__ import annotations

from jangin.energy.measure import Idle, Used, joules_per_call, rest
from jangin.energy.sampler import Sampler, Wanted
from jangin.energy.series import Gap, Series
from jangin.energy.source import EnergyError, Rail
from jangin.energy.sources import find

__all__ = [
    "EnergyError",
    "Gap",
    "Idle",
    "Rail",
    "Sampler",
    "Series",
    "Used",
    "Wanted",
    "find",
    "joules_per_call",
    "rest",
]
