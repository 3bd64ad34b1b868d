"""PackedInt4: two codes to a byte."""

import copy
import pickle

import numpy as np
import pytest

import kvant
import reference as ref
from samples import codes, finite_floats

SHAPES = [(), (0,), (1,), (2,), (7,), (3, 5), (3, 4), (0, 5), (5, 0), (2, 3, 7), (1, 1, 1, 1, 1, 1, 2, 3)]
NUMPY_2 = int(np.__version__.split(".")[0]) >= 2


def packed_shape(shape):
    return shape[:-1] + ((shape[-1] + 1) // 2,) if shape else None


@pytest.mark.parametrize("signed", [True, False])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_round_trip(shape, signed):
    a = codes(shape, "int4" if signed else "uint4")
    packed = kvant.PackedInt4.from_array(a, signed=signed)
    assert (packed.shape, packed.signed, packed.ndim, packed.size) == (shape, signed, a.ndim, a.size)
    assert packed.packed.dtype == np.uint8 and packed.nbytes == packed.packed.nbytes == ref.pack_int4(a).nbytes
    if shape:
        assert packed.packed.shape == packed_shape(shape)
    ref.same_bits(packed.packed.reshape(-1), ref.pack_int4(a).reshape(-1))
    ref.same_bits(np.asarray(packed), a)
    again = kvant.PackedInt4(packed.packed, shape, signed)
    ref.same_bits(np.asarray(again), a)
    if shape:
        assert len(packed) == shape[0]
    else:
        with pytest.raises(TypeError):
            len(packed)


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "int32", "int64", "uint64"])
def test_from_array_takes_integers_of_every_type(dtype):
    a = np.array([[0, 7, 3], [5, 1, 2]], dtype)
    for signed in (True, False):
        got = kvant.PackedInt4.from_array(a, signed=signed)
        ref.same_bits(np.asarray(got), a.astype(np.int8 if signed else np.uint8))


def test_from_array_takes_views_and_lists():
    a = codes((6, 9), "int4")
    for view in (a[:, :5], a.T, a[::-1, ::2], np.asfortranarray(a), a.tolist(), a.astype(">i4")):
        ref.same_bits(np.asarray(kvant.PackedInt4.from_array(view)), np.ascontiguousarray(np.asarray(view, np.int8)))


@pytest.mark.parametrize("signed,bad", [(True, 8), (True, -9), (True, 127), (False, 16), (False, -1), (False, 255)])
def test_from_array_names_what_does_not_fit(signed, bad):
    a = np.zeros((3, 5), np.int16)
    a[1, 2] = bad
    with pytest.raises(ValueError) as refusal:
        kvant.PackedInt4.from_array(a, signed=signed)
    low, high = ref.CODE_RANGE["int4" if signed else "uint4"]
    for word in (bad, low, high):
        assert str(word) in str(refusal.value)


@pytest.mark.parametrize("bad", [2**40, -(2**63), 2**63, 2**64 - 3])
def test_from_array_does_not_wrap(bad):
    with pytest.raises(ValueError, match=f" {bad} "):
        kvant.PackedInt4.from_array(np.array([1, bad], np.uint64 if bad > 0 else np.int64))


@pytest.mark.parametrize("a", [np.ones(3, np.float32), np.ones(3, complex), "abc", None, np.array([1, "a"], object)])
def test_from_array_refuses_what_is_no_integer(a):
    with pytest.raises((ValueError, NotImplementedError)):
        kvant.PackedInt4.from_array(a)


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
        kvant.PackedInt4(packed, shape)
    for word in words:
        assert word in str(refusal.value)


def test_asarray_with_dtype_and_copy():
    a = codes((3, 5), "int4")
    packed = kvant.PackedInt4.from_array(a)
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
    packed = kvant.PackedInt4.from_array(a, signed=False)
    assert np.array_equal(packed, a)
    assert np.sum(np.asarray(packed)) == a.sum()


def test_repr_names_shape_sign_and_values():
    assert repr(kvant.PackedInt4.from_array(np.array([0, 9, 8], np.uint8), signed=False)) == (
        "PackedInt4(shape=(3,), signed=False, values=[0 9 8])"
    )
    long = repr(kvant.PackedInt4.from_array(np.zeros((1000, 1000), np.int8)))
    assert "shape=(1000, 1000)" in long and "signed=True" in long and len(long) < 1000


