"""Write the functions of a model that keeps state between runs, in any language that a `FunctionWriter`
writes."""

from __future__ import annotations

from collections.abc import Mapping

from jangin.ahead.api import Api
from jangin.ahead.declarations import BAD_STATE
from jangin.ahead.model import Model, Part
from jangin.ahead.state import MARK, SEED, Place
from jangin.backends.functions import NULL, FunctionWriter, Signature, Value, i32, i64
from jangin.ir.plan import ALIGN


class PlacedApi(Api):
    """The writer of functions that find some inputs and outputs of a plan in a state."""

    def __init__(self, model: Model, writer: FunctionWriter) -> None:
        super().__init__(model, writer)
        assert model.state is not None
        self.state = model.state

    def _called(self, number: int, given: Mapping[str, Value], count: Value) -> Value:
        """Write a call of a part. Return the value of its code."""
        w, entry = self.w, self.state.entries[number]
        tables = [self._addresses(number, places, given, count) for places in (entry.inputs, entry.outputs)]
        memory = (given[n] for n in ("arena", "arena_bytes", "threads"))
        return w.call(self.run_of(number), *tables, given.get("sizes", NULL), *memory)

    def _keep(self, number: int, given: Mapping[str, Value]) -> None:
        """Write the copies of the next values that a part made aside."""
        w = self.w
        for source, to, count in self.state.entries[number].kept:
            w.copy(w.at(given["state"], i64(to)), self._aside(number, given["arena"], source), i64(count))

    def _addresses(
        self, number: int, places: tuple[Place, ...], given: Mapping[str, Value], count: Value
    ) -> Value:
        """Return an array of the places' addresses."""
        w = self.w
        addresses = w.local("ptr", max(1, len(places)))
        for n, place in enumerate(places):
            w.store(addresses, i64(n), self._address(number, place, given, count))
        return addresses

    def _address(self, number: int, place: Place, given: Mapping[str, Value], count: Value) -> Value:
        w = self.w
        if place.kind == "given":
            return w.element(given["batch"] if "batch" in given else given["inputs"], place.at)
        if place.kind == "made":
            return w.element(given["outputs"], place.at)
        if place.kind == "state":
            return w.at(given["state"], i64(place.at))
        if place.kind == "number":
            return w.at(given["numbers"], i64(8 * place.at))
        if place.kind == "aside":
            return self._aside(number, given["arena"], place.at)
        if place.kind == "count":
            held = w.local("i64", 1)
            w.store(held, i64(0), count)
            return held
        if place.kind == "random":
            words = w.local("i32", 3)
            for n in range(2):
                w.store(words, i64(n), w.load("i32", given["state"], i64(SEED // 4 + n)))
            w.store(words, i64(2), w.convert("i32", count))
            return words
        return given["loss"] if place.kind == "loss" else NULL

    def _aside(self, number: int, arena: Value, at: int) -> Value:
        """Return an address in the part of the arena that a plan doesn't use."""
        w = self.w
        skipped = w.arithmetic("and", w.arithmetic("sub", i64(0), w.number_of(arena)), i64(ALIGN - 1))
        return w.at(w.at(arena, skipped), w.value(self.model.parts[number].aside + at))

    def _refuse_odd(self, address: Value) -> None:
        """Write code that refuses a state's address unless it is a multiple of ALIGN."""
        w = self.w
        rest = w.arithmetic("and", w.number_of(address), i64(ALIGN - 1))
        w.refuse(w.compare("ne", rest, i64(0)), BAD_STATE)

    def _refuse_state(self, state: Value) -> None:
        w = self.w
        self._refuse_odd(state)
        mark = w.load("i64", state, i64(MARK // 8))
        w.refuse(w.compare("ne", mark, i64(self.state.mark)), BAD_STATE)

    @property
    def fill(self) -> Signature:
        return self.own("void {p}_fill(void *to, int64_t count, int64_t value)")

    def _fill(self) -> None:
        """Write the function that stores the same eight bytes many times."""
        w = self.w
        with w.define(self.fill, "internal") as parameters:
            number = w.local("i64", 1)
            w.store(number, i64(0), i64(0))
            with w.forever():
                now = w.load("i64", number, i64(0))
                with w.when(w.compare("ge", now, parameters["count"])):
                    w.ret()
                w.store(parameters["to"], now, parameters["value"])
                w.store(number, i64(0), w.arithmetic("add", now, i64(1)))


class StateApi(PlacedApi):
    """The writer of the functions of a model that keeps arrays between runs."""

    def _begin(self) -> None:
        super()._begin()
        self._fill()
        w = self.w
        with w.define(self.functions["state_bytes"]):
            w.ret(i64(self.state.size))
        with w.define(self.functions["reset"]) as parameters:
            state = parameters["state"]
            self._refuse(parameters, "state")
            self._refuse_odd(state)
            w.call(self.fill, state, i64(self.state.size // 8), i64(0))
            w.store(state, i64(MARK // 8), i64(self.state.mark))
            w.ret(i32(0))

    def stateful_run_of(self, number: int) -> Signature:
        text = self.run_of(number).text.replace(f"_run_{number}(", f"_stateful_run_{number}(void *state, ")
        return Signature(text)

    def _run(self, number: int, part: Part) -> None:
        super()._run(number, part)
        w = self.w
        with w.define(self.stateful_run_of(number), "internal") as parameters:
            self._symbols(part, parameters["sizes"])
            self._memory(part)
            code = self._called(number, parameters, i64(0))
            with w.when(w.compare("ne", code, i32(0))):
                w.ret(code)
            self._keep(number, parameters)
            w.ret(i32(0))

    def _run_entry(self) -> None:
        w = self.w
        with w.define(self.functions["run"]) as parameters:
            self._refuse(parameters, "state", "inputs", "outputs", "arena")
            self._refuse_threads(parameters["threads"])
            self._refuse_state(parameters["state"])
            self._by_part(self.stateful_run_of, parameters["sizes"], *parameters.values())
