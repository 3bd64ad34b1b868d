"""Arguments that make no sense: never a crash, always an exception with a sentence that names what was wrong."""

import os
import subprocess
import sys
import textwrap

import numpy as np
import pytest

import kvant
import reference as ref
from samples import codes, finite_floats, floats

REFUSALS = (ValueError, NotImplementedError, MemoryError)

X = finite_floats((6, 9), "float32")
Q = codes((6, 9), "int8")
W = codes((4, 9), "int8")
TOKEN, CHANNEL, GROUP, BLOCK = (np.full(n, 0.25, np.float32) for n in (6, 9, 18, 6))

# Each function with arguments that it takes.
GOOD = {
    "quantize_per_tensor": dict(x=X, scale=0.1, zero_point=0),
    "quantize_per_channel": dict(x=X, scale=CHANNEL, zero_point=0, axis=1),
    "quantize_per_token": dict(x=X, scale=TOKEN, zero_point=0),
    "quantize_per_group": dict(x=X, scale=GROUP, zero_point=0, group_size=4),
    "quantize_per_block": dict(x=X, scale=BLOCK, zero_point=0, block_size=(4, 4)),
    "dequantize_per_tensor": dict(q=Q, scale=0.1, zero_point=0),
    "dequantize_per_channel": dict(q=Q, scale=CHANNEL, zero_point=0, axis=1),
    "dequantize_per_token": dict(q=Q, scale=TOKEN, zero_point=0),
    "dequantize_per_group": dict(q=Q, scale=GROUP, zero_point=0, group_size=4),
    "dequantize_per_block": dict(q=Q, scale=BLOCK, zero_point=0, block_size=(4, 4)),
    "fake_quantize": dict(x=X, scale=0.1, zero_point=0, q_min=-8, q_max=7),
    "quantize_backward": dict(dy=X, x=X, scale=0.1, zero_point=0, q_min=-8, q_max=7),
    "fake_quantize_backward": dict(dy=X, x=X, scale=0.1, zero_point=0, q_min=-8, q_max=7),
    "dequantize_backward": dict(dy=X, scale=0.1),
    "dynamic_range_quantize": dict(x=X),
    "w8a8_linear": dict(act_q=Q, act_scale=0.1, weight_q=W, weight_scale=0.1),
    "smoothquant_linear": dict(act_q=Q, weight_q=W, act_scale=0.1, weight_scale=0.1),
    "quantized_linear": dict(x=X, weight=W, weight_scale=0.1),
    "smooth_scales": dict(act_absmax=np.ones(9, np.float32), weights=X),
}
each_function = pytest.mark.parametrize("function", GOOD)
FLOAT_ARGUMENTS = {"x", "dy"}
CODE_ARGUMENTS = {"q", "act_q", "weight_q", "weight"}


def call(function, **changes):
    return getattr(kvant, function)(**{**GOOD[function], **changes})


def refused(function, words, errors=REFUSALS, **changes):
    """It refuses, and all of the words are in the sentence."""
    with pytest.raises(errors) as refusal:
        call(function, **changes)
    for word in words:
        assert str(word) in str(refusal.value), f"{word!r} is not in {str(refusal.value)!r}"


def sentence_name(argument):
    return "weight" if argument.startswith("weight") else argument


@each_function
def test_the_good_arguments_are_good(function):
    call(function)


# ---- What is no array of the right type -----------------------------------------------------------------------

NO_ARRAYS = {
    "int64": np.ones((6, 9), np.int64),
    "int32": np.ones((6, 9), np.int32),
    "complex64": np.ones((6, 9), np.complex64),
    "bool": np.ones((6, 9), bool),
    "object": np.full((6, 9), 1.0, object),
    "str": np.full((6, 9), "a"),
    "bytes": np.full((6, 9), b"a"),
    "datetime": np.zeros((6, 9), "M8[s]"),
    "struct": np.zeros((6, 9), [("a", "f4"), ("b", "i4")]),
    "longdouble": np.ones((6, 9), np.longdouble),
    "None": None,
    "text": "abc",
    "dict": {"a": 1},
    "class": np.ndarray,
    "function": len,
    "ragged": [[1.0, 2.0], [3.0]],
    "int": 3,
    "ellipsis": ...,
}


@pytest.mark.parametrize("bad", NO_ARRAYS)
@each_function
def test_wrong_kinds_of_arrays(function, bad):
    for argument in GOOD[function]:
        if argument in FLOAT_ARGUMENTS | CODE_ARGUMENTS | {"act_absmax", "weights"}:
            refused(function, [sentence_name(argument)], **{argument: NO_ARRAYS[bad]})


@each_function
def test_floats_for_codes_and_codes_for_floats(function):
    for argument in GOOD[function]:
        if argument in FLOAT_ARGUMENTS:
            for bad, name in [(Q, "int8"), (Q.view(np.uint8), "uint8"), (kvant.PackedArray.from_array(Q & 7), "int4")]:
                refused(function, [argument, name], **{argument: bad})
        if argument in CODE_ARGUMENTS:
            for name in ("float32", "float64", "float16"):
                refused(function, [sentence_name(argument), name], **{argument: X.astype(name)})


# ---- Orders and strides ---------------------------------------------------------------------------------------


def orders(a):
    """The same elements, as other memory holds them."""
    wide = np.zeros((a.shape[0], 3 * a.shape[1]), a.dtype)
    wide[:, ::3] = a
    odd = np.zeros(a.nbytes + 1, np.uint8)
    unaligned = odd[1:].view(a.dtype).reshape(a.shape)
    unaligned[...] = a
    yield "fortran", np.asfortranarray(a)
    yield "strided", wide[:, ::3]
    yield "negative", np.ascontiguousarray(a[::-1, ::-1])[::-1, ::-1]
    yield "negative rows", np.ascontiguousarray(a[::-1])[::-1]
    yield "byte-swapped", a.astype(a.dtype.newbyteorder(">"))
    yield "unaligned", unaligned
    yield "read-only", np.frombuffer(a.tobytes(), a.dtype).reshape(a.shape)
    yield "subclass", a.view(type("Mine", (np.ndarray,), {}))
    yield "masked", np.ma.masked_array(a)
    yield "memoryview", memoryview(a)


@each_function
def test_inputs_in_any_order(function):
    want = call(function)
    want = want if isinstance(want, tuple) else (want,)
    for argument, value in GOOD[function].items():
        if isinstance(value, np.ndarray) and value.ndim == 2:
            for order, form in orders(value):
                if order == "memoryview" and argument == "weights":
                    continue
                got = call(function, **{argument: form})
                for g, w in zip(got if isinstance(got, tuple) else (got,), want):
                    ref.same_bits(g, w), order


