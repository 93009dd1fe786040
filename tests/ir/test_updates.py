"""A nest that updates a buffer in place reads each element before it writes it."""

from __future__ import annotations

import random

import numpy as np
import pytest

from jangin.ir.interpret import run_func
from jangin.ir.loop import Func
from jangin.ir.parse import parse_func
from jangin.ir.updates import clash

SIDE = 14
NEST = "func k(x: f32[14, 14], old: f32[14, 14], out: out f32[14, 14]) {{ {} }}"
SOUND = {
    "one element": "parallel i in 4 { vector j in 6 { out[i, j] = old[i, j] * x[i, j] } }",
    "numbered together": "parallel t in 196 { out[t // 14, t % 14] = old[t // 14, t % 14] + f32(1.0) }",
    "tiles and a rest": "serial i in 4 { serial o in 2 { vector j in 4 {"
    " out[i, j + (4 * o)] = neg(old[i, j + (4 * o)]) } }"
    " serial r in 2 { out[i, r + 8] = neg(old[i, r + 8]) } }",
    "a guarded tile": "parallel t in 2 { serial j in 8 { serial i in 4 { if (j + (8 * t)) < 12 {"
    " out[i, j + (8 * t)] = old[i, j + (8 * t)] + f32(1.0) } } } }",
    "tiles of both axes": "parallel t in 6 { serial i in 4 { serial j in 4 {"
    " out[i + (4 * (t // 3)), j + (4 * (t % 3))] = neg(old[i + (4 * (t // 3)), j + (4 * (t % 3))]) } } }",
    "first all reads of a row": "serial i in 4 { alloc register r: f32[6] serial j in 6 { r[j] = old[i, j] }"
    " serial k in 6 { out[i, k] = r[k] + f32(1.0) } }",
    "a row's sum first": "serial i in 4 { alloc register r: f32[1] r[0] = f32(0.0)"
    " serial o in 2 { vector j in 3 { r[0] = r[0] + old[i, j + (3 * o)] } }"
    " serial k in 6 { out[i, k] = old[i, k] - r[0] } }",
    "all before": "serial i in 4 { serial j in 6 { out[i + 4, j] = old[i, j] } }"
    " serial k in 6 { serial l in 4 { out[l, k] = x[l, k] } }",
    "another half": "serial i in 2 { serial j in 6 { out[i, j] = old[i + 2, j] } }",
}
FAULTY = {
    "a neighbour": "serial i in 4 { serial j in 5 { out[i, j + 1] = old[i, j] } }",
    "turned": "serial i in 4 { serial j in 4 { out[i, j] = old[j, i] } }",
    "written twice": "serial i in 4 { serial j in 6 { out[i, min(j, 4)] = old[i, min(j, 4)] + f32(1.0) } }",
    "a sum in the result": "serial k in 3 { serial i in 4 { serial j in 6 {"
    " out[i, j] = old[i, j] + x[i, k] } } }",
    "overlapping tiles": "serial t in 2 { serial j in 4 { out[0, j + (2 * t)] = neg(old[0, j + (2 * t)]) } }",
    "tiles numbered twice": "serial t in 12 { serial i in 4 { serial j in 4 {"
    " out[i + (4 * (t // 4)), j + (4 * (t % 3))] = neg(old[i + (4 * (t // 4)), j + (4 * (t % 3))]) } } }",
    "overlapping tiles of both axes": "serial t in 6 { serial i in 4 { serial j in 4 {"
    " out[i + (4 * (t // 3)), j + (3 * (t % 3))] = neg(old[i + (4 * (t // 3)), j + (3 * (t % 3))]) } } }",
    "read again": "serial i in 4 { serial j in 6 { out[i, j] = x[i, j] out[i + 6, j] = old[i, j] } }",
    "the sum of another row": "serial i in 4 { alloc register r: f32[1] r[0] = f32(0.0)"
    " serial j in 6 { r[0] = r[0] + old[i // 2, j] } serial k in 6 { out[i, k] = old[i, k] - r[0] } }",
    "a row's sum in each turn": "serial t in 2 { serial i in 4 { alloc register r: f32[1] r[0] = f32(0.0)"
    " serial j in 6 { r[0] = r[0] + old[i, j] } serial k in 6 { out[i, k] = old[i, k] - r[0] } } }",
    "two passes": "serial i in 4 { serial j in 6 { out[i, j] = neg(old[i, j]) }"
    " serial k in 6 { out[i, k] = old[i, k] + f32(1.0) } }",
}
KINDS = ("serial", "parallel", "vector")


def in_place(body: str) -> Func:
    return parse_func(NEST.format(body.replace("old[", "out[")))


def gives_the_same(body: str) -> bool:
    """Whether the nest in place computes what it computes with other memory for its result."""
    rng = np.random.default_rng(0)
    start = rng.random((2, SIDE, SIDE), np.float32)
    found = []
    for func in (parse_func(NEST.format(body)), in_place(body)):
        arrays = {"x": start[0], "old": start[1].copy(), "out": start[1].copy()}
        run_func(func, arrays, {})
        found.append(arrays["out"])
    return bool(np.array_equal(*found))


@pytest.mark.parametrize("case", SOUND)
def test_sound_nests(case: str) -> None:
    assert gives_the_same(SOUND[case])
    assert clash(in_place(SOUND[case]), "out") is None


@pytest.mark.parametrize("case", FAULTY)
def test_faulty_nests(case: str) -> None:
    assert not gives_the_same(FAULTY[case])
    found = clash(in_place(FAULTY[case]), "out")
    assert found is not None
    assert "may be read after" in found


def random_index(draw: random.Random, loops: str) -> str:
    parts = [f"({draw.choice((1, 1, 2, 3))} * {v})" for v in loops if draw.random() < 0.7]
    return " + ".join([*parts, str(draw.randrange(2))])


def random_nest(draw: random.Random) -> str:
    """One or two stores in loops, often of the element that they read."""
    stores = []
    for loop in ("j", "k")[: draw.choice((1, 2))]:
        to = [random_index(draw, f"i{loop}"), random_index(draw, f"i{loop}")]
        source = to if draw.random() < 0.7 else [random_index(draw, f"i{loop}"), to[1]]
        store = f"out[{', '.join(to)}] = neg(old[{', '.join(source)}])"
        stores.append(f"serial {loop} in {draw.randrange(1, 4)} {{ {store} }}")
    return f"serial i in {draw.randrange(1, 4)} {{ {' '.join(stores)} }}"


def test_random_nests_without_a_clash_can_be_run_in_place() -> None:
    sound = proven = 0
    for seed in range(300):
        body = random_nest(random.Random(seed))
        same, free = gives_the_same(body), clash(in_place(body), "out") is None
        assert same or not free, f"seed {seed}: {body}"
        sound, proven = sound + same, proven + free
    # many of the others are sound by chance, as no element that they read is ever written
    assert 0.5 * sound < proven < 300
