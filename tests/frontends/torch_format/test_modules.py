"""Compiled modules and programs of PyTorch give PyTorch's results."""

from __future__ import annotations

import copy
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch", reason="PyTorch isn't installed: the extra `torch` brings it")

import torch
from torch import nn
from torch_models import Net, near, seeded

import jangin
from jangin.frontends.torch.element_types import array_of
from jangin.frontends.torch.tensors import tensor_of
from jangin.frontends.torch.trace import traced
from jangin.ir.graph_text import print_graph


def test_a_network_with_a_free_batch() -> None:
    net, batch = seeded(Net()), torch.export.Dim("batch", min=1, max=64)
    compiled = jangin.compile(
        net, threads=1, cache=False, example_inputs=(torch.randn(2, 3, 18, 18),), dynamic_shapes=({0: batch},)
    )
    assert compiled.executable.inputs[0].shape == ("batch", 3, 18, 18)
    for n in (1, 2, 5):
        x = torch.randn(n, 3, 18, 18)
        with torch.no_grad():
            near(compiled(x), net(x))


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(50, 32)
        self.layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True, norm_first=True)

    def forward(self, ids: Any, *, mask: Any = None) -> dict[str, Any]:
        y = self.layer(self.embed(ids), src_key_padding_mask=mask)
        return {"states": y, "pooled": (y[:, 0], y.amax(1)), "length": ids.shape[1], "nothing": None}


def test_nested_arguments_and_results() -> None:
    net, seq = seeded(Attention()), torch.export.Dim("seq", min=2, max=32)
    ids, mask = torch.randint(0, 50, (2, 7)), torch.zeros(2, 7, dtype=torch.bool)
    compiled = jangin.compile(
        net, threads=1, cache=False, example_inputs=(ids,), example_kwargs={"mask": mask},
        dynamic_shapes={"ids": {1: seq}, "mask": {1: seq}},
    )  # fmt: skip
    ids, mask = torch.randint(0, 50, (2, 11)), torch.arange(11)[None].repeat(2, 1) > 8
    got = compiled(ids, mask=mask)
    with torch.no_grad():
        wanted = net(ids, mask=mask)
    near(got["states"], wanted["states"])
    near(got["pooled"][0], wanted["pooled"][0])
    near(got["pooled"][1], wanted["pooled"][1])
    assert (got["length"], got["nothing"]) == (11, None)
    with pytest.raises(ValueError, match="keyword arguments mask"):
        compiled(ids)


class Counting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(()))

    def forward(self, x: Any, out: Any) -> Any:
        self.count.add_(1)
        out.copy_(x * 2)
        return x + self.count


def test_what_a_module_changes_is_written_back() -> None:
    net = Counting()
    compiled = jangin.compile(net, threads=1, cache=False, example_inputs=(torch.zeros(3), torch.zeros(3)))
    net.count.zero_()
    out = torch.zeros(3)
    assert compiled(torch.ones(3), out).tolist() == [2, 2, 2]
    assert compiled(torch.ones(3), out).tolist() == [3, 3, 3]
    assert net.count.item() == 2 and out.tolist() == [2, 2, 2]


class Selecting(nn.Module):
    """A module with sizes that only a run knows."""

    def forward(self, x: Any) -> Any:
        return x[x > 0] * 2, torch.nonzero(x)


def test_sizes_that_depend_on_data() -> None:
    x = torch.tensor([[1.0, -2.0, 3.0], [-4.0, 5.0, 6.0]])
    compiled = jangin.compile(Selecting(), threads=1, cache=False, example_inputs=(x,))
    for given in (x, -x):
        got, wanted = compiled(given), Selecting()(given)
        assert all(torch.equal(g, w) for g, w in zip(got, wanted, strict=True))


