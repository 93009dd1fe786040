"""Write the functions of a training step's C API, in any language that a `FunctionWriter` writes."""

from __future__ import annotations

from jangin.ahead.declarations import BAD_STATE
from jangin.ahead.model import SLACK, Model
from jangin.ahead.state import COUNT, rate_at
from jangin.ahead.state_api import PlacedApi
from jangin.backends.functions import NULL, FunctionWriter, Signature, Value, i32, i64

STEP, NUMBERS, EVALUATE, INFER = range(4)
"""The numbers of a training model's parts."""
INITIAL = "initial."
"""The beginning of the names of the state's first contents among the weights."""


class TrainingApi(PlacedApi):
    """The writer of a training step's functions."""

    def __init__(self, model: Model, writer: FunctionWriter) -> None:
        super().__init__(model, writer)
        assert model.training is not None
        self.training = model.training

    def write(self) -> None:
        self._begin()
        for number, part in enumerate(self.model.parts):
            self._arena(number, part)
            self._run(number, part)
        self._fill()
        self._state()
        self._take_rates()
        self._arena_bytes()
        self._step()
        for number, name in ((EVALUATE, "evaluate"), (INFER, "infer")):
            if name in self.functions:
                with self.w.define(self.functions[name]) as params:
                    self._refuse(params, *(n for n, v in params.items() if v.type == "ptr"))
                    self._refuse_threads(params["threads"])
                    self._refuse_state(params["state"])
                    self.w.ret(self._called(number, params, i64(0)))
        self._about()

    # --- the state

    def _state(self) -> None:
        """Write the functions that make, restore and describe a state."""
        w, training = self.w, self.training
        with w.define(self.functions["state_bytes"]):
            w.ret(i64(training.size))
        with w.define(self.functions["init"]) as params:
            self._refuse(params, "state")
            self._refuse_odd(params["state"])
            self._initial(params["state"])
            w.ret(i32(0))
        with w.define(self.functions["restore"]) as params:
            self._refuse(params, "state", "saved")
            self._refuse_odd(params["state"])
            self._refuse_odd(params["saved"])
            w.refuse(w.compare("ne", params["bytes"], i64(training.size)), BAD_STATE)
            self._refuse_state(params["saved"])
            w.copy(params["state"], params["saved"], i64(training.size))
            w.ret(i32(0))
        with w.define(self.functions["steps"]) as params:
            self._refuse(params, "state")
            self._refuse_state(params["state"])
            w.ret(w.load("i64", params["state"], i64(COUNT // 8)))

    def _initial(self, state: Value) -> None:
        """Write the code that fills a state as it is before the first step."""
        w, training = self.w, self.training
        weights = self._weights_at()
        for field in training.fields:
            at, filling = w.at(state, i64(field.offset)), field.filling
            if filling is None:
                source = w.at(weights, i64(self.model.weights.places[-1][f"{INITIAL}{field.name}"]))
                w.copy(at, source, i64(field.value.nbytes))
            else:  # up to the next field
                w.call(self.fill, at, i64(-(-field.value.nbytes // 8)), i64(filling))
        source = w.at(weights, i64(self.model.weights.places[-1][INITIAL]))
        w.copy(state, source, i64(training.head.nbytes))

    # --- steps

    def _arena_bytes(self) -> None:
        w = self.w
        with w.define(self.functions["arena_bytes"]) as params:
            self._refuse_threads(params["threads"])
            most = i64(0)
            for number in range(len(self.model.parts)):
                size = w.call(self.arena_of(number), NULL, params["threads"])
                most = w.select(w.compare("gt", size, most), size, most)
            w.ret(w.arithmetic("add", most, i64(SLACK)))

    def _step(self) -> None:
        w = self.w
        with w.define(self.functions["step"]) as params:
            state = params["state"]
            self._refuse(params, "state", "batch", "loss", "arena")
            self._refuse_threads(params["threads"])
            self._refuse_state(state)
            now = w.arithmetic("add", w.load("i64", state, i64(COUNT // 8)), i64(1))
            w.call(self.take_rates, state, params["rates"])
            count = max((p.at + 1 for p in self.training.entries[NUMBERS].outputs), default=1)
            params["numbers"] = w.local("i64", count)
            for number in (NUMBERS, STEP):
                code = self._called(number, params, now)
                with w.when(w.compare("ne", code, i32(0))):
                    w.ret(code)
            self._keep(STEP, params)
            w.store(state, i64(COUNT // 8), now)
            w.ret(i32(0))

    @property
    def take_rates(self) -> Signature:
        return self.own("void {p}_take_rates(void *state, const double *rates)")

    def _take_rates(self) -> None:
        """Write the function that stores learning rates in a state, if any are given."""
        w = self.w
        with w.define(self.take_rates, "internal") as params:
            with w.when(w.compare("eq", params["rates"], NULL)):
                w.ret()
            w.copy(w.at(params["state"], i64(rate_at(0))), params["rates"], i64(8 * len(self.training.rates)))
            w.ret()
