"""kvant against torch, and kvant.torch: what agrees bit for bit, and where torch differs."""

import copy
import doctest
import json
import math
import os
import pickle
import re
import struct
import subprocess
import sys
import typing
import warnings
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import kvant  # noqa: E402
import kvant.torch  # noqa: E402
from kvant.torch import FakeQuantize, QuantizedLinear, calibrate, fake_quantize, quantize_model  # noqa: E402
from kvant.torch.safetensors import write_safetensors  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn.utils import parametrize  # noqa: E402

# torch.quantize_per_tensor and its kin are deprecated, and still what people compare with.
pytestmark = pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor, torch.quantize_per_channel and other")

ROOT = Path(__file__).resolve().parents[2]
FLOATS = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
BITS = {torch.float32: torch.int32, torch.float64: torch.int64, torch.float16: torch.int16, torch.bfloat16: torch.int16}
SCALES = [0.1, 0.0123, 1 / 3, 0.00214854861, 2.0**-7, 1.7]
NAN, INF = float("nan"), float("inf")


@pytest.fixture(scope="module", autouse=True)
def one_thread_of_torch():
    # Tensors this small are not worth waking other threads, which takes seconds where cores are shared.
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def same_bits(a, b):
    return a.dtype == b.dtype and a.shape == b.shape and torch.equal(a.view(BITS[a.dtype]), b.view(BITS[b.dtype]))


def values_for(scale, count=1 << 20, seed=0, dtype=torch.float32):
    """Random numbers over the range and beyond it, every tie and its neighbours, zeros of both signs, denormals."""
    generator = torch.Generator().manual_seed(seed)
    ties = (torch.arange(-400, 400, dtype=torch.float64) + 0.5) * scale
    ties = ties.to(dtype)
    around = [torch.nextafter(ties, torch.full_like(ties, end)) for end in (INF, -INF)] if dtype.itemsize >= 4 else []
    return torch.cat([
        (torch.randn(count, generator=generator) * 60 * scale).to(dtype), ties, *around,
        torch.tensor([0.0, -0.0, 1e-40, -1e-40, 1e6 * scale, -1e6 * scale], dtype=dtype),
    ])  # fmt: skip


# ---- Bit for bit with torch -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("dtype", ["int8", "uint8"])
def test_quantize_per_tensor_equals_torch(scale, dtype):
    x = values_for(scale)
    theirs = torch.quantize_per_tensor(x, scale, 0, torch.qint8 if dtype == "int8" else torch.quint8).int_repr()
    ours = kvant.quantize_per_tensor(x, scale, 0, dtype=dtype, numerics="reciprocal")
    assert ours.dtype == theirs.dtype and torch.equal(ours, theirs)


def differ_near_ties_only(x, scale, ours, theirs):
    steps = x.double() * (1 / torch.tensor(scale, dtype=torch.float32)).double()
    off = ours != theirs
    assert (steps[off] - steps[off].floor() - 0.5).abs().max() < 2.0**-15
    assert (ours[off].int() - theirs[off].int()).abs().max() == 1
    assert off.sum() < 2000  # of a million, and 2400 values were put there to provoke it


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("dtype,zero_point", [("int8", 3), ("int8", -28), ("uint8", 128), ("uint8", 17)])
def test_quantize_with_zero_point_equals_torch_but_for_ties(scale, dtype, zero_point):
    # torch.quantize_per_tensor rounds x * inv + zero_point (FBGEMM, in a fused multiply-add), so an odd zero point
    # turns ties the other way and the sum is rounded once more; kvant rounds first, as ONNX does, and as torch's own
    # fake quantization does, with which it agrees everywhere (below).
    x = values_for(scale)
    qtype = torch.qint8 if dtype == "int8" else torch.quint8
    theirs = torch.quantize_per_tensor(x, scale, zero_point, qtype).int_repr()
    ours = kvant.quantize_per_tensor(x, scale, zero_point, dtype=dtype, numerics="reciprocal")
    differ_near_ties_only(x, scale, ours, theirs)
    # Per channel torch has the same sum, without the fused multiply-add.
    scales, zero_points = torch.tensor([scale]), torch.tensor([zero_point])
    theirs = torch.quantize_per_channel(x[None], scales, zero_points, 0, qtype).int_repr()
    ours = kvant.quantize_per_channel(x[None], scales, zero_points, 0, dtype=dtype, numerics="reciprocal")
    differ_near_ties_only(x, scale, ours[0], theirs[0])


def test_quantize_specials_against_torch():
    x = torch.tensor([INF, -INF, 3e38, -3e38, 1e10, -1e10, 3e9, -3e9, -0.0, 1e-45] * 4)
    for qtype, dtype in ((torch.qint8, "int8"), (torch.quint8, "uint8")):
        theirs = torch.quantize_per_tensor(x, 0.5, 3, qtype).int_repr()
        assert torch.equal(kvant.quantize_per_tensor(x, 0.5, 3, dtype=dtype, numerics="reciprocal"), theirs)
    # NaN: torch gives what its instructions happen to leave (127 per tensor, 0 per channel); kvant the zero point.
    nan = torch.full((40,), NAN)
    assert (kvant.quantize_per_tensor(nan, 0.5, 3) == 3).all()


@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize("dtype", ["int8", "uint8"])
def test_quantize_per_channel_equals_torch(axis, dtype):
    generator = torch.Generator().manual_seed(axis)
    x = torch.randn(96, 100, 110, generator=generator) * 3
    scales = torch.rand(x.shape[axis], generator=generator) * 0.1 + 1e-3
    zeros = torch.zeros(x.shape[axis], dtype=torch.int64)
    qtype = torch.qint8 if dtype == "int8" else torch.quint8
    theirs = torch.quantize_per_channel(x, scales, zeros, axis, qtype).int_repr()
    for zero_point in (zeros, None):
        ours = kvant.quantize_per_channel(x, scales, zero_point, axis, dtype=dtype, numerics="reciprocal")
        assert torch.equal(ours, theirs)


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize(
    "zero_point,q_min,q_max", [(0, -128, 127), (5, -128, 127), (128, 0, 255), (-1, -8, 7), (7, 0, 15)]
)
def test_fake_quantize_equals_torch(scale, zero_point, q_min, q_max):
    # With all zero points, as torch's fake quantization adds it after rounding.
    x = values_for(scale, 1 << 19)
    theirs = torch.fake_quantize_per_tensor_affine(x, scale, zero_point, q_min, q_max)
    assert same_bits(kvant.fake_quantize(x, scale, zero_point, q_min, q_max, numerics="reciprocal"), theirs)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_fake_quantize_of_all_halves_equals_torch(dtype):
    x = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(dtype)
    x = x[torch.isfinite(x)]
    for scale in SCALES:
        theirs = torch.fake_quantize_per_tensor_affine(x, scale, 3, -128, 127)
        assert same_bits(kvant.fake_quantize(x, scale, 3, -128, 127, numerics="reciprocal"), theirs)


def test_fake_quantize_specials_against_torch():
    x = torch.tensor([INF, -INF, 3e38, -3e38, 1e10, -0.0, -0.2] * 8)
    theirs = torch.fake_quantize_per_tensor_affine(x, 0.5, 3, -128, 127)
    assert same_bits(kvant.fake_quantize(x, 0.5, 3, -128, 127, numerics="reciprocal"), theirs)
    # NaN: torch makes the least value of it, kvant keeps it.
    assert kvant.fake_quantize(torch.full((9,), NAN), 0.5, 3, -128, 127).isnan().all()
    # Per channel torch converts to 64-bit integers before it clamps, so what is beyond 2^63 becomes the least value, be
    # it positive; kvant gives the end that is nearest.
    scale, zero_point = torch.tensor([0.5]), torch.tensor([3], dtype=torch.int32)
    x = torch.tensor([[INF, 3e38, 1e30]])
    assert torch.equal(kvant.fake_quantize(x, scale, zero_point, -128, 127, axis=0), torch.full((1, 3), 62.0))
    # float64: torch computes with a float32 inverse, kvant in float64. A scale that is a power of two makes them equal.
    x = torch.linspace(-3, 3, 1001, dtype=torch.float64)
    theirs = torch.fake_quantize_per_tensor_affine(x, 0.25, 3, -8, 7)
    assert torch.equal(kvant.fake_quantize(x, 0.25, 3, -8, 7, numerics="reciprocal"), theirs)


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_fake_quantize_per_channel_equals_torch(axis):
    generator = torch.Generator().manual_seed(axis)
    x = torch.randn(96, 100, 110, generator=generator) * 3
    scale = torch.rand(x.shape[axis], generator=generator) * 0.1 + 1e-3
    zero_point = torch.randint(-20, 20, (x.shape[axis],), generator=generator, dtype=torch.int32)
    theirs = torch.fake_quantize_per_channel_affine(x, scale, zero_point, axis, -128, 127)
    assert same_bits(kvant.fake_quantize(x, scale, zero_point, -128, 127, axis=axis, numerics="reciprocal"), theirs)


