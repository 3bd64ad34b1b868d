#!/usr/bin/env python3
"""Writes the measured figures into the docs, so that no number there is typed by hand: the tables of docs/performance.md
from bench.json, bench_ort.json, bench_tool.json and bench_peers.json, each where it is, and the tool's demo into
docs/report.md. docs/speed.svg is drawn by bench/speed_chart.py.

usage: python3 bench/write_figures.py   (after ./dev bench or ./dev bench --ort, python/bench_peers.py --json bench_peers.json)
"""
import json
import pathlib
import subprocess

from processor import processor

ROOT = pathlib.Path(__file__).resolve().parent.parent


def dynamic_range(rows, cell):
    """The table of dynamic-range quantization to s8, and the latency of one row."""
    columns = (("token", None, 0), ("group", -1, 128), ("group", -1, 32), ("tensor", None, 0), ("channel", 0, 0),
               ("channel", 1, 0))
    cases, latency = {}, []
    for row in rows:
        if row["op"] != "dynamic_range":
            continue
        if "limit_share" not in row:
            latency.append(f"- dynamic range {row['in']} → {row['out']}, {row['mode']}, one row of {row['shape'][-1]} on "
                           f"one thread: {row['seconds'] * 1e9:.0f} ns")
        elif row["out"] == "s8" and not (row["granularity"] == "group" and row.get("axis") == 0):
            axis = row.get("axis") if row["granularity"] == "channel" else -1 if row["granularity"] == "group" else None
            key = (row["granularity"], axis, row.get("group_size", 0))
            cases.setdefault((row["mode"], row["in"], row["threads"]), {})[key] = row
    lines = ["", "### Dynamic range", "",
             "Quantization to s8 with scales from the data, shape [16384, 4096]. The limit reads once and writes once; per",
             "tensor and for channels of axis 1 it reads twice.", "",
             "| mode | input | threads | token | group of 128 | group of 32 | tensor | channel, axis 0 | channel, axis 1 |",
             "|---|---|---|---|---|---|---|---|---|"]
    for (mode, source, threads), by in cases.items():
        lines.append(f"| {mode} | {source} | {threads} | " + " | ".join(cell(by.get(c)) for c in columns) + " |")
    return lines + [""] + latency


def linear(rows):
    """The table that compares linear layers with those of other libraries, and whose sums are right."""
    if not rows:
        return []
    # (shape, column) -> threads -> (GMAC/s, share of the limit or None)
    cells, peers, sums = {}, [], {}

    def put(shape, threads, column, seconds, macs, share=None):
        cells.setdefault((tuple(shape), column), {})[threads] = (macs / seconds / 1e9, share)

    def note(peer, verdict):
        if peer not in peers:
            peers.append(peer)
        sums.setdefault(peer, set()).add(verdict)

    for row in rows:
        put(row["shape"], row["threads"], (row["op"], row["mode"]), row["seconds"], row["macs"], row.get("limit_share"))
        for peer in row["peers"]:
            put(row["shape"], row["threads"], peer["name"], peer["seconds"], row["macs"])
            note(peer["name"], peer["sums"])
    shapes = sorted({tuple(row["shape"]) for row in rows}, key=lambda s: (s[1] * s[2], s[0]))
    ort = ROOT / "bench_ort.json"
    for row in json.loads(ort.read_text()) if ort.exists() else ():
        put(row["shape"], row["threads"], row["op"], row["seconds"], row["macs"])
        note(row["op"], row["sums"])

    def cell(shape, column):
        by = cells.get((shape, column), {})
        values = [by[threads] for threads in (1, 2) if threads in by]
        return " / ".join(f"{speed:.1f}" + (f" ({share:.2f})" if share else "") for speed, share in values)

    ours = {("w8a8_linear", "bell"): "w8a8_linear", ("quantized_linear", "bell"): "quantized_linear",
            ("w8a8_linear", "uniform"): "w8a8_linear, uniform weights", ("f32_linear", "f32"): "f32_linear",
            ("f32_linear", "bf16"): "f32_linear, bf16 weights"}
    measured = {column for _, column in cells}
    columns = [column for column in ours if column in measured] + peers
    titles = [ours.get(column, column) for column in columns]
    lines = ["", "### Linear layers", "",
             "Packed s8 weights with a scale for each output channel, f32 output, [M, K] by [N, K]. Each cell: billion",
             "multiplications per second (GMAC/s) on 1 / 2 threads; for M = 1, in brackets, the share of the limit, a loop",
             "that only reads the weight. Weights are bell-shaped (normal, max magnitude 127) unless the column says",
             "uniform (-128 to 127). The other libraries took turns with kvant in one process"
             + (", ort_dynamic before and after it." if "ort_dynamic" in peers else "."), "",
             "| K × N | M | " + " | ".join(titles) + " |", "|---" * (len(titles) + 2) + "|"]
    for shape in shapes:
        lines.append(f"| {shape[1]} × {shape[2]} | {shape[0]} | " + " | ".join(cell(shape, c) for c in columns) + " |")
    raw = [(shape[0], shape) for shape in shapes if (shape, ("w8a8_linear", "raw")) in cells]
    lines.append("")
    if raw:
        lines.append(f"- w8a8_linear with a raw weight, {raw[0][1][1]} × {raw[0][1][2]}: " +
                     ", ".join(f"{cell(shape, ('w8a8_linear', 'raw'))} for M = {m}" for m, shape in raw))
    words = {"exact": "exact", "wrong": "wrong", "f32": "in f32"}
    verdicts = [f"{peer} {' or '.join(words[v] for v in sorted(sums[peer]))}"
                + (" by shape" if len(sums[peer]) > 1 else "") for peer in peers]
    if verdicts:
        lines.append("- Sums of full-range codes, compared with 64-bit sums: kvant exact (its tests), " +
                     ", ".join(verdicts))
    return lines


