#!/usr/bin/env python3
"""Linear layers that write codes, beside ONNX's reference of QLinearMatMul on random matrices.

    PYTHONPATH=build/release/python python3 tests/interop/onnx_qlinear_matmul.py

Needs PyPI's onnx, and kvant. Every code must be equal but for ties with an odd zero point: the reference adds the zero
point before it rounds to even, while kvant rounds first, as the text of the standard says. Half of the scales are powers
of two, so that there are ties.
"""

import sys

import kvant
import numpy as np
from onnx.reference.ops.op_qlinear_matmul import QLinearMatMul

MATRICES = 3000
TYPES = (np.int8, np.uint8)


def drawn_codes(rng, dtype, shape):
    limits = np.iinfo(dtype)
    return rng.integers(limits.min, limits.max + 1, shape).astype(dtype)


def drawn_scales(rng, powers, low, high, count):
    return (2.0 ** -rng.integers(1, 9, count) if powers else rng.uniform(low, high, count)).astype(np.float32)


def main():
    rng = np.random.default_rng(1)
    outputs = ties = 0
    for i in range(MATRICES):
        m, k, n = rng.integers(1, 20, 3)
        a_type, b_type, y_type = (TYPES[j] for j in rng.integers(0, 2, 3))
        a, a_zero_point = drawn_codes(rng, a_type, (m, k)), drawn_codes(rng, a_type, ())
        b, b_zero_point = drawn_codes(rng, b_type, (k, n)), drawn_codes(rng, b_type, ())
        y_zero_point = drawn_codes(rng, y_type, ())
        a_scale, b_scale = drawn_scales(rng, i % 2, 0.001, 0.02, 1), drawn_scales(rng, i % 2, 0.001, 0.02, n)
        y_scale = drawn_scales(rng, i % 2, 0.01, 0.2, 1)
        want = QLinearMatMul._run(None, a, a_scale, a_zero_point, b, b_scale, b_zero_point, y_scale, y_zero_point)[0]
        got = kvant.w8a8_linear(
            a, a_scale[0], np.ascontiguousarray(b.T), b_scale, act_zero_point=int(a_zero_point),
            weight_zero_point=int(b_zero_point), dtype=y_type, output_scale=y_scale[0],
            output_zero_point=int(y_zero_point),
        )
        sums = (a.astype(np.int64) - int(a_zero_point)) @ (b.astype(np.int64) - int(b_zero_point))
        steps = sums * (a_scale * b_scale / y_scale).astype(np.float64)
        is_tie = (np.abs(steps - np.floor(steps)) == 0.5) & (int(y_zero_point) % 2 != 0)
        differs = got != want
        if (differs & ~is_tie).any():
            at = tuple(np.argwhere(differs & ~is_tie)[0])
            print(f"onnx_qlinear_matmul: matrices {i}, y[{at[0]}, {at[1]}] is {got[at]}, ONNX has {want[at]}")
            return 1
        outputs += got.size
        ties += int(differs.sum())
    print(f"QLinearMatMul: {outputs} codes; {ties} at ties with an odd zero point differ by one, all others are equal")
    return 0 if ties > 0 else 1


if __name__ == "__main__":
    sys.exit(main())
