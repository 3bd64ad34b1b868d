"""kvant: quantization for neural networks. One definition of the arithmetic, the same bits everywhere.

>>> import numpy as np, kvant
>>> x = np.array([[0.1, -0.7, 1.5], [3.0, 0.0, -6.0]], np.float32)
>>> q, scale, zero_point = kvant.dynamic_range_quantize(x)
>>> q
array([[   8,  -59,  127],
       [  64,    0, -127]], dtype=int8)
>>> kvant.dequantize_per_token(q, scale)
array([[ 0.09448819, -0.6968504 ,  1.5       ],
       [ 3.023622  ,  0.        , -6.        ]], dtype=float32)

Functions return new arrays, or write to ``out=``. ``help(kvant.elementwise)`` explains what all of them share.
``kvant.plan`` has the plans themselves, ``kvant.torch`` has gradients and modules for torch.

The extension needs two system libraries: libstdc++ (libstdc++.so.6) and oneTBB (libtbb.so.12; Debian package libtbb12).
"""

from __future__ import annotations

import typing as _typing
from typing import Any

try:
    from . import _kvant
except ImportError as error:
    if "libtbb" in str(error):
        raise ImportError(f"{error}: kvant needs oneTBB; on Debian and Ubuntu: apt-get install libtbb12") from error
    raise

from . import plan
from ._kvant import Observer, PackedArray, PackedWeight, get_num_threads, info, set_num_threads
from .dynamic_range import dynamic_range_quantize
from .elementwise import (
    dequantize_backward,
    dequantize_per_block,
    dequantize_per_channel,
    dequantize_per_group,
    dequantize_per_tensor,
    dequantize_per_token,
    fake_quantize,
    fake_quantize_backward,
    quantize_backward,
    quantize_per_block,
    quantize_per_channel,
    quantize_per_group,
    quantize_per_tensor,
    quantize_per_token,
)
from .linear import quantized_linear, smoothquant_linear, w8a8_linear
from .smoothing import apply_smoothing, smooth_scales

__version__: str = _kvant.version

__all__ = [
    "Observer",
    "PackedArray",
    "PackedWeight",
    "apply_smoothing",
    "dequantize_backward",
    "dequantize_per_block",
    "dequantize_per_channel",
    "dequantize_per_group",
    "dequantize_per_tensor",
    "dequantize_per_token",
    "dynamic_range_quantize",
    "fake_quantize",
    "fake_quantize_backward",
    "get_num_threads",
    "info",
    "plan",
    "quantize_backward",
    "quantize_per_block",
    "quantize_per_channel",
    "quantize_per_group",
    "quantize_per_tensor",
    "quantize_per_token",
    "quantized_linear",
    "set_num_threads",
    "smooth_scales",
    "smoothquant_linear",
    "w8a8_linear",
]


if not _typing.TYPE_CHECKING:  # a type checker would accept every name

    def __getattr__(name: str) -> Any:
        # kvant.torch is imported when it is first used: torch takes seconds to import and may not be installed.
        if name == "torch":
            import importlib

            try:
                return importlib.import_module(".torch", __name__)
            except ImportError as error:
                raise AttributeError(f"module {__name__!r} has no attribute 'torch': {error}") from error
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