@each_function
def test_scales_in_any_order(function):
    want = call(function)
    for argument in ("scale", "act_absmax"):
        value = GOOD[function].get(argument)
        if isinstance(value, np.ndarray):
            for form in (np.repeat(value, 3)[::3], value[::-1].copy()[::-1], value.astype(">f4"), value.tolist()):
                ref.same_bits(call(function, **{argument: form}), want)


def test_zero_strides_and_broadcasts():
    x = np.broadcast_to(np.float32(1.0), (5, 7))
    ref.same_bits(kvant.quantize_per_tensor(x, 0.5), np.full((5, 7), 2, np.int8))
    x = np.broadcast_to(np.arange(7, dtype=np.float32), (5, 7))
    ref.same_bits(kvant.quantize_per_tensor(x, 0.5), ref.quantize(x, "float32", 0.5, 0))
    windows = np.lib.stride_tricks.sliding_window_view(np.arange(12, dtype=np.float32), 5)
    ref.same_bits(kvant.quantize_per_tensor(windows, 0.5), ref.quantize(windows, "float32", 0.5, 0))


@pytest.mark.parametrize("name", ref.FLOATS)
def test_byte_swapped_of_every_type(name):
    x = floats((5, 7), name)
    ref.same_bits(kvant.quantize_per_tensor(x.astype(x.dtype.newbyteorder(">")), 0.1), ref.quantize(x, name, 0.1, 0))


def test_nested_lists_and_numbers():
    assert kvant.quantize_per_tensor([[1.0, 2.0], [3.0, 4.0]], 0.5).tolist() == [[2, 4], [6, 8]]
    assert kvant.quantize_per_tensor(1.5, 0.5).shape == ()
    assert kvant.quantize_per_tensor([], 0.5).shape == (0,)


# ---- out ------------------------------------------------------------------------------------------------------

HAS_OUT = [f for f in GOOD if f not in ("dynamic_range_quantize",)]


@pytest.mark.parametrize("function", HAS_OUT)
def test_bad_outs(function):
    want = call(function)
    read_only = want.copy()
    read_only.setflags(write=False)
    shape, dtype = want.shape, want.dtype
    wrong = [
        (np.zeros(shape + (1,), dtype), ["shape"]),
        (np.zeros((), dtype), ["shape"]),
        (np.zeros(shape[:-1] + (shape[-1] + 1,), dtype), ["shape", str(shape[-1]), str(shape[-1] + 1)]),
        (np.zeros(shape, np.int64), ["int64"]),
        (np.zeros(shape, np.float64), ["float64"]),
        (np.zeros(shape, bool), ["bool"]),
        (read_only, ["read-only"]),
        (want.tolist(), []),
        (want.tobytes(), []),
        ("text", []),
        (7, []),
        (kvant.PackedArray.from_array(np.zeros(shape, int)), ["int4"]),
        (np.zeros(shape, dtype.newbyteorder(">")) if dtype.itemsize > 1 else read_only, []),
        (np.zeros(shape[:-1] + (2 * shape[-1],), dtype)[..., ::2], ["order"]),
        (np.zeros(shape, dtype)[::-1] if len(shape) > 1 else np.zeros(shape, dtype)[::-1], ["order"]),
    ]
    if len(shape) > 1:
        wrong.append((np.zeros(shape, dtype, order="F"), ["order"]))
    for bad, words in wrong:
        before = bytes(bad.data) if isinstance(bad, np.ndarray) and bad.flags.c_contiguous else None
        refused(function, ["out"] + words, out=bad)
        assert before is None or bytes(bad.data) == before


def test_bad_outs_of_dynamic_range():
    q, scale, zero_point = kvant.dynamic_range_quantize(X)
    for bad, words in [
        (q, ["out", "tuple"]),
        ((q,), ["out"]),
        ((q, scale, zero_point, None), ["out"]),
        ([q, scale, zero_point], ["out"]),
        ((q[:, :5], None, None), ["out[0]", "[6, 5]"]),
        ((X, None, None), ["out[0]", "float32"]),
        ((None, scale.astype(np.float64), None), ["out[1]", "float64"]),
        ((None, scale[:5], None), ["out[1]", "[5]"]),
        ((None, None, zero_point.astype(np.int64)), ["out[2]", "int64"]),
        ((None, None, np.zeros(12, np.int32)[::2]), ["out[2]"]),
        ((None, zero_point, None), ["out[1]", "int32"]),
        ((7, None, None), ["out[0]"]),
    ]:
        refused("dynamic_range_quantize", words, out=bad)
    shared = np.zeros(6, np.int32)
    refused("dynamic_range_quantize", ["overlaps"], out=(None, shared.view(np.float32), shared))


def overlapping(first, second, shape):
    """Two arrays of these types in one buffer, the second one row later."""
    size = int(np.prod(shape)) * 8
    buffer = np.zeros(2 * size, np.uint8)
    row = shape[-1] * np.dtype(first).itemsize
    count = int(np.prod(shape))
    a = buffer[: count * np.dtype(first).itemsize].view(first).reshape(shape)
    b = buffer[row : row + count * np.dtype(second).itemsize].view(second).reshape(shape)
    return a, b


def test_out_that_overlaps():
    x, q = overlapping(np.float32, np.int8, (6, 9))
    refused("quantize_per_tensor", ["overlaps"], x=x, out=q)
    x, y = overlapping(np.float32, np.float32, (6, 9))
    refused("fake_quantize", ["overlaps"], x=x, out=y)
    refused("fake_quantize_backward", ["overlaps"], dy=x, x=x, out=y)
    refused("fake_quantize_backward", ["overlaps"], dy=X, x=x, out=y)
    refused("dequantize_backward", ["overlaps"], dy=x, out=y)
    refused("quantize_per_token", ["overlaps", "scale"], scale=(s := np.ones(14, np.float32))[:6],
            out=s.view(np.int8)[:54].reshape(6, 9))  # fmt: skip
    a, y = overlapping(np.int8, np.float32, (6, 9))
    refused("w8a8_linear", ["overlaps"], act_q=a, weight_q=np.ones((9, 9), np.int8), out=y)
    x, y = overlapping(np.float32, np.float32, (6, 9))
    refused("quantized_linear", ["overlaps"], x=x, weight=np.ones((9, 9), np.int8), out=y)
    bias = np.zeros(24, np.float32)
    refused("w8a8_linear", ["overlaps", "bias"], bias=bias[:4], out=bias.reshape(6, 4))


def test_codes_and_floats_of_one_buffer():
    """In place is for equal types only."""
    x = np.ones((6, 9), np.float32)
    refused("quantize_per_tensor", ["overlaps"], x=x, out=x.view(np.int8)[:, :9])
    assert (x == 1).all()


# ---- Sizes ----------------------------------------------------------------------------------------------------