@pytest.mark.parametrize("scale", SCALES)
def test_gradient_equals_torch(scale):
    x = values_for(scale, 1 << 19).requires_grad_()
    dy = torch.randn(x.shape, generator=torch.Generator().manual_seed(1))
    (theirs,) = torch.autograd.grad(torch.fake_quantize_per_tensor_affine(x, scale, 3, -128, 127), x, dy)
    (ours,) = torch.autograd.grad(fake_quantize(x, scale, 3, numerics="reciprocal"), x, dy)
    # torch multiplies by the mask, so that -0.0 comes of negative gradients; kvant has +0.0 there.
    assert torch.equal(ours, theirs)
    assert same_bits(ours + 0.0, theirs + 0.0)
    assert ((ours == 0) == ((x < (-131.5) * scale) | (x > 124.5 * scale) | (dy == 0))).float().mean() > 0.999


def test_gradient_per_channel_equals_torch():
    generator = torch.Generator().manual_seed(0)
    x = (torch.randn(64, 200, 40, generator=generator) * 3).requires_grad_()
    dy = torch.randn(x.shape, generator=generator)
    scale = torch.rand(200, generator=generator) * 0.05 + 1e-3
    zero_point = torch.randint(-20, 20, (200,), generator=generator, dtype=torch.int32)
    (theirs,) = torch.autograd.grad(torch.fake_quantize_per_channel_affine(x, scale, zero_point, 1, -128, 127), x, dy)
    (ours,) = torch.autograd.grad(fake_quantize(x, scale, zero_point, axis=1, numerics="reciprocal"), x, dy)
    assert same_bits(ours + 0.0, theirs + 0.0)


# ---- Tensors in and out ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", FLOATS)
def test_a_tensor_gives_tensors_of_its_kind(dtype):
    x = torch.linspace(-2, 2, 48, dtype=dtype).reshape(3, 16)
    q = kvant.quantize_per_tensor(x, 0.25)
    assert isinstance(q, torch.Tensor) and q.dtype == torch.int8 and q.shape == x.shape
    name = str(dtype)[len("torch.") :]
    back = kvant.dequantize_per_tensor(q, 0.25, dtype=name)
    assert isinstance(back, torch.Tensor) and back.dtype == dtype
    assert torch.equal(back, torch.round(x.double() / 0.25).mul(0.25).to(dtype))
    y = kvant.fake_quantize(x, 0.25, 0, -128, 127)
    assert y.dtype == dtype and same_bits(y + 0.0, back + 0.0)
    codes, scale, zero_point = kvant.dynamic_range_quantize(x)
    assert all(isinstance(t, torch.Tensor) for t in (codes, scale, zero_point))
    assert scale.dtype == (torch.float64 if dtype == torch.float64 else torch.float32) and scale.shape == (3,)
    assert zero_point.dtype == torch.int32
    assert torch.equal(codes, torch.round(x.to(scale.dtype) / scale[:, None]).to(torch.int8))


@pytest.mark.parametrize("dtype", FLOATS)
def test_out_is_written_in_place(dtype):
    x = torch.linspace(-2, 2, 48, dtype=dtype)
    q = torch.empty(48, dtype=torch.int8)
    assert kvant.quantize_per_tensor(x, 0.25, out=q) is q
    assert torch.equal(q, kvant.quantize_per_tensor(x, 0.25))
    y = torch.empty_like(x)
    at = y.data_ptr()
    assert kvant.fake_quantize(x, 0.25, 0, -128, 127, out=y) is y and y.data_ptr() == at
    kvant.fake_quantize(x, 0.25, 0, -128, 127, out=x)  # x itself
    assert torch.equal(x, y)


def test_out_of_a_plan_shares_memory_both_ways():
    # A plan refuses what it would have to copy, so what it takes is read and written in place.
    x = torch.linspace(-2, 2, 64, dtype=torch.bfloat16).reshape(4, 16)
    q = torch.zeros(4, 16, dtype=torch.int8)
    plan = kvant.plan.QuantizePlan.select((4, 16), input="bfloat16", output="int8")
    plan.run(input=x, output=q, scale=0.25)
    assert torch.equal(q, kvant.quantize_per_tensor(x, 0.25))
    with pytest.raises(ValueError):
        plan.run(input=x.T.contiguous().T, output=q, scale=0.25)


def test_numpy_results_go_to_torch_without_copies():
    q = kvant.quantize_per_tensor(np.linspace(-2, 2, 64, dtype=np.float32), 0.25)
    assert isinstance(q, np.ndarray)
    t = torch.from_dlpack(q)
    assert t.data_ptr() == q.ctypes.data
    t[0] = 99
    assert q[0] == 99
    # bfloat16 is uint16 in numpy.
    bits = kvant.dequantize_per_tensor(q, 0.25, dtype="bfloat16")
    t = torch.from_dlpack(bits).view(torch.bfloat16)
    assert t.data_ptr() == bits.ctypes.data
    assert torch.equal(t, kvant.dequantize_per_tensor(torch.from_dlpack(q), 0.25, dtype="bfloat16"))
    # The other way round numpy sees the tensor that kvant made.
    made = kvant.quantize_per_tensor(torch.linspace(-2, 2, 64), 0.25)
    assert np.from_dlpack(made).ctypes.data == made.data_ptr()


def test_results_outlive_what_they_came_from():
    made = [kvant.quantize_per_tensor(torch.full((1000,), float(i)), 1.0) for i in range(100)]
    assert all((q == i).all() for i, q in enumerate(made))
    made[0].resize_(10)  # torch owns it
    views = [torch.from_dlpack(kvant.quantize_per_tensor(np.full(1000, i, np.float32), 1.0)) for i in range(100)]
    assert all((q == i).all() for i, q in enumerate(views))


NOT_CONTIGUOUS = {
    "transposed": lambda x: x.T,
    "every other column": lambda x: x[:, ::2],
    "columns": lambda x: x[:, 3:50],
    "every third row": lambda x: x[::3],
    "expanded": lambda x: x[:1].expand(7, -1),
    "expanded column": lambda x: x[:, :1].expand(-1, 9),
    "permuted": lambda x: x.reshape(4, 10, 60).permute(2, 0, 1),
    "channels last": lambda x: x.reshape(1, 4, 10, 60).to(memory_format=torch.channels_last),
    "flipped": lambda x: x.flip(1),
    "offset": lambda x: x.reshape(-1)[1:],
    "one element": lambda x: x[3:4, 5:6],
    "no element": lambda x: x[:, :0],
    "no dimension": lambda x: x[3, 5],
}


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("view", NOT_CONTIGUOUS)
def test_strided_tensors(view, dtype):
    x = torch.randn(40, 60, generator=torch.Generator().manual_seed(0)).to(dtype)
    x = NOT_CONTIGUOUS[view](x)
    dense = torch.empty(x.shape, dtype=dtype).copy_(x)
    assert torch.equal(kvant.quantize_per_tensor(x, 0.1), kvant.quantize_per_tensor(dense, 0.1))
    assert same_bits(kvant.fake_quantize(x, 0.1, 0, -8, 7), kvant.fake_quantize(dense, 0.1, 0, -8, 7))
    back = kvant.fake_quantize_backward(x, x, 0.1, 0, -8, 7)
    assert back.shape == x.shape and same_bits(back, kvant.fake_quantize_backward(dense, dense, 0.1, 0, -8, 7))


