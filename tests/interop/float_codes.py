#!/usr/bin/env python3
"""Floating-point codes and scales beside ml_dtypes, torch and compressed-tensors, byte for byte.

    PYTHONPATH=build/release/python python3 tests/interop/float_codes.py

Needs PyPI's ml_dtypes, torch and compressed-tensors, and kvant. All f16 and bf16 and every 97th f32 become codes as
ml_dtypes and torch make them; scales of MXFP4, MXFP8 and NVFP4 become those of compressed-tensors, and the floor rule of
MX is that of OCP's specification.
"""

import sys

import kvant
import ml_dtypes
import numpy as np
import torch
from compressed_tensors.quantization import QuantizationArgs
from compressed_tensors.quantization.utils import calculate_qparams, generate_gparam
from compressed_tensors.quantization.utils.mxfp_utils import generate_mx_scales

GRIDS = {
    "float8_e4m3": (ml_dtypes.float8_e4m3fn, torch.float8_e4m3fn, 448.0, 8),
    "float8_e5m2": (ml_dtypes.float8_e5m2, torch.float8_e5m2, 57344.0, 15),
    "float4_e2m1": (ml_dtypes.float4_e2m1fn, None, 6.0, 2),
}


def fail(text):
    sys.exit(f"float_codes.py: {text}")


def codes_of(result):
    """One code in each byte."""
    if isinstance(result, kvant.PackedArray):
        packed = np.frombuffer(result.packed, np.uint8)
        return np.stack([packed & 15, packed >> 4], -1).ravel()
    return np.asarray(result).view(np.uint8).ravel()


def check_codes(x, name):
    peer, of_torch, largest, _ = GRIDS[name]
    ours = codes_of(kvant.quantize_per_tensor(x, 1.0, dtype=name))
    number = x.astype(np.float32)
    known = ~np.isnan(number)
    clamped = np.clip(number, -largest, largest)
    theirs = clamped.astype(peer).view(np.uint8)
    if not np.array_equal(ours[known], theirs[known]):
        where = np.nonzero(known & (ours != theirs))[0][0]
        fail(f"{number[where]} in {name} is {ours[where]:#x}, ml_dtypes says {theirs[where]:#x}")
    if of_torch is not None:
        theirs = torch.from_numpy(clamped).to(of_torch).view(torch.uint8).numpy()
        if not np.array_equal(ours[known], theirs[known]):
            fail(f"{name} differs from torch")
        if np.any(ours[~known] != 0x7F):
            fail(f"NaN in {name} is not 0x7f")
    return x.size


def weights(rng, scale):
    w = rng.standard_normal((96, 256)).astype(np.float32)
    return w * np.exp2(rng.integers(-scale, scale + 1, (96, 8)).repeat(32, 1)).astype(np.float32)


def check_mx(rng):
    compared = 0
    for spread in (0, 4, 20):
        w = weights(rng, spread)
        largest = np.abs(w.reshape(96, 8, 32)).max(-1)
        for name, bits in (("float4_e2m1", 4), ("float8_e4m3", 8)):
            arguments = dict(scope="group", group_size=32, dtype=name, scale_dtype="float8_e8m0")
            rounded = kvant.dynamic_range_quantize(w, **arguments, mx_rule="round_up")[1]
            theirs = generate_mx_scales(torch.from_numpy(largest), bits).to(torch.uint8).numpy()
            if not np.array_equal(np.asarray(rounded).view(np.uint8), theirs):
                fail(f"MX scales of {name}, rounded up, differ from compressed-tensors")
            floor = kvant.dynamic_range_quantize(w, **arguments, mx_rule="floor")[1]
            exponent = np.frexp(largest)[1] - 1 - GRIDS[name][3] + 127
            if not np.array_equal(np.asarray(floor).view(np.uint8), exponent.astype(np.uint8)):
                fail(f"MX scales of {name} are not those of the specification")
            compared += 2 * largest.size
    return compared


def check_nvfp4(rng):
    compared = 0
    arguments = QuantizationArgs(num_bits=4, type="float", symmetric=True, strategy="tensor_group", group_size=16,
                                 scale_dtype=torch.float8_e4m3fn, zp_dtype=torch.float8_e4m3fn)
    for spread in (0, 2, 12):
        w = weights(rng, spread)
        w[3, :16] = 0
        groups = torch.from_numpy(w).reshape(96, 16, 16)
        low, high = groups.amin(-1), groups.amax(-1)
        theirs_global = generate_gparam(low.min(), high.max())
        theirs, _ = calculate_qparams(low, high, arguments, theirs_global)
        arguments_of_ours = dict(scope="group", group_size=16, dtype="float4_e2m1", scale_dtype="float8_e4m3")
        *_, found = kvant.dynamic_range_quantize(w, **arguments_of_ours)
        # torch divides a number by a tensor as the number times the rounded reciprocal.
        given = theirs_global.numpy()[0]
        if abs(int(np.float32(found).view(np.int32)) - int(given.view(np.int32))) > 1:
            fail(f"the global scale is {found}, compressed-tensors says {given}")
        scale = kvant.dynamic_range_quantize(w, **arguments_of_ours, global_scale=given)[1]
        theirs = theirs.to(torch.float8_e4m3fn).view(torch.uint8).numpy()
        if not np.array_equal(np.asarray(scale).view(np.uint8), theirs):
            fail("scales of NVFP4 differ from compressed-tensors")
        compared += theirs.size
    return compared


def main():
    rng = np.random.default_rng(7)
    bits = np.arange(65536, dtype=np.uint32).astype(np.uint16)
    some = np.arange(0, 1 << 32, 97, dtype=np.int64).astype(np.uint32).view(np.float32)
    codes = 0
    with np.errstate(all="ignore"):
        for name in GRIDS:
            codes += check_codes(bits.view(np.float16), name)
            codes += check_codes(bits.view(ml_dtypes.bfloat16), name)
            codes += check_codes(some[: some.size // 2 * 2], name)
    print(f"{codes} codes equal those of ml_dtypes and torch; {check_mx(rng)} scales of MX and {check_nvfp4(rng)} of NVFP4 equal "
          "those of compressed-tensors and OCP's rule")


if __name__ == "__main__":
    main()
