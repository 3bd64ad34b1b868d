#!/usr/bin/env python3
"""Times kvant beside torch, onnxruntime and numpy, whichever are installed, and says whether the results agree.

usage: bench_peers.py [--quick] [--filter REGEX] [--threads 1,2] [--json FILE]

Every line is one race: the peer's own way of doing a job and kvant's, in turns, the best time of each.
"ratio" is the peer's time divided by kvant's: above 1, kvant is faster. Both get the same memory: "out" where both
write to arrays made beforehand, "new" where both allocate their result because the peer cannot do otherwise. Beside
torch, kvant is given torch tensors; beside the others, numpy arrays. Numpy has one thread and is raced on one.

kvant runs in the peer's numerics: "reciprocal" beside torch's own quantizers, "exact" beside everything else.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import importlib
import json
import os
import re
import sys
import time
import warnings
from typing import Any, Callable, Iterator, Optional

if __name__ == "__main__" and not sys.flags.safe_path:
    del sys.path[0]  # the sources beside this file have no extension; take the package as installed or in PYTHONPATH

import numpy as np

import kvant


def optional(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError:
        return None


torch, onnx, ort = optional("torch"), optional("onnx"), optional("onnxruntime")
PEERS = {
    "torch": torch is not None,
    "onnxruntime": onnx is not None and ort is not None,  # onnx writes the graphs
    "numpy": True,
}

# Timing

REST = 0.01  # seconds of sleep before each turn, for the other's threads to stop spinning
BATCH = 0.0005  # seconds between two looks at the clock, which itself costs some 50 ns


@dataclasses.dataclass(frozen=True)
class Pace:
    turn: float  # seconds that one turn lasts at least
    rounds: int


def seconds_of(call: Callable[[], Any], calls: int) -> float:
    begin = time.perf_counter()
    for _ in range(calls):
        call()
    return time.perf_counter() - begin


def calls_in_batch(call: Callable[[], Any]) -> int:
    """How many calls last as long as BATCH, at least one. Twice each: the first one may have been cold."""
    calls = 1
    while (took := min(seconds_of(call, calls) for _ in range(2))) < BATCH / 4:
        calls *= 4
    return max(1, round(calls * BATCH / took))


def race(ours: Callable[[], Any], theirs: Callable[[], Any], pace: Pace) -> list[float]:
    """Seconds for one call of each, the best batch. In turns, so that a busy neighbour slows both."""
    sides = [(call, calls_in_batch(call)) for call in (ours, theirs)]
    best = [float("inf")] * len(sides)
    for _ in range(pace.rounds):
        for side, (call, calls) in enumerate(sides):
            time.sleep(REST)
            end = time.perf_counter() + pace.turn
            while time.perf_counter() < end:
                best[side] = min(best[side], seconds_of(call, calls) / calls)
    return best


# Agreement


def as_array(result: Any) -> np.ndarray:
    """A result of any library; torch's quantized tensors by their codes."""
    if torch is not None and isinstance(result, torch.Tensor):
        return (result.int_repr() if result.is_quantized else result).numpy()
    if ort is not None and isinstance(result, ort.OrtValue):
        return result.numpy()
    return np.asarray(result)


@dataclasses.dataclass
class Reason:
    """Why a peer differs: its formula, which must give the peer's results wherever they are not kvant's."""

    sentence: str
    formula: Callable[[tuple[np.ndarray, ...]], np.ndarray]  # indices -> the peer's results there


def compare(ours: Any, theirs: Any, reason: Optional[Reason] = None) -> dict[str, Any]:
    """Bit by bit."""
    a, b = as_array(ours), as_array(theirs)
    if a.dtype != b.dtype or a.shape != b.shape:
        return {"text": f"kvant gives {a.dtype} {a.shape}, the peer {b.dtype} {b.shape}"}
    bits = f"u{a.dtype.itemsize}"
    where = np.nonzero(a.view(bits) != b.view(bits))
    differing = where[0].size
    if differing == 0:
        return {"text": "equal bits", "differing": 0, "of": a.size}
    largest = float(np.abs(a[where].astype(np.float64) - b[where].astype(np.float64)).max())
    text = f"{differing} of {a.size} differ, by {largest:.3g} at most"
    if reason is not None:
        explained = np.array_equal(reason.formula(where), b[where])
        text += f": {reason.sentence}" if explained else f" (not explained by: {reason.sentence})"
    return {"text": text, "differing": differing, "of": a.size, "max_difference": largest}