@pytest.mark.parametrize("kind", [lambda t: t.requires_grad_(), nn.Parameter], ids=["tensor", "Parameter"])
def test_tensors_that_require_grad_are_refused_with_a_sentence(kind):
    what = kind(torch.ones(4))
    for call in (
        lambda: kvant.quantize_per_tensor(what, 0.1),
        lambda: kvant.fake_quantize(what, 0.1, 0, -8, 7),
        lambda: kvant.dynamic_range_quantize(what.reshape(2, 2)),
        lambda: kvant.quantize_per_channel(torch.ones(4, 3), what, None, 0),
        lambda: kvant.quantize_per_tensor(torch.ones(4), 0.1, out=what),
    ):
        with pytest.raises((ValueError, BufferError, TypeError), match="grad"):
            call()
    kvant.quantize_per_tensor(what.detach(), 0.1)


def test_tensors_that_are_not_dense_numbers_are_refused():
    for bad in (
        torch.ones(3, dtype=torch.complex64), torch.ones(3, dtype=torch.int32), torch.ones(3, dtype=torch.bool),
        torch.ones(3, device="meta"), torch.eye(3).to_sparse(),
        torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8),
    ):  # fmt: skip
        with pytest.raises((ValueError, TypeError, NotImplementedError, BufferError, RuntimeError)):
            kvant.quantize_per_tensor(bad, 0.1)


def test_a_subclass_and_inference_tensors_are_tensors():
    frozen = nn.Parameter(torch.ones(4), requires_grad=False)
    assert torch.equal(kvant.quantize_per_tensor(frozen, 0.5), torch.full((4,), 2, dtype=torch.int8))
    with torch.inference_mode():
        x = torch.ones(4)
        assert torch.equal(kvant.quantize_per_tensor(x, 0.5), torch.full((4,), 2, dtype=torch.int8))
    assert torch.equal(kvant.quantize_per_tensor(x, 0.5), torch.full((4,), 2, dtype=torch.int8))


# ---- fake_quantize --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("kind", ["tensor", "channel", "token", "group", "block"])
def test_fake_quantize_forward_and_mask(dtype, kind):
    generator = torch.Generator().manual_seed(3)
    x = (torch.randn(6, 5, 32, generator=generator) * 2).to(dtype).requires_grad_()
    wide = torch.float64 if dtype == torch.float64 else torch.float32

    def parameters(*shape):
        return (
            torch.rand(shape, generator=generator, dtype=wide) * 0.1 + 0.1,
            torch.randint(-3, 4, shape, generator=generator, dtype=torch.int32),
        )

    if kind == "tensor":
        scale, zero_point, options = 0.21, 2, {}
        s, z = torch.tensor(scale, dtype=wide), torch.tensor(zero_point)
    elif kind == "channel":
        (scale, zero_point), options = parameters(5), {"axis": 1}
        s, z = scale[:, None], zero_point[:, None]
    elif kind == "token":
        (scale, zero_point), options = parameters(6, 5), {"scope": "token"}
        s, z = scale[..., None], zero_point[..., None]
    elif kind == "group":
        (scale, zero_point), options = parameters(6, 5, 4), {"group_size": 8}
        s, z = scale.repeat_interleave(8, -1), zero_point.repeat_interleave(8, -1)
    else:
        (scale, zero_point), options = parameters(6, 3, 4), {"block_size": (2, 8)}
        s, z = (p.repeat_interleave(8, -1).repeat_interleave(2, -2)[:, :5] for p in (scale, zero_point))
    y = fake_quantize(x, scale, zero_point, -8, 7, **options)
    assert y.requires_grad and y.dtype == dtype
    codes = torch.round(x.detach().to(wide) / s) + z
    assert same_bits(y.detach() + 0.0, (s * (codes.clamp(-8, 7) - z)).to(dtype) + 0.0)
    dy = torch.randn(x.shape, generator=generator).to(dtype)
    y.backward(dy)
    inside = (codes >= -8) & (codes <= 7)
    assert 0 < inside.sum() < inside.numel()
    assert same_bits(x.grad, torch.where(inside, dy, torch.zeros_like(dy)))


def test_straight_through_is_the_slope_over_a_step():
    # gradcheck cannot hold for a staircase, but its average slope over whole steps is the gradient that is claimed.
    scale = 0.125
    x = torch.tensor([-0.7, -0.3, 0.0, 0.4, 0.6, 1.3, -1.4], dtype=torch.float64, requires_grad=True)
    (dx,) = torch.autograd.grad(fake_quantize(x, scale, 0, -8, 7).sum(), x)
    above, below = (fake_quantize(x.detach() + d, scale, 0, -8, 7) for d in (2 * scale, -2 * scale))
    assert torch.equal(dx, (above - below) / (4 * scale))
    assert dx.tolist() == [1, 1, 1, 1, 1, 0, 0]


@pytest.mark.parametrize("dtype", FLOATS)
def test_gradients_of_any_layout(dtype):
    generator = torch.Generator().manual_seed(0)
    values = torch.randn(12, 20, generator=generator).to(dtype)
    for view in (lambda t: t, lambda t: t.T, lambda t: t[:, ::2], lambda t: t[2:3].expand(5, -1)):
        x = view(values).detach().clone(memory_format=torch.preserve_format).requires_grad_()
        expected = torch.where(torch.round(x.detach().to(torch.float64) / 0.25).abs() <= 4, 1.0, 0.0).to(dtype)
        fake_quantize(x, 0.25, 0, -4, 4).sum().backward()  # the gradient of sum() is one number, expanded
        assert torch.equal(x.grad, expected)
        y = fake_quantize(x, 0.25, 0, -4, 4)
        transposed = torch.randn(*reversed(y.shape), generator=generator).to(dtype).T
        (dx,) = torch.autograd.grad(y, x, transposed)
        assert torch.equal(dx, transposed * expected)


def test_negative_views_keep_their_sign(tmp_path):
    # torch marks such a view and leaves the memory as it is; DLPack shows the memory.
    z = torch.tensor([[1 + 2j, 3 - 4j], [5 + 1j, 0 - 1j]])
    x = z.conj().imag
    assert x.is_neg()
    with pytest.raises(ValueError, match="resolve_neg"):
        kvant.fake_quantize(x, 1.0, 0, -8, 2)
    y = fake_quantize(x, 1.0, 0, -8, 2)
    assert y.tolist() == [[-2, 2], [-1, 1]]
    leaf = torch.tensor([1.0, 2.0], requires_grad=True)
    (dx,) = torch.autograd.grad(fake_quantize(leaf, 1.0), leaf, x[0])
    assert dx.tolist() == [-2, 4]
    assert torch.equal(FakeQuantize(mode="asymmetric")(x), FakeQuantize(mode="asymmetric")(x.clone()))
    linear = nn.Linear(2, 2)
    assert torch.equal(QuantizedLinear.from_linear(linear)(x), QuantizedLinear.from_linear(linear)(x.clone()))
    stats = read_safetensors(calibrate(nn.Sequential(linear), [x], tmp_path / "stats"))
    assert stats["0.min"].tolist() == [-2, 1] and stats["0.max"].tolist() == [-1, 4]


def test_scalars_and_empty_tensors_have_gradients():
    for shape in ((), (0,), (3, 0)):
        x = torch.zeros(shape, requires_grad=True)
        y = fake_quantize(x, 0.5)
        y.sum().backward()
        assert y.shape == x.shape and torch.equal(x.grad, torch.ones(shape))


