"""Quantize, dequantize, fake-quantize and the backward passes, bit for bit against reference.py."""

import numpy as np
import pytest

import kvant
import reference as ref
from samples import as_codes, codes, floats, rng

# Shape, then scope, axis, group size and block size. Odd rows, rows of nothing, no rows, inner axes, ragged and oversized
# groups and blocks; the last of each scope is large enough for several threads.
GEOMETRIES = [
    ((), "tensor"),
    ((0,), "tensor"),
    ((1,), "tensor"),
    ((2, 3, 17), "tensor"),
    ((1, 2, 1, 2, 1, 2, 1, 3), "tensor"),
    ((129, 1031), "tensor"),
    ((3, 5), "channel", 0),
    ((3, 5), "channel", 1),
    ((3, 5), "channel", -2),
    ((2, 3, 17), "channel", 1),
    ((2, 3, 17), "channel", -1),
    ((0, 4), "channel", 1),
    ((4, 0), "channel", 0),
    ((3, 129, 341), "channel", 1),
    ((5,), "token"),
    ((3, 5), "token"),
    ((2, 3, 17), "token"),
    ((0, 4), "token"),
    ((4, 0), "token"),
    ((129, 1031), "token"),
    ((13,), "group", -1, 4),
    ((3, 13), "group", 1, 4),
    ((3, 13), "group", 1, 1),
    ((3, 64), "group", -1, 32),
    ((7, 5), "group", 0, 2),
    ((2, 7, 5), "group", 1, 3),
    ((2, 7, 5), "group", -2, 2**62),
    ((0, 13), "group", -1, 4),
    ((129, 1031), "group", -1, 32),
    ((3, 5), "block", None, None, (2, 2)),
    ((7, 13), "block", None, None, (1, 4)),
    ((2, 7, 5), "block", None, None, (3, 1)),
    ((2, 7, 6), "block", None, None, (3, 2**62)),
    ((2, 3, 7, 5), "block", None, None, (2**62, 2**62)),
    ((4, 1), "block", None, None, (3, 2)),
    ((0, 13), "block", None, None, (2, 4)),
    ((4, 0), "block", None, None, (2, 4)),
    ((129, 1031), "block", None, None, (128, 128)),
]
IDS = ["-".join(map(str, ("x".join(map(str, g[0])) or "0d",) + g[1:])) for g in GEOMETRIES]


def quantize(x, scale, zero_point, where, **options):
    scope, *rest = where
    if scope == "group":
        return kvant.quantize_per_group(x, scale, zero_point, rest[1], rest[0], **options)
    if scope == "block":
        return kvant.quantize_per_block(x, scale, zero_point, rest[2], **options)
    return getattr(kvant, f"quantize_per_{scope}")(x, scale, zero_point, *rest, **options)


def dequantize(q, scale, zero_point, where, **options):
    scope, *rest = where
    if scope == "group":
        return kvant.dequantize_per_group(q, scale, zero_point, rest[1], rest[0], **options)
    if scope == "block":
        return kvant.dequantize_per_block(q, scale, zero_point, rest[2], **options)
    return getattr(kvant, f"dequantize_per_{scope}")(q, scale, zero_point, *rest, **options)


def scope_options(where):
    """As fake_quantize and the backward passes want it."""
    scope, *rest = where
    return {
        "tensor": lambda: {},
        "channel": lambda: {"axis": rest[0]},
        "token": lambda: {"scope": "token"},
        "group": lambda: {"axis": rest[0], "group_size": rest[1]},
        "block": lambda: {"block_size": rest[2]},
    }[scope]()


def scales(shape, where, name, seed=0):
    """Good scales and, in tensors of them, one of each bad kind: those are not scanned."""
    size = ref.parameter_shape(shape, *where)
    random = rng(seed, 7)
    scale = np.exp2(random.uniform(-6, 3, size)).astype(ref.compute(name))
    if scale.size > 8:
        bad = [0.0, -0.25, np.nan, np.inf, float(np.finfo(scale.dtype).tiny) / 8]
        scale.reshape(-1)[random.permutation(scale.size)[: len(bad)]] = bad
    return scale


