"""dynamic_range_quantize, bit for bit against reference.py, and the promises of include/kvant/dynamic_range.h."""

import numpy as np
import pytest

import kvant
import reference as ref
from samples import as_codes, finite_floats, floats, near_ties, rng
from test_elementwise import GEOMETRIES, IDS


def options_of(where):
    return dict(zip(("scope", "axis", "group_size", "block_size"), where))


def check(x, name, where, **rules):
    got_q, got_scale, got_zero_point = kvant.dynamic_range_quantize(x, **options_of(where), **rules)
    q, scale, zero_point = ref.dynamic_range_quantize(x, name, where, **rules)
    ref.same_bits(got_scale, scale)
    ref.same_bits(got_zero_point, zero_point)
    ref.same_bits(got_q, q)
    assert np.isfinite(got_scale).all() and (np.asarray(got_scale) > 0).all()
    return got_q, got_scale, got_zero_point


MODES = [("symmetric", False), ("asymmetric", False), ("asymmetric", True)]


@pytest.mark.parametrize("mode,include_zero", MODES)
@pytest.mark.parametrize("name", ref.FLOATS)
@pytest.mark.parametrize("geometry", GEOMETRIES, ids=IDS)
def test_every_type_and_scope(geometry, name, mode, include_zero):
    shape, *where = geometry
    rules = {"mode": mode, "include_zero": include_zero}
    for i, make in enumerate([floats, finite_floats]):
        dtype = ref.CODES[(len(shape) + i) % len(ref.CODES)]
        numerics = ["exact", "reciprocal"][(len(name) + i) % 2]
        check(make(shape, name, i), name, where, dtype=dtype, numerics=numerics, **rules)


@pytest.mark.parametrize("mode,include_zero", MODES)
@pytest.mark.parametrize("dtype", ref.CODES)
@pytest.mark.parametrize("name", ref.FLOATS)
def test_every_code_type_and_narrow_ranges(name, dtype, mode, include_zero):
    low, high = ref.CODE_RANGE[dtype]
    x = finite_floats((6, 33), name) if name == "float16" else finite_floats((6, 33), name, spread=1e5)
    narrow = [(low + 1, None), (low, high - 3), (1, 2)] if high > 3 else [(low + 1, None), (0, 1)]
    for q_min, q_max in [(None, None), *narrow]:
        check(x, name, ("token",), dtype=dtype, mode=mode, include_zero=include_zero, q_min=q_min, q_max=q_max)


def degenerate_rows(name):
    """One row for each sentence of the header."""
    c = ref.compute(name)
    finfo = np.finfo(np.float32 if name == "bfloat16" else ref.storage(name))
    largest = float(finfo.max) if name != "bfloat16" else float(ref.bfloat16_to_float32(np.uint16(0x7F7F)))
    tiny = float(finfo.tiny)
    rows = [
        [0.0, -0.0, 0.0, 0.0],  # all zero
        [np.nan, np.nan, np.nan, np.nan],  # nothing finite
        [np.inf, -np.inf, np.nan, np.nan],
        [np.inf, 1.0, np.nan, 2.0],  # some finite
        [-np.inf, -1.0, -2.0, np.inf],
        [3.0, 3.0, 3.0, 3.0],  # constants
        [-3.0, -3.0, -3.0, np.nan],
        [largest, largest, largest, largest],
        [tiny, tiny, tiny, tiny],
        [tiny / 8, tiny / 8, tiny / 8, tiny / 8],  # below the normal numbers
        [tiny / 8, -tiny / 4, 0.0, tiny / 2],
        [largest, -largest, 0.0, 1.0],  # overflows
        [largest, -largest / 2, largest / 4, 1.0],
        [100.0, 100.0625, 100.0, 100.0625],  # small beside its offset
        [1024.0, 1025.0, 1024.0, 1025.0],
        [16384.0, 16384.0 * (1 + float(finfo.eps)), 16384.0, 16384.0],
        [-1.0, -2.0, -3.0, -5.0],  # one sign only
        [1.0, 2.0, 3.0, 5.0],
        [-0.0, 1.0, 2.0, 0.5],
        [0.0, -1.0, -2.0, -0.5],
    ]
    return ref.narrow(np.array(rows, np.float64).astype(c), name)


@pytest.mark.parametrize("mode,include_zero", MODES)
@pytest.mark.parametrize("dtype", ref.CODES)
@pytest.mark.parametrize("name", ref.FLOATS)
def test_degenerate_segments(name, dtype, mode, include_zero):
    x = degenerate_rows(name)
    check(x, name, ("token",), dtype=dtype, mode=mode, include_zero=include_zero)
    check(np.ascontiguousarray(x.T), name, ("channel", 1), dtype=dtype, mode=mode, include_zero=include_zero)
    check(x.reshape(-1), name, ("group", 0, 4), dtype=dtype, mode=mode, include_zero=include_zero)
    for row in x:
        check(row, name, ("tensor",), dtype=dtype, mode=mode, include_zero=include_zero)
    if not name.endswith("64"):
        high = ref.CODE_RANGE[dtype][1]
        narrow = dict(q_min=min(2, high - 1), q_max=min(6, high))
        check(x, name, ("token",), dtype=dtype, mode=mode, include_zero=include_zero, **narrow)


