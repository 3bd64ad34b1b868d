"""kvant from numpy: quantize a weight and activations, and multiply them. README shows a part of this; CI runs all."""

import numpy as np

import kvant

rng = np.random.default_rng(0)
x = rng.standard_normal((64, 1024), dtype=np.float32)
w = rng.standard_normal((512, 1024), dtype=np.float32)

# Activations: a scale for each row from its own range. Codes, scales and zero points come back as arrays.
q, scale, zero_point = kvant.dynamic_range_quantize(x)
print("largest error of a row in steps:", np.max(np.abs(kvant.dequantize_per_token(q, scale) - x) / scale[:, None]))

# Weights: a scale for each output channel, packed once for the matrix kernels.
w_q, w_scale, _ = kvant.dynamic_range_quantize(w, scope="channel", axis=0)
packed = kvant.PackedWeight(w_q)

# A linear layer with 8-bit products and exact sums; on codes, or on floating point that is quantized inside.
y = kvant.w8a8_linear(q, scale, packed, w_scale)
assert np.array_equal(y, kvant.quantized_linear(x, packed, w_scale))
exact = x.astype(np.float64) @ w.T.astype(np.float64)
error = np.sqrt(np.mean((y - exact) ** 2) / np.mean(exact**2))
print(f"relative error of the layer: {error:.4f}")
assert error < 0.015

# Four bits, two to a byte, a scale for every 128 weights.
w4, w4_scale, _ = kvant.dynamic_range_quantize(w, scope="group", group_size=128, dtype="int4")
print(w4.packed.nbytes, "bytes instead of", w.nbytes)
back = kvant.dequantize_per_group(w4, w4_scale, 0, group_size=128)
assert np.max(np.abs(back - w)) < 0.6 * np.max(w4_scale)

# Calibration: ranges over many batches, then a scale that stays.
observer = kvant.Observer("mse", mode="asymmetric", dtype="uint8")
for _ in range(4):
    observer.observe(rng.standard_normal((64, 1024), dtype=np.float32))
print(observer, observer.parameters())

# What is wrong is said, with the numbers.
try:
    kvant.quantize_per_channel(x, np.ones(3, np.float32), None, axis=0)
except ValueError as error:
    print("ValueError:", error)
