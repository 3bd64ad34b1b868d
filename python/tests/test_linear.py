"""Linear layers against exact integer sums: equal bits, whatever the types, the shapes and the form of the weight."""

import numpy as np
import pytest

import kvant
import reference as ref
from samples import codes, finite_floats, floats, near_ties, rng

SHAPES = [(1, 1, 1), (1, 64, 8), (5, 33, 17), (16, 70, 3), (33, 129, 65), (0, 5, 3), (3, 0, 4), (2, 7, 0)]  # M, K, N
IDS = ["x".join(map(str, s)) for s in SHAPES]


def operands(m, k, n, act="int8", weight="int8", seed=0):
    random = rng(seed, m, k, n)
    return {
        "a": codes((m, k), act, seed + 1),
        "w": codes((n, k), weight, seed + 2),
        "act_scale": np.exp2(random.uniform(-8, 0, m)),
        "weight_scale": np.exp2(random.uniform(-8, 0, n)),
        "act_zero_point": random.integers(*ref.CODE_RANGE[act], m),
        "weight_zero_point": random.integers(*ref.CODE_RANGE[weight], n),
        "bias": random.normal(0, 3, n).astype(np.float32),
    }


def both_weights(w):
    return [w, kvant.PackedWeight(w)]


# ---- w8a8_linear ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ref.FLOATS)
@pytest.mark.parametrize("weight", ["int8", "uint8"])
@pytest.mark.parametrize("act", ["int8", "uint8"])
@pytest.mark.parametrize("shape", SHAPES, ids=IDS)
def test_w8a8(shape, act, weight, dtype):
    o = operands(*shape, act, weight)
    full = (o["act_scale"], o["act_zero_point"], o["weight_scale"], o["weight_zero_point"], o["bias"])
    for act_scale, act_zero_point, weight_scale, weight_zero_point, bias in [
        full,
        (0.03, 0, 0.5, 0, None),
        (0.03, 7, o["weight_scale"], 9, None),
        (o["act_scale"], 0, 0.25, o["weight_zero_point"], o["bias"]),
    ]:
        want = ref.linear(
            o["a"], act_scale, act_zero_point, o["w"], weight_scale, weight_zero_point, bias, dtype=dtype
        )
        for w in both_weights(o["w"]):
            got = kvant.w8a8_linear(
                o["a"], act_scale, w, weight_scale, bias, act_zero_point=act_zero_point,
                weight_zero_point=weight_zero_point, dtype=dtype,
            )  # fmt: skip
            ref.same_bits(got, want, dtype)


@pytest.mark.parametrize("dtype", ["int8", "uint8"])
@pytest.mark.parametrize("act,weight", [("int8", "int8"), ("uint8", "int8"), ("int8", "uint8"), ("uint8", "uint8")])
@pytest.mark.parametrize("shape", SHAPES, ids=IDS)
def test_w8a8_codes(shape, act, weight, dtype):
    o = operands(*shape, act, weight)
    for act_scale, weight_scale, bias, output_scale, zero_point in [
        (o["act_scale"], o["weight_scale"], o["bias"], 3.3, 17),
        (0.03, 0.5, None, 0.7, 0),
        (o["act_scale"], 0.25, o["bias"].astype(np.float64), 0.5, 127),
    ]:
        want = ref.linear_codes(
            o["a"], act_scale, o["act_zero_point"], o["w"], weight_scale, o["weight_zero_point"],
            None if bias is None else bias.astype(np.float32), output_scale, zero_point, dtype,
        )  # fmt: skip
        for w in both_weights(o["w"]):
            got = kvant.w8a8_linear(
                o["a"], act_scale, w, weight_scale, bias, act_zero_point=o["act_zero_point"],
                weight_zero_point=o["weight_zero_point"], dtype=dtype, output_scale=output_scale,
                output_zero_point=zero_point,
            )  # fmt: skip
            assert got.dtype == np.dtype(dtype)
            np.testing.assert_array_equal(got, want)


def test_codes_out_and_leading_dimensions():
    a = codes((2, 3, 5), "int8", 1)
    w = codes((4, 5), "int8", 2)
    whole = kvant.w8a8_linear(a.reshape(6, 5), 0.5, w, 0.25, dtype="int8", output_scale=40)
    out = np.zeros((2, 3, 4), np.int8)
    assert kvant.w8a8_linear(a, 0.5, w, 0.25, dtype=np.int8, output_scale=np.float32(40), out=out) is out
    np.testing.assert_array_equal(out.reshape(6, 4), whole)
    assert len(np.unique(whole)) > 10


