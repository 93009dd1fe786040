"""The model's nodes that a part of the compilation comes from, by the names that the model's author knows."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple


class Source(NamedTuple):
    """A node of the model: Source("Conv", "conv1", "ai.onnx", 13). `place` is the node's position in its file
    ("line 12"). For a part that the compiler added, only `operator` is set, to words ("layout of x")."""

    operator: str
    name: str = ""
    domain: str = ""
    version: int = 0
    place: str = ""

    @property
    def is_own(self) -> bool:
        """Whether this is a node of the model."""
        return bool(self.name or self.domain or self.place)

    @property
    def title(self) -> str:
        """The operator and the name: "Conv 'conv1'"."""
        return f"{self.operator} '{self.name}'" if self.name else self.operator

    def __str__(self) -> str:
        """Return the title and, in parentheses, the place and the definition: "Conv 'conv1' (ai.onnx 13)"."""
        version = str(self.version) if self.version else ""
        defined = f"{self.domain} {version}".strip() if self.domain else version and f"version {version}"
        known = ", ".join(filter(None, (self.place, defined)))
        return f"{self.title} ({known})" if known else self.title


class Sources(tuple[Source, ...]):
    """The model's nodes that some part of the compilation comes from, in order and each once. It is empty if
    they aren't known."""

    __slots__ = ()

    @classmethod
    def of(
        cls, operator: str, name: str = "", domain: str = "", version: int = 0, place: str = ""
    ) -> Sources:
        """Return the sources that consist of one node."""
        return cls((Source(operator, name, domain, version, place),))

    @classmethod
    def joined(cls, sources: Iterable[Sources]) -> Sources:
        """Return the union of several sources, each node once."""
        return cls(dict.fromkeys(one for each in sources for one in each))

    @property
    def title(self) -> str:
        return "; ".join(one.title for one in self)

    def __str__(self) -> str:
        return "; ".join(map(str, self))


NO_SOURCE = Sources()


def operators(sources: Sources) -> str:
    """Return the operators of sources, such as "Conv+Relu"."""
    short = (s.operator.removeprefix("aten.").removesuffix(".default") for s in own(sources))
    return "+".join(dict.fromkeys(short))


def own(sources: Sources) -> list[Source]:
    """Return the sources that are the model's own. Return all if none is."""
    return [s for s in sources if s.is_own] or [*sources]
