"""Keep attention whole in the graphs of `torch.compile`.

PyTorch decomposes attention into products and a softmax if its own CPU kernel doesn't take the mask. A graph
without gradients therefore gets an operator of the same arguments, which `operators/linear.py` lowers."""

from __future__ import annotations

import torch


def keep_attention(graph: torch.fx.GraphModule) -> None:
    """Replace PyTorch's attention in a graph and in its branches by the operator `jangin.attention`. Nothing
    is changed under autocast, which wouldn't convert the types of that operator's arguments."""
    parts = [m for m in graph.modules() if isinstance(m, torch.fx.GraphModule)]
    nodes = [n for m in parts for n in m.graph.nodes if n.op == "call_function"]
    if torch.is_autocast_enabled("cpu") or any(n.target is torch.amp._enter_autocast for n in nodes):
        return
    for node in nodes:
        if node.target is torch.nn.functional.scaled_dot_product_attention:
            node.target = torch.ops.jangin.attention.default
    for part in parts:
        part.recompile()


torch.library.define(
    "jangin::attention",
    "(Tensor query, Tensor key, Tensor value, Tensor? attn_mask=None, float dropout_p=0.0, "
    "bool is_causal=False, *, float? scale=None, bool enable_gqa=False) -> Tensor",
)
torch.library.impl("jangin::attention", "CPU", torch.nn.functional.scaled_dot_product_attention)
torch.library.register_fake("jangin::attention", torch.nn.functional.scaled_dot_product_attention)
