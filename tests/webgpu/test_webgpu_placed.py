"""Values are computed before the loops and branches that share them, and mean the same there."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence

import pytest

from jangin.backends.wgsl.placed import placed

LOOP = """\
  for (var n1: i32 = lo; n1 < hi; n1++) {
  let v1 = n1 * 8;
  for (var n2: i32 = 0; n2 < 4; n2++) {
  let v2 = item & 7;
  let v3 = v2 * 36;
  let v4 = v3 + n2;
  let v5 = v1 + v3;
  w0(v4, v5);
  }
  }"""
BRANCHES = """\
  let v1 = item < 5;
  if (v1) {
  let v2 = item * 4;
  let v3 = v2 + 1;
  let v4 = item + 9;
  w0(v3, v4);
  }
  let v5 = item < 6;
  if (v5) {
  let v6 = item * 4;
  let v7 = v6 + 2;
  w0(v7, v6);
  } else {
  w0(v6, 0);
  }"""


def test_out_of_loops() -> None:
    """A value leaves all loops in which it is the same, and takes with it what it needs."""
    lines = placed(LOOP.split("\n"))
    assert lines.index("  let v2 = item & 7;") < lines.index("  let v3 = v2 * 36;") < 2
    assert lines[2] == "  for (var n1: i32 = lo; n1 < hi; n1++) {"
    assert [*map(str.strip, lines[3:6])] == [
        "let v1 = n1 * 8;", "let v5 = v1 + v3;", "for (var n2: i32 = 0; n2 < 4; n2++) {"
    ]  # fmt: skip
    assert lines[6:8] == ["  let v4 = v3 + n2;", "  w0(v4, v5);"]


def test_shared_by_branches() -> None:
    """A value of two branches comes before both. A value of one branch stays there."""
    lines = placed(BRANCHES.split("\n"))
    assert lines.count("  let v2 = item * 4;") == 1
    assert lines.index("  let v2 = item * 4;") < lines.index("  if (v1) {")
    assert lines.index("  let v4 = item + 9;") > lines.index("  if (v1) {")
    assert "  w0(v7, v2);" in lines


@pytest.mark.parametrize("changing", ["a1[0]", "bitcast<i32>(r0(3))", "m", "least(item, 2)"])
def test_what_changes_stays(changing: str) -> None:
    """Reads of memory, variables and calls of a shader's own functions stay where they are."""
    loop = ["  for (var n1: i32 = lo; n1 < hi; n1++) {"]
    loop += [f"  let v1 = {changing} + 1;", "  w0(n1, v1);", "  }"]
    begin = ["  var m: i32;", "  var a1: array<i32, 1>;", "  m = 1;"]
    assert placed([*begin, *loop]) == [*begin, *loop]


class Bodies:
    """Random bodies: loops, branches, pure values, a changing variable and an array."""

    def __init__(self, seed: int) -> None:
        self.random, self.count, self.lines = random.Random(seed), 0, ["  var m: i32;", "  m = 3;"]
        self.lines += ["  var a1: array<i32, 4>;"]
        self.block(["item", "lo"], 0)

    def fresh(self, letter: str) -> str:
        self.count += 1
        return f"{letter}{self.count}"

    def block(self, names: Sequence[str], depth: int) -> None:
        known = [*names]
        for _ in range(self.random.randint(2, 6)):
            kind = self.random.choice(["let"] * 6 + ["read", "change", "store", "for", "if"])
            getattr(self, f"_{kind}")(known, depth)

    def operand(self, known: Sequence[str]) -> str:
        return self.random.choice([*known[-3:], *known, "2", "5"])

    def _let(self, known: list[str], depth: int) -> None:
        a, b = self.operand(known), self.operand(known)
        text = self.random.choice([f"{a} + {b}", f"{a} * {b} & 1023", f"min({a}, {b})", f"{a} - {b}"])
        known.append(self.fresh("v"))
        self.lines.append(f"  let {known[-1]} = {text};")

    def _read(self, known: list[str], depth: int) -> None:
        text = self.random.choice(["m", f"a1[{self.random.randrange(4)}]", "m + 1"])
        known.append(self.fresh("v"))
        self.lines.append(f"  let {known[-1]} = {text};")

    def _change(self, known: list[str], depth: int) -> None:
        to = self.random.choice(["m", f"a1[{self.random.randrange(4)}]"])
        self.lines.append(f"  {to} = {self.operand(known)};")

    def _store(self, known: list[str], depth: int) -> None:
        self.lines.append(f"  w0({self.operand(known)}, {self.operand(known)});")

    def _for(self, known: list[str], depth: int) -> None:
        if depth < 3:
            name = self.fresh("n")
            self.lines.append(f"  for (var {name}: i32 = 0; {name} < 3; {name}++) {{")
            self.block([*known, name], depth + 1)
            self.lines.append("  }")

    def _if(self, known: list[str], depth: int) -> None:
        if depth < 3:
            self.lines.append(f"  if ({self.operand(known)} < {self.operand(known)}) {{")
            self.block(known, depth + 1)
            if self.random.random() < 0.5:
                self.lines.append("  } else {")
                self.block(known, depth + 1)
            self.lines.append("  }")


def stores(lines: Sequence[str]) -> list[tuple[int, int]]:
    """Run a body, written as Python, and return what it stores. Check that names are in open blocks."""
    source, scopes = ["a1, item, lo = [0] * 4, 3, 1"], [{"item", "lo", "w0", "min", "i32", "array"}]
    for line in map(str.strip, lines):
        if line.startswith("}"):
            scopes.pop()
        text = re.sub(r"^(let|var) ", "", line.lstrip("} ").rstrip("{; "))
        if line.endswith("{"):
            scopes.append(set(re.findall(r"var (\w+)", line)))
        used = set(re.findall(r"\b[a-z]\w*\b", re.sub(r"^\w+ = ", "", text))) - {"for", "if", "else", "var"}
        if not line.startswith("var"):
            assert used <= set().union(*scopes), (line, used)
        scopes[-1].update(re.findall(r"^(?:let|var) (\w+)", line))
        indent = "  " * (len(scopes) - 1 - line.endswith("{"))
        if loop := re.match(r"for \(var (\w+)", text):
            text = f"for {loop[1]} in range(3):"
        elif line.endswith("{"):
            text = f"{text}:"
        if not line.startswith("var") and text:
            source.append(indent + text)
        if line.endswith("{"):
            source.append(f"{indent}  pass")
    made: list[tuple[int, int]] = []
    exec("\n".join(source), {"w0": lambda at, value: made.append((at, value)), "min": min})
    return made


@pytest.mark.parametrize("part", range(4))
def test_random_bodies(part: int) -> None:
    """A body stores the same before and after, in valid scopes. A second time changes nothing more."""
    for seed in range(100 * part, 100 * part + 100):
        lines = Bodies(seed).lines
        after = placed(lines)
        assert stores(after) == stores(lines), f"seed {seed}"
        assert placed(after) == after, f"seed {seed}"