@each_function
def test_nine_dimensions(function):
    for argument in GOOD[function]:
        if argument in FLOAT_ARGUMENTS | CODE_ARGUMENTS:
            value = GOOD[function][argument]
            refused(function, ["9"] if not argument.startswith("weight") else ["weight"],
                    **{argument: value.reshape((1,) * 7 + value.shape)})  # fmt: skip


def test_many_dimensions():
    refused("quantize_per_tensor", ["32"], x=np.ones((1,) * 32, np.float32))
    refused("dequantize_per_tensor", ["32"], q=np.ones((1,) * 32, np.int8))


@pytest.mark.parametrize(
    "function,changes",
    [
        ("quantize_per_tensor", lambda: {"x": np.broadcast_to(np.float32(1), (2**48,))}),
        ("dequantize_per_tensor", lambda: {"q": np.broadcast_to(np.int8(1), (2**48,))}),
        ("fake_quantize", lambda: {"x": np.broadcast_to(np.float64(1), (2**20, 2**25))}),
        ("dynamic_range_quantize", lambda: {"x": np.broadcast_to(np.float16(1), (2**48,))}),
        ("w8a8_linear", lambda: {"act_q": np.broadcast_to(np.int8(1), (2**45, 9))}),
        ("w8a8_linear", lambda: {"weight_q": np.broadcast_to(np.int8(1), (2**45, 9))}),
        ("quantized_linear", lambda: {"x": np.broadcast_to(np.float32(1), (2**45, 9))}),
        ("quantize_per_token", lambda: {"scale": np.broadcast_to(np.float64(1), (2**45,))}),
        ("quantize_per_token", lambda: {"zero_point": np.broadcast_to(np.int64(1), (2**45,))}),
        ("smooth_scales", lambda: {"weights": np.broadcast_to(np.float32(1), (2**45, 9))}),
    ],
)
def test_more_than_memory_holds(function, changes):
    """At least 2^47 bytes, which no address space of x86-64 has, however much the system overcommits."""
    refused(function, [], errors=(MemoryError, ValueError), **changes())


def test_more_than_memory_holds_is_a_memory_error():
    refused("quantize_per_tensor", [], errors=MemoryError, x=np.broadcast_to(np.float32(1), (2**45,)))
    with pytest.raises(MemoryError):
        kvant.PackedArray.from_array(np.broadcast_to(np.int8(1), (2**48,)))
    with pytest.raises(MemoryError):
        kvant.PackedWeight(np.broadcast_to(np.int8(1), (2**24, 2**24)))


def test_no_elements_but_enormous():
    """The other size of a tensor without elements may be anything that the results' bytes can be counted for."""
    for function, argument, dtype in [("dequantize_per_tensor", "q", "int8"), ("quantize_per_tensor", "x", "float16")]:
        try:
            assert call(function, **{argument: np.zeros((0, 2**58), dtype)}).shape == (0, 2**58)
        except REFUSALS as refusal:
            assert str(2**58) in str(refusal)
    refused("dequantize_per_tensor", [], q=np.zeros((0, 2**62), np.int8), dtype="float64")


@each_function
def test_mismatched_shapes(function):
    arguments = GOOD[function]
    if "dy" in arguments and "x" in arguments:
        refused(function, ["[6, 9]", "[6, 8]"], dy=X[:, :8].copy())
        refused(function, ["[6, 9]", "[9]"], dy=X[0])
    if isinstance(arguments.get("scale"), np.ndarray):
        n = arguments["scale"].size
        for wrong in (n - 1, n + 1, 0):
            refused(function, ["scale", f"[{wrong}]"], scale=np.ones(wrong, np.float32))
        refused(function, ["zero_point", f"[{n + 1}]"], zero_point=np.zeros(n + 1, np.int32))
        refused(function, ["scale", f"[1, 1, {n}]"], scale=np.ones((1, 1, n), np.float32))
        refused(function, ["scale"], scale=0.5)
    elif "scale" in arguments:
        refused(function, ["scale", "[2]"], scale=np.ones(2, np.float32))
        refused(function, ["scale"], scale=np.ones(0, np.float32))
        if "zero_point" in arguments:
            refused(function, ["zero_point", "[2]"], zero_point=np.zeros(2, np.int32))


def test_mismatched_linear_shapes():
    refused("w8a8_linear", ["weight", "[4, 8]", "9"], weight_q=W[:, :8].copy())
    refused("w8a8_linear", ["weight", "[9]"], weight_q=W[0])
    refused("w8a8_linear", ["weight_scale", "[5]", "4"], weight_scale=np.ones(5, np.float32))
    refused("w8a8_linear", ["act_scale", "[5]", "6"], act_scale=np.ones(5, np.float32))
    refused("w8a8_linear", ["act_zero_point", "[5]", "6"], act_zero_point=np.zeros(5, np.int32))
    refused("w8a8_linear", ["weight_zero_point", "[5]", "4"], weight_zero_point=np.zeros(5, np.int32))
    refused("w8a8_linear", ["bias", "[5]", "[4]"], bias=np.ones(5, np.float32))
    refused("w8a8_linear", ["bias", "[1, 4]"], bias=np.ones((1, 4), np.float32))
    refused("w8a8_linear", ["act_q", "0"], act_q=np.int8(3))
    refused("quantized_linear", ["x", "0"], x=np.float32(3))
    refused("quantized_linear", ["smooth", "[8]", "9"], smooth=np.ones(8, np.float32))
    refused("quantized_linear", ["smooth"], smooth=2.0)
    refused("smoothquant_linear", ["weight", "[4, 8]", "9"], weight_q=W[:, :8].copy())


# ---- Numbers --------------------------------------------------------------------------------------------------

PER_TENSOR = [f for f in GOOD if isinstance(GOOD[f].get("scale"), float)]


@pytest.mark.parametrize("function", PER_TENSOR)
@pytest.mark.parametrize(
    "scale,words",
    [
        (0.0, ["0"]),
        (-0.0, ["0"]),
        (-1.5, ["-1.5"]),
        (float("nan"), ["nan"]),
        (float("inf"), ["inf"]),
        (1e-60, ["0"]),  # nothing of it is left in float32
        (1e60, ["inf"]),
        (0, ["0"]),
        (10**400, []),
        (np.float32(-2), ["-2"]),
        (np.array([np.nan], np.float32), ["nan"]),
        ("0.5", []),
        (None, ["None"]),
        (1j, []),
        (True, []),
        ([], []),
        (X, []),
        (np.ones(1, np.int8), ["int8"]),
        (np.ones(1, bool), ["bool"]),
    ],
    ids=lambda v: str(v)[:12],
)
def test_bad_scales(function, scale, words):
    refused(function, ["scale"] + words, scale=scale)


