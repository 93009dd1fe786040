"""`torch.compile` with Jangin gives PyTorch's results, and keeps PyTorch's rules."""

from __future__ import annotations

import os
import platform
import random
import subprocess
import sys
import warnings
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="PyTorch isn't installed: the extra `torch` brings it")

import torch
from torch import nn
from torch.utils._pytree import tree_leaves as leaves
from torch_models import near, seeded

import jangin
from jangin import torch_backend
from jangin.frontends.torch import decompositions
from jangin.torch_backend import backend


def test_torch_compile(recwarn: Any) -> None:
    """Batches of other sizes and changed weights work, without gradients and with them."""
    net = seeded(
        nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(288, 4))
    )
    fast = torch.compile(net, backend=backend, options={"winograd": False})
    with torch.no_grad():
        net(torch.randn(1, 3, 8, 8))
        for n in (1, 2, 3):
            x = torch.randn(n, 3, 8, 8)
            near(fast(x), net(x))
        net[0].weight.mul_(2)
        near(fast(x), net(x))
    for _ in range(2):
        net.zero_grad()
        found = torch.autograd.grad(net(x).square().sum(), [*net.parameters()])
        fast(x).square().sum().backward()
        for parameter, wanted in zip(net.parameters(), found, strict=True):
            near(parameter.grad, wanted)
        with torch.no_grad():
            net[0].weight.mul_(2)
    assert not [w for w in recwarn if "jangin" in str(w.message)]


def test_distances_between_many_positions(recwarn: Any) -> None:
    """T5 chooses a bias for each distance. A table of distances has far more elements than a shape."""

    def near_ones(x: Any) -> Any:
        at = torch.arange(40)
        apart = at[None] - at[:, None]
        far = apart.abs()
        return x + torch.where(far < 8, far, far.clamp(max=16) + apart.sign())

    x = torch.randn(40, 40)
    near(torch.compile(near_ones, backend=backend)(x), near_ones(x))
    assert not [w for w in recwarn if "jangin" in str(w.message)]


def test_a_graph_break() -> None:
    def branching(x: Any) -> Any:
        y = x * 3
        return y.cos() if y.sum() > 0 else y.sin()

    fast = torch.compile(branching, backend=backend)
    for x in (torch.ones(4), -torch.ones(4)):
        with torch.no_grad():
            near(fast(x), branching(x))


def test_fractions_of_sizes() -> None:
    """A number that follows from a size is given to a run. If it is a constant, each size has its own
    compilation."""

    def scaled(x: Any) -> Any:
        n = x.shape[0]
        return x.mul(1 / (n * 3)).add(x, alpha=-2 / n) + (-1.0 / n) / n * torch.eye(3)[None]

    fast = torch.compile(scaled, backend=backend, dynamic=True)
    with torch.no_grad():
        for n in (4, 6, 4):
            x = torch.randn(n, 3, 3)
            near(fast(x), scaled(x))


def spectrum(x: Any) -> Any:
    return (torch.fft.fft(x * 2 + 1).abs().relu() * 3 + 1).sum(-1), x.exp() * 2


def powers(x: Any) -> Any:
    values = torch.linalg.svd(x.T @ x + torch.eye(8)).S.relu() * 2
    return values.sqrt() + values, torch.view_as_real(torch.view_as_complex(x.reshape(4, 4, 2)) * 2)


def gaps(x: Any) -> Any:
    return torch.empty_strided((4, 8), (16, 1)).copy_(x * 2 + 1), x.exp() + 1


def noisy(x: Any) -> Any:
    return torch.rand_like(x).ge(2).float() * 5 + x.tanh() * 2


