"""The graph editor makes names unique, infers types, and folds small constants if asked to."""

from __future__ import annotations

import numpy as np
import pytest

from jangin.ir.core import Map, MatMul, Slice
from jangin.ir.dtype import F32
from jangin.ir.expr import Var, const
from jangin.ir.graph import CompileError, Graph
from jangin.ir.verify import verify_graph
from jangin.ops.core import CORE
from jangin.ops.editor import Editor
from jangin.ops.interpret import run_graph

N = Var("n")
DOUBLED = Map(Var("x0", F32) * 2.0)


def test_nodes_constants_and_kernels() -> None:
    editor = Editor({N: (const(1), None)})
    x = editor.declare("x", F32, (N, const(2)))
    w = editor.constant(np.ones((2, 3), np.float32), "x")
    folded = editor.add(DOUBLED, [w], "w", fold=True)
    plain = editor.add(DOUBLED, [w], "w")
    assert len({x, w, folded, plain}) == 4, "names taken already get a number"
    assert folded in editor.constants and plain not in editor.constants
    product = editor.add(MatMul(), [x, folded], "y", "the model's own node")
    assert editor.typed(product) == (F32, (N, const(3)))
    out = editor.declare("out", F32, editor.shape(product))
    editor.emit(editor.kernel(DOUBLED, [product], out, ""))
    whole = Graph("g", (x,), (out,), (), {}, {}, editor.symbols)
    graph = editor.rewritten(whole)
    verify_graph(graph, CORE)
    assert plain in {n.name for n in graph.nodes} and [n.source for n in graph.nodes if n.source]
    np.testing.assert_array_equal(run_graph(graph, {x: np.ones((4, 2), np.float32)})[out], np.full((4, 3), 8))


def test_a_result_that_can_not_be() -> None:
    editor = Editor({})
    x = editor.declare("x", F32, (const(2), const(3)))
    with pytest.raises(CompileError, match=r"matmul|matrix product"):
        editor.add(MatMul(), [x, x], "y")
    with pytest.raises(CompileError, match=r"slice of f32\[2, 3\] would have shape \[-1, 3\]"):
        editor.add(Slice((const(0),) * 2, (1, 1), (const(-1), const(3))), [x], "y")