def test_scales_have_no_gradient_and_are_watched():
    x = torch.ones(3, 4, requires_grad=True)
    scale = torch.full((3,), 0.5, requires_grad=True)
    fake_quantize(x, scale, axis=0).sum().backward()
    assert scale.grad is None and torch.equal(x.grad, torch.ones(3, 4))
    scale = torch.full((3,), 0.5)
    y = fake_quantize(x, scale, axis=0)
    scale.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def test_double_backward_is_refused():
    x = torch.ones(3, requires_grad=True)
    (dx,) = torch.autograd.grad((fake_quantize(x, 0.5) ** 2).sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        dx.sum().backward()


def test_fake_quantize_refuses_with_a_sentence():
    x = torch.ones(3, 4, requires_grad=True)
    with pytest.raises(TypeError, match="torch.Tensor"):
        fake_quantize(np.ones(3, np.float32), 0.5)
    with pytest.raises(ValueError, match="CPU"):
        fake_quantize(torch.ones(3, device="meta"), 0.5)
    with pytest.raises(ValueError, match="CPU"):
        fake_quantize(x, torch.ones(3, device="meta"), axis=0)
    with pytest.raises(ValueError):
        fake_quantize(x, 0.0)
    with pytest.raises(ValueError):
        fake_quantize(x, torch.ones(5), axis=0)
    with pytest.raises((TypeError, ValueError, NotImplementedError)):
        fake_quantize(torch.ones(3, dtype=torch.int32), 0.5)


def test_gradients_from_many_threads(in_threads):
    x = torch.randn(64, 256, generator=torch.Generator().manual_seed(0))
    expected = fake_quantize(x, 0.01)

    def work(_):
        for _ in range(50):
            leaf = x.clone().requires_grad_()
            y = fake_quantize(leaf, 0.01)
            y.backward(x)
            mask = torch.round(x / 0.01)
            assert torch.equal(y, expected)
            assert torch.equal(leaf.grad, x * ((mask >= -128) & (mask <= 127)))

    in_threads(4, work)


# ---- FakeQuantize ---------------------------------------------------------------------------------------------------


SCOPES = [{"scope": "tensor"}, {"scope": "channel", "axis": 0}, {"scope": "token"}, {"scope": "group", "group_size": 8},
          {"scope": "block", "block_size": (4, 8)}]


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int4", "uint4"])
@pytest.mark.parametrize("mode", ["symmetric", "asymmetric"])
@pytest.mark.parametrize("options", SCOPES, ids=lambda o: o["scope"])
def test_dynamic_fake_quantize_is_quantize_and_dequantize(dtype, mode, options):
    x = torch.randn(6, 32, generator=torch.Generator().manual_seed(0)).requires_grad_()
    y = FakeQuantize(dtype, mode=mode, **options)(x)
    q, scale, zero_point = kvant.dynamic_range_quantize(x.detach(), dtype=dtype, mode=mode, **options)
    rest = [options[k] for k in ("axis", "group_size", "block_size") if k in options]
    back = getattr(kvant, f"dequantize_per_{options['scope']}")(q, scale, zero_point, *rest)
    assert torch.equal(y.detach(), torch.as_tensor(back))
    y.sum().backward()
    if mode == "asymmetric" or dtype[0] != "u":  # symmetric codes of unsigned types clamp what is negative
        assert (x.grad == 1).float().mean() > 0.98  # asymmetric: an end may round to just beyond its code


def test_one_row_is_a_token():
    x = torch.tensor([0.5, 1.2, 7.0])
    q, scale, zero_point = kvant.dynamic_range_quantize(x)
    assert torch.equal(kvant.dequantize_per_token(q, scale, zero_point), FakeQuantize(scope="token")(x))


def test_frozen_fake_quantize_has_the_range_of_all_batches():
    generator = torch.Generator().manual_seed(0)
    batches = [torch.randn(8, 5, 12, generator=generator) * (i + 1) for i in range(4)]
    for options, dims in (({"scope": "tensor"}, (0, 1, 2)), ({"scope": "channel", "axis": 1}, (0, 2))):
        for mode in ("symmetric", "asymmetric"):
            fq = FakeQuantize("int8", mode=mode, **options).observe()
            for x in batches:
                fq(x)
            fq.freeze()
            everything = torch.cat(batches)
            assert torch.equal(fq.range_min, everything.amin(dims).reshape(-1))
            assert torch.equal(fq.range_max, everything.amax(dims).reshape(-1))
            _, scale, zero_point = kvant.dynamic_range_quantize(everything, mode=mode, **options)
            assert torch.equal(fq.scale, scale.reshape(-1)) and torch.equal(fq.zero_point, zero_point.reshape(-1))
            x = batches[0] * 100
            expected = kvant.fake_quantize(x, scale, zero_point, -128, 127, axis=options.get("axis"))
            assert torch.equal(fq(x), expected)
            assert torch.equal(fq.scale, scale.reshape(-1))


@pytest.mark.parametrize("stage", ["dynamic", "observing", "frozen"])
def test_fake_quantize_state_dict_copy_pickle(stage):
    fq = FakeQuantize("int8", scope="channel", axis=1)
    if stage != "dynamic":
        fq.observe()(torch.randn(4, 3, generator=torch.Generator().manual_seed(0)))
    if stage == "frozen":
        fq.freeze()
    loaded = FakeQuantize("int8", scope="channel", axis=1)
    assert loaded.load_state_dict(fq.state_dict()).missing_keys == []
    outer = nn.Sequential(FakeQuantize("int8", scope="channel", axis=1))
    outer.load_state_dict(nn.Sequential(fq).state_dict())
    x = torch.linspace(-1, 1, 12).reshape(4, 3)
    others = (loaded, outer[0], copy.deepcopy(fq), pickle.loads(pickle.dumps(fq)), copy.deepcopy(fq).half().double())
    expected = fq(x)
    for other in others:
        assert other.stage == stage and f"{other.stage})" in repr(other)
        assert same_bits(other(x), expected)
        assert torch.equal(other.range_min, fq.range_min) and torch.equal(other.scale, fq.scale)


def test_what_was_frozen_in_inference_mode_can_train():
    x = torch.randn(3, 4, generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        fq = FakeQuantize(mode="asymmetric").observe()
        fq(x)
        fq.freeze()
    leaf = x.clone().requires_grad_()
    fq(leaf).sum().backward()
    assert torch.equal(leaf.grad, torch.ones(3, 4))
    fq.load_state_dict(fq.state_dict())
    fq.observe()(leaf).sum().backward()
    assert torch.equal(leaf.grad, torch.full((3, 4), 2.0))


def test_fake_quantize_observes_other_types_and_refuses_other_channels():
    fq = FakeQuantize(scope="channel", axis=-1).observe()
    fq(torch.tensor([[1.0, -2.0]], dtype=torch.bfloat16))
    fq(torch.tensor([[3.0, 0.0]], dtype=torch.float64))
    fq(torch.tensor([[NAN, INF]]))
    fq(torch.empty(0, 2))
    assert fq.range_min.tolist() == [1.0, -2.0] and fq.range_max.tolist() == [3.0, 0.0]
    with pytest.raises(ValueError, match="2 channels, but this input has 3"):
        fq(torch.ones(1, 3))


def test_fake_quantize_module_refuses_with_a_sentence():
    for options, words in (
        ({"dtype": "int32"}, "dtype"), ({"mode": "lopsided"}, "mode"), ({"scope": "row"}, "scope"),
        ({"scope": "channel"}, "axis"), ({"axis": 1}, "axis"), ({"scope": "group"}, "group_size"),
        ({"group_size": 4}, "group_size"), ({"scope": "block"}, "block_size"), ({"block_size": (4, 4)}, "block_size"),
        ({"dtype": "int4", "q_max": 9}, "range within int4"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=words):
            FakeQuantize(**options)
    with pytest.raises(RuntimeError, match="no range to freeze"):
        FakeQuantize().freeze()
    with pytest.raises(RuntimeError, match="no range to freeze"):
        FakeQuantize().observe().freeze()
    nothing = FakeQuantize().observe()
    nothing(torch.tensor([NAN]))
    with pytest.raises(RuntimeError, match="no finite value"):
        nothing.freeze()
    with pytest.raises(ValueError, match="cannot be observed"):
        FakeQuantize(scope="token").observe()
    with pytest.raises(ValueError, match="CPU"):
        FakeQuantize()(torch.ones(3, device="meta"))


# ---- Quantization-aware training ------------------------------------------------------------------------------------


def spiral(count, seed):
    """Two arms that no line separates."""
    generator = torch.Generator().manual_seed(seed)
    label = torch.randint(0, 2, (count,), generator=generator)
    angle = torch.rand(count, generator=generator) * 4.5
    radius = 0.3 + angle / 4.5
    direction = angle + math.pi * label
    noise = 0.03 * torch.randn(count, 2, generator=generator)
    return torch.stack([radius * direction.cos(), radius * direction.sin()], 1) + noise, label


def test_two_layers_train_and_run_in_int8():
    torch.manual_seed(0)
    x, label = spiral(512, 1)
    net = nn.Sequential(
        FakeQuantize(scope="token"), nn.Linear(2, 32), nn.Tanh(), FakeQuantize(scope="token"), nn.Linear(32, 2)
    )
    for linear in (net[1], net[4]):
        parametrize.register_parametrization(linear, "weight", FakeQuantize(scope="channel", axis=0))
    optimizer = torch.optim.Adam(net.parameters(), 0.02)
    losses = []
    for _ in range(300):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(net(x), label)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[0] > 0.6 and losses[-1] < 0.05, (losses[0], losses[-1])
    with torch.no_grad():
        trained = net(x)
        for linear in (net[1], net[4]):
            parametrize.remove_parametrizations(linear, "weight", leave_parametrized=False)
        int8 = nn.Sequential(net[1], net[2], net[4])
        assert quantize_model(int8) == ["0", "2"]
        y = int8(x)
    # The same codes and scales on both sides. The sums differ by the rounding of float32, which at a tie in front of
    # the second layer may move a code.
    assert (y - trained).abs().max() < 0.02 * trained.abs().max()
    assert (y - trained).abs().median() < 1e-5 * trained.abs().max()
    assert torch.equal(y.argmax(1), trained.argmax(1))


# ---- QuantizedLinear ------------------------------------------------------------------------------------------------


def exact_linear(layer, x):
    """In float64, where the sum of products of codes is exact: what the formula says, for dynamic symmetric scales."""
    wide = torch.float64 if x.dtype == torch.float64 else torch.float32
    if layer.smooth is not None:
        x = x.to(wide) / layer.smooth.to(wide)
    else:
        x = x.to(wide)
    if layer.input_scale is not None:
        scale = layer.input_scale.to(wide)
        zero_point = 0 if layer.input_zero_point is None else int(layer.input_zero_point)
        codes = (torch.round(x / scale) + zero_point).clamp(-128, 127)
    else:
        codes, scale, zero_point = kvant.dynamic_range_quantize(x, mode=layer.mode)
        scale, zero_point = scale[..., None], zero_point[..., None]
    total = (codes.double() - zero_point) @ layer.weight.double().T
    y = (scale * layer.weight_scale.reshape(-1).to(wide)) * total.to(wide)
    return y if layer.bias is None else y + layer.bias.to(wide)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("mode", ["symmetric", "asymmetric"])
@pytest.mark.parametrize("kind", ["dynamic", "static", "smooth"])
def test_quantized_linear_is_exact(dtype, bias, mode, kind):
    torch.manual_seed(0)
    linear = nn.Linear(100, 37, bias=bias).to(dtype)
    options = {"static": {"act_scale": 0.03, "act_zero_point": 7 if mode == "asymmetric" else 0}, "dynamic": {},
               "smooth": {"smooth": torch.rand(100) + 0.5}}[kind]  # fmt: skip
    layer = QuantizedLinear.from_linear(linear, mode=mode, **options)
    x = torch.randn(3, 5, 100).to(dtype)
    y = layer(x)
    assert y.dtype == dtype and y.shape == (3, 5, 37) and not y.requires_grad
    assert same_bits(y + 0.0, exact_linear(layer, x).to(dtype) + 0.0)
    # And close to what it stands for.
    reference = linear.double()(x.double()).detach()
    error = (y.double() - reference).norm() / reference.norm()
    assert error < 0.02
    for shape in ((100,), (1, 100), (0, 100), (2, 3, 4, 100)):
        part = torch.randn(shape).to(dtype)
        assert layer(part).shape == (*shape[:-1], 37)
    assert same_bits(layer(x.transpose(0, 1)), y.transpose(0, 1).contiguous())


def test_the_weight_is_symmetric_per_output_channel():
    torch.manual_seed(0)
    linear = nn.Linear(64, 16)
    with torch.no_grad():
        linear.weight[3] = 0
    layer = QuantizedLinear.from_linear(linear)
    assert layer.weight.dtype == torch.int8 and layer.weight_scale.shape == (16, 1)
    scale = linear.weight.detach().abs().amax(1, keepdim=True) / 127
    scale[3] = 1
    assert torch.equal(layer.weight_scale, scale)
    assert torch.equal(layer.weight, torch.round(linear.weight.detach() / scale).to(torch.int8))
    assert torch.equal(layer.bias, linear.bias.detach()) and layer.bias.data_ptr() != linear.bias.data_ptr()
    assert "in_features=64, out_features=16, bias=True, symmetric" in repr(layer)
    assert "act_scale=0.5, act_zero_point=3, smooth" in repr(
        QuantizedLinear(4, 4, mode="asymmetric", act_scale=0.5, act_zero_point=3, smooth=[1, 1, 2, 2])
    )


def test_smoothing_moves_outliers_into_the_weight():
    torch.manual_seed(0)
    x = torch.randn(64, 128)
    x[:, 7] *= 60
    linear = nn.Linear(128, 32)
    smooth = kvant.smooth_scales(x.abs().amax(0), linear.weight.detach(), 0.5)
    expected = linear(x).detach()
    plain, smoothed = (QuantizedLinear.from_linear(linear, smooth=s)(x) for s in (None, smooth))
    assert (smoothed - expected).norm() < 0.5 * (plain - expected).norm()


def test_quantized_linear_state_dict_copy_pickle(tmp_path):
    torch.manual_seed(0)
    options = {"mode": "asymmetric", "act_scale": 0.05, "act_zero_point": -3, "smooth": torch.rand(24) + 0.5}
    for more in ({}, options):
        layer = QuantizedLinear.from_linear(nn.Linear(24, 8), **more)
        x = torch.randn(5, 24)
        small = len(pickle.dumps(layer))
        expected = layer(x)  # packs the weight
        assert len(pickle.dumps(layer)) == small  # which stays here
        other = QuantizedLinear(24, 8, **({} if not more else {**more, "act_scale": 1.0, "act_zero_point": 0}))
        other(x)  # packs zeros, which must not survive
        assert other.load_state_dict(layer.state_dict()).missing_keys == []
        torch.save(layer, tmp_path / "layer.pt")
        assigned = QuantizedLinear(24, 8, **more)
        assigned.load_state_dict(layer.state_dict(), assign=True)
        for same in (
            other, assigned, copy.deepcopy(layer), copy.copy(layer), pickle.loads(pickle.dumps(layer)),
            torch.load(tmp_path / "layer.pt", weights_only=False), copy.deepcopy(layer).half(),
            copy.deepcopy(layer).double(), copy.deepcopy(layer).to(torch.bfloat16), copy.deepcopy(layer).eval(),
        ):  # fmt: skip
            assert same_bits(same(x), expected) and same.weight_scale.dtype == torch.float32


def test_a_changed_weight_is_packed_again():
    torch.manual_seed(0)
    layer = QuantizedLinear.from_linear(nn.Linear(24, 8))
    x = torch.randn(5, 24)
    before = layer(x)
    packed = layer._packed[3]
    assert torch.equal(layer(x), before) and layer._packed[3] is packed
    layer.weight.zero_()
    assert torch.equal(layer(x), layer.bias.expand(5, 8))
    layer.weight = torch.ones(8, 24, dtype=torch.int8)
    assert same_bits(layer(x), exact_linear(layer, x))
    layer.weight.data = torch.full((8, 24), 2, dtype=torch.int8)
    assert same_bits(layer(x), exact_linear(layer, x))
    with torch.inference_mode():
        layer.load_state_dict({**layer.state_dict(), "weight": torch.full((8, 24), 3)})
        made_here = QuantizedLinear.from_linear(nn.Linear(24, 8))
        made_here(x)
        made_here.load_state_dict(layer.state_dict())
        assert same_bits(made_here(x), layer(x))
    assert same_bits(layer(x), exact_linear(layer, x))


def test_quantized_linear_refuses_with_a_sentence():
    layer = QuantizedLinear.from_linear(nn.Linear(8, 4))
    x = torch.ones(2, 8, requires_grad=True)
    with pytest.raises(RuntimeError, match="has no gradient.*no_grad"):
        layer(x)
    with torch.no_grad():
        assert layer(x).shape == (2, 4)
    with torch.inference_mode():
        assert layer(x).shape == (2, 4)
    with pytest.raises(ValueError, match="CPU"):
        layer(torch.ones(2, 8, device="meta"))
    with pytest.raises(ValueError, match="CPU"):
        QuantizedLinear.from_linear(nn.Linear(8, 4, device="meta"))
    with pytest.raises(ValueError, match="CPU"):
        copy.deepcopy(layer).to("meta")(torch.ones(2, 8))
    with pytest.raises(TypeError, match="torch.Tensor"):
        layer(np.ones((2, 8), np.float32))
    with pytest.raises(TypeError, match="nn.Linear"):
        QuantizedLinear.from_linear(nn.Conv1d(1, 1, 1))
    with pytest.raises(ValueError):
        layer(torch.ones(2, 9))
    with pytest.raises((ValueError, TypeError, NotImplementedError)):
        layer(torch.ones(2, 8, dtype=torch.int32))
    for options, words in (
        ({"mode": "other"}, "mode"), ({"act_scale": 0.0}, "act_scale"), ({"act_scale": NAN}, "act_scale"),
        ({"act_zero_point": 3}, "act_zero_point"), ({"smooth": [1.0] * 7}, "7 numbers for 8"),
        ({"smooth": [0.0] * 8}, "positive"), ({"smooth": [3e38] * 8}, "overflows"),
    ):  # fmt: skip
        big = nn.Linear(8, 4)
        nn.init.constant_(big.weight, 10.0)
        with pytest.raises(ValueError, match=words):
            QuantizedLinear.from_linear(big, **options)
    bad = nn.Linear(8, 4)
    nn.init.constant_(bad.weight, NAN)
    with pytest.raises(ValueError, match="NaN or infinite"):
        QuantizedLinear.from_linear(bad)


def test_quantized_linear_from_many_threads(in_threads):
    torch.manual_seed(0)
    layer = QuantizedLinear.from_linear(nn.Linear(128, 64))
    x = torch.randn(16, 128)
    expected = exact_linear(layer, x)

    def work(_):
        with torch.no_grad():
            assert all(same_bits(layer(x), expected) for _ in range(50))

    in_threads(4, work)


def test_quantize_model_swaps_linears_by_name():
    torch.manual_seed(0)
    shared = nn.Linear(8, 8)
    model = nn.ModuleDict({
        "body": nn.Sequential(nn.Linear(8, 8), nn.ReLU(), shared), "again": shared, "lm_head": nn.Linear(8, 3),
        "attention": nn.MultiheadAttention(8, 2),
    })  # fmt: skip
    assert quantize_model(model) == ["body.0", "body.2", "again"]
    assert model["body"][2] is model["again"] and isinstance(model["again"], QuantizedLinear)
    assert type(model["lm_head"]) is nn.Linear
    x = torch.randn(4, 1, 8)
    with torch.no_grad():
        model["attention"](x, x, x)  # its out_proj is read by torch itself
        model["body"](x)
    assert quantize_model(model, ignore=[]) == ["lm_head"]
    assert quantize_model(nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)), ignore=["re:[01]"]) == []
    with pytest.raises(ValueError, match="from_linear"):
        quantize_model(nn.Linear(2, 2))
    with pytest.raises(TypeError, match="one string"):
        quantize_model(model, ignore="lm_head")


# ---- calibrate ------------------------------------------------------------------------------------------------------


def read_safetensors(path):
    data = Path(path).read_bytes()
    (size,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + size])
    assert header.pop("__metadata__") == {"format": "pt"}
    body = data[8 + size :]
    types = {"F32": np.float32, "I8": np.int8, "I64": np.int64}
    tensors = {}
    for name, entry in header.items():
        begin, end = entry["data_offsets"]
        values = np.frombuffer(body[begin:end], types[entry["dtype"]]).reshape(entry["shape"])
        tensors[name] = torch.from_numpy(values.copy())
    return tensors


