"""kvant for torch: fake quantization with gradients, quantized linear layers, calibration.

``fake_quantize``
    rounds to the quantization grid, with the straight-through gradient;
``FakeQuantize``
    the same as a module that finds its own scale, for quantization-aware training (QAT);
``QuantizedLinear``
    an ``nn.Linear`` with an int8 weight, which quantizes its activation on the way in; ``quantize_model`` puts it in
    the place of every Linear of a model;
``calibrate``
    the ranges of what flows into each Linear, in the file that ``kvant quantize --stats FILE --smooth`` reads.

All of it works on the CPU, without copies of tensors that are in C order.

Quantization-aware training needs no layers of its own: fake-quantize the activation in front of a Linear, and its
weight by a parametrization. Afterwards the parametrization goes, and what it stood for becomes real:

>>> import torch, kvant.torch
>>> from torch.nn.utils import parametrize
>>> net = torch.nn.Sequential(kvant.torch.FakeQuantize(scope="token"), torch.nn.Linear(8, 4))
>>> _ = parametrize.register_parametrization(net[1], "weight", kvant.torch.FakeQuantize(scope="channel", axis=0))
>>> x = torch.linspace(-1.0, 1.0, 16).reshape(2, 8)
>>> y = net(x)  # and train it
>>> _ = parametrize.remove_parametrizations(net[1], "weight", leave_parametrized=False)
>>> torch.allclose(kvant.torch.QuantizedLinear.from_linear(net[1])(x), y, atol=1e-6)
True
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import struct
import warnings
from collections.abc import Mapping
from typing import Any, Callable, Dict, Iterable, Iterator, List, Optional, Sequence, Set, Tuple, Union

try:
    import torch
except ImportError as error:
    raise ImportError("kvant.torch needs PyTorch, which is not installed; the rest of kvant does not") from error
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from . import _kvant
from .dynamic_range import dynamic_range_quantize
from .linear import quantized_linear

__all__ = ["FakeQuantize", "QuantizedLinear", "calibrate", "fake_quantize", "quantize_model"]

_CODE_RANGES = {"int8": (-128, 127), "uint8": (0, 255), "int4": (-8, 7), "uint4": (0, 15)}


def _check_device(tensor: Tensor, what: str) -> None:
    if not tensor.is_cpu:
        raise ValueError(f"kvant works on the CPU, and {what} is on {tensor.device}: move it with .cpu()")


def _plain(tensor: Tensor) -> Tensor:
    # The plain functions refuse both. DLPack has no word for torch's negated views (z.conj().imag is one): it shows the
    # memory, where the sign is wrong.
    if tensor.requires_grad:
        tensor = tensor.detach()
    return tensor.resolve_neg() if tensor.is_neg() else tensor


class _FakeQuantize(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, scale: Any, zero_point: Any, q_min: int, q_max: int, scope: Optional[str],
        axis: Optional[int], group_size: Optional[int], numerics: str,
    ) -> Tensor:  # fmt: skip
        # Tensors go through save_for_backward, so that autograd notices when one is written to before the backward.
        tensors = [p if isinstance(p, Tensor) else None for p in (scale, zero_point)]
        ctx.save_for_backward(x, *tensors)
        ctx.numbers = [None if isinstance(p, Tensor) else p for p in (scale, zero_point)]
        ctx.rest = (scope, axis, group_size, q_min, q_max, numerics, None)  # the last is out
        scale, zero_point = (_plain(p) if isinstance(p, Tensor) else p for p in (scale, zero_point))
        y: Tensor = _kvant.fake_quantize(_plain(x), scale, zero_point, *ctx.rest)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> Tuple[Optional[Tensor], ...]:
        x, *tensors = ctx.saved_tensors
        scale, zero_point = (n if t is None else _plain(t) for t, n in zip(tensors, ctx.numbers))
        dx = _kvant.fake_quantize_backward(_plain(dy), _plain(x), scale, zero_point, *ctx.rest)
        return (dx, *[None] * 8)


def fake_quantize(
    x: Tensor,
    scale: Union[float, Tensor],
    zero_point: Union[int, Tensor, None] = 0,
    q_min: int = -128,
    q_max: int = 127,
    *,
    axis: Optional[int] = None,
    group_size: Optional[int] = None,
    scope: Optional[str] = None,
    numerics: str = "exact",
) -> Tensor:
    """Rounds to the quantization grid; the gradient goes straight through where nothing was clamped.

    ``y  = scale * (clamp(rne(x / scale) + zero_point, q_min, q_max) - zero_point)``

    ``dx = dy  where  q_min <= rne(x / scale) + zero_point <= q_max,  else 0``

    Scopes, numerics and the shapes of ``scale`` and ``zero_point`` are those of ``kvant.fake_quantize``. Only ``x`` has
    a gradient: scales are not learnt. The gradient has no gradient of its own.

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
            _check_device(tensor, what)
    y: Tensor = _FakeQuantize.apply(  # type: ignore[no-untyped-call]
        x, scale, zero_point, q_min, q_max, scope, axis, group_size, numerics
    )
    return y