@pytest.mark.parametrize("signed", [True, False])
@pytest.mark.parametrize("shape", [(), (7,), (3, 5), (0, 5)])
def test_pickle_and_copy(shape, signed):
    a = codes(shape, "int4" if signed else "uint4")
    packed = kvant.PackedInt4.from_array(a, signed=signed)
    others = [pickle.loads(pickle.dumps(packed, protocol)) for protocol in range(2, pickle.HIGHEST_PROTOCOL + 1)]
    for other in others + [copy.deepcopy(packed), copy.copy(packed)]:
        assert (type(other), other.shape, other.signed) == (kvant.PackedInt4, shape, signed)
        ref.same_bits(np.asarray(other), a)
    deep = copy.deepcopy(packed)
    deep.packed[...] = 0
    ref.same_bits(np.asarray(packed), a)


def test_its_bytes_outlive_it():
    a = codes((3, 5), "int4")
    view = kvant.PackedInt4.from_array(a).packed
    ref.same_bits(ref.unpack_int4(view, (3, 5), True), a)


def test_packed_is_the_memory_that_functions_read():
    packed = kvant.PackedInt4.from_array(np.zeros(4, np.int8))
    packed.packed[0] = 0x21
    assert kvant.dequantize_per_tensor(packed, 1.0).tolist() == [1, 2, 0, 0]


def test_equality():
    make = kvant.PackedInt4.from_array
    assert make([1, 2, 3]) == make([1, 2, 3])
    assert make([1, 2, 3]) != make([1, 2, 4])
    assert make([1, 2, 3]) != make([1, 2, 3, 0])  # the same bytes
    assert make([1, 2, 3]) != make([1, 2, 3], signed=False)
    assert make([1, 2, 3]) != "abc"
    with pytest.raises(TypeError):
        hash(make([1]))  # it can be written to


def test_its_attributes_are_read_only():
    packed = kvant.PackedInt4.from_array(np.zeros(4, np.int8))
    for name, value in (("shape", (2, 2)), ("signed", False), ("packed", np.zeros(2, np.uint8))):
        with pytest.raises(AttributeError):
            setattr(packed, name, value)


@pytest.mark.parametrize("dtype", ["int4", "uint4"])
def test_every_function_that_takes_codes_takes_it(dtype):
    q, signed = codes((4, 7), dtype), dtype == "int4"
    packed = kvant.PackedInt4.from_array(q, signed=signed)
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


@pytest.mark.parametrize("dtype", ["int4", "uint4"])
def test_as_out(dtype):
    x, signed = finite_floats((4, 7), "float32"), dtype == "int4"
    make = lambda: kvant.PackedInt4.from_array(np.full((4, 7), 5), signed=signed)
    out = make()
    assert kvant.quantize_per_tensor(x, 0.5, dtype=dtype, out=out) is out
    want = ref.quantize(x, "float32", 0.5, 0, dtype=dtype)
    ref.same_bits(out, want)
    ref.same_bits(out.packed, ref.pack_int4(want))  # the nibble behind an odd row is zero
    out = make()
    got = kvant.dynamic_range_quantize(x, dtype=dtype, out=(out, None, None))
    assert got[0] is out
    ref.same_bits(out, ref.dynamic_range_quantize(x, "float32", dtype=dtype)[0])


def test_as_out_it_must_fit():
    x = finite_floats((4, 7), "float32")
    for out, dtype in [
        (kvant.PackedInt4.from_array(np.zeros((4, 8), int)), "int4"),
        (kvant.PackedInt4.from_array(np.zeros((4, 7), int)), "uint4"),
        (kvant.PackedInt4.from_array(np.zeros((4, 7), int)), "int8"),
        (np.zeros((4, 7), np.int8), "int4"),
        (np.zeros((4, 4), np.uint8), "int4"),
    ]:
        with pytest.raises((ValueError, NotImplementedError), match="out"):
            kvant.quantize_per_tensor(x, 0.5, dtype=dtype, out=out)


def test_one_over_memory_that_may_not_be_written_is_no_out():
    packed = np.zeros((4, 4), np.uint8)
    packed.setflags(write=False)
    out = kvant.PackedInt4(packed, (4, 7))
    ref.same_bits(np.asarray(out), np.zeros((4, 7), np.int8))
    with pytest.raises(ValueError, match="read-only|writable"):
        kvant.quantize_per_tensor(np.ones((4, 7), np.float32), 0.5, dtype="int4", out=out)
    assert not packed.any()


def test_floats_are_not_taken_from_it():
    packed = kvant.PackedInt4.from_array(np.zeros((4, 7), int))
    for call in (lambda: kvant.quantize_per_tensor(packed, 0.5), lambda: kvant.dynamic_range_quantize(packed)):
        with pytest.raises((ValueError, NotImplementedError)):
            call()