@pytest.mark.parametrize("k", [1, 2, 255, 256, 257, 33025, 65793, 131072])
@pytest.mark.parametrize("act,weight", [("int8", "int8"), ("uint8", "int8"), ("int8", "uint8"), ("uint8", "uint8")])
def test_sums_of_extremes_are_exact(act, weight, k):
    """The longest sums of the largest products, which saturating and wrapping kernels get wrong; f64 holds them."""
    for a_code in ref.CODE_RANGE[act]:
        for w_code in ref.CODE_RANGE[weight]:
            a = np.full((2, k), a_code, ref.storage(act))
            w = np.full((3, k), w_code, ref.storage(weight))
            for plain in both_weights(w):
                got = kvant.w8a8_linear(a, 1.0, plain, 1.0, dtype="float64")
                assert (got == float(a_code * w_code * k)).all()


def test_sums_become_floating_point_once():
    """An odd sum above 2^24 lies between two f32."""
    k = 1042
    a, w = np.full((1, k), 127, np.int8), np.full((1, k), 127, np.int8)
    w[0, -1] = 2
    exact = 127 * 127 * (k - 1) + 127 * 2
    got = kvant.w8a8_linear(a, 1.0, w, 1.0)
    assert got[0, 0] == np.float32(exact) and abs(int(got[0, 0]) - exact) == 1


def test_large_zero_points():
    """They count as ±2^23 in a tensor, a weight's as the nearest code."""
    a, w = codes((3, 301), "int8"), codes((4, 301), "uint8")
    za, zw = np.array([2**23, -(2**31), 2**31 - 1], np.int32), np.array([-5, 300, 255, 2**30], np.int32)
    got = kvant.w8a8_linear(a, 0.5, w, 0.5, act_zero_point=za, weight_zero_point=zw, dtype="float64")
    ref.same_bits(got, ref.linear(a, 0.5, za, w, 0.5, zw, None, dtype="float64"))


@pytest.mark.parametrize("shape", [(7,), (2, 7), (2, 3, 7), (2, 1, 3, 7), (1, 1, 1, 1, 1, 1, 2, 7), (2, 0, 7)])
def test_leading_dimensions(shape):
    a, w = codes(shape, "int8"), codes((5, 7), "int8")
    scale = np.exp2(rng(3).uniform(-5, 0, shape[:-1]))
    zero_point = rng(4).integers(-9, 9, shape[:-1])
    want = ref.linear(a, scale, zero_point, w, 0.5, 0, None)
    assert want.shape == shape[:-1] + (5,)
    for s, z in [(scale, zero_point), (scale.reshape(-1), zero_point.reshape(-1)), (scale[..., None], zero_point)]:
        ref.same_bits(kvant.w8a8_linear(a, s, w, 0.5, act_zero_point=z), want)


@pytest.mark.parametrize("dtype", ref.FLOATS)
@pytest.mark.parametrize("bias", ref.FLOATS)
def test_bias_types(dtype, bias):
    """The result's type, or any other, which becomes the scales' type first."""
    a, w, b = codes((2, 7), "int8"), codes((5, 7), "int8"), finite_floats((5,), bias)
    want = ref.linear(a, 0.1, 0, w, 0.5, 0, b, dtype=dtype, bias_dtype=bias)
    ref.same_bits(kvant.w8a8_linear(a, 0.1, w, 0.5, b, dtype=dtype), want, dtype)
    ref.same_bits(kvant.w8a8_linear(a, 0.1, w, 0.5, np.repeat(b, 2)[::2], dtype=dtype), want, dtype)


@pytest.mark.parametrize("dtype", ref.FLOATS)
def test_no_features(dtype):
    """K = 0 gives the bias, or 0, whatever the scales."""
    a, w = np.zeros((2, 0), np.int8), np.zeros((3, 0), np.int8)
    bias = np.array([1.5, -2.5, 0.0], np.float32)
    bad = np.array([np.nan, np.inf], np.float32)
    for weight in both_weights(w):
        got = kvant.w8a8_linear(a, bad, weight, 1.0, bias, dtype=dtype)
        ref.same_bits(got, ref.narrow(np.tile(bias.astype(ref.compute(dtype)), (2, 1)), dtype))
        got = kvant.w8a8_linear(a, bad, weight, 1.0, dtype=dtype)
        ref.same_bits(got, np.zeros((2, 3), ref.storage(dtype)))


