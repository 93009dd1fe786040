"""The same networks and products in PyTorch on an NVIDIA GPU, where PyTorch is."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

REPEATS, SETTLE = 20, 3
"""The number of runs that are timed, and of runs before."""
Row = dict[str, Any]


def run_seconds(run: Callable[[], object]) -> float:
    """Return the median seconds of whole runs."""
    for _ in range(SETTLE):
        run()
    taken = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        run()
        taken.append(time.perf_counter() - start)
    return statistics.median(taken)


def torch_with_cuda() -> Any:
    """Return PyTorch if it is here and has a device, or None."""
    try:
        import torch
    except ImportError:
        return None
    return torch if torch.cuda.is_available() else None


def torch_product(kind: str, size: int, ours: float) -> Row:
    """Measure a product in PyTorch, which calls cuBLAS. Its float32 products use tf32 only if told to."""
    torch = torch_with_cuda()
    if torch is None:
        return {"absent": "PyTorch with CUDA"}
    torch.backends.cuda.matmul.allow_tf32 = kind == "tf32"
    dtype = getattr(torch, "float32" if kind == "tf32" else kind)
    x, y = (torch.randn(size, size, device="cuda", dtype=dtype) for _ in range(2))
    taken = []
    for _ in range(SETTLE + REPEATS):
        events = [torch.cuda.Event(enable_timing=True) for _ in range(2)]
        events[0].record()
        torch.mm(x, y)
        events[1].record()
        torch.cuda.synchronize()
        taken.append(events[0].elapsed_time(events[1]) / 1e3)
    theirs = statistics.median(taken[SETTLE:])
    return {"cuBLAS": theirs, "of cuBLAS": theirs / ours}


def module(torch: Any, name: str, batch: int, small: bool) -> tuple[Any, Any]:
    """Return a network with random weights, and its input. Raises ImportError if its package isn't here."""
    if name in ("bert", "gpt2"):
        import transformers

        size = {"num_hidden_layers": 1, "hidden_size": 64, "intermediate_size": 128} if small else {}
        if name == "bert":
            net = transformers.BertModel(
                transformers.BertConfig(num_attention_heads=4 if small else 12, **size)
            )
        else:
            own = {"n_layer": 1, "n_embd": 64, "n_head": 4} if small else {}
            net = transformers.GPT2Model(transformers.GPT2Config(use_cache=False, **own))
        return net, torch.randint(0, 1000, (batch, 8 if small else 128))
    import torchvision

    made = {"squeezenet": "squeezenet1_1", "mobilenetv2": "mobilenet_v2"}.get(name, name)
    side = 64 if small else 224
    return getattr(torchvision.models, made)(weights=None), torch.randn(batch, 3, side, side)


def of_module(net: Any) -> Callable[[Any], Any]:
    def first(x: Any) -> Any:
        y = net(x)
        return getattr(y, "last_hidden_state", y)

    return first


def torch_network(name: str, batch: int, kind: str, small: bool, compiled: bool) -> Row:
    """Measure a network in PyTorch as one CUDA graph, eager or by torch.compile. The input is on the device,
    and the wait for the result counts."""
    torch = torch_with_cuda()
    if torch is None or kind == "int8":
        return {"absent": "PyTorch with CUDA" if torch is None else "PyTorch's network of bytes"}
    try:
        net, x = module(torch, name, batch, small)
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = kind == "tf32"
        dtype = getattr(torch, "float32" if kind == "tf32" else kind)
        net = net.eval().cuda().to(dtype)
        x = x.cuda().to(dtype) if x.dtype.is_floating_point else x.cuda()
        with torch.inference_mode():
            seconds = by_compiler(torch, net, x) if compiled else by_graph(torch, net, x)
    except ImportError as error:
        return {"absent": str(error)}
    except Exception as error:  # a network that PyTorch can't run is only reported
        return {"failed": f"PyTorch: {str(error)[:200]}"}
    return {"torch.compile" if compiled else "PyTorch": seconds}


def by_graph(torch: Any, net: Any, x: Any) -> float:
    run = of_module(net)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(SETTLE):
            run(x)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run(x)
    return run_seconds(lambda: (graph.replay(), torch.cuda.synchronize()))


def by_compiler(torch: Any, net: Any, x: Any) -> float:
    run = torch.compile(of_module(net), mode="reduce-overhead")
    return run_seconds(lambda: (run(x), torch.cuda.synchronize()))


def ours_on_device(exe: Any, given: dict[str, Any]) -> float | None:
    """Return the median seconds of a run whose input is a tensor of the device, as PyTorch's is."""
    torch = torch_with_cuda()
    if torch is None or any(v.dtype.name == "bfloat16" and not hasattr(v, "view") for v in given.values()):
        return None

    def tensor(v: Any) -> Any:
        if v.dtype.name == "bfloat16":
            return torch.from_numpy(v.view("int16")).view(torch.bfloat16).cuda()
        return torch.from_numpy(v).cuda()

    inputs = {n: tensor(v) for n, v in given.items()}
    return run_seconds(lambda: (exe.run(inputs), torch.cuda.synchronize()))
