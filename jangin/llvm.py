"""LLVM as llvmlite brings it along: which one is here. Nothing else imports llvmlite."""

from __future__ import annotations

from typing import Any

CHECKED = frozenset({(22, 1, 0)})
"""Versions of LLVM with which all of `tests/instr/test_masked_accesses.py` passed. A wrong one stores more
than it is told to, and no error tells of that. 22.1.0 is one: `LlvmWriter` hides from it what it would do so
with."""
OLDEST, LLVMLITE = 22, "llvmlite>=0.50"
"""The first release of LLVM that reads what the back end writes, and what pip installs it by."""


class LlvmError(OSError):
    """LLVM is missing, too old, or can't be loaded: says what to do."""


def binding() -> Any:
    """llvmlite's binding. Raises LlvmError."""
    install = f'python -m pip install --upgrade "{LLVMLITE}"'
    try:
        import llvmlite
        import llvmlite.binding as llvm

        found = tuple(llvm.llvm_version_info)
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
    if found[0] < OLDEST:
        has, needs = ".".join(map(str, found)), f"LLVM {OLDEST} or later"
        raise LlvmError(
            f"llvmlite {llvmlite.__version__} brings LLVM {has}, and Jangin needs {needs}: {install}"
        )
    return llvm


def is_checked() -> bool:
    """Whether the version here is one of CHECKED. Raises LlvmError."""
    return tuple(binding().llvm_version_info) in CHECKED


def version() -> str:
    """LLVM's, as "22.1.0". Raises LlvmError."""
    return ".".join(map(str, binding().llvm_version_info))
