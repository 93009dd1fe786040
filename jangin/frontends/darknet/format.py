"""Darknet's networks: a .cfg, with its .weights beside it under the same stem, or as `weights`."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from jangin.frontends.format import Contents, TwoFiles

if TYPE_CHECKING:
    from jangin.frontends.assemble import ShapeBindings
    from jangin.frontends.dialect import Imported

START = re.compile(rb"(\s*([#;][^\n]*)?\n)*\s*\[net(work)?\]")


class DarknetFormat(TwoFiles):
    name = "Darknet"
    structure, suffix = "a Darknet cfg", ".weights"

    def reads(self, contents: Contents) -> bool:
        return START.match(contents.data[:4096]) is not None

    def load(self, contents: Contents, shapes: ShapeBindings) -> Imported:
        from jangin.frontends.darknet.dialect import DARKNET
        from jangin.frontends.darknet.importer import Network
        from jangin.frontends.darknet.sections import Weights
        from jangin.frontends.dialect import Imported
        from jangin.mapped import map_file

        path = self.found(contents)
        network = Network(bytes(contents.data).decode(), Weights(map_file(path), str(path)))
        return Imported(network.imported(shapes), DARKNET)