def test_scales_that_have_no_reciprocal():
    tiny = float(np.float32(1e-40))
    refused("quantize_per_tensor", ["scale", "reciprocal"], scale=tiny, numerics="reciprocal")
    x = np.array([1e-40, 3e-40], np.float32)
    ref.same_bits(kvant.quantize_per_tensor(x, tiny), ref.quantize(x, "float32", tiny, 0))


def test_1e_60_is_a_scale_for_float64():
    x = np.array([1e-60, -3e-60])
    assert kvant.quantize_per_tensor(x, 1e-60).tolist() == [1, -3]


HAS_ZERO_POINT = [f for f in GOOD if "zero_point" in GOOD[f]]


@pytest.mark.parametrize("function", HAS_ZERO_POINT)
@pytest.mark.parametrize(
    "zero_point,words",
    [
        (2**40, [2**40]),
        (-(2**40), [-(2**40)]),
        (2**23 + 1, [2**23 + 1]),
        (-(2**23) - 1, [-(2**23) - 1]),
        (10**30, [10**30]),
        (np.int64(2**40), [2**40]),
        (np.int32(2**23 + 1), [2**23 + 1]),
        (1.0, ["1.0"]),
        (1.5, ["1.5"]),
        (float("nan"), ["nan"]),
        (np.float32(1), ["float32"]),
        (np.ones(1, np.float32), ["float32"]),
        ([1.5], ["float64"]),
        ("3", []),
        (1j, []),
        (np.ones(1, bool), ["bool"]),
        (np.array([1], object), ["object"]),
        (kvant.PackedArray.from_array([1]), []),
    ],
    ids=lambda v: str(v)[:12],
)
def test_bad_zero_points(function, zero_point, words):
    refused(function, ["zero_point"] + words, zero_point=zero_point)


def test_zero_points_beyond_int32_count_as_the_limit():
    """In a tensor of them: ±2^23, as all beyond that do."""
    zero_point = np.array([2**40, -(2**40), 2**63 - 1, -(2**63), 2**31, 5], np.int64)
    got = kvant.quantize_per_token(X, TOKEN, zero_point)
    ref.same_bits(got, ref.quantize(X, "float32", TOKEN, zero_point, ("token",)))
    zero_point = np.array([2**64 - 1, 2**63, 2**32, 2**31, 2**23, 5], np.uint64)
    got = kvant.dequantize_per_token(Q, TOKEN, zero_point)
    want = ref.dequantize(Q, TOKEN, np.minimum(zero_point, np.uint64(2**23)).astype(np.int64), ("token",))
    ref.same_bits(got, want)


RANGED = ["quantize_per_tensor", "quantize_per_token", "dynamic_range_quantize"]


@pytest.mark.parametrize("function", RANGED)
@pytest.mark.parametrize(
    "changes,words",
    [
        ({"q_min": 5, "q_max": 4}, ["q_min 5", "q_max 4"]),
        ({"q_min": -129}, ["q_min -129", "-128"]),
        ({"q_max": 128}, ["q_max 128", "127"]),
        ({"q_max": 256, "dtype": "uint8"}, ["q_max 256", "255"]),
        ({"q_min": -1, "dtype": "uint8"}, ["q_min -1", "0"]),
        ({"q_min": -9, "dtype": "int4"}, ["q_min -9", "-8"]),
        ({"q_max": 16, "dtype": "uint4"}, ["q_max 16", "15"]),
        ({"q_min": 2**40}, ["q_min", 2**40]),
        ({"q_max": -(10**30)}, ["q_max"]),
        ({"q_min": 1.0}, ["q_min", "1.0"]),
        ({"q_max": "7"}, ["q_max", "7"]),
        ({"q_max": X}, ["q_max"]),
        ({"dtype": "int32"}, ["dtype", "int32"]),
        ({"dtype": "float32"}, ["dtype", "float32"]),
        ({"dtype": "Int8"}, ["dtype", "Int8"]),
        ({"dtype": ""}, ["dtype"]),
        ({"dtype": "\udc80"}, ["dtype"]),
        ({"dtype": None}, ["dtype", "None"]),
        ({"dtype": 8}, ["dtype", "8"]),
        ({"dtype": np.int32}, ["dtype", "int32"]),
        ({"dtype": int}, ["dtype"]),
        ({"numerics": "fast"}, ["numerics", "fast", "exact", "reciprocal"]),
        ({"numerics": None}, ["numerics", "None"]),
        ({"numerics": 1}, ["numerics", "1"]),
        ({"numerics": X}, ["numerics"]),
    ],
    ids=lambda v: str(v)[:40],
)
def test_bad_ranges_and_words(function, changes, words):
    refused(function, words, **changes)


@pytest.mark.parametrize("function", ["fake_quantize", "quantize_backward", "fake_quantize_backward"])
@pytest.mark.parametrize(
    "changes,words",
    [
        ({"q_min": 5, "q_max": 4}, ["q_min 5", "q_max 4"]),
        ({"q_max": 2**23 + 1}, ["q_max", 2**23 + 1]),
        ({"q_min": -(2**23) - 1}, ["q_min", -(2**23) - 1]),
        ({"q_min": 2**63}, ["q_min", 2**63]),
        ({"q_min": None}, ["q_min", "None"]),
        ({"q_max": 7.0}, ["q_max", "7.0"]),
        ({"axis": 2, "scale": CHANNEL}, ["axis 2", "[6, 9]"]),
        ({"axis": -3, "scale": CHANNEL}, ["axis -3", "[6, 9]"]),
        ({"axis": "1", "scale": CHANNEL}, ["axis", "1"]),
        ({"axis": 1.0, "scale": CHANNEL}, ["axis", "1.0"]),
        ({"axis": 2**40, "scale": CHANNEL}, ["axis", 2**40]),
        ({"group_size": 0, "scale": GROUP}, ["group_size 0"]),
        ({"group_size": -1, "scale": GROUP}, ["group_size -1"]),
        ({"group_size": 2**63, "scale": GROUP}, ["group_size", 2**63]),
        ({"group_size": 4.0, "scale": GROUP}, ["group_size", "4.0"]),
        ({"group_size": 4, "axis": 5, "scale": GROUP}, ["axis 5"]),
        ({"block_size": (0, 4), "scale": BLOCK}, ["rows 0"]),
        ({"block_size": (4, -1), "scale": BLOCK}, ["columns -1"]),
        ({"block_size": (4, 2**63), "scale": BLOCK}, ["block_size", 2**63]),
        ({"block_size": (4, 4.0), "scale": BLOCK}, ["block_size", "4.0"]),
        ({"block_size": 4, "scale": BLOCK}, ["block_size 4 must be two sizes, rows and columns"]),
        ({"block_size": (4, 4, 4), "scale": BLOCK}, ["block_size (4, 4, 4) must be two sizes"]),
        ({"block_size": (4, 4), "axis": 1, "scale": BLOCK}, ["axis 1", "block"]),
        ({"block_size": (4, 4), "group_size": 4, "scale": BLOCK}, ["group_size 4", "block"]),
        ({"scope": "rows"}, ["scope", "rows", "token"]),
        ({"scope": 3}, ["scope", "3"]),
        ({"scope": "channel", "scale": CHANNEL}, ["axis"]),
        ({"scope": "group", "scale": GROUP}, ["group_size"]),
        ({"scope": "token", "axis": 1, "scale": TOKEN}, ["axis 1", "token"]),
        ({"scope": "tensor", "group_size": 4}, ["group_size 4", "tensor"]),
        ({"scope": "block", "scale": BLOCK}, ["block_size"]),
        ({"scope": "group", "group_size": 4, "block_size": (4, 4), "scale": GROUP}, ["block_size (4, 4)", "group"]),
        ({"numerics": "fast"}, ["numerics", "fast"]),
    ],
    ids=lambda v: str(v)[:40],
)
def test_bad_ranges_and_scopes(function, changes, words):
    refused(function, words, **changes)


