"""What calls hold on to: nothing, once they have returned or refused. And what results hold: their own memory."""

import gc
import sys
import tracemalloc
import weakref

import numpy as np
import pytest

import kvant
from samples import codes
from test_hostile import GOOD, Dlpack, X, call
from test_plan import CASES, buffers, scratch, select


@pytest.fixture(autouse=True, scope="module")
def quick_collections():
    """What is there already is not looked through again: thousands of tests."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


def smallest(growth):
    """Of each count, the one nearest to 0."""
    return np.take_along_axis(np.array(growth), np.abs(growth).argmin(axis=0)[None], axis=0)[0]


def least_growth(measure, work, repeat, least=min):
    """A leak grows every time; anything else may grow once."""
    growth = []
    for _ in range(4):
        before = measure()
        for _ in range(repeat):
            work()
        gc.collect()
        growth.append(measure() - before)
    return least(growth)


def counted(arguments):
    """References to the arrays among them, and to None; a few may come and go on their own."""
    return [sys.getrefcount(a) for a in arguments.values() if isinstance(a, np.ndarray)] + [sys.getrefcount(None)]


def no_reference_is_kept(arguments, work):  # nor one given back that was not taken
    growth = least_growth(lambda: np.array(counted(arguments)), work, 10, smallest)
    assert (np.abs(growth) < 10).all(), growth


@pytest.mark.parametrize("function", GOOD)
def test_references_are_given_back(function):
    out = call(function)
    arguments = {k: v.copy() if isinstance(v, np.ndarray) else v for k, v in GOOD[function].items()}
    swapped = {k: v.astype(v.dtype.newbyteorder(">")) if isinstance(v, np.ndarray) else v for k, v in arguments.items()}
    for given in (arguments, swapped):

        def work():
            getattr(kvant, function)(**given, out=out)
            getattr(kvant, function)(**given)
            with pytest.raises(ValueError):
                getattr(kvant, function)(**given, out=7)

        no_reference_is_kept(given, work)


@pytest.mark.parametrize("key", CASES)
def test_plans_give_references_back(key):
    case = CASES[key]
    plan = select(case)
    arguments = {**case.inputs, **buffers(case)}

    def work():
        plan.run(**arguments, **scratch(plan))
        plan.can_implement(**arguments)
        with pytest.raises((ValueError, NotImplementedError)):
            plan.run(**{**arguments, next(iter(case.outputs)): 7}, **scratch(plan))

    no_reference_is_kept(arguments, work)


LEAKS = {
    **{name: (lambda name=name: call(name)) for name in GOOD},
    "int4": lambda: np.asarray(kvant.quantize_per_tensor(X, 0.1, dtype="int4")),
    "fortran": lambda: kvant.quantize_per_tensor(np.asfortranarray(X), 0.1),
    "dlpack": lambda: kvant.quantize_per_tensor(Dlpack(X.__dlpack__), 0.1),
    "lists": lambda: kvant.quantize_per_token(X.tolist(), [0.1] * 6, [1] * 6),
    "refusal": lambda: pytest.raises(ValueError, kvant.quantize_per_tensor, X, 0.0),
    "bad dtype": lambda: pytest.raises(ValueError, kvant.quantize_per_tensor, X, 0.1, dtype="int5"),
    "packed weight": lambda: kvant.PackedWeight.from_bytes(kvant.PackedWeight(codes((40, 50), "int8")).to_bytes()),
    "observer": lambda: kvant.Observer("mse").observe(X),
    "plan": lambda: kvant.plan.QuantizePlan.select((6, 9)).run(input=X, output=np.zeros((6, 9), np.int8), scale=0.1),
    "threads": lambda: kvant.set_num_threads(2),
    "info": kvant.info,
}


@pytest.mark.parametrize("work", LEAKS)
def test_nothing_is_leaked(work):
    """By what Python and numpy count as allocated."""
    tracemalloc.start()
    try:
        for _ in range(200):  # fills the caches of Python's and numpy's own
            LEAKS[work]()
        grown = least_growth(lambda: tracemalloc.get_traced_memory()[0], LEAKS[work], 50)
    finally:
        tracemalloc.stop()
    assert grown < 50 * 16, f"{grown} bytes in 50 calls"


def test_native_memory_is_given_back():
    """What tracemalloc does not see: workspaces, packed weights, histograms."""
    status = "/proc/self/statm"
    try:
        open(status).close()
    except OSError:
        pytest.skip("no /proc")

    def resident():
        with open(status) as f:
            return int(f.read().split()[1]) * 4096

    x, w = np.ones((64, 1024), np.float32), np.ones((1024, 1024), np.int8)

    def work():
        kvant.quantized_linear(x, w, 0.1)
        kvant.PackedWeight(w)
        observer = kvant.Observer("percentile", scope="channel", axis=1, bins=256)
        observer.observe(x)
        kvant.plan.W8A8LinearPlan.select(64, 1024, 1024)

    assert least_growth(resident, work, 20) < 20 * 2**20  # one leaked weight a time would be more


def test_results_outlive_what_they_were_made_from():
    def make():
        x = np.full((50, 60), 3.0, np.float32)
        return kvant.quantize_per_tensor(x, 0.5), kvant.quantize_per_tensor(x, 0.5, dtype="int4").packed

    made = [make() for _ in range(20)]
    gc.collect()
    np.full((50, 60), 9.0, np.float32)
    assert all((q == 6).all() and (packed == 0x66).all() for q, packed in made)


def test_dlpack_tensors_are_freed():
    class Mine(np.ndarray):
        pass

    x = np.ones((6, 9), np.float32).view(Mine)
    gone = weakref.ref(x)
    kvant.quantize_per_tensor(Dlpack(x.__dlpack__), 0.1)
    del x
    gc.collect()
    assert gone() is None


def test_views_keep_their_packed_bytes():
    owner = kvant.PackedArray.from_array(np.full((3, 4), 2))
    view = owner.packed
    del owner
    gc.collect()
    assert (view == 0x22).all()