@pytest.mark.parametrize("name", ["float32", "float64"])
def test_the_numerics_at_ties(name):
    x = near_ties(name)
    exact = check(x, name, ("token",))[0]
    reciprocal = check(x, name, ("token",), numerics="reciprocal")[0]
    assert (exact != reciprocal).any()


@pytest.mark.parametrize("name", ref.FLOATS)
def test_a_constant_comes_back_exactly(name):
    x = np.repeat(finite_floats((40, 1), name), 5, axis=1)
    q, scale, zero_point = kvant.dynamic_range_quantize(x, mode="asymmetric", dtype="uint8")
    ref.same_bits(kvant.dequantize_per_token(q, scale, zero_point, dtype=name), x)


@pytest.mark.parametrize("scope", [("tensor",), ("channel", 1), ("token",), ("group", -1, 4)])
@pytest.mark.parametrize("dtype", ref.CODES)
def test_dequantize_takes_what_comes_out(scope, dtype):
    from test_elementwise import dequantize

    x = finite_floats((6, 33), "float64")
    q, scale, zero_point = kvant.dynamic_range_quantize(x, mode="asymmetric", dtype=dtype, **options_of(scope))
    back = dequantize(q, scale, zero_point, scope, dtype="float64")
    error = np.abs(back - x) / ref.spread(np.asarray(scale), x.shape, *scope)
    assert error.max() < 0.5001


def test_what_onnx_computes():
    """DynamicQuantizeLinear's three cases from the ONNX repository."""
    for x, scale, zero_point in [
        ([0, 2, -3, -2.5, 1.34, 0.5], 0.0196078438, 153),
        ([-1.0, -2.1, -1.3, -2.5, -3.34, -4.0], 0.0156862754, 255),
        ([1, 2.1, 1.3, 2.5, 3.34, 4.0, 1.5, 2.6, 3.9, 4.0, 3.0, 2.345], 0.0156862754, 0),
    ]:
        x = np.array(x, np.float32)
        q, s, z = kvant.dynamic_range_quantize(x, mode="asymmetric", scope="tensor", dtype="uint8", include_zero=True)
        assert (np.float32(s), int(z)) == (np.float32(scale), zero_point)
        ref.same_bits(q, np.clip(np.rint(x / np.float32(scale)) + zero_point, 0, 255).astype(np.uint8))


@pytest.mark.parametrize("name", ref.FLOATS)
@pytest.mark.parametrize("dtype", ref.CODES)
def test_out(name, dtype):
    x = finite_floats((6, 7), name)
    want = kvant.dynamic_range_quantize(x, mode="asymmetric", dtype=dtype)
    q = as_codes(np.zeros((6, 7), ref.storage(dtype)), dtype)
    scale, zero_point = np.zeros(6, ref.compute(name)), np.zeros(6, np.int32)
    for given in [(q, scale, zero_point), (q, None, None), (None, scale, None), (None, None, zero_point)]:
        for a in given:
            if isinstance(a, np.ndarray):
                a[...] = 0
        got = kvant.dynamic_range_quantize(x, mode="asymmetric", dtype=dtype, out=given)
        for one, wish, result in zip(given, want, got):
            assert one is None or result is one
            ref.same_bits(result, wish)


def test_rows_with_gaps():
    x, whole = floats((6, 16), "float32")[:, :9], np.full((6, 16), 77, np.int8)
    want = kvant.dynamic_range_quantize(x.copy())
    got = kvant.dynamic_range_quantize(x, out=(whole[:, :9], None, None))
    for a, b in zip(got, want):
        ref.same_bits(a, b)
    assert (whole[:, 9:] == 77).all()


def test_the_default_is_symmetric_int8_per_token():
    x = floats((3, 4, 19), "float32")
    q, scale, zero_point = kvant.dynamic_range_quantize(x)
    ref.same_bits(q, ref.dynamic_range_quantize(x, "float32")[0])
    assert scale.shape == (3, 4) and zero_point.shape == (3, 4) and not zero_point.any()


@pytest.mark.parametrize("mode,include_zero", MODES)
@pytest.mark.parametrize("where", [("tensor",), ("channel", 0), ("channel", 1), ("token",), ("group", -1, 64)])
def test_large(where, mode, include_zero):
    """Segments beyond the cache, and the rare infinity in them."""
    x = rng(5).normal(0, 2, (37, 20011)).astype(np.float32)
    x[7, 5000], x[9, 1], x[30, 20010] = np.inf, np.nan, -np.inf
    if where[0] == "tensor" or where == ("channel", 0):
        check(x, "float32", where, mode=mode, include_zero=include_zero)
    else:
        check(x[:, :700].copy(), "float32", where, mode=mode, include_zero=include_zero)