def test_quantize_backward_wants_a_range_of_codes():
    for q_min, q_max in [(-1, 32768), (0, 65536), (-32769, 0), (-(2**23), 2**23)]:
        refused("quantize_backward", [], q_min=q_min, q_max=q_max)


@pytest.mark.parametrize("group_size", [0, -1, -(2**62), 2**64, 1.5, None, "4"])
def test_bad_group_sizes(group_size):
    for function in ("quantize_per_group", "dequantize_per_group"):
        refused(function, ["group_size"], group_size=group_size)
    refused("dynamic_range_quantize", ["group_size"], scope="group", group_size=group_size)


@pytest.mark.parametrize(
    "block_size,words",
    [((0, 4), ["rows 0"]), ((4, 0), ["columns 0"]), ((-1, 4), ["rows -1"])]
    + [(size, ["block_size"]) for size in ((4,), (1, 2, 3), 4, 2**64, (2**64, 4), (1.5, 4), None, "44", (None, 4))],
    ids=str,
)
def test_bad_block_sizes(block_size, words):
    for function in ("quantize_per_block", "dequantize_per_block"):
        refused(function, words, block_size=block_size)
    refused("dynamic_range_quantize", words, scope="block", block_size=block_size)


def test_blocks_need_two_dimensions():
    refused("quantize_per_block", ["quantize_per_block: shape [9] has no rows and columns"], x=X[0])
    refused("dequantize_per_block", ["dequantize_per_block: shape [9] has no rows and columns"], q=Q[0])
    refused("dynamic_range_quantize", ["shape [9]", "at least 2"], x=X[0], scope="block", block_size=(1, 4))


def test_one_block_for_all():
    got = kvant.quantize_per_block(X, np.ones((1, 1), np.float32), 0, (2**62, 2**62))
    ref.same_bits(got, ref.quantize(X, "float32", 1.0, 0, ("tensor",)))


def test_one_group_for_all():
    got = kvant.quantize_per_group(X, np.ones((6, 1), np.float32), 0, 2**62)
    ref.same_bits(got, ref.quantize(X, "float32", np.ones((6, 1)), 0, ("group", -1, 2**62)))


@pytest.mark.parametrize("axis", [2, -3, 2**31, -(2**31) - 1, 10**30, 0.0, "0", None])
def test_bad_axes(axis):
    for function in ("quantize_per_channel", "dequantize_per_channel"):
        refused(function, ["axis"], axis=axis)
    refused("dynamic_range_quantize", ["axis"], scope="channel", axis=axis)


@pytest.mark.parametrize(
    "changes,words",
    [
        ({"mode": "odd"}, ["mode", "odd", "symmetric", "asymmetric"]),
        ({"mode": None}, ["mode", "None"]),
        ({"scope": "row"}, ["scope", "row"]),
        ({"scope": "channel"}, ["axis"]),
        ({"scope": "group"}, ["group_size"]),
        ({"axis": 1}, ["axis 1", "token"]),
        ({"group_size": 3}, ["group_size 3", "token"]),
        ({"scope": "block"}, ["block_size"]),
        ({"block_size": (3, 3)}, ["block_size (3, 3)", "token"]),
        ({"include_zero": 1}, ["include_zero", "1"]),
        ({"include_zero": None}, ["include_zero", "None"]),
        ({"q_max": 0, "q_min": -5}, ["q_max", "0"]),
        ({"mode": "asymmetric", "q_min": 3, "q_max": 3}, ["3"]),
        ({"x": np.float32(1)}, ["token"]),
    ],
    ids=str,
)
def test_bad_dynamic_ranges(changes, words):
    refused("dynamic_range_quantize", words, **changes)


RETURNS_FLOATS = [f for f in GOOD if f.startswith("dequantize_per")] + ["w8a8_linear", "smoothquant_linear"]


@pytest.mark.parametrize("function", RETURNS_FLOATS)
@pytest.mark.parametrize("dtype", ["int8", "float8", "double!", None, np.int32, 5, "complex64"])
def test_bad_float_types(function, dtype):
    needs_scale = function == "w8a8_linear" and dtype == "int8"  # it can write codes
    refused(function, ["output_scale" if needs_scale else "dtype"], dtype=dtype)


