"""Darknet's networks: a .cfg, with its .weights beside it under the same stem, or as `weights`."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from jangin.frontends.format import Contents, TwoFiles
from jangin.ir.records import dataclass

if TYPE_CHECKING:
    from jangin.frontends.assemble import ShapeBindings
    from jangin.frontends.dialect import Imported

START = re.compile(rb"(\s*([#;][^\n]*)?\n)*\s*\[net(work)?\]")


@dataclass(frozen=True)
class DarknetFormat(TwoFiles):
    """With `nms` given, as in `jangin.compile(cfg, formats=[DarknetFormat(nms=0.45)])`, the boxes of all
    [yolo] and [region] sections become one output `detections` [batch, `most`, 6]: centre, sizes, score and
    class of those that score above `score` and overlap no better one of their class by more than `nms`, the
    likeliest first; rows that are left over are 0."""

    nms: float | None = None
    score: float = 0.25
    most: int = 200
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
        if self.nms is not None:
            network.suppress(self.nms, self.score, self.most)
        return Imported(network.imported(shapes), DARKNET)