def operators(rows):
    """The tables of all operators."""
    cases = {}
    for row in rows:
        if row["op"] == "dynamic_range" or "macs" in row or row["numerics"] != "exact" or "limit_share" not in row:
            continue
        elements = 1
        for size in row["shape"]:
            elements *= size
        if elements < 1 << 26 or row["out"] in ("u8", "s4", "u4") or row["in"] in ("u8", "s4", "u4"):
            continue
        key = (row["op"], row["direction"], row["in"], row["out"])
        granularity = (row["granularity"], row.get("group_size", 0))
        cases.setdefault(key, {})[(granularity, row["threads"])] = row
    lines = [f"Measured by `./dev bench` on {processor()}.", "", "### Element-wise operators", "",
             "64 Mi elements, out of cache, `exact` numerics. Each cell: billion elements per second, and in brackets the",
             "share of the limit. Channels and groups: 1 thread.", "",
             "| operator | types | tensor, 1 thread | tensor, 2 threads | channel, last axis | group of 32 | group of 128 |",
             "|---|---|---|---|---|---|---|"]

    def cell(row):
        if row is None:
            return ""
        elements = 1
        for size in row["shape"]:
            elements *= size
        return f"{elements / row['seconds'] / 1e9:.1f} ({row['limit_share']:.2f})"

    for (op, direction, source, target), by in cases.items():
        name = op if direction == "forward" else f"{op} backward"
        types = source if source == target else f"{source} → {target}"
        cells = [cell(by.get(k)) for k in ((("tensor", 0), 1), (("tensor", 0), 2), (("channel", 0), 1), (("group", 32), 1),
                                           (("group", 128), 1))]
        lines.append(f"| {name} | {types} | " + " | ".join(cells) + " |")
    lines += dynamic_range(rows, cell)
    small = [row for row in rows if row["shape"] in ([65536], [64])]
    for row in small:
        share = f", {row['limit_share']:.2f} of the limit" if "limit_share" in row else ""
        what = "in L2, 64 Ki elements" if row["shape"] == [65536] else "one call on 64 elements"
        lines.append(f"- {row['op']} {row['in']} → {row['out']} {row['numerics']}, {what}: {row['seconds'] * 1e9:.0f} ns{share}")
    lines += linear([row for row in rows if row["op"].endswith("linear")])
    return lines


