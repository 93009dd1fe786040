"""`install`: put Jangin in place of `onnxruntime` for programs that import it.

`import onnxruntime` and `import onnxruntime.anything` then return the modules of `jangin.onnxruntime`
themselves, so that each class exists once."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from importlib.abc import Loader
else:
    Loader = object  # importing the real one takes 2 ms, and Python asks for its methods alone

THEIRS, OURS = "onnxruntime", "jangin.onnxruntime"


class _Finder(Loader):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname.partition(".")[0] != THEIRS:
            return None
        name = OURS + fullname.removeprefix(THEIRS)
        if importlib.util.find_spec(name) is None:
            raise ModuleNotFoundError(
                f"Jangin, which stands in for onnxruntime, has no module {fullname!r}", name=fullname
            )
        return ModuleSpec(fullname, self, origin=name, is_package=True)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        name = module.__name__
        sys.modules[name] = importlib.import_module(OURS + name.removeprefix(THEIRS))


def install() -> None:
    """Make `import onnxruntime` import Jangin. Raises ImportError if the real package has been imported."""
    if any(isinstance(finder, _Finder) for finder in sys.meta_path):
        return
    if f"{THEIRS}.capi" in sys.modules:
        raise ImportError("onnxruntime is imported already: call jangin.onnxruntime.install() before that")
    sys.meta_path.insert(0, _Finder())
    sys.modules[THEIRS] = importlib.import_module(OURS)


def uninstall() -> None:
    """Make `import onnxruntime` import the real package again. Modules that have imported Jangin's keep
    it."""
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        return
    sys.meta_path[:] = [finder for finder in sys.meta_path if not isinstance(finder, _Finder)]
    for name in [n for n in sys.modules if n.partition(".")[0] == THEIRS]:
        del sys.modules[name]
