"""The compiled part. Its functions are called through the modules next to it, which describe them."""

from typing import Any, ClassVar, Dict, Optional, Sequence, Tuple, Union, final

import numpy as np
import numpy.typing as npt

__all__ = [
    "QuantizePlan",
    "DequantizePlan",
    "FakeQuantizePlan",
    "QuantizeBackwardPlan",
    "DequantizeBackwardPlan",
    "FakeQuantizeBackwardPlan",
    "RangePlan",
    "DynamicRangeQuantizePlan",
    "W8A8LinearPlan",
    "SmoothQuantLinearPlan",
    "QuantizedLinearPlan",
    "Stream",
    "Status",
    "KernelSku",
    "PrecisionGuarantee",
]

version: str
code_ranges: Dict[str, Tuple[int, int]]

def code_dtype(dtype: Any, /) -> str: ...
def set_num_threads(threads: int) -> None: ...
def get_num_threads() -> int: ...
def info() -> Dict[str, Any]: ...
def quantize(
    x: Any, scale: Any, zero_point: Any, scope: str, axis: Optional[int], group_size: Optional[int],
    block_size: Optional[Sequence[int]], dtype: Any, q_min: Optional[int], q_max: Optional[int], numerics: str,
    saturate: bool, global_scale: Any, out: Any, /,
) -> Any: ...
def dequantize(
    q: Any, scale: Any, zero_point: Any, scope: str, axis: Optional[int], group_size: Optional[int],
    block_size: Optional[Sequence[int]], dtype: Any, global_scale: Any, out: Any, /,
) -> Any: ...
def fake_quantize(
    x: Any, scale: Any, zero_point: Any, scope: Optional[str], axis: Optional[int], group_size: Optional[int],
    block_size: Optional[Sequence[int]], q_min: Optional[int], q_max: Optional[int], grid: Any, numerics: str,
    saturate: bool, global_scale: Any, out: Any, /,
) -> Any: ...
def quantize_backward(
    dy: Any, x: Any, scale: Any, zero_point: Any, scope: Optional[str], axis: Optional[int],
    group_size: Optional[int], block_size: Optional[Sequence[int]], q_min: Optional[int], q_max: Optional[int],
    grid: Any, numerics: str, global_scale: Any, out: Any, /,
) -> Any: ...
def fake_quantize_backward(
    dy: Any, x: Any, scale: Any, zero_point: Any, scope: Optional[str], axis: Optional[int],
    group_size: Optional[int], block_size: Optional[Sequence[int]], q_min: Optional[int], q_max: Optional[int],
    grid: Any, numerics: str, global_scale: Any, out: Any, /,
) -> Any: ...
def dequantize_backward(
    dy: Any, scale: Any, scope: Optional[str], axis: Optional[int], group_size: Optional[int],
    block_size: Optional[Sequence[int]], global_scale: Any, out: Any, /,
) -> Any: ...
def dynamic_range_quantize(
    x: Any, mode: str, scope: str, axis: Optional[int], group_size: Optional[int],
    block_size: Optional[Sequence[int]], dtype: Any, q_min: Optional[int], q_max: Optional[int], include_zero: bool,
    numerics: str, scale_dtype: Any, mx_rule: str, global_scale: Any, out: Any, /,
) -> Tuple[Any, ...]: ...
def w8a8_linear(
    act_q: Any, act_scale: Any, act_zero_point: Any, weight: Any, weight_scale: Any, weight_zero_point: Any,
    bias: Any, dtype: Any, out: Any, output_scale: Optional[float], output_zero_point: int, /,
) -> Any: ...
def smoothquant_linear(
    act_q: Any, act_scale: float, act_zero_point: int, weight: Any, weight_scale: Any, weight_zero_point: Any,
    bias: Any, dtype: Any, out: Any, /,
) -> Any: ...
def quantized_linear(
    x: Any, weight: Any, weight_scale: Any, weight_zero_point: Any, bias: Any, mode: str, include_zero: bool,
    act_scale: Optional[float], act_zero_point: int, smooth: Any, numerics: str, out: Any, /,
) -> Any: ...
def smooth_scales(act_absmax: Any, weights: Any, alpha: float, out: Any, /) -> Any: ...
def apply_smoothing(scales: Any, norm_weight: Any, norm_bias: Any, weights: Any, /) -> None: ...