def compare_all(
    ours: Any, theirs: Any, names: tuple[str, ...], reasons: Optional[dict[str, Reason]] = None
) -> dict[str, Any]:
    """Several results at once; equal, or what differs."""
    found = {name: compare(a, b, (reasons or {}).get(name)) for name, a, b in zip(names, ours, theirs, strict=True)}
    different = {name: result for name, result in found.items() if result.get("differing") != 0}
    text = "; ".join(f"{name}: {result['text']}" for name, result in different.items())
    return {"text": text or "equal bits", "results": found}


def fused_codes(x: np.ndarray, scale: Any, zero_point: Any, low: int, high: int) -> np.ndarray:
    """torch's quantize_per_tensor with FMA: the zero point is added before it rounds. float64 holds the sum."""
    sums = (x.astype(np.float64) * (np.float32(1) / scale) + zero_point).astype(np.float32)
    return np.clip(np.rint(sums), low, high)


FUSED = "torch rounds fma(x, 1 / scale, zero_point), kvant x * (1 / scale)"


# Races

Like = Callable[[np.ndarray], Any]  # np.asarray or torch.from_numpy: whose arrays kvant is given


@dataclasses.dataclass
class Race:
    """One peer's way of doing a case, and kvant's for the same job."""

    peer: str
    how: str  # what the peer calls
    memory: str  # "out" or "new", for both
    ours: Callable[[], Any]
    theirs: Callable[[], Any]
    agreement: Callable[[Any, Any], dict[str, Any]] = compare  # of what both return


class Case:
    """A job. Methods named after the peers yield the races; the name, shape and threads are what --filter sees."""

    name: str
    shape: tuple[int, ...]

    def races(self, peer: str, threads: int) -> Iterator[Race]:
        if PEERS[peer] and (peer != "numpy" or threads == 1):
            yield from getattr(self, f"with_{peer}")(threads)


@functools.lru_cache(maxsize=2)
def normal(shape: tuple[int, ...]) -> np.ndarray:
    return np.random.default_rng(11).standard_normal(shape, dtype=np.float32)


def onnx_session(nodes: list[Any], inputs: dict[str, Any], outputs: list[str], constants: dict[str, np.ndarray],
                 threads: int) -> Callable[[], Any]:
    """A call of a graph, with inputs and outputs bound beforehand; returns the outputs."""
    running = ort.InferenceSession(onnx_model(nodes, inputs, outputs, constants), onnx_options(threads),
                                   providers=["CPUExecutionProvider"])
    binding = running.io_binding()
    for name, value in inputs.items():
        binding.bind_ortvalue_input(name, ort.OrtValue.ortvalue_from_numpy(value))
    bound = []
    for description, first in zip(running.get_outputs(), running.run(None, inputs), strict=True):
        bound.append(ort.OrtValue.ortvalue_from_numpy(np.zeros_like(first)))
        binding.bind_ortvalue_output(description.name, bound[-1])

    def call() -> Any:
        running.run_with_iobinding(binding)
        return bound[0] if len(bound) == 1 else tuple(bound)

    return call


def onnx_model(nodes: list[Any], inputs: dict[str, Any], outputs: list[str], constants: dict[str, np.ndarray]) -> bytes:
    # The outputs' types follow from the nodes.
    graph = onnx.helper.make_graph(
        nodes, "peer",
        [onnx.helper.make_tensor_value_info(name, onnx.helper.np_dtype_to_tensor_dtype(value.dtype), value.shape)
         for name, value in inputs.items()],
        [onnx.helper.make_empty_tensor_value_info(name) for name in outputs],
        [onnx.numpy_helper.from_array(value, name) for name, value in constants.items()])
    versions = [onnx.helper.make_opsetid("", 17), onnx.helper.make_opsetid("com.microsoft", 1)]
    model = onnx.helper.make_model(graph, ir_version=8, opset_imports=versions)
    return onnx.shape_inference.infer_shapes(model).SerializeToString()


def onnx_options(threads: int) -> Any:
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 3
    return options