class Block(nn.Module):
    """A layer of Llama without rotary embeddings: the names, the norms and the products are what matters here."""

    def __init__(self, hidden, inner):
        super().__init__()
        self.input_layernorm = nn.RMSNorm(hidden, eps=1e-5)
        self.self_attn = nn.ModuleDict({f"{p}_proj": nn.Linear(hidden, hidden, bias=False) for p in "qkvo"})
        self.post_attention_layernorm = nn.RMSNorm(hidden, eps=1e-5)
        self.mlp = nn.ModuleDict({
            "gate_proj": nn.Linear(hidden, inner, bias=False), "up_proj": nn.Linear(hidden, inner, bias=False),
            "down_proj": nn.Linear(inner, hidden, bias=False),
        })  # fmt: skip

    def forward(self, x):
        h = self.input_layernorm(x)
        q, k, v = (self.self_attn[f"{p}_proj"](h)[:, None] for p in "qkv")
        x = x + self.self_attn["o_proj"](nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)[:, 0])
        h = self.post_attention_layernorm(x)
        return x + self.mlp["down_proj"](nn.functional.silu(self.mlp["gate_proj"](h)) * self.mlp["up_proj"](h))


class TinyLlama(nn.Module):
    def __init__(self, vocabulary=50, hidden=32, inner=48, layers=2):
        super().__init__()
        self.model = nn.Module()
        self.model.embed_tokens = nn.Embedding(vocabulary, hidden)
        self.model.layers = nn.ModuleList(Block(hidden, inner) for _ in range(layers))
        self.model.norm = nn.RMSNorm(hidden, eps=1e-5)
        self.lm_head = nn.Linear(hidden, vocabulary, bias=False)
        for block in self.model.layers:  # outlier channels, as trained models have them
            nn.init.normal_(block.input_layernorm.weight, 1.0, 0.2)
            with torch.no_grad():
                block.input_layernorm.weight[5] = 30.0
                block.post_attention_layernorm.weight[9] = 20.0

    def forward(self, input_ids, scale=1.0):
        x = self.model.embed_tokens(input_ids) * scale
        for block in self.model.layers:
            x = block(x)
        return self.lm_head(self.model.norm(x))