@final
class PackedArray:
    def __init__(self, packed: npt.NDArray[np.uint8], shape: Sequence[int], dtype: Any = "int4") -> None: ...
    @staticmethod
    def from_array(a: Any, dtype: Any = "int4") -> PackedArray: ...
    def unpack(self) -> npt.NDArray[Any]: ...
    @property
    def packed(self) -> npt.NDArray[np.uint8]: ...
    @property
    def shape(self) -> Tuple[int, ...]: ...
    @property
    def dtype(self) -> str: ...
    @property
    def ndim(self) -> int: ...
    @property
    def size(self) -> int: ...
    @property
    def nbytes(self) -> int: ...
    def __array__(self, dtype: Any = None, copy: Optional[bool] = None) -> npt.NDArray[Any]: ...
    def __len__(self) -> int: ...
    def __copy__(self) -> PackedArray: ...
    def __deepcopy__(self, memo: Dict[int, Any], /) -> PackedArray: ...
    __hash__: ClassVar[None]  # type: ignore[assignment]

@final
class PackedWeight:
    def __init__(self, weight_q: Any, *, isa: Optional[str] = None) -> None: ...
    @staticmethod
    def from_bytes(data: Any) -> PackedWeight: ...
    def to_bytes(self) -> bytes: ...
    def __copy__(self) -> PackedWeight: ...
    def __deepcopy__(self, memo: Dict[int, Any], /) -> PackedWeight: ...
    @property
    def shape(self) -> Tuple[int, int]: ...
    @property
    def dtype(self) -> str: ...
    @property
    def isa(self) -> str: ...
    @property
    def nbytes(self) -> int: ...

@final
class Observer:
    def __init__(
        self, kind: str = "min_max", *, scope: str = "tensor", axis: Optional[int] = None, mode: str = "symmetric",
        include_zero: bool = True, dtype: Any = "int8", q_min: Optional[int] = None, q_max: Optional[int] = None,
        percentile: float = 99.99, bins: int = 4096, input_dtype: Any = None,
    ) -> None: ...
    def observe(self, x: Any) -> None: ...
    def merge(self, other: Observer) -> None: ...
    def parameters(self) -> Tuple[npt.NDArray[Any], npt.NDArray[np.int32]]: ...
    def reset(self) -> None: ...
    @property
    def kind(self) -> str: ...
    @property
    def min(self) -> npt.NDArray[np.float64]: ...
    @property
    def max(self) -> npt.NDArray[np.float64]: ...
    @property
    def max_abs(self) -> npt.NDArray[np.float64]: ...
    @property
    def observed(self) -> int: ...
    @property
    def ignored(self) -> int: ...

@final
class Stream:
    def __init__(self, threads: Optional[int] = None) -> None: ...
    @property
    def threads(self) -> int: ...

@final
class Status:
    @property
    def ok(self) -> bool: ...
    @property
    def code(self) -> str: ...
    @property
    def message(self) -> str: ...
    def __bool__(self) -> bool: ...

@final
class PrecisionGuarantee:
    @property
    def math_precision(self) -> str: ...
    @property
    def accumulator(self) -> str: ...
    @property
    def bit_stable_on_same_hardware(self) -> bool: ...
    @property
    def bit_stable_across_hardware(self) -> bool: ...
    @property
    def deterministic(self) -> bool: ...

@final
class KernelSku:
    @property
    def name(self) -> str: ...
    @property
    def op(self) -> str: ...
    @property
    def element(self) -> str: ...
    @property
    def aux_element(self) -> str: ...
    @property
    def isa(self) -> str: ...
    @property
    def backend(self) -> str: ...
    @property
    def precision_guarantee(self) -> PrecisionGuarantee: ...

class _Plan:
    def workspace_size(self) -> int: ...
    def sku(self) -> KernelSku: ...
    def precision_guarantee(self) -> PrecisionGuarantee: ...

@final
class QuantizePlan(_Plan):
    @staticmethod
    def select(
        shape: Union[int, Sequence[int]], *, input: Any = "float32", output: Any = "int8", scope: Optional[str] = None,
        axis: Optional[int] = None, group_size: Optional[int] = None,
        block_size: Optional[Sequence[int]] = None, q_min: Optional[int] = None,
        q_max: Optional[int] = None, saturate: bool = True, numerics: str = "exact", isa: Optional[str] = None,
        stream: Optional[Stream] = None,
    ) -> QuantizePlan: ...
    def can_implement(self, *, input: Any, output: Any, scale: Any, zero_point: Any = 0, global_scale: Any = None) -> Status: ...
    def run(
        self, *, input: Any, output: Any, scale: Any, zero_point: Any = 0, global_scale: Any = None,
        stream: Optional[Stream] = None,
    ) -> None: ...

