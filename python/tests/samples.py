"""Arrays that the tests share, always the same ones."""

import numpy as np

import kvant
import reference as ref


def rng(*seed):
    return np.random.default_rng([2026, *seed])


def floats(shape, name, seed=0, spread=3.0):
    """Normal numbers with some of everything that is special mixed in, as arrays of type `name`."""
    random = rng(seed, len(shape))
    x = random.normal(0, spread, shape).astype(ref.compute(name))
    finfo = np.finfo(np.float32 if name == "bfloat16" else ref.storage(name))
    special = np.array(
        [np.nan, np.inf, -np.inf, -0.0, 0.0, 0.5, -0.5, 1.5, 2.5, -2.5, 63.5, 127.5, -128.5, 1e4, -1e4]
        + [float(finfo.tiny), float(finfo.tiny) / 4, -float(finfo.tiny) / 2, float(finfo.max), float(finfo.min)],
        x.dtype,
    )
    flat = x.reshape(-1)
    if flat.size > 8:  # a quarter of them
        where = random.permutation(flat.size)[: flat.size // 4]
        flat[where] = np.resize(random.permutation(special), where.size)
    return ref.narrow(x, name)


def finite_floats(shape, name, seed=0, spread=3.0):
    return ref.narrow(rng(seed, len(shape)).normal(0, spread, shape).astype(ref.compute(name)), name)


def near_ties(name, scale_of=127):
    """Rows of numbers next to halves of max|row| / scale_of, where a quotient and a product round differently."""
    c = ref.compute(name)
    largest = rng(31).uniform(0.1, 10, (60, 1)).astype(c)
    halves = np.arange(-126, 126).astype(c) + c(0.5)
    x = np.concatenate([largest, halves * (largest / c(scale_of))], axis=1)
    return ref.narrow(x.astype(c), name)


def codes(shape, dtype, seed=0):
    low, high = ref.CODE_RANGE[dtype]
    return rng(seed, len(shape)).integers(low, high + 1, shape).astype(ref.storage(dtype))


def as_codes(a, dtype):
    """The array as kvant takes codes of that dtype: 4 and 2 bits as a PackedArray."""
    return kvant.PackedArray.from_array(a, dtype) if dtype in ref.PACKED else a