@pytest.mark.parametrize(
    "function,changes,words",
    [
        ("w8a8_linear", {"act_scale": 0.0}, ["act_scale", "0"]),
        ("w8a8_linear", {"act_scale": float("nan")}, ["act_scale", "nan"]),
        ("w8a8_linear", {"act_scale": None}, ["act_scale", "None"]),
        ("w8a8_linear", {"weight_scale": -1.0}, ["weight_scale", "-1"]),
        ("w8a8_linear", {"weight_scale": "a"}, ["weight_scale"]),
        ("w8a8_linear", {"act_zero_point": 2**23 + 1}, ["act_zero_point", 2**23 + 1]),
        ("w8a8_linear", {"act_zero_point": 0.5}, ["act_zero_point", "0.5"]),
        ("w8a8_linear", {"weight_zero_point": 128}, ["weight_zero_point 128", "127"]),
        ("w8a8_linear", {"bias": np.ones(4, np.int32)}, ["bias", "int32"]),
        ("w8a8_linear", {"bias": "abcd"}, ["bias"]),
        ("w8a8_linear", {"output_scale": 0.5}, ["output_scale 0.5", "f32"]),
        ("w8a8_linear", {"output_zero_point": 3}, ["output_zero_point 3", "f32"]),
        ("w8a8_linear", {"dtype": "int8"}, ["s8", "output_scale"]),
        ("w8a8_linear", {"dtype": "int8", "output_scale": 0.0}, ["output_scale 0"]),
        ("w8a8_linear", {"dtype": "int8", "output_scale": 1e-60}, ["output_scale 0"]),
        ("w8a8_linear", {"dtype": "int8", "output_scale": 1e60}, ["output_scale inf"]),
        ("w8a8_linear", {"dtype": "int8", "output_scale": "a"}, ["output_scale"]),
        ("w8a8_linear", {"dtype": "int8", "output_scale": TOKEN}, ["output_scale"]),
        ("w8a8_linear", {"dtype": "int8", "output_scale": 1.0, "output_zero_point": 128}, ["128", "[-128, 127]"]),
        ("w8a8_linear", {"dtype": "uint8", "output_scale": 1.0, "output_zero_point": -1}, ["-1", "[0, 255]"]),
        ("w8a8_linear", {"dtype": "uint8", "output_scale": 1.0, "output_zero_point": 0.5}, ["output_zero_point"]),
        ("w8a8_linear", {"dtype": "int4", "output_scale": 1.0}, ["dtype", "int4"]),
        ("smoothquant_linear", {"act_scale": 0.0}, ["act_scale", "0"]),
        ("smoothquant_linear", {"act_scale": float("inf")}, ["act_scale", "inf"]),
        ("smoothquant_linear", {"act_scale": 1e-60}, ["act_scale", "1e-60"]),
        ("smoothquant_linear", {"act_scale": None}, ["act_scale", "None"]),
        ("smoothquant_linear", {"act_scale": TOKEN}, ["act_scale"]),
        ("smoothquant_linear", {"act_zero_point": 2**24}, ["act_zero_point", 2**24]),
        ("smoothquant_linear", {"act_zero_point": 1.5}, ["act_zero_point", "1.5"]),
        ("quantized_linear", {"act_scale": -1.0}, ["act_scale", "-1"]),
        ("quantized_linear", {"act_scale": "a"}, ["act_scale"]),
        ("quantized_linear", {"act_zero_point": 3}, ["act_zero_point 3", "act_scale"]),
        ("quantized_linear", {"act_scale": 1.0, "act_zero_point": None}, ["act_zero_point", "None"]),
        ("quantized_linear", {"mode": "odd"}, ["mode", "odd"]),
        ("quantized_linear", {"include_zero": "yes"}, ["include_zero", "yes"]),
        ("quantized_linear", {"numerics": "fast"}, ["numerics", "fast"]),
        ("quantized_linear", {"smooth": np.ones(9, int)}, ["smooth", "int64"]),
        ("quantized_linear", {"act_scale": 1e-40, "numerics": "reciprocal"}, ["act_scale", "reciprocal"]),
    ],
    ids=str,
)
def test_bad_numbers_of_linear_layers(function, changes, words):
    refused(function, words, **changes)


# ---- Other people's objects -----------------------------------------------------------------------------------


class Dlpack:
    """Speaks DLPack in whatever way it is told."""

    def __init__(self, capsule, device=(1, 0)):
        self.capsule, self.device = capsule, device

    def __dlpack_device__(self):
        return self.device() if callable(self.device) else self.device

    def __dlpack__(self, **_):
        return self.capsule() if callable(self.capsule) else self.capsule


def raises(error):
    def function():
        raise error

    return function


def foreign_capsule():
    import ctypes

    new = ctypes.pythonapi.PyCapsule_New
    new.restype, new.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
    foreign_capsule.name = ctypes.create_string_buffer(b"something_else")
    return new(ctypes.addressof(foreign_capsule.name), ctypes.cast(foreign_capsule.name, ctypes.c_char_p), None)


@pytest.mark.parametrize(
    "thing,error,words",
    [
        (Dlpack(raises(RuntimeError("the dog ate it"))), REFUSALS, ["x", "the dog ate it"]),
        (Dlpack(raises(TypeError("no"))), REFUSALS, ["x", "no"]),
        (Dlpack(raises(BufferError("busy"))), REFUSALS, ["x", "busy"]),
        (Dlpack(raises(MemoryError("full"))), MemoryError, []),
        (Dlpack(raises(KeyboardInterrupt())), KeyboardInterrupt, []),
        (Dlpack(None), ValueError, ["x", "None"]),
        (Dlpack(42), ValueError, ["x", "42"]),
        (Dlpack("dltensor"), ValueError, ["x", "dltensor"]),
        (Dlpack(X), ValueError, ["x"]),
        (Dlpack(foreign_capsule), ValueError, ["x", "something_else"]),
        (Dlpack(X.__dlpack__, (2, 0)), NotImplementedError, ["x", "CUDA"]),
        (Dlpack(X.__dlpack__, (10, 0)), NotImplementedError, ["x", "10"]),
        (Dlpack(X.__dlpack__, (99, 0)), NotImplementedError, ["x", "99"]),
        (Dlpack(X.__dlpack__, None), REFUSALS, ["x"]),
        (Dlpack(X.__dlpack__, ()), REFUSALS, ["x"]),
        (Dlpack(X.__dlpack__, ("cpu", 0)), REFUSALS, ["x"]),
        (Dlpack(X.__dlpack__, (2**70, 0)), REFUSALS, ["x"]),
        (Dlpack(X.__dlpack__, raises(RuntimeError("lost"))), REFUSALS, ["x", "lost"]),
        (Dlpack(np.ones((6, 9), np.int64).__dlpack__), ValueError, ["x", "int64"]),
        (Dlpack(np.ones((6, 9), np.complex64).__dlpack__), ValueError, ["x"]),
    ],
)
def test_dlpack_of_all_kinds(thing, error, words):
    refused("quantize_per_tensor", words, errors=error, x=thing)


def test_dlpack_that_works():
    for dtype in ("float32", "float64", "float16"):
        x = finite_floats((6, 9), dtype)
        for form in (x, x[:, :5], x.T, x[::-1]):
            got = kvant.quantize_per_tensor(Dlpack(form.__dlpack__), 0.1)
            assert isinstance(got, np.ndarray)
            ref.same_bits(got, ref.quantize(form, dtype, 0.1, 0))
    for q in (Q, Q.view(np.uint8)):
        ref.same_bits(kvant.dequantize_per_tensor(Dlpack(q.__dlpack__), 0.5), ref.dequantize(q, 0.5, 0))
    empty = np.zeros((0, 4), np.float32)
    assert kvant.quantize_per_tensor(Dlpack(empty.__dlpack__), 0.1).shape == (0, 4)


def test_dlpack_is_not_written_to():
    """Its capsule cannot say whether that is allowed."""
    out = np.zeros((6, 9), np.int8)
    refused("quantize_per_tensor", ["out", "read-only"], out=Dlpack(out.__dlpack__))
    assert not out.any()


