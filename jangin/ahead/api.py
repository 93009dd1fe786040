"""Write the functions of a model's C API, in any language that a `FunctionWriter` writes."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from jangin.ahead.declarations import (
    BAD_INDEX,
    BAD_THREADS,
    ERRORS,
    FIRST_OWN,
    MAX_THREADS,
    NO_WEIGHTS,
    NULL_POINTER,
    SMALL_ARENA,
    TOO_LARGE,
    signatures,
)  # fmt: skip
from jangin.ahead.memory import buffer_bytes
from jangin.ahead.model import Model, Part, Tensor
from jangin.ahead.sharing import RANGES, Sharing
from jangin.backends.functions import NULL, FunctionWriter, Signature, Value, i32, i64, signature
from jangin.backends.launches import Launches, arrays, operands
from jangin.ir.checks import IN_RANGE
from jangin.ir.expr import Expr, Var, const
from jangin.ir.plan import ALIGN
from jangin.runtime.functions import KERNEL
from jangin.version import __version__


class Api:
    """The writer of one model's functions."""

    def __init__(self, model: Model, writer: FunctionWriter) -> None:
        self.model, self.w = model, writer
        self.functions = {n: s for n, (s, _) in signatures(model).items()}
        several = model.has_threads or model.has_workers
        self.sharing = Sharing(model.prefix, writer, RANGES if several else 1, model.has_workers)
        self.own = self.sharing.own
        self.errors = {code: text for code, (_, text) in ERRORS.items()}

    def write(self) -> None:
        self._begin()
        for number, part in enumerate(self.model.parts):
            self._check(number, part)
            self._arena(number, part)
            self._shapes(number, part)
            self._run(number, part)
        self._entries()
        self._tables()
        self._about()

    def write_runs(self) -> None:
        """Write only the functions that a run needs: `run` and `arena_bytes`."""
        self._begin()
        for number, part in enumerate(self.model.parts):
            self._check(number, part)
            self._arena(number, part)
            self._run(number, part)
        self._run_entries()

    def _begin(self) -> None:
        for name in self.model.kernels:
            self.w.declare(signature(KERNEL, name))
        self._weights()
        self.sharing.write()

    def error(self, text: str) -> int:
        """Enter a new error of this model with its text, and return its code."""
        code = min(FIRST_OWN + 1, *self.errors) - 1
        self.errors[code] = text
        return code

    # --- weights and threads

    def _weights(self) -> None:
        w, model = self.w, self.model
        if not model.beside:
            self.weights = w.bytes_elsewhere(f"{model.prefix}_weights")
            return
        place = w.variable(f"{model.prefix}_weights_at")
        self.weights = place
        with w.define(self.functions["use_weights"]) as params:
            w.refuse(w.compare("eq", params["weights"], NULL), NULL_POINTER)
            w.refuse(w.compare("ne", params["bytes"], i64(model.weights.bytes)), NO_WEIGHTS)
            rest = w.arithmetic("and", w.number_of(params["weights"]), i64(ALIGN - 1))
            w.refuse(w.compare("ne", rest, i64(0)), NO_WEIGHTS)
            w.store(place, i64(0), params["weights"])
            for number, part in enumerate(model.parts):
                self._once(number, part, params["weights"])
            w.ret(i32(0))

    def _once(self, number: int, part: Part, weights: Value) -> None:
        """Write the launches of a part that make constants of its weights."""
        w, bases = self.w, {b.name: b.base or b.name for b in part.plan.buffers}
        args, sizes = arrays(w, part.once)

        def pointer(name: str) -> Value:
            return w.at(weights, i64(self.model.weights.places[number][bases[name]]))

        for launch in part.once:
            kernel = operands(w, launch, pointer, args, sizes)
            w.call(kernel, args, sizes, i64(0), w.value(launch.tasks), NULL)

    def _weights_at(self) -> Value:
        """Return the address of the weights. The written code returns an error if it isn't known."""
        if not self.model.beside:
            return self.weights
        w = self.w
        address = w.element(self.weights, 0)
        w.refuse(w.compare("eq", address, NULL), NO_WEIGHTS)
        return address

    # --- sizes

    def _symbols(self, part: Part, sizes: Value) -> None:
        """Write the loads of the sizes that a plan's symbols have."""
        for var, _ in part.plan.symbols:
            self.w.names[var] = self.w.element(sizes, self.model.symbols.index(var.name), "i64")

    def _memory(self, part: Part) -> tuple[Value, Value]:
        """Write the computation of a part's memory. Return the bytes of its arena, and of a worker's scratch
        memory."""
        for var, e in part.memory.steps:
            self.w.names[var] = self.w.value(e)
        return self.w.value(part.memory.arena), self.w.value(part.memory.stride)

    def check_of(self, number: int) -> Signature:
        return self.own(f"int32_t {{p}}_check_{number}(const int64_t *sizes)")

    def _check(self, number: int, part: Part) -> None:
        """Write the function that returns 0 if sizes fit a part, else an error code."""
        w, plan = self.w, part.plan
        with w.define(self.check_of(number), "internal") as params:
            sizes = params["sizes"]
            if self.model.symbols:
                w.refuse(w.compare("eq", sizes, NULL), NULL_POINTER)
            for n, name in enumerate(self.model.symbols):
                if name in part.sizes:
                    only = part.sizes[name]
                    code = self.error(f"the size {name} must be {only}")
                    w.refuse(w.compare("ne", w.element(sizes, n, "i64"), i64(only)), code)
            self._symbols(part, sizes)
            w.checking = True
            for var, (low, high) in plan.symbols:
                self._in_range(var, const(0) if low is None else low, high)
            conditions = [(c, w.value(c)) for c in plan.constraints]
            if (wrong := w.overflowed()) is not None:
                w.refuse(wrong, TOO_LARGE)
            for condition, holds in conditions:
                holds = w.compare("ne", holds, i64(0)) if holds.type == "i64" else holds
                code = self.error(f"the sizes do not meet {condition}, which the model was compiled for")
                w.refuse(w.arithmetic("xor", holds, Value("1", "bool")), code)
            self._memory(part)
            w.value(part.memory.arena + part.memory.stride * MAX_THREADS + 2 * ALIGN)
            for b in plan.buffers:
                w.value(buffer_bytes(b))
            for launch in plan.launches:
                for e in (*launch.symbols, launch.tasks, launch.rounds):
                    w.value(e)
            if (wrong := w.overflowed()) is not None:
                w.refuse(wrong, TOO_LARGE)
            w.checking = False
            w.ret(i32(0))

    def _in_range(self, var: Var, low: Expr, high: Expr | None) -> None:
        w = self.w
        size = w.value(var)
        wrong = [w.compare("lt", size, w.value(low))]
        if high is not None:
            wrong.append(w.compare("gt", size, w.value(high)))
        limits = f"{low} or more" if high is None else f"{low} to {high}"
        w.refuse(w.any_of(wrong), self.error(f"the size {var} may be {limits}"))

    def arena_of(self, number: int) -> Signature:
        return self.own(f"int64_t {{p}}_arena_{number}(const int64_t *sizes, int32_t threads)")

    def _arena(self, number: int, part: Part) -> None:
        w = self.w
        with w.define(self.arena_of(number), "internal") as params:
            self._symbols(part, params["sizes"])
            w.ret(self._needed(part, params["threads"]))

    def _needed(self, part: Part, threads: Value) -> Value:
        """Return the bytes of working memory that a run needs, if they begin at a multiple of ALIGN."""
        w = self.w
        arena, stride = self._memory(part)
        return w.arithmetic("add", arena, w.arithmetic("mul", stride, w.convert("i64", threads)))

    def shape_of(self, number: int) -> Signature:
        return self.own(f"int32_t {{p}}_shape_{number}(int32_t index, const int64_t *sizes, int64_t *shape)")

    def bytes_of(self, number: int) -> Signature:
        return self.own(f"int64_t {{p}}_bytes_{number}(int32_t index, const int64_t *sizes)")

    def _shapes(self, number: int, part: Part) -> None:
        """Write the functions that return a tensor's shape and bytes. Outputs are numbered after inputs."""
        w = self.w
        tensors = (*self.model.inputs, *self.model.outputs)
        with w.define(self.shape_of(number), "internal") as params:
            self._symbols(part, params["sizes"])
            for n, tensor in enumerate(tensors):
                shape = tensor.shapes[number]
                with w.when(w.compare("eq", params["index"], i32(n))):
                    with w.when(w.compare("eq", params["shape"], NULL)):
                        w.ret(i32(len(shape)))
                    for axis, dim in enumerate(shape):
                        w.store(params["shape"], i64(axis), w.value(dim))
                    w.ret(i32(len(shape)))
            w.ret(i32(BAD_INDEX))
        with w.define(self.bytes_of(number), "internal") as params:
            self._symbols(part, params["sizes"])
            for n, tensor in enumerate(tensors):
                with w.when(w.compare("eq", params["index"], i32(n))):
                    w.ret(w.value(_bytes(tensor, number)))
            w.ret(i64(BAD_INDEX))

    # --- running

    def run_of(self, number: int) -> Signature:
        return self.own(
            f"int32_t {{p}}_run_{number}(const void *inputs, const void *outputs, const int64_t *sizes, "
            "void *arena, int64_t arena_bytes, int32_t threads)"
        )

    def _run(self, number: int, part: Part) -> None:
        w, plan = self.w, part.plan
        with w.define(self.run_of(number), "internal") as params:
            self._symbols(part, params["sizes"])
            address = w.number_of(params["arena"])
            skipped = w.arithmetic("and", w.arithmetic("sub", i64(0), address), i64(ALIGN - 1))
            used = w.arithmetic("add", self._needed(part, params["threads"]), skipped)
            w.refuse(w.compare("lt", params["arena_bytes"], used), SMALL_ARENA)
            arena = w.at(params["arena"], skipped)
            pointer = self._pointers(part, number, params, arena, self._weights_at())
            args, sizes = arrays(w, plan.launches)
            scratch = w.at(arena, w.value(part.memory.arena))
            stride, threads = w.value(part.memory.stride), w.convert("i64", params["threads"])

            def threads_for(grain: Value) -> Value:
                return w.select(w.compare("eq", grain, i64(0)), i64(1), threads)

            def share(kernel: Value, tasks: Value, grain: Value) -> None:
                w.call(
                    self.sharing.share, kernel, args, sizes, tasks, grain, scratch, stride, threads_for(grain)
                )

            def rounds(kernel: Value, tasks: Value, grain: Value, count: Value, at: Value) -> None:
                operands = (kernel, args, sizes, tasks, grain, scratch, stride, threads_for(grain))
                w.call(self.sharing.rounds, *operands, count, at)

            launches = Launches(w, pointer, args, sizes, scratch, share, rounds)
            for launch in plan.launches[: plan.tested]:
                launches.write(launch)
            for check in plan.checks:
                wrong = w.compare("ne", w.load("i64", pointer(check.buffer), i64(0)), i64(IN_RANGE))
                w.refuse(wrong, self.error(f"{check.source}: an index is out of range"))
            for launch in plan.launches[plan.tested :]:
                launches.write(launch)
            for n, name in enumerate(plan.outputs):
                buffer = plan.buffer(name)
                if name not in plan.updates and (buffer.kind != "output" or plan.outputs.index(name) != n):
                    count = w.value(buffer_bytes(buffer))
                    w.copy(w.element(params["outputs"], n), pointer(name), count)
            w.ret(i32(0))

    def _pointers(
        self, part: Part, number: int, given: dict[str, Value], arena: Value, weights: Value
    ) -> Callable[[str], Value]:
        """Return a function that returns a buffer's address, given its name. The written code returns an
        error if one of the caller's addresses is null. An output that updates an input has no address of its
        own."""
        w, plan = self.w, part.plan
        known: dict[str, Value] = {}
        for ends, names in (("inputs", plan.inputs), ("outputs", plan.outputs)):
            for n, name in enumerate(names):
                if name in plan.updates:
                    continue
                address = w.element(given[ends], n)
                w.refuse(w.compare("eq", address, NULL), NULL_POINTER)
                known.setdefault(name, address)
        buffers = {b.name: b for b in plan.buffers}

        def pointer(name: str) -> Value:
            buffer = buffers[name]
            if buffer.kind == "alias":
                return pointer(buffer.base)
            if buffer.kind == "arena":
                return w.at(arena, w.value(part.memory.offsets[name]))
            if buffer.kind == "constant":
                return w.at(weights, i64(self.model.weights.places[number][name]))
            return known[name]

        return pointer

    # --- the exported functions

    def _entries(self) -> None:
        w, inputs = self.w, len(self.model.inputs)
        self._run_entries()
        for kind, first, count in (("input", 0, inputs), ("output", inputs, len(self.model.outputs))):
            for what, of in (("shape", self.shape_of), ("bytes", self.bytes_of)):
                with w.define(self.functions[f"{kind}_{what}"]) as params:
                    self._refuse_index(params["index"], count)
                    index = w.arithmetic("add", w.convert("i64", params["index"]), i64(first))
                    others = [v for n, v in params.items() if n != "index"]
                    self._by_part(of, params["sizes"], w.convert("i32", index), *others)

    def _run_entries(self) -> None:
        w = self.w
        self._run_entry()
        with w.define(self.functions["arena_bytes"]) as params:
            self._refuse_threads(params["threads"])
            self._by_part(self.arena_of, params["sizes"], *params.values(), more=ALIGN - 1)

    def _run_entry(self) -> None:
        w = self.w
        with w.define(self.functions["run"]) as parameters:
            self._refuse(parameters, "inputs", "outputs", "arena")
            self._refuse_threads(parameters["threads"])
            self._by_part(self.run_of, parameters["sizes"], *parameters.values())

    def _refuse(self, given: Mapping[str, Value], *names: str) -> None:
        """Write code that refuses those of a function's parameters that are null."""
        for name in names:
            self.w.refuse(self.w.compare("eq", given[name], NULL), NULL_POINTER)

    def _refuse_threads(self, threads: Value) -> None:
        w = self.w
        wrong = [w.compare("lt", threads, i32(1)), w.compare("gt", threads, i32(MAX_THREADS))]
        w.refuse(w.any_of(wrong), BAD_THREADS)

    def _refuse_index(self, index: Value, count: int) -> None:
        w = self.w
        w.refuse(w.any_of([w.compare("lt", index, i32(0)), w.compare("ge", index, i32(count))]), BAD_INDEX)

    def _by_part(
        self, function: Callable[[int], Signature], sizes: Value, *given: Value, more: int = 0
    ) -> None:
        """Write code that calls `function` of the last part whose conditions the sizes meet. The last part is
        the most specialised.

        If there is none, the written code returns the first part's error."""
        w = self.w
        type = function(0).result
        code: Value | None = None
        for number in reversed(range(len(self.model.parts))):
            code = w.call(self.check_of(number), sizes)
            with w.when(w.compare("eq", code, i32(0))):
                result = w.call(function(number), *given)
                w.ret(w.arithmetic("add", result, i64(more)) if more else result)
        assert code is not None
        w.ret(w.convert(type, code))

    def _tables(self) -> None:
        """Write the functions that describe the inputs, outputs and sizes: their counts, names and indices,
        and the tensors' types."""
        w, model = self.w, self.model
        ends = {"input": model.inputs, "output": model.outputs}
        names: dict[str, Sequence[str]] = {k: [t.name for t in v] for k, v in ends.items()}
        self._same()
        for kind, texts in {**names, "size": model.symbols}.items():
            with w.define(self.functions[f"{kind}_count"]):
                w.ret(i32(len(texts)))
            table = self._table(f"{kind}_name", texts)
            with w.define(self.functions[f"{kind}_index"]) as params:
                w.refuse(w.compare("eq", params["name"], NULL), NULL_POINTER)
                for n in range(len(texts)):
                    same = w.call(self.same, params["name"], w.element(table, n))
                    w.refuse(w.compare("ne", same, i32(0)), n)
                w.ret(i32(BAD_INDEX))
        for kind, tensors in ends.items():
            self._table(f"{kind}_type", [str(t.dtype) for t in tensors])
            self._quantization(kind, tensors)

    def _quantization(self, kind: str, tensors: Sequence[Tensor]) -> None:
        """Write the function that returns the scale and the zero point of quantized numbers, or null for all
        others."""
        w, name = self.w, f"{kind}_quantization"
        quantized = [(n, t.quantization) for n, t in enumerate(tensors) if t.quantization is not None]
        words = [word for _, q in quantized for word in (int(np.float32(q.scale).view(np.int32)), q.zero)]
        table = w.numbers(f"{self.model.prefix}_{name}s", words) if words else NULL
        with w.define(self.functions[name]) as parameters:
            for at, (n, _) in enumerate(quantized):
                with w.when(w.compare("eq", parameters["index"], i32(n))):
                    w.ret(w.at(table, i64(8 * at)))
            w.ret(NULL)

    def _about(self) -> None:
        """Write the functions that return the texts of errors, the version, the licence and the weights'
        bytes."""
        w, model, p = self.w, self.model, self.model.prefix
        self._texts()
        made_by = ", ".join(filter(None, (f"Jangin {__version__}", w.translator)))
        texts = {
            "version": f"{made_by}, for {model.target.name}",
            "licence": "Apache-2.0 (generated code)",
        }
        for name, text in texts.items():
            table = w.strings(f"{p}_{name}_text", [text])
            with w.define(self.functions[name]):
                w.ret(w.element(table, 0))
        with w.define(self.functions["weights_bytes"]):
            w.ret(i64(model.weights.room))

    def _table(self, name: str, texts: Sequence[str]) -> Value:
        """Write the function `name`, which returns a text by its number, or null for a wrong number. Return
        the table of texts."""
        w = self.w
        table = w.strings(f"{self.model.prefix}_{name}s", [*texts] or [""])
        with w.define(self.functions[name]) as params:
            index = params["index"]
            wrong = [w.compare("lt", index, i32(0)), w.compare("ge", index, i32(len(texts)))]
            with w.when(w.any_of(wrong)):
                w.ret(NULL)
            w.ret(w.load("ptr", table, w.convert("i64", index)))
        return table

    def _texts(self) -> None:
        """Write `error_text`, with the texts of the common codes and of the model's own."""
        w, p = self.w, self.model.prefix
        common = [self.errors[-n] for n in range(len(ERRORS))]
        own = [text for code, text in sorted(self.errors.items(), reverse=True) if code <= FIRST_OWN]
        table = w.strings(f"{p}_error_texts", [*common, *own, "no error of this model has this code"])
        with w.define(self.functions["error_text"]) as params:
            number = w.arithmetic("sub", i64(0), w.convert("i64", params["code"]))
            later = w.arithmetic("sub", number, i64(-FIRST_OWN - len(common)))
            is_own = w.compare("ge", number, i64(-FIRST_OWN))
            at = w.select(is_own, later, number)
            wrong = [w.compare("lt", number, i64(0)), w.compare("gt", at, i64(len(common) + len(own)))]
            gap = w.arithmetic(
                "and", w.compare("ge", number, i64(len(common))), w.compare("lt", number, i64(-FIRST_OWN))
            )
            with w.when(w.any_of([*wrong, gap])):
                w.ret(w.element(table, len(common) + len(own)))
            w.ret(w.load("ptr", table, at))

    @property
    def same(self) -> Signature:
        return self.own("int32_t {p}_same(const char *a, const char *b)")

    def _same(self) -> None:
        """Write the function that returns 1 if two texts are equal, else 0."""
        w = self.w
        with w.define(self.same, "internal") as params:
            number = w.local("i32", 1)
            w.store(number, i64(0), i32(0))
            with w.forever():
                now = w.load("i32", number, i64(0))
                a, b = (w.load("i8", params[n], w.convert("i64", now)) for n in ("a", "b"))
                w.refuse(w.compare("ne", a, b), 0)
                w.refuse(w.compare("eq", a, Value("0", "i8")), 1)
                self.sharing.increment(number, now)


def _bytes(tensor: Tensor, part: int) -> Expr:
    return math.prod(tensor.shapes[part], start=const(tensor.dtype.bytes))
