"""The text form of programs. `parse_program(print_program(p)) == p` holds, but for the constants' data.

```
program = "program" name "target" string known region
region  = "{" "inputs" names "outputs" names {"value" name ":" vtype} {step} "}"
vtype   = (DTYPE | "string" | "?") "[" ["?" | expr {"," expr}] "]"
        | ("seq" | "optional") "(" vtype ")" | "map" "(" (DTYPE | "string") "," vtype ")"
step    = "segment" INTEGER names "->" names           plan number INTEGER
        | "host" name names "->" names ["{" {attr} "}"] source
        | "bind" name "->" names source                elements to symbols
        | "if" name names "->" names source "then" region "else" region
        | "loop" ["trips" name] ["while" name] names "->" names source "carried" INTEGER
          ["conditional"] ["slices" slicing] ["stacks" slicing] region
slicing = "(" {["reverse"] INTEGER ","} ")"
```
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from jangin.ir.dtype import DTYPES, STRING, DType
from jangin.ir.expr import Var
from jangin.ir.graph import Value
from jangin.ir.parse import ValueReader
from jangin.ir.program import Bind, Branch, HostCall, Loop, Program, Region, Segment, Slicing, Step
from jangin.ir.text import print_attribute, print_known, print_names, print_source, print_string
from jangin.ir.types import Type, tensor_type
from jangin.ir.words import quote


def print_program(program: Program) -> str:
    """Return the text of a program, without its constants and plans."""
    head = f"program {quote(program.name)} target {print_string(program.target)}"
    lines = _region(program.region)
    first = f"{head}{print_known(program.symbols.items(), program)} {lines[0]}"
    return "\n".join([first, *lines[1:]]) + "\n"


def parse_program(text: str) -> Program:
    reader = _Programs(text, {})
    return reader.whole(reader.program)


def _region(region: Region) -> list[str]:
    lines = [f"  inputs {print_names(region.inputs)} outputs {print_names(region.outputs)}"]
    lines += [f"  value {quote(n)}: {v}" for n, v in region.values.items()]
    for step in region.steps:
        lines += [f"  {line}" for line in _step(step)]
    return ["{", *lines, "}"]


def _step(step: Step) -> list[str]:
    if isinstance(step, Bind):
        symbols = print_names(v.name for v in step.symbols)
        return [f"bind {quote(step.value)} -> {symbols}{print_source(step.source)}"]
    flow = f"{print_names(step.inputs)} -> {print_names(step.outputs)}"
    if isinstance(step, Segment):
        return [f"segment {step.plan} {flow}"]
    if isinstance(step, HostCall):
        attrs = ", ".join(f"{quote(k)} = {print_attribute(v)}" for k, v in sorted(step.attrs.items()))
        settings = f" {{{attrs}}}" if attrs else ""
        return [f"host {quote(step.function)} {flow}{settings}{print_source(step.source)}"]
    if isinstance(step, Branch):
        then, orelse = _region(step.then), _region(step.orelse)
        head = f"if {quote(step.condition)} {flow}{print_source(step.source)} then {then[0]}"
        return [head, *then[1:-1], f"{then[-1]} else {orelse[0]}", *orelse[1:]]
    return [*_loop(step, flow)]


def _loop(step: Loop, flow: str) -> Iterator[str]:
    head = "loop"
    head += f" trips {quote(step.trips)}" if step.trips else ""
    head += f" while {quote(step.condition)}" if step.condition else ""
    head += f" {flow}{print_source(step.source)} carried {step.carried}"
    head += " conditional" if step.conditional else ""
    head += f" slices {_slicing(step.scanned)}" if step.scanned else ""
    head += f" stacks {_slicing(step.collected)}" if step.collected else ""
    body = _region(step.body)
    yield f"{head} {body[0]}"
    yield from body[1:]


def _slicing(parts: Sequence[Slicing]) -> str:
    return f"({', '.join(('reverse ' if s.reverse else '') + str(s.axis) for s in parts)})"


class _Programs(ValueReader):
    def program(self) -> Program:
        self.need("program")
        name = self.name()
        self.need("target")
        target, (symbols, bound, joined) = self.string(), self.sized()
        return Program(name, target, dict(symbols), self.region(), bound=bound, joined=joined)

    def region(self) -> Region:
        self.need("{")
        self.need("inputs")
        inputs = tuple(self.items(self.name))
        self.need("outputs")
        outputs = tuple(self.items(self.name))
        values: dict[str, Value] = {}
        while self.take("value"):
            name = self.name()
            self.need(":")
            kind = self.vtype()
            if kind.is_numeric:
                values[name] = Value(name, kind.dtype, kind.shape)
            else:
                values[name] = Value(name, None, None, kind)
        steps: list[Step] = []
        while not self.take("}"):
            steps.append(self.step())
        return Region(inputs, outputs, values, tuple(steps))

    def vtype(self) -> Type:
        if self.tokens[self.at] in ("seq", "optional"):
            kind = self.name()
            self.need("(")
            of = None if self.tokens[self.at] == "?" and self.tokens[self.at + 1] == ")" else self.vtype()
            self.at += of is None
            self.need(")")
            return Type(kind, of=of)
        if self.take("map"):
            self.need("(")
            key = self.element()
            self.need(",")
            of = self.vtype()
            self.need(")")
            return Type("map", key, None, of)
        dtype = self.element()
        if self.tokens[self.at + 1] == "?":
            self.at += 3
            return tensor_type(dtype, None)
        return tensor_type(dtype, self.dims())

    def element(self) -> DType | None:
        if self.take("?"):
            return None
        return STRING if self.take("string") else DTYPES[self.choice(DTYPES, "a dtype")]

    def flow(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        inputs = tuple(self.items(self.name))
        self.need("->")
        return inputs, tuple(self.items(self.name))

    def step(self) -> Step:
        if self.take("segment"):
            number = self.integer()
            return Segment(number, *self.flow())
        if self.take("host"):
            function, (inputs, outputs) = self.name(), self.flow()
            attrs: dict[str, Any] = {}
            if self.tokens[self.at] == "{":
                attrs = dict(self.items(self.attr, "{", "}"))
            return HostCall(function, inputs, outputs, attrs, self.source())
        if self.take("bind"):
            value = self.name()
            self.need("->")
            return Bind(value, tuple(Var(n) for n in self.items(self.name)), self.source())
        if self.take("if"):
            condition, (inputs, outputs), source = self.name(), self.flow(), self.source()
            self.need("then")
            then = self.region()
            self.need("else")
            return Branch(condition, inputs, outputs, then, self.region(), source)
        self.need("loop")
        return self.loop()

    def loop(self) -> Loop:
        trips = self.name() if self.take("trips") else ""
        condition = self.name() if self.take("while") else ""
        inputs, outputs = self.flow()
        source = self.source()
        self.need("carried")
        carried, conditional = self.integer(), self.take("conditional")
        scanned = tuple(self.items(self.slicing)) if self.take("slices") else ()
        collected = tuple(self.items(self.slicing)) if self.take("stacks") else ()
        body = self.region()
        return Loop(trips, condition, inputs, outputs, body, carried, conditional, scanned, collected, source)

    def slicing(self) -> Slicing:
        reverse = self.take("reverse")
        return Slicing(self.integer(), reverse)
