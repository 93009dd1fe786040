"""Import LLVM by llvmlite, and check its version. No other module imports llvmlite."""

from __future__ import annotations

from typing import Any

CHECKED = frozenset({(22, 1, 0)})
"""Versions of LLVM with which all of `tests/instr/test_masked_accesses.py` passed. A faulty version stores
more elements than a mask allows, without an error.

22.1.0 is faulty, but `LlvmWriter` avoids the code that shows the fault."""
OLDEST, LLVMLITE = 22, "llvmlite>=0.50"
"""The first release of LLVM that can read the back end's output, and the requirement by which pip installs
it."""


class LlvmError(OSError):
    """LLVM is missing, too old, or can't be loaded. The message has a remedy."""


def binding() -> Any:
    """Return llvmlite's binding. Raises LlvmError."""
    install = f'python -m pip install --upgrade "{LLVMLITE}"'
    try:
        import llvmlite
        import llvmlite.binding as llvm

        version = tuple(llvm.llvm_version_info)
    except ModuleNotFoundError as error:
        if error.name != "llvmlite":
            raise
        raise LlvmError(
            f"llvmlite, which makes the code for processors, isn't installed: {install}"
        ) from None
    except (AttributeError, ImportError, OSError) as error:
        raise LlvmError(
            f"llvmlite, which makes the code for processors, can't be loaded ({error}): install it anew, "
            f'python -m pip install --force-reinstall "{LLVMLITE}"'
        ) from None
    if version[0] < OLDEST:
        has, needs = ".".join(map(str, version)), f"LLVM {OLDEST} or later"
        raise LlvmError(
            f"llvmlite {llvmlite.__version__} brings LLVM {has}, and Jangin needs {needs}: {install}"
        )
    return llvm


def is_checked() -> bool:
    """Tell if the installed version is in CHECKED. Raises LlvmError."""
    return tuple(binding().llvm_version_info) in CHECKED


def version() -> str:
    """Return LLVM's version, such as "22.1.0". Raises LlvmError."""
    return ".".join(map(str, binding().llvm_version_info))
