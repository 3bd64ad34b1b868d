"""Quantize, dequantize and fake-quantize with known scales, and the straight-through backward passes.

Which elements share a scale and a zero point:

=========== ============================================ ============================================
scope       one scale for                                shape of ``scale`` and ``zero_point``
=========== ============================================ ============================================
``tensor``  all elements                                 a number, or one element
``channel`` each index of ``axis``                       ``(x.shape[axis],)``
``token``   each row, a row being the last dimension     ``x.shape[:-1]``
``group``   each ``group_size`` neighbours along         ``x.shape`` with ``ceil(x.shape[axis] / group_size)``
            ``axis``; the last group may be shorter      in place of ``x.shape[axis]``
``block``   each ``(rows, columns)`` of the last two     ``x.shape`` with ``ceil(x.shape[-2] / rows)`` and
            dimensions; blocks at the edges may be       ``ceil(x.shape[-1] / columns)`` in place of the last
            smaller                                      two sizes
=========== ============================================ ============================================

Scales and zero points may also be given as flat arrays. Scales are float32 (float64 for float64 data); other
floating-point types are converted. Arrays of float8_e8m0 (powers of two, as in the MX formats) and of float8_e4m3 are
taken as they are; the latter need ``global_scale``, one number that they are divided by (as in NVFP4). Zero points are
integers, one for all elements or one for each scale; None means 0. A scale given as one number must be finite and
positive. Arrays of scales are not checked for this.

Codes are integers of 16, 8, 4 or 2 bits, or small floating-point numbers: float8_e4m3, float8_e5m2 and float4_e2m1 (the
formats of OCP, which ml_dtypes and torch call float8_e4m3fn, float8_e5m2 and float4_e2m1fn). The latter have no zero
point and no q_min and q_max: ``x / scale`` becomes the nearest number of the type, ties go to the even code, and what
is beyond it becomes its largest number. NaN stays NaN where the type has one, otherwise it becomes 0.

In all formulas ``rne`` rounds to nearest, ties to even. ``x / scale`` is the correctly rounded quotient
(``numerics="exact"``, as in ONNX) or ``x * (1 / scale)`` (``numerics="reciprocal"``, as in PyTorch on CPUs). float64
data is computed in float64, everything else in float32 with one rounding at the end. The result is the same, bit for
bit, for any number of threads and any instruction set. NaN quantizes to the zero point, infinities to q_min and q_max.

Arrays are numpy arrays, or anything that supports DLPack, on the CPU. For a torch tensor the result is a torch tensor,
for everything else a numpy array. numpy has no bfloat16: it is uint16 there (or ml_dtypes.bfloat16). float8 results are
arrays of ml_dtypes' types if that is installed, otherwise a PackedArray. Inputs that are not in C order are copied.
Gaps between rows need no copy: ``x[:, :64]`` is read in place. ``out`` must be writable and in C order, where gaps
between rows are allowed too, and is returned.
"""

from __future__ import annotations

from typing import Any, Optional, Sequence

from . import _kvant

__all__ = [
    "quantize_per_tensor",
    "quantize_per_channel",
    "quantize_per_token",
    "quantize_per_group",
    "quantize_per_block",
    "dequantize_per_tensor",
    "dequantize_per_channel",
    "dequantize_per_token",
    "dequantize_per_group",
    "dequantize_per_block",
    "fake_quantize",
    "quantize_backward",
    "fake_quantize_backward",
    "dequantize_backward",
]

_quantize = _kvant.quantize
_dequantize = _kvant.dequantize
_fake_quantize = _kvant.fake_quantize
_quantize_backward = _kvant.quantize_backward
_fake_quantize_backward = _kvant.fake_quantize_backward
_dequantize_backward = _kvant.dequantize_backward


def quantize_per_tensor(
    x: Any,
    scale: Any,
    zero_point: Any = 0,
    *,
    dtype: Any = "int8",
    q_min: Optional[int] = None,
    q_max: Optional[int] = None,
    numerics: str = "exact",
    saturate: bool = True,
    global_scale: Any = None,
    out: Any = None,
) -> Any:
    """Floating point to codes, one scale for all elements.

    ``q = clamp(rne(x / scale) + zero_point, q_min, q_max)``

    x: float32, float64, float16 or bfloat16, any shape of up to 8 dimensions.
    dtype: "int8", "uint8", "int16", "uint16", "float8_e4m3", "float8_e5m2", or "int4", "uint4", "int2", "uint2",
    "float4_e2m1", which give a PackedArray.
    q_min, q_max: a narrower range of integer codes; by default the limits of the type.
    saturate: False makes infinity or NaN of what is beyond a float8, in place of its largest number.
    global_scale: one number over scales of float8_e4m3.

    >>> import numpy as np
    >>> quantize_per_tensor(np.array([-1.0, 0.25, 0.5, 9.0], np.float32), 0.5, 1)
    array([-1,  1,  2, 19], dtype=int8)
    >>> quantize_per_tensor(np.array([-9.0, 0.5, np.nan], np.float32), 0.5, 8, dtype="uint4")
    PackedArray(shape=(3,), dtype='uint4', values=[0 9 8])
    >>> quantize_per_tensor(np.array([0.3, -9.0, 1.2], np.float32), 0.5, dtype="float4_e2m1")
    PackedArray(shape=(3,), dtype='float4_e2m1fn', values=[ 0.5 -6.   2. ])
    """
    return _quantize(
        x, scale, zero_point, "tensor", None, None, None, dtype, q_min, q_max, numerics, saturate,
        global_scale, out,
    )  # fmt: skip


