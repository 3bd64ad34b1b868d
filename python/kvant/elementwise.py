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
=========== ============================================ ============================================

Scales and zero points may also be given as flat arrays. Scales are float32 (float64 for float64 data); other
floating-point types are converted. Zero points are integers, one for all elements or one for each scale; None means 0.
A scale given as one number must be finite and positive. Arrays of scales are not checked for this.

In all formulas ``rne`` rounds to nearest, ties to even. ``x / scale`` is the correctly rounded quotient
(``numerics="exact"``, as in ONNX) or ``x * (1 / scale)`` (``numerics="reciprocal"``, as in PyTorch on CPUs). float64
data is computed in float64, everything else in float32 with one rounding at the end. The result is the same, bit for
bit, for any number of threads and any instruction set. NaN quantizes to the zero point, infinities to q_min and q_max.

Arrays are numpy arrays, or anything that supports DLPack, on the CPU. For a torch tensor the result is a torch tensor,
for everything else a numpy array. numpy has no bfloat16: it is uint16 there (or ml_dtypes.bfloat16). Inputs that are
not in C order are copied. Gaps between rows need no copy: ``x[:, :64]`` is read in place. ``out`` must be writable and
in C order, where gaps between rows are allowed too, and is returned.
"""

from __future__ import annotations

from typing import Any, Optional

from . import _kvant

__all__ = [
    "quantize_per_tensor",
    "quantize_per_channel",
    "quantize_per_token",
    "quantize_per_group",
    "dequantize_per_tensor",
    "dequantize_per_channel",
    "dequantize_per_token",
    "dequantize_per_group",
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
    out: Any = None,
) -> Any:
    """Floating point to integer codes, one scale for all elements.

    ``q = clamp(rne(x / scale) + zero_point, q_min, q_max)``

    x: float32, float64, float16 or bfloat16, any shape of up to 8 dimensions.
    dtype: "int8", "uint8", "int4" or "uint4"; the 4-bit ones give a PackedInt4.
    q_min, q_max: a narrower range of codes; by default the limits of the type.

    >>> import numpy as np
    >>> quantize_per_tensor(np.array([-1.0, 0.25, 0.5, 9.0], np.float32), 0.5, 1)
    array([-1,  1,  2, 19], dtype=int8)
    >>> quantize_per_tensor(np.array([-9.0, 0.5, np.nan], np.float32), 0.5, 8, dtype="uint4")
    PackedInt4(shape=(3,), signed=False, values=[0 9 8])
    """
    return _quantize(x, scale, zero_point, "tensor", None, None, dtype, q_min, q_max, numerics, out)


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
    out: Any = None,
) -> Any:
    """Floating point to integer codes, one scale for each index of ``axis`` (a negative axis counts from the end).

    ``q = clamp(rne(x / scale[c]) + zero_point[c], q_min, q_max)``

    >>> import numpy as np
    >>> x = np.array([[1.0, 2.0], [1.0, 2.0]], np.float32)
    >>> quantize_per_channel(x, [1.0, 0.1], None, axis=0)
    array([[ 1,  2],
           [10, 20]], dtype=int8)
    """
    return _quantize(x, scale, zero_point, "channel", axis, None, dtype, q_min, q_max, numerics, out)


def quantize_per_token(
    x: Any,
    scale: Any,
    zero_point: Any = 0,
    *,
    dtype: Any = "int8",
    q_min: Optional[int] = None,
    q_max: Optional[int] = None,
    numerics: str = "exact",
    out: Any = None,
) -> Any:
    """Floating point to integer codes, one scale for each row: ``scale`` has the shape ``x.shape[:-1]``.

    ``q = clamp(rne(x / scale[row]) + zero_point[row], q_min, q_max)``

    >>> import numpy as np
    >>> x = np.array([[1.0, 2.0], [1.0, 2.0]], np.float32)
    >>> quantize_per_token(x, [1.0, 0.1], [0, 100])
    array([[  1,   2],
           [110, 120]], dtype=int8)
    """
    return _quantize(x, scale, zero_point, "token", None, None, dtype, q_min, q_max, numerics, out)


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
    out: Any = None,
) -> Any:
    """Floating point to integer codes, one scale for each ``group_size`` neighbours along ``axis``.

    ``q = clamp(rne(x / scale[g]) + zero_point[g], q_min, q_max)``

    >>> import numpy as np
    >>> x = np.array([[1.0, 2.0, 3.0, 4.0, 5.0]], np.float32)
    >>> quantize_per_group(x, [[1.0, 0.1, 10.0]], 0, group_size=2)
    array([[ 1,  2, 30, 40,  0]], dtype=int8)
    """
    return _quantize(x, scale, zero_point, "group", axis, group_size, dtype, q_min, q_max, numerics, out)


def dequantize_per_tensor(q: Any, scale: Any, zero_point: Any = 0, *, dtype: Any = "float32", out: Any = None) -> Any:
    """Integer codes to floating point, one scale for all elements.

    ``x = scale * (q - zero_point)``

    q: int8, uint8 or a PackedInt4. dtype: "float32", "float64", "float16" or "bfloat16".

    >>> import numpy as np
    >>> dequantize_per_tensor(np.array([-1, 1, 2], np.int8), 0.5, 1)
    array([-1. ,  0. ,  0.5], dtype=float32)
    """
    return _dequantize(q, scale, zero_point, "tensor", None, None, dtype, out)


def dequantize_per_channel(
    q: Any, scale: Any, zero_point: Any, axis: int, *, dtype: Any = "float32", out: Any = None
) -> Any:
    """Integer codes to floating point, one scale for each index of ``axis``.

    ``x = scale[c] * (q - zero_point[c])``

    >>> import numpy as np
    >>> dequantize_per_channel(np.array([[1, 2], [10, 20]], np.int8), [1.0, 0.5], None, axis=0)
    array([[ 1.,  2.],
           [ 5., 10.]], dtype=float32)
    """
    return _dequantize(q, scale, zero_point, "channel", axis, None, dtype, out)


def dequantize_per_token(q: Any, scale: Any, zero_point: Any = 0, *, dtype: Any = "float32", out: Any = None) -> Any:
    """Integer codes to floating point, one scale for each row.

    ``x = scale[row] * (q - zero_point[row])``

    >>> import numpy as np
    >>> dequantize_per_token(np.array([[1, 2], [10, 20]], np.uint8), [1.0, 0.5], [0, 10], dtype="float64")
    array([[1., 2.],
           [0., 5.]])
    """
    return _dequantize(q, scale, zero_point, "token", None, None, dtype, out)


def dequantize_per_group(
    q: Any, scale: Any, zero_point: Any, group_size: int, axis: int = -1, *, dtype: Any = "float32", out: Any = None
) -> Any:
    """Integer codes to floating point, one scale for each ``group_size`` neighbours along ``axis``.

    ``x = scale[g] * (q - zero_point[g])``

    >>> import numpy as np
    >>> dequantize_per_group(np.array([[1, 2, 30, 40, 0]], np.int8), [[1.0, 0.5, 10.0]], 0, group_size=2)
    array([[ 1.,  2., 15., 20.,  0.]], dtype=float32)
    """
    return _dequantize(q, scale, zero_point, "group", axis, group_size, dtype, out)


def fake_quantize(
    x: Any,
    scale: Any,
    zero_point: Any,
    q_min: int,
    q_max: int,
    *,
    axis: Optional[int] = None,
    group_size: Optional[int] = None,
    scope: Optional[str] = None,
    numerics: str = "exact",
    out: Any = None,
) -> Any:
    """Rounds to the quantization grid and stays in floating point, for training.

    ``y = scale * (clamp(rne(x / scale) + zero_point, q_min, q_max) - zero_point)``

    One scale per tensor by default, per channel with ``axis``, per group with ``group_size`` (along ``axis``, by
    default the last), per row with ``scope="token"``. NaN stays NaN. ``out`` may be ``x`` itself. For gradients in
    torch see ``kvant.torch.fake_quantize``.

    >>> import numpy as np
    >>> fake_quantize(np.array([-9.0, 0.3, 0.6], np.float32), 0.25, 0, -8, 7)
    array([-2.  ,  0.25,  0.5 ], dtype=float32)
    """
    return _fake_quantize(x, scale, zero_point, scope, axis, group_size, q_min, q_max, numerics, out)


def quantize_backward(
    dy: Any,
    x: Any,
    scale: Any,
    zero_point: Any,
    q_min: int,
    q_max: int,
    *,
    axis: Optional[int] = None,
    group_size: Optional[int] = None,
    scope: Optional[str] = None,
    numerics: str = "exact",
    out: Any = None,
) -> Any:
    """The straight-through gradient of quantizing ``x``, given the gradient ``dy`` of the codes.

    ``dx = dy / scale  where  q_min <= rne(x / scale) + zero_point <= q_max,  else 0``

    ``dy`` has the dtype and shape of ``x``. q_min and q_max must fit int8 or uint8. Scopes are those of fake_quantize.

    >>> import numpy as np
    >>> x = np.array([-9.0, 0.3, 0.6], np.float32)
    >>> quantize_backward(np.ones(3, np.float32), x, 0.25, 0, -8, 7)
    array([0., 4., 4.], dtype=float32)
    """
    return _quantize_backward(dy, x, scale, zero_point, scope, axis, group_size, q_min, q_max, numerics, out)


def fake_quantize_backward(
    dy: Any,
    x: Any,
    scale: Any,
    zero_point: Any,
    q_min: int,
    q_max: int,
    *,
    axis: Optional[int] = None,
    group_size: Optional[int] = None,
    scope: Optional[str] = None,
    numerics: str = "exact",
    out: Any = None,
) -> Any:
    """The straight-through gradient of ``fake_quantize``.

    ``dx = dy  where  q_min <= rne(x / scale) + zero_point <= q_max,  else 0``

    >>> import numpy as np
    >>> x = np.array([-9.0, 0.3, 0.6], np.float32)
    >>> fake_quantize_backward(np.array([1, 2, 3], np.float32), x, 0.25, 0, -8, 7)
    array([0., 2., 3.], dtype=float32)
    """
    return _fake_quantize_backward(dy, x, scale, zero_point, scope, axis, group_size, q_min, q_max, numerics, out)


def dequantize_backward(
    dy: Any,
    scale: Any,
    *,
    axis: Optional[int] = None,
    group_size: Optional[int] = None,
    scope: Optional[str] = None,
    out: Any = None,
) -> Any:
    """The gradient of dequantizing, with respect to the codes taken as real numbers.

    ``dq = dy * scale``

    >>> import numpy as np
    >>> dequantize_backward(np.array([1.0, 2.0], np.float32), 0.5)
    array([0.5, 1. ], dtype=float32)
    """
    return _dequantize_backward(dy, scale, scope, axis, group_size, out)
