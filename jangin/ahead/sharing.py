"""Write the functions that distribute a launch's tasks among workers, in any language."""

from __future__ import annotations

from jangin.ahead.declarations import PARALLEL
from jangin.backends.functions import FunctionWriter, Signature, Value, i32, i64, signature
from jangin.runtime.functions import KERNEL

PIECES = 16
"""A launch is divided into this many pieces for each thread. A thread takes the next piece when it is free,
so it waits for the others for a sixteenth of its time at most."""
RANGES = 8
"""Most ranges of neighbouring pieces. A thread begins with a range of its own, so that it often reads in its
cache what it has written. It then helps with the other ranges. Further threads begin with another's."""


class Sharing:
    """The writer of the functions that distribute tasks. `share` runs a launch, and `rounds` a launch with
    rounds. `ranges`: most ranges of pieces that threads begin with. `elsewhere`: the program always has a
    `parallel` of its own."""

    def __init__(self, prefix: str, writer: FunctionWriter, ranges: int, elsewhere: bool = False) -> None:
        self.prefix, self.w, self.ranges, self.elsewhere = prefix, writer, ranges, elsewhere
        self.kernel = signature(KERNEL)
        self.parallel = self.own(PARALLEL)

    def own(self, text: str) -> Signature:
        """Return the signature of a function whose name begins with the model's prefix."""
        return Signature(text.replace("{p}", self.prefix))

    def write(self) -> None:
        """Write `parallel`, which a program may replace, and the functions that distribute a launch's tasks
        by it."""
        if self.elsewhere:
            self.w.declare(self.parallel)
        else:
            self._parallel()
        self._take_range()
        self._take()
        self._share()
        self._share_rounds()

    def _parallel(self) -> None:
        w = self.w
        with w.define(self.parallel, "weak") as params:
            number = w.local("i32", 1)
            w.store(number, i64(0), i32(0))
            with w.forever():
                worker = w.load("i32", number, i64(0))
                with w.when(w.compare("ge", worker, params["count"])):
                    w.ret()
                w.call(self.task, params["context"], worker, at=params["function"])
                self.increment(number, worker)

    @property
    def task(self) -> Signature:
        return Signature("void task(void *context, int32_t worker)")

    def increment(self, at: Value, now: Value) -> None:
        w = self.w
        more = w.arithmetic("add", w.convert("i64", now), i64(1))
        w.store(at, i64(0), w.convert("i32", more))

    @property
    def take(self) -> Signature:
        return self.own("void {p}_take(void *context, int32_t worker)")

    def _take(self) -> None:
        """Write the function that does one worker's part of a launch: it takes units of tasks until none is
        left. It begins with the worker's own range.

        `context` points to six addresses: the kernel, its arguments, its sizes, the scratch memory, the
        numbers, and each range's next unit. The numbers are the tasks, the tasks of a unit, and the bytes of
        a worker's scratch memory. If there may be several ranges, their units and their number follow."""
        w = self.w
        with w.define(self.take, "internal") as params:
            if self.ranges == 1:
                w.call(self.take_range, params["context"], params["worker"], i64(0))
                w.ret()
                return
            ranges = w.element(w.element(params["context"], 4), 4, "i64")
            worker = w.convert("i64", params["worker"])
            whole = w.arithmetic("mul", w.arithmetic("div", worker, ranges), ranges)
            own, turn = w.arithmetic("sub", worker, whole), w.local("i64", 1)
            w.store(turn, i64(0), i64(0))
            with w.forever():
                number = w.load("i64", turn, i64(0))
                with w.when(w.compare("ge", number, ranges)):
                    w.ret()
                place = w.arithmetic("add", own, number)
                again = w.arithmetic("sub", place, ranges)
                place = w.select(w.compare("lt", place, ranges), place, again)
                w.call(self.take_range, params["context"], params["worker"], place)
                w.store(turn, i64(0), w.arithmetic("add", number, i64(1)))

    @property
    def take_range(self) -> Signature:
        return self.own("void {p}_take_range(void *context, int32_t worker, int64_t range)")

    def _take_range(self) -> None:
        """Write the function that takes the units of one range until none is left."""
        w = self.w
        with w.define(self.take_range, "internal") as params:
            kernel, args, sizes, scratch, numbers, following = (
                w.element(params["context"], n) for n in range(6)
            )
            tasks, unit, stride = (w.element(numbers, n, "i64") for n in range(3))
            own = w.at(scratch, w.arithmetic("mul", stride, w.convert("i64", params["worker"])))
            first, units, next_unit = i64(0), i64(0), following
            if self.ranges > 1:
                units = w.element(numbers, 3, "i64")
                first = w.arithmetic("mul", params["range"], units)
                next_unit = w.at(following, w.arithmetic("mul", params["range"], i64(4)))
            with w.forever():
                number = w.convert("i64", w.fetch_add(next_unit, 1))
                place = w.arithmetic("add", first, number) if self.ranges > 1 else number
                lo = w.arithmetic("mul", place, unit)
                past = [w.compare("ge", lo, tasks)]
                if self.ranges > 1:
                    past.append(w.compare("ge", number, units))
                with w.when(w.any_of(past)):
                    w.ret()
                end = w.arithmetic("add", lo, unit)
                hi = w.select(w.compare("lt", end, tasks), end, tasks)
                w.call(self.kernel, args, sizes, lo, hi, own, at=kernel)

    @property
    def share(self) -> Signature:
        return self.own(
            "void {p}_share(void *kernel, void *args, void *sizes, int64_t tasks, int64_t grain, "
            "void *scratch, int64_t stride, int64_t threads)"
        )

    def _share(self) -> None:
        """Write the function that runs all tasks of a launch, on several threads if the launch is large
        enough."""
        w = self.w
        with w.define(self.share, "internal") as params:
            tasks, grain, threads = params["tasks"], params["grain"], params["threads"]
            with w.when(w.compare("le", tasks, i64(0))):
                w.ret()
            alone = w.any_of([w.compare("le", threads, i64(1)), w.compare("le", tasks, grain)])
            with w.when(alone):
                all = (params["args"], params["sizes"], i64(0), tasks, params["scratch"])
                w.call(self.kernel, *all, at=params["kernel"])
                w.ret()
            context, numbers = w.local("ptr", 6), w.local("i64", 5 if self.ranges > 1 else 3)
            following = w.local("i32", self.ranges)
            pieces = w.arithmetic("mul", threads, i64(PIECES))
            even = self._rounded_up(tasks, pieces)
            unit = w.select(w.compare("gt", even, grain), even, grain)
            units = self._rounded_up(tasks, unit)
            pointers = (*(params[n] for n in ("kernel", "args", "sizes", "scratch")), numbers, following)
            for n, pointer in enumerate(pointers):
                w.store(context, i64(n), pointer)
            count = w.select(w.compare("lt", units, threads), units, threads)
            parts = [tasks, unit, params["stride"]]
            if self.ranges > 1:
                ranges = w.select(w.compare("lt", count, i64(self.ranges)), count, i64(self.ranges))
                parts += [self._rounded_up(units, ranges), ranges]
            for n, number in enumerate(parts):
                w.store(numbers, i64(n), number)
            for n in range(self.ranges):
                w.store(following, i64(n), i32(0))
            w.call(self.parallel, w.address(self.take), context, w.convert("i32", count))
            w.ret()

    def _rounded_up(self, a: Value, b: Value) -> Value:
        w = self.w
        return w.arithmetic("div", w.arithmetic("sub", w.arithmetic("add", a, b), i64(1)), b)

    @property
    def rounds(self) -> Signature:
        text = self.share.text.replace("_share(", "_share_rounds(")
        return Signature(f"{text[:-1]}, int64_t rounds, void *at)")

    def _share_rounds(self) -> None:
        """Write the function that calls `share` once for each round. It stores the round's number at an
        address before each."""
        w = self.w
        with w.define(self.rounds, "internal") as params:
            w.store(params["at"], i64(0), i64(0))
            with w.forever():
                number = w.load("i64", params["at"], i64(0))
                with w.when(w.compare("ge", number, params["rounds"])):
                    w.ret()
                w.call(self.share, *(params[n] for _, n in self.share.params))
                w.store(params["at"], i64(0), w.arithmetic("add", number, i64(1)))
