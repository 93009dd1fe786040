"""Import the sections that find boxes: the versions of YOLO, and the suppression of boxes that overlap."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from jangin.frontends.darknet.layers import Layers
from jangin.frontends.darknet.sections import Weights
from jangin.ir.graph import CompileError, ImportedAttributes, Node
from jangin.ir.sources import Sources


class Boxes(Layers):
    """The sections that find boxes."""

    def __init__(self, text: str, weights: Weights) -> None:
        super().__init__(text, weights)
        self.options: dict[str, Any] = {}

    def suppress(self, overlap: float, score: float, most: int) -> None:
        """Have non-maximum suppression added at the end of the network. At most `most` boxes are kept. A box
        is kept if its score is above `score` and it overlaps no better box by more than `overlap`."""
        self.options = {"overlap": overlap, "score": score, "most": most}

    def _suppressed(self) -> None:
        """Replace the outputs that have boxes by one output, whose boxes are suppressed."""
        if not self.outputs:
            raise CompileError("there are no boxes to suppress: the cfg has no [yolo] and no [region]")
        attrs = ImportedAttributes("darknet.nms", self.options)
        name = "detections"
        self.nodes.append(Node(name, tuple(self.outputs), (name,), attrs, Sources.of("suppressing of boxes")))
        self.outputs = [name]

    def _chosen_anchors(self) -> list[tuple[float, float]]:
        """Return the anchors that the mask chooses, as fractions of the image."""
        s = self.section
        anchors = s.numbers("anchors")
        mask = [int(m) for m in s.numbers("mask")] or list(range(s.whole("num", len(anchors) // 2)))
        s.asked.add("num")
        if any(not 0 <= m < len(anchors) // 2 for m in mask):
            most = len(anchors) // 2 - 1
            raise CompileError(
                f"[{s.kind}] layer {self.place}: mask={mask} should have numbers from 0 to {most}"
            )
        return [(anchors[2 * m] / self.size[2], anchors[2 * m + 1] / self.size[1]) for m in mask]

    def _plain_suppression(self) -> None:
        """Raise CompileError if the section measures overlaps for suppression in an unsupported way."""
        kind = self.section.text("nms_kind", "default")
        if self.options and kind not in ("default", "greedynms"):
            raise CompileError(f"[{self.section.kind}] layer {self.place}: nms_kind={kind} is not supported")

    def _yolo(self) -> None:
        s = self.section
        self._plain_suppression()
        attrs = {"scale_x_y": s.number("scale_x_y", 1), "new_coords": s.whole("new_coords", 0)}
        self._detections(s.whole("classes", 20, 1), self._chosen_anchors(), attrs)

    def _gaussian_yolo(self) -> None:
        s = self.section
        self._plain_suppression()
        points = {"center": 0.0, "left_top": 0.5, "right_bottom": -0.5}
        point = s.text("yolo_point", "center")
        if point not in points:
            raise CompileError(f"[gaussian_yolo] layer {self.place}: yolo_point={point} is not supported")
        attrs = {"scale_x_y": s.number("scale_x_y", 1), "point": points[point]}
        self._detections(s.whole("classes", 20, 1), self._chosen_anchors(), attrs, 9)

    def _detection(self) -> None:
        """Add the decoding of YOLO's first version. Its input has the classes of all cells, then the boxes'
        probabilities, then the boxes."""
        s = self.section
        classes, side, count = s.whole("classes", 1, 1), s.whole("side", 7, 1), s.whole("num", 1, 1)
        size = math.prod(self.last.size)
        if s.whole("coords", 1) != 4 or size != side * side * (classes + 5 * count):
            raise CompileError(
                f"[detection] layer {self.place} reads {size} numbers, which aren't {side} x {side} "
                f"cells of {classes} classes and {count} boxes of 4 coordinates"
            )
        s.only(reorg=0)
        attrs = {
            "side": side, "count": count, "classes": classes, "softmax": s.whole("softmax", 0),
            "squared": s.whole("sqrt", 0),
        }  # fmt: skip
        self._add((side * side * count, classes + 5, 1), [self.last.name], attrs)
        self.outputs.append(self.layers[-1].name)

    def _region(self) -> None:
        s, (_, h, w) = self.section, self.last.size
        numbers = s.numbers("anchors")
        anchors = [(numbers[i] / w, numbers[i + 1] / h) for i in range(0, len(numbers) - 1, 2)]
        s.asked.update(("num", "sqrt", "background", "tree"))
        if s.whole("coords", 4) != 4 or "tree" in s.options or s.whole("background", 0):
            raise CompileError(
                f"[region] layer {self.place}: other coordinates, trees or a background are not supported"
            )
        self._detections(s.whole("classes", 20, 1), anchors, {"softmax": s.whole("softmax", 0)})

    def _detections(
        self, classes: int, anchors: list[tuple[float, float]], attrs: Mapping[str, Any], more: int = 5
    ) -> None:
        c, h, w = self.last.size
        if not anchors or c != len(anchors) * (classes + more):
            raise CompileError(
                f"[{self.section.kind}] layer {self.place} reads {c} channels, which aren't "
                f"{len(anchors)} anchors of {classes} classes and {more} more"
            )
        attributes = {"classes": classes, "anchors": anchors, **attrs}
        self._add((h * w * len(anchors), classes + 5, 1), [self.last.name], attributes)
        self.outputs.append(self.layers[-1].name)