def _keep_dtypes(module: nn.Module, before: Dict[str, Optional[Tensor]]) -> None:
    # model.half() is about the type that activations have. Scales and ranges stay exact.
    for name, old in before.items():
        new = module._buffers[name]
        if old is not None and new is not None and old.dtype != new.dtype:
            module._buffers[name] = old.to(new.device)


class FakeQuantize(nn.Module):
    """Fake quantization that finds its own scale, for quantization-aware training.

    In the beginning every call quantizes by the range of its own input, with the scale that
    ``kvant.dynamic_range_quantize`` finds. For a range that is the same for every input::

        fq.observe()        from here each call extends the range that was seen, and quantizes by it
        for x in batches:
            fq(x)
        fq.freeze()         from here scale and zero point are fixed

    The range and what follows from it are buffers; ``state_dict`` has them, and the stage.

    dtype: "int8", "uint8", "int4" or "uint4", whose limits are q_min and q_max unless these are given.
    mode: "symmetric" or "asymmetric". include_zero: asymmetric ranges are extended to contain 0.
    scope: "tensor", "channel" (with axis), "token" (each row) or "group" (with group_size, along axis or the last).
    Only the first two can be observed, as rows of one batch are not those of the next.

    >>> import torch
    >>> fq = FakeQuantize("int4")
    >>> fq
    FakeQuantize(int4, symmetric, scope=tensor, dynamic)
    >>> fq(torch.tensor([0.5, 1.2, 7.0]))
    tensor([0., 1., 7.])
    >>> _ = fq.observe()
    >>> for x in (torch.tensor([0.5, 14.0]), torch.tensor([3.1, -1.0])):
    ...     _ = fq(x)
    >>> fq.freeze()
    FakeQuantize(int4, symmetric, scope=tensor, frozen)
    >>> fq(torch.tensor([0.5, 1.2, 7.0]))
    tensor([0., 2., 8.])
    """

    _STAGES = ("dynamic", "observing", "frozen")

    range_min: Tensor
    range_max: Tensor
    scale: Tensor
    zero_point: Tensor

    def __init__(
        self,
        dtype: str = "int8",
        *,
        mode: str = "symmetric",
        scope: str = "tensor",
        axis: Optional[int] = None,
        group_size: Optional[int] = None,
        q_min: Optional[int] = None,
        q_max: Optional[int] = None,
        include_zero: bool = False,
        numerics: str = "exact",
    ) -> None:
        super().__init__()
        if dtype not in _CODE_RANGES:
            raise ValueError(f"dtype must be one of {', '.join(_CODE_RANGES)}, not {dtype!r}")
        if mode not in ("symmetric", "asymmetric"):
            raise ValueError(f"mode must be symmetric or asymmetric, not {mode!r}")
        if scope not in ("tensor", "channel", "token", "group"):
            raise ValueError(f"scope must be tensor, channel, token or group, not {scope!r}")
        if (scope == "channel" and axis is None) or (scope in ("tensor", "token") and axis is not None):
            raise ValueError(f"scope='channel' needs axis, and scope={scope!r} has axis={axis}")
        if (scope == "group") != (group_size is not None):
            raise ValueError(f"scope='group' needs group_size, and scope={scope!r} has group_size={group_size}")
        lowest, highest = _CODE_RANGES[dtype]
        self.dtype = dtype
        self.mode = mode
        self.scope = scope
        self.axis = axis
        self.group_size = group_size
        self.q_min = lowest if q_min is None else q_min
        self.q_max = highest if q_max is None else q_max
        if not lowest <= self.q_min < self.q_max <= highest:
            raise ValueError(f"q_min {self.q_min} and q_max {self.q_max} are not a range within {dtype}")
        self.include_zero = include_zero
        self.numerics = numerics
        # How many channels there are shows with the first input; until then there is nothing.
        self.register_buffer("range_min", torch.empty(0))
        self.register_buffer("range_max", torch.empty(0))
        self.register_buffer("scale", torch.empty(0))
        self.register_buffer("zero_point", torch.empty(0, dtype=torch.int32))
        self._stage = "dynamic"

    @property
    def stage(self) -> str:
        """"dynamic", "observing" or "frozen"."""
        return self._stage

    # A buffer would have to be read in every call, which nothing on the device "meta" can be.
    def get_extra_state(self) -> Tensor:
        return torch.tensor(self._STAGES.index(self._stage), dtype=torch.uint8)

    def set_extra_state(self, state: Tensor) -> None:
        self._stage = self._STAGES[int(state)]

    def observe(self) -> FakeQuantize:
        """From here each call extends the range that was seen, which begins empty, and quantizes by it."""
        if self.scope not in ("tensor", "channel"):
            raise ValueError(f"a range per {self.scope} cannot be observed: it belongs to one input; leave it dynamic")
        self._enter("observing", torch.empty(0), torch.empty(0, dtype=torch.int32))
        self.range_min, self.range_max = torch.empty(0), torch.empty(0)
        return self

    def freeze(self) -> FakeQuantize:
        """Fixes scale and zero point to those of the range that was observed."""
        if self.stage != "observing" or self.range_min.numel() == 0:
            raise RuntimeError("there is no range to freeze: call observe(), then the module on some inputs")
        if torch.isinf(self.range_min).any():
            raise RuntimeError("there is no range to freeze: the inputs, or a channel of them, had no finite value")
        self._enter("frozen", *self._parameters_of_range())
        return self

    def _enter(self, stage: str, scale: Tensor, zero_point: Tensor) -> None:
        # Whoever observes in inference mode may train afterwards, and autograd saves no tensors that were made there.
        with torch.inference_mode(False):
            self.scale, self.zero_point = scale.clone(), zero_point.clone()
            self._stage = stage

    def forward(self, x: Tensor) -> Tensor:
        _check_device(x, "the input of FakeQuantize")
        stage = self.stage
        if stage == "frozen":
            scale, zero_point = self.scale, self.zero_point
        elif stage == "observing":
            self._extend_range(_plain(x))
            scale, zero_point = self._parameters_of_range()
        else:
            _, scale, zero_point = self._dynamic_range(_plain(x), self.scope, self.axis, self.group_size)
        return fake_quantize(
            x, scale, zero_point, self.q_min, self.q_max, axis=self.axis, group_size=self.group_size, scope=self.scope,
            numerics=self.numerics,
        )  # fmt: skip

    def _dynamic_range(
        self, x: Tensor, scope: str, axis: Optional[int], group_size: Optional[int]
    ) -> Tuple[Tensor, Tensor, Tensor]:
        return dynamic_range_quantize(
            x, mode=self.mode, scope=scope, axis=axis, group_size=group_size, include_zero=self.include_zero,
            dtype="uint8" if self.q_min >= 0 else "int8", q_min=self.q_min, q_max=self.q_max, numerics=self.numerics,
        )  # fmt: skip

    def _extend_range(self, x: Tensor) -> None:
        channels = 1 if self.axis is None else x.shape[self.axis]
        if self.range_min.numel() == 0:
            dtype = torch.float64 if x.dtype == torch.float64 else torch.float32
            self.range_min = torch.full((channels,), float("inf"), dtype=dtype)
            self.range_max = torch.full((channels,), float("-inf"), dtype=dtype)
        if self.range_min.numel() != channels:
            raise ValueError(f"the range so far is of {self.range_min.numel()} channels, and this input has {channels}")
        if (x.dtype == torch.float64) != (self.range_min.dtype == torch.float64):
            x = x.to(self.range_min.dtype)  # the range has the type that the first input asked for
        _extend_range(x, self.scope, self.axis, self.range_min, self.range_max, None)

    def _parameters_of_range(self) -> Tuple[Tensor, Tensor]:
        # Whatever has this least and this greatest value has these parameters; so the ends themselves are quantized.
        ends = torch.stack([self.range_min, self.range_max], 1)
        _, scale, zero_point = self._dynamic_range(ends, "token", None, None)
        return scale, zero_point

    def _load_from_state_dict(self, state_dict: Mapping[str, Any], prefix: str, *args: Any, **kwargs: Any) -> None:
        for name in ("range_min", "range_max", "scale", "zero_point"):
            saved = state_dict.get(prefix + name)
            if isinstance(saved, Tensor):
                self._buffers[name] = torch.empty_like(saved, device="cpu")
        super()._load_from_state_dict(state_dict, prefix, *args, **kwargs)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> FakeQuantize:
        before = dict(self._buffers)
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        _keep_dtypes(self, before)
        return self

    def extra_repr(self) -> str:
        parts = [self.dtype, self.mode, f"scope={self.scope}"]
        if self.axis is not None:
            parts.append(f"axis={self.axis}")
        if self.group_size is not None:
            parts.append(f"group_size={self.group_size}")
        if (self.q_min, self.q_max) != _CODE_RANGES[self.dtype]:
            parts.append(f"q_min={self.q_min}, q_max={self.q_max}")
        if self.include_zero:
            parts.append("include_zero")
        if self.numerics != "exact":
            parts.append(f"numerics={self.numerics}")
        return ", ".join([*parts, self.stage])


