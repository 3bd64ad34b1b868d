"""float8 and float4 codes, scales that are stored as codes, and the arrays of ml_dtypes and torch that hold them."""

import importlib.util

import numpy as np
import pytest

import kvant
import reference as ref
from kvant import plan
from samples import finite_floats, floats, rng

each_grid = pytest.mark.parametrize("dtype", ref.GRIDS)
each_float = pytest.mark.parametrize("name", ref.FLOATS)
HAS_ML_DTYPES = importlib.util.find_spec("ml_dtypes") is not None


def bits(q, dtype):
    """One code to a byte, from whatever kvant returns for codes of that dtype."""
    if not isinstance(q, kvant.PackedArray):
        assert q.dtype.name == dtype
        return q.view(np.uint8)
    assert q.dtype == dtype
    if dtype != "float4_e2m1fn":
        return q.packed.reshape(q.shape)
    both = np.stack([q.packed & 15, q.packed >> 4], axis=-1)
    return both.reshape(*q.packed.shape[:-1], -1)[..., : q.shape[-1]]


def samples(name, dtype, scale=1.0):
    """Numbers of the grid, their midpoints, and what is next to them, times the scale; and the usual ones."""
    numbers = ref.numbers_of(dtype)
    numbers = np.unique(numbers[np.isfinite(numbers)])
    numbers = numbers[:: max(1, numbers.size // 64)].astype(np.float64)
    middles = (numbers[1:] + numbers[:-1]) / 2
    numbers = np.concatenate([numbers, middles, middles * (1 + 1e-3), middles * (1 - 1e-3), [0.0, -0.0, np.nan]])
    numbers = np.concatenate([numbers, [np.inf, -np.inf, numbers.max() * 1.06, numbers.min() * 1.25]])
    made = ref.narrow((numbers * scale).astype(ref.compute(name)), name)
    return np.concatenate([made, floats((63,), name)])


def stored(a, dtype):
    """An array of numbers as float8, in whatever this machine has for that."""
    packed = kvant.PackedArray.from_array(a, dtype)
    if not HAS_ML_DTYPES:
        return packed
    import ml_dtypes

    return packed.packed.view(getattr(ml_dtypes, packed.dtype))


@each_grid
@each_float
@pytest.mark.parametrize("scale", [1.0, 0.37])
def test_quantize_and_back(name, dtype, scale):
    x = samples(name, dtype, scale)
    c = ref.compute(name)
    for numerics in ("exact", "reciprocal"):
        with np.errstate(all="ignore"):
            y = ref.quotient(ref.widen(x, name), c(scale), numerics)
        q = kvant.quantize_per_tensor(x, scale, dtype=dtype, numerics=numerics)
        want = ref.to_grid(y, dtype)
        ref.same_bits(bits(q, dtype), want)
        numbers = ref.numbers_of(dtype).astype(c)[want]
        back = kvant.dequantize_per_tensor(q, scale, dtype=name)
        if name == "bfloat16":  # that of ml_dtypes where the codes are of its types
            back = back.view(np.uint16)
        ref.same_bits(back, ref.narrow(numbers * c(scale), name), name)
        with np.errstate(all="ignore"):
            kept = np.where(np.isnan(y), y, numbers) * c(scale)
            inside = np.abs(y) <= np.nanmax(np.where(np.isinf(ref.numbers_of(dtype)), 0, ref.numbers_of(dtype)))
        got = kvant.fake_quantize(x, scale, grid=dtype, numerics=numerics)
        ref.same_bits(got, ref.narrow(kept, name), name)
        dy = finite_floats(x.shape, name, 3)
        want = np.where(inside, dy, dy.dtype.type(0))
        got = kvant.fake_quantize_backward(dy, x, scale, grid=dtype, numerics=numerics)
        ref.same_bits(got, want, name)
        dx = ref.narrow(np.where(inside, ref.quotient(ref.widen(dy, name), c(scale), numerics), c(0)), name)
        got = kvant.quantize_backward(dy, x, scale, grid=dtype, numerics=numerics)
        ref.same_bits(got, dx, name)


@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "float8_e5m2"])
def test_without_saturation(dtype):
    x = np.concatenate([samples("float64", dtype), [449, 463.9, 464, 464.1, 61439, 61440, 61441, 1e30]])
    want = ref.to_grid(x, dtype, saturate=False)
    ref.same_bits(bits(kvant.quantize_per_tensor(x, 1.0, dtype=dtype, saturate=False), dtype), want)
    ref.same_bits(kvant.fake_quantize(x, 1.0, grid=dtype, saturate=False), ref.numbers_of(dtype)[want].astype(float))


