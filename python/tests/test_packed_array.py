"""PackedArray: codes that numpy has no dtype for."""

import copy
import pickle

import numpy as np
import pytest

import kvant
import reference as ref
from samples import codes, finite_floats

SHAPES = [(), (0,), (1,), (2,), (7,), (3, 5), (3, 4), (0, 5), (5, 0), (2, 3, 7), (1, 1, 1, 1, 1, 1, 2, 3)]
NUMPY_2 = int(np.__version__.split(".")[0]) >= 2


def packed_shape(shape, dtype):
    return shape[:-1] + (-(-shape[-1] // ref.PACKED[dtype]),) if shape else None


@pytest.mark.parametrize("dtype", ref.PACKED)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_round_trip(shape, dtype):
    a = codes(shape, dtype)
    packed = kvant.PackedArray.from_array(a, dtype)
    assert (packed.shape, packed.dtype, packed.ndim, packed.size) == (shape, dtype, a.ndim, a.size)
    want = ref.pack(a, dtype)
    assert packed.packed.dtype == np.uint8 and packed.nbytes == packed.packed.nbytes == want.nbytes
    if shape:
        assert packed.packed.shape == packed_shape(shape, dtype)
    ref.same_bits(packed.packed.reshape(-1), want.reshape(-1))
    ref.same_bits(np.asarray(packed), a)
    ref.same_bits(packed.unpack(), a)
    again = kvant.PackedArray(packed.packed, shape, dtype)
    ref.same_bits(np.asarray(again), a)
    if shape:
        assert len(packed) == shape[0]
    else:
        with pytest.raises(TypeError):
            len(packed)


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "int32", "int64", "uint64"])
def test_from_array_takes_integers_of_every_type(dtype):
    a = np.array([[0, 7, 3], [5, 1, 2]], dtype)
    for packed in ("int4", "uint4"):
        got = kvant.PackedArray.from_array(a, packed)
        ref.same_bits(np.asarray(got), a.astype(ref.storage(packed)))


def test_from_array_takes_views_and_lists():
    a = codes((6, 9), "int4")
    for view in (a[:, :5], a.T, a[::-1, ::2], np.asfortranarray(a), a.tolist(), a.astype(">i4")):
        ref.same_bits(np.asarray(kvant.PackedArray.from_array(view)), np.ascontiguousarray(np.asarray(view, np.int8)))


@pytest.mark.parametrize(
    "dtype,bad",
    [("int4", 8), ("int4", -9), ("int4", 127), ("uint4", 16), ("uint4", -1), ("uint4", 255)]
    + [("int2", 2), ("int2", -3), ("uint2", 4), ("uint2", -1)],
)
def test_from_array_names_what_does_not_fit(dtype, bad):
    a = np.zeros((3, 5), np.int16)
    a[1, 2] = bad
    with pytest.raises(ValueError) as refusal:
        kvant.PackedArray.from_array(a, dtype)
    low, high = ref.CODE_RANGE[dtype]
    for word in (bad, low, high, dtype, "[1, 2]"):
        assert str(word) in str(refusal.value)


@pytest.mark.parametrize("bad", [2**40, -(2**63), 2**63, 2**64 - 3])
def test_from_array_does_not_wrap(bad):
    with pytest.raises(ValueError, match=f" {bad} "):
        kvant.PackedArray.from_array(np.array([1, bad], np.uint64 if bad > 0 else np.int64))


@pytest.mark.parametrize("a", [np.ones(3, np.float32), np.ones(3, complex), "abc", None, np.array([1, "a"], object)])
def test_from_array_refuses_what_is_no_integer(a):
    with pytest.raises((ValueError, NotImplementedError)):
        kvant.PackedArray.from_array(a)