def quantize_per_channel(
    x: Any,
    scale: Any,
    zero_point: Any,
    axis: int,
    *,
    dtype: Any = "int8",
    q_min: Optional[int] = None,
    q_max: Optional[int] = None,
    numerics: str = "exact",
    saturate: bool = True,
    global_scale: Any = None,
    out: Any = None,
) -> Any:
    """Floating point to codes, one scale for each index of ``axis`` (a negative axis counts from the end).

    ``q = clamp(rne(x / scale[c]) + zero_point[c], q_min, q_max)``

    >>> import numpy as np
    >>> x = np.array([[1.0, 2.0], [1.0, 2.0]], np.float32)
    >>> quantize_per_channel(x, [1.0, 0.1], None, axis=0)
    array([[ 1,  2],
           [10, 20]], dtype=int8)
    """
    return _quantize(
        x, scale, zero_point, "channel", axis, None, None, dtype, q_min, q_max, numerics, saturate,
        global_scale, out,
    )  # fmt: skip


def quantize_per_token(
    x: Any,
    scale: Any,
    zero_point: Any = 0,
    *,
    dtype: Any = "int8",
    q_min: Optional[int] = None,
    q_max: Optional[int] = None,
    numerics: str = "exact",
    saturate: bool = True,
    global_scale: Any = None,
    out: Any = None,
) -> Any:
    """Floating point to codes, one scale for each row: ``scale`` has the shape ``x.shape[:-1]``.

    ``q = clamp(rne(x / scale[row]) + zero_point[row], q_min, q_max)``

    >>> import numpy as np
    >>> x = np.array([[1.0, 2.0], [1.0, 2.0]], np.float32)
    >>> quantize_per_token(x, [1.0, 0.1], [0, 100])
    array([[  1,   2],
           [110, 120]], dtype=int8)
    """
    return _quantize(
        x, scale, zero_point, "token", None, None, None, dtype, q_min, q_max, numerics, saturate,
        global_scale, out,
    )  # fmt: skip


def quantize_per_group(
    x: Any,
    scale: Any,
    zero_point: Any,
    group_size: int,
    axis: int = -1,
    *,
    dtype: Any = "int8",
    q_min: Optional[int] = None,
    q_max: Optional[int] = None,
    numerics: str = "exact",
    saturate: bool = True,
    global_scale: Any = None,
    out: Any = None,
) -> Any:
    """Floating point to codes, one scale for each ``group_size`` neighbours along ``axis``.

    ``q = clamp(rne(x / scale[g]) + zero_point[g], q_min, q_max)``

    >>> import numpy as np
    >>> x = np.array([[1.0, 2.0, 3.0, 4.0, 5.0]], np.float32)
    >>> quantize_per_group(x, [[1.0, 0.1, 10.0]], 0, group_size=2)
    array([[ 1,  2, 30, 40,  0]], dtype=int8)
    """
    return _quantize(
        x, scale, zero_point, "group", axis, group_size, None, dtype, q_min, q_max, numerics, saturate,
        global_scale, out,
    )  # fmt: skip


def quantize_per_block(
    x: Any,
    scale: Any,
    zero_point: Any,
    block_size: Sequence[int],
    *,
    dtype: Any = "int8",
    q_min: Optional[int] = None,
    q_max: Optional[int] = None,
    numerics: str = "exact",
    saturate: bool = True,
    global_scale: Any = None,
    out: Any = None,
) -> Any:
    """Floating point to codes, one scale for each block of ``block_size = (rows, columns)`` of the last two
    dimensions. Blocks at the edges may be smaller.

    ``q = clamp(rne(x / scale[b]) + zero_point[b], q_min, q_max)``

    >>> import numpy as np
    >>> x = np.array([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0], [7.0, 8.0, 9.0]], np.float32)
    >>> quantize_per_block(x, [[1.0, 0.1], [10.0, 0.5]], 0, block_size=(2, 2))
    array([[ 1,  2, 30],
           [ 4,  5, 60],
           [ 1,  1, 18]], dtype=int8)
    """
    return _quantize(
        x, scale, zero_point, "block", None, None, block_size, dtype, q_min, q_max, numerics, saturate,
        global_scale, out,
    )  # fmt: skip


