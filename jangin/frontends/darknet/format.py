"""Darknet's networks: a .cfg, and .weights beside it with the same stem or given as `weights`."""

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
    """Darknet's networks, optionally with non-maximum suppression.

    If `nms` is given, as in `jangin.compile(cfg, formats=[DarknetFormat(nms=0.45)])`, the boxes of all [yolo]
    and [region] sections become one output `detections` [batch, `most`, 6]. A row has a box's centre, sizes,
    score and class.

    A box is kept if its score is above `score`, and if it overlaps no better box of its class by more than
    `nms`. The best boxes come first. Unused rows are 0."""

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