def tiny_llama():
    torch.manual_seed(0)
    return TinyLlama()


def token_batches(count=3):
    generator = torch.Generator().manual_seed(7)
    return [torch.randint(0, 50, (2, 6 + i), generator=generator) for i in range(count)]


def inputs_by_hand(model, batches):
    """What calibrate should have seen, by hooks of torch alone."""
    seen = {}
    hooks = [
        m.register_forward_pre_hook(lambda _, args, name=n: seen.setdefault(name, []).append(args[0].flatten(0, -2)))
        for n, m in model.named_modules()
        if isinstance(m, nn.Linear)
    ]
    with torch.no_grad():
        for batch in batches:
            model(batch)
    for hook in hooks:
        hook.remove()
    return {name: torch.cat(parts) for name, parts in seen.items()}


STATISTICS = ("absmax", "min", "max", "mean_square", "count")


def test_calibrate_writes_statistics_of_every_input(tmp_path):
    model, batches = tiny_llama(), token_batches()
    path = calibrate(model, iter(batches), tmp_path / "stats.safetensors")
    assert path == str(tmp_path / "stats.safetensors") and os.listdir(tmp_path) == ["stats.safetensors"]
    stats, seen = read_safetensors(path), inputs_by_hand(model, batches)
    assert set(stats) == {f"{name}.{what}" for name in seen for what in STATISTICS} and len(seen) == 15
    for name, x in seen.items():
        assert same_bits(stats[name + ".absmax"], x.abs().amax(0))
        assert torch.equal(stats[name + ".min"], x.amin(0)) and torch.equal(stats[name + ".max"], x.amax(0))
        assert torch.allclose(stats[name + ".mean_square"], x.double().square().mean(0).float(), rtol=1e-6, atol=0)
        assert stats[name + ".count"].tolist() == [x.shape[0]]


@pytest.mark.parametrize("dtype", FLOATS)
def test_calibrate_takes_every_kind_of_batch_and_type(dtype, tmp_path):
    model = tiny_llama().to(dtype)
    ids = token_batches()
    expected = Path(calibrate(model, ids, tmp_path / "a")).read_bytes()
    for wrapped in (lambda t: (t,), lambda t: [t], lambda t: {"input_ids": t}, lambda t: (t, 1.0)):
        assert Path(calibrate(model, map(wrapped, ids), tmp_path / "b")).read_bytes() == expected
    assert Path(calibrate(model, ids[::-1], tmp_path / "b")).read_bytes() == expected
    louder = [{"input_ids": t, "scale": 3.0} for t in ids]
    assert Path(calibrate(model, louder, tmp_path / "b")).read_bytes() != expected