def test_the_grid_of_the_reference_is_that_of_ml_dtypes():
    ml_dtypes = pytest.importorskip("ml_dtypes")
    for dtype in [*ref.GRIDS, "float8_e8m0fnu"]:
        numbers = ref.numbers_of(dtype)
        ref.same_bits(np.arange(numbers.size, dtype=np.uint8).view(getattr(ml_dtypes, dtype)).astype(np.float32), numbers)
    for dtype in ("float8_e4m3fn", "float8_e5m2"):
        x = samples("float32", dtype)
        x = x[~np.isnan(x)]
        with np.errstate(all="ignore"):
            want = x.astype(getattr(ml_dtypes, dtype))
        got = kvant.quantize_per_tensor(x, 1.0, dtype=dtype, saturate=False)
        assert got.dtype == want.dtype
        same = (got.view(np.uint8) == want.view(np.uint8)) | (np.isnan(got.astype(float)) & np.isnan(want.astype(float)))
        assert same.all()


@pytest.mark.skipif(HAS_ML_DTYPES, reason="ml_dtypes is installed")
def test_float8_is_a_packed_array_without_ml_dtypes():
    q = kvant.quantize_per_tensor([1.0, 2.0], 1.0, dtype="float8_e4m3")
    assert isinstance(q, kvant.PackedArray) and q.unpack().tolist() == [1.0, 2.0]


def test_arrays_of_ml_dtypes():
    ml_dtypes = pytest.importorskip("ml_dtypes")
    x = finite_floats((6, 9), "float32")
    for dtype in ("float8_e4m3fn", "float8_e5m2"):
        own = getattr(ml_dtypes, dtype)
        for named in (dtype, own, np.dtype(own), dtype.removesuffix("fn")):
            q = kvant.quantize_per_tensor(x, 0.5, dtype=named)
            assert type(q) is np.ndarray and q.dtype == own
        out = np.zeros((6, 12), own)[:, :9]  # gaps between rows
        assert kvant.quantize_per_tensor(x, 0.5, dtype=dtype, out=out) is out
        ref.same_bits(out.view(np.uint8), q.view(np.uint8))
        for view in (q, q.T, q[:, ::2], out):
            want = view.astype(np.float32) * np.float32(0.5)
            ref.same_bits(kvant.dequantize_per_tensor(view, 0.5), np.ascontiguousarray(want))
        assert kvant.PackedArray.from_array(q, dtype).packed.tolist() == q.view(np.uint8).tolist()
    # Elements of less than eight bits take a byte each: they are packed on the way in, and never written to.
    for dtype in ("int4", "uint4", "int2", "uint2", "float4_e2m1fn"):
        q = np.abs(x).astype(getattr(ml_dtypes, dtype))
        want = q.astype(np.float32) * np.float32(0.5)
        ref.same_bits(kvant.dequantize_per_tensor(q, 0.5), want)
        ref.same_bits(kvant.dequantize_per_tensor(q.T, 0.5), np.ascontiguousarray(want.T))
        assert kvant.PackedArray.from_array(q, dtype) == kvant.PackedArray.from_array(q.astype(np.float32).astype(
            np.float32 if dtype[0] == "f" else np.int8), dtype)  # fmt: skip
        with pytest.raises(ValueError, match=f"out has one element of {dtype} in a byte"):
            kvant.quantize_per_tensor(x, 0.5, dtype=dtype, out=q)
        with pytest.raises(ValueError, match=f"input has one element of {dtype} in a byte"):
            plan.DequantizePlan.select((6, 9), input=dtype).run(input=q, output=want, scale=0.5)