def test_bad_scales_stay_in_their_rows_and_columns():
    a, w = codes((4, 9), "int8"), codes((5, 9), "int8")
    act_scale = np.array([1.0, np.nan, np.inf, 0.0], np.float32)
    weight_scale = np.array([1.0, -1.0, np.nan, 0.0, 1e-45], np.float32)
    want = ref.linear(a, act_scale, 0, w, weight_scale, 0, None)
    ref.same_bits(kvant.w8a8_linear(a, act_scale, w, weight_scale), want)


@pytest.mark.parametrize("dtype", ["int4", "uint4"])
def test_packed_activations_and_weights(dtype):
    a, w = codes((3, 13), dtype), codes((5, 13), dtype, 1)
    pack = kvant.PackedArray.from_array
    want = ref.linear(a, 0.1, 0, w, 0.5, 0, None)
    for activation in (a, pack(a, dtype=dtype)):
        for weight in (w, pack(w, dtype=dtype), kvant.PackedWeight(pack(w, dtype=dtype))):
            ref.same_bits(kvant.w8a8_linear(activation, 0.1, weight, 0.5), want)


@pytest.mark.parametrize("dtype", ref.FLOATS)
def test_out(dtype):
    o = operands(6, 33, 9)
    want = kvant.w8a8_linear(o["a"], 0.1, o["w"], o["weight_scale"], dtype=dtype)
    out = np.zeros((6, 9), ref.storage(dtype))
    assert kvant.w8a8_linear(o["a"], 0.1, o["w"], o["weight_scale"], dtype=dtype, out=out) is out
    ref.same_bits(out, want)
    whole = np.full((6, 16), 77, ref.storage(dtype))
    kvant.w8a8_linear(o["a"], 0.1, o["w"], o["weight_scale"], dtype=dtype, out=whole[:, :9])
    ref.same_bits(whole[:, :9], want)
    assert (whole[:, 9:] == 77).all()


def test_rows_with_gaps_and_other_orders():
    a, w = codes((6, 40), "int8"), codes((9, 50), "int8")
    want = ref.linear(a[:, :33], 0.1, 0, w[:, :33], 0.5, 0, None)
    for activation in (a[:, :33], np.asfortranarray(a[:, :33])):
        for weight in (w[:, :33], np.asfortranarray(w[:, :33]), kvant.PackedWeight(w[:, :33])):
            ref.same_bits(kvant.w8a8_linear(activation, 0.1, weight, 0.5), want)


# ---- smoothquant_linear ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ref.FLOATS)
@pytest.mark.parametrize("act,weight", [("int8", "int8"), ("uint8", "uint8")])
@pytest.mark.parametrize("shape", SHAPES, ids=IDS)
def test_smoothquant(shape, act, weight, dtype):
    o = operands(*shape, act, weight)
    for zero_point, weight_zero_point, bias in [(0, 0, None), (-1000, o["weight_zero_point"], o["bias"])]:
        want = ref.linear(
            o["a"], 0.037, zero_point, o["w"], o["weight_scale"], weight_zero_point, bias, dtype=dtype
        )
        for w in both_weights(o["w"]):
            got = kvant.smoothquant_linear(
                o["a"], w, 0.037, o["weight_scale"], bias, act_zero_point=zero_point,
                weight_zero_point=weight_zero_point, dtype=dtype,
            )  # fmt: skip
            ref.same_bits(got, want, dtype)


def test_smoothquant_out():
    o = operands(6, 33, 9)
    out = np.zeros((6, 9), np.float32)
    assert kvant.smoothquant_linear(o["a"], o["w"], 0.1, o["weight_scale"], out=out) is out
    ref.same_bits(out, ref.linear(o["a"], 0.1, 0, o["w"], o["weight_scale"], 0, None))


# ---- quantized_linear -----------------------------------------------------------------------------------------

WAYS = [
    {"mode": "symmetric"},
    {"mode": "asymmetric"},
    {"mode": "asymmetric", "include_zero": True},
    {"mode": "symmetric", "numerics": "reciprocal"},
    {"act_scale": 0.05},
    {"act_scale": 0.05, "act_zero_point": -17},
    {"act_scale": 0.05, "numerics": "reciprocal"},
]


