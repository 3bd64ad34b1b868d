"""Observer: static calibration."""

import numpy as np
import pytest

import kvant
import reference as ref
from samples import finite_floats, floats, rng

KINDS = ["min_max", "percentile", "mse"]


def batches(name, seed=0):
    return [floats((n, 5), name, seed + n) for n in (3, 1, 40, 0, 17)]


def want_of(x, name, where, **rules):
    return ref.dynamic_parameters(ref.widen(x, name), where, **rules)


@pytest.mark.parametrize("mode,include_zero", [("symmetric", True), ("asymmetric", True), ("asymmetric", False)])
@pytest.mark.parametrize("dtype", ref.CODES)
@pytest.mark.parametrize("name", ref.FLOATS)
@pytest.mark.parametrize("where", [("tensor",), ("channel", 1)])
def test_min_max(where, name, dtype, mode, include_zero):
    scope = dict(zip(("scope", "axis"), where))
    observer = kvant.Observer(mode=mode, include_zero=include_zero, dtype=dtype, input_dtype=name, **scope)
    for x in batches(name):
        observer.observe(x)
    everything = np.concatenate(batches(name))
    low, high = ref.CODE_RANGE[dtype]
    rules = {"mode": mode, "q_min": low, "q_max": high, "include_zero": include_zero}
    scale, zero_point = observer.parameters()
    want_scale, want_zero_point = want_of(everything, name, where, **rules)
    ref.same_bits(scale, want_scale)
    ref.same_bits(zero_point, want_zero_point)
    wide = ref.widen(everything, name).astype(np.float64)
    ranges = [ref.range_of(wide[index]) for _, index in ref.segments(wide.shape, *where)]
    assert observer.min.shape == observer.max.shape == observer.max_abs.shape == scale.shape == want_scale.shape
    assert observer.min.reshape(-1).tolist() == [r[0] for r in ranges]
    assert observer.max.reshape(-1).tolist() == [r[1] for r in ranges]
    assert observer.max_abs.reshape(-1).tolist() == [max(-r[0], r[1]) for r in ranges]
    assert observer.observed == np.isfinite(wide).sum()
    assert observer.ignored == (~np.isfinite(wide)).sum()


def test_its_parameters_are_taken_by_the_functions():
    x = finite_floats((40, 6), "float32")
    tensor, channel = kvant.Observer(), kvant.Observer(scope="channel", axis=-1)
    tensor.observe(x)
    channel.observe(x)
    scale, zero_point = tensor.parameters()
    ref.same_bits(kvant.quantize_per_tensor(x, scale, zero_point), ref.quantize(x, "float32", scale, zero_point))
    scale, zero_point = channel.parameters()
    assert scale.shape == zero_point.shape == (6,)
    want = ref.quantize(x, "float32", scale, zero_point, ("channel", 1))
    ref.same_bits(kvant.quantize_per_channel(x, scale, zero_point, -1), want)


def outer_edge(values, percentile, bins):
    """The bin's outer edge that keeps `percentile` percent of the magnitudes inside, cut to the largest."""
    magnitudes = np.sort(np.abs(values.astype(np.float64)))
    k = int(np.frexp(magnitudes[-1])[1])
    width = 2.0 ** (k + 1) / bins
    kept = magnitudes[int(np.ceil(percentile / 100 * magnitudes.size)) - 1]
    return kept, width, magnitudes[-1]


@pytest.mark.parametrize("percentile", [51.0, 90.0, 99.0, 99.99, 100.0])
def test_percentile(percentile):
    x = rng(3).normal(0, 1, 20000).astype(np.float32)
    x[77] = 50.0  # an outlier
    observer = kvant.Observer("percentile", percentile=percentile)
    observer.observe(x)
    kept, width, largest = outer_edge(x, percentile, 4096)
    edge = float(np.asarray(observer.parameters()[0]).reshape(())) * 127
    if percentile == 100:
        assert edge == pytest.approx(largest, rel=1e-6)
    else:  # a bin is as much as is known
        assert kept - 1e-6 <= edge <= kept + 1.01 * width < largest