def test_formats_of_ml_dtypes_that_kvant_does_not_have():
    ml_dtypes = pytest.importorskip("ml_dtypes")
    x = finite_floats((6, 9), "float32")
    others = "float8_e4m3 float8_e4m3fnuz float8_e5m2fnuz float8_e4m3b11fnuz float8_e3m4 float6_e2m3fn float6_e3m2fn"
    for name in others.split():
        own = getattr(ml_dtypes, name)
        with pytest.raises(ValueError, match=f"q has dtype {name};"):
            kvant.dequantize_per_tensor(x.astype(own), 0.5)
        with pytest.raises(ValueError, match=f"scale has dtype {name};"):
            kvant.quantize_per_token(x, np.ones(6).astype(own))
        for named in (own, np.dtype(own)):
            with pytest.raises(ValueError, match="dtype .*must be"):
                kvant.quantize_per_tensor(x, 0.5, dtype=named)
        with pytest.raises(ValueError, match="which no plan takes"):
            plan.DequantizePlan.select((6, 9), input="float8_e4m3").run(input=x.astype(own), output=x, scale=0.5)


# ---- Scales ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [*ref.GRIDS, "int8", "int4"])
@pytest.mark.parametrize("scale_dtype", ["float16", "bfloat16", "float8_e8m0fnu", "float8_e4m3fn"])
def test_stored_scales_are_the_numbers_that_they_stand_for(scale_dtype, dtype):
    x = finite_floats((6, 9), "float32")
    numbers = np.exp2(rng(4).integers(-3, 2, 6)).astype(np.float32)
    more, global_scale = {}, np.float32(1)
    if scale_dtype == "float16":
        given = numbers.astype(np.float16)
    elif scale_dtype == "bfloat16":
        given = ref.float32_to_bfloat16(numbers)
    else:
        given = stored(numbers, scale_dtype)
    if scale_dtype == "float8_e4m3fn":
        global_scale = np.float32(3)
        more["global_scale"] = 3.0
    plain = numbers / global_scale
    for run in (kvant.quantize_per_token, lambda x, s, **k: kvant.quantize_per_channel(x, s, None, 0, **k)):
        got, want = run(x, given, dtype=dtype, **more), run(x, plain, dtype=dtype)
        ref.same_bits(np.asarray(got, np.float32), np.asarray(want, np.float32))
        ref.same_bits(kvant.dequantize_per_token(got, given, **more), kvant.dequantize_per_token(want, plain))
    q_range = dict(grid=dtype) if dtype in ref.GRIDS else dict(q_min=-8, q_max=7)
    both = [(given, more), (plain, {})]
    for function in (
        lambda s, k: kvant.fake_quantize(x, s, scope="token", **q_range, **k),
        lambda s, k: kvant.quantize_backward(x, x, s, scope="token", **q_range, **k),
        lambda s, k: kvant.fake_quantize_backward(x, x, s, scope="token", **q_range, **k),
        lambda s, k: kvant.dequantize_backward(x, s, scope="token", **k),
    ):
        got, want = (function(*each) for each in both)
        ref.same_bits(got, want)
    # One for all elements, as an array of one.
    one = given[:1] if not isinstance(given, kvant.PackedArray) else stored(numbers[:1], scale_dtype)
    got = kvant.quantize_per_tensor(x, one, dtype=dtype, **more)
    ref.same_bits(np.asarray(got, np.float32), np.asarray(kvant.quantize_per_tensor(x, plain[0], dtype=dtype), np.float32))