@pytest.mark.parametrize(
    "packed,shape,words",
    [
        (np.zeros(3, np.uint8), (7,), ["3", "4"]),
        (np.zeros(5, np.uint8), (7,), ["5", "4"]),
        (np.zeros((2, 3), np.uint8), (2, 7), ["7"]),
        (np.zeros(4, np.int8), (7,), ["int8"]),
        (np.zeros(4, np.float32), (7,), ["float32"]),
        (np.zeros(4, np.uint8), (-7,), ["-7"]),
        (np.zeros(4, np.uint8), (2**62, 2**62), [str(2**62)]),
        (np.zeros(1, np.uint8), (1,) * 9, ["9"]),
        (np.zeros(4, np.uint8), "abc", []),
        (np.zeros(4, np.uint8), (7.0,), []),
        (np.zeros(4, np.uint8), None, []),
        (None, (7,), ["None"]),
    ],
    ids=str,
)
def test_construction_refuses(packed, shape, words):
    with pytest.raises((ValueError, NotImplementedError, TypeError)) as refusal:
        kvant.PackedArray(packed, shape)
    for word in words:
        assert word in str(refusal.value)


def test_asarray_with_dtype_and_copy():
    a = codes((3, 5), "int4")
    packed = kvant.PackedArray.from_array(a)
    for dtype in (np.int8, np.int32, np.float32, "int64"):
        ref.same_bits(np.asarray(packed, dtype=dtype), a.astype(dtype))
        ref.same_bits(np.array(packed, dtype=dtype), a.astype(dtype))
    ref.same_bits(packed.__array__(), a)
    ref.same_bits(packed.__array__(np.int16), a.astype(np.int16))
    ref.same_bits(packed.__array__(copy=True), a)
    ref.same_bits(packed.__array__(dtype=None, copy=None), a)
    with pytest.raises(ValueError):
        packed.__array__(copy=False)  # unpacking is a copy
    if NUMPY_2:
        ref.same_bits(np.array(packed, copy=True), a)
        ref.same_bits(np.asarray(packed, copy=None), a)
        with pytest.raises(ValueError):
            np.asarray(packed, copy=False)
    first = np.asarray(packed)
    first[...] = 0  # is nobody else's
    ref.same_bits(np.asarray(packed), a)


def test_arithmetic_of_numpy_works_on_it():
    a = codes((3, 5), "uint4")
    packed = kvant.PackedArray.from_array(a, "uint4")
    assert np.array_equal(packed, a)
    assert np.sum(np.asarray(packed)) == a.sum()


def test_repr_names_shape_dtype_and_values():
    assert repr(kvant.PackedArray.from_array(np.array([0, 9, 8], np.uint8), "uint4")) == (
        "PackedArray(shape=(3,), dtype='uint4', values=[0 9 8])"
    )
    long = repr(kvant.PackedArray.from_array(np.zeros((1000, 1000), np.int8)))
    assert "shape=(1000, 1000)" in long and "dtype='int4'" in long and len(long) < 1000


@pytest.mark.parametrize("dtype", [*ref.PACKED, *ref.GRIDS, "float8_e8m0fnu"])
@pytest.mark.parametrize("shape", [(), (7,), (3, 5), (0, 5)])
def test_pickle_and_copy(shape, dtype):
    a = codes(shape, dtype) if dtype in ref.PACKED else np.full(shape, 0.5, np.float32)
    packed = kvant.PackedArray.from_array(a, dtype)
    others = [pickle.loads(pickle.dumps(packed, protocol)) for protocol in range(2, pickle.HIGHEST_PROTOCOL + 1)]
    for other in others + [copy.deepcopy(packed), copy.copy(packed)]:
        assert (type(other), other.shape, other.dtype) == (kvant.PackedArray, shape, dtype)
        ref.same_bits(np.asarray(other), a)
    deep = copy.deepcopy(packed)
    deep.packed[...] = 0
    ref.same_bits(np.asarray(packed), a)


def test_its_bytes_outlive_it():
    a = codes((3, 5), "int4")
    view = kvant.PackedArray.from_array(a).packed
    ref.same_bits(ref.unpack(view, (3, 5), "int4"), a)