def waves(x: Any) -> Any:
    return torch.special.bessel_j0(x * 2).t().exp() + 1, x.exp() * 2


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("function", [spectrum, powers, gaps, noisy, waves])
def test_an_operator_that_cant_be_compiled_parts_its_graph(
    function: Any, dynamic: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PyTorch runs an operator that Jangin can't compile, and Jangin runs what is around it. One warning
    names it."""
    monkeypatch.setattr(torch_backend, "_SAID", set())
    torch._dynamo.reset()
    fast, x = torch.compile(function, backend=backend, dynamic=dynamic), torch.randn(4, 8)
    made = []
    original = jangin.compile
    monkeypatch.setattr(
        jangin, "compile", lambda model, **given: made.append(model) or original(model, **given)
    )
    with torch.no_grad(), warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for _ in range(2):
            for got, wanted in zip(leaves(fast(x)), leaves(function(x)), strict=True):
                assert got.stride() == wanted.stride()
                near(got, wanted)
    said = [str(w.message) for w in told if "to PyTorch" in str(w.message)]
    assert said and len({*said}) == len(said) and all("jangin leaves aten." in text for text in said)
    assert made, "nothing was compiled"
    torch._dynamo.reset()


def written(x: Any) -> Any:
    x.add_(torch.fft.fft(x * 2).abs())
    return x * 3 + 1


def shared(x: Any) -> Any:
    y = x * 2 + 1
    return x.view(8, 4), torch.fft.fft(y).abs().t(), x[1:], y.t(), None, x.shape[0]


def looked_up(x: Any) -> Any:
    return torch.fft.fft(x[x.argsort(0)[:, 0]]) + 1, (x.exp() + 1) * 2


@pytest.mark.filterwarnings("ignore:jangin leaves")
@pytest.mark.parametrize("function", [written, shared, looked_up])
def test_results_of_a_graph_in_parts_lie_as_pytorchs(function: Any) -> None:
    """Writes to an input, results that share the input's memory, and the results' strides are the same as
    PyTorch's."""
    torch._dynamo.reset()
    mine, theirs = (torch.arange(32.0).view(4, 8).sin() for _ in range(2))
    with torch.no_grad():
        got, wanted = torch.compile(function, backend=backend)(mine), function(theirs)
    near(mine, theirs)
    for a, b in zip(leaves(got), leaves(wanted), strict=True):
        if not isinstance(b, torch.Tensor):
            assert a == b
            continue
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)
        assert a.stride() == b.stride()
        places = [t.untyped_storage().data_ptr() for t in (a, mine, b, theirs)]
        assert (places[0] == places[1]) == (places[2] == places[3])


def test_sizes_of_a_graph_in_parts_stay_free() -> None:
    """One compilation of each part serves all sizes."""
    torch._dynamo.reset()
    fast, made = torch.compile(spectrum, backend=backend, dynamic=True), list[Any]()
    original = jangin.compile
    with torch.no_grad(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(jangin, "compile", lambda x, **given: made.append(x) or original(x, **given))
        for n in (4, 7, 5, 11):
            x = torch.randn(n, 8)
            for got, wanted in zip(leaves(fast(x)), leaves(spectrum(x)), strict=True):
                near(got, wanted)
            made.append(n)
    kinds = [type(m) is int for m in made]
    assert kinds[-4:] == [True] * 4 and len(made) > 4, "all was compiled for the first"


def test_a_size_that_is_marked_dynamic_is_never_a_constant() -> None:
    """A dilation can't be a symbol, and the size mustn't become a constant. PyTorch runs the convolution."""
    torch._dynamo.reset()
    torch_backend._SAID.clear()

    def dilated(x: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        return torch.conv2d(x, weights, dilation=x.size(0)).sum() * 2

    compiled = torch.compile(dilated, backend="jangin", fullgraph=True)
    weights = torch.randn(1, 1, 5, 5)
    with pytest.warns(UserWarning, match="leaves aten.convolution.default to PyTorch"):
        for batch in (2, 3):
            x = torch.randn(batch, 1, 16, 20)
            torch._dynamo.mark_dynamic(x, 0)
            near(compiled(x, weights), dilated(x, weights))


def test_weights_of_a_graph_in_parts_may_change() -> None:
    net = seeded(nn.Sequential(nn.Linear(8, 8), nn.Tanh()))

    def function(x: Any) -> Any:
        return net(torch.fft.fft(net(x)).abs())

    fast, x = torch.compile(function, backend=backend), torch.randn(4, 8)
    with torch.no_grad():
        near(fast(x), function(x))
        net[0].weight.mul_(2)
        near(fast(x), function(x))


def test_a_graph_that_cant_be_compiled_at_all_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """PyTorch runs a graph that can't be compiled, because of a timeout or a fault of Jangin's."""

    def broken(model: Any, **given: Any) -> Any:
        raise KeyError("x")

    monkeypatch.setattr(torch_backend, "_SAID", set())
    monkeypatch.setattr(jangin, "compile", broken)
    with torch.no_grad(), pytest.warns(UserWarning, match="leaves a graph to PyTorch: an error of Jangin's"):
        near(torch.compile(lambda x: x.exp() * 2, backend=backend)(torch.ones(3)), torch.ones(3).exp() * 2)


def test_options() -> None:
    function, x, seen = (lambda x: x * 2 + 1), torch.ones(4), []
    original = jangin.compile
    with torch.no_grad(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            jangin, "compile", lambda model, **given: seen.append(given) or original(model, **given)
        )
        near(torch.compile(function, backend=backend, options={"threads": 1})(x), x * 2 + 1)
        assert seen[0]["threads"] == 1
        with pytest.raises(
            torch._dynamo.exc.BackendCompilerFailed, match="takes no option 'thread': did you mean threads"
        ):
            torch.compile(lambda x: x * 3 + 1, backend=backend, options={"thread": 1})(x)


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"threads": 0}, "threads must be at least 1"), ({"libraries": "mkl"}, "libraries='mkl' is unknown"),
        ({"target": "cpuu"}, "unknown target 'cpuu'"), ({"target": "aarch64"}, "can't run code for aarch64"),
    ],
)  # fmt: skip
@pytest.mark.skipif(platform.machine() in ("arm64", "aarch64"), reason="code for aarch64 can run")
def test_wrong_options_are_no_reason_to_leave_a_graph_to_pytorch(given: dict[str, Any], why: str) -> None:
    with pytest.raises(torch._dynamo.exc.BackendCompilerFailed, match=why):
        torch.compile(lambda x: x * 3 + 1, backend=backend, options=given)(torch.ones(4))