@each_grid
@pytest.mark.parametrize("scale_dtype", ["float32", "float8_e8m0fnu", "float8_e4m3fn"])
def test_blocks(scale_dtype, dtype):
    x = finite_floats((2, 7, 13), "float32")
    where = ("block", None, None, (3, 4))
    numbers = np.exp2(rng(5).integers(-3, 2, ref.parameter_shape(x.shape, *where))).astype(np.float32)
    given = numbers if scale_dtype == "float32" else stored(numbers, scale_dtype)
    global_scale = 3.0 if scale_dtype == "float8_e4m3fn" else None
    spread = ref.spread(numbers / np.float32(global_scale or 1), x.shape, *where)
    y = x / spread
    q = kvant.quantize_per_block(x, given, 0, (3, 4), dtype=dtype, global_scale=global_scale)
    want = ref.to_grid(y, dtype)
    ref.same_bits(bits(q, dtype), want)
    back = ref.numbers_of(dtype)[want] * spread
    ref.same_bits(kvant.dequantize_per_block(q, given, 0, (3, 4), global_scale=global_scale), back)
    options = dict(block_size=(3, 4), global_scale=global_scale)
    ref.same_bits(kvant.fake_quantize(x, given, grid=dtype, **options), back)
    inside = np.abs(y) <= ref.numbers_of(dtype)[np.isfinite(ref.numbers_of(dtype))].max()
    dy = np.ones_like(x)
    ref.same_bits(kvant.fake_quantize_backward(dy, x, given, grid=dtype, **options), np.where(inside, dy, 0 * dy))
    ref.same_bits(kvant.quantize_backward(dy, x, given, grid=dtype, **options), np.where(inside, dy / spread, 0 * dy))
    ref.same_bits(kvant.dequantize_backward(dy, given, **options), spread)


def test_blocks_without_saturation():
    x = np.full((3, 3), 1e6, np.float32)
    q = kvant.quantize_per_block(x, np.ones((2, 2)), 0, (2, 2), dtype="float8_e5m2", saturate=False)
    assert np.isinf(np.asarray(q, np.float32)).all()


@each_grid
def test_dynamic_range_of_blocks(dtype):
    """Scales of float32, as DeepSeek's checkpoints have them, and stored ones."""
    x = finite_floats((2, 7, 13), "float32")
    where = ("block", None, None, (3, 4))
    options = dict(scope="block", block_size=(3, 4), dtype=dtype)
    largest = np.array([np.abs(x[s]).max() for _, s in ref.segments(x.shape, *where)], np.float32)
    top = ref.numbers_of(dtype)[np.isfinite(ref.numbers_of(dtype))].max()
    q, scale, zero_point = kvant.dynamic_range_quantize(x, **options)
    assert scale.shape == zero_point.shape == (2, 3, 4) and not zero_point.any()
    ref.same_bits(scale, (largest / top).reshape(2, 3, 4))
    ref.same_bits(bits(q, dtype), ref.to_grid(x / ref.spread(scale, x.shape, *where), dtype))
    q, scale, _ = kvant.dynamic_range_quantize(x, **options, scale_dtype="float8_e8m0")
    want = np.array([power_of_two(m, dtype, "floor") for m in largest], np.float32).reshape(2, 3, 4)
    ref.same_bits(np.asarray(scale, np.float32), want)
    ref.same_bits(bits(q, dtype), ref.to_grid(x / ref.spread(want, x.shape, *where), dtype))
    q, scale, _, found = kvant.dynamic_range_quantize(x, **options, scale_dtype="float8_e4m3")
    ref.same_bits(found, np.float32(448 * float(top) / np.abs(x).max().astype(float)))
    again = kvant.quantize_per_block(x, scale, 0, (3, 4), dtype=dtype, global_scale=found)
    ref.same_bits(bits(q, dtype), bits(again, dtype))


def power_of_two(magnitude, dtype, rule):
    if magnitude == 0:
        return 1.0
    mantissa, exponent = np.frexp(magnitude)  # in [0.5, 1)
    exponent += -1 + (rule == "round_up" and 2 * mantissa >= 1.75)
    most = {"float8_e4m3fn": 8, "float8_e5m2": 15, "float4_e2m1fn": 2}[dtype]
    return 2.0 ** min(max(exponent - most, -127), 127)


@each_grid
@pytest.mark.parametrize("rule", ["floor", "round_up"])
def test_mx_formats(rule, dtype):
    x = finite_floats((5, 96), "float32")
    x[1, :32], x[2, 32:64] = 0, 1.75
    q, scale, zero_point = kvant.dynamic_range_quantize(
        x, scope="group", group_size=32, dtype=dtype, scale_dtype="float8_e8m0", mx_rule=rule
    )
    assert getattr(scale.dtype, "name", scale.dtype) == "float8_e8m0fnu" and scale.shape == (5, 3)
    want = np.array([[power_of_two(np.abs(g).max(), dtype, rule) for g in row.reshape(3, 32)] for row in x], np.float32)
    ref.same_bits(np.asarray(scale, np.float32), want)
    ref.same_bits(bits(q, dtype), ref.to_grid(x / np.repeat(want, 32, axis=1), dtype))
    assert not zero_point.any()
    ref.same_bits(
        kvant.dequantize_per_group(q, scale, 0, 32), ref.numbers_of(dtype)[bits(q, dtype)] * np.repeat(want, 32, axis=1)
    )


