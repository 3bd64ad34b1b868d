"""The plans themselves, for code that wants no allocation and no conversion.

A plan is selected once for a shape and element types, and then run any number of times::

    plan = QuantizePlan.select((64, 128), input="float32", output="int8", scope="token")
    plan.run(input=x, output=q, scale=scale)

Every plan has

``select(...)``
    checks shapes and types (ValueError, NotImplementedError), and chooses the kernel;
``can_implement(...)``
    makes every check that needs the buffers, and returns a Status: true if the plan can run, otherwise it has a
    ``code`` and a ``message``;
``workspace_size()``
    the bytes of scratch memory that ``run`` needs as ``workspace=``, a writable uint8 array;
``sku()`` and ``precision_guarantee()``
    which kernel runs, and what it promises;
``run(...)``
    checks again, then runs with the GIL released. If a check fails, it raises and writes nothing.

Buffers are never converted or copied. The dtype must be the plan's; scales are float32 (float64 for float64 data), or
for the element-wise plans arrays of float16, bfloat16, float8_e8m0 or, with global_scale, float8_e4m3. Zero points are
int32. Arrays must be in C order, where gaps between rows are allowed. Scales and zero points may be numbers
where the formula has one for all elements.

``select`` takes ``isa`` ("scalar" or "avx2"; an instruction set that this machine lacks is an error, never a fallback)
and ``stream``, and ``numerics`` where the formula divides by a scale. ``run`` takes ``stream`` too. Without a stream,
work runs on ``kvant.get_num_threads()`` threads. Plans never change, so many threads may share one.

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

from . import _kvant
from ._kvant import *

# The extension makes its classes from the library's tables of operators, and names them.
__all__: list[str] = []
__all__ += _kvant.__all__
