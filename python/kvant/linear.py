"""W8A8 linear layers: 8-bit matrix products with exact sums.

``y[m, n] = (act_scale[m] * weight_scale[n]) * sum_k (a[m, k] - act_zero_point[m]) * (w[n, k] - weight_zero_point[n])
+ bias[n]``

The sum is exact, for all codes and any number of features. The product of the scales, times the sum, plus the bias is
computed in float32 (float64 for float64 results) and rounded once to the type of the result. The bits are the same for
any number of threads and any instruction set, and for packed and plain weights.

Activations are ``[..., K]``, weights ``[N, K]``, results ``[..., N]``. ``weight_scale``: a number, ``[N]``, or
``[N, 1]`` as in checkpoints. ``bias``: None or ``[N]``; it is converted unless it is float32 or has the result's type.

``w8a8_linear`` can also write int8 or uint8 codes with a scale and a zero point of their own, as ONNX's QLinearMatMul
does: ``clamp(rne(sum * (act_scale * weight_scale / output_scale) + bias / output_scale) + output_zero_point)``. The
factor is float32, the rest float64, and there is one rounding to the nearest integer, ties to even.

A weight that is used more than once should be a PackedWeight, because a plain one is rearranged in every call.
"""

from __future__ import annotations

from typing import Any, Optional

from . import _kvant

__all__ = ["w8a8_linear", "smoothquant_linear", "quantized_linear"]

_w8a8_linear = _kvant.w8a8_linear
_smoothquant_linear = _kvant.smoothquant_linear
_quantized_linear = _kvant.quantized_linear


def w8a8_linear(
    act_q: Any,
    act_scale: Any,
    weight_q: Any,
    weight_scale: Any,
    bias: Any = None,
    *,
    act_zero_point: Any = 0,
    weight_zero_point: Any = 0,
    dtype: Any = "float32",
    output_scale: Optional[float] = None,
    output_zero_point: int = 0,
    out: Any = None,
) -> Any:
    """A linear layer on codes: the activation is already quantized, with one scale per token or one for all.

    act_q: int8 or uint8 ``[..., K]`` (or a PackedArray); act_scale and act_zero_point: a number, or one for each row.
    weight_q: int8 or uint8 ``[N, K]``, a PackedArray or a PackedWeight. dtype: of the result, floating point or
    ``"int8"`` or ``"uint8"``. Those two need output_scale, a number, and may have output_zero_point, a code; the bias
    is a number then, not a code.

    >>> import numpy as np
    >>> a = np.array([[1, 2, 3]], np.int8)
    >>> w = np.array([[1, 1, 1], [-128, 0, 127]], np.int8)
    >>> w8a8_linear(a, 0.5, w, [1.0, 0.25], np.array([10.0, 0.0], np.float32))
    array([[13.   , 31.625]], dtype=float32)
    >>> w8a8_linear(a, 0.5, w, [1.0, 0.25], dtype="uint8", output_scale=0.25, output_zero_point=100)
    array([[112, 226]], dtype=uint8)
    """
    return _w8a8_linear(
        act_q, act_scale, act_zero_point, weight_q, weight_scale, weight_zero_point, bias, dtype, out, output_scale,
        output_zero_point,
    )  # fmt: skip


def smoothquant_linear(
    act_q: Any,
    weight_q: Any,
    act_scale: float,
    weight_scale: Any,
    bias: Any = None,
    *,
    act_zero_point: int = 0,
    weight_zero_point: Any = 0,
    dtype: Any = "float32",
    out: Any = None,
) -> Any:
    """The static form of SmoothQuant: one calibrated activation scale, a number, for all tokens.

    ``y = (act_scale * weight_scale[n]) * sum_k (a - act_zero_point) * (w - weight_zero_point[n]) + bias[n]``

    >>> import numpy as np
    >>> a = np.array([[1, 2, 3]], np.int8)
    >>> w = np.array([[1, 1, 1], [-128, 0, 127]], np.int8)
    >>> smoothquant_linear(a, w, 0.5, [1.0, 0.25])
    array([[ 3.   , 31.625]], dtype=float32)
    """
    return _smoothquant_linear(
        act_q, act_scale, act_zero_point, weight_q, weight_scale, weight_zero_point, bias, dtype, out
    )


def quantized_linear(
    x: Any,
    weight: Any,
    weight_scale: Any,
    bias: Any = None,
    *,
    mode: str = "symmetric",
    include_zero: bool = False,
    act_scale: Optional[float] = None,
    act_zero_point: int = 0,
    smooth: Any = None,
    weight_zero_point: Any = 0,
    numerics: str = "exact",
    out: Any = None,
) -> Any:
    """A linear layer on floating point: the activation is quantized to int8 inside, token by token.

    Each row of ``x`` is quantized by its own range, as in ``dynamic_range_quantize(x, mode=mode)``. With ``act_scale``
    (and ``act_zero_point``) all rows are quantized by that static scale instead. With ``smooth`` (K numbers)
    ``x / smooth`` replaces ``x``: this is SmoothQuant where no norm can absorb the division. The rest is as in
    ``w8a8_linear``. The result has the type of ``x``.

    x: float32, float64, float16 or bfloat16 ``[..., K]``.

    >>> import numpy as np
    >>> x = np.array([[1.0, -0.5, 0.25]], np.float32)
    >>> weight = PackedWeight(np.array([[127, 0, 0], [0, 127, 0]], np.int8))
    >>> quantized_linear(x, weight, 1 / 127)
    array([[ 1.      , -0.503937]], dtype=float32)
    """
    return _quantized_linear(
        x, weight, weight_scale, weight_zero_point, bias, mode, include_zero, act_scale, act_zero_point, smooth,
        numerics, out,
    )  # fmt: skip