def node(op: str, inputs: str, outputs: str, **attributes: Any) -> Any:
    return onnx.helper.make_node(op, inputs.split(), outputs.split(), **attributes)


@dataclasses.dataclass
class Quantize(Case):
    """float32 to int8 with known scales, or (fake) to the grid and back to float32."""

    shape: tuple[int, ...]
    axis: Optional[int] = None
    fake: bool = False
    zero_point: int = 3  # per channel: up to that, either way

    def __post_init__(self) -> None:
        scope = "tensor" if self.axis is None else f"channel, axis {self.axis}"
        self.name = f"{'fake quantize' if self.fake else 'quantize'} per {scope}"
        if self.axis is None:
            self.name += f", zero point {self.zero_point}"

    @functools.cached_property
    def parameters(self) -> tuple[Any, Any]:
        """Scales and zero points in a shape that broadcasts."""
        if self.axis is None:
            return np.float32(0.0237), np.float32(self.zero_point)
        shape = [1] * len(self.shape)
        shape[self.axis] = self.shape[self.axis]
        random = np.random.default_rng(5)
        zero_point = random.integers(-self.zero_point, self.zero_point + 1, shape)
        return random.uniform(0.02, 0.04, shape).astype(np.float32), zero_point.astype(np.float32)

    def ours(self, x: Any, numerics: str, out: Any, like: Like = np.asarray) -> Callable[[], Any]:
        scale, zero_point = self.parameters
        if self.axis is None:
            scale, zero_point = float(scale), int(zero_point)
        else:
            scale, zero_point = like(scale.ravel()), like(zero_point.ravel().astype(np.int32))
        if self.fake:
            return lambda: kvant.fake_quantize(x, scale, zero_point, -128, 127, axis=self.axis, numerics=numerics,
                                               out=out)
        axis = self.axis
        if axis is None:
            return lambda: kvant.quantize_per_tensor(x, scale, zero_point, numerics=numerics, out=out)
        return lambda: kvant.quantize_per_channel(x, scale, zero_point, axis, numerics=numerics, out=out)

    def new_output(self) -> np.ndarray:
        return np.zeros(self.shape, np.float32 if self.fake else np.int8)

    def torch_reason(self) -> Optional[Reason]:
        """torch's quantizers add the zero point before they round, per channel without FMA."""
        if self.fake:
            return None
        x = normal(self.shape)
        scale, zero_point = (np.broadcast_to(parameter, self.shape) for parameter in self.parameters)
        if self.axis is None:
            return Reason(FUSED, lambda where: fused_codes(x[where], scale[where], zero_point[where], -128, 127))
        return Reason("torch rounds x * (1 / scale) + zero_point, kvant x * (1 / scale)", lambda where: np.clip(
            np.rint(x[where] * (np.float32(1) / scale[where]) + zero_point[where]), -128, 127))

    def with_torch(self, threads: int) -> Iterator[Race]:
        x = torch.from_numpy(normal(self.shape))
        scale, zero_point = self.parameters
        if self.axis is None:
            scale, zero_point = float(scale), int(zero_point)
        else:
            scale = torch.from_numpy(scale.ravel())
            zero_point = torch.from_numpy(zero_point.ravel().astype(np.int32 if self.fake else np.int64))
        if self.fake and self.axis is None:
            how, theirs = "fake_quantize_per_tensor_affine", lambda: torch.fake_quantize_per_tensor_affine(
                x, scale, zero_point, -128, 127)
        elif self.fake:
            how, theirs = "fake_quantize_per_channel_affine", lambda: torch.fake_quantize_per_channel_affine(
                x, scale, zero_point, self.axis, -128, 127)
        elif self.axis is None:
            how, theirs = "quantize_per_tensor", lambda: torch.quantize_per_tensor(x, scale, zero_point, torch.qint8)
        else:
            how, theirs = "quantize_per_channel", lambda: torch.quantize_per_channel(
                x, scale, zero_point, self.axis, torch.qint8)
        yield Race("torch", how, "new", self.ours(x, "reciprocal", None, torch.from_numpy), theirs,
                   functools.partial(compare, reason=self.torch_reason()))

    def with_onnxruntime(self, threads: int) -> Iterator[Race]:
        scale, zero_point = self.parameters
        shape = () if self.axis is None else (-1,)
        constants = {"s": np.reshape(scale, shape), "z": np.reshape(zero_point, shape).astype(np.int8)}
        axis = {} if self.axis is None else {"axis": self.axis}
        nodes = [node("QuantizeLinear", "x s z", "q", **axis)]
        if self.fake:
            nodes.append(node("DequantizeLinear", "q s z", "y", **axis))
        theirs = onnx_session(nodes, {"x": normal(self.shape)}, ["y" if self.fake else "q"], constants, threads)
        yield Race("onnxruntime", " + ".join(n.op_type for n in nodes), "out",
                   self.ours(normal(self.shape), "exact", self.new_output()), theirs)

    def with_numpy(self, threads: int) -> Iterator[Race]:
        x, (scale, zero_point), out = normal(self.shape), self.parameters, self.new_output()
        buffer = out if self.fake else np.zeros(self.shape, np.float32)

        def theirs() -> np.ndarray:
            np.divide(x, scale, out=buffer)
            np.rint(buffer, out=buffer)
            np.add(buffer, zero_point, out=buffer)
            np.clip(buffer, -128, 127, out=buffer)
            if self.fake:
                np.subtract(buffer, zero_point, out=buffer)
                return np.multiply(buffer, scale, out=buffer)
            np.copyto(out, buffer, casting="unsafe")
            return out

        yield Race("numpy", "divide, rint, add, clip" + (", subtract, multiply" if self.fake else ", copyto"), "out",
                   self.ours(x, "exact", self.new_output()), theirs)


