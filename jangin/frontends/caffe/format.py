"""Caffe's networks: a prototxt, and a caffemodel beside it with the same stem or given as `weights`."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from jangin.frontends.format import Contents, TwoFiles

if TYPE_CHECKING:
    from jangin.frontends.assemble import ShapeBindings
    from jangin.frontends.dialect import Imported

START = re.compile(
    rb"(\s+|#[^\n]*\n)*(name\s*:\s*[\"']|layers?\s*\{|input\s*:\s*[\"']|input_(shape|dim)\s*[:{]|state\s*\{"
    rb"|force_backward\s*:|debug_info\s*:|default_forward_type\s*:)"
)
LAYER = re.compile(rb"\blayers?\s*:?\s*\{")


class CaffeFormat(TwoFiles):
    name = "Caffe"
    structure, suffix = "a Caffe prototxt", ".caffemodel"

    def reads(self, contents: Contents) -> bool:
        head = bytes(contents.data[:65536])
        return START.match(head) is not None and LAYER.search(head) is not None

    def load(self, contents: Contents, shapes: ShapeBindings) -> Imported:
        from jangin.frontends.caffe.dialect import CAFFE
        from jangin.frontends.caffe.importer import Network
        from jangin.frontends.caffe.weights import read_blobs
        from jangin.frontends.dialect import Imported
        from jangin.mapped import map_file

        path = self.found(contents)
        network = Network(bytes(contents.data).decode(), read_blobs(map_file(path), str(path)))
        return Imported(
            network.imported(shapes), CAFFE, {"graph_name": network.name, "producer_name": "Caffe"}
        )
