"""Run PyTorch's tests of Inductor with Jangin in Inductor's place, and print the failures as JSON.

    python inductor_runner.py whole|looks|rounds [NAME... | SEED COUNT]

The folder of `test_torchinductor.py` is in PYTHONPATH. `whole` runs tests as they are. `looks` counts
no kernels and reads no code, so that results alone are compared. `rounds` compares them with those of
float64. Without names, all tests on the CPU run, or a sample that the seed draws.
"""

from __future__ import annotations

import json
import sys
import unittest
from collections.abc import Callable, Sequence
from importlib import import_module
from random import Random
from typing import Any

import torch
import torch._inductor.compile_fx as inductor

from jangin.torch_backend import backend

ROUNDINGS = 2.0
"""The most times by which our distance from float64's results may exceed that of PyTorch's float32. Both add
the same products in orders of their own."""


ASK_OF_CODE = ("test_neg_index_cpu", "test_inner_fn_str_and_stride_cpu")
"""Tests in which `assertTrue` tells of Inductor's code or scheduler, and never of a result."""


def tests() -> Any:
    """Return the module of PyTorch's tests, which will compile with Jangin."""
    setattr(inductor, "compile_fx", lambda graph, inputs, *_, **__: backend(graph, inputs))  # noqa: B010
    if not hasattr(inductor, "complex_memory_overlap"):  # newer versions of PyTorch have it elsewhere
        setattr(inductor, "complex_memory_overlap", lambda tensor: False)  # noqa: B010
    sys.argv = sys.argv[:1]
    return import_module("test_torchinductor")


def names(theirs: Any) -> list[str]:
    """Return the names of the tests, without those of operators that are compiled one by one in C++."""
    return sorted(n for n in dir(theirs.CpuTests) if n.startswith("test_") and "aoti_eager" not in n)


class _Unread:
    """Takes any code for right: it stands for Inductor's code and for a check of it."""

    def __getattr__(self, name: str) -> Any:
        return lambda *_, **__: self

    def __contains__(self, text: object) -> bool:
        return True


Compare = Callable[[Any, Callable[..., Any], Sequence[Any]], Any]


def with_eager(case: Any, fn: Callable[..., Any], args: Sequence[Any], **_: Any) -> Any:
    """Check that a compiled function gives PyTorch's results, and return them."""
    plain = getattr(fn, "_torchdynamo_orig_callable", fn)
    wanted, got = plain(*args), fn(*args)
    torch.testing.assert_close(got, wanted, equal_nan=True)
    return got


def with_float64(case: Any, fn: Callable[..., Any], args: Sequence[Any], **_: Any) -> Any:
    """Check that a function's compiled results lie about as near to float64's as PyTorch's. Return
    PyTorch's, with which the test may compare its own."""
    plain = getattr(fn, "_torchdynamo_orig_callable", fn)
    got, usual = torch.compile(plain)(*args), plain(*args)
    exact = plain(*(a.double() if isinstance(a, torch.Tensor) else a for a in args))
    for ours, theirs, best in zip(*map(_tensors, (got, usual, exact)), strict=True):
        case.assertLessEqual(_far(ours, best), ROUNDINGS * _far(theirs, best))
    return usual


def _tensors(results: Any) -> Sequence[torch.Tensor]:
    return [results] if isinstance(results, torch.Tensor) else results


def _far(a: torch.Tensor, b: torch.Tensor) -> float:
    return float((a.double() - b.double()).abs().max())


def leave_code_unread(theirs: Any, compare: Compare) -> None:
    """Let tests count no kernels and read no code. `compare` takes the place of looking at the code of a
    function that was compiled."""
    cases = theirs.CpuTests

    def looked(case: Any) -> Callable[..., Any]:
        return lambda fn, *args, **_: (compare(case, fn, args), [_Unread(), _Unread()])

    def trained(fn: Callable[[], torch.Tensor]) -> tuple[torch.Tensor, list[_Unread]]:
        out = fn()
        out.sum().backward()
        return out, [_Unread(), _Unread()]

    theirs.FileCheck = _Unread
    theirs.assertGeneratedKernelCountEqual = lambda *_: None
    theirs.run_fw_bw_and_get_code = trained
    theirs._run_and_assert_no_indirect_indexing = lambda case, fn, *args, **_: compare(case, fn, args)
    equal, true, set_up = cases.assertEqual, cases.assertTrue, cases.setUp

    def begin(case: Any) -> None:
        set_up(case)
        theirs.run_and_get_code = looked(case)
        theirs.run_and_get_cpp_code = lambda *a, **k: (looked(case)(*a, **k)[0], _Unread())
        theirs.run_and_get_triton_code = lambda *a, **k: looked(case)(*a, **k)[1][0]

    cases.setUp = begin
    cases.assertEqual = lambda case, first, *rest, **how: (
        None if type(first) is int and not first else equal(case, first, *rest, **how)  # nothing is counted
    )
    cases.assertTrue = lambda case, value, *rest: (
        None if case._testMethodName in ASK_OF_CODE else true(case, value, *rest)
    )


def run(theirs: Any, name: str) -> str:
    """Run a test. Return how it failed, or "" if it passed or was skipped."""
    result = unittest.TestResult()
    unittest.TestSuite([theirs.CpuTests(name)]).run(result)
    return "".join(text[-2000:] for _, text in [*result.failures, *result.errors])


def main() -> None:
    how, given = sys.argv[1], sys.argv[2:]
    theirs = tests()
    if how in ("looks", "rounds"):
        leave_code_unread(theirs, with_float64 if how == "rounds" else with_eager)
    if how == "rounds":
        theirs.CpuTests.common = with_float64
    if given and given[0].isdigit():
        given = Random(int(given[0])).sample(names(theirs), int(given[1]))
    for name in given or names(theirs):
        print("RESULT", json.dumps([name, run(theirs, name)]), flush=True)


if __name__ == "__main__":
    main()