def test_files_of_exported_programs(tmp_path: Path) -> None:
    """An exported program's file is recognized by its content, whatever its name is."""
    net, x = seeded(Net()), torch.randn(1, 3, 18, 18)
    path = tmp_path / "model.onnx"
    program = torch.export.export(net, (x,))
    with path.open("wb") as file:
        torch.export.save(program, file)
    exe = jangin.compile(path, threads=1, cache=tmp_path / "cache")
    with torch.no_grad():
        near(torch.from_numpy(exe(x.numpy())), net(x))
        near(jangin.compile(program, threads=1, cache=False)(x), net(x))
    data = path.read_bytes()
    with pytest.raises(jangin.CompileError, match="PyTorch can't read the exported program"):
        jangin.compile(data[:2000] + data[2200:], cache=False)


class Unknown(nn.Module):
    def forward(self, x: Any) -> Any:
        return torch.linalg.svd(x)[1], torch.special.i0(x)


def test_operators_without_a_lowering_are_listed_at_once() -> None:
    with pytest.raises(jangin.CompileError, match=r"(?s)2 nodes are not supported.*svd.*i0"):
        jangin.compile(Unknown(), cache=False, example_inputs=(torch.eye(3),))


def test_bad_models_are_one_clear_error() -> None:
    with pytest.raises(jangin.CompileError, match=r"a Net is read by running it: give example_inputs"):
        jangin.compile(Net())
    with pytest.raises(jangin.CompileError, match="PyTorch can't export Net"):
        jangin.compile(Net(), example_inputs=(torch.zeros(1, 4, 8, 8),))
    with pytest.raises(jangin.CompileError, match="complex64 is not supported"):
        jangin.compile(nn.ReLU(), example_inputs=(torch.zeros(2, dtype=torch.complex64),))


def test_buffers_go_to_another_process_and_back() -> None:
    """A model's serialized bytes, by which the compile cache knows it, are what is compiled."""
    from jangin.frontends.torch.model import TracedModel

    net, x = seeded(Net()), torch.randn(1, 3, 18, 18)
    model = traced(torch.export.export(net, (x,))).model
    data = model.SerializeToString()
    again = TracedModel.parse(data)
    assert print_graph(again.graph) == print_graph(model.graph)
    assert again.SerializeToString() == data
    exe = jangin.compile(data, threads=1, cache=False)
    with torch.no_grad():
        near(torch.from_numpy(exe(x.numpy())), net(x))
    for damaged in (data[:100], data[:12] + b"{" + data[13:], data[: len(data) // 2]):
        with pytest.raises(jangin.CompileError, match="damaged"):
            jangin.compile(damaged, cache=False)


def test_half_precision_shares_memory() -> None:
    net = seeded(nn.Linear(8, 3)).bfloat16()
    x = torch.randn(4, 8).bfloat16()
    compiled = jangin.compile(net, threads=1, cache=False, example_inputs=(x,))
    with torch.no_grad():
        got, wanted = compiled(x), net(x)
    assert got.dtype is torch.bfloat16
    with torch.no_grad():
        exact = net.double()(x.double())
    np.testing.assert_allclose(got.double(), exact, rtol=2**-8)  # results are rounded once to 8 bits
    np.testing.assert_allclose(wanted.double(), exact, rtol=2**-7)


class Recurrent(nn.Module):
    def __init__(self, kind: Any, **given: Any) -> None:
        super().__init__()
        self.cells = kind(5, 7, num_layers=2, bidirectional=True, batch_first=True, **given)

    def forward(self, x: Any) -> Any:
        y, last = self.cells(x)
        return y, last[0] if isinstance(last, tuple) else last


@pytest.mark.parametrize(
    ("kind", "given"),
    [
        (nn.LSTM, {}),
        (nn.GRU, {"bias": False}),
        (nn.RNN, {}),
        (nn.RNN, {"nonlinearity": "relu"}),
        (nn.LSTM, {"proj_size": 3}),
    ],
    ids=["lstm", "gru", "rnn_tanh", "rnn_relu", "projected"],
)
def test_recurrent_layers(kind: Any, given: Any) -> None:
    """Two recurrent layers, in both directions."""
    net, x = seeded(Recurrent(kind, **given)), torch.randn(2, 6, 5)
    compiled = jangin.compile(net, threads=1, cache=False, example_inputs=(x,))
    with torch.no_grad():
        wanted = net(x)
    for got, expected in zip(compiled(x), wanted, strict=True):
        near(got, expected)


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN], ids=["lstm", "gru", "rnn"])
def test_recurrent_layers_of_any_number_of_steps(kind: Any) -> None:
    """The number of steps is free. PyTorch's own export fixes it to the example's."""
    net, steps = seeded(Recurrent(kind)), torch.export.Dim("steps", min=2, max=50)
    compiled = jangin.compile(
        net, threads=1, cache=False, example_inputs=(torch.randn(2, 6, 5),), dynamic_shapes=({1: steps},)
    )
    for count in (2, 11):
        x = torch.randn(2, count, 5)
        with torch.no_grad():
            wanted = net(x)  # PyTorch's own operators compute it again
        for got, expected in zip(compiled(x), wanted, strict=True):
            near(got, expected)


