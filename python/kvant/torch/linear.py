"""``QuantizedLinear``: a linear layer with an int8 weight, which takes the place of an ``nn.Linear``."""

from collections.abc import Mapping
from typing import Any, Callable, Dict, Optional, Self, Tuple

import torch
from torch import Tensor, nn

from .. import _kvant
from ..dynamic_range import dynamic_range_quantize
from ..linear import quantized_linear
from .tensors import check_device, keep_dtypes, plain


class QuantizedLinear(nn.Module):
    """A linear layer with an int8 weight and one scale for each output channel. The activation is quantized inside.

    ``y[m, n] = (act_scale[m] * weight_scale[n]) * sum_k a[m, k] * weight[n, k] + bias[n]``

    where ``a`` are the codes that ``kvant.quantized_linear`` makes of ``x``: each token by its own range, or all by
    the static scale ``act_scale``. The result has the type of ``x``. There are no gradients.

    ``from_linear`` makes a layer from an nn.Linear. The constructor makes one of zeros, for ``load_state_dict``.
    Buffers have the names and shapes of the checkpoints that ``kvant quantize`` writes:

    ================== ================ =======================================================
    weight             int8 [N, K]
    weight_scale       float32 [N, 1]
    bias               [N]              if there is one
    input_scale        float32 [1]      if act_scale is given (w8a8-static)
    input_zero_point   int8 [1]         if act_scale is given and mode is "asymmetric"
    smooth             float32 [K]      if smooth is given: x / smooth replaces x
    ================== ================ =======================================================

    The first call makes a copy of the weight in the order that the kernel reads, and keeps it. A call after the weight
    has changed makes it again. ``.half()`` and ``.to(dtype)`` leave the types of buffers alone: inputs may have any
    floating-point type.

    mode: "symmetric" or "asymmetric", for the activation.

    >>> import torch
    >>> layer = QuantizedLinear(2, 3, bias=False)
    >>> layer
    QuantizedLinear(in_features=2, out_features=3, bias=False, symmetric)
    >>> codes = {"weight": torch.tensor([[127, 0], [0, 127], [127, 127]]), "weight_scale": torch.full((3, 1), 1 / 127)}
    >>> layer.load_state_dict(codes)
    <All keys matched successfully>
    >>> layer(torch.tensor([1.0, -0.25]))
    tensor([ 1.0000, -0.2520,  0.7480])
    """

    weight: Tensor
    weight_scale: Tensor
    bias: Optional[Tensor]
    input_scale: Optional[Tensor]
    input_zero_point: Optional[Tensor]
    smooth: Optional[Tensor]

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        *,
        mode: str = "symmetric",
        act_scale: Optional[float] = None,
        act_zero_point: int = 0,
        smooth: Any = None,
    ) -> None:
        super().__init__()
        if mode not in ("symmetric", "asymmetric"):
            raise ValueError(f"mode must be symmetric or asymmetric, not {mode!r}")
        if act_zero_point != 0 and (act_scale is None or mode != "asymmetric"):
            raise ValueError("act_zero_point needs act_scale and mode='asymmetric'")
        self.in_features = in_features
        self.out_features = out_features
        self.mode = mode
        self.register_buffer("weight", torch.zeros(out_features, in_features, dtype=torch.int8))
        self.register_buffer("weight_scale", torch.ones(out_features, 1))
        self.register_buffer("bias", torch.zeros(out_features) if bias else None)
        self.register_buffer("input_scale", None)
        self.register_buffer("input_zero_point", None)
        self.register_buffer("smooth", None)
        if act_scale is not None:
            if not 0 < act_scale < float("inf"):
                raise ValueError(f"act_scale must be finite and positive, not {act_scale}")
            self.input_scale = torch.tensor([act_scale], dtype=torch.float32)
            if mode == "asymmetric":
                self.input_zero_point = torch.tensor([act_zero_point], dtype=torch.int8)
        if smooth is not None:
            self.smooth = _smoothing_vector(smooth, in_features)
        self._packed: Optional[Tuple[Tensor, int, Optional[int], _kvant.PackedWeight]] = None

    @classmethod
    def from_linear(
        cls,
        linear: nn.Linear,
        *,
        mode: str = "symmetric",
        act_scale: Optional[float] = None,
        act_zero_point: int = 0,
        smooth: Any = None,
    ) -> Self:
        """Quantizes the weight of ``linear``, which is not changed.

        ``weight_scale[n] = max_k |w[n, k]| / 127      weight = rne(w / weight_scale)``

        With ``smooth`` (K numbers, as from ``kvant.smooth_scales``) ``w * smooth`` replaces ``w``, and ``x / smooth``
        replaces ``x``.

        act_scale: a static scale for activations; by default each token has its own.
        act_zero_point: only with act_scale and mode="asymmetric".

        >>> import torch
        >>> linear = torch.nn.Linear(64, 32)
        >>> x = torch.linspace(-1.0, 1.0, 128).reshape(2, 64)
        >>> quantized = QuantizedLinear.from_linear(linear)
        >>> torch.allclose(quantized(x), linear(x), atol=0.02)
        True
        """
        if not isinstance(linear, nn.Linear):
            raise TypeError(f"from_linear takes an nn.Linear, not {type(linear).__name__}")
        check_device(linear.weight, "the weight")
        weight = plain(linear.weight).to(torch.float32)
        if not torch.isfinite(weight).all():
            raise ValueError("the weight has NaN or infinite elements in float32")
        layer = cls(
            linear.in_features, linear.out_features, linear.bias is not None, mode=mode, act_scale=act_scale,
            act_zero_point=act_zero_point, smooth=smooth,
        )  # fmt: skip
        if layer.smooth is not None:
            weight = weight * layer.smooth
            if not torch.isfinite(weight).all():
                raise ValueError("weight * smooth overflows float32")
        codes, scale, _ = dynamic_range_quantize(weight, scope="token")
        layer.weight = codes
        layer.weight_scale = scale.reshape(-1, 1)
        if linear.bias is not None:
            layer.bias = linear.bias.detach().clone()
        layer.train(linear.training)
        return layer

    def forward(self, x: Tensor) -> Tensor:
        if not isinstance(x, Tensor):
            raise TypeError(f"the input of QuantizedLinear must be a torch.Tensor, not {type(x).__name__}")
        if x.requires_grad and torch.is_grad_enabled():
            raise RuntimeError(
                "QuantizedLinear has no gradient, and its input requires one: call it under torch.no_grad() or "
                "torch.inference_mode(), and train with FakeQuantize"
            )
        if torch.jit.is_tracing():  # type: ignore[attr-defined, no-untyped-call]
            raise RuntimeError("torch.jit.trace would keep the result of QuantizedLinear as a constant")
        check_device(x, "the input of QuantizedLinear")
        bias = self.bias
        if bias is not None and bias.dtype not in (x.dtype, torch.float32):
            bias = bias.to(x.dtype)
        y: Tensor = quantized_linear(
            plain(x), self._packed_weight(), self.weight_scale, bias, mode=self.mode,
            act_scale=None if self.input_scale is None else float(self.input_scale),
            act_zero_point=0 if self.input_zero_point is None else int(self.input_zero_point), smooth=self.smooth,
        )  # fmt: skip
        return y

    def _packed_weight(self) -> _kvant.PackedWeight:
        weight = self.weight
        # Tensors made in inference mode do not count their versions. load_state_dict and .to() drop the packed weight
        # themselves, so only direct writes to such a tensor go unnoticed.
        version = None if weight.is_inference() else weight._version
        # Read once and written once: several threads may call one layer.
        packed = self._packed
        if packed is None or packed[0] is not weight or packed[1:3] != (weight.data_ptr(), version):
            check_device(weight, "the weight")
            packed = (weight, weight.data_ptr(), version, _kvant.PackedWeight(weight))
            self._packed = packed
        return packed[3]

    def _load_from_state_dict(self, state_dict: Mapping[str, Any], prefix: str, *args: Any, **kwargs: Any) -> None:
        self._packed = None
        super()._load_from_state_dict(state_dict, prefix, *args, **kwargs)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        before = dict(self._buffers)
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        keep_dtypes(self, before)
        self._packed = None
        return self

    def __getstate__(self) -> Dict[str, Any]:
        # The packed weight is for the instruction set of this machine. Copies make their own.
        return {**self.__dict__, "_packed": None}

    def extra_repr(self) -> str:
        parts = [
            f"in_features={self.in_features}, out_features={self.out_features}, bias={self.bias is not None}",
            self.mode,
        ]
        if self.input_scale is not None:
            parts.append(f"act_scale={float(self.input_scale):.6g}")
        if self.input_zero_point is not None:
            parts.append(f"act_zero_point={int(self.input_zero_point)}")
        if self.smooth is not None:
            parts.append("smooth")
        return ", ".join(parts)


def _smoothing_vector(smooth: Any, in_features: int) -> Tensor:
    vector = torch.as_tensor(smooth).detach().to(torch.float32, copy=True).reshape(-1)
    check_device(vector, "smooth")
    if vector.numel() != in_features:
        raise ValueError(f"smooth has {vector.numel()} numbers for {in_features} input channels")
    if not ((vector > 0) & torch.isfinite(vector)).all():
        raise ValueError("smooth must be finite and positive everywhere")
    return vector
