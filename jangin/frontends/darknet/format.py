"""Darknet's networks: a .cfg, with its .weights beside it under the same stem."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from jangin.frontends.format import Contents, Format
from jangin.ir.graph import CompileError

if TYPE_CHECKING:
    from jangin.frontends.assemble import ShapeBindings
    from jangin.frontends.dialect import Imported

START = re.compile(rb"(\s*([#;][^\n]*)?\n)*\s*\[net(work)?\]")


class DarknetFormat(Format):
    name = "Darknet"

    def reads(self, contents: Contents) -> bool:
        return START.match(contents.data[:4096]) is not None

    def beside(self, contents: Contents) -> Mapping[str, Path | None]:
        path = _weights(contents)
        return {path.name: path if path.is_file() else None}

    def load(self, contents: Contents, shapes: ShapeBindings) -> Imported:
        from jangin.frontends.darknet.dialect import DARKNET
        from jangin.frontends.darknet.importer import Network
        from jangin.frontends.darknet.sections import Weights
        from jangin.frontends.dialect import Imported
        from jangin.mapped import map_file

        path = _weights(contents)
        if not path.is_file():
            raise CompileError(f"{contents} is a Darknet cfg, whose weights should lie beside it as {path}")
        network = Network(bytes(contents.data).decode(), Weights(map_file(path), str(path)))
        return Imported(network.imported(shapes), DARKNET)


def _weights(contents: Contents) -> Path:
    if contents.path is None:
        raise CompileError("a Darknet cfg is read from a path, as its weights lie beside it")
    return contents.path.with_suffix(".weights")
