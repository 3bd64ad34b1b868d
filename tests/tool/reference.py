"""The arithmetic of quantizing a checkpoint, stated a second time in plain Python and without kvant's code.

rne is round to nearest, ties to even, which is what round() does with floats. Weights of f32, f16 and bf16 compute in
f32: a product or quotient of two f32 in f64, rounded to f32, is the correctly rounded one.
"""

import bisect
import copy
import math
import re
import struct

import numpy as np

from checkpoints import Tensor, round_f32, round_to

SMALLEST_NORMAL = {"F32": 2.0 ** -126, "F16": 2.0 ** -14, "BF16": 2.0 ** -126}
LARGEST = {"F32": (2 - 2.0 ** -23) * 2.0 ** 127, "F16": 65504.0, "BF16": (2 - 2.0 ** -7) * 2.0 ** 127}


def stored(scale, dtype):
    """A scale as the checkpoint holds it: f32, then the dtype, a finite normal number."""
    return min(max(round_to(round_f32(scale), dtype), SMALLEST_NORMAL[dtype]), LARGEST[dtype])


def quotient(x, scale, dtype):
    if dtype == "F64":
        try:
            return x / scale
        except OverflowError:
            return math.copysign(math.inf, x)
    return round_f32(x / scale)


def code(x, scale, zero_point, low, high, dtype):
    if math.isnan(x):
        return max(low, min(high, zero_point))
    q = quotient(x, scale, dtype)
    if math.isinf(q):
        return high if q > 0 else low
    return max(low, min(high, round(q) + zero_point))


def finite(values):
    return [v for v in values if math.isfinite(v)]


def largest_of(values):
    return max((abs(v) for v in finite(values)), default=0)


def symmetric_scale(values, greatest, scale_dtype):
    largest = largest_of(values)
    return stored(largest / greatest, scale_dtype) if largest else 1.0


def asymmetric_scale(values, low, high, scale_dtype, dtype):
    """(scale, zero point) of a range that is extended to 0."""
    least = min(finite(values) + [0.0])
    most = max(finite(values) + [0.0])
    if least == most:
        return 1.0, 0
    scale = stored((most - least) / (high - low), scale_dtype)
    return scale, max(low, min(high, low - round(quotient(least, scale, dtype))))


def scale_dtype_of(weight_dtype, asked=None):
    return asked or ("F32" if weight_dtype == "F64" else weight_dtype)


# ---- Codes of floating-point numbers --------------------------------------------------------------------------------

class Grid:
    """The magnitudes that codes stand for, by code. The sign is the bit above them."""

    def __init__(self, exponent_bits, mantissa_bits, bias, count, nan):
        self.sign = 1 << (exponent_bits + mantissa_bits)
        self.nan = nan
        self.numbers = []
        for magnitude in range(count):
            exponent, mantissa = magnitude >> mantissa_bits, magnitude & ((1 << mantissa_bits) - 1)
            share = mantissa / (1 << mantissa_bits)
            self.numbers.append((1 + share) * 2.0 ** (exponent - bias) if exponent else share * 2.0 ** (1 - bias))
        self.largest = self.numbers[-1]
        self.largest_exponent = math.frexp(self.largest)[1] - 1
        self.middles = [(a + b) / 2 for a, b in zip(self.numbers, self.numbers[1:])]

    def code(self, y):
        """The nearest, of two the even code; what is too large becomes the largest."""
        if math.isnan(y):
            return self.nan
        at = bisect.bisect_left(self.middles, abs(y))
        if at < len(self.middles) and self.middles[at] == abs(y) and at % 2:
            at += 1
        return at | (self.sign if math.copysign(1, y) < 0 else 0)

    def number(self, code):
        magnitude = code & (self.sign - 1)
        if magnitude >= len(self.numbers):
            return math.nan
        return -self.numbers[magnitude] if code & self.sign else self.numbers[magnitude]


E4M3 = Grid(4, 3, 7, 127, 0x7F)
E2M1 = Grid(2, 1, 1, 8, 0)
GRIDS = {("float", 8): E4M3, ("float", 4): E2M1}


def e8m0_code(largest, grid):
    """The power of two that brings the largest near that of the grid; from 1.75 times a power on, the next."""
    if largest == 0:
        return 127
    mantissa, exponent = math.frexp(largest)  # of 0.5 to 1
    floor = exponent - 1 + (mantissa >= 0.875)
    return max(0, min(254, floor - grid.largest_exponent + 127))