def squared_error(x, scale):
    back = kvant.fake_quantize(x, scale, 0, -8, 7)
    return float(((back.astype(np.float64) - x) ** 2).sum())


def test_mse_has_a_smaller_error_than_the_whole_range():
    x = rng(3).standard_t(3, 20000).astype(np.float32)
    errors = {}
    for kind in KINDS:
        observer = kvant.Observer(kind, dtype="int4")
        observer.observe(x)
        errors[kind] = squared_error(x, observer.parameters()[0])
    best = min(squared_error(x, s) for s in np.linspace(0.05, np.abs(x).max() / 7, 200))
    assert errors["mse"] < 0.5 * errors["min_max"]
    assert errors["mse"] <= 1.01 * best


@pytest.mark.parametrize("scope", [{}, {"scope": "channel", "axis": 1}])
@pytest.mark.parametrize("kind", KINDS)
def test_the_cut_into_batches_does_not_matter(kind, scope):
    x = floats((600, 4), "float32")
    orders = {
        "whole": [x],
        "rows": list(x[:, None, :]),
        "backwards": [x[300:][::-1], x[:300][::-1]],
    }
    results = []
    for parts in orders.values():
        observer = kvant.Observer(kind, mode="asymmetric", **scope)
        for part in parts:
            observer.observe(part)
        results.append([np.asarray(a).tobytes() for a in observer.parameters()] + [observer.observed, observer.ignored])
    assert results[0] == results[1] == results[2]


@pytest.mark.parametrize("kind", KINDS)
def test_merge_equals_observing_all(kind):
    x = floats((60, 4), "float32")
    make = lambda: kvant.Observer(kind, scope="channel", axis=1)
    whole, left, right, empty = make(), make(), make(), make()
    whole.observe(x)
    left.observe(x[:13])
    right.observe(x[13:])
    assert left.merge(right) is None
    left.merge(empty)
    empty.merge(left)
    for merged in (left, empty):
        for a, b in zip(merged.parameters(), whole.parameters()):
            ref.same_bits(a, b)
        assert (merged.observed, merged.ignored) == (whole.observed, whole.ignored)


@pytest.mark.parametrize("kind", KINDS)
def test_reset_and_nothing_seen(kind):
    observer = kvant.Observer(kind)
    assert observer.kind == kind
    for _ in range(2):
        assert (observer.observed, observer.ignored, observer.min.size, observer.max.size) == (0, 0, 0, 0)
        with pytest.raises(ValueError, match="no elements"):
            observer.parameters()
        observer.observe(np.ones((0, 3), np.float32))
        observer.observe(np.array([1.0, np.nan], np.float32))
        assert (observer.observed, observer.ignored) == (1, 1)
        observer.reset()
    observer.observe(np.array([np.nan, np.inf], np.float32))
    scale, zero_point = observer.parameters()
    assert np.asarray(scale).reshape(-1).tolist() == [1.0] and np.asarray(zero_point).reshape(-1).tolist() == [0]


def test_the_input_type_is_that_of_the_first_batch():
    observer = kvant.Observer()
    observer.observe(finite_floats((5,), "float64"))
    assert observer.parameters()[0].dtype == np.float64
    observer = kvant.Observer(input_dtype="bfloat16")
    observer.observe(finite_floats((5,), "bfloat16"))
    assert observer.parameters()[0].dtype == np.float32


def test_views_are_observed():
    x = finite_floats((8, 12), "float32")
    for view in (x[:, :5], x.T, x[::-2], np.asfortranarray(x), x.astype(">f4")):
        observer = kvant.Observer()
        observer.observe(view)
        assert (observer.min, observer.max, observer.observed) == (view.min(), view.max(), view.size)