def dequantize_per_tensor(
    q: Any, scale: Any, zero_point: Any = 0, *, dtype: Any = "float32", global_scale: Any = None, out: Any = None
) -> Any:
    """Codes to floating point, one scale for all elements.

    ``x = scale * (q - zero_point)``

    q: int8, uint8, int16, uint16, float8 or a PackedArray. Codes of float8 and float4 stand for their numbers.
    dtype: "float32", "float64", "float16" or "bfloat16". global_scale: one number over scales of float8_e4m3.

    >>> import numpy as np
    >>> dequantize_per_tensor(np.array([-1, 1, 2], np.int8), 0.5, 1)
    array([-1. ,  0. ,  0.5], dtype=float32)
    """
    return _dequantize(q, scale, zero_point, "tensor", None, None, None, dtype, global_scale, out)


def dequantize_per_channel(
    q: Any,
    scale: Any,
    zero_point: Any,
    axis: int,
    *,
    dtype: Any = "float32",
    global_scale: Any = None,
    out: Any = None,
) -> Any:
    """Codes to floating point, one scale for each index of ``axis``.

    ``x = scale[c] * (q - zero_point[c])``

    >>> import numpy as np
    >>> dequantize_per_channel(np.array([[1, 2], [10, 20]], np.int8), [1.0, 0.5], None, axis=0)
    array([[ 1.,  2.],
           [ 5., 10.]], dtype=float32)
    """
    return _dequantize(q, scale, zero_point, "channel", axis, None, None, dtype, global_scale, out)


def dequantize_per_token(
    q: Any, scale: Any, zero_point: Any = 0, *, dtype: Any = "float32", global_scale: Any = None, out: Any = None
) -> Any:
    """Codes to floating point, one scale for each row.

    ``x = scale[row] * (q - zero_point[row])``

    >>> import numpy as np
    >>> dequantize_per_token(np.array([[1, 2], [10, 20]], np.uint8), [1.0, 0.5], [0, 10], dtype="float64")
    array([[1., 2.],
           [0., 5.]])
    """
    return _dequantize(q, scale, zero_point, "token", None, None, None, dtype, global_scale, out)


def dequantize_per_group(
    q: Any,
    scale: Any,
    zero_point: Any,
    group_size: int,
    axis: int = -1,
    *,
    dtype: Any = "float32",
    global_scale: Any = None,
    out: Any = None,
) -> Any:
    """Codes to floating point, one scale for each ``group_size`` neighbours along ``axis``.

    ``x = scale[g] * (q - zero_point[g])``

    >>> import numpy as np
    >>> dequantize_per_group(np.array([[1, 2, 30, 40, 0]], np.int8), [[1.0, 0.5, 10.0]], 0, group_size=2)
    array([[ 1.,  2., 15., 20.,  0.]], dtype=float32)
    """
    return _dequantize(q, scale, zero_point, "group", axis, group_size, None, dtype, global_scale, out)


def dequantize_per_block(
    q: Any,
    scale: Any,
    zero_point: Any,
    block_size: Sequence[int],
    *,
    dtype: Any = "float32",
    global_scale: Any = None,
    out: Any = None,
) -> Any:
    """Codes to floating point, one scale for each block of ``block_size = (rows, columns)`` of the last two
    dimensions.

    ``x = scale[b] * (q - zero_point[b])``

    >>> import numpy as np
    >>> q = np.array([[1, 2, 30], [4, 5, 60], [1, 1, 18]], np.int8)
    >>> dequantize_per_block(q, [[1.0, 0.5], [10.0, 0.5]], 0, block_size=(2, 2))
    array([[ 1.,  2., 15.],
           [ 4.,  5., 30.],
           [10., 10.,  9.]], dtype=float32)
    """
    return _dequantize(q, scale, zero_point, "block", None, None, block_size, dtype, global_scale, out)


