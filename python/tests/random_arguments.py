"""Thousands of calls with arguments from a bag of everything. Prints how many gave results, how many were refused, and
how many ended in any other way, which are listed. A crash shows in the exit code: test_hostile.py runs this."""

import inspect
import random

import numpy as np

import kvant
import test_hostile as hostile
from test_plan import CASES, buffers, scratch

X, Q, W, TOKEN = hostile.X, hostile.Q, hostile.W, hostile.TOKEN
BAG = [
    *hostile.NO_ARRAYS.values(),
    *(0, 1, -1, 7, 2**31, -(2**63), 2**64, 0.5, -1.5, 1e-60, float("nan"), float("inf"), True, False, 1j),
    *("int8", "int4", "uint4", "float16", "bfloat16", "float64", "tensor", "channel", "token", "group", "block"),
    *("asymmetric", "reciprocal", np.int8, np.float16, np.float32(0.5), np.int64(3), b""),
    *([], (), (None, None, None), [1.0, 2.0], (4, 4), [[0.5] * 9] * 6),
    *(np.zeros(0, np.float32), np.zeros((0, 9), np.int8), np.zeros((6, 0), np.float32), np.array(3, np.int8)),
    *(np.array([0.5], np.float32), np.array([2]), np.zeros((6, 4), np.float32), np.zeros((6, 9), np.float32)),
    *(np.zeros((6, 9), np.int8), X, X.T, X[::-1], X[:, :5], X.astype(np.float64), X.astype(np.float16)),
    *(X.view(np.uint16)[:, :9], np.broadcast_to(np.float32(1), (6, 9)), np.ma.masked_array(X), memoryview(X)),
    *(Q, Q.T, Q.view(np.uint8), W, TOKEN, hostile.CHANNEL, hostile.GROUP, hostile.BLOCK, TOKEN.astype(np.float64)),
    *(np.arange(6), np.arange(9, dtype=np.int32), np.arange(18, dtype=np.int8)),
    kvant.PackedArray.from_array(np.zeros((6, 9), int)),
    kvant.PackedArray.from_array(np.zeros((4, 9), int), "uint4"),
    *(kvant.PackedArray.from_array(np.ones((6, 9), int), d) for d in ("float4_e2m1", "float8_e4m3", "int2")),
    *(kvant.PackedArray.from_array(np.ones(6, int), d) for d in ("float8_e4m3", "float8_e8m0")),
    *(Q.astype(np.int16), Q.astype(np.uint16), "float8_e4m3", "float8_e8m0", "float4_e2m1", "round_up"),
    kvant.PackedWeight(W),
    kvant.PackedWeight(W.view(np.uint8)),
    kvant.Observer(),
    kvant.plan.Stream(2),
    *(hostile.Dlpack(X.__dlpack__), hostile.Dlpack(Q.__dlpack__), hostile.Dlpack(None)),
]
NAMES = (
    "kind scope axis mode include_zero dtype q_min q_max percentile bins input_dtype input output element group_size "
    "block_size numerics isa stream grid saturate scale_dtype mx_rule finds_global_scale activation weight act_scale "
    "act_zero_point smooth accumulate"
).split()
ENDS = {"result": 0, "refusal": 0}
OTHER = {}


def attempt(name, function, positional, arguments, also=()):
    try:
        function(*positional, **arguments)
        ENDS["result"] += 1
    except (ValueError, NotImplementedError, MemoryError) as refusal:
        assert len(str(refusal)) > 5, name
        ENDS["refusal"] += 1
    except also:
        ENDS["refusal"] += 1
    except BaseException as error:  # noqa: BLE001: it is reported
        OTHER.setdefault((name, type(error).__name__), str(error)[:200])


def functions():
    for name, good in hostile.GOOD.items():
        function = getattr(kvant, name)
        parameters = list(inspect.signature(function).parameters)
        for _ in range(400):
            changed = random.sample(parameters, random.choice([1, 1, 2, 3, len(parameters)]))
            attempt(name, function, (), {**good, **{p: random.choice(BAG) for p in changed}})


def plans():
    for name, case in CASES.items():
        plan = case.cls.select(*case.select, **case.options)
        for _ in range(150):
            good = {**case.inputs, **buffers(case), **scratch(plan)}
            changed = random.sample(list(good), random.choice([1, 1, 2]))
            attempt(f"{name} plan", plan.run, (), {**good, **{p: random.choice(BAG) for p in changed}})


def classes():
    """Their methods have types of their own, and say TypeError too."""
    for _ in range(150):
        observer = kvant.Observer(random.choice(["min_max", "percentile", "mse"]), bins=16)
        observer.observe(X)
        for function in [
            *(kvant.PackedArray, kvant.PackedArray.from_array, kvant.PackedWeight, kvant.PackedWeight.from_bytes),
            *(kvant.Observer, observer.observe, observer.merge, kvant.plan.Stream),
            *(case.cls.select for case in CASES.values()),
        ]:
            positional = [random.choice(BAG) for _ in range(random.randint(1, 3))]
            if "select" in str(function) and random.random() < 0.7:
                positional = random.choice([[(6, 9)], [6, 33, 9], [6, 33, 9, 0.5]])
            arguments = {n: random.choice(BAG) for n in random.sample(NAMES, random.choice([0, 0, 1, 2]))}
            attempt(str(function), function, positional, arguments, (TypeError, OverflowError))


if __name__ == "__main__":
    random.seed(2026)
    np.seterr(all="ignore")
    functions()
    plans()
    classes()
    print(*ENDS.values(), len(OTHER))
    for key, text in OTHER.items():
        print(*key, text)
