"""Check what needs no particular system: importing Jangin, compiling a model, describing the result.

`python tests/faults/elsewhere.py` runs it on the system at hand, and ends with an error if anything fails.
It says whether the model also runs there.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import numpy as np
from onnx import parser
from other_system import described, imported

import jangin

TEXT = """<ir_version: 8, opset_import: ["": 17]>
g (float[n,3] x) => (float[n,3] y) { two = Constant <value_float = 2.0> () m = Mul(x, two) y = Tanh(m) }"""


def main() -> None:
    print(f"{imported()} modules of the package are imported on {sys.platform}")
    built = jangin.build(parser.parse_model(TEXT), "x86-64-v3", 2, cache=False, isolated=False)
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / "model.jgn")
        built.save(path)
        found = described(path)
        assert "float32[" in found["summary"], found
        assert not found["loading"] or found["loading"].startswith("LoadError: "), found
        print(found["loading"] or "the model runs here")
        if not found["loading"]:
            x = np.linspace(-1, 1, 6, dtype=np.float32).reshape(2, 3)
            np.testing.assert_allclose(jangin.load(path)(x), np.tanh(2 * x), rtol=1e-5)


if __name__ == "__main__":
    main()