def test_nvfp4():
    x = finite_floats((5, 64), "float32")
    options = dict(scope="group", group_size=16, dtype="float4_e2m1", scale_dtype="float8_e4m3")
    q, scale, _, global_scale = kvant.dynamic_range_quantize(x, **options)
    ref.same_bits(global_scale, np.float32(448 * 6 / np.abs(x).max().astype(float)))
    largest = np.abs(x).reshape(5, 4, 16).max(axis=-1)
    wanted = (largest / np.float32(6)) * global_scale
    codes = ref.to_grid(wanted, "float8_e4m3fn")
    ref.same_bits(bits(scale, "float8_e4m3fn"), codes)
    numbers = np.repeat(ref.numbers_of("float8_e4m3fn")[codes] / global_scale, 16, axis=1)
    ref.same_bits(bits(q, "float4_e2m1fn"), ref.to_grid(x / numbers, "float4_e2m1fn"))
    back = kvant.dequantize_per_group(q, scale, 0, 16, global_scale=global_scale)
    ref.same_bits(back, ref.numbers_of("float4_e2m1fn")[bits(q, "float4_e2m1fn")] * numbers)
    # The same global scale given: three results.
    for given in (float(global_scale), global_scale, global_scale.reshape(1), [float(global_scale)]):
        again = kvant.dynamic_range_quantize(x, **options, global_scale=given)
        assert len(again) == 3 and again[0] == q
    out = (kvant.PackedArray.from_array(np.ones((5, 64)), "float4_e2m1"), None, None, np.zeros((), np.float32))
    got = kvant.dynamic_range_quantize(x, **options, out=out)
    assert got[0] is out[0] and got[3] is out[3] and out[0] == q and out[3] == global_scale


