"""Dynamic-range quantization: scale and zero point come from the range of the data, in one pass with the codes."""

from __future__ import annotations

from typing import Any, Optional, Sequence, Tuple

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
    block_size: Optional[Sequence[int]] = None,
    dtype: Any = "int8",
    q_min: Optional[int] = None,
    q_max: Optional[int] = None,
    include_zero: bool = False,
    numerics: str = "exact",
    scale_dtype: Any = None,
    mx_rule: str = "floor",
    global_scale: Any = None,
    out: Any = None,
) -> Tuple[Any, ...]:
    """Quantizes ``x`` by its own range: returns ``(q, scale, zero_point)``.

    For every segment of the scope, over its finite values::

        symmetric    scale = max|x| / q_max                     zero_point = 0
        asymmetric   scale = (max x - min x) / (q_max - q_min)  zero_point = q_min - rne(min x / scale)

        q = clamp(rne(x / scale) + zero_point, q_min, q_max)

    scope: "token" (each row), "tensor", "channel" (needs ``axis``), "group" (needs ``group_size``; along ``axis``, by
    default the last) or "block" (needs ``block_size``, rows and columns of the last two dimensions). ``scale``
    and ``zero_point`` have the shape that ``dequantize_per_<scope>`` takes. Scales are float32 (float64 for float64
    data), zero points int32.

    include_zero: asymmetric ranges are extended to contain 0, so that the zero point is a code. With dtype="uint8" and
    scope="tensor" this is ONNX's DynamicQuantizeLinear. Without it the zero point may be outside the code type.

    dtype: as in ``quantize_per_tensor``. float8 and float4 need the symmetric mode; their scale is max|x| divided by the
    largest number of the type.

    scale_dtype: what scales are stored as. ``q`` belongs to exactly the stored scale. None is the default above;
    "float16" and "bfloat16" are rounded to nearest even; the others are for float8 and float4:

    "float8_e8m0"
        powers of two, the MX formats of OCP with scope="group" and group_size=32. mx_rule="floor" is the rule of the
        specification, "round_up" takes the next power from 1.75 times a power of two on, as compressed-tensors does.
    "float8_e4m3"
        ``scale * global_scale`` as float8, NVFP4 with scope="group", group_size=16 and dtype="float4_e2m1". Without
        ``global_scale`` it is found, 448 times the largest number of the type divided by max|x| of all of ``x``, and
        returned as a fourth result.

    A segment of zeros, or without any finite value, has scale 1. Asymmetric mode returns constants exactly. Scales are
    always finite and positive. NaN becomes the zero point, infinities become q_min and q_max.

    out: a tuple (q, scale, zero_point) of arrays to write to, with a found global_scale as the fourth; each may be None.

    >>> import numpy as np
    >>> q, scale, zero_point = dynamic_range_quantize(np.array([[-1.0, 0.5], [0.0, 63.5]], np.float32))
    >>> q
    array([[-127,   64],
           [   0,  127]], dtype=int8)
    >>> scale
    array([0.00787402, 0.5       ], dtype=float32)
    >>> zero_point
    array([0, 0], dtype=int32)
    >>> x = np.array([[0.5, -6.0, 2.4, 0.0], [0.1, 0.2, 0.3, 0.4]], np.float32)
    >>> q, scale, _, global_scale = dynamic_range_quantize(
    ...     x, scope="group", group_size=4, dtype="float4_e2m1", scale_dtype="float8_e4m3")
    >>> q
    PackedArray(shape=(2, 4), dtype='float4_e2m1fn', values=[[ 0.5 -6.   2.   0. ]  [ 1.5  3.   4.   6. ]])
    >>> global_scale
    array(448., dtype=float32)
    """
    return _dynamic_range_quantize(
        x, mode, scope, axis, group_size, block_size, dtype, q_min, q_max, include_zero, numerics, scale_dtype, mx_rule,
        global_scale, out,
    )  # fmt: skip