@dataclasses.dataclass
class CallOverhead(Quantize):
    """64 elements, all in the plainest way: what a call costs."""

    shape: tuple[int, ...] = (64,)

    def __post_init__(self) -> None:
        self.name = "call overhead: quantize per tensor"

    def with_onnxruntime(self, threads: int) -> Iterator[Race]:
        x, (scale, zero_point) = normal(self.shape), self.parameters
        model = onnx_model([node("QuantizeLinear", "x s z", "q")], {"x": x}, ["q"],
                           {"s": np.asarray(scale), "z": np.asarray(zero_point, np.int8)})
        running = ort.InferenceSession(model, onnx_options(threads), providers=["CPUExecutionProvider"])
        yield Race("onnxruntime", "run of QuantizeLinear", "new", self.ours(x, "exact", None),
                   lambda: running.run(None, {"x": x})[0])

    def with_numpy(self, threads: int) -> Iterator[Race]:
        x, (scale, zero_point) = normal(self.shape), self.parameters
        yield Race("numpy", "divide, rint, add, clip, astype", "new", self.ours(x, "exact", None),
                   lambda: np.clip(np.rint(x / scale) + zero_point, -128, 127).astype(np.int8))


@dataclasses.dataclass
class DynamicPerToken(Case):
    """float32 to int8, each row by its own largest magnitude."""

    shape: tuple[int, int]
    name: str = "dynamic quantize per token"

    def ours(self, like: Like) -> Callable[[], Any]:
        x, rows = like(normal(self.shape)), self.shape[0]
        out = (like(np.zeros(self.shape, np.int8)), like(np.zeros(rows, np.float32)), like(np.zeros(rows, np.int32)))
        return lambda: kvant.dynamic_range_quantize(x, out=out)[:2]

    agreement = staticmethod(functools.partial(compare_all, names=("codes", "scales")))

    def with_torch(self, threads: int) -> Iterator[Race]:
        # Fastest of its ways in torch 2.13: aminmax, abs().amax() and vector_norm(inf) take 5 times as long as amin and
        # amax, quantize_per_channel 3 times as long as the composed division.
        x, rows = torch.from_numpy(normal(self.shape)), self.shape[0]
        buffer, q = torch.empty_like(x), torch.empty(self.shape, dtype=torch.int8)
        low, high, scale = torch.empty(rows, 1), torch.empty(rows, 1), torch.empty(rows, 1)

        def theirs() -> Any:
            torch.amin(x, -1, keepdim=True, out=low)
            torch.amax(x, -1, keepdim=True, out=high)
            torch.maximum(low.neg_(), high, out=scale).div_(127)
            torch.div(x, scale, out=buffer).round_().clamp_(-128, 127)
            return q.copy_(buffer), scale.view(rows)

        yield Race("torch", "amin, amax, div, round, clamp, copy", "out", self.ours(torch.from_numpy), theirs,
                   self.agreement)

    def with_onnxruntime(self, threads: int) -> Iterator[Race]:
        nodes = [node("ReduceMax", "x", "high", axes=[1], keepdims=0),
                 node("ReduceMin", "x", "low", axes=[1], keepdims=0),
                 node("Neg", "low", "negated"), node("Max", "high negated", "largest"),
                 node("Div", "largest ends", "scale"), node("QuantizeLinear", "x scale zero", "q", axis=0)]
        constants = {"ends": np.array(127, np.float32), "zero": np.zeros(self.shape[0], np.int8)}
        theirs = onnx_session(nodes, {"x": normal(self.shape)}, ["q", "scale"], constants, threads)
        yield Race("onnxruntime", "ReduceMax, ReduceMin, QuantizeLinear", "out", self.ours(np.asarray), theirs,
                   self.agreement)

    def with_numpy(self, threads: int) -> Iterator[Race]:
        x = normal(self.shape)
        buffer, q = np.zeros(self.shape, np.float32), np.zeros(self.shape, np.int8)

        def theirs() -> Any:
            scale = np.maximum(x.max(-1), -x.min(-1)) / np.float32(127)
            np.divide(x, scale[:, None], out=buffer)
            np.rint(buffer, out=buffer)
            np.clip(buffer, -128, 127, out=buffer)
            np.copyto(q, buffer, casting="unsafe")
            return q, scale

        yield Race("numpy", "max, min, divide, rint, clip, copyto", "out", self.ours(np.asarray), theirs,
                   self.agreement)


