"""A request of `jangin.batch`, in the form that the engines' modules take."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from jangin.ir.records import dataclass
from jangin.runtime.frames import PROBLEM, Columns
from jangin.runtime.rows import Sent
from jangin.runtime.sizes import TensorSpec


@dataclass(frozen=True)
class Asked:
    """A request of `jangin.batch`: a model, and the columns of a data set.

    - `sent` is the compiled model as workers receive it, and `outputs` describes its outputs.
    - `inputs` maps each input to its column, or to the columns that make up its rows. `named` tells whether
      the caller chose them.
    - `keep` lists the columns that stay in the result. None keeps all.
    - `threads` is the threads of a run, and `workers` the number of Ray's actors.
    """

    sent: Sent
    outputs: tuple[TensorSpec, ...]
    inputs: Mapping[str, str | Sequence[str]]
    named: bool
    keep: Sequence[str] | None
    threads: int | None
    workers: int | None

    def columns(self, present: Sequence[str]) -> Columns:
        """Return the columns for a data set that has the columns `present`.

        Raises ValueError for a column that is missing, and for a name that the result would have twice."""
        wanted = [c for v in self.inputs.values() for c in ([v] if isinstance(v, str) else v)]
        keep = [*present] if self.keep is None else [*self.keep]
        missing = next((c for c in [*wanted, *keep] if c not in present), None)
        if missing is not None:
            there = ", ".join(map(str, present))
            raise ValueError(
                f"the data has no column {missing!r}, but {there}: give inputs={{input: column}} for the "
                f"inputs {', '.join(self.inputs)}"
            )
        outputs = {s.name: (str(s.dtype), len(s.shape) - 1) for s in self.outputs}
        twice = next((n for n in [*outputs, PROBLEM] if n in keep), None)
        if twice is not None:
            raise ValueError(f"the result would have two columns {twice!r}: leave it out of keep=")
        return Columns(dict(self.inputs), outputs, keep)

    def only_input(self, what: str) -> str:
        """Return the name of the model's only input. Raises ValueError, which names the data set `what`, if
        there are several."""
        if len(self.inputs) != 1:
            raise ValueError(
                f"{what} has one value a row, and the model has the inputs {', '.join(self.inputs)}: give "
                "a data set with named columns"
            )
        return next(iter(self.inputs))
