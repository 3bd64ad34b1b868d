"""Threads: the same bits for any number of them, and Python's lock is free while kvant works."""

import threading

import numpy as np
import pytest

import kvant
import reference as ref
from samples import codes, finite_floats

X = finite_floats((300, 1031), "float32")
W = codes((130, 1031), "int8")
TOKEN = np.full(300, 0.05, np.float32)

WORK = {
    "quantize": lambda: kvant.quantize_per_tensor(X, 0.01),
    "quantize_int4": lambda: kvant.quantize_per_token(X, TOKEN, dtype="int4"),
    "dequantize": lambda: kvant.dequantize_per_tensor(X.view(np.int8), 0.3),
    "fake_quantize": lambda: kvant.fake_quantize(X, TOKEN, 0, -8, 7, scope="token"),
    "backward": lambda: kvant.quantize_backward(X, X, 0.05, 0, -8, 7),
    "dynamic_token": lambda: kvant.dynamic_range_quantize(X),
    "dynamic_tensor": lambda: kvant.dynamic_range_quantize(X, scope="tensor", mode="asymmetric"),
    "dynamic_channel": lambda: kvant.dynamic_range_quantize(X, scope="channel", axis=1),
    "w8a8": lambda: kvant.w8a8_linear(W, 0.1, W, 0.2),
    "quantized_linear": lambda: kvant.quantized_linear(X, kvant.PackedWeight(W), 0.2),
    "smooth_scales": lambda: kvant.smooth_scales(np.abs(X[0]), X),
    "observer": lambda: observed(),
}


def observed():
    observer = kvant.Observer("mse", mode="asymmetric")
    observer.observe(X)
    return observer.parameters()


def as_bytes(result):
    return [np.asarray(part).tobytes() for part in (result if isinstance(result, tuple) else (result,))]


@pytest.mark.parametrize("work", WORK)
def test_the_same_bits_for_any_number_of_threads(work):
    results = []
    for threads in (1, 2, 3, 8):
        kvant.set_num_threads(threads)
        assert kvant.get_num_threads() == threads
        results.append(as_bytes(WORK[work]()))
    assert all(r == results[0] for r in results[1:])


@pytest.mark.parametrize("work", WORK)
def test_calls_from_many_python_threads(work, in_threads):
    kvant.set_num_threads(2)
    want = as_bytes(WORK[work]())

    def repeat(_):
        for _ in range(3):
            assert as_bytes(WORK[work]()) == want, "other bits"

    in_threads(8, repeat)


def test_threads_while_their_number_changes():
    want, stop, failures = as_bytes(WORK["quantize"]()), threading.Event(), []

    def repeat():
        while not stop.is_set():
            if as_bytes(WORK["quantize"]()) != want:
                failures.append("other bits")

    workers = [threading.Thread(target=repeat) for _ in range(3)]
    for w in workers:
        w.start()
    for threads in list(range(1, 9)) * 5:
        kvant.set_num_threads(threads)
    stop.set()
    for w in workers:
        w.join()
    assert not failures


def test_the_lock_is_free_during_a_call():
    """Another thread goes on counting inside one call. Python hands the lock over by force only between bytecodes, and
    a call into the extension is one: so a count that grows during the call means that the call let go."""
    x = np.ones((2000, 2000), np.float32)
    w = kvant.PackedWeight(np.ones((2000, 2000), np.int8))
    kvant.set_num_threads(1)
    count, stop = [0], threading.Event()

    def counter():
        while not stop.is_set():
            count[0] += 1

    thread = threading.Thread(target=counter)
    thread.start()
    try:
        call = kvant._kvant.quantized_linear
        arguments = (x, w, 0.1, 0, None, "symmetric", False, None, 0, None, "exact", None)
        grown = []
        for _ in range(20):  # until one call was interrupted by nothing else than the counter
            before = count[0]
            call(*arguments)
            grown.append(count[0] - before)
            if max(grown) > 1000:
                break
    finally:
        stop.set()
        thread.join()
    assert max(grown) > 1000


def test_results_are_right_while_the_lock_is_free(in_threads):
    """Inputs that only the call keeps alive are alive until it ends."""
    done = []

    def work(seed):
        for i in range(5):
            x = finite_floats((200, 501), "float32", seed * 100 + i)
            q = kvant.quantize_per_tensor(np.asfortranarray(x), [0.05], np.int64(3))
            ref.same_bits(q, ref.quantize(x, "float32", 0.05, 3))
        done.append(seed)

    in_threads(4, work)
    assert sorted(done) == [0, 1, 2, 3]