_PROCESS = """
import sys
import torch
from jangin.compiler import local
from jangin.compiler.processes.isolated import Apart
from jangin.torch_backend import backend

def compiles(*given, **named):
    raise SystemExit("compiles")

if sys.argv[1] == "again":
    Apart.build = local.carry_out = compiles
torch.manual_seed(0)
net = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.ReLU()).eval()
fast = torch.compile(net, backend=backend, dynamic=True)
with torch.no_grad():
    for sizes in ((1, 3, 8, 9), (3, 3, 5, 7)):
        x = torch.randn(sizes)
        torch.testing.assert_close(fast(x), net(x))
"""


@pytest.mark.slow
def test_another_process_finds_the_code_in_the_cache(tmp_path: Path) -> None:
    """A process that may not compile runs the graph, whose sizes are open, if another has compiled it."""

    def said(turn: str, folder: str) -> str:
        env = {
            **os.environ,
            "XDG_CACHE_HOME": str(tmp_path / folder),
            "PYTHONPATH": os.pathsep.join(sys.path),
        }
        command = [sys.executable, "-c", _PROCESS, turn]
        return subprocess.run(command, env=env, capture_output=True, text=True, timeout=600).stderr

    assert "compiles" in said("again", "empty")
    assert [said("first", "kept"), said("again", "kept")] == ["", ""]


def test_by_name() -> None:
    """PyTorch finds Jangin by name if Jangin is installed."""
    try:
        distribution("jangin")
    except PackageNotFoundError:
        pytest.skip("Jangin isn't installed, but run from its folder: there is no entry point")
    with torch.no_grad():
        near(torch.compile(lambda x: x * 2, backend="jangin")(torch.ones(3)), torch.ones(3) * 2)


def test_a_transformers_layer_in_one_piece() -> None:
    """torch.nn runs the layer by one fused operator if no gradients are needed."""
    layer = nn.TransformerEncoderLayer(16, 2, 24, batch_first=True, activation="gelu")
    net = seeded(nn.TransformerEncoder(layer, 1, enable_nested_tensor=False))
    graphs = []

    def seen(graph: Any, inputs: Any, **given: Any) -> Any:
        graphs.append(graph)
        return backend(graph, inputs, **given)

    fast, x = torch.compile(net, backend=seen), torch.randn(3, 5, 16)
    with torch.no_grad():
        near(fast(x), net(x))
    assert "_transformer_encoder_layer_fwd" in graphs[0].code


class Attended(nn.Module):
    """Attention with a bias for each pair of positions, as in windows of an image."""

    def __init__(self) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.randn(3, 5, 6))

    def forward(self, q: Any, k: Any, v: Any, shown: Any) -> Any:
        attention = nn.functional.scaled_dot_product_attention
        y = attention(q, k, v, attn_mask=self.bias[None] + shown, scale=0.3)
        return y, attention(q, k, v, shown > 0), attention(q, k, v, is_causal=True)


