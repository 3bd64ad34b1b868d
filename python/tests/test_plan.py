"""kvant.plan: select, can_implement, workspace_size, sku, precision_guarantee and run of every plan."""

from types import SimpleNamespace

import numpy as np
import pytest

import kvant
import reference as ref
from kvant import plan
from samples import as_codes, codes, finite_floats, floats, rng

SHAPE = (6, 33)
X, DY = floats(SHAPE, "float32"), floats(SHAPE, "float32", 1)
Q, A, W = codes(SHAPE, "int8"), codes((6, 33), "int8", 2), codes((9, 33), "int8", 3)
TOKEN = np.exp2(rng(1).uniform(-4, 1, 6)).astype(np.float32)
CHANNEL = np.exp2(rng(2).uniform(-4, 1, 33)).astype(np.float32)
ZERO_POINTS = np.arange(33, dtype=np.int32)
WEIGHT_SCALE = np.exp2(rng(3).uniform(-4, 1, 9)).astype(np.float32)
BIAS = rng(4).normal(0, 1, 9).astype(np.float32)
SMOOTH = np.exp2(rng(5).uniform(-2, 2, 33)).astype(np.float32)


def case(cls, select, inputs, outputs, want, sku, **options):
    """inputs: what is read; outputs: name to dtype and shape; want: name to array; sku: how its name begins."""
    return SimpleNamespace(cls=cls, select=select, options=options, inputs=inputs, outputs=outputs, want=want, sku=sku)


