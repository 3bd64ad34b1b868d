"""What a report draws of a layer, computed a second time from the bytes of the two checkpoints, as src/measure/layer_detail.h
defines it."""

import math
import os

import checkpoints as c
import reference
from checkpoints import round_f32


SAMPLED_WEIGHTS = 2 ** 15  # of a layer with more of them, not every row is looked at for histogram and strip


class Layer:
    """The weights that were quantized, and what became of them."""

    def __init__(self, original, folder, module):
        """`original`: tensors by name."""
        tensors = c.read_folder(folder)
        weight = original[module + ".weight"]
        self.rows, self.columns = weight.shape
        self.s = smoothing_of(folder).get(module)
        if self.s:
            weight = reference.smoothed_weight(weight, self.s)
        self.weights = weight.rows()
        scales = tensors[module + ".weight_scale"]
        self.groups = scales.shape[1]
        self.scales = scales.rows()
        self.zero_points = [[0] * self.groups for _ in range(self.rows)]
        if module + ".weight_packed" in tensors:
            self.bits = 4
            words = tensors[module + ".weight_packed"]
            self.codes = [[u - 8 for u in reference.unpack(row, self.columns)] for row in words.rows()]
            if module + ".weight_zero_point" in tensors:
                packed = tensors[module + ".weight_zero_point"].rows()
                for r in range(self.rows):
                    for g in range(self.groups):
                        self.zero_points[r][g] = (((packed[r // 8][g] & 0xFFFFFFFF) >> 4 * (r % 8)) & 15) - 8
        else:
            self.bits = 8
            self.codes = tensors[module + ".weight"].rows()

    def group_of(self, column):
        return column * self.groups // self.columns

    def row(self, r):
        """(column, weight, value, scale, zero point) of the finite weights."""
        scales, zero_points, codes = self.scales[r], self.zero_points[r], self.codes[r]
        for j, w in enumerate(self.weights[r]):
            if math.isfinite(w):
                g = self.group_of(j)
                yield j, w, scales[g] * (codes[j] - zero_points[g]), scales[g], zero_points[g]


def smoothing_of(folder):
    """The vector of every module that was smoothed."""
    path = os.path.join(folder, "kvant", "smoothing.safetensors")
    if not os.path.exists(path):
        return {}
    vectors, module_to_vector = c.read_safetensors(path)
    return {module: vectors[name].values() for module, name in module_to_vector.items() if name in vectors}


def rounded(x):
    return float("%.4g" % x)


def spans(values, span):
    return [values[i:i + span] for i in range(0, len(values), span)]


def row_stride(rows, columns):
    stride = 1
    while -(-rows // stride) * columns > SAMPLED_WEIGHTS and -(-rows // (2 * stride)) >= 64:
        stride *= 2
    return stride


def histograms(layer, stride):
    """Two of them, with bins that were found in f64 and in f32: the definition leaves it open."""
    first, per_code = (-128, 1) if layer.bits == 8 else (-8, 16)
    found = [{"first_code": first, "bins_per_code": per_code, "counts": [0] * 256, "below": 0, "above": 0, "weights": 0}
             for _ in range(2)]
    for r in range(0, layer.rows, stride):
        for _, w, _, scale, zero_point in layer.row(r):
            x = round_f32(round_f32(round_f32(w) / scale) + zero_point)
            places = (x - (first - 0.5)) * per_code, round_f32(round_f32(x - (first - 0.5)) * per_code)
            for histogram, place in zip(found, places):
                histogram["weights"] += 1
                if not place >= 0:
                    histogram["below"] += 1
                elif place >= 256:
                    histogram["above"] += 1
                else:
                    histogram["counts"][math.floor(place)] += 1
    return found


def decibels(signal, noise):
    if noise == 0:
        return math.inf
    return 10 * math.log10(signal / noise) if signal else -math.inf


def channels(layer):
    span = -(-layer.rows // 64)
    found = {"span": span, "least": [], "largest": [], "sqnr_db": []}
    for rows in spans(range(layer.rows), span):
        scales = [scale for r in rows for scale in layer.scales[r]]
        found["least"].append(rounded(min(scales)))
        found["largest"].append(rounded(max(scales)))
        pairs = [(w, w - v) for r in rows for _, w, v, _, _ in layer.row(r)]
        signal, noise = math.fsum(w * w for w, _ in pairs), math.fsum(e * e for _, e in pairs)
        found["sqnr_db"].append(rounded(decibels(signal, noise)) if pairs else math.nan)
    return found


def strip(layer, stride):
    column_span = 1
    while -(-layer.columns // column_span) > 64:
        column_span *= 2
    sampled = -(-layer.rows // stride)
    row_span = stride * -(-sampled // 24)
    rows, columns = -(-layer.rows // row_span), -(-layer.columns // column_span)
    cells = [[] for _ in range(rows * columns)]
    for r in range(0, layer.rows, stride):
        for j, w, v, _, _ in layer.row(r):
            cells[r // row_span * columns + j // column_span].append((w - v) ** 2)
    return {"row_span": row_span, "column_span": column_span, "rows": rows, "columns": columns,
            "rms": [rounded(math.sqrt(math.fsum(cell) / len(cell))) if cell else 0.0 for cell in cells]}


def largest_errors(layer):
    errors = [(-abs(w - v), r, j, w, v) for r in range(layer.rows) for j, w, v, _, _ in layer.row(r) if w != v]
    return [{"row": r, "column": j, "weight": w, "value": v, "error": w - v} for _, r, j, w, v in sorted(errors)[:8]]


def ratio(values):
    """The largest over the median."""
    ordered = sorted(values)
    half = len(ordered) // 2
    median = ordered[half] if len(ordered) % 2 else (ordered[half - 1] + ordered[half]) / 2
    if median == 0:
        return math.inf if ordered[-1] else 1.0
    return ordered[-1] / median


def inputs(columns, absmax, s):
    if absmax is None and s is None:
        return None
    span = -(-columns // 64)
    found = {"span": span, "before": [], "after": [], "smoothing_least": [], "smoothing_largest": [], "ratio_before": None,
             "ratio_after": None}
    if s is not None:
        found["smoothing_least"] = [rounded(min(part)) for part in spans(s, span)]
        found["smoothing_largest"] = [rounded(max(part)) for part in spans(s, span)]
    if absmax is not None:
        found["before"] = [rounded(max(part)) for part in spans(absmax, span)]
        found["ratio_before"] = rounded(ratio(absmax))
    if absmax is not None and s is not None:
        after = [x / f for x, f in zip(absmax, s)]
        found["after"] = [rounded(max(part)) for part in spans(after, span)]
        found["ratio_after"] = rounded(ratio(after))
    return found


def detail(layer, absmax=None):
    stride = row_stride(layer.rows, layer.columns)
    return {"row_stride": stride, "histogram": histograms(layer, stride)[0], "channels": channels(layer),
            "strip": strip(layer, stride), "largest_errors": largest_errors(layer),
            "inputs": inputs(layer.columns, absmax, layer.s)}
