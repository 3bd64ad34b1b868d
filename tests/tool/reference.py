"""The arithmetic of quantizing a checkpoint, stated a second time in plain Python and without kvant's code.

rne is round to nearest, ties to even, which is what round() does with floats. Weights of f32, f16 and bf16 compute in
f32: a product or quotient of two f32 in f64, rounded to f32, is the correctly rounded one.
"""

import math
import struct

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


def symmetric_scale(values, greatest, scale_dtype):
    largest = max((abs(v) for v in finite(values)), default=0)
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


# ---- Weights -------------------------------------------------------------------------------------------------------

def quantize_row(row, dtype, scale_dtype):
    scale = symmetric_scale(row, 127, scale_dtype)
    return [code(x, scale, 0, -128, 127, dtype) for x in row], scale


def w8_tensors(module, weight, scale_dtype=None):
    scale_dtype = scale_dtype_of(weight.dtype, scale_dtype)
    codes, scales = [], []
    for row in weight.rows():
        row_codes, scale = quantize_row(row, weight.dtype, scale_dtype)
        codes += row_codes
        scales.append(scale)
    return {module + ".weight": Tensor.of(codes, "I8", weight.shape),
            module + ".weight_scale": Tensor.of(scales, scale_dtype, [weight.shape[0], 1])}


def pack(nibbles):
    """Eight to an I32, the first in the lowest bits, the last word filled up with zeros."""
    words = []
    for i in range(0, len(nibbles), 8):
        word = 0
        for place, u in enumerate(nibbles[i:i + 8]):
            assert 0 <= u <= 15
            word |= u << (4 * place)
        words.append(struct.unpack("<i", struct.pack("<I", word))[0])
    return words


def unpack(words, count):
    return [((word & 0xFFFFFFFF) >> (4 * place)) & 15 for word in words for place in range(8)][:count]


def quantize_groups(row, group_size, asymmetric, dtype, scale_dtype):
    codes, scales, zero_points = [], [], []
    for i in range(0, len(row), group_size):
        group = row[i:i + group_size]
        if asymmetric:
            scale, zero_point = asymmetric_scale(group, -8, 7, scale_dtype, dtype)
        else:
            scale, zero_point = symmetric_scale(group, 7, scale_dtype), 0
        codes += [code(x, scale, zero_point, -8, 7, dtype) for x in group]
        scales.append(scale)
        zero_points.append(zero_point)
    return codes, scales, zero_points


def w4_tensors(module, weight, group_size=128, asymmetric=False, scale_dtype=None):
    scale_dtype = scale_dtype_of(weight.dtype, scale_dtype)
    rows, columns = weight.shape
    packed, scales, zero_points = [], [], []
    for row in weight.rows():
        codes, row_scales, row_zeros = quantize_groups(row, group_size, asymmetric, weight.dtype, scale_dtype)
        packed += pack([q + 8 for q in codes])
        scales += row_scales
        zero_points.append(row_zeros)
    groups = columns // group_size
    tensors = {module + ".weight_packed": Tensor.of(packed, "I32", [rows, -(-columns // 8)]),
               module + ".weight_scale": Tensor.of(scales, scale_dtype, [rows, groups]),
               module + ".weight_shape": Tensor.of([rows, columns], "I64")}
    if asymmetric:
        by_group = [pack([zero_points[r][g] + 8 for r in range(rows)]) for g in range(groups)]
        words = [by_group[g][w] for w in range(-(-rows // 8)) for g in range(groups)]
        tensors[module + ".weight_zero_point"] = Tensor.of(words, "I32", [-(-rows // 8), groups])
    return tensors


# ---- Smoothing -----------------------------------------------------------------------------------------------------

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


# ---- Static activations --------------------------------------------------------------------------------------------

def input_tensors(module, stats, asymmetric, scale_dtype, s=None):
    """One scale (and zero point) for the input of a linear, after smoothing divided channel j by s[j]."""
    def channels(what):
        values = stats[f"{module}.{what}"].values()
        return [round_f32(x / f) for x, f in zip(values, s)] if s else values

    if not asymmetric:
        scale = symmetric_scale(channels("absmax"), 127, scale_dtype)
        return {module + ".input_scale": Tensor.of([scale], scale_dtype)}
    scale, zero_point = asymmetric_scale(channels("min") + channels("max"), -128, 127, scale_dtype, "F32")
    return {module + ".input_scale": Tensor.of([scale], scale_dtype),
            module + ".input_zero_point": Tensor.of([zero_point], "I8")}


# ---- A whole checkpoint --------------------------------------------------------------------------------------------

def quantize(model, scheme, stats=None, smooth=False, alpha=None, group_size=128, asymmetric=False, scale_dtype=None,
             unquantized=()):
    """Every tensor of the quantized checkpoint, and the vectors s by norm."""
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
    for module in model.linears:
        weight = tensors[module + ".weight"]
        if module in unquantized or (scheme == "w4a16" and weight.shape[1] % group_size):
            continue
        del tensors[module + ".weight"]
        if scheme == "w4a16":
            tensors.update(w4_tensors(module, weight, group_size, asymmetric, scale_dtype))
            continue
        tensors.update(w8_tensors(module, weight, scale_dtype))
        if scheme == "w8a8-static":
            tensors.update(input_tensors(module, stats, asymmetric, scale_dtype_of(weight.dtype, scale_dtype),
                                         s_of_module.get(module)))
    return tensors, s_of_norm


def quantization_config(scheme, ignore, group_size=128, asymmetric=False):
    four_bits, static = scheme == "w4a16", scheme == "w8a8-static"
    weights = {"num_bits": 4 if four_bits else 8, "type": "int", "symmetric": not (four_bits and asymmetric),
               "strategy": "group" if four_bits else "channel", "dynamic": False}
    if four_bits:
        weights["group_size"] = group_size
    inputs = {"num_bits": 8, "type": "int", "symmetric": not (static and asymmetric),
              "strategy": "tensor" if static else "token", "dynamic": not static}
    return {"quant_method": "compressed-tensors", "format": "pack-quantized" if four_bits else "int-quantized",
            "quantization_status": "compressed", "ignore": ignore, "kv_cache_scheme": None,
            "global_compression_ratio": None,
            "config_groups": {"group_0": {"targets": ["Linear"], "output_activations": None, "weights": weights,
                                          "input_activations": None if four_bits else inputs}}}