DYNAMIC = kvant.dynamic_range_quantize(X, mode="asymmetric")
CASES = {
    "quantize": case(
        plan.QuantizePlan, (SHAPE,), {"input": X, "scale": 0.1, "zero_point": 3}, {"output": ("int8", SHAPE)},
        {"output": ref.quantize(X, "float32", 0.1, 3)}, "quantize_f32_s8__",
    ),
    "quantize_channel": case(
        plan.QuantizePlan, (SHAPE,), {"input": X, "scale": CHANNEL, "zero_point": ZERO_POINTS},
        {"output": ("uint8", SHAPE)},
        {
            "output": ref.quantize(
                X, "float32", CHANNEL, ZERO_POINTS, ("channel", 1), dtype="uint8", numerics="reciprocal"
            )
        },
        "quantize_f32_u8__", output="uint8", scope="channel", axis=-1, numerics="reciprocal",
    ),
    "dequantize": case(
        plan.DequantizePlan, (SHAPE,), {"input": Q, "scale": TOKEN}, {"output": ("float16", SHAPE)},
        {"output": ref.dequantize(Q, TOKEN, 0, ("token",), dtype="float16")}, "dequantize_s8_f16__",
        output="float16", scope="token",
    ),
    "fake_quantize": case(
        plan.FakeQuantizePlan, (SHAPE,), {"input": X, "scale": 0.1}, {"output": ("float32", SHAPE)},
        {"output": ref.fake_quantize(X, "float32", 0.1, 0, -8, 7)}, "fake_quantize_f32", q_min=-8, q_max=7,
    ),
    "quantize_backward": case(
        plan.QuantizeBackwardPlan, (SHAPE,), {"grad_output": DY, "input": X, "scale": 0.1, "zero_point": 2},
        {"grad_input": ("float32", SHAPE)},
        {"grad_input": ref.quantize_backward(DY, X, "float32", 0.1, 2, -8, 7)}, "quantize_backward_f32",
        q_min=-8, q_max=7,
    ),
    "fake_quantize_backward": case(
        plan.FakeQuantizeBackwardPlan, (SHAPE,), {"grad_output": DY, "input": X, "scale": TOKEN},
        {"grad_input": ("float32", SHAPE)},
        {"grad_input": ref.fake_quantize_backward(DY, X, "float32", TOKEN, 0, -128, 127, ("token",))},
        "fake_quantize_backward_f32", scope="token",
    ),
    "dequantize_backward": case(
        plan.DequantizeBackwardPlan, (SHAPE,), {"grad_output": DY, "scale": CHANNEL},
        {"grad_input": ("float32", SHAPE)},
        {"grad_input": ref.dequantize_backward(DY, "float32", CHANNEL, ("channel", 1))}, "dequantize_backward",
        scope="channel", axis=1,
    ),
    "range": case(
        plan.RangePlan, (SHAPE,), {"input": X},
        {"min_out": ("float32", (6,)), "max_out": ("float32", (6,)), "max_abs_out": ("float32", (6,))},
        {
            "min_out": np.array([ref.range_of(r)[0] for r in X]), "max_out": np.array([ref.range_of(r)[1] for r in X]),
            "max_abs_out": np.array([max(-ref.range_of(r)[0], ref.range_of(r)[1]) for r in X]),
        },
        "range_f32", scope="token",
    ),
    "dynamic_range_quantize": case(
        plan.DynamicRangeQuantizePlan, (SHAPE,), {"input": X},
        {"output": ("int8", SHAPE), "scale_out": ("float32", (6,)), "zero_point_out": ("int32", (6,))},
        dict(zip(("output", "scale_out", "zero_point_out"), DYNAMIC)), "dynamic_range_quantize_f32_s8__",
        mode="asymmetric",
    ),
    "w8a8_linear": case(
        plan.W8A8LinearPlan, (8, 33, 9),
        {"activation": A, "act_scale": TOKEN, "weight": W, "weight_scale": WEIGHT_SCALE, "bias": BIAS},
        {"output": ("float32", (6, 9))}, {"output": ref.linear(A, TOKEN, 0, W, WEIGHT_SCALE, 0, BIAS)}, "w8a8_linear_",
    ),
    "w8a8_linear_to_codes": case(
        plan.W8A8LinearPlan, (8, 33, 9),
        {
            "activation": A, "act_scale": TOKEN, "weight": W, "weight_scale": WEIGHT_SCALE, "bias": BIAS,
            "output_scale": 0.75, "output_zero_point": -3,
        },
        {"output": ("int8", (6, 9))},
        {"output": ref.linear_codes(A, TOKEN, 0, W, WEIGHT_SCALE, 0, BIAS, 0.75, -3, "int8")}, "w8a8_linear_s8__",
        output="int8",
    ),
    "smoothquant_linear": case(
        plan.SmoothQuantLinearPlan, (6, 33, 9, 0.1), {"activation": A, "weight": W, "weight_scale": WEIGHT_SCALE},
        {"output": ("float32", (6, 9))}, {"output": ref.linear(A, 0.1, 5, W, WEIGHT_SCALE, 0, None)},
        "smoothquant_linear_", act_zero_point=5,
    ),
    "quantized_linear": case(
        plan.QuantizedLinearPlan, (6, 33, 9), {"input": X, "weight": W, "weight_scale": WEIGHT_SCALE, "smooth": SMOOTH},
        {"output": ("float32", (6, 9))},
        {"output": ref.quantized_linear(X, "float32", W, WEIGHT_SCALE, smooth=SMOOTH, mode="asymmetric")},
        "quantized_linear_", mode="asymmetric", smooth=True,
    ),
}  # fmt: skip

each_case = pytest.mark.parametrize("key", CASES)


def select(c, **more):
    return c.cls.select(*c.select, **c.options, **more)


def buffers(c):
    return {name: np.full(shape, 99, dtype) for name, (dtype, shape) in c.outputs.items()}


def scratch(p):
    size = p.workspace_size()
    return {"workspace": np.empty(size, np.uint8)} if size else {}


def run(p, c, **more):
    outputs = buffers(c)
    assert p.run(**c.inputs, **outputs, **scratch(p), **more) is None
    return outputs


