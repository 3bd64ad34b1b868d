"""A writer of safetensors files, so that calibration does not need the package safetensors."""

from __future__ import annotations

import contextlib
import json
import os
import struct
from typing import Any, Dict, Mapping

import torch
from torch import Tensor


def write_safetensors(path: str, tensors: Mapping[str, Tensor]) -> None:
    """int64 tensors, and others as float32. The file is complete or absent, never partly written."""
    header: Dict[str, Any] = {"__metadata__": {"format": "pt"}}
    stored = {
        name: tensor.detach().to(torch.int64 if tensor.dtype == torch.int64 else torch.float32).contiguous()
        for name, tensor in tensors.items()
    }
    # The wider ones first, so that all are at multiples of their size.
    stored = dict(sorted(stored.items(), key=lambda item: item[1].dtype != torch.int64))
    at = 0
    for name, tensor in stored.items():
        size = tensor.element_size() * tensor.numel()
        dtype = "I64" if tensor.dtype == torch.int64 else "F32"
        header[name] = {"dtype": dtype, "shape": list(tensor.shape), "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    partial = f"{path}.{os.getpid()}.partial"
    try:
        with open(partial, "wb") as file:
            file.write(struct.pack("<Q", len(text)) + text)
            for tensor in stored.values():
                file.write(tensor.numpy().tobytes())
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.remove(partial)
        raise