def test_a_dlpack_capsule_that_is_reused_is_read_once():
    """A capsule is not consumed, so that its own destructor frees it: a second reading is harmless."""
    capsule = X.__dlpack__()
    for _ in range(2):
        ref.same_bits(kvant.quantize_per_tensor(Dlpack(capsule), 0.1), ref.quantize(X, "float32", 0.1, 0))
    del capsule


def test_objects_that_raise():
    class Array:
        def __array__(self, dtype=None, copy=None):
            raise RuntimeError("not today")

    class Index:
        def __index__(self):
            raise RuntimeError("no index")


    refused("quantize_per_tensor", ["x", "not today"], x=Array())
    refused("quantize_per_tensor", ["no index"], errors=REFUSALS + (RuntimeError,), q_min=Index())


class NoRepr:
    def __repr__(self):
        raise RuntimeError("no repr")


class Surrogates:
    def __repr__(self):
        return "\udc80"


class EndlessRepr:
    def __repr__(self):
        return "y" * 10**6


PRINTED = ["x", "scale", "zero_point", "dtype", "q_min", "numerics", "out"]


@pytest.mark.parametrize("argument", PRINTED)
@pytest.mark.parametrize("thing", [NoRepr(), Surrogates(), EndlessRepr(), "y" * 10**6], ids=lambda t: type(t).__name__)
def test_what_cannot_be_printed(thing, argument):
    with pytest.raises(ValueError) as refusal:
        call("quantize_per_tensor", **{argument: thing})
    assert argument in str(refusal.value) and len(str(refusal.value)) < 500


@pytest.mark.parametrize("before", range(4))
def test_sentences_are_cut_between_characters(before):
    for character in ("é", "€", "𝄞"):
        refused("quantize_per_tensor", ["numerics", character], numerics="a" * before + character * 100)


def test_arrays_from_array_methods():
    class Array:
        def __array__(self, dtype=None, copy=None):
            return X

    ref.same_bits(call("quantize_per_tensor", x=Array()), call("quantize_per_tensor"))


@pytest.mark.filterwarnings("ignore:the matrix subclass")
def test_subclasses_give_plain_arrays():
    class Mine(np.ndarray):
        pass

    got = kvant.fake_quantize(X.view(Mine), 0.1, 0, -8, 7)
    assert type(got) is np.ndarray
    got = kvant.quantize_per_tensor(np.matrix(X.astype(np.float64)), 0.1)
    assert type(got) is np.ndarray


def test_ml_dtypes():
    ml_dtypes = pytest.importorskip("ml_dtypes")
    bits = floats((6, 9), "bfloat16")
    x = bits.view(ml_dtypes.bfloat16)
    ref.same_bits(kvant.quantize_per_tensor(x, 0.1), ref.quantize(bits, "bfloat16", 0.1, 0))
    got = kvant.fake_quantize(x, 0.1, 0, -8, 7)
    assert got.dtype == ml_dtypes.bfloat16
    ref.same_bits(got.view(np.uint16), ref.fake_quantize(bits, "bfloat16", 0.1, 0, -8, 7), "bfloat16")
    assert kvant.dequantize_per_tensor(Q, 0.1, dtype=ml_dtypes.bfloat16).dtype == ml_dtypes.bfloat16
    assert kvant.dequantize_per_tensor(Q, 0.1, dtype="bfloat16").dtype == np.uint16
    ref.same_bits(kvant.quantize_per_tensor(x.T, 0.1), ref.quantize(bits.T, "bfloat16", 0.1, 0))
    refused("quantize_per_tensor", ["x", "float8"], x=X.astype(ml_dtypes.float8_e4m3fn))
    refused("quantize_per_tensor", ["x", "int4"], x=X.astype(ml_dtypes.int4))


def test_the_extension_itself_counts_its_arguments():
    from kvant import _kvant

    for name in ("quantize", "dequantize", "w8a8_linear", "smooth_scales", "apply_smoothing"):
        with pytest.raises(TypeError):
            getattr(_kvant, name)()
        with pytest.raises(TypeError):
            getattr(_kvant, name)(*range(20))
        with pytest.raises(TypeError):
            getattr(_kvant, name)(x=1)


@pytest.mark.parametrize("threads", [0, -1, "a", 1.5, None, 10**9, 2**40, 10**30, X])
def test_bad_numbers_of_threads(threads):
    before = kvant.get_num_threads()
    with pytest.raises(ValueError, match="threads"):
        kvant.set_num_threads(threads)
    assert kvant.get_num_threads() == before


# ---- In a process of its own, because a crash would end this one ----------------------------------------------


def in_a_process(code, timeout=60):
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], env=environment, capture_output=True, text=True, timeout=timeout
    )
    assert done.returncode == 0, f"exit code {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def test_objects_that_were_never_initialized():
    """pybind11 would take whatever the memory holds for the C++ object inside."""
    from kvant import _kvant

    classes = [item for item in vars(_kvant).values() if isinstance(item, type)]
    assert len(classes) >= 18
    for cls in classes:
        with pytest.raises(TypeError):
            cls.__new__(cls)
        with pytest.raises(TypeError):
            object.__new__(cls)
        with pytest.raises(TypeError):
            type("Sub", (cls,), {})


def test_workspaces_of_objects():
    """Scratch bytes written over an array of references would crash when it is freed."""
    in_a_process(
        """
        import numpy as np
        import kvant

        plan = kvant.plan.QuantizedLinearPlan.select(4, 8, 3)
        arguments = dict(input=np.ones((4, 8), np.float32), weight=np.ones((3, 8), np.int8), weight_scale=1.0)
        workspace = np.full(plan.workspace_size(), 1.5, object)
        try:
            plan.run(**arguments, output=np.zeros((4, 3), np.float32), workspace=workspace)
        except ValueError as refusal:
            assert "workspace" in str(refusal)
        else:
            raise SystemExit("accepted")
        assert all(item == 1.5 for item in workspace)
        """
    )


def test_one_observer_in_many_threads():
    """Not meant for it, says its documentation; it must not crash all the same."""
    in_a_process(
        """
        import threading
        import numpy as np
        import kvant

        kinds = ("min_max", "percentile", "mse")
        observers = [kvant.Observer(kind, scope="channel", axis=1, bins=16) for kind in kinds]
        batches = [np.random.default_rng(i).normal(0, 10.0**i, (300, 40)).astype(np.float32) for i in range(4)]

        def work(batch):
            for i in range(40):
                for observer in observers:
                    try:
                        if i % 7 == 3:
                            observer.reset()
                        elif i % 7 == 5:
                            observer.parameters()
                        else:
                            observer.observe(batch)
                    except (ValueError, RuntimeError):
                        pass

        workers = [threading.Thread(target=work, args=(b,)) for b in batches]
        for w in workers:
            w.start()
        for w in workers:
            w.join()
        """
    )