def tool():
    """The lines that compare `kvant quantize` with `cp`."""
    figures = json.loads((ROOT / "bench_tool.json").read_text())
    gigabytes = figures["bytes"] / 1e9
    lines = [f"{gigabytes:.1f} GB of bf16 in a memory file system on {figures['threads']} threads, beside `cp` of the same file in the "
             f"same run ({figures['cp_seconds']:.2f} s):", "", "| scheme | seconds | GB/s | of cp's speed | peak memory |", "|---|---|---|---|---|"]
    return lines + [f"| {scheme} | {made['seconds']:.2f} | {gigabytes / made['seconds']:.1f} | {made['ratio_to_cp']:.2f} | "
                    f"{made['peak_bytes'] / 1e6:.0f} MB |" for scheme, made in figures["schemes"].items()]


def peers():
    """The table that compares the Python package with other libraries."""
    figures = json.loads((ROOT / "bench_peers.json").read_text())
    there = [peer for peer, version in figures["peers"].items() if version]
    # (case, shape) -> peer -> threads -> rows, of which the peer's fastest way counts
    cells = {}
    for row in figures["rows"]:
        case = row["case"] + (", compared with float32" if "float32" in row["how"] else "")
        by = cells.setdefault((case, " × ".join(str(size) for size in row["shape"])), {})
        by.setdefault(row["peer"], {}).setdefault(row["threads"], []).append(row["ratio"])

    def cell(by):
        return " / ".join(f"{min(by[threads]):.1f}" for threads in sorted(by))

    names = ", ".join(f"{peer} {figures['peers'][peer]}" for peer in there)
    lines = [f"Time of {names}, divided by kvant's, on 1 / 2 threads:",
             "above 1, kvant is faster. Each library runs in its fastest way and allocates as much as kvant.", "",
             "| | shape | " + " | ".join(there) + " |", "|---" * (len(there) + 2) + "|"]
    for (case, shape), by in sorted(cells.items(), key=lambda item: "float32" in item[0][0]):
        lines.append(f"| {case} | {shape} | " + " | ".join(cell(by.get(peer, {})) for peer in there) + " |")
    once = [row for row in figures["rows"] if row["threads"] == 1]
    quantizers = [row for row in once if "kvant_error" not in row["agreement"]]
    different = [row for row in quantizers if row["agreement"]["text"] != "equal bits"]
    lines += ["", f"- Results: equal bits in {len(quantizers) - len(different)} of {len(quantizers)} comparisons of quantizers"
              + ("; the others:" if different else "")]
    lines += [f"  - {row['peer']}, {row['case']}, {' × '.join(str(size) for size in row['shape'])}: {row['agreement']['text']}"
              for row in different]
    lines += [f"- Linear layer of {row['shape'][0]} rows, {row['peer']}, {row['how']}: {row['agreement']['text']}"
              for row in once if "kvant_error" in row["agreement"] and row["shape"][0] > 16]
    return lines


def demo():
    """What the tool's demo prints of layers and of the model, without the machine's times."""
    ran = subprocess.run([ROOT / "build/release/kvant", "demo", "-q"], cwd=ROOT / "build", check=True,
                         capture_output=True, text=True)
    layers, model = ran.stdout.split("\n\n")[:2]
    return ["```", *layers.splitlines(), "", *model.splitlines(), "```"]


def fill(text, block, lines):
    """The text with these lines between <!-- block: begin --> and <!-- block: end -->."""
    begin, end = f"<!-- {block}: begin -->", f"<!-- {block}: end -->"
    before, rest = text.split(begin)
    return before + begin + "\n" + "\n".join(lines) + "\n" + end + rest.split(end)[1]


# Block, page, what must be there for it, and what makes its lines.
BLOCKS = [
    ("bench", "docs/performance.md", "bench.json", lambda: operators(json.loads((ROOT / "bench.json").read_text()))),
    ("tool", "docs/performance.md", "bench_tool.json", tool),
    ("peers", "docs/performance.md", "bench_peers.json", peers),
    ("demo", "docs/report.md", "build/release/kvant", demo),
]


def main():
    for block, page, source, lines in BLOCKS:
        if (ROOT / source).exists():
            path = ROOT / page
            path.write_text(fill(path.read_text(), block, lines()))


if __name__ == "__main__":
    main()