@final
class DequantizePlan(_Plan):
    @staticmethod
    def select(
        shape: Union[int, Sequence[int]], *, input: Any = "int8", output: Any = "float32", scope: Optional[str] = None,
        axis: Optional[int] = None, group_size: Optional[int] = None,
        block_size: Optional[Sequence[int]] = None, isa: Optional[str] = None,
        stream: Optional[Stream] = None,
    ) -> DequantizePlan: ...
    def can_implement(self, *, input: Any, output: Any, scale: Any, zero_point: Any = 0, global_scale: Any = None) -> Status: ...
    def run(
        self, *, input: Any, output: Any, scale: Any, zero_point: Any = 0, global_scale: Any = None,
        stream: Optional[Stream] = None,
    ) -> None: ...

@final
class FakeQuantizePlan(_Plan):
    @staticmethod
    def select(
        shape: Union[int, Sequence[int]], *, element: Any = "float32", scope: Optional[str] = None, axis: Optional[int] = None,
        group_size: Optional[int] = None, block_size: Optional[Sequence[int]] = None, q_min: Optional[int] = None,
        q_max: Optional[int] = None, grid: Any = None,
        saturate: bool = True, numerics: str = "exact", isa: Optional[str] = None, stream: Optional[Stream] = None,
    ) -> FakeQuantizePlan: ...
    def can_implement(self, *, input: Any, output: Any, scale: Any, zero_point: Any = 0, global_scale: Any = None) -> Status: ...
    def run(
        self, *, input: Any, output: Any, scale: Any, zero_point: Any = 0, global_scale: Any = None,
        stream: Optional[Stream] = None,
    ) -> None: ...

@final
class QuantizeBackwardPlan(_Plan):
    @staticmethod
    def select(
        shape: Union[int, Sequence[int]], *, input: Any = "float32", output: Any = "int8", scope: Optional[str] = None,
        axis: Optional[int] = None, group_size: Optional[int] = None,
        block_size: Optional[Sequence[int]] = None, q_min: Optional[int] = None,
        q_max: Optional[int] = None, saturate: bool = True, numerics: str = "exact", isa: Optional[str] = None,
        stream: Optional[Stream] = None,
    ) -> QuantizeBackwardPlan: ...
    def can_implement(
        self, *, grad_output: Any, input: Any, grad_input: Any, scale: Any, zero_point: Any = 0,
        global_scale: Any = None,
    ) -> Status: ...
    def run(
        self, *, grad_output: Any, input: Any, grad_input: Any, scale: Any, zero_point: Any = 0,
        global_scale: Any = None, stream: Optional[Stream] = None,
    ) -> None: ...

@final
class FakeQuantizeBackwardPlan(_Plan):
    @staticmethod
    def select(
        shape: Union[int, Sequence[int]], *, element: Any = "float32", scope: Optional[str] = None, axis: Optional[int] = None,
        group_size: Optional[int] = None, block_size: Optional[Sequence[int]] = None, q_min: Optional[int] = None,
        q_max: Optional[int] = None, grid: Any = None,
        saturate: bool = True, numerics: str = "exact", isa: Optional[str] = None, stream: Optional[Stream] = None,
    ) -> FakeQuantizeBackwardPlan: ...
    def can_implement(
        self, *, grad_output: Any, input: Any, grad_input: Any, scale: Any, zero_point: Any = 0,
        global_scale: Any = None,
    ) -> Status: ...
    def run(
        self, *, grad_output: Any, input: Any, grad_input: Any, scale: Any, zero_point: Any = 0,
        global_scale: Any = None, stream: Optional[Stream] = None,
    ) -> None: ...

@final
class DequantizeBackwardPlan(_Plan):
    @staticmethod
    def select(
        shape: Union[int, Sequence[int]], *, input: Any = "int8", output: Any = "float32", scope: Optional[str] = None,
        axis: Optional[int] = None, group_size: Optional[int] = None,
        block_size: Optional[Sequence[int]] = None, isa: Optional[str] = None,
        stream: Optional[Stream] = None,
    ) -> DequantizeBackwardPlan: ...
    def can_implement(self, *, grad_output: Any, grad_input: Any, scale: Any, global_scale: Any = None) -> Status: ...
    def run(
        self, *, grad_output: Any, grad_input: Any, scale: Any, global_scale: Any = None,
        stream: Optional[Stream] = None,
    ) -> None: ...

