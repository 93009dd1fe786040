"""PyTorch's OpInfo database: its operators, with sample inputs of each.

Each generator of samples looks for the unittest method that asked for it, and reads the sources of all
callers for this. No unittest asks here, so the search is left out. Inside of pytest it took 20 minutes for
all operators, instead of one."""

from __future__ import annotations

from torch.testing._internal import common_utils
from torch.testing._internal.common_methods_invocations import op_db

__all__ = ["op_db"]

common_utils.extract_test_fn = lambda: None
