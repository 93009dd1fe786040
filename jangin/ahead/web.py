"""Write a model as a package for WebGPU: shaders, and a JavaScript module that loads and runs them in a
browser or another runtime.

`web.mjs` is the loader, `web_tune.mjs` measures candidates, `web.html` is an example page, and `web.d.ts` has
the types.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from jangin.ahead.model import Model, Tensor
from jangin.ahead.output import Content
from jangin.ahead.web_candidates import Candidates, sections
from jangin.ahead.web_package import ARRAYS, Package
from jangin.ir.graph import CompileError
from jangin.version import __version__


def web_files(model: Model, fallback: str = "") -> dict[str, Content]:
    """Return the files of a package, by name. `fallback` is the name of the WebAssembly beside it, or "" for
    none. Raises CompileError if a size is open."""
    part = model.parts[0]
    if model.symbols or len(model.parts) > 1:
        raise CompileError(
            f"the sizes {', '.join(model.symbols)} aren't known, and for WebGPU all must be: give them with "
            "--shape (shapes=)"
        )
    package = Package(part.plan)
    p, data, code = model.prefix, json.dumps(package.data(model)), sections(package.shaders)
    told = {"<P>": p, "<NAME>": model.name.replace("*/", ""), "<MODEL>": data}
    told["<FALLBACK>"] = f"{fallback}.mjs" if fallback else ""
    tuning = _tuning(p, Candidates(package, model.ways, data.encode() + code)) if model.ways else {}
    told["<TUNING>"] = next(iter(tuning), "")
    beside = [f"{fallback}.{kind}" for kind in ("mjs", "wasm", "bin")] if fallback else []
    told |= {"<INPUTS>": _types(model.inputs, " | GPUBuffer"), "<OUTPUTS>": _types(model.outputs, "")}
    npm = {
        "name": p.lower().replace("_", "-"), "version": "1.0.0", "type": "module", "private": True,
        "description": f"{model.name}, compiled by Jangin {__version__} for WebGPU",
        "exports": {".": {"types": f"./{p}.d.ts", "default": f"./{p}.mjs"}},
        "files": [f"{p}.mjs", f"{p}.wgsl", f"{p}.bin", f"{p}.d.ts", *tuning, *beside],
    }  # fmt: skip
    return {
        f"{p}.mjs": [_filled("web.mjs", told)],
        f"{p}.wgsl": [code],
        f"{p}.bin": [*package.weights()],
        f"{p}.d.ts": [_filled("web.d.ts", told)],
        "package.json": [json.dumps(npm, indent=2).encode()],
        "index.html": [_filled("web.html", told)],
        **tuning,
    }


def _tuning(p: str, candidates: Candidates) -> dict[str, Content]:
    """Return the files with candidates, the module first."""
    module = f"{p}_tune.mjs"
    return {
        module: [_filled("web_tune.mjs", {"<P>": p, "<TUNING>": json.dumps(candidates.data())})],
        f"{p}_tune.wgsl": [candidates.code],
        f"{p}_tune.bin": [*candidates.weights()],
    }


def _filled(name: str, told: Mapping[str, str]) -> bytes:
    text = Path(__file__).with_name(name).read_text()
    for mark, value in told.items():
        text = text.replace(mark, value)
    return text.encode()


def _types(tensors: tuple[Tensor, ...], more: str) -> str:
    return ", ".join(f"{t.field}: {ARRAYS.get(t.dtype.name, 'Uint8Array')}{more}" for t in tensors)
