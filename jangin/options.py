"""All options of a compilation, once: their types, defaults, help texts and flags.

A door of the package (`jangin.compile`, a command) makes one `Options` of what its caller says. Everything
behind the door takes that record whole. A new option is a line in `Common` or `Given` and one in `Options`.

Nothing slow is imported here, because the compiler's process starts after this module is read."""

from __future__ import annotations

from functools import wraps
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, NoReturn, TypedDict, TypeVar, Unpack, cast

from jangin.environment import HOST, target_name
from jangin.once import once

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from pathlib import Path

    from jangin.custom import CustomOperator
    from jangin.frontends.format import Format
    from jangin.ir.limits import Limits
    from jangin.targets.target import Target
    from jangin.templates.template import Candidate

T = TypeVar("T")
Door = TypeVar("Door", bound="Callable[..., Any]")
Keyed = bool | Literal["for several"]

LIBRARIES = ("never", "auto", "openblas", "onednn", "clblast", "cublas", "cudnn")
LATENCY = "latency"
OBJECTIVES = (LATENCY, "energy", "edp")
_NONE: Mapping[str, Any] = MappingProxyType({})


class Common(TypedDict, total=False):
    """The options that every door takes by keyword."""

    weights: str | Path | None
    winograd: bool
    libraries: str
    unchecked: bool
    bf16: bool
    deterministic_time: bool
    tf32: bool
    operators: Sequence[CustomOperator]
    formats: Sequence[Format]
    cache: bool | str | Path
    limits: Limits | None


class Given(Common, total=False):
    """The options that `jangin.build` and `jangin.compile` take by keyword."""

    tune: str | float | None
    objective: str
    sizes: Mapping[str, int] | None
    isolated: bool | None


class Ready(Given, total=False):
    """The options that `jangin.compile` takes by keyword."""

    wait: bool


class About(NamedTuple):
    """The description of an option.

    `flag` is the option's name on the command line, "" if there is none. `keyed` says whether compiled models
    differ by the option, so that the cache's key has it. "for several" limits this to models for several
    devices."""

    default: Any
    help: str
    flag: str = ""
    keyed: Keyed = False


def _option(default: T, help: str, flag: str = "", keyed: Keyed = False) -> T:
    """Declare a field of `Options`. A type checker sees the field's default. At run time the class body gets
    an `About`, which has the help text and the flag."""
    return cast(T, About(default, help, flag, keyed))