@each_case
def test_runs_and_equals_the_reference(key):
    c = CASES[key]
    p = select(c)
    assert isinstance(p, c.cls)
    for outputs in (run(p, c), run(p, c)):  # as often as wanted
        for name, want in c.want.items():
            ref.same_bits(outputs[name], want)


@each_case
def test_can_implement_says_yes(key):
    c = CASES[key]
    status = select(c).can_implement(**c.inputs, **buffers(c))
    assert isinstance(status, plan.Status)
    assert status.ok is True and bool(status) is True and status.code == "Ok" and status.message == ""
    assert "Ok" in repr(status) or "ok" in repr(status)


@each_case
def test_can_implement_says_no_and_run_raises(key):
    """For each output: another shape, another dtype, one that may not be written, one that is not in C order."""
    c = CASES[key]
    p = select(c)
    for name, (dtype, shape) in c.outputs.items():
        read_only = np.zeros(shape, dtype)
        read_only.setflags(write=False)
        other = "float64" if dtype != "float64" else "float32"
        wrong = {
            "shape": np.zeros(shape + (2,), dtype),
            "dtype": np.zeros(shape, other),
            "read-only": read_only,
            "order": np.zeros(shape[::-1] + (2,), dtype).T[0] if len(shape) > 1 else np.zeros(2 * shape[0], dtype)[::2],
            "none": None,
            "list": [1.0],
        }
        for kind, bad in wrong.items():
            if bad is None and key in ("range", "dynamic_range_quantize") and name != "output":
                if not (key == "dynamic_range_quantize" and name == "scale_out"):
                    continue  # not wanted
            arguments = {**c.inputs, **buffers(c), name: bad}
            status = p.can_implement(**arguments)
            assert not status and not status.ok and status.code in ("InvalidProblem", "Unsupported"), kind
            assert name in status.message and status.message in repr(status)
            with pytest.raises((ValueError, NotImplementedError)) as refusal:
                p.run(**arguments, **scratch(p))
            assert str(refusal.value) == status.message


@each_case
def test_copies_are_refused(key):
    """Inputs that a function would convert: another dtype, Fortran order, a list."""
    c = CASES[key]
    p = select(c)
    for name, value in c.inputs.items():
        if not isinstance(value, np.ndarray):
            continue
        forms = [value.astype(np.float64 if value.dtype != np.float64 else np.float32), value.tolist()]
        if value.ndim == 2:
            forms.append(np.asfortranarray(value))
        else:
            forms.append(np.repeat(value, 2)[::2])
        for form in forms:
            outputs = buffers(c)
            with pytest.raises((ValueError, NotImplementedError)) as refusal:
                p.run(**{**c.inputs, name: form}, **outputs, **scratch(p))
            assert name in str(refusal.value)
            assert all((a == 99).all() for a in outputs.values())  # nothing is written


@each_case
def test_arguments_go_by_name(key):
    c = CASES[key]
    with pytest.raises(TypeError):
        select(c).run(*c.inputs.values(), *buffers(c).values())
    with pytest.raises(TypeError):
        select(c).run(**c.inputs, **buffers(c), surprise=1)
    with pytest.raises(TypeError):
        select(c, surprise=1)
    with pytest.raises(TypeError):
        select(c).run()


@each_case
def test_workspace(key):
    c = CASES[key]
    p = select(c)
    size = p.workspace_size()
    assert isinstance(size, int) and size >= 0
    if size == 0:
        return
    for workspace in (None, np.empty(size - 1, np.uint8)):
        with pytest.raises(ValueError) as refusal:
            p.run(**c.inputs, **buffers(c), workspace=workspace)
        assert str(size) in str(refusal.value)
    read_only = np.empty(size, np.uint8)
    read_only.setflags(write=False)
    for workspace in (np.empty(size, np.float32), np.empty(2 * size, np.uint8)[::2], read_only, [1, 2], "text"):
        with pytest.raises((ValueError, NotImplementedError, TypeError), match="workspace"):
            p.run(**c.inputs, **buffers(c), workspace=workspace)
    p.run(**c.inputs, **buffers(c), workspace=np.empty(size + 100, np.uint8))


