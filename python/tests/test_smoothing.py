"""smooth_scales and apply_smoothing."""

import numpy as np
import pytest

import kvant
import reference as ref
from samples import finite_floats, floats, rng


def absmax(k, seed=0):
    x = np.abs(rng(seed, k).normal(0, 4, k)).astype(np.float32)
    x[: min(k, 2)] = [0.0, 1e6][: min(k, 2)]
    return x


@pytest.mark.parametrize("alpha", [0.0, 0.25, 0.5, 0.8, 1.0])
@pytest.mark.parametrize("name", ref.FLOATS)
def test_smooth_scales(name, alpha):
    weights = [floats((7, 19), name, 1), finite_floats((3, 19), name, 2)]  # maxima are over finite values
    weights[1][:, 5] = 0
    weights[0][:, 5] = 0  # a column of zeros counts as 1e-5
    wide = [ref.widen(w, name) for w in weights]
    x = absmax(19)
    ref.same_bits(kvant.smooth_scales(x, weights, alpha), ref.smooth_scales(x, wide, alpha))
    ref.same_bits(kvant.smooth_scales(x, tuple(weights), alpha), ref.smooth_scales(x, wide, alpha))
    ref.same_bits(kvant.smooth_scales(x, weights[0], alpha), ref.smooth_scales(x, wide[:1], alpha))


def test_smooth_scales_of_mixed_types_and_views():
    weights = [finite_floats((7, 19), "float32"), finite_floats((7, 19), "float64", 1)]
    views = [np.repeat(weights[0], 2, axis=1)[:, ::2], np.asfortranarray(weights[1])]
    x = absmax(19)
    want = ref.smooth_scales(x, weights, 0.5)
    ref.same_bits(kvant.smooth_scales(x, weights), want)
    ref.same_bits(kvant.smooth_scales(np.repeat(x, 2)[::2], views), want)


def test_smooth_scales_out():
    x, w = absmax(19), finite_floats((7, 19), "float32")
    want = ref.smooth_scales(x, [w], 0.5)
    out = np.zeros(19, np.float32)
    assert kvant.smooth_scales(x, w, out=out) is out
    ref.same_bits(out, want)
    assert kvant.smooth_scales(x, w, out=x) is x  # may be act_absmax itself
    ref.same_bits(x, want)


def test_smooth_scales_without_channels():
    assert kvant.smooth_scales(np.zeros(0, np.float32), np.zeros((4, 0), np.float32)).shape == (0,)


@pytest.mark.parametrize(
    "x,weights,alpha,words",
    [
        ([1, -2, 3], None, 0.5, ["act_absmax[1]", "-2"]),
        ([1, 2, np.nan], None, 0.5, ["act_absmax[2]", "nan"]),
        ([np.inf, 2, 3], None, 0.5, ["act_absmax[0]", "inf"]),
        ([1, 2, 3], None, 1.5, ["alpha", "1.5"]),
        ([1, 2, 3], None, -0.1, ["alpha", "-0.1"]),
        ([1, 2, 3], None, float("nan"), ["alpha", "nan"]),
        ([1, 2], None, 0.5, ["weights[0]", "[4, 3]", "2"]),
        ([1, 2, 3], [], 0.5, ["0 weights"]),
        ([[1, 2, 3]], None, 0.5, ["act_absmax", "[1, 3]"]),
        ([1, 2, 3], np.ones(3, np.float32), 0.5, ["weights", "[3]"]),
        ([1, 2, 3], np.ones((4, 3), np.int8), 0.5, ["weights"]),
        ([1, 2, 3], [np.ones((4, 3), np.float32), np.ones((4, 2), np.float32)], 0.5, ["weights[1]", "[4, 2]"]),
    ],
    ids=str,
)
def test_smooth_scales_refuses(x, weights, alpha, words):
    weights = np.ones((4, 3), np.float32) if weights is None else weights
    with pytest.raises((ValueError, NotImplementedError)) as refusal:
        kvant.smooth_scales(np.array(x, np.float32), weights, alpha)
    for word in words:
        assert word in str(refusal.value)


def folded(s, norm, bias, weights, name):
    c = ref.compute(name)
    s = s.astype(c)
    with np.errstate(all="ignore"):
        divide = lambda v: ref.narrow(ref.widen(v, name) / s, name)
        return divide(norm), divide(bias), [ref.narrow(ref.widen(w, name) * s, name) for w in weights]