def test_tensors_go_in_and_come_out_where_they_lie() -> None:
    """Tensors of NumPy's types and of others are not copied."""
    for dtype in (torch.float32, torch.int64, torch.bfloat16):
        x = torch.ones(5, 3, dtype=dtype)
        assert array_of(x).ctypes.data == x.data_ptr()
        assert tensor_of(array_of(x), dtype).data_ptr() == x.data_ptr()
        assert array_of(x.t()).flags.c_contiguous  # no kernel reads this layout, so the tensor is copied


class Watched(torch.Tensor):
    """A tensor that records when its elements are taken as an array."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        assert func is not torch.Tensor.numpy, "an array was made"
        return super().__torch_function__(func, types, args, kwargs or {})


def test_calls_by_address() -> None:
    """A plan of known sizes takes addresses. Tensors in another layout are read correctly, and wrong shapes
    or types are refused."""
    compiled = jangin.compile(Scaled(), example_inputs=(torch.ones(3, 5), torch.ones(5, dtype=torch.int64)))
    counts = torch.arange(5)
    for x in (torch.randn(3, 5), torch.randn(5, 3).t(), torch.randn(6, 10)[::2, ::2]):
        near(compiled(x, counts)[0], x * 3 + counts)
    compiled(torch.randn(3, 5).as_subclass(Watched), counts)
    first, second = compiled(x, counts), compiled(-x, counts)
    assert len({t.data_ptr() for t in (*first, *second)}) == 4
    near(first[0], x * 3 + counts)
    assert first[1].dtype is torch.int64 and first[1].tolist() == [0, 1, 4, 9, 16]
    imaginary = torch.complex(torch.zeros(3, 5), torch.ones(3, 5)).conj().imag
    assert imaginary.is_neg()
    near(compiled(imaginary, counts)[0], counts - 3.0 * torch.ones(3, 5))
    with pytest.raises(TypeError, match="float64"):
        compiled(x.double(), counts)
    with pytest.raises(ValueError, match="must be 3"):
        compiled(torch.ones(4, 5), counts)
    with ThreadPoolExecutor(4) as pool:
        xs = [torch.full((3, 5), float(i)) for i in range(64)]
        for x, (got, _) in zip(xs, pool.map(lambda x: compiled(x, counts), xs), strict=True):
            near(got, x * 3 + counts)


class Scaled(nn.Module):
    def forward(self, x: Any, counts: Any) -> Any:
        return x * 3 + counts, counts * counts


class Given(nn.Module):
    """A module whose results are inputs or constants, or have no elements."""

    def forward(self, x: Any) -> Any:
        return x, x + 1, x.reshape(-1), x[:0], torch.zeros(2)


def test_results_that_are_no_memory_of_their_own() -> None:
    x = torch.randn(2, 3)
    for got, wanted in zip(jangin.compile(Given(), example_inputs=(x,))(x), Given()(x), strict=True):
        assert torch.equal(got, wanted)
        got.add_(1)  # the memory belongs to the caller alone


def test_a_trace_has_the_modules_own_weights() -> None:
    net, x = seeded(Net()), torch.randn(1, 3, 18, 18)
    model = traced(torch.export.export(net, (x,))).model
    held = {t.data_ptr() for t in (*net.parameters(), *net.buffers())}
    assert {a.ctypes.data for a in model.graph.constants.values()} <= held


class Choosing(nn.Module):
    """A module with nested branches and a loop."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: Any) -> Any:
        from torch._higher_order_ops.while_loop import while_loop

        def inner(x: Any) -> Any:
            return torch.cond(x.sum() > 4, lambda v: v * 2, lambda v: self.layer(v), (x,))

        with torch.no_grad():
            x = x * 2
        y = torch.cond(x.sum() > 0, inner, lambda v: v.sin(), (x,))
        start = (torch.zeros(()), y.abs() + 1)
        return while_loop(lambda n, v: v.abs().sum() < 100, lambda n, v: (n + 1, v * 2 + y), start)


