"""kvant's arithmetic stated a second time, in numpy, from docs/numerics.md and the public headers: clear and slow.

Floating types go by name; bfloat16 lives in uint16 arrays, as in kvant. "c" in comments is the type that a formula is
evaluated in, which is also the type of the scales: float64 for float64, float32 for all else.
"""

import math

import numpy as np

FLOATS = ("float32", "float64", "float16", "bfloat16")
CODES = ("int8", "uint8", "int4", "uint4", "int16", "uint16", "int2", "uint2")
SCOPES = ("tensor", "channel", "token", "group")
CODE_RANGE = {
    "int8": (-128, 127), "uint8": (0, 255), "int4": (-8, 7), "uint4": (0, 15),
    "int16": (-32768, 32767), "uint16": (0, 65535), "int2": (-2, 1), "uint2": (0, 3),
}  # fmt: skip
PACKED = {"int4": 2, "uint4": 2, "int2": 4, "uint2": 4}  # integers, and how many of them are in a byte
# Floating-point grids: bits of the exponent, of the mantissa, the bias, and what the top codes are.
GRIDS = {
    "float8_e4m3fn": (4, 3, 7, "nan"), "float8_e5m2": (5, 2, 15, "infinity"), "float4_e2m1fn": (2, 1, 1, "finite")
}  # fmt: skip
MOST_ZERO_POINT = 2**23


# ---- Types ----------------------------------------------------------------------------------------------------


def storage(name):
    """The numpy dtype that arrays of this type have; packed codes as they come out of np.asarray."""
    return np.dtype({"bfloat16": "uint16", **{p: "uint8" if p[0] == "u" else "int8" for p in PACKED}}.get(name, name))


def compute(name):
    return np.float64 if name == "float64" else np.float32


def bfloat16_to_float32(bits):
    return (np.asarray(bits, np.uint16).astype(np.uint32) << np.uint32(16)).view(np.float32)


def float32_to_bfloat16(x):
    """Round to nearest, ties to even; NaN stays NaN, overflow gives infinity."""
    x = np.asarray(x, np.float32)
    bits = x.reshape(-1).view(np.uint32).astype(np.uint64)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    quiet_nan = (bits >> 16) | 0x40
    return np.where(np.isnan(x.reshape(-1)), quiet_nan, rounded).astype(np.uint16).reshape(x.shape)


def widen(x, name):
    """Exactly, to c."""
    return bfloat16_to_float32(x) if name == "bfloat16" else np.asarray(x).astype(compute(name))


def narrow(x, name):
    """From c, rounded once."""
    with np.errstate(all="ignore"):
        return float32_to_bfloat16(x) if name == "bfloat16" else np.asarray(x).astype(storage(name))


