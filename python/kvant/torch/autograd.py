"""``fake_quantize`` with its straight-through gradient, as a function of torch.autograd."""

from __future__ import annotations

from typing import Any, Optional, Sequence, Tuple, Union

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from .. import _kvant
from .tensors import check_device, plain


class _FakeQuantize(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, scale: Any, zero_point: Any, q_min: Optional[int], q_max: Optional[int], grid: Any,
        scope: Optional[str], axis: Optional[int], group_size: Optional[int], block_size: Optional[Sequence[int]],
        numerics: str,
    ) -> Tensor:  # fmt: skip
        # Tensors go through save_for_backward, so that autograd notices when one is written to before the backward.
        tensors = [p if isinstance(p, Tensor) else None for p in (scale, zero_point)]
        ctx.save_for_backward(x, *tensors)
        ctx.numbers = [None if isinstance(p, Tensor) else p for p in (scale, zero_point)]
        rest = (scope, axis, group_size, block_size, q_min, q_max, grid, numerics)
        ctx.rest = (*rest, None, None)  # the last two are global_scale and out
        scale, zero_point = (plain(p) if isinstance(p, Tensor) else p for p in (scale, zero_point))
        y: Tensor = _kvant.fake_quantize(plain(x), scale, zero_point, *rest, True, None, None)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> Tuple[Optional[Tensor], ...]:
        x, *tensors = ctx.saved_tensors
        scale, zero_point = (n if t is None else plain(t) for t, n in zip(tensors, ctx.numbers))
        dx = _kvant.fake_quantize_backward(plain(dy), plain(x), scale, zero_point, *ctx.rest)
        return (dx, *[None] * 10)


def fake_quantize(
    x: Tensor,
    scale: Union[float, Tensor],
    zero_point: Union[int, Tensor, None] = 0,
    q_min: Optional[int] = None,
    q_max: Optional[int] = None,
    *,
    grid: Any = None,
    axis: Optional[int] = None,
    group_size: Optional[int] = None,
    block_size: Optional[Sequence[int]] = None,
    scope: Optional[str] = None,
    numerics: str = "exact",
) -> Tensor:
    """Rounds to the quantization grid. The gradient passes unchanged where nothing was clamped, and is 0 elsewhere.

    ``y  = scale * (clamp(rne(x / scale) + zero_point, q_min, q_max) - zero_point)``

    ``dx = dy  where  q_min <= rne(x / scale) + zero_point <= q_max,  else 0``

    q_min, q_max: by default -128 and 127. grid: "float8_e4m3", "float8_e5m2" or "float4_e2m1" in their place, as in
    ``kvant.fake_quantize``; the gradient passes where ``|x / scale|`` is at most the largest number of that type.

    Scopes, numerics and the shapes of ``scale`` and ``zero_point`` are those of ``kvant.fake_quantize``. Only ``x`` has
    a gradient, so scales cannot be learned. There is no second derivative.

    x: float32, float64, float16 or bfloat16, on the CPU.

    >>> import torch
    >>> x = torch.tensor([-9.0, 0.3, 0.6], requires_grad=True)
    >>> y = fake_quantize(x, 0.25, 0, -8, 7)
    >>> y.detach()
    tensor([-2.0000,  0.2500,  0.5000])
    >>> y.sum().backward()
    >>> x.grad
    tensor([0., 1., 1.])
    """
    if not isinstance(x, Tensor):
        raise TypeError(f"x must be a torch.Tensor, not {type(x).__name__}; kvant.fake_quantize takes other arrays")
    for what, tensor in (("x", x), ("scale", scale), ("zero_point", zero_point)):
        if isinstance(tensor, Tensor):
            check_device(tensor, what)
    if grid is None:
        code_min, code_max = _kvant.code_ranges["int8"]
        q_min, q_max = code_min if q_min is None else q_min, code_max if q_max is None else q_max
    y: Tensor = _FakeQuantize.apply(  # type: ignore[no-untyped-call]
        x, scale, zero_point, q_min, q_max, grid, scope, axis, group_size, block_size, numerics
    )
    return y