@dataclasses.dataclass
class DynamicPerTensor(Case):
    """float32 to uint8, all by one range that contains 0: ONNX's DynamicQuantizeLinear."""

    shape: tuple[int, int]
    name: str = "dynamic quantize per tensor, uint8"

    def ours(self, x: Any, out: Any, numerics: str) -> Callable[[], Any]:
        return lambda: kvant.dynamic_range_quantize(x, mode="asymmetric", scope="tensor", dtype="uint8",
                                                    include_zero=True, numerics=numerics, out=out)

    def agreement(self, ours: Any, theirs: Any, reasons: Optional[dict[str, Reason]] = None) -> dict[str, Any]:
        """Scales and zero points as one number each, however shaped and typed."""

        def alike(codes: Any, scale: Any, zero_point: Any) -> tuple[np.ndarray, ...]:
            return (as_array(codes), as_array(scale).reshape(1).astype(np.float32),
                    as_array(zero_point).reshape(1).astype(np.int32))

        return compare_all(alike(*ours), alike(*theirs), ("codes", "scale", "zero point"), reasons)

    def with_torch(self, threads: int) -> Iterator[Race]:
        x = torch.from_numpy(normal(self.shape))

        def agreement(ours: Any, theirs: Any) -> dict[str, Any]:
            values, scale, zero_point = normal(self.shape), theirs.q_scale(), theirs.q_zero_point()
            # min and max of normal data have 0 between them
            wide = np.float32((float(values.max()) - float(values.min())) / 255)
            reasons = {
                "codes": Reason(FUSED, lambda where: fused_codes(values[where], np.float32(scale), zero_point, 0, 255)),
                "scale": Reason("torch divides the range in float64", lambda where: np.full(1, wide)),
            }
            return self.agreement(ours, (theirs, scale, zero_point), reasons)

        yield Race("torch", "quantize_per_tensor_dynamic", "new", self.ours(x, None, "reciprocal"),
                   lambda: torch.quantize_per_tensor_dynamic(x, torch.quint8, False), agreement)

    def with_onnxruntime(self, threads: int) -> Iterator[Race]:
        x = normal(self.shape)
        out = (np.zeros(self.shape, np.uint8), np.zeros((), np.float32), np.zeros((), np.int32))
        theirs = onnx_session([node("DynamicQuantizeLinear", "x", "q s z")], {"x": x}, ["q", "s", "z"], {}, threads)
        yield Race("onnxruntime", "DynamicQuantizeLinear", "out", self.ours(x, out, "exact"), theirs, self.agreement)

    def with_numpy(self, threads: int) -> Iterator[Race]:
        x = normal(self.shape)
        buffer, q = np.zeros(self.shape, np.float32), np.zeros(self.shape, np.uint8)
        out = (np.zeros(self.shape, np.uint8), np.zeros((), np.float32), np.zeros((), np.int32))

        def theirs() -> Any:
            low, high = np.minimum(x.min(), 0), np.maximum(x.max(), 0)
            scale = (high - low) / np.float32(255)
            zero_point = np.rint(-low / scale)
            np.divide(x, scale, out=buffer)
            np.rint(buffer, out=buffer)
            np.add(buffer, zero_point, out=buffer)
            np.clip(buffer, 0, 255, out=buffer)
            np.copyto(q, buffer, casting="unsafe")
            return q, scale, zero_point

        yield Race("numpy", "min, max, divide, rint, add, clip, copyto", "out", self.ours(x, out, "exact"), theirs,
                   self.agreement)