@pytest.mark.parametrize("scale_dtype", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize("dtype", ["int8", "uint4", "float8_e4m3fn"])
def test_narrow_scales(dtype, scale_dtype):
    x = finite_floats((6, 33), "float32")
    plain = kvant.dynamic_range_quantize(x, dtype=dtype)[1]
    q, scale, _ = kvant.dynamic_range_quantize(x, dtype=dtype, scale_dtype=scale_dtype)
    ref.same_bits(scale, ref.narrow(plain, scale_dtype))
    want = kvant.quantize_per_token(x, ref.widen(scale, scale_dtype), dtype=dtype)
    ref.same_bits(np.asarray(q, np.float32), np.asarray(want, np.float32))


# ---- Plans ----------------------------------------------------------------------------------------------------


@each_grid
def test_plans(dtype):
    x = finite_floats((6, 33), "float32")
    q = kvant.quantize_per_token(x, np.full(6, 0.5, np.float32), dtype=dtype)
    scale = stored(np.full(6, 0.5), "float8_e8m0")
    out = kvant.PackedArray.from_array(np.ones((6, 33)), dtype)
    plan.QuantizePlan.select((6, 33), output=dtype, scope="token").run(input=x, output=out, scale=scale)
    ref.same_bits(bits(out, dtype), bits(q, dtype))
    back = np.empty_like(x)
    plan.DequantizePlan.select((6, 33), input=dtype, scope="token").run(input=out, output=back, scale=scale)
    fake = np.empty_like(x)
    plan.FakeQuantizePlan.select((6, 33), grid=dtype, scope="token").run(input=x, output=fake, scale=scale)
    ref.same_bits(back, fake)
    scale_out, found = kvant.PackedArray.from_array(np.ones(6), "float8_e4m3"), np.zeros((), np.float32)
    dynamic = plan.DynamicRangeQuantizePlan.select(
        (6, 33), output=dtype, scale_dtype="float8_e4m3", finds_global_scale=True
    )
    scratch = np.empty(dynamic.workspace_size(), np.uint8)
    dynamic.run(input=x, output=out, scale_out=scale_out, global_scale_out=found, workspace=scratch)
    want = kvant.dynamic_range_quantize(x, dtype=dtype, scale_dtype="float8_e4m3")
    ref.same_bits(bits(out, dtype), bits(want[0], dtype))
    ref.same_bits(bits(scale_out, "float8_e4m3fn"), bits(want[1], "float8_e4m3fn"))
    ref.same_bits(found, want[3])
    # Bytes are no codes: only an array that says what they are is taken.
    answer = plan.QuantizePlan.select((6, 33), output="float8_e4m3").can_implement(
        input=x, output=np.empty((6, 33), np.uint8), scale=0.5
    )
    assert not answer and "u8" in answer.message and "e4m3" in answer.message


@pytest.mark.parametrize("dtype", ["int16", "uint16"])
def test_sixteen_bits_in_plans(dtype):
    x = finite_floats((6, 33), "float32", spread=1e4)
    q = np.empty((6, 33), dtype)
    plan.QuantizePlan.select((6, 33), output=dtype).run(input=x, output=q, scale=0.5)
    ref.same_bits(q, ref.quantize(x, "float32", 0.5, 0, dtype=dtype))
    half = np.empty((6, 33), np.uint16)  # bfloat16
    plan.DequantizePlan.select((6, 33), input=dtype, output="bfloat16").run(input=q, output=half, scale=0.5)
    ref.same_bits(half, ref.dequantize(q, 0.5, 0, dtype="bfloat16"), "bfloat16")
    ref.same_bits(kvant.dequantize_per_tensor(q, 0.5, dtype="bfloat16"), half, "bfloat16")


# ---- Refusals -------------------------------------------------------------------------------------------------

X = finite_floats((6, 9), "float32")
E4M3 = stored(np.ones(6), "float8_e4m3")
NVFP4 = dict(scope="token", dtype="float4_e2m1", scale_dtype="float8_e4m3")


@pytest.mark.parametrize(
    "call,words",
    [
        (lambda: kvant.quantize_per_token(X, E4M3), ["e4m3", "global_scale"]),
        (lambda: kvant.quantize_per_token(X, E4M3, global_scale=[1.0, 2.0]), ["global_scale", "[2]"]),
        (lambda: kvant.quantize_per_token(X, E4M3, global_scale=np.ones((1, 1, 2))), ["global_scale", "[1, 1, 2]"]),
        (lambda: kvant.quantize_per_token(X, E4M3, global_scale=0.0), ["global_scale", "0"]),
        (lambda: kvant.quantize_per_token(X, E4M3, global_scale=np.nan), ["global_scale", "nan"]),
        (lambda: kvant.quantize_per_token(X, E4M3, global_scale=1e300), ["global_scale", "inf"]),
        (lambda: kvant.quantize_per_token(X, E4M3, global_scale="a"), ["global_scale"]),
        (lambda: kvant.quantize_per_token(X, E4M3, global_scale=E4M3), ["global_scale", "float8_e4m3fn"]),
        (lambda: kvant.quantize_per_token(X, np.ones(6), global_scale=1.0), ["global_scale", "e4m3"]),
        (lambda: kvant.quantize_per_token(X, np.ones(6, np.uint8)), ["scale", "uint8"]),
        (lambda: kvant.quantize_per_token(X, stored(np.ones(5), "float8_e8m0")), ["scale", "[5]", "[6]"]),
        (lambda: kvant.quantize_per_token(X, stored(np.ones(6), "float8_e5m2")), ["scale", "float8_e5m2"]),
        (lambda: kvant.quantize_per_tensor(X, 0.5, 1, dtype="float8_e4m3"), ["zero_point 1", "e4m3"]),
        (lambda: kvant.quantize_per_tensor(X, 0.5, dtype="float8_e4m3", q_max=7), ["q_max", "e4m3"]),
        (lambda: kvant.quantize_per_tensor(X, 0.5, dtype="int8", saturate=False), ["saturate", "s8"]),
        (lambda: kvant.quantize_per_tensor(X, 0.5, dtype="float4_e2m1", saturate=False), ["saturate", "e2m1"]),
        (lambda: kvant.quantize_per_tensor(X, 0.5, saturate=1), ["saturate", "True or False"]),
        (lambda: kvant.quantize_per_tensor(X, 0.5, dtype="float8_e8m0"), ["float8_e8m0", "float8_e4m3fn"]),
        (lambda: kvant.quantize_per_tensor(X, 0.5, dtype="float8_e4m3fnuz"), ["float8_e4m3fnuz"]),
        (lambda: kvant.quantize_per_tensor(X, 0.5, dtype="float8_e4m3", out=np.empty((6, 9), np.uint8)),
         ["out", "uint8", "float8_e4m3fn"]),
        (lambda: kvant.fake_quantize(X, 0.5), ["q_min", "grid"]),
        (lambda: kvant.fake_quantize(X, 0.5, 0, -8), ["q_max", "grid"]),
        (lambda: kvant.fake_quantize(X, 0.5, grid="int8"), ["grid", "int8", "float4_e2m1fn"]),
        (lambda: kvant.fake_quantize(X, 0.5, 0, -8, 7, grid="float8_e4m3"), ["q_min", "e4m3"]),
        (lambda: kvant.fake_quantize(X, 0.5, 1, grid="float8_e4m3"), ["zero_point 1", "e4m3"]),
        (lambda: kvant.dynamic_range_quantize(X, dtype="float8_e4m3", mode="asymmetric"), ["asymmetric", "e4m3"]),
        (lambda: kvant.dynamic_range_quantize(X, scale_dtype="float8_e8m0"), ["e8m0", "s8"]),
        (lambda: kvant.dynamic_range_quantize(X, scale_dtype="int8"), ["scale_dtype", "int8", "bfloat16"]),
        (lambda: kvant.dynamic_range_quantize(X, scale_dtype="float64"), ["f64"]),
        (lambda: kvant.dynamic_range_quantize(X, mx_rule="round_up"), ["mx_rule", "round_up", "e8m0"]),
        (lambda: kvant.dynamic_range_quantize(X, mx_rule="ceil"), ["mx_rule", "ceil", "round_up"]),
        (lambda: kvant.dynamic_range_quantize(X, global_scale=1.0), ["global_scale", "e4m3"]),
        (lambda: kvant.dynamic_range_quantize(X, **NVFP4, out=(None, None, None)), ["out", "global_scale"]),
        (lambda: kvant.dynamic_range_quantize(X, **NVFP4, global_scale=[1.0, 2.0]), ["global_scale", "[2]"]),
        (lambda: kvant.dynamic_range_quantize(X.astype(float), dtype="float8_e4m3", scale_dtype="float8_e8m0"),
         ["e8m0", "f64"]),
        (lambda: kvant.dequantize_per_tensor(np.ones(3, np.int32), 0.5), ["q", "int32", "float8_e4m3fn"]),
        (lambda: kvant.dequantize_per_tensor(stored([1.0], "float8_e8m0"), 0.5), ["q", "float8_e8m0fnu"]),
        (lambda: kvant.w8a8_linear(np.ones((6, 9), np.int8), E4M3, np.ones((4, 9), np.int8), 0.5), ["float8_e4m3fn"]),
    ],
)  # fmt: skip
def test_refusals(call, words):
    with pytest.raises((ValueError, NotImplementedError)) as refusal:
        call()
    for word in words:
        assert word in str(refusal.value), f"{word!r} is not in {str(refusal.value)!r}"


# ---- torch ----------------------------------------------------------------------------------------------------


def test_torch():
    torch = pytest.importorskip("torch")
    x = torch.from_numpy(finite_floats((6, 32), "float32"))
    for dtype in (torch.float8_e4m3fn, torch.float8_e5m2):
        q = kvant.quantize_per_tensor(x, 1.0, dtype=dtype)
        assert q.dtype == dtype
        assert torch.equal(q.view(torch.uint8), x.to(dtype).view(torch.uint8))
        assert torch.equal(kvant.dequantize_per_tensor(q, 0.5), q.float() * 0.5)
        assert torch.equal(kvant.dequantize_per_tensor(q.T, 0.5), q.float().T * 0.5)
        out = torch.zeros(6, 32, dtype=dtype)
        assert kvant.quantize_per_tensor(x, 1.0, dtype=str(dtype)[6:], out=out) is out
        assert torch.equal(out.view(torch.uint8), q.view(torch.uint8))
        with pytest.raises(ValueError, match="requires gradients|requires_grad"):
            kvant.quantize_per_tensor(x.clone().requires_grad_(), 1.0, dtype=dtype)
    for dtype in (torch.int16, torch.uint16):
        q = kvant.quantize_per_tensor(x, 0.01, dtype=dtype)
        assert q.dtype == dtype and torch.equal(kvant.dequantize_per_tensor(q, 0.01), q.float() * np.float32(0.01))
    q, scale, _ = kvant.dynamic_range_quantize(x, dtype="float8_e4m3", scale_dtype="float8_e8m0")
    assert scale.dtype == torch.float8_e8m0fnu
    assert torch.equal(kvant.dequantize_per_token(q, scale), q.float() * scale.float()[:, None])
    q, scale, _, found = kvant.dynamic_range_quantize(x, **NVFP4)
    assert isinstance(q, kvant.PackedArray) and scale.dtype == torch.float8_e4m3fn and found.shape == ()
    # Pairs of float4 are read in place, and written to.
    pairs = torch.from_numpy(q.packed).view(torch.float4_e2m1fn_x2)
    want = kvant.dequantize_per_token(q, scale, global_scale=found)
    got = kvant.dequantize_per_token(pairs, scale, global_scale=found)
    assert torch.equal(got, torch.from_numpy(np.asarray(want)))
    out = torch.zeros(6, 16, dtype=torch.uint8).view(torch.float4_e2m1fn_x2)
    assert kvant.quantize_per_token(x, scale, dtype="float4_e2m1", global_scale=found, out=out) is out
    assert torch.equal(out.view(torch.uint8), pairs.view(torch.uint8))
    for dtype in (torch.float8_e4m3fnuz, torch.float8_e5m2fnuz):
        with pytest.raises(ValueError, match=str(dtype)):
            kvant.dequantize_per_tensor(x.to(dtype), 0.5)
        with pytest.raises(ValueError, match=str(dtype)):
            kvant.quantize_per_tensor(x, 0.5, dtype=dtype)


@each_grid
def test_torch_training(dtype):
    torch = pytest.importorskip("torch")
    import kvant.torch

    x = torch.from_numpy(finite_floats((6, 32), "float32")).requires_grad_()
    plain = x.detach()
    y = kvant.torch.fake_quantize(x, 0.01, grid=dtype)
    assert torch.equal(y, kvant.fake_quantize(plain, 0.01, grid=dtype))
    y.sum().backward()
    assert torch.equal(x.grad, kvant.fake_quantize_backward(torch.ones(6, 32), plain, 0.01, grid=dtype))
    fq = kvant.torch.FakeQuantize(dtype.removesuffix("fn"), scope="channel", axis=0)
    assert fq.dtype == dtype
    q, scale, _ = kvant.dynamic_range_quantize(plain, scope="channel", axis=0, dtype=dtype)
    want = kvant.fake_quantize(plain, scale, grid=dtype, axis=0)
    assert torch.equal(fq(x), want)
    scale = kvant.dynamic_range_quantize(plain, scope="block", block_size=(4, 8), dtype=dtype)[1]
    x.grad = None
    y = kvant.torch.FakeQuantize(dtype, scope="block", block_size=(4, 8))(x)
    assert torch.equal(y, kvant.fake_quantize(plain, scale, grid=dtype, block_size=(4, 8)))
    y.sum().backward()
    want_grad = kvant.fake_quantize_backward(torch.ones(6, 32), plain, scale, grid=dtype, block_size=(4, 8))
    assert torch.equal(x.grad, want_grad)
    fq.observe()
    fq(x)
    assert torch.equal(fq.freeze()(x), want) and dtype in repr(fq)
    for bad in (dict(mode="asymmetric"), dict(q_min=-8), dict(q_max=7)):
        with pytest.raises(ValueError, match=dtype):
            kvant.torch.FakeQuantize(dtype, **bad)