def global_scale(largest):
    """What the scales of NVFP4 are multiplied with before they are rounded to e4m3."""
    scale = round_f32(448 * 6 / largest) if largest else math.inf
    return 1.0 if math.isinf(scale) else max(scale, SMALLEST_NORMAL["F32"])


def scale_code_under(total, largest):
    plain = round_f32(round_f32(min(largest, LARGEST["F32"])) / 6)
    return E4M3.code(round_f32(plain * total)) or 0x20


# ---- A search of scales --------------------------------------------------------------------------------------------

def sum_of_lanes(terms):
    """Element i in lane i % 16, one after the other; then lanes l and l + 8, l + 4, l + 2, l + 1. All in f32."""
    padded = np.zeros(-(-len(terms) // 16) * 16, np.float32)
    padded[:len(terms)] = terms
    lanes = np.zeros(16, np.float32)
    for part in padded.reshape(-1, 16):
        lanes = lanes + part
    for width in (8, 4, 2, 1):
        lanes = lanes[:width] + lanes[width:]
    return lanes[0]


class Search:
    """Tries scales; of two that are as good, the first one stays."""

    def __init__(self, scheme, values, importance):
        self.w = np.array(values, np.float64)
        with np.errstate(over="ignore"):
            self.w = self.w.astype(np.float32)
        self.w[~np.isfinite(self.w)] = 0
        self.m = np.ones(len(values), np.float32) if importance is None else np.array(importance, np.float32)
        self.grid = scheme.grid
        half = 2 ** (scheme.bits - 1)
        self.low, self.high = -half, half - 1
        self.error = None

    def numbers(self, scale, zero_point):
        with np.errstate(over="ignore"):
            y = self.w * min(np.float32(1) / np.float32(scale), np.float32(LARGEST["F32"]))
        if not self.grid:
            return np.rint(np.clip(y, np.float32(self.low - zero_point), np.float32(self.high - zero_point)))
        middles = np.array(self.grid.middles)
        at = np.searchsorted(middles, np.abs(y))
        inside = np.minimum(at, len(middles) - 1)
        at = at + ((at < len(middles)) & (middles[inside] == np.abs(y)) & (at % 2 == 1))
        return (np.array(self.grid.numbers)[at] * np.sign(y)).astype(np.float32)

    def consider(self, scale, zero_point=0, bits=None):
        e = self.w - np.float32(scale) * self.numbers(scale, zero_point)
        error = sum_of_lanes(e * e * self.m)
        error = np.float32(math.inf) if np.isnan(error) else error
        if self.error is None or error < self.error:
            self.error, self.scale, self.zero_point, self.bits = error, scale, zero_point, bits

    def refit(self, scale_dtype):
        d = self.numbers(self.scale, self.zero_point)
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            scale = sum_of_lanes(self.w * d * self.m) / sum_of_lanes(d * d * self.m)
        if scale > 0 and math.isfinite(scale):
            self.consider(stored(float(scale), scale_dtype), self.zero_point)

    def of_numbers(self, symmetric, scale_dtype):
        least, most = min(float(self.w.min()), 0.0), max(float(self.w.max()), 0.0)
        largest = max(-least, most)
        if largest == 0:
            self.scale, self.zero_point, self.bits = 1.0, 0, None
            return
        for i in range(16):
            share = (25 - i) / 25
            if symmetric:
                self.consider(stored(largest * share / (self.grid.largest if self.grid else self.high), scale_dtype))
                continue
            scale = stored((most * share - least * share) / (self.high - self.low), scale_dtype)
            zero_point = self.low - round(quotient(round_f32(least * share), scale, "F32"))
            self.consider(scale, max(self.low, min(self.high, zero_point)))
        scale, zero_point = self.scale, self.zero_point
        for other in (zero_point - 1, zero_point + 1):
            if not symmetric and self.low <= other <= self.high:
                self.consider(scale, other)
        self.refit(scale_dtype)
        self.refit(scale_dtype)

    def of_codes(self, total):
        """Scales are powers of two; or e4m3, under a total."""
        largest = float(np.abs(self.w).max())
        first = e8m0_code(largest, self.grid) if total is None else scale_code_under(total, largest)
        least, most, down = (0, 254, 1) if total is None else (1, 126, 8)
        for bits in (first, *range(first - 1, first - 1 - down, -1), first + 1):
            if least <= bits <= most:
                self.consider(2.0 ** (bits - 127) if total is None else round_f32(E4M3.number(bits) / total), 0, bits)


# ---- Schemes --------------------------------------------------------------------------------------------------------

def arguments(num_bits, kind, strategy, dynamic=False, **more):
    return {"num_bits": num_bits, "type": kind, "symmetric": True, "strategy": strategy, "dynamic": dynamic, **more}


def groups_of(num_bits, kind, size, scale, strategy="group", dynamic=False):
    return arguments(num_bits, kind, strategy, dynamic, group_size=size, scale_dtype=scale)


INT_GROUPS = {bits: arguments(bits, "int", "group", group_size=128) for bits in (4, 8)}
MX = {bits: groups_of(bits, "float", 32, "torch.uint8") for bits in (4, 8)}
MX_INPUTS = {bits: groups_of(bits, "float", 32, "torch.uint8", dynamic=True) for bits in (4, 8)}
NV = groups_of(4, "float", 16, "torch.float8_e4m3fn", "tensor_group")
BLOCKS = arguments(8, "float", "block", block_structure=[128, 128])
# Keys and values of attention, in a cache of FP8.
CACHED = arguments(8, "float", "tensor")
INT8_TOKEN, FP8_TOKEN = arguments(8, "int", "token", True), arguments(8, "float", "token", True)

# (format, weights, inputs), as config.json has them.
SCHEMES = {
    "w8a8": ("int-quantized", arguments(8, "int", "channel"), INT8_TOKEN),
    "w8a8-static": ("int-quantized", arguments(8, "int", "channel"), arguments(8, "int", "tensor")),
    "w8a16": ("pack-quantized", INT_GROUPS[8], None),
    "w4a16": ("pack-quantized", INT_GROUPS[4], None),
    "w4a8": ("int-quantized", INT_GROUPS[4], INT8_TOKEN),
    "fp8": ("float-quantized", arguments(8, "float", "channel"), FP8_TOKEN),
    "fp8-tensor": ("float-quantized", arguments(8, "float", "tensor"), FP8_TOKEN),
    "fp8-static": ("float-quantized", arguments(8, "float", "tensor"), arguments(8, "float", "tensor")),
    "fp8-block": ("float-quantized", BLOCKS, arguments(8, "float", "group", True, group_size=128)),
    "mxfp8": ("mxfp8-quantized", MX[8], MX_INPUTS[8]),
    "mxfp8a16": ("mxfp8-quantized", MX[8], None),
    "mxfp4": ("mxfp4-pack-quantized", MX[4], MX_INPUTS[4]),
    "mxfp4a16": ("mxfp4-pack-quantized", MX[4], None),
    "nvfp4": ("nvfp4-pack-quantized", NV, {**NV, "dynamic": "local"}),
    "nvfp4a16": ("nvfp4-pack-quantized", NV, None),
}
# What llm-compressor calls them.
OTHER_NAMES = {"W8A8": "w8a8", "W8A16": "w8a16", "W4A16": "w4a16", "W4A8": "w4a8", "FP8_DYNAMIC": "fp8",
               "FP8_BLOCK": "fp8-block", "MXFP8": "mxfp8", "MXFP8A16": "mxfp8a16", "MXFP4": "mxfp4",
               "MXFP4A16": "mxfp4a16", "NVFP4": "nvfp4", "NVFP4A16": "nvfp4a16"}


class Scheme:
    def __init__(self, name, group_size=None, asymmetric=False, choice=None):
        """`choice` of scales: minmax, minmax-ct or search; the default by the bits of codes."""
        self.format, self.weights, self.inputs = copy.deepcopy(SCHEMES[name])
        self.choice = choice or ("search" if self.weights["num_bits"] == 4 else "minmax")
        if group_size == -1:
            self.weights["strategy"] = "channel"
            del self.weights["group_size"]
        elif group_size is not None:
            self.weights["group_size"] = group_size
        if asymmetric and self.format == "pack-quantized":
            self.weights["symmetric"] = False
        elif asymmetric:
            self.inputs["symmetric"] = False
        self.bits = self.weights["num_bits"]
        self.grid = GRIDS.get((self.weights["type"], self.bits))
        self.has_tensor_scale = self.weights["strategy"] in ("tensor", "tensor_group")
        self.needs_statistics = self.inputs is not None and self.inputs["dynamic"] in (False, "local")

    def columns_unit(self):
        """What the columns of a weight must be a multiple of."""
        groups = [part.get("group_size", 1) for part in (self.weights, self.inputs or {})]
        return max(*groups, 32 // self.bits if self.format == "pack-quantized" else 1)

    def span(self, rows, columns):
        """Rows and columns that share a scale."""
        strategy = self.weights["strategy"]
        if strategy == "block":
            return self.weights["block_structure"]
        return rows if strategy == "tensor" else 1, self.weights.get("group_size", columns)

    def config_group(self, targets):
        return {"targets": targets, "weights": self.weights, "input_activations": self.inputs,
                "output_activations": None}


# ---- Weights --------------------------------------------------------------------------------------------------------

def pack(codes, bits=4):
    """As many to an I32 as fit, the first in the lowest bits, the last word filled up with zeros."""
    words, per_word = [], 32 // bits
    for i in range(0, len(codes), per_word):
        word = 0
        for place, u in enumerate(codes[i:i + per_word]):
            assert 0 <= u < 1 << bits
            word |= u << (bits * place)
        words.append(struct.unpack("<i", struct.pack("<I", word))[0])
    return words


def unpack(words, count, bits=4):
    mask = (1 << bits) - 1
    return [((word & 0xFFFFFFFF) >> (bits * place)) & mask for word in words for place in range(32 // bits)][:count]


class Span:
    """Weights that share a scale: the scale they are divided by, its zero point, and its bits where it is a code."""

    def __init__(self, scheme, values, dtype, scale_dtype, total, importance=None):
        self.zero_point, self.bits = 0, None
        if scheme.choice == "search":
            search = Search(scheme, values, importance)
            if scheme.format.startswith(("mxfp", "nvfp4")):
                search.of_codes(total)
            else:
                search.of_numbers(scheme.weights["symmetric"], scale_dtype)
            self.scale, self.zero_point, self.bits = search.scale, search.zero_point, search.bits
        elif scheme.format.startswith("mxfp"):
            self.bits = e8m0_code(largest_of(values), scheme.grid)
            self.scale = 2.0 ** (self.bits - 127)
        elif scheme.format.startswith("nvfp4"):
            self.bits = scale_code_under(total, largest_of(values))
            self.scale = round_f32(E4M3.number(self.bits) / total)
        elif scheme.weights["strategy"] == "tensor":
            self.scale = total
        elif scheme.grid:
            self.scale = symmetric_scale(values, scheme.grid.largest, scale_dtype)
        elif scheme.weights["symmetric"]:
            divisor = 2 ** (scheme.bits - 1) - (0.5 if scheme.choice == "minmax-ct" else 1)
            self.scale = symmetric_scale(values, divisor, scale_dtype)
        else:
            half = 2 ** (scheme.bits - 1)
            self.scale, self.zero_point = asymmetric_scale(values, -half, half - 1, scale_dtype, dtype)

    def codes(self, scheme, values, dtype):
        if scheme.grid:
            return [scheme.grid.code(quotient(x, self.scale, dtype)) for x in values]
        half = 2 ** (scheme.bits - 1)
        return [code(x, self.scale, self.zero_point, -half, half - 1, dtype) for x in values]


def weight_tensors(module, weight, scheme, scale_dtype=None, largest=None, importance=None):
    """`largest`: of this weight and of those that loaders join with it. `importance`: of the columns."""
    scale_dtype = scale_dtype_of(weight.dtype, scale_dtype)
    rows, columns = weight.shape
    high, wide = scheme.span(rows, columns)
    values = weight.rows()
    total = None
    if scheme.has_tensor_scale:
        largest = largest_of(weight.values()) if largest is None else largest
        total = global_scale(largest) if scheme.bits == 4 else symmetric_scale([largest], E4M3.largest, scale_dtype)
    codes, spans = [[] for _ in range(rows)], []
    for top in range(0, rows, high):
        spans.append([])
        for left in range(0, columns, wide):
            part = [row[left:left + wide] for row in values[top:top + high]]
            span = Span(scheme, [x for row in part for x in row], weight.dtype, scale_dtype, total,
                        importance[left:left + wide] if importance else None)
            spans[-1].append(span)
            for r, row in enumerate(part):
                codes[top + r] += span.codes(scheme, row, weight.dtype)
    shape = [1] if scheme.weights["strategy"] == "tensor" else [len(spans), len(spans[0])]
    flat = [span for row in spans for span in row]
    tensors = code_tensors(module, codes, scheme)
    tensors[module + ".weight_scale"] = scale_tensor(flat, shape, scheme, scale_dtype)
    if scheme.weights["strategy"] == "tensor_group":
        tensors[module + ".weight_global_scale"] = Tensor.of([total], "F32")
    if not scheme.weights["symmetric"]:
        half, per_word = 2 ** (scheme.bits - 1), 32 // scheme.bits
        by_group = [pack([row[g].zero_point + half for row in spans], scheme.bits) for g in range(len(spans[0]))]
        height = -(-rows // per_word)
        words = [by_group[g][w] for w in range(height) for g in range(len(by_group))]
        tensors[module + ".weight_zero_point"] = Tensor.of(words, "I32", [height, len(by_group)])
    return tensors


def code_tensors(module, codes, scheme):
    rows, columns = len(codes), len(codes[0])
    if scheme.format == "pack-quantized":
        half, per_word = 2 ** (scheme.bits - 1), 32 // scheme.bits
        words = [word for row in codes for word in pack([q + half for q in row], scheme.bits)]
        return {module + ".weight_packed": Tensor.of(words, "I32", [rows, -(-columns // per_word)]),
                module + ".weight_shape": Tensor.of([rows, columns], "I64")}
    if scheme.format.endswith("fp4-pack-quantized"):  # the first in the lower half of a byte
        data = bytes(row[i] | row[i + 1] << 4 for row in codes for i in range(0, columns, 2))
        return {module + ".weight_packed": Tensor("U8", [rows, columns // 2], data)}
    flat = [q for row in codes for q in row]
    if scheme.grid:
        return {module + ".weight": Tensor("F8_E4M3", [rows, columns], bytes(flat))}
    return {module + ".weight": Tensor.of(flat, "I8", [rows, columns])}


def scale_tensor(spans, shape, scheme, scale_dtype):
    if spans[0].bits is None:
        return Tensor.of([span.scale for span in spans], scale_dtype, shape)
    dtype = "U8" if scheme.format.startswith("mxfp") else "F8_E4M3"
    return Tensor(dtype, shape, bytes(span.bits for span in spans))


def zero_points(module, tensors, scheme):
    """Of each scale; they lie in words along the rows."""
    words, (rows, groups) = tensors.get(module + ".weight_zero_point"), tensors[module + ".weight_scale"].shape
    if not words:
        return [0] * (rows * groups)
    half, values, (height, _) = 2 ** (scheme.bits - 1), words.values(), words.shape
    by_group = [unpack([values[w * groups + g] for w in range(height)], rows, scheme.bits) for g in range(groups)]
    return [by_group[g][row] - half for row in range(rows) for g in range(groups)]


def decoded_integers(module, tensors, scheme):
    scales, zeros = tensors[module + ".weight_scale"].values(), zero_points(module, tensors, scheme)
    packed = tensors.get(module + ".weight_packed")
    if packed:
        rows, columns = tensors[module + ".weight_shape"].values()
        width, half = packed.shape[1], 2 ** (scheme.bits - 1)
        words = packed.values()
        codes = [u - half for r in range(rows) for u in unpack(words[r * width:(r + 1) * width], columns, scheme.bits)]
    else:
        codes, (rows, columns) = tensors[module + ".weight"].values(), tensors[module + ".weight"].shape
    per_scale = rows * columns // len(scales)
    values = [(q - zeros[i // per_scale]) * scales[i // per_scale] for i, q in enumerate(codes)]
    return [values[i:i + columns] for i in range(0, len(values), columns)]


def decoded(module, tensors, scheme):
    """Rows of the numbers that codes stand for under their scales."""
    if not scheme.grid:
        return decoded_integers(module, tensors, scheme)
    scales, total = tensors[module + ".weight_scale"], tensors.get(module + ".weight_global_scale")
    if scheme.format.startswith("mxfp"):
        factors = [2.0 ** (bits - 127) for bits in scales.data]
    elif total:
        factors = [round_f32(E4M3.number(bits) / total.values()[0]) for bits in scales.data]
    else:
        factors = scales.values()
    packed = tensors.get(module + ".weight_packed")
    codes = [u for byte in packed.data for u in (byte & 15, byte >> 4)] if packed else tensors[module + ".weight"].data
    rows = (packed or tensors[module + ".weight"]).shape[0]
    per_scale, columns = len(codes) // len(factors), len(codes) // rows
    values = [scheme.grid.number(code) * factors[i // per_scale] for i, code in enumerate(codes)]
    return [values[i:i + columns] for i in range(0, len(values), columns)]


# ---- Smoothing ------------------------------------------------------------------------------------------------------

def column_maxima(weights):
    columns = weights[0].shape[1]
    largest = [0.0] * columns
    for weight in weights:
        for row in weight.rows():
            for j, x in enumerate(row):
                if math.isfinite(x) and abs(x) > largest[j]:
                    largest[j] = abs(x)
    return largest


def smooth_scales(absmax, weights, alpha):
    scales = []
    for x, w in zip(absmax, column_maxima(weights)):
        scales.append(round_f32(max(math.pow(x, alpha) / math.pow(max(w, 1e-5), 1 - alpha), 1e-5)))
    return scales


def smoothed_weight(weight, s):
    """W' = W s, in the type that computes, then in the weight's own."""
    if weight.dtype == "F64":
        values = [x * f for row in weight.rows() for x, f in zip(row, s)]
    else:
        values = [round_f32(x * f) for row in weight.rows() for x, f in zip(row, s)]
    return Tensor.of(values, weight.dtype, weight.shape)


def folded_norm(norm, s):
    return Tensor.of([quotient(x, f, norm.dtype) for x, f in zip(norm.values(), s)], norm.dtype)


# ---- Static activations ---------------------------------------------------------------------------------------------

def input_tensors(module, stats, scheme, scale_dtype, s=None):
    """What is stored of the input of a linear, after smoothing divided channel j by s[j]."""
    def channels(what):
        values = stats[f"{module}.{what}"].values()
        return [round_f32(x / f) for x, f in zip(values, s)] if s else values

    if scheme.inputs["dynamic"] == "local":
        return {module + ".input_global_scale": Tensor.of([global_scale(largest_of(channels("absmax")))], "F32")}
    if scheme.inputs["symmetric"]:
        greatest = E4M3.largest if scheme.inputs["type"] == "float" else 127
        scale = symmetric_scale(channels("absmax"), greatest, scale_dtype)
        return {module + ".input_scale": Tensor.of([scale], scale_dtype)}
    scale, zero_point = asymmetric_scale(channels("min") + channels("max"), -128, 127, scale_dtype, "F32")
    return {module + ".input_scale": Tensor.of([scale], scale_dtype),
            module + ".input_zero_point": Tensor.of([zero_point], "I8")}


def cache_tensors(attentions, stats, scale_dtype):
    """Scales of FP8 keys and values of each attention layer."""
    return {f"{attention}.{half}_scale": Tensor.of([symmetric_scale(stats[f"{attention}.{half}.absmax"].values(),
                                                                    E4M3.largest, scale_dtype)], scale_dtype)
            for attention in attentions for half in "kv"}


def read_back(x, inputs, stored_scale=None):
    """What a linear reads after a loader made codes of its input, a row, and numbers of them again."""
    grid, size = GRIDS[inputs["type"], inputs["num_bits"]], inputs.get("group_size", len(x))
    values = []
    for i in range(0, len(x), size):
        group = [round_f32(v) for v in x[i:i + size]]
        largest = largest_of(group)
        if inputs["dynamic"] is False:
            scale = stored_scale
        elif inputs["dynamic"] == "local":
            scale = round_f32(E4M3.number(scale_code_under(stored_scale, largest)) / stored_scale)
        elif "scale_dtype" in inputs:
            scale = 2.0 ** (e8m0_code(largest, grid) - 127)
        else:
            scale = round_f32(largest / grid.largest) if largest else 1.0
        values += [grid.number(grid.code(quotient(v, scale, "F32"))) * scale for v in group]
    return values


# ---- A whole checkpoint ---------------------------------------------------------------------------------------------

# What loaders join into one matrix, in this order.
FUSED = [["q_proj", "k_proj", "v_proj"], ["gate_proj", "up_proj"], ["w1", "w3"], ["query", "key", "value"],
         ["q_a_proj", "kv_a_proj_with_mqa"]]


def fused_parts(module):
    parent, _, last = module.rpartition(".")
    return next(([f"{parent}.{part}" for part in parts] for parts in FUSED if last in parts), [module])


def experts_of(module):
    """What loaders join into one stack."""
    found = re.fullmatch(r"(.*experts)\.\d+\.\w+", module)
    return found and found[1]


def left_alone(model, schemes):
    """Modules whose shape does not fit their scheme. `schemes`: by module."""
    alone = set()
    for module, scheme in schemes.items():
        rows, columns = model.shape(module)
        parts, block = fused_parts(module), scheme.weights.get("block_structure")
        if columns % scheme.columns_unit():
            alone.add(module)
        elif block and module != parts[-1] and rows % block[0]:
            alone.update(parts)
    torn = {experts_of(module) for module in alone} - {None}
    return alone | {module for module in schemes if experts_of(module) in torn}


def quantize(model, scheme, stats=None, smooth=False, alpha=None, group_size=None, asymmetric=False, scale_dtype=None,
             unquantized=(), others=None, choice=None):
    """Every tensor of the quantized checkpoint, and the vectors s by norm. `others`: {module: name of its scheme}."""
    first = Scheme(scheme, group_size, asymmetric, choice)
    schemes = {m: Scheme(others[m]) if m in (others or {}) else first for m in model.linears if m not in unquantized}
    unquantized = left_alone(model, schemes) | set(unquantized)
    tensors = dict(model.tensors)
    s_of_module, s_of_norm = {}, {}
    if smooth:
        for group in model.groups:
            if all(r in unquantized or r not in model.linears for r in group.readers):
                continue  # nothing to gain
            weights = [model.tensors[r + ".weight"] for r in group.readers]
            # They read the same, but an expert sees only some of it.
            seen = [stats[r + ".absmax"].values() for r in group.readers if r + ".absmax" in stats]
            absmax = [max(channel) for channel in zip(*seen)]
            s = smooth_scales(absmax, weights, model.alpha if alpha is None else alpha)
            s_of_norm[group.norm] = s
            for kind in (".weight", ".bias"):
                if group.norm + kind in tensors:
                    tensors[group.norm + kind] = folded_norm(tensors[group.norm + kind], s)
            for reader in group.readers:
                s_of_module[reader] = s
                tensors[reader + ".weight"] = smoothed_weight(tensors[reader + ".weight"], s)
    quantized = [m for m in model.linears if m not in unquantized]
    weights = {m: tensors.pop(m + ".weight") for m in quantized}
    for module, weight in weights.items():
        mine, largest = schemes[module], None
        if mine.has_tensor_scale:
            largest = max(largest_of(weights[part].values()) for part in fused_parts(module) if part in weights)
        # Scales that are codes have a dtype of their own.
        dtype = scale_dtype if mine is first else None
        tensors.update(weight_tensors(module, weight, mine, dtype, largest,
                                      importance_of(module, stats, s_of_module.get(module))))
        if mine.needs_statistics:
            dtype = scale_dtype_of(weight.dtype, dtype)
            tensors.update(input_tensors(module, stats, mine, dtype, s_of_module.get(module)))
    return tensors, s_of_norm


def importance_of(module, stats, s):
    """E[x²] of the input channels, after smoothing divided them by s."""
    if not stats or module + ".mean_square" not in stats:
        return None
    squares = stats[module + ".mean_square"].values()
    return [round_f32(m / round_f32(f * f)) for m, f in zip(squares, s)] if s else squares


def quantization_config(scheme, ignore, group_size=None, asymmetric=False, others=None, choice=None):
    """No file says how scales were found."""
    schemes = {scheme: Scheme(scheme, group_size, asymmetric)}
    targets = {scheme: ["Linear"]}
    for module, name in (others or {}).items():
        schemes.setdefault(name, Scheme(name))
        targets.setdefault(name, []).append(module)
    groups = {f"group_{i}": made.config_group(targets[name]) for i, (name, made) in enumerate(schemes.items())}
    formats = [made.format for made in schemes.values()]
    if len(groups) > 1:
        for group, own in zip(groups.values(), formats):
            group["format"] = own
    return {"quant_method": "compressed-tensors", "format": formats[0] if len(set(formats)) == 1 else "mixed-precision",
            "quantization_status": "compressed", "ignore": ignore, "kv_cache_scheme": None,
            "global_compression_ratio": None, "config_groups": groups}