@dataclasses.dataclass
class Linear(Case):
    """float32 [M, K] by int8 [N, K] with a scale for each output, the activation quantized inside.

    kvant quantizes each row by its own range, the peers all rows by one: in 8 bits, or in 7 (torch's default, so that
    16-bit sums do not saturate). Agreement is therefore how far each is from the float64 product of the float weights.
    """

    shape: tuple[int, int, int]  # M, K, N
    name: str = "dynamic int8 linear"

    @property
    def x(self) -> np.ndarray:
        return np.random.default_rng(3).standard_normal(self.shape[:2], dtype=np.float32)

    @staticmethod
    @functools.lru_cache(maxsize=1)
    def weight(k: int, n: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, kvant.PackedWeight]:
        """Floats, codes, scales, and the codes packed."""
        floats = np.random.default_rng(4).standard_normal((n, k), dtype=np.float32)
        scale = np.abs(floats).max(axis=1) / np.float32(127)
        codes = np.rint(floats / scale[:, None]).astype(np.int8)
        return floats, codes, scale, kvant.PackedWeight(codes)

    def ours(self, like: Like, out: bool) -> Callable[[], Any]:
        m, k, n = self.shape
        _, _, scale, packed = self.weight(k, n)
        x, scale, y = like(self.x), like(scale), like(np.zeros((m, n), np.float32)) if out else None
        return lambda: kvant.quantized_linear(x, packed, scale, mode="asymmetric", include_zero=True, out=y)

    @functools.cached_property
    def product(self) -> np.ndarray:
        return self.x.astype(np.float64) @ self.weight(*self.shape[1:])[0].T.astype(np.float64)

    def agreement(self, ours: Any, theirs: Any) -> dict[str, Any]:
        ours, theirs = as_array(ours), as_array(theirs)
        norm = np.linalg.norm(self.product)
        errors = [float(np.linalg.norm(y - self.product) / norm) for y in (ours, theirs)]
        difference = float(np.abs(ours - theirs).max())
        return {"text": f"error {errors[1]:.2%}, kvant's {errors[0]:.2%}; largest difference {difference:.2g}",
                "kvant_error": errors[0], "peer_error": errors[1], "max_difference": difference}

    @staticmethod
    @functools.lru_cache(maxsize=None)
    def torch_packed(k: int, n: int) -> dict[str, Any]:
        """The weight as each of torch's engines wants it; fbgemm is what x86 takes without VNNI."""
        _, codes, scale, _ = Linear.weight(k, n)
        before, packed = torch.backends.quantized.engine, {}
        tensor = torch._make_per_channel_quantized_tensor(
            torch.from_numpy(codes), torch.from_numpy(scale.astype(np.float64)), torch.zeros(n, dtype=torch.long), 0)
        for engine in ("x86", "onednn", "qnnpack"):
            if engine in torch.backends.quantized.supported_engines:
                torch.backends.quantized.engine = engine
                packed[engine] = torch.ops.quantized.linear_prepack(tensor, None)
        torch.backends.quantized.engine = before
        return packed

    def with_torch(self, threads: int) -> Iterator[Race]:
        m, k, n = self.shape
        x = torch.from_numpy(self.x)
        for engine, packed in self.torch_packed(k, n).items():
            # As torch.ao.nn.quantized.dynamic.Linear calls it; qnnpack knows no reduce_range.
            reduced = engine != "qnnpack"
            yield Race("torch", f"linear_dynamic, {engine}" + (", 7 bits" if reduced else ""), "new",
                       self.ours(torch.from_numpy, False),
                       functools.partial(torch.ops.quantized.linear_dynamic, x, packed, reduced), self.agreement)
        weight, y = torch.from_numpy(self.weight(k, n)[0]).T, torch.zeros(m, n)
        yield Race("torch", "mm in float32", "out", self.ours(torch.from_numpy, True),
                   lambda: torch.mm(x, weight, out=y), self.agreement)

    def with_onnxruntime(self, threads: int) -> Iterator[Race]:
        _, codes, scale, _ = self.weight(*self.shape[1:])
        theirs = onnx_session([node("DynamicQuantizeMatMul", "x w s", "y", domain="com.microsoft")], {"x": self.x},
                              ["y"], {"w": np.ascontiguousarray(codes.T), "s": scale}, threads)

        def agreement(ours: Any, theirs: Any) -> dict[str, Any]:
            result = self.agreement(ours, theirs)
            if self.saturates(as_array(theirs)):
                result["text"] += "; its sums of two products saturate at 16 bits"
            return result

        yield Race("onnxruntime", "DynamicQuantizeMatMul", "out", self.ours(np.asarray, True), theirs, agreement)

    def saturates(self, y: np.ndarray) -> bool:
        """Whether some of the first outputs are wrong sums, and all of them what vpmaddubsw makes of the codes."""
        outputs = 256
        _, codes, scale, _ = self.weight(*self.shape[1:])
        x = self.x
        low, high = x.min(), x.max()
        act_scale = (high - low) / np.float32(255)
        zero_point = int(np.rint(-low / act_scale))
        row = np.clip(np.rint(x[0] / act_scale) + zero_point, 0, 255).astype(np.int32)
        weight = codes[:outputs].astype(np.int32)
        pairs = (row * weight).reshape(outputs, -1, 2).sum(-1)
        exact, clipped = (sums.sum(-1) - zero_point * weight.sum(-1) for sums in (pairs, np.clip(pairs, -32768, 32767)))
        theirs = np.rint(y[0, :outputs] / (act_scale * scale[:outputs]))
        return bool((exact != clipped).any() and np.abs(theirs - clipped).max() <= 1)

    def with_numpy(self, threads: int) -> Iterator[Race]:
        return iter(())  # no integer product worth the name


