"""PackedWeight: a weight in the order of the kernels."""

import copy
import pickle

import numpy as np
import pytest

import kvant
import reference as ref
from samples import codes

A = codes((3, 70), "int8", 4)


def product(weight):
    return kvant.w8a8_linear(A[:, : weight.shape[1]], 0.5, weight, 0.25)


@pytest.mark.parametrize("dtype", ["int8", "uint8"])
@pytest.mark.parametrize("shape", [(1, 1), (5, 33), (65, 70), (0, 7), (7, 0)], ids=str)
def test_bytes_and_back(shape, dtype):
    w = codes(shape, dtype)
    packed = kvant.PackedWeight(w)
    assert (packed.shape, packed.dtype, packed.nbytes) == (shape, dtype, len(packed.to_bytes()))
    assert packed.isa == kvant.info()["isa"] or packed.isa in ("scalar", "avx2")
    data = packed.to_bytes()
    assert isinstance(data, bytes)
    others = [kvant.PackedWeight.from_bytes(form(data)) for form in (bytes, bytearray, memoryview)]
    others.append(kvant.PackedWeight.from_bytes(np.frombuffer(data, np.uint8)))
    others += [pickle.loads(pickle.dumps(packed)), copy.copy(packed), copy.deepcopy(packed)]
    want = ref.linear(A[:, : shape[1]], 0.5, 0, w, 0.25, 0, None)
    for other in [packed] + others:
        assert (other.shape, other.dtype, other.isa, other.to_bytes()) == (shape, dtype, packed.isa, data)
        ref.same_bits(product(other), want)


def test_it_keeps_no_view_of_the_weight():
    w = codes((5, 33), "int8")
    packed, want = kvant.PackedWeight(w), ref.linear(A[:, :33], 0.5, 0, w, 0.25, 0, None)
    w[...] = 0
    ref.same_bits(product(packed), want)
    data = bytearray(packed.to_bytes())
    again = kvant.PackedWeight.from_bytes(data)
    data[:] = bytes(len(data))
    ref.same_bits(product(again), want)


def test_the_scalar_form_gives_the_same_codes_to_scalar_plans_only():
    w = codes((5, 33), "int8")
    scalar = kvant.PackedWeight(w, isa="scalar")
    assert scalar.isa == "scalar"
    y = np.zeros((3, 5), np.float32)
    plan = kvant.plan.W8A8LinearPlan.select(3, 33, 5, isa="scalar")
    scratch = np.empty(plan.workspace_size(), np.uint8)
    plan.run(
        activation=A[:, :33], act_scale=0.5, weight=scalar, weight_scale=0.25, output=y, workspace=scratch
    )
    ref.same_bits(y, ref.linear(A[:, :33], 0.5, 0, w, 0.25, 0, None))
    if kvant.PackedWeight(w).isa != "scalar":
        with pytest.raises(NotImplementedError, match="scalar"):
            product(scalar)


def test_every_damaged_byte_is_refused():
    data = kvant.PackedWeight(codes((3, 9), "int8")).to_bytes()
    for i in range(len(data)):
        damaged = bytearray(data)
        damaged[i] ^= 0x41
        with pytest.raises((ValueError, NotImplementedError)):
            kvant.PackedWeight.from_bytes(damaged)


def test_every_other_length_is_refused():
    data = kvant.PackedWeight(codes((3, 9), "int8")).to_bytes()
    for length in list(range(0, len(data), 7)) + [len(data) - 1]:
        with pytest.raises((ValueError, NotImplementedError)):
            kvant.PackedWeight.from_bytes(data[:length])
    with pytest.raises(ValueError, match=str(len(data) + 1)):
        kvant.PackedWeight.from_bytes(data + b"\0")


@pytest.mark.parametrize("data", [b"", b"kvant", bytes(100), None, 5, "text", [1, 2], np.ones(200, np.float32)[::2]])
def test_what_is_no_packed_weight(data):
    with pytest.raises((ValueError, TypeError, NotImplementedError)):
        kvant.PackedWeight.from_bytes(data)


@pytest.mark.parametrize(
    "w,words",
    [
        (np.zeros(5, np.int8), ["[5]"]),
        (np.zeros((2, 3, 4), np.int8), ["[2, 3, 4]"]),
        (np.zeros((), np.int8), ["[]"]),
        (np.zeros((2, 3), np.float32), ["weight_q", "float32"]),
        (np.zeros((2, 3), np.int32), ["weight_q", "int32"]),
        (np.zeros((2, 3), bool), ["weight_q", "bool"]),
        (None, ["weight_q", "object"]),
        ("abc", ["weight_q", "<U3"]),
        ([[1, 2], [3, 4]], ["weight_q", "int64"]),
    ],
    ids=str,
)
def test_construction_refuses(w, words):
    with pytest.raises((ValueError, NotImplementedError)) as refusal:
        kvant.PackedWeight(w)
    for word in words:
        assert word in str(refusal.value)


@pytest.mark.parametrize("isa,error", [("sse9", (ValueError, NotImplementedError)), (7, (ValueError, TypeError))])
def test_an_unknown_instruction_set(isa, error):
    with pytest.raises(error):
        kvant.PackedWeight(np.zeros((2, 3), np.int8), isa=isa)


def test_weights_that_do_not_fit_the_layer():
    packed = kvant.PackedWeight(codes((5, 33), "int8"))
    with pytest.raises(ValueError) as refusal:
        kvant.w8a8_linear(A, 0.5, packed, 0.25)
    assert "33" in str(refusal.value) and "70" in str(refusal.value)
    with pytest.raises(ValueError, match="weight_scale"):
        kvant.w8a8_linear(A[:, :33], 0.5, packed, np.ones(6, np.float32))


def test_repr_and_attributes():
    packed = kvant.PackedWeight(codes((5, 33), "uint8"))
    for word in ("PackedWeight", "(5, 33)", "uint8", packed.isa):
        assert word in repr(packed)
    for name in ("shape", "dtype", "isa", "nbytes"):
        with pytest.raises(AttributeError):
            setattr(packed, name, 1)


def test_views_are_packed_as_they_look():
    w = codes((40, 50), "int8")
    for view in (w[:5, :33], w[:, 3:20], w.T, w[::-1, ::2], np.asfortranarray(w)):
        assert kvant.PackedWeight(view).to_bytes() == kvant.PackedWeight(np.ascontiguousarray(view)).to_bytes()