def test_packed_is_the_memory_that_functions_read():
    packed = kvant.PackedArray.from_array(np.zeros(4, np.int8))
    packed.packed[0] = 0x21
    assert kvant.dequantize_per_tensor(packed, 1.0).tolist() == [1, 2, 0, 0]


def test_equality():
    make = kvant.PackedArray.from_array
    assert make([1, 2, 3]) == make([1, 2, 3])
    assert make([1, 2, 3]) != make([1, 2, 4])
    assert make([1, 2, 3]) != make([1, 2, 3, 0])  # the same bytes
    assert make([1, 2, 3]) != make([1, 2, 3], "uint4")
    assert make([1, 2, 3]) != "abc"
    with pytest.raises(TypeError):
        hash(make([1]))  # it can be written to


def test_its_attributes_are_read_only():
    packed = kvant.PackedArray.from_array(np.zeros(4, np.int8))
    for name, value in (("shape", (2, 2)), ("dtype", "uint4"), ("packed", np.zeros(2, np.uint8))):
        with pytest.raises(AttributeError):
            setattr(packed, name, value)


@pytest.mark.parametrize("dtype", ref.PACKED)
def test_every_function_that_takes_codes_takes_it(dtype):
    q = codes((4, 7), dtype)
    packed = kvant.PackedArray.from_array(q, dtype)
    s = np.full(4, 0.5, np.float32)
    w = codes((5, 7), "int8")
    for function in [
        lambda q: kvant.dequantize_per_tensor(q, 0.5, 1),
        lambda q: kvant.dequantize_per_channel(q, s, None, 0),
        lambda q: kvant.dequantize_per_token(q, s),
        lambda q: kvant.dequantize_per_group(q, np.full((4, 3), 0.5), 0, 3),
        lambda q: kvant.w8a8_linear(q, 0.5, w, 0.5),
        lambda q: kvant.w8a8_linear(w, 0.5, q, 0.5),
        lambda q: kvant.smoothquant_linear(q, w, 0.5, 0.5),
        lambda q: kvant.smoothquant_linear(w, q, 0.5, 0.5),
        lambda q: kvant.quantized_linear(finite_floats((2, 7), "float32"), q, 0.5),
        lambda q: kvant.w8a8_linear(w, 0.5, kvant.PackedWeight(q), 0.5),
    ]:
        ref.same_bits(function(packed), function(q))


@pytest.mark.parametrize("dtype", ref.PACKED)
def test_as_out(dtype):
    x = finite_floats((4, 7), "float32")
    make = lambda: kvant.PackedArray.from_array(np.full((4, 7), 1), dtype)
    out = make()
    assert kvant.quantize_per_tensor(x, 0.5, dtype=dtype, out=out) is out
    want = ref.quantize(x, "float32", 0.5, 0, dtype=dtype)
    ref.same_bits(out, want)
    ref.same_bits(out.packed, ref.pack(want, dtype))  # the bits behind an odd row are zero
    out = make()
    got = kvant.dynamic_range_quantize(x, dtype=dtype, out=(out, None, None))
    assert got[0] is out
    ref.same_bits(out, ref.dynamic_range_quantize(x, "float32", dtype=dtype)[0])


def test_as_out_it_must_fit():
    x = finite_floats((4, 7), "float32")
    for out, dtype in [
        (kvant.PackedArray.from_array(np.zeros((4, 8), int)), "int4"),
        (kvant.PackedArray.from_array(np.zeros((4, 7), int)), "uint4"),
        (kvant.PackedArray.from_array(np.zeros((4, 7), int)), "int8"),
        (np.zeros((4, 7), np.int8), "int4"),
        (np.zeros((4, 4), np.uint8), "int4"),
    ]:
        with pytest.raises((ValueError, NotImplementedError), match="out"):
            kvant.quantize_per_tensor(x, 0.5, dtype=dtype, out=out)