def _extend_range(
    x: Tensor, scope: str, axis: Optional[int], low: Tensor, high: Tensor, absmax: Optional[Tensor]
) -> None:
    x = x.contiguous()  # a plan takes no others
    plan = _kvant.RangePlan.select(
        tuple(x.shape), input=str(x.dtype)[len("torch.") :], scope=scope, axis=axis, accumulate=True
    )
    workspace = torch.empty(plan.workspace_size(), dtype=torch.uint8)
    plan.run(input=x, min_out=low, max_out=high, max_abs_out=absmax, workspace=workspace)


class QuantizedLinear(nn.Module):
    """A linear layer with an int8 weight, one scale for each output channel; the activation is quantized inside.

    ``y[m, n] = (act_scale[m] * weight_scale[n]) * sum_k a[m, k] * weight[n, k] + bias[n]``

    with the codes ``a`` that ``kvant.quantized_linear`` makes of ``x``: token by token by the row's own range, or with
    ``act_scale`` by that static scale. The result has the type of ``x``. There are no gradients.

    ``from_linear`` makes one from an nn.Linear. The constructor makes one of zeros, for ``load_state_dict``. Buffers
    have the names and shapes of the checkpoints that ``kvant quantize`` writes:

    ================== ================ =======================================================
    weight             int8 [N, K]
    weight_scale       float32 [N, 1]
    bias               [N]              if there is one
    input_scale        float32 [1]      if act_scale is given (w8a8-static)
    input_zero_point   int8 [1]         if act_scale is given and mode is "asymmetric"
    smooth             float32 [K]      if smooth is given: x / smooth takes the place of x
    ================== ================ =======================================================

    The weight is rearranged for the kernel in the first call, and again when it has changed; the rearranged copy is
    held beside it. Types stay what they are in ``.half()`` and ``.to(dtype)``: any input will do.

    mode: "symmetric" or "asymmetric", of the activation.

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
    ) -> QuantizedLinear:
        """Quantizes the weight of ``linear``, which stays as it is.

        ``weight_scale[n] = max_k |w[n, k]| / 127      weight = rne(w / weight_scale)``

        With ``smooth`` (K numbers, as from ``kvant.smooth_scales``) ``w * smooth`` takes the place of ``w``, and
        ``x / smooth`` that of ``x``.

        act_scale: a static scale for activations; without it each token finds its own.
        act_zero_point: with act_scale and mode="asymmetric".

        >>> import torch
        >>> linear = torch.nn.Linear(64, 32)
        >>> x = torch.linspace(-1.0, 1.0, 128).reshape(2, 64)
        >>> quantized = QuantizedLinear.from_linear(linear)
        >>> torch.allclose(quantized(x), linear(x), atol=0.02)
        True
        """
        if not isinstance(linear, nn.Linear):
            raise TypeError(f"from_linear takes an nn.Linear, not {type(linear).__name__}")
        _check_device(linear.weight, "the weight")
        weight = _plain(linear.weight).to(torch.float32)
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
        _check_device(x, "the input of QuantizedLinear")
        bias = self.bias
        if bias is not None and bias.dtype not in (x.dtype, torch.float32):
            bias = bias.to(x.dtype)
        y: Tensor = quantized_linear(
            _plain(x), self._packed_weight(), self.weight_scale, bias, mode=self.mode,
            act_scale=None if self.input_scale is None else float(self.input_scale),
            act_zero_point=0 if self.input_zero_point is None else int(self.input_zero_point), smooth=self.smooth,
        )  # fmt: skip
        return y

    def _packed_weight(self) -> _kvant.PackedWeight:
        weight = self.weight
        # Tensors made in inference mode do not count their versions; load_state_dict and .to() forget the packed weight
        # by themselves, so only writing to such a tensor by hand goes unnoticed.
        version = None if weight.is_inference() else weight._version
        # Read once and written once: several threads may call one layer.
        packed = self._packed
        if packed is None or packed[0] is not weight or packed[1:3] != (weight.data_ptr(), version):
            _check_device(weight, "the weight")
            packed = (weight, weight.data_ptr(), version, _kvant.PackedWeight(weight))
            self._packed = packed
        return packed[3]

    def _load_from_state_dict(self, state_dict: Mapping[str, Any], prefix: str, *args: Any, **kwargs: Any) -> None:
        self._packed = None
        super()._load_from_state_dict(state_dict, prefix, *args, **kwargs)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> QuantizedLinear:
        before = dict(self._buffers)
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        _keep_dtypes(self, before)
        self._packed = None
        return self

    def __getstate__(self) -> Dict[str, Any]:
        # What is packed belongs to this machine's instruction set, and copies make their own.
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
    _check_device(vector, "smooth")
    if vector.numel() != in_features:
        raise ValueError(f"smooth has {vector.numel()} numbers for {in_features} input channels")
    if not ((vector > 0) & torch.isfinite(vector)).all():
        raise ValueError("smooth must be finite and positive everywhere")
    return vector


def quantize_model(model: nn.Module, *, ignore: Sequence[str] = ("lm_head",), mode: str = "symmetric") -> List[str]:
    """Puts a QuantizedLinear in the place of every nn.Linear of ``model``, and returns the names of these.

    ignore: names of modules that stay as they are, or ``re:`` and a regular expression that is matched from the start
    of the name, as in ``kvant quantize --ignore``. Subclasses of nn.Linear stay too: what holds one (as
    nn.MultiheadAttention does) may read its weight itself. So does nn.TransformerEncoderLayer on its fast path: turn
    that off with ``torch.backends.mha.set_fastpath_enabled(False)``.

    >>> import torch
    >>> model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
    >>> quantize_model(model, ignore=["re:2"])
    ['0']
    >>> model[0]
    QuantizedLinear(in_features=4, out_features=8, bias=True, symmetric)
    """
    if isinstance(model, nn.Linear):
        raise ValueError("the model is a Linear itself, which nothing holds: use QuantizedLinear.from_linear")
    if isinstance(ignore, str):
        raise TypeError("ignore must be a sequence of names, not one string")

    def ignored(name: str) -> bool:
        return any(re.match(p[3:], name) is not None if p.startswith("re:") else p == name for p in ignore)

    # A module may be there under several names, and stays one module.
    named = model.named_modules(remove_duplicate=False)
    linears = [(name, module) for name, module in named if type(module) is nn.Linear and not ignored(name)]
    made: Dict[nn.Linear, QuantizedLinear] = {}
    for _, linear in linears:
        if linear not in made:
            made[linear] = QuantizedLinear.from_linear(linear, mode=mode)
    for name, linear in linears:
        parent, _, child = name.rpartition(".")
        setattr(model.get_submodule(parent), child, made[linear])
    return [name for name, _ in linears]


class _InputRange:
    """The range of every input channel of one module, over all calls."""

    def __init__(self, names: List[str], in_features: int) -> None:
        self.names = names
        self.low = torch.full((in_features,), float("inf"))
        self.high = torch.full((in_features,), float("-inf"))
        self.absmax = torch.zeros(in_features)
        self.rows = 0
        self.not_finite = 0

    def observe(self, module: nn.Module, args: Tuple[Any, ...], kwargs: Dict[str, Any]) -> None:
        x = args[0] if args else kwargs["input"]
        # Values of float64 become float32 here and not at the end: rounding keeps their order, so nothing else changes.
        x = _plain(x).to("cpu", torch.float32 if x.dtype == torch.float64 else x.dtype)
        x = x.reshape(-1, self.low.numel())
        self.rows += x.shape[0]
        self.not_finite += x.numel() - int(torch.isfinite(x).sum())
        _extend_range(x, "channel", 1, self.low, self.high, self.absmax)


@contextlib.contextmanager
def _evaluating(model: nn.Module) -> Iterator[None]:
    training = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        # Not inference_mode: a model may keep tensors that it makes, and could not train with those of inference mode.
        with torch.no_grad():
            yield
    finally:
        for module, mode in training:
            module.training = mode


def _call(model: nn.Module, batch: Any) -> None:
    if isinstance(batch, Tensor):
        model(batch)
    elif isinstance(batch, Mapping):
        model(**batch)
    elif isinstance(batch, (tuple, list)):
        model(*batch)
    else:
        raise TypeError(
            f"a batch must be a tensor, a tuple or list of positional or a dict of keyword arguments, "
            f"not {type(batch).__name__}"
        )


def _chosen_linears(
    model: nn.Module, modules: Union[Iterable[str], Callable[[str, nn.Module], bool], None]
) -> Dict[nn.Linear, List[str]]:
    named = list(model.named_modules(remove_duplicate=False))
    if modules is None or callable(modules):
        found = [(n, m) for n, m in named if isinstance(m, nn.Linear) and (modules is None or modules(n, m))]
    else:
        if isinstance(modules, str):
            raise TypeError("modules must be names or a function of name and module, not one string")
        wanted: Set[str] = set(modules)
        found = [(n, m) for n, m in named if n in wanted and isinstance(m, nn.Linear)]
        missing = sorted(wanted - {n for n, _ in found})
        if missing:
            raise ValueError(f"the model has no Linear named {', '.join(missing)}")
    if not found:
        raise ValueError("there is nothing to calibrate: no nn.Linear was found or chosen")
    linears: Dict[nn.Linear, List[str]] = {}
    for name, module in found:
        linears.setdefault(module, []).append(name)
    return linears


def _list_names(names: Sequence[str]) -> str:
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")


def calibrate(
    model: nn.Module,
    batches: Iterable[Any],
    path: Union[str, os.PathLike[str]] = "activation_stats.safetensors",
    *,
    modules: Union[Iterable[str], Callable[[str, nn.Module], bool], None] = None,
) -> str:
    """Runs ``model`` on ``batches`` and writes the ranges of what flows into each nn.Linear. Returns the path.

    For each Linear and each input channel j, over all rows x of all batches::

        absmax[j] = max |x[j]|      min[j] = min x[j]      max[j] = max x[j]

    The file is what ``kvant quantize --stats FILE`` reads: safetensors with ``<name>.absmax``, ``<name>.min`` and
    ``<name>.max``, float32 [in_features], for the names of ``model.named_modules()``. These must be those of the
    checkpoint: give the model that was loaded from it, not one that is wrapped around it. The file appears whole, at
    the end.

    batches: tensors, tuples or lists (positional arguments) or dicts (keyword arguments of the model).
    modules: which Linears, by name or as a function of name and module; all unless given.

    Gradients are off and the model is in eval mode meanwhile; afterwards it is as it was, without hooks. NaN and
    infinities are left out, with a warning; so are modules that no batch has reached, as it happens to experts.

    >>> import os, tempfile, torch
    >>> model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
    >>> folder = tempfile.TemporaryDirectory()
    >>> path = calibrate(model, [torch.randn(16, 4) for _ in range(3)], os.path.join(folder.name, "stats.safetensors"))
    >>> os.path.basename(path)
    'stats.safetensors'
    >>> folder.cleanup()
    """
    if isinstance(batches, (Tensor, Mapping, str)):
        raise TypeError(f"batches must be an iterable of batches, not one {type(batches).__name__}: put it into a list")
    path = os.fspath(path)
    # What would fail at the end should fail before the work.
    folder = os.path.dirname(os.path.abspath(path))
    if not os.path.isdir(folder):
        raise FileNotFoundError(f"the folder for the statistics does not exist: {folder}")
    if os.path.isdir(path):
        raise IsADirectoryError(f"the statistics need the name of a file, and this is a folder: {path}")
    chosen = _chosen_linears(model, modules)
    ranges = {linear: _InputRange(names, linear.in_features) for linear, names in chosen.items()}
    hooks = []
    ran = 0
    try:
        for linear, inputs in ranges.items():
            hooks.append(linear.register_forward_pre_hook(inputs.observe, with_kwargs=True))
        with _evaluating(model):
            for batch in batches:
                _call(model, batch)
                ran += 1
    finally:
        for hook in hooks:
            hook.remove()
    if ran == 0:
        raise ValueError("there are no batches to calibrate with")
    _write_safetensors(path, _statistics(list(ranges.values())))
    return path


def _statistics(ranges: Sequence[_InputRange]) -> Dict[str, Tensor]:
    reached = [r for r in ranges if r.rows > 0]
    if not reached:
        raise ValueError("no batch has reached any of the modules")
    for inputs in reached:
        empty = torch.nonzero(torch.isinf(inputs.low)).reshape(-1).tolist()
        if empty:
            raise ValueError(
                f"the input of {inputs.names[0]} has no finite value in channel {empty[0]} ({len(empty)} such channels)"
            )
    not_reached = [name for r in ranges if r.rows == 0 for name in r.names]
    if not_reached:
        warnings.warn(f"no batch has reached {_list_names(not_reached)}: no statistics for that", stacklevel=3)
    dirty = [name for r in reached if r.not_finite > 0 for name in r.names]
    if dirty:
        count = sum(r.not_finite for r in reached)
        warnings.warn(
            f"{count} NaN or infinite values were left out, from the inputs of {_list_names(dirty)}", stacklevel=3
        )
    return {
        f"{name}.{what}": values
        for r in reached
        for name in r.names
        for what, values in (("absmax", r.absmax), ("min", r.low), ("max", r.high))
    }


def _write_safetensors(path: str, tensors: Mapping[str, Tensor]) -> None:
    """float32 tensors only. The file appears whole or not at all."""
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