def zero_points(shape, where, low, high, seed=0):
    size = ref.parameter_shape(shape, *where)
    random = rng(seed, 11)
    zero_point = random.integers(low, high + 1, size).astype(np.int32)
    if zero_point.size > 8:
        bad = [2**23, -(2**23), 2**31 - 1, -(2**31), 1000]
        zero_point.reshape(-1)[random.permutation(zero_point.size)[: len(bad)]] = bad
    return zero_point


# ---- Every function, type and scope ---------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ref.CODES)
@pytest.mark.parametrize("name", ref.FLOATS)
@pytest.mark.parametrize("geometry", GEOMETRIES, ids=IDS)
def test_quantize(geometry, name, dtype):
    shape, *where = geometry
    low, high = ref.CODE_RANGE[dtype]
    x, scale = floats(shape, name), scales(shape, where, name)
    for zero_point, (q_min, q_max), numerics in [
        (None, (None, None), "exact"),
        (high // 2, (low + 1, high - 2), "reciprocal"),
        (zero_points(shape, where, low, high), (None, None), "reciprocal"),
        (zero_points(shape, where, low, high, 1), (low + 3, None), "exact"),
    ]:
        got = quantize(x, scale, zero_point, where, dtype=dtype, q_min=q_min, q_max=q_max, numerics=numerics)
        want = ref.quantize(
            x, name, scale, zero_point, where, dtype=dtype, q_min=q_min, q_max=q_max, numerics=numerics
        )
        if dtype.endswith("int4"):
            assert isinstance(got, kvant.PackedArray)
            assert (got.shape, got.dtype) == (shape, dtype)
            ref.same_bits(got.packed.reshape(-1), ref.pack(want, dtype).reshape(-1))
        ref.same_bits(got, want)


@pytest.mark.parametrize("dtype", ref.CODES)
@pytest.mark.parametrize("name", ref.FLOATS)
@pytest.mark.parametrize("geometry", GEOMETRIES, ids=IDS)
def test_dequantize(geometry, name, dtype):
    shape, *where = geometry
    q, scale = codes(shape, dtype), scales(shape, where, name)
    for zero_point in (None, -3, zero_points(shape, where, *ref.CODE_RANGE[dtype])):
        got = dequantize(as_codes(q, dtype), scale, zero_point, where, dtype=name)
        ref.same_bits(got, ref.dequantize(q, scale, zero_point, where, dtype=name), name)


@pytest.mark.parametrize("name", ref.FLOATS)
@pytest.mark.parametrize("geometry", GEOMETRIES, ids=IDS)
def test_fake_quantize_and_backward(geometry, name):
    shape, *where = geometry
    x, dy, scale = floats(shape, name), floats(shape, name, 5), scales(shape, where, name)
    options = scope_options(where)
    for zero_point, numerics in [
        (None, "exact"),
        (5, "reciprocal"),
        (zero_points(shape, where, -8, 7), "reciprocal"),
        (zero_points(shape, where, 0, 15, 1), "exact"),
    ]:
        more = {**options, "numerics": numerics}
        for q_min, q_max in [(-8, 7), (0, 255), (3, 3), (-(2**23), 2**23)]:
            got = kvant.fake_quantize(x, scale, zero_point, q_min, q_max, **more)
            want = ref.fake_quantize(x, name, scale, zero_point, q_min, q_max, where, numerics=numerics)
            ref.same_bits(got, want, name)
            got = kvant.fake_quantize_backward(dy, x, scale, zero_point, q_min, q_max, **more)
            want = ref.fake_quantize_backward(dy, x, name, scale, zero_point, q_min, q_max, where, numerics=numerics)
            ref.same_bits(got, want, name)
            if q_min >= -128:
                got = kvant.quantize_backward(dy, x, scale, zero_point, q_min, q_max, **more)
                want = ref.quantize_backward(dy, x, name, scale, zero_point, q_min, q_max, where, numerics=numerics)
                ref.same_bits(got, want, name)
    got = kvant.dequantize_backward(dy, scale, **options)
    ref.same_bits(got, ref.dequantize_backward(dy, name, scale, where), name)


def bit_patterns(name):
    """All patterns of 16 bits; of the others, random ones and every exponent."""
    if name in ("float16", "bfloat16"):
        bits = np.arange(65536, dtype=np.uint16)
        return bits if name == "bfloat16" else bits.view(np.float16)
    width = 32 if name == "float32" else 64
    mantissa = 23 if width == 32 else 52
    random = rng(3).integers(0, 2**width, 40000, dtype=f"u{width // 8}")
    exponents = np.arange(2 ** (width - mantissa), dtype=random.dtype) << random.dtype.type(mantissa)
    return np.concatenate([random, exponents, exponents | random.dtype.type(1)]).view(name)


@pytest.mark.parametrize("numerics", ["exact", "reciprocal"])
@pytest.mark.parametrize("scale", [0.1, 1.0, 2.0**-20, 3e38, 1.5 * 2.0**-126, 65504.0])
@pytest.mark.parametrize("name", ref.FLOATS)
def test_all_kinds_of_numbers(name, scale, numerics):
    x = bit_patterns(name)
    for dtype, zero_point in [("int8", 0), ("uint8", 200), ("int4", -8), ("uint4", 99)]:
        got = kvant.quantize_per_tensor(x, scale, zero_point, dtype=dtype, numerics=numerics)
        ref.same_bits(got, ref.quantize(x, name, scale, zero_point, dtype=dtype, numerics=numerics))
    got = kvant.fake_quantize(x, scale, 7, -100, 100, numerics=numerics)
    ref.same_bits(got, ref.fake_quantize(x, name, scale, 7, -100, 100, numerics=numerics), name)
    for backward in ("quantize_backward", "fake_quantize_backward"):
        got = getattr(kvant, backward)(x[::-1], x, scale, 7, -100, 100, numerics=numerics)
        want = getattr(ref, backward)(x[::-1], x, name, scale, 7, -100, 100, numerics=numerics)
        ref.same_bits(got, want, name)
    ref.same_bits(kvant.dequantize_backward(x, scale), ref.dequantize_backward(x, name, scale), name)


def test_what_the_documentation_says_by_example():
    x, scale = np.array([0.273939937], np.float32), np.float32(0.00214854861)
    assert kvant.quantize_per_tensor(x, scale, dtype="uint8")[0] == 127
    assert kvant.quantize_per_tensor(x, scale, dtype="uint8", numerics="reciprocal")[0] == 128
    half = np.array([0.5, 1.5, 2.5, -0.5, -1.5], np.float32)
    assert kvant.quantize_per_tensor(half, 1.0).tolist() == [0, 2, 2, 0, -2]
    assert kvant.quantize_per_tensor(half, 1.0, 1).tolist() == [1, 3, 3, 1, -1]  # added after rounding
    odd = np.array([np.nan, np.inf, -np.inf], np.float32)
    assert kvant.quantize_per_tensor(odd, 1.0, 3).tolist() == [3, 127, -128]
    assert kvant.quantize_per_tensor(odd, 1.0, 300, q_min=-5).tolist() == [127, 127, -5]
    fake = kvant.fake_quantize(odd, 0.5, 0, -4, 4)
    assert np.isnan(fake[0]) and fake[1:].tolist() == [2.0, -2.0]
    assert kvant.fake_quantize_backward(np.ones(3, np.float32), odd, 1.0, 0, -4, 4).tolist() == [0, 0, 0]
    zeros = kvant.fake_quantize(np.array([-0.0, -0.2], np.float32), 1.0, 0, -4, 4)
    assert not np.signbit(zeros).any()


# ---- How parameters may be given ------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ref.FLOATS)
@pytest.mark.parametrize(
    "scale",
    [0.1, np.float32(0.1), np.float64(0.1), np.float16(0.1), np.array(0.1), np.array([0.1]), [0.1], 1],
    ids=lambda s: f"{type(s).__name__}-{getattr(s, 'dtype', '')}-{np.ndim(s)}",
)
def test_one_scale(scale, name):
    x = floats((3, 17), name)
    want = ref.quantize(x, name, np.asarray(scale, np.float64), 2)
    ref.same_bits(kvant.quantize_per_tensor(x, scale, 2), want)
    want = ref.fake_quantize(x, name, np.asarray(scale, np.float64), 2, -8, 7)
    ref.same_bits(kvant.fake_quantize(x, scale, 2, -8, 7), want, name)


@pytest.mark.parametrize("name", ref.FLOATS)
@pytest.mark.parametrize("kind", ["float32", "float64", "float16", "list", "strided", "flat", "last size 1"])
def test_tensors_of_scales(kind, name):
    x = floats((2, 3, 17), name)
    scale = np.exp2(rng(9).uniform(-3, 2, (2, 3)))
    scale = {
        "list": lambda s: s.tolist(),
        "strided": lambda s: np.repeat(s.astype(np.float32), 2, axis=1)[:, ::2],
        "flat": lambda s: s.astype(np.float32).reshape(-1),
        "last size 1": lambda s: s.astype(np.float32)[..., None],
    }.get(kind, lambda s: s.astype(kind))(scale)
    ref.same_bits(kvant.quantize_per_token(x, scale), ref.quantize(x, name, scale, 0, ("token",)))


@pytest.mark.parametrize("kind", "int8 uint8 int16 int32 int64 uint32 list strided flat one".split())
def test_tensors_of_zero_points(kind):
    x, scale = floats((2, 3, 17), "float32"), np.full((2, 3), 0.25, np.float32)
    zero_point = np.array([[0, 1, 2], [3, 100, 127]])
    given = {
        "list": lambda z: z.tolist(),
        "strided": lambda z: np.repeat(z.astype(np.int32), 2, axis=1)[:, ::2],
        "flat": lambda z: z.reshape(-1),
        "one": lambda z: np.int64(7),
    }.get(kind, lambda z: z.astype(kind))(zero_point)
    want = ref.quantize(x, "float32", scale, 7 if kind == "one" else zero_point, ("token",))
    ref.same_bits(kvant.quantize_per_token(x, scale, given), want)
    q = codes((2, 3, 17), "int8")
    want = ref.dequantize(q, scale, 7 if kind == "one" else zero_point, ("token",))
    ref.same_bits(kvant.dequantize_per_token(q, scale, given), want)


@pytest.mark.parametrize("dtype", ["int8", np.int8, np.dtype("int8")])
def test_code_types_may_be_numpy_dtypes(dtype):
    assert kvant.quantize_per_tensor(np.ones(3, np.float32), 0.5, dtype=dtype).dtype == np.int8


@pytest.mark.parametrize("dtype", ["float16", np.float16, np.dtype("float16")])
def test_float_types_may_be_numpy_dtypes(dtype):
    assert kvant.dequantize_per_tensor(np.ones(3, np.int8), 0.5, dtype=dtype).dtype == np.float16


def test_lists_are_float64():
    x = [[0.1, -0.7], [1.5, 3.0]]
    want = ref.fake_quantize(np.array(x), "float64", 0.3, 0, -8, 7)
    ref.same_bits(kvant.fake_quantize(x, 0.3, 0, -8, 7), want)


# ---- out= -----------------------------------------------------------------------------------------------------

# Each as a function of x (float32), of codes and of out, and the dtype of out.
FUNCTIONS = {
    "quantize": (lambda x, q, out: kvant.quantize_per_tensor(x, 0.1, 3, out=out), "int8"),
    "dequantize": (lambda x, q, out: kvant.dequantize_per_tensor(q, 0.1, 3, out=out), "float32"),
    "quantize_channel": (lambda x, q, out: kvant.quantize_per_channel(x, S[:9], None, 1, out=out), "int8"),
    "dequantize_channel": (lambda x, q, out: kvant.dequantize_per_channel(q, S[:9], None, 1, out=out), "float32"),
    "quantize_token": (lambda x, q, out: kvant.quantize_per_token(x, S[:6], out=out), "int8"),
    "dequantize_token": (lambda x, q, out: kvant.dequantize_per_token(q, S[:6], out=out), "float32"),
    "quantize_group": (lambda x, q, out: kvant.quantize_per_group(x, S[:18], 0, 4, out=out), "int8"),
    "dequantize_group": (lambda x, q, out: kvant.dequantize_per_group(q, S[:18], 0, 4, out=out), "float32"),
    "quantize_block": (lambda x, q, out: kvant.quantize_per_block(x, S[:6], 0, (4, 4), out=out), "int8"),
    "dequantize_block": (lambda x, q, out: kvant.dequantize_per_block(q, S[:6], 0, (4, 4), out=out), "float32"),
    "fake_quantize": (lambda x, q, out: kvant.fake_quantize(x, 0.1, 0, -8, 7, out=out), "float32"),
    "quantize_backward": (lambda x, q, out: kvant.quantize_backward(-x, x, 0.1, 0, -8, 7, out=out), "float32"),
    "fake_backward": (lambda x, q, out: kvant.fake_quantize_backward(-x, x, 0.1, 0, -8, 7, out=out), "float32"),
    "dequantize_backward": (lambda x, q, out: kvant.dequantize_backward(x, 0.1, out=out), "float32"),
}
S = np.exp2(rng(17).uniform(-4, 1, 18)).astype(np.float32)


@pytest.mark.parametrize("function", FUNCTIONS)
def test_out_is_written_and_returned(function):
    call, dtype = FUNCTIONS[function]
    x, q = floats((6, 9), "float32"), codes((6, 9), "int8")
    want = call(x, q, None)
    out = np.full((6, 9), 77, dtype)
    assert call(x, q, out) is out
    ref.same_bits(out, want)


@pytest.mark.parametrize("function", FUNCTIONS)
def test_rows_with_gaps(function):
    """Views of the left columns are read and written in place, and the gaps stay as they are."""
    call, dtype = FUNCTIONS[function]
    x, q = floats((6, 16), "float32")[:, :9], codes((6, 16), "int8")[:, :9]
    want = call(x.copy(), q.copy(), None)
    ref.same_bits(call(x, q, None), want)
    whole = np.full((6, 16), 77, dtype)
    out = whole[:, :9]
    assert call(x, q, out) is out
    ref.same_bits(out, want)
    assert (whole[:, 9:] == 77).all()


def test_rows_with_gaps_in_three_dimensions():
    x, whole = floats((2, 3, 16), "float32")[:, :, 2:7], np.full((2, 3, 11), 77, np.int8)
    out = whole[:, :, 4:9]
    assert kvant.quantize_per_tensor(x, 0.1, out=out) is out
    ref.same_bits(out, ref.quantize(x, "float32", 0.1, 0))
    assert (np.delete(whole, np.s_[4:9], axis=2) == 77).all()


@pytest.mark.parametrize("name", ref.FLOATS)
@pytest.mark.parametrize("dtype", ref.CODES)
def test_out_of_every_type(name, dtype):
    x, q = floats((5, 7), name), codes((5, 7), dtype)
    out = np.full((5, 7), 1, ref.storage(dtype))
    out = as_codes(out, dtype)
    assert kvant.quantize_per_tensor(x, 0.1, dtype=dtype, out=out) is out
    ref.same_bits(out, ref.quantize(x, name, 0.1, 0, dtype=dtype))
    out = np.zeros((5, 7), ref.storage(name))
    assert kvant.dequantize_per_tensor(as_codes(q, dtype), 0.1, dtype=name, out=out) is out
    ref.same_bits(out, ref.dequantize(q, 0.1, 0, dtype=name), name)


@pytest.mark.parametrize("name", ref.FLOATS)
def test_in_place(name):
    start, dy = floats((5, 33), name), floats((5, 33), name, 3)
    x = start.copy()
    assert kvant.fake_quantize(x, 0.1, 0, -8, 7, out=x) is x
    ref.same_bits(x, ref.fake_quantize(start, name, 0.1, 0, -8, 7), name)
    for backward in ("quantize_backward", "fake_quantize_backward"):
        want = getattr(ref, backward)(dy, start, name, 0.1, 0, -8, 7)
        for over in (0, 1):
            arguments = [dy.copy(), start.copy()]
            out = arguments[over]
            assert getattr(kvant, backward)(*arguments, 0.1, 0, -8, 7, out=out) is out
            ref.same_bits(out, want, name)
    out = dy.copy()
    assert kvant.dequantize_backward(out, 0.1, out=out) is out
    ref.same_bits(out, ref.dequantize_backward(dy, name, 0.1), name)


def test_inputs_stay_as_they_are():
    x, scale, zero_point = floats((6, 9), "float32"), S[:6].copy(), np.arange(6)
    before = x.tobytes(), scale.tobytes(), zero_point.tobytes()
    kvant.quantize_per_token(x, scale, zero_point)
    kvant.fake_quantize(x, scale, zero_point, -8, 7, scope="token")
    kvant.quantize_backward(x, x, scale, zero_point, -8, 7, scope="token")
    assert (x.tobytes(), scale.tobytes(), zero_point.tobytes()) == before