def test_branches_and_loops() -> None:
    net = seeded(Choosing())
    ones = torch.ones(2, 4)
    compiled = jangin.compile(net, threads=1, cache=False, example_inputs=(ones,))
    for x in (ones, ones / 4, -ones):
        with torch.no_grad():
            wanted = net(x)
        for got, expected in zip(compiled(x), wanted, strict=True):
            near(got, expected)


def test_an_archive_that_unpacks_to_too_much_is_not_read(tmp_path: Path) -> None:
    net, x, path = seeded(nn.Linear(8, 3)), torch.randn(4, 8), tmp_path / "net.pt2"
    torch.export.save(torch.export.export(net, (x,)), path)
    with zipfile.ZipFile(path) as whole, zipfile.ZipFile(tmp_path / "bomb.pt2", "w", 8) as bomb:
        for name in whole.namelist():
            bomb.writestr(name, bytes(80 << 20) if name.endswith("weight_0") else whole.read(name))
    with pytest.raises(jangin.CompileError, match="far more than its size allows"):
        jangin.compile(tmp_path / "bomb.pt2", cache=False)


def test_torchscript_archives(tmp_path: Path) -> None:
    net, x = seeded(Net()), torch.randn(1, 3, 18, 18)
    path = tmp_path / "net.pt"
    torch.jit.trace(net, x).save(path)
    with pytest.raises(jangin.CompileError, match=r"TorchScript archive.*example_inputs"):
        jangin.compile(path, cache=False)
    loaded = torch.jit.load(path)
    compiled = jangin.compile(loaded, threads=1, cache=False, example_inputs=(x,))
    with torch.no_grad():
        near(compiled(x), net(x))
        near(jangin.compile(path, threads=1, cache=False, example_inputs=(x,))(x), net(x))
    with pytest.raises(jangin.CompileError, match="leave out dynamic_shapes"):
        jangin.compile(loaded, example_inputs=(x,), dynamic_shapes=({0: torch.export.Dim("n")},))


def test_a_compiled_module_is_a_module() -> None:
    """Each method of a module works on a compiled one, or its error says why it can't work."""
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(144, 2))
    x = torch.randn(2, 3, 8, 8)
    with pytest.warns(UserWarning, match="Sequential is in training mode and is compiled as in evaluation"):
        fast = jangin.compile(net, example_inputs=x, cache=False)
    assert net.training
    net.eval()
    wanted = net(x)
    near(fast(x), wanted)
    near(fast(x.numpy()), wanted)
    near(nn.Sequential(fast, nn.Identity())(x), wanted)
    assert isinstance(fast, nn.Module) and not fast.training
    assert fast.eval() is fast.to("cpu") is fast.float() is fast.to(torch.float32) is fast.train(False)
    assert [n for n, _ in fast.named_parameters()] == [n for n, _ in net.named_parameters()]
    assert all(torch.equal(a, net.state_dict()[n]) for n, a in fast.state_dict().items())
    assert [*fast.state_dict()] == [*net.state_dict()]
    for act, why in (
        (fast.half, "can't become torch.float16"),
        (lambda: fast.to("meta"), "on meta"),
        *([] if torch.cuda.is_available() else [(fast.cuda, "this PyTorch has no such device")]),
        (lambda: fast.load_state_dict({}), "weights are in its code"),
        (lambda: fast.register_forward_hook(print), "calls no hooks"),
        (lambda: fast.register_forward_pre_hook(print), "calls no hooks"),
    ):  # fmt: skip
        with pytest.raises(jangin.CompileError, match=why):
            act()