@final
class RangePlan(_Plan):
    @staticmethod
    def select(
        shape: Union[int, Sequence[int]], *, input: Any = "float32", scope: Optional[str] = None, axis: Optional[int] = None,
        group_size: Optional[int] = None, block_size: Optional[Sequence[int]] = None,
        accumulate: bool = False, isa: Optional[str] = None,
        stream: Optional[Stream] = None,
    ) -> RangePlan: ...
    def can_implement(
        self, *, input: Any, min_out: Any = None, max_out: Any = None, max_abs_out: Any = None
    ) -> Status: ...
    def run(
        self, *, input: Any, min_out: Any = None, max_out: Any = None, max_abs_out: Any = None,
        workspace: Any = None, stream: Optional[Stream] = None,
    ) -> None: ...

@final
class DynamicRangeQuantizePlan(_Plan):
    @staticmethod
    def select(
        shape: Union[int, Sequence[int]], *, input: Any = "float32", output: Any = "int8", mode: str = "symmetric",
        scope: str = "token", axis: Optional[int] = None, group_size: Optional[int] = None,
        block_size: Optional[Sequence[int]] = None,
        include_zero: bool = False, q_min: Optional[int] = None, q_max: Optional[int] = None, scale_dtype: Any = None,
        mx_rule: str = "floor", finds_global_scale: bool = False, numerics: str = "exact", isa: Optional[str] = None,
        stream: Optional[Stream] = None,
    ) -> DynamicRangeQuantizePlan: ...
    def can_implement(
        self, *, input: Any, output: Any, scale_out: Any, zero_point_out: Any = None, global_scale: Any = None,
        global_scale_out: Any = None,
    ) -> Status: ...
    def run(
        self, *, input: Any, output: Any, scale_out: Any, zero_point_out: Any = None, global_scale: Any = None,
        global_scale_out: Any = None, workspace: Any = None,
        stream: Optional[Stream] = None,
    ) -> None: ...

@final
class W8A8LinearPlan(_Plan):
    @staticmethod
    def select(
        max_rows: int, in_features: int, out_features: int, *, activation: Any = "int8", weight: Any = "int8",
        output: Any = "float32", isa: Optional[str] = None, stream: Optional[Stream] = None,
    ) -> W8A8LinearPlan: ...
    def can_implement(
        self, *, activation: Any, act_scale: Any, weight: Any, weight_scale: Any, output: Any,
        act_zero_point: Any = 0, weight_zero_point: Any = 0, bias: Any = None, output_scale: Optional[float] = None,
        output_zero_point: int = 0,
    ) -> Status: ...
    def run(
        self, *, activation: Any, act_scale: Any, weight: Any, weight_scale: Any, output: Any,
        act_zero_point: Any = 0, weight_zero_point: Any = 0, bias: Any = None, output_scale: Optional[float] = None,
        output_zero_point: int = 0, workspace: Any = None, stream: Optional[Stream] = None,
    ) -> None: ...

@final
class SmoothQuantLinearPlan(_Plan):
    @staticmethod
    def select(
        max_rows: int, in_features: int, out_features: int, act_scale: float, *, act_zero_point: int = 0,
        activation: Any = "int8", weight: Any = "int8", output: Any = "float32", isa: Optional[str] = None,
        stream: Optional[Stream] = None,
    ) -> SmoothQuantLinearPlan: ...
    def can_implement(
        self, *, activation: Any, weight: Any, weight_scale: Any, output: Any, weight_zero_point: Any = 0,
        bias: Any = None,
    ) -> Status: ...
    def run(
        self, *, activation: Any, weight: Any, weight_scale: Any, output: Any, weight_zero_point: Any = 0,
        bias: Any = None, workspace: Any = None, stream: Optional[Stream] = None,
    ) -> None: ...

@final
class QuantizedLinearPlan(_Plan):
    @staticmethod
    def select(
        max_rows: int, in_features: int, out_features: int, *, input: Any = "float32", weight: Any = "int8",
        mode: str = "symmetric", include_zero: bool = False, act_scale: Optional[float] = None,
        act_zero_point: int = 0, smooth: bool = False, numerics: str = "exact", isa: Optional[str] = None,
        stream: Optional[Stream] = None,
    ) -> QuantizedLinearPlan: ...
    def can_implement(
        self, *, input: Any, weight: Any, weight_scale: Any, output: Any, weight_zero_point: Any = 0,
        bias: Any = None, smooth: Any = None,
    ) -> Status: ...
    def run(
        self, *, input: Any, weight: Any, weight_scale: Any, output: Any, weight_zero_point: Any = 0,
        bias: Any = None, smooth: Any = None, workspace: Any = None, stream: Optional[Stream] = None,
    ) -> None: ...