@each_case
def test_sku_and_precision_guarantee(key):
    c = CASES[key]
    p = select(c)
    sku, guarantee = p.sku(), p.precision_guarantee()
    assert isinstance(sku, plan.KernelSku) and isinstance(guarantee, plan.PrecisionGuarantee)
    assert sku.name.startswith(c.sku) and sku.name.endswith("__" + sku.isa)
    assert sku.isa in ("scalar", "avx2") and sku.backend == "cpu"
    assert sku.op == key.removesuffix("_channel").removesuffix("_to_codes") and sku.name in repr(sku)
    for promise in (guarantee, sku.precision_guarantee):
        assert promise.math_precision == ("float64" if "to_codes" in key else "float32")
        assert promise.bit_stable_on_same_hardware is True and promise.bit_stable_across_hardware is True
        assert promise.deterministic is True
        assert promise.accumulator == ("exact_integer" if "linear" in key else "none")
    assert "bit_stable" in repr(guarantee) or "PrecisionGuarantee" in repr(guarantee)


@each_case
def test_the_scalar_kernels_give_the_same_bits(key):
    c = CASES[key]
    p = select(c, isa="scalar")
    assert p.sku().isa == "scalar"
    for name, got in run(p, c).items():
        ref.same_bits(got, c.want[name])


@each_case
def test_streams(key):
    c = CASES[key]
    for threads in (1, 2, 5):
        stream = plan.Stream(threads)
        assert stream.threads == threads
        p = select(c, stream=stream)
        for name, got in run(p, c, stream=stream).items():
            ref.same_bits(got, c.want[name])
    with pytest.raises(ValueError, match="two"):
        select(c, stream="two")


@each_case
def test_one_plan_in_four_threads(key, in_threads):
    c = CASES[key]
    p = select(c)

    def work(_):
        for _ in range(50):
            for name, got in run(p, c).items():
                ref.same_bits(got, c.want[name])

    in_threads(4, work)


@each_case
def test_plans_are_made_by_select_only(key):
    with pytest.raises(TypeError):
        CASES[key].cls()


@each_case
def test_repr_helps(key):
    c = CASES[key]
    assert c.cls.__name__ in repr(select(c))


def bad_select(cls, *arguments, words, error=(ValueError, NotImplementedError), **options):
    name = f"{cls.__name__}-{arguments}-{options}"
    return pytest.param(cls, arguments, options, words, error, id=name)


