"""Dynamic-range quantization: scale and zero point come from the range of the data, in one pass with the codes."""

from __future__ import annotations

from typing import Any, Optional, Tuple

from . import _kvant

__all__ = ["dynamic_range_quantize"]

_dynamic_range_quantize = _kvant.dynamic_range_quantize


def dynamic_range_quantize(
    x: Any,
    *,
    mode: str = "symmetric",
    scope: str = "token",
    axis: Optional[int] = None,
    group_size: Optional[int] = None,
    dtype: Any = "int8",
    q_min: Optional[int] = None,
    q_max: Optional[int] = None,
    include_zero: bool = False,
    numerics: str = "exact",
    out: Any = None,
) -> Tuple[Any, Any, Any]:
    """Quantizes ``x`` by its own range: returns ``(q, scale, zero_point)``.

    For every segment of the scope, over its finite values::

        symmetric    scale = max|x| / q_max                     zero_point = 0
        asymmetric   scale = (max x - min x) / (q_max - q_min)  zero_point = q_min - rne(min x / scale)

        q = clamp(rne(x / scale) + zero_point, q_min, q_max)

    scope: "token" (each row), "tensor", "channel" (needs ``axis``) or "group" (needs ``group_size``; along ``axis``, by
    default the last). ``scale`` and ``zero_point`` have the shape that ``dequantize_per_<scope>`` takes. Scales are
    float32 (float64 for float64 data), zero points int32.

    include_zero: asymmetric ranges are extended to contain 0, so that the zero point is a code. With dtype="uint8" and
    scope="tensor" this is ONNX's DynamicQuantizeLinear. Without it the zero point may be outside the code type.

    A segment of zeros, or without any finite value, has scale 1. Asymmetric mode returns constants exactly. Scales are
    always finite and positive. NaN becomes the zero point, infinities become q_min and q_max.

    out: a tuple (q, scale, zero_point) of arrays to write to; each may be None.

    >>> import numpy as np
    >>> q, scale, zero_point = dynamic_range_quantize(np.array([[-1.0, 0.5], [0.0, 63.5]], np.float32))
    >>> q
    array([[-127,   64],
           [   0,  127]], dtype=int8)
    >>> scale
    array([0.00787402, 0.5       ], dtype=float32)
    >>> zero_point
    array([0, 0], dtype=int32)
    """
    return _dynamic_range_quantize(
        x, mode, scope, axis, group_size, dtype, q_min, q_max, include_zero, numerics, out
    )
