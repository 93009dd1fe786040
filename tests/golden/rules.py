"""One small model for each rule of each pass, read from rules.txt.

A rule in rules.txt is a line `## PASS: what the rule does | SETTINGS`, followed by a graph in ONNX's text
form. Inputs named w, w1 and so on become constants of small whole numbers, so that no folding rounds. The
setting `target` names another target than `X86`. The setting `divided` divides the constants."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
from onnx import helper, numpy_helper

X86 = "x86-64-v3"
HEADER = '<ir_version: 10, opset_import: ["": 21]> rule '


@dataclass(frozen=True)
class Rule:
    """A rule of a pass. `does` says what the pass does, and `model` is an ONNX graph that begins with its
    name."""

    does: str
    model: str
    target: str = X86
    divided: int = 1


def read(path: Path) -> Mapping[str, Sequence[Rule]]:
    """Return the rules of a file by their pass."""
    rules: dict[str, list[Rule]] = {}
    for part in path.read_text().split("## ")[1:]:
        title, model = part.split("\n", 1)
        name, does, *settings = re.split(r": | \| ", title)
        found = dict(setting.split("=") for setting in settings)
        rule = Rule(does, model, found.pop("target", X86), int(found.pop("divided", 1)))
        assert not found, f"unknown settings {', '.join(found)} of {title!r}"
        rules.setdefault(name, []).append(rule)
    return rules


def model_of(rule: Rule) -> onnx.ModelProto:
    """Return the rule's model, with its constants."""
    model = onnx.parser.parse_model(HEADER + rule.model)
    graph = model.graph
    for n, value in enumerate([v for v in graph.input if re.fullmatch(r"w\d*", v.name)]):
        shape = [d.dim_value for d in value.type.tensor_type.shape.dim]
        data = (np.arange(int(np.prod(shape))) * 7 + n) % 5 - 2
        numbers = data / rule.divided if rule.divided > 1 else data
        dtype = helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)
        graph.initializer.append(numpy_helper.from_array(numbers.astype(dtype).reshape(shape), value.name))
        graph.input.remove(value)
    return model


RULES = read(Path(__file__).parent / "rules.txt")
