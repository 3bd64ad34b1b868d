"""What torch's tensors need before kvant's functions can read them, and the rule for the dtypes of buffers."""

from __future__ import annotations

from typing import Dict, Optional

from torch import Tensor, nn


def check_device(tensor: Tensor, what: str) -> None:
    if not tensor.is_cpu:
        raise ValueError(f"kvant works on the CPU, and {what} is on {tensor.device}: move it with .cpu()")


def plain(tensor: Tensor) -> Tensor:
    # The plain functions refuse both. DLPack has no word for torch's negated views (z.conj().imag is one): it shows the
    # memory, where the sign is wrong.
    if tensor.requires_grad:
        tensor = tensor.detach()
    return tensor.resolve_neg() if tensor.is_neg() else tensor


def keep_dtypes(module: nn.Module, before: Dict[str, Optional[Tensor]]) -> None:
    # model.half() is about the type that activations have. Scales and ranges stay exact.
    for name, old in before.items():
        new = module._buffers[name]
        if old is not None and new is not None and old.dtype != new.dtype:
            module._buffers[name] = old.to(new.device)