def test_a_compiled_module_trains() -> None:
    """Its steps are those of the original module, and `eval` compiles the new weights."""
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(144, 2)).eval()
    eager, x = copy.deepcopy(net), torch.randn(2, 3, 8, 8)
    fast = jangin.compile(net, example_inputs=x, cache=False, threads=1)
    before = fast(x)
    for module in (nn.Sequential(fast).train()[0], eager.train()):
        optimizer = torch.optim.SGD(module.parameters(), 1e-3)
        for _ in range(3):
            optimizer.zero_grad()
            module(x).square().mean().backward()
            optimizer.step()
    assert fast.training and not torch.equal(fast.state_dict()["1.running_mean"], torch.zeros(4))
    with pytest.raises(jangin.CompileError, match="eval"):
        fast.save("model.jgn")
    assert fast.eval() is fast and not fast.training and not net.training
    torch.testing.assert_close(fast(x), eager.eval()(x))
    near(jangin.compile(net, example_inputs=x, cache=False)(x), fast(x))
    assert not torch.allclose(fast(x), before)
    fast.train()
    fast.load_state_dict(nn.Sequential(*net).state_dict())
    with pytest.raises(jangin.CompileError, match="weights are in its code"):
        fast.eval().load_state_dict({})
    program = jangin.compile(torch.export.export(net, (x,)), cache=False)
    with pytest.raises(jangin.CompileError, match="train the module"):
        program.train()


def test_a_module_of_bfloat16() -> None:
    net, x = seeded(nn.Sequential(nn.Linear(8, 4), nn.ReLU())).bfloat16(), torch.randn(3, 8).bfloat16()
    made = jangin.compile(net, example_inputs=(x,), cache=False)(x)
    assert made.dtype is torch.bfloat16
    torch.testing.assert_close(made, net(x), rtol=0.02, atol=0.02)  # bfloat16 has 8 bits


@pytest.mark.parametrize("zipped", [True, False])
def test_weights_and_pickles_are_named_for_what_they_are(tmp_path: Path, zipped: bool) -> None:
    """The error for a file of weights or a pickle names the kind of file, and the line that makes a model of
    it. Nothing is unpickled."""
    net, path = nn.Sequential(nn.Linear(3, 2)), tmp_path / "net.pt"
    for saved in (net.state_dict(), {"epoch": 1, "state_dict": net.state_dict()}):
        torch.save(saved, path, _use_new_zipfile_serialization=zipped)
        with pytest.raises(
            jangin.CompileError, match=r"state dict.*load_state_dict\(torch\.load\('.*net\.pt'"
        ):
            jangin.compile(path)
    torch.save(net, path, _use_new_zipfile_serialization=zipped)
    with pytest.raises(jangin.CompileError, match=r"a pickled torch\.nn\.modules\.container\.Sequential"):
        jangin.compile(path)


def test_safetensors_are_named_for_what_they_are(tmp_path: Path) -> None:
    header = b'{"w":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}'
    (tmp_path / "w.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + bytes(4))
    with pytest.raises(jangin.CompileError, match=r"state dict.*safetensors\.torch\.load_file\('.*w\.safet"):
        jangin.compile(tmp_path / "w.safetensors")