@pytest.mark.parametrize(
    "cls,arguments,options,words,error",
    [
        bad_select(plan.QuantizePlan, (2, -3), words=["-3"]),
        bad_select(plan.QuantizePlan, (2**40, 2**40), words=[str(2**40)]),
        bad_select(plan.QuantizePlan, (1,) * 9, words=["9"]),
        bad_select(plan.QuantizePlan, (2, 3), input="int8", words=["int8"]),
        bad_select(plan.QuantizePlan, (2, 3), output="float32", words=["float32"]),
        bad_select(plan.QuantizePlan, (2, 3), output="int32", words=["int32"]),
        bad_select(plan.QuantizePlan, (2, 3), scope="rows", words=["rows"]),
        bad_select(plan.QuantizePlan, (2, 3), scope="channel", axis=2, words=["axis 2"]),
        bad_select(plan.QuantizePlan, (2, 3), scope="group", group_size=0, words=["group_size 0"]),
        bad_select(plan.QuantizePlan, (2, 3), scope="group", words=["group_size"]),
        bad_select(plan.QuantizePlan, (2, 3), scope="block", block_size=(2, 0), words=["columns 0"]),
        bad_select(plan.QuantizePlan, (6,), scope="block", block_size=(2, 2), words=["[6]", "at least 2"]),
        bad_select(plan.RangePlan, (2, 3), scope="block", words=["block_size"]),
        bad_select(plan.QuantizePlan, (2, 3), q_min=5, q_max=4, words=["q_min 5", "q_max 4"]),
        bad_select(plan.QuantizePlan, (2, 3), q_min=-129, words=["q_min -129", "-128"]),
        bad_select(plan.QuantizePlan, (2, 3), numerics="fast", words=["fast"]),
        bad_select(plan.QuantizePlan, (2, 3), isa="avx1024", words=["avx1024"]),
        bad_select(plan.QuantizePlan, "abc", words=[], error=(ValueError, TypeError)),
        bad_select(plan.QuantizePlan, (2, 3.5), words=[], error=(ValueError, TypeError)),
        bad_select(plan.QuantizePlan, None, words=[], error=(ValueError, TypeError)),
        bad_select(plan.QuantizePlan, (2**70,), words=[], error=(ValueError, OverflowError)),
        bad_select(plan.DequantizePlan, (2, 3), input="float32", words=["float32"]),
        bad_select(plan.DequantizePlan, (2, 3), output="int8", words=["int8"]),
        bad_select(plan.FakeQuantizePlan, (2, 3), element="uint8", words=["uint8"]),
        bad_select(plan.FakeQuantizePlan, (2, 3), q_max=2**24, words=["q_max 16777216"]),
        bad_select(plan.RangePlan, (2, 3), input="int32", words=["int32"]),
        bad_select(plan.DynamicRangeQuantizePlan, (2, 3), mode="odd", words=["odd"]),
        bad_select(plan.DynamicRangeQuantizePlan, (2, 3), q_min=-5, q_max=0, words=["q_max", "0"]),
        bad_select(plan.DynamicRangeQuantizePlan, (), words=["token"]),
        bad_select(plan.W8A8LinearPlan, -1, 2, 3, words=["max_rows -1"]),
        bad_select(plan.W8A8LinearPlan, 1, -2, 3, words=["in_features -2"]),
        bad_select(plan.W8A8LinearPlan, 1, 2, -3, words=["out_features -3"]),
        bad_select(plan.W8A8LinearPlan, 2**40, 2**40, 3, words=[str(2**40)]),
        bad_select(plan.W8A8LinearPlan, 1, 2, 3, weight="int4", words=["4"]),
        bad_select(plan.W8A8LinearPlan, 1, 2, 3, activation="float32", words=["32"]),
        bad_select(plan.W8A8LinearPlan, 1, 2, 3, output="int4", words=["output", "int4", "uint8"]),
        bad_select(plan.SmoothQuantLinearPlan, 1, 2, 3, 0.0, words=["act_scale 0"]),
        bad_select(plan.SmoothQuantLinearPlan, 1, 2, 3, float("nan"), words=["act_scale nan"]),
        bad_select(plan.SmoothQuantLinearPlan, 1, 2, 3, 1.0, act_zero_point=2**24, words=["16777216"]),
        bad_select(plan.QuantizedLinearPlan, 1, 2, 3, act_scale=-1.0, words=["act_scale -1"]),
        bad_select(plan.QuantizedLinearPlan, 1, 2, 3, act_zero_point=3, words=["act_zero_point 3"]),
    ],
)
def test_select_refuses(cls, arguments, options, words, error):
    with pytest.raises(error) as refusal:
        cls.select(*arguments, **options)
    for word in words:
        assert word in str(refusal.value)


@pytest.mark.parametrize("threads", [0, -1, 2**40, "a", 1.5])
def test_streams_refuse(threads):
    with pytest.raises((ValueError, TypeError, OverflowError)):
        plan.Stream(threads)


