"""SmoothQuant: moves the outliers of activation channels into the weights, which are easier to quantize."""

from __future__ import annotations

from typing import Any

from . import _kvant

__all__ = ["smooth_scales", "apply_smoothing"]


def smooth_scales(act_absmax: Any, weights: Any, alpha: float = 0.5, *, out: Any = None) -> Any:
    """The smoothing vector ``s`` for the linears that one norm feeds.

    ``w_j = max(max|W_j|, 1e-5)      s_j = max(max|X_j|^alpha / w_j^(1 - alpha), 1e-5)``

    act_absmax: ``[K]``, max|X_j| over the calibration data, finite and not negative. weights: an array ``[N, K]`` or a
    sequence of them. Returns float32 ``[K]``. Use alpha 0.5 for OPT and BLOOM, 0.8 to 0.9 for Llama-like models.

    >>> import numpy as np
    >>> smooth_scales(np.array([16.0, 1.0], np.float32), np.array([[1.0, 0.25], [-4.0, 0.5]], np.float32))
    array([2.       , 1.4142135], dtype=float32)
    """
    return _kvant.smooth_scales(act_absmax, weights, alpha, out)


def apply_smoothing(scales: Any, norm_weight: Any, weights: Any, norm_bias: Any = None) -> None:
    """Folds ``s`` into a norm and the linears after it, in place. Their outputs stay the same except for rounding.

    ``norm_weight[j] /= s_j      norm_bias[j] /= s_j      W[:, j] *= s_j``

    weights: an array ``[N, K]`` or a sequence of them, writable and in C order. If a finite value would overflow its
    type, this raises ValueError and writes nothing. Do not use it for norms that multiply by ``1 + w``, as in Gemma.

    >>> import numpy as np
    >>> norm, w = np.ones(2, np.float32), np.ones((1, 2), np.float32)
    >>> apply_smoothing(np.array([2.0, 0.5], np.float32), norm, w)
    >>> norm, w
    (array([0.5, 2. ], dtype=float32), array([[2. , 0.5]], dtype=float32))
    """
    _kvant.apply_smoothing(scales, norm_weight, norm_bias, weights)
