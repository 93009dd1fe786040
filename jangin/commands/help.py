"""Adjust typer's help: flags without types, an example for each command, and values that a shell
completes."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from copy import copy
from difflib import get_close_matches
from functools import partial
from typing import Any

from typer.core import TyperCommand, TyperGroup

EXAMPLES = {
    "run": "jangin run model.onnx --input photo.jpg",
    "compile": "jangin compile model.onnx --shape batch=1 -o model.jgn",
    "convert": "jangin convert model.tflite model.onnx",
    "quantize": "jangin quantize model.onnx --data calib/ --drop 0.5% -o small",
    "compare": "jangin compare model.onnx small.onnx --data calib/",
    "bench": "jangin bench model.onnx --against onnxruntime,openvino --threads 1,2",
    "study": "jangin study model.onnx --engines all --threads 1,2 --batch 1,8 --energy -o report",
    "tune": "jangin tune model.onnx --shape batch=1 --budget 60s",
    "train": "jangin train model.onnx photos/ --trainable 'head.*' --epochs 5 -o trained.onnx",
    "inspect": "jangin inspect model.onnx --kernel conv1 --show loop",
    "opt": "jangin opt nest.loop --pass simplify --pass vectorize",
    "blas": "jangin blas --emit shared dgemm dgemv -o folder",
    "templates": "jangin templates",
    "devices": "jangin --plain devices",
}
"""An example call of each command, for its help."""
ASKED = "jangin.asked"
"""The entry of a call's context that tells whether the call had arguments."""
OPTIONS = "These options stand before the command. Each command has its own --help."
MORE = (
    "The options before a command are listed by jangin --help, and each command's own by jangin run --help."
)
LABEL = re.compile(r"<(?:list\[)?(\w+)(?: range)?\]?>")
"""Matches typer's label of a type, such as `<list[Path]>` or `<int range>`, and the plain name in it."""


def example(command: str) -> str:
    """Return the line with an example call for a command's help."""
    return f"Example: {EXAMPLES[command]}"


def _shown(params: Iterable[Any]) -> list[Any]:
    """Return a command's parameters as help shows them. Flags show no type, because they take no value.
    The type of a list or of a range is that of its values.

    The parameters of completion are in a group of their own, so that their long names don't narrow the other
    texts."""
    items = [*params]
    for param in items:
        if label := getattr(type(param), "display_type", None):
            param.display_type = partial(_plain_label, partial(label, param))
        if getattr(param, "is_flag", False):
            param.metavar = ""
        if param.name in ("install_completion", "show_completion"):
            param.rich_help_panel = "Completion"
    return items


def _plain_label(label: Callable[..., str], *given: Any, **named: Any) -> str:
    return LABEL.sub(lambda found: f"<{found[1].lower()}>", label(*given, **named))


def _names(params: Iterable[Any]) -> set[str]:
    return {name for p in params for name in (*p.opts, *p.secondary_opts)}


class Command(TyperCommand):
    def get_params(self, ctx: Any) -> list[Any]:
        return _shown(super().get_params(ctx))

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse arguments. An option that must stand before the command, or is nearly one, is told so."""
        own = _names(self.get_params(ctx))
        before = _names(ctx.parent.command.params) - own if ctx.parent else set[str]()
        for word in args[: args.index("--") if "--" in args else len(args)]:
            name = word.partition("=")[0]
            if name in before:
                ctx.fail(f"{name} stands before the command: jangin {name} ... {ctx.info_name} ...")
            unknown = name.startswith("--") and name not in own and not get_close_matches(name, own)
            if near := get_close_matches(name, before) if unknown else []:
                ctx.fail(f"No such option: {name}. Did you mean {near[0]}?")
        rest: list[str] = super().parse_args(ctx, args)
        return rest


class Group(TyperGroup):
    def get_params(self, ctx: Any) -> list[Any]:
        return _shown(super().get_params(ctx))

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Show the commands, and then the options if help was asked for. A call without arguments shows only
        the commands, which fit on a screen."""
        asked = ctx.meta.get(ASKED, True)
        commands, options = copy(self), copy(self)
        commands.params, commands.add_help_option = [], False
        options.commands, options.help, options.epilog = {}, None, None
        options.get_usage = lambda ctx: OPTIONS  # type: ignore[method-assign]
        if not asked:
            commands.epilog = f"{self.epilog}\n\n{MORE}"
        TyperGroup.format_help(commands, ctx, formatter)
        if asked:
            TyperGroup.format_help(options, ctx, formatter)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse arguments. The group's flags may stand behind the command too, except behind `--`."""
        ctx.meta[ASKED] = bool(args)
        flags = _names(p for p in self.params if getattr(p, "is_flag", False) and not p.is_eager)
        flags -= {name for command in self.commands.values() for name in _names(command.params)}
        end = args.index("--") if "--" in args else len(args)
        own = [a for a in args[:end] if a in flags]
        rest: list[str] = super().parse_args(
            ctx, [*own, *(a for a in args[:end] if a not in flags), *args[end:]]
        )
        return rest


def among(option: str) -> Callable[[str], list[str]]:
    """Return a function that completes an option's value for a shell. In a list with commas, it completes the
    last value."""

    def completed(incomplete: str) -> list[str]:
        before, comma, last = incomplete.rpartition(",")
        return [f"{before}{comma}{value}" for value in _values(option) if value.startswith(last)]

    return completed


def _values(option: str) -> list[str]:
    """Return the values that an option takes, or those that have names. Their modules are imported only when
    a shell requests a completion."""
    from jangin.ahead.emit import KINDS
    from jangin.bench.engines import PEERS, STUDIED
    from jangin.blas.library import KINDS as BLAS_KINDS
    from jangin.commands.inspect import SCHEDULE
    from jangin.options import OBJECTIVES
    from jangin.passes.table import GRAPH_PASSES
    from jangin.pictures import PIXELS
    from jangin.quantization.observers import METHODS
    from jangin.study.settings import PRECISIONS
    from jangin.targets import NAMED
    from jangin.training.losses import BY_NAME as LOSSES

    known: dict[str, Iterable[str]] = {
        "loss": LOSSES,
        "target": ("cpu", *NAMED),
        "pixels": PIXELS,
        "emit": ("jgn", *KINDS),
        "blas": BLAS_KINDS,
        "method": METHODS,
        "against": ("all", *PEERS),
        "engines": ("all", *STUDIED),
        "precision": PRECISIONS,
        "objective": OBJECTIVES,
        "show": (*SCHEDULE, "llvm", "asm"),
        "after": (*(step.name for step in GRAPH_PASSES), "plan"),
    }
    return [*known[option]]
