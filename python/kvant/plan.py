"""The plans themselves, for those who want no allocation and no conversion.

A plan is selected once for a shape and element types, and run as often as wanted::

    plan = QuantizePlan.select((64, 128), input="float32", output="int8", scope="token")
    plan.run(input=x, output=q, scale=scale)

Every plan has

``select(...)``
    refuses what shapes and types show (ValueError, NotImplementedError), and picks the kernel;
``can_implement(...)``
    every check that needs the buffers; returns a Status, which is true if the plan can run them and else has a
    ``code`` and a ``message``;
``workspace_size()``
    bytes of scratch memory that ``run`` wants as ``workspace=``, a writable uint8 array;
``sku()`` and ``precision_guarantee()``
    which kernel runs, and what it promises;
``run(...)``
    checks again, then runs with the GIL released; it raises, and writes nothing, where it refuses.

Buffers are used as they are: the dtype must be the plan's, scales float32 (float64 for float64 data), zero points
int32, all in C order up to gaps between rows. What would need a copy is refused. Scales and zero points may be numbers
where the formula has one for all.

All ``select`` take ``numerics``, ``isa`` ("scalar" or "avx2"; what is absent is an error, never a fallback) and
``stream``; ``run`` takes ``stream`` too. Without a stream, work runs on ``kvant.get_num_threads()`` threads. Plans never
change: one may be used by many threads.

>>> import numpy as np
>>> plan = QuantizePlan.select((2, 3), input="float32", output="int8", scope="channel", axis=0)
>>> x, q = np.ones((2, 3), np.float32), np.empty((2, 3), np.int8)
>>> plan.run(input=x, output=q, scale=np.array([1.0, 0.1], np.float32))
>>> q
array([[ 1,  1,  1],
       [10, 10, 10]], dtype=int8)
>>> bool(plan.can_implement(input=x, output=q, scale=np.ones(3, np.float32)))
False
>>> plan.workspace_size()
0
"""

from __future__ import annotations

from ._kvant import (
    DequantizeBackwardPlan,
    DequantizePlan,
    DynamicRangeQuantizePlan,
    FakeQuantizeBackwardPlan,
    FakeQuantizePlan,
    KernelSku,
    PrecisionGuarantee,
    QuantizeBackwardPlan,
    QuantizedLinearPlan,
    QuantizePlan,
    RangePlan,
    SmoothQuantLinearPlan,
    Status,
    Stream,
    W8A8LinearPlan,
)

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