@pytest.mark.parametrize("name", ref.FLOATS)
def test_apply_smoothing(name):
    s = np.exp2(rng(4).uniform(-2, 2, 19)).astype(np.float32)
    norm, bias = finite_floats((19,), name, 1), finite_floats((19,), name, 2)
    weights = [finite_floats((7, 19), name, 3), finite_floats((5, 19), name, 4)]
    special = ref.narrow(np.array([np.inf, -np.inf, np.nan, -0.0], ref.compute(name)), name)
    weights[0][0, :4] = norm[:4] = special
    want = folded(s, norm, bias, weights, name)
    assert kvant.apply_smoothing(s, norm, weights, bias) is None
    ref.same_bits(norm, want[0], name)
    ref.same_bits(bias, want[1], name)
    for w, wish in zip(weights, want[2]):
        ref.same_bits(w, wish, name)


def test_apply_smoothing_to_one_weight_without_bias_and_to_views():
    s = np.array([2.0, 0.5, 4.0], np.float32)
    norm, whole = np.ones(3, np.float32), np.ones((4, 5), np.float32)
    kvant.apply_smoothing(s, norm, whole[:, :3])
    assert norm.tolist() == [0.5, 2.0, 0.25]
    assert (whole[:, :3] == s).all() and (whole[:, 3:] == 1).all()


def test_the_layer_stays_what_it_was():
    """x / s meets W * s; exactly so for powers of two."""
    x, w = finite_floats((9, 16), "float64"), finite_floats((5, 16), "float64", 1)
    norm, before = np.ones(16), None
    before = (x * norm) @ w.T
    kvant.apply_smoothing(np.exp2(np.arange(-8, 8)).astype(np.float32), norm, w)
    ref.same_bits((x * norm) @ w.T, before)


def _ones(*shape):
    return np.ones(shape, np.float32)


def _read_only(a):
    a.setflags(write=False)
    return a


@pytest.mark.parametrize(
    "arguments,words",
    [
        (lambda: (_ones(3), _ones(2), _ones(4, 3)), ["norm_weight", "[2]", "[3]"]),
        (lambda: (_ones(3), _ones(3), _ones(4, 2)), ["weights[0]", "[4, 2]", "3"]),
        (lambda: (_ones(3), _ones(3), []), ["0 weights"]),
        (lambda: (_ones(3), _ones(3), _ones(4, 3), _ones(4)), ["norm_bias", "[4]"]),
        (lambda: (_ones(3) * 0, _ones(3), _ones(4, 3)), ["scales[0]", "0"]),
        (lambda: (_ones(3) * np.nan, _ones(3), _ones(4, 3)), ["scales[0]", "nan"]),
        (lambda: (-_ones(3), _ones(3), _ones(4, 3)), ["scales[0]", "-1"]),
        (lambda: (_ones(3) * 1e30, _ones(3), _ones(4, 3) * np.float32(1e30)), ["weights[0]", "overflow", "channel 0"]),
        (lambda: (_ones(3) * np.float32(1e-30), _ones(3) * np.float32(1e30), _ones(4, 3)), ["norm_weight", "overflow"]),
        (lambda: (_ones(3), _read_only(_ones(3)), _ones(4, 3)), ["norm_weight"]),
        (lambda: (_ones(3), _ones(3), _read_only(_ones(4, 3))), ["weights"]),
        (lambda: (_ones(3), _ones(6)[::2], _ones(4, 3)), ["norm_weight"]),
        (lambda: (_ones(3), _ones(3), _ones(3, 4).T), ["weights"]),
        (lambda: (_ones(3), _ones(3).astype(int), _ones(4, 3)), ["norm_weight"]),
        (lambda: (_ones(3), [1.0, 1.0, 1.0], _ones(4, 3)), ["norm_weight"]),
        (lambda: (_ones(3), None, _ones(4, 3)), ["norm_weight"]),
    ],
)
def test_apply_smoothing_refuses_and_writes_nothing(arguments, words):
    arguments = arguments()
    arrays = [a for group in arguments for a in (group if isinstance(group, list) else [group])]
    before = [np.array(a, copy=True) for a in arrays if isinstance(a, np.ndarray)]
    with pytest.raises((ValueError, NotImplementedError, TypeError)) as refusal:
        kvant.apply_smoothing(*arguments)
    for word in words:
        assert word in str(refusal.value)
    for a, b in zip([a for a in arrays if isinstance(a, np.ndarray)], before):
        ref.same_bits(a, b)


def test_apply_smoothing_refuses_overlap():
    shared = np.ones((5, 3), np.float32)
    for arguments in [
        (_ones(3), shared[0], shared),
        (_ones(3), _ones(3), [shared[:3], shared[2:]]),
        (shared[1], _ones(3), shared),
        (_ones(3), shared[0], _ones(4, 3), shared[0]),
    ]:
        with pytest.raises(ValueError, match="overlaps"):
            kvant.apply_smoothing(*arguments)
    assert (shared == 1).all()
