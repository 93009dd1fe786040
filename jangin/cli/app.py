"""The application, and the options that stand before a command."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import Annotated, Any

import typer

from jangin.commands.common import Settings, parse_limits, plain
from jangin.commands.help import Command, Group, example
from jangin.options import ABOUT, Common, Options
from jangin.version import __version__

app = typer.Typer(
    name="jangin",
    cls=Group,
    help="A deep-learning compiler: run, time, look into and save models.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(wanted: bool) -> None:
    if wanted:
        print(f"jangin {__version__}")
        raise typer.Exit


BEFORE = [name for name in Common.__annotations__ if ABOUT[name].flag]
"""The options that stand before the command. Those of one model's compilation stand after it."""
KINDS = {"bool": bool, "str": str}
"""Maps an option's type to the type of its value on the command line. A type that is in neither `KINDS` nor
`READ` is a path."""
READ: Mapping[str, Callable[[str], Any]] = {"limits": parse_limits}
"""Maps an option's name to the function that parses the option's text."""


def options(
    context: typer.Context,
    no_cache: Annotated[
        bool, typer.Option("--no-cache", envvar="JANGIN_NO_CACHE", help="Keep and reuse nothing.")
    ] = False,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Say what takes time.")] = False,
    tabs: Annotated[
        bool, typer.Option("--plain", help="Write tables for other programs: a row a line, with tabs.")
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show an error's traceback.")] = False,
    version: Annotated[
        bool,
        typer.Option("--version", help="Print the version.", is_eager=True, callback=_version),
    ] = False,
    **given: Any,
) -> None:
    plain(tabs)
    told: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    told |= {name: read(told[name]) for name, read in READ.items() if name in told}
    context.obj = Settings(verbose, **{**told, **({"cache": False} if no_cache else {})})


def _parameter(name: str) -> Parameter:
    """Return the parameter of an option's flag, for typer."""
    kind = str if name in READ else KINDS.get(Options.__annotations__[name], Path)
    flag = typer.Option(ABOUT[name].flag, help=ABOUT[name].help, show_default=False)
    return Parameter(name, Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[kind | None, flag])


def _with_flags(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the flags of `BEFORE` in place of its `**given`, for typer."""
    *own, _ = signature(command, eval_str=True).parameters.values()
    shown = Signature([*own, *map(_parameter, BEFORE)])
    command.__signature__ = shown  # type: ignore[attr-defined]
    command.__annotations__ = {p.name: p.annotation for p in shown.parameters.values()}
    return command


app.callback(epilog=example("run"))(_with_flags(options))


def command(work: Callable[..., None]) -> Callable[..., None]:
    """Make a function the command of its name. Its help has an example. The list of commands has the first
    sentence of its docstring."""
    name = work.__name__.removesuffix("_command")
    first = " ".join((work.__doc__ or "").split()).partition(". ")[0].removesuffix(".")
    return app.command(name, cls=Command, epilog=example(name), short_help=f"{first}.")(work)