def test_attention_stays_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """Attention stays one operator, even with masks that PyTorch's kernel for CPUs doesn't take. A row that
    sees nothing is 0."""
    seen = []
    original = jangin.compile
    monkeypatch.setattr(
        jangin, "compile", lambda model, **given: seen.append(model) or original(model, **given)
    )
    net = Attended().eval()
    given = [torch.randn(4, 3, n, d) for n, d in ((5, 8), (6, 8), (6, 7))]
    shown = torch.randn(4, 1, 5, 6)
    shown[1, 0, 2] = -1
    with torch.no_grad():
        fast = torch.compile(net, backend=backend)
        for got, wanted in zip(fast(*given, shown), net(*given, shown), strict=True):
            near(got, wanted)
    operators = [n.op for n in seen[0].graph.nodes]
    assert sum("attention" in o for o in operators) == 3 and not any("softmax" in o for o in operators)


def test_a_graph_with_attention_is_left_to_pytorch(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: Any, **__: Any) -> Any:
        raise jangin.CompileError("no luck today")

    monkeypatch.setattr(jangin, "compile", fails)
    monkeypatch.setattr(torch_backend, "_SAID", set())
    net = Attended().eval()
    given = [torch.randn(4, 3, n, d) for n, d in ((5, 8), (6, 8), (6, 7))]
    shown = torch.ones(4, 1, 5, 6)
    with torch.no_grad(), pytest.warns(UserWarning, match="leaves a graph to PyTorch: no luck"):
        found = torch.compile(net, backend=backend)(*given, shown)
    for got, wanted in zip(found, net(*given, shown), strict=True):
        near(got, wanted)


@pytest.mark.parametrize("norm_first", [False, True])
@pytest.mark.parametrize("kind", [None, 0, 1, 2])
def test_transformers_operators_are_what_they_are_taken_apart_to(kind: int | None, norm_first: bool) -> None:
    """The decompositions give the results of PyTorch's fused operators, with masks of each type."""
    batch, length, size, heads = 2, 5, 16, 4
    torch.manual_seed(0)
    shape = {None: None, 0: (length, length), 1: (batch, length), 2: (batch, heads, length, length)}[kind]
    mask = None if shape is None else torch.rand(shape) > 0.7
    if mask is not None:
        mask[..., 0] = False
    x = torch.randn(batch, length, size)
    weights = [torch.randn(3 * size, size), torch.randn(3 * size), torch.randn(size, size), torch.randn(size)]
    norms = [torch.rand(size) for _ in range(4)]
    inner = [torch.randn(24, size), torch.randn(24), torch.randn(size, 24), torch.randn(size)]
    with torch.no_grad():
        given = (x, size, heads, *weights, True, norm_first, 1e-5, *norms, *inner, mask, kind)
        wanted = torch._transformer_encoder_layer_fwd(*given)
        torch.testing.assert_close(decompositions._encoder_layer(*given), wanted, rtol=1e-4, atol=1e-4)
        for average in (False, True):
            attended = (x, x, x, size, heads, *weights, mask, True, average, kind)
            pairs = zip(
                decompositions._multi_head_attention(*attended),
                torch._native_multi_head_attention(*attended),
                strict=True,
            )
            for got, expected in pairs:
                torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-4)


def test_tensors_go_in_and_come_out_where_they_lie() -> None:
    """Kernels read an input at the caller's address, and the caller gets the memory that they wrote."""
    found: list[int] = []
    original = torch_backend.on_tensors

    def seen(executable: Any, lender: Any) -> Any:
        run: Any = original(executable, lender)
        by_address = run._run
        run._run = lambda addresses: (found.extend(addresses), by_address(addresses))
        return run

    fast, x = torch.compile(lambda x: (x + 1, x.t() * 2), backend=backend), torch.ones(4, 6)
    with torch.no_grad(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch_backend, "on_tensors", seen)
        first, second = fast(x)
    assert {first.data_ptr(), second.data_ptr(), x.data_ptr()} == {*found}
    assert first.data_ptr() != second.data_ptr() != x.data_ptr()
    near(second, x.t() * 2)


def sampled(count: int) -> list[Any]:
    """Choose samples of PyTorch's operators. The choice differs in each run (see --seed)."""
    from torch.testing._internal.common_methods_invocations import op_db

    unset = ("empty", "empty_like", "empty_permuted", "empty_strided", "new_empty", "new_empty_strided")
    infos = [i for i in op_db if torch.float32 in i.supported_dtypes("cpu") and i.name not in unset]
    return random.sample(infos, count)


