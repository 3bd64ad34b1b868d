"""``FakeQuantize``: the module for quantization-aware training, which finds its own scale."""

from collections.abc import Mapping
from typing import Any, Callable, Optional, Self, Sequence, Tuple

import torch
from torch import Tensor, nn

from .. import _kvant
from ..dynamic_range import dynamic_range_quantize
from .autograd import fake_quantize
from .ranges import extend_range
from .tensors import check_device, keep_dtypes, plain


class FakeQuantize(nn.Module):
    """Fake quantization that finds its own scale, for quantization-aware training.

    At first every call quantizes by the range of its own input, with the scale that ``kvant.dynamic_range_quantize``
    finds. To get one range for all inputs::

        fq.observe()        from here on each call extends the observed range, and quantizes by it
        for x in batches:
            fq(x)
        fq.freeze()         from here on scale and zero point are fixed

    Range, scale and zero point are buffers. ``state_dict`` has them and the stage.

    dtype: an integer type ("int8", "uint8", "int4", "uint4", "int2", "uint2", "int16", "uint16"), whose limits are the
    defaults of q_min and q_max, or "float8_e4m3", "float8_e5m2" or "float4_e2m1", which have none and are symmetric.
    mode: "symmetric" or "asymmetric". include_zero: asymmetric ranges are extended to contain 0.
    scope: "tensor", "channel" (with axis), "token" (each row), "group" (with group_size, along axis or the last) or
    "block" (with block_size, rows and columns of the last two dimensions).
    Only "tensor" and "channel" can be observed, because the rows of one batch are not those of the next.

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
        block_size: Optional[Sequence[int]] = None,
        q_min: Optional[int] = None,
        q_max: Optional[int] = None,
        include_zero: bool = False,
        numerics: str = "exact",
    ) -> None:
        super().__init__()
        dtype = _kvant.code_dtype(dtype)
        if mode not in ("symmetric", "asymmetric"):
            raise ValueError(f"mode must be symmetric or asymmetric, not {mode!r}")
        if scope not in ("tensor", "channel", "token", "group", "block"):
            raise ValueError(f"scope must be tensor, channel, token, group or block, not {scope!r}")
        if (scope == "channel" and axis is None) or (scope in ("tensor", "token", "block") and axis is not None):
            raise ValueError(f"scope='channel' needs axis, and scope={scope!r} has axis={axis}")
        if (scope == "group") != (group_size is not None):
            raise ValueError(f"scope='group' needs group_size, and scope={scope!r} has group_size={group_size}")
        if (scope == "block") != (block_size is not None):
            raise ValueError(f"scope='block' needs block_size, and scope={scope!r} has block_size={block_size}")
        self.dtype = dtype
        self.mode = mode
        self.scope = scope
        self.axis = axis
        self.group_size = group_size
        self.block_size = None if block_size is None else tuple(block_size)
        self.q_min, self.q_max = q_min, q_max
        if dtype in _kvant.code_ranges:
            code_min, code_max = _kvant.code_ranges[dtype]
            self.q_min = code_min if q_min is None else q_min
            self.q_max = code_max if q_max is None else q_max
            if not code_min <= self.q_min < self.q_max <= code_max:
                raise ValueError(f"q_min {self.q_min} and q_max {self.q_max} are not a range within {dtype}")
        elif mode != "symmetric" or q_min is not None or q_max is not None:
            raise ValueError(f"{dtype} is symmetric and has no q_min and q_max; mode={mode!r}, {q_min=}, {q_max=}")
        self.include_zero = include_zero
        self.numerics = numerics
        # The first input tells how many channels there are. Until then the buffers are empty.
        self.register_buffer("range_min", torch.empty(0))
        self.register_buffer("range_max", torch.empty(0))
        self.register_buffer("scale", torch.empty(0))
        self.register_buffer("zero_point", torch.empty(0, dtype=torch.int32))
        self._stage = "dynamic"

    @property
    def stage(self) -> str:
        """"dynamic", "observing" or "frozen"."""
        return self._stage

    # Not a buffer: that would be read in every call, and buffers on the device "meta" cannot be read.
    def get_extra_state(self) -> Tensor:
        return torch.tensor(self._STAGES.index(self._stage), dtype=torch.uint8)

    def set_extra_state(self, state: Tensor) -> None:
        self._stage = self._STAGES[int(state)]

    def observe(self) -> Self:
        """Starts with an empty range. From here on each call extends it, and quantizes by it."""
        if self.scope not in ("tensor", "channel"):
            raise ValueError(f"a range per {self.scope} cannot be observed: it belongs to one input; leave it dynamic")
        self._enter("observing", torch.empty(0), torch.empty(0, dtype=torch.int32))
        self.range_min, self.range_max = torch.empty(0), torch.empty(0)
        return self

    def freeze(self) -> Self:
        """Fixes scale and zero point to those of the observed range."""
        if self.stage != "observing" or self.range_min.numel() == 0:
            raise RuntimeError("there is no range to freeze: call observe(), then the module on some inputs")
        if torch.isinf(self.range_min).any():
            raise RuntimeError("there is no range to freeze: the inputs, or a channel of them, had no finite value")
        self._enter("frozen", *self._parameters_of_range())
        return self

    def _enter(self, stage: str, scale: Tensor, zero_point: Tensor) -> None:
        # One may observe in inference mode and train later, and autograd cannot save tensors made in inference mode.
        with torch.inference_mode(False):
            self.scale, self.zero_point = scale.clone(), zero_point.clone()
            self._stage = stage

    def forward(self, x: Tensor) -> Tensor:
        check_device(x, "the input of FakeQuantize")
        stage = self.stage
        if stage == "frozen":
            scale, zero_point = self.scale, self.zero_point
        elif stage == "observing":
            self._extend_range(plain(x))
            scale, zero_point = self._parameters_of_range()
        else:
            _, scale, zero_point = self._dynamic_range(
                plain(x), scope=self.scope, axis=self.axis, group_size=self.group_size, block_size=self.block_size
            )
        grid = None if self.dtype in _kvant.code_ranges else self.dtype
        return fake_quantize(
            x, scale, zero_point if grid is None else 0, self.q_min, self.q_max, grid=grid, axis=self.axis,
            group_size=self.group_size, block_size=self.block_size, scope=self.scope, numerics=self.numerics,
        )  # fmt: skip

    def _dynamic_range(self, x: Tensor, **scope: Any) -> Tuple[Tensor, ...]:
        return dynamic_range_quantize(
            x, mode=self.mode, include_zero=self.include_zero, dtype=self.dtype, q_min=self.q_min, q_max=self.q_max,
            numerics=self.numerics, **scope,
        )  # fmt: skip

    def _extend_range(self, x: Tensor) -> None:
        channels = 1 if self.axis is None else x.shape[self.axis]
        if self.range_min.numel() == 0:
            dtype = torch.float64 if x.dtype == torch.float64 else torch.float32
            self.range_min = torch.full((channels,), float("inf"), dtype=dtype)
            self.range_max = torch.full((channels,), float("-inf"), dtype=dtype)
        if self.range_min.numel() != channels:
            raise ValueError(f"the range so far has {self.range_min.numel()} channels, but this input has {channels}")
        if (x.dtype == torch.float64) != (self.range_min.dtype == torch.float64):
            x = x.to(self.range_min.dtype)  # the range has the type that the first input asked for
        extend_range(x, self.scope, self.axis, self.range_min, self.range_max, None)

    def _parameters_of_range(self) -> Tuple[Tensor, Tensor]:
        # Scale and zero point depend on min and max alone, so it is enough to quantize these two.
        ends = torch.stack([self.range_min, self.range_max], 1)
        _, scale, zero_point = self._dynamic_range(ends, scope="token")
        return scale, zero_point

    def _load_from_state_dict(self, state_dict: Mapping[str, Any], prefix: str, *args: Any, **kwargs: Any) -> None:
        for name in ("range_min", "range_max", "scale", "zero_point"):
            saved = state_dict.get(prefix + name)
            if isinstance(saved, Tensor):
                self._buffers[name] = torch.empty_like(saved, device="cpu")
        super()._load_from_state_dict(state_dict, prefix, *args, **kwargs)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        before = dict(self._buffers)
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        keep_dtypes(self, before)
        return self

    def extra_repr(self) -> str:
        parts = [self.dtype, self.mode, f"scope={self.scope}"]
        if self.axis is not None:
            parts.append(f"axis={self.axis}")
        if self.group_size is not None:
            parts.append(f"group_size={self.group_size}")
        if self.block_size is not None:
            parts.append(f"block_size={self.block_size}")
        if (self.q_min, self.q_max) != _kvant.code_ranges.get(self.dtype, (None, None)):
            parts.append(f"q_min={self.q_min}, q_max={self.q_max}")
        if self.include_zero:
            parts.append("include_zero")
        if self.numerics != "exact":
            parts.append(f"numerics={self.numerics}")
        return ", ".join([*parts, self.stage])