@pytest.mark.parametrize("smooth", [False, True], ids=["plain", "smooth"])
@pytest.mark.parametrize("way", WAYS, ids=lambda w: "-".join(map(str, w.values())))
@pytest.mark.parametrize("name", ref.FLOATS)
@pytest.mark.parametrize("shape", SHAPES, ids=IDS)
def test_quantized_linear(shape, name, way, smooth):
    m, k, n = shape
    for weight, make in [("int8", finite_floats), ("uint8", floats)]:
        o = operands(m, k, n, weight=weight)
        x = make((m, k), name)
        vector = np.exp2(rng(21).uniform(-3, 3, k)).astype(np.float32) if smooth else None
        for weight_zero_point, bias in [(0, None), (o["weight_zero_point"], o["bias"])]:
            want = ref.quantized_linear(
                x, name, o["w"], o["weight_scale"], weight_zero_point, bias, smooth=vector, **way
            )
            for w in both_weights(o["w"]):
                got = kvant.quantized_linear(
                    x, w, o["weight_scale"], bias, weight_zero_point=weight_zero_point, smooth=vector, **way
                )
                ref.same_bits(got, want, name)


@pytest.mark.parametrize("shape", [(7,), (2, 3, 7)])
def test_quantized_linear_leading_dimensions_and_out(shape):
    x, w = finite_floats(shape, "float32"), codes((5, 7), "int8")
    want = ref.quantized_linear(x, "float32", w, 0.5)
    ref.same_bits(kvant.quantized_linear(x, w, 0.5), want)
    out = np.zeros(shape[:-1] + (5,), np.float32)
    assert kvant.quantized_linear(x, kvant.PackedWeight(w), 0.5, out=out) is out
    ref.same_bits(out, want)


def test_quantized_linear_equals_its_parts():
    x, w = finite_floats((9, 65), "bfloat16"), codes((17, 65), "int8")
    q, scale, zero_point = kvant.dynamic_range_quantize(x, mode="asymmetric")
    parts = kvant.w8a8_linear(q, scale, w, 0.01, act_zero_point=zero_point, dtype="bfloat16")
    ref.same_bits(kvant.quantized_linear(x, w, 0.01, mode="asymmetric"), parts)


@pytest.mark.parametrize("way", [{}, {"act_scale": 0.00214854861}], ids=["dynamic", "static"])
@pytest.mark.parametrize("name", ["float32", "float64"])
def test_the_numerics_at_ties(name, way):
    x = near_ties(name)
    if way:
        x = ((np.arange(-127, 127) + 0.5).astype(x.dtype) * x.dtype.type(way["act_scale"]))[None]
    w = np.eye(x.shape[1], dtype=np.int8)
    results = []
    for numerics in ("exact", "reciprocal"):
        results.append(kvant.quantized_linear(x, w, 1.0, numerics=numerics, **way))
        ref.same_bits(results[-1], ref.quantized_linear(x, name, w, 1.0, numerics=numerics, **way))
    assert (results[0] != results[1]).any()


def test_scalar_scale_types():
    a, w = codes((2, 9), "int8"), codes((3, 9), "int8")
    want = ref.linear(a, 0.1, 0, w, 0.3, 0, None)
    for s in (0.1, np.float64(0.1), np.array(0.1), np.array([0.1]), np.float32(0.1)):
        ref.same_bits(kvant.w8a8_linear(a, s, w, 0.3), want)
        ref.same_bits(kvant.w8a8_linear(a, 0.1, w, np.full(3, 0.3)), want)


@pytest.mark.parametrize("packed", [False, True])
def test_large(packed):
    """Large enough for threads and for every block of the kernels."""
    o = operands(67, 1030, 259)
    want = ref.linear(o["a"], o["act_scale"], o["act_zero_point"], o["w"], o["weight_scale"], 0, o["bias"])
    w = kvant.PackedWeight(o["w"]) if packed else o["w"]
    got = kvant.w8a8_linear(
        o["a"], o["act_scale"], w, o["weight_scale"], o["bias"], act_zero_point=o["act_zero_point"]
    )
    ref.same_bits(got, want)


def test_weight_scales_as_checkpoints_hold_them():
    a, w = np.arange(-6, 6, dtype=np.int8).reshape(3, 4), np.arange(-10, 10, dtype=np.int8).reshape(5, 4)
    scale = np.linspace(0.5, 2.0, 5, dtype=np.float32)
    zero_point = np.arange(-2, 3, dtype=np.int32)
    want = kvant.w8a8_linear(a, 0.25, w, scale, weight_zero_point=zero_point)
    got = kvant.w8a8_linear(a, 0.25, w, scale[:, None], weight_zero_point=zero_point[:, None])
    assert np.array_equal(want, got)
    with pytest.raises(ValueError, match="weight_scale"):
        kvant.w8a8_linear(a, 0.25, w, scale[None, :])