def test_reset_and_empty_batches_leave_the_input_type_open():
    """A batch without elements changes nothing, and reset() forgets all batches."""
    observer = kvant.Observer()
    observer.observe(np.zeros((0, 3), np.float64))
    observer.observe(np.ones(3, np.float32))
    assert observer.parameters()[0].dtype == np.float32
    observer.reset()
    observer.observe(np.ones(3, np.float64))
    assert observer.parameters()[0].dtype == np.float64


@pytest.mark.parametrize("kind", KINDS)
def test_merging_with_itself_counts_twice(kind):
    observer = kvant.Observer(kind)
    observer.observe(floats((50, 4), "float32"))
    before, observed = [a.tobytes() for a in observer.parameters()], observer.observed
    observer.merge(observer)
    assert ([a.tobytes() for a in observer.parameters()], observer.observed) == (before, 2 * observed)


def test_repr_helps():
    observer = kvant.Observer("mse", scope="channel", axis=1)
    observer.observe(np.ones((3, 4), np.float32))
    for word in ("Observer", "mse", "channel", "12"):
        assert word in repr(observer)


@pytest.mark.parametrize(
    "options,words",
    [
        ({"kind": "median"}, ["median"]),
        ({"scope": "token"}, ["token"]),
        ({"scope": "group"}, ["group"]),
        ({"scope": "rows"}, ["rows"]),
        ({"scope": "channel"}, ["axis"]),
        ({"mode": "odd"}, ["odd"]),
        ({"dtype": "int32"}, ["int32"]),
        ({"dtype": "float32"}, ["float32"]),
        ({"input_dtype": "int8"}, ["int8"]),
        ({"kind": "percentile", "percentile": 50}, ["percentile", "50"]),
        ({"kind": "percentile", "percentile": 100.5}, ["percentile", "100.5"]),
        ({"kind": "percentile", "percentile": float("nan")}, ["percentile", "nan"]),
        ({"bins": 100}, ["bins", "100"]),
        ({"bins": 2**21}, ["bins", "2097152"]),
        ({"bins": 0}, ["bins", "0"]),
        ({"bins": -16}, ["bins", "-16"]),
        ({"bins": 2**70}, ["bins"]),
        ({"q_min": -129}, ["q_min", "-129"]),
        ({"q_max": 128}, ["q_max", "128"]),
        ({"q_min": 5, "q_max": 4}, ["q_min 5", "q_max 4"]),
        ({"q_max": 0, "q_min": -5}, ["q_max", "0"]),
        ({"mode": "asymmetric", "q_min": 4, "q_max": 4}, ["4"]),
    ],
    ids=str,
)
def test_creation_refuses(options, words):
    options = {"kind": "mse", **options}
    with pytest.raises((ValueError, NotImplementedError)) as refusal:
        kvant.Observer(**options)
    for word in words:
        assert word in str(refusal.value)


def test_observe_and_merge_refuse_and_change_nothing():
    observer = kvant.Observer(scope="channel", axis=1)
    observer.observe(np.ones((3, 4), np.float32))
    for bad, words in [
        (np.ones((3, 5), np.float32), ["5", "4"]),
        (np.ones((3, 4), np.float64), ["float64", "f64"]),
        (np.ones((3, 4), np.int8), ["int8", "s8"]),
        (np.ones(4, np.float32), ["axis", "1"]),
        (None, ["x has dtype object"]),
    ]:
        with pytest.raises((ValueError, NotImplementedError)) as refusal:
            observer.observe(bad)
        assert any(word in str(refusal.value) for word in words)
    for options, word in [({"kind": "mse"}, "kind"), ({"dtype": "uint8"}, "uint8|u8|output"), ({"axis": 0}, "axis")]:
        other = kvant.Observer(**{"scope": "channel", "axis": 1, **options})
        for _ in range(2):  # whether it has seen something or not
            with pytest.raises(ValueError, match=word):
                observer.merge(other)
            other.observe(np.ones((4, 4), np.float32))
    for not_one in (None, 3, "x"):
        with pytest.raises((ValueError, TypeError)):
            observer.merge(not_one)
    assert observer.observed == 12