class Options:
    """A caller's options for one compilation. The object never changes: `but` makes another.

    `asked` is the target as it was given. `target` is the target that `asked` names."""

    asked: str | Target | None = _option(
        None,
        'A target\'s name ("cpu" is this machine, "x86-64-v3" a level), or a target of your own; by default '
        "what JANGIN_TARGET names, or else cpu.",
        "--target",
        keyed=True,
    )
    threads: int | None = _option(
        None,
        "How many threads will run the model, for which tuning measures; by default as many as the process "
        "may use.",
        "--threads",
        keyed="for several",  # measured times for this number of threads decide where nodes run
    )
    shapes: Mapping[str, Any] = _option(
        _NONE,
        'Sizes that are known: {"batch": 1} of a symbol, {"seq": (1, 512)} its inclusive range, '
        '{"image": (1, 3, 224, 224)} a whole input.',
        "--shape",
        keyed=True,
    )
    weights: str | Path | None = _option(
        None,
        "The file of a Caffe or Darknet model's weights, if it doesn't lie beside the model under its stem.",
        "--weights",
    )
    winograd: bool = _option(
        True,
        "Convolutions of 3 x 3 may be computed by Winograd's method, with errors up to 1e-5 of the output's "
        "largest value.",
        "--winograd/--no-winograd",
        keyed=True,
    )
    libraries: str = _option(
        "never",
        "Whose kernels compete with ours in tuning: never (ours alone), auto (all libraries that are here), "
        "openblas or onednn on processors, clblast on OpenCL devices, cublas and cudnn on NVIDIA's GPUs, or "
        "several with commas between them. A library that is asked for by name also makes what wasn't tuned.",
        "--libraries",
        keyed=True,
    )
    unchecked: bool = _option(
        False,
        "A run takes an index out of range for the nearest in range, and leaves out an update at it; without "
        "this option the run fails.",
        "--unchecked",
        keyed=True,
    )
    bf16: bool = _option(
        True,
        "Products of bfloat16 and float16 may be made by a processor's 16-bit instructions, which take "
        "subnormal numbers of bfloat16 for 0; without this option they are products of float32.",
        "--bf16/--no-bf16",
        keyed=True,
    )
    deterministic_time: bool = _option(
        False,
        "A run does the same work for all data: both branches of a condition are computed. A warning names "
        "the nodes for which this isn't possible.",
        "--deterministic-time",
        keyed=True,
    )
    tf32: bool = _option(
        False,
        "Products of float32 may be made of numbers rounded to tf32, with errors of up to 5e-4 each, on "
        "GPUs whose tensor cores multiply them (10 bits of the fraction).",
        "--tf32/--no-tf32",
        keyed=True,
    )
    operators: Sequence[CustomOperator] = _option(
        (), "Operators of your own (see jangin.custom). A model compiled with one is not cached."
    )
    formats: Sequence[Format] = _option(
        (),
        "Formats that are asked before Jangin's: your own, or Jangin's with settings "
        '(GgufFormat(cache="int8")). A model compiled with one of your own is not cached.',
        keyed=True,
    )
    cache: bool | str | Path = _option(
        True,
        "Where compiled models and tuning's results are kept and found: True for the user's cache folder, a "
        "path for another, False for nowhere.",
        "--cache-dir",
    )
    limits: Limits | None = _option(
        None,
        "What compiling may take of time, memory and nodes (see jangin.Limits); on the command line as in "
        "seconds=60,memory=2G.",
        "--limits",
    )
    tune: str | float | None = _option(None, 'How long ("60s", "2m") to measure candidates before compiling.')
    objective: str = _option(
        LATENCY,
        "What is made least: latency (seconds), energy (joules above rest) or edp (their product). Device, "
        "threads and candidates are those that tuning by this objective found here, by measured joules.",
        "--objective",
    )
    sizes: Mapping[str, int] | None = _option(
        None, "The sizes of symbols that stay open for which tuning measures.", keyed="for several"
    )
    isolated: bool | None = _option(
        None,
        "Compile in a process of its own, whose memory the system gets back; by default so if this process "
        "hasn't loaded the compiler yet, and never with anything of your own.",
    )
    wait: bool = _option(
        True,
        "Wait until the model is compiled. With False another process compiles it, and NumPy runs the model "
        "meanwhile.",
    )
    verify: bool = _option(False, "Check the IR after every pass; no result changes.")
    choices: Mapping[str, Candidate] = _option(
        _NONE, "The candidates that tuning found for kernels, by digest.", keyed=True
    )

    def __init__(
        self,
        target: str | Target | None = None,
        shapes: Mapping[str, Any] | None = None,
        threads: int | None = None,
        *,
        verify: bool = False,
        choices: Mapping[str, Candidate] = _NONE,
        **given: Unpack[Ready],
    ) -> None:
        refuse_unknown("Options", given, Ready.__annotations__)
        values = {name: about.default for name, about in ABOUT.items()}
        values |= {"asked": target, "shapes": dict(shapes or {}), "threads": threads}
        values |= {"verify": verify, "choices": dict(choices), **given}
        self._set(values)

    def _set(self, values: Mapping[str, Any]) -> None:
        self.__dict__.update(values)
        if not {*self.libraries.split(",")} <= {*LIBRARIES}:
            raise ValueError(f"libraries={self.libraries!r} is unknown; known: {', '.join(LIBRARIES)}")
        if self.objective not in OBJECTIVES:
            raise ValueError(f"objective={self.objective!r} is unknown; known: {', '.join(OBJECTIVES)}")

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise AttributeError(f"options never change: but({name}=...) makes others")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Options) and self.values == other.values

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        said = (f"{n}={v!r}" for n, v in self.values.items() if v != ABOUT[n].default)
        return f"Options({', '.join(said)})"

    def but(self, **changes: Any) -> Options:
        """Return these options with some fields changed."""
        if "target" in changes:
            changes["asked"] = changes.pop("target")
        refuse_unknown("Options", changes, ABOUT)
        options = Options.__new__(Options)
        resolved = {} if "asked" in changes else {n: v for n, v in self.__dict__.items() if n == "target"}
        options._set({**self.values, **resolved, **changes})
        return options

    @property
    def for_host(self) -> bool:
        """Whether the target is this machine. Nothing of the target is needed to know it."""
        return (target_name() if self.asked is None else self.asked) in (None, *HOST)

    @property
    def values(self) -> dict[str, Any]:
        """The fields as they were given, by name."""
        return {name: getattr(self, name) for name in ABOUT}

    @once
    def target(self) -> Target:
        """The target that `asked` names. Raises ValueError for an unknown name."""
        from jangin.targets import resolve

        return resolve(self.asked)

    @property
    def own(self) -> bool:
        """Whether an operator, format or target is the caller's own. If so, no result is cached or made by
        another process."""
        if self.operators or not (self.asked is None or isinstance(self.asked, str)):
            return True
        if not self.formats:
            return False
        from jangin.frontends.table import is_own

        return not all(map(is_own, self.formats))

    @property
    def lowerings(self) -> dict[tuple[str, str], Any]:
        """The functions that lower the caller's own operators, by domain and name."""
        return {(o.domain, o.name): o.lower for o in self.operators}

    @property
    def parts(self) -> list[Options]:
        """The options of each device of the target. The choices of a device begin with its number."""
        if len(self.target.each) == 1:
            return [self]
        return [
            self.but(
                target=target,
                choices={k.partition(" ")[2]: c for k, c in self.choices.items() if k.startswith(f"{n} ")},
            )
            for n, target in enumerate(self.target.each)
        ]

    def of_parts(self, choices: Sequence[Mapping[str, Candidate]]) -> Options:
        """Return these options with the choices of each of `parts`."""
        if len(self.target.each) == 1:
            return self.but(choices=choices[0])
        numbered = {f"{n} {k}": c for n, own in enumerate(choices) for k, c in own.items()}
        return self.but(choices=numbered)

    def key(self) -> str:
        """Return a text that differs exactly if a keyed field differs."""
        kinds = (True, "for several") if len(self.target.each) > 1 else (True,)
        names = (n for n, about in ABOUT.items() if about.keyed in kinds and n != "asked")
        return " ".join((repr(self.target), *(f"{n}={_text(getattr(self, n))}" for n in names)))