@pytest.mark.parametrize("name", ref.FLOATS)
@pytest.mark.parametrize("dtype", ref.CODES)
def test_every_type(name, dtype):
    x, q = floats((5, 7), name), as_codes(np.zeros((5, 7), ref.storage(dtype)), dtype)
    scale = np.exp2(rng(1).uniform(-4, 1, 5)).astype(ref.compute(name))
    p = plan.QuantizePlan.select((5, 7), input=name, output=dtype, scope="token")
    p.run(input=x, output=q, scale=scale)
    ref.same_bits(q, ref.quantize(x, name, scale, 0, ("token",), dtype=dtype))
    back = np.zeros((5, 7), ref.storage(name))
    p = plan.DequantizePlan.select((5, 7), input=dtype, output=name, scope="token")
    p.run(input=q, output=back, scale=scale)
    ref.same_bits(back, ref.dequantize(np.asarray(q), scale, 0, ("token",), dtype=name), name)
    assert ("f64" in p.sku().name) == (name == "float64")


def test_in_place_and_overlap():
    x = X.copy()
    p = plan.FakeQuantizePlan.select(SHAPE)
    p.run(input=x, output=x, scale=0.1)
    ref.same_bits(x, ref.fake_quantize(X, "float32", 0.1, 0, -128, 127))
    buffer = np.ones(7 * 33, np.float32)
    one, other = buffer[: 6 * 33].reshape(SHAPE), buffer[33:].reshape(SHAPE)
    status = p.can_implement(input=one, output=other, scale=0.1)
    assert status.code == "InvalidProblem" and "overlaps" in status.message
    with pytest.raises(ValueError, match="overlaps"):
        p.run(input=one, output=other, scale=0.1)
    assert (buffer == 1).all()


def test_ranges_accumulate():
    p = plan.RangePlan.select(SHAPE, scope="channel", axis=1, accumulate=True)
    low, high, most = np.full(33, np.inf, np.float32), np.full(33, -np.inf, np.float32), np.zeros(33, np.float32)
    for x in (X, DY):
        p.run(input=x, min_out=low, max_out=high, max_abs_out=most, **scratch(p))
    both = [ref.range_of(column) for column in np.concatenate([X, DY]).T]
    ref.same_bits(low, np.array([r[0] for r in both]))
    ref.same_bits(high, np.array([r[1] for r in both]))
    ref.same_bits(most, np.array([max(-r[0], r[1]) for r in both]))


def test_linear_plans_take_fewer_rows_and_packed_weights():
    c = CASES["w8a8_linear"]
    p = select(c)
    for rows in (0, 1, 6):
        y = np.zeros((rows, 9), np.float32)
        p.run(activation=A[:rows], act_scale=TOKEN[:rows], weight=kvant.PackedWeight(W), weight_scale=WEIGHT_SCALE,
              bias=BIAS, output=y, **scratch(p))  # fmt: skip
        ref.same_bits(y, c.want["output"][:rows])
    nine = codes((9, 33), "int8")
    y = np.zeros((9, 9), np.float32)
    status = p.can_implement(activation=nine, act_scale=1.0, weight=W, weight_scale=1.0, output=y)
    assert not status and "9 rows" in status.message and "max_rows 8" in status.message


def test_a_smoothing_vector_must_be_given_where_it_was_announced():
    c = CASES["quantized_linear"]
    p = select(c)
    inputs = {**c.inputs, "smooth": None}
    status = p.can_implement(**inputs, **buffers(c))
    assert not status and "no smooth is given" in status.message
    with pytest.raises(ValueError, match="no smooth is given"):
        p.run(**inputs, **buffers(c), **scratch(p))


def test_no_elements():
    p = plan.QuantizePlan.select((0, 5), scope="token")
    p.run(input=np.zeros((0, 5), np.float32), output=np.zeros((0, 5), np.int8), scale=np.zeros(0, np.float32))


def test_large_on_many_threads():
    x = finite_floats((300, 1031), "float32")
    q = np.zeros(x.shape, np.int8)
    p = plan.QuantizePlan.select(x.shape)
    p.run(input=x, output=q, scale=0.1, stream=plan.Stream(4))
    ref.same_bits(q, ref.quantize(x, "float32", 0.1, 0))
