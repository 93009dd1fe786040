"""Epochs of training that can be stopped and gone on with at any step."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from jangin.ir.graph import Array
from jangin.ir.records import dataclass
from jangin.training.data import Examples, read_arrays
from jangin.training.interrupts import uninterrupted
from jangin.training.losses import IGNORED
from jangin.training.schedules import CONSTANT, Schedule
from jangin.training.trainer import Trainer

LOSSES, VALIDATION, ACCURACY, SETUP = "run/losses", "run/validation", "run/accuracy", "run/setup"
"""The names of a run's arrays in its checkpoint."""
STEP, VALIDATED = "step", "validation"
"""The kinds of events that `Run.epochs` yields."""


@dataclass(frozen=True)
class Split:
    """The numbers of the examples that are trained on, and of those that only measure the loss."""

    training: Array
    validation: Array


def split(count: int, share: float, batch: int, seed: int) -> Split:
    """Divide examples by chance, the same for the same seed. Raises ValueError if either part has less than
    one batch."""
    if seed < 0:
        raise ValueError(f"the seed {seed} is negative: give 0 or more")
    if not 0 <= share < 1:
        raise ValueError(f"a validation share of {share} isn't at least 0 and below 1")
    mixed = np.random.default_rng(seed).permutation(count)
    kept = -(-int(count * share) // batch) * batch if share else 0
    if count - kept < batch:
        raise ValueError(
            f"{count} examples are too few for a batch of {batch} and a validation share of {share:g}: "
            "give more, or a smaller --batch"
        )
    return Split(mixed[kept:], mixed[:kept])


class Run:
    """A training run. Each step's examples follow from the seed and the number of the step. A run that goes
    on therefore makes the very steps that were left. An epoch leaves out examples that fill no batch.

    `losses` has each step's loss. `validation` has the mean loss after each epoch. With `classes`, `accuracy`
    has the share of examples whose label has the largest output. With `averaged`, both are of the running
    means of parameters, which `export` writes then."""

    def __init__(
        self, trainer: Trainer, data: Examples, part: Split, batch: int, seed: int, classes: bool = False,
        schedule: Schedule = CONSTANT, averaged: bool = False,
    ) -> None:  # fmt: skip
        self.trainer, self._data, self._part = trainer, data, part
        self._batch, self._seed, self._classes = batch, seed, classes
        self._schedule, self._averaged = schedule, averaged
        self.steps = len(part.training) // batch
        self._order: Array | None = None
        self.losses: list[float] = []
        self.validation: list[float] = []
        self.accuracy: list[float] = []

    @property
    def unreadable(self) -> dict[Path, str]:
        """The files that couldn't be read so far, with the reasons."""
        return self._data.unreadable

    def step(self) -> float:
        """Make one step, and return its loss."""
        epoch, place = divmod(self.trainer.count, self.steps)
        if place == 0 or self._order is None:
            self._order = np.random.default_rng([self._seed, epoch]).permutation(self._part.training)
        numbers = self._order[place * self._batch : (place + 1) * self._batch]
        batch = self._data.batch(numbers)
        with uninterrupted():
            self.losses.append(self.trainer.step(batch))
        return self.losses[-1]

    def epochs(self, count: int) -> Iterator[tuple[str, int, float]]:
        """Make the steps that are left of `count` epochs. Yield "step", its epoch and its loss. At the end of
        an epoch, measure and yield "validation", the epoch and the loss."""
        while True:
            done = self.trainer.count // self.steps
            if len(self._part.validation) and len(self.validation) < done:
                self._measure()
                yield VALIDATED, done - 1, self.validation[-1]
            if self.trainer.count >= count * self.steps:
                return
            self.trainer.lr_factor = self._schedule.factor(self.trainer.count, count * self.steps, self.steps)
            yield STEP, done, self.step()

    def _measure(self) -> None:
        losses, right = [], []
        for numbers in self._part.validation.reshape(-1, self._batch):
            batch = self._data.batch(numbers)
            loss, output = self.trainer.measure(batch, self._averaged)
            losses.append(loss)
            if self._classes:
                labels = batch[-1]
                right.append((output.argmax(1) == labels)[labels != IGNORED])
        self.validation.append(float(np.mean(losses)))
        self.accuracy += [float(np.mean(np.concatenate(right)))] if right else []

    def export(self, path: Path) -> None:
        """Write the trained model."""
        self.trainer.export(path, self._averaged)

    @property
    def _setup(self) -> Array:
        return np.array([self._batch, self._seed, len(self._part.training), len(self._part.validation)])

    def save(self, path: Path) -> None:
        """Write a checkpoint, whole or not at all."""
        run = {
            LOSSES: np.array(self.losses), VALIDATION: np.array(self.validation),
            ACCURACY: np.array(self.accuracy), SETUP: self._setup,
        }  # fmt: skip
        self.trainer.save(path, run)

    def load(self, path: Path) -> None:
        """Go on with a checkpoint. Raises ValueError if it is of another run."""
        file = read_arrays(path)
        run = {n: file[n] for n in (LOSSES, VALIDATION, SETUP) if n in file}
        if len(run) != 3:
            raise ValueError(f"{path} is no checkpoint of `jangin train`")
        if not np.array_equal(run[SETUP], self._setup):
            names = ("batch", "seed", "training examples", "validation examples")
            settings = ", ".join(f"{n} {v}" for n, v in zip(names, run[SETUP].tolist(), strict=False))
            raise ValueError(f"{path} is of another run ({settings}): give the same, or another checkpoint")
        self.trainer.load(path)
        self.losses, self.validation = run[LOSSES].tolist(), run[VALIDATION].tolist()
        self.accuracy = file[ACCURACY].tolist() if ACCURACY in file else []


def by_epoch(losses: Sequence[float], steps: int) -> list[float]:
    """Return the mean loss of each epoch, the last one's of the steps that it has."""
    return [float(np.mean(losses[n : n + steps])) for n in range(0, len(losses), steps)]