def fake_quantize(
    x: Any,
    scale: Any,
    zero_point: Any = 0,
    q_min: Optional[int] = None,
    q_max: Optional[int] = None,
    *,
    grid: Any = None,
    axis: Optional[int] = None,
    group_size: Optional[int] = None,
    block_size: Optional[Sequence[int]] = None,
    scope: Optional[str] = None,
    numerics: str = "exact",
    saturate: bool = True,
    global_scale: Any = None,
    out: Any = None,
) -> Any:
    """Rounds to the quantization grid and stays in floating point, for training.

    ``y = scale * (clamp(rne(x / scale) + zero_point, q_min, q_max) - zero_point)``

    One scale per tensor by default, per channel with ``axis``, per group with ``group_size`` (along ``axis``, by
    default the last), per block with ``block_size`` (rows and columns), per row with ``scope="token"``. NaN stays NaN.
    ``out`` may be ``x`` itself. For gradients in torch see ``kvant.torch.fake_quantize``.

    grid: "float8_e4m3", "float8_e5m2" or "float4_e2m1" in place of q_min and q_max: the numbers of that type times the
    scale. saturate and global_scale are those of quantize_per_tensor.

    >>> import numpy as np
    >>> fake_quantize(np.array([-9.0, 0.3, 0.6], np.float32), 0.25, 0, -8, 7)
    array([-2.  ,  0.25,  0.5 ], dtype=float32)
    >>> fake_quantize(np.array([-9.0, 0.3, 0.6], np.float32), 0.25, grid="float4_e2m1")
    array([-1.5 ,  0.25,  0.5 ], dtype=float32)
    """
    return _fake_quantize(
        x, scale, zero_point, scope, axis, group_size, block_size, q_min, q_max, grid, numerics, saturate,
        global_scale, out,
    )  # fmt: skip


def quantize_backward(
    dy: Any,
    x: Any,
    scale: Any,
    zero_point: Any = 0,
    q_min: Optional[int] = None,
    q_max: Optional[int] = None,
    *,
    grid: Any = None,
    axis: Optional[int] = None,
    group_size: Optional[int] = None,
    block_size: Optional[Sequence[int]] = None,
    scope: Optional[str] = None,
    numerics: str = "exact",
    global_scale: Any = None,
    out: Any = None,
) -> Any:
    """The straight-through gradient of quantizing ``x``, given the gradient ``dy`` of the codes.

    ``dx = dy / scale  where  q_min <= rne(x / scale) + zero_point <= q_max,  else 0``

    ``dy`` has the dtype and shape of ``x``. q_min and q_max must fit int16 or uint16. Scopes are those of
    fake_quantize, and so is ``grid``: then the gradient is 0 where ``|x / scale|`` is above the largest number of that type.

    >>> import numpy as np
    >>> x = np.array([-9.0, 0.3, 0.6], np.float32)
    >>> quantize_backward(np.ones(3, np.float32), x, 0.25, 0, -8, 7)
    array([0., 4., 4.], dtype=float32)
    """
    return _quantize_backward(
        dy, x, scale, zero_point, scope, axis, group_size, block_size, q_min, q_max, grid, numerics, global_scale, out
    )


def fake_quantize_backward(
    dy: Any,
    x: Any,
    scale: Any,
    zero_point: Any = 0,
    q_min: Optional[int] = None,
    q_max: Optional[int] = None,
    *,
    grid: Any = None,
    axis: Optional[int] = None,
    group_size: Optional[int] = None,
    block_size: Optional[Sequence[int]] = None,
    scope: Optional[str] = None,
    numerics: str = "exact",
    global_scale: Any = None,
    out: Any = None,
) -> Any:
    """The straight-through gradient of ``fake_quantize``.

    ``dx = dy  where  q_min <= rne(x / scale) + zero_point <= q_max,  else 0``

    With ``grid`` it is 0 where ``|x / scale|`` is above the largest number of that type.

    >>> import numpy as np
    >>> x = np.array([-9.0, 0.3, 0.6], np.float32)
    >>> fake_quantize_backward(np.array([1, 2, 3], np.float32), x, 0.25, 0, -8, 7)
    array([0., 2., 3.], dtype=float32)
    """
    return _fake_quantize_backward(
        dy, x, scale, zero_point, scope, axis, group_size, block_size, q_min, q_max, grid, numerics, global_scale, out
    )


def dequantize_backward(
    dy: Any,
    scale: Any,
    *,
    axis: Optional[int] = None,
    group_size: Optional[int] = None,
    block_size: Optional[Sequence[int]] = None,
    scope: Optional[str] = None,
    global_scale: Any = None,
    out: Any = None,
) -> Any:
    """The gradient of dequantizing, with respect to the codes taken as real numbers.

    ``dq = dy * scale``

    >>> import numpy as np
    >>> dequantize_backward(np.array([1.0, 2.0], np.float32), 0.5)
    array([0.5, 1. ], dtype=float32)
    """
    return _dequantize_backward(dy, scale, scope, axis, group_size, block_size, global_scale, out)
