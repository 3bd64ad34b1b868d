"""What torch's tensors need before kvant's functions can read them, and the rule for the dtypes of buffers."""

from __future__ import annotations

from typing import Dict, Optional

from torch import Tensor, nn


def check_device(tensor: Tensor, what: str) -> None:
    if not tensor.is_cpu:
        raise ValueError(f"kvant works on the CPU, and {what} is on {tensor.device}: move it with .cpu()")


def plain(tensor: Tensor) -> Tensor:
    # The functions of kvant refuse tensors that require gradients. DLPack cannot express torch's negated views, such as
    # z.conj().imag: it shows the memory, where the sign is wrong.
    if tensor.requires_grad:
        tensor = tensor.detach()
    return tensor.resolve_neg() if tensor.is_neg() else tensor


def keep_dtypes(module: nn.Module, before: Dict[str, Optional[Tensor]]) -> None:
    # model.half() is meant for activations. Scales and ranges keep their types.
    for name, old in before.items():
        new = module._buffers[name]
        if old is not None and new is not None and old.dtype != new.dtype:
            module._buffers[name] = old.to(new.device)