def test_packed_bytes_that_are_resized():
    """numpy lets one resize an array in place where nobody else seems to hold it."""
    in_a_process(
        """
        import numpy as np
        import kvant

        for own in (False, True):
            q = np.full(10**7, 5, np.int8)
            p = kvant.PackedArray.from_array(q)
            if own:
                p = kvant.PackedArray(p.packed.copy(), (10**7,))
            try:
                p.packed.resize(1)
            except ValueError:
                pass
            assert p.packed.shape == (5 * 10**6,)
            assert np.array_equal(np.asarray(p), q)
            p.packed.shape = (5 * 10**3, 10**3)
            assert np.array_equal(kvant.dequantize_per_tensor(p, 1.0), q)
        """
    )


def test_fork_after_threads():
    """A child of fork() has none of its parent's threads; it computes all the same, and the parent goes on."""
    in_a_process(
        """
        import os, signal, sys, time
        import numpy as np
        import kvant

        kvant.set_num_threads(4)
        x = np.random.default_rng(0).normal(0, 1, (2000, 1000)).astype(np.float32)
        w = np.ones((64, 1000), np.int8)
        compute = lambda: (kvant.quantize_per_tensor(x, 0.01).tobytes(), kvant.quantized_linear(x, w, 0.1).tobytes())
        want = compute()
        child = os.fork()
        if child == 0:
            os._exit(0 if compute() == want else 3)
        deadline = time.monotonic() + 20
        while True:
            done, status = os.waitpid(child, os.WNOHANG)
            if done:
                break
            if time.monotonic() > deadline:
                os.kill(child, signal.SIGKILL)
                os.waitpid(child, 0)
                sys.exit("the child hangs")
            time.sleep(0.01)
        assert os.waitstatus_to_exitcode(status) == 0, status
        assert compute() == want
        """
    )


def test_fork_while_threads_work():
    """What a parent's threads hold when the child is made stays held in the child, which must not need it."""
    in_a_process(
        """
        import os, signal, sys, threading, time
        import numpy as np
        import kvant

        kvant.set_num_threads(4)
        x = np.random.default_rng(0).normal(0, 1, (1000, 1000)).astype(np.float32)
        want = kvant.dynamic_range_quantize(x)[0].tobytes()
        stop = False
        def work():
            while not stop:
                kvant.dynamic_range_quantize(x)
        threads = [threading.Thread(target=work) for _ in range(3)]
        for thread in threads:
            thread.start()
        for _ in range(8):
            child = os.fork()
            if child == 0:
                assert kvant.get_num_threads() == 1
                os._exit(0 if kvant.dynamic_range_quantize(x)[0].tobytes() == want else 3)
            deadline = time.monotonic() + 20
            while not (ended := os.waitpid(child, os.WNOHANG))[0]:
                if time.monotonic() > deadline:
                    os.kill(child, signal.SIGKILL)
                    os._exit(4)
                time.sleep(0.01)
            if ended[1] != 0:
                os._exit(5)
        stop = True
        for thread in threads:
            thread.join()
        assert kvant.get_num_threads() == 4
        """
    )


@pytest.mark.parametrize("order", ["C", "F"])  # numpy lets go of the lock when it copies the second
def test_threads_and_interpreter_shutdown(order):
    """Ending while a daemon thread is inside a call."""
    in_a_process(
        f"""
        import threading, time
        import numpy as np
        import kvant

        x = np.ones((500, 1000), np.float32, order={order!r})
        def work():
            while True:
                kvant.quantize_per_tensor(x, 0.1)
        for _ in range(3):
            threading.Thread(target=work, daemon=True).start()
        time.sleep(0.2)
        """
    )


def test_an_unknown_forced_instruction_set():
    in_a_process(
        """
        import os
        os.environ["KVANT_FORCE_ISA"] = "sse9"
        import numpy as np
        import kvant
        try:
            kvant.quantize_per_tensor(np.ones(3, np.float32), 0.1)
        except NotImplementedError as refusal:
            assert "sse9" in str(refusal)
        else:
            raise SystemExit("accepted")
        """
    )


def test_the_scalar_kernels_give_the_same_bits():
    code = """
        import hashlib, os
        import numpy as np
        import kvant
        x = np.random.default_rng(0).normal(0, 3, (37, 129)).astype(np.float32)
        w = np.random.default_rng(1).integers(-128, 128, (33, 129)).astype(np.int8)
        parts = [kvant.quantize_per_tensor(x, 0.01), kvant.fake_quantize(x, 0.3, 0, -8, 7),
                 *kvant.dynamic_range_quantize(x), kvant.quantized_linear(x, w, 0.1),
                 np.asarray(kvant.quantize_per_tensor(x, 0.3, dtype="int4"))]
        print(hashlib.sha256(b"".join(p.tobytes() for p in parts)).hexdigest())
    """
    best = in_a_process(code)
    scalar = in_a_process('import os; os.environ["KVANT_FORCE_ISA"] = "scalar"\n' + textwrap.dedent(code))
    assert len(best) == 65 and best == scalar


def test_random_arguments():
    said = in_a_process("import runpy; runpy.run_module('random_arguments', run_name='__main__')", timeout=300)
    results, refusals, other = map(int, said.split("\n")[0].split())
    assert results > 200 and refusals > 8000, said
    assert other == 0, said


def test_capsules_of_dlpack_1():
    """Only a versioned capsule says whether its memory may be written to; numpy 2 makes such capsules."""
    if not hasattr(np.zeros(1), "__dlpack__") or int(np.__version__.split(".")[0]) < 2:
        pytest.skip("this numpy makes capsules without a version")

    class Wrapper:
        def __init__(self, array):
            self.array = array

        def __dlpack__(self, **options):
            return self.array.__dlpack__(**options)

        def __dlpack_device__(self):
            return self.array.__dlpack_device__()

    x = np.linspace(-1, 1, 6, dtype=np.float32)
    memory = np.zeros(6, np.int8)
    out = Wrapper(memory)
    assert kvant.quantize_per_tensor(Wrapper(x), 0.1, out=out) is out
    assert np.array_equal(memory, kvant.quantize_per_tensor(x, 0.1))
    memory.setflags(write=False)
    with pytest.raises(ValueError, match="out is read-only"):
        kvant.quantize_per_tensor(x, 0.1, out=out)


def test_interrupts_are_not_swallowed():
    class Interrupts:
        def __float__(self):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        kvant.smoothquant_linear(np.ones((1, 2), np.int8), np.ones((1, 2), np.int8), Interrupts(), 1.0)