@dataclasses.dataclass
class QuantizeToFloat8(Case):
    """float32 or bfloat16 to float8_e4m3 with one known scale."""

    shape: tuple[int, ...]
    dtype: str = "float32"

    def __post_init__(self) -> None:
        self.name = f"{self.dtype} to float8_e4m3 per tensor"

    def with_torch(self, threads: int) -> Iterator[Race]:
        x = torch.from_numpy(normal(self.shape)).to(getattr(torch, self.dtype))
        scale = 0.0237
        # torch's conversion does not saturate, so the largest numbers are kept inside.
        yield Race("torch", "div, clamp, to(float8_e4m3fn)", "new",
                   lambda: kvant.quantize_per_tensor(x, scale, dtype="float8_e4m3").view(torch.uint8),
                   lambda: (x.float() / scale).clamp(-448, 448).to(torch.float8_e4m3fn).view(torch.uint8))

    def with_onnxruntime(self, threads: int) -> Iterator[Race]:
        return iter(())

    def with_numpy(self, threads: int) -> Iterator[Race]:
        return iter(())


def cases(quick: bool) -> list[Case]:
    large = (256, 512) if quick else (4096, 4096)
    small = (32, 1024)  # with its result in a second-level cache of 256 KB
    features = 256 if quick else 4096
    return [
        CallOverhead(),
        Quantize(large, zero_point=0),
        Quantize(large),
        Quantize(small),
        Quantize(large, axis=0),
        Quantize(large, axis=1),
        Quantize(small, axis=0),
        Quantize(large, fake=True),
        Quantize(small, fake=True),
        Quantize(large, axis=0, fake=True),
        QuantizeToFloat8(large),
        QuantizeToFloat8(large, "bfloat16"),
        DynamicPerToken(large),
        DynamicPerToken(small),
        DynamicPerTensor(large),
        DynamicPerTensor(small),
        *(Linear((rows, features, features)) for rows in (1, 16, 128)),
    ]


