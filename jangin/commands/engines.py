"""The engines that `jangin bench` and `jangin study` take."""

from __future__ import annotations

import importlib.util
import sys

from jangin.bench.engines import PEERS, STUDIED, installed, lacking


def parse_engines(text: str) -> tuple[str, ...]:
    """Return the engines of a study's list, in which "all" stands for all that are installed. Raises
    ValueError for an unknown one."""
    every = tuple(e for e in STUDIED if e in ("jangin", "aot") or (e in PEERS and installed(e)))
    return _known("--engines", text, STUDIED, every)


def parse_peers(text: str) -> tuple[str, ...]:
    """Return the peers of a list, in which "all" stands for all that are installed. Raises ValueError for an
    unknown one, and for one that lacks a package, with the command that installs it."""
    every = tuple(peer for peer in PEERS if not lacking(peer))
    names = _known("--against", text, tuple(PEERS), every)
    absent = [*filter(None, (lacking(name) for name in names if name in PEERS))]
    if absent:
        raise ValueError(f"--against {text}: {'; '.join(absent)}")
    return names


def _known(option: str, text: str, known: tuple[str, ...], every: tuple[str, ...]) -> tuple[str, ...]:
    asked = filter(None, text.split(","))
    names = tuple(dict.fromkeys(n for name in asked for n in (every if name == "all" else (name,))))
    for name in names:
        if name in known or _own_engine(name):
            continue
        module, _, function = name.partition(":")
        if module and function:
            raise ValueError(f"{option} {name!r}: module {module} is neither installed nor in this folder")
        raise ValueError(
            f"{option} {name!r} is unknown: there are all, {', '.join(known)}, and module:function"
        )
    return names


def _own_engine(name: str) -> bool:
    """Return whether a name is `module:function` of a module that workers find. They look in the current
    folder first."""
    module, _, function = name.partition(":")
    before = [*sys.path]
    sys.path.insert(0, "")
    try:
        return bool(function and importlib.util.find_spec(module))
    except (ImportError, ValueError):  # its package isn't there, or can't be imported
        return False
    finally:
        sys.path[:] = before
