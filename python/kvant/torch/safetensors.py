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
    """float32 tensors only. The file is complete or absent, never partly written."""
    header: Dict[str, Any] = {"__metadata__": {"format": "pt"}}
    at = 0
    for name, tensor in tensors.items():
        size = 4 * tensor.numel()
        header[name] = {"dtype": "F32", "shape": list(tensor.shape), "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    partial = f"{path}.{os.getpid()}.partial"
    try:
        with open(partial, "wb") as file:
            file.write(struct.pack("<Q", len(text)) + text)
            for tensor in tensors.values():
                file.write(tensor.detach().to(torch.float32).contiguous().numpy().tobytes())
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.remove(partial)
        raise