# Report

COLUMNS = (("case", 39), ("shape", 14), ("threads", 8), ("peer", 12), ("its way", 44), ("memory", 7), ("peer", 12),
           ("kvant", 12), ("ratio", 7), ("agreement", 0))


def duration(seconds: float) -> str:
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if seconds >= size:
            return f"{seconds / size:.2f} {unit}"
    return f"{seconds * 1e9:.0f} ns"


def line(*cells: str) -> str:
    return "".join(cell.ljust(width) for cell, (_, width) in zip(cells, COLUMNS, strict=True)).rstrip()


def versions() -> dict[str, Optional[str]]:
    modules = {"torch": torch, "onnxruntime": ort, "numpy": np}
    return {peer: modules[peer].__version__ if there else None for peer, there in PEERS.items()}


def run(selected: list[Case], threads: list[int], pattern: re.Pattern[str], pace: Pace) -> Iterator[dict[str, Any]]:
    for case in selected:
        shape = "x".join(str(size) for size in case.shape)
        for count in threads:
            for peer in PEERS:
                if not pattern.search(f"{case.name}/{shape}/{peer}/{count}"):
                    continue
                kvant.set_num_threads(count)
                if torch is not None:
                    torch.set_num_threads(count)
                for contest in case.races(peer, count):
                    try:
                        result = contest.theirs()
                    except Exception as error:  # torch has begun to take its quantized tensors out
                        print(f"{case.name}: {peer} {versions()[peer]} cannot {contest.how}: {error}", file=sys.stderr)
                        continue
                    agreement = contest.agreement(contest.ours(), result)
                    del result
                    ours, theirs = race(contest.ours, contest.theirs, pace)
                    yield {"case": case.name, "shape": list(case.shape), "threads": count, "peer": peer,
                           "how": contest.how, "memory": contest.memory, "peer_seconds": theirs, "kvant_seconds": ours,
                           "ratio": theirs / ours, "agreement": agreement}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="small shapes, short turns: only to see it run")
    parser.add_argument("--filter", default="", metavar="REGEX", help="only what matches CASE/SHAPE/PEER/THREADS")
    parser.add_argument("--threads", default="1,2", metavar="LIST", help="1,2 unless given")
    parser.add_argument("--json", metavar="FILE", help="write the rows there too")
    arguments = parser.parse_args()
    # torch 2.13 calls its quantized tensors deprecated, once for every kind.
    warnings.filterwarnings("ignore", message=".*quantize.*deprecated.*")

    print(f"kvant {kvant.__version__}; " + ", ".join(
        f"{peer} {version or 'is missing'}" for peer, version in versions().items()) + f"; {os.cpu_count()} processors")
    load = os.getloadavg()[0]
    if load > 0.5 and not arguments.quick:
        print(f"Others keep {load:.1f} processors busy. torch's threads wait for each other by spinning and suffer "
              "more from that than kvant's: ratios on two threads flatter kvant.")
    print("ratio: the peer's time by kvant's. memory: new, both allocate; out, both write to arrays made beforehand.")
    print(line(*(title for title, _ in COLUMNS)), flush=True)
    pace = Pace(0.002, 2) if arguments.quick else Pace(0.05, 5)
    rows = []
    threads = [int(count) for count in arguments.threads.split(",")]
    for row in run(cases(arguments.quick), threads, re.compile(arguments.filter), pace):
        rows.append(row)
        print(line(row["case"], "x".join(str(size) for size in row["shape"]), str(row["threads"]), row["peer"],
                   row["how"], row["memory"], duration(row["peer_seconds"]), duration(row["kvant_seconds"]),
                   f"{row['ratio']:.2f}", row["agreement"]["text"]), flush=True)
    if not rows:
        sys.exit("bench_peers: nothing matches the filter")
    if arguments.json:
        with open(arguments.json, "w") as file:
            figures = {"kvant": kvant.__version__, "peers": versions(), "info": kvant.info(), "load": load,
                       "rows": rows}
            file.write(json.dumps(figures, indent=1, default=str) + "\n")


if __name__ == "__main__":
    main()
