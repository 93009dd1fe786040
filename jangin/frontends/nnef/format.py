"""NNEF's models: a folder with a graph.nnef, an archive of such a folder, or the graph.nnef alone."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from jangin.frontends.format import Contents, Format
from jangin.frontends.nnef.files import GRAPH, InFolder, files_of, is_archive, is_model

if TYPE_CHECKING:
    from jangin.frontends.assemble import ShapeBindings
    from jangin.frontends.dialect import Imported


class NnefFormat(Format):
    name = "NNEF"

    def reads(self, contents: Contents) -> bool:
        return is_model(contents)

    def beside(self, contents: Contents) -> Mapping[str, Path | None]:
        if contents.path is None:
            return {}
        if not contents.data:
            return InFolder(contents.path).all()
        if is_archive(contents.data):
            return {}
        files = InFolder(contents.path.parent, contents.path)
        return {name: path for name, path in files.all().items() if name != GRAPH}

    def load(self, contents: Contents, shapes: ShapeBindings) -> Imported:
        from jangin.frontends.dialect import Imported
        from jangin.frontends.nnef.dialect import NNEF
        from jangin.frontends.nnef.importer import imported_graph

        graph, state = imported_graph(files_of(contents), shapes)
        return Imported(graph, NNEF, {"state": dict(state)} if state else {})