def test_calibrate_chooses_modules(tmp_path):
    model, batches = tiny_llama(), token_batches()
    by_name = calibrate(model, batches, tmp_path / "a", modules=["lm_head", "model.layers.1.mlp.up_proj"])
    assert len(read_safetensors(by_name)) == 2 * len(STATISTICS)
    chosen = calibrate(model, batches, tmp_path / "b", modules=lambda name, module: name == "lm_head")
    assert set(read_safetensors(chosen)) == {f"lm_head.{what}" for what in STATISTICS}
    with pytest.raises(ValueError, match="no Linear named model.norm, nowhere"):
        calibrate(model, batches, tmp_path / "c", modules=["nowhere", "model.norm"])
    with pytest.raises(ValueError, match="nothing to calibrate"):
        calibrate(model, batches, tmp_path / "c", modules=lambda name, module: False)
    with pytest.raises(TypeError, match="one string"):
        calibrate(model, batches, tmp_path / "c", modules="lm_head")


class Moody(nn.Module):
    def __init__(self):
        super().__init__()
        self.used, self.unused = nn.Linear(4, 4), nn.Linear(4, 4)
        self.drop = nn.Dropout(0.5)
        self.fail_at = None
        self.calls = 0
        self.seen = []

    def forward(self, x):
        self.calls += 1
        self.seen.append((self.training, self.drop.training, torch.is_grad_enabled()))
        if self.calls == self.fail_at:
            raise KeyError("the model failed")
        return self.used(input=self.drop(x))  # by keyword


@pytest.mark.parametrize("fail_at", [None, 2])
def test_calibrate_leaves_the_model_as_it_was(fail_at, tmp_path):
    model = Moody().train()
    model.drop.eval()
    model.used.eval()
    model.fail_at = fail_at
    x = torch.ones(2, 4, requires_grad=True)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        if fail_at is None:
            calibrate(model, [x, x], tmp_path / "stats")
            assert "no batch has reached unused" in str(caught[0].message) and len(caught) == 1
            assert caught[0].filename == __file__
            assert set(read_safetensors(tmp_path / "stats")) == {f"used.{what}" for what in STATISTICS}
        else:
            with pytest.raises(KeyError, match="the model failed"):
                calibrate(model, [x, x], tmp_path / "stats")
            assert os.listdir(tmp_path) == []
    assert set(model.seen) == {(False, False, False)}
    assert [m.training for m in (model, model.drop, model.used, model.unused)] == [True, False, False, True]
    assert torch.is_grad_enabled()
    assert not any(m._forward_pre_hooks for m in model.modules())


def test_calibrate_warns_of_nan_and_infinity(tmp_path):
    model = nn.Sequential(nn.Linear(3, 2))
    x = torch.tensor([[1.0, -2.0, 3.0], [NAN, INF, -1.0]])
    with pytest.warns(UserWarning, match="2 NaN or infinite values were left out, from the inputs of 0"):
        stats = read_safetensors(calibrate(model, [x], tmp_path / "stats"))
    assert stats["0.min"].tolist() == [1, -2, -1] and stats["0.max"].tolist() == [1, -2, 3]
    assert stats["0.absmax"].tolist() == [1, 2, 3]
    assert stats["0.mean_square"].tolist() == [1, 4, 5] and stats["0.count"].tolist() == [2]
    with pytest.raises(ValueError, match="input of 0 has no finite value in channel 1"):
        calibrate(model, [torch.tensor([[1.0, NAN, 2.0]])], tmp_path / "other")
    assert os.listdir(tmp_path) == ["stats"]


def test_calibrate_refuses_with_a_sentence(tmp_path):
    model = nn.Sequential(nn.Linear(3, 2))
    path = tmp_path / "stats"
    with pytest.raises(ValueError, match="no batches"):
        calibrate(model, [], path)
    with pytest.raises(ValueError, match="no batch has reached"):
        calibrate(model, [torch.empty(0, 3)], path)
    with pytest.raises(TypeError, match="put it into a list"):
        calibrate(model, torch.ones(2, 3), path)
    with pytest.raises(TypeError, match="put it into a list"):
        calibrate(model, {"input": torch.ones(2, 3)}, path)
    with pytest.raises(TypeError, match="not ndarray"):
        calibrate(model, [np.ones((2, 3), np.float32)], path)
    with pytest.raises(FileNotFoundError, match="does not exist"):
        calibrate(model, [torch.ones(2, 3)], tmp_path / "nowhere" / "stats")
    with pytest.raises(IsADirectoryError, match="folder"):
        calibrate(model, [torch.ones(2, 3)], tmp_path)
    assert os.listdir(tmp_path) == []
    # A file that is there stays until the new one is whole.
    path.write_bytes(b"old")
    with pytest.raises(ValueError):
        calibrate(model, [], path)
    assert path.read_bytes() == b"old"
    calibrate(model, [torch.ones(2, 3)], path)
    assert len(read_safetensors(path)) == len(STATISTICS)


class Pooled(nn.Module):
    """Linears that read all tokens, all tokens in one row after the other, and the first token of each sequence."""

    def __init__(self):
        super().__init__()
        self.each, self.flat, self.pooler = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4)
        self.every_other = nn.Linear(4, 4)

    def forward(self, x, attention_mask=None, with_every_other=False):
        h = self.each(x)
        self.flat(h.reshape(-1, 4))
        self.pooler(h[:, 0])
        if with_every_other:
            self.every_other(h[:, ::2])
        return h


def test_calibrate_leaves_out_padding(tmp_path):
    torch.manual_seed(3)
    model = Pooled()
    names = ["each", "flat", "pooler"]
    rows = [torch.randn(1, length, 4) for length in (5, 3, 4)]
    x, mask = torch.full((3, 5, 4), 1000.0), torch.zeros(3, 5, dtype=torch.int64)
    for i, row in enumerate(rows):
        x[i, : row.shape[1]], mask[i, : row.shape[1]] = row[0], 1
    padded = read_safetensors(calibrate(model, [{"x": x, "attention_mask": mask}], tmp_path / "a", modules=names))
    alone = read_safetensors(calibrate(model, rows, tmp_path / "b", modules=names))
    assert padded["each.count"].tolist() == padded["flat.count"].tolist() == [12] and padded["pooler.count"].tolist() == [3]
    for name, values in padded.items():
        assert torch.allclose(values, alone[name], rtol=1e-5, atol=0), name
    # Every way to say that a token is one; and without a mask all count.
    for same in (mask.bool(), mask.float()):
        calibrate(model, [{"x": x, "attention_mask": same}], tmp_path / "c", modules=names)
        assert (tmp_path / "c").read_bytes() == (tmp_path / "a").read_bytes()
    for batch in ({"x": x}, {"x": x, "attention_mask": None}, (x, mask), {"x": x, "attention_mask": torch.ones(3, 5)}):
        everything = read_safetensors(calibrate(model, [batch], tmp_path / "c", modules=names))
        assert everything["each.count"].tolist() == [15] and everything["each.absmax"].min() == 1000
    # The mask of one batch does not reach the next.
    both = read_safetensors(
        calibrate(model, [{"x": x, "attention_mask": mask}, rows[0]], tmp_path / "c", modules=names)
    )
    assert both["each.count"].tolist() == [17]


def test_calibrate_refuses_padding_that_it_cannot_find(tmp_path):
    model, x, mask = Pooled(), torch.ones(2, 4, 4), torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0]])
    batch = {"x": x, "attention_mask": mask, "with_every_other": True}
    with pytest.raises(ValueError, match=r"input of every_other has 4 rows and attention_mask is \[2, 4\].*without padding"):
        calibrate(model, [batch], tmp_path / "stats")
    calibrate(model, [{**batch, "attention_mask": torch.ones(2, 4)}], tmp_path / "stats")
    with pytest.raises(ValueError, match=r"attention_mask must be a tensor .* not of shape \[2, 1, 4, 4\]"):
        calibrate(model, [{**batch, "attention_mask": torch.ones(2, 1, 4, 4)}], tmp_path / "stats")
    with pytest.raises(ValueError, match="attention_mask must be a tensor .* not a list"):
        calibrate(model, [{**batch, "attention_mask": [[1]]}], tmp_path / "stats")