ABOUT: Mapping[str, About] = {n: a for n, a in vars(Options).items() if isinstance(a, About)}
"""The description of each field of `Options`."""


def _text(value: Any) -> str:
    """Return a text of a field's value that doesn't depend on its order or its kind of container."""
    if hasattr(value, "items"):
        return repr(sorted((name, str(v)) for name, v in value.items()))
    return repr(list(value) if isinstance(value, (list, tuple)) else value)


def refuse_unknown(door: str, given: Iterable[str], known: Iterable[str]) -> None:
    """Raise TypeError for an unknown name, with the nearest known one."""
    known = [*known]
    for name in given:
        if name not in known:
            from difflib import get_close_matches

            near = get_close_matches(name.lower(), known, 1)
            hint = f": did you mean {near[0]}?" if near else f"; there are {', '.join(known)}"
            raise TypeError(f"{door}() takes no option {name!r}{hint}")


def takes(group: type) -> Callable[[Door], Door]:
    """Make a function take a group of options by keyword: `Common`, `Given` or `Ready`.

    Its signature and docstring show each option. A keyword that it doesn't know is refused."""
    names = [n for n in ABOUT if n in group.__annotations__]

    def decorated(door: Door) -> Door:
        shown = _shown(door, names)
        own = door.__code__.co_varnames[: door.__code__.co_argcount + door.__code__.co_kwonlyargcount]
        known = (*own, *names)

        @wraps(shown)
        def entered(*args: Any, **given: Any) -> Any:
            refuse_unknown(door.__name__, given, known)
            return door(*args, **given)

        return cast(Door, entered)

    return decorated


def _shown(door: Callable[..., Any], names: Sequence[str]) -> Callable[..., Any]:
    """Return a function with a door's signature and docstring and, instead of `**given`, each option by its
    name.

    `inspect.signature` would make one too, but takes longer to import than this module."""
    code = door.__code__
    first = code.co_varnames[: code.co_argcount]
    rest = (*code.co_varnames[code.co_argcount : code.co_argcount + code.co_kwonlyargcount], *names)
    namespace: dict[str, Any] = {}
    exec(
        f"def {door.__name__}({', '.join((*first, '*', *rest))}): ...",
        {"__name__": door.__module__},
        namespace,
    )
    shown: Callable[..., Any] = namespace[door.__name__]
    shown.__code__ = shown.__code__.replace(co_filename=code.co_filename, co_firstlineno=code.co_firstlineno)
    shown.__defaults__ = door.__defaults__
    shown.__kwdefaults__ = {**(door.__kwdefaults__ or {}), **{n: ABOUT[n].default for n in names}}
    kept = {n: t for n, t in door.__annotations__.items() if n in (*first, *rest)}
    types = {n: Options.__annotations__[n] for n in names}
    shown.__annotations__ = {**kept, **types, "return": door.__annotations__["return"]}
    about = "\n".join(f"    - `{n}`: {ABOUT[n].help}" for n in names)
    shown.__doc__ = f"{(door.__doc__ or '').rstrip()}\n\n{about}\n"
    shown.__module__, shown.__qualname__ = door.__module__, door.__qualname__
    return shown
