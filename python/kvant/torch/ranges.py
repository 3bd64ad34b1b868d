"""Running ranges of tensors. Observing modules and calibration extend theirs by the same plan."""

from __future__ import annotations

from typing import Optional

import torch
from torch import Tensor

from .. import _kvant


def extend_range(
    x: Tensor, scope: str, axis: Optional[int], low: Tensor, high: Tensor, absmax: Optional[Tensor]
) -> None:
    x = x.contiguous()  # a plan takes no others
    plan = _kvant.RangePlan.select(
        tuple(x.shape), input=str(x.dtype)[len("torch.") :], scope=scope, axis=axis, accumulate=True
    )
    workspace = torch.empty(plan.workspace_size(), dtype=torch.uint8)
    plan.run(input=x, min_out=low, max_out=high, max_abs_out=absmax, workspace=workspace)