def pack_bits(codes, per_byte):
    """The first element of a byte in its lowest bits; a row is padded to a whole byte with zeros."""
    codes = np.asarray(codes)
    rows = codes.reshape(1, 1) if codes.ndim == 0 else codes.reshape(math.prod(codes.shape[:-1]), codes.shape[-1])
    padded = np.zeros((rows.shape[0], -(-rows.shape[1] // per_byte) * per_byte), np.uint8)
    bits = 8 // per_byte
    padded[:, : rows.shape[1]] = rows.astype(np.uint8) & ((1 << bits) - 1)
    packed = np.zeros((rows.shape[0], padded.shape[1] // per_byte), np.uint8)
    for i in range(per_byte):
        packed |= padded[:, i::per_byte] << np.uint8(bits * i)
    return packed.reshape(codes.shape[:-1] + packed.shape[-1:])


def pack(codes, dtype):
    return pack_bits(codes, PACKED[dtype])


def unpack(packed, shape, dtype):
    row, per_byte = shape[-1] if shape else 1, PACKED[dtype]
    bits = 8 // per_byte
    rows = np.asarray(packed, np.uint8).reshape(math.prod(shape[:-1]), -(-row // per_byte))
    codes = np.stack([rows >> (bits * i) & ((1 << bits) - 1) for i in range(per_byte)], axis=-1)
    codes = codes.reshape(rows.shape[0], per_byte * rows.shape[1]).astype(np.int8)
    if CODE_RANGE[dtype][0] < 0:
        codes = np.where(codes >= 1 << (bits - 1), codes - (1 << bits), codes)
    return codes[:, :row].reshape(shape).astype(storage(dtype))


# ---- Floating-point grids --------------------------------------------------------------------------------------


def numbers_of(dtype):
    """What each code stands for, as float32."""
    if dtype == "float8_e8m0fnu":
        return np.array([2.0 ** (b - 127) for b in range(255)] + [np.nan], np.float32)
    exponent_bits, mantissa_bits, bias, top = GRIDS[dtype]
    magnitudes = []
    for code in range(1 << (exponent_bits + mantissa_bits)):
        e, m = code >> mantissa_bits, code & ((1 << mantissa_bits) - 1)
        number = (m + (1 << mantissa_bits) * (e > 0)) * 2.0 ** (max(e, 1) - bias - mantissa_bits)
        if top == "infinity" and e == (1 << exponent_bits) - 1:
            number = np.nan if m else np.inf
        magnitudes.append(number)
    if top == "nan":
        magnitudes[-1] = np.nan
    numbers = np.array(magnitudes, np.float32)
    return np.concatenate([numbers, np.where(np.isnan(numbers), numbers, -numbers)])


def to_grid(y, dtype, saturate=True):
    """The code of the nearest number, of two that are equally near the even one."""
    top = GRIDS[dtype][3]
    numbers = numbers_of(dtype)[: 1 << (sum(GRIDS[dtype][:2]))].astype(np.float64)
    finite = numbers[np.isfinite(numbers)]
    codes = np.zeros(y.shape, np.uint8)
    for index, value in np.ndenumerate(np.asarray(y, np.float64)):
        if np.isnan(value):
            codes[index] = 0 if top == "finite" else numbers.size - 1
            continue
        magnitude = abs(value)
        step = finite[-1] - finite[-2]
        if not saturate and magnitude >= finite[-1] + step / 2:  # that half rounds up: the code of max is odd or NaN's
            tie_stays = magnitude == finite[-1] + step / 2 and finite.size % 2 == 1
            code = finite.size - 1 if tie_stays else finite.size
        else:
            magnitude = min(magnitude, finite[-1])
            above = int(np.searchsorted(finite, magnitude))
            below = max(above - 1, 0)
            left, right = magnitude - finite[below], finite[above] - magnitude
            code = below if left < right or (left == right and below % 2 == 0) else above
        codes[index] = code + numbers.size * bool(np.signbit(value))
    return codes


# ---- Scopes ---------------------------------------------------------------------------------------------------


def groups_of(size, group_size):
    return -(-size // group_size)


def parameter_shape(shape, scope, axis=None, group_size=None, block_size=None):
    if scope == "tensor":
        return ()
    if scope == "channel":
        return (shape[axis],)
    if scope == "token":
        return tuple(shape[:-1])
    if scope == "block":
        rows, columns = block_size
        return (*shape[:-2], groups_of(shape[-2], rows), groups_of(shape[-1], columns))
    sizes = list(shape)
    sizes[axis] = groups_of(shape[axis], group_size)
    return tuple(sizes)


def spread(parameter, shape, scope, axis=None, group_size=None, block_size=None):
    """A parameter for each element."""
    parameter = np.asarray(parameter)
    if parameter.ndim == 0 or (scope == "tensor" and parameter.size == 1):
        return np.full(shape, parameter.reshape(()))
    parameter = parameter.reshape(parameter_shape(shape, scope, axis, group_size, block_size))
    if scope == "channel":
        sizes = [1] * len(shape)
        sizes[axis] = shape[axis]
        return np.broadcast_to(parameter.reshape(sizes), shape)
    if scope == "token":
        return np.broadcast_to(parameter[..., None], shape)
    if scope == "block":
        rows, columns = (np.arange(size) // side for size, side in zip(shape[-2:], block_size))
        return parameter[..., rows[:, None], columns]
    which = np.arange(shape[axis]) // group_size
    return np.take(parameter, which, axis=axis)


def segments(shape, scope, axis=None, group_size=None, block_size=None):
    """Pairs: an index into the parameters, and an index that takes the segment's elements out of x."""
    if scope == "tensor":
        yield (), ...
        return
    rank = len(shape)
    for index in np.ndindex(*parameter_shape(shape, scope, axis, group_size, block_size)):
        if scope == "channel":
            where = [slice(None)] * rank
            where[axis] = index[0]
            yield index, tuple(where)
        elif scope == "token":
            yield index, index
        elif scope == "block":
            (row, column), (rows, columns) = index[-2:], block_size
            tile = slice(row * rows, (row + 1) * rows), slice(column * columns, (column + 1) * columns)
            yield index, (*index[:-2], *tile)
        else:
            where = list(index)
            where[axis] = slice(index[axis] * group_size, (index[axis] + 1) * group_size)
            yield index, tuple(where)


# ---- Elementwise ----------------------------------------------------------------------------------------------


def quotient(x, scale, numerics):
    return x / scale if numerics == "exact" else x * (scale.dtype.type(1) / scale)


def parameters(x, name, scale, zero_point, where):
    c = compute(name)
    scale = spread(np.asarray(scale).astype(c), x.shape, *where)
    zero_point = 0 if zero_point is None else zero_point
    zero_point = np.clip(np.asarray(zero_point).astype(np.int64), -MOST_ZERO_POINT, MOST_ZERO_POINT)
    return widen(x, name), scale, spread(zero_point, x.shape, *where)


def rounded(x, scale, zero_point, numerics):
    """rne(x / scale) + zero_point before clamping, as float64: exact below 2^52, and beyond it clips anyway."""
    return np.rint(quotient(x, scale, numerics)).astype(np.float64) + zero_point


def quantize(x, name, scale, zero_point, where=("tensor",), *, dtype="int8", q_min=None, q_max=None, numerics="exact"):
    low, high = CODE_RANGE[dtype]
    low, high = low if q_min is None else q_min, high if q_max is None else q_max
    with np.errstate(all="ignore"):
        x, scale, zero_point = parameters(x, name, scale, zero_point, where)
        r = rounded(x, scale, zero_point, numerics)
        r = np.where(np.isnan(r), zero_point, r)
        return np.clip(r, low, high).astype(np.int64).astype(storage(dtype))


def dequantize(q, scale, zero_point, where=("tensor",), *, dtype="float32"):
    q = np.asarray(q)
    with np.errstate(all="ignore"):
        _, scale, zero_point = parameters(np.zeros(q.shape, storage(dtype)), dtype, scale, zero_point, where)
        return narrow(scale * (q.astype(np.int64) - zero_point).astype(compute(dtype)), dtype)


def fake_quantize(x, name, scale, zero_point, q_min, q_max, where=("tensor",), *, numerics="exact"):
    with np.errstate(all="ignore"):
        x, scale, zero_point = parameters(x, name, scale, zero_point, where)
        r = rounded(x, scale, zero_point, numerics)
        steps = np.clip(r, q_min, q_max) - zero_point
        return narrow(scale * steps.astype(compute(name)), name)


def in_range(x, name, scale, zero_point, q_min, q_max, where, numerics):
    with np.errstate(all="ignore"):
        x, scale, zero_point = parameters(x, name, scale, zero_point, where)
        r = rounded(x, scale, zero_point, numerics)
        return (q_min <= r) & (r <= q_max), scale


def quantize_backward(dy, x, name, scale, zero_point, q_min, q_max, where=("tensor",), *, numerics="exact"):
    inside, scale = in_range(x, name, scale, zero_point, q_min, q_max, where, numerics)
    with np.errstate(all="ignore"):
        dx = quotient(widen(dy, name), scale, numerics)
        return narrow(np.where(inside, dx, compute(name)(0)), name)


def fake_quantize_backward(dy, x, name, scale, zero_point, q_min, q_max, where=("tensor",), *, numerics="exact"):
    inside, _ = in_range(x, name, scale, zero_point, q_min, q_max, where, numerics)
    return np.where(inside, np.asarray(dy), storage(name).type(0))


def dequantize_backward(dy, name, scale, where=("tensor",)):
    with np.errstate(all="ignore"):
        dy, scale, _ = parameters(dy, name, scale, 0, where)
        return narrow(dy * scale, name)


# ---- Dynamic range --------------------------------------------------------------------------------------------


def range_of(x):
    """(min, max) of the finite values, zeros as +0.0; None where there are none."""
    finite = x[np.isfinite(x)]
    return None if finite.size == 0 else (finite.min() + x.dtype.type(0), finite.max() + x.dtype.type(0))


def parameters_of_range(limits, c, *, mode, q_min, q_max, include_zero):
    """(scale, zero point) of one segment whose least and greatest finite values, of type c, are `limits`, or None."""
    tiny, largest = np.finfo(c).tiny, np.finfo(c).max
    low, high = (c(0), c(0)) if limits is None else (c(limits[0]), c(limits[1]))
    if mode == "symmetric":
        magnitude = max(abs(low), abs(high))
        return (c(1), 0) if magnitude == 0 else (max(magnitude / c(q_max), tiny), 0)
    if include_zero:
        low, high = min(low, c(0)), max(high, c(0))
    magnitude = max(abs(low), abs(high))
    if magnitude == 0:
        return c(1), min(max(0, q_min), q_max)
    steps = c(q_max - q_min)
    with np.errstate(over="ignore"):
        if low == high:
            scale = magnitude
        elif np.isfinite(high - low):
            scale = (high - low) / steps
        else:
            scale = min(c(2) * ((high / c(2) - low / c(2)) / steps), largest)
    scale = max(scale, magnitude * c(2.0**-22), tiny)
    zero_point = q_min - int(np.rint(low / scale))
    return scale, min(max(zero_point, q_min), q_max) if include_zero else zero_point


def dynamic_parameters(x, where, **rules):
    """Scales and zero points of x, which is of type c."""
    shape = parameter_shape(x.shape, *where)
    scale, zero_point = np.empty(shape, x.dtype), np.empty(shape, np.int32)
    for index, elements in segments(x.shape, *where):
        scale[index], zero_point[index] = parameters_of_range(range_of(np.asarray(x[elements])), x.dtype.type, **rules)
    return scale, zero_point


def dynamic_range_quantize(
    x, name, where=("token",), *, mode="symmetric", dtype="int8", q_min=None, q_max=None, include_zero=False,
    numerics="exact",
):
    q_min = CODE_RANGE[dtype][0] if q_min is None else q_min
    q_max = CODE_RANGE[dtype][1] if q_max is None else q_max
    scale, zero_point = dynamic_parameters(
        widen(x, name), where, mode=mode, q_min=q_min, q_max=q_max, include_zero=include_zero
    )
    q = quantize(x, name, scale, zero_point, where, dtype=dtype, q_min=q_min, q_max=q_max, numerics=numerics)
    return q, scale, zero_point


# ---- Linear ---------------------------------------------------------------------------------------------------


def linear(a, act_scale, act_zero_point, w, weight_scale, weight_zero_point, bias, *, dtype="float32",
           bias_dtype="float32"):
    """y of w8a8_linear. The sum is exact: |a - za| <= 2^24, |w - zw| <= 2^8, so int64 holds K up to 2^31."""
    a, w = np.asarray(a), np.asarray(w)
    c = compute(dtype)
    rows = math.prod(a.shape[:-1])
    za = np.clip(np.asarray(act_zero_point).astype(np.int64).reshape(-1, 1), -MOST_ZERO_POINT, MOST_ZERO_POINT)
    limits = np.iinfo(w.dtype)
    zw = np.clip(np.asarray(weight_zero_point).astype(np.int64).reshape(-1, 1), limits.min, limits.max)
    left = a.reshape(rows, a.shape[-1]).astype(np.int64) - za
    right = w.astype(np.int64) - zw
    y = np.zeros((rows, w.shape[0]), c)
    if a.shape[-1] != 0:
        with np.errstate(all="ignore"):
            scales = np.asarray(act_scale).astype(c).reshape(-1, 1) * np.asarray(weight_scale).astype(c).reshape(1, -1)
            y = scales * (left @ right.T).astype(c)
    if bias is not None:
        with np.errstate(all="ignore"):
            y = y + widen(bias, bias_dtype).astype(c)
    return narrow(y, dtype).reshape(a.shape[:-1] + (w.shape[0],))


def linear_codes(a, act_scale, act_zero_point, w, weight_scale, weight_zero_point, bias, output_scale,
                 output_zero_point, dtype):
    """q of w8a8_linear on a matrix."""
    sums = linear(a, 1.0, act_zero_point, w, 1.0, weight_zero_point, None, dtype="float64")
    single = [np.asarray(s).astype(np.float32) for s in (act_scale, weight_scale, output_scale)]
    with np.errstate(all="ignore"):
        scales = single[0].reshape(-1, 1) * single[1].reshape(1, -1)
        factor = (scales / single[2]).astype(np.float64)  # one for each row of the matrix
        y = sums * factor if a.shape[-1] != 0 else np.zeros_like(sums)
        if bias is not None:
            y = y + np.asarray(bias).astype(np.float64) / single[2].astype(np.float64)
    limits = np.iinfo(dtype)
    return np.clip(np.rint(y) + output_zero_point, limits.min, limits.max).astype(dtype)


def quantized_linear(x, name, w, weight_scale, weight_zero_point=0, bias=None, *, mode="symmetric", include_zero=False,
                     act_scale=None, act_zero_point=0, smooth=None, numerics="exact", bias_dtype="float32"):
    c = compute(name)
    x = widen(x, name)
    if smooth is not None:
        with np.errstate(all="ignore"):
            x = x / np.asarray(smooth).astype(c)
    in_c = "float64" if c == np.float64 else "float32"
    if act_scale is None:
        a, act_scale, act_zero_point = dynamic_range_quantize(
            x, in_c, mode=mode, include_zero=include_zero, numerics=numerics
        )
    else:
        act_scale = c(act_scale)
        a = quantize(x, in_c, act_scale, act_zero_point, numerics=numerics)
    return linear(a, act_scale, act_zero_point, w, weight_scale, weight_zero_point, bias, dtype=name,
                  bias_dtype=bias_dtype)


# ---- Smoothing ------------------------------------------------------------------------------------------------


def smooth_scales(act_absmax, weights, alpha):
    """weights: arrays of float32 or float64. Powers by the C library's pow, which is what math.pow is."""
    scales = []
    for j, x in enumerate(np.asarray(act_absmax, np.float64)):
        magnitudes = [abs(float(v)) for w in weights for v in w[:, j] if np.isfinite(v)]
        w_j = max(magnitudes + [1e-5])
        scales.append(max(math.pow(x, alpha) / math.pow(w_j, 1 - alpha), 1e-5))
    return np.array(scales, np.float64).astype(np.float32)


# ---- Comparing ------------------------------------------------------------------------------------------------


def same_bits(got, want, name=None):
    """Asserts that type, shape and all bytes are equal; any NaN equals any NaN."""
    got, want = np.asarray(got), np.asarray(want)
    assert got.dtype == want.dtype, f"dtype {got.dtype}, expected {want.dtype}"
    assert got.shape == want.shape, f"shape {got.shape}, expected {want.shape}"
    g, w = np.ascontiguousarray(got).reshape(-1), np.ascontiguousarray(want).reshape(-1)
    different = g.view(f"u{g.itemsize}") != w.view(f"u{w.itemsize}")
    if name == "bfloat16":
        g, w = bfloat16_to_float32(g), bfloat16_to_float32(w)
    if g.dtype.kind == "f":
        different &= ~(np.isnan(g) & np.isnan(w))
    if different.any():
        i = int(np.flatnonzero(different)[0])
        at = tuple(int(n) for n in np.unravel_index(i, got.shape))
        raise AssertionError(f"{different.sum()} of {g.size} differ; the first, at {at}: {g[i]!r}, expected {w[i]!r}")