def test_calibrate_gives_a_shared_linear_all_its_names(tmp_path):
    shared = nn.Linear(4, 4)
    stats = read_safetensors(calibrate(nn.Sequential(shared, shared), [torch.ones(1, 4)], tmp_path / "stats"))
    assert torch.equal(stats["0.absmax"], stats["1.absmax"])


# ---- With the tool --------------------------------------------------------------------------------------------------

BINARY = Path(os.environ.get("KVANT_BINARY", ROOT / "build" / "release" / "kvant"))


def run_tool(*arguments):
    ran = subprocess.run([BINARY, *map(str, arguments)], capture_output=True, text=True, timeout=120)
    assert ran.returncode == 0, f"{ran.args}\n{ran.stdout}\n{ran.stderr}"
    return ran.stdout


def save_checkpoint(model, folder):
    folder.mkdir()
    write_safetensors(str(folder / "model.safetensors"), model.state_dict())
    config = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "torch_dtype": "float32", "hidden_size": 32}
    (folder / "config.json").write_text(json.dumps(config))


def quantize_as_checkpoint(model, checkpoint):
    """The model with a QuantizedLinear where the tool has quantized, loaded from what it wrote."""
    static = any(name.endswith(".input_scale") for name in checkpoint)
    asymmetric = any(name.endswith(".input_zero_point") for name in checkpoint)
    for name, module in list(model.named_modules()):
        if f"{name}.weight_scale" in checkpoint:
            parent, _, child = name.rpartition(".")
            layer = QuantizedLinear(
                module.in_features, module.out_features, module.bias is not None,
                mode="asymmetric" if asymmetric else "symmetric", act_scale=1.0 if static else None,
            )  # fmt: skip
            setattr(model.get_submodule(parent), child, layer)
    model.load_state_dict(checkpoint)  # strict: every name must fit
    return model


@pytest.mark.skipif(not BINARY.exists(), reason=f"no tool at {BINARY}; KVANT_BINARY names one")
def test_statistics_and_checkpoints_go_to_the_tool_and_come_back(tmp_path):
    model, batches = tiny_llama(), token_batches(6)
    save_checkpoint(model, tmp_path / "in")
    stats = calibrate(model, batches, tmp_path / "stats.safetensors")
    assert "model.layers.0.self_attn.q_proj.absmax" in run_tool("inspect", stats)
    with torch.no_grad():
        expected = model(batches[0])

    def error_of(*flags):
        out = tmp_path / f"out{len(os.listdir(tmp_path))}"
        run_tool("quantize", tmp_path / "in", "-o", out, *flags)
        run_tool("verify", out)
        checkpoint = read_safetensors(out / "model.safetensors")
        quantized = quantize_as_checkpoint(tiny_llama(), checkpoint)
        with torch.no_grad():
            return ((quantized(batches[0]) - expected).norm() / expected.norm()).item(), quantized, checkpoint

    plain, quantized, checkpoint = error_of("--scheme", "w8a8")
    # What the tool quantizes and what from_linear does are the same bits.
    mine = copy.deepcopy(model)
    assert len(quantize_model(mine)) == 14
    state = mine.state_dict()
    assert set(state) == set(checkpoint) and all(torch.equal(state[name], checkpoint[name]) for name in state)
    with torch.no_grad():
        assert torch.equal(mine(batches[0]), quantized(batches[0]))
    smooth, quantized, _ = error_of("--scheme", "w8a8", "--stats", stats, "--smooth")
    # max|X_j| was found by calibrate: the outlier channels of the norms are gone.
    before, after = (m.model.layers[0].input_layernorm.weight.abs() for m in (model, quantized))
    assert after.max() / after.median() < 0.5 * before.max() / before.median()
    static, _, _ = error_of("--scheme", "w8a8-static", "--stats", stats)
    smooth_static, _, _ = error_of("--scheme", "w8a8-static", "--stats", stats, "--smooth")
    asymmetric, _, _ = error_of("--scheme", "w8a8-static", "--stats", stats, "--asymmetric")
    print(f"relative errors: dynamic {plain:.4f}, smooth {smooth:.4f}")
    print(f"static {static:.4f}, smooth {smooth_static:.4f}, asymmetric {asymmetric:.4f}")
    assert plain < 0.05 and smooth < 0.8 * plain
    assert static < 0.15 and smooth_static < 0.6 * static and asymmetric < 0.15


# ---- What is written about it ---------------------------------------------------------------------------------------


def run_python(*arguments):
    path = os.pathsep.join([str(Path(kvant.__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
    env = {**os.environ, "PYTHONPATH": path}
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, timeout=120, env=env)


def test_the_example_runs():
    ran = run_python(str(ROOT / "examples" / "python" / "qat.py"))
    assert ran.returncode == 0, ran.stderr
    float32, rounded, trained, integers = (float(s) for s in re.findall(r"accuracy ([0-9.]+)%", ran.stdout))
    assert float32 > 98 and rounded < 96 and trained > 98 and integers == trained


def test_torch_is_imported_only_when_asked_for():
    ran = run_python("-c", "import sys, kvant; print('torch' in sys.modules); print(kvant.torch.__name__)")
    assert ran.stdout.split() == ["False", "kvant.torch"], ran.stderr
    program = "import sys; sys.modules['torch'] = None\nimport numpy as np, kvant\n"
    ran = run_python("-c", program + "print(kvant.quantize_per_tensor(np.ones(3, np.float32), 0.5))")
    assert ran.stdout == "[2 2 2]\n", ran.stderr
    ran = run_python("-c", program + "import kvant.torch")
    assert "ImportError: kvant.torch needs PyTorch, which is not installed" in ran.stderr


def test_docstrings():
    runner = doctest.DocTestRunner()
    for text in (kvant.torch, *(getattr(kvant.torch, name) for name in kvant.torch.__all__)):
        # module=False: members count wherever their file is.
        for test in doctest.DocTestFinder().find(text, text.__name__, module=False, globs=dict(vars(kvant.torch))):
            runner.run(test)
    assert runner.tries > 30 and runner.failures == 0


def test_public_names_belong_to_the_package():
    # Pickles hold these names: files inside the package may change, they may not.
    for name in kvant.torch.__all__:
        public = getattr(kvant.torch, name)
        assert (public.__module__, public.__qualname__) == ("kvant.torch", name)
        assert pickle.loads(pickle.dumps(public)) is public
    for cls in (FakeQuantize, QuantizedLinear):
        assert typing.get_type_hints(cls)["weight" if cls is QuantizedLinear else "scale"] is torch.Tensor


def test_writing_to_a_tensor_counts_as_a_change():
    linear = torch.nn.Linear(4, 3)
    layer = QuantizedLinear.from_linear(linear)
    x = torch.ones(2, 4)
    layer(x)
    kvant.dynamic_range_quantize(torch.randn(3, 4), scope="channel", axis=0, out=(layer.weight, None, None))
    want = kvant.quantized_linear(x, layer.weight, layer.weight_scale, layer.bias.detach())
    assert torch.equal(layer(x), want)
    y = torch.zeros(3)
    version = y._version
    kvant.plan.FakeQuantizePlan.select((3,)).run(input=torch.ones(3), output=y, scale=0.5)
    assert y._version == version + 1
    with torch.inference_mode():
        kvant.fake_quantize(torch.ones(3), 0.5, 0, -8, 7, out=torch.zeros(3))


def test_tracing_is_refused():
    layer = QuantizedLinear.from_linear(torch.nn.Linear(4, 3)).eval()
    with pytest.raises(RuntimeError, match="constant"), torch.no_grad():
        torch.jit.trace(layer, torch.ones(2, 4))


def test_fake_quantize_made_on_no_device():
    with torch.device("meta"):
        module = FakeQuantize("int4", scope="token")
    assert "dynamic" in repr(module)
    x = torch.tensor([[0.5, 1.2, 7.0]])
    assert torch.equal(module(x), FakeQuantize("int4", scope="token")(x))