def test_one_over_memory_that_may_not_be_written_is_no_out():
    packed = np.zeros((4, 4), np.uint8)
    packed.setflags(write=False)
    out = kvant.PackedArray(packed, (4, 7))
    ref.same_bits(np.asarray(out), np.zeros((4, 7), np.int8))
    with pytest.raises(ValueError, match="read-only|writable"):
        kvant.quantize_per_tensor(np.ones((4, 7), np.float32), 0.5, dtype="int4", out=out)
    assert not packed.any()


def test_floats_are_not_taken_from_it():
    packed = kvant.PackedArray.from_array(np.zeros((4, 7), int))
    for call in (lambda: kvant.quantize_per_tensor(packed, 0.5), lambda: kvant.dynamic_range_quantize(packed)):
        with pytest.raises((ValueError, NotImplementedError)):
            call()


@pytest.mark.parametrize("dtype", [*ref.GRIDS, "float8_e8m0fnu"])
def test_numbers_of_every_code(dtype):
    numbers = ref.numbers_of(dtype)
    bits = ref.pack_bits(np.arange(numbers.size), 2 if dtype == "float4_e2m1fn" else 1)
    packed = kvant.PackedArray(bits, numbers.shape, dtype)
    ref.same_bits(packed.unpack(), numbers)
    ref.same_bits(np.asarray(packed), numbers)
    again = kvant.PackedArray.from_array(numbers, dtype)
    assert (again.dtype, again.shape) == (dtype, numbers.shape)
    ref.same_bits(again.unpack(), numbers)  # of several NaN the first counts
    assert kvant.PackedArray.from_array(numbers.astype(np.float64), dtype) == again


@pytest.mark.parametrize(
    "dtype,bad", [("float4_e2m1", 5.0), ("float4_e2m1", np.nan), ("float8_e4m3", 449.0), ("float8_e4m3", np.inf)]
    + [("float8_e5m2", 1.1), ("float8_e8m0", 3.0), ("float8_e8m0", 0.0), ("float8_e8m0", -1.0)],
)  # fmt: skip
def test_from_array_refuses_what_is_not_a_number_of_the_dtype(dtype, bad):
    with pytest.raises(ValueError, match=rf"{bad:g} at \[1, 0\] is not a number of {dtype}"):
        kvant.PackedArray.from_array([[1.0, 2.0], [bad, 1.0]], dtype)


def test_short_and_long_names_are_one_dtype():
    for short, name in [("float8_e4m3", "float8_e4m3fn"), ("float4_e2m1", "float4_e2m1fn")] + [
        ("float8_e8m0", "float8_e8m0fnu"), ("float8_e5m2", "float8_e5m2"), ("int2", "int2")
    ]:  # fmt: skip
        assert kvant.PackedArray.from_array([1], short).dtype == kvant.PackedArray.from_array([1], name).dtype == name


@pytest.mark.parametrize("dtype", ["int8", "float32", "bfloat16", "int3", "float8", "float8_e4m3fnu", None, 4, True])
def test_dtypes_that_it_does_not_hold(dtype):
    for make in (lambda: kvant.PackedArray.from_array([1], dtype), lambda: kvant.PackedArray(bytes_of_one, (1,), dtype)):
        bytes_of_one = np.zeros(1, np.uint8)
        with pytest.raises(ValueError, match="float4_e2m1fn"):
            make()


@pytest.mark.parametrize("dtype", ref.GRIDS)
def test_linear_layers_refuse_its_floats_by_name(dtype):
    q, w = kvant.PackedArray.from_array(np.ones((4, 8)), dtype), np.ones((4, 8), np.int8)
    for call in (lambda: kvant.w8a8_linear(q, 0.5, w, 0.5), lambda: kvant.PackedWeight(q)):
        with pytest.raises(ValueError, match=dtype):
            call()
