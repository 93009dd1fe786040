"""One of two processes that train a module by `DistributedDataParallel`.

    python ddp_worker.py RANK MEETING_FILE RESULT_FILE

Each process takes its half of the batches. The first writes the trained parameters."""

from __future__ import annotations

import gc
import sys
from pathlib import Path
from typing import Any

import torch
from torch import nn

from jangin.torch_backend import backend

STEPS = 3


def module() -> Any:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(8, 512), nn.LayerNorm(512), nn.GELU(), nn.Linear(512, 512), nn.Linear(512, 3)
    )  # fmt: skip


def trained(run: Any, parameters: Any, part: slice) -> None:
    """Train for some steps on a part of each batch of 8."""
    optimizer = torch.optim.SGD(parameters, lr=0.1)
    for step in range(STEPS):
        drawn = torch.Generator().manual_seed(step)
        x, y = torch.randn(8, 8, generator=drawn)[part], torch.randint(0, 3, (8,), generator=drawn)[part]
        optimizer.zero_grad()
        nn.functional.cross_entropy(run(x), y).backward()
        optimizer.step()


def main(rank: int, meeting: str, result: Path) -> None:
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", f"file://{meeting}", world_size=2, rank=rank)
    net = module()
    spread = nn.parallel.DistributedDataParallel(net, bucket_cap_mb=1)  # two graphs
    trained(torch.compile(spread, backend=backend), net.parameters(), slice(rank * 4, rank * 4 + 4))
    if rank == 0:
        torch.save(net.state_dict(), result)
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], Path(sys.argv[3]))
    # PyTorch's threads of the group end with the module, which is part of a cycle. Threads that live when
    # Python ends may abort the process.
    gc.collect()