def check_operator(info: Any) -> bool:
    """Compile an operator on the first of its samples that PyTorch itself computes, and compare the
    results."""
    for sample in info.sample_inputs("cpu", torch.float32, requires_grad=False):
        given = (sample.input, *sample.args)

        def function(*x: Any, named: Any = sample.kwargs) -> Any:
            return info.op(*x, **named)

        torch._dynamo.reset()
        with torch.no_grad():
            try:
                torch.manual_seed(0)
                wanted = torch.compile(function, backend="aot_eager")(*given)
            except Exception:  # TorchDynamo can't take it, or it raises for these arguments
                continue
            torch._dynamo.reset()
            torch.manual_seed(0)
            got = torch.compile(function, backend=backend)(*given)
        for a, b in zip(leaves(got), leaves(wanted), strict=True):
            if isinstance(b, torch.Tensor):
                torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-4, equal_nan=True, msg=info.name)
        return True
    return False


@pytest.mark.parametrize("count", [1, pytest.param(100, marks=pytest.mark.slow)])
@pytest.mark.filterwarnings("ignore")
def test_what_pytorch_runs_never_fails(count: int) -> None:
    """Compiling never makes a working operator fail, whether Jangin knows it or not. The tolerance is wide
    for samples near steep places of a function (the logarithm of gamma, inverses)."""
    checked = sum(map(check_operator, sampled(count)))
    assert checked >= count * 3 // 4


@pytest.mark.parametrize("given", [torch.int64, torch.float64], ids=str)
def test_products_that_eager_refuses_are_refused(given: torch.dtype) -> None:
    x, layer = torch.ones(2, 4, dtype=given), torch.nn.Linear(4, 3)
    for function in (lambda v: v @ layer.weight.T, layer):
        with pytest.raises(RuntimeError), torch.no_grad():
            torch.compile(function, backend="jangin")(x)


@pytest.mark.filterwarnings("error::UserWarning:jangin")
def test_checks_of_sizes_that_depend_on_data_are_kept() -> None:
    def places(x: torch.Tensor) -> torch.Tensor:
        found = x.nonzero()
        torch._check(found.size(0) == 2)
        return found + 3

    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        compiled = torch.compile(places, backend="jangin")
        assert compiled(torch.tensor([0, 5, 0, 1])).tolist() == [[4], [6]]
        with pytest.raises(RuntimeError, match="assertion failed"):
            compiled(torch.tensor([0, 5, 3, 1]))


def a_size(x: torch.Tensor) -> Any:
    n = (x > 0).sum().item()
    torch._check(n >= 0)  # PyTorch checks it, so the graph has parts
    return torch.zeros(n) + x.mean(), x * n


def a_fraction(x: torch.Tensor) -> Any:
    n = x.max().item()
    return x / n, torch.full((3,), n) + x[0], n


def two_sizes(x: torch.Tensor) -> Any:
    n, m = (x > 0).sum().item(), (x <= 0).sum().item()
    torch._check(n >= 0)
    torch._check(m >= 0)
    torch._check(n + m == 5)
    first, second = x.split([n, m])
    return first.sum() + second.max(), second.exp(), x * (n * 10**12)


def a_length(x: torch.Tensor) -> Any:
    y = x.nonzero().squeeze(1)
    return torch.zeros(7).scatter(0, y, 1.0), y.shape[0], x[x > 0].repeat(2), x[y] * 2


@pytest.mark.sampled(4)
@pytest.mark.filterwarnings("error::UserWarning:jangin")
@pytest.mark.parametrize("trained", [False, True])
@pytest.mark.parametrize("function", [a_size, a_fraction, two_sizes, a_length])
def test_numbers_that_data_decide(function: Any, trained: bool) -> None:
    """Numbers pass from part to part, and sizes follow from results. Nothing is left to PyTorch."""
    compiled = torch.compile(function, backend="jangin")
    with torch._dynamo.config.patch(capture_scalar_outputs=True, capture_dynamic_output_shape_ops=True):
        for values in ([1.0, -2.0, 3.0, 0.5, -1.0], [4.0, 2.0, -3.0, 0.5, 0.0]):
            x = torch.tensor(values, requires_grad=trained)
            torch.testing.assert_close(compiled(x), function(x))
